//! One space of inode numbers for all subvolumes of a mount.
//!
//! Inode numbers of btrfs are unique only within their subvolume, but a FUSE mount shows one device
//! for all subvolumes. The mount maps inode numbers of subvolumes to numbers of the mount:
//!
//! ```text
//! of the mounted subvolume:  the inode's own number
//! of another subvolume:      subvolume << 40 | inode
//! of anything else:          1 << 63 | a count, assigned at first use
//! ```
//!
//! The numbers of the first two kinds are computed, and equal on every mount of the same subvolume.
//! The third serves numbers that do not fit: inodes above 2^40, subvolumes above 2^23, numbers
//! below 256, and the empty directories in a snapshot that represent nested subvolumes.

use crate::vfs::{Errno, NodeId, Result};
use buttress::{InodeNumber, Location, SubvolumeId};
use parking_lot::Mutex;
use std::collections::HashMap;

const INODE_BITS: u32 = 40;
const SUBVOLUME_BITS: u32 = 23;
const COUNTED: u64 = 1 << 63;
/// First inode number of inodes with names.
const FIRST_INODE: u64 = 256;
/// Largest number of inodes with counted numbers. Only a volume built to exhaust memory needs more.
const COUNTED_MAX: usize = 1 << 20;

/// The inode or placeholder of a counted number. A placeholder is identified by its directory and
/// its name, because a directory can hold several.
type Known = (Location, Option<Box<[u8]>>);

#[derive(Debug, Default)]
struct Counted {
    locations: Vec<Location>,
    numbers: HashMap<Known, u64>,
}

/// The mapping between inodes and numbers.
#[derive(Debug)]
pub(super) struct Numbers {
    mounted: SubvolumeId,
    /// Counted numbers. Leaf lock.
    counted: Mutex<Counted>,
}

impl Numbers {
    pub(super) fn new(mounted: SubvolumeId) -> Self {
        Self {
            mounted,
            counted: Mutex::default(),
        }
    }

    /// Returns the number of an inode.
    pub(super) fn of(&self, location: Location) -> Result<NodeId> {
        let (subvolume, inode) = (location.subvolume.get(), location.inode.get());
        let is_plain = location.placeholder().is_none() && inode >= FIRST_INODE && inode >> INODE_BITS == 0;
        if is_plain && location.subvolume == self.mounted {
            return Ok(NodeId(inode));
        }
        if is_plain && subvolume >> SUBVOLUME_BITS == 0 {
            return Ok(NodeId(subvolume << INODE_BITS | inode));
        }
        self.counted((location, None))
    }

    /// Returns the number of the inode that the name `name` leads to. Placeholders of one directory
    /// differ only by their names.
    pub(super) fn of_name(&self, location: Location, name: &[u8]) -> Result<NodeId> {
        match location.placeholder() {
            Some(_) => self.counted((location, Some(name.into()))),
            None => self.of(location),
        }
    }

    fn counted(&self, known: Known) -> Result<NodeId> {
        let mut counted = self.counted.lock();
        if let Some(number) = counted.numbers.get(&known) {
            return Ok(NodeId(*number));
        }
        if counted.locations.len() >= COUNTED_MAX {
            return Err(Errno::OVERFLOW);
        }
        let number = COUNTED | u64::try_from(counted.locations.len()).unwrap_or(0);
        counted.locations.push(known.0);
        counted.numbers.insert(known, number);
        Ok(NodeId(number))
    }

    /// Returns the inode of a number.
    pub(super) fn location(&self, node: NodeId) -> Result<Location> {
        let number = node.0;
        if number & COUNTED != 0 {
            let index = usize::try_from(number & !COUNTED).map_err(|_| Errno::STALE)?;
            let counted = self.counted.lock();
            return counted.locations.get(index).copied().ok_or(Errno::STALE);
        }
        let inode = InodeNumber::new(number & ((1 << INODE_BITS) - 1));
        match number >> INODE_BITS {
            0 => Ok(Location::new(self.mounted, inode)),
            subvolume => Ok(Location::new(SubvolumeId::new(subvolume), inode)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_lead_back_to_their_inodes() {
        let numbers = Numbers::new(SubvolumeId::new(300));
        let inode =
            |subvolume: u64, inode: u64| Location::new(SubvolumeId::new(subvolume), InodeNumber::new(inode));
        let all = [
            inode(300, 256),
            inode(5, 256),
            inode(257, 256),
            inode(257, (1 << 40) - 1),
            inode(300, 1 << 40),
            inode(1 << 23, 256),
            inode(300, 1),
            inode(5, 1),
            Location::placeholder_in(inode(300, 256)),
            Location::placeholder_in(inode(300, 257)),
        ];
        let mut seen = std::collections::HashSet::new();
        for location in all {
            let node = numbers.of(location).unwrap();
            assert!(seen.insert(node), "{location} has a number of its own");
            assert_eq!(numbers.of(location).unwrap(), node);
            assert_eq!(numbers.location(node).unwrap(), location);
        }
        let placeholder = Location::placeholder_in(inode(300, 256));
        let [first, second] = [b"first", b"secnd"].map(|name| numbers.of_name(placeholder, name).unwrap());
        assert_ne!(
            first, second,
            "placeholders of a directory have numbers by their names"
        );
        assert_eq!(numbers.of_name(placeholder, b"first").unwrap(), first);
        assert_eq!(numbers.location(second).unwrap(), placeholder);
        assert_eq!(numbers.of(inode(300, 700)).unwrap(), NodeId(700));
        assert_eq!(numbers.location(NodeId(COUNTED | 99)), Err(Errno::STALE));
    }
}
