//! Orders of a parity chunk's stripes under which all of its used content is consistent.
//!
//! A few stripes are left whose groups no witness shows. Each order of them is tried: data must
//! match its checksums, and `P` and `Q` of each used row must be right. If several orders satisfy
//! this, they must give each used sector the same content. The first one then counts.

use super::facts::Facts;
use super::order::{Order, Partial};
use crate::error::Result;
use buttress_exact::{Exact as _, usize_of};
use buttress_format::{Checksum, ChecksumType, Logical};
use buttress_fs::Progress;
use buttress_volume::layout::ChunkOffset;
use buttress_volume::parity::{compute_p, compute_q};
use core::ops::Range;
use std::collections::BTreeMap;

/// The largest number of stripes whose orders are tried.
const STRIPES_MAX: usize = 5;

/// The largest number of used sectors that are compared.
const SECTORS_MAX: usize = 1 << 12;

/// The result of the trials.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// The stripes for the open groups, in the order of these groups. True if other orders give all
    /// used sectors the same content.
    Order(Vec<usize>, bool),
    /// No order is consistent.
    Nothing,
    /// Several orders with different content are consistent, or too many stripes are left.
    Unknown,
}

/// Returns the offsets in a chunk of all sectors of extents.
pub(super) fn sectors(
    start: Logical,
    used: &[Range<u64>],
    sector_bytes: u32,
) -> impl Iterator<Item = u64> + Clone + '_ {
    let offset = move |at: u64| at.checked_sub(start.get());
    let of_extent = move |extent: &Range<u64>| extent.clone().step_by(usize_of(sector_bytes));
    used.iter().flat_map(of_extent).filter_map(offset)
}

/// Returns an order of the stripes without a group under which the sectors are consistent.
pub(super) fn consistent(
    order: &Order,
    facts: &Facts<'_>,
    partial: &Partial,
    sectors: impl Iterator<Item = u64>,
    progress: &Progress,
) -> Result<Found> {
    let rest = partial.rest();
    let sectors: Vec<u64> = sectors.take(SECTORS_MAX.exact_add(1)).collect();
    if rest.len() > STRIPES_MAX || sectors.len() > SECTORS_MAX {
        return Ok(Found::Unknown);
    }
    let mut trial = Trial {
        order,
        facts,
        read: BTreeMap::new(),
    };
    let (mut orders, mut found) = (Vec::new(), None);
    permute(&rest, &mut Vec::new(), &mut orders);
    for candidate in orders {
        progress.check()?;
        let Some(stripes) = stripes_of(order, &partial.filled(&candidate)) else {
            return Ok(Found::Nothing);
        };
        if !sectors.iter().all(|offset| trial.is_right(&stripes, *offset)) {
            continue;
        }
        let content: Vec<_> = sectors.iter().map(|at| trial.content(&stripes, *at)).collect();
        match &mut found {
            None => found = Some((candidate, content, false)),
            Some((_, known, is_free)) if *known == content => *is_free = true,
            Some(_) => return Ok(Found::Unknown),
        }
    }
    Ok(match found {
        Some((candidate, _, is_free)) => Found::Order(candidate, is_free),
        None => Found::Nothing,
    })
}

/// Returns the stripe of each group. With parity, each group has one stripe.
fn stripes_of(order: &Order, groups: &[(usize, usize)]) -> Option<Vec<usize>> {
    let is_complete = groups.len() == order.groups();
    let stripes = groups.iter().enumerate();
    let stripes = stripes.map(|(number, (group, stripe))| (number == *group).then_some(*stripe));
    stripes.collect::<Option<Vec<usize>>>().filter(|_| is_complete)
}

/// Counts the sectors that are consistent under an order, and those that are not.
pub(super) fn count(
    order: &Order,
    facts: &Facts<'_>,
    groups: &[(usize, usize)],
    sectors: impl Iterator<Item = u64>,
    progress: &Progress,
) -> Result<(u64, u64)> {
    let mut trial = Trial {
        order,
        facts,
        read: BTreeMap::new(),
    };
    let Some(stripes) = stripes_of(order, groups) else {
        return Ok((0, 0));
    };
    let (mut right, mut wrong) = (0_u64, 0_u64);
    for offset in sectors {
        progress.check()?;
        let count = match trial.is_right(&stripes, offset) {
            true => &mut right,
            false => &mut wrong,
        };
        *count = count.exact_add(1);
        // Each sector is read once.
        trial.read.clear();
    }
    Ok((right, wrong))
}

/// Appends all orders of `rest` after `begun`.
fn permute(rest: &[usize], begun: &mut Vec<usize>, all: &mut Vec<Vec<usize>>) {
    if begun.len() == rest.len() {
        all.push(begun.clone());
        return;
    }
    for stripe in rest {
        if !begun.contains(stripe) {
            begun.push(*stripe);
            permute(rest, begun, all);
            begun.pop();
        }
    }
}

struct Trial<'a> {
    order: &'a Order,
    facts: &'a Facts<'a>,
    /// The sectors that were read, by stripe and offset; `None` if a sector is unreadable.
    read: BTreeMap<(usize, u64), Option<Vec<u8>>>,
}

impl Trial<'_> {
    fn sector(&mut self, stripe: usize, offset: u64) -> Option<Vec<u8>> {
        let (order, facts) = (self.order, self.facts);
        let read = || {
            order
                .read(&facts.given, stripe, offset)
                .map(|sector| sector.to_vec())
        };
        self.read.entry((stripe, offset)).or_insert_with(read).clone()
    }

    /// Returns the checksum of the content of a sector.
    fn content(&mut self, stripes: &[usize], at: u64) -> Option<Checksum> {
        let place = self.order.layout.place(ChunkOffset::new(at))?;
        let stripe = *stripes.get(place.stripe_index)?;
        let sector = self.sector(stripe, place.stripe_offset.get())?;
        Some(ChecksumType::Sha256.compute(&sector))
    }

    /// Returns whether a sector matches its checksum, and whether the parity of its row is right.
    /// An unreadable sector proves nothing.
    fn is_right(&mut self, stripes: &[usize], at: u64) -> bool {
        let layout = self.order.layout;
        let Some(place) = layout.place(ChunkOffset::new(at)) else {
            return true;
        };
        let (offset, Some(parity)) = (place.stripe_offset.get(), place.parity) else {
            return true;
        };
        let mut columns = Vec::new();
        for column in 0..layout.stripe_count() {
            let stripe = layout.stripe_of_column(parity.row, column);
            let stripe = stripe.and_then(|stripe| stripes.get(stripe).copied());
            columns.push(stripe.and_then(|stripe| self.sector(stripe, offset)));
        }
        let own = columns.get(parity.column).cloned().flatten();
        if let (Some(own), Some(sum)) = (own, self.order.sums.get(&at))
            && self.facts.trees.format().checksum_type.compute(&own).as_bytes() != sum.as_slice()
        {
            return false;
        }
        let Some(columns) = columns.into_iter().collect::<Option<Vec<Vec<u8>>>>() else {
            return true;
        };
        let (data, kept) = columns.split_at(layout.data_columns().min(columns.len()));
        let mut computed = vec![0; usize_of(self.facts.sector_bytes)];
        compute_p(data.iter().map(Vec::as_slice), &mut computed);
        if kept.first().is_some_and(|p| *p != computed) {
            return false;
        }
        compute_q(data.iter().map(|block| Some(block.as_slice())), &mut computed);
        kept.get(1).is_none_or(|q| *q == computed)
    }
}
