//! Content that is read whole: small files, link targets, values of attributes, and the blocks of
//! directories.
//!
//! Callers read the content of large files from the device, by the extents.
//!
//! Source: ext4 documentation, sections "Inline Data" and "Symbolic Links".

use crate::attributes::inline_value;
use crate::error::{ExtError, Place, Problem};
use crate::extents::{Extents, is_short_link};
use crate::inode::{ExtInode, FileKind, MAP_BYTES};
use crate::units::{BlockNumber, FileBlock};
use crate::volume::Ext;
use buttress_exact::{Exact as _, copy_into, u64_of, usize_of};

/// The blocks of content that must not have holes, in order.
pub(crate) struct ContentBlocks<'a> {
    extents: Extents<'a>,
    place: Place,
    /// The next block of the content, and the block after the last.
    at: u64,
    end: u64,
    /// The place on the device of the next block, and the number of blocks that follow each other.
    run: Option<(BlockNumber, u32)>,
}

impl ContentBlocks<'_> {
    /// Returns the next block of the content with its place on the device.
    pub(crate) fn next(&mut self) -> Result<Option<(FileBlock, BlockNumber)>, ExtError> {
        if self.at >= self.end {
            return Ok(None);
        }
        let (block, left) = match self.run.take() {
            Some(run) => run,
            None => self.next_run()?,
        };
        if left > 1 {
            self.run = Some((BlockNumber::new(block.get().exact_add(1)), left.exact_sub(1)));
        }
        let at = FileBlock::new(self.at.narrow());
        self.at = self.at.exact_add(1);
        Ok(Some((at, block)))
    }

    fn next_run(&mut self) -> Result<(BlockNumber, u32), ExtError> {
        match self.extents.next().transpose()? {
            Some(extent) if u64::from(extent.first.get()) == self.at && !extent.is_unwritten => {
                Ok((extent.start, extent.blocks))
            }
            _ => Err(ExtError::corrupt(self.place, Problem::Hole { at: self.at })),
        }
    }
}

impl Ext {
    /// Returns the blocks of content without holes, as far as the inode's size reaches.
    pub(crate) fn content_blocks<'a>(&'a self, inode: &ExtInode) -> Result<ContentBlocks<'a>, ExtError> {
        let end = inode.size_bytes.div_ceil(u64::from(self.superblock.block_bytes));
        if end > inode.blocks {
            let counted = inode.blocks;
            return Err(ExtError::corrupt(
                Place::Inode(inode.number),
                Problem::MoreBlocks { counted },
            ));
        }
        Ok(ContentBlocks {
            extents: self.extents(inode),
            place: Place::Inode(inode.number),
            at: 0,
            end,
            run: None,
        })
    }

    /// Returns the whole content of a regular file of at most `limit_bytes`. Holes and unwritten
    /// blocks read as zeros.
    ///
    /// # Errors
    /// Fails if the inode is no regular file, if the content is larger than `limit_bytes`, or if
    /// the extents are damaged.
    pub fn content(&self, inode: &ExtInode, limit_bytes: u64) -> Result<Vec<u8>, ExtError> {
        if inode.kind != FileKind::Regular {
            let (mode, expected) = (inode.mode, "a regular file");
            let problem = Problem::Kind { mode, expected };
            return Err(ExtError::corrupt(Place::Inode(inode.number), problem));
        }
        self.stored_content(inode, limit_bytes)
    }

    /// Returns the content of an inode of any type, as far as its size reaches.
    fn stored_content(&self, inode: &ExtInode, limit_bytes: u64) -> Result<Vec<u8>, ExtError> {
        let size_bytes = inode.size_bytes;
        if size_bytes > limit_bytes {
            return Err(ExtError::TooLarge {
                inode: inode.number,
                size_bytes,
                limit_bytes,
            });
        }
        if inode.is_inline() {
            return inline_content(inode);
        }
        let block_bytes = u64::from(self.superblock.block_bytes);
        let mut content = vec![0; size_bytes.narrow()];
        for extent in self.extents(inode) {
            let extent = extent?;
            let start = u64::from(extent.first.get()).exact_mul(block_bytes);
            let end = extent.end().exact_mul(block_bytes).min(size_bytes);
            if start >= end || extent.is_unwritten {
                continue;
            }
            let length: usize = end.exact_sub(start).narrow();
            let bytes = self
                .device
                .read(extent.start.get().exact_mul(block_bytes), length)?;
            let start: usize = start.narrow();
            copy_into(
                &mut content,
                start..start.exact_add(length),
                &bytes,
                "content by extents",
            )?;
        }
        Ok(content)
    }

    /// Returns the target of a symbolic link.
    ///
    /// # Errors
    /// Fails if the inode is no symbolic link, or if the target is longer than a block, is empty, or
    /// has a NUL byte.
    pub fn link_target(&self, inode: &ExtInode) -> Result<Vec<u8>, ExtError> {
        let corrupt = |problem| ExtError::corrupt(Place::Inode(inode.number), problem);
        if inode.kind != FileKind::Symlink {
            let (mode, expected) = (inode.mode, "a symbolic link");
            return Err(corrupt(Problem::Kind { mode, expected }));
        }
        let most = if is_short_link(inode) {
            u64_of(MAP_BYTES)
        } else {
            u64::from(self.superblock.block_bytes)
        };
        let found = inode.size_bytes;
        if !(1..=most).contains(&found) {
            let field = "the size of the target";
            return Err(corrupt(Problem::Field {
                field,
                found,
                least: 1,
                most,
            }));
        }
        let target = if is_short_link(inode) {
            let (target, _) = inode.map.split_at(found.narrow());
            target.to_vec()
        } else {
            self.stored_content(inode, most)?
        };
        if target.contains(&0) {
            return Err(corrupt(Problem::Target));
        }
        Ok(target)
    }
}

/// Returns the content in an inode: the field of the map, then the attribute `system.data`.
fn inline_content(inode: &ExtInode) -> Result<Vec<u8>, ExtError> {
    let value = inline_value(inode)?;
    let found = inode.size_bytes;
    let most = u64_of(MAP_BYTES).exact_add(u64_of(value.len()));
    if found > most {
        let field = "the size of content in the inode";
        let problem = Problem::Field {
            field,
            found,
            least: 0,
            most,
        };
        return Err(ExtError::corrupt(Place::Inode(inode.number), problem));
    }
    let mut content = inode.map.to_vec();
    content.extend_from_slice(value);
    content.truncate(found.narrow());
    debug_assert_eq!(u64_of(content.len()), found);
    Ok(content)
}

const _: () = assert!(MAP_BYTES < usize_of(crate::superblock::MIN_BLOCK_BYTES));
