//! Metadata dumps, in the format of btrfs-image: all tree blocks of a volume in one file.
//!
//! ```
//! # use buttress::{Device, Progress, Volume, dump};
//! let device = Device::memory(vec![0; 256 << 20]);
//! Volume::create().on_devices(vec![device.clone()])?.close()?;
//! let volume = Volume::options().open_devices(vec![device])?;
//! let mut bytes = Vec::new();
//! let options = dump::DumpOptions { level: 9, ..Default::default() };
//! dump::write(&volume, &mut bytes, &options, &Progress::new())?;
//!
//! let restored = Device::memory(vec![0; 256 << 20]);
//! let mut dumped = std::io::Cursor::new(bytes);
//! dump::restore(&mut dumped, &[restored.clone()], &Progress::new())?;
//! let again = Volume::options().open_devices(vec![restored])?;
//! assert_eq!(again.info().fsid, volume.info().fsid);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub use buttress_dump::{
    DumpItem, DumpOptions, DumpReader, Dumped, Error, ReduceOptions, Reduced, Restored, Result, Sanitise,
    restore,
};

use crate::Volume;
use buttress_fs::Progress;
use std::io::Write;

/// Writes a metadata dump of a volume.
///
/// # Errors
/// Fails with an error of the output, if `progress` is cancelled, or with [`Error::NamesKept`] if
/// [`Sanitise::strict`] asks for it.
pub fn write(
    volume: &Volume,
    out: &mut dyn Write,
    options: &DumpOptions,
    progress: &Progress,
) -> Result<Dumped> {
    buttress_dump::write(&volume.view(), out, options, progress)
}

/// Makes the smallest sanitised dump in which a check reports the first finding with this code.
///
/// # Errors
/// Fails with [`Error::FindingMissing`] if a check of a whole dump reports no such finding, with
/// [`Error::TooLarge`] for too much metadata, or if `progress` is cancelled.
pub fn reduce(volume: &Volume, code: &str, options: &ReduceOptions, progress: &Progress) -> Result<Reduced> {
    buttress_dump::reduce(&volume.view(), code, options, progress)
}
