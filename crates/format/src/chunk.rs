//! Chunks: the mapping from a range of logical addresses to stripes on devices.
//!
//! A chunk maps `[logical, logical + length)` to its stripes, where `logical` is the offset of its
//! key. The profile determines the layout. Chunks lie in the chunk tree under `(256 CHUNK_ITEM
//! logical)`. The superblock also holds the system chunks, because they hold the chunk tree.
//!
//! A checked [`Chunk`] has at least one stripe and as many stripes as its profile requires. A
//! chunk's length is whole sectors, and the chunk ends below 2^64. The volume checks that the
//! stripes fit their devices.
//!
//! Source: on-disk format documentation, section "Chunk item".

mod error;

use buttress_exact::Exact as _;
pub use error::ChunkProblem;

use crate::block_group::{BlockGroupFlags, Profile};
use crate::item_error::{ItemError, ItemProblem};
use crate::key::{ItemType, Key};
use crate::raw;
use crate::superblock::Incompat;
use crate::units::{ByteCount, DeviceId, Logical, ObjectId, Physical, TreeId};
use uuid::Uuid;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The length in bytes of one stripe unit, after which the next device follows. This length is the
/// same for every chunk.
pub const STRIPE_BYTES: u64 = 64 * 1024;

/// The on-disk layout of a chunk, without its stripes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
#[expect(missing_docs, reason = "the fields are those of Chunk, which documents them")]
pub struct RawChunk {
    pub length: U64,
    pub owner: U64,
    pub stripe_len: U64,
    pub chunk_type: U64,
    pub io_align: U32,
    pub io_width: U32,
    pub sector_size: U32,
    pub num_stripes: U16,
    pub sub_stripes: U16,
}

/// The on-disk layout of one stripe of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
#[expect(missing_docs, reason = "the fields are those of Stripe, which documents them")]
pub struct RawStripe {
    pub devid: U64,
    pub offset: U64,
    pub dev_uuid: [u8; 16],
}

const _: () = assert!(size_of::<RawChunk>() == 48);
const _: () = assert!(size_of::<RawStripe>() == 32);

/// The part of a chunk that lies on one device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stripe {
    /// The device that holds the stripe.
    pub device: DeviceId,
    /// The first byte of the stripe on its device.
    pub physical: Physical,
    /// The device's uuid.
    pub device_uuid: Uuid,
}

/// A chunk, whose logical address is the offset of its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// The number of logical bytes that the chunk maps.
    pub length: ByteCount,
    /// The tree that holds the block group item of this chunk: the extent tree.
    pub owner: TreeId,
    /// The length in bytes of one stripe unit, after which the next device follows:
    /// [`STRIPE_BYTES`].
    pub stripe_bytes: u64,
    /// Type and profile. At least one type bit and at most one profile bit is set.
    pub profile: BlockGroupFlags,
    /// Optimal alignment of I/O requests, in bytes.
    pub io_align: u32,
    /// Optimal size of I/O requests, in bytes.
    pub io_width: u32,
    /// The volume's sector size.
    pub sector_bytes: u32,
    /// The number of copies of each stripe with RAID10.
    pub sub_stripes: u16,
    /// The stripes, in the order in which the profile uses them.
    pub stripes: Vec<Stripe>,
}

impl Chunk {
    /// Parses the chunk of a `CHUNK_ITEM`. The chunk must fill `data`.
    ///
    /// # Errors
    /// Fails if the size or the key is wrong, or with the first [`ChunkProblem`] found.
    pub fn parse(key: &Key, data: &[u8], sector_bytes: u32) -> Result<Self, ItemError> {
        let (chunk, rest) = Self::parse_prefix(key, data, sector_bytes)?;
        if !rest.is_empty() {
            let expected_bytes = data.len().saturating_sub(rest.len());
            return Err(ItemError::new(
                key,
                ItemProblem::SizeWrong {
                    size_bytes: data.len(),
                    expected_bytes,
                },
            ));
        }
        Ok(chunk)
    }

