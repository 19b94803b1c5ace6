//! A gatherer of records by address, used by several threads, which merges records of equal
//! address.
//!
//! Records arrive in any order, and many times for one address. The gatherer holds records in a
//! list. It sorts and merges the list whenever the list has grown by half of its limit. Memory is
//! therefore bounded by the number of addresses, not of records.
//!
//! If even the addresses are too many, the gatherer drops the upper half of the addresses, and from
//! then on all records above the first dropped address. The gatherer then holds all records of a
//! *window*, `[start, end)`, and the caller makes another pass for `[end, ..)`. Nothing grows past
//! the limit, and nothing is lost. Each window has at least one address, so the passes end. If a
//! damaged volume has more different records for one address than half of the limit, the gatherer
//! returns an error.

use super::SetsLock;
use super::sets::{SetId, Sets};
use buttress_exact::{Exact as _, u64_of};
use buttress_fs::error::{Error, Result};
use buttress_locks::{Mutex, Rank, lock_class};
use std::sync::atomic::{AtomicU64, Ordering};

lock_class!(InnerLock, "inner", Rank::new(55));

/// A record to be gathered.
pub(super) trait Record: Copy {
    /// Returns the address of the record.
    fn address(&self) -> u64;

    /// Returns the order among records with the same address: a merge keeps the first record.
    fn rank(&self) -> (u64, u64);

    /// Returns the set of owners of the record.
    fn set(&self) -> SetId;

    /// Merges another record of the same address into this one. The gatherer merges the sets.
    fn absorb(&mut self, other: &Self);

    /// Returns the record with another owner set.
    fn with_set(self, set: SetId) -> Self;

    /// Returns whether both records of one address describe the same object.
    fn same(&self, other: &Self) -> bool;
}

/// Gathers the records of one window.
pub(super) struct Gatherer<'a, R> {
    sets: &'a Mutex<Sets, SetsLock>,
    start: u64,
    end: AtomicU64,
    limit: usize,
    inner: Mutex<Inner<R>, InnerLock>,
}

struct Inner<R> {
    records: Vec<R>,
    /// The number of records at the start of the list that are sorted and merged.
    merged: usize,
    failure: Option<Error>,
}

/// The least growth before the gatherer merges the list again.
const GROWTH_MIN: usize = 1 << 14;

impl<'a, R: Record> Gatherer<'a, R> {
    /// Returns a gatherer of up to `limit` addresses from `start` on.
    pub(super) fn new(sets: &'a Mutex<Sets, SetsLock>, start: u64, limit: usize) -> Self {
        Self {
            sets,
            start,
            end: AtomicU64::new(u64::MAX),
            limit,
            inner: Mutex::new(Inner {
                records: Vec::new(),
                merged: 0,
                failure: None,
            }),
        }
    }

    /// Returns whether the window may contain this address.
    pub(super) fn wants(&self, address: u64) -> bool {
        self.start <= address && address < self.end.load(Ordering::Relaxed)
    }

    /// Adds records, and empties the list.
    pub(super) fn add(&self, records: &mut Vec<R>) {
        let mut inner = self.inner.lock();
        if inner.failure.is_some() {
            records.clear();
            return;
        }
        let end = self.end.load(Ordering::Relaxed);
        let fresh = records.drain(..).filter(|record| record.address() < end);
        inner.records.extend(fresh);
        let growth = inner.records.len().exact_sub(inner.merged);
        let half = self.limit.quotient(2);
        if growth > inner.merged.max(GROWTH_MIN).min(half.max(1))
            && let Err(error) = self.merge(&mut inner)
        {
            inner.failure = Some(error);
            inner.records = Vec::new();
        }
    }

    /// Returns the records in order of address, and the end of the window; `u64::MAX` if it is the
    /// last.
    pub(super) fn finish(self) -> Result<(Vec<R>, u64)> {
        let mut inner = self.inner.lock();
        self.merge(&mut inner)?;
        if let Some(failure) = inner.failure.take() {
            return Err(failure);
        }
        let mut records = core::mem::take(&mut inner.records);
        records.shrink_to_fit();
        Ok((records, self.end.load(Ordering::Relaxed)))
    }

    fn merge(&self, inner: &mut Inner<R>) -> Result<()> {
        let records = &mut inner.records;
        records.sort_unstable_by_key(|record| (record.address(), record.rank()));
        let mut sets = self.sets.lock();
        let mut merged = Merged::default();
        let mut kept = 0_usize;
        let mut next = 0_usize;
        while let Some(first) = records.get(next).copied() {
            let mut one = first;
            merged.begin(first.set());
            next = next.exact_add(1);
            while let Some(other) = records.get(next)
                && other.address() == first.address()
                && other.same(&first)
            {
                one.absorb(other);
                merged.add(other.set());
                next = next.exact_add(1);
            }
            let set = merged.union(&mut sets)?;
            if let Some(place) = records.get_mut(kept) {
                *place = one.with_set(set);
            }
            kept = kept.exact_add(1);
        }
        drop(sets);
        records.truncate(kept);
        if kept > self.limit {
            let half = self.limit.quotient(2).max(1);
            if let Some(first) = records.get(half).map(Record::address) {
                // Records with the same address stay together: the window ends before the first
                // dropped address.
                let stay = records.partition_point(|record| record.address() < first);
                if stay == 0 {
                    // A pass over an empty window of addresses would repeat forever.
                    return Err(Error::AccountingTooBig {
                        what: "different tree blocks said to lie at one address",
                        limit: u64_of(half),
                    });
                }
                records.truncate(stay);
                self.end.store(first, Ordering::Relaxed);
            }
        }
        inner.merged = records.len();
        Ok(())
    }
}

