//! The places of stripes on devices, and the evidence for them.
//!
//! A chunk item and a device extent are equal witnesses of a place. A stripe without its device
//! extent therefore needs evidence: a tree block that names its own address, or data that matches a
//! checksum. The survey's extents give samples, which are read at the place that the chunk names.
//!
//! # Invariants
//!
//! - No two stripes share a byte of a device.
//! - If a device extent names another place for a chunk, a sample proves each stripe of the chunk
//!   that has no device extent.
//! - A stripe whose samples are all wrong is never accepted.
//!
//! # Left out
//!
//! Parity: no sample proves a stripe whose samples are all parity.

use super::description::Description;
use super::errors::refused;
use super::extents::Extent;
use buttress_device::Buffer;
use buttress_exact::Exact as _;
use buttress_format::{ByteCount, DeviceExtent, Logical, STRIPE_BYTES};
use buttress_fs::{Filesystem, Result};
use buttress_volume::{Mapping, MappingContent};
use std::collections::{BTreeMap, BTreeSet};

/// The most samples of a chunk.
const SAMPLES_MAX: u32 = 4096;

/// The bytes of a block before the range of its checksum.
const CHECKSUM_BYTES: usize = 32;

/// The places of the fsid and of the address in a block.
const FSID: core::ops::Range<usize> = 32..48;
const ADDRESS: core::ops::Range<usize> = 48..56;

/// A stripe of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Stripe {
    pub(super) device: u64,
    pub(super) physical: u64,
    pub(super) length: u64,
    chunk: u64,
}

impl Stripe {
    /// Returns the stripe that a device extent records.
    const fn of(extent: &DeviceExtent) -> Self {
        Self {
            device: extent.device.get(),
            physical: extent.physical.get(),
            length: extent.length.get(),
            chunk: extent.chunk.get(),
        }
    }

    fn holds(&self, mapping: &Mapping) -> bool {
        let behind = mapping.physical.get().checked_sub(self.physical);
        mapping.device.get() == self.device && behind.is_some_and(|behind| behind < self.length)
    }
}

/// Returns all stripes, in the order of their places.
pub(super) fn all(filesystem: &Filesystem) -> Vec<Stripe> {
    let mut stripes = Vec::new();
    for chunk in filesystem.volume().chunk_map().chunks() {
        let length = chunk.layout().device_extent_bytes().get();
        stripes.extend(chunk.chunk().stripes.iter().map(|stripe| Stripe {
            device: stripe.device.get(),
            physical: stripe.physical.get(),
            length,
            chunk: chunk.start().get(),
        }));
    }
    stripes.sort_unstable();
    stripes
}

/// Requires that no two stripes share a place on a device. Any write could then destroy data.
pub(super) fn require_apart(stripes: &[Stripe]) -> Result<()> {
    let mut last = (0, 0);
    for stripe in stripes {
        if last.0 == stripe.device && stripe.physical < last.1 {
            return Err(refused("two chunks use the same place on a device"));
        }
        let end = stripe.physical.checked_add(stripe.length);
        let end = end.ok_or_else(|| refused("a chunk ends above all addresses"))?;
        last = (stripe.device, end);
    }
    Ok(())
}

/// The samples of a stripe without a device extent.
#[derive(Clone, Copy, Debug, Default)]
struct Evidence {
    right: bool,
    wrong: bool,
}

/// The stripes without a device extent. No two of them share a place.
type Doubtful = BTreeMap<Stripe, Evidence>;

/// Requires evidence for each stripe without a device extent. `extents` are the readable device
/// extents.
pub(super) fn require_evidence(
    description: &Description<'_>,
    stripes: &[Stripe],
    extents: &[DeviceExtent],
) -> Result<()> {
    let recorded: BTreeSet<Stripe> = extents.iter().map(Stripe::of).collect();
    let doubtful = stripes.iter().filter(|stripe| !recorded.contains(stripe));
    let mut doubtful: Doubtful = doubtful.map(|stripe| (*stripe, Evidence::default())).collect();
    if doubtful.is_empty() {
        return Ok(());
    }
    gather(description, &mut doubtful)?;
    // A device extent without its stripe says that the chunk is at another place.
    let known: BTreeSet<Stripe> = stripes.iter().copied().collect();
    let elsewhere: BTreeSet<u64> = recorded.difference(&known).map(|stray| stray.chunk).collect();
    for (stripe, evidence) in doubtful {
        if evidence.right {
            continue;
        }
        if evidence.wrong {
            return Err(refused(
                "the blocks or data of a chunk are not at the place that the chunk names",
            ));
        }
        if elsewhere.contains(&stripe.chunk) {
            return Err(refused(
                "a chunk and a device extent name different places, and no block or checksum proves one of them",
            ));
        }
    }
    Ok(())
}

/// The samples of a chunk.
#[derive(Clone, Copy, Debug, Default)]
struct Samples {
    taken: u32,
    /// The number of doubtful stripes without a right sample.
    open: usize,
}

