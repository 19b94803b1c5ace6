//! Writes to rows of RAID5 and RAID6: new data and the parity over it.
//!
//! A row is one unit of each stripe at the same offset. A batch's writes to a row span a range of
//! offsets in the units. The parity of this range needs the data of all columns in this range:
//!
//! - if the batch provides all columns, as for whole rows, nothing is read;
//! - missing data is read first, in the ordinary way. A column on a missing device is rebuilt from
//!   the current row, and so is a damaged tree block ([`restore`]). As its last step, a row write
//!   writes data and parity.
//!
//! Between the read and the write of a row, no other thread may write other parts of it:
//! [`RowLocks`]. A reader that rebuilds a column without a lock reads the row again, locked, if it
//! was written during the read. The new parity is computed from the columns' content, so a
//! never-written row becomes valid with its first write.
//!
//! A crash between the writes of one row leaves parity that does not match the row's data: the
//! write hole of RAID5 and RAID6. The write hole loses no data while no device is missing. To avoid
//! the write hole, new blocks should fill whole rows if possible.

mod restore;

use super::{Batch, VerifyBeside};
use crate::Volume;
use crate::chunk_map::MappedChunk;
use crate::error::Error;
use crate::layout::{ChunkOffset, Column, StripeOffset};
use crate::parity::{compute_p, compute_q};
use crate::read::{ExtentRead, PendingExtent};
use crate::write::WriteRefusal;
use buttress_device::Buffer;
use buttress_exact::{Defect, Exact as _, copy_into, u64_of};
use buttress_format::block_group::Profile;
use buttress_format::{ByteCount, Logical};
use buttress_locks::{Condvar, Mutex, MutexGuard, Rank, lock_class};
use bytes::Bytes;
use core::cell::Cell;
use core::sync::atomic::{AtomicU64, Ordering};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

lock_class!(pub(super) RowLock, "locks", Rank::new(60).over_device().several());
lock_class!(pub(super) EndedLock, "ended", Rank::LEAF);

/// The number of row locks. Two rows may share a lock by chance.
const LOCKS: u64 = 64;

/// The number of unlocked reads of a row that other threads keep writing. After this number of
/// reads, the row is locked.
const STEADY_TRIES: usize = 8;

std::thread_local! {
    /// The number of batches of rows that this thread is writing. The thread's own reads for these
    /// rows already run under the row locks.
    static WRITING: Cell<u32> = const { Cell::new(0) };
}

/// Row locks: a fixed number, selected by the row's address.
///
/// Each lock counts the writes under it, at their beginning and at their end. A reader that read
/// rows without their locks can thus detect writes during the read.
#[derive(Debug)]
pub(crate) struct RowLocks {
    locks: Vec<Mutex<(), RowLock>>,
    writes: Vec<AtomicU64>,
    /// Signalled when rows were written.
    has_ended: Condvar,
    ended: Mutex<(), EndedLock>,
}

/// A set of locked rows. No other thread writes them until this value is dropped.
#[derive(Debug)]
pub struct RowsLocked<'a> {
    _locked: Vec<MutexGuard<'a, (), RowLock>>,
}

/// Rows that are being written.
#[derive(Debug)]
pub(super) struct RowsWritten<'a> {
    locks: &'a RowLocks,
    numbers: BTreeSet<u64>,
    _locked: Vec<MutexGuard<'a, (), RowLock>>,
}

impl RowsWritten<'_> {
    fn count(&self) {
        self.locks.counters(&self.numbers).for_each(|counter| {
            counter.fetch_add(1, Ordering::SeqCst);
        });
    }
}

impl Drop for RowsWritten<'_> {
    fn drop(&mut self) {
        WRITING.set(WRITING.get().exact_sub(1));
        self.count();
        // A waiter that has read the count already waits, because the lock was acquired and
        // released here.
        drop(self.locks.ended.lock());
        self.locks.has_ended.notify_all();
    }
}

/// Returns the index of a row's lock.
fn lock_number(chunk: Logical, row: u64) -> u64 {
    chunk.get().wrapping_add(row).remainder(LOCKS)
}

/// Returns the indexes of the locks of rows, each once.
fn lock_numbers(chunk: Logical, rows: Range<u64>) -> BTreeSet<u64> {
    // Clamp: chunk items from disk can have any row numbers. A range with more rows than the volume
    // has row locks takes all locks.
    let rows = rows.start..rows.end.min(rows.start.saturating_add(LOCKS));
    rows.map(|row| lock_number(chunk, row)).collect()
}

