//! Random volumes of extents, created by the kernel.

use super::{FILLERS, filler_name};
use anyhow::{Context, Result};
use buttress_oracle::content::Random;
use buttress_oracle::loop_device::Mount;
use buttress_oracle::tools::{newest, run};
use rustix::fs::{FallocateFlags, copy_file_range, fallocate};
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

const SECTOR: u64 = 4096;
const SECTORS: u64 = 160;
const VOLUME_MIB: u64 = 512;

/// Creates the volume of a seed on a new image in `folder`, with this number of changes.
pub fn make(folder: &Path, seed: u64, steps: u64) -> Result<PathBuf> {
    let mut random = Random::new(seed);
    let image = folder.join(format!("kernel-{seed}"));
    File::create(&image)?.set_len(VOLUME_MIB << 20)?;
    let pick =
        |random: &mut Random, choices: &[&'static str]| choices[random.below(choices.len() as u64) as usize];
    let node = pick(&mut random, &["4096", "16384"]);
    let features = pick(
        &mut random,
        &["no-holes", "^no-holes", "block-group-tree", "squota"],
    );
    let mut command = Command::new(newest("mkfs.btrfs"));
    run(command.args(["-q", "-f", "-n", node, "-O", features]).arg(&image))?;
    let options = pick(
        &mut random,
        &[
            "",
            "compress-force=lzo",
            "compress=zstd",
            "max_inline=0",
            "nodatacow",
        ],
    );
    let mount = Mount::new(std::slice::from_ref(&image), options)?;
    let home = mount.path().join("home");
    btrfs(&["subvolume", "create"], &[&home])?;
    let mut changing = Changing {
        random,
        top: mount.path().to_path_buf(),
        subvolumes: vec![home],
        files: Vec::new(),
    };
    for number in 0..steps {
        changing.step(number).with_context(|| format!("step {number}"))?;
    }
    rustix::fs::syncfs(File::open(mount.path())?)?;
    mount.close()?;
    Ok(image)
}

fn btrfs(words: &[&str], paths: &[&Path]) -> Result<()> {
    run(Command::new(newest("btrfs")).args(words).args(paths)).map(drop)
}

struct Changing {
    random: Random,
    top: PathBuf,
    subvolumes: Vec<PathBuf>,
    files: Vec<PathBuf>,
}

impl Changing {
    fn subvolume(&mut self) -> PathBuf {
        self.subvolumes[self.random.below(self.subvolumes.len() as u64) as usize].clone()
    }

    fn file(&mut self) -> Result<Option<(PathBuf, File)>> {
        if self.files.is_empty() {
            return Ok(None);
        }
        let path = self.files[self.random.below(self.files.len() as u64) as usize].clone();
        let file = OpenOptions::new().read(true).write(true).open(&path)?;
        Ok(Some((path, file)))
    }

    /// Draws a range of whole sectors.
    fn range(&mut self) -> (u64, u64) {
        let start = self.random.below(SECTORS);
        (start * SECTOR, (1 + self.random.below(SECTORS - start)) * SECTOR)
    }

    fn step(&mut self, number: u64) -> Result<()> {
        if number.is_multiple_of(10) {
            let path = self.subvolume().join(format!("f{number}"));
            let (length, compressible) = (self.random.below(5000), self.random.one_in(2));
            for filler in 0..FILLERS {
                fs::write(path.with_file_name(filler_name(number, filler)), "")?;
            }
            fs::write(&path, self.random.bytes(length as usize, compressible))?;
            self.files.push(path);
        }
        let Some((path, file)) = self.file()? else {
            return Ok(());
        };
        let (offset, length) = self.range();
        match self.random.below(16) {
            0..4 => {
                let length = 1 + self.random.below(200_000) as usize;
                let compressible = self.random.one_in(2);
                file.write_all_at(&self.random.bytes(length, compressible), offset)?;
            }
            4 | 5 => {
                let bytes = self.random.bytes(SECTOR as usize, false);
                file.write_all_at(&bytes, offset)?;
                file.sync_all()?;
            }
            6 => fallocate(&file, FallocateFlags::KEEP_SIZE, offset, length)?,
            7 => fallocate(
                &file,
                FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
                offset,
                length,
            )?,
            8 => file.set_len(self.random.below(SECTORS * SECTOR))?,
            9..12 => self.clone_range(&file, offset, length)?,
            12 => {
                let (source, name) = (self.subvolume(), format!("snapshot-{number}"));
                let target = self.top.join(name);
                btrfs(&["subvolume", "snapshot"], &[&source, &target])?;
                let copies = self
                    .files
                    .iter()
                    .filter_map(|file| Some(target.join(file.strip_prefix(&source).ok()?)));
                let copies: Vec<PathBuf> = copies.collect();
                self.files.extend(copies);
                self.subvolumes.push(target);
            }
            13 if self.subvolumes.len() > 3 => {
                let place = self.random.below(self.subvolumes.len() as u64) as usize;
                let gone = self.subvolumes.swap_remove(place);
                self.files.retain(|file| !file.starts_with(&gone));
                btrfs(&["subvolume", "delete"], &[&gone])?;
            }
            14 => {
                fs::remove_file(&path)?;
                self.files.retain(|other| *other != path);
            }
            _ => rustix::fs::syncfs(File::open(&self.top)?)?,
        }
        Ok(())
    }

    /// Clones whole sectors to some file: in the kernel, copying within a volume is cloning.
    fn clone_range(&mut self, source: &File, offset: u64, length: u64) -> Result<()> {
        let Some((_, target)) = self.file()? else {
            return Ok(());
        };
        let end = (source.metadata()?.len() / SECTOR * SECTOR).min(offset + length);
        let (mut from, mut to) = (offset, self.range().0);
        let overlaps = source.metadata()?.len() == target.metadata()?.len() && from.abs_diff(to) < length;
        while from < end && !overlaps {
            let wanted = usize::try_from(end - from)?;
            if copy_file_range(source, Some(&mut from), &target, Some(&mut to), wanted)? == 0 {
                break;
            }
        }
        Ok(())
    }
}