/// Reads samples of the chunks of doubtful stripes.
fn gather(description: &Description<'_>, doubtful: &mut Doubtful) -> Result<()> {
    let mut chunks: BTreeMap<u64, Samples> = BTreeMap::new();
    for stripe in doubtful.keys() {
        let samples = chunks.entry(stripe.chunk).or_default();
        samples.open = samples.open.exact_add(1);
    }
    description.each_extent(&mut |group, extent| {
        let Some(samples) = chunks.get_mut(&group) else {
            return Ok(());
        };
        let (mut at, end) = (extent.start.get(), extent.end()?);
        while at < end && samples.taken < SAMPLES_MAX && samples.open > 0 {
            samples.taken = samples.taken.exact_add(1);
            let proved = sample(description.filesystem, extent, at, doubtful)?;
            samples.open = samples.open.exact_sub(proved);
            // The next stripe unit of the chunk may be on another device.
            at = match extent.is_data() {
                true => at.exact_add(STRIPE_BYTES),
                false => end,
            };
        }
        Ok(())
    })
}

/// Compares all copies of a sample in doubtful stripes with the block's header or the checksum.
/// Returns the number of stripes that the sample proves first.
fn sample(filesystem: &Filesystem, extent: &Extent, at: u64, doubtful: &mut Doubtful) -> Result<usize> {
    let logical = Logical::new(at);
    let bytes = match extent.is_data() {
        true => u64::from(filesystem.sector_bytes()),
        false => extent.length.get(),
    };
    let mut proved = 0_usize;
    for mapping in filesystem.volume().map(logical, ByteCount::new(bytes))? {
        // A block that crosses a stripe unit is no sample.
        let is_whole = mapping.length.get() == bytes && !mapping.missing;
        if !is_whole || !matches!(mapping.content, MappingContent::Data { .. }) {
            continue;
        }
        let last = Stripe {
            device: mapping.device.get(),
            physical: mapping.physical.get(),
            length: u64::MAX,
            chunk: u64::MAX,
        };
        let before = doubtful.range_mut(..=last).next_back();
        let Some((_, evidence)) = before.filter(|(stripe, _)| stripe.holds(&mapping)) else {
            continue;
        };
        // An unreadable copy says nothing about the place.
        let Some(content) = read(filesystem, &mapping) else {
            continue;
        };
        let is_right = match extent.is_data() {
            true => is_right_data(filesystem, logical, &content),
            false => Some(is_right_block(filesystem, logical, &content)),
        };
        if is_right == Some(true) && !evidence.right {
            evidence.right = true;
            proved = proved.exact_add(1);
        }
        evidence.wrong |= is_right == Some(false);
    }
    Ok(proved)
}

/// Reads the bytes of a mapping from its device.
fn read(filesystem: &Filesystem, mapping: &Mapping) -> Option<Buffer> {
    let slots = filesystem.volume().devices();
    let slot = slots.iter().find(|slot| slot.id() == mapping.device)?;
    let device = slot.device()?;
    device
        .read(mapping.physical.get(), mapping.length.to_usize()?)
        .ok()
}

fn is_right_block(filesystem: &Filesystem, logical: Logical, content: &[u8]) -> bool {
    let superblock = filesystem.superblock();
    let checksum = superblock.checksum_type;
    let is_intact = content
        .split_at_checked(CHECKSUM_BYTES)
        .is_some_and(|(head, covered)| head.starts_with(checksum.compute(covered).as_bytes()));
    is_intact
        && content.get(ADDRESS) == Some(&logical.get().to_le_bytes()[..])
        && content.get(FSID) == Some(&superblock.metadata_uuid.as_bytes()[..])
}

/// Returns whether a sector of data matches its checksum; `None` without a checksum. Equal bytes
/// prove nothing, because unused space has them, too.
fn is_right_data(filesystem: &Filesystem, logical: Logical, content: &[u8]) -> Option<bool> {
    // Without a readable checksum tree, no data is a sample.
    let expected = filesystem.expected_checksums(logical, content.len()).ok()??;
    if !expected.missing().is_empty() {
        return None;
    }
    let mut bad = Vec::new();
    expected.verify(content, &mut bad);
    let is_uniform = content.windows(2).all(|pair| pair.first() == pair.last());
    match (bad.is_empty(), is_uniform) {
        (true, true) => None,
        (is_right, _) => Some(is_right),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stripes_with_equal_or_overlapping_places_are_refused() {
        let stripe = |chunk, physical| Stripe {
            device: 1,
            physical,
            length: 4096,
            chunk,
        };
        assert!(require_apart(&[stripe(1, 8192), stripe(2, 12288)]).is_ok());
        assert!(require_apart(&[stripe(1, 8192), stripe(2, 8192)]).is_err());
        assert!(require_apart(&[stripe(1, 8192), stripe(2, 8193)]).is_err());
    }
}
