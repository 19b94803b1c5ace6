//! All inodes in order of their numbers, and one inode by its number.
//!
//! The iterator reads the parts of an inode table with used inodes, in pieces of at most
//! [`PIECE_BYTES`]. The read of the next piece starts before the caller gets the inodes of the
//! current one.
//!
//! Source: ext4 documentation, sections "Index Nodes" and "Finding an Inode".

use crate::bitmaps::Bitmap;
use crate::bytes::part;
use crate::error::{ExtError, Place, Problem};
use crate::groups::{Group, Groups};
use crate::inode::ExtInode;
use crate::units::{BlockNumber, GroupNumber, InodeNumber};
use crate::volume::Ext;
use buttress_device::{Buffer, PendingRead};
use buttress_exact::{Exact as _, usize_of};

/// The largest part of an inode table in one read.
const PIECE_BYTES: u32 = 1 << 20;

/// A piece of a group's inode table, and its bytes.
struct Piece<Content> {
    content: Content,
    /// The index in the group of the piece's first inode.
    first: u32,
    /// The index after the piece's last inode.
    end: u32,
}

/// The inodes of a group.
struct Table {
    group: Group,
    bitmap: Bitmap,
    /// The index of the first inode that no piece covers.
    covered: u32,
}

/// The inodes in use, in order of their numbers.
pub struct Inodes<'a> {
    volume: &'a Ext,
    groups: Groups<'a>,
    table: Option<Table>,
    ahead: Option<Piece<PendingRead>>,
    piece: Option<Piece<Buffer>>,
    /// The index in the group of the next inode.
    next: u32,
}

impl Iterator for Inodes<'_> {
    type Item = Result<ExtInode, ExtError>;

    fn next(&mut self) -> Option<Self::Item> {
        let inode = self.advance();
        if inode.is_err() {
            self.groups.stop();
            (self.table, self.ahead, self.piece) = (None, None, None);
        }
        inode.transpose()
    }
}

impl Inodes<'_> {
    fn advance(&mut self) -> Result<Option<ExtInode>, ExtError> {
        loop {
            if let Some(inode) = self.next_of_piece()? {
                return Ok(Some(inode));
            }
            if !self.next_piece()? && !self.next_table()? {
                return Ok(None);
            }
        }
    }

    fn next_of_piece(&mut self) -> Result<Option<ExtInode>, ExtError> {
        let (Some(piece), Some(table)) = (&self.piece, &self.table) else {
            return Ok(None);
        };
        let superblock = &self.volume.superblock;
        while self.next < piece.end {
            let index = self.next;
            self.next = index.exact_add(1);
            if !table.bitmap.is_used(index) {
                continue;
            }
            let number = inode_number(superblock.inodes_per_group, table.group.number, index);
            let length = usize_of(superblock.inode_bytes);
            let offset = usize_of(index.exact_sub(piece.first)).exact_mul(length);
            let bytes = part(&piece.content, "the inode", offset, length);
            let bytes = bytes.map_err(|problem| ExtError::corrupt(Place::Inode(number), problem))?;
            if let Some(inode) = ExtInode::parse(superblock, number, bytes)? {
                return Ok(Some(inode));
            }
        }
        self.piece = None;
        Ok(None)
    }

    /// Waits for the next piece of the table, and starts the read of the one after it.
    fn next_piece(&mut self) -> Result<bool, ExtError> {
        let Some(ahead) = self.ahead.take() else {
            return Ok(false);
        };
        self.start_piece();
        self.next = ahead.first;
        self.piece = Some(Piece {
            content: ahead.content.wait()?,
            first: ahead.first,
            end: ahead.end,
        });
        Ok(true)
    }

    fn next_table(&mut self) -> Result<bool, ExtError> {
        let Some(group) = self.groups.next().transpose()? else {
            return Ok(false);
        };
        self.table = Some(Table {
            bitmap: self.volume.inode_bitmap(&group)?,
            covered: 0,
            group,
        });
        self.start_piece();
        Ok(true)
    }

    /// Starts the read of the next piece with used inodes.
    fn start_piece(&mut self) {
        let Some(table) = self.table.as_mut() else {
            return;
        };
        let superblock = &self.volume.superblock;
        let per_block = superblock.block_bytes.quotient(superblock.inode_bytes);
        let inodes = superblock.inodes_per_group;
        let Some(used) = (table.covered..inodes).find(|index| table.bitmap.is_used(*index)) else {
            table.covered = inodes;
            return;
        };
        let block = used.quotient(per_block);
        let first = block.exact_mul(per_block);
        let per_piece = PIECE_BYTES.quotient(superblock.inode_bytes);
        let end = first.exact_add(per_piece).min(inodes);
        let blocks = end.exact_sub(first).div_ceil(per_block);
        let start = BlockNumber::new(table.group.inode_table.start.get().exact_add(u64::from(block)));
        table.covered = end;
        self.ahead = Some(Piece {
            content: self.volume.device.start_read(self.volume.request(start, blocks)),
            first,
            end,
        });
    }
}

/// Returns the number of an inode from its index in a group.
fn inode_number(per_group: u32, group: GroupNumber, index: u32) -> InodeNumber {
    InodeNumber::new(group.get().exact_mul(per_group).exact_add(index).exact_add(1))
}

impl Ext {
    /// Returns the inodes in use, in order of their numbers. Internal inodes
    /// ([`Superblock::is_internal`](crate::Superblock::is_internal)) and values of attributes
    /// ([`ExtInode::is_attribute_value`]) are among them. The iterator ends after an error.
    #[must_use]
    pub const fn inodes(&self) -> Inodes<'_> {
        Inodes {
            volume: self,
            groups: self.groups(),
            table: None,
            ahead: None,
            piece: None,
            next: 0,
        }
    }

    /// Reads one inode, whatever the bitmaps say about it. Returns `None` if it is not in use.
    ///
    /// # Errors
    /// Fails if the volume has no inode with this number, or if the inode is damaged.
    pub fn inode(&self, number: InodeNumber) -> Result<Option<ExtInode>, ExtError> {
        let superblock = &self.superblock;
        let place = Place::Inode(number);
        let index = number
            .get()
            .checked_sub(1)
            .filter(|_| number.get() <= superblock.inodes);
        let Some(index) = index else {
            let (field, most) = ("the inode number", u64::from(superblock.inodes));
            let found = u64::from(number.get());
            return Err(ExtError::corrupt(
                place,
                Problem::Field {
                    field,
                    found,
                    least: 1,
                    most,
                },
            ));
        };
        let group = self.group(GroupNumber::new(index.quotient(superblock.inodes_per_group)))?;
        let offset = usize_of(index.remainder(superblock.inodes_per_group))
            .exact_mul(usize_of(superblock.inode_bytes));
        let block = buttress_exact::u64_of(offset.quotient(self.block_bytes()));
        let block = BlockNumber::new(group.inode_table.start.get().exact_add(block));
        let content = self.read_block(place, "the inode table", block)?;
        let bytes = part(
            &content,
            "the inode",
            offset.remainder(self.block_bytes()),
            usize_of(superblock.inode_bytes),
        );
        ExtInode::parse(
            superblock,
            number,
            bytes.map_err(|problem| ExtError::corrupt(place, problem))?,
        )
    }
}
