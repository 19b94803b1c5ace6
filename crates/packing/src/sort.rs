//! Records sorted by their keys, on disk if they exceed the memory.
//!
//! The sorter gathers records in memory. At the memory limit, the records are sorted and written to
//! a spool file as a *run*. Reading the sorted records merges all runs. Records of equal keys are
//! returned in the order in which they were added.

use crate::error::Result;
use crate::spool::{Spool, SpoolFolder, SpoolReader, Spooled};
use buttress_exact::Exact as _;
use core::cmp::Ordering;
use std::collections::BinaryHeap;

/// The memory of a record in addition to its bytes.
const SLOT_BYTES: usize = size_of::<Slot>();

/// The position of a record in the arena: its key, then its payload.
#[derive(Clone, Copy, Debug)]
struct Slot {
    start: u32,
    key_bytes: u32,
    payload_bytes: u32,
}

/// A sorter, which receives records in any order.
#[derive(Debug)]
pub struct Sorter {
    folder: SpoolFolder,
    limit: usize,
    arena: Vec<u8>,
    slots: Vec<Slot>,
    runs: Vec<Spooled>,
}

/// A record: its key and its payload.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Record {
    /// The bytes that define the order.
    pub key: Vec<u8>,
    /// All other bytes.
    pub payload: Vec<u8>,
}

impl Sorter {
    /// Makes a sorter that uses about `limit` bytes of memory.
    #[must_use]
    pub fn new(folder: &SpoolFolder, limit: usize) -> Self {
        Self {
            folder: folder.clone(),
            // Positions in the sorter's arena are 32-bit numbers.
            limit: limit.min(1 << 30),
            arena: Vec::new(),
            slots: Vec::new(),
            runs: Vec::new(),
        }
    }

    /// Returns true if no record was added.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty() && self.runs.is_empty()
    }

    /// Adds a record.
    ///
    /// # Errors
    /// Fails if the spool file cannot be written.
    pub fn push(&mut self, key: &[u8], payload: &[u8]) -> Result<()> {
        let added = key.len().exact_add(payload.len()).exact_add(SLOT_BYTES);
        let taken = self.arena.len().exact_add(self.slots.len().exact_mul(SLOT_BYTES));
        if taken.exact_add(added) > self.limit && !self.slots.is_empty() {
            self.write_run()?;
        }
        let number = |length: usize| length.narrow::<u32>();
        self.slots.push(Slot {
            start: number(self.arena.len()),
            key_bytes: number(key.len()),
            payload_bytes: number(payload.len()),
        });
        self.arena.extend_from_slice(key);
        self.arena.extend_from_slice(payload);
        Ok(())
    }

    fn sort(&mut self) {
        let arena = &self.arena;
        self.slots.sort_unstable_by(|one, other| {
            let order = key_of(arena, *one).cmp(key_of(arena, *other));
            order.then(one.start.cmp(&other.start))
        });
    }

    fn write_run(&mut self) -> Result<()> {
        self.sort();
        let mut spool = Spool::new(self.folder.clone(), 1 << 20);
        for slot in &self.slots {
            spool.append(&slot.key_bytes.to_le_bytes())?;
            spool.append(&slot.payload_bytes.to_le_bytes())?;
            spool.append(key_of(&self.arena, *slot))?;
            spool.append(payload_of(&self.arena, *slot))?;
        }
        self.runs.push(spool.finish());
        self.arena.clear();
        self.slots.clear();
        Ok(())
    }

    /// Sorts the received records.
    ///
    /// # Errors
    /// Fails if the spool file cannot be written.
    pub fn finish(mut self) -> Result<Sorted> {
        if !self.runs.is_empty() && !self.slots.is_empty() {
            self.write_run()?;
            self.arena = Vec::new();
            self.slots = Vec::new();
        }
        self.sort();
        Ok(Sorted {
            arena: self.arena,
            slots: self.slots,
            runs: self.runs,
        })
    }
}

fn key_of(arena: &[u8], slot: Slot) -> &[u8] {
    let start = slot.start as usize;
    let end = start.exact_add(slot.key_bytes as usize);
    // Clamp: a slot lies in its arena.
    arena.get(start..end).unwrap_or_default()
}

fn payload_of(arena: &[u8], slot: Slot) -> &[u8] {
    let start = (slot.start as usize).exact_add(slot.key_bytes as usize);
    let end = start.exact_add(slot.payload_bytes as usize);
    // Clamp: a slot lies in its arena.
    arena.get(start..end).unwrap_or_default()
}

