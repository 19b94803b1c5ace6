//! Random operations of every kind from a seed.
//!
//! A workload knows the directories and subvolumes that it created, and draws names from a small
//! set, so that names repeat. If an operation is impossible (no such name, exists already, not
//! empty), the refusal is an ordinary answer. Any error other than the caller's own is a failure.
//! Some inodes are held open for a while, even after the removal of their last name.

use anyhow::{Context, Result};
use buttress::unstable::format::ErrorKind;
use buttress::unstable::fs::Error;
use buttress::unstable::writer::WritableFilesystem;
use buttress::unstable::writer::operations::OpenInode;
use buttress::{
    AllocateMode, AttributeChanges, ByteCount, DeviceNumber, FileAttributes, FileKind, FileOffset, Location,
    NewInode, NodeKind, Progress, ReceivedUuid, RenameMode, SetXattr, SubvolumeId, Timestamp,
};
use buttress_oracle::content::Random;

/// Random operations on one volume.
#[derive(Debug)]
pub struct Workload {
    random: Random,
    directories: Vec<Location>,
    subvolumes: Vec<SubvolumeId>,
    names: u64,
    /// Entries that existed when the workload began.
    present: Vec<(Location, Vec<u8>)>,
    held: Vec<OpenInode>,
}

/// Largest number of existing directories that a workload uses.
const KNOWN_MAX: usize = 200;

/// Largest number of inodes held open at once.
const HELD_MAX: usize = 8;

