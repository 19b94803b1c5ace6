//! Hostile input: the code that must withstand any bytes, as functions of bytes.
//!
//! Each [`Target`] feeds its input to one structure, or to a whole volume, after repairing the
//! fields that would reject the input at once (checksums, addresses, hashes in keys). A target
//! never returns a failure: its findings are a panic, a hang, or unbounded memory. A target returns
//! whether the input passed the first checks, because a target that refuses everything shows
//! nothing.
//!
//! libFuzzer runs these functions (`fuzz/`, `cargo xtask fuzz`), and this crate's tests run them
//! over the committed inputs. The modules:
//!
//! - [`input`]: draws numbers and bytes from an input;
//! - [`items`], [`blocks`], [`compressed`], [`partitions`], [`streams`]: the targets of single
//!   structures;
//! - [`views`]: the target of views into streams; [`sources`]: the targets of images' sources;
//! - [`ext`]: the target of ext2, ext3 and ext4 volumes;
//! - [`image`]: the target of whole volumes, read by the library; `command`: by the command;
//! - `logs`: the target of pending logs, which are replayed; `dumps`: the targets of metadata dumps;
//! - `repairing`: the target of repairs; `salvaging`: the targets of scans and older states;
//! - [`seed_volume`]: small volumes of the kernel, packed; [`mutation`]: changes to them;
//!   [`editor`]: a single change at a known place;
//! - [`plants`]: volumes with one damage each, and the findings that a check must report;
//! - [`damage`]: volumes with the damage of accidents, as lost blocks and cut power;
//! - [`seeds`]: first inputs, cut out of those volumes; [`corpus`]: inputs kept in one file.

pub mod blocks;
#[cfg(feature = "command")]
pub mod command;
pub mod compressed;
pub mod corpus;
pub mod damage;
#[cfg(feature = "writing")]
pub mod dumps;
pub mod editor;
pub mod ext;
pub mod image;
pub mod input;
pub mod items;
#[cfg(feature = "writing")]
pub mod logs;
pub mod mutation;
pub mod partitions;
pub mod plants;
#[cfg(feature = "writing")]
pub mod receiving;
#[cfg(feature = "writing")]
pub mod repairing;
#[cfg(feature = "writing")]
pub mod salvaging;
pub mod seed_volume;
pub mod seeds;
pub mod sources;
pub mod streams;
pub mod views;

/// The depth that an input reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Depth {
    /// The first checks refused the input.
    Refused,
    /// The input passed the first checks.
    Passed,
}

impl Depth {
    /// Returns [`Depth::Passed`] for `true`.
    #[must_use]
    pub const fn passed(passed: bool) -> Self {
        if passed { Self::Passed } else { Self::Refused }
    }
}

/// A function of bytes that must withstand any bytes.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// The name of the fuzz target, and of its files.
    pub name: &'static str,
    /// The longest useful input, in bytes.
    pub input_bytes_max: usize,
    /// The function, which accepts any bytes.
    pub body: fn(&[u8]) -> Depth,
}

/// Returns all targets.
#[must_use]
pub fn targets() -> Vec<Target> {
    let mut targets = vec![
        Target {
            name: "image",
            input_bytes_max: 1024,
            body: image::image,
        },
        #[cfg(feature = "command")]
        Target {
            name: "command",
            input_bytes_max: 512,
            body: command::command,
        },
        #[cfg(feature = "writing")]
        Target {
            name: "log",
            input_bytes_max: 512,
            body: logs::log,
        },
        #[cfg(feature = "writing")]
        Target {
            name: "receiving",
            input_bytes_max: 8192,
            body: receiving::receiving,
        },
        #[cfg(feature = "writing")]
        Target {
            name: "repair",
            input_bytes_max: 512,
            body: repairing::repair,
        },
        #[cfg(feature = "writing")]
        Target {
            name: "scan_index",
            input_bytes_max: 256,
            body: salvaging::scan_index,
        },
        #[cfg(feature = "writing")]
        Target {
            name: "assemble",
            input_bytes_max: 512,
            body: salvaging::assemble,
        },
        #[cfg(feature = "writing")]
        Target {
            name: "dump",
            input_bytes_max: 8192,
            body: dumps::dump,
        },
        #[cfg(feature = "writing")]
        Target {
            name: "dump_restore",
            input_bytes_max: 256,
            body: dumps::dump_restore,
        },
        #[cfg(feature = "writing")]
        Target {
            name: "dump_sanitise",
            input_bytes_max: 512,
            body: dumps::dump_sanitise,
        },
        Target {
            name: "superblock",
            input_bytes_max: 4096,
            body: blocks::superblock,
        },
        Target {
            name: "tree_block",
            input_bytes_max: 4200,
            body: blocks::tree_block,
        },
        Target {
            name: "leaf",
            input_bytes_max: 4096,
            body: blocks::leaf,
        },
        Target {
            name: "node",
            input_bytes_max: 2048,
            body: blocks::node,
        },
        Target {
            name: "zlib",
            input_bytes_max: 4096,
            body: compressed::zlib,
        },
        Target {
            name: "zstd",
            input_bytes_max: 4096,
            body: compressed::zstd,
        },
        Target {
            name: "lzo",
            input_bytes_max: 4096,
            body: compressed::lzo,
        },
        Target {
            name: "ext",
            input_bytes_max: 512,
            body: ext::ext,
        },
        Target {
            name: "gpt",
            input_bytes_max: 4096,
            body: partitions::gpt,
        },
        Target {
            name: "mbr",
            input_bytes_max: 4096,
            body: partitions::mbr,
        },
        Target {
            name: "tar",
            input_bytes_max: 8192,
            body: sources::tar,
        },
        Target {
            name: "manifest",
            input_bytes_max: 4096,
            body: sources::manifest,
        },
        Target {
            name: "oci",
            input_bytes_max: 4096,
            body: sources::oci,
        },
        Target {
            name: "stream",
            input_bytes_max: 8192,
            body: streams::stream,
        },
        Target {
            name: "stream_mended",
            input_bytes_max: 8192,
            body: streams::stream_mended,
        },
        Target {
            name: "stream_view",
            input_bytes_max: 8192,
            body: views::stream_view,
        },
    ];
    targets.extend(items::targets());
    targets
}

/// Returns the target with this name.
#[must_use]
pub fn target(name: &str) -> Option<Target> {
    targets().into_iter().find(|target| target.name == name)
}
