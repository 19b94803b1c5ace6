//! Content that names the stripe it is on.
//!
//! - A tree block states its address. The index has its device and its place, so the block shows
//!   which stripe holds this address. Blocks of earlier generations count, too: the mapping of a
//!   chunk never changes.
//!   If all other blocks of a row are zeros, its parity equals the block: a block at too many places
//!   is no witness.
//! - The checksum of a sector of data matches the content of the right stripe. If it matches the
//!   content of other stripes, too, the sector is no witness.

use super::facts::{Facts, Given};
use super::order::{Order, Spot};
use crate::error::Result;
use buttress_exact::Exact as _;
use buttress_format::{
    BlockGroupFlags, ByteCount, ChecksumItem, ChecksumType, Generation, ItemType, Key, Logical, ObjectId,
};
use buttress_fs::Progress;
use core::ops::ControlFlow;

/// The number of sectors of one group that are read.
const TRIES_MAX: u32 = 64;

/// The number of witnesses of one group after which no more are read.
const WITNESSES: u32 = 4;

/// The largest number of checksums that are kept for trials.
const SUMS_MAX: usize = 1 << 16;

/// Collects the witnesses of a chunk of this type.
pub(super) fn collect(
    facts: &mut Facts<'_>,
    order: &mut Order,
    flags: BlockGroupFlags,
    progress: &Progress,
) -> Result<()> {
    if flags.intersects(BlockGroupFlags::METADATA.union(BlockGroupFlags::SYSTEM)) {
        blocks(facts, order)?;
    }
    if flags.contains(BlockGroupFlags::DATA) {
        progress.check()?;
        checksums(facts, order)?;
    }
    Ok(())
}

/// Collects the tree blocks of a chunk as witnesses.
fn blocks(facts: &mut Facts<'_>, order: &mut Order) -> Result<()> {
    let (start, end) = (order.start, order.end);
    let ids = &facts.ids;
    // The stripes that have a version of a block: its place, generation and stripes.
    let mut last: Option<(Logical, Generation, Spot, Vec<usize>)> = None;
    facts.trees.reader().in_range(start..end, &mut |record| {
        let id = ids.get(usize::from(record.device)).copied().flatten();
        let offset = record.logical.get().checked_sub(start.get());
        let spot = offset.and_then(|offset| order.spot(offset));
        let (Some(spot), true) = (spot, record.is_sound()) else {
            return;
        };
        let stripe = order.stripes.iter().position(|stripe| {
            Some(stripe.device) == id
                && stripe.physical.checked_add(ByteCount::new(spot.offset)) == Some(record.physical)
        });
        let Some(stripe) = stripe else { return };
        match &mut last {
            Some((logical, generation, _, stripes))
                if (*logical, *generation) == (record.logical, record.generation) =>
            {
                stripes.push(stripe);
            }
            _ => {
                order.witness(last.take());
                last = Some((record.logical, record.generation, spot, vec![stripe]));
            }
        }
    })?;
    order.witness(last);
    Ok(())
}

/// Collects the sectors of a chunk as witnesses, as far as they have checksums.
fn checksums(facts: &mut Facts<'_>, order: &mut Order) -> Result<()> {
    let Some(root) = facts.checksum_tree else {
        return Ok(());
    };
    let (start, end) = (order.start, order.end);
    let format = facts.trees.format();
    let (checksum_type, sector_bytes) = (format.checksum_type, facts.sector_bytes);
    // An item that begins before the chunk can reach into it.
    let item_bytes = ChecksumItem::bytes_max(format.node_bytes, checksum_type);
    let reach = item_bytes.quotient(checksum_type.size_bytes()) as u64;
    let reach = reach.exact_mul(sector_bytes.into());
    let key = |at: u64| Key::new(ObjectId::EXTENT_CHECKSUM, ItemType::EXTENT_CSUM, at);
    // Clamp: the first chunk can begin within the reach of an item. A chunk ends after its start.
    let keys = key(start.get().saturating_sub(reach))..=key(end.get().saturating_sub(1));
    let mut samples = Samples {
        groups: vec![(0, 0); order.groups()],
        order,
        given: &facts.given,
        checksum_type,
    };
    let mut take = |key: &Key, data: &[u8]| {
        if let Ok(item) = ChecksumItem::parse(key, data, sector_bytes, checksum_type) {
            let inside = item.iter().filter(|(logical, _)| (start..end).contains(logical));
            inside.for_each(|(logical, sum)| samples.take(logical, sum));
        }
        match samples.suffice() {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    };
    facts.trees.items(&root, &keys, &mut take)?;
    Ok(())
}

/// The sectors of a chunk that are compared with their checksums.
struct Samples<'a> {
    /// The numbers of read sectors and of witnesses of each group.
    groups: Vec<(u32, u32)>,
    order: &'a mut Order,
    given: &'a Given,
    checksum_type: ChecksumType,
}

impl Samples<'_> {
    fn suffice(&self) -> bool {
        let mut groups = self.groups.iter();
        self.order.sums.len() >= SUMS_MAX && groups.all(|(tried, found)| is_enough(*tried, *found))
    }

    /// Compares a sector with the content of each stripe.
    fn take(&mut self, logical: Logical, sum: &[u8]) {
        let order = &mut *self.order;
        let offset = logical.get().exact_sub(order.start.get());
        if order.sums.len() < SUMS_MAX {
            order.sums.insert(offset, sum.to_vec());
        }
        let Some(spot) = order.spot(offset) else { return };
        let Some((tried, found)) = self.groups.get_mut(spot.group) else {
            return;
        };
        if is_enough(*tried, *found) {
            return;
        }
        *tried = tried.exact_add(1);
        let matches = |stripe: &usize| {
            let sector = order.read(self.given, *stripe, spot.offset);
            sector.is_some_and(|sector| self.checksum_type.compute(&sector).as_bytes() == sum)
        };
        let matching: Vec<usize> = (0..order.stripes.len()).filter(matches).collect();
        if matching.is_empty() || matching.len() > order.copies() {
            return;
        }
        *found = found.exact_add(1);
        for stripe in matching {
            order.vote(stripe, spot.group, Generation::MAX);
        }
    }
}

const fn is_enough(tried: u32, found: u32) -> bool {
    tried >= TRIES_MAX || found >= WITNESSES
}
