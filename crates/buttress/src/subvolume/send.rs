//! Snapshots as streams that `btrfs receive` takes.

use super::Subvolume;
use crate::error::Result;
use buttress_fs::Progress;
use buttress_stream::Version;
use buttress_stream::send::{self, Options, Snapshot, Summary};
use std::io::Write;

impl Subvolume {
    /// Says how to send this read-only snapshot; [`Send::to`] sends it.
    ///
    /// # Errors
    /// It is not read-only, or is gone.
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
    /// It is not read-only, or does not exist.
    pub fn to_send(&self) -> Result<Snapshot> {
        Ok(Snapshot::open(&self.volume.view(), self.id)?)
    }
}

/// A send that is about to begin. Made by [`Subvolume::send`].
#[derive(Clone, Debug)]
pub struct Send {
    snapshot: Snapshot,
    options: Options,
    progress: Progress,
}

impl Send {
    /// Sends only what differs from this snapshot, which the receiver has already.
    ///
    /// # Errors
    /// It is not read-only, or is gone.
    pub fn parent(mut self, parent: impl AsRef<Subvolume>) -> Result<Self> {
        self.options.parent = Some(parent.as_ref().to_send()?);
        Ok(self)
    }

    /// Lets the receiver clone from this snapshot, which it has already.
    ///
    /// # Errors
    /// It is not read-only, or is gone.
    pub fn clone_source(mut self, source: impl AsRef<Subvolume>) -> Result<Self> {
        self.options.clone_sources.push(source.as_ref().to_send()?);
        Ok(self)
    }

    /// Sends compressed extents as they are stored, which needs a receiver that knows version 2 of the stream.
    #[must_use]
    pub fn compressed(mut self) -> Self {
        self.options.version = Version::V2;
        self.options.compressed_data = true;
        self
    }

    /// Reports how far the send is, and can cancel it.
    #[must_use]
    pub fn progress(mut self, progress: &Progress) -> Self {
        self.progress = progress.clone();
        self
    }

    /// Sends. The same snapshots give the same bytes.
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
    /// The volume cannot be read, or the stream cannot be written. What was written until then has no end, which a
    /// receiver refuses.
    pub fn to(&self, sink: &mut (dyn Write + core::marker::Send)) -> Result<Summary> {
        Ok(send::send(&self.snapshot, &self.options, sink, &self.progress)?)
    }
}
