//! The kernel's twin of a volume: created in the same way, mounted, and given the same changes by
//! system calls ([`calls`]).
//!
//! The kernel must succeed exactly in the changes that the model allows. At intervals the twin is
//! unmounted and read by Buttress, and must equal both the model and the volume of Buttress. Inode
//! numbers and subvolume ids may differ on the twin, so entries are compared by path. Times are
//! compared only if they were set explicitly.
//!
//! [`differs`] and `Twin::mend_property` describe allowed differences of the kernel;
//! [`can_be_drawn`](super::operation::can_be_drawn) lists changes that no run makes.

pub mod calls;

use super::comparing::{comparable, expect_model_by_another_clock, manifest};
use super::content::Change;
use super::model::{Model, Target};
use super::newborn::{COMPRESSION, UMASK};
use super::operation::Operation;
use super::volume::open_images;
use super::world::Plan;
use anyhow::{Context, Result, bail};
use buttress::mkfs::{Feature, Identity};
use buttress::unstable::fs::{Filesystem, OpenOptions};
use buttress::{Location, Timestamp, mkfs};
use buttress_oracle::loop_device::Mount;
use buttress_oracle::manifest::expect_equal;
use buttress_oracle::tools::{newest, run};
use buttress_oracle::volumes::scratch;
use std::collections::BTreeMap;
use std::fs::File;
use std::path::PathBuf;
use std::process::Command;

/// Factor of the twin's device sizes, because the kernel frees space only after a commit.
const SIZE_FACTOR: u64 = 2;

/// Mount options. The options set no default compression: Buttress may compress, and the content is
/// the same.
const OPTIONS: &str = "subvolid=5,noatime";

/// State of the kernel's side. The kernel's twin always has `no-holes`: without this feature, Linux
/// 6.18 lost the ends of files when it read their inodes again.
#[derive(Debug)]
pub struct Twin {
    /// Files held open, which are closed before the unmount.
    held: BTreeMap<Location, File>,
    mount: Option<Mount>,
    images: Vec<PathBuf>,
    forgotten: u64,
    // Folder of the images, removed on drop.
    _folder: tempfile::TempDir,
}

/// Returns why the kernel may differ from Buttress, if it may.
#[must_use]
pub fn differs(model: &Model, operation: &Operation) -> Option<&'static str> {
    match operation {
        Operation::RemoveDirectory(directory, name) => match model.target(*directory, name) {
            Some(Target::Subvolume(id)) if model.is_place(id, *directory, name) => {
                Some("rmdir(2) deletes an empty subvolume; Buttress has a call of its own for that")
            }
            _ => None,
        },
        Operation::Content(file, Change::Dedupe(..)) if !model.is_writable(*file) => {
            Some("the kernel deduplicates in read-only subvolumes; in Buttress nothing changes there")
        }
        Operation::SetAccessList(inode, _) | Operation::SetDefaultList(inode, _)
            if !model.is_writable(*inode) =>
        {
            Some("the kernel changes access lists in read-only subvolumes; in Buttress nothing changes there")
        }
        Operation::DropDeleted => Some("the kernel drops deleted subvolumes by itself"),
        _ => None,
    }
}

impl Twin {
    /// Creates a volume like the plan's, and mounts it.
    ///
    /// # Errors
    /// Fails with the errors of mkfs and mount.
    pub fn new(plan: &Plan) -> Result<Self> {
        // The kernel's side and the model use the same umask.
        rustix::process::umask(rustix::fs::Mode::from_raw_mode(UMASK));
        let folder = scratch()?;
        let mut images = Vec::new();
        for (number, bytes) in plan.devices.iter().enumerate() {
            let image = folder.path().join(format!("device-{number}"));
            File::create(&image)?.set_len(bytes * SIZE_FACTOR)?;
            images.push(image);
        }
        let identity = identity(plan.seed, images.len());
        let mut options = plan.mkfs.clone();
        options
            .features
            .retain(|feature| *feature != (Feature::NoHoles, false));
        if plan.progs.is_empty() {
            mkfs::make(&open_images(&images, true)?, &options, &identity)?;
        } else {
            run(Command::new(newest("mkfs.btrfs"))
                .args(["-q", "-f"])
                .args(plan.progs)
                .args(&images))?;
        }
        let mut twin = Self {
            held: BTreeMap::new(),
            mount: None,
            images,
            forgotten: 0,
            _folder: folder,
        };
        twin.open()?;
        Ok(twin)
    }

