//! Regular files: their size, their map, and reads at any offset.
//!
//! [`File::read_at`] reads like `pread(2)`. [`File::reader`] is faster for sequential reads: it
//! reads ahead, uses all cores and distinguishes holes.

use crate::checksums::ChecksumReader;
use crate::content::{Chunk, Content, Planned, covers, inflate_inline, plan};
use crate::error::{Error, Result};
use crate::extents::{FileExtents, FileRange};
use crate::filesystem::Filesystem;
use crate::inode::{InodeRecord, Metadata};
use crate::location::Location;
use crate::reader::FileReader;
use buttress_exact::{Defect, Exact as _, copy_into, defect};
use buttress_format::{ByteCount, FileKind, FileOffset, InodeFlags};
use buttress_tree::Tree;
use std::ops::Range;
use std::sync::Arc;

/// The number of bytes that one read at an offset has in flight at once.
pub const READ_AT_BATCH: u64 = 4 << 20;

/// A regular file that is open for reading. Cloning an open file is cheap.
#[derive(Clone, Debug)]
pub struct File {
    filesystem: Filesystem,
    tree: Tree,
    metadata: Arc<Metadata>,
    /// The file's ranges, if an earlier pass over its items has found them.
    known: Option<Arc<Vec<FileRange>>>,
    verified: bool,
}

impl Filesystem {
    /// Opens a regular file.
    ///
    /// # Errors
    /// Returns [`Error::IsADirectory`] or [`Error::NotAFile`]. Also fails if the inode cannot be
    /// read.
    pub fn open_file(&self, location: Location) -> Result<File> {
        let metadata = self.metadata(location)?;
        match metadata.kind {
            FileKind::Regular => self.file_of(metadata),
            FileKind::Directory => Err(Error::IsADirectory { location }),
            _ => Err(Error::NotAFile { location }),
        }
    }

    /// Returns the content of an inode of any kind; symlinks have content too.
    pub fn file_of(&self, metadata: Metadata) -> Result<File> {
        let tree = self.subvolume_tree(metadata.location.subvolume)?;
        Ok(File::new(self, tree, metadata, None))
    }

    /// Opens a regular file whose record was already read.
    ///
    /// # Errors
    /// Returns [`Error::IsADirectory`] or [`Error::NotAFile`]. Also fails if the subvolume cannot
    /// be found.
    pub fn open_record(&self, record: &InodeRecord) -> Result<File> {
        let metadata = record.metadata.clone();
        match metadata.kind {
            FileKind::Regular => {
                let tree = self.subvolume_tree(metadata.location.subvolume)?;
                Ok(File::new(self, tree, metadata, record.extents.clone()))
            }
            FileKind::Directory => Err(Error::IsADirectory {
                location: metadata.location,
            }),
            _ => Err(Error::NotAFile {
                location: metadata.location,
            }),
        }
    }
}

impl Filesystem {
    /// Opens a regular file, or a symlink with its target as content, from metadata that was
    /// already read. `ranges` may hold all ranges of the file.
    ///
    /// # Errors
    /// Fails if the subvolume cannot be found.
    pub fn open_known(&self, metadata: Metadata, ranges: Option<Vec<FileRange>>) -> Result<File> {
        let tree = self.subvolume_tree(metadata.location.subvolume)?;
        Ok(File::new(self, tree, metadata, ranges))
    }
}

impl File {
    fn new(filesystem: &Filesystem, tree: Tree, metadata: Metadata, known: Option<Vec<FileRange>>) -> Self {
        let verified =
            !metadata.flags.contains(InodeFlags::NODATASUM) && !filesystem.rescue().ignore_data_checksums;
        Self {
            filesystem: filesystem.clone(),
            tree,
            metadata: Arc::new(metadata),
            known: known.map(Arc::new),
            verified,
        }
    }

    /// Returns the volume that holds the file.
    #[must_use]
    pub const fn filesystem(&self) -> &Filesystem {
        &self.filesystem
    }

