//! The entries of a directory, in the order of its blocks.
//!
//! A directory with a hash tree is read as a list of blocks: its tree's blocks are lists with empty
//! entries to older programs, and to this reader. The checksum of such a block has a place of its
//! own.
//!
//! Memory holds one block. Names can repeat in a damaged directory: a caller that needs unique names
//! must check them.
//!
//! Source: ext4 documentation, sections "Directory Entries", "Hash Tree Directories" and "Inline
//! Directories".

mod checksum;
mod entry;

use crate::attributes::inline_value;
use crate::bytes::{part, rounded_to_four, u16_at, u32_at};
use crate::content::ContentBlocks;
use crate::error::{ExtError, Place, Problem};
use crate::inode::{ExtInode, FileKind, InodeFlags};
use crate::superblock::Incompat;
use crate::units::InodeNumber;
use crate::volume::Ext;
use buttress_exact::{Exact as _, u64_of};
use entry::{ENTRY_BYTES, entry_bytes, kind_of_entry};

/// The size of the parent's number at the start of entries in an inode.
const PARENT_BYTES: usize = 4;

/// A name in a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExtEntry {
    /// The name: 1 to 255 bytes, without `/` and NUL.
    pub name: Vec<u8>,
    /// The inode.
    pub inode: InodeNumber,
    /// The type of the inode, if the volume records types in entries.
    pub kind: Option<FileKind>,
}

/// The entries of a directory, without `.` and `..`.
pub struct Entries<'a> {
    volume: &'a Ext,
    /// The start of the checksums of the directory's blocks.
    seed: Option<u32>,
    has_hash_tree: bool,
    inode: InodeNumber,
    source: Source<'a>,
    block: Option<List>,
}

/// The lists that follow the current one.
enum Source<'a> {
    Blocks(ContentBlocks<'a>),
    /// The last list of a directory in an inode, or `None` after it.
    Inline(Option<List>),
    End,
}

/// Entries one after the other.
struct List {
    place: Place,
    bytes: Vec<u8>,
    next: usize,
}

impl Iterator for Entries<'_> {
    type Item = Result<ExtEntry, ExtError>;

    fn next(&mut self) -> Option<Self::Item> {
        let entry = self.advance();
        if entry.is_err() {
            self.source = Source::End;
            self.block = None;
        }
        entry.transpose()
    }
}

impl Entries<'_> {
    fn advance(&mut self) -> Result<Option<ExtEntry>, ExtError> {
        loop {
            let Some(block) = self.block.as_mut() else {
                self.block = self.next_list()?;
                if self.block.is_none() {
                    return Ok(None);
                }
                continue;
            };
            if block.next >= block.bytes.len() {
                self.block = None;
            } else if let Some(entry) = block.next_entry(self.volume)? {
                return Ok(Some(entry));
            }
        }
    }

    fn next_list(&mut self) -> Result<Option<List>, ExtError> {
        match &mut self.source {
            Source::End => Ok(None),
            Source::Inline(list) => Ok(list.take()),
            Source::Blocks(blocks) => {
                let Some((at, block)) = blocks.next()? else {
                    return Ok(None);
                };
                let place = Place::DirectoryBlock {
                    inode: self.inode,
                    block: at,
                };
                let bytes = self.volume.read_block(place, "the content", block)?.to_vec();
                if let Some(seed) = self.seed {
                    checksum::check(place, &bytes, seed, self.has_hash_tree)?;
                }
                Ok(Some(List {
                    place,
                    bytes,
                    next: 0,
                }))
            }
        }
    }
}

impl List {
    /// Returns the next entry, or `None` for an empty entry, `.` and `..`.
    fn next_entry(&mut self, volume: &Ext) -> Result<Option<ExtEntry>, ExtError> {
        let place = self.place;
        let (entry, end) = self
            .parse(volume)
            .map_err(|problem| ExtError::corrupt(place, problem))?;
        self.next = end;
        Ok(entry)
    }

    fn parse(&self, volume: &Ext) -> Result<(Option<ExtEntry>, usize), Problem> {
        let superblock = &volume.superblock;
        let entry = |what, at| u16_at(&self.bytes, what, self.next.exact_add(at));
        let inode = u32_at(&self.bytes, "the entry", self.next)?;
        let length = entry_bytes(entry("the entry", 4)?, volume.block_bytes());
        let lengths = entry("the entry", 6)?;
        let [name_low, kind] = lengths.to_le_bytes();
        let has_kinds = superblock.incompat.contains(Incompat::FILETYPE);
        let name_bytes = usize::from(if has_kinds { u16::from(name_low) } else { lengths });
        let least = rounded_to_four(ENTRY_BYTES.exact_add(name_bytes));
        let left = self.bytes.len().exact_sub(self.next);
        // An empty entry can be shorter than its length of name says, but not shorter than its head.
        let least = if inode == 0 { ENTRY_BYTES } else { least };
        if length < least || length > left || !length.is_multiple_of(4) {
            return Err(Problem::Field {
                field: "rec_len",
                found: u64_of(length),
                least: u64_of(least),
                most: u64_of(left),
            });
        }
        let end = self.next.exact_add(length);
        if inode == 0 {
            return Ok((None, end));
        }
        let name = part(
            &self.bytes,
            "the name",
            self.next.exact_add(ENTRY_BYTES),
            name_bytes,
        )?;
        if name == b"." || name == b".." {
            return Ok((None, end));
        }
        if name.is_empty() || name.len() > 255 || name.iter().any(|byte| matches!(byte, 0 | b'/')) {
            return Err(Problem::Name {
                offset: u64_of(self.next),
            });
        }
        let (first, inodes) = (superblock.first_inode.get(), superblock.inodes);
        if !(first..=inodes).contains(&inode) {
            return Err(Problem::Field {
                field: "the inode of an entry",
                found: u64::from(inode),
                least: u64::from(first),
                most: u64::from(inodes),
            });
        }
        let entry = ExtEntry {
            name: name.to_vec(),
            inode: InodeNumber::new(inode),
            kind: if has_kinds { kind_of_entry(kind) } else { None },
        };
        Ok((Some(entry), end))
    }
}

impl Ext {
    /// Returns the entries of a directory, without `.` and `..`. The iterator ends after an error.
    ///
    /// # Errors
    /// Fails if the inode is no directory, or if its size is not valid. Errors of the content come
    /// from the iterator.
    pub fn entries(&self, directory: &ExtInode) -> Result<Entries<'_>, ExtError> {
        if directory.kind != FileKind::Directory {
            let (mode, expected) = (directory.mode, "a directory");
            let problem = Problem::Kind { mode, expected };
            return Err(ExtError::corrupt(Place::Inode(directory.number), problem));
        }
        let (source, block) = if directory.is_inline() {
            inline_lists(directory)?
        } else {
            (Source::Blocks(self.content_blocks(directory)?), None)
        };
        Ok(Entries {
            volume: self,
            seed: directory.seed,
            has_hash_tree: directory.flags.contains(InodeFlags::INDEX),
            inode: directory.number,
            source,
            block,
        })
    }
}

/// Returns the lists of a directory in an inode: one in place of the map, one in `system.data`.
fn inline_lists(directory: &ExtInode) -> Result<(Source<'static>, Option<List>), ExtError> {
    let place = Place::InlineDirectory(directory.number);
    let list = |bytes: &[u8]| List {
        place,
        bytes: bytes.to_vec(),
        next: 0,
    };
    let (_, first) = directory.map.split_at(PARENT_BYTES);
    let second = inline_value(directory)?;
    Ok((Source::Inline(Some(list(second))), Some(list(first))))
}
