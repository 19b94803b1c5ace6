//! Drawing a change from a seed, so that it mostly makes sense: names that are there are met, and names that are not.

use super::{Mode, Operation};
use crate::writing::content::Change;
use crate::writing::model::{Inode, Model};
use buttress::{InodeNumber, Location, SubvolumeId};
use buttress_oracle::content::Random;

/// How many names there are to choose from: few, so that they meet again.
const NAMES: u64 = 24;

/// Places that changes are drawn from.
struct Draw<'a> {
    model: &'a Model,
    random: &'a mut Random,
}

impl Draw<'_> {
    fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.random.below(bound.max(1) as u64)).unwrap_or(0)
    }

    fn subvolume(&mut self) -> SubvolumeId {
        let number = self.below(self.model.subvolumes.len());
        let ids = self.model.subvolumes.keys();
        ids.copied().nth(number).unwrap_or(SubvolumeId::TOP_LEVEL)
    }

    /// An inode of any subvolume that is wanted; the root of one where there is none.
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

    /// A name that may be there or not.
    fn name(&mut self) -> Vec<u8> {
        match self.random.below(NAMES) {
            0 => vec![b'n'; 255],
            1 => b"with \xff bytes".to_vec(),
            number => format!("name-{number}").into_bytes(),
        }
    }

    /// A name that is there, if any is.
    fn present(&mut self) -> (Location, Vec<u8>) {
        let directory = self.inode(|inode| inode.is_directory() && !inode.entries.is_empty());
        let names: Vec<Vec<u8>> = self
            .model
            .inode(directory)
            .map_or(Vec::new(), |inode| inode.entries.keys().cloned().collect());
        let number = self.below(names.len());
        let name = names.get(number).cloned();
        let name = name.unwrap_or_else(|| self.name());
        (directory, name)
    }

    fn xattr_name(&mut self) -> Vec<u8> {
        format!("user.attribute-{}", self.random.below(6)).into_bytes()
    }

    fn mode(&mut self) -> u32 {
        u32::try_from(self.random.below(0o1000)).unwrap_or(0) | 0o400
    }
}

impl Operation {
    /// Draws a change.
    #[must_use]
    pub fn draw(model: &Model, random: &mut Random) -> Self {
        let choice = random.below(160);
        let mut draw = Draw { model, random };
        match choice {
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
                let (directory, name) = draw.present();
                Self::RemoveDirectory(directory, name)
            }
            61..74 => draw_rename(&mut draw),
            74..82 => {
                let length = draw.below(200) * draw.below(10);
                let value = draw.random.bytes(length, false);
                Self::SetXattr(draw.inode(|_| true), draw.xattr_name(), value)
            }
            82..85 => Self::RemoveXattr(draw.inode(|inode| !inode.xattrs.is_empty()), draw.xattr_name()),
            85..88 => Self::SetMode(draw.inode(|inode| inode.target.is_empty()), draw.mode()),
            88..90 => Self::SetOwner(draw.inode(|_| true), draw.below(3) as u32, draw.below(3) as u32),
            90..92 => Self::SetModified(draw.inode(|_| true), 5_000_000 + draw.below(1000) as i64),
            92..94 => Self::CreateSubvolume(draw.directory(), draw.name()),
            94..97 => {
                let read_only = draw.random.below(2) == 0;
                Self::Snapshot(draw.subvolume(), draw.directory(), draw.name(), read_only)
            }
            97..99 => Self::DeleteSubvolume(draw.subvolume()),
            99 => Self::DropDeleted,
            _ => {
                let file = draw.inode(Inode::is_file);
                let source = draw.inode(Inode::is_file);
                Self::Content(file, Change::draw(model, random, file, source))
            }
        }
    }
}

fn draw_rename(draw: &mut Draw<'_>) -> Operation {
    let (from, name) = draw.present();
    let to = match draw.random.below(3) {
        0 => from,
        1 => draw.directory(),
        // Somewhere in the same subvolume.
        _ => {
            let directories: Vec<u64> = draw.model.subvolumes[&from.subvolume]
                .inodes
                .iter()
                .filter(|(_, inode)| inode.is_directory())
                .map(|(number, _)| *number)
                .collect();
            let number = draw.below(directories.len());
            Location::new(from.subvolume, InodeNumber::new(directories[number]))
        }
    };
    let mode = match draw.random.below(4) {
        0 => Mode::NoReplace,
        1 => Mode::Exchange,
        _ => Mode::Replace,
    };
    let new_name = draw.name();
    Operation::Rename(from, name, to, new_name, mode)
}
