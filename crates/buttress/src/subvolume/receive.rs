//! Receiving snapshots from streams of `btrfs send` or [`Subvolume::send`](crate::Subvolume::send).

use super::WritableSubvolume;
use crate::error::Result;
use crate::path::VolumePath;
use buttress_fs::Follow;
use buttress_stream::receive::{Options, receive};
use std::io::Read;

impl WritableSubvolume {
    /// Receives all streams of `input` into a directory. Each stream makes a read-only subvolume
    /// there, durable before the next stream begins, or nothing. An incremental stream needs the
    /// snapshot from which it starts, received or sent before.
    ///
    /// ```
    /// # let volume = || buttress::Volume::create().on_devices(vec![buttress::Device::memory(vec![0; 256 << 20])]);
    /// use buttress::SnapshotMode;
    ///
    /// let (here, there) = (volume()?, volume()?);
    /// let home = here.root().create_subvolume("home")?;
    /// home.write("letter", "Dear Bob")?;
    /// let monday = here.root().create_snapshot(&home, "monday", SnapshotMode::ReadOnly)?;
    /// let mut stream = Vec::new();
    /// monday.send()?.to(&mut stream)?;
    ///
    /// let received = there.root().receive("", stream.as_slice())?;
    /// assert_eq!(received[0].read("letter")?, b"Dear Bob");
    /// # Ok::<(), buttress::Error>(())
    /// ```
    ///
    /// # Errors
    /// Fails if the path is no directory, or if a stream is incomplete, invalid, or needs a missing
    /// snapshot. Earlier streams of the input stay received. A failed stream's space is free after
    /// [`WritableVolume::drop_deleted_subvolumes`](crate::WritableVolume::drop_deleted_subvolumes),
    /// or after the next opening for writing.
    pub fn receive(&self, directory: impl VolumePath, input: impl Read) -> Result<Vec<Self>> {
        let path = directory.volume_path();
        let filesystem = self.volume().writer();
        let location = self.resolve(&path, Follow::All)?;
        let summary = receive(filesystem, location, input, &Options::default(), &mut |_| {})
            .map_err(|error| crate::Error::from(error).at(&path))?;
        let subvolumes = summary.subvolumes.into_iter();
        Ok(subvolumes.map(|received| self.with_id(received.id)).collect())
    }
}
