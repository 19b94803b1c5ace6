//! Chunks whose bytes the RAID stripe tree locates.
//!
//! The raid-stripe-tree feature applies to data of the profiles RAID0, RAID1, RAID1C3, RAID1C4,
//! RAID10 and DUP. A writer of such data chooses any free place in the chunk's device extents; the
//! stripe tree records the place. For each written extent, the stripe tree holds one physical
//! address for each copy. The chunk still determines which devices hold a byte; the tree replaces
//! only the address on them. The stripe tree leaves the mapping of metadata and system chunks
//! unchanged.
//!
//! An entry lists the copies of one contiguous run, without lengths. For RAID0 and RAID10, it
//! therefore locates at most one unit of striping: bytes of an entry beyond the unit in which it
//! begins are an error.
//!
//! Trees belong to a layer above, so that layer provides the lookup in the stripe tree as a
//! [`StripeResolver`].
//!
//! Source: btrfs-progs' documentation, "BTRFS RAID Stripe Tree Design". The items that kernels
//! write today have neither an encoding nor lengths.

use crate::chunk_map::MappedChunk;
use crate::error::{Corruption, Error};
use buttress_format::block_group::{BlockGroupFlags, Profile};
use buttress_format::{ByteCount, DeviceId, Logical, Physical};

/// An entry of the RAID stripe tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResolvedStripes {
    /// The first logical address of the entry: its key's object id.
    pub logical: Logical,
    /// The number of bytes that the entry maps: its key's offset.
    pub length: ByteCount,
    /// The location of each copy of `logical`, in the order of the stripe tree's item.
    pub stripes: Vec<ResolvedStripe>,
}

/// A copy in an entry of the RAID stripe tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResolvedStripe {
    /// The device that holds the copy.
    pub device: DeviceId,
    /// The physical address on the device.
    pub physical: Physical,
}

/// The minimum length of an entry. Entries of the stripe tree begin and end at sector boundaries.
const SMALLEST_ENTRY_BYTES: usize = 4096;

/// Looks addresses up in the RAID stripe tree.
pub trait StripeResolver: Send + Sync + core::fmt::Debug {
    /// Returns the entry that covers `logical`, or `None` if the tree has none.
    ///
    /// # Errors
    /// Fails if the tree cannot be read.
    fn resolve(&self, logical: Logical) -> Result<Option<ResolvedStripes>, Error>;
}

impl dyn StripeResolver + '_ {
    /// Returns the entry that covers `logical`, and cuts `length` to the bytes that it maps from
    /// there. If no entry covers `logical`, cuts `length` to the bytes up to the next entry.
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

/// A placeholder until the tree is connected. A volume with a stripe tree must not be read as if it
/// had none.
#[derive(Debug)]
pub(crate) struct Unconnected;

impl StripeResolver for Unconnected {
    fn resolve(&self, _: Logical) -> Result<Option<ResolvedStripes>, Error> {
        Ok(None)
    }
}

/// Returns true if the stripe tree locates the chunk's data, on a volume that has this tree.
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
    /// Returns the physical address of the byte `logical` in the copy on `stripe_index` of `chunk`.
    ///
    /// The copies of an extent are identified by their device. The two copies of a DUP chunk, which
    /// share a device, are identified by their order.
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

    /// Returns the number of bytes that the entry maps from `logical` on; 0 outside.
    pub(crate) fn length_from(&self, logical: Logical) -> u64 {
        let passed = logical.checked_distance_from(self.logical);
        passed
            .and_then(|passed| self.length.checked_sub(passed))
            .map_or(0, ByteCount::get)
    }
}
