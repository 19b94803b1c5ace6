//! The changes of the references of one extent.
//!
//! Most extents have one or two changes. A relocation of an extent that 100,000 files share changes
//! 200,000 references, so a long list has an index.
//!
//! Invariants: no reference is listed twice, and no change is zero. The index names the position of
//! each reference, or does not exist.

use super::reference::Reference;
use buttress_exact::Exact as _;
use smallvec::SmallVec;
use std::collections::HashMap;

/// The longest list without an index. A search of a list this long is about as fast as a hash.
const UNINDEXED_MAX: usize = 32;

/// The list of changed references with their changes.
type List = SmallVec<[(Reference, i64); 2]>;

/// Changes of reference counts by reference, in no particular order.
#[derive(Clone, Debug, Default)]
pub struct Changes {
    list: List,
    #[expect(
        clippy::box_collection,
        reason = "most lists have no index, and there is a list for each changed extent"
    )]
    positions: Option<Box<HashMap<Reference, usize>>>,
}

impl Changes {
    /// Returns the number of changed references.
    #[must_use]
    pub fn len(&self) -> usize {
        self.list.len()
    }

    /// Returns whether no reference is changed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Returns the changed references, each with its change.
    pub fn iter(&self) -> core::slice::Iter<'_, (Reference, i64)> {
        self.list.iter()
    }

    /// Returns the changed references in an order of the caller.
    #[must_use]
    pub fn sorted_by_key<K: Ord>(&self, key: impl Fn(&(Reference, i64)) -> K) -> Vec<(Reference, i64)> {
        let mut sorted = self.list.to_vec();
        sorted.sort_unstable_by_key(key);
        sorted
    }

    /// Adds `by` to the change of a reference. A change that becomes zero is removed.
    pub(super) fn add(&mut self, reference: Reference, by: i64) {
        let Some(position) = self.position(&reference) else {
            self.push(reference, by);
            return;
        };
        let Some((_, change)) = self.list.get_mut(position) else {
            return;
        };
        *change = change.exact_add(by);
        if *change == 0 {
            self.remove_at(position);
        }
    }

    fn position(&self, reference: &Reference) -> Option<usize> {
        match &self.positions {
            Some(positions) => positions.get(reference).copied(),
            None => self.list.iter().position(|(other, _)| other == reference),
        }
    }

    fn push(&mut self, reference: Reference, change: i64) {
        self.list.push((reference, change));
        let last = self.list.len().exact_sub(1);
        match &mut self.positions {
            Some(positions) => {
                positions.insert(reference, last);
            }
            None if last >= UNINDEXED_MAX => {
                let references = self.list.iter().map(|(reference, _)| *reference);
                self.positions = Some(Box::new(references.zip(0..).collect()));
            }
            None => {}
        }
    }

    fn remove_at(&mut self, position: usize) {
        let (removed, _) = self.list.swap_remove(position);
        let Some(positions) = &mut self.positions else {
            return;
        };
        positions.remove(&removed);
        if let Some((moved, _)) = self.list.get(position) {
            positions.insert(*moved, position);
        }
    }
}

impl IntoIterator for Changes {
    type Item = (Reference, i64);
    type IntoIter = smallvec::IntoIter<[(Reference, i64); 2]>;

    fn into_iter(self) -> Self::IntoIter {
        self.list.into_iter()
    }
}

impl<'a> IntoIterator for &'a Changes {
    type Item = &'a (Reference, i64);
    type IntoIter = core::slice::Iter<'a, (Reference, i64)>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use buttress_format::Logical;
    use std::collections::BTreeMap;

    fn by_parent(number: u64) -> Reference {
        Reference::SharedData {
            parent: Logical::new(number.exact_mul(4096)),
        }
    }

    /// A list with an index equals a map at each step, while it grows and while it shrinks.
    #[test]
    fn long_lists_equal_a_map() {
        let mut changes = Changes::default();
        let mut model = BTreeMap::new();
        let mut random = 1_u64;
        for step in 0..6000_u64 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let reference = by_parent((random >> 40) % 300);
            // In the second half, most steps take references away.
            let has = model.get(&reference).copied().unwrap_or(0);
            let by = match step {
                ..3000 => 1,
                _ if has != 0 => -has,
                _ => continue,
            };
            changes.add(reference, by);
            model.insert(reference, has + by);
            model.retain(|_, change| *change != 0);
            assert_eq!(changes.len(), model.len());
            let sorted = changes.sorted_by_key(|(reference, _)| *reference);
            let expected: Vec<_> = model
                .iter()
                .map(|(reference, change)| (*reference, *change))
                .collect();
            assert_eq!(sorted, expected);
        }
        assert!(changes.len() < 30, "{}", changes.len());
    }
}
