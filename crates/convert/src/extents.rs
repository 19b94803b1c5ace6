//! The content of files and of the saved image: one pass over the used bytes in the order of their
//! new addresses.
//!
//! The extents are the pieces of the used ranges. The saved image refers to each piece, and files
//! refer to parts of pieces. The pass needs the files' extents in the order of their addresses, so a
//! sorter comes before it.

use crate::GENERATION;
use crate::INODE_OFFSET;
use crate::chunks::DataChunks;
use crate::error::{Error, Result};
use crate::inodes::new_number;
use crate::layout::{Layout, Piece, RESERVED};
use crate::records::Items;
use buttress_exact::Exact as _;
use buttress_extfs::{Ext, ExtInode, UsedBlocks};
use buttress_format::{
    ByteCount, Compression, ExtentDataReference, ExtentSlice, FileExtent, FileExtentBody, FileOffset,
    InodeNumber, Logical, TreeId,
};
use buttress_packing::{Record, Sorted, SortedReader, Sorter, SpoolFolder};

/// The memory of the sorter.
const MEMORY_BYTES: usize = 64 << 20;

/// The inode of the saved image in its subvolume.
pub(crate) const IMAGE: InodeNumber = InodeNumber::new(257);

/// A part of a file: a range of new addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Part {
    logical: u64,
    inode: u64,
    offset: u64,
    length: u64,
}

impl Part {
    /// Returns the error of a part that is in no used block.
    fn is_free(&self) -> Error {
        Error::FreeBlock {
            inode: self.inode.exact_sub(INODE_OFFSET).narrow(),
            physical: self.logical,
        }
    }
}

/// The parts of files, in any order.
pub(crate) struct Parts {
    sorter: Sorter,
}

impl Parts {
    pub(crate) fn new(folder: &SpoolFolder) -> Self {
        Self {
            sorter: Sorter::new(folder, MEMORY_BYTES),
        }
    }

    /// Adds the written extents of a file as far as its size reaches, and returns the sum of their
    /// lengths.
    pub(crate) fn add(&mut self, old: &Ext, layout: &Layout, inode: &ExtInode) -> Result<u64> {
        let block_bytes = u64::from(old.superblock().block_bytes);
        let size = inode.size_bytes.div_ceil(block_bytes).exact_mul(block_bytes);
        let mut sum = 0_u64;
        for extent in old.extents(inode) {
            let extent = extent?;
            let first = u64::from(extent.first.get()).exact_mul(block_bytes);
            let end = extent.end().exact_mul(block_bytes).min(size);
            if extent.is_unwritten || first >= end {
                continue;
            }
            let start = extent.start.get().exact_mul(block_bytes);
            let mut at = start;
            for piece in layout.pieces(start..start.exact_add(end.exact_sub(first))) {
                let part = Part {
                    logical: piece.logical,
                    inode: new_number(inode.number).get(),
                    offset: first.exact_add(piece.offset.exact_sub(start)),
                    length: piece.length,
                };
                self.push(part)?;
                at = piece.offset.exact_add(piece.length);
            }
            if at != start.exact_add(end.exact_sub(first)) {
                let (inode, physical) = (inode.number.get(), at);
                return Err(Error::FreeBlock { inode, physical });
            }
            sum = sum.exact_add(end.exact_sub(first));
        }
        Ok(sum)
    }

    fn push(&mut self, part: Part) -> Result<()> {
        let key = [part.logical, part.inode, part.offset]
            .map(u64::to_be_bytes)
            .concat();
        self.sorter.push(&key, &part.length.to_be_bytes())?;
        Ok(())
    }

    pub(crate) fn finish(self) -> Result<Sorted> {
        Ok(self.sorter.finish()?)
    }
}

fn decode(record: &Record) -> Part {
    let mut numbers = record
        .key
        .chunks_exact(8)
        .chain(record.payload.chunks_exact(8))
        .map(|bytes| {
            bytes
                .iter()
                .fold(0_u64, |number, byte| number << 8 | u64::from(*byte))
        });
    let mut next = || numbers.next().map_or(0, |number| number);
    Part {
        logical: next(),
        inode: next(),
        offset: next(),
        length: next(),
    }
}

/// The pieces of all used ranges in the order of their new addresses.
pub(crate) struct Pieces<'a> {
    layout: &'a Layout,
    used: UsedBlocks<'a>,
    block_bytes: u64,
    /// The rest of the current used range.
    rest: core::ops::Range<u64>,
    next: Option<Piece>,
    /// The pieces of reserved ranges, the first address last.
    moved: Vec<Piece>,
}

impl<'a> Pieces<'a> {
    pub(crate) fn new(old: &'a Ext, layout: &'a Layout) -> Result<Self> {
        let block_bytes = u64::from(old.superblock().block_bytes);
        let mut moved = Vec::new();
        for range in old.used_blocks() {
            let range = range?;
            let bytes = range.start.get().exact_mul(block_bytes)..range.end.get().exact_mul(block_bytes);
            for reserved in &RESERVED {
                let part = bytes.start.max(reserved.start)..bytes.end.min(reserved.end);
                moved.extend(layout.pieces(part));
            }
        }
        moved.sort_by_key(|piece| core::cmp::Reverse(piece.logical));
        Ok(Self {
            layout,
            used: old.used_blocks(),
            block_bytes,
            rest: 0..0,
            next: None,
            moved,
        })
    }

