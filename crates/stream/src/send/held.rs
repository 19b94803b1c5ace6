//! The differences that the planning pass finds, held in memory for the sending pass.
//!
//! An incremental send must know all removed names before its first command (`plan`), and these
//! names may belong to any inode of the parent snapshot. The send therefore walks the new
//! snapshot's inodes up to the parent snapshot's last inode before it sends anything. It holds the
//! result of this walk, so that one walk suffices: sending replays the held inodes, then continues
//! the walk.
//!
//! Memory is bounded by [`HELD_BYTES_MAX`]. If more differs, the send drops the held inodes and
//! repeats the walk.

use crate::send::error::Result;
use crate::send::inode::InodeState;
use crate::send::items::{ExtentChange, Visitor};
use crate::send::plan::Plan;
use buttress_fs::RangeKind;
use bytes::Bytes;

/// Largest memory of held inodes in bytes.
const HELD_BYTES_MAX: usize = 64 << 20;

/// Memory of an inode without its referenced data, in bytes.
const INODE_BYTES: usize = size_of::<InodeState>() + size_of::<HeldInode>() + 64;

/// Memory of one link or attribute without its bytes.
const ENTRY_BYTES: usize = 64;

/// An inode that differs between the two snapshots, with its extents.
#[derive(Debug)]
struct HeldInode {
    inode: Box<InodeState>,
    extents: Vec<ExtentChange>,
}

/// The differences that the planning pass found.
#[derive(Debug, Default)]
pub(crate) struct Held {
    inodes: Vec<HeldInode>,
    bytes: usize,
    /// Number of inodes found, including inodes that the send does not hold in memory.
    count: u64,
    overflowed: bool,
}

impl Held {
    /// Returns the number of inodes found.
    pub(crate) const fn count(&self) -> u64 {
        self.count
    }

    /// Returns whether the send holds all found inodes in memory.
    pub(crate) const fn is_whole(&self) -> bool {
        !self.overflowed
    }

    /// Passes all held inodes to `visitor`.
    pub(crate) fn replay(self, visitor: &mut dyn Visitor) -> Result<()> {
        for HeldInode { inode, extents } in self.inodes {
            visitor.begin(&inode)?;
            for change in extents {
                visitor.extent(change)?;
            }
            visitor.end()?;
        }
        Ok(())
    }

    /// Accounts for `bytes` more bytes. Returns false if the held differences exceed the memory
    /// limit.
    fn take(&mut self, bytes: usize) -> bool {
        self.bytes = self.bytes.saturating_add(bytes);
        if self.bytes > HELD_BYTES_MAX && !self.overflowed {
            self.overflowed = true;
            self.inodes = Vec::new();
        }
        !self.overflowed
    }
}

/// Visitor that fills the plan and holds the inodes it sees.
#[derive(Debug)]
pub(crate) struct Planner {
    pub(crate) plan: Plan,
    pub(crate) held: Held,
}

impl Visitor for Planner {
    fn begin(&mut self, inode: &InodeState) -> Result<()> {
        self.plan.add(inode)?;
        self.held.count = self.held.count.saturating_add(1);
        if self.held.take(memory_bytes(inode)) {
            self.held.inodes.push(HeldInode {
                inode: Box::new(inode.clone()),
                extents: Vec::new(),
            });
        }
        Ok(())
    }

    fn extent(&mut self, mut change: ExtentChange) -> Result<()> {
        // For the old inline content, the fact that it differs is enough.
        if let Some(old) = &mut change.old
            && let RangeKind::Inline(inline) = &mut old.kind
            && change.new.is_some()
        {
            inline.stored = Bytes::new();
        }
        // Copy the content, because keeping its leaf would take much more memory.
        if let Some(new) = &mut change.new
            && let RangeKind::Inline(inline) = &mut new.kind
        {
            inline.stored = Bytes::copy_from_slice(&inline.stored);
        }
        if self.held.take(change.memory_bytes())
            && let Some(held) = self.held.inodes.last_mut()
        {
            held.extents.push(change);
        }
        Ok(())
    }

    fn end(&mut self) -> Result<()> {
        if let Some(held) = self.held.inodes.last_mut() {
            held.extents.shrink_to_fit();
        }
        Ok(())
    }
}

fn memory_bytes(inode: &InodeState) -> usize {
    let links = inode.old_links.iter().chain(&inode.new_links);
    let links = links.chain(&inode.beside.first_link).map(|link| link.name.len());
    let xattrs = inode.old_xattrs.iter().chain(&inode.new_xattrs);
    let xattrs = xattrs.map(|xattr| xattr.name.len().saturating_add(xattr.value.len()));
    let target = inode.target.as_ref().map_or(0, Vec::len);
    links
        .chain(xattrs)
        .fold(INODE_BYTES.saturating_add(target), |bytes, more| {
            bytes.saturating_add(more).saturating_add(ENTRY_BYTES)
        })
}
