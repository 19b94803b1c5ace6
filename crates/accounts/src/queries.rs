//! What the accounts answer about a volume and about a file, as methods of [`Filesystem`] and [`File`].
//!
//! The work is done in the modules that the answers come from; these traits are how callers reach it.

use crate::back_references::{self, DataReferences, Extent, References, Sharing};
use crate::fiemap::{self, DataRuns, Fiemap};
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

/// Who refers to what on a volume, and who owns its space.
pub trait Accounts {
    /// Everything in files that uses the byte at `logical`, in all subvolumes and snapshots; with
    /// `ignore_offset` everything that uses any part of the extent that it lies in.
    ///
    /// # Errors
    /// [`Error::ExtentNotFound`] when nothing covers the address or what does is a tree block;
    /// [`Corruption::BackReferencesTooMany`](buttress_fs::error::Corruption::BackReferencesTooMany); or that the
    /// extent tree cannot be read.
    fn data_references(&self, logical: Logical, ignore_offset: bool) -> Result<DataReferences>;

    /// The trees that the tree block at `logical` can be reached from, in order, and what could not be read on the way.
    ///
    /// # Errors
    /// [`Error::ExtentNotFound`],
    /// [`Corruption::BackReferencesTooMany`](buttress_fs::error::Corruption::BackReferencesTooMany), or that the
    /// extent tree cannot be read.
    fn trees_of_block(&self, logical: Logical) -> Result<(Vec<TreeId>, Vec<Error>)>;

    /// The extent that covers `logical`.
    ///
    /// # Errors
    /// [`Error::ExtentNotFound`], or that the extent tree cannot be read.
    fn extent_at(&self, logical: Logical) -> Result<Extent>;

    /// All references to an extent.
    ///
    /// # Errors
    /// That there is no extent tree. Errors on the way are items of the iterator.
    fn extent_references(&self, extent: &Extent) -> Result<References>;

    /// Answers whether extents are shared, for one batch after another.
    #[must_use]
    fn sharing(&self) -> Sharing;

    /// Where the space went.
    ///
    /// # Errors
    /// That the tree with the block groups is missing. Single ones that cannot be read are listed.
    fn space(&self) -> Result<Space>;

    /// Counts who owns what, as of the last commit.
    ///
    /// `progress` counts leaves. What cannot be read is listed in [`Accounting::failures`]; what lies below it is
    /// missing from all figures.
    ///
    /// # Errors
    /// [`Error::AccountingTooBig`], [`Error::Cancelled`], [`Error::SubvolumeNotFound`] for parts of a subvolume that
    /// is not there, or that the root tree cannot be read.
    fn account_space(&self, options: &Options, progress: &Progress) -> Result<Accounting>;

    /// What a path covers; with `one_file_system`, without the subvolumes below it.
    ///
    /// # Errors
    /// As [`Parts::below`](crate::space::accounting::Parts::below).
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

/// Where the content of a file lies.
pub trait Maps {
    /// The extents that overlap `range`, with their sharedness. Offsets are rounded to sectors.
    ///
    /// # Errors
    /// That the tree cannot be read. Errors on the way come from the iterator.
    fn fiemap(&self, range: Range<FileOffset>) -> Result<Fiemap>;

    /// The runs of data from `start` on.
    ///
    /// # Errors
    /// That the tree cannot be read. Errors on the way come from the iterator.
    fn data_runs(&self, start: FileOffset) -> Result<DataRuns>;

    /// The first offset from `start` on that has data, as `SEEK_DATA` finds it; `None` where that fails with `ENXIO`:
    /// at the file's end, and behind the last data.
    ///
    /// # Errors
    /// That the tree cannot be read.
    fn seek_data(&self, start: FileOffset) -> Result<Option<FileOffset>> {
        self.data_runs(start)?.first_data()
    }

    /// The first offset from `start` on without data, as `SEEK_HOLE` finds it: the file's size where all is data. `None`
    /// where that fails with `ENXIO`: at the file's end and behind it.
    ///
    /// # Errors
    /// That the tree cannot be read.
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
