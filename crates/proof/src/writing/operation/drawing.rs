//! Random changes from a seed, most of them valid, with existing names and missing ones.
//!
//! Series of changes reach limits: names of one hash until their item is full, names of one inode
//! until some go to extended items, and back.

use super::{Mode, Operation};
use crate::writing::access_list::AccessList;
use crate::writing::content::Change;
use crate::writing::model::{Inode, Model};
use crate::writing::newborn::COMPRESSION;
use buttress::{FileAttributes, InodeNumber, Location, SubvolumeId};
use buttress_oracle::content::Random;
use buttress_oracle::content::names_of_one_hash;
use std::collections::VecDeque;
use std::sync::OnceLock;

/// Number of names to choose from, few so that they repeat.
const NAMES: u64 = 24;

/// Number of draws per series.
const SERIES_EVERY: u64 = 500;

/// Number of names for one series, more than items of 16 KiB blocks hold. Volumes with smaller
/// blocks need fewer files.
const SERIES_NAMES: usize = 66;
const SHORT_SERIES_NAMES: usize = 20;

/// Number of attempts to find a better directory for a series of changes.
const SERIES_TRIES: usize = 8;

/// Largest number of inodes held at once.
const HELD_MAX: usize = 8;

/// Largest size of an attribute that shares its item with two other ones, in bytes.
const SHARED_XATTR_BYTES: usize = 300;

/// Returns long names that share one hash.
fn colliding() -> &'static [String] {
    static NAMES: OnceLock<Vec<String>> = OnceLock::new();
    NAMES.get_or_init(|| names_of_one_hash::names("hash-", 255, SERIES_NAMES))
}

/// Returns whether a name is one of those that share one hash.
pub(crate) fn is_of_one_hash(name: &[u8]) -> bool {
    name.len() == 255 && name.starts_with(b"hash-")
}

/// Returns a long name, few of which fit into an item of an inode's names.
fn long_name(number: usize) -> Vec<u8> {
    format!("link-{number:0>245}").into_bytes()
}

/// Context from which changes are drawn.
struct Draw<'a> {
    model: &'a Model,
    random: &'a mut Random,
}

