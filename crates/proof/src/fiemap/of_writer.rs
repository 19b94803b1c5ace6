//! Random volumes of extents, created by Buttress.

use super::{FILLERS, filler_name};
use anyhow::{Context, Result};
use buttress::unstable::fs::{Error, OpenOptions};
use buttress::unstable::writer::{WritableFilesystem, WriteOptions};
use buttress::{
    AllocateMode, ByteCount, Compression, CompressionMethod, DataOptions, Device, DeviceOptions, FileOffset,
    Location, NewInode, Progress, SubvolumeId,
};
use buttress_oracle::content::Random;
use buttress_oracle::tools::{newest, run};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

const SECTOR: u64 = 4096;
const SECTORS: u64 = 160;
const VOLUME_MIB: u64 = 512;
const TOP: Location = Location::root_of(SubvolumeId::TOP_LEVEL);

/// Creates the volume of a seed on a new image in `folder`, with this number of changes.
pub fn make(folder: &Path, seed: u64, steps: u64) -> Result<PathBuf> {
    let mut random = Random::new(seed);
    let image = folder.join(format!("writer-{seed}"));
    let node = if random.one_in(2) { "4096" } else { "16384" };
    let features = if random.one_in(2) { "no-holes" } else { "^no-holes" };
    let compression = random.one_in(2).then(|| CompressionMethod::new(Compression::Lzo));
    let data = DataOptions {
        compression,
        ..DataOptions::default()
    };
    let filesystem = new_volume(&image, &["-n", node, "-O", features], data)?;
    let home = filesystem.subvolumes().create(TOP, b"home")?;
    let mut changing = Changing {
        filesystem,
        random,
        subvolumes: vec![home],
        files: Vec::new(),
    };
    for number in 0..steps {
        changing.step(number).with_context(|| format!("step {number}"))?;
    }
    changing.filesystem.commit()?;
    drop(changing);
    run(Command::new(newest("btrfs"))
        .args(["check", "--readonly"])
        .arg(&image))?;
    Ok(image)
}

/// Creates a volume in `folder` with a file of this number of extents and holes, one block each.
pub fn make_long_file(folder: &Path, name: &str, extents: u64) -> Result<PathBuf> {
    let image = folder.join("image");
    let filesystem = new_volume(&image, &[], DataOptions::default())?;
    let file = filesystem.create(TOP, name.as_bytes(), &NewInode::of_root(0o644))?;
    for number in 0..extents {
        filesystem.write_at(file, FileOffset::new(2 * number * SECTOR), &[1; SECTOR as usize])?;
    }
    filesystem.commit()?;
    Ok(image)
}

fn new_volume(image: &Path, words: &[&str], data: DataOptions) -> Result<WritableFilesystem> {
    File::create(image)?.set_len(VOLUME_MIB << 20)?;
    let mut command = Command::new(newest("mkfs.btrfs"));
    run(command.args(["-q", "-f"]).args(words).arg(image))?;
    let options = DeviceOptions {
        write: true,
        ..DeviceOptions::default()
    };
    let filesystem = OpenOptions::new(vec![Device::open(image, &options)?]).open()?;
    let options = WriteOptions {
        data,
        ..WriteOptions::default()
    };
    Ok(WritableFilesystem::new(filesystem, options)?)
}

struct Changing {
    filesystem: WritableFilesystem,
    random: Random,
    subvolumes: Vec<SubvolumeId>,
    files: Vec<(Location, Vec<u8>)>,
}

impl Changing {
    fn subvolume(&mut self) -> SubvolumeId {
        self.subvolumes[self.random.below(self.subvolumes.len() as u64) as usize]
    }

    fn file(&mut self) -> Option<(Location, Vec<u8>)> {
        let place = self.random.below(self.files.len() as u64) as usize;
        self.files.get(place).cloned()
    }

