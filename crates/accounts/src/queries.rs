//! The queries of this crate about a volume and a file, as methods of [`Filesystem`] and [`File`].
//!
//! Other modules do the work; these traits make it callable.

use crate::back_references::{self, DataReferences, Extent, References, Sharing};
use crate::fiemap::{self, DataRuns, Fiemap};
use crate::quotas::QuotaGroups;
use crate::space::accounting::places::{self, Place};
use crate::space::accounting::{self, Accounting, Options};
use crate::space::{self, Space};
use buttress_format::{FileOffset, Logical, TreeId};
use buttress_fs::error::{Error, Result};
use buttress_fs::file::File;
use buttress_fs::filesystem::Filesystem;
use buttress_fs::location::Location;
use buttress_fs::progress::Progress;
use buttress_fs::subvolume::SubvolumeInfo;
use core::ops::Range;

/// Queries about references to extents, and about owners of space.
pub trait Accounts {
    /// Returns all places in files that use the byte at `logical`, in all subvolumes and snapshots.
    /// With `ignore_offset`, returns all places that use any part of the address's extent.
    ///
    /// # Errors
    /// Fails with [`Error::ExtentNotFound`] if no extent covers the address, or a tree block does,
    /// or with
    /// [`Corruption::BackReferencesTooMany`](buttress_fs::error::Corruption::BackReferencesTooMany),
    /// or with an error of reading the extent tree.
    fn data_references(&self, logical: Logical, ignore_offset: bool) -> Result<DataReferences>;

    /// Returns the trees from which the tree block at `logical` can be reached, in order, and
    /// errors of unreadable references.
    ///
    /// # Errors
    /// Fails with [`Error::ExtentNotFound`],
    /// [`Corruption::BackReferencesTooMany`](buttress_fs::error::Corruption::BackReferencesTooMany),
    /// or with an error of reading the extent tree.
    fn trees_of_block(&self, logical: Logical) -> Result<(Vec<TreeId>, Vec<Error>)>;

    /// Returns the extent that covers `logical`.
    ///
    /// # Errors
    /// Fails with [`Error::ExtentNotFound`], or with an error of reading the extent tree.
    fn extent_at(&self, logical: Logical) -> Result<Extent>;

    /// Returns all references to an extent.
    ///
    /// # Errors
    /// Fails if the volume has no extent tree. Later errors are items of the returned iterator.
    fn extent_references(&self, extent: &Extent) -> Result<References>;

    /// Returns an object that finds out whether extents are shared, one batch after another.
    #[must_use]
    fn sharing(&self) -> Sharing;

    /// Returns the space of the volume by type and profile, and by device.
    ///
    /// # Errors
    /// Fails if the tree with the block groups is missing. Single unreadable block groups are
    /// listed.
    fn space(&self) -> Result<Space>;

    /// Counts which owner uses which space, as of the last commit.
    ///
    /// `progress` counts leaves. The result lists unreadable parts of the trees in
    /// [`Accounting::failures`]. Tree blocks below unreadable parts are missing from all figures.
    ///
    /// # Errors
    /// Fails with [`Error::AccountingTooBig`], [`Error::Cancelled`], [`Error::SubvolumeNotFound`]
    /// for parts of a missing subvolume, or with an error of reading the root tree.
    fn account_space(&self, options: &Options, progress: &Progress) -> Result<Accounting>;

    /// Returns the quota groups of the volume, or `None` if quotas are off.
    ///
    /// # Errors
    /// Fails if the quota tree cannot be read, or an item cannot be parsed.
    fn quota_groups(&self) -> Result<Option<QuotaGroups>>;

    /// Returns the place (subvolume and directory) to which a path leads. With `one_file_system`,
    /// the place excludes the subvolumes below it.
    ///
    /// # Errors
    /// Fails as [`Parts::below`](crate::space::accounting::Parts::below) does.
    fn place_of(
        &self,
        location: Location,
        all: &[SubvolumeInfo],
        one_file_system: bool,
        progress: &Progress,
    ) -> Result<Place>;
}

impl Accounts for Filesystem {
    fn data_references(&self, logical: Logical, ignore_offset: bool) -> Result<DataReferences> {
        back_references::data_references(self, logical, ignore_offset)
    }

    fn trees_of_block(&self, logical: Logical) -> Result<(Vec<TreeId>, Vec<Error>)> {
        back_references::trees_of_block(self, logical)
    }

    fn extent_at(&self, logical: Logical) -> Result<Extent> {
        back_references::extent::extent_at(self, logical)
    }

    fn extent_references(&self, extent: &Extent) -> Result<References> {
        back_references::extent::extent_references(self, extent)
    }

    fn sharing(&self) -> Sharing {
        back_references::sharing::sharing(self)
    }

    fn space(&self) -> Result<Space> {
        space::space(self)
    }

    fn quota_groups(&self) -> Result<Option<QuotaGroups>> {
        QuotaGroups::read(self)
    }

    fn account_space(&self, options: &Options, progress: &Progress) -> Result<Accounting> {
        accounting::account_space(self, options, progress)
    }

    fn place_of(
        &self,
        location: Location,
        all: &[SubvolumeInfo],
        one_file_system: bool,
        progress: &Progress,
    ) -> Result<Place> {
        places::place_of(self, location, all, one_file_system, progress)
    }
}

/// Queries about the extents of a file.
pub trait Maps {
    /// Returns the extents that overlap `range`, with their sharedness. The query rounds offsets to
    /// sectors.
    ///
    /// # Errors
    /// Fails if the tree cannot be read. The iterator returns later errors.
    fn fiemap(&self, range: Range<FileOffset>) -> Result<Fiemap>;

    /// Returns the runs of data from `start` on.
    ///
    /// # Errors
    /// Fails if the tree cannot be read. Later errors come from the iterator.
    fn data_runs(&self, start: FileOffset) -> Result<DataRuns>;

    /// Returns the first offset from `start` on that has data, as `SEEK_DATA` finds it. Returns
    /// `None` where `SEEK_DATA` fails with `ENXIO`: at the file's end, and after the last data.
    ///
    /// # Errors
    /// Fails if the tree cannot be read.
    fn seek_data(&self, start: FileOffset) -> Result<Option<FileOffset>> {
        self.data_runs(start)?.first_data()
    }

    /// Returns the first offset from `start` on without data, as `SEEK_HOLE` finds it; the file's
    /// size if there is no hole. Returns `None` where that fails with `ENXIO`: at and after the
    /// file's end.
    ///
    /// # Errors
    /// Fails if the tree cannot be read.
    fn seek_hole(&self, start: FileOffset) -> Result<Option<FileOffset>> {
        self.data_runs(start)?.first_hole()
    }
}

impl Maps for File {
    fn fiemap(&self, range: Range<FileOffset>) -> Result<Fiemap> {
        fiemap::of_file(self, range)
    }

    fn data_runs(&self, start: FileOffset) -> Result<DataRuns> {
        let map = self.fiemap(start..FileOffset::new(u64::MAX))?;
        Ok(DataRuns::new(map, start, FileOffset::new(self.size().get())))
    }
}
