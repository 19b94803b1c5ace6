//! What the first look at the differences finds, held for the sending that follows it.
//!
//! An incremental send must know the names that go away before its first command (`plan`), and they may belong to any
//! inode of the parent snapshot. So it goes over the inodes up to the parent's last one before it sends anything. What
//! it reads there is held, so that one walk does: sending begins with what is held, and goes on where the walk stopped.
//!
//! Memory is bounded by [`HELD_BYTES_MAX`]. Where more differs, what was held is let go, and the walk is made twice.

use crate::send::error::Result;
use crate::send::inode::InodeState;
use crate::send::items::{ExtentChange, Visitor};
use crate::send::plan::Plan;
use buttress_fs::RangeKind;
use bytes::Bytes;

/// How much is held at most.
const HELD_BYTES_MAX: usize = 64 << 20;

/// What an inode takes beside what it refers to.
const INODE_BYTES: usize = size_of::<InodeState>() + size_of::<HeldInode>() + 64;

/// What one link or attribute takes beside its bytes.
const ENTRY_BYTES: usize = 64;

/// An inode that differs, and its extents.
#[derive(Debug)]
struct HeldInode {
    inode: Box<InodeState>,
    extents: Vec<ExtentChange>,
}

/// What was found. See the module.
#[derive(Debug, Default)]
pub(crate) struct Held {
    inodes: Vec<HeldInode>,
    bytes: usize,
    /// How many inodes there were, those that are not held among them.
    count: u64,
    overflowed: bool,
}

impl Held {
    /// How many inodes were found.
    pub(crate) const fn count(&self) -> u64 {
        self.count
    }

    /// Whether all of them are held.
    pub(crate) const fn is_whole(&self) -> bool {
        !self.overflowed
    }

    /// Hands all on.
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

    /// Counts `bytes` more. False when that is too much.
    fn take(&mut self, bytes: usize) -> bool {
        self.bytes = self.bytes.saturating_add(bytes);
        if self.bytes > HELD_BYTES_MAX && !self.overflowed {
            self.overflowed = true;
            self.inodes = Vec::new();
        }
        !self.overflowed
    }
}

/// Finds out what must be known before the first command, and holds what it sees.
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
        // Of the old content it is enough to know that it differs.
        if let Some(old) = &mut change.old
            && let RangeKind::Inline(inline) = &mut old.kind
            && change.new.is_some()
        {
            inline.stored = Bytes::new();
        }
        // A leaf is much larger than what one file has in it.
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
