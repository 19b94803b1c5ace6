//! Sums over sets of owners, which answer the questions about space.

use super::Accounting;
use super::figures::{Files, Occupied, Sum};
use super::owners::{Owner, OwnerIndex, Share};
use super::ranges::RangeSums;
use super::sets::{Run, SetId, members};
use buttress_exact::{Exact as _, usize_of};
use buttress_format::TreeId;
use buttress_fs::error::Result;
use std::collections::HashMap;

/// A subset of the owners.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scope {
    /// For each owner, the number of selected owners before it; at the end, the number of all
    /// selected owners.
    before: Vec<u32>,
}

impl Scope {
    fn new(is_member: impl IntoIterator<Item = bool>) -> Self {
        let mut count = 0_u32;
        let mut before = vec![count];
        for is_member in is_member {
            count = count.exact_add(u32::from(is_member));
            before.push(count);
        }
        Self { before }
    }

    /// Returns how many selected owners precede an owner.
    fn before(&self, owner: OwnerIndex) -> u32 {
        let index = owner.narrow::<usize>();
        // Clamp: the scope may have no owners, or fewer than the account.
        let known = self.before.get(index).or_else(|| self.before.last());
        known.copied().unwrap_or(0)
    }

    /// Returns whether an owner is in the scope.
    #[must_use]
    pub fn contains(&self, owner: OwnerIndex) -> bool {
        self.before(owner.exact_add(1)) > self.before(owner)
    }

    /// Returns whether the scope is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.before.last().is_none_or(|count| *count == 0)
    }

    /// Returns the owners that are in either scope.
    #[must_use]
    pub fn union(&self, other: &Self) -> Self {
        let owners = self.before.len().max(other.before.len());
        // Clamp: a scope without owners has no sums.
        let owners = owners.saturating_sub(1);
        let owners = 0..owners.narrow::<OwnerIndex>();
        Self::new(owners.map(|owner| self.contains(owner) || other.contains(owner)))
    }

    fn count_in(&self, runs: &[Run]) -> u64 {
        let counts = runs
            .iter()
            .map(|(start, end)| self.before(*end).exact_sub(self.before(*start)));
        counts.fold(0_u64, |sum, count| sum.exact_add(count.into()))
    }

    fn has_all_of(&self, runs: &[Run]) -> bool {
        let of_run = |(start, end): &Run| {
            self.before(*end).checked_sub(self.before(*start)) == end.checked_sub(*start)
        };
        runs.iter().all(of_run)
    }

    fn has_any_of(&self, runs: &[Run]) -> bool {
        runs.iter()
            .any(|(start, end)| self.before(*end) > self.before(*start))
    }
}

/// Returns the number of owners of a set.
fn count_of(runs: &[Run]) -> usize {
    let lengths = runs.iter().map(|(start, end)| end.exact_sub(*start));
    let count = lengths.fold(0_u32, u32::exact_add);
    count.narrow::<usize>()
}

/// Returns the figures of one owner of space.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OwnerSpace {
    /// The files of the owner.
    pub files: Files,
    /// The space on disk that the owner reaches.
    pub occupied: Occupied,
    /// The part of `occupied` that no other owner of space reaches.
    pub exclusive: Occupied,
}

/// The space that exactly these owners share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// The owners, in order.
    pub owners: Vec<OwnerIndex>,
    /// The space that the owners of the set share.
    pub occupied: Occupied,
}

impl Accounting {
    fn runs(&self, set: SetId) -> &[Run] {
        let index = set.0.narrow::<usize>();
        self.sets.get(index).map_or(&[], |runs| runs)
    }

    /// Returns the owners for which a condition holds.
    #[must_use]
    pub fn scope(&self, is_wanted: impl FnMut(&Owner) -> bool) -> Scope {
        Scope::new(self.owners.iter().map(is_wanted))
    }

    fn sum(&self, is_wanted: impl Fn(&[Run]) -> bool) -> Occupied {
        let mut sum = Occupied::default();
        for (set, occupied) in &self.counted.occupied {
            if is_wanted(self.runs(*set)) {
                sum.add(occupied, 1);
            }
        }
        sum
    }

    /// Returns the space on disk of all owners.
    #[must_use]
    pub fn all(&self) -> Occupied {
        self.sum(|_| true)
    }

    /// Returns the space on disk that any owner of the scope reaches, counted once.
    #[must_use]
    pub fn occupied_by(&self, scope: &Scope) -> Occupied {
        self.sum(|runs| scope.has_any_of(runs))
    }

    /// Returns the space that only owners of the scope reach.
    #[must_use]
    pub fn exclusive_to(&self, scope: &Scope) -> Occupied {
        self.sum(|runs| scope.has_all_of(runs))
    }

    /// Returns the space that is freed when exactly these owners are deleted together. Space that
    /// only deleted subvolumes hold is freed in any case and does not count
    /// ([`Accounting::pending`]). The sum includes space that these owners share only with deleted
    /// subvolumes.
    #[must_use]
    pub fn freed_by(&self, scope: &Scope) -> Occupied {
        let deleted = self.scope(|owner| owner.deleted);
        let with = scope.union(&deleted);
        self.sum(|runs| with.has_all_of(runs) && !deleted.has_all_of(runs))
    }

    /// Returns the space that is freed when the cleaner drops the already deleted subvolumes.
    #[must_use]
    pub fn pending(&self) -> Occupied {
        self.exclusive_to(&self.scope(|owner| owner.deleted))
    }

