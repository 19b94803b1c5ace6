//! Checksums and name hashes.
//!
//! A volume uses one of four checksum types for superblocks, tree blocks and data. The stored field
//! is 32 bytes wide; a type fills the first [`ChecksumType::size_bytes`] of them. CRC-32C and
//! xxHash64 are stored as little-endian numbers, SHA-256 and BLAKE2b-256 as digests.
//!
//! The hashes of names ([`name_hash`], [`extref_hash`], [`extent_data_reference_hash`]) are raw
//! CRC-32C on every volume. These name hashes invert nothing before or after the computation, and
//! have start values of their own.
//!
//! Source: on-disk format documentation, sections "Superblock" and "Directory items"; the checksum
//! types in the manual page btrfs(5), section "Checksum algorithms".

mod sha256;

use crate::units::{InodeNumber, TreeId};
use blake2b_simd::many::{HashManyJob, hash_many};
use core::fmt;
use crc_fast::{CrcAlgorithm, Digest};

/// The largest size of a checksum, and the width of the checksum field of superblocks and tree
/// blocks.
pub const CHECKSUM_FIELD_BYTES: usize = 32;

/// The algorithm of a volume's checksums. A volume uses one algorithm for all checksums.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ChecksumType {
    /// CRC-32C (Castagnoli), 4 bytes. The default.
    Crc32c,
    /// xxHash64 with seed 0, 8 bytes.
    Xxhash64,
    /// SHA-256, 32 bytes.
    Sha256,
    /// BLAKE2b with a 256-bit digest and no key, 32 bytes.
    Blake2b,
}

impl ChecksumType {
    /// Every type, in the order of their numbers on disk.
    pub const ALL: [Self; 4] = [Self::Crc32c, Self::Xxhash64, Self::Sha256, Self::Blake2b];

    /// Returns the type with this number in the superblock, or `None` if no type has this number.
    #[must_use]
    pub const fn from_raw(number: u16) -> Option<Self> {
        match number {
            0 => Some(Self::Crc32c),
            1 => Some(Self::Xxhash64),
            2 => Some(Self::Sha256),
            3 => Some(Self::Blake2b),
            _ => None,
        }
    }

    /// The number that stands for this type in the superblock.
    #[must_use]
    pub const fn to_raw(self) -> u16 {
        match self {
            Self::Crc32c => 0,
            Self::Xxhash64 => 1,
            Self::Sha256 => 2,
            Self::Blake2b => 3,
        }
    }

    /// Returns the length of one checksum in bytes.
    #[must_use]
    pub const fn size_bytes(self) -> usize {
        match self {
            Self::Crc32c => 4,
            Self::Xxhash64 => 8,
            Self::Sha256 | Self::Blake2b => 32,
        }
    }

    /// The name that btrfs-progs prints.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Crc32c => "crc32c",
            Self::Xxhash64 => "xxhash64",
            Self::Sha256 => "sha256",
            Self::Blake2b => "blake2b",
        }
    }

    /// Returns the checksum of `data`.
    #[must_use]
    pub fn compute(self, data: &[u8]) -> Checksum {
        match self {
            Self::Crc32c => Checksum::of(&crc_fast::crc32_iscsi(data).to_le_bytes()),
            Self::Xxhash64 => Checksum::of(&xxhash_rust::xxh64::xxh64(data, 0).to_le_bytes()),
            Self::Sha256 => {
                use sha2::Digest as _;
                Checksum::of(&sha2::Sha256::digest(data))
            }
            Self::Blake2b => Checksum::of(blake2b_parameters().hash(data).as_bytes()),
        }
    }

    /// Appends the checksums of the consecutive sectors of `data` to `out`, packed as in checksum
    /// items. A last sector that is incomplete is hashed as it is. If `sector_bytes` is zero,
    /// `data` counts as one sector.
    pub fn compute_sectors(self, data: &[u8], sector_bytes: usize, out: &mut Vec<u8>) {
        let sector_bytes = if sector_bytes == 0 {
            data.len().max(1)
        } else {
            sector_bytes
        };
        out.reserve(
            data.len()
                .div_ceil(sector_bytes)
                .saturating_mul(self.size_bytes()),
        );
        match self {
            Self::Blake2b => compute_blake2b_sectors(data, sector_bytes, out),
            Self::Sha256 => sha256::compute_sectors(data, sector_bytes, out),
            Self::Crc32c | Self::Xxhash64 => {
                for sector in data.chunks(sector_bytes) {
                    out.extend_from_slice(self.compute(sector).as_bytes());
                }
            }
        }
    }
}

