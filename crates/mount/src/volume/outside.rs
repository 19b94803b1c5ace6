//! Changes outside the kernel's calls that the kernel must drop from its caches: names of
//! subvolumes, and of directories above them.

use super::MountedVolume;
use crate::vfs::{Result, Stale};
use buttress::unstable::fs::Filesystem;
use buttress::{InodeNumber, Location, SubvolumeId};
use std::collections::BTreeSet;

/// Names of all subvolumes at one point in time.
#[derive(Clone, Debug, Default)]
pub struct SubvolumeNames(BTreeSet<(SubvolumeId, SubvolumeId, InodeNumber, Vec<u8>)>);

impl SubvolumeNames {
    /// Reads the names of all subvolumes in a view.
    ///
    /// # Errors
    /// The root tree cannot be read.
    pub fn of(view: &Filesystem) -> core::result::Result<Self, buttress::unstable::fs::Error> {
        let places = view.subvolumes()?.into_iter().filter_map(|found| {
            let place = found.place?;
            Some((found.id, place.parent, place.directory, place.name))
        });
        Ok(Self(places.collect()))
    }
}

impl MountedVolume {
    /// Returns the kernel's cached information that became stale since the subvolumes had these
    /// names. `paths` are further changed names, from the root of the mount.
    #[must_use]
    pub fn stale_since(&self, before: &SubvolumeNames, paths: &[Vec<u8>]) -> Vec<Stale> {
        let view = self.access.view();
        let mut stale = Vec::new();
        if let Ok(after) = SubvolumeNames::of(&view) {
            for (id, parent, directory, name) in before.0.symmetric_difference(&after.0) {
                self.add_stale(&mut stale, Location::new(*parent, *directory), name);
                stale.extend(self.stale_node(Location::root_of(*id)));
            }
        }
        for path in paths {
            let mut directory = self.root;
            for name in path.split(|byte| *byte == b'/').filter(|name| !name.is_empty()) {
                self.add_stale(&mut stale, directory, name);
                match view.lookup(directory, name) {
                    Ok(Some(found)) => directory = found.target,
                    _ => break,
                }
            }
        }
        stale
    }

    /// Adds a name that was created or removed, and its directory.
    pub(super) fn add_stale(&self, stale: &mut Vec<Stale>, directory: Location, name: &[u8]) {
        if let Ok(node) = self.numbers.of(directory) {
            stale.push(Stale::Name(node, name.to_vec()));
            stale.push(Stale::Node(node));
        }
    }

    fn stale_node(&self, location: Location) -> Result<Stale> {
        self.numbers.of(location).map(Stale::Node)
    }
}
