//! The choice of block groups: Linux's filters over rows of the chunk and block-group tables.
//!
//! A balance visits block groups from the highest address down. A balance's limit counts only the
//! block groups that pass all other filters. If fewer block groups of a type pass than the least of
//! a limit range, none of this type is moved. A choice is a plan: a balance compares each block
//! group with the filters again when it visits the block group.
//!
//! Two differences from Linux 6.18, both in favour of the manual:
//!
//! - `limit=N` moves at most N block groups. Linux moves fewer where fewer than N pass: it also
//!   takes what is left of N as a least number.
//! - If both flags of a filter are set, Linux prefers the single value to the range.
//!
//! Source: btrfs-balance(8), section "Filters".

use buttress_exact::{Exact as _, u64_of};
use buttress_format::{
    BalanceArgumentFlags as Filter, BalanceArguments, BalanceFlags, BalanceItem, BlockGroupFlags, ByteCount,
    DeviceId, Logical, Physical,
};

/// A block group with the properties that balance filters test.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// The first address of the block group.
    pub start: Logical,
    /// The length of the block group, without copies and parity.
    pub length: ByteCount,
    /// The bytes of extents in the block group.
    pub used: ByteCount,
    /// The block group's type and profile.
    pub flags: BlockGroupFlags,
    /// The device and address of each stripe.
    pub stripes: Vec<(DeviceId, Physical)>,
}

/// The block groups that a balance moves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// The filters.
    pub item: BalanceItem,
    /// Chosen block groups, in the order in which they are moved.
    pub groups: Vec<Candidate>,
    /// The starts of all block groups of the volume, in the order in which they are visited.
    pub starts: Vec<Logical>,
}

impl Choice {
    /// Returns the number of bytes to move, without copies and parity.
    #[must_use]
    pub fn bytes(&self) -> ByteCount {
        let used = self.groups.iter().map(|group| group.used);
        // Clamp: extents do not overlap in a 64-bit address space.
        used.fold(ByteCount::ZERO, ByteCount::saturating_add)
    }
}

/// A type of block groups that has filters of its own. Mixed block groups count as data block
/// groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// File content.
    Data,
    /// All trees except the chunk tree.
    Metadata,
    /// The chunk tree.
    System,
}

impl Kind {
    /// All types.
    pub const ALL: [Self; 3] = [Self::Data, Self::Metadata, Self::System];

    /// Returns the type of a block group; `None` for flags without a type.
    #[must_use]
    pub const fn of(flags: BlockGroupFlags) -> Option<Self> {
        match () {
            () if flags.contains(BlockGroupFlags::DATA) => Some(Self::Data),
            () if flags.contains(BlockGroupFlags::SYSTEM) => Some(Self::System),
            () if flags.contains(BlockGroupFlags::METADATA) => Some(Self::Metadata),
            () => None,
        }
    }

    /// Returns the filters for this type.
    #[must_use]
    pub const fn filters(self, item: &BalanceItem) -> &BalanceArguments {
        match self {
            Self::Data => &item.data,
            Self::Metadata => &item.metadata,
            Self::System => &item.system,
        }
    }

    const fn filters_mut(self, item: &mut BalanceItem) -> &mut BalanceArguments {
        match self {
            Self::Data => &mut item.data,
            Self::Metadata => &mut item.metadata,
            Self::System => &mut item.system,
        }
    }

    /// Returns the type flag of this kind of block groups.
    #[must_use]
    pub const fn flag(self) -> BlockGroupFlags {
        match self {
            Self::Data => BlockGroupFlags::DATA,
            Self::Metadata => BlockGroupFlags::METADATA,
            Self::System => BlockGroupFlags::SYSTEM,
        }
    }

    /// Returns the name of the type for messages.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Data => "data",
            Self::Metadata => "metadata",
            Self::System => "system",
        }
    }
}