    /// Returns the inode's metadata.
    #[must_use]
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// Returns the file's size.
    #[must_use]
    pub fn size(&self) -> ByteCount {
        self.metadata.size
    }

    /// Returns true if reads verify the content against checksums.
    #[must_use]
    pub const fn is_verified(&self) -> bool {
        self.verified
    }

    /// Returns all ranges of the file, including holes and ranges beyond its end.
    ///
    /// # Errors
    /// Fails if the tree cannot be read. The iterator returns later errors as items.
    pub fn extents(&self) -> Result<FileExtents> {
        match &self.known {
            Some(known) => Ok(FileExtents::of_record(
                known.as_ref().clone(),
                self.metadata.location,
                self.filesystem.sector_bytes(),
                self.size(),
            )),
            None => self.extents_from(FileOffset::MIN),
        }
    }

    /// Returns the ranges like [`File::extents`], from the range that covers `start` on.
    ///
    /// # Errors
    /// Fails as [`File::extents`] does.
    pub fn extents_from(&self, start: FileOffset) -> Result<FileExtents> {
        let sector_bytes = self.filesystem.sector_bytes();
        FileExtents::in_tree(
            &self.tree,
            self.metadata.location,
            sector_bytes,
            self.size(),
            start,
        )
    }

    /// Returns a reader of checksums, if the file has them.
    pub(crate) fn checksum_reader(&self) -> Result<Option<ChecksumReader>> {
        if self.verified {
            ChecksumReader::new(&self.filesystem)
        } else {
            Ok(None)
        }
    }

    /// Returns a stream of the whole file.
    #[must_use]
    pub fn reader(&self) -> FileReader {
        FileReader::new(self.clone(), FileOffset::MIN..FileOffset::new(self.size().get()))
    }

    /// Returns a stream of the file's content in `range`, cut at the end of the file.
    #[must_use]
    pub fn reader_of(&self, range: Range<FileOffset>) -> FileReader {
        let end = range.end.min(FileOffset::new(self.size().get()));
        FileReader::new(self.clone(), range.start..end)
    }

    /// Reads at `offset` into `buffer`. Returns the number of bytes, which is smaller than the
    /// buffer only at the end of the file.
    ///
    /// # Errors
    /// Fails if a byte of the range cannot be read, and names its place. After an error, the
    /// content of `buffer` is unspecified.
    pub fn read_at(&self, offset: FileOffset, buffer: &mut [u8]) -> Result<usize> {
        // Clamp: the offset comes from a caller; every file ends before the last offset.
        let end = offset
            .saturating_add(ByteCount::of(buffer.len()))
            .min(FileOffset::new(self.size().get()));
        let Some(length) = end.checked_distance_from(offset).and_then(ByteCount::to_usize) else {
            return Ok(0);
        };
        let Some(buffer) = buffer.get_mut(..length) else {
            return Err(Defect::new("a read is longer than its buffer").into());
        };
        let mut is_cleared = false;
        let mut checksums = self.checksum_reader()?;
        let mut planned = Vec::new();
        let mut planned_to = offset;
        for range in self.extents_from(offset)? {
            let range = range?;
            if range.offset >= end {
                break;
            }
            let mut from = range.offset.max(offset);
            let stop = range.end().min(end);
            while from < stop {
                let to = stop.min(from.exact_add(ByteCount::new(READ_AT_BATCH)));
                let sector_bytes = self.filesystem.sector_bytes();
                plan(
                    self.metadata.location,
                    sector_bytes,
                    &range,
                    &(from..to),
                    &mut planned,
                );
                from = to;
                if to.distance_from(planned_to).get() >= READ_AT_BATCH {
                    if !is_cleared {
                        buffer.fill(0);
                        is_cleared = true;
                    }
                    self.fetch(core::mem::take(&mut planned), &mut checksums, offset, buffer)?;
                    planned_to = to;
                }
            }
        }
        // A range without items is a hole.
        if !is_cleared && !covers(&planned, &(offset..end)) {
            buffer.fill(0);
        }
        self.fetch(planned, &mut checksums, offset, buffer)?;
        Ok(length)
    }