/// The number of sectors in a batch. BLAKE2b runs twice as fast when several inputs share the
/// vector registers.
const BLAKE2B_BATCH: usize = 8;

fn blake2b_parameters() -> blake2b_simd::Params {
    let mut parameters = blake2b_simd::Params::new();
    parameters.hash_length(CHECKSUM_FIELD_BYTES);
    parameters
}

fn compute_blake2b_sectors(data: &[u8], sector_bytes: usize, out: &mut Vec<u8>) {
    let parameters = blake2b_parameters();
    let mut jobs = smallvec::SmallVec::<[HashManyJob<'_>; BLAKE2B_BATCH]>::new();
    let mut sectors = data.chunks(sector_bytes);
    loop {
        jobs.clear();
        jobs.extend(
            sectors
                .by_ref()
                .take(BLAKE2B_BATCH)
                .map(|sector| HashManyJob::new(&parameters, sector)),
        );
        if jobs.is_empty() {
            return;
        }
        hash_many(jobs.iter_mut());
        for job in &jobs {
            out.extend_from_slice(job.to_hash().as_bytes());
        }
    }
}

impl fmt::Display for ChecksumType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A checksum, of any type.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Checksum {
    bytes: [u8; CHECKSUM_FIELD_BYTES],
    size_bytes: u8,
}

impl Checksum {
    /// The empty checksum, for a block that is too short to hold one.
    pub(crate) const EMPTY: Self = Self {
        bytes: [0; CHECKSUM_FIELD_BYTES],
        size_bytes: 0,
    };

    /// Makes a checksum of its stored bytes. Bytes beyond the checksum field are dropped.
    #[must_use]
    pub fn of(stored: &[u8]) -> Self {
        let mut bytes = [0; CHECKSUM_FIELD_BYTES];
        let mut size_bytes = 0_u8;
        for (to, from) in bytes.iter_mut().zip(stored) {
            *to = *from;
            size_bytes = size_bytes.saturating_add(1);
        }
        Self { bytes, size_bytes }
    }

    /// Returns the stored bytes without the unused end of the field.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        self.bytes
            .get(..usize::from(self.size_bytes))
            .unwrap_or(&self.bytes)
    }
}

/// Prints the stored bytes in hexadecimal after `0x`, in their order on disk, as btrfs-progs and
/// the kernel do.
impl fmt::Display for Checksum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("0x")?;
        self.as_bytes()
            .iter()
            .try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Checksum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Continues the raw CRC-32C of `data` from `state`. Neither the state nor the result is inverted.
#[must_use]
pub fn crc32c(state: u32, data: &[u8]) -> u32 {
    let mut digest = Digest::new_with_init_state(CrcAlgorithm::Crc32Iscsi, u64::from(state));
    digest.update(data);
    !low_half(digest.finalize())
}

/// Returns the hash of a name of a directory entry or extended attribute. The hash is the offset of
/// `DIR_ITEM` and `XATTR_ITEM` keys.
#[must_use]
pub fn name_hash(name: &[u8]) -> u64 {
    u64::from(crc32c(!1, name))
}

/// Returns the hash of a name in the directory `parent`, which is the offset of `INODE_EXTREF`
/// keys. The hash uses only the low 32 bits of the inode number.
#[must_use]
pub fn extref_hash(parent: InodeNumber, name: &[u8]) -> u64 {
    u64::from(crc32c(low_half(parent.get()), name))
}

