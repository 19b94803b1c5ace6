//! Random changes of names, data and attributes.

use super::Generator;
use crate::history::names::{Kind, is_within, join, parent};
use crate::history::operation::{
    Content, Operation, Origin, PathBytes, Span, Special, capability, posix_acl,
};

const SECTOR_BYTES: u64 = 4096;

/// Attributes that changes set and remove. The kernel copies some of these attributes by itself.
const XATTRS: [&str; 6] = [
    "user.a",
    "user.b",
    "user.quite a long name, with spaces",
    "trusted.t",
    "security.capability",
    "system.posix_acl_access",
];

impl Generator {
    pub(super) fn special(&mut self) -> Special {
        let number = self.random.below(300) as u32;
        match self.random.below(4) {
            0 => Special::Fifo,
            1 => Special::Socket,
            2 => Special::Character(1 + number % 250, number),
            _ => Special::Block(1 + number % 250, number),
        }
    }

    pub(super) fn make_file(&mut self, path: PathBytes) {
        self.names.add(path.clone(), Kind::File);
        self.push(Operation::File(path.clone()));
        if self.random.one_in(12) {
            self.push(Operation::NoCopyOnWrite(path.clone()));
        }
        if !self.random.one_in(5) {
            let span = Span {
                offset: 0,
                length: self.length(),
            };
            let content = self.content();
            self.push(Operation::Write(path, span, content));
        }
    }

    /// Returns a length from a byte to a few hundred KiB, mostly small.
    fn length(&mut self) -> u64 {
        match self.random.below(6) {
            0 => 1 + self.random.below(2100),
            1 => SECTOR_BYTES * (1 + self.random.below(4)),
            2 => 1 + self.random.below(200_000),
            3 => SECTOR_BYTES * (1 + self.random.below(64)),
            _ => 1 + self.random.below(30_000),
        }
    }

    fn offset(&mut self) -> u64 {
        match self.random.below(5) {
            0 => 0,
            1 => self.random.below(100_000),
            2 => SECTOR_BYTES * self.random.below(64),
            _ => SECTOR_BYTES * self.random.below(16),
        }
    }

    fn span(&mut self) -> Span {
        Span {
            offset: self.offset(),
            length: self.length(),
        }
    }

    fn content(&mut self) -> Content {
        let seed = self.random.number();
        match self.random.below(5) {
            0 | 1 => Content::Text(seed),
            2 if self.random.one_in(3) => Content::Byte(0),
            _ => Content::Noise(seed),
        }
    }

    /// Chooses a path except nested subvolumes and their parents.
    fn movable(&mut self) -> Option<PathBytes> {
        let names = &self.names;
        names.choose(&mut self.random, |path, _| !names.holds_subvolume(path))
    }

    fn movable_directory(&mut self) -> Option<PathBytes> {
        let names = &self.names;
        names.choose(&mut self.random, |path, kind| {
            kind == Kind::Directory && !names.holds_subvolume(path)
        })
    }

    pub(super) fn change_names(&mut self) {
        match self.random.below(24) {
            0..=4 => self.create(),
            5..=9 => self.move_somewhere(),
            10 => self.move_over(),
            11 | 12 => self.exchange(),
            13 | 14 => self.move_below_own_descendant(),
            15..=17 => self.link(),
            18 | 19 => self.remove(),
            20 => self.remove_all(),
            21 => self.replace_by_another_kind(),
            22 => self.deep(),
            _ => {
                if self.random.one_in(4)
                    && let Some(path) = self.free_path()
                {
                    self.names.add(path.clone(), Kind::Subvolume);
                    self.push(Operation::Subvolume(path));
                }
            }
        }
    }

    fn rename(&mut self, from: PathBytes, to: PathBytes) {
        self.names.rename(&from, &to);
        self.push(Operation::Rename(from, to));
    }

    fn move_somewhere(&mut self) {
        let Some(from) = self.movable() else { return };
        let Some(to) = self.free_path() else { return };
        if !is_within(&to, &from) {
            self.rename(from, to);
        }
    }

    /// Moves a file over another name, or a directory over an empty one.
    fn move_over(&mut self) {
        let Some(from) = self.movable() else { return };
        let directory = self.names.kind(&from) == Some(Kind::Directory);
        let names = &self.names;
        let over = names.choose(&mut self.random, |path, kind| {
            let fits = match kind {
                Kind::Directory => directory && names.is_empty_directory(path),
                Kind::File | Kind::Other => !directory,
                Kind::Subvolume => false,
            };
            fits && !is_within(path, &from) && !is_within(&from, path)
        });
        if let Some(to) = over {
            self.rename(from, to);
        }
    }

    fn exchange(&mut self) {
        let (Some(a), Some(b)) = (self.movable(), self.movable()) else {
            return;
        };
        if !is_within(&a, &b) && !is_within(&b, &a) {
            self.names.exchange(&a, &b);
            self.push(Operation::Exchange(a, b));
        }
    }

    /// Moves a parent below its own descendant: `a/…/b` becomes `b/a`.
    fn move_below_own_descendant(&mut self) {
        let Some(lower) = self.movable_directory() else {
            return;
        };
        let mut upper = parent(&lower).to_vec();
        while !parent(&upper).is_empty() && self.random.one_in(2) {
            upper = parent(&upper).to_vec();
        }
        if upper.is_empty() || self.names.holds_subvolume(&upper) {
            return;
        }
        let outside = parent(&upper).to_vec();
        let Some(free) = self.free_path_in(&outside) else {
            return;
        };
        self.rename(lower, free.clone());
        if let Some(inside) = self.free_path_in(&free) {
            self.rename(upper.clone(), inside);
            if self.random.one_in(2) {
                self.rename(free, upper);
            }
        }
    }

