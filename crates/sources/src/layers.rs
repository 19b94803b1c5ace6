//! Archives, one on top of another, as a source of entries: a tar archive, or the layers of a
//! container image.
//!
//! The order of an archive's members is their precedence. Of two members with one path, the later
//! one stays, as when archives are unpacked one after another. In layers, names that begin with
//! `.wh.` delete entries of lower layers (OCI image specification, "Whiteouts"). `.wh.NAME` deletes
//! one entry, and `.wh..wh..opq` deletes the content of a directory. Whiteout names never affect
//! their own layer.
//!
//! A hard link is another name of the target's file at the moment of the link, whatever later
//! happens to the target's name. A later layer may delete one of a file's two names. Each name of a
//! file with several names therefore becomes a complete entry, and a [`LinkKey`] joins them. Every
//! archive is read twice to find the names of a file, the first time only for link targets. Memory
//! grows only with the number of files in the archive that have several names.
//!
//! A member whose path leads through a symbolic link is placed at the link's target (`symlinks`).
//!
//! With snapshots of layers, the entries of each layer are returned again for every state that
//! contains them, below a directory that is a read-only subvolume. Contents are identified by their
//! place in the layer, so all states share their extents.

use std::collections::hash_map::DefaultHasher;
use std::collections::{HashMap, HashSet};
use std::hash::{Hash, Hasher};
use std::path::Path;
use std::sync::Arc;

use buttress_build::{
    ContentReader, Contents, Entry, EntryKind, EntryPath, FileContent, LinkKey, Precedence, ShareKey, Source,
    SourceError, SubvolumeMark,
};
use buttress_fs::Progress;

use crate::member::{self, entry_of};
use crate::store::Store;
use crate::tar::{Kind, Member, Problem, Reader, TarError};
use revisits::{MemberPlace, Revisited, Revisits};
use symlinks::Symlinks;

mod revisits;
mod symlinks;

/// The prefix of whiteout names in a layer.
const MARK: &[u8] = b".wh.";
/// The mark that deletes the content of a directory.
const OPAQUE: &[u8] = b".wh..wh..opq";
/// The binary logarithm of the maximum number of members and marks in a layer of an image.
const LAYER_BITS: u32 = 40;

/// An archive.
#[derive(Clone, Debug)]
pub struct Layer {
    /// The archive's name in messages.
    pub name: String,
    /// The archive's uncompressed bytes.
    pub store: Store,
}

/// The archives of the layers, the lowest first.
#[derive(Debug)]
pub struct Layers {
    name: String,
    layers: Arc<Vec<Layer>>,
    /// True if names that begin with `.wh.` delete other entries.
    marks: bool,
    snapshots: Option<EntryPath>,
    /// Hashes of the paths that hard-link members name; `None` until the archives were searched for
    /// such members.
    linked: Option<HashSet<u64>>,
    state: State,
    /// Entries that the source returns before all others.
    pending: Vec<Entry>,
    progress: Progress,
}

/// The progress of returning entries.
#[derive(Debug)]
struct State {
    /// The index among the tree's states: the state after all layers, then each state with a
    /// snapshot.
    view: usize,
    layer: usize,
    reader: Option<Reader>,
    order: u64,
    /// The member that currently has the path of each link target.
    targets: HashMap<u64, MemberPlace>,
    revisits: Revisits,
    /// Symbolic links above members.
    symlinks: Symlinks,
}

impl Layers {
    /// Opens a tar archive: a file, or standard input for `-`, compressed or not. Input without
    /// random access is spooled to a file without a name in the directory `spool`.
    ///
    /// # Errors
    /// Fails if the archive cannot be opened, unpacked or spooled. Returns [`SourceError::Io`] with
    /// `Interrupted` if `progress` is cancelled.
    pub fn tar(path: &Path, spool: &Path, progress: &Progress) -> Result<Self, SourceError> {
        let name = if path == Path::new("-") {
            "standard input".to_owned()
        } else {
            path.display().to_string()
        };
        let store = Store::open(path, spool, progress).map_err(|error| error.of(name.clone()))?;
        Ok(Self::of_archive(name, store).with_progress(progress))
    }

    /// Makes a source of an archive that is called `name` in messages.
    #[must_use]
    pub fn of_archive(name: String, store: Store) -> Self {
        let layer = Layer {
            name: name.clone(),
            store,
        };
        Self::new(name, vec![layer], false)
    }

    /// Makes a source of the layers of a container image, the lowest first.
    #[must_use]
    pub fn of_image(name: String, layers: Vec<Layer>) -> Self {
        Self::new(name, layers, true)
    }

