//! What can be wrong with an extent item or a reference: one variant for each check.

use crate::key::ItemType;

/// The check that an extent item or a reference to an extent fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(
    missing_docs,
    reason = "the fields are the numbers of the message beside them"
)]
pub enum ExtentProblem {
    /// A level above the highest.
    #[error(
        "tree block has level {level}, the highest is {}",
        crate::superblock::HIGHEST_LEVEL
    )]
    Level { level: u64 },
    /// Neither data nor a tree block, or both.
    #[error("extent flags 0x{flags:x} name not exactly one of data and tree block")]
    Flags { flags: u64 },
    /// A metadata item that says data.
    #[error("metadata item with the flag of data")]
    DataInMetadataItem,
    /// Data cannot refer to anything.
    #[error("extent flags 0x{flags:x} join data and full back references")]
    DataWithFullBackref { flags: u64 },
    /// A tree block that is not as long as tree blocks are.
    #[error("tree block is {length_bytes} bytes long, expected {node_bytes}")]
    TreeBlockLength { length_bytes: u64, node_bytes: u32 },
    /// An inline reference ends beyond the item.
    #[error("inline reference at byte {offset_bytes} needs {needed_bytes} bytes, the item has {rest_bytes}")]
    ReferenceCut {
        offset_bytes: usize,
        needed_bytes: usize,
        rest_bytes: usize,
    },
    /// An inline reference of a type that no inline reference has.
    #[error("inline reference at byte {offset_bytes} has type {}, which is no reference", item_type.0)]
    ReferenceType {
        item_type: ItemType,
        offset_bytes: usize,
    },
    /// A reference of data to a tree block, or the other way round.
    #[error("inline reference {item_type} does not fit extent flags 0x{flags:x}")]
    ReferenceKind { item_type: ItemType, flags: u64 },
    /// Inline references out of order of their types.
    #[error("inline reference {item_type} comes after {previous}")]
    ReferenceTypeOrder { item_type: ItemType, previous: ItemType },
    /// Inline references of one type out of order.
    #[error("inline reference {item_type} with sort value {sort_value} comes after {previous}")]
    ReferenceOrder {
        item_type: ItemType,
        sort_value: u64,
        previous: u64,
    },
    /// A parent block at an address that no sector begins at.
    #[error("reference names parent {parent}, not a multiple of the sector size {sector_bytes}")]
    ParentUnaligned { parent: u64, sector_bytes: u32 },
    /// A reference to data from a tree that cannot refer to data.
    #[error("data reference from tree {root}, which holds no files")]
    DataRoot { root: u64 },
    /// A reference to data from what is no inode.
    #[error("data reference from inode {inode}, which is no inode number")]
    DataInode { inode: u64 },
    /// A reference to data from a place in a file that is not a sector's.
    #[error("data reference from file offset {offset}, not a multiple of the sector size {sector_bytes}")]
    DataOffset { offset: u64, sector_bytes: u32 },
    /// A reference that counts for nothing.
    #[error("reference with a count of 0")]
    CountZero,
    /// More inline references than references.
    #[error("inline references count {inline}, but the extent has {references}")]
    TooManyReferences { inline: u64, references: u64 },
    /// A count that is to grow beyond its field.
    #[error("the count of references does not fit its field any more")]
    CountOverflow,
    /// More references are to go than there are.
    #[error("{count} references are to go, but {present} are there")]
    CountTooSmall { count: u32, present: u64 },
    /// A second reference from a place that can have one.
    #[error("a second {item_type} from the same place: it has no count")]
    Uncounted { item_type: ItemType },
}
