//! An open volume: its subvolumes, its state on disk, and jobs over all of it.

use crate::error::{Error, Result};
use crate::options::{NewVolume, VolumeOptions};
use crate::subvolume::Subvolume;
use buttress_accounts::Accounts as _;
use buttress_accounts::Space;
use buttress_check as check;
use buttress_format::{ByteCount, SubvolumeId};
use buttress_fs::{Filesystem, Notice, Progress, SubvolumeInfo};
use buttress_scrub::{
    Healed, Healer, Options as ScrubOptions, Report as ScrubReport, Resync, ResyncOptions, Scrub,
};
use buttress_writer::operations::NewInode;
use buttress_writer::{LogStatistics, Shown, WritableFilesystem};
use std::path::Path;
use std::sync::Arc;

/// An open btrfs volume. A cheap handle: clones are the same volume, and all calls may come from any thread.
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
    /// Gone before the last handle of the writer, which it uses.
    healer: Option<Arc<Healer>>,
    access: Access,
    new_files: NewInode,
    root: SubvolumeId,
}

/// How a volume is open.
#[derive(Clone, Debug)]
pub(crate) enum Access {
    Reading(Shown),
    Writing(WritableFilesystem),
}

impl Volume {
    pub(crate) const fn new(
        access: Access,
        healer: Option<Arc<Healer>>,
        new_files: NewInode,
        root: SubvolumeId,
    ) -> Self {
        Self {
            healer,
            access,
            new_files,
            root,
        }
    }

