//! The way back: the old file system from the saved image.
//!
//! The old bytes are still at their places, because the saved image refers to them. Only the reserved
//! ranges need a copy back. The roll back is refused if the saved image is gone, was changed, or has
//! a moved extent or a byte that its checksum does not confirm. A balance moves extents, for example.
//!
//! All changes since the conversion are lost. Free blocks of the old file system can have other bytes
//! than before the conversion.

use crate::error::{Error, Result};
use crate::publish::put_back;
use crate::record::{Purpose, Record};
use crate::saved::SavedImage;
use crate::superblocks::{CHECKSUM_BYTES, Found, erase_new, erase_old, has_old};
use buttress_device::Device;
use buttress_format::{SUPERBLOCK_BYTES, SUPERBLOCK_OFFSETS};
use buttress_fs::{Content, File, OpenOptions};

/// Puts the old file system back on `device`, which is open for writing and holds a converted
/// volume. After an interruption, [`resume`](crate::resume) ends the roll back.
///
/// # Errors
/// Fails if the device holds no volume, or if its saved image is gone, changed, moved or damaged. The
/// volume is unchanged then. Also fails if the device fails.
pub fn roll_back(device: &Device) -> Result<()> {
    if Record::read(device)?.is_some() {
        return Err(Error::Unfinished);
    }
    let filesystem = OpenOptions::new(vec![device.clone()]).open()?;
    let saved = SavedImage::find(&filesystem, device)?;
    verify(&saved.file)?;
    let record = Record {
        purpose: Purpose::RollBack,
        fsid: filesystem.superblock().fsid,
        old_bytes: saved.old_bytes,
        old_primary: old_primary(&saved)?,
        copies: saved.copies.clone(),
    };
    drop((saved, filesystem));
    record.write(device)?;
    if has_old(device)? {
        // A boot loader in the boot area of the volume can have these bytes.
        erase_old(device)?;
    }
    erase_new(device, record.fsid)?;
    put_back(device, &record)
}

/// Returns the checksum of a btrfs superblock in the old content of the primary superblock's place.
fn old_primary(saved: &SavedImage) -> Result<[u8; CHECKSUM_BYTES]> {
    let [primary, ..] = SUPERBLOCK_OFFSETS;
    let mut bytes = vec![0; SUPERBLOCK_BYTES];
    saved.read(primary.get(), &mut bytes)?;
    Ok(Found::in_bytes(&bytes, primary).map_or([0; CHECKSUM_BYTES], |found| found.checksum))
}

/// Reads all bytes of the image, each of which has a checksum.
fn verify(image: &File) -> Result<()> {
    let mut reader = image.reader();
    while let Some(chunk) = reader.next_chunk()? {
        if let Content::Damaged(error) = chunk.content {
            return Err(error.into());
        }
    }
    Ok(())
}