/// The merged sets of one address. The gatherer remembers the set of the previous address, because
/// neighbours were often written together and have the same owners.
#[derive(Default)]
struct Merged {
    ids: Vec<SetId>,
    previous: Vec<SetId>,
    previous_union: Option<SetId>,
}

impl Merged {
    fn begin(&mut self, set: SetId) {
        self.ids.clear();
        self.ids.push(set);
    }

    fn add(&mut self, set: SetId) {
        if self.ids.last() != Some(&set) {
            self.ids.push(set);
        }
    }

    fn union(&mut self, sets: &mut Sets) -> Result<SetId> {
        if let [one] = self.ids.as_slice() {
            return Ok(*one);
        }
        if self.ids == self.previous
            && let Some(known) = self.previous_union
        {
            return Ok(known);
        }
        self.previous.clone_from(&self.ids);
        let union = sets.union(&mut self.ids)?;
        self.previous_union = Some(union);
        Ok(union)
    }
}

#[cfg(test)]
mod tests {
    use super::super::sets::{SETS_BYTES_MAX, members};
    use super::*;
    use std::collections::{BTreeMap, BTreeSet};

    #[derive(Clone, Copy)]
    struct Sample {
        address: u64,
        set: SetId,
        count: u64,
        kind: u64,
    }

    impl Record for Sample {
        fn address(&self) -> u64 {
            self.address
        }
        fn rank(&self) -> (u64, u64) {
            (self.kind, 0)
        }
        fn set(&self) -> SetId {
            self.set
        }
        fn absorb(&mut self, other: &Self) {
            self.count += other.count;
        }
        fn with_set(self, set: SetId) -> Self {
            Self { set, ..self }
        }
        fn same(&self, other: &Self) -> bool {
            self.kind == other.kind
        }
    }

    /// Gathers all of `given` in windows of at most `limit` addresses. Returns the result of the
    /// gathering and the number of passes.
    fn gather(given: &[(u64, u32)], limit: usize) -> (BTreeMap<u64, (BTreeSet<u32>, u64)>, u32) {
        let sets = Mutex::new(Sets::new(SETS_BYTES_MAX));
        let (mut found, mut passes, mut start) = (BTreeMap::new(), 0, 0);
        while start != u64::MAX {
            passes += 1;
            let gatherer = Gatherer::new(&sets, start, limit);
            for part in given.chunks(1000) {
                let mut list: Vec<Sample> = part
                    .iter()
                    .filter(|(address, _)| gatherer.wants(*address))
                    .map(|(address, owner)| Sample {
                        address: *address,
                        set: sets.lock().of_one(*owner).unwrap(),
                        count: 1,
                        kind: 0,
                    })
                    .collect();
                gatherer.add(&mut list);
            }
            let (records, end) = gatherer.finish().unwrap();
            assert!(records.is_sorted_by_key(|record| record.address));
            assert!(records.len() <= limit);
            let sets = sets.lock();
            for Sample {
                address, set, count, ..
            } in records
            {
                let owners = members(sets.runs(set)).collect();
                assert!(
                    found.insert(address, (owners, count)).is_none(),
                    "{address} came twice"
                );
            }
            start = end;
        }
        (found, passes)
    }

    #[test]
    fn many_things_at_one_address_are_refused_and_end() {
        let sets = Mutex::new(Sets::new(SETS_BYTES_MAX));
        let set = sets.lock().of_one(1).unwrap();
        let given = |kinds: u64| {
            let gatherer = Gatherer::new(&sets, 0, 100);
            let of_kind = |kind| Sample {
                address: 7,
                set,
                count: 1,
                kind,
            };
            gatherer.add(&mut (0..kinds).map(of_kind).collect());
            gatherer.finish()
        };
        assert_eq!(given(100).unwrap().0.len(), 100);
        assert!(matches!(given(101), Err(Error::AccountingTooBig { .. })));
    }

    #[test]
    fn windows_lose_nothing_and_give_nothing_twice() {
        let mut state = 1_u64;
        let given: Vec<(u64, u32)> = (0..200_000)
            .map(|_| {
                state = state
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1_442_695_040_888_963_407);
                ((state >> 33) % 5000, u32::try_from((state >> 20) % 7).unwrap())
            })
            .collect();
        let mut expected: BTreeMap<u64, (BTreeSet<u32>, u64)> = BTreeMap::new();
        for (address, owner) in &given {
            let entry = expected.entry(*address).or_default();
            entry.0.insert(*owner);
            entry.1 += 1;
        }
        for (limit, several) in [(100_000, false), (5000, false), (3000, true), (64, true)] {
            let (found, passes) = gather(&given, limit);
            assert!(found == expected, "limit {limit}");
            assert_eq!(passes > 1, several, "limit {limit}: {passes} passes");
        }
    }
}