    fn new(name: String, layers: Vec<Layer>, marks: bool) -> Self {
        Self {
            name,
            layers: Arc::new(layers),
            marks,
            snapshots: None,
            linked: None,
            state: State {
                view: 0,
                layer: 0,
                reader: None,
                order: 0,
                targets: HashMap::new(),
                revisits: Revisits::default(),
                symlinks: Symlinks::default(),
            },
            pending: Vec::new(),
            progress: Progress::new(),
        }
    }

    /// Cancels the reading of members with this progress.
    #[must_use]
    pub fn with_progress(mut self, progress: &Progress) -> Self {
        self.progress = progress.clone();
        self
    }

    /// Adds a read-only subvolume with the state after each layer to this directory: `1`, `2`, and
    /// so on.
    #[must_use]
    pub fn with_snapshots(mut self, directory: EntryPath) -> Self {
        self.snapshots = Some(directory);
        self
    }

    /// Returns the number of layers.
    #[must_use]
    pub fn count(&self) -> usize {
        self.layers.len()
    }

    fn next(&mut self) -> Result<Option<Entry>, (usize, TarError)> {
        if self.linked.is_none() {
            self.linked = Some(self.find_linked()?);
        }
        loop {
            if let Some(entry) = self.pending.pop() {
                return Ok(Some(entry));
            }
            let last = match self.state.view {
                0 => self.layers.len(),
                view => view,
            };
            if self.state.layer >= last {
                if !self.next_view() {
                    return Ok(None);
                }
                continue;
            }
            let number = self.state.layer;
            let Some(member) = self.next_member(number).map_err(|error| (number, error))? else {
                self.state.reader = None;
                self.state.layer = number.saturating_add(1);
                continue;
            };
            let offset = member.offset;
            self.check_progress(offset).map_err(|error| (number, error))?;
            let entry = self.entry(member);
            let entry = entry.map_err(|problem| (number, TarError { offset, problem }))?;
            if let Some(entry) = entry {
                return Ok(Some(entry));
            }
        }
    }

    fn next_member(&mut self, number: usize) -> Result<Option<Member>, TarError> {
        let Some(layer) = self.layers.get(number) else {
            return Ok(None);
        };
        let store = &layer.store;
        let reader = self
            .state
            .reader
            .get_or_insert_with(|| Reader::new(store.clone()));
        reader.next_member()
    }

    /// Fails if the job was cancelled.
    fn check_progress(&self, offset: u64) -> Result<(), TarError> {
        let problem = Problem::Cancelled;
        self.progress.check().map_err(|_| TarError { offset, problem })
    }

    /// Begins to return the next state of the tree. Returns false after the last state.
    fn next_view(&mut self) -> bool {
        let view = self.state.view.saturating_add(1);
        let Some(directory) = self.snapshots.as_ref().filter(|_| view <= self.layers.len()) else {
            return false;
        };
        self.state = State {
            view,
            layer: 0,
            reader: None,
            order: self.state.order,
            targets: HashMap::new(),
            revisits: Revisits::default(),
            symlinks: Symlinks::default(),
        };
        let Some(path) = below(directory, view.to_string().as_bytes()) else {
            return false;
        };
        self.pending.push(member::directory(
            path,
            Precedence(0),
            Some(SubvolumeMark {
                read_only: true,
                default: false,
            }),
        ));
        true
    }

    /// Searches all archives for the paths that members are linked to.
    fn find_linked(&self) -> Result<HashSet<u64>, (usize, TarError)> {
        let mut linked = HashSet::new();
        let mut symlinks = Symlinks::default();
        for (number, layer) in self.layers.iter().enumerate() {
            symlinks.begin_layer(number);
            let mut reader = Reader::new(layer.store.clone());
            while let Some(member) = reader.next_member().map_err(|error| (number, error))? {
                let offset = member.offset;
                self.check_progress(offset).map_err(|error| (number, error))?;
                let failed = |problem| (number, TarError { offset, problem });
                if let Kind::HardLink(target) = &member.kind
                    && let Ok(target) = EntryPath::new(target)
                {
                    linked.insert(hash(&symlinks.follow(target).map_err(failed)?));
                }
                let Ok(path) = EntryPath::new(&member.path) else {
                    // The second read of the archive reports this error.
                    continue;
                };
                let path = symlinks.follow(path).map_err(failed)?;
                if !self.look_at_mark(&path, &mut symlinks) {
                    put(&mut symlinks, &path, &member.kind);
                }
            }
        }
        Ok(linked)
    }

