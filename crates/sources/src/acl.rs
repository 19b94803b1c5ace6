//! POSIX ACLs: conversion of their text to the form of extended attributes.
//!
//! The text form is `user::rwx,user:1000:r--,group::r-x,mask::rwx,other::r-x`. Commas or newlines
//! separate entries, and `#` begins a comment. star writes the number of a named user or group as a
//! fourth field: `user:joe:r--:1000`. A user or group name without a number is refused, because its
//! number would depend on the machine. The stored form is a little-endian `u32` version (2), then
//! sorted entries of 8 bytes: `u16` tag, `u16` permissions, `u32` id.
//!
//! Source: manual page acl(5) (text), and the kernel's documented user-space header for ACL
//! attributes (`linux/posix_acl_xattr.h`).

use buttress_format::printable::Printable;

const VERSION: u32 = 2;
/// The id of entries without an id.
const NO_ID: u32 = u32::MAX;

/// The reason why text is no ACL.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AclError {
    /// An entry is invalid.
    #[error("\"{}\" is not an entry of an access list", Printable(.0))]
    Entry(Vec<u8>),
    /// An entry has a name in place of a number.
    #[error(
        "the access list names \"{}\" without a number: create the archive with numeric owners (tar --numeric-owner)",
        Printable(.0)
    )]
    Name(Vec<u8>),
}

/// Returns the stored form of an ACL.
///
/// # Errors
/// Fails if the text is no ACL.
pub(crate) fn stored(text: &[u8]) -> Result<Vec<u8>, AclError> {
    let mut entries = Vec::new();
    for line in text.split(|byte| matches!(byte, b',' | b'\n')) {
        let entry = line
            .split(|byte| *byte == b'#')
            .next()
            .unwrap_or_default()
            .trim_ascii();
        if !entry.is_empty() {
            entries.push(parse(entry)?);
        }
    }
    entries.sort_unstable();
    let mut bytes = VERSION.to_le_bytes().to_vec();
    for (tag, id, permissions) in entries {
        bytes.extend_from_slice(&tag.to_le_bytes());
        bytes.extend_from_slice(&permissions.to_le_bytes());
        bytes.extend_from_slice(&id.to_le_bytes());
    }
    Ok(bytes)
}

/// Parses an ACL entry into its tag, id and permissions.
fn parse(entry: &[u8]) -> Result<(u16, u32, u16), AclError> {
    let wrong = || AclError::Entry(entry.to_vec());
    let fields: Vec<&[u8]> = entry.split(|byte| *byte == b':').collect();
    let (kind, name, letters, number) = match fields.as_slice() {
        [kind, name, letters] => (*kind, *name, *letters, None),
        [kind, name, letters, number] => (*kind, *name, *letters, Some(*number)),
        // In the text form, mask and other may omit the second field.
        [kind, letters] => (*kind, &[][..], *letters, None),
        _ => return Err(wrong()),
    };
    let tag = match (kind, name.is_empty()) {
        (b"user" | b"u", true) => 0x01,
        (b"user" | b"u", false) => 0x02,
        (b"group" | b"g", true) => 0x04,
        (b"group" | b"g", false) => 0x08,
        (b"mask" | b"m", true) => 0x10,
        (b"other" | b"o", true) => 0x20,
        _ => return Err(wrong()),
    };
    let mut permissions = 0_u16;
    for letter in letters {
        permissions |= match letter {
            b'r' => 4,
            b'w' => 2,
            b'x' => 1,
            b'-' => 0,
            _ => return Err(wrong()),
        };
    }
    let id = if name.is_empty() {
        NO_ID
    } else {
        let text = number.unwrap_or(name);
        let number = std::str::from_utf8(text).ok().and_then(|text| text.parse().ok());
        number.ok_or_else(|| AclError::Name(name.to_vec()))?
    };
    Ok((tag, id, permissions))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_becomes_what_the_kernel_stores() {
        let acl =
            stored(b"user::rwx,user:joe:r--:1000\ngroup::r-x #effective:r-x\nmask::rwx,other::---").unwrap();
        let entries: Vec<&[u8]> = acl[4..].chunks(8).collect();
        assert_eq!(acl[..4], [2, 0, 0, 0]);
        assert_eq!(
            entries,
            [
                &[1, 0, 7, 0, 255, 255, 255, 255][..],
                &[2, 0, 4, 0, 0xe8, 3, 0, 0],
                &[4, 0, 5, 0, 255, 255, 255, 255],
                &[16, 0, 7, 0, 255, 255, 255, 255],
                &[32, 0, 0, 0, 255, 255, 255, 255],
            ]
        );
    }

    #[test]
    fn names_and_nonsense_are_refused() {
        assert_eq!(stored(b"user:joe:r--"), Err(AclError::Name(b"joe".to_vec())));
        for text in ["user", "user::rwz", "owner::rwx", "mask:1:rwx", "a:b:c:d:e"] {
            assert!(
                matches!(stored(text.as_bytes()), Err(AclError::Entry(_))),
                "{text}"
            );
        }
    }
}