    fn link(&mut self) {
        let names = &self.names;
        let existing = names.choose(&mut self.random, |_, kind| {
            matches!(kind, Kind::File | Kind::Other)
        });
        if let (Some(existing), Some(new)) = (existing, self.free_path()) {
            let kind = self.names.kind(&existing).unwrap_or(Kind::Other);
            self.names.add(new.clone(), kind);
            self.push(Operation::Link(existing, new));
        }
    }

    fn remove(&mut self) {
        let names = &self.names;
        let path = names.choose(&mut self.random, |path, kind| {
            matches!(kind, Kind::File | Kind::Other) || names.is_empty_directory(path)
        });
        if let Some(path) = path {
            self.names.remove(&path);
            self.push(Operation::Remove(path));
        }
    }

    /// Removes a directory with its content; sometimes first moves a child out.
    fn remove_all(&mut self) {
        let Some(path) = self.movable_directory() else {
            return;
        };
        let names = &self.names;
        let child = names.choose(&mut self.random, |known, _| parent(known) == path);
        if let (Some(child), Some(to)) = (child, self.free_path())
            && !is_within(&to, &path)
        {
            self.rename(child, to);
        }
        self.names.remove(&path);
        self.push(Operation::RemoveAll(path));
    }

    /// Replaces a directory by a file of the same name, or a file by a directory.
    fn replace_by_another_kind(&mut self) {
        let Some(path) = self.movable() else { return };
        let directory = self.names.kind(&path) == Some(Kind::Directory);
        if self.random.one_in(2)
            && let Some(to) = self.free_path()
            && !is_within(&to, &path)
        {
            self.rename(path.clone(), to);
        } else {
            self.names.remove(&path);
            self.push(if directory {
                Operation::RemoveAll(path.clone())
            } else {
                Operation::Remove(path.clone())
            });
        }
        if directory {
            self.make_file(path);
        } else {
            self.make_directory(path);
        }
    }

    /// Makes a chain of directories with a file at its end.
    fn deep(&mut self) {
        let mut directory = self.names.directory(&mut self.random);
        for level in 0..2 + self.random.below(8) {
            let path = join(&directory, format!("level-{level}").as_bytes());
            if path.len() > 2500 || self.names.kind(&path).is_some() {
                return;
            }
            self.make_directory(path.clone());
            directory = path;
        }
        self.make_file(join(&directory, b"bottom"));
    }

    pub(super) fn change_data(&mut self) {
        if self.random.one_in(8) {
            let Some(path) = self.free_path() else { return };
            return self.make_file(path);
        }
        let Some(path) = self.names.file(&mut self.random) else {
            return self.create();
        };
        let span = self.span();
        let operation = match self.random.below(16) {
            0..=3 => {
                let content = self.content();
                Operation::Write(path, span, content)
            }
            4 | 5 => Operation::Truncate(path, span.length),
            6 | 7 => Operation::Punch(path, span),
            8 => Operation::Preallocate(path, span, self.random.one_in(2)),
            9 => Operation::ZeroRange(path, span),
            10 => Operation::Sync,
            11 => {
                let algorithm = ["zlib", "lzo", "zstd", "none"][self.random.below(4) as usize];
                Operation::Compress(path, algorithm)
            }
            12 => {
                let (snapshot, from) = self.reflink_source();
                let Some(from) = from else { return };
                Operation::ReflinkAll(snapshot, from, path)
            }
            _ => {
                let (snapshot, from) = self.reflink_source();
                let Some(from) = from else { return };
                let origin = Origin {
                    snapshot,
                    path: from,
                    span,
                };
                Operation::Reflink(origin, path, self.offset())
            }
        };
        self.push(operation);
    }

    /// Chooses a file of the working subvolume, or of an earlier snapshot.
    fn reflink_source(&mut self) -> (Option<usize>, Option<PathBytes>) {
        let snapshots = self.snapshots.len() as u64;
        if snapshots > 0 && self.random.one_in(3) {
            let number = self.random.below(snapshots) as usize;
            return (Some(number), self.snapshots[number].file(&mut self.random));
        }
        (None, self.names.file(&mut self.random))
    }

    pub(super) fn change_attributes(&mut self) {
        let Some(path) = self.movable() else {
            return self.create();
        };
        let number = self.random.below(70_000) as u32;
        let operation = match self.random.below(10) {
            0..=3 => {
                let name = XATTRS[self.random.below(6) as usize];
                let value = match name {
                    "security.capability" => capability(),
                    "system.posix_acl_access" => posix_acl(number, (number % 8) as u16),
                    _ => {
                        let length = self.random.below(300) as usize;
                        self.random.bytes(length, false)
                    }
                };
                Operation::SetXattr(path, name, value)
            }
            4 | 5 => Operation::RemoveXattr(path, XATTRS[self.random.below(6) as usize]),
            6 => Operation::Owner(path, number, number / 2),
            7 => {
                // chmod(2) follows symbolic links.
                if self.names.kind(&path) == Some(Kind::Other) {
                    return;
                }
                Operation::Mode(path, self.random.below(0o10000) as u32)
            }
            8 => {
                let seconds = self.random.below(5_000_000_000) as i64 - 1_000_000_000;
                Operation::Times(path, (seconds / 2, number), (seconds, number * 3))
            }
            _ => return self.create(),
        };
        self.push(operation);
    }
}
