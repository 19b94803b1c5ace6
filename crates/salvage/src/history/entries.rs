//! Versions of one state as the items of a walk, so that an extraction can write them.
//!
//! The items are in the order of a walk: each directory above a version is entered before it, and
//! left after all versions below it.

use super::names::join;
use super::version::Version;
use crate::view::View;
use buttress_format::{FileKind, SubvolumeId};
use buttress_fs::{Error, Follow, InodeRecord, Location, WalkEntry, WalkError, WalkItem};
use std::sync::Arc;

/// Returns the walk items of versions that are read from the state of `view`, in order of path.
/// `name_of` returns the last name of a version's path in the destination.
pub fn entries<'a>(
    view: &'a View,
    versions: impl IntoIterator<Item = &'a Version> + 'a,
    name_of: impl Fn(&Version) -> Vec<u8> + 'a,
) -> impl Iterator<Item = WalkItem> + 'a {
    let mut stack: Vec<Vec<u8>> = Vec::new();
    let begin = [directory(view, b"", b""), WalkItem::Enter(Arc::from(&b""[..]))];
    let below = versions
        .into_iter()
        .map(Some)
        .chain([None])
        .flat_map(move |version| {
            let mut items = Vec::new();
            let Some(version) = version else {
                while !stack.is_empty() {
                    items.push(WalkItem::Leave(stack.join(&b'/').into()));
                    stack.pop();
                }
                return items;
            };
            let mut parts: Vec<&[u8]> = version.path.split(|byte| *byte == b'/').collect();
            let _name = parts.pop();
            let shared = stack
                .iter()
                .zip(&parts)
                .take_while(|(own, new)| own.as_slice() == **new)
                .count();
            while stack.len() > shared {
                items.push(WalkItem::Leave(stack.join(&b'/').into()));
                stack.pop();
            }
            for name in parts.into_iter().skip(shared) {
                let above = stack.join(&b'/');
                items.push(directory(view, &above, name));
                stack.push(name.to_vec());
                items.push(WalkItem::Enter(stack.join(&b'/').into()));
            }
            items.push(file(view, version, &stack.join(&b'/'), name_of(version)));
            items
        });
    begin
        .into_iter()
        .chain(below)
        .chain([WalkItem::Leave(Arc::from(&b""[..]))])
}

/// Returns the entry of a directory with the attributes that the state has. If they cannot be read, the
/// entry has the reason.
fn directory(view: &View, above: &[u8], name: &[u8]) -> WalkItem {
    let filesystem = &view.filesystem;
    let top = Location::root_of(SubvolumeId::TOP_LEVEL);
    let found = filesystem.resolve(top, &join(above, name), Follow::NotLast);
    let record = found.and_then(|location| {
        let (record, lost) = filesystem.salvaged_record(location, FileKind::Directory)?;
        match record.metadata.is_directory() {
            true => Ok((record, lost)),
            false => Err(Error::InodeNotFound { location }),
        }
    });
    let (record, lost) = match record {
        Ok(known) => known,
        Err(error) => (InodeRecord::lost_directory(filesystem), Some(error)),
    };
    let place = (Arc::from(above), name.to_vec());
    WalkItem::Entry(Box::new(WalkEntry::new(filesystem.clone(), place, record, lost)))
}

fn file(view: &View, version: &Version, above: &[u8], name: Vec<u8>) -> WalkItem {
    let filesystem = &view.filesystem;
    match filesystem.salvaged_record(version.location, version.kind) {
        Ok((record, lost)) => {
            let place = (Arc::from(above), name);
            WalkItem::Entry(Box::new(WalkEntry::new(filesystem.clone(), place, record, lost)))
        }
        Err(error) => WalkItem::Failed(WalkError {
            path: version.path.clone(),
            error,
        }),
    }
}
