//! Volumes: logical addresses over devices, with superblocks, chunks, profiles and mirrors.
//!
//! An address such as 30,408,704 in a tree or file is a place on one device or several. This crate
//! opens a volume's devices, maintains the map from logical addresses to devices, and reads and
//! writes. Every read of the volume has a verifier. A read skips a copy that fails the verifier,
//! and rebuilds bytes from parity if it can. Every write goes to all copies. The volume crate does
//! not read trees: the layer above passes it chunk and device items, and entries of the RAID stripe
//! tree.
//!
//! | module | holds |
//! |---|---|
//! | [`volume`] | [`Volume`]: the handle, and the steps of opening |
//! | [`open`] | options; which superblock leads, which devices belong together |
//! | [`superblocks`] | one device's superblocks: the primary, its copies, those of zoned devices |
//! | [`devices`] | one slot for each device, given, missing or left out, and its error counters |
//! | [`replacement`] | a device that replaces another: written in parallel, then exchanged for it |
//! | [`returning`] | a device that missed commits: written again, its superblock last |
//! | [`chunk_map`] | logical address → chunk |
//! | [`layout`] | chunk offset ↔ stripe and offset, for every profile |
//! | [`stripe_tree`] | chunks whose bytes are located by the RAID stripe tree |
//! | [`parity`] | P and Q, and the rebuild of blocks from them |
//! | `mirror` | the ways to read a run of bytes, and their order |
//! | `fetch` | one way: a read, or a rebuild from the rest of the row |
//! | [`read`] | batched reads with a verifier, fail-over, data sector by sector |
//! | [`write`](mod@write) | batched writes to all copies and stripes, rows and their parity, flushes, superblocks, discards |
//! | [`geometry`] | the placement of a profile's chunks on devices, for the allocator |
//! | [`copies`] | each copy and each stripe alone, and their locations |
//! | [`view`] | volumes of older states, for reading |
//! | [`excluded_ranges`] | addresses that no extent may have |
//! | [`signatures`], [`wiping`] | the content that a device seems to hold, and its removal |
//! | [`faults`], [`notice`], [`error`] | skipped copies, notices to the user, and errors |
//!
//! A writer adds and removes chunks, and its commits replace the superblock. Chunk map and
//! superblock are `Arc`s that are exchanged, and readers keep the `Arc` that they hold. Scrub,
//! repair and replace are crates above that use [`copies`].
#![forbid(unsafe_code)]
#![cfg_attr(
    test,
    allow(clippy::arithmetic_side_effects, reason = "tests compute with known numbers")
)]

pub mod chunk_map;
pub mod copies;
pub mod devices;
pub mod error;
pub mod excluded_ranges;
pub mod faults;
mod fetch;
pub mod geometry;
mod in_doubt;
pub mod layout;
pub mod membership;
mod membership_refusal;
mod mirror;
pub mod notice;
pub mod open;
pub mod parity;
pub mod read;
pub mod replacement;
pub mod returning;
pub mod signatures;
pub mod stripe_tree;
pub mod superblock_recovery;
pub mod superblocks;
pub mod view;
pub mod volume;
pub mod wiping;
pub mod write;

pub use chunk_map::{ChunkMap, MappedChunk};
pub use copies::{Mapping, MappingContent};
pub use devices::{DeviceErrors, DeviceSlot};
pub use error::{Attempt, Corruption, DevicesError, Error, MissingDevice, Stale, Unreadable};
pub use faults::{Fault, FaultCounts, FaultLog, FaultReason, Rejection};
pub use geometry::StripeGeometry;
pub use membership_refusal::{MembershipRefusal, PackingObstacle};
pub use notice::Notice;
pub use open::{OpenOptions, Rescue, WholeChange};
pub use read::{ExtentRead, LostRange, MAXIMUM_READ_BYTES, PendingExtent, VerifySectors};
pub use replacement::{FoundTarget, Replacement, Returning, RowGuard};
pub use stripe_tree::{ResolvedStripe, ResolvedStripes, StripeResolver};
pub use view::ViewDevice;
pub use volume::Volume;
pub use write::{ExtentWrite, NeededDevice, RowsLocked, VerifyBeside, WriteRefusal};