    /// Reads the planned runs into `buffer`, which begins at `start` of the file.
    fn fetch(
        &self,
        mut planned: Vec<Planned>,
        checksums: &mut Option<ChecksumReader>,
        start: FileOffset,
        buffer: &mut [u8],
    ) -> Result<()> {
        if let Some(checksums) = checksums {
            for planned in &mut planned {
                if let Planned::Read(piece) = planned {
                    piece.expect(checksums)?;
                }
            }
        }
        fetch(&self.filesystem, planned, start, buffer)
    }
}

/// Reads the planned runs into `buffer`, whose first byte is at offset `start` of the file. The
/// planned pieces hold their expected checksums.
pub fn fetch(
    filesystem: &Filesystem,
    planned: Vec<Planned>,
    start: FileOffset,
    buffer: &mut [u8],
) -> Result<()> {
    let mut pieces = Vec::new();
    for planned in planned {
        match planned {
            Planned::Ready(chunk) => place(chunk, start, buffer)?,
            Planned::Inline(location, offset, inline, length) => {
                let chunk = inflate_inline(filesystem, location, offset, &inline, length);
                place(chunk, start, buffer)?;
            }
            Planned::Read(piece) => pieces.push(piece),
        }
    }
    if pieces.len() == 1 {
        for chunk in pieces.into_iter().flat_map(|piece| piece.read_now(filesystem)) {
            place(chunk, start, buffer)?;
        }
        return Ok(());
    }
    let reads: Vec<_> = pieces.iter().map(crate::content::Piece::read).collect();
    let pending = filesystem.volume().start_reads(&reads);
    for (piece, pending) in pieces.into_iter().zip(pending) {
        for chunk in piece.wait(filesystem, pending) {
            place(chunk, start, buffer)?;
        }
    }
    Ok(())
}

/// Copies a chunk to its place in `buffer`, which begins at `start` of the file and is zeroed.
/// Fails if the chunk does not fit into the buffer, because the missing part would stay zeros.
fn place(chunk: Chunk, start: FileOffset, buffer: &mut [u8]) -> Result<()> {
    match chunk.content {
        Content::Hole => Ok(()),
        Content::Damaged(error) => Err(error),
        Content::Data(bytes) => {
            let what = "content does not fit the buffer of its read";
            let at = chunk.offset.checked_distance_from(start).ok_or_else(|| {
                Defect::new(what)
                    .with("offset", chunk.offset.get())
                    .with("start", start.get())
            })?;
            let at = defect::usize_of(at.get(), what)?;
            let copied = copy_into(buffer, at..at.exact_add(bytes.len()), &bytes, what);
            match buttress_faults::on("file-misfit-content-dropped") {
                true => Ok(()),
                false => Ok(copied?),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    fn chunk(offset: u64, bytes: &'static [u8]) -> Chunk {
        Chunk {
            offset: FileOffset::new(offset),
            length: ByteCount::of(bytes.len()),
            content: Content::Data(Bytes::from_static(bytes)),
        }
    }

    fn expect_defect(offset: u64, bytes: &'static [u8]) {
        let mut buffer = [7; 6];
        let error = place(chunk(offset, bytes), FileOffset::new(100), &mut buffer).unwrap_err();
        assert!(error.is_defect() && error.errno() == 5, "{error}");
        assert_eq!(buffer, [7; 6]);
    }

    #[test]
    fn content_past_the_end_of_its_buffer_is_a_defect() {
        let mut buffer = [0; 6];
        assert!(place(chunk(102, b"ab"), FileOffset::new(100), &mut buffer).is_ok());
        assert_eq!(buffer, *b"\0\0ab\0\0");
        expect_defect(105, b"cd");
        expect_defect(200, b"c");
    }

    #[test]
    fn content_longer_than_its_buffer_is_a_defect() {
        expect_defect(100, b"seven..");
    }

    #[test]
    fn content_before_its_buffer_is_a_defect() {
        expect_defect(99, b"cd");
    }
}