impl Draw<'_> {
    fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.random.below(bound.max(1) as u64)).unwrap_or(0)
    }

    fn of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())]
    }

    fn subvolume(&mut self) -> SubvolumeId {
        let number = self.below(self.model.subvolumes.len());
        let ids = self.model.subvolumes.keys();
        ids.copied().nth(number).unwrap_or(SubvolumeId::TOP_LEVEL)
    }

    /// Draws a matching inode of any subvolume; if none matches, the root of a subvolume.
    fn inode(&mut self, wanted: impl Fn(&Inode) -> bool) -> Location {
        let id = self.subvolume();
        let found: Vec<u64> = self.model.subvolumes[&id]
            .inodes
            .iter()
            .filter(|(_, inode)| wanted(inode))
            .map(|(number, _)| *number)
            .collect();
        let number = self.below(found.len());
        let inode = found.get(number).copied().unwrap_or(256);
        Location::new(id, InodeNumber::new(inode))
    }

    fn directory(&mut self) -> Location {
        self.inode(Inode::is_directory)
    }

    /// Draws a name that may exist or not.
    fn name(&mut self) -> Vec<u8> {
        match self.random.below(NAMES) {
            0 => vec![b'n'; 255],
            1 => b"with \xff bytes".to_vec(),
            2 => {
                let number = self.below(SERIES_NAMES);
                colliding()[number].clone().into_bytes()
            }
            number => format!("name-{number}").into_bytes(),
        }
    }

    /// Draws an existing name, if there is one.
    fn present(&mut self) -> (Location, Vec<u8>) {
        let directory = self.inode(|inode| inode.is_directory() && !inode.entries.is_empty());
        let name = self.name_in(directory);
        (directory, name)
    }

    /// Draws an existing name in a directory, or any name.
    fn name_in(&mut self, directory: Location) -> Vec<u8> {
        let names: Vec<Vec<u8>> = self
            .model
            .inode(directory)
            .map_or(Vec::new(), |inode| inode.entries.keys().cloned().collect());
        let number = self.below(names.len());
        let name = names.get(number).cloned();
        name.unwrap_or_else(|| self.name())
    }

    /// Draws a subdirectory, preferably an empty one; any directory if none exists.
    fn inner_directory(&mut self) -> (Location, Vec<u8>) {
        let is_empty = !self.random.one_in(4);
        let inner = self.inode(|inode| inode.is_directory() && (!is_empty || inode.entries.is_empty()));
        self.model.name_of(inner).unwrap_or_else(|| self.present())
    }

    fn mode(&mut self) -> u32 {
        let set_ids = self.of(&[0, 0, 0, 0, 0o2000, 0o2000, 0o4000, 0o1000]);
        u32::try_from(self.random.below(0o1000)).unwrap_or(0) | 0o400 | set_ids
    }

    fn xattr(&mut self) -> (Vec<u8>, Vec<u8>) {
        let length = self.below(200) * self.below(10);
        let mut value = self.random.bytes(length, false);
        let name = match self.below(10) {
            0 => b"trusted.attribute".to_vec(),
            number @ 1..4 => {
                value.truncate(SHARED_XATTR_BYTES);
                names_of_one_hash::xattrs()[number - 1].clone().into_bytes()
            }
            number => format!("user.attribute-{number}").into_bytes(),
        };
        (name, value)
    }

    fn list(&mut self) -> Option<AccessList> {
        (!self.random.one_in(4)).then(|| AccessList::draw(self.random))
    }

    /// Draws a change of flags. Existing flags are mostly cleared, because otherwise soon nothing
    /// could be changed.
    fn flags(&mut self) -> Operation {
        let takes = |inode: &Inode| inode.is_file() || inode.is_directory();
        if !self.random.one_in(3) {
            let fixed = self.inode(|inode| takes(inode) && inode.is_fixed());
            if self.model.inode(fixed).is_some_and(Inode::is_fixed) {
                return Operation::SetFlags(fixed, FileAttributes::empty());
            }
        }
        let flags = self.of(&[
            FileAttributes::empty(),
            FileAttributes::COMPRESS,
            FileAttributes::COMPRESS | FileAttributes::NODUMP,
            FileAttributes::NOCOMPRESS,
            FileAttributes::NOCOW,
            FileAttributes::NOCOW | FileAttributes::NOATIME,
            FileAttributes::IMMUTABLE,
            FileAttributes::APPEND,
            FileAttributes::SYNC | FileAttributes::DIRSYNC,
            FileAttributes::COMPRESS | FileAttributes::NOCOW,
            FileAttributes::COMPRESS | FileAttributes::NOCOMPRESS,
        ]);
        let is_new = self.random.below(2) == 0;
        let inode = self.inode(|inode| takes(inode) && (!is_new || inode.content.is_empty()));
        Operation::SetFlags(inode, flags)
    }

    /// Draws a change of a held inode, or a new inode to hold.
    fn held(&mut self, choice: u64) -> Operation {
        let number = self.below(self.model.held.len());
        let held = self.model.held.iter().nth(number).copied();
        match (choice, held) {
            (0..2, _) if self.model.held.len() < HELD_MAX => {
                Operation::MakeUnnamed(self.directory(), self.mode())
            }
            (2, _) if self.model.held.len() < HELD_MAX => {
                let file = self.inode(|inode| inode.is_file() && inode.links > 0);
                // Only files are held, each of them once.
                if self.model.inode(file).is_some_and(Inode::is_file) && !self.model.held.contains(&file) {
                    return Operation::Hold(file);
                }
                Operation::MakeUnnamed(self.directory(), self.mode())
            }
            (3..5, Some(held)) => Operation::Release(held),
            (5, Some(held)) => {
                let root = Location::root_of(held.subvolume);
                Operation::Link(held, root, self.name())
            }
            // Remove the last names of the held inode.
            (_, Some(held)) => {
                let (directory, name) = self.model.name_of(held).unwrap_or((held, Vec::new()));
                if name.is_empty() {
                    return Operation::Release(held);
                }
                Operation::Unlink(directory, name)
            }
            (_, None) => Operation::MakeUnnamed(self.directory(), self.mode()),
        }
    }

    fn volume(&mut self, choice: u64) -> Operation {
        match choice {
            // The top level stays writable, because everything else depends on it.
            0..4 => match self.subvolume() {
                SubvolumeId::TOP_LEVEL => Operation::SetDefault(self.subvolume()),
                id => Operation::SetReadOnly(id, self.random.one_in(3)),
            },
            4 => Operation::SetDefault(self.subvolume()),
            _ => {
                let length = self.below(60);
                Operation::SetLabel(vec![b'l'; length])
            }
        }
    }

    fn rename(&mut self) -> Operation {
        let (from, name) = self.present();
        let to = match self.random.below(3) {
            0 => from,
            1 => self.directory(),
            // Move the entry within the same subvolume.
            _ => {
                let directories: Vec<u64> = self.model.subvolumes[&from.subvolume]
                    .inodes
                    .iter()
                    .filter(|(_, inode)| inode.is_directory())
                    .map(|(number, _)| *number)
                    .collect();
                Location::new(from.subvolume, InodeNumber::new(self.of(&directories)))
            }
        };
        let mode = self.of(&[
            Mode::NoReplace,
            Mode::NoReplace,
            Mode::Exchange,
            Mode::Exchange,
            Mode::Whiteout,
            Mode::Replace,
            Mode::Replace,
            Mode::Replace,
        ]);
        // Both names of an exchange must exist.
        let new_name = match mode {
            Mode::Exchange => self.name_in(to),
            _ => self.name(),
        };
        Operation::Rename(from, name, to, new_name, mode)
    }

    fn attribute(&mut self, choice: u64) -> Operation {
        match choice {
            0..8 => {
                let (name, value) = self.xattr();
                Operation::SetXattr(self.inode(|_| true), name, value)
            }
            8..11 => {
                let inode = self.inode(|inode| !inode.xattrs.is_empty());
                let xattrs = self.model.inode(inode).map(|inode| inode.xattrs.keys().cloned());
                let names: Vec<Vec<u8>> = xattrs.into_iter().flatten().collect();
                let number = self.below(names.len());
                match names.get(number) {
                    // Extended attributes exclude the compression property, which a separate change
                    // covers.
                    Some(name) if name != COMPRESSION => Operation::RemoveXattr(inode, name.clone()),
                    _ => Operation::RemoveXattr(inode, self.xattr().0),
                }
            }
            11..14 => Operation::SetMode(self.inode(|inode| inode.target.is_empty()), self.mode()),
            14..16 => Operation::SetOwner(self.inode(|_| true), self.below(3) as u32, self.below(3) as u32),
            16..18 => Operation::SetModified(self.inode(|_| true), 5_000_000 + self.below(1000) as i64),
            18..23 => self.flags(),
            23..27 => Operation::SetAccessList(self.inode(|_| true), self.list()),
            27 => Operation::SetDefaultList(self.inode(|_| true), self.list()),
            28..30 => Operation::SetDefaultList(self.directory(), self.list()),
            _ => {
                let values = [
                    Some("zlib"),
                    Some("lzo"),
                    Some("zstd"),
                    Some("none"),
                    Some("no"),
                    Some(""),
                    Some("gzip"),
                    None,
                ];
                let inode = self.inode(|inode| inode.is_file() || inode.is_directory());
                Operation::SetCompression(inode, self.of(&values))
            }
        }
    }

    fn content(&mut self) -> Operation {
        let file = self.inode(Inode::is_file);
        let source = self.inode(Inode::is_file);
        Operation::Content(file, Change::draw(self.model, self.random, file, source))
    }
}

