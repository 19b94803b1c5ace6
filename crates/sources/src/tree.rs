//! The tree of a source's entries in memory, to inspect a source without building an image.
//!
//! The builder works on disk, and this module with a map, so memory grows with the number of
//! entries. The tree keeps no file contents. The rules are the builder's: higher precedence stays,
//! a file that replaces a directory removes all entries below it, and missing directories are
//! added.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use buttress_build::{
    ContentReader, Contents, Entry, EntryKind, EntryPath, LinkKey, Precedence, Source, SourceError,
};
use buttress_exact::Exact as _;

use crate::layers::is_in;
use crate::member;

/// The maximum length of a chain of hard links.
const LINKS_MAX: usize = 64;

/// The largest sum of the paths of directories without entries. The paths in one deep path are far
/// longer together than this path.
const MADE_PATH_BYTES_MAX: usize = 128 << 20;

/// The tree of a source.
pub struct EntryTree {
    name: String,
    entries: BTreeMap<Vec<u8>, Entry>,
    /// The names in each directory, sorted.
    names: HashMap<Vec<u8>, Vec<Vec<u8>>>,
    /// For each file with several names, the first name and the number of names.
    links: HashMap<LinkKey, (Vec<u8>, u32)>,
    contents: Arc<dyn Contents>,
}

impl core::fmt::Debug for EntryTree {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("EntryTree")
            .field("name", &self.name)
            .field("entries", &self.entries.len())
            .finish_non_exhaustive()
    }
}

impl EntryTree {
    /// Reads all entries of a source, and passes each to `adapt`.
    ///
    /// # Errors
    /// Fails if the source fails, or if a link or snapshot has no target.
    pub fn gather(mut source: impl Source, mut adapt: impl FnMut(&mut Entry)) -> Result<Self, SourceError> {
        let mut all = Vec::new();
        while let Some(mut entry) = source.next_entry()? {
            adapt(&mut entry);
            if entry.path.is_root() && !entry.kind.can_be_root() {
                return Err(SourceError::Invalid {
                    place: format!("{}: /", source.name()),
                    problem: "the root of the tree is always a directory".into(),
                });
            }
            all.push(entry);
        }
        // Entries of one precedence have different paths; otherwise the builder would refuse them.
        all.sort_by_key(|entry| entry.precedence);
        let mut entries = BTreeMap::new();
        for entry in all {
            put(&mut entries, entry);
        }
        let mut tree = Self {
            name: source.name(),
            entries,
            names: HashMap::new(),
            links: HashMap::new(),
            contents: source.contents()?,
        };
        tree.make_snapshots()?;
        tree.make_parents()?;
        tree.follow_links()?;
        tree.list();
        Ok(tree)
    }

    fn invalid(&self, path: &[u8], problem: &str) -> SourceError {
        SourceError::Invalid {
            place: format!("{}: /{}", self.name, String::from_utf8_lossy(path)),
            problem: problem.into(),
        }
    }

    /// Turns snapshots into directories with all entries of their source.
    fn make_snapshots(&mut self) -> Result<(), SourceError> {
        let snapshots: Vec<(Vec<u8>, EntryPath)> = self
            .entries
            .iter()
            .filter_map(|(path, entry)| match &entry.kind {
                EntryKind::Snapshot { of, .. } => Some((path.clone(), of.clone())),
                _ => None,
            })
            .collect();
        for (path, of) in snapshots {
            let copies: Vec<Entry> = self
                .entries
                .values()
                .filter(|entry| is_in(&entry.path, &of))
                .cloned()
                .collect();
            if !copies
                .iter()
                .any(|entry| matches!(entry.kind, EntryKind::Directory(_)) && entry.path == of)
            {
                return Err(self.invalid(&path, "a snapshot of what is no subvolume of this source"));
            }
            for mut copy in copies {
                let below = copy
                    .path
                    .as_bytes()
                    .get(of.as_bytes().len()..)
                    .unwrap_or_default();
                let moved = [path.as_slice(), b"/", below].concat();
                copy.path = EntryPath::new(&moved).map_err(|_| self.invalid(&path, "it is no path"))?;
                self.entries.insert(copy.path.as_bytes().to_vec(), copy);
            }
        }
        Ok(())
    }