impl RowLocks {
    /// Acquires locks in an order that all callers use.
    fn take(&self, numbers: &BTreeSet<u64>) -> Vec<MutexGuard<'_, (), RowLock>> {
        let mut numbers: Vec<u64> = numbers.iter().copied().collect();
        if buttress_faults::on("lock-rows-unordered") {
            numbers.reverse();
        }
        let wanted = numbers.len();
        let taken: Vec<_> = numbers
            .into_iter()
            .filter_map(|number| self.locks.get(number.narrow::<usize>()))
            .map(Mutex::lock)
            .collect();
        debug_assert_eq!(taken.len(), wanted, "numbers of locks are below {LOCKS}");
        taken
    }

    fn counters<'a>(&'a self, numbers: &'a BTreeSet<u64>) -> impl Iterator<Item = &'a AtomicU64> {
        let number = |number: &u64| self.writes.get(number.narrow::<usize>());
        numbers.iter().filter_map(number)
    }

    /// Locks rows of a chunk against writers.
    pub(crate) fn lock(&self, chunk: Logical, rows: Range<u64>) -> RowsLocked<'_> {
        RowsLocked {
            _locked: self.take(&lock_numbers(chunk, rows)),
        }
    }

    /// Reads columns of a row in one state. Retries if the row was written during the read; after
    /// too many retries, locks the row. Writers lock the row that they write.
    pub(crate) fn read_steadily<T>(&self, chunk: Logical, row: u64, read: impl Fn() -> T) -> T {
        if WRITING.get() > 0 || buttress_faults::on("volume-rebuild-unsteady") {
            return read();
        }
        // Clamp: chunk items from disk can have any row numbers.
        let rows = row..row.saturating_add(1);
        for _ in 0..STEADY_TRIES {
            let before = self.wait_until_unwritten(chunk, &rows);
            let found = read();
            if self.writes_to(chunk, rows.clone()) == Some(before) {
                return found;
            }
        }
        let _locked = self.lock(chunk, rows);
        read()
    }

    /// Waits until no thread writes these rows, and returns how often they were written.
    fn wait_until_unwritten(&self, chunk: Logical, rows: &Range<u64>) -> u64 {
        if let Some(count) = self.writes_to(chunk, rows.clone()) {
            return count;
        }
        let mut ended = self.ended.lock();
        loop {
            match self.writes_to(chunk, rows.clone()) {
                Some(count) => return count,
                None => self.has_ended.wait(&mut ended),
            }
        }
    }

    /// Returns the number of writes to rows of a chunk and to rows that share their locks. Returns
    /// `None` while a thread writes these rows.
    pub(crate) fn writes_to(&self, chunk: Logical, rows: Range<u64>) -> Option<u64> {
        let mut sum = 0_u64;
        for counter in self.counters(&lock_numbers(chunk, rows)) {
            let count = counter.load(Ordering::SeqCst);
            if count & 1 == 1 {
                return None;
            }
            sum = sum.wrapping_add(count);
        }
        Some(sum)
    }
}

impl Default for RowLocks {
    fn default() -> Self {
        Self {
            locks: (0..LOCKS)
                .map(|row| Mutex::with_place((), u128::from(row)))
                .collect(),
            writes: (0..LOCKS).map(|_| AtomicU64::new(0)).collect(),
            has_ended: Condvar::new(),
            ended: Mutex::default(),
        }
    }
}

/// The rows of parity stripes that a batch of writes touches, by chunk and row number.
#[derive(Debug, Default)]
pub(super) struct Rows {
    rows: BTreeMap<(Logical, u64), Row>,
    /// The locked rows of chunks without parity, if such rows are locked too.
    others: Option<BTreeSet<u64>>,
}

/// A batch's writes to one row.
#[derive(Debug)]
struct Row {
    chunk: Arc<MappedChunk>,
    number: u64,
    pieces: Vec<Piece>,
}

/// New data in one column, from the offset `start` in its unit on.
#[derive(Debug)]
struct Piece {
    column: usize,
    start: usize,
    bytes: Bytes,
}

impl Piece {
    fn range(&self) -> Range<usize> {
        self.start..self.start.exact_add(self.bytes.len())
    }
}

/// A part of a column that must be read.
struct Gap {
    column: usize,
    range: Range<usize>,
    logical: Logical,
}

impl Rows {
    /// Returns true if the batch writes no row with parity.
    pub(super) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Makes this set lock rows without parity too.
    pub(super) fn lock_all(&mut self) {
        self.others = Some(BTreeSet::new());
    }

