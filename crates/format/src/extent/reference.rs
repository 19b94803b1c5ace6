//! Inline references, and the reference to data by tree, inode and offset that keyed items share.

use super::{ExtentFlags, ExtentProblem, RawExtentItem, RawTreeBlockInfo};
use crate::checksum::extent_data_reference_hash;
use crate::item_error::ItemError;
use crate::key::{ItemType, Key};
use crate::raw;
use crate::tree_checker::is_file_tree;
use crate::units::{InodeNumber, Logical, ObjectId, TreeId};
use smallvec::SmallVec;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The on-disk layout of a reference to data by tree, inode and offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct RawExtentDataReference {
    pub(super) root: U64,
    pub(super) objectid: U64,
    pub(super) offset: U64,
    pub(super) count: U32,
}

/// The on-disk layout of an inline reference to data by the leaf that points to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawSharedDataReference {
    parent: U64,
    count: U32,
}

const _: () = assert!(size_of::<RawExtentDataReference>() == 28);
const _: () = assert!(size_of::<RawSharedDataReference>() == 12);

/// References to data from one place in one file of one tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExtentDataReference {
    /// The tree that refers to the data.
    pub root: TreeId,
    /// The inode that refers to the data.
    pub inode: InodeNumber,
    /// The file offset of the extent's first byte. The stored offset wraps below zero if the file
    /// uses only a later part of the extent near its start.
    pub offset: u64,
    /// The number of file extent items that this reference counts.
    pub count: u32,
}

impl ExtentDataReference {
    /// Checks a raw reference.
    pub(super) fn from_raw(raw: &RawExtentDataReference, sector_bytes: u32) -> Result<Self, ExtentProblem> {
        let reference = Self {
            root: TreeId::new(raw.root.get()),
            inode: InodeNumber::new(raw.objectid.get()),
            offset: raw.offset.get(),
            count: raw.count.get(),
        };
        // The root tree refers to data through the v1 free space cache.
        let root_fits = is_file_tree(reference.root)
            || reference.root == TreeId::DATA_RELOCATION
            || reference.root == TreeId::ROOT;
        if !root_fits {
            return Err(ExtentProblem::DataRoot {
                root: reference.root.get(),
            });
        }
        let inodes = ObjectId::FIRST_FREE..=ObjectId::LAST_FREE;
        if !inodes.contains(&reference.inode.object_id()) {
            return Err(ExtentProblem::DataInode {
                inode: reference.inode.get(),
            });
        }
        if !raw::is_aligned(reference.offset, sector_bytes) {
            return Err(ExtentProblem::DataOffset {
                offset: reference.offset,
                sector_bytes,
            });
        }
        if reference.count == 0 {
            return Err(ExtentProblem::CountZero);
        }
        Ok(reference)
    }

    /// Returns the reference in its on-disk layout.
    pub(super) fn to_raw(self) -> RawExtentDataReference {
        RawExtentDataReference {
            root: U64::new(self.root.get()),
            objectid: U64::new(self.inode.get()),
            offset: U64::new(self.offset),
            count: U32::new(self.count),
        }
    }

    /// Returns the hash of tree, inode and offset.
    #[must_use]
    pub fn hash(&self) -> u64 {
        extent_data_reference_hash(self.root, self.inode, self.offset)
    }
}

/// An inline reference, which the extent item itself holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InlineReference {
    /// The tree that created a data extent, for simple quotas. The owner does not count as a
    /// reference.
    Owner {
        /// The tree that created the extent.
        root: TreeId,
    },
    /// A reference to a tree block by its tree.
    TreeBlock {
        /// The tree that owns the block.
        root: TreeId,
    },
    /// A reference to data by tree, inode and offset.
    ExtentData(ExtentDataReference),
    /// A reference to a tree block by its parent block.
    SharedBlock {
        /// The address of the parent block.
        parent: Logical,
    },
    /// A reference to data by the leaf that holds the file extent items.
    SharedData {
        /// The address of the leaf that refers to the extent.
        parent: Logical,
        /// The number of the leaf's items that refer to the data.
        count: u32,
    },
}

impl InlineReference {
    /// Returns the reference's type on disk.
    #[must_use]
    pub const fn item_type(&self) -> ItemType {
        match self {
            Self::Owner { .. } => ItemType::EXTENT_OWNER_REF,
            Self::TreeBlock { .. } => ItemType::TREE_BLOCK_REF,
            Self::ExtentData(_) => ItemType::EXTENT_DATA_REF,
            Self::SharedBlock { .. } => ItemType::SHARED_BLOCK_REF,
            Self::SharedData { .. } => ItemType::SHARED_DATA_REF,
        }
    }

