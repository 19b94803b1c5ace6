//! A pass: one run over a spinning disk for leaves that are wanted in another order.
//!
//! If leaves are scattered, a walk in key order sweeps across the disk once for each window. On a
//! spinning disk, skipping the bytes between two leaves costs as much as reading them. A pass
//! therefore plans as many of the next leaves as it has memory for pointers, and reads them in
//! address order. The pass holds back leaves that arrive before their turn: unpacked while memory
//! lasts, then packed ([`Packed`]), starting with the last ones needed. If memory is still short,
//! the pass drops the leaves wanted last, and a later pass reads them again.
//!
//! Entries are numbered in the walk's order. Three bounds move over the entries' numbers:
//!
//! - the front: the next entry for the walk; `first` is its number;
//! - `pack_from`: the number from which leaves are packed when they arrive;
//! - `horizon`: the number from which the pass reads no leaves, because it would have no memory for
//!   them.
//!
//! The last two bounds of the pass move down if memory is short, and up if half is free. The
//! horizon moves up only a little beyond its last position, because reads beyond the sustainable
//! horizon are wasted. The memory of a pass is the loan of [`crate::cache`]. A loan counts
//! pointers, blocks in flight, and blocks held back.

use crate::cache::{Loan, Reservation};
use crate::error::Error;
use crate::forest::Forest;
use crate::pointer::BlockPointer;
use crate::read_ahead::batch::{Arriving, BATCH_BLOCKS_MAX, Batch};
use crate::read_ahead::packed::Packed;
use crate::read_ahead::queue::Taken;
use buttress_exact::{Exact as _, u64_of};
use buttress_format::Logical;
use buttress_format::node::TreeBlock;
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

/// The memory of an entry: its pointer and content, and its node in the address order.
const ENTRY_BYTES: u64 = 192;

/// The part of the memory that pointers may take.
const ENTRIES_PARTS: u64 = 6;

/// The fraction of the pass's memory that blocks in flight may take.
const WINDOW_PARTS: u64 = 8;

/// The bytes in flight below which a pass gains nothing.
const WINDOW_BYTES_MIN: u64 = 128 << 10;

/// The fraction of a window whose leaves are never packed, because the walk needs them next.
const NEXT_PARTS: usize = 4;

/// The number of successive leaves with no gain from packing after which packing stops. Packing
/// resumes when memory is free.
const FUTILE_MAX: u32 = 32;

/// The memory of a block beyond its bytes.
const OVERHEAD_BYTES: u64 = 320;

/// The memory of a packed block beyond its bytes.
const PACKED_OVERHEAD_BYTES: u64 = 16;

/// The quarters of the window in flight below which more blocks are read.
const ASK_BELOW: usize = 3;
const ASK_OF: usize = 4;

/// The state of a pass; see the module's documentation.
#[derive(Debug)]
pub(crate) struct Pass {
    // This field precedes the loan, because the reservation must be dropped first.
    /// The memory reservation for blocks that are held back or in flight.
    memory: Reservation,
    /// The memory for the maximum number of entries.
    _entries_memory: Reservation,
    entries: VecDeque<Entry>,
    first: u64,
    /// The number of entries that are leaves, without [`Content::Passed`].
    leaves: u64,
    leaves_max: u64,
    /// Leaves to read, in address order.
    unread: BTreeSet<(Logical, u64)>,
    /// The address at which the pass continues to read leaves.
    head: Logical,
    /// True if `unread` holds no leaf before the horizon.
    nothing_to_ask: bool,
    /// Leaves whose reads have started, in that order.
    in_flight: VecDeque<u64>,
    window_blocks: usize,
    block_bytes: u64,
    pack_from: u64,
    horizon: u64,
    /// The number of successive leaves with no gain from packing.
    futile: u32,
    /// The number of entries before the horizon at its last downward move.
    span: u64,
    loan: Loan,
}

#[derive(Debug)]
struct Entry {
    pointer: BlockPointer,
    content: Content,
}

#[derive(Debug)]
enum Content {
    /// The pass has not read the leaf yet.
    Unread,
    /// The read of the leaf is in flight.
    Arriving(Arc<Batch>, usize),
    /// The leaf is held back, unpacked.
    Here(Box<TreeBlock>),
    /// The leaf is held back, packed.
    Packed(Packed),
    /// The leaf could not be read.
    Failed(Box<Error>),
    /// A block of a higher level, taken from the queue of another stage.
    Passed(Box<Taken>),
}

