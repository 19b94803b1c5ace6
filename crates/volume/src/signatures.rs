//! Signatures of a device's existing content, so that making a volume does not destroy it by
//! accident.
//!
//! The signatures come from the formats' own documents. A found signature is only a hint: arbitrary
//! bytes can match a signature.

use buttress_device::{Device, IoError};
use buttress_exact::Exact as _;
use buttress_format::{ByteCount, Physical, SUPERBLOCK_OFFSETS};

/// Name, offset in bytes, and the bytes at that offset.
type Signature = (&'static str, u64, &'static [u8]);

/// Signatures of file systems and of parts of volumes.
const FILESYSTEMS: [Signature; 36] = [
    ("APFS", 32, b"NXSB"),
    ("bcache", 4096 + 24, b"\xc6\x85\x73\xf6\x4e\x1a\x45\xca"),
    ("bcachefs", 4096 + 24, b"\xc6\x85\x73\xf6\x66\xce\x90\xa9"),
    ("BitLocker", 3, b"-FVE-FS-"),
    ("dm-integrity", 0, b"integrt\0"),
    ("dm-verity", 0, b"verity\0\0"),
    ("erofs", 1024, b"\xe2\xe1\xf5\xe0"),
    ("ext2, ext3 or ext4", 1080, b"\x53\xef"),
    ("exfat", 3, b"EXFAT   "),
    ("f2fs", 1024, b"\x10\x20\xf5\xf2"),
    ("gfs2", 65536, b"\x01\x16\x19\x70"),
    ("HFS+", 1024, b"H+\0\x04"),
    ("HFS+", 1024, b"HX\0\x05"),
    ("iso9660", 32769, b"CD001"),
    ("jfs", 32768, b"JFS1"),
    ("linux raid", 0, b"\xfc\x4e\x2b\xa9"),
    ("linux raid", 4096, b"\xfc\x4e\x2b\xa9"),
    ("LUKS", 0, b"LUKS\xba\xbe"),
    ("LVM2", 512, b"LABELONE"),
    ("nilfs2", 1030, b"\x34\x34"),
    ("ntfs", 3, b"NTFS    "),
    ("ocfs2", 8192, b"OCFSV2"),
    ("reiserfs", 65536 + 52, b"ReIsEr"),
    ("reiserfs", 8192 + 52, b"ReIsEr"),
    ("squashfs", 0, b"hsqs"),
    ("stratis", 512 + 4, b"!Stra0tis\x86\xff\x02^\x41rh"),
    ("swap", 4086, b"SWAPSPACE2"),
    ("swap", 65526, b"SWAPSPACE2"),
    ("udf", 32769, b"BEA01"),
    ("VDO", 0, b"dmvdo001"),
    ("vfat", 54, b"FAT"),
    ("vfat", 82, b"FAT32"),
    ("xfs", 0, b"XFSB"),
    ("zfs", 132 << 10, b"\x0c\xb1\xba\0\0\0\0\0"),
    ("zfs", 128 << 10, b"\x0c\xb1\xba\0\0\0\0\0"),
    ("zfs", 129 << 10, b"\x0c\xb1\xba\0\0\0\0\0"),
];

/// Signatures of partition tables, which may exist in front of a btrfs superblock.
const TABLES: [Signature; 2] = [
    ("a GPT partition table", 512, b"EFI PART"),
    ("a partition table", 510, b"\x55\xaa"),
];

/// Signatures of files that rarely should become a volume: disks of virtual machines, archives,
/// streams.
const FILES: [Signature; 10] = [
    ("a qcow2 disk", 0, b"QFI\xfb"),
    ("a VDI disk", 64, b"\x7f\x10\xda\xbe"),
    ("a VHDX disk", 0, b"vhdxfile"),
    ("a VMDK disk", 0, b"KDMV"),
    ("a send stream", 0, b"btrfs-stream\0"),
    ("a tar archive", 257, b"ustar"),
    ("a zip archive", 0, b"PK\x03\x04"),
    ("a zstd archive", 0, b"\x28\xb5\x2f\xfd"),
    ("an xz archive", 0, b"\xfd7zXZ\0"),
    ("a gzip archive", 0, b"\x1f\x8b\x08"),
];

