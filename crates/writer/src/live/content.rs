//! Reads of a file's current content.
//!
//! A read acquires neither the edit lock nor the file lock. A read first *gathers* in memory: it
//! copies dirty and in-flight data. For ranges without dirty data, the read records the extents and
//! the checksums of their sectors. The reading thread then reads these extents from the devices
//! without a lock. A hold on the running state keeps the space of the extents from being reused.
//!
//! # Why gathered data shows one state
//!
//! - Dirty data covers the extents below it, and is dropped only when extents with its content are
//!   in the tree.
//! - An operation is visible as a whole or not at all: it holds the steps lock throughout, and
//!   lookups share this lock.
//! - Extents and their checksums are looked up under one hold of the file's tree. Under the hold,
//!   no extent leaves the tree, so no extent loses its checksums.
//! - The current size of a file without a writing call is the size in its inode item. The size of a
//!   file changes only in a call that stores its content beside the item. The reader compares the
//!   number of size-changing calls before and after its lookups.
//! - A call that removes a file's inode marks the file before it removes the items. The reader
//!   acquires its hold while it holds the file's tree, and checks the running generation
//!   afterwards. A transaction that began during the read may have extents that the hold does not
//!   cover.

use super::LiveFile;
use crate::areas::LiveReads;
use buttress_engine::file_content::FileContent;
use buttress_engine::inodes::{InodeState, LiveInode, id_of};
use buttress_engine::pins::Hold;
use buttress_engine::trees::LiveTree;
use buttress_exact::Exact as _;
use buttress_format::{
    ByteCount, FileExtent, FileKind, FileOffset, InodeFlags, InodeItem, ItemType, Key, ObjectId, TreeId,
};
use buttress_fs::checksums::{ChecksumItems, ExpectedChecksums};
use buttress_fs::content::{Planned, covers, plan};
use buttress_fs::error::{Error, Result};
use buttress_fs::extents::FileRangeBuilder;
use buttress_fs::file::{READ_AT_BATCH, fetch};
use buttress_fs::location::Location;
use buttress_tree::{EditableTree, OwnedItem};
use core::ops::{ControlFlow, Range};
use std::sync::Arc;

/// The result of a live read's lookups: the copied bytes, and the extents to read from devices.
struct Gathered {
    /// The number of bytes of the buffer that lie inside the file.
    length: usize,
    planned: Vec<Planned>,
    /// Whether the buffer already holds the dirty data, and zeros elsewhere; otherwise the buffer
    /// is unchanged.
    is_cleared: bool,
    /// A hold that keeps the extents from being reused.
    hold: Option<Hold>,
}

/// The state of a file when gathering began.
struct Found {
    item: InodeItem,
    content: Option<Arc<FileContent>>,
    calls: u64,
}

impl Found {
    fn of(state: &InodeState) -> Option<Self> {
        Some(Self {
            item: state.item.filter(|_| !state.is_gone())?,
            content: state.content.clone(),
            calls: state.calls,
        })
    }

    /// Returns whether the file's state is unchanged, except for changes that readers cannot
    /// observe for other reasons.
    fn is_still(&self, state: &InodeState) -> bool {
        let is_same = state.calls == self.calls || buttress_faults::on("live-calls-uncounted");
        is_same && !state.is_gone()
    }
}

