//! The list of attributes in an inode or a block: names, and the places of values.
//!
//! Source: ext4 documentation, section "Extended Attributes".

use crate::bytes::{part, rounded_to_four, u16_at, u32_at};
use crate::error::Problem;
use crate::units::InodeNumber;
use buttress_exact::{Exact as _, u64_of};

/// The size of an entry without its name.
const ENTRY_BYTES: usize = 16;
/// The size of the magic number before the entries in an inode.
const INODE_HEADER_BYTES: usize = 4;

const INDEX_ACL_ACCESS: u8 = 2;
const INDEX_ACL_DEFAULT: u8 = 3;
const INDEX_SYSTEM: u8 = 7;

/// The value of an attribute.
#[derive(Clone, Copy, Debug)]
pub(super) enum Value<'a> {
    /// The value is beside the list.
    Bytes(&'a [u8]),
    /// The value is the content of an inode.
    Inode { number: InodeNumber, size_bytes: u64 },
}

/// An entry of the list.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry<'a> {
    index: u8,
    name: &'a [u8],
    pub(super) value: Value<'a>,
}

impl Entry<'_> {
    /// Returns true if the value continues the content of the inode.
    pub(super) fn is_inline_data(&self) -> bool {
        self.index == INDEX_SYSTEM && self.name == b"data"
    }

    /// Returns true if the value is an access control list.
    pub(super) const fn is_acl(&self) -> bool {
        matches!(self.index, INDEX_ACL_ACCESS | INDEX_ACL_DEFAULT)
    }

    /// Returns the length of the value.
    pub(super) const fn value_bytes(&self) -> u64 {
        match self.value {
            Value::Bytes(bytes) => u64_of(bytes.len()),
            Value::Inode { size_bytes, .. } => size_bytes,
        }
    }

    /// Returns the name with its prefix.
    pub(super) fn full_name(&self) -> Result<Vec<u8>, Problem> {
        let (prefix, is_whole): (&[u8], bool) = match self.index {
            0 => (b"", false),
            1 => (b"user.", false),
            INDEX_ACL_ACCESS => (b"system.posix_acl_access", true),
            INDEX_ACL_DEFAULT => (b"system.posix_acl_default", true),
            4 => (b"trusted.", false),
            6 => (b"security.", false),
            INDEX_SYSTEM => (b"system.", false),
            8 => (b"system.richacl", true),
            index => {
                let (field, found) = ("e_name_index", u64::from(index));
                return Err(Problem::Field {
                    field,
                    found,
                    least: 0,
                    most: 8,
                });
            }
        };
        if self.name.is_empty() != is_whole || self.name.contains(&0) {
            return Err(Problem::Field {
                field: "the length of an attribute's name",
                found: u64_of(self.name.len()),
                least: u64::from(!is_whole),
                most: if is_whole { 0 } else { 255 },
            });
        }
        Ok([prefix, self.name].concat())
    }
}

/// The entries of a list. The iterator ends after an error.
pub(super) struct Entries<'a> {
    /// The bytes of the entries and values. Offsets of values count from their start.
    bytes: &'a [u8],
    next: Option<usize>,
}

/// Returns the entries in the bytes after an inode's fields. There are none without `magic`.
pub(super) fn in_inode(bytes: &[u8], magic: u32) -> Result<Entries<'_>, Problem> {
    let has_list = matches!(u32_at(bytes, "the header", 0), Ok(found) if found == magic);
    let bytes = if has_list {
        let length = bytes.len().exact_sub(INODE_HEADER_BYTES);
        part(bytes, "the entries", INODE_HEADER_BYTES, length)?
    } else {
        &[]
    };
    let next = has_list.then_some(0);
    Ok(Entries { bytes, next })
}

/// Returns the entries in a block, after its header.
pub(super) const fn in_block(bytes: &[u8], header_bytes: usize) -> Entries<'_> {
    let next = Some(header_bytes);
    Entries { bytes, next }
}

impl<'a> Iterator for Entries<'a> {
    type Item = Result<Entry<'a>, Problem>;

    fn next(&mut self) -> Option<Self::Item> {
        let at = self.next.take()?;
        match self.parse(at) {
            Ok(None) => None,
            Ok(Some((entry, after))) => {
                self.next = Some(after);
                Some(Ok(entry))
            }
            Err(problem) => Some(Err(problem)),
        }
    }
}

impl<'a> Entries<'a> {
    /// Returns the entry at an offset and the offset after the entry, or `None` at the end.
    fn parse(&self, at: usize) -> Result<Option<(Entry<'a>, usize)>, Problem> {
        let what = "the entry of an attribute";
        if u32_at(self.bytes, what, at)? == 0 {
            return Ok(None);
        }
        let entry = part(self.bytes, what, at, ENTRY_BYTES)?;
        let [name_bytes, index] = u16_at(entry, what, 0)?.to_le_bytes();
        let name_at = at.exact_add(ENTRY_BYTES);
        let name = part(
            self.bytes,
            "the name of an attribute",
            name_at,
            usize::from(name_bytes),
        )?;
        let offset = usize::from(u16_at(entry, what, 2)?);
        let inode = u32_at(entry, what, 4)?;
        let size = u32_at(entry, what, 8)?;
        let value = if inode != 0 {
            Value::Inode {
                number: InodeNumber::new(inode),
                size_bytes: u64::from(size),
            }
        } else if size == 0 {
            Value::Bytes(&[])
        } else {
            let length = buttress_exact::usize_of(size);
            Value::Bytes(part(self.bytes, "the value of an attribute", offset, length)?)
        };
        let after = name_at.exact_add(rounded_to_four(name.len()));
        Ok(Some((Entry { index, name, value }, after)))
    }
}
