//! The visitor of leaves: which extents files refer to, how much of them, and their compression.
//!
//! Each leaf is visited once, with the set of all owners that reach it, and its items count for
//! each of them. An inode that is counted separately ([`super::Parts`]), or that has no name, has
//! other owners than the leaf that holds its items.
//!
//! A file with several names is several files for callers that count by path: it counts once more
//! for each further name ([`Counted::further`]). If a file with several names continues in the next
//! leaf, that leaf does not show its number of names, so a lookup at the end finds the rest
//! ([`Split`]). A symlink whose target is in the next leaf is looked up too, since a target is no
//! file content.

use super::descent::{Failures, RECORDS_AT_ONCE, Visitor};
use super::figures::{ContentKind, Files, Occupied, References, Sum};
use super::gather::{Gatherer, Record};
use super::owners::{OwnerIndex, Owners};
use super::parts::Parts;
use super::sets::{SetId, Sets};
use super::{FailuresLock, SetsLock};
use buttress_exact::{Exact as _, u64_of};
use buttress_format::{
    ByteCount, FileExtent, FileExtentBody, FileKind, InodeItem, InodeNumber, Item, ItemType, Key, TreeBlock,
    TreeId,
};
use buttress_fs::error::{Corruption, Error, Result};
use buttress_locks::Mutex;
use std::collections::HashMap;

/// The most files with several names that may continue in another leaf.
const SPLIT_FILES_MAX: usize = 1 << 20;

/// An extent, and the references to it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Extent {
    pub(super) logical: u64,
    pub(super) disk_bytes: u64,
    ram_bytes: u64,
    inode: u64,
    offset: u64,
    pub(super) set: SetId,
    kind: ContentKind,
    /// Whether several inodes with different numbers refer to the extent.
    pub(super) several_inodes: bool,
}

impl Record for Extent {
    fn address(&self) -> u64 {
        self.logical
    }

    /// The first reference to an extent decides its kind of content.
    fn rank(&self) -> (u64, u64) {
        (self.inode, self.offset)
    }

    fn set(&self) -> SetId {
        self.set
    }

    fn absorb(&mut self, other: &Self) {
        self.several_inodes |= other.several_inodes || self.inode != other.inode;
    }

    fn with_set(self, set: SetId) -> Self {
        Self { set, ..self }
    }

    fn same(&self, _: &Self) -> bool {
        true
    }
}

/// The sums of an account.
#[derive(Debug, Default)]
pub(super) struct Counted {
    /// Space by the sets of owners of data extents and of tree blocks.
    pub(super) occupied: HashMap<SetId, Occupied>,
    /// Files by the owners of leaves.
    pub(super) files: HashMap<SetId, Files>,
    /// Files by the owners of leaves, counted once more for each further name.
    pub(super) further: HashMap<SetId, Files>,
    /// Figures in `files` that belong to no file.
    pub(super) excess: HashMap<SetId, Files>,
}

/// An inode whose items may continue in another leaf, which does not show the inode's file type.
#[derive(Clone, Copy, Debug)]
pub(super) struct Split {
    /// The owners of the inode.
    pub(super) set: SetId,
    /// The last visited key.
    pub(super) after: Key,
    /// The number of the inode's names besides the first; `None` for a symlink.
    pub(super) further_names: Option<u64>,
}

/// The sums of one thread.
pub(super) struct Tally {
    extents: Vec<Extent>,
    files: HashMap<SetId, Files>,
    further: HashMap<SetId, Files>,
    split: Vec<Split>,
    failure: Option<Error>,
}

/// The visitor of leaves.
pub(super) struct Leaves<'a> {
    pub(super) sets: &'a Mutex<Sets, SetsLock>,
    pub(super) owners: &'a Owners,
    /// The subvolume with files that are counted separately.
    pub(super) detail: Option<(OwnerIndex, &'a Parts)>,
    pub(super) extents: &'a Gatherer<'a, Extent>,
    pub(super) sector_bytes: u32,
    /// Errors of items that cannot be parsed, reported once.
    pub(super) failures: &'a Mutex<Failures, FailuresLock>,
    /// True if the account counts further names of files.
    pub(super) with_names: bool,
    /// Whether only extents are counted, as on repeated passes over all leaves.
    pub(super) only_extents: bool,
    pub(super) counted: Counted,
    pub(super) split: Vec<Split>,
}

/// The inode of the current items.
struct Current {
    inode: InodeNumber,
    set: SetId,
    is_symlink: bool,
    further: Further,
}

/// The sets for which an inode counts additional times, and how many.
type Further = smallvec::SmallVec<[(SetId, u64); 2]>;