    /// Returns the number of references that this reference item counts.
    #[must_use]
    pub const fn count(&self) -> u32 {
        match self {
            Self::Owner { .. } => 0,
            Self::TreeBlock { .. } | Self::SharedBlock { .. } => 1,
            Self::ExtentData(reference) => reference.count,
            Self::SharedData { count, .. } => *count,
        }
    }

    /// Returns the value that orders references of one type, in descending order: the tree, the
    /// parent, or the hash of a reference to data.
    #[must_use]
    pub fn sort_value(&self) -> u64 {
        match self {
            Self::Owner { root } | Self::TreeBlock { root } => root.get(),
            Self::SharedBlock { parent } | Self::SharedData { parent, .. } => parent.get(),
            Self::ExtentData(reference) => reference.hash(),
        }
    }
}

impl InlineReference {
    /// Returns the inline length in bytes, including the type byte.
    #[must_use]
    pub const fn inline_bytes(&self) -> usize {
        let body_bytes = match self {
            Self::Owner { .. } | Self::TreeBlock { .. } | Self::SharedBlock { .. } => size_of::<U64>(),
            Self::ExtentData(_) => size_of::<RawExtentDataReference>(),
            Self::SharedData { .. } => size_of::<RawSharedDataReference>(),
        };
        body_bytes.saturating_add(1)
    }

    /// Returns true if both references come from the same place. The counts of the two references
    /// may differ.
    #[must_use]
    pub fn is_same_place(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::ExtentData(own), Self::ExtentData(other)) => {
                (own.root, own.inode, own.offset) == (other.root, other.inode, other.offset)
            }
            (Self::SharedData { parent: own, .. }, Self::SharedData { parent: other, .. }) => own == other,
            _ => self == other,
        }
    }

    /// Changes the reference's count.
    ///
    /// # Errors
    /// Returns [`ExtentProblem::Uncounted`] for a reference without a count field.
    pub(super) fn set_count(&mut self, new: u32) -> Result<(), ExtentProblem> {
        match self {
            Self::ExtentData(reference) => reference.count = new,
            Self::SharedData { count, .. } => *count = new,
            Self::Owner { .. } | Self::TreeBlock { .. } | Self::SharedBlock { .. } => {
                return Err(ExtentProblem::Uncounted {
                    item_type: self.item_type(),
                });
            }
        }
        Ok(())
    }

    /// Appends the reference to the bytes of an extent item.
    pub(super) fn encode_inline(&self, item: &mut Vec<u8>) {
        item.push(self.item_type().0);
        match self {
            Self::ExtentData(reference) => item.extend_from_slice(reference.to_raw().as_bytes()),
            Self::SharedData { parent, count } => {
                let raw = RawSharedDataReference {
                    parent: U64::new(parent.get()),
                    count: U32::new(*count),
                };
                item.extend_from_slice(raw.as_bytes());
            }
            _ => item.extend_from_slice(&self.sort_value().to_le_bytes()),
        }
    }
}

/// An iterator over the inline references in the rest of an extent item. The iterator checks each
/// reference alone, and ends at the first error.
#[derive(Clone, Debug)]
pub struct InlineReferences<'a> {
    rest: &'a [u8],
    offset_bytes: usize,
    sector_bytes: u32,
}

impl<'a> InlineReferences<'a> {
    /// Makes an iterator over the references in `rest`, which begins `offset_bytes` into the item.
    #[must_use]
    pub const fn new(rest: &'a [u8], offset_bytes: usize, sector_bytes: u32) -> Self {
        Self {
            rest,
            offset_bytes,
            sector_bytes,
        }
    }

    /// Splits one raw struct off the remaining bytes of the item. `type_bytes` is the length of the
    /// type byte before the raw struct.
    fn take<Raw>(&mut self) -> Result<&'a Raw, ExtentProblem>
    where
        Raw: FromBytes + Immutable + KnownLayout + Unaligned,
    {
        let after_type = self.rest.get(1..).unwrap_or_default();
        match Raw::ref_from_prefix(after_type) {
            Ok((raw, rest)) => {
                self.rest = rest;
                self.offset_bytes = self
                    .offset_bytes
                    .saturating_add(1)
                    .saturating_add(size_of::<Raw>());
                Ok(raw)
            }
            Err(_) => Err(ExtentProblem::ReferenceCut {
                offset_bytes: self.offset_bytes,
                needed_bytes: size_of::<Raw>().saturating_add(1),
                rest_bytes: self.rest.len(),
            }),
        }
    }

