//! Back references: from logical addresses to extents, to the files in subvolumes that use them,
//! and to paths.
//!
//! The extent tree records each reference to an extent in one of two forms:
//!
//! - *keyed*: data by subvolume, inode and offset; a tree block by the tree that owns it. A search
//!   of the named tree finds the place of the reference;
//! - *full*: the address of the leaf or node that holds the reference. References to blocks that
//!   several subvolumes share have this form.
//!
//! Both forms lead to a leaf or node, not to subvolumes. Many snapshots may reach a leaf although
//! the extent tree records only one of them. `climb` therefore follows the references of each tree
//! block upwards until it reaches roots. `sharing` answers a smaller question: whether any other
//! file uses extents, for a batch at a time.
//!
//! Bounds: [`BLOCKS_MAX`] blocks in a climb, [`REFERENCES_MAX`] results. Above these bounds, the
//! call returns an error. References on disk that lead nowhere are listed as failures beside the
//! results, at most 1,024 of them.
//!
//! Source: on-disk format documentation, section "Extent tree", and the design page "Resolving
//! extent backrefs".

mod climb;
pub(crate) mod extent;
mod file_space;
mod referrers;
pub(crate) mod sharing;

use buttress_exact::Exact as _;
use buttress_format::{
    ByteCount, Compression, ExtentDataReference, FileExtent, FileExtentBody, FileOffset, InlineReference,
    InodeNumber, ItemType, Key, Logical, TreeId,
};
use buttress_fs::error::{Corruption, Error, Result};
use buttress_fs::filesystem::Filesystem;
use buttress_fs::location::Location;
use buttress_tree::{ReadAhead, Tree};
use climb::Climb;
use extent::{block_by_address, extent_at, extent_references};
use std::collections::{BTreeMap, BTreeSet};

pub use extent::{Extent, References};
pub use file_space::FileSpace;
pub use referrers::DelayedReferencesOf;
pub(crate) use sharing::LookUpWaiting;
pub use sharing::{ExtentUse, SHARING_BATCH, Sharing};

/// The most blocks that one climb visits.
pub const BLOCKS_MAX: usize = 1 << 20;

/// The most references to an extent that one call collects.
pub const REFERENCES_MAX: usize = 1 << 20;

/// The most failures that one call collects.
const FAILURES_MAX: usize = 1 << 10;

/// Adds an unresolved reference to the list of failures, unless the list is full.
fn list(failures: &mut Vec<Error>, error: Error) {
    if failures.len() < FAILURES_MAX {
        failures.push(error);
    }
}

/// Places in leaves: the inode, and the file offset.
type Leaves = BTreeMap<Logical, Vec<(InodeNumber, FileOffset)>>;

/// A place in a file that uses an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DataReference {
    /// The subvolume and the inode of the file.
    pub location: Location,
    /// The file offset. For plain data, the offset of a use is the offset of the address itself.
    /// For compressed data, and for requests about the whole extent, the offset is that of the
    /// file's range.
    pub offset: FileOffset,
}

/// All places in files that use an address.
#[derive(Clone, Debug, Default)]
pub struct DataReferences {
    /// The places, ordered by subvolume, inode and offset, each once.
    pub references: Vec<DataReference>,
    /// References on disk that could not be followed.
    pub failures: Vec<Error>,
}

impl DataReferences {
    /// Iterates over the places.
    pub fn iter(&self) -> core::slice::Iter<'_, DataReference> {
        self.references.iter()
    }
}

