//! One pass over a spinning disk for leaves that are wanted in another order.
//!
//! Where leaves lie scattered, a walk in order of keys crosses the disk once for each window, and on a disk whose
//! head moves, passing over what lies between costs as much as reading it. So a pass knows as many of the coming
//! leaves as there is room for their pointers, has them read in order of address, and holds back those that come
//! before their turn: as they are while there is room; packed ([`Packed`]) when there is not, those wanted last
//! first; and when that is not enough either, those wanted last are dropped, and read again by a later pass.
//!
//! Entries are numbered in the walk's order. Three bounds move over the numbers:
//!
//! - the front: what the walk takes next; `first` is its number;
//! - `pack_from`: leaves from here on are packed when they arrive;
//! - `horizon`: leaves from here on are not asked for, since there would be no space to hold them.
//!
//! The last two come down when memory is short and go up again when half of it is free: the horizon to where it would
//! have been with a little more room than there was, since what is read beyond it is read for nothing. Memory is the
//! loan of [`crate::cache`], and counts pointers, blocks on their way, and what is held back.

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

/// What an entry takes: its pointer and content, and its place in the order of addresses.
const ENTRY_BYTES: u64 = 192;

/// Pointers take at most this part of the memory.
const ENTRIES_PARTS: u64 = 6;

/// What is on its way takes at most this part of the memory.
const WINDOW_PARTS: u64 = 8;

/// A pass with less than this on its way gains nothing.
const WINDOW_BYTES_MIN: u64 = 128 << 10;

/// The leaves that come next are not packed: this part of a window.
const NEXT_PARTS: usize = 4;

/// After this many leaves in a row that were not worth packing, others are not tried until memory is free again.
const FUTILE_MAX: u32 = 32;

/// What a block takes beside its bytes.
const OVERHEAD_BYTES: u64 = 320;

/// What a packed block takes beside its bytes.
const PACKED_OVERHEAD_BYTES: u64 = 16;

/// Blocks are asked for when fewer than this many parts in four of the window are on their way.
const ASK_BELOW: usize = 3;
const ASK_OF: usize = 4;

/// The state of a pass; see the module's documentation.
#[derive(Debug)]
pub(crate) struct Pass {
    // Before the loan: what was reserved must be given back first.
    /// For what is held back or on its way.
    memory: Reservation,
    /// For the entries, as many as there may be.
    _entries_memory: Reservation,
    entries: VecDeque<Entry>,
    first: u64,
    /// How many entries are leaves, and not [`Content::Passed`].
    leaves: u64,
    leaves_max: u64,
    /// Leaves to be asked for, in order of address.
    unread: BTreeSet<(Logical, u64)>,
    /// Where in that order to go on.
    head: Logical,
    /// Nothing in `unread` lies before the horizon.
    nothing_to_ask: bool,
    /// Leaves that were asked for, in that order.
    in_flight: VecDeque<u64>,
    window_blocks: usize,
    block_bytes: u64,
    pack_from: u64,
    horizon: u64,
    /// How many leaves in a row were not worth packing.
    futile: u32,
    /// How many entries there were before the horizon when it last came down.
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
    /// To be read.
    Unread,
    /// On its way.
    Arriving(Arc<Batch>, usize),
    /// Held back.
    Here(Box<TreeBlock>),
    /// Held back, packed.
    Packed(Packed),
    /// Could not be had.
    Failed(Box<Error>),
    /// Of a higher level: taken from another queue.
    Passed(Box<Taken>),
}

impl Pass {
    /// A pass with at most `window_bytes` on their way, unless another sweep has the loan, or it is too small to gain
    /// anything.
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

    /// How many leaves are planned and not taken.
    pub(crate) const fn leaves(&self) -> u64 {
        self.leaves
    }

    /// How many leaves may be planned.
    pub(crate) const fn leaves_max(&self) -> u64 {
        self.leaves_max
    }

    /// How many blocks of higher levels lie between the leaves.
    pub(crate) fn passed(&self) -> u64 {
        u64_of(self.entries.len()).exact_sub(self.leaves)
    }

    /// Plans a leaf: it will be the last.
    pub(crate) fn plan(&mut self, pointer: BlockPointer) {
        self.unread.insert((pointer.logical, self.end()));
        self.nothing_to_ask = false;
        self.leaves = self.leaves.exact_add(1);
        self.entries.push_back(Entry {
            pointer,
            content: Content::Unread,
        });
    }

