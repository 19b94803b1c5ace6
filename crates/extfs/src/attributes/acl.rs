//! Access control lists: the form on disk, and the form of Linux's attributes.
//!
//! Both forms are a version of 4 bytes, and entries of tag and permissions with 2 bytes each. On
//! disk the version is 1, and only entries of named users and groups have an id of 4 bytes. In
//! Linux's form the version is 2, and all entries have an id.
//!
//! Source: ext4 documentation, section "POSIX ACLs"; the tags and Linux's form: acl(5), and the
//! attributes that Linux returns.

use crate::bytes::{part, u16_at, u32_at};
use crate::error::Problem;
use buttress_exact::Exact as _;

const VERSION_ON_DISK: u32 = 1;
const VERSION_OF_LINUX: u32 = 2;
const NAMED_USER: u16 = 0x02;
const NAMED_GROUP: u16 = 0x08;
const NO_ID: u32 = u32::MAX;

/// Converts a list from its form on disk to the form of Linux's attributes.
pub(super) fn as_linux(disk: &[u8]) -> Result<Vec<u8>, Problem> {
    let version = u32_at(disk, "the version of an ACL", 0)?;
    if version != VERSION_ON_DISK {
        let (field, found) = ("the version of an ACL", u64::from(version));
        let expected = u64::from(VERSION_ON_DISK);
        return Err(Problem::Differs {
            field,
            found,
            expected,
        });
    }
    let mut linux = VERSION_OF_LINUX.to_le_bytes().to_vec();
    let mut at = 4;
    while at < disk.len() {
        let head = part(disk, "an entry of an ACL", at, 4)?;
        let tag = u16_at(head, "the tag of an ACL", 0)?;
        at = at.exact_add(4);
        linux.extend_from_slice(head);
        let id = match tag {
            NAMED_USER | NAMED_GROUP => {
                let id = u32_at(disk, "the id of an ACL", at)?;
                at = at.exact_add(4);
                id
            }
            0x01 | 0x04 | 0x10 | 0x20 => NO_ID,
            _ => {
                let (field, found) = ("the tag of an ACL", u64::from(tag));
                return Err(Problem::Field {
                    field,
                    found,
                    least: 1,
                    most: 0x20,
                });
            }
        };
        linux.extend_from_slice(&id.to_le_bytes());
    }
    Ok(linux)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_named_entries_have_ids_on_disk() {
        let disk = [
            1, 0, 0, 0, // version
            1, 0, 6, 0, // owner, rw
            2, 0, 4, 0, 0xe8, 3, 0, 0, // user 1000, r
            4, 0, 4, 0, // group, r
        ];
        let linux = as_linux(&disk);
        let expected = [
            2, 0, 0, 0, 1, 0, 6, 0, 255, 255, 255, 255, 2, 0, 4, 0, 0xe8, 3, 0, 0, 4, 0, 4, 0, 255, 255, 255,
            255,
        ];
        assert_eq!(linux, Ok(expected.to_vec()));
        assert!(as_linux(&disk[..14]).is_err());
        assert!(as_linux(&[2, 0, 0, 0]).is_err());
    }
}