const BTRFS: &[u8] = b"_BHRfS_M";
/// The offset of the magic in a btrfs superblock.
const BTRFS_OFFSET: u64 = 64;

/// Returns the name of the first signature found, or `None`. The copies of a superblock count
/// unless the primary's magic is zero: `wipefs -a` zeroes it alone, and leaves the copies.
///
/// # Errors
/// Fails if the device cannot be read.
pub fn find(device: &Device) -> Result<Option<&'static str>, IoError> {
    let [primary, ..] = SUPERBLOCK_OFFSETS.map(magic_offset);
    let is_wiped = is_at(device, primary, &[0; BTRFS.len()])?;
    for at in SUPERBLOCK_OFFSETS.map(magic_offset) {
        if !is_wiped && is_at(device, at, BTRFS)? {
            return Ok(Some("btrfs"));
        }
    }
    for signatures in [&FILESYSTEMS[..], &TABLES, &FILES] {
        if let Some(found) = first_at(device, signatures)? {
            return Ok(Some(found));
        }
    }
    Ok(None)
}

/// Returns the file system or volume member that a device without a primary btrfs superblock seems
/// to hold. The function ignores partition tables, because a boot loader may precede a btrfs
/// superblock.
///
/// # Errors
/// Fails if the device cannot be read.
pub fn other_filesystem(device: &Device) -> Result<Option<&'static str>, IoError> {
    let [primary, ..] = SUPERBLOCK_OFFSETS.map(magic_offset);
    if is_at(device, primary, BTRFS)? {
        return Ok(None);
    }
    first_at(device, &FILESYSTEMS)
}

/// Returns the offset of the magic of a superblock.
fn magic_offset(superblock: Physical) -> u64 {
    superblock.get().exact_add(BTRFS_OFFSET)
}

fn is_at(device: &Device, offset: u64, signature: &[u8]) -> Result<bool, IoError> {
    let end = offset.checked_add(ByteCount::of(signature.len()).get());
    if end.is_none_or(|end| end > device.size_bytes()) {
        return Ok(false);
    }
    Ok(device.read(offset, signature.len())?[..] == *signature)
}

/// Returns the name of the first of these signatures that the device holds.
fn first_at(device: &Device, signatures: &[Signature]) -> Result<Option<&'static str>, IoError> {
    for (name, offset, signature) in signatures {
        if is_at(device, *offset, signature)? {
            return Ok(Some(name));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signatures_are_found_and_short_devices_read_no_further() {
        for size in [0, 100, 1 << 20] {
            assert_eq!(find(&Device::memory(vec![0; size])).unwrap(), None);
        }
        for (name, offset, signature) in FILESYSTEMS.into_iter().chain(TABLES).chain(FILES) {
            let mut bytes = vec![0; 1 << 20];
            let start = usize::try_from(offset).unwrap();
            bytes[start..start + signature.len()].copy_from_slice(signature);
            assert_eq!(find(&Device::memory(bytes)).unwrap(), Some(name));
        }
        let mut bytes = vec![0; 1 << 20];
        bytes[65536 + 64..65536 + 72].copy_from_slice(BTRFS);
        assert_eq!(find(&Device::memory(bytes)).unwrap(), Some("btrfs"));
    }

    /// `wipefs -a` zeroes the primary's magic. A primary with other bytes is damaged.
    #[test]
    fn superblock_copies_count_unless_the_primary_is_wiped() {
        let mut bytes = vec![0; 65 << 20];
        let copy = (64 << 20) + 64;
        bytes[copy..copy + 8].copy_from_slice(BTRFS);
        assert_eq!(find(&Device::memory(bytes.clone())).unwrap(), None);
        bytes[65536 + 64] = 1;
        assert_eq!(find(&Device::memory(bytes)).unwrap(), Some("btrfs"));
    }
}
