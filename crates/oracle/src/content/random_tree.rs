//! A seeded random tree: directories, files and changes to them in a random order.

use super::Random;
use anyhow::Result;
use rustix::fs::{FallocateFlags, Mode, XattrFlags, fallocate, setxattr};
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, chown, symlink};
use std::path::{Path, PathBuf};

/// Creates `top` and makes `steps` random changes below it.
pub fn plant(top: &Path, seed: u64, steps: u64) -> Result<()> {
    fs::create_dir(top)?;
    let mut grower = Grower {
        random: Random::new(seed),
        directories: vec![top.to_path_buf()],
        files: Vec::new(),
    };
    for number in 0..steps {
        grower.step(number)?;
    }
    Ok(())
}

struct Grower {
    random: Random,
    directories: Vec<PathBuf>,
    files: Vec<PathBuf>,
}

impl Grower {
    fn some_directory(&mut self) -> PathBuf {
        let index = self.random.below(self.directories.len() as u64) as usize;
        self.directories[index].clone()
    }

    fn some_file(&mut self) -> Option<PathBuf> {
        let index = self.random.below(self.files.len() as u64) as usize;
        self.files.get(index).cloned()
    }

    fn step(&mut self, number: u64) -> Result<()> {
        let parent = self.some_directory();
        match self.random.below(20) {
            0..=1 => {
                let path = parent.join(format!("d{number}"));
                if path.components().count() < 40 {
                    fs::create_dir(&path)?;
                    self.directories.push(path);
                }
            }
            2..=7 => self.create(parent.join(format!("f{number}")))?,
            8 => symlink(format!("../f{}", number / 2), parent.join(format!("s{number}")))?,
            9 => {
                if let Some(file) = self.some_file() {
                    fs::hard_link(file, parent.join(format!("h{number}")))?;
                }
            }
            10 => {
                if let Some(file) = self.some_file() {
                    let target = parent.join(format!("r{number}"));
                    fs::rename(&file, &target)?;
                    self.files.retain(|known| *known != file);
                    self.files.push(target);
                }
            }
            11 => {
                if let Some(file) = self.some_file() {
                    fs::remove_file(&file)?;
                    self.files.retain(|known| *known != file);
                }
            }
            _ => {
                if let Some(file) = self.some_file() {
                    self.change(&file, number)?;
                }
            }
        }
        Ok(())
    }

    fn create(&mut self, path: PathBuf) -> Result<()> {
        let length = match self.random.below(10) {
            0 => 0,
            1..=4 => self.random.below(3000),
            5..=8 => self.random.below(100_000),
            _ => self.random.below(1_000_000),
        };
        let compressible = self.random.one_in(2);
        fs::write(&path, self.random.bytes(length as usize, compressible))?;
        self.files.push(path);
        Ok(())
    }

    fn change(&mut self, path: &Path, number: u64) -> Result<()> {
        let file = OpenOptions::new().read(true).write(true).open(path)?;
        let size = file.metadata()?.len();
        let offset = self.random.below(size + 70_000);
        match self.random.below(9) {
            0..=2 => {
                let (length, compressible) = (self.random.below(60_000) as usize, self.random.one_in(2));
                file.write_all_at(&self.random.bytes(length, compressible), offset)?;
            }
            3 => file.set_len(offset)?,
            4 => {
                let length = 1 + self.random.below(50_000);
                fallocate(
                    &file,
                    FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
                    offset,
                    length,
                )?;
            }
            5 => {
                let flags = if self.random.one_in(2) {
                    FallocateFlags::KEEP_SIZE
                } else {
                    FallocateFlags::empty()
                };
                fallocate(&file, flags, offset, 1 + self.random.below(100_000))?;
            }
            6 => {
                let length = self.random.below(400) as usize;
                let value = self.random.bytes(length, false);
                setxattr(path, format!("user.x{}", number % 7), &value, XattrFlags::empty())?;
            }
            7 => {
                chown(
                    path,
                    Some(self.random.below(70_000) as u32),
                    Some(self.random.below(70_000) as u32),
                )?;
                rustix::fs::chmod(path, Mode::from_raw_mode(self.random.below(0o1000) as u32))?;
            }
            _ => {
                if let Some(other) = self.some_file() {
                    let target = File::create(&other)?;
                    file.sync_all()?;
                    rustix::fs::ioctl_ficlone(&target, &file)?;
                }
            }
        }
        if self.random.one_in(3) {
            file.sync_all()?;
        }
        Ok(())
    }
}