/// Sorted records, which can be read any number of times.
#[derive(Debug)]
pub struct Sorted {
    arena: Vec<u8>,
    slots: Vec<Slot>,
    runs: Vec<Spooled>,
}

impl Sorted {
    /// Returns a reader from the first record on.
    ///
    /// # Errors
    /// Fails if a spool file cannot be read.
    pub fn reader(&self) -> Result<SortedReader<'_>> {
        let mut reader = SortedReader {
            sorted: self,
            next_slot: 0,
            runs: Vec::with_capacity(self.runs.len()),
            heads: BinaryHeap::new(),
        };
        for (run, spooled) in self.runs.iter().enumerate() {
            reader.runs.push(spooled.reader());
            reader.fetch(run, Record::default())?;
        }
        Ok(reader)
    }
}

/// The first record of a sorted run that was not returned yet. A heap returns its greatest element,
/// so the order of records is reversed.
#[derive(Debug, PartialEq, Eq)]
struct Head {
    record: Record,
    run: usize,
}

impl Ord for Head {
    fn cmp(&self, other: &Self) -> Ordering {
        let keys = other.record.key.cmp(&self.record.key);
        keys.then_with(|| other.run.cmp(&self.run))
    }
}

impl PartialOrd for Head {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// A reader that returns records in order.
#[derive(Debug)]
pub struct SortedReader<'a> {
    sorted: &'a Sorted,
    next_slot: usize,
    runs: Vec<SpoolReader>,
    heads: BinaryHeap<Head>,
}

impl SortedReader<'_> {
    /// Replaces `record` by the next one. Returns false after the last record.
    ///
    /// # Errors
    /// Fails if a spool file cannot be read.
    pub fn next(&mut self, record: &mut Record) -> Result<bool> {
        if let Some(slot) = self.sorted.slots.get(self.next_slot) {
            self.next_slot = self.next_slot.exact_add(1);
            record.key.clear();
            record.key.extend_from_slice(key_of(&self.sorted.arena, *slot));
            record.payload.clear();
            record
                .payload
                .extend_from_slice(payload_of(&self.sorted.arena, *slot));
            return Ok(true);
        }
        let Some(mut head) = self.heads.pop() else {
            return Ok(false);
        };
        core::mem::swap(record, &mut head.record);
        self.fetch(head.run, head.record)?;
        Ok(true)
    }

    /// Puts the next record of a run on the heap, and reuses the memory of `record`.
    fn fetch(&mut self, run: usize, mut record: Record) -> Result<()> {
        let Some(reader) = self.runs.get_mut(run).filter(|reader| !reader.at_end()) else {
            return Ok(());
        };
        reader.read(&mut record.key, 8)?;
        let (key, payload) = record.key.split_at(4);
        let length = |bytes: &[u8]| {
            // Clamp: both halves have four bytes.
            let bytes = bytes.try_into().unwrap_or_default();
            u32::from_le_bytes(bytes).narrow::<usize>()
        };
        let (key_bytes, payload_bytes) = (length(key), length(payload));
        reader.read(&mut record.key, key_bytes)?;
        reader.read(&mut record.payload, payload_bytes)?;
        self.heads.push(Head { record, run });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The sorter returns the same records in the same order, whether they fit into memory or not.
    #[test]
    fn runs_are_merged() {
        let folder = SpoolFolder::new(None);
        let mut given = Vec::new();
        let mut state = 1_u64;
        for number in 0..5000_u32 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let key = ((state >> 33) % 700).to_be_bytes().to_vec();
            given.push((
                key,
                vec![0xa5; (state >> 60) as usize]
                    .into_iter()
                    .chain(number.to_le_bytes())
                    .collect::<Vec<u8>>(),
            ));
        }
        let mut wanted = given.clone();
        wanted.sort_by(|one, other| one.0.cmp(&other.0));
        for limit in [0, 1000, 64 << 10, 1 << 30] {
            let mut sorter = Sorter::new(&folder, limit);
            for (key, payload) in &given {
                sorter.push(key, payload).unwrap();
            }
            let sorted = sorter.finish().unwrap();
            for _ in 0..2 {
                let mut reader = sorted.reader().unwrap();
                let mut record = Record::default();
                let mut seen = Vec::new();
                while reader.next(&mut record).unwrap() {
                    seen.push((record.key.clone(), record.payload.clone()));
                }
                assert!(seen == wanted, "limit {limit}");
            }
        }
    }
}
