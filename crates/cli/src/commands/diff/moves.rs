//! Detection of moved files among those that exist on one side only.
//!
//! **In one volume**, files are matched by inode. Subvolumes with a common history give the same
//! file the same inode number. An inode that reuses an old number has another generation and birth
//! time. A moved directory is one move; everything below it is compared in its new place.
//!
//! **Between volumes**, regular files are matched by content: the same size and the same bytes.
//! Directories have no content, so they are reported as added and removed, and their files as
//! moved. Empty files are never moved, because they are indistinguishable.
//!
//! A name that exists on both sides is compared by its name, regardless of its inode. A move always
//! pairs a name that exists only on the old side with a name that exists only on the new side.

use std::collections::hash_map::DefaultHasher;
use std::collections::{HashMap, HashSet, VecDeque};
use std::hash::Hasher;

use anyhow::Result;
use buttress::{FileKind, Location, Volume};

use super::compare::{Comparison, Failed, Single, Which, join};
use super::content::compare;
use super::difference::{Difference, Found};
use super::side::{Facts, Node};
use crate::commands::stat::kind_name;

/// Bytes read from the beginning of a file to find similar files.
const SAMPLE_BYTES: usize = 64 << 10;

/// Largest number of similar files that a file is compared with.
const CANDIDATES_MAX: usize = 16;

/// Classifies the collected one-sided files of a comparison as moved, added or removed.
pub(super) fn tell_apart(comparison: &mut Comparison<'_>, failed: &mut Failed<'_>) -> Result<()> {
    let inodes = Inodes::of(comparison);
    match inodes {
        Some(inodes) => by_inode(comparison, &inodes, failed),
        None => by_content(comparison, failed),
    }
    Ok(())
}

/// Two subvolumes in which inodes can be matched.
struct Inodes {
    filesystem: Volume,
    old_start: Location,
    /// Path of the old root in its subvolume.
    old_base: Vec<u8>,
    new_start: Location,
}

impl Inodes {
    fn of(comparison: &Comparison<'_>) -> Option<Self> {
        let (old, old_start) = comparison.old.volume()?;
        let (new, new_start) = comparison.new.volume()?;
        if !old.is_same(new)
            || !are_relatives(old, old_start, new_start)
            || !old.metadata(old_start).ok()?.is_directory()
        {
            return None;
        }
        Some(Self {
            filesystem: old.clone(),
            old_start,
            old_base: old.directory_path(old_start).ok()?,
            new_start,
        })
    }

    /// Finds the old name of an added file, among the names that exist only on the old side.
    fn find(&self, comparison: &Comparison<'_>, added: &Single) -> Option<Single> {
        let Node::Image(location) = &added.node else {
            return None;
        };
        if location.subvolume != self.new_start.subvolume || location.placeholder().is_some() {
            return None;
        }
        let before = Location::new(self.old_start.subvolume, location.inode);
        let facts = comparison.old.facts(&Node::Image(before)).ok()?;
        let now = comparison.new.facts(&added.node).ok()?;
        if facts.kind != now.kind || facts.birth != now.birth {
            return None;
        }
        let mut names: Vec<Single> = Vec::new();
        for (directory, name) in self.filesystem.names(before).ok()? {
            let directory = Location::new(before.subvolume, directory);
            let path = self.filesystem.directory_path(directory).ok()?;
            names.extend(self.below_start(&path).map(|path| Single {
                path: join(path, &name),
                node: Node::Image(before),
                directory: Some((directory.subvolume.get(), directory.inode.get())),
                name,
            }));
        }
        names.sort_by(|a, b| a.path.cmp(&b.path));
        names.into_iter().find(|single| self.is_free(comparison, single))
    }

    /// Returns the path of a directory relative to the old root; `None` for a directory outside of
    /// it.
    fn below_start<'a>(&self, path: &'a [u8]) -> Option<&'a [u8]> {
        let rest = path.strip_prefix(self.old_base.as_slice())?;
        if rest.is_empty() || self.old_base.is_empty() {
            return Some(rest);
        }
        rest.strip_prefix(b"/")
    }

    /// Returns whether an old name has not been matched yet.
    fn is_free(&self, comparison: &Comparison<'_>, single: &Single) -> bool {
        let Some(directory) = single.directory else {
            return false;
        };
        if comparison.taken.contains(&(directory, single.name.clone())) {
            return false;
        }
        match comparison.directories.get(&directory) {
            Some(Node::Image(now)) => matches!(self.filesystem.lookup(*now, &single.name), Ok(None)),
            _ => true,
        }
    }
}

