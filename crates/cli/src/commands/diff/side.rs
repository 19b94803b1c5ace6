//! A common interface to both sides of a comparison: a tree in a volume, on the host, in an archive
//! or in a plan.

use std::ffi::OsString;
use std::path::Path;

use anyhow::Result;
use buttress::sources::tree::EntryTree;
use buttress::unstable::filesystem_of;
use buttress::{FileKind, FileRange, Generation, Location, RangeKind, SubvolumeId, Timestamp, Volume};

use super::content::Segments;
use super::host::{self, HostTree};
use super::planned;
use crate::host::HostFile;

/// Root of a side.
#[derive(Debug)]
pub(super) struct Root {
    pub(super) side: Side,
    /// Name of the side for messages, as the user gave it.
    pub(super) name: OsString,
}

/// Storage of a side.
#[derive(Debug)]
pub(super) enum Side {
    Image {
        filesystem: Volume,
        start: Location,
        one_file_system: bool,
    },
    Host(HostTree),
    Planned(EntryTree),
}

/// A file on one side.
#[derive(Clone, Debug)]
pub(super) enum Node {
    Image(Location),
    Host(HostFile),
    /// Path in an archive or a manifest.
    Planned(Vec<u8>),
}

/// Attributes of a file that all kinds of sides have.
#[derive(Debug)]
pub(super) struct Facts {
    pub(super) kind: FileKind,
    pub(super) permissions: u32,
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) size_bytes: u64,
    pub(super) modified: (i64, u32),
    pub(super) links: u32,
    /// Identity shared by all names of a file: device or subvolume, and inode.
    pub(super) identity: (u64, u64),
    /// In a volume: generation and birth time, which distinguish the inode from other ones with the
    /// same number.
    pub(super) birth: Option<(Generation, Option<Timestamp>)>,
    pub(super) device: Option<(u32, u32)>,
}

/// An entry of a directory.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) name: Vec<u8>,
    pub(super) node: Node,
}

impl Side {
    pub(super) fn image(filesystem: Volume, start: Location, one_file_system: bool) -> Self {
        Self::Image {
            filesystem,
            start,
            one_file_system,
        }
    }

    pub(super) fn host(path: &Path, one_file_system: bool) -> Result<Self> {
        Ok(Self::Host(HostTree::new(path, one_file_system)?))
    }

    /// Returns the volume and the root's location in it; `None` on the host.
    pub(super) fn volume(&self) -> Option<(&Volume, Location)> {
        match self {
            Self::Image {
                filesystem, start, ..
            } => Some((filesystem, *start)),
            Self::Host(_) | Self::Planned(_) => None,
        }
    }

    /// Returns the subvolume of the root.
    pub(super) fn subvolume(&self) -> Option<SubvolumeId> {
        self.volume().map(|(_, start)| start.subvolume)
    }

    pub(super) fn start(&self) -> Node {
        match self {
            Self::Image { start, .. } => Node::Image(*start),
            Self::Host(tree) => Node::Host(tree.start()),
            Self::Planned(_) => Node::Planned(Vec::new()),
        }
    }

    /// Returns the entries of a directory, sorted by name; errors of single entries go to `failed`.
    pub(super) fn entries(&self, node: &Node, failed: &mut dyn FnMut(anyhow::Error)) -> Result<Vec<Entry>> {
        let mut entries = match (self, node) {
            (
                Self::Image {
                    filesystem,
                    start,
                    one_file_system,
                },
                Node::Image(location),
            ) => {
                if *one_file_system && location.subvolume != start.subvolume {
                    return Ok(Vec::new());
                }
                let mut entries = Vec::new();
                for entry in filesystem.read_dir(*location)? {
                    match entry {
                        Ok(entry) => entries.push(Entry {
                            name: entry.name,
                            node: Node::Image(entry.target),
                        }),
                        Err(error) => failed(error.into()),
                    }
                }
                entries
            }
            (Self::Host(tree), Node::Host(file)) => tree.entries(file)?,
            (Self::Planned(tree), Node::Planned(path)) => planned::entries(tree, path),
            _ => anyhow::bail!(
                "a fault of this program: a file of one compared tree was requested from the other tree; please report it"
            ),
        };
        entries.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(entries)
    }