    /// Returns the next piece.
    pub(crate) fn next(&mut self) -> Result<Option<Piece>> {
        if self.next.is_none() {
            self.next = self.next_in_place()?;
        }
        let is_moved = match (&self.next, self.moved.last()) {
            (Some(piece), Some(moved)) => moved.logical < piece.logical,
            (None, Some(_)) => true,
            (_, None) => false,
        };
        Ok(if is_moved {
            self.moved.pop()
        } else {
            self.next.take()
        })
    }

    /// Returns the next piece outside of reserved ranges.
    fn next_in_place(&mut self) -> Result<Option<Piece>> {
        loop {
            while let Some(piece) = self.layout.pieces(self.rest.clone()).next() {
                self.rest.start = piece.offset.exact_add(piece.length);
                if piece.logical == piece.offset {
                    return Ok(Some(piece));
                }
            }
            let Some(range) = self.used.next().transpose()? else {
                return Ok(None);
            };
            self.rest =
                range.start.get().exact_mul(self.block_bytes)..range.end.get().exact_mul(self.block_bytes);
        }
    }
}

/// The pass over all pieces.
pub(crate) struct Pass<'a> {
    pub(crate) items: &'a mut Items,
    pub(crate) chunks: &'a mut DataChunks,
    parts: SortedReader<'a>,
    next: Option<Part>,
    /// The rests of parts that continue in the next piece.
    open: Vec<Part>,
}

impl<'a> Pass<'a> {
    pub(crate) fn new(items: &'a mut Items, chunks: &'a mut DataChunks, parts: &'a Sorted) -> Result<Self> {
        let mut pass = Self {
            items,
            chunks,
            parts: parts.reader()?,
            next: None,
            open: Vec::new(),
        };
        pass.advance()?;
        Ok(pass)
    }

    fn advance(&mut self) -> Result<()> {
        let mut record = Record::default();
        self.next = self.parts.next(&mut record)?.then(|| decode(&record));
        Ok(())
    }

    /// Adds the items of a piece and of all parts of files in it. Returns the references of its
    /// extent.
    pub(crate) fn piece(&mut self, piece: &Piece) -> Result<Vec<ExtentDataReference>> {
        let mut references = Vec::new();
        let whole = Part {
            logical: piece.logical,
            inode: IMAGE.get(),
            offset: piece.offset,
            length: piece.length,
        };
        self.part(piece, crate::SAVED_TREE, whole, &mut references)?;
        let end = piece.logical.exact_add(piece.length);
        let mut parts = core::mem::take(&mut self.open);
        while let Some(next) = self.next.filter(|next| next.logical < end) {
            parts.push(next);
            self.advance()?;
        }
        for mut part in parts {
            if part.logical < piece.logical {
                return Err(part.is_free());
            }
            let length = part.length.min(end.exact_sub(part.logical));
            self.part(piece, TreeId::FS, Part { length, ..part }, &mut references)?;
            part.length = part.length.exact_sub(length);
            if part.length > 0 {
                part.logical = part.logical.exact_add(length);
                part.offset = part.offset.exact_add(length);
                self.open.push(part);
            }
        }
        references.sort_by_key(|reference| (reference.root, reference.inode, reference.offset));
        self.chunks.used(piece)?;
        Ok(references)
    }

    /// Requires that all parts of files were in pieces.
    pub(crate) fn finish(self) -> Result<()> {
        match self.next.or(self.open.first().copied()) {
            None => Ok(()),
            Some(part) => Err(part.is_free()),
        }
    }

    /// Adds the item of a part, and its reference.
    fn part(
        &mut self,
        piece: &Piece,
        tree: TreeId,
        part: Part,
        references: &mut Vec<ExtentDataReference>,
    ) -> Result<()> {
        let inside = part.logical.exact_sub(piece.logical);
        let slice = ExtentSlice {
            disk: Logical::new(piece.logical),
            disk_bytes: ByteCount::new(piece.length),
            offset: ByteCount::new(inside),
            num_bytes: ByteCount::new(part.length),
        };
        let extent = FileExtent {
            generation: GENERATION,
            ram_bytes: slice.disk_bytes,
            compression: Compression::None,
            other_encoding: 0,
            body: FileExtentBody::Regular(slice),
        };
        let inode = InodeNumber::new(part.inode);
        self.items.push(
            tree,
            &FileExtent::key(inode, FileOffset::new(part.offset)),
            &extent.encode(),
        )?;
        // The format wraps the offset if the file begins inside of the extent.
        let offset = part.offset.wrapping_sub(inside);
        let same = references.iter_mut().find(|reference| {
            reference.root == tree && reference.inode == inode && reference.offset == offset
        });
        match same {
            Some(reference) => reference.count = reference.count.exact_add(1),
            None => references.push(ExtentDataReference {
                root: tree,
                inode,
                offset,
                count: 1,
            }),
        }
        Ok(())
    }
}