    /// Passes on what was taken from another queue: it will be the last.
    pub(crate) fn pass_on(&mut self, taken: Taken) {
        self.entries.push_back(Entry {
            pointer: taken.pointer,
            content: Content::Passed(Box::new(taken)),
        });
    }

    /// Takes the block at the front, waiting for it.
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
            // Memory for no block at all: read it as without read-ahead.
            Content::Unread | Content::Arriving(..) => forest.read_block(&pointer),
        };
        Some(Taken {
            pointer,
            result,
            node: None,
            reservation: None,
        })
    }

    /// Lets go of everything before `pointer`'s block. False, and nothing changes, when it is not here.
    pub(crate) fn skip_to(&mut self, pointer: &BlockPointer) -> bool {
        let Some(position) = self.entries.iter().position(|entry| entry.pointer == *pointer) else {
            return false;
        };
        for _ in 0..position {
            drop(self.pop());
        }
        true
    }

    /// The number after the last entry's.
    fn end(&self) -> u64 {
        self.first.exact_add(u64_of(self.entries.len()))
    }

    fn entry_mut(&mut self, number: u64) -> Option<&mut Entry> {
        let index = usize::try_from(number.checked_sub(self.first)?).ok()?;
        self.entries.get_mut(index)
    }

    /// Takes the front out, with the memory that it holds.
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

    /// What a content takes beside the entry.
    fn bytes_of(&self, content: &Content) -> u64 {
        match content {
            Content::Arriving(..) | Content::Here(_) => self.block_bytes,
            Content::Packed(packed) => u64_of(packed.len()).exact_add(PACKED_OVERHEAD_BYTES),
            Content::Unread | Content::Failed(_) | Content::Passed(_) => 0,
        }
    }

    /// Puts something else in an entry's place, and accounts for it.
    fn replace(&mut self, number: u64, content: Content) {
        let after = self.bytes_of(&content);
        let Some(entry) = self.entry_mut(number) else {
            return;
        };
        let logical = entry.pointer.logical;
        let before = core::mem::replace(&mut entry.content, content);
        // Clamp: what becomes larger had memory reserved before.
        self.memory.shrink(self.bytes_of(&before).saturating_sub(after));
        if let Some(Content::Unread) = self.entry_mut(number).map(|entry| &entry.content) {
            self.unread.insert((logical, number));
        }
    }

    /// Moves the bounds up again when half of the memory is free.
    fn relax(&mut self) {
        let half = self.loan.pool().capacity().get().quotient(2);
        if self.horizon.min(self.pack_from) < u64::MAX && self.memory.bytes() <= half {
            if self.horizon < u64::MAX {
                // As many as there was room for before, and some more.
                let more = self.span.quotient(4);
                // Clamp: a bound at the largest number is none.
                let span = self.span.saturating_add(more).max(self.leaves_max.quotient(64));
                self.horizon = self.first.saturating_add(span).max(self.horizon);
                self.span = span;
            }
            self.pack_from = u64::MAX;
            self.futile = 0;
            self.nothing_to_ask = false;
        }
    }

    /// Brings the horizon down.
    fn lower(&mut self, horizon: u64) {
        self.horizon = horizon;
        self.span = horizon.exact_sub(self.first);
    }

    /// Asks for leaves in order of address until a window of them is on its way, all in one plug.
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

    /// Puts in what the memory was already taken for.
    fn set(&mut self, number: u64, content: Content) {
        if let Some(entry) = self.entry_mut(number) {
            entry.content = content;
        }
    }

    /// The next leaf before the horizon, in order of address, beginning again at the lowest address after the
    /// highest.
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

    /// Takes memory for leaf `number`: packs or drops others for it that are wanted later. False when there are
    /// none: then the leaf lies past the horizon.
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

    /// Packs the leaf that is wanted last of those that are held back as they are. False when there is none
    /// for which that gains anything.
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

    /// Remembers whether packing helped.
    fn count(&mut self, helped: bool) {
        self.futile = if helped { 0 } else { self.futile.exact_add(1) };
    }

    /// Drops the leaf that is wanted last of those held back, if it is wanted after `number`. The horizon comes
    /// down to it.
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

    /// Waits for the leaf that was asked for first, and holds it back. False when nothing is on its way.
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
