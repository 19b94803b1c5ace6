//! Random calls from a seed. Most calls are on a few files, directories and names, so that threads
//! interact.

use super::call::Call;
use super::observation::all_inodes;
use crate::writing::content::Change;
use crate::writing::model::{Inode, Model};
use crate::writing::operation::{Mode, Operation, can_be_drawn};
use buttress::{AllocateMode, Location, SubvolumeId};
use buttress_oracle::content::Random;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Number of drawable names; each round prefers some of them.
const NAMES: u64 = 10;
/// Number of inodes above which a drawn creation or link of a file or directory becomes a removal.
const INODES_MAX: usize = 70;
/// Number of subvolumes at which no further one is created.
const SUBVOLUMES_MAX: usize = 6;
/// Size up to which files grow, except by appending, in bytes.
const SIZE_MAX: u64 = 48 << 10;
const SECTOR: u64 = 4096;

/// Context from which one thread draws.
#[derive(Debug)]
pub struct Drawing<'a> {
    /// Model of the volume at the beginning of the round.
    pub model: &'a Model,
    /// Targets that the calls of a round prefer.
    pub hot: &'a Hot,
    /// Inodes that this thread has met since the round began.
    pub met: Vec<Location>,
    /// Index of the thread, and the number of threads. Each inode may be held by only one thread,
    /// which the inode's number determines.
    pub thread: (usize, usize),
}

/// Targets of most calls in a round.
#[derive(Debug)]
pub struct Hot {
    directories: Vec<Location>,
    files: Vec<Location>,
    names: u64,
}

impl Hot {
    /// Draws the preferred targets.
    #[must_use]
    pub fn draw(model: &Model, random: &mut Random) -> Self {
        let mut some = |wanted: fn(&Inode) -> bool, count: usize| -> Vec<Location> {
            let all: Vec<Location> = all_inodes(model)
                .filter(|(location, inode)| wanted(inode) && model.is_writable(*location))
                .map(|(location, _)| location)
                .collect();
            (0..count).filter_map(|_| one(random, &all)).collect()
        };
        Self {
            directories: some(Inode::is_directory, 2),
            files: some(Inode::is_file, 2),
            names: random.below(3) + 2,
        }
    }
}

fn one<T: Copy>(random: &mut Random, of: &[T]) -> Option<T> {
    let number = random.below(of.len() as u64);
    of.get(usize::try_from(number).ok()?).copied()
}