impl Visitor for Leaves<'_> {
    type Tally = Tally;

    fn begin(&self) -> Tally {
        Tally {
            extents: Vec::with_capacity(RECORDS_AT_ONCE),
            files: HashMap::new(),
            further: HashMap::new(),
            split: Vec::new(),
            failure: None,
        }
    }

    fn leaf(&self, tally: &mut Tally, tree: TreeId, block: &TreeBlock, set: SetId) {
        if tally.failure.is_none()
            && let Err(error) = self.look_at(tally, tree, block, set)
        {
            tally.failure = Some(error);
        }
    }

    fn counted(&mut self, set: SetId, bytes: ByteCount) {
        if !self.only_extents {
            let occupied = self.counted.occupied.entry(set).or_default();
            occupied.metadata = occupied.metadata.exact_add(bytes);
        }
    }

    fn end(&mut self, mut tally: Tally) -> Result<()> {
        if let Some(error) = tally.failure {
            return Err(error);
        }
        self.extents.add(&mut tally.extents);
        if self.only_extents {
            return Ok(());
        }
        add_all(&mut self.counted.files, &tally.files);
        add_all(&mut self.counted.further, &tally.further);
        self.split.append(&mut tally.split);
        if self.split.len() > SPLIT_FILES_MAX {
            return Err(Error::AccountingTooBig {
                what: "files with several names that lie in more than one leaf",
                limit: u64_of(SPLIT_FILES_MAX),
            });
        }
        Ok(())
    }
}

fn add_all(sums: &mut HashMap<SetId, Files>, more: &HashMap<SetId, Files>) {
    for (set, files) in more {
        sums.entry(*set).or_default().add(files, 1);
    }
}

impl Leaves<'_> {
    fn look_at(&self, tally: &mut Tally, tree: TreeId, block: &TreeBlock, set: SetId) -> Result<()> {
        let is_special = !self.owners.unlinked.is_empty()
            || self
                .detail
                .is_some_and(|(owner, _)| self.sets.lock().contains(set, owner));
        let mut files = Files::default();
        let mut current: Option<Current> = None;
        for item in block.items() {
            if !matches!(item.key.item_type, ItemType::INODE_ITEM | ItemType::EXTENT_DATA) {
                continue;
            }
            let inode = InodeNumber::new(item.key.objectid.get());
            let known = match current.take() {
                Some(known) if known.inode == inode => known,
                previous => {
                    let next = self.inode(inode, set, is_special)?;
                    if let Some(previous) = previous
                        && previous.set != next.set
                    {
                        put(&mut tally.files, previous.set, &mut files);
                    }
                    next
                }
            };
            let known = current.insert(known);
            if item.key.item_type == ItemType::INODE_ITEM {
                self.inode_item(tally, known, &item, set, &mut files)?;
            } else if !known.is_symlink {
                match FileExtent::parse(&item.key, item.data, self.sector_bytes) {
                    Ok(extent) => self.extent_item(tally, known, &item, &extent, &mut files),
                    Err(_) if self.only_extents => {}
                    Err(error) => self.failures.lock().add(Corruption::Item { tree, error }.into()),
                }
            }
        }
        let Some(last) = current else { return Ok(()) };
        put(&mut tally.files, last.set, &mut files);
        self.remember_split(tally, block, &last);
        Ok(())
    }

    /// Returns the owners of an inode in a leaf that the owners of `set` reach.
    fn inode(&self, inode: InodeNumber, set: SetId, is_special: bool) -> Result<Current> {
        let mut current = Current {
            inode,
            set,
            is_symlink: false,
            further: Further::new(),
        };
        if !is_special {
            return Ok(current);
        }
        let mut sets = self.sets.lock();
        for (owner, unlinked) in self.owners.unlinked.get(&inode).into_iter().flatten() {
            if sets.contains(current.set, *owner) {
                current.set = sets.replaced(current.set, *owner, &[*unlinked])?;
            }
        }
        if let Some((owner, parts)) = self.detail
            && sets.contains(set, owner)
        {
            let mut owners = Vec::new();
            for member in parts.members_of(inode) {
                let part = member.part.narrow::<usize>();
                let Some(part) = self.owners.parts.get(part) else {
                    continue;
                };
                owners.push(*part);
                let further = u64::from(member.names.exact_sub(1));
                if further > 0 {
                    current.further.push((sets.of_one(*part)?, further));
                }
            }
            if !owners.is_empty() {
                current.set = sets.replaced(current.set, owner, &owners)?;
            }
        }
        Ok(current)
    }

    fn inode_item(
        &self,
        tally: &mut Tally,
        current: &mut Current,
        item: &Item<'_>,
        leaf_set: SetId,
        files: &mut Files,
    ) -> Result<()> {
        let Ok(parsed) = InodeItem::parse(&item.key, item.data) else {
            return Ok(());
        };
        let kind = FileKind::from_mode(parsed.mode);
        current.is_symlink = kind == Some(FileKind::Symlink);
        if kind != Some(FileKind::Regular) {
            return Ok(());
        }
        files.count = files.count.exact_add(1);
        if parsed.nlink > 1 {
            let mut sets = self.sets.lock();
            // Files that are counted separately have the names of their parts.
            let others = match self.detail {
                Some((owner, _)) if sets.contains(leaf_set, owner) => sets.replaced(leaf_set, owner, &[])?,
                _ => leaf_set,
            };
            // Clamp: the number of links comes from disk.
            let further = u64::from(parsed.nlink).saturating_sub(1);
            current.further.push((others, further));
        }
        if self.with_names && !self.only_extents {
            for (set, times) in &current.further {
                let further = tally.further.entry(*set).or_default();
                further.count = further.count.exact_add(*times);
            }
        }
        Ok(())
    }

    fn extent_item(
        &self,
        tally: &mut Tally,
        current: &Current,
        item: &Item<'_>,
        extent: &FileExtent<'_>,
        files: &mut Files,
    ) {
        let Some((kind, references)) = references_of(extent, item.data.len()) else {
            return;
        };
        if !self.only_extents {
            files.references.of_mut(kind).add(&references, 1);
            if self.with_names {
                for (set, times) in &current.further {
                    let further = tally.further.entry(*set).or_default();
                    further.references.of_mut(kind).add(&references, *times);
                }
            }
        }
        if let Some(slice) = extent.slice()
            && self.extents.wants(slice.disk.get())
        {
            tally.extents.push(Extent {
                logical: slice.disk.get(),
                disk_bytes: slice.disk_bytes.get(),
                ram_bytes: extent.ram_bytes.get(),
                inode: current.inode.get(),
                offset: item.key.offset,
                set: current.set,
                kind,
                several_inodes: false,
            });
            if tally.extents.len() >= RECORDS_AT_ONCE {
                self.extents.add(&mut tally.extents);
            }
        }
    }

    fn remember_split(&self, tally: &mut Tally, block: &TreeBlock, last: &Current) {
        let last_key = block.item_count().checked_sub(1).and_then(|slot| block.key(slot));
        let Some(after) = last_key else { return };
        if self.only_extents || after.objectid != last.inode.object_id() {
            return;
        }
        if last.is_symlink && after.item_type < ItemType::EXTENT_DATA {
            tally.split.push(Split {
                set: last.set,
                after,
                further_names: None,
            });
        }
        if !self.with_names {
            return;
        }
        let is_part = |set: SetId| {
            let sets = self.sets.lock();
            self.owners.parts.iter().any(|part| sets.contains(set, *part))
        };
        // Every file tree leaf contributes the number of its names in counted parts.
        for (set, further_names) in &last.further {
            if !is_part(*set) {
                tally.split.push(Split {
                    set: *set,
                    after,
                    further_names: Some(*further_names),
                });
            }
        }
    }
}

