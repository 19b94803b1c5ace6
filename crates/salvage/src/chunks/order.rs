//! The order of a chunk's stripes, from witnesses and by exclusion.
//!
//! Stripes that hold the same content form a group: two neighbours of RAID10, else a single stripe.
//! A witness shows that a device extent belongs to a group. The order inside a group has no meaning.
//!
//! If witnesses leave several groups open, their order has no meaning either as long as they hold
//! no used content: no content then changes its place. With RAID5, `P` is a sum, so it stays right.
//! `Q` of RAID6 depends on the order, so the module `trials` compares it.

use super::evidence::{Unproven, copies_of};
use super::facts::Given;
use buttress_device::Buffer;
use buttress_exact::{Exact as _, usize_of};
use buttress_format::{ByteCount, Chunk, Generation, Logical, Stripe};
use buttress_volume::layout::{ChunkOffset, Layout};
use std::collections::{BTreeMap, BTreeSet};

/// The place of an address: a group of stripes, and the offset in each of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Spot {
    pub(super) group: usize,
    pub(super) offset: u64,
}

/// The search for the order of a chunk's stripes.
pub(super) struct Order {
    pub(super) start: Logical,
    pub(super) end: Logical,
    pub(super) layout: Layout,
    /// The stripes in any order.
    pub(super) stripes: Vec<Stripe>,
    sector_bytes: u32,
    copies: usize,
    /// For each stripe, the groups that witnesses give it, each with the newest witness.
    votes: Vec<BTreeMap<usize, Generation>>,
    /// Sectors of data with their checksums, by their offsets in the chunk.
    pub(super) sums: BTreeMap<u64, Vec<u8>>,
    /// The offsets of tree blocks in the chunk.
    pub(super) blocks: BTreeSet<u64>,
}

/// The largest number of tree blocks that are kept for trials.
pub(super) const BLOCKS_MAX: usize = 1 << 10;

/// Known groups of stripes.
#[derive(Clone, Debug, Default)]
pub(super) struct Partial {
    /// The group of each stripe, if it is known.
    pub(super) groups: Vec<Option<usize>>,
    /// The groups that still need stripes, each as often as it needs one.
    pub(super) open: Vec<usize>,
}

impl Partial {
    /// Returns all groups with their stripes, in order. The stripes of `rest` fill the open groups.
    pub(super) fn filled(&self, rest: &[usize]) -> Vec<(usize, usize)> {
        let known = self.groups.iter().enumerate();
        let known = known.filter_map(|(stripe, group)| Some(((*group)?, stripe)));
        let filled = self.open.iter().copied().zip(rest.iter().copied());
        let mut placed: Vec<(usize, usize)> = known.chain(filled).collect();
        placed.sort_unstable();
        placed
    }

    /// Returns the stripes without a group.
    pub(super) fn rest(&self) -> Vec<usize> {
        let stripes = self.groups.iter().enumerate();
        stripes
            .filter(|(_, group)| group.is_none())
            .map(|(stripe, _)| stripe)
            .collect()
    }
}

impl Order {
    pub(super) fn new(start: Logical, layout: Layout, chunk: &Chunk) -> Self {
        let mut stripes = chunk.stripes.clone();
        stripes.sort_unstable_by_key(|stripe| (stripe.device, stripe.physical));
        Self {
            start,
            end: chunk.end(start),
            layout,
            sector_bytes: chunk.sector_bytes,
            copies: copies_of(&layout),
            votes: vec![BTreeMap::new(); stripes.len()],
            stripes,
            sums: BTreeMap::new(),
            blocks: BTreeSet::new(),
        }
    }

    /// Returns the number of groups.
    pub(super) fn groups(&self) -> usize {
        self.stripes.len().quotient(self.copies)
    }

    /// Returns the number of stripes of a group.
    pub(super) const fn copies(&self) -> usize {
        self.copies
    }

    /// Returns the place of a byte of the chunk.
    pub(super) fn spot(&self, offset: u64) -> Option<Spot> {
        let place = self.layout.place(ChunkOffset::new(offset))?;
        Some(Spot {
            group: place.stripe_index.quotient(self.copies),
            offset: place.stripe_offset.get(),
        })
    }

    /// Records a witness of a generation: a stripe belongs to a group.
    pub(super) fn vote(&mut self, stripe: usize, group: usize, generation: Generation) {
        if let Some(votes) = self.votes.get_mut(stripe) {
            let newest = votes.entry(group).or_insert(generation);
            *newest = generation.max(*newest);
        }
    }

    /// Records a version of a tree block as a witness, unless more stripes have it than copies exist.
    pub(super) fn witness(&mut self, block: Option<(Logical, Generation, Spot, Vec<usize>)>) {
        let Some((logical, generation, spot, mut stripes)) = block else {
            return;
        };
        stripes.sort_unstable();
        stripes.dedup();
        if stripes.len() > self.copies {
            return;
        }
        if self.blocks.len() < BLOCKS_MAX {
            let offset = logical.get().checked_sub(self.start.get());
            self.blocks.extend(offset);
        }
        for stripe in stripes {
            self.vote(stripe, spot.group, generation);
        }
    }

    /// Reads a sector of a stripe.
    pub(super) fn read(&self, given: &Given, stripe: usize, offset: u64) -> Option<Buffer> {
        let stripe = self.stripes.get(stripe)?;
        let device = given.get(&stripe.device)?;
        let at = stripe.physical.checked_add(ByteCount::new(offset))?;
        device.read(at.get(), usize_of(self.sector_bytes)).ok()
    }

    /// Returns whether no witness contradicts an order.
    pub(super) fn agrees_with(&self, stripes: &[Stripe]) -> bool {
        let Ok(partial) = self.witnesses() else {
            return false;
        };
        let place = |stripe: &Stripe| (stripe.device, stripe.physical);
        let pairs = self.stripes.iter().zip(&partial.groups);
        pairs
            .filter_map(|(stripe, group)| Some((stripe, (*group)?)))
            .all(|(stripe, group)| {
                let position = stripes.iter().position(|other| place(other) == place(stripe));
                position.is_some_and(|position| position.quotient(self.copies) == group)
            })
    }

    pub(super) const fn contradiction(&self) -> Unproven {
        Unproven::Contradiction {
            stripes: self.stripes.len(),
        }
    }

    /// Returns the groups that the witnesses show. The newest witness of a stripe counts.
    pub(super) fn witnesses(&self) -> Result<Partial, Unproven> {
        let mut needs = vec![self.copies; self.groups()];
        let mut groups = Vec::new();
        for votes in &self.votes {
            let newest = votes.values().max();
            let mut best = votes.iter().filter(|(_, generation)| Some(*generation) == newest);
            let group = best.next().map(|(group, _)| *group);
            if best.next().is_some() {
                return Err(self.contradiction());
            }
            if let Some(need) = group.and_then(|group| needs.get_mut(group)) {
                *need = need.checked_sub(1).ok_or_else(|| self.contradiction())?;
            }
            groups.push(group);
        }
        let open = needs.iter().enumerate();
        let open = open.flat_map(|(group, need)| core::iter::repeat_n(group, *need));
        Ok(Partial {
            groups,
            open: open.collect(),
        })
    }

    /// Returns the stripes by their groups. The stripes of `rest` fill the open groups in order.
    pub(super) fn in_order(&self, partial: &Partial, rest: &[usize]) -> Vec<Stripe> {
        let stripes = partial.filled(rest).into_iter();
        stripes
            .filter_map(|(_, stripe)| self.stripes.get(stripe).copied())
            .collect()
    }
}
