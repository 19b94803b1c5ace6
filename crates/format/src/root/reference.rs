//! The place of a subvolume in its parent: `ROOT_REF` and `ROOT_BACKREF`.

use super::RootProblem;
use crate::item_error::{ItemError, ItemProblem};
use crate::key::{ItemType, Key};
use crate::names::check_name;
use crate::raw;
use crate::tree_checker::is_file_tree;
use crate::units::{InodeNumber, TreeId};
use zerocopy::little_endian::{U16, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The fixed part of a root reference. The subvolume's name follows this part.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct RawRootRef {
    /// The inode of the directory in the parent subvolume.
    pub directory: U64,
    /// The offset of the `DIR_INDEX` key in that directory.
    pub sequence: U64,
    /// Length of the name that follows.
    pub name_bytes: U16,
}

const _: () = assert!(size_of::<RawRootRef>() == 18);

/// The place of a subvolume: a directory of its parent, and a name in this directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RootRef<'a> {
    /// The inode of the directory in the parent subvolume.
    pub directory: InodeNumber,
    /// The offset of the `DIR_INDEX` key in that directory.
    pub sequence: u64,
    /// The name as raw bytes.
    pub name: &'a [u8],
}

impl<'a> RootRef<'a> {
    /// Checks a `ROOT_REF` `(parent ROOT_REF child)` or `ROOT_BACKREF` `(child ROOT_BACKREF
    /// parent)`.
    ///
    /// # Errors
    /// Returns an [`ItemError`] with the first check that fails.
    pub fn parse(key: &Key, data: &'a [u8]) -> Result<Self, ItemError> {
        for id in [key.objectid.get(), key.offset] {
            if !is_file_tree(TreeId::new(id)) {
                return Err(ItemError::new(key, RootProblem::NotASubvolume { id }));
            }
        }
        let (raw, name): (&RawRootRef, _) = raw::prefix(key, data)?;
        if name.len() != usize::from(raw.name_bytes.get()) {
            let expected_bytes = size_of::<RawRootRef>().saturating_add(usize::from(raw.name_bytes.get()));
            return Err(ItemError::new(
                key,
                ItemProblem::SizeWrong {
                    size_bytes: data.len(),
                    expected_bytes,
                },
            ));
        }
        check_name(name, false).map_err(|problem| ItemError::new(key, problem))?;
        Ok(Self {
            directory: InodeNumber::new(raw.directory.get()),
            sequence: raw.sequence.get(),
            name,
        })
    }

    /// Returns parent and child from the key of a `ROOT_REF` or `ROOT_BACKREF`.
    #[must_use]
    pub fn parent_and_child(key: &Key) -> (TreeId, TreeId) {
        let (own, other) = (TreeId::new(key.objectid.get()), TreeId::new(key.offset));
        if key.item_type == ItemType::ROOT_BACKREF {
            (other, own)
        } else {
            (own, other)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::names::NameProblem;
    use crate::units::ObjectId;

    #[test]
    fn root_references() {
        let head = RawRootRef {
            directory: U64::new(256),
            sequence: U64::new(4),
            name_bytes: U16::new(3),
        };
        let data = [head.as_bytes(), b"sub"].concat();
        let key = |own, item_type, other| Key::new(ObjectId::new(own), item_type, other);
        let down = key(5, ItemType::ROOT_REF, 256);
        let up = key(256, ItemType::ROOT_BACKREF, 5);
        for key in [down, up] {
            let found = RootRef::parse(&key, &data).unwrap();
            assert_eq!(
                (found.directory.get(), found.sequence, found.name),
                (256, 4, &b"sub"[..])
            );
            assert_eq!(RootRef::parent_and_child(&key), (TreeId::FS, TreeId::new(256)));
        }
        let problem = |key: Key, data: &[u8]| RootRef::parse(&key, data).unwrap_err().problem;
        assert_eq!(
            problem(key(2, ItemType::ROOT_REF, 256), &data),
            RootProblem::NotASubvolume { id: 2 }.into()
        );
        assert_eq!(
            problem(down, &data[..20]),
            ItemProblem::SizeWrong {
                size_bytes: 20,
                expected_bytes: 21
            }
        );
        assert_eq!(
            problem(down, &data[..17]),
            ItemProblem::SizeTooSmall {
                size_bytes: 17,
                needed_bytes: 18
            }
        );
        let dots = RawRootRef {
            name_bytes: U16::new(2),
            ..head
        };
        assert_eq!(
            problem(down, &[dots.as_bytes(), b".."].concat()),
            NameProblem::Dots.into()
        );
    }
}