impl LiveReads<'_> {
    /// Reads at `offset` into `buffer`, including dirty data. Returns the number of bytes read,
    /// which is smaller than the buffer only at the end of the file. A read of more than 4 MiB may
    /// show several states of the file.
    ///
    /// # Errors
    /// Fails with [`Error::InodeNotFound`], [`Error::IsADirectory`], or with an error of reading a
    /// byte of the range.
    pub fn read_at(&self, location: Location, offset: FileOffset, buffer: &mut [u8]) -> Result<usize> {
        self.read_in_parts(offset, buffer, |at, part| self.read_part(location, at, part))
    }

    /// Reads a range in parts, each of one state of the file.
    pub(super) fn read_in_parts(
        &self,
        offset: FileOffset,
        buffer: &mut [u8],
        mut read_part: impl FnMut(FileOffset, &mut [u8]) -> Result<usize>,
    ) -> Result<usize> {
        let batch_bytes = READ_AT_BATCH.narrow::<usize>();
        let mut done = 0_usize;
        for part in buffer.chunks_mut(batch_bytes) {
            let at = offset.saturating_add(ByteCount::of(done));
            let read = read_part(at, part)?;
            done = done.saturating_add(read);
            if read < part.len() {
                break;
            }
        }
        Ok(done)
    }

    fn read_part(&self, location: Location, offset: FileOffset, buffer: &mut [u8]) -> Result<usize> {
        let trees = self.trees_of(location)?;
        let gathered = loop {
            // Loads the item, or reports that none exists.
            self.inode(location)?;
            let inode = self.filesystem.live_inodes().entry(id_of(location));
            let gathered = self.retry(|| self.gather(&trees, &inode, location, offset, buffer))?;
            if let Some(gathered) = gathered {
                break gathered;
            }
        };
        self.read_gathered(gathered, offset, buffer)
    }

    /// Reads a part of a file whose live inode and trees the caller keeps.
    pub(super) fn read_part_of(
        &self,
        file: &LiveFile,
        offset: FileOffset,
        buffer: &mut [u8],
    ) -> Result<usize> {
        let location = file.location();
        let gathered = loop {
            let gather = || self.gather(&file.trees, &file.inode, location, offset, buffer);
            if let Some(gathered) = self.retry(gather)? {
                break gathered;
            }
            // This call loads the inode item, or reports that none exists.
            self.inode(location)?;
        };
        self.read_gathered(gathered, offset, buffer)
    }

    fn read_gathered(&self, gathered: Gathered, offset: FileOffset, buffer: &mut [u8]) -> Result<usize> {
        let Gathered {
            length,
            planned,
            is_cleared,
            hold: _hold,
        } = gathered;
        let read = buffer.get_mut(..length).unwrap_or_default();
        let range = offset..offset.saturating_add(ByteCount::of(length));
        if !is_cleared && !covers(&planned, &range) {
            read.fill(0);
        }
        fetch(self.filesystem.shared_base(), planned, offset, read)?;
        Ok(length)
    }

    /// Reads the extents of a file whose lock the caller holds. File ranges without extents or
    /// dirty data read as zeros.
    pub(crate) fn read_extents(&self, location: Location, offset: u64, buffer: &mut [u8]) -> Result<()> {
        let trees = self.trees_of(location)?;
        let (item, _) = self.inode(location)?;
        buffer.fill(0);
        let end = offset.saturating_add(ByteCount::of(buffer.len()).get());
        let (planned, _hold) = loop {
            let whole = offset..end;
            let ranges = core::slice::from_ref(&whole);
            let (planned, hold) = self.read_whole(|| self.plan_held(&trees, location, &item, ranges))?;
            if hold
                .as_ref()
                .is_none_or(|hold| self.filesystem.is_running_still(hold))
            {
                break (planned, hold);
            }
        };
        fetch(
            self.filesystem.shared_base(),
            planned,
            FileOffset::new(offset),
            buffer,
        )
    }

    /// Returns the tree of a file, and the checksum tree.
    pub(super) fn trees_of(&self, location: Location) -> Result<[LiveTree; 2]> {
        let of_file = self.tree(location.subvolume.tree())?;
        Ok([of_file, self.tree(TreeId::CHECKSUM)?])
    }

    /// Gathers. Returns `None` if more than one state was visible, or the inode left memory; the
    /// caller then retries.
    fn gather(
        &self,
        trees: &[LiveTree; 2],
        inode: &LiveInode,
        location: Location,
        offset: FileOffset,
        buffer: &mut [u8],
    ) -> Result<Option<Gathered>> {
        let Some(found) = Found::of(&inode.read()) else {
            return match inode.read().is_gone() {
                true => Err(Error::InodeNotFound { location }),
                false => Ok(None),
            };
        };
        if found.item.kind() == FileKind::Directory {
            return Err(Error::IsADirectory { location });
        }
        let content = found.content.as_deref();
        let _layout = content
            .filter(|_| !buttress_faults::on("live-layout-untaken"))
            .map(|content| content.layout.read());
        let waiting = content.map(|content| content.waiting.read());
        let size = waiting.as_ref().and_then(|waiting| waiting.size);
        let end = FileOffset::new(size.unwrap_or(found.item.size.get()));
        let rest = end.checked_distance_from(offset).and_then(ByteCount::to_usize);
        let length = rest.unwrap_or(0).min(buffer.len());
        let Some(buffer) = buffer.get_mut(..length) else {
            return Ok(None);
        };
        let whole = offset.get()..offset.saturating_add(ByteCount::of(length)).get();
        let is_cleared = waiting.is_some();
        let gaps = match &waiting {
            Some(waiting) => {
                buffer.fill(0);
                waiting.read(offset.get(), buffer)
            }
            None => core::iter::once(whole).collect(),
        };
        // The steps lock is acquired after dirty data, because a call of several steps also locks
        // dirty data first.
        let _whole = self.filesystem.steps().read();
        let [of_file, _] = trees;
        of_file.require_subvolume(location.subvolume)?;
        let (planned, hold) = self.plan_held(trees, location, &found.item, &gaps)?;
        let is_one_state = found.is_still(&inode.read())
            && hold
                .as_ref()
                .is_none_or(|hold| self.filesystem.is_running_still(hold));
        Ok(is_one_state.then_some(Gathered {
            length,
            planned,
            is_cleared,
            hold: hold.filter(|_| !buttress_faults::on("live-hold-untaken")),
        }))
    }

    /// Returns the planned reads of extents for ranges of a file. If the reads need devices, also
    /// returns a hold on the transaction in which the extents were found. The hold on the
    /// transaction begins before any of the extents can leave the tree.
    fn plan_held(
        &self,
        [of_file, checksums]: &[LiveTree; 2],
        location: Location,
        item: &InodeItem,
        ranges: &[Range<u64>],
    ) -> Result<(Vec<Planned>, Option<Hold>)> {
        let mut planned = Vec::new();
        if ranges.iter().all(Range::is_empty) {
            return Ok((planned, None));
        }
        let format = self.filesystem.forest().block_format();
        let base = self.filesystem.shared_base();
        let is_verified = !item.flags.contains(InodeFlags::NODATASUM) && !base.rescue().ignore_data_checksums;
        let hold = of_file.with(|tree| -> Result<Option<Hold>> {
            for range in ranges {
                plan_range(tree, location, format.sector_bytes, range, &mut planned)?;
            }
            let is_read = planned.iter().any(|part| matches!(part, Planned::Read(_)));
            let hold = is_read.then(|| self.filesystem.hold_running());
            if is_verified && is_read {
                checksums.read_between_edits(|tree| self.expect_checksums(tree, &mut planned))?;
            }
            Ok(hold)
        })?;
        Ok((planned, hold))
    }

    /// Records the expected checksums of the sectors to be read.
    fn expect_checksums(&self, checksums: &EditableTree, planned: &mut [Planned]) -> Result<()> {
        let base = self.filesystem.shared_base();
        let (kind, sector_bytes) = (
            base.checksum_type(),
            self.filesystem.forest().block_format().sector_bytes,
        );
        let mut items = LiveChecksums {
            tree: checksums,
            item: None,
            sum_bytes: kind.size_bytes(),
            sector_bytes: u64::from(sector_bytes),
        };
        for part in planned {
            if let Planned::Read(piece) = part {
                let read = piece.read();
                let expected =
                    ExpectedChecksums::look_up(&mut items, kind, sector_bytes, read.logical, read.length)?;
                piece.expect_these(expected);
            }
        }
        Ok(())
    }
}

