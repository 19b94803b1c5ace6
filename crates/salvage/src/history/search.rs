//! The search for versions: the states are read one after another, from the newest to the oldest.

use super::leaves::{KNOWN_MAX, KnownBlocks, NewLeaves};
use super::names::Names;
use super::version::{Found, Version, judge};
use crate::error::{Error, Result};
use crate::survey::tree_roots;
use crate::verdict::{FileFindings, Judge};
use crate::view::View;
use buttress_exact::Exact as _;
use buttress_format::node::TreeBlock;
use buttress_format::{
    FileKind, InodeFlags, InodeItem, InodeNumber, ItemType, Key, ObjectId, RootItem, SubvolumeId, TreeId,
};
use buttress_fs::filesystem::root_pointer;
use buttress_fs::inode::kind_of_mode;
use buttress_fs::{Follow, Location, Progress};
use buttress_tree::BlockPointer;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

/// The largest number of versions that a search returns.
pub const VERSIONS_MAX: usize = 1 << 20;

/// The largest number of bytes of the paths of all versions.
const PATHS_MAX: usize = 512 << 20;

/// The number of older states whose checksums are tried for one version.
const TRIES_MAX: u32 = 64;

/// The files that a search wants.
pub trait WantedFiles {
    /// Returns whether a path, without a slash at its start, is wanted.
    fn wants(&self, path: &[u8]) -> bool;

    /// Returns whether a wanted path can be below this directory. A subvolume is skipped otherwise.
    fn wants_below(&self, directory: &[u8]) -> bool;

    /// Returns paths that are looked up in each state. A lookup finds a file whose directory was
    /// renamed, which is in no changed leaf.
    fn paths(&self) -> Vec<Vec<u8>>;
}

/// The result of a search.
#[derive(Clone, Debug, Default)]
pub struct History {
    /// The versions in order of path, the newest version first.
    pub versions: Vec<Version>,
    /// The reason why the newest state does not open. All files then count as versions.
    pub newest_error: Option<Arc<Error>>,
    /// The number of states that were read.
    pub states: u64,
    /// The number of states that do not open.
    pub unopened: u64,
    /// The number of tree blocks that could not be read. Versions in them are not found.
    pub unreadable: u64,
    /// True if there are more than [`VERSIONS_MAX`] versions, or their paths need too much memory.
    pub is_cut: bool,
}

/// A search that has read the states down to some generation.
pub(super) struct Search<'a> {
    wanted: &'a dyn WantedFiles,
    progress: &'a Progress,
    newest: Option<&'a View>,
    newest_names: Option<Names<'a>>,
    /// The bytes of paths of all versions.
    path_bytes: usize,
    /// The subvolumes of the newest state. Deleted subvolumes whose trees are still there do not count.
    current: HashSet<SubvolumeId>,
    subvolumes: HashMap<SubvolumeId, KnownBlocks>,
    room: usize,
    /// The versions of each inode, by their numbers.
    found: HashMap<Location, Vec<usize>>,
    pub(super) history: History,
}

impl<'a> Search<'a> {
    /// Returns a search that has read no state. `newest` is the state whose files are not versions.
    pub(super) fn new(wanted: &'a dyn WantedFiles, newest: Option<&'a View>, progress: &'a Progress) -> Self {
        Self {
            wanted,
            progress,
            newest,
            newest_names: newest.map(|view| Names::new(view, None)),
            path_bytes: 0,
            current: HashSet::new(),
            subvolumes: HashMap::new(),
            room: KNOWN_MAX,
            found: HashMap::new(),
            history: History::default(),
        }
    }

    /// Makes the blocks of the newest state known.
    pub(super) fn read_newest(&mut self) -> Result<()> {
        let Some(view) = self.newest else { return Ok(()) };
        self.history.states = self.history.states.exact_add(1);
        for (key, item) in tree_roots(&view.filesystem, self.progress)? {
            self.current.extend(subvolume_of(&key, &item));
        }
        for (id, item, _) in self.subvolumes_of(&Names::new(view, None))? {
            self.changed_inodes(view, id, &item, false)?;
        }
        Ok(())
    }