    /// Adds a write to a stripe of a profile without parity.
    pub(super) fn touch(&mut self, chunk: &MappedChunk, offset: StripeOffset, length: usize) {
        let Some(others) = &mut self.others else {
            return;
        };
        let unit_bytes = chunk.layout().stripe_bytes();
        let end = offset.get().exact_add(u64_of(length));
        let first = offset.get().quotient(unit_bytes);
        others.extend(lock_numbers(chunk.start(), first..end.div_ceil(unit_bytes)));
    }

    /// Adds written bytes of one unit to the row.
    pub(super) fn add(
        &mut self,
        chunk: &Arc<MappedChunk>,
        place: Column,
        offset: StripeOffset,
        bytes: Bytes,
    ) {
        let unit_bytes = chunk.layout().stripe_bytes();
        let start = offset.get().remainder(unit_bytes);
        let row = self
            .rows
            .entry((chunk.start(), place.row))
            .or_insert_with(|| Row {
                chunk: Arc::clone(chunk),
                number: place.row,
                pieces: Vec::new(),
            });
        row.pieces.push(Piece {
            column: place.column,
            start: start.narrow(),
            bytes,
        });
    }

    /// Locks all rows, in an order that all callers use.
    pub(super) fn lock<'a>(&self, locks: &'a RowLocks) -> RowsWritten<'a> {
        let own = self.rows.keys().map(|(start, row)| lock_number(*start, *row));
        let mut numbers: BTreeSet<u64> = own.chain(self.others.iter().flatten().copied()).collect();
        if buttress_faults::on("volume-row-unlocked") {
            numbers.clear();
        }
        let written = RowsWritten {
            _locked: locks.take(&numbers),
            locks,
            numbers,
        };
        written.count();
        WRITING.set(WRITING.get().exact_add(1));
        written
    }

    /// Returns the missing data of the rows, which must be read for their parity.
    pub(super) fn reads(&mut self) -> Vec<ExtentRead> {
        let gaps = self.rows.values_mut().flat_map(Row::sorted_gaps);
        gaps.map(|gap| gap.read()).collect()
    }

    /// Reads the missing data of the rows, and adds the rows' data and parity to the batch.
    pub(super) fn add_to(
        self,
        volume: &Volume,
        batch: &mut Batch,
        beside: Option<&VerifyBeside<'_>>,
    ) -> Result<(), Error> {
        let mut rows: Vec<Row> = self.rows.into_values().collect();
        let mut gaps = Vec::with_capacity(rows.len());
        for row in &mut rows {
            row.require_reach(volume)?;
            gaps.push(row.sorted_gaps());
        }
        let wanted: Vec<ExtentRead> = gaps.iter().flatten().map(Gap::read).collect();
        // All rows of a batch share one plug.
        let mut pending = volume.start_reads(&wanted).into_iter();
        for (row, gaps) in rows.iter().zip(gaps) {
            let old = gaps.into_iter().zip(pending.by_ref());
            row.add_to(volume, batch, old, beside)?;
        }
        Ok(())
    }
}

impl Gap {
    fn read(&self) -> ExtentRead {
        ExtentRead {
            logical: self.logical,
            length: self.range.len(),
        }
    }
}

impl Row {
    /// Refuses a row if the devices could not read back its data.
    fn require_reach(&self, volume: &Volume) -> Result<(), Error> {
        let layout = self.chunk.layout();
        let mut out_of_reach = 0_u16;
        for stripe_index in 0..layout.stripe_count() {
            if volume.stripe_to_write(&self.chunk, stripe_index)?.is_none() {
                out_of_reach = out_of_reach.exact_add(1);
            }
        }
        if out_of_reach > layout.profile().parity_stripes() {
            let logical = self
                .pieces
                .first()
                .and_then(|piece| self.logical(piece.column, piece.start));
            return Err(WriteRefusal::OutOfReach {
                // Clamp: the address only appears in a message.
                logical: logical.unwrap_or(self.chunk.start()),
                length: ByteCount::of(self.pieces.iter().map(|piece| piece.bytes.len()).sum()),
            }
            .into());
        }
        Ok(())
    }

    /// Returns the range of unit offsets that the row's new parity must cover.
    fn span(&self) -> Range<usize> {
        let start = self.pieces.iter().map(|piece| piece.start).min();
        let end = self.pieces.iter().map(|piece| piece.range().end).max();
        // Clamp: a row without pieces covers nothing.
        start.unwrap_or(0)..end.unwrap_or(0)
    }

    /// Returns the chunk's offset of a byte of a column, which may lie beyond the chunk's end.
    fn chunk_offset(&self, column: usize, within: usize) -> Option<ChunkOffset> {
        let layout = self.chunk.layout();
        let columns = ByteCount::of(layout.data_columns()).get();
        let unit = self.number.checked_mul(columns)?;
        let unit = unit.checked_add(ByteCount::of(column).get())?;
        let offset = unit.checked_mul(layout.stripe_bytes())?;
        Some(ChunkOffset::new(offset.checked_add(ByteCount::of(within).get())?))
    }