    /// Parses the chunk at the start of `data`, and returns it with the bytes that follow. The
    /// superblock's system chunk array holds several chunks in a row.
    ///
    /// # Errors
    /// Fails as [`Chunk::parse`] does, except that bytes may follow the chunk.
    pub fn parse_prefix<'a>(
        key: &Key,
        data: &'a [u8],
        sector_bytes: u32,
    ) -> Result<(Self, &'a [u8]), ItemError> {
        let (head, rest) = raw::prefix::<RawChunk>(key, data)?;
        let count = usize::from(head.num_stripes.get());
        let Ok((raw_stripes, rest)) = <[RawStripe]>::ref_from_prefix_with_elems(rest, count) else {
            let needed_bytes =
                size_of::<RawChunk>().saturating_add(count.saturating_mul(size_of::<RawStripe>()));
            return Err(ItemError::new(
                key,
                ItemProblem::SizeTooSmall {
                    size_bytes: data.len(),
                    needed_bytes,
                },
            ));
        };
        let stripes = raw_stripes
            .iter()
            .map(|raw| Stripe {
                device: DeviceId::new(raw.devid.get()),
                physical: Physical::new(raw.offset.get()),
                device_uuid: Uuid::from_bytes(raw.dev_uuid),
            })
            .collect();
        let chunk = Self {
            length: ByteCount::new(head.length.get()),
            owner: TreeId::new(head.owner.get()),
            stripe_bytes: head.stripe_len.get(),
            profile: BlockGroupFlags::from_bits_retain(head.chunk_type.get()),
            io_align: head.io_align.get(),
            io_width: head.io_width.get(),
            sector_bytes: head.sector_size.get(),
            sub_stripes: head.sub_stripes.get(),
            stripes,
        };
        if key.objectid != ObjectId::FIRST_CHUNK_TREE {
            let objectid = key.objectid.get();
            return Err(ItemError::new(key, ItemProblem::ObjectIdInvalid { objectid }));
        }
        raw::require_aligned_offset(key, sector_bytes)?;
        raw::range_end(key, key.offset, chunk.length.get())?;
        chunk
            .check(sector_bytes)
            .map_err(|problem| ItemError::new(key, problem))?;
        Ok((chunk, rest))
    }

    /// Returns the profile as a value.
    #[must_use]
    pub const fn replication(&self) -> Profile {
        match self.profile.profile() {
            Some(profile) => profile,
            // A parsed chunk never reaches this branch: the parser refuses several profile bits.
            None => Profile::Single,
        }
    }

    /// Returns the exclusive end of the logical range of a chunk that begins at `logical`.
    #[must_use]
    pub const fn end(&self, logical: Logical) -> Logical {
        logical.saturating_add(self.length)
    }

    fn check(&self, sector_bytes: u32) -> Result<(), ChunkProblem> {
        let length_bytes = self.length.get();
        if self.sector_bytes != sector_bytes {
            return Err(ChunkProblem::SectorSize {
                chunk_bytes: self.sector_bytes,
                volume_bytes: sector_bytes,
            });
        }
        if length_bytes == 0 || !raw::is_aligned(length_bytes, sector_bytes) {
            return Err(ChunkProblem::Length {
                length_bytes,
                sector_bytes,
            });
        }
        // The volume stores the index of a stripe unit in its chunk in 32 bits.
        let limit_bytes = u64::from(u32::MAX).saturating_mul(STRIPE_BYTES);
        if length_bytes >= limit_bytes {
            return Err(ChunkProblem::TooLong {
                length_bytes,
                limit_bytes,
            });
        }
        if self.stripe_bytes != STRIPE_BYTES {
            return Err(ChunkProblem::StripeLength {
                stripe_bytes: self.stripe_bytes,
            });
        }
        self.check_flags()?;
        self.check_stripes()
    }

    fn check_flags(&self) -> Result<(), ChunkProblem> {
        let flags = self.profile.bits();
        let known = BlockGroupFlags::TYPES | BlockGroupFlags::PROFILES;
        if !self.profile.difference(known).is_empty() {
            return Err(ChunkProblem::FlagsUnknown { flags });
        }
        if self.profile.profile().is_none() {
            return Err(ChunkProblem::SeveralProfiles { flags });
        }
        if !self.profile.intersects(BlockGroupFlags::TYPES) {
            return Err(ChunkProblem::TypeMissing { flags });
        }
        let other_types = BlockGroupFlags::DATA | BlockGroupFlags::METADATA;
        if self.profile.contains(BlockGroupFlags::SYSTEM) && self.profile.intersects(other_types) {
            return Err(ChunkProblem::SystemMixed { flags });
        }
        Ok(())
    }

    fn check_stripes(&self) -> Result<(), ChunkProblem> {
        let profile = self.replication();
        let stripes = self.stripes.len().narrow::<u16>();
        let least = profile.min_stripes();
        if stripes < least || profile.max_stripes().is_some_and(|most| stripes > most) {
            return Err(ChunkProblem::StripeCount {
                profile,
                stripes,
                least,
            });
        }
        if profile == Profile::Raid10 {
            let copies = profile.copies();
            if self.sub_stripes != copies || stripes.checked_rem(copies) != Some(0) {
                return Err(ChunkProblem::SubStripes {
                    sub_stripes: self.sub_stripes,
                    stripes,
                });
            }
        }
        Ok(())
    }

    /// Refuses a chunk of data and metadata unless the volume has mixed block groups.
    ///
    /// # Errors
    /// Returns [`ChunkProblem::MixedWithoutFeature`].
    pub fn check_mixed(&self, incompat: Incompat) -> Result<(), ChunkProblem> {
        let mixed = BlockGroupFlags::DATA | BlockGroupFlags::METADATA;
        if self.profile.contains(mixed) && !incompat.contains(Incompat::MIXED_GROUPS) {
            return Err(ChunkProblem::MixedWithoutFeature {
                flags: self.profile.bits(),
            });
        }
        Ok(())
    }
}

