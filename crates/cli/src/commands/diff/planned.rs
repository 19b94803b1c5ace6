//! A tar archive or a manifest as one side of a comparison.

use buttress_exact::Exact as _;
use std::ffi::OsStr;
use std::fs::File;
use std::io::Read as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use anyhow::{Context as _, Result};
use buttress::build::{ContentReader, EntryKind};
use buttress::sources::store::Compression;
use buttress::sources::tree::EntryTree;
use buttress::sources::{Layers, Manifest};
use buttress::unstable::filesystem_of;
use buttress::{FileKind, FileOffset, NodeKind, Progress, Timestamp};

use super::content::Segments;
use super::side::{Entry, Facts, Node};
use crate::context::Context;

/// Bytes at the beginning of a file that determine its format.
const BEGINNING_BYTES: usize = 512;

/// Opens an archive or a manifest as one side of the comparison. Returns `None` for a file that is
/// neither an archive nor a manifest.
pub(super) fn open(context: &Context, path: &Path) -> Result<Option<EntryTree>> {
    if !path.is_file() {
        return Ok(None);
    }
    let mut beginning = Vec::new();
    let named = || path.display().to_string();
    let file = File::open(path).with_context(named)?;
    file.take(BEGINNING_BYTES as u64)
        .read_to_end(&mut beginning)
        .with_context(named)?;
    let is_tar = Compression::of(&beginning).is_some()
        || beginning.get(257..262).is_some_and(|magic| magic == b"ustar");
    if is_tar {
        let layers = Layers::tar(path, &std::env::temp_dir(), &Progress::new())?;
        return Ok(Some(EntryTree::gather(layers, |_| {})?));
    }
    let is_manifest = path.extension() == Some(OsStr::from_bytes(b"toml"));
    if !is_manifest {
        return Ok(None);
    }
    let manifest = Manifest::open(path, Timestamp::default(), &|image| {
        let volume = context.open_volume(image).map_err(|error| format!("{error:#}"))?;
        Ok(filesystem_of(volume.volume()))
    })?;
    let rules = manifest.rules();
    let tree = EntryTree::gather(manifest, |entry| {
        rules.apply(entry);
    })?;
    Ok(Some(tree))
}

fn find<'a>(tree: &'a EntryTree, path: &[u8]) -> Result<&'a buttress::build::Entry> {
    tree.entry(path).context("an entry is gone")
}

pub(super) fn entries(tree: &EntryTree, path: &[u8]) -> Vec<Entry> {
    let entry = |name: &Vec<u8>| Entry {
        name: name.clone(),
        node: Node::Planned(super::compare::join(path, name)),
    };
    tree.names(path).iter().map(entry).collect()
}

pub(super) fn facts(tree: &EntryTree, path: &[u8]) -> Result<Facts> {
    let entry = find(tree, path)?;
    let (mut size_bytes, mut device) = (0, None);
    let kind = match &entry.kind {
        EntryKind::Directory(_) | EntryKind::Snapshot { .. } => FileKind::Directory,
        EntryKind::File(content) => {
            size_bytes = content.size.get();
            FileKind::Regular
        }
        EntryKind::Symlink(target) => {
            size_bytes = target.len() as u64;
            FileKind::Symlink
        }
        EntryKind::Node(NodeKind::Fifo) => FileKind::Fifo,
        EntryKind::Node(NodeKind::Socket) => FileKind::Socket,
        EntryKind::Node(NodeKind::CharacterDevice(number)) => {
            device = Some((number.major, number.minor));
            FileKind::CharacterDevice
        }
        EntryKind::Node(NodeKind::BlockDevice(number)) => {
            device = Some((number.major, number.minor));
            FileKind::BlockDevice
        }
        EntryKind::HardLink(_) | EntryKind::Whiteout | EntryKind::Opaque => FileKind::Unknown,
    };
    let attributes = &entry.attributes;
    let linked = attributes.link.and_then(|key| Some((key, tree.link(key)?.1)));
    Ok(Facts {
        kind,
        permissions: attributes.permissions,
        uid: attributes.uid,
        gid: attributes.gid,
        size_bytes,
        modified: (attributes.mtime.seconds, attributes.mtime.nanoseconds),
        links: linked.map_or(1, |(_, count)| count),
        identity: linked.map_or_else(|| (u64::MAX, by_path(path)), |(key, _)| (key.0, key.1)),
        birth: None,
        device,
    })
}

/// Returns a number that identifies a path.
fn by_path(path: &[u8]) -> u64 {
    use std::hash::{DefaultHasher, Hash as _, Hasher as _};
    let mut hasher = DefaultHasher::new();
    path.hash(&mut hasher);
    hasher.finish()
}

pub(super) fn xattrs(tree: &EntryTree, path: &[u8]) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
    let xattrs = find(tree, path)?.attributes.xattrs.iter();
    Ok(xattrs
        .map(|xattr| (xattr.name.clone(), xattr.value.clone()))
        .collect())
}

pub(super) fn link_target(tree: &EntryTree, path: &[u8]) -> Result<Vec<u8>> {
    match &find(tree, path)?.kind {
        EntryKind::Symlink(target) => Ok(target.clone()),
        _ => Err(anyhow::anyhow!("no symbolic link")),
    }
}

pub(super) fn segments(tree: &EntryTree, path: &[u8]) -> Result<Segments> {
    let entry = find(tree, path)?;
    let size_bytes = match &entry.kind {
        EntryKind::File(content) => content.size.get(),
        _ => 0,
    };
    let reader = tree.open(entry)?;
    Ok(Segments::planned(PlannedContent {
        reader,
        offset: 0,
        size_bytes,
    }))
}

/// Reader of a file's content from the beginning to the end.
pub(super) struct PlannedContent {
    reader: Box<dyn ContentReader>,
    offset: u64,
    size_bytes: u64,
}

impl std::fmt::Debug for PlannedContent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PlannedContent")
            .field("offset", &self.offset)
            .field("size_bytes", &self.size_bytes)
            .finish_non_exhaustive()
    }
}

/// A piece of data, or the length of a hole.
pub(super) enum Run {
    Data(Vec<u8>),
    Hole(u64),
}

impl PlannedContent {
    /// Returns the next piece, with at most `bytes_max` bytes of data; `None` at the end.
    pub(super) fn next(&mut self, bytes_max: usize) -> Result<Option<Run>> {
        if self.offset >= self.size_bytes {
            return Ok(None);
        }
        let data = self.reader.next_data(FileOffset::new(self.offset))?;
        let start = data
            .as_ref()
            .map_or(self.size_bytes, |range| range.start.get())
            .clamp(self.offset, self.size_bytes);
        if start > self.offset {
            let length = start.saturating_sub(self.offset);
            self.offset = start;
            return Ok(Some(Run::Hole(length)));
        }
        let end = data.map_or(start, |range| range.end.get()).min(self.size_bytes);
        let length = end.saturating_sub(start).narrow::<usize>();
        let mut bytes = vec![0; length.clamp(1, bytes_max)];
        self.reader.read_exact_at(FileOffset::new(start), &mut bytes)?;
        self.offset = start.saturating_add(bytes.len() as u64);
        Ok(Some(Run::Data(bytes)))
    }
}
