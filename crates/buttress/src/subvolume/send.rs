//! Sending snapshots as streams for `btrfs receive`.

use super::Subvolume;
use crate::error::Result;
use buttress_fs::Progress;
use buttress_stream::Version;
use buttress_stream::send::{self, Options, Snapshot, Summary};
use std::io::Write;

impl Subvolume {
    /// Returns a builder for sending this read-only snapshot; [`Send::to`] sends it.
    ///
    /// # Errors
    /// Fails if the snapshot is not read-only, or was deleted.
    pub fn send(&self) -> Result<Send> {
        Ok(Send {
            snapshot: self.to_send()?,
            options: Options::default(),
            progress: Progress::new(),
        })
    }

    /// Returns this read-only snapshot for the functions of [`stream::send`](crate::stream::send): several snapshots in one
    /// stream, estimates, streams that continue.
    ///
    /// # Errors
    /// Fails if the snapshot is not read-only, or does not exist.
    pub fn to_send(&self) -> Result<Snapshot> {
        Ok(Snapshot::open(&self.volume.view(), self.id)?)
    }
}

/// Options of one send. Made by [`Subvolume::send`].
#[derive(Clone, Debug)]
pub struct Send {
    snapshot: Snapshot,
    options: Options,
    progress: Progress,
}

impl Send {
    /// Sends only the differences from this snapshot, which the receiver must have.
    ///
    /// # Errors
    /// Fails if that snapshot is not read-only, or was deleted.
    pub fn parent(mut self, parent: impl AsRef<Subvolume>) -> Result<Self> {
        self.options.parent = Some(parent.as_ref().to_send()?);
        Ok(self)
    }

    /// Lets the receiver clone extents from this snapshot, which the receiver must have.
    ///
    /// # Errors
    /// Fails if that snapshot is not read-only, or was deleted.
    pub fn clone_source(mut self, source: impl AsRef<Subvolume>) -> Result<Self> {
        self.options.clone_sources.push(source.as_ref().to_send()?);
        Ok(self)
    }

    /// Sends compressed extents as they are stored. The receiver must support version 2 of the
    /// stream.
    #[must_use]
    pub fn compressed(mut self) -> Self {
        self.options.version = Version::V2;
        self.options.compressed_data = true;
        self
    }

    /// Reports the progress of the send to `progress`, which can also cancel it.
    #[must_use]
    pub fn progress(mut self, progress: &Progress) -> Self {
        self.progress = progress.clone();
        self
    }

    /// Sends the snapshot. Equal snapshots give equal bytes.
    ///
    /// ```
    /// # let volume = buttress::Volume::create().on_devices(vec![buttress::Device::memory(vec![0; 256 << 20])])?;
    /// # let root = volume.root();
    /// use buttress::SnapshotMode;
    ///
    /// let home = root.create_subvolume("home")?;
    /// home.write("letter", "Dear Bob")?;
    /// let monday = root.create_snapshot(&home, "monday", SnapshotMode::ReadOnly)?;
    /// let mut stream = Vec::new();
    /// monday.send()?.to(&mut stream)?;
    /// assert!(stream.starts_with(b"btrfs-stream"));
    /// # Ok::<(), buttress::Error>(())
    /// ```
    ///
    /// # Errors
    /// Fails if the volume cannot be read, or the stream cannot be written. The stream then has no
    /// end command, so receivers reject it.
    pub fn to(&self, sink: &mut (dyn Write + core::marker::Send)) -> Result<Summary> {
        Ok(send::send(&self.snapshot, &self.options, sink, &self.progress)?)
    }
}