    fn open(&mut self) -> Result<()> {
        self.mount = Some(Mount::new(&self.images, OPTIONS)?);
        Ok(())
    }

    /// Closes held files, and unmounts.
    fn close(&mut self) -> Result<()> {
        self.held.clear();
        self.mount.take().map_or(Ok(()), Mount::close)
    }

    /// Returns the number of new inodes that did not inherit the compression property in the
    /// kernel.
    #[must_use]
    pub const fn forgotten(&self) -> u64 {
        self.forgotten
    }

    /// Unmounts and mounts again.
    ///
    /// # Errors
    /// Fails with the errors of umount and mount.
    pub fn reopen(&mut self) -> Result<()> {
        self.close()?;
        self.open()
    }

    fn top(&self) -> Result<PathBuf> {
        let mount = self.mount.as_ref().context("the twin is not mounted")?;
        Ok(mount.path().to_path_buf())
    }

    /// Makes a change before the model does; returns the file that it opened to hold.
    ///
    /// # Errors
    /// The kernel and the model disagree on whether the change is possible.
    pub fn make(&self, model: &Model, operation: &Operation) -> Result<Option<File>> {
        if differs(model, operation).is_some() {
            return Ok(None);
        }
        let made = self.call(model, operation);
        match (operation.is_possible(model), made) {
            (true, Ok(opened)) => Ok(opened),
            (false, Err(_)) => Ok(None),
            (true, Err(error)) => Err(error).with_context(|| format!("{operation}, by the kernel")),
            (false, Ok(_)) => bail!("{operation} should be refused by the kernel, and is not"),
        }
    }

    /// Follows a change that the model has made: keeps the file opened for the inode `new`, and
    /// closes files that the model no longer holds.
    ///
    /// # Errors
    /// Fails if the new inode cannot be inspected.
    pub fn follow(&mut self, model: &Model, new: Option<Location>, opened: Option<File>) -> Result<()> {
        if let (Some(location), Some(file)) = (new, opened) {
            self.held.insert(location, file);
        }
        self.held.retain(|location, _| model.held.contains(location));
        new.map_or(Ok(()), |new| self.mend_property(model, new))
    }

    /// Sets the compression property on a new inode if the kernel did not pass it on. After the
    /// kernel has read a directory inode again, it does not know the directory's property if its
    /// attributes are in another leaf than its inode.
    fn mend_property(&mut self, model: &Model, new: Location) -> Result<()> {
        let value = model.inode(new).and_then(|inode| inode.xattrs.get(COMPRESSION));
        let Some(value) = value else { return Ok(()) };
        if self.lacks_property(model, new)? {
            self.set_property(model, new, value)?;
            self.forgotten += 1;
        }
        Ok(())
    }

    /// Commits.
    ///
    /// # Errors
    /// Fails with the error of syncfs(2).
    pub fn commit(&self) -> Result<()> {
        Ok(rustix::fs::syncfs(File::open(self.top()?)?)?)
    }

    /// Unmounts the twin, reads it with Buttress, compares it with the model and with the volume of
    /// Buttress, and mounts it again. The remount closes the held files.
    ///
    /// # Errors
    /// The differences.
    pub fn compare(&mut self, model: &Model, ours: &Filesystem) -> Result<()> {
        self.close()?;
        let filesystem = OpenOptions::new(open_images(&self.images, false)?).open()?;
        let twins = expect_model_by_another_clock("the kernel's twin", model, &filesystem)?;
        expect_equal(
            "the volume beside its twin",
            &twins,
            &comparable(model, manifest(ours)?),
        )?;
        drop(filesystem);
        self.open()
    }
}

/// Returns ids that no other mounted volume of this machine has.
fn identity(seed: u64, devices: usize) -> Identity {
    let process = u128::from(std::process::id());
    let mut ids = (0_u128..).map(|number| {
        uuid::Uuid::from_u128(0x7_717_u128 << 112 | process << 80 | u128::from(seed) << 16 | number)
    });
    let mut next = || ids.next().unwrap_or_default();
    Identity {
        fsid: next(),
        chunk_tree: next(),
        top_level: next(),
        devices: (0..devices).map(|_| next()).collect(),
        time: Timestamp {
            seconds: 1,
            nanoseconds: 0,
        },
    }
}
