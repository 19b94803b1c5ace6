//! Extents of file data: their space, their references, and the space promised before they exist.
//!
//! The write-back, not the write itself, allocates space for data. Until the write-back the bytes
//! are *reserved*, so a full volume fails the write and not the commit. An allocated extent has no
//! owner until an edit adds a reference. If an extent is given back before that edit, the
//! allocation leaves no trace.

use super::backing::Backing;
use super::block_groups::{Found, Purpose, Share};
use super::reservation::Need;
use crate::core_state::Core;
use crate::running_parts::DataSpace;
use buttress_accounts::delayed_references::{Created, ExtentKind, Reference};
use buttress_format::{ByteCount, Incompat, InodeNumber, Logical, TreeId};
use buttress_fs::error::defect::{add, take};
use buttress_fs::error::{Corruption, Error, Result};

/// A range of logical addresses of data: `[logical, logical + length)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataRange {
    /// The first address of the extent.
    pub logical: Logical,
    /// The length of the extent on disk, in bytes.
    pub length: ByteCount,
}

/// The owner of references to a data extent: file extent items of one file at one offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataOwner {
    /// The tree of the file.
    pub root: TreeId,
    /// The inode number of the file.
    pub inode: InodeNumber,
    /// The item's file offset minus its offset in the extent; wraps below zero.
    pub offset: u64,
}

impl DataOwner {
    const fn reference(self) -> Reference {
        Reference::Data {
            root: self.root,
            inode: self.inode,
            offset: self.offset,
        }
    }
}

impl DataSpace<'_> {
    /// Reserves space for data that will be written back later. Makes chunks while the volume has
    /// too little space for the data.
    pub fn reserve(&mut self, bytes: u64) -> Result<()> {
        let mut wanted = self.running.core.reserved_data_bytes;
        add(&mut wanted, bytes, "bytes promised to data")?;
        while self.free_bytes() < wanted {
            if self.running.core.give_up_reserved_ahead() {
                wanted = self.running.core.reserved_data_bytes;
                add(&mut wanted, bytes, "bytes promised to data")?;
                continue;
            }
            let lacking = wanted.saturating_sub(self.free_bytes());
            if !self.add(lacking)? {
                return Err(self.no_space(ByteCount::new(bytes)));
            }
        }
        self.running.core.reserved_data_bytes = wanted;
        let backed = self.back_items();
        if !matches!(backed, Ok(true)) {
            self.release(bytes);
            backed?;
            return Err(self.no_host_space(ByteCount::new(bytes)));
        }
        Ok(())
    }

    /// Returns the free bytes of block groups that data may use. In mixed block groups these
    /// exclude the promises to metadata.
    pub fn free_bytes(&self) -> u64 {
        let room = self.running.core.groups.room(Purpose::Data);
        if self.running.core.has(Incompat::MIXED_GROUPS) {
            let promised = self.running.block_reserve().metadata_bytes(Need::places(8));
            return room.free_bytes.saturating_sub(promised);
        }
        room.free_bytes
    }

    /// Reserves space on the host for the items of all dirty data, and for the reserve. Without
    /// this reservation on the host, edits that free space could fail once data has filled the
    /// host. Returns false if the host's file system is full.
    fn back_items(&mut self) -> Result<bool> {
        if !self.running.core.groups.iter().any(|group| group.is_backed) {
            return Ok(true);
        }
        loop {
            let wanted = self.running.block_reserve().backed_bytes(Need::places(0));
            let free = self.running.core.groups.room(Purpose::Metadata).free_bytes;
            let Some(lacking) = wanted.checked_sub(free).filter(|lacking| *lacking > 0) else {
                return Ok(true);
            };
            match self.running.host_space().back_more(Purpose::Metadata, lacking)? {
                Backing::More => {}
                Backing::AllBacked => return Ok(true),
                Backing::HostFull => return Ok(false),
            }
        }
    }

    fn no_host_space(&self, wanted: ByteCount) -> Error {
        self.running
            .core
            .host_failure()
            .unwrap_or_else(|| self.no_space(wanted))
    }

    /// Reserves space on the host for more of the free bytes of data groups, or makes a chunk.
    /// Returns false if the volume can neither reserve host space nor make a chunk.
    pub(crate) fn add(&mut self, lacking: u64) -> Result<bool> {
        match self.running.host_space().back_more(Purpose::Data, lacking)? {
            Backing::More => Ok(true),
            Backing::AllBacked => self.running.chunks().allocate(Purpose::Data),
            Backing::HostFull => Ok(false),
        }
    }

    /// Returns the error for a write of this length that finds no space.
    pub fn no_space(&self, wanted: ByteCount) -> Error {
        if let Some(error) = self
            .running
            .core
            .host_failure()
            .filter(|_| self.running.core.has(Incompat::MIXED_GROUPS))
        {
            return error;
        }
        Error::NoSpace {
            what: "data",
            wanted,
            pinned_by_readers: self.running.core.pinned_by_readers(),
            reclaimable: self.running.core.groups.reclaimable(Purpose::Data),
        }
    }

    /// Releases a reservation: the data was written back or discarded.
    pub fn release(&mut self, bytes: u64) {
        let what = "more is given back of what was promised to data than was promised";
        let released = take(&mut self.running.core.reserved_data_bytes, bytes, what);
        self.running.core.settle(released.map_err(Error::from));
    }

    /// Allocates up to `wanted` bytes of data in one piece, or fewer if no free range is that long.
    /// Lengths are multiples of the sector size.
    pub fn allocate(&mut self, wanted: ByteCount) -> Result<DataRange> {
        let sector_bytes = self.running.core.sector_bytes();
        // Try all bytes in one piece first, also in a new chunk; then a large piece; then any
        // piece.
        let wanted_bytes = wanted.get();
        let mut least = wanted_bytes;
        loop {
            match self
                .running
                .core
                .groups
                .allocate(Purpose::Data, wanted_bytes, least, sector_bytes)?
            {
                Found::Range(start, length) => {
                    return Ok(DataRange {
                        logical: Logical::new(start),
                        length: ByteCount::new(length),
                    });
                }
                Found::Load(group) => self.running.load_group(group)?,
                Found::Nothing if self.add(wanted_bytes)? => {}
                Found::Nothing if least > sector_bytes => {
                    least = (least >> 4).next_multiple_of(sector_bytes).max(sector_bytes);
                }
                Found::Nothing => return Err(self.no_space(wanted)),
            }
        }
    }

    /// Allocates exactly this range.
    pub fn take(&mut self, range: DataRange) -> Result<()> {
        let (start, length) = (range.logical.get(), range.length.get());
        let in_use = || Corruption::LoggedRangeInUse {
            logical: range.logical,
            length: range.length,
        };
        let group = self.running.core.groups.holding(start);
        let group =
            group.filter(|group| group.serves(Purpose::Data) && start.saturating_add(length) <= group.end());
        let (first, is_loaded) = group
            .map(|group| (group.start, group.free.is_some()))
            .ok_or_else(in_use)?;
        if !is_loaded {
            self.running.load_group(first)?;
        }
        let group = self.running.core.groups.holding(first);
        let is_free = group.is_some_and(|group| group.is_free(start, length));
        if !is_free {
            return Err(in_use().into());
        }
        self.running
            .core
            .groups
            .shift(start, length, Share::Free, Share::Allocated)
    }

    /// Frees an allocated range that has no reference yet.
    pub fn give_back(&mut self, range: DataRange) {
        let given = self
            .running
            .core
            .groups
            .give_back(range.logical.get(), range.length.get());
        self.running.core.settle(given);
    }
}

