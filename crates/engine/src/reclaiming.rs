//! The advice for a volume without space: the balance that would return space, and the amount.
//!
//! Space for one kind of block groups can be lacking while groups of the other kind are nearly empty. A balance
//! moves the extents of the emptiest groups into the free space of the other groups of their kind.
//!
//! Left out: mixed block groups, which serve both kinds, and the groups of the chunk tree.

use crate::block_groups::{BlockGroups, Group, Purpose};
use buttress_exact::Exact as _;
use buttress_format::{BlockGroupFlags, ByteCount};
use buttress_fs::error::Reclaimable;

/// The part of the free space that a balance can fill: seven in eight. Extents are allocated in one piece.
const FILLED_EIGHTHS: u128 = 7;

impl BlockGroups {
    /// Returns the balance that returns space for `lacking` from groups of the other kind; `None` if it would
    /// empty no group.
    pub(crate) fn reclaimable(&self, lacking: Purpose) -> Option<Reclaimable> {
        let (other, option) = match lacking {
            Purpose::Data => (BlockGroupFlags::METADATA, "-m"),
            Purpose::Metadata | Purpose::System => (BlockGroupFlags::DATA, "-d"),
        };
        let is_of_kind = |group: &&Group| group.flags.intersection(BlockGroupFlags::TYPES) == other;
        let groups = self.iter().filter(is_of_kind);
        emptied(groups.map(|group| (group.used, group.length)), option)
    }
}

/// Returns the advice for groups, given as used bytes and length.
fn emptied(groups: impl Iterator<Item = (u64, u64)>, option: &'static str) -> Option<Reclaimable> {
    // Bytes of two groups do not overlap, so that their sums fit.
    let mut groups: Vec<(u64, u64)> = groups.filter(|(_, length)| *length > 0).collect();
    groups.sort_unstable_by_key(|(used, length)| (percent(*used, *length), *length));
    let mut free: u128 = groups.iter().map(|group| free_bytes(*group)).sum();
    let (mut moved, mut bytes, mut usage_percent) = (0_u128, 0_u64, 0_u64);
    for (used, length) in groups {
        let rest = free.checked_sub(free_bytes((used, length)))?;
        let with_this = moved.checked_add(used.into())?;
        let filled = rest.checked_mul(FILLED_EIGHTHS)?.checked_div(8)?;
        if with_this > filled {
            break;
        }
        (free, moved) = (rest, with_this);
        bytes = bytes.exact_add(length);
        // The filter passes groups whose use is below the percentage.
        usage_percent = percent(used, length).exact_add(1).min(100);
    }
    (bytes > 0).then_some(Reclaimable {
        option,
        usage_percent,
        bytes: ByteCount::new(bytes),
    })
}

/// Returns the free bytes of a group. The used bytes of a damaged group may exceed its length.
fn free_bytes((used, length): (u64, u64)) -> u128 {
    length.checked_sub(used).map_or(0, u128::from)
}

/// Returns the used part of a group in whole per cent, at most 100.
fn percent(used: u64, length: u64) -> u64 {
    let part = u128::from(used.min(length))
        .checked_mul(100)
        .and_then(|part| part.checked_div(length.into()));
    // An empty length has no part, and a part never exceeds 100.
    part.and_then(|part| u64::try_from(part).ok())
        .map_or(100, |part| part.min(100))
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn advice(groups: &[(u64, u64)]) -> Option<(u64, u64)> {
        let advice = emptied(groups.iter().copied(), "-d")?;
        Some((advice.usage_percent, advice.bytes.get()))
    }

    #[test]
    fn emptiest_groups_move_into_the_others() {
        let groups = [(GIB / 10, GIB), (GIB / 2, GIB), (GIB / 5, GIB)];
        // A tenth and a fifth fit into the free half; a half does not fit anywhere.
        assert_eq!(advice(&groups), Some((20, 2 * GIB)));
    }

    #[test]
    fn full_groups_and_a_single_group_return_nothing() {
        assert_eq!(advice(&[]), None);
        assert_eq!(advice(&[(GIB / 10, GIB)]), None);
        assert_eq!(advice(&[(GIB, GIB), (GIB, GIB)]), None);
    }

    #[test]
    fn empty_groups_count_whole_and_damaged_groups_do_not_panic() {
        assert_eq!(advice(&[(0, GIB), (GIB / 2, GIB)]), Some((1, GIB)));
        assert_eq!(advice(&[(u64::MAX, 1), (u64::MAX, u64::MAX), (0, 0)]), None);
    }
}
