//! Options for writing file content.

use buttress_format::compression::CompressionMethod;
use buttress_format::{ByteCount, InodeFlags};

/// Options for writing file content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataOptions {
    /// The compression of files without a compression property. `None` compresses only files whose
    /// flags or properties request compression.
    pub compression: Option<CompressionMethod>,
    /// Whether content is compressed despite the inode's flags and the estimated gain.
    pub compress_force: bool,
    /// The largest file that is stored inline in the tree, if a sector and a leaf have space for
    /// it.
    pub max_inline: ByteCount,
    /// Whether new files have checksums.
    pub checksums: bool,
    /// Whether content of new files is copied on write. Files without copy-on-write have no
    /// checksums either.
    pub copy_on_write: bool,
    /// The limit of dirty data, in bytes. Data never takes more than half of the limit of all dirty
    /// memory.
    pub delalloc_bytes_max: ByteCount,
}

impl DataOptions {
    /// Returns the inode flags of new regular files under these options.
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
