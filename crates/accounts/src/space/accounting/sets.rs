//! Sets of owners, each stored once: equal sets have equal ids.
//!
//! Owners are numbered in the order of their ids, which is the order in which they were made. A
//! tree block is in use from one snapshot to a later one, so most owner sets are a few runs of
//! neighbours. A set is therefore a list of half-open runs, in order, with a gap between any two.
//!
//! Bound: `SETS_BYTES_MAX` is the memory of all owner sets. If the owner sets need more memory, the
//! account returns an error.

use super::owners::OwnerIndex;
use buttress_exact::{Exact as _, u64_of};
use buttress_fs::error::{Error, Result};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

/// The memory limit of all sets, including the figures of each.
pub(super) const SETS_BYTES_MAX: usize = 96 << 20;

/// The memory of one set besides its runs: two pointers to it, its place in the table, and its
/// figures.
const SET_BYTES: usize = 400;

/// The most unions of two sets that are remembered.
const UNIONS_MAX: usize = 1 << 16;

/// A run of consecutive owners, `[start, end)`.
pub(super) type Run = (OwnerIndex, OwnerIndex);

/// The number of a set of owners.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct SetId(pub(super) u32);

/// All sets.
#[derive(Debug)]
pub(super) struct Sets {
    list: Vec<Arc<[Run]>>,
    by_runs: HashMap<Arc<[Run]>, SetId>,
    unions: HashMap<(SetId, SetId), SetId>,
    bytes: usize,
    bytes_max: usize,
}

impl Sets {
    pub(super) fn new(bytes_max: usize) -> Self {
        Self {
            list: Vec::new(),
            by_runs: HashMap::new(),
            unions: HashMap::new(),
            bytes: 0,
            bytes_max,
        }
    }

    /// Returns the runs of a set.
    pub(super) fn runs(&self, id: SetId) -> &[Run] {
        let index = id.0.narrow::<usize>();
        self.list.get(index).map_or(&[], |runs| runs)
    }

    /// Returns the set with these runs of owners, which are in order with gaps between them.
    ///
    /// # Errors
    /// Fails with [`Error::AccountingTooBig`].
    pub(super) fn intern(&mut self, runs: &[Run]) -> Result<SetId> {
        if let Some(id) = self.by_runs.get(runs) {
            return Ok(*id);
        }
        let bytes = size_of_val(runs).exact_add(SET_BYTES);
        self.bytes = self.bytes.exact_add(bytes);
        let next = u32::try_from(self.list.len())
            .ok()
            .filter(|_| self.bytes <= self.bytes_max);
        let Some(id) = next.map(SetId) else {
            return Err(Error::AccountingTooBig {
                what: "bytes of sets of sharing subvolumes",
                limit: u64_of(self.bytes_max),
            });
        };
        let runs: Arc<[Run]> = runs.into();
        self.list.push(Arc::clone(&runs));
        self.by_runs.insert(runs, id);
        Ok(id)
    }

    /// Returns the set of one owner.
    pub(super) fn of_one(&mut self, owner: OwnerIndex) -> Result<SetId> {
        self.intern(&[(owner, owner.exact_add(1))])
    }

    /// Returns the union of all sets of a list, and sorts the list.
    pub(super) fn union(&mut self, ids: &mut Vec<SetId>) -> Result<SetId> {
        ids.sort_unstable();
        ids.dedup();
        match ids.as_slice() {
            [one] => Ok(*one),
            [a, b] => {
                let pair = (*a, *b);
                if let Some(known) = self.unions.get(&pair) {
                    return Ok(*known);
                }
                let union = merged(&[self.runs(pair.0), self.runs(pair.1)]);
                let id = self.intern(&union)?;
                if self.unions.len() >= UNIONS_MAX {
                    self.unions.clear();
                }
                self.unions.insert(pair, id);
                Ok(id)
            }
            several => {
                let lists: Vec<&[Run]> = several.iter().map(|id| self.runs(*id)).collect();
                let union = merged(&lists);
                self.intern(&union)
            }
        }
    }