    /// Adds the directories that paths name, but that have no entry.
    fn make_parents(&mut self) -> Result<(), SourceError> {
        let mut missing: Vec<Vec<u8>> = vec![Vec::new()];
        let mut bytes = 0_usize;
        let mut before: &[u8] = &[];
        for path in self.entries.keys() {
            let slashes = path.iter().enumerate().rev().filter(|(_, byte)| **byte == b'/');
            for (end, _) in slashes {
                let (parent, _) = path.split_at(end);
                // All paths below one directory are consecutive, so an earlier path has found the
                // rest.
                let is_known = before
                    .strip_prefix(parent)
                    .is_some_and(|rest| rest.first() == Some(&b'/'));
                if is_known || self.entries.contains_key(parent) {
                    break;
                }
                bytes = bytes.exact_add(parent.len());
                if bytes > MADE_PATH_BYTES_MAX {
                    let problem = format!(
                        "the paths of directories without entries are too long together (expected at most \
                         {MADE_PATH_BYTES_MAX} bytes)"
                    );
                    let (head, _) = parent.split_at(parent.len().min(80));
                    return Err(self.invalid(head, &problem));
                }
                missing.push(parent.to_vec());
            }
            before = path;
        }
        for path in missing {
            if let Ok(as_path) = EntryPath::new(&path) {
                self.entries
                    .entry(path)
                    .or_insert_with(|| member::directory(as_path, Precedence(0), None));
            }
        }
        Ok(())
    }

    /// Replaces hard links by their targets.
    fn follow_links(&mut self) -> Result<(), SourceError> {
        let links: Vec<(Vec<u8>, EntryPath)> = self
            .entries
            .iter()
            .filter_map(|(path, entry)| match &entry.kind {
                EntryKind::HardLink(target) => Some((path.clone(), target.clone())),
                _ => None,
            })
            .collect();
        for (number, (path, target)) in (1_u64..).zip(links) {
            let mut end = target;
            for _ in 0..LINKS_MAX {
                match self.entries.get(end.as_bytes()).map(|entry| &entry.kind) {
                    Some(EntryKind::HardLink(next)) => end = next.clone(),
                    _ => break,
                }
            }
            let found = self.entries.get_mut(end.as_bytes()).filter(|entry| {
                !matches!(
                    entry.kind,
                    EntryKind::Directory(_) | EntryKind::HardLink(_) | EntryKind::Snapshot { .. }
                )
            });
            let Some(found) = found else {
                return Err(self.invalid(&path, "a hard link to no file of this source"));
            };
            // No source uses this key, because keys of sources begin with numbers of layers or
            // devices.
            found.attributes.link.get_or_insert(LinkKey(u64::MAX, number));
            let mut copy = found.clone();
            copy.path = EntryPath::new(&path).unwrap_or_default();
            // A copied entry's content is requested under the path of the original.
            self.entries.insert(path, copy);
        }
        Ok(())
    }

    fn list(&mut self) {
        for (path, entry) in &self.entries {
            if let Some(key) = entry.attributes.link {
                self.links
                    .entry(key)
                    .and_modify(|(_, count)| *count = count.saturating_add(1))
                    .or_insert_with(|| (path.clone(), 1));
            }
            let name = entry.path.name();
            if name.is_empty() {
                continue;
            }
            let directory = path.strip_suffix(name).unwrap_or_default();
            let directory = directory.strip_suffix(b"/").unwrap_or(directory);
            self.names
                .entry(directory.to_vec())
                .or_default()
                .push(name.to_vec());
        }
    }

    /// Returns the entry at a path.
    #[must_use]
    pub fn entry(&self, path: &[u8]) -> Option<&Entry> {
        self.entries.get(path)
    }

    /// Returns the names in a directory, sorted.
    #[must_use]
    pub fn names(&self, directory: &[u8]) -> &[Vec<u8>] {
        self.names.get(directory).map_or(&[], Vec::as_slice)
    }

    /// Returns the first name of a file with several names, and their number.
    #[must_use]
    pub fn link(&self, key: LinkKey) -> Option<(&[u8], u32)> {
        self.links
            .get(&key)
            .map(|(path, count)| (path.as_slice(), *count))
    }

    /// Opens the content of a file.
    ///
    /// # Errors
    /// Fails if the source fails, or if the entry is no file.
    pub fn open(&self, entry: &Entry) -> Result<Box<dyn ContentReader>, SourceError> {
        let EntryKind::File(content) = &entry.kind else {
            return Err(self.invalid(entry.path.as_bytes(), "no regular file"));
        };
        // The source knows the content of a file with several names by its first name.
        let first = entry.attributes.link.and_then(|key| self.link(key));
        match first.and_then(|(path, _)| EntryPath::new(path).ok()) {
            Some(path) => self.contents.open(&path, content),
            None => self.contents.open(&entry.path, content),
        }
    }
}