/// Returns whether two locations are in one subvolume or in two with a common history.
fn are_relatives(filesystem: &Volume, old: Location, new: Location) -> bool {
    if old.subvolume == new.subvolume {
        return true;
    }
    let (Ok(old), Ok(new)) = (
        filesystem.subvolume_info(old.subvolume),
        filesystem.subvolume_info(new.subvolume),
    ) else {
        return false;
    };
    let is = |one: Option<uuid::Uuid>, other: Option<uuid::Uuid>| one.is_some() && one == other;
    is(old.uuid(), new.parent_uuid())
        || is(new.uuid(), old.parent_uuid())
        || is(old.parent_uuid(), new.parent_uuid())
}

fn by_inode(comparison: &mut Comparison<'_>, inodes: &Inodes, failed: &mut Failed<'_>) {
    // Match directories first: their entries then have old names in the new place. If a file exists
    // on one side only, below a moved or added directory, it joins the queue.
    let mut others = VecDeque::new();
    while let Some(added) = comparison.added.pop_front() {
        match comparison.new.facts(&added.node) {
            Ok(facts) if facts.kind != FileKind::Directory => others.push_back(added),
            _ => moved_or_added(comparison, inodes, &added, failed),
        }
    }
    for added in others {
        moved_or_added(comparison, inodes, &added, failed);
    }
    while let Some(removed) = comparison.removed.pop_front() {
        let name = removed
            .directory
            .map(|directory| (directory, removed.name.clone()));
        if name.is_some_and(|name| comparison.taken.contains(&name)) {
            continue;
        }
        let mut below = VecDeque::new();
        tell(comparison, Which::Old, &removed, &mut below, failed);
        comparison.removed.append(&mut below);
    }
}

fn moved_or_added(comparison: &mut Comparison<'_>, inodes: &Inodes, added: &Single, failed: &mut Failed<'_>) {
    if let Some(before) = inodes.find(comparison, added) {
        if let Some(directory) = before.directory {
            comparison.taken.insert((directory, before.name.clone()));
        }
        comparison.pair(
            [&before.path, &added.path],
            &before.node,
            &added.node,
            true,
            failed,
        );
    } else {
        let mut below = VecDeque::new();
        tell(comparison, Which::New, added, &mut below, failed);
        comparison.added.append(&mut below);
    }
}

/// Reports a one-sided file. The entries of a one-sided directory are reported later.
fn tell(
    comparison: &mut Comparison<'_>,
    which: Which,
    single: &Single,
    below: &mut VecDeque<Single>,
    failed: &mut Failed<'_>,
) {
    match open(comparison, which, single, below, failed) {
        Ok(facts) => comparison
            .found
            .push(on_one_side(which, &single.path, facts.kind)),
        Err(error) => failed(error.context(single.path.escape_ascii().to_string())),
    }
}

fn on_one_side(which: Which, path: &[u8], kind: FileKind) -> Found {
    Found {
        path: path.to_vec(),
        difference: match which {
            Which::Old => Difference::Removed(kind_name(kind)),
            Which::New => Difference::Added(kind_name(kind)),
        },
    }
}

fn open(
    comparison: &mut Comparison<'_>,
    which: Which,
    single: &Single,
    below: &mut VecDeque<Single>,
    failed: &mut Failed<'_>,
) -> Result<Facts> {
    let side = match which {
        Which::Old => comparison.old,
        Which::New => comparison.new,
    };
    let facts = side.facts(&single.node)?;
    let entries = comparison.entries(which, &single.node, &facts, &single.path, failed)?;
    below.extend(entries.into_iter().flatten().map(|entry| Single {
        path: join(&single.path, &entry.name),
        node: entry.node,
        directory: Some(facts.identity),
        name: entry.name,
    }));
    Ok(facts)
}

/// A one-sided file with content.
struct File {
    single: Single,
    size_bytes: u64,
}