    /// Makes an entry of a member; `None` if it has no meaning.
    fn entry(&mut self, member: Member) -> Result<Option<Entry>, Problem> {
        self.state.order = self.state.order.saturating_add(1);
        let layer = self.state.layer;
        let base = (layer as u64).saturating_add(1) << LAYER_BITS;
        let half = 1_u64 << LAYER_BITS.saturating_sub(1);
        self.state.symlinks.begin_layer(layer);
        let path = self.state.symlinks.follow(member::path("path", &member.path)?)?;
        let mut symlinks = std::mem::take(&mut self.state.symlinks);
        if !self.look_at_mark(&path, &mut symlinks) {
            put(&mut symlinks, &path, &member.kind);
        }
        self.state.symlinks = symlinks;
        if self.marks && path.name().starts_with(MARK) {
            // Whiteouts have a lower precedence than all members of their layer, because they
            // affect only lower layers.
            let precedence = Precedence(base.saturating_add(self.state.order));
            return Ok(self.mark(&path, precedence)?.map(|entry| self.placed(entry)));
        }
        let precedence = Precedence(base.saturating_add(half).saturating_add(self.state.order));
        let is_link = matches!(member.kind, Kind::HardLink(_));
        let mut at = (layer, member.offset);
        let mut entry = match &member.kind {
            Kind::HardLink(target) => {
                let to = member::path("the target of a hard link", target)?;
                let known = hash(&self.state.symlinks.follow(to)?);
                let wrong = || Problem::LinkedToNothing(target.clone());
                at = *self.state.targets.get(&known).ok_or_else(wrong)?;
                let first = self.revisit(at)?.ok_or_else(wrong)?;
                let mut entry = entry_of(first, precedence)?;
                if matches!(entry.kind, EntryKind::Directory(_)) {
                    return Err(Problem::LinkedToDirectory(target.clone()));
                }
                entry.path = path;
                entry
            }
            _ => {
                let mut entry = entry_of(member, precedence)?;
                entry.path = path;
                entry
            }
        };
        if let EntryKind::File(content) = &mut entry.kind {
            content.locator.splice(0..0, number_of(at.0));
            if self.snapshots.is_some() && content.size.get() > 0 {
                content.share = Some(ShareKey((at.0 as u128) << 64 | u128::from(at.1)));
            }
        }
        let known = hash(&entry.path);
        let is_target = self.linked.as_ref().is_some_and(|linked| linked.contains(&known));
        if is_target {
            self.state.targets.insert(known, at);
        }
        if (is_link || is_target) && !matches!(entry.kind, EntryKind::Directory(_)) {
            let state = (self.state.view as u64) << 32;
            entry.attributes.link = Some(LinkKey(state | at.0 as u64, at.1));
        }
        if let Some(directory) = &self.snapshots
            && self.state.view == 0
            && is_in(&entry.path, directory)
            && entry.path != *directory
        {
            return Err(Problem::AmongSnapshots(entry.path.as_bytes().to_vec()));
        }
        Ok(Some(self.placed(entry)))
    }

    /// Removes the symbolic links that a name with the prefix `.wh.` deletes. Returns false for a
    /// name without that prefix.
    fn look_at_mark(&self, path: &EntryPath, symlinks: &mut Symlinks) -> bool {
        if !(self.marks && path.name().starts_with(MARK)) {
            return false;
        }
        let directory = path.as_bytes().strip_suffix(path.name()).unwrap_or_default();
        let deleted = path.name().strip_prefix(MARK).unwrap_or_default();
        if path.name() == OPAQUE {
            if let Ok(directory) = EntryPath::new(directory) {
                symlinks.clear_below(&directory);
            }
        } else if let Ok(deleted) = EntryPath::new(&[directory, deleted].concat()) {
            symlinks.remove(&deleted);
        }
        true
    }

    /// Returns the whiteout for a name with the prefix `.wh.`; `None` if the name has no meaning.
    fn mark(&mut self, path: &EntryPath, precedence: Precedence) -> Result<Option<Entry>, Problem> {
        let name = path.name();
        let directory = path.as_bytes().strip_suffix(name).unwrap_or_default().to_vec();
        let wrong = || Problem::Whiteout(path.as_bytes().to_vec());
        if name == OPAQUE {
            let path = EntryPath::new(&directory).map_err(|_| wrong())?;
            return Ok(Some(member::mark(path, EntryKind::Opaque, precedence)));
        }
        let deleted = name.strip_prefix(MARK).unwrap_or_default();
        if deleted.starts_with(MARK) {
            // A union file system kept this file for its own use, so the layer does not contain it.
            return Ok(None);
        }
        if matches!(deleted, b"" | b"." | b"..") {
            return Err(wrong());
        }
        let path = EntryPath::new(&[&directory, deleted].concat()).map_err(|_| wrong())?;
        self.state.targets.remove(&hash(&path));
        Ok(Some(member::mark(path, EntryKind::Whiteout, precedence)))
    }

