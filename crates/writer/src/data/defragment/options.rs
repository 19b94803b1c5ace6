//! The options and the summary of a defragmentation.

use buttress_format::compression::CompressionMethod;
use buttress_format::{ByteCount, FileOffset};

/// The most content that is rewritten at once, in bytes.
pub(super) const PIECE_BYTES_MAX: u64 = 32 << 20;

/// The treatment of compression by a defragmentation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DefragmentCompression {
    /// New extents are compressed as the file's property and the options of the volume say.
    /// Compressed content stays compressed.
    #[default]
    Keep,
    /// All content is compressed by this method.
    With(CompressionMethod),
    /// No content is compressed, and compressed content is decompressed.
    Never,
}

/// The options of a defragmentation.
#[derive(Clone, Copy, Debug)]
pub struct DefragmentOptions {
    /// The first byte to defragment.
    pub start: FileOffset,
    /// The length of the range to defragment; the range ends at the end of the file at the latest.
    pub length: ByteCount,
    /// Extents of this length and above stay as they are.
    pub target: ByteCount,
    /// The content that is rewritten at a time, in bytes; at most 32 MiB.
    pub step: ByteCount,
    /// The treatment of the content's compression.
    pub compression: DefragmentCompression,
    /// Whether extents with several users stay shared. Such extents move together for all of their
    /// users, and are not joined.
    pub keeps_sharing: bool,
}

impl DefragmentOptions {
    /// The target size of btrfs-progs: 32 MiB.
    pub const TARGET: ByteCount = ByteCount::new(32 << 20);
}

impl Default for DefragmentOptions {
    fn default() -> Self {
        Self {
            start: FileOffset::MIN,
            length: ByteCount::MAX,
            target: Self::TARGET,
            step: ByteCount::new(PIECE_BYTES_MAX),
            compression: DefragmentCompression::Keep,
            keeps_sharing: false,
        }
    }
}

/// The work of a defragmentation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DefragmentSummary {
    /// The number of file extents that were replaced.
    pub old_extents: u64,
    /// The number of file extents that replaced them.
    pub new_extents: u64,
    /// The length of the rewritten content, in bytes.
    pub rewritten: ByteCount,
    /// The length on disk of shared extents that moved with all of their users, in bytes.
    pub moved: ByteCount,
    /// The length of content for which free space of no more fragments was better, in bytes.
    pub left: ByteCount,
    /// The length of content that writers changed all the time, in bytes.
    pub busy: ByteCount,
}

impl DefragmentSummary {
    /// Adds the work on another file.
    pub const fn add(&mut self, other: &Self) {
        // Clamp: sums for display.
        self.old_extents = self.old_extents.saturating_add(other.old_extents);
        self.new_extents = self.new_extents.saturating_add(other.new_extents);
        self.rewritten = self.rewritten.saturating_add(other.rewritten);
        self.moved = self.moved.saturating_add(other.moved);
        self.left = self.left.saturating_add(other.left);
        self.busy = self.busy.saturating_add(other.busy);
    }
}
