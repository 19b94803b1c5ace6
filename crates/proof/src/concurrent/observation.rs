//! The complete visible state of a quiet volume, by live reads.

use super::agreement;
use super::call::{Names, Stat, at, runs, stat};
use crate::writing::model::{Inode, Model};
use anyhow::{Context, Result, bail};
use buttress::unstable::writer::WritableFilesystem;
use buttress::{FileKind, FileOffset, Location, SubvolumeId};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Visible state of an inode.
#[derive(Debug, PartialEq, Eq)]
struct Seen {
    stat: Stat,
    /// Entries of a directory.
    names: Names,
    /// Content of a file.
    content: Arc<Vec<u8>>,
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
}

/// Visible state of a volume.
#[derive(Debug)]
pub struct Observation {
    inodes: BTreeMap<Location, Seen>,
    default: SubvolumeId,
}

/// Sorts names.
pub(super) fn sorted(names: impl Iterator<Item = (Vec<u8>, Location)>) -> Names {
    let mut names: Names = names.collect();
    names.sort();
    names
}

impl Observation {
    /// Reads every inode that has a name, and the held inodes.
    ///
    /// # Errors
    /// A part of the volume is unreadable.
    pub fn of(filesystem: &WritableFilesystem, held: impl Iterator<Item = Location>) -> Result<Self> {
        let mut inodes = BTreeMap::new();
        // A held inode may be gone with its subvolume.
        let is_there = |location: &Location| filesystem.live().metadata(*location).is_ok();
        let mut waiting: Vec<Location> = held.filter(is_there).collect();
        waiting.push(Location::root_of(SubvolumeId::TOP_LEVEL));
        while let Some(location) = waiting.pop() {
            if inodes.contains_key(&location) || location.placeholder().is_some() {
                continue;
            }
            let seen = look(filesystem, location).with_context(|| format!("looking at {}", at(location)))?;
            waiting.extend(seen.names.iter().map(|(_, target)| *target));
            inodes.insert(location, seen);
        }
        let default = filesystem.view().default_subvolume()?;
        Ok(Self { inodes, default })
    }

    /// Returns the content of a file.
    #[must_use]
    pub fn content(&self, location: Location) -> Option<Arc<Vec<u8>>> {
        self.inodes.get(&location).map(|seen| Arc::clone(&seen.content))
    }

    /// Returns the first difference from the model.
    #[must_use]
    pub fn difference(&self, model: &Model) -> Option<String> {
        if self.default != model.default {
            return Some(format!(
                "the default subvolume is {}, not {}",
                self.default, model.default
            ));
        }
        let of_model = |location: Location| model.inode(location);
        for (location, seen) in &self.inodes {
            let Some(inode) = of_model(*location) else {
                return Some(format!("{} is there, and should not be", at(*location)));
            };
            let expected = Seen {
                stat: agreement::stat(inode),
                names: agreement::names(model, *location).unwrap_or_default(),
                content: Arc::clone(&inode.content),
                xattrs: inode.xattrs.clone(),
            };
            if *seen != expected {
                return Some(told(*location, seen, &expected));
            }
        }
        let inodes = model.subvolumes.values().map(|subvolume| subvolume.inodes.len());
        let expected: usize = inodes.sum();
        (expected != self.inodes.len()).then(|| {
            let lacks = |(id, number): (SubvolumeId, u64)| {
                !self
                    .inodes
                    .contains_key(&Location::new(id, buttress::InodeNumber::new(number)))
            };
            let all = model.subvolumes.iter();
            let gone: Vec<String> = all
                .flat_map(|(id, subvolume)| subvolume.inodes.keys().map(|number| (*id, *number)))
                .filter(|found| lacks(*found))
                .map(|(id, number)| format!("{id}:{number}"))
                .collect();
            format!("not there are {}", gone.join(", "))
        })
    }
}

fn told(location: Location, seen: &Seen, expected: &Seen) -> String {
    let shown = |seen: &Seen| {
        format!(
            "{:?}, names {:?}, content {}, attributes {:?}",
            seen.stat,
            seen.names
                .iter()
                .map(|(name, to)| format!("{} is {}", name.escape_ascii(), at(*to)))
                .collect::<Vec<_>>(),
            runs(&seen.content),
            seen.xattrs
        )
    };
    format!(
        "{} is\n    {}\nexpected\n    {}",
        at(location),
        shown(seen),
        shown(expected)
    )
}

fn look(filesystem: &WritableFilesystem, location: Location) -> Result<Seen> {
    let kind = filesystem.live().metadata(location)?.kind;
    let mut names = Names::new();
    let mut content = Vec::new();
    let stat = stat(filesystem, location)?;
    match kind {
        FileKind::Directory => {
            let entries = filesystem.live().list(location, 0, usize::MAX)?;
            let looked_up = entries.iter().map(|entry| {
                let found = filesystem.live().lookup(location, &entry.name)?;
                anyhow::Ok(found.map(|found| found.target) == Some(entry.target))
            });
            for (entry, agrees) in entries.iter().zip(looked_up.collect::<Result<Vec<_>>>()?) {
                if !agrees {
                    bail!("{} is listed, and leads elsewhere", entry.name.escape_ascii());
                }
            }
            names = sorted(entries.into_iter().map(|entry| (entry.name, entry.target)));
        }
        FileKind::Regular => {
            content = vec![0xEE; usize::try_from(stat.size)? + 1];
            let read = filesystem
                .live()
                .read_at(location, FileOffset::MIN, &mut content)?;
            content.truncate(read);
        }
        _ => {}
    }
    let xattrs = filesystem.live().xattrs(location)?;
    Ok(Seen {
        stat,
        names,
        content: Arc::new(content),
        xattrs: xattrs
            .into_iter()
            .map(|xattr| (xattr.name, xattr.value))
            .collect(),
    })
}

/// Iterates over all inodes of the model with their locations.
pub(super) fn all_inodes(model: &Model) -> impl Iterator<Item = (Location, &Inode)> {
    model.subvolumes.iter().flat_map(|(id, subvolume)| {
        let place = |number: &u64| Location::new(*id, buttress::InodeNumber::new(*number));
        subvolume
            .inodes
            .iter()
            .map(move |(number, inode)| (place(number), inode))
    })
}