impl Chunk {
    /// Returns the key `(256 CHUNK_ITEM logical)`, used in the chunk tree and in the superblock's
    /// array.
    #[must_use]
    pub const fn key(logical: Logical) -> Key {
        Key::new(ObjectId::FIRST_CHUNK_TREE, ItemType::CHUNK_ITEM, logical.get())
    }

    /// Returns the length in bytes of the item that [`Chunk::encode`] makes.
    #[must_use]
    pub fn encoded_bytes(&self) -> usize {
        let stripes_bytes = self.stripes.len().saturating_mul(size_of::<RawStripe>());
        size_of::<RawChunk>().saturating_add(stripes_bytes)
    }

    /// Returns the item's bytes in their on-disk layout. A chunk has at most 65,535 stripes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let num_stripes = self.stripes.len().narrow::<u16>();
        let head = RawChunk {
            length: U64::new(self.length.get()),
            owner: U64::new(self.owner.get()),
            stripe_len: U64::new(self.stripe_bytes),
            chunk_type: U64::new(self.profile.bits()),
            io_align: U32::new(self.io_align),
            io_width: U32::new(self.io_width),
            sector_size: U32::new(self.sector_bytes),
            num_stripes: U16::new(num_stripes),
            sub_stripes: U16::new(self.sub_stripes),
        };
        let mut item = Vec::with_capacity(self.encoded_bytes());
        item.extend_from_slice(head.as_bytes());
        for stripe in self.stripes.iter().take(usize::from(num_stripes)) {
            let raw = RawStripe {
                devid: U64::new(stripe.device.get()),
                offset: U64::new(stripe.physical.get()),
                dev_uuid: stripe.device_uuid.into_bytes(),
            };
            item.extend_from_slice(raw.as_bytes());
        }
        item
    }
}

#[cfg(test)]
mod tests;