    fn take_parent(&mut self, parent: u64) -> Result<Logical, ExtentProblem> {
        if raw::is_aligned(parent, self.sector_bytes) {
            return Ok(Logical::new(parent));
        }
        Err(ExtentProblem::ParentUnaligned {
            parent,
            sector_bytes: self.sector_bytes,
        })
    }

    fn take_one(&mut self, item_type: ItemType) -> Result<InlineReference, ExtentProblem> {
        Ok(match item_type {
            ItemType::EXTENT_OWNER_REF => InlineReference::Owner {
                root: TreeId::new(self.take::<U64>()?.get()),
            },
            ItemType::TREE_BLOCK_REF => InlineReference::TreeBlock {
                root: TreeId::new(self.take::<U64>()?.get()),
            },
            ItemType::EXTENT_DATA_REF => {
                let raw = self.take::<RawExtentDataReference>()?;
                InlineReference::ExtentData(ExtentDataReference::from_raw(raw, self.sector_bytes)?)
            }
            ItemType::SHARED_BLOCK_REF => {
                let parent = self.take::<U64>()?.get();
                InlineReference::SharedBlock {
                    parent: self.take_parent(parent)?,
                }
            }
            ItemType::SHARED_DATA_REF => {
                let raw = self.take::<RawSharedDataReference>()?;
                let parent = self.take_parent(raw.parent.get())?;
                match raw.count.get() {
                    0 => return Err(ExtentProblem::CountZero),
                    count => InlineReference::SharedData { parent, count },
                }
            }
            _ => {
                return Err(ExtentProblem::ReferenceType {
                    item_type,
                    offset_bytes: self.offset_bytes,
                });
            }
        })
    }
}

impl Iterator for InlineReferences<'_> {
    type Item = Result<InlineReference, ExtentProblem>;

    fn next(&mut self) -> Option<Self::Item> {
        let item_type = ItemType(*self.rest.first()?);
        let reference = self.take_one(item_type);
        if reference.is_err() {
            self.rest = &[];
        }
        Some(reference)
    }
}

/// Parses all inline references of an extent. Checks each reference alone, against the others, and
/// against the extent.
pub(super) fn parse_all(
    key: &Key,
    rest: &[u8],
    flags: ExtentFlags,
    references: u64,
    sector_bytes: u32,
) -> Result<SmallVec<[InlineReference; 2]>, ItemError> {
    let has_info = flags.contains(ExtentFlags::TREE_BLOCK) && key.item_type == ItemType::EXTENT_ITEM;
    let info_bytes = if has_info {
        size_of::<RawTreeBlockInfo>()
    } else {
        0
    };
    let offset_bytes = size_of::<RawExtentItem>().saturating_add(info_bytes);
    let mut all = SmallVec::new();
    let mut inline = 0_u64;
    for reference in InlineReferences::new(rest, offset_bytes, sector_bytes) {
        let check = |reference: InlineReference| {
            check_kind(&reference, flags)?;
            check_order(all.last(), &reference)?;
            Ok(reference)
        };
        let reference = reference
            .and_then(check)
            .map_err(|problem| ItemError::new(key, problem))?;
        inline = inline.saturating_add(u64::from(reference.count()));
        all.push(reference);
    }
    if inline > references {
        return Err(ItemError::new(
            key,
            ExtentProblem::TooManyReferences { inline, references },
        ));
    }
    Ok(all)
}

pub(super) fn check_kind(reference: &InlineReference, flags: ExtentFlags) -> Result<(), ExtentProblem> {
    let wants = match reference {
        InlineReference::TreeBlock { .. } | InlineReference::SharedBlock { .. } => ExtentFlags::TREE_BLOCK,
        InlineReference::Owner { .. }
        | InlineReference::ExtentData(_)
        | InlineReference::SharedData { .. } => ExtentFlags::DATA,
    };
    if flags.contains(wants) {
        return Ok(());
    }
    Err(ExtentProblem::ReferenceKind {
        item_type: reference.item_type(),
        flags: flags.bits(),
    })
}

fn check_order(previous: Option<&InlineReference>, reference: &InlineReference) -> Result<(), ExtentProblem> {
    let Some(previous) = previous else { return Ok(()) };
    let (item_type, previous_type) = (reference.item_type(), previous.item_type());
    if item_type < previous_type {
        return Err(ExtentProblem::ReferenceTypeOrder {
            item_type,
            previous: previous_type,
        });
    }
    if item_type == previous_type {
        let (sort_value, previous) = (reference.sort_value(), previous.sort_value());
        if sort_value > previous {
            return Err(ExtentProblem::ReferenceOrder {
                item_type,
                sort_value,
                previous,
            });
        }
    }
    Ok(())
}