impl Core {
    /// Returns whether the extent tree has an extent, or will have it once delayed references are
    /// applied.
    pub fn has_data_extent(&self, extent: DataRange) -> Result<bool> {
        match self.data_references(extent) {
            Ok(_) => Ok(true),
            Err(Error::Corrupt(corruption)) if matches!(*corruption, Corruption::ExtentMissing { .. }) => {
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    /// Makes an extent with one reference of an allocated range.
    pub fn create_data_extent(&mut self, range: DataRange, owner: DataOwner) {
        self.references.create(
            range.logical,
            range.length,
            ExtentKind::Data,
            Created {
                owner: owner.root,
                first_key: None,
            },
            owner.reference(),
        );
    }

    /// Adds one reference of a file extent item to an extent.
    pub fn add_data_reference(&mut self, extent: DataRange, owner: DataOwner) {
        self.references.change(
            extent.logical,
            extent.length,
            ExtentKind::Data,
            owner.reference(),
            1,
        );
    }

    /// Drops one reference of a file extent item to an extent. After the extent's last reference is
    /// dropped, the commit frees the extent and its checksums.
    pub fn drop_data_reference(&mut self, extent: DataRange, owner: DataOwner) {
        self.references.change(
            extent.logical,
            extent.length,
            ExtentKind::Data,
            owner.reference(),
            -1,
        );
    }

    /// Returns the number of references of a data extent. The bytes of an extent with several
    /// references must not be overwritten.
    pub fn data_references(&self, extent: DataRange) -> Result<u64> {
        Ok(self
            .extent_state(extent.logical, ExtentKind::Data, extent.length)?
            .references)
    }
}