/// Plans the reads of one range of a file.
fn plan_range(
    tree: &EditableTree,
    location: Location,
    sector_bytes: u32,
    range: &Range<u64>,
    planned: &mut Vec<Planned>,
) -> Result<()> {
    if range.is_empty() {
        return Ok(());
    }
    let wanted = FileExtent::key(location.inode, FileOffset::new(range.start));
    let is_extent = |key: &Key| key.objectid == wanted.objectid && key.item_type == ItemType::EXTENT_DATA;
    let mut builder = FileRangeBuilder::new(location, sector_bytes);
    let offsets = FileOffset::new(range.start)..FileOffset::new(range.end);
    let mut ended = Ok(());
    // The extent that covers the start of the read may begin before it.
    tree.scan_from_before(&wanted, |key, data| {
        if *key < wanted && !is_extent(key) {
            return ControlFlow::Continue(());
        }
        if !is_extent(key) || key.offset >= range.end {
            return ControlFlow::Break(());
        }
        match builder.range(key, data) {
            Ok(found) => {
                plan(location, sector_bytes, &found, &offsets, planned);
                ControlFlow::Continue(())
            }
            Err(error) => {
                ended = Err(error);
                ControlFlow::Break(())
            }
        }
    })?;
    ended
}

/// The checksum tree in its current version.
struct LiveChecksums<'a> {
    tree: &'a EditableTree,
    item: Option<OwnedItem>,
    sum_bytes: usize,
    sector_bytes: u64,
}

impl ChecksumItems for LiveChecksums<'_> {
    fn approach(&mut self, at: u64) -> Result<()> {
        if self.covered().is_some_and(|(start, end)| start <= at && at < end) {
            return Ok(());
        }
        let key = Key::new(ObjectId::EXTENT_CHECKSUM, ItemType::EXTENT_CSUM, at);
        self.item = self.tree.at_or_before(&key)?;
        if self.covered().is_none_or(|(_, end)| end <= at) {
            self.item = self.tree.at_or_after(&key)?;
        }
        Ok(())
    }

    fn covered(&self) -> Option<(u64, u64)> {
        let item = self.item.as_ref()?;
        let key = item.key();
        if key.objectid != ObjectId::EXTENT_CHECKSUM || key.item_type != ItemType::EXTENT_CSUM {
            return None;
        }
        let sectors = item.data().len().checked_div(self.sum_bytes).unwrap_or(0);
        let length = ByteCount::of(sectors).get().saturating_mul(self.sector_bytes);
        Some((key.offset, key.offset.saturating_add(length)))
    }

    fn sums(&self, range: Range<usize>) -> Option<&[u8]> {
        self.item.as_ref()?.data().get(range)
    }
}