fn by_content(comparison: &mut Comparison<'_>, failed: &mut Failed<'_>) {
    let removed = std::mem::take(&mut comparison.removed);
    let added = std::mem::take(&mut comparison.added);
    let removed = files(comparison, Which::Old, removed, failed);
    let added = files(comparison, Which::New, added, failed);
    let sizes: HashSet<u64> = added.iter().map(|file| file.size_bytes).collect();
    let old_sizes: HashSet<u64> = removed.iter().map(|file| file.size_bytes).collect();
    // Files by size and sample, in the order of their paths.
    let mut alike: HashMap<(u64, u64), Vec<Single>> = HashMap::new();
    let mut rest = Vec::new();
    for File { single, size_bytes } in added {
        if !old_sizes.contains(&size_bytes) {
            rest.push(single);
            continue;
        }
        match sample(comparison, Which::New, &single) {
            Ok(sample) => alike.entry((size_bytes, sample)).or_default().push(single),
            Err(error) => {
                failed(error.context(single.path.escape_ascii().to_string()));
                rest.push(single);
            }
        }
    }
    for File { single, size_bytes } in removed {
        let now = if sizes.contains(&size_bytes) {
            same_content(comparison, &single, size_bytes, &mut alike, failed)
        } else {
            None
        };
        match now {
            Some(now) => comparison.pair([&single.path, &now.path], &single.node, &now.node, true, failed),
            None => {
                let found = on_one_side(Which::Old, &single.path, FileKind::Regular);
                comparison.found.push(found);
            }
        }
    }
    for single in rest.into_iter().chain(alike.into_values().flatten()) {
        let found = on_one_side(Which::New, &single.path, FileKind::Regular);
        comparison.found.push(found);
    }
}

/// Returns all files with content, in the order of their paths, and reports all other files at
/// once.
fn files(
    comparison: &mut Comparison<'_>,
    which: Which,
    mut singles: VecDeque<Single>,
    failed: &mut Failed<'_>,
) -> Vec<File> {
    let mut files = Vec::new();
    while let Some(single) = singles.pop_front() {
        let mut below = VecDeque::new();
        match open(comparison, which, &single, &mut below, failed) {
            Ok(facts) if facts.kind == FileKind::Regular && facts.size_bytes > 0 => files.push(File {
                single,
                size_bytes: facts.size_bytes,
            }),
            Ok(facts) => comparison
                .found
                .push(on_one_side(which, &single.path, facts.kind)),
            Err(error) => failed(error.context(single.path.escape_ascii().to_string())),
        }
        singles.append(&mut below);
    }
    files.sort_by(|a, b| a.single.path.cmp(&b.single.path));
    files
}

/// Returns the added file with the content of a removed one; prefers one with the same name.
fn same_content(
    comparison: &Comparison<'_>,
    removed: &Single,
    size_bytes: u64,
    alike: &mut HashMap<(u64, u64), Vec<Single>>,
    failed: &mut Failed<'_>,
) -> Option<Single> {
    let sample = match sample(comparison, Which::Old, removed) {
        Ok(sample) => sample,
        Err(error) => {
            failed(error.context(removed.path.escape_ascii().to_string()));
            return None;
        }
    };
    let candidates = alike.get_mut(&(size_bytes, sample))?;
    let mut order: Vec<usize> = (0..candidates.len()).collect();
    order.sort_by_key(|index| {
        candidates
            .get(*index)
            .is_none_or(|candidate| candidate.name != removed.name)
    });
    for index in order.into_iter().take(CANDIDATES_MAX) {
        let candidate = candidates.get(index)?;
        let same = comparison.old.segments(&removed.node).and_then(|old| {
            let new = comparison.new.segments(&candidate.node)?;
            Ok(!compare(old, new)?.bytes)
        });
        match same {
            Ok(true) => return Some(candidates.remove(index)),
            Ok(false) => {}
            Err(error) => failed(error.context(candidate.path.escape_ascii().to_string())),
        }
    }
    None
}

/// Returns a hash of the beginning of a file, which is equal for files of the same content.
fn sample(comparison: &Comparison<'_>, which: Which, single: &Single) -> Result<u64> {
    let side = match which {
        Which::Old => comparison.old,
        Which::New => comparison.new,
    };
    let mut hasher = DefaultHasher::new();
    hasher.write(&side.segments(&single.node)?.beginning(SAMPLE_BYTES)?);
    Ok(hasher.finish())
}
