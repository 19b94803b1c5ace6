//! An open volume: its subvolumes, its state on disk, and jobs over the whole volume.

mod access;
mod accounts;
#[cfg(feature = "write")]
mod balancing;
#[cfg(feature = "check")]
mod checking;
mod devices;
mod inodes;
mod mapping;
mod quotas;
#[cfg(feature = "repair")]
pub(crate) mod repairing;
#[cfg(feature = "salvage")]
pub(crate) mod salvaging;
#[cfg(feature = "scrub")]
mod scrubbing;
#[cfg(feature = "write")]
mod shrinking;
#[cfg(feature = "write")]
mod writable;

use crate::error::Result;
use crate::options::VolumeOptions;
use crate::subvolume::Subvolume;
use buttress_format::{ByteCount, SubvolumeId};
use buttress_fs::{Filesystem, Notice, SubvolumeInfo};
#[cfg(feature = "scrub")]
use buttress_scrub::Healer;
#[cfg(any(feature = "write", feature = "unstable"))]
use buttress_writer::Shown;
use std::path::Path;
#[cfg(feature = "scrub")]
use std::sync::Arc;

pub(crate) use access::Access;
pub use devices::{DeviceInfo, VolumeInfo};
pub use mapping::CopyPlace;
#[cfg(feature = "write")]
pub use writable::{WritableVolume, devices::NewDevice, rescuing::StructureRepairs};

/// An open btrfs volume, for reading. Clones of this handle share one volume, and any thread may
/// make any call.
///
/// No call of this type changes the volume. [`WritableVolume`](crate::WritableVolume) has the calls
/// that do, and dereferences to this type.
///
/// ```
/// # fn main() -> buttress::Result<()> {
/// # let folder = std::env::temp_dir().join(format!("buttress-doc-volume-{}", std::process::id()));
/// # std::fs::create_dir_all(&folder).unwrap();
/// # let path = folder.join("new.img");
/// use buttress::{ByteCount, Volume};
///
/// let volume = Volume::create().label("photos").in_file(&path, ByteCount::new(256 << 20))?;
/// volume.root().write("hello", b"world")?;
/// volume.sync()?;
/// drop(volume);
///
/// let volume = Volume::open(&path)?;
/// assert_eq!(volume.label(), b"photos");
/// assert_eq!(volume.root().read("hello")?, b"world");
/// # std::fs::remove_dir_all(&folder).unwrap();
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Volume {
    /// Field order: this field is declared before the writer's handle, which it uses, so that it is
    /// dropped first.
    #[cfg(feature = "scrub")]
    healer: Option<Arc<Healer>>,
    access: Access,
}

impl Volume {
    pub(crate) const fn new(access: Access) -> Self {
        Self {
            #[cfg(feature = "scrub")]
            healer: None,
            access,
        }
    }