impl Workload {
    /// Creates a workload that knows only the top level.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self {
            random: Random::new(seed),
            directories: vec![Location::root_of(SubvolumeId::TOP_LEVEL)],
            subvolumes: vec![SubvolumeId::TOP_LEVEL],
            names: 40,
            present: Vec::new(),
            held: Vec::new(),
        }
    }

    /// Creates a workload on a volume with content: it knows the volume's subvolumes, and
    /// directories of each. The workload uses existing names of the volume as well as its own ones.
    ///
    /// # Errors
    /// Fails if the volume is unreadable.
    pub fn on(filesystem: &WritableFilesystem, seed: u64) -> Result<Self> {
        let mut workload = Self::new(seed);
        let view = filesystem.view();
        for subvolume in view.subvolumes()? {
            if subvolume.is_deleted() || subvolume.id == SubvolumeId::TOP_LEVEL {
                continue;
            }
            workload.know_subvolume(subvolume.id);
        }
        let mut next = 0;
        while let Some(directory) = workload.directories.get(next).copied() {
            next += 1;
            for entry in view.read_dir(directory)? {
                let entry = entry?;
                let is_known = workload.directories.contains(&entry.target);
                if workload.directories.len() < KNOWN_MAX && entry.kind == FileKind::Directory && !is_known {
                    workload.directories.push(entry.target);
                } else if workload.present.len() < 4 * KNOWN_MAX {
                    workload.present.push((directory, entry.name));
                }
            }
        }
        Ok(workload)
    }

    fn name(&mut self) -> Vec<u8> {
        let number = self.random.below(self.names);
        // Some names are long, so that items of directories differ in size.
        let length = if number.is_multiple_of(5) { 120 } else { 0 };
        format!("name-{number}{}", "x".repeat(length)).into_bytes()
    }

    fn directory(&mut self) -> Location {
        some(&mut self.random, &self.directories).unwrap_or(Location::root_of(SubvolumeId::TOP_LEVEL))
    }

    fn subvolume(&mut self) -> SubvolumeId {
        some(&mut self.random, &self.subvolumes).unwrap_or(SubvolumeId::TOP_LEVEL)
    }

    /// Makes one operation. Returns true if it changed anything; an impossible operation is no
    /// error.
    ///
    /// # Errors
    /// Every error of a call that its caller did not cause.
    pub fn step(&mut self, filesystem: &WritableFilesystem) -> Result<bool> {
        match self.attempt(filesystem) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == ErrorKind::Caller => Ok(false),
            Err(error) => Err(error).context("a random operation"),
        }
    }

    fn attempt(&mut self, filesystem: &WritableFilesystem) -> Result<(), Error> {
        let (directory, name) = self.place();
        let file = NewInode::of_root(0o640);
        match self.random.below(120) {
            0..15 => filesystem.create(directory, &name, &file).map(drop),
            15..30 => self.change_content(filesystem, directory, &name),
            30..40 => {
                let made = filesystem.make_directory(directory, &name, &NewInode::of_root(0o750))?;
                self.directories.push(made);
                Ok(())
            }
            40..55 => filesystem.unlink(directory, &name),
            55..59 => filesystem.remove_directory(directory, &name),
            59..68 => {
                let (other, new_name) = (self.directory(), self.name());
                let mode = match self.random.below(5) {
                    0 => RenameMode::Exchange,
                    1 => RenameMode::NoReplace,
                    2 => RenameMode::Whiteout(file),
                    _ => RenameMode::Replace,
                };
                filesystem.rename(directory, &name, other, &new_name, mode)
            }
            68..73 => {
                let found = filesystem.view().lookup(directory, &name)?;
                let (other, new_name) = (self.directory(), self.name());
                match found {
                    Some(entry) => filesystem.link(entry.target, other, &new_name),
                    None => Ok(()),
                }
            }
            73..77 => {
                let target = self.name();
                filesystem
                    .make_symlink(directory, &name, &file, &target)
                    .map(drop)
            }
            77..89 => self.change_attributes(filesystem, directory),
            89..99 => self.change_subvolumes(filesystem, directory, &name),
            99 => {
                let label = self.name();
                filesystem.set_label(&label)
            }
            100..108 => self.hold(filesystem, directory, &name),
            108..116 => self.let_go(filesystem, directory, &name),
            _ => self.make_node(filesystem, directory, &name),
        }
    }

    fn change_attributes(&mut self, filesystem: &WritableFilesystem, inode: Location) -> Result<(), Error> {
        match self.random.below(18) {
            12..16 => filesystem.set_attributes(inode, &self.attributes()),
            16..18 => {
                let value = some(&mut self.random, &[&b"zstd"[..], b"lzo", b"none"]).unwrap_or(b"zlib");
                filesystem.set_xattr(inode, b"btrfs.compression", value, SetXattr::CreateOrReplace)
            }
            0..6 => {
                let length = usize::try_from(self.random.below(300)).unwrap_or(0);
                let value = vec![b'v'; length];
                filesystem.set_xattr(inode, b"user.random", &value, SetXattr::CreateOrReplace)
            }
            6..9 => {
                let changes = AttributeChanges {
                    mode: Some(0o700),
                    ..AttributeChanges::default()
                };
                filesystem.set_attributes(inode, &changes)
            }
            9 => filesystem.remove_xattr(inode, b"user.random"),
            _ => {
                let flags = [
                    FileAttributes::empty(),
                    FileAttributes::COMPRESS,
                    FileAttributes::NOCOW,
                    FileAttributes::NODUMP,
                ];
                let flags = some(&mut self.random, &flags).unwrap_or(FileAttributes::empty());
                filesystem.set_flags(inode, flags)
            }
        }
    }

    /// Draws owners and times, each of these only sometimes.
    fn attributes(&mut self) -> AttributeChanges {
        let mut time = || {
            let seconds = i64::try_from(self.random.below(1 << 33)).unwrap_or(0) - (1 << 32);
            self.random.one_in(2).then_some(Timestamp {
                seconds,
                nanoseconds: 5,
            })
        };
        let [accessed, modified, changed, created] = [time(), time(), time(), time()];
        let owner = u32::try_from(self.random.below(3)).unwrap_or(0);
        AttributeChanges {
            uid: self.random.one_in(2).then_some(owner),
            gid: self.random.one_in(2).then_some(owner + 1),
            accessed,
            modified,
            changed,
            created,
            ..AttributeChanges::default()
        }
    }

    fn make_node(
        &mut self,
        filesystem: &WritableFilesystem,
        directory: Location,
        name: &[u8],
    ) -> Result<(), Error> {
        let number = |random: &mut Random| u32::try_from(random.below(4000)).unwrap_or(0);
        let device = DeviceNumber {
            major: number(&mut self.random),
            minor: number(&mut self.random),
        };
        let kinds = [
            NodeKind::Fifo,
            NodeKind::Socket,
            NodeKind::CharacterDevice(device),
            NodeKind::BlockDevice(device),
        ];
        let kind = some(&mut self.random, &kinds).unwrap_or(NodeKind::Fifo);
        let made = filesystem.make_node(directory, name, &NewInode::of_root(0o600), kind)?;
        filesystem.set_attributes(made, &self.attributes())
    }

    fn change_subvolumes(
        &mut self,
        filesystem: &WritableFilesystem,
        directory: Location,
        name: &[u8],
    ) -> Result<(), Error> {
        match self.random.below(12) {
            0..2 => {
                let id = filesystem.subvolumes().create(directory, name)?;
                self.know_subvolume(id);
                Ok(())
            }
            2..6 => {
                let read_only = self.random.one_in(2);
                let source = self.subvolume();
                let id = filesystem
                    .subvolumes()
                    .snapshot(source, directory, name, read_only)?;
                self.know_subvolume(id);
                Ok(())
            }
            6..8 => {
                let id = self.subvolume();
                filesystem.subvolumes().delete(id)?;
                self.subvolumes.retain(|other| *other != id);
                self.directories.retain(|other| other.subvolume != id);
                Ok(())
            }
            8 => filesystem.subvolumes().drop_deleted(&Progress::new()),
            9 => {
                let id = self.subvolume();
                filesystem.subvolumes().set_default(id)
            }
            _ => {
                let id = self.subvolume();
                // If the top level were read-only, nearly everything would be refused.
                let read_only = id != SubvolumeId::TOP_LEVEL && self.random.one_in(3);
                filesystem
                    .subvolumes()
                    .set_read_only(id, read_only, ReceivedUuid::Clear)
            }
        }
    }

    /// Holds an inode open: the inode with the name, whose name may then be removed, or a new inode
    /// without a name.
    fn hold(
        &mut self,
        filesystem: &WritableFilesystem,
        directory: Location,
        name: &[u8],
    ) -> Result<(), Error> {
        if self.held.len() >= HELD_MAX {
            self.held.remove(0);
        }
        if self.random.one_in(2) {
            let made = filesystem.make_unnamed(directory, &NewInode::of_root(0o600))?;
            let written = filesystem.write_at(made.location(), FileOffset::MIN, &[0x55; 9000]);
            self.held.push(made);
            return written;
        }
        let Some(entry) = filesystem.view().lookup(directory, name)? else {
            return Ok(());
        };
        self.held.push(filesystem.open_inode(entry.target)?);
        filesystem.unlink(directory, name)
    }

    /// Releases a held inode, sometimes after giving it a name.
    fn let_go(
        &mut self,
        filesystem: &WritableFilesystem,
        directory: Location,
        name: &[u8],
    ) -> Result<(), Error> {
        if self.held.is_empty() {
            return Ok(());
        }
        let number = usize::try_from(self.random.below(self.held.len() as u64)).unwrap_or(0);
        let held = self.held.swap_remove(number);
        if self.random.one_in(2) {
            return filesystem.link(held.location(), directory, name);
        }
        Ok(())
    }

    /// Changes the content of a file, if the name refers to one.
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
        let sector = |random: &mut Random| FileOffset::new(random.below(16) * 4096);
        let offset = sector(&mut self.random);
        match self.random.below(12) {
            0..5 => {
                let length = usize::try_from(self.random.below(40_000) + 1).unwrap_or(1);
                let shrinks = self.random.one_in(2);
                let content = self.random.bytes(length, shrinks);
                filesystem.write_at(file, offset, &content)
            }
            5 => {
                let size = self.random.below(80_000);
                filesystem.truncate(file, ByteCount::new(size))
            }
            6..9 => {
                let end = offset.saturating_add(ByteCount::new(16_384));
                let modes = [
                    AllocateMode::Allocate,
                    AllocateMode::AllocateKeepSize,
                    AllocateMode::PunchHole,
                    AllocateMode::ZeroRange,
                    AllocateMode::ZeroRangeKeepSize,
                ];
                let mode = some(&mut self.random, &modes).unwrap_or(AllocateMode::Allocate);
                filesystem.allocate(file, offset..end, mode)
            }
            choice => {
                let (other, other_name) = self.place();
                let Some(target) = filesystem.view().lookup(other, &other_name)? else {
                    return Ok(());
                };
                let range = offset..offset.saturating_add(ByteCount::new(8192));
                let to = sector(&mut self.random);
                match choice {
                    9 => filesystem.copy_range(file, range, target.target, to).map(drop),
                    10 => filesystem
                        .dedupe_range(file, range.clone(), target.target, range.start)
                        .map(drop),
                    _ => filesystem.clone_range(file, range, target.target, to),
                }
            }
        }
    }

    /// Draws a directory and a name in it, which may exist or not.
    fn place(&mut self) -> (Location, Vec<u8>) {
        if !self.present.is_empty() && self.random.one_in(3) {
            let number = self.random.below(self.present.len() as u64);
            if let Some(place) = usize::try_from(number)
                .ok()
                .and_then(|number| self.present.get(number))
            {
                return place.clone();
            }
        }
        (self.directory(), self.name())
    }

    fn know_subvolume(&mut self, id: SubvolumeId) {
        self.subvolumes.push(id);
        self.directories.push(Location::root_of(id));
    }
}

fn some<T: Copy>(random: &mut Random, all: &[T]) -> Option<T> {
    let number = random.below(all.len() as u64);
    all.get(usize::try_from(number).ok()?).copied()
}
