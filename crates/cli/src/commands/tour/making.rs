//! The steps that create a volume from a directory and change it.
//!
//! - `crash`: syncs a directory, and cuts the power.
//! - `sizes`: grows the volume, converts its metadata, and shrinks it.

mod crash;
mod sizes;

use std::fs::File;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use buttress::build::{BuildOptions, DirectorySource, EntryPath, ImageBuilder, SubvolumeMark};
use buttress::check::Options as CheckOptions;
use buttress::{
    ByteCount, Device, DeviceOptions, FileKind, FileOffset, Follow, Location, Progress, RenameMode,
    SubvolumeId, Volume, WalkItem, WalkOptions, mkfs,
};

use crate::commands::fiemap::Mapped;
use crate::output::size::Units;
use crate::removal::remove_all;
use crate::writing::{Writing, environment};

/// Entries of the directory to omit: build output, and the data of git.
const LEFT_OUT: [&[u8]; 2] = [b"target", b".git"];

/// Subvolume that the directory becomes; the next constants are its snapshots.
const PROJECT: &[u8] = b"project";
const BEFORE: &[u8] = b"before";
const AFTER: &[u8] = b"after";
const SCRATCH: &[u8] = b"scratch";

/// File that shares all of its extents with another file.
const SHARED_FILE: &[u8] = b"largest-file-shared";

/// Size of the volume in bytes; the image file is sparse.
const VOLUME_BYTES: u64 = 4 << 30;

/// Number of files that the tour writes to.
const CHANGED_FILES: usize = 10;

/// State of the volume under construction.
pub(super) struct Making {
    /// Source directory of the volume.
    directory: PathBuf,
    /// Path of the image.
    pub(super) image: PathBuf,
    writing: Option<Writing>,
    /// Files of the project, relative to its root, in walk order.
    files: Vec<Vec<u8>>,
}

/// A step: does its work and returns a description of the result.
type Step = fn(&mut Making) -> Result<String>;

