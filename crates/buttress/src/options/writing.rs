//! Options for opening a volume for writing.

use super::VolumeOptions;
use crate::error::Result;
use crate::volume::WritableVolume;
use buttress_device::Device;
use buttress_format::compression::CompressionMethod;
use buttress_writer::operations::NewInode;
use buttress_writer::{DataOptions, Environment, WriteOptions};
use std::path::Path;
use std::sync::Arc;

/// The options that apply only to a writable volume.
#[derive(Clone, Debug)]
pub(crate) struct Writing {
    pub(crate) options: WriteOptions,
    pub(crate) new_files: NewInode,
    #[cfg(feature = "scrub")]
    pub(crate) heal: bool,
}

impl Default for Writing {
    /// By default new files belong to root, with the usual umask, so that every user of a program
    /// makes equal volumes.
    fn default() -> Self {
        Self {
            options: WriteOptions::default(),
            new_files: NewInode {
                mode: 0,
                umask: 0o022,
                uid: 0,
                gid: 0,
            },
            #[cfg(feature = "scrub")]
            heal: true,
        }
    }
}

impl VolumeOptions {
    /// Opens the volume on an image file or block device, for reading and writing. No other program
    /// may have the volume open for writing: neither another process of this library, nor the
    /// kernel, nor a mounted loop device.
    ///
    /// # Errors
    /// Fails as [`open`](Self::open) does. Fails also if the volume is in use elsewhere, if a
    /// feature is not supported for writing, or if its log cannot be replayed.
    pub fn open_writable(mut self, path: impl AsRef<Path>) -> Result<WritableVolume> {
        self.device_options.write = true;
        let devices = self.devices(path.as_ref())?;
        self.open_writable_devices(devices)
    }

    /// Opens the volume for reading and writing on devices that are open for writing.
    ///
    /// # Errors
    /// Fails as [`open_writable`](Self::open_writable) does.
    pub fn open_writable_devices(self, devices: Vec<Device>) -> Result<WritableVolume> {
        #[cfg(feature = "salvage")]
        if self.wants_older_state() {
            return Err(crate::error::Cause::OlderState.into());
        }
        let options = self.clone();
        self.on_disk().open_devices(devices)?.into_writable(options)
    }

    /// Sets the owner of new files; root by default.
    #[must_use]
    pub fn owner(mut self, uid: u32, gid: u32) -> Self {
        (self.writing.new_files.uid, self.writing.new_files.gid) = (uid, gid);
        self
    }

    /// Sets the permission bits that new files do not get; `0o022` by default.
    #[must_use]
    pub fn umask(mut self, umask: u32) -> Self {
        self.writing.new_files.umask = umask & 0o777;
        self
    }

    /// Sets the compression of new content; none by default.
    #[must_use]
    pub fn compress(mut self, method: CompressionMethod) -> Self {
        self.writing.options.data.compression = Some(method);
        self
    }

    /// Sets how content is written: compression, inline files, checksums, copy-on-write. Replaces
    /// the setting of [`compress`](Self::compress).
    #[must_use]
    pub fn data(mut self, options: DataOptions) -> Self {
        self.writing.options.data = options;
        self
    }

    /// Sets whether commits discard the space that they freed, as the mount option `discard` does;
    /// false by default.
    #[must_use]
    pub fn discard(mut self, discard: bool) -> Self {
        self.writing.options.discard = discard;
        self
    }

    /// Sets whether the volume is opened to cancel an unfinished device replacement. The target may
    /// then be missing, and is not written.
    #[must_use]
    pub fn gives_up_replacement(mut self, gives_up: bool) -> Self {
        self.writing.options.gives_up_replacement = gives_up;
        self
    }

    /// Sets whether a volume opens whose devices are shorter than recorded, for
    /// [`fix_device_sizes`](crate::StructureRepairs::fix_device_sizes) and nothing else.
    #[must_use]
    pub fn fixes_sizes(mut self, fixes: bool) -> Self {
        self.writing.options.fixes_sizes = fixes;
        self
    }

    /// Sets whether the volume is opened to remove a free-space tree that may be damaged, by
    /// [`clear_free_space_tree`](crate::StructureRepairs::clear_free_space_tree). No allocation then
    /// uses the tree. Opening fails for a volume with a block group tree, which needs the tree.
    #[must_use]
    pub fn clears_free_space_tree(mut self, clears: bool) -> Self {
        self.writing.options.clears_free_space_tree = clears;
        self
    }

    /// Sets the source of times and uuids; the system by default. If the environment repeats its
    /// values, equal calls write equal bytes.
    #[must_use]
    pub fn environment(mut self, environment: Arc<dyn Environment>) -> Self {
        self.writing.options.environment = environment;
        self
    }
}

#[cfg(feature = "scrub")]
impl VolumeOptions {
    /// Sets whether a background thread rewrites a bad copy that a read passed over, from a good
    /// one. The default is true for volumes open for writing.
    /// [`WritableVolume::healed`](crate::WritableVolume::healed) reports these repairs.
    #[must_use]
    pub fn heal(mut self, heal: bool) -> Self {
        self.writing.heal = heal;
        self
    }
}
