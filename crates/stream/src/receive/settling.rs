//! Names that settle before their inode exists, and pending times of directories.
//!
//! Linux's streams create each inode under a temporary name at the top (`o257-7-0`); the next
//! command renames it. The receiver creates such an inode directly under its final name. Streams of
//! older senders set the times of a directory after each new name in it. These times stay pending
//! until the gathered files exist.
//!
//! The result equals an immediate execution of each command:
//!
//! - A name settles only if the new name is free and the old name was free. If either name is not
//!   free, the receiver creates the inode first.
//! - The directory of the old name changed: its times become the current time when the inode is
//!   created.
//! - A new name in a directory with pending times changes these times again. The directory's times
//!   are then no longer pending.
//! - Only a limited number of directories can lose a temporary name. If another one would, the receiver
//!   creates the inode first, and the directories' times change.
//!
//! All of this applies only if new names are [pending](super::made_names). The tests
//! `waiting_names` and `settling` in `proof` compare receives with and without settling.

use super::applying::times_of;
use super::error::Problem;
use super::making::{Receiver, about};
use super::new_file::NewFile;
use crate::command::Command;
use buttress_format::FileKind;
use buttress_fs::Location;
use buttress_writer::operations::AttributeChanges;

/// Largest number of directories with pending times, and of directories that lost a temporary name.
const DIRECTORIES_MAX: usize = 64;

/// Pending changes of directories, to apply after the gathered files are created.
#[derive(Debug, Default)]
pub(super) struct Directories {
    /// Directories that have already lost a temporary name.
    touched: Vec<Location>,
    /// Pending times of directories, by directory.
    times: Vec<(Location, AttributeChanges)>,
}

impl Directories {
    /// Returns whether a name in `directory` can settle. Linux's streams make all temporary names in
    /// one directory. Without a limit, the search would be quadratic, and one operation would change
    /// all directories.
    fn can_touch(&self, directory: Location) -> bool {
        self.touched.len() < DIRECTORIES_MAX || self.touched.contains(&directory)
    }
}

impl Receiver<'_> {
    /// Renames the pending inode to `to`. Returns false, and changes nothing, if the inode must be
    /// created under its old name first.
    pub(super) fn settle(&mut self, to: &[u8]) -> bool {
        if !self.made_names.wait() {
            return false;
        }
        let Some(file) = &self.new_file else { return false };
        let Ok((directory, name)) = self.names.place(self.filesystem, file.root, to) else {
            return false;
        };
        let old_directory = file.directory;
        let is_same = directory == old_directory && name == file.name;
        let is_moved = directory != old_directory;
        if is_same
            || directory.subvolume != old_directory.subvolume
            || (is_moved && !self.directories.can_touch(old_directory))
        {
            return false;
        }
        let old_name = (!file.is_settled).then(|| file.name.clone());
        let old_is_free = |receiver: &mut Self, name: &Vec<u8>| receiver.is_free(old_directory, name);
        if !self.is_free(directory, name) || !old_name.as_ref().is_none_or(|name| old_is_free(self, name)) {
            return false;
        }
        let name = name.to_vec();
        let Some(file) = &mut self.new_file else {
            return false;
        };
        file.directory = directory;
        file.is_settled = true;
        file.name = name;
        file.path.clear();
        file.path.extend_from_slice(to);
        if is_moved {
            if !self.directories.touched.contains(&old_directory) {
                self.directories.touched.push(old_directory);
            }
            self.made_name_in(directory);
        }
        // The rename has removed the old name from this directory.
        self.made_name_in(old_directory);
        true
    }

    /// Notes that names of a directory changed: its pending modification and change times are out
    /// of date.
    pub(super) fn made_name_in(&mut self, directory: Location) {
        let mut waiting = self.directories.times.iter_mut();
        if let Some((_, times)) = waiting.find(|(of, _)| *of == directory) {
            (times.modified, times.changed) = (None, None);
        }
    }

    /// Queues the times of a directory until the gathered files are made. Returns false if no file is gathered, or for
    /// another command.
    pub(super) fn gather_times(&mut self, root: Location, command: &Command<'_>) -> bool {
        let Some((path, times)) = times_of(command) else {
            return false;
        };
        let is_gathering = self.new_file.is_some() || !self.new_files.is_empty();
        if !is_gathering || !self.made_names.wait() || self.is_made_now(root, path) {
            return false;
        }
        // If the path does not exist, the caller's next attempt reports the error.
        let Some(location) = self.known_directory(root, path) else {
            return false;
        };
        let waiting = &mut self.directories.times;
        let has_room = waiting.len() < DIRECTORIES_MAX;
        match waiting.iter_mut().find(|(of, _)| *of == location) {
            Some((_, waiting)) => {
                let created = times.created.or(waiting.created);
                *waiting = AttributeChanges { created, ..times };
            }
            None if has_room => waiting.push((location, times)),
            None => return false,
        }
        true
    }

    fn known_directory(&mut self, root: Location, path: &[u8]) -> Option<Location> {
        let is_file = |file: &NewFile| file.root == root && path.starts_with(&file.path);
        if self.new_file.as_ref().is_some_and(is_file) {
            return None;
        }
        let node = self.names.find(self.filesystem, root, path).ok()?;
        (node.kind == FileKind::Directory).then_some(node.location)
    }

    /// Touches and sets the times of directories, after the gathered files are made.
    pub(super) fn settle_directories(&mut self) -> Result<(), Problem> {
        if !self.directories.touched.is_empty() {
            self.filesystem
                .touch_directories(&self.directories.touched)
                .map_err(about(b""))?;
            self.directories.touched.clear();
        }
        while let Some((directory, times)) = self.directories.times.last() {
            self.filesystem
                .set_attributes(*directory, times)
                .map_err(about(b""))?;
            self.directories.times.pop();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use buttress_format::{InodeNumber, SubvolumeId};

    #[test]
    fn number_of_touched_directories_is_limited() {
        let directory = |number: u64| Location::new(SubvolumeId::TOP_LEVEL, InodeNumber::new(256 + number));
        let mut directories = Directories::default();
        for number in 0..1000 {
            if directories.can_touch(directory(number)) {
                directories.touched.push(directory(number));
            }
        }
        assert_eq!(directories.touched.len(), DIRECTORIES_MAX);
        assert!(directories.can_touch(directory(0)) && !directories.can_touch(directory(999)));
    }
}
