//! Small files that are made at once: name, attributes and content in one operation.
//!
//! What receives streams knows all of a small file before it has to make any of it. Made step by step such a file costs an
//! operation for its name, one for its content, which waits as dirty data in between, and one for its attributes.

use super::attributes::AttributeChanges;
use super::create::{NewInode, Plan, REGULAR};
use crate::transaction::WritableFilesystem;
use buttress_format::limits::inline_content_bytes_max;
use buttress_fs::error::Result;
use buttress_fs::location::Location;

/// What a new file has besides its name.
#[derive(Clone, Copy, Debug)]
pub(super) struct Whole<'a> {
    pub(super) attributes: &'a AttributeChanges,
    pub(super) content: &'a [u8],
}

impl WritableFilesystem {
    /// How much content [`create_whole`](Self::create_whole) takes: what would lie inside the tree as it is. Zero where the
    /// options for data ask for anything else.
    #[must_use]
    pub fn whole_file_bytes_max(&self) -> usize {
        let options = &self.data().options;
        if options.compression.is_some() || !options.flags_of_new_files().is_empty() {
            return 0;
        }
        let format = self.forest().block_format();
        let most = usize::try_from(options.max_inline.get()).unwrap_or(usize::MAX);
        let sector_bytes = usize::try_from(format.sector_bytes).unwrap_or(0);
        most.min(inline_content_bytes_max(format.node_bytes))
            .min(sector_bytes.saturating_sub(1))
    }

    /// Makes a regular file with these attributes and this content, of at most
    /// [`whole_file_bytes_max`](Self::whole_file_bytes_max) bytes.
    ///
    /// # Errors
    /// As [`WritableFilesystem::create`], [`WritableFilesystem::set_attributes`] and [`WritableFilesystem::write_at`].
    pub fn create_whole(
        &self,
        directory: Location,
        name: &[u8],
        new: &NewInode,
        attributes: &AttributeChanges,
        content: &[u8],
    ) -> Result<Location> {
        attributes.check()?;
        let attributes = &attributes.no_later_than(self.latest_time());
        if content.len() > self.whole_file_bytes_max() {
            let location = self.create_whole(directory, name, new, attributes, &[])?;
            self.write_at(location, buttress_format::FileOffset::MIN, content)?;
            self.set_attributes(location, attributes)?;
            return Ok(location);
        }
        let plan = Plan {
            whole: Some(Whole { attributes, content }),
            ..Plan::of_type(REGULAR)
        };
        let location = self.make(directory, name, new, plan)?;
        self.count_content(content.len());
        Ok(location)
    }
}