/// Returns the block groups that a balance moves.
#[must_use]
pub fn choose(item: &BalanceItem, mut candidates: Vec<Candidate>) -> Choice {
    candidates.sort_by_key(|candidate| core::cmp::Reverse(candidate.start));
    let starts = candidates.iter().map(|candidate| candidate.start).collect();
    let mut visits = Visits {
        item,
        left: Kind::ALL.map(|kind| limits(kind.filters(item)).1),
    };
    let mut groups: Vec<Candidate> = candidates;
    groups.retain(|candidate| visits.take(candidate));
    for kind in Kind::ALL {
        let (least, _) = limits(kind.filters(item));
        if count(&groups, kind) < least {
            groups.retain(|group| Kind::of(group.flags) != Some(kind));
        }
    }
    Choice {
        item: *item,
        groups,
        starts,
    }
}

fn count(groups: &[Candidate], kind: Kind) -> u64 {
    u64_of(
        groups
            .iter()
            .filter(|group| Kind::of(group.flags) == Some(kind))
            .count(),
    )
}

impl Choice {
    /// Begins to visit the block groups. Each is compared with the filters again when it is
    /// visited, as Linux does: what was moved meanwhile may have filled it.
    pub(crate) fn visits(&self) -> Visits<'_> {
        let left = |kind: Kind| match limits(kind.filters(&self.item)) {
            (least, _) if count(&self.groups, kind) < least => 0,
            (_, most) => most,
        };
        Visits {
            item: &self.item,
            left: Kind::ALL.map(left),
        }
    }
}

/// The filters, and what is left of their limits.
#[derive(Debug)]
pub(crate) struct Visits<'a> {
    item: &'a BalanceItem,
    /// By type, in the order of [`Kind::ALL`].
    left: [u64; 3],
}

impl Visits<'_> {
    /// Returns whether a block group is to be moved now, and counts it.
    pub(crate) fn take(&mut self, candidate: &Candidate) -> bool {
        let Some(kind) = Kind::of(candidate.flags).filter(|_| passes(self.item, candidate)) else {
            return false;
        };
        let mut of_kind = Kind::ALL.into_iter().zip(&mut self.left);
        let Some((_, left)) = of_kind.find(|(other, _)| *other == kind) else {
            return false;
        };
        match left.checked_sub(1) {
            None => false,
            Some(fewer) => {
                *left = fewer;
                true
            }
        }
    }
}

/// Returns the item with which Linux resumes a balance: it passes over converted block groups, and
/// over full ones, which a balance leaves behind.
#[must_use]
pub fn resumed(mut item: BalanceItem) -> BalanceItem {
    /// The fill below which a block group counts as not moved so far, in per cent.
    const RESUMED_BELOW: u32 = 90;
    item.flags |= BalanceFlags::RESUME;
    if buttress_faults::on("balance-resumed-from-the-beginning") {
        return item;
    }
    for kind in Kind::ALL {
        let filters = kind.filters_mut(&mut item);
        if filters.flags.contains(Filter::CONVERT) {
            filters.flags |= Filter::SOFT;
        } else if !filters.flags.intersects(Filter::USAGE | Filter::USAGE_RANGE) {
            *filters = filters.with_usage(RESUMED_BELOW);
        }
    }
    item
}

/// Returns the least and the greatest number of block groups that the filters allow.
fn limits(filters: &BalanceArguments) -> (u64, u64) {
    if filters.flags.contains(Filter::LIMIT) {
        return (0, filters.limit());
    }
    if filters.flags.contains(Filter::LIMIT_RANGE) {
        return (filters.limit_min.into(), filters.limit_max.into());
    }
    (0, u64::MAX)
}

