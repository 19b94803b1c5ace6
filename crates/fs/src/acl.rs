//! POSIX access control lists: their form in attributes, and their relation to modes.
//!
//! The attributes `system.posix_acl_access` and `system.posix_acl_default` hold a version (2) and
//! entries of a tag, a permission and an id, all little-endian. If an access list is equivalent to
//! a mode, it is not stored. A directory's default list becomes the access list of new inodes in
//! it, limited by the requested mode. The default list also becomes the default list of new
//! directories in it.
//!
//! Source: acl(5); POSIX 1003.1e draft 17, section 23.1. The layout is that of user space's
//! `linux/posix_acl_xattr.h`.

use crate::error::{Error, Result};

/// The name of the attribute with the access list.
pub const ACCESS_NAME: &[u8] = b"system.posix_acl_access";
/// The name of the attribute with the default list for new inodes in a directory.
pub const DEFAULT_NAME: &[u8] = b"system.posix_acl_default";

const VERSION: u32 = 2;
const HEADER_BYTES: usize = 4;
const ENTRY_BYTES: usize = 8;
/// The id in ACL entries that need none.
const NO_ID: u32 = u32::MAX;

/// The subject of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Tag {
    /// The owner.
    Owner,
    /// A user, by id.
    User(u32),
    /// The owning group.
    OwningGroup,
    /// A group, by id.
    Group(u32),
    /// The maximum permissions of users, groups and the owning group.
    Mask,
    /// All other users.
    Other,
}

impl Tag {
    const fn number(self) -> u16 {
        match self {
            Self::Owner => 0x01,
            Self::User(_) => 0x02,
            Self::OwningGroup => 0x04,
            Self::Group(_) => 0x08,
            Self::Mask => 0x10,
            Self::Other => 0x20,
        }
    }

    const fn from_raw(number: u16, id: u32) -> Option<Self> {
        Some(match number {
            0x01 => Self::Owner,
            0x02 => Self::User(id),
            0x04 => Self::OwningGroup,
            0x08 => Self::Group(id),
            0x10 => Self::Mask,
            0x20 => Self::Other,
            _ => return None,
        })
    }

    const fn id(self) -> u32 {
        match self {
            Self::User(id) | Self::Group(id) => id,
            _ => NO_ID,
        }
    }
}

/// An access control list. A valid list has one owner, owning group and other. The list has a mask
/// if it names users or groups. The list's entries are ordered by tag.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Acl {
    entries: Vec<(Tag, u16)>,
}

const fn invalid(what: &'static str) -> Error {
    Error::Invalid { what }
}

impl Acl {
    /// Parses the list in an attribute's value. Returns `None` for a value without entries, which
    /// means no list.
    ///
    /// # Errors
    /// Returns [`Error::Invalid`] if the value is no list. [`Acl::check`] then tests if the list is
    /// valid.
    pub fn parse(value: &[u8]) -> Result<Option<Self>> {
        let Some((version, rest)) = value.split_first_chunk::<HEADER_BYTES>() else {
            return Err(invalid("an access control list that ends inside its version"));
        };
        if u32::from_le_bytes(*version) != VERSION {
            return Err(Error::Invalid {
                what: "an access control list of an unknown version",
            });
        }
        let (raw, rest) = rest.as_chunks::<ENTRY_BYTES>();
        if !rest.is_empty() {
            return Err(invalid("an access control list that ends inside an entry"));
        }
        let mut entries = Vec::with_capacity(raw.len());
        for [t0, t1, p0, p1, id @ ..] in raw {
            let number = u16::from_le_bytes([*t0, *t1]);
            let permission = u16::from_le_bytes([*p0, *p1]);
            let tag = Tag::from_raw(number, u32::from_le_bytes(*id))
                .ok_or(invalid("an access control list with an unknown tag"))?;
            entries.push((tag, permission));
        }
        if entries.is_empty() {
            return Ok(None);
        }
        Ok(Some(Self { entries }))
    }

    /// Checks that the access control list is valid.
    ///
    /// # Errors
    /// Returns [`Error::Invalid`] if it is not.
    pub fn check(&self) -> Result<()> {
        let is_rising = self.entries.is_sorted_by_key(|(tag, _)| tag.number());
        let count = |wanted: u16| {
            self.entries
                .iter()
                .filter(|(tag, _)| tag.number() == wanted)
                .count()
        };
        let [owners, groups, others] =
            [Tag::Owner, Tag::OwningGroup, Tag::Other].map(|tag| count(tag.number()));
        let masks = count(Tag::Mask.number());
        let names_somebody = self
            .entries
            .iter()
            .any(|(tag, _)| matches!(tag, Tag::User(_) | Tag::Group(_)));
        if !is_rising || (owners, groups, others) != (1, 1, 1) || masks > 1 || (names_somebody && masks == 0)
        {
            return Err(invalid(
                "an access control list whose entries are incomplete or out of order",
            ));
        }
        if self.entries.iter().any(|(_, permission)| permission & !7 != 0) {
            return Err(invalid(
                "an access control list with permissions beyond read, write and execute",
            ));
        }
        Ok(())
    }

