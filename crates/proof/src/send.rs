//! Round trips: a history's snapshots are sent, the kernel receives them, and the result is
//! compared with the snapshots and with the result of the kernel's own streams.
//!
//! - [`volumes`]: pairs of mounted volumes for sending and receiving, reused for many histories;
//! - [`transfer`]: sends one history in one format, by the kernel or by Buttress, and receives it;
//! - [`tree`]: the content of a snapshot: names, attributes, content, holes, shared extents;
//! - [`compare`]: comparisons of two such trees, and of three;
//! - [`received`]: the same streams, received by Buttress;
//! - [`wire`]: the kernel's streams decoded, dumped and encoded again;
//! - [`round_trip`]: a whole history in every format, and the files kept of a failing one.

pub mod compare;
pub mod merged;
pub mod received;
pub mod round_trip;
pub mod transfer;
pub mod tree;
pub mod volumes;
pub mod wire;

/// Sender of the streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sender {
    /// The stream of the kernel, made by `btrfs send`.
    Kernel,
    /// The stream of Buttress, from the image below the mount.
    Buttress,
}

impl Sender {
    /// Returns the sender under test: Buttress, unless the environment variable `BUTTRESS_SENDER`
    /// is `kernel`, which tests the tests.
    #[must_use]
    pub fn under_test() -> Self {
        match std::env::var("BUTTRESS_SENDER").as_deref() {
            Ok("kernel") => Self::Kernel,
            _ => Self::Buttress,
        }
    }
}

/// Format of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Format {
    /// A short name for messages and files.
    pub name: &'static str,
    /// Options of `send`, the same for both senders.
    pub options: &'static [&'static str],
    /// True if the format can punch holes.
    pub says_holes: bool,
}

/// The tested formats.
pub const FORMATS: [Format; 3] = [
    Format {
        name: "v1",
        options: &[],
        says_holes: false,
    },
    Format {
        name: "v2",
        options: &["--proto", "2"],
        says_holes: true,
    },
    Format {
        name: "compressed",
        options: &["--proto", "2", "--compressed-data"],
        says_holes: true,
    },
];