    /// Adds the versions of an older state.
    pub(super) fn read(&mut self, view: &View, is_doubtful: bool) -> Result<()> {
        self.history.states = self.history.states.exact_add(1);
        let mut state = Reading {
            view,
            judge: judge(view, is_doubtful),
            names: Names::new(view, self.newest),
            is_doubtful,
        };
        for (id, item, path) in self.subvolumes_of(&state.names)? {
            for inode in self.changed_inodes(view, id, &item, true)? {
                self.take(&mut state, &path, Location::new(id, inode))?;
            }
        }
        self.look_up(&mut state)?;
        self.try_checksums(&state)
    }

    /// Returns the subvolumes of a state that can hold wanted files, with their root items and paths.
    fn subvolumes_of(&self, names: &Names<'_>) -> Result<Vec<(SubvolumeId, RootItem, Vec<u8>)>> {
        let mut found = Vec::new();
        for (key, item) in tree_roots(&names.view.filesystem, self.progress)? {
            let Some(id) = subvolume_of(&key, &item) else {
                continue;
            };
            let path = names.subvolume(id);
            if self.wanted.wants_below(&path) {
                found.push((id, item, path));
            }
        }
        Ok(found)
    }

    /// Returns the files with an item in an unknown leaf of a subvolume.
    fn changed_inodes(
        &mut self,
        view: &View,
        id: SubvolumeId,
        item: &RootItem,
        reads_leaves: bool,
    ) -> Result<BTreeSet<InodeNumber>> {
        let mut inodes = BTreeSet::new();
        let mut leaves = NewLeaves {
            forest: view.filesystem.forest(),
            known: self.subvolumes.entry(id).or_default(),
            room: &mut self.room,
            reads_leaves,
            unreadable: 0,
            progress: self.progress,
        };
        let root = BlockPointer::root(&root_pointer(id.tree(), item));
        leaves.walk(&root, &mut |leaf| {
            files_of(leaf, &mut inodes);
            Ok(())
        })?;
        let unreadable = leaves.unreadable;
        if reads_leaves {
            self.history.unreadable = self.history.unreadable.exact_add(unreadable);
        }
        Ok(inodes)
    }

    /// Looks up the wanted paths in a state.
    fn look_up(&mut self, state: &mut Reading<'_>) -> Result<()> {
        let filesystem = &state.view.filesystem;
        for path in self.wanted.paths() {
            let top = Location::root_of(SubvolumeId::TOP_LEVEL);
            let Ok(location) = filesystem.resolve(top, &path, Follow::NotLast) else {
                continue;
            };
            if location.placeholder().is_none() {
                let above = state.names.subvolume(location.subvolume);
                self.take(state, &above, location)?;
            }
        }
        Ok(())
    }

    /// Adds an inode of a state as a version, under each wanted path.
    fn take(&mut self, state: &mut Reading<'_>, above: &[u8], location: Location) -> Result<()> {
        self.progress.check()?;
        let Some(found) = Found::read(state.view, location) else {
            return Ok(());
        };
        if !matches!(found.record.metadata.kind, FileKind::Regular | FileKind::Symlink) {
            return Ok(());
        }
        let mut paths = state.names.paths(above, &found.record, self.progress)?;
        paths.retain(|path| self.wanted.wants(path));
        let known = self.found.get(&location).into_iter().flatten();
        let known: Vec<&Version> = known
            .filter_map(|number| self.history.versions.get(*number))
            .collect();
        paths.retain(|path| {
            !known
                .iter()
                .any(|version| version.path == *path && version.identity().has_content_of(&found.identity()))
        });
        if paths.is_empty() {
            return Ok(());
        }
        let now = self.now(location, &found)?;
        paths.retain(|path| !now.contains(path));
        let mut findings: Option<FileFindings> = None;
        for path in paths {
            let is_full = self.history.versions.len() >= VERSIONS_MAX;
            if is_full || self.path_bytes >= PATHS_MAX {
                self.history.is_cut = true;
                return Ok(());
            }
            let findings = match &findings {
                Some(known) => known.clone(),
                None => findings
                    .insert(found.examine(&state.judge, self.progress)?)
                    .clone(),
            };
            self.add(state, path, &found, findings, &now);
        }
        Ok(())
    }

    fn add(
        &mut self,
        state: &Reading<'_>,
        path: Vec<u8>,
        found: &Found,
        findings: FileFindings,
        now: &[Vec<u8>],
    ) {
        let metadata = &found.record.metadata;
        self.path_bytes = self.path_bytes.exact_add(path.len());
        let number = self.history.versions.len();
        self.found.entry(metadata.location).or_default().push(number);
        self.history.versions.push(Version {
            path,
            location: metadata.location,
            kind: metadata.kind,
            generation: state.view.state.generation(),
            state: state.view.state,
            is_doubtful: state.is_doubtful,
            size: metadata.size,
            modified: metadata.modified,
            inode_generation: metadata.generation,
            renamed_to: now.first().cloned(),
            findings: findings.without_ranges(),
            content: found.content,
            written: found.written,
            tries: tries_of(metadata.flags),
        });
    }

