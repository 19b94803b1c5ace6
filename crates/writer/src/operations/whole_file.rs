//! Small files made at once, with name, attributes and content. The module also makes directories,
//! nodes and symlinks with their attributes.
//!
//! A receiver of a stream knows everything about a small file before it makes the file. Separate
//! calls would need one operation for the file's name, one dirty write for each piece, and one
//! operation for its attributes. This module makes a whole file in one operation. Content of the
//! new file that is not stored inline becomes dirty data without a copy.

use super::attributes::AttributeChanges;
use super::create::{Plan, REGULAR, Whole};
use super::{NewInode, NewKind};
use crate::WritableFilesystem;
use buttress_engine::reservation::Need;
use buttress_exact::{Exact as _, u64_of};
use buttress_format::ByteCount;
use buttress_format::limits::inline_content_bytes_max;
use buttress_fs::error::{Error, Result};
use buttress_fs::location::Location;

impl WritableFilesystem {
    /// Makes an inode with these attributes.
    ///
    /// # Errors
    /// Fails as [`WritableFilesystem::make_directory`], [`WritableFilesystem::make_node`],
    /// [`WritableFilesystem::make_symlink`], and [`WritableFilesystem::set_attributes`] do.
    pub fn make_with(
        &self,
        directory: Location,
        name: &[u8],
        new: &NewInode,
        kind: NewKind<'_>,
        attributes: &AttributeChanges,
    ) -> Result<Location> {
        attributes.check()?;
        let attributes = &attributes.no_later_than(self.latest_time());
        let (new, plan) = self.plan_of(new, kind)?;
        let whole = Some(Whole {
            attributes,
            content: &[],
            has_content: false,
        });
        Ok(self
            .make_planned(directory, name, &new, Plan { whole, ..plan }, &|_| ())?
            .0)
    }

    /// Records changed names in directories of one unfinished subvolume: their times become the
    /// current time.
    ///
    /// # Errors
    /// Fails with [`Error::InodeNotFound`], [`Error::NoSpace`]. Fails with
    /// [`Error::SubvolumeNotFound`] for a finished subvolume.
    pub fn touch_directories(&self, directories: &[Location]) -> Result<()> {
        let count = u64_of(directories.len());
        self.operate(Need::places(count), |operation| {
            for directory in directories {
                operation.require_unfinished(directory.subvolume)?;
                operation.require_directory(*directory)?;
            }
            for directory in directories {
                operation.touch_directory(*directory, 1, |size| size)?;
            }
            Ok(())
        })
    }

    /// Returns the most bytes of a file's content that is stored inline unchanged; zero if the data
    /// options exclude inline content.
    pub(super) fn whole_file_bytes_max(&self) -> usize {
        let options = &self.data().options;
        if options.compression.is_some() || !options.flags_of_new_files().is_empty() {
            return 0;
        }
        let format = self.forest().block_format();
        let most = options.max_inline.get().narrow::<usize>();
        let sector_bytes = format.sector_bytes.narrow::<usize>();
        most.min(inline_content_bytes_max(format.node_bytes))
            .min(sector_bytes.saturating_sub(1))
    }

    /// Makes a regular file with these attributes and this content. The call takes the bytes of the
    /// content and leaves the vector empty. After an error, the vector of the content is unchanged
    /// and no file exists.
    ///
    /// # Errors
    /// Fails as [`WritableFilesystem::create`], [`WritableFilesystem::set_attributes`] and
    /// [`WritableFilesystem::write_at`] do.
    pub fn create_whole(
        &self,
        directory: Location,
        name: &[u8],
        new: &NewInode,
        attributes: &AttributeChanges,
        content: &mut Vec<u8>,
    ) -> Result<Location> {
        attributes.check()?;
        let attributes = &attributes.no_later_than(self.latest_time());
        let is_inline = content.len() <= self.whole_file_bytes_max();
        let plan = Plan {
            whole: Some(Whole {
                attributes,
                content: if is_inline { content } else { &[] },
                has_content: !content.is_empty(),
            }),
            ..Plan::of_type(REGULAR)
        };
        if is_inline {
            let (location, _) = self.make_planned(directory, name, new, plan, &|_| ())?;
            self.count_content(content.len());
            content.clear();
            return Ok(location);
        }
        // All steps that may fail for lack of space come before the creation of the file.
        self.writeback().write_excess()?;
        let sectors = ByteCount::of(content.len())
            .checked_align_up(u64::from(self.forest().block_format().sector_bytes))
            .ok_or(Error::Invalid {
                what: "content of more than 2^64 bytes",
            })?;
        let limits = self.quota_limits();
        let tree = directory.subvolume.tree();
        let charged = self
            .quotas()
            .charge_new_content(directory.subvolume, sectors.get())?;
        self.reserve_beside(sectors.get())
            .inspect_err(|_| limits.uncharge(tree, charged))?;
        match self.make_planned(directory, name, new, plan, &|_| ()) {
            Ok((location, _)) => {
                self.take_first_content(location, core::mem::take(content), sectors.get(), charged)?;
                Ok(location)
            }
            Err(error) => {
                self.release_beside(sectors.get());
                limits.uncharge(tree, charged);
                Err(error)
            }
        }
    }
}
