//! Extents as they are stored: compressed bytes that are verified, but not decompressed.
//!
//! For jobs that hand compressed extents on as they are, such as a send stream with encoded writes. Only
//! compressed extents are read here: their sizes are bounded by the format (128 KiB).
//!
//! Reads are started one by one and awaited later, in any order; the verification runs on worker threads. Data is
//! verified against the checksum tree unless the inode says that it has none, or the volume was opened with
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

/// Starts reads of compressed extents as they are stored.
#[derive(Debug)]
pub struct StoredReader {
    filesystem: Filesystem,
    checksums: Option<ChecksumReader>,
}

/// A stored extent that is under way.
#[derive(Debug)]
pub struct PendingStored {
    task: Task<Chunks>,
    location: Location,
    offset: FileOffset,
    extent: DiskExtent,
}

impl StoredReader {
    /// A reader of the volume's extents.
    ///
    /// # Errors
    /// That the checksum tree cannot be found.
    pub fn new(filesystem: &Filesystem) -> Result<Self> {
        Ok(Self {
            filesystem: filesystem.clone(),
            checksums: ChecksumReader::new(filesystem)?,
        })
    }

    /// Starts reading the whole extent that a range of the file `metadata` at `offset` uses.
    ///
    /// # Errors
    /// That the extent is not compressed (a caller's mistake, [`Corruption::CompressedTooLarge`] with its
    /// sizes), or that its checksums cannot be looked up.
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
    /// The stored bytes, as many as the extent has on disk.
    ///
    /// # Errors
    /// What is wrong with them: [`Corruption::DataChecksum`], [`Corruption::DataChecksumMissing`], or that no
    /// copy could be read.
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