    /// Returns a set with `added` in place of one of its members.
    pub(super) fn replaced(&mut self, id: SetId, gone: OwnerIndex, added: &[OwnerIndex]) -> Result<SetId> {
        let mut runs = Vec::new();
        for (start, end) in self.runs(id) {
            if *start <= gone && gone < *end {
                runs.push((*start, gone));
                runs.push((gone.exact_add(1), *end));
            } else {
                runs.push((*start, *end));
            }
        }
        runs.retain(|(start, end)| start < end);
        let added: Vec<Run> = added.iter().map(|owner| (*owner, owner.exact_add(1))).collect();
        let union = merged(&[&runs, &added]);
        self.intern(&union)
    }

    /// Returns whether a set has this member.
    pub(super) fn contains(&self, id: SetId, owner: OwnerIndex) -> bool {
        self.runs(id)
            .iter()
            .any(|(start, end)| *start <= owner && owner < *end)
    }

    /// Returns all sets.
    pub(super) fn into_list(self) -> Vec<Arc<[Run]>> {
        self.list
    }
}

/// Returns the members of a list of runs.
pub(super) fn members(runs: &[Run]) -> impl Iterator<Item = OwnerIndex> {
    runs.iter().flat_map(|(start, end)| Range {
        start: *start,
        end: *end,
    })
}

/// Returns the union of lists of owner runs.
fn merged(lists: &[&[Run]]) -> Vec<Run> {
    let mut all: Vec<Run> = lists.iter().flat_map(|runs| runs.iter().copied()).collect();
    all.sort_unstable();
    let mut union: Vec<Run> = Vec::with_capacity(all.len());
    for (start, end) in all {
        match union.last_mut() {
            Some((_, last)) if *last >= start => *last = end.max(*last),
            _ => union.push((start, end)),
        }
    }
    union
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn sets() -> Sets {
        Sets::new(SETS_BYTES_MAX)
    }

    fn of(sets: &mut Sets, members: &BTreeSet<u32>) -> SetId {
        let mut ids: Vec<SetId> = members.iter().map(|one| sets.of_one(*one).unwrap()).collect();
        sets.union(&mut ids).unwrap()
    }

    fn content(sets: &Sets, id: SetId) -> BTreeSet<u32> {
        members(sets.runs(id)).collect()
    }

    #[test]
    fn operations_equal_those_of_sets_and_equal_sets_share_id() {
        let mut sets = sets();
        let mut state = 7_u32;
        let mut random = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            state >> 16
        };
        for _ in 0..3000 {
            let mut pick = |share: u32| -> BTreeSet<u32> {
                let mut picked: BTreeSet<u32> = (0..20).filter(|_| random() % share == 0).collect();
                picked.insert(random() % 20);
                picked
            };
            let (a, b, c) = (pick(2), pick(3), pick(7));
            let ids = [of(&mut sets, &a), of(&mut sets, &b), of(&mut sets, &c)];
            for (id, expected) in ids.iter().zip([&a, &b, &c]) {
                assert_eq!(content(&sets, *id), *expected);
                assert_eq!(of(&mut sets, expected), *id);
            }
            let union = sets.union(&mut ids.to_vec()).unwrap();
            let expected: BTreeSet<u32> = a.iter().chain(&b).chain(&c).copied().collect();
            assert_eq!(content(&sets, union), expected);
            let pair = sets.union(&mut vec![ids[1], ids[0], ids[1]]).unwrap();
            assert_eq!(content(&sets, pair), a.union(&b).copied().collect());
            let gone = *a.first().unwrap();
            let replaced = sets.replaced(ids[0], gone, &[30, 32]).unwrap();
            let mut expected = a.clone();
            expected.remove(&gone);
            expected.extend([30, 32]);
            assert_eq!(content(&sets, replaced), expected);
            assert!((0..20).all(|owner| sets.contains(ids[0], owner) == a.contains(&owner)));
        }
    }

    #[test]
    fn too_many_are_refused() {
        let mut sets = Sets::new(10 * SET_BYTES);
        let refused = (0..100).find_map(|owner| sets.of_one(owner).err());
        assert!(
            matches!(refused, Some(Error::AccountingTooBig { limit, .. }) if limit == 10 * SET_BYTES as u64)
        );
    }
}