    /// Returns the files of all owners in the scope. A file in several subvolumes counts for each
    /// subvolume. A file in several parts of one subvolume counts once.
    #[must_use]
    pub fn files_of(&self, scope: &Scope) -> Files {
        // Only one tree has parts.
        let parts = self.scope(|owner| matches!(owner.share, Share::Part(_)));
        let is_both = (0..).zip(&self.owners);
        let parts = Scope::new(is_both.map(|(index, _)| scope.contains(index) && parts.contains(index)));
        self.weighted(&[&self.counted.files], |runs| {
            let of_parts = parts.count_in(runs);
            let others = scope.count_in(runs).exact_sub(of_parts);
            others.exact_add(of_parts.min(1))
        })
    }

    /// Returns the files as [`Accounting::files_of`] does, but each file counts once for each of
    /// its names. Requires [`super::Options::names`]. An inode without names counts once.
    #[must_use]
    pub fn named_files(&self, scope: &Scope) -> Files {
        let maps = [&self.counted.files, &self.counted.further];
        self.weighted(&maps, |runs| scope.count_in(runs))
    }

    fn weighted(&self, maps: &[&HashMap<SetId, Files>], times: impl Fn(&[Run]) -> u64) -> Files {
        let mut sum = Files::default();
        for (set, files) in maps.iter().copied().flatten() {
            sum.add(files, times(self.runs(*set)));
        }
        for (set, files) in &self.counted.excess {
            sum.remove(files, times(self.runs(*set)));
        }
        sum
    }

    /// Returns the space that each other owner shares with the scope, in the order of owners,
    /// without owners that share nothing.
    #[must_use]
    pub fn shared_with(&self, scope: &Scope) -> Vec<(OwnerIndex, Occupied)> {
        let mut sums = RangeSums::new(self.owners.len());
        for (set, occupied) in &self.counted.occupied {
            let runs = self.runs(*set);
            if scope.has_any_of(runs) {
                sums.add(runs, occupied);
            }
        }
        let others = self.indexes().filter(|owner| !scope.contains(*owner));
        let with_sums = others.map(|owner| (owner, sums.of(owner)));
        with_sums.filter(|(_, sum)| *sum != Occupied::default()).collect()
    }

    fn indexes(&self) -> impl Iterator<Item = OwnerIndex> {
        0..self.owners.len().narrow::<OwnerIndex>()
    }

    /// Calls `visit` for each set of owners, with the trees of the set in order and the space that
    /// exactly these trees reach.
    ///
    /// # Errors
    /// Returns the first error of `visit`.
    pub fn for_each_set(&self, mut visit: impl FnMut(&[TreeId], &Occupied) -> Result<()>) -> Result<()> {
        let mut trees = Vec::new();
        for (set, occupied) in &self.counted.occupied {
            trees.clear();
            let owners = members(self.runs(*set)).filter_map(|owner| self.owners.get(usize_of(owner)));
            trees.extend(owners.map(|owner| owner.tree));
            // Several owners of one subvolume are not always neighbours.
            trees.sort_unstable();
            trees.dedup();
            visit(&trees, occupied)?;
        }
        Ok(())
    }

    /// Returns the figures of every owner, in the order of [`Accounting::owners`].
    #[must_use]
    pub fn by_owner(&self) -> Vec<OwnerSpace> {
        let mut occupied = RangeSums::new(self.owners.len());
        let mut exclusive: HashMap<OwnerIndex, Occupied> = HashMap::new();
        for (set, figures) in &self.counted.occupied {
            let runs = self.runs(*set);
            occupied.add(runs, figures);
            if let [(start, end)] = runs
                && start.checked_add(1) == Some(*end)
            {
                exclusive.insert(*start, *figures);
            }
        }
        let mut files = RangeSums::new(self.owners.len());
        for (set, figures) in &self.counted.files {
            files.add(self.runs(*set), figures);
        }
        let mut excess = RangeSums::new(self.owners.len());
        for (set, figures) in &self.counted.excess {
            excess.add(self.runs(*set), figures);
        }
        let of_owner = |owner| {
            let mut files: Files = files.of(owner);
            files.remove(&excess.of(owner), 1);
            OwnerSpace {
                files,
                occupied: occupied.of(owner),
                // Clamp: most owners have no exclusive space.
                exclusive: exclusive.get(&owner).copied().unwrap_or_default(),
            }
        };
        self.indexes().map(of_owner).collect()
    }

    /// Returns the space of every set of owners, largest first, without empty sets. If all sets
    /// together have more than `owners_max` owners, the smallest sets come last as one sum.
    #[must_use]
    pub fn groups(&self, owners_max: usize) -> (Vec<Group>, Occupied) {
        let occupied = self.counted.occupied.iter();
        let mut sorted: Vec<(&SetId, &Occupied)> = occupied
            .filter(|(_, occupied)| **occupied != Occupied::default())
            .collect();
        // Clamp: the sums are of lengths from disk.
        let size = |occupied: &Occupied| occupied.data().saturating_add(occupied.metadata);
        sorted.sort_by(|a, b| {
            let by_owners = || self.runs(*a.0).cmp(self.runs(*b.0));
            size(b.1).cmp(&size(a.1)).then_with(by_owners)
        });
        let (mut groups, mut rest) = (Vec::new(), Occupied::default());
        let mut left = owners_max;
        for (set, occupied) in sorted {
            let owners = members(self.runs(*set));
            match left.checked_sub(count_of(self.runs(*set))) {
                Some(less) => {
                    left = less;
                    groups.push(Group {
                        owners: owners.collect(),
                        occupied: *occupied,
                    });
                }
                None => {
                    left = 0;
                    rest.add(occupied, 1);
                }
            }
        }
        (groups, rest)
    }
}
