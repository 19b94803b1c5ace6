//! The way back: the old file system from the saved image.
//!
//! The old bytes are still at their places, because the saved image refers to them. Only the reserved
//! ranges need a copy back. The roll back is refused if the saved image is gone, was changed, or has
//! a moved extent or a byte that its checksum does not confirm. A balance moves extents, for example.
//!
//! All changes since the conversion are lost. Free blocks of the old file system that were holes of
//! its image file are zeros again. Other free blocks can have other bytes than before.

use crate::GENERATION;
use crate::error::{Error, Result};
use crate::publish::{put_back, reserve};
use crate::record::{Purpose, Record};
use crate::saved::SavedImage;
use crate::superblocks::{CHECKSUM_BYTES, Found, erase_new, erase_old, has_old};
use buttress_device::Device;
use buttress_exact::Exact as _;
use buttress_format::{ByteCount, Logical, SUPERBLOCK_BYTES, SUPERBLOCK_OFFSETS};
use buttress_fs::{Content, File, Filesystem, OpenOptions, Progress};
use core::ops::Range;

/// A converted volume that can become the old file system again.
pub struct RollBack {
    device: Device,
    filesystem: Filesystem,
    saved: SavedImage,
}

impl RollBack {
    /// Finds the saved image of the volume on `device`, which is open for writing.
    ///
    /// # Errors
    /// Fails if the device holds no volume, or if its saved image is gone, changed or moved. Also
    /// fails if the device fails.
    pub fn find(device: &Device) -> Result<Self> {
        if Record::read(device)?.is_some() {
            return Err(Error::Unfinished);
        }
        let filesystem = OpenOptions::new(vec![device.clone()]).open()?;
        let saved = SavedImage::find(&filesystem, device)?;
        Ok(Self {
            device: device.clone(),
            filesystem,
            saved,
        })
    }

    /// Returns the number of commits since the conversion. A pending log counts as one. All of them
    /// will be lost.
    #[must_use]
    pub fn commits(&self) -> u64 {
        let superblock = self.filesystem.superblock();
        // Clamp: only a forged volume is older than its conversion, and it has nothing to lose.
        let commits = superblock.generation.get().saturating_sub(GENERATION.get());
        commits.exact_add(u64::from(superblock.log_root != Logical::MIN))
    }

    /// Verifies the checksums of the saved image.
    ///
    /// # Errors
    /// Fails if a checksum of the saved image is wrong, or if `progress` is cancelled.
    pub fn verify(self, progress: &Progress) -> Result<Verified> {
        verify(&self.saved.file, progress)?;
        let record = Record {
            purpose: Purpose::RollBack,
            fsid: self.filesystem.superblock().fsid,
            old_bytes: self.saved.old_bytes,
            old_primary: old_primary(&self.saved)?,
            copies: self.saved.copies.clone(),
        };
        Ok(Verified {
            device: self.device,
            record,
            zeros: self.saved.zeros,
        })
    }
}

/// A converted volume whose saved image is whole. The volume is still unchanged.
pub struct Verified {
    device: Device,
    record: Record,
    zeros: Vec<Range<u64>>,
}

impl Verified {
    /// Puts the old file system back. After an interruption, [`resume`](crate::resume) ends the roll
    /// back.
    ///
    /// # Errors
    /// Fails if the device fails. Then call [`resume`](crate::resume).
    pub fn run(self) -> Result<()> {
        let Self {
            device,
            record,
            zeros,
        } = self;
        reserve(&device, &record)?;
        record.write(&device)?;
        if has_old(&device)? {
            // A boot loader in the boot area of the volume can have these bytes.
            erase_old(&device)?;
        }
        erase_new(&device, record.fsid)?;
        put_back(&device, &record, &zeros)
    }
}

/// Returns the checksum of a btrfs superblock in the old content of the primary superblock's place.
fn old_primary(saved: &SavedImage) -> Result<[u8; CHECKSUM_BYTES]> {
    let [primary, ..] = SUPERBLOCK_OFFSETS;
    let mut bytes = vec![0; SUPERBLOCK_BYTES];
    saved.read(primary.get(), &mut bytes)?;
    Ok(Found::in_bytes(&bytes, primary).map_or([0; CHECKSUM_BYTES], |found| found.checksum))
}

/// Reads all bytes of the image, and verifies their checksums.
fn verify(image: &File, progress: &Progress) -> Result<()> {
    progress.expect(image.metadata().allocated);
    let mut reader = image.reader();
    while let Some(chunk) = reader.next_chunk()? {
        match chunk.content {
            Content::Damaged(error) => return Err(error.into()),
            Content::Data(bytes) => progress.advance(0, ByteCount::of(bytes.len())),
            Content::Hole => {}
        }
        progress.check()?;
    }
    Ok(())
}