impl Pass {
    /// Makes a pass with at most `window_bytes` in flight. Returns `None` if another sweep has
    /// borrowed the cache's memory, or if the loan is too small to gain anything.
    pub(crate) fn new(forest: &Forest, window_bytes: u64) -> Option<Self> {
        let loan = forest.borrow_cache()?;
        let node_bytes = u64::from(forest.reader().node_bytes());
        let capacity = loan.pool().capacity().get();
        let window_bytes = window_bytes.min(capacity.quotient(WINDOW_PARTS));
        if window_bytes < WINDOW_BYTES_MIN {
            return None;
        }
        let entries_bytes = capacity.quotient(ENTRIES_PARTS);
        let leaves_max = entries_bytes.quotient(ENTRY_BYTES);
        let entries_memory = loan.pool().reserve(entries_bytes)?;
        let memory = loan.pool().reserve(0)?;
        let window_blocks = window_bytes.quotient(node_bytes).max(1);
        Some(Self {
            memory,
            _entries_memory: entries_memory,
            entries: VecDeque::new(),
            first: 0,
            leaves: 0,
            leaves_max,
            unread: BTreeSet::new(),
            head: Logical::new(0),
            nothing_to_ask: true,
            in_flight: VecDeque::new(),
            window_blocks: window_blocks.narrow::<usize>(),
            block_bytes: node_bytes.exact_add(OVERHEAD_BYTES),
            pack_from: u64::MAX,
            horizon: u64::MAX,
            futile: 0,
            span: 0,
            loan,
        })
    }

    /// Returns the number of planned leaves that the walk has not taken yet.
    pub(crate) const fn leaves(&self) -> u64 {
        self.leaves
    }

    /// Returns the maximum number of planned leaves.
    pub(crate) const fn leaves_max(&self) -> u64 {
        self.leaves_max
    }

    /// Returns the number of higher-level blocks between the leaves of the pass.
    pub(crate) fn passed(&self) -> u64 {
        u64_of(self.entries.len()).exact_sub(self.leaves)
    }

    /// Appends a leaf to the plan of the pass.
    pub(crate) fn plan(&mut self, pointer: BlockPointer) {
        self.unread.insert((pointer.logical, self.end()));
        self.nothing_to_ask = false;
        self.leaves = self.leaves.exact_add(1);
        self.entries.push_back(Entry {
            pointer,
            content: Content::Unread,
        });
    }

    /// Appends a block from another queue as the last entry.
    pub(crate) fn pass_on(&mut self, taken: Taken) {
        self.entries.push_back(Entry {
            pointer: taken.pointer,
            content: Content::Passed(Box::new(taken)),
        });
    }

    /// Waits for the block at the front of the pass, and removes it from the pass.
    pub(crate) fn take(&mut self, forest: &Forest) -> Option<Taken> {
        self.relax();
        self.ask(forest);
        while let Some(Entry {
            content: Content::Unread | Content::Arriving(..),
            ..
        }) = self.entries.front()
            && self.land(forest)
        {
            self.ask(forest);
        }
        let Entry { pointer, content } = self.pop()?;
        let result = match content {
            Content::Passed(taken) => return Some(*taken),
            Content::Here(block) => Ok(*block),
            Content::Packed(packed) => match packed.unpack(forest.reader(), &pointer) {
                Some(block) => Ok(block),
                None => forest.read_block(&pointer),
            },
            Content::Failed(error) => Err(*error),
            // Without memory for the block, it is read without read-ahead.
            Content::Unread | Content::Arriving(..) => forest.read_block(&pointer),
        };
        Some(Taken {
            pointer,
            result,
            node: None,
            reservation: None,
        })
    }

    /// Drops all entries of the pass before `pointer`'s block. Returns false, and changes nothing,
    /// if the pass does not hold the block.
    pub(crate) fn skip_to(&mut self, pointer: &BlockPointer) -> bool {
        let Some(position) = self.entries.iter().position(|entry| entry.pointer == *pointer) else {
            return false;
        };
        for _ in 0..position {
            drop(self.pop());
        }
        true
    }