    pub(super) fn facts(&self, node: &Node) -> Result<Facts> {
        match (self, node) {
            (Self::Image { filesystem, .. }, Node::Image(location)) => {
                let metadata = filesystem.metadata(*location)?;
                Ok(Facts {
                    kind: metadata.kind,
                    permissions: metadata.permissions(),
                    uid: metadata.uid,
                    gid: metadata.gid,
                    size_bytes: metadata.size.get(),
                    modified: (metadata.modified.seconds, metadata.modified.nanoseconds),
                    links: metadata.nlink,
                    identity: (location.subvolume.get(), location.inode.get()),
                    birth: Some((metadata.generation, metadata.created)),
                    device: metadata.device.map(|device| (device.major, device.minor)),
                })
            }
            (Self::Host(_), Node::Host(file)) => host::facts(file),
            (Self::Planned(tree), Node::Planned(path)) => planned::facts(tree, path),
            _ => anyhow::bail!(
                "a fault of this program: a file of one compared tree was requested from the other tree; please report it"
            ),
        }
    }

    /// Returns the extended attributes, sorted by name.
    pub(super) fn xattrs(&self, node: &Node) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        let mut xattrs = match (self, node) {
            (Self::Image { filesystem, .. }, Node::Image(location)) => filesystem
                .xattrs(*location)?
                .into_iter()
                .map(|xattr| (xattr.name, xattr.value))
                .collect(),
            (Self::Host(_), Node::Host(file)) => file.xattrs()?,
            (Self::Planned(tree), Node::Planned(path)) => planned::xattrs(tree, path)?,
            _ => anyhow::bail!(
                "a fault of this program: a file of one compared tree was requested from the other tree; please report it"
            ),
        };
        xattrs.sort();
        Ok(xattrs)
    }

    pub(super) fn link_target(&self, node: &Node) -> Result<Vec<u8>> {
        match (self, node) {
            (Self::Image { filesystem, .. }, Node::Image(location)) => Ok(filesystem.read_link(*location)?),
            (Self::Host(_), Node::Host(file)) => file.link_target(),
            (Self::Planned(tree), Node::Planned(path)) => planned::link_target(tree, path),
            _ => anyhow::bail!(
                "a fault of this program: a file of one compared tree was requested from the other tree; please report it"
            ),
        }
    }

    pub(super) fn segments(&self, node: &Node) -> Result<Segments> {
        match (self, node) {
            (Self::Image { filesystem, .. }, Node::Image(location)) => {
                Ok(Segments::image(filesystem.open_file(*location)?.chunks()?))
            }
            (Self::Host(_), Node::Host(file)) => host::segments(file),
            (Self::Planned(tree), Node::Planned(path)) => planned::segments(tree, path),
            _ => anyhow::bail!(
                "a fault of this program: a file of one compared tree was requested from the other tree; please report it"
            ),
        }
    }

    /// Returns the extents of a file in a volume, to detect files of one volume with shared
    /// extents.
    pub(super) fn shared_map(&self, node: &Node) -> Option<(usize, Vec<FileRange>)> {
        let (Self::Image { filesystem, .. }, Node::Image(location)) = (self, node) else {
            return None;
        };
        let ranges = filesystem.inode(*location).ok()?.extents?;
        let comparable = ranges
            .iter()
            .all(|range| !matches!(range.kind, RangeKind::Inline(_)));
        comparable.then(|| {
            (
                std::sync::Arc::as_ptr(filesystem_of(filesystem).volume()).addr(),
                ranges,
            )
        })
    }
}
