//! Extents in their stored form: compressed bytes that are verified, but not decompressed.
//!
//! The module `stored` serves jobs that pass compressed extents on unchanged, such as a send stream
//! with encoded writes. Only compressed extents are read, whose size the format limits to 128 KiB.
//!
//! A caller starts reads one by one and waits for them in any order. Worker threads verify them
//! against the checksum tree, unless the inode has no checksums or the volume was opened with
//! `rescue=ignoredatacsums`.

use crate::checksums::ChecksumReader;
use crate::content::{Chunks, Content, Piece};
use crate::error::{Corruption, Result};
use crate::executor::Task;
use crate::extents::DiskExtent;
use crate::filesystem::Filesystem;
use crate::inode::Metadata;
use crate::location::Location;
use buttress_format::{Compression, FileOffset, InodeFlags};
use bytes::Bytes;

/// A reader of compressed extents in their stored form.
#[derive(Debug)]
pub struct StoredReader {
    filesystem: Filesystem,
    checksums: Option<ChecksumReader>,
}

/// A stored extent whose read is in flight.
#[derive(Debug)]
pub struct PendingStored {
    task: Task<Chunks>,
    location: Location,
    offset: FileOffset,
    extent: DiskExtent,
}

impl StoredReader {
    /// Makes a reader of the volume's extents.
    ///
    /// # Errors
    /// Fails if the checksum tree cannot be found.
    pub fn new(filesystem: &Filesystem) -> Result<Self> {
        Ok(Self {
            filesystem: filesystem.clone(),
            checksums: ChecksumReader::new(filesystem)?,
        })
    }

    /// Starts to read the whole extent that the file of `metadata` uses at `offset`.
    ///
    /// # Errors
    /// For an uncompressed extent, which is a caller's mistake, returns
    /// [`Corruption::CompressedTooLarge`] with the sizes. Also fails if its checksums cannot be
    /// looked up.
    pub fn start(
        &mut self,
        metadata: &Metadata,
        offset: FileOffset,
        extent: &DiskExtent,
    ) -> Result<PendingStored> {
        let location = metadata.location;
        let limit = crate::extents::COMPRESSED_EXTENT_LIMIT;
        if extent.compression == Compression::None || extent.disk_bytes > limit {
            return Err(Corruption::CompressedTooLarge {
                location,
                offset,
                disk_bytes: extent.disk_bytes,
                ram_bytes: extent.ram_bytes,
                limit,
            }
            .into());
        }
        let mut piece = Piece::stored(location, offset, extent);
        if !metadata.flags.contains(InodeFlags::NODATASUM)
            && let Some(checksums) = &mut self.checksums
        {
            piece.expect(checksums)?;
        }
        let pending = self
            .filesystem
            .volume()
            .start_reads(&[piece.read()])
            .into_iter()
            .next();
        let filesystem = self.filesystem.clone();
        let task = self.filesystem.executor().spawn(move || match pending {
            Some(pending) => piece.wait(&filesystem, pending),
            None => piece.read_now(&filesystem),
        });
        Ok(PendingStored {
            task,
            location,
            offset,
            extent: *extent,
        })
    }
}

impl PendingStored {
    /// Returns the stored bytes, as many as the extent has on disk.
    ///
    /// # Errors
    /// Returns [`Corruption::DataChecksum`] or [`Corruption::DataChecksumMissing`]. Also fails if
    /// no copy can be read.
    pub fn wait(self) -> Result<Bytes> {
        let mut good = None;
        for chunk in self.task.take()? {
            match chunk.content {
                Content::Data(bytes) => good = Some(bytes),
                Content::Damaged(error) => return Err(error),
                Content::Hole => {}
            }
        }
        let wanted = self.extent.disk_bytes.to_usize();
        match good {
            Some(bytes) if Some(bytes.len()) == wanted => Ok(bytes),
            _ => Err(Corruption::DataChecksum {
                location: self.location,
                offset: self.offset,
                length: self.extent.disk_bytes,
                logical: self.extent.logical,
            }
            .into()),
        }
    }
}
