//! Identities of the volumes in a base. They recognise a base whose times say nothing: block devices
//! have no time of last change, and an apply changes the time of a file.
//!
//! | state of the overlay | refused |
//! |---|---|
//! | in use | another primary superblock than the recorded one |
//! | being applied | another fsid or device uuid than recorded, unless the overlay has it |
//!
//! Left out: bases whose primary superblock is past their end or cannot be read when the overlay is
//! made, and overlays of earlier versions. They have no identity, and only [`super::side::BaseState`]
//! recognises them.

use buttress_exact::Exact as _;
use std::io;
use std::ops::Range;

/// The place of the primary superblock in a volume, and its length.
const SUPERBLOCK_AT: u64 = 64 << 10;
const SUPERBLOCK_BYTES: usize = 4096;
/// The places of the fsid, of the device's uuid, and of all bytes after the checksum.
const FSID: Range<usize> = 32..48;
const DEVICE_UUID: Range<usize> = 267..283;
const AFTER_CHECKSUM: usize = 32;

/// The identity of a volume in a base.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Identity {
    /// The CRC-32C of the primary superblock without its checksum.
    pub(super) superblock: u32,
    /// The CRC-32C of the fsid and the device's uuid.
    pub(super) uuids: u32,
}

impl Identity {
    /// The identity of a volume without a readable primary superblock.
    pub(super) const UNKNOWN: Self = Self {
        superblock: 0,
        uuids: 0,
    };

    /// Returns the identity of the volume at byte `start` of a base with `size_bytes`, which `read`
    /// reads.
    ///
    /// # Errors
    /// Fails with an error of `read`.
    pub(super) fn read(
        start: u64,
        size_bytes: u64,
        read: impl FnOnce(u64, &mut [u8]) -> io::Result<()>,
    ) -> io::Result<Self> {
        let Some(at) = superblock_at(start, size_bytes) else {
            return Ok(Self::UNKNOWN);
        };
        let mut bytes = vec![0; SUPERBLOCK_BYTES];
        read(at, &mut bytes)?;
        Ok(Self::of(&bytes))
    }

    fn of(superblock: &[u8]) -> Self {
        let part = |range: Range<usize>| superblock.get(range).into_iter().flatten().copied();
        let uuids: Vec<u8> = part(FSID).chain(part(DEVICE_UUID)).collect();
        let content: Vec<u8> = part(AFTER_CHECKSUM..SUPERBLOCK_BYTES).collect();
        Self {
            superblock: crc32c(&content),
            uuids: crc32c(&uuids),
        }
    }

    pub(super) fn to_bytes(self) -> [u8; 8] {
        (u64::from(self.superblock) | u64::from(self.uuids).exact_mul(1 << 32)).to_le_bytes()
    }

    pub(super) fn from_bytes(bytes: [u8; 8]) -> Self {
        let [a, b, c, d, e, f, g, h] = bytes;
        Self {
            superblock: u32::from_le_bytes([a, b, c, d]),
            uuids: u32::from_le_bytes([e, f, g, h]),
        }
    }
}

/// Returns the byte of the base at which a volume's primary superblock begins. Returns `None` if the
/// superblock is not in the base.
fn superblock_at(start: u64, size_bytes: u64) -> Option<u64> {
    let at = start.checked_add(SUPERBLOCK_AT)?;
    let end = at.checked_add(SUPERBLOCK_BYTES as u64)?;
    (end <= size_bytes).then_some(at)
}

/// Returns the CRC-32C of bytes, as btrfs computes it.
pub(super) fn crc32c(bytes: &[u8]) -> u32 {
    // Clamp: the function returns 32 bits.
    u32::try_from(crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, bytes)).unwrap_or(0)
}
