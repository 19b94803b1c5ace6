//! Chunks whose bytes lie where the RAID stripe tree says.
//!
//! With the raid-stripe-tree feature, data of the profiles RAID0, RAID1, RAID1C3, RAID1C4, RAID10 and DUP is
//! written wherever there is room in the chunk's device extents, and the stripe tree records where: for each
//! written extent, one physical address per copy. The chunk still says which devices hold a byte; the tree
//! only replaces the address on them. Metadata and system chunks are mapped as ever.
//!
//! An entry lists the copies of one contiguous run, without lengths. For RAID0 and RAID10 it so tells the places
//! of one unit of striping at most: bytes of an entry past the unit that it begins in are an error.
//!
//! Trees are above this layer, so the look-up is handed in as a [`StripeResolver`].
//!
//! Source: btrfs-progs' documentation, "BTRFS RAID Stripe Tree Design"; the items that kernels write since then
//! have no encoding and no lengths.

use crate::chunk_map::MappedChunk;
use crate::error::{Corruption, Error};
use buttress_format::block_group::{BlockGroupFlags, Profile};
use buttress_format::{ByteCount, DeviceId, Logical, Physical};

/// An entry of the RAID stripe tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResolvedStripes {
    /// First logical address of the entry: its key's object id.
    pub logical: Logical,
    /// How many bytes it maps: its key's offset.
    pub length: ByteCount,
    /// Where each copy of `logical` lies, in the order of the item.
    pub stripes: Vec<ResolvedStripe>,
}

/// One copy in an entry of the RAID stripe tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResolvedStripe {
    /// The device.
    pub device: DeviceId,
    /// Where on it.
    pub physical: Physical,
}

/// Entries begin and end at sectors, which are not smaller than this.
const SMALLEST_ENTRY_BYTES: usize = 4096;

/// Looks addresses up in the RAID stripe tree.
pub trait StripeResolver: Send + Sync + core::fmt::Debug {
    /// The entry that covers `logical`, or `None` where the tree has none.
    ///
    /// # Errors
    /// Whatever reading the tree failed with.
    fn resolve(&self, logical: Logical) -> Result<Option<ResolvedStripes>, Error>;
}

impl dyn StripeResolver + '_ {
    /// The entry that covers `logical`; `length` is cut to what it maps from there on, or where there is no entry,
    /// to what cannot have one either.
    pub(crate) fn resolve_from(
        &self,
        logical: Logical,
        length: &mut usize,
    ) -> Result<ResolvedStripes, Error> {
        let found = self.resolve(logical)?;
        let left = found.as_ref().map_or(0, |found| found.length_from(logical));
        match found {
            Some(found) if left > 0 => {
                *length = buttress_exact::at_most(left, *length);
                Ok(found)
            }
            _ => {
                *length = SMALLEST_ENTRY_BYTES.min(*length);
                Err(Corruption::NoStripeExtent { logical }.into())
            }
        }
    }
}

/// Stands in until the tree is connected: a volume with a stripe tree must not be read as if it had none.
#[derive(Debug)]
pub(crate) struct Unconnected;

impl StripeResolver for Unconnected {
    fn resolve(&self, _: Logical) -> Result<Option<ResolvedStripes>, Error> {
        Ok(None)
    }
}

/// Whether a chunk's data is found through the stripe tree, on a volume that has one.
pub(crate) fn needs_resolver(flags: BlockGroupFlags) -> bool {
    let metadata = BlockGroupFlags::METADATA | BlockGroupFlags::SYSTEM;
    flags.contains(BlockGroupFlags::DATA)
        && !flags.intersects(metadata)
        && !matches!(
            flags.profile(),
            None | Some(Profile::Single | Profile::Raid5 | Profile::Raid6)
        )
}

impl ResolvedStripes {
    /// Where the copy on `stripe_index` of `chunk` has the byte `logical`.
    ///
    /// Copies are told apart by their device; those of DUP, which share one, by their order.
    pub(crate) fn physical(
        &self,
        chunk: &MappedChunk,
        stripe_index: usize,
        logical: Logical,
    ) -> Result<Physical, Error> {
        let unmapped = || Corruption::NoStripeExtent { logical };
        let device = chunk
            .chunk()
            .stripes
            .get(stripe_index)
            .ok_or_else(unmapped)?
            .device;
        let offset = logical.checked_distance_from(self.logical).ok_or_else(unmapped)?;
        let start = chunk.offset_of(self.logical);
        let contiguous = start
            .and_then(|start| chunk.layout().place(start))
            .map(|place| place.length);
        if contiguous.is_none_or(|contiguous| offset >= contiguous) {
            let (start, length) = (self.logical, self.length);
            return Err(Corruption::StripeExtentTooLong {
                start,
                length,
                logical,
            }
            .into());
        }
        let by_order = chunk.layout().profile() == Profile::Dup;
        let mut found =
            self.stripes.iter().enumerate().filter(|(position, stripe)| {
                stripe.device == device && (!by_order || *position == stripe_index)
            });
        let (_, stripe) = found.next().ok_or(Corruption::NoStripeOnDevice {
            logical: self.logical,
            device,
        })?;
        stripe.physical.checked_add(offset).ok_or_else(|| {
            Error::from(Corruption::StripeOverflow {
                start: chunk.start(),
                stripe_index,
                device,
                physical: stripe.physical,
                offset: offset.get(),
            })
        })
    }

    /// How many bytes the entry maps from `logical` on; 0 outside.
    pub(crate) fn length_from(&self, logical: Logical) -> u64 {
        let passed = logical.checked_distance_from(self.logical);
        passed
            .and_then(|passed| self.length.checked_sub(passed))
            .map_or(0, ByteCount::get)
    }
}