    /// Opens the volume on an image file or block device, for reading. Nothing on it changes.
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
    /// As [`VolumeOptions::open`].
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        Self::options().open(path)
    }

    /// Opens the volume on an image file or block device for reading and writing.
    ///
    /// # Errors
    /// As [`VolumeOptions::open`].
    pub fn open_writable(path: impl AsRef<Path>) -> Result<Self> {
        Self::options().write(true).open(path)
    }

    /// Says how to open a volume: several devices, a partition, an overlay, a budget of memory.
    #[must_use]
    pub fn options() -> VolumeOptions {
        VolumeOptions::default()
    }

    /// Says how to make a new volume.
    #[must_use]
    pub fn create() -> NewVolume {
        NewVolume::default()
    }

    /// The subvolume in which paths begin: the top level.
    #[must_use]
    pub fn root(&self) -> Subvolume {
        Subvolume::new(self.clone(), self.root)
    }

    /// The subvolume that is mounted where nothing else is said.
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
    /// That the root tree cannot be read, or names a subvolume that is not there.
    pub fn default_subvolume(&self) -> Result<Subvolume> {
        let id = self.view().default_subvolume()?;
        self.subvolume_by_id(id)
    }

    /// Makes a subvolume the one that is mounted where nothing else is said.
    ///
    /// # Errors
    /// The volume is open for reading only, or the subvolume is gone.
    pub fn set_default_subvolume(&self, subvolume: &Subvolume) -> Result<()> {
        Ok(self.writer()?.set_default_subvolume(subvolume.id())?)
    }

    /// The subvolume with this id.
    ///
    /// # Errors
    /// There is none, or it cannot be read.
    pub fn subvolume_by_id(&self, id: SubvolumeId) -> Result<Subvolume> {
        self.view().subvolume(id)?;
        Ok(Subvolume::new(self.clone(), id))
    }

    /// All subvolumes and snapshots, in order of their ids, deleted ones that are not yet dropped among them.
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
    /// That the root tree cannot be read.
    pub fn subvolumes(&self) -> Result<Vec<SubvolumeInfo>> {
        Ok(self.view().subvolumes()?)
    }

    /// The label.
    #[must_use]
    pub fn label(&self) -> Vec<u8> {
        self.view().superblock().label.clone()
    }

    /// Sets the label, at most 255 bytes.
    ///
    /// ```
    /// # let volume = buttress::Volume::create().on_devices(vec![buttress::Device::memory(vec![0; 256 << 20])])?;
    /// # let root = volume.root();
    /// volume.set_label("photos")?;
    /// assert_eq!(volume.label(), b"photos");
    /// # Ok::<(), buttress::Error>(())
    /// ```
    ///
    /// # Errors
    /// The volume is open for reading only; a label that is too long, or holds a line break or a zero byte.
    pub fn set_label(&self, label: &str) -> Result<()> {
        Ok(self.writer()?.set_label(label.as_bytes())?)
    }

    /// What is worth knowing about the volume: bad superblocks and missing devices when it was opened, devices that failed
    /// since and were left out.
    #[must_use]
    pub fn notices(&self) -> Vec<Notice> {
        self.view().notices()
    }

    /// Whether the volume can be changed.
    #[must_use]
    pub const fn is_writable(&self) -> bool {
        matches!(self.access, Access::Writing(_))
    }

    /// Makes all changes durable. When it returns, they are there whatever happens; until then a crash goes back to the
    /// last time, or to a state between. Without it changes are durable after about 30 seconds. Nothing to do on a volume
    /// that is open for reading.
    ///
    /// ```
    /// # let volume = buttress::Volume::create().on_devices(vec![buttress::Device::memory(vec![0; 256 << 20])])?;
    /// # let root = volume.root();
    /// root.write("ledger", "paid")?;
    /// volume.sync()?; // now it is there whatever happens
    /// # Ok::<(), buttress::Error>(())
    /// ```
    ///
    /// # Errors
    /// A device failed, or there is no space. After a failed write the volume stays as it was last made durable, can still be
    /// read, and every further change says why it is refused.
    pub fn sync(&self) -> Result<()> {
        if let Access::Writing(filesystem) = &self.access {
            filesystem.commit()?;
        }
        Ok(())
    }

    /// What syncs of files and directories there were since the volume was opened for writing, and what they cost: how many
    /// were logged, how many joined others, which took a whole commit, and why. All zero on a volume that is open for reading.
    ///
    /// ```
    /// # let volume = buttress::Volume::create().on_devices(vec![buttress::Device::memory(vec![0; 256 << 20])])?;
    /// # let root = volume.root();
    /// root.write("ledger", "paid")?;
    /// root.open("ledger")?.sync()?;
    /// assert_eq!(volume.log_statistics().written, 1);
    /// # Ok::<(), buttress::Error>(())
    /// ```
    #[must_use]
    pub fn log_statistics(&self) -> LogStatistics {
        match &self.access {
            Access::Reading(_) => LogStatistics::default(),
            Access::Writing(filesystem) => filesystem.log_statistics(),
        }
    }

    /// Gives back the space of deleted subvolumes. Opening and changing a volume do not wait for that.
    ///
    /// ```
    /// # let volume = buttress::Volume::create().on_devices(vec![buttress::Device::memory(vec![0; 256 << 20])])?;
    /// # let root = volume.root();
    /// use buttress::Progress;
    ///
    /// root.create_subvolume("scratch")?;
    /// root.delete_subvolume("scratch")?;
    /// volume.drop_deleted_subvolumes(&Progress::new())?;
    /// # Ok::<(), buttress::Error>(())
    /// ```
    ///
    /// # Errors
    /// The volume is open for reading only; [`buttress_fs::Error::Cancelled`] within; a tree cannot be read or written.
    pub fn drop_deleted_subvolumes(&self, progress: &Progress) -> Result<()> {
        Ok(self.writer()?.drop_deleted_subvolumes(progress)?)
    }

    /// Where the space went, by type and profile and by device.
    ///
    /// # Errors
    /// That the chunk tree cannot be read.
    pub fn space(&self) -> Result<Space> {
        Ok(self.view().space()?)
    }

    /// Goes over every cross-reference and says what is wrong. Only on a volume that is open for reading: what changes
    /// meanwhile would look like damage.
    ///
    /// # Errors
    /// The volume is open for writing, or the job was cancelled. What is wrong with the volume is in the report.
    pub fn check(&self, options: &check::Options, progress: &Progress) -> Result<check::Report> {
        match &self.access {
            Access::Reading(shown) => Ok(check::check(&shown.on_disk, options, progress)?),
            Access::Writing(_) => Err(buttress_fs::Error::Invalid {
                what: "a check of a volume that is open for writing: open it for reading",
            }
            .into()),
        }
    }

    /// Reads every copy and all parity, compares it, and mends what is bad from what is good. Others may use the volume
    /// meanwhile, and write to it. On a volume that is open for reading nothing is mended.
    ///
    /// ```
    /// use buttress::{Device, Profile, Progress, ScrubOptions, Volume};
    ///
    /// # fn main() -> buttress::Result<()> {
    /// let devices: Vec<Device> = (0..2).map(|_| Device::memory(vec![0; 256 << 20])).collect();
    /// let volume = Volume::create().profiles(Profile::Raid1, Profile::Raid1).on_devices(devices)?;
    /// volume.root().write("ledger", vec![7; 1 << 20])?;
    /// volume.sync()?;
    ///
    /// let report = volume.scrub(ScrubOptions::default(), &Progress::new())?;
    /// assert_eq!(report.totals().errors(), 0);
    /// assert!(!report.has_uncorrectable());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Reports a device that missed commits and cannot be brought up to date. If the volume is open for writing, this
    /// comes before the scrub. Reports a feature whose volumes are not scrubbed, and [`buttress_fs::Error::Cancelled`].
    /// The report has the damage of the volume.
    pub fn scrub(&self, options: ScrubOptions, progress: &Progress) -> Result<ScrubReport> {
        let progress = progress.clone();
        match &self.access {
            Access::Reading(shown) => {
                let options = ScrubOptions {
                    read_only: true,
                    ..options
                };
                let scrub = Scrub::new(&shown.on_disk, options, progress)?;
                scrub.run()?;
                Ok(scrub.report())
            }
            Access::Writing(filesystem) => {
                if !options.read_only {
                    Resync::new(filesystem.clone(), ResyncOptions::default(), progress.clone()).run()?;
                }
                let views = || filesystem.committed_view();
                let scrub = Scrub::new(&views(), options, progress)?.beside(&views);
                scrub.run()?;
                Ok(scrub.report())
            }
        }
    }

    /// Of a volume that is open for writing: what readers passed over since it was opened and was mended behind them, from
    /// another copy or from parity. What is being mended is waited for.
    ///
    /// ```
    /// # let volume = buttress::Volume::create().on_devices(vec![buttress::Device::memory(vec![0; 256 << 20])])?;
    /// # volume.root().write("ledger", "paid")?;
    /// volume.root().read("ledger")?;
    /// assert_eq!(volume.healed().corrected, 0);
    /// # Ok::<(), buttress::Error>(())
    /// ```
    #[must_use]
    pub fn healed(&self) -> Healed {
        let Some(healer) = &self.healer else {
            return Healed::default();
        };
        healer.wait();
        healer.healed()
    }

    /// The volume as it is now: a state that never changes.
    pub(crate) fn view(&self) -> Filesystem {
        match &self.access {
            Access::Reading(shown) => shown.filesystem.clone(),
            Access::Writing(filesystem) => filesystem.view(),
        }
    }

    pub(crate) fn writer(&self) -> Result<&WritableFilesystem> {
        match &self.access {
            Access::Reading(_) => Err(Error::read_only()),
            Access::Writing(filesystem) => Ok(filesystem),
        }
    }

    pub(crate) const fn access(&self) -> &Access {
        &self.access
    }

    /// What is new, with this mode before the umask.
    pub(crate) const fn new_inode(&self, mode: u32) -> NewInode {
        NewInode {
            mode,
            ..self.new_files
        }
    }

    /// The size of data blocks.
    #[must_use]
    pub fn sector_bytes(&self) -> ByteCount {
        ByteCount::new(u64::from(self.view().sector_bytes()))
    }
}

#[cfg(feature = "unstable")]
impl Volume {
    /// The file system below, as of now. Of the unstable part: it can change with any version.
    #[must_use]
    pub fn filesystem(&self) -> Filesystem {
        self.view()
    }

    /// The writer below. Of the unstable part: it can change with any version.
    ///
    /// # Errors
    /// The volume is open for reading only.
    pub fn writable_filesystem(&self) -> Result<&WritableFilesystem> {
        self.writer()
    }
}
