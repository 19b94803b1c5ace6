//! The errors of extent items and references: one variant for each check.

use crate::key::ItemType;

/// The check that an extent item or a reference to an extent fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(
    missing_docs,
    reason = "the fields are the numbers of the message beside them"
)]
pub enum ExtentProblem {
    /// The level exceeds the highest level that a tree can have.
    #[error(
        "tree block level is {level}, expected at most {}",
        crate::superblock::HIGHEST_LEVEL
    )]
    Level { level: u64 },
    /// The flags name neither data nor a tree block, or both.
    #[error("extent flags are 0x{flags:x}, expected exactly one of data and tree block")]
    Flags { flags: u64 },
    /// A metadata item has the flag of data.
    #[error("metadata item has the data flag")]
    DataInMetadataItem,
    /// A data extent has the flag for full back references.
    #[error("extent flags 0x{flags:x} combine data and full back references")]
    DataWithFullBackref { flags: u64 },
    /// The length of a tree block differs from the node size.
    #[error("tree block is {length_bytes} bytes long, expected {node_bytes}")]
    TreeBlockLength { length_bytes: u64, node_bytes: u32 },
    /// An inline reference ends beyond the item.
    #[error("inline reference at byte {offset_bytes} needs {needed_bytes} bytes, the item has {rest_bytes}")]
    ReferenceCut {
        offset_bytes: usize,
        needed_bytes: usize,
        rest_bytes: usize,
    },
    /// No inline reference has this type.
    #[error("inline reference at byte {offset_bytes} has type {}, which is not a reference type", item_type.0)]
    ReferenceType {
        item_type: ItemType,
        offset_bytes: usize,
    },
    /// A tree block has a reference of data, or data has a reference of a tree block.
    #[error("inline reference {item_type} is not valid for extent flags 0x{flags:x}")]
    ReferenceKind { item_type: ItemType, flags: u64 },
    /// The types of inline references are not in order.
    #[error("inline reference {item_type} comes after {previous}")]
    ReferenceTypeOrder { item_type: ItemType, previous: ItemType },
    /// Inline references of one type are not in order.
    #[error("inline reference {item_type} with sort value {sort_value} comes after {previous}")]
    ReferenceOrder {
        item_type: ItemType,
        sort_value: u64,
        previous: u64,
    },
    /// The address of a parent block is not sector-aligned.
    #[error("reference names parent {parent}, not a multiple of the sector size {sector_bytes}")]
    ParentUnaligned { parent: u64, sector_bytes: u32 },
    /// A data reference names a tree that cannot refer to data.
    #[error("data reference from tree {root}, which contains no files")]
    DataRoot { root: u64 },
    /// A data reference names an object id that is no inode.
    #[error("data reference from inode {inode}, which is not an inode number")]
    DataInode { inode: u64 },
    /// The file offset of a data reference is not sector-aligned.
    #[error("data reference from file offset {offset}, not a multiple of the sector size {sector_bytes}")]
    DataOffset { offset: u64, sector_bytes: u32 },
    /// The count of a reference is zero.
    #[error("reference count is 0, expected at least 1")]
    CountZero,
    /// The inline references exceed the item's count of references.
    #[error("inline references add up to {inline}, expected at most {references}")]
    TooManyReferences { inline: u64, references: u64 },
    /// The new count overflows its field.
    #[error("the reference count exceeds its field")]
    CountOverflow,
    /// A removal exceeds the references that the item holds.
    #[error("{count} references are to be removed, but only {present} exist")]
    CountTooSmall { count: u32, present: u64 },
    /// A second reference comes from a place that can have only one reference.
    #[error("a second {item_type} of the same reference, which has no count")]
    Uncounted { item_type: ItemType },
}