/// Adds the leaf's figures to the totals of its owner set, and resets them.
fn put(sums: &mut HashMap<SetId, Files>, set: SetId, files: &mut Files) {
    sums.entry(set).or_default().add(files, 1);
    *files = Files::default();
}

/// Returns the figures of a file extent item; `None` for a hole. `item_bytes` is the length of the
/// item.
pub(super) fn references_of(extent: &FileExtent<'_>, item_bytes: usize) -> Option<(ContentKind, References)> {
    let written = ContentKind::of(extent.compression);
    let of_slice = |bytes: ByteCount| References {
        count: 1,
        bytes,
        ..References::default()
    };
    match &extent.body {
        FileExtentBody::Inline(_) => {
            let stored = item_bytes.exact_sub(FileExtent::INLINE_HEAD_BYTES);
            let inline = References {
                inline_count: 1,
                inline_stored: ByteCount::of(stored),
                inline_bytes: extent.ram_bytes,
                ..References::default()
            };
            Some((written, inline))
        }
        FileExtentBody::Regular(slice) | FileExtentBody::Preallocated(slice) if slice.is_hole() => None,
        FileExtentBody::Regular(slice) => Some((written, of_slice(slice.num_bytes))),
        FileExtentBody::Preallocated(slice) => Some((ContentKind::Preallocated, of_slice(slice.num_bytes))),
    }
}

impl Extent {
    /// Returns the space that the extent takes, as figures of its owners.
    pub(super) fn occupied(&self) -> Occupied {
        let mut occupied = Occupied::default();
        let extents = occupied.extents.of_mut(self.kind);
        extents.count = 1;
        extents.disk = ByteCount::new(self.disk_bytes);
        extents.uncompressed = ByteCount::new(self.ram_bytes);
        occupied
    }
}