    /// Returns the member at a place for another link to it.
    fn revisit(&mut self, place: MemberPlace) -> Result<Option<Member>, Problem> {
        let sizes = self.layers.iter().map(|layer| layer.store.size());
        // Clamp: the sum only limits the repeated bytes.
        let archive_bytes = sizes.fold(0, u64::saturating_add);
        let mut revisits = std::mem::take(&mut self.state.revisits);
        let found = revisits.member(place, archive_bytes, || self.read_again(place));
        self.state.revisits = revisits;
        found
    }

    /// Reads a member again.
    fn read_again(&self, (number, offset): MemberPlace) -> Result<Option<Revisited>, Problem> {
        let reader = match (&self.state.reader, self.layers.get(number)) {
            (Some(reader), _) if number == self.state.layer => reader.revisit(offset),
            (_, Some(layer)) => Reader::at(layer.store.clone(), offset),
            _ => return Ok(None),
        };
        let mut reader = reader;
        let member = reader.next_member().map_err(|error| error.problem)?;
        Ok(member.map(|member| Revisited {
            member,
            header_bytes: reader.header_bytes(),
        }))
    }

    /// Moves an entry to its place in the current state of the tree.
    fn placed(&self, mut entry: Entry) -> Entry {
        if let (Some(directory), view @ 1..) = (&self.snapshots, self.state.view) {
            let below_it = [view.to_string().as_bytes(), b"/", entry.path.as_bytes()].concat();
            if let Some(path) = below(directory, &below_it) {
                entry.path = path;
            }
        }
        entry
    }

    fn error(&self, (number, error): (usize, TarError)) -> SourceError {
        let name = self
            .layers
            .get(number)
            .map_or_else(|| self.name.clone(), |layer| layer.name.clone());
        member::invalid(name, error)
    }
}

/// Records that a member replaces the entry at its path.
fn put(symlinks: &mut Symlinks, path: &EntryPath, kind: &Kind) {
    let target = match kind {
        Kind::Symlink(target) => Some(target.as_slice()),
        _ => None,
    };
    symlinks.put(path, matches!(kind, Kind::Directory), target);
}

/// Returns a path below a directory.
fn below(directory: &EntryPath, path: &[u8]) -> Option<EntryPath> {
    EntryPath::new(&[directory.as_bytes(), b"/", path].concat()).ok()
}

/// Returns true if a path is this directory, or lies in it.
pub(crate) fn is_in(path: &EntryPath, directory: &EntryPath) -> bool {
    directory.is_root()
        || path
            .as_bytes()
            .strip_prefix(directory.as_bytes())
            .is_some_and(|rest| rest.first().is_none_or(|byte| *byte == b'/'))
}

/// The path hash has fixed keys, so that the same archive yields the same result.
fn hash(path: &EntryPath) -> u64 {
    let mut hasher = DefaultHasher::new();
    path.as_bytes().hash(&mut hasher);
    hasher.finish()
}

/// Returns the number of a layer for the beginning of a locator.
fn number_of(layer: usize) -> [u8; 2] {
    u16::try_from(layer).unwrap_or(u16::MAX).to_le_bytes()
}

impl Source for Layers {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn next_entry(&mut self) -> Result<Option<Entry>, SourceError> {
        self.next().map_err(|error| self.error(error))
    }

    fn contents(&mut self) -> Result<Arc<dyn Contents>, SourceError> {
        Ok(Arc::new(LayerContents(Arc::clone(&self.layers))))
    }
}

#[derive(Debug)]
struct LayerContents(Arc<Vec<Layer>>);

impl Contents for LayerContents {
    fn open(&self, path: &EntryPath, content: &FileContent) -> Result<Box<dyn ContentReader>, SourceError> {
        let found = content
            .locator
            .split_first_chunk::<2>()
            .and_then(|(number, locator)| {
                let layer = self.0.get(usize::from(u16::from_le_bytes(*number)))?;
                Some((layer, locator))
            });
        let Some((layer, locator)) = found else {
            return Err(SourceError::Changed {
                place: String::from_utf8_lossy(path.as_bytes()).into_owned(),
                what: "it lies in no layer".to_owned(),
            });
        };
        member::open(&layer.name, &layer.store, content.size.get(), locator)
    }
}

#[cfg(test)]
mod tests;