    /// Returns the list as an attribute's value.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut value = VERSION.to_le_bytes().to_vec();
        for (tag, permission) in &self.entries {
            value.extend_from_slice(&tag.number().to_le_bytes());
            value.extend_from_slice(&permission.to_le_bytes());
            value.extend_from_slice(&tag.id().to_le_bytes());
        }
        value
    }

    /// Returns the permission bits of a mode for this ACL, and true if the mode expresses the whole
    /// ACL.
    #[must_use]
    pub fn to_mode(&self) -> (u32, bool) {
        let mut bits = 0;
        let mut is_all = true;
        for (tag, permission) in &self.entries {
            let permission = u32::from(*permission);
            match tag {
                Tag::Owner => bits |= permission << 6,
                Tag::OwningGroup => bits |= permission << 3,
                Tag::Other => bits |= permission,
                Tag::Mask => {
                    bits = (bits & !0o070) | (permission << 3);
                    is_all = false;
                }
                Tag::User(_) | Tag::Group(_) => is_all = false,
            }
        }
        (bits, is_all)
    }

    /// Applies a change of mode: owner, other, and mask take the permissions of the mode. Without a
    /// mask, the owning group takes them.
    pub fn follow_mode(&mut self, mode: u32) {
        let has_mask = self.has_mask();
        for (tag, permission) in &mut self.entries {
            let shift = match tag {
                Tag::Owner => 6,
                Tag::Mask => 3,
                Tag::OwningGroup if !has_mask => 3,
                Tag::Other => 0,
                _ => continue,
            };
            *permission = three_bits(mode >> shift);
        }
    }

    /// Turns the list into the access list of a new inode of `mode`. List and mode limit each
    /// other. Returns the mode, and true if the list says more than the mode.
    #[must_use]
    pub fn limit_by_mode(&mut self, mode: u32) -> (u32, bool) {
        let has_mask = self.has_mask();
        let mut mode = mode;
        let mut says_more = false;
        for (tag, permission) in &mut self.entries {
            let shift = match tag {
                Tag::Owner => 6,
                Tag::Other => 0,
                Tag::Mask => 3,
                Tag::OwningGroup if !has_mask => 3,
                Tag::OwningGroup => continue,
                Tag::User(_) | Tag::Group(_) => {
                    says_more = true;
                    continue;
                }
            };
            says_more |= *tag == Tag::Mask;
            *permission &= three_bits(mode >> shift);
            mode &= !(7 << shift) | (u32::from(*permission) << shift);
        }
        (mode, says_more)
    }

    fn has_mask(&self) -> bool {
        self.entries.iter().any(|(tag, _)| *tag == Tag::Mask)
    }
}

fn three_bits(mode: u32) -> u16 {
    u16::try_from(mode & 7).unwrap_or(7)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(entries: &[(Tag, u16)]) -> Acl {
        Acl {
            entries: entries.to_vec(),
        }
    }

    fn full() -> Acl {
        list(&[
            (Tag::Owner, 7),
            (Tag::User(1000), 6),
            (Tag::OwningGroup, 5),
            (Tag::Group(100), 4),
            (Tag::Mask, 6),
            (Tag::Other, 1),
        ])
    }

    #[test]
    fn acl_values_survive_a_round_trip() {
        let value = full().encode();
        assert_eq!(value.len(), 4 + 6 * 8);
        assert_eq!(value[..12], [2, 0, 0, 0, 1, 0, 7, 0, 255, 255, 255, 255]);
        assert_eq!(Acl::parse(&value).unwrap(), Some(full()));
        assert_eq!(Acl::parse(&[2, 0, 0, 0]).unwrap(), None);
    }

    #[test]
    fn invalid_acls_are_refused() {
        let minimal = [(Tag::Owner, 7), (Tag::OwningGroup, 5), (Tag::Other, 1)];
        assert!(list(&minimal).check().is_ok());
        let swapped = [(Tag::OwningGroup, 5), (Tag::Owner, 7), (Tag::Other, 1)];
        let without_mask = [
            (Tag::Owner, 7),
            (Tag::User(1), 7),
            (Tag::OwningGroup, 5),
            (Tag::Other, 1),
        ];
        let wide = [(Tag::Owner, 8), (Tag::OwningGroup, 5), (Tag::Other, 1)];
        for entries in [&minimal[1..], &swapped, &without_mask, &wide] {
            let parsed = Acl::parse(&list(entries).encode()).unwrap().unwrap();
            assert!(parsed.check().is_err(), "{entries:?}");
        }
        for value in [&b""[..], &[2, 0, 0], &[1, 0, 0, 0], &[2, 0, 0, 0, 1]] {
            assert!(Acl::parse(value).is_err(), "{value:?}");
        }
    }

    #[test]
    fn lists_and_modes_follow_each_other() {
        assert_eq!(full().to_mode(), (0o761, false));
        let minimal = list(&[(Tag::Owner, 6), (Tag::OwningGroup, 4), (Tag::Other, 4)]);
        assert_eq!(minimal.to_mode(), (0o644, true));

        let mut followed = full();
        followed.follow_mode(0o640);
        assert_eq!(followed.to_mode(), (0o640, false));
        assert_eq!(
            followed.entries[2],
            (Tag::OwningGroup, 5),
            "the mask stands for it"
        );

        let mut limited = full();
        assert_eq!(limited.limit_by_mode(0o100_640), (0o100_640, true));
        assert_eq!(limited.entries[4], (Tag::Mask, 4));
        let mut limited = minimal;
        assert_eq!(limited.limit_by_mode(0o100_777), (0o100_644, false));
    }
}
