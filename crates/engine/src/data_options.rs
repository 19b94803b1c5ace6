//! Options for writing content.

use buttress_format::compression::CompressionMethod;
use buttress_format::{ByteCount, InodeFlags};

/// Options for writing content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataOptions {
    /// The compression of content without a property of its own. `None` compresses only files whose flags or properties ask.
    pub compression: Option<CompressionMethod>,
    /// Whether content is compressed despite the inode's flags and an estimate of the gain.
    pub compress_force: bool,
    /// Files up to this size lie inside the tree, if a sector and a leaf have room for them.
    pub max_inline: ByteCount,
    /// Whether new files have checksums.
    pub checksums: bool,
    /// Whether content of new files is copied on write. Without that they have no checksums either.
    pub copy_on_write: bool,
    /// At most this much data is dirty, and at most half of what may be dirty of everything.
    pub delalloc_bytes_max: ByteCount,
}

impl DataOptions {
    /// The flags that new regular files have for these options.
    pub fn flags_of_new_files(&self) -> InodeFlags {
        match (self.copy_on_write, self.checksums) {
            (false, _) => InodeFlags::NODATACOW | InodeFlags::NODATASUM,
            (true, false) => InodeFlags::NODATASUM,
            (true, true) => InodeFlags::empty(),
        }
    }
}

impl Default for DataOptions {
    fn default() -> Self {
        Self {
            compression: None,
            compress_force: false,
            max_inline: ByteCount::new(2048),
            checksums: true,
            copy_on_write: true,
            delalloc_bytes_max: ByteCount::new(96 << 20),
        }
    }
}
