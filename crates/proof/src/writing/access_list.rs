//! Access control lists in the model: the mode bits that show them, and their change with a mode.
//!
//! The code follows acl(5) and POSIX 1003.1e draft 17, independently of the engine's
//! implementation.

use buttress_oracle::content::Random;

/// Permissions of one class: read, write, execute.
type Permissions = u32;

/// Id of entries without a named user or group.
const NOBODY: u32 = u32::MAX;

/// An access control list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccessList {
    owner: Permissions,
    users: Vec<(u32, Permissions)>,
    group: Permissions,
    groups: Vec<(u32, Permissions)>,
    mask: Option<Permissions>,
    other: Permissions,
}

impl AccessList {
    /// Draws a list; a few lack the required mask.
    pub fn draw(random: &mut Random) -> Self {
        let mut bits = || u32::try_from(random.below(8)).unwrap_or(0);
        let (owner, user, group, named_group, mask, other) = (bits(), bits(), bits(), bits(), bits(), bits());
        let shape = random.below(16);
        let has_user = shape & 1 == 1;
        let has_group = shape & 2 == 2;
        let lacks_mask = random.one_in(12);
        let has_mask = (has_user || has_group || shape & 4 == 4) && !lacks_mask;
        Self {
            owner: owner | 4,
            users: if has_user { vec![(1000, user)] } else { Vec::new() },
            group,
            groups: if has_group {
                vec![(100, named_group), (101, user)]
            } else {
                Vec::new()
            },
            mask: has_mask.then_some(mask),
            other,
        }
    }

    fn names_somebody(&self) -> bool {
        !self.users.is_empty() || !self.groups.is_empty()
    }

    /// Returns whether the list may be set: named entries need a mask.
    #[must_use]
    pub fn is_in_order(&self) -> bool {
        self.mask.is_some() || !self.names_somebody()
    }

    /// Returns whether the list says more than a mode can.
    #[must_use]
    pub fn says_more_than_a_mode(&self) -> bool {
        self.mask.is_some() || self.names_somebody()
    }

    /// Returns the permission bits that show the list.
    #[must_use]
    pub fn permissions(&self) -> u32 {
        self.owner << 6 | self.mask.unwrap_or(self.group) << 3 | self.other
    }

    /// Applies chmod(2) to the list: the mask stands for the group.
    pub fn follow(&mut self, mode: u32) {
        self.owner = mode >> 6 & 7;
        self.other = mode & 7;
        match &mut self.mask {
            Some(mask) => *mask = mode >> 3 & 7,
            None => self.group = mode >> 3 & 7,
        }
    }

    /// Returns the access list and mode of an inode created with `mode` in a directory with this
    /// default list.
    #[must_use]
    pub fn given_to(&self, mode: u32) -> (Self, u32) {
        let mut list = self.clone();
        list.follow(self.permissions() & mode);
        let mode = mode & !0o777 | list.permissions();
        (list, mode)
    }

    /// Returns the value of the list's extended attribute.
    #[must_use]
    pub fn value(&self) -> Vec<u8> {
        let mut entries = vec![(0x01_u16, self.owner, NOBODY)];
        entries.extend(self.users.iter().map(|(id, bits)| (0x02, *bits, *id)));
        entries.push((0x04, self.group, NOBODY));
        entries.extend(self.groups.iter().map(|(id, bits)| (0x08, *bits, *id)));
        entries.extend(self.mask.map(|bits| (0x10, bits, NOBODY)));
        entries.push((0x20, self.other, NOBODY));
        let mut value = 2_u32.to_le_bytes().to_vec();
        for (tag, bits, id) in entries {
            value.extend_from_slice(&tag.to_le_bytes());
            value.extend_from_slice(&(bits as u16).to_le_bytes());
            value.extend_from_slice(&id.to_le_bytes());
        }
        value
    }
}
