//! Stored content of new files: compressed extents of many files, with one allocation and few
//! writes.
//!
//! The call writes the extents before the files exist. The operation that makes the files inserts
//! their items beside the files' own items ([`create_many`](crate::WritableFilesystem::create_many)). If
//! the operation fails, the space is freed.

use super::allocation::writes_of;
use super::compressing::{NewExtent, PartOfExtent};
use super::encoded::{EncodedExtent, Fit};
use super::insertion::Placed;
use super::small_files::joined;
use super::sums::Sums;
use super::write_back::{EXTENT_ITEMS, require_feature};
use crate::areas::EncodedWrites;
use crate::operations::Operation;
use buttress_engine::data_extents::DataOwner;
use buttress_exact::{Exact as _, u64_of};
use buttress_format::{
    ByteCount, Compression, ExtentSlice, FileExtent, FileExtentBody, FileOffset, Incompat, InodeFlags,
    InodeItem, Key,
};
use buttress_fs::error::defect::add;
use buttress_fs::error::{Defect, Result};
use buttress_fs::location::Location;

/// The content of one file.
#[derive(Debug)]
struct File {
    size: u64,
    /// The indexes of the file's extents among all written extents.
    extents: core::ops::Range<usize>,
    /// Inline content, if the file has no extents.
    inline: Option<EncodedExtent>,
}

/// Content of files that was written and that no tree refers to yet.
#[derive(Debug, Default)]
pub(crate) struct WrittenFiles {
    files: Vec<File>,
    placed: Vec<Placed>,
    sums: Vec<Sums>,
    pub(crate) reserved: u64,
}

impl EncodedWrites<'_> {
    /// Writes the stored content of files that are made afterwards: for each file a list of
    /// extents, in order. Returns `None`, and writes nothing, if an extent cannot be stored
    /// unchanged.
    ///
    /// # Errors
    /// Fails with [`Error::NoSpace`](buttress_fs::error::Error::NoSpace), or with an error of a
    /// device.
    pub(crate) fn write_new_files(&self, contents: &[&[EncodedExtent]]) -> Result<Option<WrittenFiles>> {
        let mut written = WrittenFiles::default();
        let mut extents = Vec::new();
        let flags = self.filesystem.data().options.flags_of_new_files();
        for content in contents {
            let Some(file) = self.plan_file(flags, content, &mut extents)? else {
                return Ok(None);
            };
            written.files.push(file);
        }
        if extents.is_empty() {
            return Ok(Some(written));
        }
        let stored = extents
            .iter()
            .map(NewExtent::stored_bytes)
            .fold(0, u64::saturating_add);
        self.filesystem.writeback().write_excess()?;
        self.filesystem.reserve_beside(stored)?;
        written.reserved = stored;
        match self.place_and_write(&extents, &mut written) {
            Ok(true) => Ok(Some(written)),
            Ok(false) => {
                self.give_up_new_files(written);
                Ok(None)
            }
            Err(error) => {
                self.give_up_new_files(written);
                Err(error)
            }
        }
    }

    fn place_and_write(&self, extents: &[NewExtent], written: &mut WrittenFiles) -> Result<bool> {
        written.placed = self.filesystem.writeback().place_extents(extents)?;
        let is_whole = |(placed, extent): (&Placed, &NewExtent)| {
            placed.extent.length == extent.length && placed.extent.compression == extent.compression
        };
        if written.placed.len() != extents.len() || !written.placed.iter().zip(extents).all(is_whole) {
            return Ok(false);
        }
        written.sums = self
            .filesystem
            .writeback()
            .write_extents_out(&joined(writes_of(&written.placed)), true)?;
        Ok(true)
    }

    /// Plans how a file's extents are stored. Adds the extents that need device space to `all`.
    fn plan_file(
        &self,
        flags: InodeFlags,
        content: &[EncodedExtent],
        all: &mut Vec<NewExtent>,
    ) -> Result<Option<File>> {
        let size = content.last().map_or(0, EncodedExtent::end);
        let first = all.len();
        let mut previous_end = 0;
        for extent in content {
            match self.fit(flags, extent, 0, extent.end() == size) {
                Fit::Extent if extent.offset.get() >= previous_end => {
                    all.push(self.new_extent(extent)?);
                }
                Fit::Inline if content.len() == 1 => {
                    return Ok(Some(File {
                        size,
                        extents: first..first,
                        inline: Some(extent.clone()),
                    }));
                }
                Fit::Extent | Fit::Inline | Fit::No => return Ok(None),
            }
            previous_end = extent.end();
        }
        Ok(Some(File {
            size,
            extents: first..all.len(),
            inline: None,
        }))
    }

    /// Frees the space of new content that no tree refers to.
    pub(crate) fn give_up_new_files(&self, written: WrittenFiles) {
        self.filesystem.writeback().give_back_extents(written.placed);
        self.filesystem.release_beside(written.reserved);
    }

    /// Ends the reservation of new content, once the trees refer to the content.
    pub(crate) fn end_new_files(&self, written: &WrittenFiles) {
        let bytes = written
            .files
            .iter()
            .fold(0, |sum, file| file.size.saturating_add(sum));
        self.filesystem.count_content(bytes.narrow::<usize>());
        self.filesystem.release_beside(written.reserved);
    }
}

