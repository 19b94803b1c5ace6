//! Round trips: a history's snapshots are sent, the kernel receives them, and what came of it is compared
//! with the snapshots and with what the kernel's own streams make.
//!
//! - [`volumes`]: pairs of mounted volumes, to send from and to receive in, used again and again;
//! - [`transfer`]: sends one history in one format, by the kernel or by Buttress, and receives it;
//! - [`tree`]: what a snapshot holds: names, attributes, content, holes, shared extents;
//! - [`compare`]: two such trees, and three;
//! - [`received`]: the same streams, received by Buttress;
//! - [`wire`]: the kernel's streams decoded, dumped and encoded again;
//! - [`round_trip`]: a whole history in every format, and what is kept of one that fails.

pub mod compare;
pub mod merged;
pub mod received;
pub mod round_trip;
pub mod transfer;
pub mod tree;
pub mod volumes;
pub mod wire;

/// Who makes the streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sender {
    /// The kernel, through `btrfs send`.
    Kernel,
    /// Buttress, from the image below the mount.
    Buttress,
}

impl Sender {
    /// The one under test: Buttress, unless the environment's `BUTTRESS_SENDER` says `kernel`, which tests
    /// the tests.
    #[must_use]
    pub fn under_test() -> Self {
        match std::env::var("BUTTRESS_SENDER").as_deref() {
            Ok("kernel") => Self::Kernel,
            _ => Self::Buttress,
        }
    }
}

/// What a stream looks like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Format {
    /// A short name for messages and files.
    pub name: &'static str,
    /// The options of `send`, the same for both senders.
    pub options: &'static [&'static str],
    /// Whether it can say that a range becomes a hole.
    pub says_holes: bool,
}

/// The formats that are tested.
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
