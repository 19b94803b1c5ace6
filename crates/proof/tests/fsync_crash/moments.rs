//! State of a volume at a moment: names, content and attributes of every inode, and every
//! directory's entries.

use anyhow::{Result, ensure};
use buttress::FileOffset;
use buttress::unstable::writer::WritableFilesystem;
use std::collections::{BTreeMap, BTreeSet};

use crate::TOP;

pub(crate) type Names = BTreeSet<(u64, Vec<u8>)>;

/// State of an inode at a moment. A removed inode has no names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Snapshot {
    pub(crate) names: Names,
    pub(crate) content: (u64, u32),
    pub(crate) attributes: Vec<(Vec<u8>, Vec<u8>)>,
}

/// State of all inodes at a moment, and each directory's entries.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Moment {
    pub(crate) inodes: BTreeMap<u64, Snapshot>,
    pub(crate) entries: BTreeMap<u64, BTreeMap<Vec<u8>, u64>>,
}

pub(crate) fn moment(filesystem: &WritableFilesystem) -> Result<Moment> {
    let mut moment = Moment::default();
    let mut waiting = vec![TOP];
    let mut seen = BTreeSet::new();
    moment.inodes.entry(TOP.inode.get()).or_default();
    while let Some(at) = waiting.pop() {
        let stat = filesystem.live().metadata(at)?;
        let inode = moment.inodes.entry(at.inode.get()).or_default();
        inode.attributes = filesystem
            .live()
            .xattrs(at)?
            .into_iter()
            .map(|xattr| (xattr.name, xattr.value))
            .collect();
        if !stat.is_directory() {
            let mut content = vec![0; usize::try_from(stat.size.get())?];
            let read = filesystem.live().read_at(at, FileOffset::MIN, &mut content)?;
            ensure!(read == content.len(), "{at}: {read} bytes of {}", content.len());
            inode.content = (stat.size.get(), crc32c::crc32c(&content));
            continue;
        }
        let entries = moment.entries.entry(at.inode.get()).or_default();
        for entry in filesystem.live().list(at, 0, 10_000)? {
            entries.insert(entry.name.clone(), entry.target.inode.get());
            let child = moment.inodes.entry(entry.target.inode.get()).or_default();
            child.names.insert((at.inode.get(), entry.name));
            if seen.insert(entry.target.inode) {
                waiting.push(entry.target);
            }
        }
    }
    Ok(moment)
}
