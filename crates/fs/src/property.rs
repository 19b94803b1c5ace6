//! Properties: attributes that btrfs itself interprets. The only property is `btrfs.compression`.
//!
//! Setting this property to an algorithm sets the inode's flag to compress. `no` and `none` set the
//! flag not to compress. Removing the compression property clears both inode flags. New files and
//! directories inherit the property from their directory if it names an algorithm.
//!
//! Source: btrfs-property(8); btrfs(5), section "Compression".

use crate::error::{Error, Result};
use buttress_format::{Compression, FileKind, Incompat, InodeFlags};

/// The name of the attribute.
pub const COMPRESSION_NAME: &[u8] = b"btrfs.compression";

/// The prefix of the attributes of this namespace.
pub const PREFIX: &[u8] = b"btrfs.";

/// The property for compression.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CompressionProperty {
    /// Content is compressed with this algorithm.
    With(Compression),
    /// Content is not compressed.
    Never,
}

impl CompressionProperty {
    /// Parses a value. A level may follow the algorithm, but has no effect.
    ///
    /// # Errors
    /// Returns [`Error::Invalid`] for an unknown value.
    pub fn parse(value: &[u8]) -> Result<Self> {
        if value == b"no" || value == b"none" {
            return Ok(Self::Never);
        }
        [Compression::Zlib, Compression::Lzo, Compression::Zstd]
            .into_iter()
            .find(|compression| value.starts_with(compression.name().as_bytes()))
            .map(Self::With)
            .ok_or(Error::Invalid {
                what: "a value of btrfs.compression other than zlib, lzo, zstd, no and none",
            })
    }

    /// Returns the value that new inodes inherit: the algorithm's name.
    pub const fn inherited_value(self) -> Option<&'static [u8]> {
        match self {
            Self::With(compression) => Some(compression.name().as_bytes()),
            Self::Never => None,
        }
    }

    /// Returns the feature that a reader of content with this compression needs.
    pub const fn feature(self) -> Option<Incompat> {
        match self {
            Self::With(Compression::Lzo) => Some(Incompat::COMPRESS_LZO),
            Self::With(Compression::Zstd) => Some(Incompat::COMPRESS_ZSTD),
            _ => None,
        }
    }
}

/// Returns the inode's flags with this property, or without any.
pub fn flags_with(property: Option<CompressionProperty>, mut flags: InodeFlags) -> InodeFlags {
    flags.remove(InodeFlags::COMPRESS | InodeFlags::NOCOMPRESS);
    match property {
        Some(CompressionProperty::With(_)) => flags.insert(InodeFlags::COMPRESS),
        Some(CompressionProperty::Never) => flags.insert(InodeFlags::NOCOMPRESS),
        None => {}
    }
    flags
}

/// Returns true if inodes of this kind can have the property: inodes with content, and directories,
/// which pass the property on.
pub fn is_for(kind: FileKind) -> bool {
    matches!(kind, FileKind::Regular | FileKind::Directory)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_the_kernel() {
        assert_eq!(
            CompressionProperty::parse(b"zstd").unwrap(),
            CompressionProperty::With(Compression::Zstd)
        );
        assert_eq!(
            CompressionProperty::parse(b"zstd:9").unwrap(),
            CompressionProperty::With(Compression::Zstd)
        );
        assert_eq!(
            CompressionProperty::parse(b"none").unwrap(),
            CompressionProperty::Never
        );
        for value in [&b""[..], b"zst", b"gzip", b"nothing"] {
            assert!(CompressionProperty::parse(value).is_err());
        }
    }

    #[test]
    fn one_flag_at_most() {
        let both = InodeFlags::COMPRESS | InodeFlags::NOCOMPRESS | InodeFlags::NODUMP;
        let with = |property| flags_with(property, both);
        assert_eq!(with(None), InodeFlags::NODUMP);
        assert_eq!(
            with(Some(CompressionProperty::Never)),
            InodeFlags::NODUMP | InodeFlags::NOCOMPRESS
        );
        let zlib = CompressionProperty::With(Compression::Zlib);
        assert_eq!(with(Some(zlib)), InodeFlags::NODUMP | InodeFlags::COMPRESS);
    }
}
