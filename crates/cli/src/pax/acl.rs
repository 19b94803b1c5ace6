//! Conversion of POSIX ACLs from their extended attributes to text.
//!
//! Stored: a little-endian `u32` version (2), then entries of 8 bytes: `u16` tag, `u16`
//! permissions, `u32` id. Text: `user::rwx,user:1000:r--,group::r-x,mask::rwx,other::r-x`.
//!
//! Source: manual page acl(5) (text), and the kernel's documented user-space header for ACL
//! attributes (`linux/posix_acl_xattr.h`).

const VERSION: u32 = 2;

/// Returns the ACL as text with numeric ids, or `None` if the value is not an ACL.
pub fn acl_text(stored: &[u8]) -> Option<String> {
    let (version, entries) = stored.split_first_chunk::<4>()?;
    if u32::from_le_bytes(*version) != VERSION || entries.is_empty() || !entries.len().is_multiple_of(8) {
        return None;
    }
    let mut text = String::new();
    for entry in entries.chunks_exact(8) {
        let (tag, rest) = entry.split_first_chunk::<2>()?;
        let (permissions, id) = rest.split_first_chunk::<2>()?;
        let id = u32::from_le_bytes(*id.first_chunk::<4>()?);
        let qualifier = match u16::from_le_bytes(*tag) {
            0x01 => "user::".to_owned(),
            0x02 => format!("user:{id}:"),
            0x04 => "group::".to_owned(),
            0x08 => format!("group:{id}:"),
            0x10 => "mask::".to_owned(),
            0x20 => "other::".to_owned(),
            _ => return None,
        };
        if !text.is_empty() {
            text.push(',');
        }
        text.push_str(&qualifier);
        let permissions = u16::from_le_bytes(*permissions);
        for (bit, letter) in [(4, 'r'), (2, 'w'), (1, 'x')] {
            text.push(if permissions & bit != 0 { letter } else { '-' });
        }
    }
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stored(entries: &[(u16, u16, u32)]) -> Vec<u8> {
        let mut bytes = VERSION.to_le_bytes().to_vec();
        for (tag, permissions, id) in entries {
            bytes.extend_from_slice(&tag.to_le_bytes());
            bytes.extend_from_slice(&permissions.to_le_bytes());
            bytes.extend_from_slice(&id.to_le_bytes());
        }
        bytes
    }

    #[test]
    fn acls_become_text() {
        let none = u32::MAX;
        let acl = stored(&[
            (1, 7, none),
            (2, 4, 1000),
            (4, 5, none),
            (16, 7, none),
            (32, 0, none),
        ]);
        assert_eq!(
            acl_text(&acl).unwrap(),
            "user::rwx,user:1000:r--,group::r-x,mask::rwx,other::---"
        );
    }

    #[test]
    fn invalid_acls_are_refused() {
        assert_eq!(acl_text(b""), None);
        assert_eq!(acl_text(&VERSION.to_le_bytes()), None);
        assert_eq!(acl_text(&stored(&[(3, 7, 0)])), None);
        let cut = stored(&[(1, 7, 0)]);
        assert_eq!(acl_text(&cut[..cut.len() - 1]), None);
    }
}
