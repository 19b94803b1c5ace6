//! Logical addresses over devices: superblocks, chunks, profiles, mirrors.
//!
//! What a tree or a file calls address 30,408,704 is a place on one device or several. This crate opens the
//! devices that make up a volume, keeps the map from logical addresses to them, and reads and writes: every read carries
//! its verifier, a copy that fails it is passed over, and what parity can rebuild is rebuilt; every write goes to all
//! copies. It knows nothing of trees: chunk and device items, and entries of the RAID stripe tree, are handed to it from above.
//!
//! | module | holds |
//! |---|---|
//! | [`volume`] | [`Volume`]: the handle, and the steps of opening |
//! | [`open`] | options; which superblock leads, which devices belong together |
//! | [`superblocks`] | one device's superblocks: the primary, its copies, those of zoned devices |
//! | [`devices`] | one slot per device, given, missing or left out, and how often it failed |
//! | [`replacement`] | a device that takes another's place: written beside it, then exchanged for it |
//! | [`membership`] | devices that join a volume, and devices that leave it |
//! | [`returning`] | a device that missed commits: written again, and its superblock last |
//! | [`chunk_map`] | logical address → chunk |
//! | [`layout`] | chunk offset ↔ stripe and offset, for every profile |
//! | [`stripe_tree`] | chunks whose bytes lie where the RAID stripe tree says |
//! | [`parity`] | P and Q, and what can be rebuilt from them |
//! | `mirror` | the ways to get a run of bytes, and their order |
//! | `fetch` | one way: a read, or a rebuild from the rest of the row |
//! | [`read`] | batched reads with a verifier, fail-over, data sector by sector |
//! | [`write`](mod@write) | batched writes to all copies and stripes, rows and their parity, flushes, superblocks, discards |
//! | [`geometry`] | how chunks of a profile lie on devices: what an allocator needs to know |
//! | [`copies`] | each copy and each stripe alone, and where they lie |
//! | [`excluded_ranges`] | addresses that no extent may have |
//! | [`signatures`], [`wiping`] | what a device seems to hold; erasing that |
//! | [`faults`], [`notice`], [`error`] | what was passed over, said aloud, or refused |
//!
//! Chunks of a writer come and go, and its commits replace the superblock: both are `Arc`s that are exchanged, and
//! readers keep theirs. Where the next rooms go: healing in `read`, at the place where a fault is recorded; scrub, repair
//! and replace are crates above that use [`copies`].
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
mod mirror;
pub mod notice;
pub mod open;
pub mod parity;
pub mod read;
pub mod replacement;
pub mod returning;
pub mod signatures;
pub mod stripe_tree;
pub mod superblocks;
pub mod volume;
pub mod wiping;
pub mod write;

pub use chunk_map::{ChunkMap, MappedChunk};
pub use copies::{Mapping, MappingContent};
pub use devices::{DeviceErrors, DeviceSlot};
pub use error::{Attempt, Corruption, DevicesError, Error, MissingDevice, Stale, Unreadable};
pub use faults::{Fault, FaultCounts, FaultLog, FaultReason, Rejection};
pub use geometry::StripeGeometry;
pub use membership::MembershipRefusal;
pub use notice::Notice;
pub use open::{OpenOptions, Rescue};
pub use read::{ExtentRead, LostRange, MAXIMUM_READ_BYTES, PendingExtent, VerifySectors};
pub use replacement::{FoundTarget, Replacement, Returning, RowGuard};
pub use stripe_tree::{ResolvedStripe, ResolvedStripes, StripeResolver};
pub use volume::Volume;
pub use write::{ExtentWrite, NeededDevice, RowsLocked, VerifyBeside, WriteRefusal};