    /// Draws a range of whole sectors.
    fn range(&mut self) -> std::ops::Range<FileOffset> {
        let start = self.random.below(SECTORS);
        let end = start + 1 + self.random.below(SECTORS - start);
        FileOffset::new(start * SECTOR)..FileOffset::new(end * SECTOR)
    }

    fn step(&mut self, number: u64) -> Result<()> {
        if number.is_multiple_of(10) {
            let (subvolume, name) = (self.subvolume(), format!("f{number}").into_bytes());
            for filler in 0..FILLERS {
                let name = filler_name(number, filler).into_bytes();
                self.filesystem
                    .create(Location::root_of(subvolume), &name, &NewInode::of_root(0o644))?;
            }
            let made =
                self.filesystem
                    .create(Location::root_of(subvolume), &name, &NewInode::of_root(0o644))?;
            let length = self.random.below(5000) as usize;
            self.filesystem
                .write_at(made, FileOffset::MIN, &self.random.bytes(length, true))?;
            self.files.push((made, name));
        }
        let Some((file, name)) = self.file() else {
            return Ok(());
        };
        let range = self.range();
        let filesystem = self.filesystem.clone();
        match self.random.below(16) {
            0..4 => {
                let length = 1 + self.random.below(200_000) as usize;
                let compressible = self.random.one_in(2);
                filesystem.write_at(file, range.start, &self.random.bytes(length, compressible))?;
            }
            4 | 5 => {
                filesystem.write_at(file, range.start, &self.random.bytes(SECTOR as usize, false))?;
                filesystem.writeback().write_file(file)?;
            }
            6 => filesystem.allocate(file, range, AllocateMode::AllocateKeepSize)?,
            7 => filesystem.allocate(file, range, AllocateMode::PunchHole)?,
            8 => filesystem.truncate(file, ByteCount::new(self.random.below(SECTORS * SECTOR)))?,
            9..12 => {
                let end = filesystem.contents().size_of(file)? / SECTOR * SECTOR;
                let range = range.start..range.end.min(FileOffset::new(end));
                let (target, place) = (self.file().map(|(target, _)| target), self.range().start);
                let length = range.end.get().saturating_sub(range.start.get());
                let overlaps = target == Some(file) && place.get().abs_diff(range.start.get()) < length;
                if let Some(target) = target.filter(|_| length > 0 && !overlaps) {
                    filesystem.clone_range(file, range, target, place)?;
                }
            }
            12 => {
                let (source, snapshot) = (self.subvolume(), format!("snapshot-{number}"));
                let made = filesystem
                    .subvolumes()
                    .snapshot(source, TOP, snapshot.as_bytes(), false)?;
                let of_source = self.files.iter().filter(|(file, _)| file.subvolume == source);
                let copies = of_source.map(|(file, name)| (Location::new(made, file.inode), name.clone()));
                let copies: Vec<(Location, Vec<u8>)> = copies.collect();
                self.files.extend(copies);
                self.subvolumes.push(made);
            }
            13 if self.subvolumes.len() > 3 => {
                let place = self.random.below(self.subvolumes.len() as u64) as usize;
                let gone = self.subvolumes.swap_remove(place);
                self.files.retain(|(file, _)| file.subvolume != gone);
                filesystem.subvolumes().delete(gone)?;
                self.drop_some()?;
            }
            14 => {
                filesystem.unlink(Location::root_of(file.subvolume), &name)?;
                self.files.retain(|(other, _)| *other != file);
            }
            _ => drop(filesystem.commit()?),
        }
        Ok(())
    }

    /// Drops deleted subvolumes completely, or a few blocks of them.
    fn drop_some(&mut self) -> Result<()> {
        if self.random.one_in(2) {
            return Ok(self.filesystem.subvolumes().drop_deleted(&Progress::new())?);
        }
        let cancelled = Progress::new();
        cancelled.cancel();
        for _ in 0..self.random.below(12) {
            match self.filesystem.subvolumes().drop_deleted(&cancelled) {
                Ok(()) | Err(Error::Cancelled) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}