impl Operation {
    /// Draws a change, or several related ones.
    #[must_use]
    pub fn draw(model: &Model, random: &mut Random) -> VecDeque<Self> {
        let is_series = random.one_in(SERIES_EVERY);
        let choice = random.below(184);
        let mut draw = Draw { model, random };
        if is_series {
            let kind = draw.below(6);
            return draw.series(kind);
        }
        let operation = match choice {
            0..24 => Self::Create(draw.directory(), draw.name(), draw.mode()),
            24..31 => Self::MakeDirectory(draw.directory(), draw.name(), draw.mode()),
            31..36 => {
                let length = draw.below(300) + 1;
                Self::MakeSymlink(draw.directory(), draw.name(), vec![b't'; length])
            }
            36..38 => Self::MakeNode(draw.directory(), draw.name(), draw.below(4) as u8),
            38..45 => {
                let inode = draw.inode(|inode| !inode.is_directory());
                Self::Link(inode, draw.directory(), draw.name())
            }
            45..57 => {
                let (directory, name) = draw.present();
                Self::Unlink(directory, name)
            }
            57..61 => {
                let (directory, name) = draw.inner_directory();
                Self::RemoveDirectory(directory, name)
            }
            61..74 => draw.rename(),
            74..107 => draw.attribute(choice - 74),
            107..109 => Self::CreateSubvolume(draw.directory(), draw.name()),
            109..112 => {
                let read_only = draw.random.below(2) == 0;
                Self::Snapshot(draw.subvolume(), draw.directory(), draw.name(), read_only)
            }
            112..114 => Self::DeleteSubvolume(draw.subvolume()),
            114 => Self::DropDeleted,
            115..121 => draw.volume(choice - 115),
            121..128 => draw.held(choice - 121),
            _ => draw.content(),
        };
        VecDeque::from([operation])
    }
}