impl<'a> IntoIterator for &'a DataReferences {
    type Item = &'a DataReference;
    type IntoIter = core::slice::Iter<'a, DataReference>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

/// The extent that is searched for in leaves.
#[derive(Clone, Copy, Debug)]
struct Wanted {
    extent: Logical,
    /// The distance from the extent's start to the byte that must be used; `None` for any byte.
    byte: Option<ByteCount>,
}

impl Wanted {
    /// Returns the file offset at which an item uses the wanted bytes, if it does.
    fn offset_in(&self, key: &Key, extent: &FileExtent<'_>) -> Option<FileOffset> {
        let (FileExtentBody::Regular(slice) | FileExtentBody::Preallocated(slice)) = extent.body else {
            return None;
        };
        if slice.disk != self.extent {
            return None;
        }
        let start = FileOffset::new(key.offset);
        match self.byte {
            Some(byte) if extent.compression == Compression::None => {
                let inside = byte.checked_sub(slice.offset)?;
                (inside < slice.num_bytes).then(|| start.exact_add(inside))
            }
            _ => Some(start),
        }
    }
}

/// Returns all places in files that use the byte at `logical`, in all subvolumes and snapshots.
/// With `ignore_offset`, returns all places that use any part of the address's extent.
///
/// # Errors
/// Fails with [`Error::ExtentNotFound`] if no extent covers the address, or a tree block does, or
/// with [`Corruption::BackReferencesTooMany`], or with an error of reading the extent tree.
pub(crate) fn data_references(
    filesystem: &Filesystem,
    logical: Logical,
    ignore_offset: bool,
) -> Result<DataReferences> {
    let extent = extent_at(filesystem, logical)?;
    if !extent.item.is_data() {
        return Err(Error::ExtentNotFound { logical });
    }
    let byte = logical
        .checked_distance_from(extent.item.start)
        .filter(|_| !ignore_offset);
    let wanted = Wanted {
        extent: extent.item.start,
        byte,
    };
    let mut failures = Vec::new();
    let leaves = leaves_with(filesystem, &extent, wanted, &mut failures)?;
    let mut climb = Climb::new(filesystem);
    let mut references = BTreeSet::new();
    for (leaf, places) in leaves.iter().filter(|(_, places)| !places.is_empty()) {
        let roots = climb.roots_of(*leaf, &mut failures)?;
        for root in roots.iter().filter_map(|root| root.as_subvolume()) {
            references.extend(places.iter().map(|(inode, offset)| DataReference {
                location: Location::new(root, *inode),
                offset: *offset,
            }));
            if references.len() > REFERENCES_MAX {
                return Err(Corruption::BackReferencesTooMany {
                    logical,
                    limit: REFERENCES_MAX,
                }
                .into());
            }
        }
    }
    Ok(DataReferences {
        references: references.into_iter().collect(),
        failures,
    })
}

/// Returns the trees from which the tree block at `logical` can be reached, in order.
///
/// # Errors
/// Fails with [`Error::ExtentNotFound`], [`Corruption::BackReferencesTooMany`], or with an error of
/// reading the extent tree.
pub(crate) fn trees_of_block(filesystem: &Filesystem, logical: Logical) -> Result<(Vec<TreeId>, Vec<Error>)> {
    let mut failures = Vec::new();
    let roots = Climb::new(filesystem).roots_of(logical, &mut failures)?;
    Ok((roots.to_vec(), failures))
}

/// Returns all leaves with items that use the wanted bytes.
fn leaves_with(
    filesystem: &Filesystem,
    extent: &Extent,
    wanted: Wanted,
    failures: &mut Vec<Error>,
) -> Result<Leaves> {
    let mut leaves = Leaves::new();
    let mut full = BTreeSet::new();
    let mut places = 0_usize;
    // References by address come first: a keyed reference does not count the items of their leaves.
    for by_address in [true, false] {
        for reference in extent_references(filesystem, extent)? {
            let is_by_address = |found: &InlineReference| matches!(found, InlineReference::SharedData { .. });
            let found = match reference {
                Ok(reference) if is_by_address(&reference) != by_address => continue,
                Ok(reference) => leaves_of(filesystem, extent, &reference, wanted, &full, &mut leaves),
                Err(_) if !by_address => continue,
                Err(error) => Err(error),
            };
            match found {
                Ok(count) => places = places.exact_add(count),
                Err(error) => list(failures, error),
            }
            if leaves.len() > BLOCKS_MAX || places > REFERENCES_MAX {
                return Err(Corruption::BackReferencesTooMany {
                    logical: extent.item.start,
                    limit: BLOCKS_MAX,
                }
                .into());
            }
        }
        if by_address {
            full = leaves.keys().copied().collect();
        }
    }
    Ok(leaves)
}

/// Adds the leaves to which a reference leads, with their places that use the wanted bytes. Returns
/// the number of places that it added.
fn leaves_of(
    filesystem: &Filesystem,
    extent: &Extent,
    reference: &InlineReference,
    wanted: Wanted,
    full: &BTreeSet<Logical>,
    leaves: &mut Leaves,
) -> Result<usize> {
    match reference {
        InlineReference::ExtentData(reference) => {
            let tree = filesystem
                .tree(reference.root)
                .map_err(|_| dangling(extent, reference))?;
            leaves_in_tree(filesystem, &tree, extent, reference, wanted, full, leaves)
        }
        InlineReference::SharedData { parent, .. } => {
            if leaves.contains_key(parent) {
                return Ok(0);
            }
            let block = block_by_address(filesystem, *parent)?;
            let sector_bytes = filesystem.sector_bytes();
            let places = leaves.entry(*parent).or_default();
            for item in block
                .items()
                .filter(|item| item.key.item_type == ItemType::EXTENT_DATA)
            {
                if let Ok(file_extent) = FileExtent::parse(&item.key, item.data, sector_bytes)
                    && let Some(offset) = wanted.offset_in(&item.key, &file_extent)
                {
                    places.push((InodeNumber::new(item.key.objectid.get()), offset));
                }
            }
            Ok(places.len())
        }
        InlineReference::Owner { .. }
        | InlineReference::TreeBlock { .. }
        | InlineReference::SharedBlock { .. } => Ok(0),
    }
}

/// Returns the leaves of a tree with the items that a keyed reference counts.
///
/// The reference's offset is the file offset of the extent's first byte. The items of a keyed
/// reference lie between this offset and the extent's length above it. The computed file offset
/// wraps below zero if a file begins in the middle of an extent. Other references count the items
/// in leaves of another owner, and in leaves with `full` back references.
fn leaves_in_tree(
    filesystem: &Filesystem,
    tree: &Tree,
    extent: &Extent,
    reference: &ExtentDataReference,
    wanted: Wanted,
    full: &BTreeSet<Logical>,
    leaves: &mut Leaves,
) -> Result<usize> {
    let object_id = reference.inode.object_id();
    let begins_before_file = reference.offset > u64::MAX / 2;
    let start = if begins_before_file { 0 } else { reference.offset };
    let last_key = Key::new(object_id, ItemType::EXTENT_DATA, u64::MAX);
    let (mut found, mut added) = (0_u32, 0_usize);
    let sector_bytes = filesystem.sector_bytes();
    // A compressed extent is longer in memory than on disk, up to a limit.
    let reach = extent
        .item
        .length
        .get()
        .max(buttress_fs::extents::COMPRESSED_EXTENT_LIMIT.get());
    for item in tree.range(
        Key::new(object_id, ItemType::EXTENT_DATA, start)..=last_key,
        ReadAhead::Forward,
    ) {
        let item = item?;
        let key = item.key();
        if key.offset.wrapping_sub(reference.offset) >= reach {
            break;
        }
        let Ok(file_extent) = FileExtent::parse(&key, item.data(), sector_bytes) else {
            continue;
        };
        let (FileExtentBody::Regular(slice) | FileExtentBody::Preallocated(slice)) = file_extent.body else {
            continue;
        };
        if slice.disk != wanted.extent || key.offset.wrapping_sub(slice.offset.get()) != reference.offset {
            continue;
        }
        let leaf = item.leaf().header();
        if leaf.owner != reference.root || full.contains(&leaf.logical) {
            continue;
        }
        found = found.exact_add(1);
        let places = leaves.entry(leaf.logical).or_default();
        if let Some(offset) = wanted.offset_in(&key, &file_extent) {
            let place = (reference.inode, offset);
            if !places.contains(&place) {
                places.push(place);
                added = added.exact_add(1);
            }
        }
        if found >= reference.count {
            break;
        }
    }
    if found == 0 {
        Err(dangling(extent, reference))
    } else {
        Ok(added)
    }
}

fn dangling(extent: &Extent, reference: &ExtentDataReference) -> Error {
    Corruption::BackReferenceDangling {
        logical: extent.item.start,
        reference: format!(
            "tree {} inode {} offset {} count {}",
            reference.root, reference.inode, reference.offset, reference.count
        ),
    }
    .into()
}