    /// Returns the number after the last entry's number.
    fn end(&self) -> u64 {
        self.first.exact_add(u64_of(self.entries.len()))
    }

    fn entry_mut(&mut self, number: u64) -> Option<&mut Entry> {
        let index = usize::try_from(number.checked_sub(self.first)?).ok()?;
        self.entries.get_mut(index)
    }

    /// Removes the front entry, together with its memory.
    fn pop(&mut self) -> Option<Entry> {
        let entry = self.entries.pop_front()?;
        let number = self.first;
        self.first = number.exact_add(1);
        if matches!(entry.content, Content::Passed(_)) {
            return Some(entry);
        }
        self.leaves = self.leaves.exact_sub(1);
        self.memory.shrink(self.bytes_of(&entry.content));
        match &entry.content {
            Content::Unread => {
                self.unread.remove(&(entry.pointer.logical, number));
            }
            Content::Arriving(..) => self.in_flight.retain(|asked| *asked != number),
            _ => {}
        }
        Some(entry)
    }

    /// Returns the memory of an entry's content, without the entry itself.
    fn bytes_of(&self, content: &Content) -> u64 {
        match content {
            Content::Arriving(..) | Content::Here(_) => self.block_bytes,
            Content::Packed(packed) => u64_of(packed.len()).exact_add(PACKED_OVERHEAD_BYTES),
            Content::Unread | Content::Failed(_) | Content::Passed(_) => 0,
        }
    }

    /// Replaces the content of an entry, and accounts for its memory.
    fn replace(&mut self, number: u64, content: Content) {
        let after = self.bytes_of(&content);
        let Some(entry) = self.entry_mut(number) else {
            return;
        };
        let logical = entry.pointer.logical;
        let before = core::mem::replace(&mut entry.content, content);
        // Clamp: memory for the larger content was reserved before.
        self.memory.shrink(self.bytes_of(&before).saturating_sub(after));
        if let Some(Content::Unread) = self.entry_mut(number).map(|entry| &entry.content) {
            self.unread.insert((logical, number));
        }
    }

    /// Moves the bounds up when half of the memory is free.
    fn relax(&mut self) {
        let half = self.loan.pool().capacity().get().quotient(2);
        if self.horizon.min(self.pack_from) < u64::MAX && self.memory.bytes() <= half {
            if self.horizon < u64::MAX {
                // The new span is the earlier span and a quarter more.
                let more = self.span.quotient(4);
                // Clamp: a bound at the largest number limits nothing.
                let span = self.span.saturating_add(more).max(self.leaves_max.quotient(64));
                self.horizon = self.first.saturating_add(span).max(self.horizon);
                self.span = span;
            }
            self.pack_from = u64::MAX;
            self.futile = 0;
            self.nothing_to_ask = false;
        }
    }

    /// Moves the horizon down.
    fn lower(&mut self, horizon: u64) {
        self.horizon = horizon;
        self.span = horizon.exact_sub(self.first);
    }

    /// Starts reads of leaves in address order until a window of them is in flight, all in one
    /// plug.
    fn ask(&mut self, forest: &Forest) {
        let low = self.window_blocks.exact_mul(ASK_BELOW).quotient(ASK_OF);
        if self.nothing_to_ask || self.in_flight.len() >= low.max(1) {
            return;
        }
        let mut wanted: Vec<(u64, BlockPointer)> = Vec::new();
        while self.in_flight.len().exact_add(wanted.len()) < self.window_blocks
            && let Some((logical, number)) = self.next_unread()
            && self.make_room(forest, number)
        {
            self.unread.remove(&(logical, number));
            let Some(pointer) = self.entry_mut(number).map(|entry| entry.pointer) else {
                continue;
            };
            match forest.cache().get(&pointer) {
                Some(block) => self.set(number, Content::Here(Box::new(block))),
                None => wanted.push((number, pointer)),
            }
        }
        let mut reads = forest
            .reader()
            .start(wanted.iter().map(|(_, pointer)| pointer))
            .into_iter();
        for leaves in wanted.chunks(BATCH_BLOCKS_MAX) {
            let pairs = leaves.iter().map(|(_, pointer)| *pointer).zip(reads.by_ref());
            let batch = Arc::new(Batch::new(pairs.collect()));
            for (index, (number, _)) in leaves.iter().enumerate() {
                forest.cache().count_miss();
                self.set(*number, Content::Arriving(Arc::clone(&batch), index));
                self.in_flight.push_back(*number);
            }
            forest.offer_check(batch);
        }
    }