/// Returns the hash of a keyed back reference to data, made of its tree, inode and offset. The hash
/// is the first offset that a search for the `EXTENT_DATA_REF` key tries. The hash also orders
/// these references inside an extent item. The hashed `offset` is the file offset minus the offset
/// in the extent, and wraps below zero.
#[must_use]
pub fn extent_data_reference_hash(root: TreeId, inode: InodeNumber, offset: u64) -> u64 {
    let high = crc32c(u32::MAX, &root.get().to_le_bytes());
    let mut inode_and_offset = [0; 16];
    let numbers = inode.get().to_le_bytes().into_iter().chain(offset.to_le_bytes());
    inode_and_offset
        .iter_mut()
        .zip(numbers)
        .for_each(|(to, from)| *to = from);
    let low = crc32c(u32::MAX, &inode_and_offset);
    (u64::from(high) << 31) ^ u64::from(low)
}

fn low_half(number: u64) -> u32 {
    let [b0, b1, b2, b3, ..] = number.to_le_bytes();
    u32::from_le_bytes([b0, b1, b2, b3])
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn known_answers() {
        let cases: [(ChecksumType, &str); 4] = [
            (ChecksumType::Crc32c, "0x839206e3"),
            (ChecksumType::Xxhash64, "0x83aee640db41b88c"),
            (
                ChecksumType::Sha256,
                "0x15e2b0d3c33891ebb0f1ef609ec419420c20e320ce94c65fbc8c3312448eb225",
            ),
            (
                ChecksumType::Blake2b,
                "0x16e0bf1f85594a11e75030981c0b670370b3ad83a43f49ae58a2fd6f6513cde9",
            ),
        ];
        for (checksum_type, expected) in cases {
            let checksum = checksum_type.compute(b"123456789");
            assert_eq!(checksum.to_string(), expected, "{checksum_type}");
            assert_eq!(checksum.as_bytes().len(), checksum_type.size_bytes());
        }
    }

    #[test]
    fn numbers_on_disk_round_trip() {
        for number in 0..=u16::MAX {
            if let Some(checksum_type) = ChecksumType::from_raw(number) {
                assert_eq!(checksum_type.to_raw(), number);
            } else {
                assert!(number > 3);
            }
        }
    }

    #[test]
    fn name_hashes_are_those_of_the_kernel() {
        // The root tree of every volume holds a directory item for "default" under this hash.
        assert_eq!(name_hash(b"default"), 2_378_154_706);
        assert_eq!(
            extref_hash(InodeNumber::new(u64::from(u32::MAX - 1)), b"default"),
            2_378_154_706
        );
        assert_eq!(
            extref_hash(InodeNumber::new((7 << 32) | 256), b"a"),
            extref_hash(InodeNumber::new(256), b"a")
        );
    }

    proptest! {
        #[test]
        fn crc32c_agrees_with_another_implementation(state: u32, data: Vec<u8>) {
            prop_assert_eq!(crc32c(state, &data), !::crc32c::crc32c_append(!state, &data));
        }

        #[test]
        fn crc32c_continues(state: u32, head: Vec<u8>, tail: Vec<u8>) {
            let whole = [head.as_slice(), tail.as_slice()].concat();
            prop_assert_eq!(crc32c(crc32c(state, &head), &tail), crc32c(state, &whole));
        }

        #[test]
        fn sectors_are_the_checksums_of_each(data in proptest::collection::vec(any::<u8>(), 0..9000),
                                             sector_bytes in 0_usize..700) {
            for checksum_type in ChecksumType::ALL {
                let mut packed = Vec::new();
                checksum_type.compute_sectors(&data, sector_bytes, &mut packed);
                let unit = if sector_bytes == 0 { data.len().max(1) } else { sector_bytes };
                let one_by_one: Vec<u8> =
                    data.chunks(unit).flat_map(|s| checksum_type.compute(s).as_bytes().to_vec()).collect();
                prop_assert_eq!(packed, one_by_one);
            }
        }
    }
}
