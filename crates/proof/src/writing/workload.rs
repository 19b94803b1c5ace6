//! Random operations of every kind from a seed.
//!
//! A workload knows the directories and subvolumes that it made and tries names out of a small set, so that names are
//! met again: what cannot be done (no such name, exists already, not empty) is an answer like another. Anything but the
//! caller's own errors is a failure.

use anyhow::{Context, Result};
use buttress::format::{ByteCount, ErrorKind, FileOffset};
use buttress::fs::operations::{AttributeChanges, NewInode, ReceivedUuid, RenameMode, SetXattr};
use buttress::fs::{AllocateMode, Error, WritableFilesystem};
use buttress::{Location, Progress, SubvolumeId};

/// A small generator of random numbers (splitmix64).
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// Starts from a seed.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Any number.
    pub fn next_number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `limit`, which is not zero.
    pub fn below(&mut self, limit: usize) -> usize {
        usize::try_from(self.next_number() % limit as u64).unwrap_or(0)
    }
}

/// Random operations on one volume.
#[derive(Debug)]
pub struct Workload {
    random: Random,
    directories: Vec<Location>,
    subvolumes: Vec<SubvolumeId>,
    names: usize,
}

impl Workload {
    /// A workload on a volume of which it knows the top level only.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self {
            random: Random::new(seed),
            directories: vec![Location::root_of(SubvolumeId::TOP_LEVEL)],
            subvolumes: vec![SubvolumeId::TOP_LEVEL],
            names: 40,
        }
    }

    fn name(&mut self) -> Vec<u8> {
        let number = self.random.below(self.names);
        // Some names are long, so that items of directories differ in size.
        let length = if number.is_multiple_of(5) { 120 } else { 0 };
        format!("name-{number}{}", "x".repeat(length)).into_bytes()
    }

    fn directory(&mut self) -> Location {
        let index = self.random.below(self.directories.len());
        self.directories
            .get(index)
            .copied()
            .unwrap_or(Location::root_of(SubvolumeId::TOP_LEVEL))
    }

    fn subvolume(&mut self) -> SubvolumeId {
        let index = self.random.below(self.subvolumes.len());
        self.subvolumes
            .get(index)
            .copied()
            .unwrap_or(SubvolumeId::TOP_LEVEL)
    }

    /// Does one operation. What it could not do is an answer; true when it did something.
    ///
    /// # Errors
    /// Everything that is not the caller's fault.
    pub fn step(&mut self, filesystem: &WritableFilesystem) -> Result<bool> {
        match self.attempt(filesystem) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == ErrorKind::Caller => Ok(false),
            Err(error) => Err(error).context("a random operation"),
        }
    }

    fn attempt(&mut self, filesystem: &WritableFilesystem) -> Result<(), Error> {
        let (directory, name) = (self.directory(), self.name());
        let file = NewInode::of_root(0o640);
        match self.random.below(100) {
            0..=14 => filesystem.create(directory, &name, &file).map(drop),
            15..=29 => self.change_content(filesystem, directory, &name),
            30..=39 => {
                let made = filesystem.make_directory(directory, &name, &NewInode::of_root(0o750))?;
                self.directories.push(made);
                Ok(())
            }
            40..=54 => filesystem.unlink(directory, &name),
            55..=58 => filesystem.remove_directory(directory, &name),
            59..=67 => {
                let (other, new_name) = (self.directory(), self.name());
                let mode = match self.random.below(4) {
                    0 => RenameMode::Exchange,
                    1 => RenameMode::NoReplace,
                    _ => RenameMode::Replace,
                };
                filesystem.rename(directory, &name, other, &new_name, mode)
            }
            68..=72 => {
                let found = filesystem.view().lookup(directory, &name)?;
                let (other, new_name) = (self.directory(), self.name());
                match found {
                    Some(entry) => filesystem.link(entry.target, other, &new_name),
                    None => Ok(()),
                }
            }
            73..=76 => {
                let target = self.name();
                filesystem
                    .make_symlink(directory, &name, &file, &target)
                    .map(drop)
            }
            77..=84 => {
                let length = self.random.below(300);
                let value = vec![b'v'; length];
                filesystem.set_xattr(directory, b"user.random", &value, SetXattr::CreateOrReplace)
            }
            85..=88 => {
                let changes = AttributeChanges {
                    mode: Some(0o700),
                    ..AttributeChanges::default()
                };
                filesystem.set_attributes(directory, &changes)
            }
            89..=90 => {
                let id = filesystem.create_subvolume(directory, &name)?;
                self.know_subvolume(id);
                Ok(())
            }
            91..=94 => {
                let read_only = self.random.below(2) == 0;
                let source = self.subvolume();
                let id = filesystem.snapshot(source, directory, &name, read_only)?;
                self.know_subvolume(id);
                Ok(())
            }
            95..=96 => {
                let id = self.subvolume();
                filesystem.delete_subvolume(id)?;
                self.subvolumes.retain(|other| *other != id);
                self.directories.retain(|other| other.subvolume != id);
                Ok(())
            }
            97 => filesystem.drop_deleted_subvolumes(&Progress::new()),
            98 => {
                let id = self.subvolume();
                filesystem.set_read_only(id, false, ReceivedUuid::Clear)
            }
            _ => {
                let label = self.name();
                filesystem.set_label(&label)
            }
        }
    }

    /// Changes the content of a file, if the name is one.
    fn change_content(
        &mut self,
        filesystem: &WritableFilesystem,
        directory: Location,
        name: &[u8],
    ) -> Result<(), Error> {
        let Some(entry) = filesystem.view().lookup(directory, name)? else {
            return Ok(());
        };
        let file = entry.target;
        let sector = |random: &mut Random| FileOffset::new(random.below(16) as u64 * 4096);
        let offset = sector(&mut self.random);
        match self.random.below(10) {
            0..=4 => {
                let length = self.random.below(40_000).saturating_add(1);
                let byte = u8::try_from(self.random.below(256)).unwrap_or(0);
                // Some content shrinks, some does not.
                let content: Vec<u8> = if byte % 2 == 0 {
                    vec![byte; length]
                } else {
                    (0..length)
                        .map(|_| self.random.next_number().to_le_bytes()[0])
                        .collect()
                };
                filesystem.write_at(file, offset, &content)
            }
            5 => {
                let size = self.random.below(80_000) as u64;
                filesystem.truncate(file, ByteCount::new(size))
            }
            6 => {
                let end = offset.saturating_add(ByteCount::new(16_384));
                filesystem.allocate(file, offset..end, AllocateMode::PunchHole)
            }
            7 => {
                let end = offset.saturating_add(ByteCount::new(16_384));
                filesystem.allocate(file, offset..end, AllocateMode::Allocate)
            }
            _ => {
                let (other, other_name) = (self.directory(), self.name());
                let Some(target) = filesystem.view().lookup(other, &other_name)? else {
                    return Ok(());
                };
                let end = offset.saturating_add(ByteCount::new(8192));
                let place = sector(&mut self.random);
                filesystem.clone_range(file, offset..end, target.target, place)
            }
        }
    }

    fn know_subvolume(&mut self, id: SubvolumeId) {
        self.subvolumes.push(id);
        self.directories.push(Location::root_of(id));
    }
}