    /// Sets an entry's content, for which the memory was already taken.
    fn set(&mut self, number: u64, content: Content) {
        if let Some(entry) = self.entry_mut(number) {
            entry.content = content;
        }
    }

    /// Returns the next leaf before the horizon in address order. After the highest address,
    /// continues at the lowest.
    fn next_unread(&mut self) -> Option<(Logical, u64)> {
        let horizon = self.horizon;
        let inside = |place: &&(Logical, u64)| place.1 < horizon;
        let ahead = self.unread.range((self.head, 0)..).find(inside);
        let found = ahead.or_else(|| self.unread.iter().find(inside)).copied();
        match found {
            Some((logical, _)) => self.head = logical,
            None => self.nothing_to_ask = true,
        }
        found
    }

    /// Takes memory for leaf `number`. To take memory for a leaf, packs or drops leaves that the
    /// walk needs later. Returns false if there are none: the leaf then lies beyond the horizon.
    fn make_room(&mut self, forest: &Forest, number: u64) -> bool {
        loop {
            if number >= self.horizon {
                return false;
            }
            if self.memory.grow(self.block_bytes) {
                return true;
            }
            if !self.pack_last(forest) && !self.drop_last(number) {
                self.lower(number);
            }
        }
    }

    /// Packs the unpacked leaf that is wanted last. Returns false if packing would gain nothing for
    /// any leaf.
    fn pack_last(&mut self, forest: &Forest) -> bool {
        let next = self.window_blocks.quotient(NEXT_PARTS);
        let lowest = self.first.exact_add(u64_of(next));
        let mut number = self.pack_from.min(self.end());
        while number > lowest {
            number = number.exact_sub(1);
            self.pack_from = number;
            if self.futile >= FUTILE_MAX {
                return false;
            }
            if let Some(Content::Here(block)) = self.entry_mut(number).map(|entry| &entry.content) {
                let packed = Packed::new(block, forest.reader());
                self.count(packed.is_some());
                if let Some(packed) = packed {
                    self.replace(number, Content::Packed(packed));
                    return true;
                }
            }
        }
        false
    }

    /// Records whether packing a leaf gained memory.
    fn count(&mut self, helped: bool) {
        self.futile = if helped { 0 } else { self.futile.exact_add(1) };
    }

    /// Drops the held-back leaf that is wanted last, if it is wanted after `number`. Moves the
    /// horizon down to it.
    fn drop_last(&mut self, number: u64) -> bool {
        let mut last = self.horizon.min(self.end());
        while last > number.exact_add(1) {
            last = last.exact_sub(1);
            self.lower(last);
            if let Some(Content::Here(_) | Content::Packed(_)) =
                self.entry_mut(last).map(|entry| &entry.content)
            {
                self.replace(last, Content::Unread);
                return true;
            }
        }
        false
    }

    /// Waits for the pass's oldest leaf in flight, and holds that leaf back. Returns false if no
    /// leaf is in flight.
    fn land(&mut self, forest: &Forest) -> bool {
        let Some(number) = self.in_flight.pop_front() else {
            return false;
        };
        let Some(Entry {
            pointer,
            content: Content::Arriving(batch, index),
        }) = self.entry_mut(number)
        else {
            return true;
        };
        let (pointer, arriving) = (*pointer, Arriving::InBatch(Arc::clone(batch), *index));
        let content = match arriving.wait(forest.reader(), &pointer) {
            Err(error) => Content::Failed(Box::new(error)),
            Ok(_) if number >= self.horizon => Content::Unread,
            Ok(block) if number >= self.pack_from && self.futile < FUTILE_MAX => {
                let packed = Packed::new(&block, forest.reader());
                self.count(packed.is_some());
                match packed {
                    Some(packed) => Content::Packed(packed),
                    None => Content::Here(Box::new(block)),
                }
            }
            Ok(block) => Content::Here(Box::new(block)),
        };
        self.replace(number, content);
        true
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        for entry in self.entries.drain(..) {
            if let Content::Arriving(batch, _) = entry.content {
                batch.give_up();
            }
        }
        let all = self.memory.bytes();
        self.memory.shrink(all);
    }
}
