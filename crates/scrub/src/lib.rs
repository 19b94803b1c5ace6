//! Scrub: reads every copy and all parity of a volume, compares them, and repairs bad ones from
//! good ones.
//!
//! [`Scrub::run`] scrubs a volume without writers, or beside writers ([`Scrub::beside`]). A scrub
//! reads all used superblocks, tree blocks, data and parity, each copy separately. It rewrites a
//! copy that fails its check from another copy or from parity, reads it back and compares it. An
//! error that cannot be repaired is listed with every place that was tried ([`Damage`]).
//!
//! # How
//!
//! A chunk is divided into *groups*: 8 stripes of 64 KiB on each of its devices, at the same
//! offset. A stream of a scrub walks the extent tree and the checksum tree once, in order of
//! address. The stream submits a filled group to all its devices at once, in one plug for each
//! device, and keeps up to 16 groups in flight. Submitting never waits for a group. Checking
//! threads, one for each core, take submitted groups, wait for their bytes and check them. Chunks
//! on different devices run side by side.
//!
//! | module | holds |
//! |---|---|
//! | [`mod@scrub`] | [`Scrub`]: begin, run, position |
//! | `options`, `error`, `expected` | options, errors, the expected number of bytes |
//! | `job` | the state that all threads share |
//! | `streams` | the threads that walk and check, and the groups in flight |
//! | `schedule` | the choice of the next chunk, so that all devices have work |
//! | `used` | the used parts of a chunk with checksums: the two trees, walked once |
//! | `group`, `filling` | a group: its reads of each stripe; the division of a chunk into groups |
//! | `reading` | submitting the reads of a group, and waiting for them |
//! | `judging` | the handling of a group that has arrived |
//! | `fetched` | the result of reading one stripe, sector by sector after a failure |
//! | `verify` | a copy of a piece against its checksum or header |
//! | `mirrors` | profiles with copies: repair of bad copies from good ones |
//! | `rows` | RAID5 and RAID6: columns from parity, parity from columns |
//! | `superblocks` | all superblocks of all devices |
//! | `mending` | writing, reading back, and recording the outcome |
//! | [`damage`], [`report`] | damage, counters and the report |
//! | [`position`] | the position of a scrub, for resuming it |
//! | `limit` | a limit of bytes per second for each device |
//! | `copying`, `filling_target` | the bytes for the target of a replacement; their order, and the progress |
//! | [`healing`] | background repair of bad copies that reads pass over |
//! | [`replace`] | replacing a device: copy with commits, check through the target, end |
//! | [`resync`] | bringing a device that missed commits up to date |
//!
//! # Bounds
//!
//! Memory: the groups in flight (8 MiB for each device), besides the cache's budget. Damage is
//! listed up to a given number, and counted beyond.
//!
//! # Not done
//!
//! Volumes with a RAID stripe tree or zones are refused by name. If copies of data without
//! checksums differ, scrub reports them and repairs nothing, because it is unknown which copy is
//! right. A scrub reads no blocks and no data of a pending log.
#![forbid(unsafe_code)]
#![cfg_attr(
    test,
    allow(clippy::arithmetic_side_effects, reason = "tests compute with known numbers")
)]

mod copying;
pub mod damage;
mod error;
mod expected;
mod fetched;
mod filling;
mod filling_target;
mod group;
pub mod healing;
mod job;
mod judging;
mod limit;
mod mending;
mod mirrors;
mod options;
pub mod position;
mod reading;
pub mod replace;
pub mod report;
pub mod resync;
mod rows;
mod schedule;
pub mod scrub;
mod streams;
mod superblocks;
mod used;
mod verify;

pub use copying::Lost;
pub use damage::{Cause, Damage, Outcome, Part};
pub use error::Error;
pub use healing::{Healed, Healer};
pub use options::{Options, Shape};
pub use position::{ChunkPosition, Position};
pub use replace::{Replace, ReplaceOptions, Replaced};
pub use report::{Counters, DeviceReport, Report};
pub use resync::{Resync, ResyncOptions, Resynced, ResyncedDevice};
pub use scrub::{IsWritten, Scrub, Views};
