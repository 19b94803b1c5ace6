//! Scrub: every copy and all parity of a volume is read, compared, and mended from what is good.
//!
//! [`Scrub::run`] goes over a volume that nobody else writes, or beside those who do ([`Scrub::beside`]). It reads what is in use, each copy by itself: superblocks, tree
//! blocks, data, parity. What fails its check is rewritten from another copy or from parity, read back and compared. What
//! cannot be mended is listed with every place that was tried ([`Damage`]).
//!
//! # How
//!
//! A chunk is cut into *groups*: 8 stripes of 64 KiB on each of its devices, at the same place. The extent tree and the
//! checksum tree are walked once, alongside, in order of address; a group that is filled is submitted to all of its devices
//! at once, in one plug each, and up to 16 are under way. Nothing waits for a group: threads, one for each core, take those
//! that were submitted, wait for their bytes and check them. Chunks that need different devices run side by side.
//!
//! | module | holds |
//! |---|---|
//! | [`mod@scrub`] | [`Scrub`]: begun, run, asked how far it is |
//! | `options`, `error`, `expected` | how to scrub, why not, how much there is to do |
//! | `job` | what all threads share |
//! | `streams` | who walks, who checks, how much is under way |
//! | `schedule` | which chunk is next, so that all devices have work |
//! | `used` | what of a chunk is in use, with checksums: the two trees, walked once |
//! | `group`, `filling` | a group: what is read of each stripe; how a chunk becomes groups |
//! | `reading` | asking devices for a group, and waiting for it |
//! | `judging` | what becomes of a group that has arrived |
//! | `fetched` | what came back from one stripe, sector by sector where it failed |
//! | `verify` | one copy of one piece against its checksum or header |
//! | `mirrors` | profiles with copies: bad ones from good ones |
//! | `rows` | RAID5 and RAID6: columns from parity, parity from columns |
//! | `superblocks` | all superblocks of all devices |
//! | `mending` | writing, reading back, and noting what became of it |
//! | [`damage`], [`report`] | what is found, counted and told |
//! | [`position`] | where a scrub is, to go on from there |
//! | `limit` | so many bytes in a second of each device |
//! | `copying`, `filling_target` | what goes to the target of a replacement; in which order, and how far it is |
//! | [`healing`] | what readers pass over, mended behind their backs |
//! | [`replace`] | replacing a device: copied, committed on the way, checked through the target, finished |
//! | [`resync`] | a device that missed commits, brought up to date |
//!
//! # Bounds
//!
//! Memory: the groups under way (8 MiB for each device), beside the cache's budget. Damage is kept up to a number that is
//! given, and counted beyond.
//!
//! # What is not done
//!
//! Volumes with a RAID stripe tree or zones are refused by name. Data without checksums whose copies differ is told, not
//! mended: nothing says which is right. What a pending log uses is not read.
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