    /// Returns the paths at which the newest state has the content.
    fn now(&mut self, location: Location, found: &Found) -> Result<Vec<Vec<u8>>> {
        let is_current = self.current.contains(&location.subvolume);
        let Some(names) = self.newest_names.as_mut().filter(|_| is_current) else {
            return Ok(Vec::new());
        };
        let Some(current) = Found::read(names.view, location) else {
            return Ok(Vec::new());
        };
        let is_same_kind = current.record.metadata.kind == found.record.metadata.kind;
        if !is_same_kind || !current.identity().has_content_of(&found.identity()) {
            return Ok(Vec::new());
        }
        names.known_paths(&current.record, self.progress)
    }

    /// Reads versions whose checksums were lost with the checksums of this older state.
    fn try_checksums(&mut self, state: &Reading<'_>) -> Result<()> {
        // A doubtful state verifies nothing.
        if state.is_doubtful {
            return Ok(());
        }
        let generation = state.view.state.generation();
        for version in &mut self.history.versions {
            let lacks_checksums = version.findings.lacks_proof();
            // A version that this state added was read with its checksums already.
            let is_other = state.view.state != version.state;
            let is_older =
                is_other && generation <= version.state.generation() && version.written <= generation;
            if version.tries == 0 || version.content.is_none() || !lacks_checksums || !is_older {
                continue;
            }
            self.progress.check()?;
            version.tries = version.tries.exact_sub(1);
            let Some(found) = Found::read(state.view, version.location) else {
                continue;
            };
            if found.content != version.content {
                continue;
            }
            let findings = found.examine(&state.judge, self.progress)?;
            if findings.is_better_than(&version.findings) {
                version.findings = findings.without_ranges();
                version.state = state.view.state;
                version.is_doubtful = state.is_doubtful;
            }
        }
        Ok(())
    }
}

/// A state that is being read.
struct Reading<'a> {
    view: &'a View,
    judge: Judge,
    names: Names<'a>,
    is_doubtful: bool,
}

/// Returns the number of states to try for a file. No state has checksums of a file without them.
const fn tries_of(flags: InodeFlags) -> u32 {
    match flags.contains(InodeFlags::NODATASUM) {
        true => 0,
        false => TRIES_MAX,
    }
}

/// Returns the subvolume of a root item, unless it was deleted.
fn subvolume_of(key: &Key, item: &RootItem) -> Option<SubvolumeId> {
    let id = TreeId::new(key.objectid.get()).as_subvolume();
    id.filter(|_| item.references != 0)
}

/// Adds the inodes that have an item in a leaf, and may be files.
fn files_of(leaf: &TreeBlock, inodes: &mut BTreeSet<InodeNumber>) {
    let mut others: HashSet<ObjectId> = HashSet::new();
    for slot in 0..leaf.item_count() {
        let Some(item) = leaf.item(slot) else { continue };
        let (id, kind) = (item.key.objectid, item.key.item_type);
        if id <= InodeNumber::ROOT_DIRECTORY.object_id() || id > ObjectId::LAST_FREE {
            continue;
        }
        if kind == ItemType::INODE_ITEM {
            let inode = InodeItem::parse(&item.key, item.data);
            let is_file = |mode| matches!(kind_of_mode(mode), FileKind::Regular | FileKind::Symlink);
            if inode.is_ok_and(|inode| !is_file(inode.mode)) {
                others.insert(id);
            }
        }
        let belongs_to_files = matches!(
            kind,
            ItemType::INODE_ITEM | ItemType::INODE_REF | ItemType::INODE_EXTREF | ItemType::EXTENT_DATA
        );
        if belongs_to_files && !others.contains(&id) {
            inodes.insert(InodeNumber::new(id.get()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{TRIES_MAX, tries_of};
    use buttress_format::InodeFlags;

    #[test]
    fn file_without_checksums_is_read_once() {
        assert_eq!(tries_of(InodeFlags::NODATASUM), 0);
        assert_eq!(tries_of(InodeFlags::empty()), TRIES_MAX);
    }
}
