//! Options for opening a volume for writing.

use super::VolumeOptions;
use buttress_format::compression::CompressionMethod;
use buttress_writer::Environment;
use std::sync::Arc;

impl VolumeOptions {
    /// Whether the volume can be changed. Nothing else may then have it open for writing: another process of this library,
    /// a loop device that is mounted, the kernel.
    #[must_use]
    pub fn write(mut self, write: bool) -> Self {
        self.write = write;
        self
    }

    /// Sets the owner of new files; root by default.
    #[must_use]
    pub fn owner(mut self, uid: u32, gid: u32) -> Self {
        (self.new_files.uid, self.new_files.gid) = (uid, gid);
        self
    }

    /// Permission bits that new files do not get; `0o022` by default.
    #[must_use]
    pub fn umask(mut self, umask: u32) -> Self {
        self.new_files.umask = umask & 0o777;
        self
    }

    /// Sets the compression of new content; none by default.
    #[must_use]
    pub fn compress(mut self, method: CompressionMethod) -> Self {
        self.data.compression = Some(method);
        self
    }

    /// Sets the source of times and uuids; the system by default. A source that repeats its answers makes equal calls give
    /// equal bytes.
    #[must_use]
    pub fn environment(mut self, environment: Arc<dyn Environment>) -> Self {
        self.environment = environment;
        self
    }
}

#[cfg(feature = "scrub")]
impl VolumeOptions {
    /// Whether a bad copy that a reader passes over is rewritten from a good one, in the background, as it is by default on
    /// a volume that is open for writing. [`Volume::healed`](crate::Volume::healed) reports it.
    #[must_use]
    pub fn heal(mut self, heal: bool) -> Self {
        self.heal = heal;
        self
    }
}
