//! The used parts of a chunk: its extents in order of address, with the checksums of their data.
//!
//! For each of both trees, a cursor moves forward through the tree once. The content of an
//! unreadable leaf is unknown. The walk of the extent tree records the error of an unreadable leaf
//! and continues after the leaf.
//!
//! Invariant: extents are always in ascending order, do not overlap, and lie in the chunk.
//! Contradicting extent items are recorded as errors.

use buttress_format::{
    BlockFormat, ByteCount, ChecksumItem, ChecksumType, ExtentItem, Generation, ItemType, Key, Logical,
    ObjectId,
};
use buttress_tree::{Cursor, Items, ReadAhead, Tree};
use core::ops::Range;

/// The content of an extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Holds {
    /// File data.
    Data,
    /// A tree block of this generation and level.
    Tree {
        generation: Generation,
        level: Option<u8>,
    },
}

/// A used extent of the chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct UsedExtent {
    pub(crate) start: Logical,
    pub(crate) end: Logical,
    pub(crate) holds: Holds,
    /// The generation of the transaction that allocated the extent.
    pub(crate) generation: Generation,
}

/// The number of readahead bytes for the extent and checksum trees. A chunk is a short part of a
/// tree, and several chunks are walked at once.
const WINDOW: ByteCount = ByteCount::new(1 << 20);

/// The extents of one chunk.
#[derive(Debug)]
pub(crate) struct UsedExtents<'a> {
    items: Items,
    format: &'a BlockFormat,
    range: Range<Logical>,
    /// The end of the last extent.
    at: Logical,
}

impl<'a> UsedExtents<'a> {
    /// Returns the extents from `from` on, up to the chunk's end.
    pub(crate) fn new(tree: &Tree, format: &'a BlockFormat, from: Logical, range: Range<Logical>) -> Self {
        let key = |logical: Logical| Key::new(ObjectId::new(logical.get()), ItemType(0), 0);
        let ahead = ReadAhead::Sweep { window_bytes: WINDOW };
        Self {
            items: tree.range(key(from)..key(range.end), ahead),
            format,
            at: range.start,
            range,
        }
    }

    /// Returns the next extent, or the error of an unreadable part.
    pub(crate) fn next(&mut self) -> Option<Result<UsedExtent, String>> {
        loop {
            let item = match self.items.next()? {
                Ok(item) => item,
                Err(error) => return Some(Err(format!("extent tree: {error}"))),
            };
            let key = item.key();
            if !matches!(key.item_type, ItemType::EXTENT_ITEM | ItemType::METADATA_ITEM) {
                continue;
            }
            return Some(match ExtentItem::parse(&key, item.data(), self.format) {
                Ok(extent) => self.admit(&extent),
                Err(error) => Err(format!("extent tree: {error}")),
            });
        }
    }

    fn admit(&mut self, extent: &ExtentItem) -> Result<UsedExtent, String> {
        let (start, end) = (extent.start, extent.end());
        if start < self.at || end > self.range.end || end <= start {
            return Err(format!(
                "extent tree: the extent [{start}, {end}) overlaps the extent before it or exceeds its chunk [{}, {})",
                self.range.start, self.range.end
            ));
        }
        self.at = end;
        let holds = if extent.is_data() {
            Holds::Data
        } else {
            let (generation, level) = (extent.generation, extent.level);
            Holds::Tree { generation, level }
        };
        let generation = extent.generation;
        Ok(UsedExtent {
            start,
            end,
            holds,
            generation,
        })
    }
}

/// A run of data whose sectors all have checksums, or all have none.
#[derive(Debug)]
pub(crate) struct Run<'a> {
    pub(crate) end: Logical,
    /// The checksums of all sectors, packed, and the generation of their leaf.
    pub(crate) packed: Option<(&'a [u8], Generation)>,
}

/// The checksum tree, read in order of address.
#[derive(Debug)]
pub(crate) struct Checksums {
    cursor: Option<Cursor>,
    started: bool,
    sector_bytes: u32,
    checksum_type: ChecksumType,
}

impl Checksums {
    pub(crate) fn new(tree: Option<&Tree>, sector_bytes: u32, checksum_type: ChecksumType) -> Self {
        let ahead = ReadAhead::Sweep { window_bytes: WINDOW };
        Self {
            cursor: tree.map(|tree| tree.cursor(ahead)),
            started: false,
            sector_bytes,
            checksum_type,
        }
    }

    /// Returns the checksum run that begins at `from` and ends at `to` at the latest. Passes errors
    /// of unreadable leaves to `failed`.
    pub(crate) fn run(&mut self, from: Logical, to: Logical, failed: &mut dyn FnMut(String)) -> Run<'_> {
        if !self.started {
            self.started = true;
            self.approach(from, failed);
        }
        while self.covered().is_some_and(|covered| covered.end <= from) {
            self.advance(failed);
        }
        let bare = |end: Logical| Run { end, packed: None };
        let Some(covered) = self.covered() else {
            return bare(to);
        };
        if covered.start > from {
            return bare(to.min(covered.start));
        }
        let end = to.min(covered.end);
        let packed = self.item().and_then(|item| item.range(from, end));
        let leaf = self.cursor.as_ref().and_then(Cursor::current_pointer);
        match packed.zip(leaf) {
            Some(((_, packed), leaf)) => Run {
                end,
                packed: Some((packed, leaf.generation)),
            },
            None => bare(end),
        }
    }

    /// Moves to the item that covers `from`, or to the first item after it.
    fn approach(&mut self, from: Logical, failed: &mut dyn FnMut(String)) {
        let key = Key::new(ObjectId::EXTENT_CHECKSUM, ItemType::EXTENT_CSUM, from.get());
        let Some(cursor) = &mut self.cursor else {
            return;
        };
        let mut sought = cursor.seek_at_or_before(&key);
        if sought.is_ok() && cursor.current().is_none() {
            sought = cursor.seek(&key);
        }
        if let Err(error) = sought {
            failed(format!("checksum tree: {error}"));
            self.advance(failed);
        }
        // An item of another type may precede the first checksum item.
        while self
            .cursor
            .as_ref()
            .is_some_and(|cursor| cursor.current().is_some())
            && self.item().is_none()
        {
            self.advance(failed);
        }
    }

    fn advance(&mut self, failed: &mut dyn FnMut(String)) {
        let Some(cursor) = &mut self.cursor else {
            return;
        };
        // An unreadable leaf is skipped: the next call continues after it.
        while let Err(error) = cursor.next() {
            failed(format!("checksum tree: {error}"));
        }
    }

    fn item(&self) -> Option<ChecksumItem<'_>> {
        let item = self.cursor.as_ref()?.current()?;
        if item.key.item_type != ItemType::EXTENT_CSUM {
            return None;
        }
        ChecksumItem::parse(&item.key, item.data, self.sector_bytes, self.checksum_type).ok()
    }

    fn covered(&self) -> Option<Range<Logical>> {
        self.item().map(|item| item.start..item.end)
    }
}