    fn logical(&self, column: usize, within: usize) -> Option<Logical> {
        let offset = self.chunk_offset(column, within)?;
        self.chunk.start().checked_add(ByteCount::new(offset.get()))
    }

    /// Returns the number of bytes of a column's unit inside the chunk. The column's number of used
    /// bytes may exceed the unit, and is 0 beyond the chunk's end.
    fn used_bytes(&self, column: usize) -> usize {
        let offset = self.chunk_offset(column, 0);
        let left = offset.and_then(|offset| self.chunk.length().checked_sub(ByteCount::new(offset.get())));
        // Clamp: a column beyond the chunk's end has no bytes.
        left.map_or(0, |left| left.at_most(usize::MAX))
    }

    /// Sorts the pieces, and returns the parts of the span that they do not cover.
    fn sorted_gaps(&mut self) -> Vec<Gap> {
        self.pieces.sort_by_key(|piece| (piece.column, piece.start));
        self.gaps()
    }

    /// Returns the parts of the span that the sorted pieces do not cover. Skips the part beyond the
    /// chunk's end, which counts as zeros.
    fn gaps(&self) -> Vec<Gap> {
        let span = self.span();
        let mut gaps = Vec::new();
        for column in 0..self.chunk.layout().data_columns() {
            let end = span.end.min(self.used_bytes(column));
            let mut add = |range: Range<usize>| {
                if let Some(logical) = self.logical(column, range.start).filter(|_| !range.is_empty()) {
                    gaps.push(Gap {
                        column,
                        range,
                        logical,
                    });
                }
            };
            let mut position = span.start;
            for piece in self.pieces.iter().filter(|piece| piece.column == column) {
                add(position..piece.start.min(end));
                position = position.max(piece.range().end);
            }
            add(position..end);
        }
        gaps
    }

    /// Assembles the columns of a row, computes their parity, and adds both to the batch.
    fn add_to(
        &self,
        volume: &Volume,
        batch: &mut Batch,
        old: impl Iterator<Item = (Gap, PendingExtent)>,
        beside: Option<&VerifyBeside<'_>>,
    ) -> Result<(), Error> {
        let span = self.span();
        let mut columns: Vec<Option<Buffer>> = Vec::new();
        columns.resize_with(self.chunk.layout().data_columns(), || None);
        for (gap, pending) in old {
            let pending = pending.unverified();
            let bytes = pending.wait_verified(volume, &mut |bytes: Bytes| Ok(bytes))?;
            let restored = restore::restore(volume, &self.chunk, gap.logical, bytes.clone())?;
            let restored = match beside {
                Some(verify) => super::beside::restore(volume, &self.chunk, gap.read(), restored, verify)?,
                None => restored,
            };
            let is_damaged = restored != bytes;
            let bytes = restored;
            match is_damaged && !buttress_faults::on("volume-restored-column-unwritten") {
                // The parity depends on this gap's data: without the data, no other column can be
                // rebuilt.
                true => self.add_write(volume, batch, gap.column, gap.range.start, &bytes)?,
                // The target of a replacement may lack the unchanged data of this row.
                false => self.add_write_to_target(batch, gap.column, gap.range.start, &bytes)?,
            }
            put(&mut columns, &span, gap.column, &gap.range, &bytes)?;
        }
        // If one piece covers a column completely, the column uses it without a copy.
        let whole = |column: usize| {
            let mut own = self.pieces.iter().filter(|piece| piece.column == column);
            own.next().filter(|piece| piece.range() == span)
        };
        for piece in self.pieces.iter().filter(|piece| whole(piece.column).is_none()) {
            put(&mut columns, &span, piece.column, &piece.range(), &piece.bytes)?;
        }
        let blocks = columns
            .iter()
            .enumerate()
            .map(|(column, built)| match (whole(column), built) {
                (Some(piece), _) => Some(&piece.bytes[..]),
                (None, Some(built)) => Some(&built[..]),
                (None, None) => None,
            });
        let mut p = Buffer::zeroed(span.len());
        compute_p(blocks.clone().flatten(), &mut p);
        let q = (self.chunk.layout().profile() == Profile::Raid6).then(|| {
            let mut q = Buffer::zeroed(span.len());
            compute_q(blocks.clone(), &mut q);
            q
        });
        for piece in &self.pieces {
            self.add_write(volume, batch, piece.column, piece.start, &piece.bytes)?;
        }
        self.add_unused(volume, batch, &span)?;
        let parity_at = columns.len();
        if !buttress_faults::on("volume-parity-p-unwritten") {
            self.add_write(volume, batch, parity_at, span.start, &p.into_bytes())?;
        }
        if let Some(q) = q
            && !buttress_faults::on("volume-parity-q-unwritten")
        {
            self.add_write(volume, batch, parity_at.exact_add(1), span.start, &q.into_bytes())?;
        }
        Ok(())
    }

