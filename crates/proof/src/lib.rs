//! Proof: Buttress against the kernel, layer by layer and as a whole.
//!
//! Nothing depends on this crate. Its rooms:
//!
//! - [`harness`]: runs named cases, several at a time, and says for each whether it passed, failed or was
//!   skipped, and why; the last line counts them;
//! - [`tools`]: what the machine offers: root, loop devices, the kernel's btrfs, versions of btrfs-progs;
//! - [`loop_device`]: attaches images, mounts volumes, and undoes both;
//! - [`volumes`]: makes volumes with mkfs.btrfs and the kernel from a specification;
//! - [`content`]: fills a mounted volume with every kind of file and metadata, from a seed;
//! - [`manifest`]: what a directory tree holds: the common form in which the two sides are compared;
//! - [`pax`]: reads a tar stream into a manifest, independently of the writer in the command;
//! - [`noise`]: spoils copies of a volume's devices.

pub mod content;
pub mod harness;
pub mod loop_device;
pub mod manifest;
pub mod noise;
pub mod pax;
pub mod tools;
pub mod volumes;
