//! Devices: files, block devices and memory behind one request queue.
//!
//! The modules of the crate:
//!
//! - [`Device`] (`device.rs`): the type that the layers above hold. `Device` reads and writes
//!   singly or in batches ([`PendingRead`], [`PendingWrite`]), and flushes;
//! - `queue/`: plug, merging, completion, and the statistics that iostat prints;
//! - `engine/`: worker threads, io_uring, inline: chosen at run time;
//! - [`Schedule`] (`schedule.rs`), [`VirtualClock`] (`clock.rs`): the hook for simulated disks, and
//!   their time;
//! - `copying.rs`: small writes into the system's cache, which bypass queue and engine;
//! - [`Backend`] (`backend.rs`): the trait below, and its kinds. `partition.rs` has GPT and MBR
//!   inside a device or image file. The files `file.rs` and `memory.rs` hold further backends;
//! - [`overlay`]: changes kept in a file beside the device;
//! - [`placement`]: the processors on which pools of threads run;
//! - [`arenas`]: the number of arenas of the C library's allocator;
//! - [`Buffer`] (`buffer.rs`): aligned, pooled memory.
//!
//! The crate `buttress-lab` has devices for tests: simulated disks, injected faults, power cuts,
//! gates, full hosts.
//!
//! On systems other than Linux, `portable/file.rs` replaces `file.rs`. The portable file reads and
//! writes image files at positions. Block devices, overlays in files, io_uring and `O_DIRECT` need
//! Linux.
//!
//! The device crate does not depend on btrfs. In this crate, offsets are bytes on one device;
//! layers above give them their own types. `unsafe` occurs only in `arenas.rs`, `buffer.rs` and its
//! submodules, `engine/io_uring.rs` and the system calls in `file/`, each time with its reason.
#![cfg_attr(
    test,
    allow(
        clippy::arithmetic_side_effects,
        reason = "tests work on numbers of their own"
    )
)]
#![cfg_attr(
    test,
    allow(
        clippy::cast_possible_truncation,
        reason = "tests work on numbers of their own"
    )
)]

pub mod arenas;
mod backend;
mod buffer;
mod clock;
mod copying;
mod device;
mod engine;
mod error;
#[cfg(target_os = "linux")]
mod file;
#[cfg(not(target_os = "linux"))]
#[path = "portable/file.rs"]
mod file;
mod memory;
pub mod overlay;
mod partition;
mod pending;
pub mod placement;
#[cfg(test)]
#[cfg(target_os = "linux")]
#[path = "portable/file.rs"]
mod portable_file;
mod queue;
mod reader;
mod schedule;

pub use backend::{Backend, Source};
#[cfg(target_os = "linux")]
pub use backend::{LargeWriteTarget, RingTarget};
pub use buffer::{ALIGNMENT_BYTES, Buffer};
pub use clock::VirtualClock;
pub use device::{DEFAULT_DEPTH, Device, MAX_REQUEST_BYTES, OpenOptions};
pub use engine::Engine;
pub use error::{IoError, Operation, check_range, out_of_range};
#[cfg(target_os = "linux")]
pub use file::LockedFile;
pub use memory::MemoryBackend;
pub use partition::{Offset, window as partition_window};
pub use pending::{PendingRead, PendingWrite};
pub use queue::request::{ReadRequest, WriteRequest};
pub use queue::statistics::{Copies, Counters, QueueStatistics};
pub use reader::ReaderBackend;
pub use schedule::{QueuedRequest, Schedule, StartedRequest};