    /// Opens the volume on an image file or block device, for reading. The image or device stays
    /// unchanged.
    ///
    /// ```no_run
    /// # fn main() -> buttress::Result<()> {
    /// let volume = buttress::Volume::open("backup.img")?;
    /// println!("{}", volume.root().read_to_string("etc/hostname")?);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Fails as [`VolumeOptions::open`] does.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        Self::options().open(path)
    }

    /// Returns options for opening a volume: several devices, a partition, an overlay, a memory
    /// budget.
    #[must_use]
    pub fn options() -> VolumeOptions {
        VolumeOptions::default()
    }

    /// Returns the subvolume in which paths begin: the top level.
    #[must_use]
    pub fn root(&self) -> Subvolume {
        Subvolume::new(self.clone(), SubvolumeId::TOP_LEVEL)
    }

    /// Returns the default subvolume, mounted when no `subvol=` option is given.
    ///
    /// ```
    /// # let volume = buttress::Volume::create().on_devices(vec![buttress::Device::memory(vec![0; 256 << 20])])?;
    /// # let root = volume.root();
    /// let system = root.create_subvolume("system")?;
    /// volume.set_default_subvolume(&system)?;
    /// assert_eq!(volume.default_subvolume()?.id(), system.id());
    /// # Ok::<(), buttress::Error>(())
    /// ```
    ///
    /// # Errors
    /// Fails if the root tree cannot be read, or names a subvolume that does not exist.
    pub fn default_subvolume(&self) -> Result<Subvolume> {
        let id = self.view().default_subvolume()?;
        self.subvolume_by_id(id)
    }

    /// Returns the subvolume with this id.
    ///
    /// # Errors
    /// Fails if the subvolume does not exist, or cannot be read.
    pub fn subvolume_by_id(&self, id: SubvolumeId) -> Result<Subvolume> {
        self.view().subvolume(id)?;
        Ok(Subvolume::new(self.clone(), id))
    }

    /// Returns the place, uuids, times and flags of one subvolume, without reading other
    /// subvolumes.
    ///
    /// # Errors
    /// Fails if the subvolume does not exist, or cannot be read.
    pub fn subvolume_info(&self, id: SubvolumeId) -> Result<SubvolumeInfo> {
        Ok(self.view().subvolume(id)?)
    }

    /// Returns all subvolumes and snapshots in order of their ids, including deleted ones that are
    /// not yet dropped.
    ///
    /// ```
    /// # let volume = buttress::Volume::create().on_devices(vec![buttress::Device::memory(vec![0; 256 << 20])])?;
    /// # let root = volume.root();
    /// root.create_subvolume("home")?;
    /// let paths: Vec<_> = volume.subvolumes()?.into_iter().filter_map(|found| found.path).collect();
    /// assert!(paths.contains(&b"home".to_vec()));
    /// # Ok::<(), buttress::Error>(())
    /// ```
    ///
    /// # Errors
    /// Fails if the root tree cannot be read.
    pub fn subvolumes(&self) -> Result<Vec<SubvolumeInfo>> {
        Ok(self.view().subvolumes()?)
    }

    /// Returns the volume's label.
    #[must_use]
    pub fn label(&self) -> Vec<u8> {
        self.view().superblock().label.clone()
    }

    /// Returns notices about the volume: bad superblocks and missing devices at opening, and
    /// devices that failed since and are no longer used.
    #[must_use]
    pub fn notices(&self) -> Vec<Notice> {
        self.view().notices()
    }

    /// Returns the volume in its current state. Later changes do not affect the returned volume,
    /// and freed space that the returned volume reads is not reused. This call first writes dirty
    /// content back to the devices.
    ///
    /// ```
    /// # let volume = buttress::Volume::create().on_devices(vec![buttress::Device::memory(vec![0; 256 << 20])])?;
    /// # let root = volume.root();
    /// root.write("ledger", "paid")?;
    /// let before = volume.held()?;
    /// root.write("ledger", "lost")?;
    /// assert_eq!(before.root().read("ledger")?, b"paid");
    /// # Ok::<(), buttress::Error>(())
    /// ```
    ///
    /// # Errors
    /// Fails if a device failed, or content finds no space.
    pub fn held(&self) -> Result<Self> {
        match &self.access {
            Access::Reading(_) => Ok(self.clone()),
            #[cfg(feature = "write")]
            Access::Writing(writer) => {
                writer.writeback().write_all()?;
                Ok(Self::over(writer.view()))
            }
        }
    }

    /// Returns the volume over a state that never changes.
    #[cfg(any(feature = "write", feature = "unstable"))]
    pub(crate) fn over(filesystem: Filesystem) -> Self {
        let on_disk = filesystem.clone();
        Self::new(Access::Reading(Shown { filesystem, on_disk }))
    }

    pub(crate) fn view(&self) -> Filesystem {
        self.access.view()
    }

    pub(crate) const fn access(&self) -> &Access {
        &self.access
    }

    /// Returns the sector size: the size of data blocks, in bytes.
    #[must_use]
    pub fn sector_bytes(&self) -> ByteCount {
        ByteCount::new(u64::from(self.view().sector_bytes()))
    }
}
