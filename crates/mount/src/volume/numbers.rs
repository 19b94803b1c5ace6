//! One space of inode numbers for all subvolumes of a mount.
//!
//! Numbers of btrfs are unique in their subvolume only, and a FUSE mount shows one device for all of them. So:
//!
//! ```text
//! of the subvolume that is mounted:  the inode's own number
//! of another one:                    subvolume << 40 | inode
//! of anything else:                  1 << 63 | a count, given out as it is met
//! ```
//!
//! The first two are computed, and the same on every mount of the same subvolume. The third serves what does not fit: inodes
//! above 2^40, subvolumes above 2^23, numbers below 256, and the empty directories that stand in a snapshot for nested subvolumes.

use crate::vfs::{Errno, NodeId, Result};
use buttress::fs::Location;
use buttress::{InodeNumber, SubvolumeId};
use parking_lot::Mutex;
use std::collections::HashMap;

const INODE_BITS: u32 = 40;
const SUBVOLUME_BITS: u32 = 23;
const COUNTED: u64 = 1 << 63;
/// The first number that an inode with a name has.
const FIRST_INODE: u64 = 256;
/// How many may be counted: more than that only a volume has that was made to fill the memory.
const COUNTED_MAX: usize = 1 << 20;

#[derive(Debug, Default)]
struct Counted {
    locations: Vec<Location>,
    numbers: HashMap<Location, u64>,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Numbers {
    mounted: SubvolumeId,
    /// A leaf.
    counted: Mutex<Counted>,
}

impl Numbers {
    pub(super) fn new(mounted: SubvolumeId) -> Self {
        Self {
            mounted,
            counted: Mutex::default(),
        }
    }

    /// The number of an inode.
    pub(super) fn of(&self, location: Location) -> Result<NodeId> {
        let (subvolume, inode) = (location.subvolume.get(), location.inode.get());
        let is_plain = location.placeholder().is_none() && inode >= FIRST_INODE && inode >> INODE_BITS == 0;
        if is_plain && location.subvolume == self.mounted {
            return Ok(NodeId(inode));
        }
        if is_plain && subvolume >> SUBVOLUME_BITS == 0 {
            return Ok(NodeId(subvolume << INODE_BITS | inode));
        }
        let mut counted = self.counted.lock();
        if let Some(number) = counted.numbers.get(&location) {
            return Ok(NodeId(*number));
        }
        if counted.locations.len() >= COUNTED_MAX {
            return Err(Errno::OVERFLOW);
        }
        let number = COUNTED | u64::try_from(counted.locations.len()).unwrap_or(0);
        counted.locations.push(location);
        counted.numbers.insert(location, number);
        Ok(NodeId(number))
    }

    /// The inode that has a number.
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
        assert_eq!(numbers.of(inode(300, 700)).unwrap(), NodeId(700));
        assert_eq!(numbers.location(NodeId(COUNTED | 99)), Err(Errno::STALE));
    }
}
