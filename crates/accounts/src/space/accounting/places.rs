//! The place of a path: a subvolume, a directory or a file, and the subvolumes visible below it.

use super::owners::{Owner, Share};
use super::parts::Parts;
use super::{Accounting, Scope};
use buttress_format::{FileKind, InodeNumber, SubvolumeId};
use buttress_fs::error::Result;
use buttress_fs::filesystem::Filesystem;
use buttress_fs::location::Location;
use buttress_fs::progress::Progress;
use buttress_fs::subvolume::SubvolumeInfo;
use std::collections::{HashMap, HashSet};

/// A path for which the caller requests the space.
#[derive(Clone, Debug)]
pub struct Place {
    /// The inode at the path.
    pub location: Location,
    /// The files at the path in its own subvolume, as one part; `None` for all files of the
    /// subvolume.
    pub parts: Option<Parts>,
    /// The nested subvolumes that a walk down from the path enters.
    pub nested: Vec<SubvolumeId>,
}

/// Returns the place of a path. With `one_file_system`, the place excludes the subvolumes below it.
///
/// # Errors
/// Fails as [`Parts::below`] does.
pub(crate) fn place_of(
    filesystem: &Filesystem,
    location: Location,
    all: &[SubvolumeInfo],
    one_file_system: bool,
    progress: &Progress,
) -> Result<Place> {
    let is_root = location.inode == InodeNumber::ROOT_DIRECTORY;
    let parts = if is_root {
        None
    } else if filesystem.metadata(location)?.kind == FileKind::Directory {
        Some(Parts::below(filesystem, location, progress)?)
    } else {
        Some(Parts::of_file(location))
    };
    let nested = if one_file_system {
        Vec::new()
    } else {
        Nesting::of(all).below(location.subvolume, |directory| {
            directory == location.inode
                || match &parts {
                    None => true,
                    Some(parts) => parts.of_inode(directory).next().is_some(),
                }
        })
    };
    Ok(Place {
        location,
        parts,
        nested,
    })
}

/// The nesting of subvolumes.
#[derive(Clone, Debug, Default)]
pub struct Nesting {
    inside: HashMap<SubvolumeId, Vec<(InodeNumber, SubvolumeId)>>,
}

impl Nesting {
    /// Returns the nesting of a volume's subvolumes; a deleted subvolume has no place in it.
    #[must_use]
    pub fn of(all: &[SubvolumeInfo]) -> Self {
        let mut inside: HashMap<_, Vec<_>> = HashMap::new();
        for info in all.iter().filter(|info| !info.is_deleted()) {
            if let Some(place) = &info.place {
                let children = inside.entry(place.parent).or_default();
                children.push((place.directory, info.id));
            }
        }
        Self { inside }
    }

    /// Returns the subvolumes directly in a subvolume, each with its directory.
    #[must_use]
    pub fn directly_in(&self, subvolume: SubvolumeId) -> &[(InodeNumber, SubvolumeId)] {
        self.inside.get(&subvolume).map_or(&[], Vec::as_slice)
    }

    /// Returns the subvolumes in those directories of `subvolume` for which `is_wanted` is true,
    /// and all below these, in order.
    pub fn below(&self, subvolume: SubvolumeId, is_wanted: impl Fn(InodeNumber) -> bool) -> Vec<SubvolumeId> {
        let mut found = Vec::new();
        let mut seen = HashSet::from([subvolume]);
        let mut waiting = vec![subvolume];
        while let Some(parent) = waiting.pop() {
            for (directory, child) in self.directly_in(parent) {
                if (parent != subvolume || is_wanted(*directory)) && seen.insert(*child) {
                    found.push(*child);
                    waiting.push(*child);
                }
            }
        }
        found.sort_unstable();
        found
    }
}

impl Place {
    /// Returns the place's owners in an account that was made with its parts, with or without files
    /// that no path reaches.
    #[must_use]
    pub fn scope(&self, accounting: &Accounting, with_unlinked: bool) -> Scope {
        let is_whole = self.parts.is_none();
        accounting.scope(|owner: &Owner| {
            let Some(subvolume) = owner.subvolume() else {
                return false;
            };
            let is_own = subvolume == self.location.subvolume;
            if !is_own && !self.nested.contains(&subvolume) {
                return false;
            }
            match owner.share {
                Share::Unlinked => with_unlinked && (is_whole || !is_own),
                Share::Part(_) => true,
                Share::Rest => is_whole || !is_own,
            }
        })
    }
}
