//! Calls that create and change names.

use super::super::model::{Inode, Times};
use super::{History, ROOT};
use buttress::{FileKind, NewInode, RenameMode};

impl History {
    pub(super) fn make(&mut self, name: &str, kind: FileKind) {
        let (volume, now) = (self.volume(), self.now());
        let directory = if kind == FileKind::Directory {
            ROOT
        } else {
            self.directory()
        };
        let new = NewInode::of_root(0o644);
        let bytes = name.as_bytes();
        let made = match kind {
            FileKind::Directory => volume.make_directory(directory, bytes, &new),
            FileKind::Symlink => volume.make_symlink(directory, bytes, &new, b"target"),
            _ => volume.create(directory, bytes, &new),
        };
        let at = made.unwrap();
        self.model.inodes.insert(at, Inode::new(kind, Times::all(now)));
        self.model.add(directory, name, at, now);
    }

    pub(super) fn change_names(&mut self) -> String {
        let (volume, now) = (self.volume(), self.now());
        let name = self.new_name();
        let names: Vec<_> = self.model.names.keys().cloned().collect();
        let index = usize::try_from(self.random.below(u64::try_from(names.len()).unwrap())).unwrap();
        let (from, old) = names[index].clone();
        let at = self.model.names[&(from, old.clone())];
        let is_directory = self.model.inodes[&at].kind == FileKind::Directory;
        let to = if is_directory { ROOT } else { self.directory() };
        match self.random.below(6) {
            0 => self.make(&name, FileKind::Symlink),
            1 | 2 if !is_directory => {
                volume.link(at, to, name.as_bytes()).unwrap();
                self.model.inodes.get_mut(&at).unwrap().links += 1;
                self.model.touch(at, now);
                self.model.add(to, &name, at, now);
            }
            3 if !is_directory => {
                volume.unlink(from, old.as_bytes()).unwrap();
                self.model.remove(from, &old, now);
            }
            4 if !is_directory && names.iter().any(|name| name.0 == to) => {
                // The new name of the rename already exists.
                let onto = names.iter().find(|name| name.0 == to).unwrap().clone();
                let victim = self.model.names[&onto];
                if victim == at || self.model.inodes[&victim].kind == FileKind::Directory {
                    return "nothing".to_owned();
                }
                let target = onto.1.as_bytes();
                volume
                    .rename(from, old.as_bytes(), to, target, RenameMode::Replace)
                    .unwrap();
                self.model.remove(to, &onto.1, now);
                self.model.names.remove(&(from, old.clone()));
                self.model.modify(from, now);
                self.model.touch(at, now);
                self.model.add(to, &onto.1, at, now);
            }
            _ => {
                let target = name.as_bytes();
                volume
                    .rename(from, old.as_bytes(), to, target, RenameMode::NoReplace)
                    .unwrap();
                self.model.names.remove(&(from, old.clone()));
                self.model.modify(from, now);
                self.model.touch(at, now);
                self.model.add(to, &name, at, now);
            }
        }
        format!("names: {old}, {name}")
    }
}