/// Adds an entry that takes precedence over the existing entries.
fn put(entries: &mut BTreeMap<Vec<u8>, Entry>, entry: Entry) {
    let path = entry.path.as_bytes().to_vec();
    let remove_below = |entries: &mut BTreeMap<Vec<u8>, Entry>| {
        let start = [path.as_slice(), b"/"].concat();
        let end = [path.as_slice(), b"0"].concat();
        let below: Vec<Vec<u8>> = if path.is_empty() {
            entries.keys().filter(|path| !path.is_empty()).cloned().collect()
        } else {
            entries.range(start..end).map(|(path, _)| path.clone()).collect()
        };
        for path in below {
            entries.remove(&path);
        }
    };
    match entry.kind {
        EntryKind::Opaque => remove_below(entries),
        EntryKind::Whiteout => {
            remove_below(entries);
            entries.remove(&path);
        }
        EntryKind::Directory(_) => {
            entries.insert(path, entry);
        }
        _ => {
            remove_below(entries);
            entries.insert(path, entry);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Manifest;
    use buttress_format::{FileOffset, Timestamp};
    use std::io::Cursor;
    use std::path::Path;

    fn tree(text: &str) -> Result<EntryTree, SourceError> {
        let text = format!("manifest = 1\n{text}").into_bytes();
        let input = Box::new(Cursor::new(text));
        let manifest = Manifest::new("plan", input, Path::new(""), Timestamp::default(), &|_| {
            Err("none".into())
        })?;
        EntryTree::gather(manifest, |_| {})
    }

    #[test]
    fn tree_adds_snapshots_links_and_missing_directories() {
        let tree = tree(
            "[[subvolume]]\npath = \"/s\"\n[[file]]\npath = \"/s/d/a\"\ntext = \"hello\"\n\
             [[hard-link]]\npath = \"/s/c\"\nto = \"/s/b\"\n[[hard-link]]\npath = \"/s/b\"\nto = \"/s/d/a\"\n\
             [[snapshot]]\npath = \"/t/u\"\nof = \"/s\"\n",
        )
        .unwrap();
        assert_eq!(tree.names(b""), [b"s", b"t"]);
        assert_eq!(tree.names(b"s"), [b"b", b"c", b"d"]);
        assert_eq!(tree.names(b"t/u"), [b"b", b"c", b"d"]);
        let key = tree.entry(b"s/d/a").unwrap().attributes.link.unwrap();
        assert!(tree.link(key).unwrap().1 >= 3);
        for path in [&b"s/b"[..], b"s/c", b"t/u/d/a"] {
            let entry = tree.entry(path).unwrap();
            let mut reader = tree.open(entry).unwrap();
            let mut bytes = [0; 5];
            reader.read_exact_at(FileOffset::new(0), &mut bytes).unwrap();
            assert_eq!(&bytes, b"hello");
        }
    }

    /// Returns a manifest of files below these directories, of `depth` components each.
    fn deep(directories: &[&str], depth: usize) -> String {
        let file = |directory: &&str| {
            format!(
                "[[file]]\npath = \"/{directory}{}\"\ntext = \"\"\n",
                "/a".repeat(depth - 1)
            )
        };
        directories.iter().map(file).collect()
    }

    #[test]
    fn missing_directories_are_made_once() {
        let tree = tree(&deep(&["x", "x/b", "x.c"], 100)).unwrap();
        // Each directory, file and the root have one entry.
        assert_eq!(tree.entries.len(), 1 + 100 + 100 + 100);
        assert_eq!(tree.names(b"x"), [b"a", b"b"]);
    }

    #[test]
    fn paths_of_missing_directories_are_limited() {
        let error = tree(&deep(&["x"], 16_385)).unwrap_err().to_string();
        assert!(error.contains("directories without entries"), "{error}");
        let held = tree(&deep(&["x", "y"], 2048)).unwrap();
        let bytes: usize = held.entries.keys().map(Vec::len).sum();
        assert!(bytes <= 2 * 2048 * 4096 / 2, "{bytes}");
    }

    #[test]
    fn root_that_is_no_directory_is_reported() {
        let error = tree("[[file]]\npath = \"/\"\ntext = \"\"\n")
            .unwrap_err()
            .to_string();
        assert!(error.contains("always a directory"), "{error}");
    }

    #[test]
    fn link_cycles_and_missing_targets_are_reported() {
        for text in [
            "[[hard-link]]\npath = \"/a\"\nto = \"/b\"\n[[hard-link]]\npath = \"/b\"\nto = \"/a\"\n",
            "[[hard-link]]\npath = \"/a\"\nto = \"/a\"\n",
            "[[hard-link]]\npath = \"/a\"\nto = \"/nothing\"\n",
            "[[directory]]\npath = \"/d\"\n[[hard-link]]\npath = \"/a\"\nto = \"/d\"\n",
        ] {
            let error = tree(text).unwrap_err().to_string();
            assert!(error.contains("a hard link to no file"), "{error}");
        }
        let error = tree("[[snapshot]]\npath = \"/a\"\nof = \"/b\"\n")
            .unwrap_err()
            .to_string();
        assert!(error.contains("no subvolume"), "{error}");
    }
}