    /// Zeroes the parity row's bytes beyond the chunk's end on the devices, because the parity
    /// assumes zeros there.
    fn add_unused(&self, volume: &Volume, batch: &mut Batch, span: &Range<usize>) -> Result<(), Error> {
        for column in 0..self.chunk.layout().data_columns() {
            let start = span.start.max(self.used_bytes(column));
            if start < span.end {
                let zeros = Buffer::zeroed(span.end.exact_sub(start)).into_bytes();
                self.add_write(volume, batch, column, start, &zeros)?;
            }
        }
        Ok(())
    }

    /// Writes a column's existing bytes to the target that will replace the column's device.
    fn add_write_to_target(
        &self,
        batch: &mut Batch,
        column: usize,
        start: usize,
        bytes: &Bytes,
    ) -> Result<(), Error> {
        let (stripe_index, offset) = self.place(column, start)?;
        if !buttress_faults::on("replace-row-gaps-unwritten") {
            let physical = self.chunk.physical(stripe_index, offset)?;
            batch.add_to_target(&self.chunk, stripe_index, physical, bytes)?;
        }
        Ok(())
    }

    /// Returns the stripe of a column, and the offset in the stripe of a byte of the row's unit.
    fn place(&self, column: usize, start: usize) -> Result<(usize, StripeOffset), Defect> {
        let layout = self.chunk.layout();
        let offset = self.number.checked_mul(layout.stripe_bytes());
        let offset = offset.and_then(|offset| offset.checked_add(u64_of(start)));
        let stripe_index = layout.stripe_of_column(self.number, column);
        let place = stripe_index.zip(offset.map(StripeOffset::new));
        place.ok_or_else(|| {
            Defect::new("a row has no place for a column")
                .with("chunk", self.chunk.start().get())
                .with("row", self.number)
                .with("column", u64_of(column))
                .with("start", u64_of(start))
        })
    }

    /// Adds a write to the parity row, for one column of data or parity. Skips a device out of
    /// reach: an earlier check proved that the row can do without it.
    fn add_write(
        &self,
        volume: &Volume,
        batch: &mut Batch,
        column: usize,
        start: usize,
        bytes: &Bytes,
    ) -> Result<(), Error> {
        let (stripe_index, offset) = self.place(column, start)?;
        let physical = self.chunk.physical(stripe_index, offset)?;
        batch.add(volume, &self.chunk, stripe_index, physical, bytes)?;
        Ok(())
    }
}

/// Copies bytes into a column's block, which begins as zeros. Fails if the bytes do not fit the
/// column's block, because the parity would then match no column.
fn put(
    columns: &mut [Option<Buffer>],
    span: &Range<usize>,
    column: usize,
    range: &Range<usize>,
    bytes: &[u8],
) -> Result<(), Defect> {
    let count = columns.len();
    let Some(block) = columns.get_mut(column) else {
        return Err(Defect::new("a row has no such column")
            .with("column", u64_of(column))
            .with("columns", u64_of(count)));
    };
    let block = block.get_or_insert_with(|| Buffer::zeroed(span.len()));
    let within = range.start.exact_sub(span.start)..range.end.exact_sub(span.start);
    let copied = copy_into(block, within, bytes, "a part of a column does not fit its row");
    match buttress_faults::on("volume-misfit-column-dropped") {
        true => Ok(()),
        false => copied,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Copies two bytes into a test row of two columns of eight bytes each.
    fn put_two(column: usize, range: Range<usize>) -> Result<Vec<u8>, Defect> {
        let mut columns = [None, None];
        put(&mut columns, &(4096..4104), column, &range, b"ab")?;
        Ok(columns[column].as_deref().unwrap().to_vec())
    }

    #[test]
    fn bytes_of_another_length_are_no_part_of_a_row() {
        assert_eq!(put_two(1, 4098..4100), Ok(b"\0\0ab\0\0\0\0".to_vec()));
        assert!(put_two(1, 4098..4101).is_err());
        assert!(put_two(2, 4098..4100).is_err(), "no such column");
    }

    #[test]
    fn bytes_past_the_end_are_no_part_of_a_row() {
        assert!(put_two(0, 4103..4105).is_err());
    }
}
