//! A model of the names in the history's working subvolume.
//!
//! Random changes choose their objects from this model, so that nearly all changes succeed. The
//! model knows only paths and kinds; a change that the kernel refuses anyway is left out.

use super::operation::PathBytes;
use crate::content::Random;
use std::collections::BTreeMap;

/// The kind of inode behind a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A directory.
    Directory,
    /// A regular file.
    File,
    /// A symbolic link, fifo, socket or device node.
    Other,
    /// A nested subvolume, which is neither moved nor changed.
    Subvolume,
}

/// All paths below the top. The top itself is the empty path and always exists.
#[derive(Clone, Debug, Default)]
pub struct Names {
    kinds: BTreeMap<PathBytes, Kind>,
}

/// Returns the directory of a path.
#[must_use]
pub fn parent(path: &[u8]) -> &[u8] {
    path.iter()
        .rposition(|byte| *byte == b'/')
        .map_or(&[][..], |slash| &path[..slash])
}

/// Returns the path of `name` in `directory`.
#[must_use]
pub fn join(directory: &[u8], name: &[u8]) -> PathBytes {
    let mut path = directory.to_vec();
    if !path.is_empty() {
        path.push(b'/');
    }
    path.extend_from_slice(name);
    path
}

/// Returns whether `path` is `above` or is below `above`.
#[must_use]
pub fn is_within(path: &[u8], above: &[u8]) -> bool {
    path.strip_prefix(above)
        .is_some_and(|rest| above.is_empty() || rest.is_empty() || rest.first() == Some(&b'/'))
}

impl Names {
    /// Returns the kind of `path`.
    #[must_use]
    pub fn kind(&self, path: &[u8]) -> Option<Kind> {
        if path.is_empty() {
            return Some(Kind::Directory);
        }
        self.kinds.get(path).copied()
    }

    /// Adds a name.
    pub fn add(&mut self, path: PathBytes, kind: Kind) {
        self.kinds.insert(path, kind);
    }

    /// Removes a name and all names below it.
    pub fn remove(&mut self, path: &[u8]) {
        self.kinds.retain(|known, _| !is_within(known, path));
    }

    /// Moves a name, with all names below it, to another path, and removes the name that was there.
    pub fn rename(&mut self, from: &[u8], to: &[u8]) {
        let moved = self.take(from);
        self.remove(to);
        self.put(to, moved);
    }

    /// Swaps two names.
    pub fn exchange(&mut self, a: &[u8], b: &[u8]) {
        let (at_a, at_b) = (self.take(a), self.take(b));
        self.put(a, at_b);
        self.put(b, at_a);
    }

    fn take(&mut self, path: &[u8]) -> Vec<(PathBytes, Kind)> {
        let taken = self
            .kinds
            .iter()
            .filter(|(known, _)| is_within(known, path))
            .map(|(known, kind)| (known[path.len()..].to_vec(), *kind))
            .collect();
        self.remove(path);
        taken
    }

    fn put(&mut self, path: &[u8], below: Vec<(PathBytes, Kind)>) {
        for (rest, kind) in below {
            let mut full = path.to_vec();
            full.extend_from_slice(&rest);
            self.kinds.insert(full, kind);
        }
    }

    /// Returns whether a nested subvolume is at or below `path`.
    #[must_use]
    pub fn holds_subvolume(&self, path: &[u8]) -> bool {
        self.kinds
            .iter()
            .any(|(known, kind)| *kind == Kind::Subvolume && is_within(known, path))
    }

    /// Returns whether no name is below `path`.
    #[must_use]
    pub fn is_empty_directory(&self, path: &[u8]) -> bool {
        self.kind(path) == Some(Kind::Directory)
            && !self
                .kinds
                .keys()
                .any(|known| known != path && is_within(known, path))
    }

    /// Chooses a random path that `wanted` accepts.
    pub fn choose(&self, random: &mut Random, wanted: impl Fn(&[u8], Kind) -> bool) -> Option<PathBytes> {
        let candidates: Vec<&PathBytes> = self
            .kinds
            .iter()
            .filter(|(path, kind)| wanted(path, **kind))
            .map(|(path, _)| path)
            .collect();
        let number = random.below(candidates.len() as u64) as usize;
        candidates.get(number).map(|path| (*path).clone())
    }

    /// Chooses a random directory: one time in six the top.
    pub fn directory(&self, random: &mut Random) -> PathBytes {
        if random.one_in(6) {
            return PathBytes::new();
        }
        self.choose(random, |_, kind| kind == Kind::Directory)
            .unwrap_or_default()
    }

    /// Chooses a random regular file.
    pub fn file(&self, random: &mut Random) -> Option<PathBytes> {
        self.choose(random, |_, kind| kind == Kind::File)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(paths: &[(&str, Kind)]) -> Names {
        let mut names = Names::default();
        for (path, kind) in paths {
            names.add(path.as_bytes().to_vec(), *kind);
        }
        names
    }

    #[test]
    fn renaming_moves_what_lies_below_and_only_that() {
        let mut names = names(&[
            ("a", Kind::Directory),
            ("a/f", Kind::File),
            ("ab", Kind::File),
            ("c", Kind::Directory),
        ]);
        names.rename(b"a", b"c/d");
        assert_eq!(names.kind(b"c/d/f"), Some(Kind::File));
        assert_eq!(names.kind(b"ab"), Some(Kind::File));
        assert_eq!(names.kind(b"a"), None);
        names.exchange(b"c/d", b"ab");
        assert_eq!(names.kind(b"ab/f"), Some(Kind::File));
        assert_eq!(names.kind(b"c/d"), Some(Kind::File));
        assert!(!names.is_empty_directory(b"c"));
        names.remove(b"c");
        assert_eq!(names.kind(b"c/d"), None);
    }

    #[test]
    fn paths_come_apart_at_the_last_slash() {
        assert_eq!(parent(b"a/b/c"), b"a/b");
        assert_eq!(parent(b"a"), b"");
        assert_eq!(join(b"", b"a"), b"a");
        assert!(is_within(b"a/b", b"a") && is_within(b"a", b"") && !is_within(b"ab", b"a"));
    }
}
