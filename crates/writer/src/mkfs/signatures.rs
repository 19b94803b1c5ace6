//! What a device seems to hold already: so that making a volume does not destroy it unasked.
//!
//! Known by the signatures that the formats' own documents give. An answer is a hint: bytes can look like anything.

use buttress_device::{Device, IoError};
use buttress_format::{ByteCount, Physical, SUPERBLOCK_OFFSETS};

/// Name, offset in bytes, and the bytes that stand there.
type Signature = (&'static str, u64, &'static [u8]);

/// Those that are known, file systems first.
const SIGNATURES: [Signature; 17] = [
    ("bcache", 4096 + 24, b"\xc6\x85\x73\xf6\x4e\x1a\x45\xca"),
    ("erofs", 1024, b"\xe2\xe1\xf5\xe0"),
    ("ext2, ext3 or ext4", 1080, b"\x53\xef"),
    ("exfat", 3, b"EXFAT   "),
    ("f2fs", 1024, b"\x10\x20\xf5\xf2"),
    ("iso9660", 32769, b"CD001"),
    ("linux raid", 4096, b"\xfc\x4e\x2b\xa9"),
    ("LUKS", 0, b"LUKS\xba\xbe"),
    ("LVM2", 512, b"LABELONE"),
    ("ntfs", 3, b"NTFS    "),
    ("squashfs", 0, b"hsqs"),
    ("swap", 4086, b"SWAPSPACE2"),
    ("vfat", 54, b"FAT"),
    ("vfat", 82, b"FAT32"),
    ("xfs", 0, b"XFSB"),
    ("a GPT partition table", 512, b"EFI PART"),
    ("a partition table", 510, b"\x55\xaa"),
];

/// How many of them are file systems and parts of volumes; partition tables follow.
const FILESYSTEMS: usize = 15;

const BTRFS: &[u8] = b"_BHRfS_M";
/// Where a btrfs superblock has its magic number.
const BTRFS_OFFSET: u64 = 64;

/// The name of what is found first, or `None`.
///
/// # Errors
/// When the device cannot be read.
pub fn find(device: &Device) -> Result<Option<&'static str>, IoError> {
    for at in SUPERBLOCK_OFFSETS {
        let at: Physical = at;
        if is_at(device, at.get().saturating_add(BTRFS_OFFSET), BTRFS)? {
            return Ok(Some("btrfs"));
        }
    }
    first_at(device, &SIGNATURES)
}

/// The file system, or part of another volume, that a device without a primary btrfs superblock seems to hold. Partition
/// tables do not count: a boot loader may stand before a btrfs superblock.
///
/// # Errors
/// When the device cannot be read.
pub fn other_filesystem(device: &Device) -> Result<Option<&'static str>, IoError> {
    let [primary, ..] = SUPERBLOCK_OFFSETS;
    if is_at(device, primary.get().saturating_add(BTRFS_OFFSET), BTRFS)? {
        return Ok(None);
    }
    let (filesystems, _tables) = SIGNATURES.split_at(FILESYSTEMS);
    first_at(device, filesystems)
}

fn is_at(device: &Device, offset: u64, signature: &[u8]) -> Result<bool, IoError> {
    let end = offset.checked_add(ByteCount::of(signature.len()).get());
    if end.is_none_or(|end| end > device.size_bytes()) {
        return Ok(false);
    }
    Ok(device.read(offset, signature.len())?[..] == *signature)
}

/// The name of the first of these signatures that is there.
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
        for (name, offset, signature) in SIGNATURES {
            let mut bytes = vec![0; 1 << 20];
            let start = usize::try_from(offset).unwrap();
            bytes[start..start + signature.len()].copy_from_slice(signature);
            assert_eq!(find(&Device::memory(bytes)).unwrap(), Some(name));
        }
        let mut bytes = vec![0; 1 << 20];
        bytes[65536 + 64..65536 + 72].copy_from_slice(BTRFS);
        assert_eq!(find(&Device::memory(bytes)).unwrap(), Some("btrfs"));
    }
}
