//! References to extents, and owners of space.

use super::Volume;
use crate::accounting::{Accounting, Options, Place};
use crate::error::Result;
use buttress_accounts::back_references::Sharing;
use buttress_accounts::{Accounts as _, DataReferences, Space};
use buttress_format::{Logical, SubvolumeId};
use buttress_fs::{ChangedInodes, Location, Progress, SubvolumeInfo};

impl Volume {
    /// Returns the space of the volume by type and profile, and by device.
    ///
    /// # Errors
    /// Fails if the chunk tree cannot be read.
    pub fn space(&self) -> Result<Space> {
        Ok(self.view().space()?)
    }

    /// Counts which owner uses which space, as of the last commit. The progress of an account
    /// counts leaves. Unreadable parts are listed in [`Accounting::failures`], and missing from all
    /// figures.
    ///
    /// ```
    /// # let volume = buttress::Volume::create().on_devices(vec![buttress::Device::memory(vec![0; 256 << 20])])?;
    /// use buttress::{Progress, accounting::Options};
    ///
    /// volume.root().create_subvolume("home")?.write("letter", vec![7; 100_000])?;
    /// volume.sync()?;
    /// let accounting = volume.account_space(&Options::default(), &Progress::new())?;
    /// assert!(accounting.failures().is_empty());
    /// # Ok::<(), buttress::Error>(())
    /// ```
    ///
    /// # Errors
    /// Fails if the job needs more memory than the options allow or is cancelled, the root tree
    /// cannot be read, or a subvolume of the options does not exist.
    pub fn account_space(&self, options: &Options, progress: &Progress) -> Result<Accounting> {
        Ok(self.view().account_space(options, progress)?)
    }

    /// Returns the place that a path names, for the requested parts of [`Options`]. With
    /// `one_file_system`, the place excludes subvolumes below it.
    ///
    /// # Errors
    /// Fails if a directory of the path cannot be read, or if the job is cancelled.
    pub fn place_of(
        &self,
        location: Location,
        all: &[SubvolumeInfo],
        one_file_system: bool,
        progress: &Progress,
    ) -> Result<Place> {
        Ok(self.view().place_of(location, all, one_file_system, progress)?)
    }

    /// Returns an object that finds out whether extents are shared, batch by batch.
    #[must_use]
    pub fn sharing(&self) -> Sharing {
        self.view().sharing()
    }

    /// Returns all files that refer to the data extent at an address. With `ignore_offset` every
    /// part of the extent counts, otherwise only the part at the given address.
    ///
    /// # Errors
    /// Fails if no extent covers the address, or the extent tree cannot be read. Unreadable owners
    /// are listed.
    pub fn data_references(&self, logical: Logical, ignore_offset: bool) -> Result<DataReferences> {
        Ok(self.view().data_references(logical, ignore_offset)?)
    }

    /// Returns the inodes that can differ between two subvolumes, and the directories above these
    /// inodes. Returns `None` if there are more than four million such inodes.
    ///
    /// # Errors
    /// Fails if a subvolume does not exist, or its tree cannot be read, or if the job is cancelled.
    pub fn changed_inodes(
        &self,
        old: SubvolumeId,
        new: SubvolumeId,
        progress: &Progress,
    ) -> Result<Option<ChangedInodes>> {
        Ok(self.view().changed_inodes(old, new, progress)?)
    }
}
