//! Hard links by path: the inode to which each leads.
//!
//! A link leads to an entry of its target's path and of its own source. Of these entries, the link
//! leads to that with the highest precedence up to its own: the entry at the time of linking. The
//! target entry may be hidden in the merged tree. The inode of the replaced entry then exists under
//! the names of its links. If the target of a link is also a link, the builder follows it, in one
//! round for each link.
//!
//! The names of one inode form one *group*, identified by a byte string.

use crate::entry::{EntryKind, EntryPath, LinkKey};
use crate::error::{Error, Result, shown};
use crate::record::Decoder;
use crate::sort_key::{Class, Place, place, same_path_and_source, sort_key};
use buttress_packing::SpoolFolder;
use buttress_packing::{Record, Sorted, Sorter};

/// The maximum length of a chain of hard links to hard links.
const CHAIN_MAX: usize = 40;

/// The groups, by the keys of entries.
#[derive(Debug)]
pub(crate) struct Links {
    /// The groups of links, by path.
    pub(crate) links: Sorted,
    /// The groups of the links' targets.
    pub(crate) targets: Sorted,
}

/// Returns the group of names that one source marks with this key.
pub(crate) fn group_of_key(source: u16, key: LinkKey) -> Vec<u8> {
    let mut group = vec![1];
    group.extend(source.to_be_bytes());
    group.extend(key.0.to_be_bytes());
    group.extend(key.1.to_be_bytes());
    group
}

/// Adds a link for [`resolve`], under the key that its target's key precedes.
pub(crate) fn push_link(
    pending: &mut Sorter,
    target: &EntryPath,
    link: &Place,
    link_key: &[u8],
) -> Result<()> {
    let wanted = sort_key(target.as_bytes(), link.order, Class::Last);
    Ok(pending.push(&wanted, link_key)?)
}

/// Follows all hard links to their inodes.
pub(crate) fn resolve(
    records: &Sorted,
    mut pending: Sorter,
    folder: &SpoolFolder,
    memory: usize,
) -> Result<Option<Links>> {
    if pending.is_empty() {
        return Ok(None);
    }
    let mut links = Sorter::new(folder, memory);
    let mut targets = Sorter::new(folder, memory);
    for _ in 0..CHAIN_MAX {
        let wanted = pending.finish()?;
        pending = Sorter::new(folder, memory);
        round(records, &wanted, |want, target| {
            follow(want, target, &mut links, &mut targets, &mut pending)
        })?;
        if pending.is_empty() {
            return Ok(Some(Links {
                links: links.finish()?,
                targets: targets.finish()?,
            }));
        }
    }
    let rest = pending.finish()?;
    let mut record = Record::default();
    rest.reader()?.next(&mut record)?;
    Err(broken(&record, "which is part of a loop of hard links"))
}

/// Finds the last entry before each wanted key.
fn round(
    records: &Sorted,
    wanted: &Sorted,
    mut found: impl FnMut(&Record, Option<&Record>) -> Result<()>,
) -> Result<()> {
    let mut wants = wanted.reader()?;
    let mut want = Record::default();
    let mut reader = records.reader()?;
    let mut next = Record::default();
    let mut has_next = reader.next(&mut next)?;
    let mut last: Option<Record> = None;
    while wants.next(&mut want)? {
        while has_next && next.key < want.key {
            if next.key.last() == Some(&(Class::Entry as u8)) {
                core::mem::swap(last.get_or_insert_default(), &mut next);
            }
            has_next = reader.next(&mut next)?;
        }
        let target = last
            .as_ref()
            .filter(|last| same_path_and_source(&last.key, &want.key));
        found(&want, target)?;
    }
    Ok(())
}

fn follow(
    want: &Record,
    target: Option<&Record>,
    links: &mut Sorter,
    targets: &mut Sorter,
    pending: &mut Sorter,
) -> Result<()> {
    let Some(target) = target else {
        return Err(broken(want, "which does not exist"));
    };
    let at = place(&target.key).ok_or(Error::Defect { what: "a key" })?;
    let path = EntryPath::new(&at.path).unwrap_or_default();
    let entry = Decoder(&target.payload).entry(path, at.order.precedence);
    let entry = entry.ok_or(Error::Defect { what: "an entry" })?;
    match entry.kind {
        EntryKind::Directory(_) | EntryKind::Snapshot { .. } => Err(broken(want, "which is a directory")),
        EntryKind::Whiteout | EntryKind::Opaque => Err(broken(want, "which does not exist")),
        EntryKind::HardLink(further) => push_link(pending, &further, &at, &want.payload),
        EntryKind::File(_) | EntryKind::Symlink(_) | EntryKind::Node(_) => {
            let group = match entry.attributes.link {
                Some(key) => group_of_key(at.order.source, key),
                None => [&[0][..], &target.key].concat(),
            };
            links.push(&want.payload, &group)?;
            Ok(targets.push(&target.key, &group)?)
        }
    }
}

fn broken(want: &Record, problem: &'static str) -> Error {
    let path = |key: &[u8]| place(key).map(|place| shown(&place.path)).unwrap_or_default();
    Error::HardLink {
        path: path(&want.payload),
        target: path(&want.key),
        problem,
    }
}