/// Returns whether all filters except limits let a block group through.
fn passes(item: &BalanceItem, candidate: &Candidate) -> bool {
    let Some(kind) = Kind::of(candidate.flags) else {
        return false;
    };
    let wanted = [
        (BalanceFlags::DATA, BlockGroupFlags::DATA),
        (BalanceFlags::METADATA, BlockGroupFlags::METADATA),
        (BalanceFlags::SYSTEM, BlockGroupFlags::SYSTEM),
    ];
    let is_wanted = wanted
        .into_iter()
        .any(|(flag, of_type)| item.flags.contains(flag) && candidate.flags.contains(of_type));
    let filters = kind.filters(item);
    let has = |filter: Filter| filters.flags.contains(filter);
    is_wanted
        && (!has(Filter::PROFILES) || filters.profiles.contains(candidate.flags.profile_in_set()))
        && has_usage(filters, candidate)
        && (!has(Filter::DEVID) || on_device(filters, candidate).next().is_some())
        && (!has(Filter::DEVID | Filter::DRANGE) || is_in_device_range(filters, candidate))
        && (!has(Filter::VRANGE) || is_in_logical_range(filters, candidate))
        && (!has(Filter::STRIPES_RANGE) || has_stripes(filters, candidate))
        && (!has(Filter::CONVERT | Filter::SOFT) || filters.target != candidate.flags.profile_in_set())
}

/// Returns this percentage of a length, rounded down; above 100 per cent, the whole length.
fn part_of(length: ByteCount, percent: u64) -> u64 {
    let part = u128::from(length.get()).exact_mul(percent.min(100).into());
    part.quotient(100).narrow()
}

/// The upper bound of the usage filter is exclusive, except that 0 stands for empty block groups.
fn has_usage(filters: &BalanceArguments, candidate: &Candidate) -> bool {
    let used = candidate.used.get();
    let below = |percent: u64| match percent {
        0 => used < 1,
        percent => used < part_of(candidate.length, percent),
    };
    if filters.flags.contains(Filter::USAGE) {
        return below(filters.usage());
    }
    if filters.flags.contains(Filter::USAGE_RANGE) {
        let least = part_of(candidate.length, filters.usage_min.into());
        return least <= used && below(filters.usage_max.into());
    }
    true
}

/// Returns the physical starts of a block group's stripes on the filter's device.
fn on_device<'a>(
    filters: &'a BalanceArguments,
    candidate: &'a Candidate,
) -> impl Iterator<Item = Physical> + 'a {
    let stripes = candidate.stripes.iter();
    stripes
        .filter(|(device, _)| *device == filters.device)
        .map(|(_, physical)| *physical)
}

fn is_in_device_range(filters: &BalanceArguments, candidate: &Candidate) -> bool {
    let Some(length) = stripe_length(candidate) else {
        return false;
    };
    on_device(filters, candidate).any(|start| {
        // Clamp: an end above all addresses is above the filter's start.
        start < filters.physical_end && start.saturating_add(length) > filters.physical_start
    })
}

/// Returns how long each stripe is. Returns `None` if the number of stripes contradicts the
/// profile.
fn stripe_length(candidate: &Candidate) -> Option<ByteCount> {
    let profile = candidate.flags.profile()?;
    let stripes = u64::try_from(candidate.stripes.len()).ok()?;
    let data = stripes
        .checked_sub(profile.parity_stripes().into())?
        .checked_div(profile.copies().into())?;
    Some(ByteCount::new(candidate.length.get().checked_div(data)?))
}

fn is_in_logical_range(filters: &BalanceArguments, candidate: &Candidate) -> bool {
    // Clamp: an end above all addresses is above the filter's start.
    let end = candidate.start.saturating_add(candidate.length);
    candidate.start < filters.logical_end && end > filters.logical_start
}

fn has_stripes(filters: &BalanceArguments, candidate: &Candidate) -> bool {
    let stripes = u32::try_from(candidate.stripes.len()).ok();
    stripes.is_some_and(|stripes| (filters.stripes_min..=filters.stripes_max).contains(&stripes))
}

#[cfg(test)]
mod tests;