impl WrittenFiles {
    /// Returns the number of items of all files' content.
    pub(crate) fn items(&self) -> u64 {
        let extents = u64_of(self.placed.len());
        extents.saturating_mul(EXTENT_ITEMS)
    }

    fn extents_of(&self, file: &File) -> Result<&[Placed], Defect> {
        self.placed.get(file.extents.clone()).ok_or_else(|| {
            Defect::new("extents of a new file that were not written")
                .with("first", ByteCount::of(file.extents.start).get())
                .with("written", ByteCount::of(self.placed.len()).get())
        })
    }

    /// Loads the paths to the extents' checksums in the checksum tree.
    pub(crate) fn reach(&self, operation: &mut Operation<'_>) -> Result<()> {
        for sums in &self.sums {
            operation.reach_checksums(sums.logical)?;
        }
        Ok(())
    }

    /// If the inode belongs to one of these files, sets the size and the bytes in its new item.
    pub(crate) fn count(&self, number: usize, item: &mut InodeItem) -> Result<(), Defect> {
        let Some(file) = self.files.get(number).filter(|file| file.size > 0) else {
            return Ok(());
        };
        let mut bytes = match file.inline {
            Some(_) => file.size,
            None => 0,
        };
        for placed in self.extents_of(file)? {
            add(&mut bytes, placed.extent.length, "the bytes of a new file")?;
        }
        item.size = ByteCount::new(file.size);
        item.nbytes = ByteCount::new(bytes);
        item.sequence = 1;
        Ok(())
    }

    /// Inserts the extent items of a file, and adds references to its extents.
    pub(crate) fn add_items(
        &self,
        number: usize,
        location: Location,
        operation: &mut Operation<'_>,
        items: &mut Vec<(Key, Vec<u8>)>,
    ) -> Result<()> {
        let file = self
            .files
            .get(number)
            .ok_or_else(|| Defect::new("content of a file that was not written"))?;
        let generation = operation.generation();
        let mut add = |start: u64, ram_bytes: u64, compression, body: FileExtentBody<'_>| {
            let extent = FileExtent {
                generation,
                ram_bytes: ByteCount::new(ram_bytes),
                compression,
                other_encoding: 0,
                body,
            };
            let key = FileExtent::key(location.inode, FileOffset::new(start));
            items.push((key, extent.encode()));
        };
        if let Some(inline) = &file.inline {
            require_feature(operation, inline.compression);
            add(
                0,
                inline.length.get(),
                inline.compression,
                FileExtentBody::Inline(&inline.stored),
            );
        }
        let mut at = 0;
        let has_hole_items = !operation.has(Incompat::NO_HOLES);
        for placed in self.extents_of(file)? {
            let extent = &placed.extent;
            require_feature(operation, extent.compression);
            let part = extent.part.unwrap_or(PartOfExtent {
                ram_bytes: extent.length,
                offset: 0,
            });
            if has_hole_items && at < extent.start {
                let hole = super::stored::hole(&(at..extent.start), generation);
                add(at, hole.ram_bytes.get(), Compression::None, hole.body);
            }
            at = extent.start.saturating_add(extent.length);
            let slice = ExtentSlice {
                disk: placed.range.logical,
                disk_bytes: placed.range.length,
                offset: ByteCount::new(part.offset),
                num_bytes: ByteCount::new(extent.length),
            };
            add(
                extent.start,
                part.ram_bytes,
                extent.compression,
                FileExtentBody::Regular(slice),
            );
            let owner = DataOwner {
                root: location.subvolume.tree(),
                inode: location.inode,
                offset: extent.start.wrapping_sub(part.offset),
            };
            operation.edit().core.create_data_extent(placed.range, owner);
        }
        Ok(())
    }

    /// Inserts the checksums of all files.
    pub(crate) fn insert_sums(&self, operation: &mut Operation<'_>) -> Result<()> {
        for sums in &self.sums {
            operation
                .edit()
                .checksum_tree()
                .insert(sums.logical, &sums.sums)?;
        }
        Ok(())
    }
}
