//! Tree blocks that no root leads to: a scan of whole devices, its index, and older states.
//!
//! The trees of a volume are reached from its superblock. This crate finds tree blocks without a
//! tree: a pass over all bytes of the devices recognises each block by its header and checksum.
//! Older versions of a block stay on the devices until their space is used again, so the scan also
//! finds the roots of earlier commits.
//!
//! | module | holds |
//! |---|---|
//! | [`identity`] | the file system of given devices: from superblocks, or from samples of blocks |
//! | [`mod@scan`] | the pass over the devices |
//! | [`record`] | a found block |
//! | [`index`] | the file that keeps all found blocks; an interrupted scan continues from it |
//! | [`mod@states`] | the roots of earlier commits |
//! | `indexed` | trees whose blocks the index locates, without a chunk map |
//! | `geometry` | the chunks of a state: from its chunk tree, else from the nearest one |
//! | [`chunks`] | the chunks of a volume whose chunk tree is lost |
//! | [`view`] | a state as a file system that can be read |
//! | [`survey`] | how many blocks of a state's trees can be read |
//! | `complete` | a reader of a whole file that continues after failures |
//! | [`mod@history`] | versions of files over the states |
//! | [`verdict`] | how far the content of a file of a state can be trusted |
//! | [`mod@find_roots`] | candidates for the root of one tree |
//!
//! # Invariants
//!
//! - The crate never writes to the devices of a volume.
//! - Nothing from an index is trusted. Each part is checked when it is read, and each block is read
//!   and checked again before it is used.
//! - Memory has a bound that depends on neither the devices nor the number of blocks.
//! - Equal devices yield equal indexes, for any number of threads and interruptions.
//!
//! # Left out
//!
//! Blocks that a RAID5 or RAID6 parity would rebuild, and blocks of seed devices' file systems.
#![forbid(unsafe_code)]
#![cfg_attr(
    test,
    allow(
        clippy::arithmetic_side_effects,
        clippy::cast_possible_truncation,
        reason = "tests compute with known numbers"
    )
)]

pub mod chunks;
mod complete;
mod error;
pub mod find_roots;
mod geometry;
mod header;
pub mod history;
pub mod identity;
pub mod index;
mod indexed;
pub mod record;
pub mod scan;
pub mod states;
pub mod survey;
pub mod verdict;
pub mod view;

pub use chunks::{ChunkEvidence, RecoveredChunk, RecoveredChunks, Unproven, recover_chunks};
pub use complete::CompleteReader;
pub use error::{Error, IndexProblem, Result};
pub use find_roots::{FoundRoots, RootQuery, find_roots};
pub use history::{History, Version, WantedFiles, best_versions, history};
pub use identity::{FoundDevice, Identity, identify, identify_by_blocks};
pub use index::{BlockIndex, IndexReader, IndexWriter, OpenedIndex};
pub use record::{Record, RecordFlags};
pub use scan::{Scanned, scan};
pub use states::{Origin, State, states, states_at};
pub use survey::{BlockCounts, Survey, Surveyor};
pub use verdict::{FileFindings, Judge, Verdict};
pub use view::{View, ViewOptions};