impl Making {
    /// Returns the steps in their order.
    pub(super) fn steps() -> [(&'static str, Step); 13] {
        [
            ("build a volume from a directory", Self::build),
            ("take a read-only snapshot", Self::snapshot_before),
            ("change files", Self::change),
            ("share a file's extents", Self::share),
            ("map its extents", Self::map),
            ("delete a directory", Self::delete),
            ("take another snapshot", Self::snapshot_after),
            ("delete an emptied subvolume", Self::drop_snapshot),
            ("sync a directory, cut the power", Self::cut_power),
            ("grow the volume", Self::grow),
            ("convert its metadata", Self::convert),
            ("shrink it to its content", Self::shrink),
            ("check every cross-reference", Self::check),
        ]
    }

    /// Prepares a volume from a directory, in a new file of the system's temporary directory.
    pub(super) fn new(directory: &Path) -> Result<Self> {
        let directory = directory
            .canonicalize()
            .with_context(|| directory.display().to_string())?;
        let file = tempfile::Builder::new()
            .prefix("buttress-tour-")
            .suffix(".img")
            .tempfile()?;
        let (_, image) = file.keep()?;
        Ok(Self {
            directory,
            image,
            writing: None,
            files: Vec::new(),
        })
    }

    fn writing(&self) -> Result<&Writing> {
        self.writing.as_ref().context("the volume is not open")
    }

    /// Resolves a path below the project.
    fn find(&self, path: &[u8]) -> Result<Location> {
        self.writing()?.resolve(&project(path), Follow::NotLast)
    }

    /// Builds the volume in one pass: the directory becomes a subvolume.
    fn build(&mut self) -> Result<String> {
        let making = || format!("making {}", self.image.display());
        let size = File::options()
            .write(true)
            .open(&self.image)
            .with_context(making)?;
        size.set_len(VOLUME_BYTES).with_context(making)?;
        drop(size);
        let options = DeviceOptions {
            write: true,
            ..DeviceOptions::default()
        };
        let environment = environment("tour")?;
        let identity = mkfs::Identity {
            fsid: environment.new_uuid(),
            chunk_tree: environment.new_uuid(),
            top_level: environment.new_uuid(),
            devices: vec![environment.new_uuid()],
            time: environment.now(),
        };
        let project = EntryPath::new(PROJECT).context("the project's place")?;
        let wishes = BuildOptions {
            volume: mkfs::Options {
                label: b"tour".to_vec(),
                ..mkfs::Options::default()
            },
            subvolumes: vec![(project.clone(), SubvolumeMark::default())],
            ..BuildOptions::default()
        };
        let source = DirectorySource::new(&self.directory).below(project);
        let source = LEFT_OUT
            .iter()
            .fold(source, |source, name| source.without_name(name));
        // The image may be in the directory and change during the read, so exclude it.
        let image = self.image.metadata().with_context(making)?;
        let source = source.without(image.dev(), image.ino());
        let device = Device::open(&self.image, &options)?;
        let progress = Progress::new();
        let gathered = ImageBuilder::new(wishes)
            .source(source)
            .gather(1, identity.time, &progress)
            .with_context(|| format!("reading {}", self.directory.display()))?;
        let (files, bytes) = gathered.contents();
        let made = gathered.write(std::slice::from_ref(&device), &identity, &progress)?;
        let opened = Volume::options().on_disk().open_devices(vec![device])?;
        self.writing = Some(Writing::new(opened.root(), Volume::options())?);
        self.files = self.list()?;
        let units = Units::default();
        Ok(format!(
            "{}, {} (sparse), nodes of {} bytes: {files} files, {} from {}",
            self.image.display(),
            units.text(VOLUME_BYTES),
            made.superblock.node_bytes,
            units.text(bytes.get()),
            self.directory.display()
        ))
    }

    /// Lists the project's regular files that have content.
    fn list(&self) -> Result<Vec<Vec<u8>>> {
        let start = self.find(b"")?;
        let walk = self
            .writing()?
            .volume()
            .walk(start, WalkOptions::without_content());
        let mut files = Vec::new();
        for item in walk {
            if let WalkItem::Entry(entry) = item
                && entry.metadata().kind == FileKind::Regular
                && entry.metadata().size.get() > 0
            {
                files.push(entry.path());
            }
        }
        Ok(files)
    }

    fn snapshot(&self, name: &[u8], read_only: bool) -> Result<SubvolumeId> {
        let writing = self.writing()?;
        let source = self.find(b"")?.subvolume;
        Ok(writing
            .volume()
            .create_snapshot(source, writing.root.location(), name, read_only)?)
    }

    fn snapshot_before(&mut self) -> Result<String> {
        let id = self.snapshot(BEFORE, true)?;
        Ok(format!(
            "subvolume {id}, /before: shares everything with /project"
        ))
    }

    fn change(&mut self) -> Result<String> {
        let filesystem = self.writing()?.volume();
        let step = self.files.len().div_ceil(CHANGED_FILES).max(1);
        let mut changed = 0u64;
        for path in self.files.iter().step_by(step).take(CHANGED_FILES) {
            let location = self.find(path)?;
            let file = filesystem.open_file(location)?;
            file.append(b"\nwritten by buttress tour\n")?;
            let middle = file.size()?.get() >> 1;
            file.write_at(FileOffset::new(middle), b"!")?;
            changed = changed.saturating_add(1);
        }
        let renamed = match self.files.first() {
            Some(path) => {
                let (directory, name) = self.writing()?.place(&project(path))?;
                let new = [name.as_slice(), b".renamed"].concat();
                filesystem.rename(directory, &name, directory, &new, RenameMode::NoReplace)?;
                format!("; {} renamed", path.escape_ascii())
            }
            None => String::new(),
        };
        filesystem.sync()?;
        if !self.files.is_empty() {
            self.files.remove(0);
        }
        Ok(format!(
            "{changed} files appended to and overwritten in the middle{renamed}"
        ))
    }

    fn share(&mut self) -> Result<String> {
        let filesystem = self.writing()?.volume();
        let mut largest: Option<(u64, &Vec<u8>)> = None;
        for path in &self.files {
            let bytes = filesystem.metadata(self.find(path)?)?.size.get();
            if largest.is_none_or(|(most, _)| bytes > most) {
                largest = Some((bytes, path));
            }
        }
        let Some((bytes, path)) = largest else {
            return Ok("there is no file".to_owned());
        };
        let source = self.find(path)?;
        let writing = self.writing()?;
        let copy = writing.create_if_missing(&project(SHARED_FILE))?;
        let (source, copy) = (filesystem.open_file(source)?, filesystem.open_file(copy)?);
        copy.copy_range(&source, FileOffset::MIN, ByteCount::new(bytes), FileOffset::MIN)?;
        filesystem.sync()?;
        Ok(format!(
            "{}, {}, cloned to /project/{}",
            path.escape_ascii(),
            Units::default().text(bytes),
            SHARED_FILE.escape_ascii()
        ))
    }

    /// Maps the extents of the shared file, and the part of them that other files use.
    fn map(&mut self) -> Result<String> {
        if self.files.is_empty() {
            return Ok("there is no file".to_owned());
        }
        let location = self.find(SHARED_FILE)?;
        let mapped = Mapped::new(self.writing()?.volume(), location);
        let mut text = Vec::new();
        mapped.summary()?.print(SHARED_FILE, &mut text)?;
        let text = String::from_utf8_lossy(&text);
        // In a single line, columns are not aligned, so collapse the spaces.
        let lines = text
            .lines()
            .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "));
        Ok(lines.collect::<Vec<_>>().join("; "))
    }

    fn delete(&mut self) -> Result<String> {
        let filesystem = self.writing()?.volume();
        let root = self.find(b"")?;
        let mut directories = Vec::new();
        for entry in filesystem.read_dir(root)? {
            let entry = entry?;
            if entry.kind == FileKind::Directory {
                directories.push(entry.name);
            }
        }
        directories.sort();
        let Some(name) = directories.last() else {
            return Ok("there is no directory".to_owned());
        };
        let removed = remove_all(filesystem, root, name, &Progress::new())?;
        filesystem.sync()?;
        Ok(format!(
            "/project/{}: {removed} names removed",
            name.escape_ascii()
        ))
    }

    fn snapshot_after(&mut self) -> Result<String> {
        let id = self.snapshot(AFTER, true)?;
        Ok(format!("subvolume {id}, /after"))
    }

    fn drop_snapshot(&mut self) -> Result<String> {
        let id = self.snapshot(SCRATCH, false)?;
        let filesystem = self.writing()?.volume();
        let root = Location::root_of(id);
        let names: Vec<Vec<u8>> = filesystem
            .read_dir(root)?
            .map(|entry| Ok(entry?.name))
            .collect::<Result<_>>()?;
        let mut removed = 0u64;
        for name in names {
            removed = removed.saturating_add(remove_all(filesystem, root, &name, &Progress::new())?);
        }
        filesystem.delete_subvolume(id)?;
        filesystem.sync()?;
        filesystem.drop_deleted_subvolumes(&Progress::new())?;
        filesystem.sync()?;
        Ok(format!(
            "{removed} names in /scratch removed, then the subvolume and its tree"
        ))
    }

    /// Closes the volume, opens it again, and checks it.
    fn check(&mut self) -> Result<String> {
        self.writing = None;
        let device = Device::open(&self.image, &DeviceOptions::default())?;
        let volume = Volume::options().on_disk().open_devices(vec![device])?;
        let options = CheckOptions {
            data_checksums: true,
            ..CheckOptions::default()
        };
        let report = volume.check(&options, &Progress::new())?;
        ensure!(
            report.is_clean(),
            "{} findings: {:?}",
            report.findings.len(),
            report.findings
        );
        let used = volume.info().used;
        Ok(format!(
            "no error found, {} used",
            Units::default().text(used.get())
        ))
    }
}

/// Returns a path of the project, from the volume's root.
fn project(path: &[u8]) -> Vec<u8> {
    [b"/".as_slice(), PROJECT, b"/", path].concat()
}