impl Drawing<'_> {
    fn directory(&self, random: &mut Random) -> Location {
        if random.below(10) < 7
            && let Some(directory) = one(random, &self.hot.directories)
        {
            return directory;
        }
        self.any(random, Inode::is_directory)
            .unwrap_or(Location::root_of(SubvolumeId::TOP_LEVEL))
    }

    fn any(&self, random: &mut Random, wanted: fn(&Inode) -> bool) -> Option<Location> {
        if random.one_in(4)
            && let Some(met) = one(random, &self.met)
        {
            return Some(met);
        }
        let all: Vec<Location> = all_inodes(self.model)
            .filter(|(_, inode)| wanted(inode))
            .map(|(location, _)| location)
            .collect();
        one(random, &all)
    }

    fn file(&self, random: &mut Random) -> Location {
        if random.below(10) < 7
            && let Some(file) = one(random, &self.hot.files)
        {
            return file;
        }
        self.any(random, Inode::is_file)
            .unwrap_or(Location::root_of(SubvolumeId::TOP_LEVEL))
    }

    fn inode(&self, random: &mut Random) -> Location {
        if random.one_in(3) {
            self.directory(random)
        } else {
            self.file(random)
        }
    }

    fn name(&self, random: &mut Random) -> Vec<u8> {
        let end = if random.one_in(4) { NAMES } else { self.hot.names };
        format!("n{}", random.below(end)).into_bytes()
    }

    fn subvolume(&self, random: &mut Random) -> SubvolumeId {
        let all: Vec<SubvolumeId> = self.model.subvolumes.keys().copied().collect();
        one(random, &all).unwrap_or(SubvolumeId::TOP_LEVEL)
    }

    /// Draws the next call. `held` are the inodes that this thread holds.
    pub fn draw(&self, random: &mut Random, held: &BTreeSet<Location>) -> Call {
        loop {
            let call = match random.below(100) {
                0..45 => Call::Change(self.change(random, held)),
                45..58 => Call::Change(self.content(random)),
                58..68 => Call::Lookup(self.directory(random), self.name(random)),
                68..76 => Call::Stat(self.inode(random)),
                76..82 => Call::List(self.directory(random)),
                82..84 => Call::ListInView(self.directory(random)),
                84..94 => {
                    let offset = if random.one_in(2) {
                        0
                    } else {
                        random.below(SIZE_MAX)
                    };
                    Call::Read(self.file(random), offset, 64 << 10)
                }
                94..96 => Call::Xattr(self.inode(random), b"user.a".to_vec()),
                96..98 => Call::WriteBack(self.file(random)),
                _ => Call::Commit,
            };
            match &call {
                Call::Change(operation) if !self.is_drawn(operation) => {}
                // A read of a directory is refused, as is a read of another kind of file, but with
                // another error.
                _ => return call,
            }
        }
    }

    fn is_drawn(&self, operation: &Operation) -> bool {
        let met = |location: &Location| self.model.inode(*location).is_none();
        match operation {
            // The model does not contain the inodes that this round created.
            Operation::Content(_, change) => change.shared().is_none_or(|(source, ..)| !met(&source)),
            Operation::Link(inode, ..) => met(inode) || can_be_drawn(self.model, operation),
            other => can_be_drawn(self.model, other),
        }
    }

    fn change(&self, random: &mut Random, held: &BTreeSet<Location>) -> Operation {
        let (directory, name) = (self.directory(random), self.name(random));
        let is_full = all_inodes(self.model).count() > INODES_MAX;
        let choice = random.below(100);
        let choice = if is_full && choice < 30 {
            30 + random.below(22)
        } else {
            choice
        };
        match choice {
            0..18 => Operation::Create(directory, name, 0o644),
            18..26 => Operation::MakeDirectory(directory, name, 0o755),
            26..30 => Operation::Link(self.file(random), directory, name),
            30..44 => Operation::Unlink(directory, name),
            44..52 => Operation::RemoveDirectory(directory, name),
            52..66 => self.rename(random, directory, name, Mode::Replace),
            66..70 => self.rename(random, directory, name, Mode::NoReplace),
            70..80 => self.rename(random, directory, name, Mode::Exchange),
            80..84 => {
                let value = format!("value {}", random.below(1000)).into_bytes();
                Operation::SetXattr(self.inode(random), b"user.a".to_vec(), value)
            }
            84 => Operation::RemoveXattr(self.inode(random), b"user.a".to_vec()),
            85..88 => {
                let mode = [0o600, 0o640, 0o755, 0o711][usize::try_from(random.below(4)).unwrap_or(0)];
                Operation::SetMode(self.inode(random), mode)
            }
            88 => Operation::SetOwner(self.inode(random), 7, 8),
            89..94 => self.hold(random, held),
            _ => self.subvolumes(random, directory, name),
        }
    }

    fn rename(&self, random: &mut Random, from: Location, old: Vec<u8>, mode: Mode) -> Operation {
        let to = if random.one_in(2) {
            from
        } else {
            self.directory(random)
        };
        Operation::Rename(from, old, to, self.name(random), mode)
    }

    /// Opens a file to hold it, or releases it.
    fn hold(&self, random: &mut Random, held: &BTreeSet<Location>) -> Operation {
        let all: Vec<Location> = held.iter().copied().collect();
        let file = self.file(random);
        let is_file = self.model.inode(file).is_some_and(Inode::is_file);
        let (thread, threads) = self.thread;
        let is_own = file.inode.get() % threads as u64 == thread as u64;
        match one(random, &all) {
            Some(held) if random.one_in(2) => Operation::Release(held),
            _ if is_file && is_own && !held.contains(&file) => Operation::Hold(file),
            Some(held) => Operation::Release(held),
            None => Operation::SetMode(file, 0o644),
        }
    }

    fn subvolumes(&self, random: &mut Random, directory: Location, name: Vec<u8>) -> Operation {
        let is_few = self.model.subvolumes.len() < SUBVOLUMES_MAX;
        let id = self.subvolume(random);
        match random.below(10) {
            0..2 if is_few => Operation::CreateSubvolume(directory, name),
            2..6 if is_few && id != SubvolumeId::TOP_LEVEL => Operation::Snapshot(id, directory, name, true),
            0..8 => Operation::DeleteSubvolume(id),
            8 => Operation::SetDefault(id),
            // If the top level became read-only, nearly all calls would be refused.
            _ => Operation::SetReadOnly(id, id != SubvolumeId::TOP_LEVEL && random.one_in(4)),
        }
    }

    fn content(&self, random: &mut Random) -> Operation {
        let file = self.file(random);
        let offset = match random.below(3) {
            0 => 0,
            1 => random.below(8) * SECTOR,
            _ => random.below(SIZE_MAX / 2),
        };
        let length = match random.below(3) {
            0 => random.below(600) + 1,
            1 => (random.below(4) + 1) * SECTOR,
            _ => random.below(SIZE_MAX / 4) + 1,
        };
        let value = u8::try_from(random.below(255) + 1).unwrap_or(1);
        let bytes = |length: u64| Arc::new(vec![value; usize::try_from(length).unwrap_or(0)]);
        let change = match random.below(20) {
            0..9 => Change::Write(offset, bytes(length)),
            9..11 => Change::Append(bytes(length % 700 + 1)),
            11..14 => Change::Truncate(random.below(SIZE_MAX)),
            14 | 15 => Change::Allocate(offset, length, AllocateMode::PunchHole),
            16 => Change::Allocate(offset, length, AllocateMode::ZeroRange),
            17 => Change::Allocate(offset, length, AllocateMode::Allocate),
            choice => {
                let source = self.file(random);
                let [at, to] = [random.below(6) * SECTOR, random.below(6) * SECTOR];
                let length = (random.below(3) + 1) * SECTOR;
                if choice == 18 {
                    Change::Clone(source, at, length, to)
                } else {
                    Change::Copy(source, at, length, to)
                }
            }
        };
        Operation::Content(file, change)
    }

    /// Records the inode of an answer, except roots of subvolumes: those created in this round are
    /// not used until the next.
    pub fn meet(&mut self, location: Option<Location>) {
        self.met
            .extend(location.filter(|found| !found.is_subvolume_root() && found.placeholder().is_none()));
    }
}
