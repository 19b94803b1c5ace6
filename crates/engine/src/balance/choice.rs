//! The choice of block groups: Linux's filters over rows of the chunk and block-group tables.
//!
//! A balance visits block groups from the highest address down. A balance's limit counts only the
//! block groups that pass all other filters. Where fewer block groups pass than the least of a
//! limit range, none of their type is moved.
//!
//! Two differences from Linux 6.18, both in favour of the manual:
//!
//! - `limit=N` moves at most N block groups. Linux moves fewer where fewer than N pass: it also takes what is left of N as
//!   a least number.
//! - A flag of a single value beside the flag of a range is Linux's precedence: the single value counts.
//!
//! Source: btrfs-balance(8), section "Filters".

use buttress_exact::Exact as _;
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

/// A block group that passed all filters of the balance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chosen {
    /// The block group.
    pub group: Candidate,
    /// The number of block groups that the choice had compared with the filters when it reached
    /// this one.
    pub considered: usize,
}

/// The block groups that a balance moves.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Choice {
    /// Chosen block groups, in the order in which they are moved.
    pub groups: Vec<Chosen>,
    /// The number of block groups that the choice compared with the filters.
    pub considered: usize,
}

impl Choice {
    /// Returns the number of bytes to move, without copies and parity.
    #[must_use]
    pub fn bytes(&self) -> ByteCount {
        let used = self.groups.iter().map(|chosen| chosen.group.used);
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
    /// Balances all trees except the chunk tree.
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

    /// Returns the name in messages.
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
    let considered = candidates.len();
    let mut groups: Vec<Chosen> = candidates
        .into_iter()
        .zip(1_usize..)
        .filter(|(candidate, _)| passes(item, candidate))
        .map(|(group, considered)| Chosen { group, considered })
        .collect();
    for kind in Kind::ALL {
        let (least, most) = limits(kind.filters(item));
        let is_kind = |chosen: &Chosen| Kind::of(chosen.group.flags) == Some(kind);
        let found = u64::try_from(groups.iter().filter(|chosen| is_kind(chosen)).count());
        // Clamp: a count in memory is below the bound of any limit.
        let found = found.unwrap_or(u64::MAX).min(most);
        let mut left = if found < least { 0 } else { found };
        groups.retain(|chosen| {
            if !is_kind(chosen) {
                return true;
            }
            let is_in = left > 0;
            left = left.exact_sub(u64::from(is_in));
            is_in
        });
    }
    Choice { groups, considered }
}

/// Returns the item with which Linux resumes a balance: it passes over converted block groups, and
/// over full ones, which a balance leaves behind.
#[must_use]
pub fn resumed(mut item: BalanceItem) -> BalanceItem {
    /// The fill below which a block group counts as not moved so far, in per cent.
    const RESUMED_BELOW: u32 = 90;
    item.flags |= BalanceFlags::RESUME;
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

/// Returns the least and the greatest number of block groups.
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

/// Returns how long each stripe is. `None` if the number of stripes contradicts the profile.
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
