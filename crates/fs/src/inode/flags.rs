//! Inode flags in the form of the rest of the system.
//!
//! The flags of an inode item have numbers of their own. For the same purposes, `lsattr`, `chattr`
//! and the `FS_IOC_GETFLAGS` ioctl use a set of flags that all file systems share.
//! [`FileAttributes`] is the part of that set that btrfs shows.
//!
//! Source: on-disk format documentation, section "INODE_ITEM", and the manual page
//! `ioctl_iflags(2)`.

use buttress_format::InodeFlags;

bitflags::bitflags! {
    /// Attributes as `lsattr` shows them, with the numbers of the ioctl.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct FileAttributes: u32 {
        /// `c`: the content is compressed.
        const COMPRESS = 0x0000_0004;
        /// `S`: writes are synchronous.
        const SYNC = 0x0000_0008;
        /// `i`: the inode is immutable.
        const IMMUTABLE = 0x0000_0010;
        /// `a`: the file can only be appended to.
        const APPEND = 0x0000_0020;
        /// `d`: dump(8) skips the file.
        const NODUMP = 0x0000_0040;
        /// `A`: access times are not recorded.
        const NOATIME = 0x0000_0080;
        /// `m`: the content is never compressed.
        const NOCOMPRESS = 0x0000_0400;
        /// `D`: changes of the directory are synchronous.
        const DIRSYNC = 0x0001_0000;
        /// `V`: fs-verity protects the file.
        const VERITY = 0x0010_0000;
        /// `C`: the content is overwritten in place, without checksums.
        const NOCOW = 0x0080_0000;
    }
}

/// The letters of `lsattr`, in its order of columns.
const LETTERS: [(FileAttributes, char); 10] = [
    (FileAttributes::SYNC, 'S'),
    (FileAttributes::DIRSYNC, 'D'),
    (FileAttributes::IMMUTABLE, 'i'),
    (FileAttributes::APPEND, 'a'),
    (FileAttributes::NODUMP, 'd'),
    (FileAttributes::NOATIME, 'A'),
    (FileAttributes::COMPRESS, 'c'),
    (FileAttributes::NOCOW, 'C'),
    (FileAttributes::VERITY, 'V'),
    (FileAttributes::NOCOMPRESS, 'm'),
];

impl FileAttributes {
    /// Converts stored inode flags to `chattr` flags like the kernel. An inode with both
    /// compression flags counts as never compressed.
    #[must_use]
    pub fn from_inode_flags(flags: InodeFlags) -> Self {
        let mut attributes = Self::empty();
        for (stored, shown) in [
            (InodeFlags::SYNC, Self::SYNC),
            (InodeFlags::IMMUTABLE, Self::IMMUTABLE),
            (InodeFlags::APPEND, Self::APPEND),
            (InodeFlags::NODUMP, Self::NODUMP),
            (InodeFlags::NOATIME, Self::NOATIME),
            (InodeFlags::DIRSYNC, Self::DIRSYNC),
            (InodeFlags::NODATACOW, Self::NOCOW),
            (InodeFlags::VERITY, Self::VERITY),
        ] {
            attributes.set(shown, flags.contains(stored));
        }
        if flags.contains(InodeFlags::NOCOMPRESS) {
            attributes.insert(Self::NOCOMPRESS);
        } else if flags.contains(InodeFlags::COMPRESS) {
            attributes.insert(Self::COMPRESS);
        }
        attributes
    }

    /// Returns the letters of `lsattr` without the dashes between them.
    #[must_use]
    pub fn letters(self) -> String {
        LETTERS
            .iter()
            .filter(|(attribute, _)| self.contains(*attribute))
            .map(|(_, letter)| *letter)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_translate_as_the_kernel_does() {
        for (stored, letters) in [
            (InodeFlags::empty(), ""),
            (InodeFlags::NODATACOW | InodeFlags::NODATASUM, "C"),
            (InodeFlags::COMPRESS, "c"),
            (InodeFlags::COMPRESS | InodeFlags::NOCOMPRESS, "m"),
            (
                InodeFlags::IMMUTABLE | InodeFlags::APPEND | InodeFlags::NOATIME,
                "iaA",
            ),
            (InodeFlags::VERITY | InodeFlags::SYNC, "SV"),
        ] {
            assert_eq!(FileAttributes::from_inode_flags(stored).letters(), letters);
        }
    }
}
