//! The extents of a file: the blocks of its content, from an extent tree or a block map.
//!
//! Invariants, which bound the work on any bytes:
//!
//! - Extents ascend in the file and do not overlap. Each node of a tree has only extents in the
//!   range that its parent names.
//! - All blocks of a file, its tree or map included, are at most as many as its inode counts. The
//!   count is at most the number of blocks of the volume. Circles of blocks end here.
//! - Memory holds one block for each level of the tree or map.
//!
//! Source: ext4 documentation, section "The Contents of inode.i_block".

mod extent;
mod map;
mod tree;

pub use extent::ExtExtent;

use crate::error::ExtError;
use crate::inode::{ExtInode, FileKind, InodeFlags};
use crate::units::BlockNumber;
use crate::volume::Ext;
use extent::Budget;
use map::Map;
use tree::Tree;

/// The extents of a file in order.
pub struct Extents<'a> {
    volume: &'a Ext,
    budget: Budget,
    form: Form,
}

enum Form {
    /// No blocks: content in the inode, short links, devices, or after an error.
    Nothing,
    Tree(Tree),
    Map(Map),
}

impl Iterator for Extents<'_> {
    type Item = Result<ExtExtent, ExtError>;

    fn next(&mut self) -> Option<Self::Item> {
        let extent = self.advance();
        if extent.is_err() {
            self.form = Form::Nothing;
        }
        extent.transpose()
    }
}

impl Extents<'_> {
    /// Returns the blocks of the extent tree or block map that were read since the last call. After
    /// the last extent, all of them were returned.
    pub fn take_map_blocks(&mut self) -> Vec<BlockNumber> {
        self.budget.take_map_blocks()
    }

    fn advance(&mut self) -> Result<Option<ExtExtent>, ExtError> {
        let extent = match &mut self.form {
            Form::Nothing => return Ok(None),
            Form::Tree(tree) => tree.next(self.volume, &mut self.budget)?,
            Form::Map(map) => map.next(self.volume, &mut self.budget)?,
        };
        if let Some(extent) = &extent {
            let place = self.budget.place();
            self.volume
                .require_inside(place, "an extent", extent.start, u64::from(extent.blocks))?;
            self.budget.spend(u64::from(extent.blocks))?;
        }
        Ok(extent)
    }
}

impl Ext {
    /// Returns the extents of `inode` in order. Content in the inode, short link targets and device
    /// nodes have none. Extents can be beyond the size of the file. The iterator ends after an
    /// error.
    #[must_use]
    pub fn extents(&self, inode: &ExtInode) -> Extents<'_> {
        let form = if inode.is_inline() || !has_content(inode.kind) || is_short_link(inode) {
            Form::Nothing
        } else if inode.flags.contains(InodeFlags::EXTENTS) {
            Form::Tree(Tree::new(inode))
        } else {
            Form::Map(Map::new(inode))
        };
        Extents {
            volume: self,
            budget: Budget::new(inode),
            form,
        }
    }
}

const fn has_content(kind: FileKind) -> bool {
    matches!(kind, FileKind::Regular | FileKind::Directory | FileKind::Symlink)
}

/// Returns true if the target of a link is in place of a block map.
///
/// Source: ext4 documentation, section "Symbolic Links".
pub(crate) fn is_short_link(inode: &ExtInode) -> bool {
    let attribute_blocks = u64::from(inode.attribute_block.is_some());
    inode.kind == FileKind::Symlink
        && !inode.is_inline()
        && !inode.flags.contains(InodeFlags::EXTENTS)
        && inode.blocks <= attribute_blocks
}