impl Operation {
    /// Draws a series that fills an item with names, alternately of one hash and of one inode.
    #[must_use]
    pub fn draw_filling(model: &Model, random: &mut Random, turn: u64) -> VecDeque<Self> {
        Draw { model, random }.series(if turn.is_multiple_of(2) { 0 } else { 3 })
    }
}

impl Draw<'_> {
    /// Returns the changes of a series that fills an item with names, or empties it.
    fn series(&mut self, kind: usize) -> VecDeque<Operation> {
        let count = if self.model.node_bytes < 16 << 10 {
            SHORT_SERIES_NAMES
        } else {
            SERIES_NAMES
        };
        let names = colliding().iter().take(count);
        let names = names.map(|name| name.clone().into_bytes());
        let file = self.file_to_link();
        match kind {
            0..2 => {
                let directory = self.open_directory();
                let make = |(number, name): (usize, Vec<u8>)| match number % 3 {
                    0 => Operation::Link(file, directory, name),
                    1 => Operation::MakeSymlink(directory, name, b"t".to_vec()),
                    _ => Operation::Create(directory, name, 0o600),
                };
                names.enumerate().map(make).collect()
            }
            2 => {
                let directory = self.fullest(is_of_one_hash);
                names.map(|name| Operation::Unlink(directory, name)).collect()
            }
            3..5 => {
                let directory = self.model.name_of(file).map_or(file, |(directory, _)| directory);
                let link = |number| Operation::Link(file, directory, long_name(number));
                (0..count).map(link).collect()
            }
            _ => {
                let directory = self.fullest(|name| name.starts_with(b"link-"));
                let names = (0..count).rev().map(long_name);
                names.map(|name| Operation::Unlink(directory, name)).collect()
            }
        }
    }

    /// Draws a directory that accepts new names, within a few attempts.
    fn open_directory(&mut self) -> Location {
        let mut found = self.directory();
        for _ in 0..SERIES_TRIES {
            if self.model.takes_names(found) {
                break;
            }
            found = self.directory();
        }
        found
    }

    /// Draws a file that accepts names, within a few attempts.
    fn file_to_link(&mut self) -> Location {
        let mut found = self.inode(Inode::is_file);
        for _ in 0..SERIES_TRIES {
            let is_open = self
                .model
                .inode(found)
                .is_some_and(|inode| inode.is_file() && !inode.is_fixed());
            if is_open && self.model.is_writable(found) {
                break;
            }
            found = self.inode(Inode::is_file);
        }
        found
    }

    /// Returns the directory with the most names of a kind.
    fn fullest(&mut self, is_one: impl Fn(&[u8]) -> bool) -> Location {
        let count = |inode: &Inode| inode.entries.keys().filter(|name| is_one(name)).count();
        let all = self.model.subvolumes.iter().flat_map(|(id, subvolume)| {
            let location = |number: &u64| Location::new(*id, InodeNumber::new(*number));
            subvolume
                .inodes
                .iter()
                .map(move |(number, inode)| (count(inode), location(number)))
        });
        let found = all.max_by_key(|(count, _)| *count);
        found.map_or(Location::root_of(SubvolumeId::TOP_LEVEL), |(_, location)| {
            location
        })
    }
}
