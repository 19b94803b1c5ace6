//! Owners of space: the bytes of every subvolume, snapshot and directory, without quotas.
//!
//! An *owner* is a subvolume, or a part of one. Every data extent and every tree block of files has
//! a *set* of owners, whose roots reach it. All answers are sums over these sets:
//!
//! - on disk: the sum over the sets that contain the owner;
//! - exclusive, or freed when several owners are deleted together: the sets whose members are all
//!   among these owners;
//! - shared by two owners: the sets that contain both.
//!
//! # How the sets are found
//!
//! The descent reads the trees from the roots down, level by level, each block once for any number
//! of snapshots (`descent`). Equal sets have one number (`sets`). File tree leaves then name the
//! extents of their owners. An extent's set of owners is the union over all its references
//! (`leaves`, `gather`). The extent tree is not read: its content follows from the trees, and
//! `check` compares both.
//!
//! All owners that refer to any part of an extent own the whole extent. These owners also own a
//! part that is overwritten everywhere else, because no part of an extent is freed while a
//! reference exists.
//!
//! # Not counted
//!
//! The account covers the last commit. It excludes trees that no subvolume owns (extents,
//! checksums, free space, chunks), a pending log, and changes of a running transaction. Sizes are
//! of one copy, whatever the profile.
//!
//! # Bounds
//!
//! Memory: at most some 350 MiB for any volume, and about 60 MiB with a million extents. More
//! extents than [`EXTENTS_MAX`] need further passes over the leaves. If sets, nodes or names are
//! too many, [`Error::AccountingTooBig`] names them.

mod descent;
mod extents;
mod figures;
mod gather;
mod leaves;
mod owners;
mod parts;
pub(crate) mod places;
mod ranges;
mod sets;
mod sums;

use buttress_exact::{u64_of, usize_of};
use buttress_format::{FileExtent, ItemType, Key, SubvolumeId, TreeId};
use buttress_fs::error::{Error, Result};
use buttress_fs::filesystem::Filesystem;
use buttress_fs::progress::Progress;
use buttress_locks::{Mutex, Rank, lock_class};
use buttress_tree::{ReadAhead, RootPointer};
use descent::{Descent, Failures};
use figures::Sum;
use gather::Gatherer;
use leaves::{Counted, Extent, Leaves, Split};
use owners::Owners;
use sets::{SetId, Sets, members};
use std::collections::HashMap;
use std::sync::Arc;

pub use extents::{ExtentTable, Owned};
pub use figures::{ByKind, ContentKind, Extents, Files, Occupied, References};
pub use owners::{Owner, OwnerIndex, Share};
pub use parts::Parts;
pub use places::{Nesting, Place};
pub use sums::{Group, OwnerSpace, Scope};

lock_class!(SetsLock, "sets", Rank::LEAF);
lock_class!(FailuresLock, "failures", Rank::LEAF);

/// The most extents in memory at once.
pub const EXTENTS_MAX: usize = 3 << 19;

/// Options of an account.
#[derive(Clone, Debug)]
pub struct Options {
    /// Files of one subvolume that the account counts separately.
    pub parts: Option<Parts>,
    /// Whether a file with several names also counts once for each name, see
    /// [`Accounting::named_files`].
    pub names: bool,
    /// Whether the account keeps single extents, see [`Accounting::extents`]. At most
    /// [`EXTENTS_MAX`] extents are then possible.
    pub keep_extents: bool,
    /// The most extents in memory at once; [`EXTENTS_MAX`] is the maximum and the default.
    pub extents_max: usize,
    /// The most leaves in memory at once.
    pub leaves_max: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            parts: None,
            names: false,
            keep_extents: false,
            extents_max: EXTENTS_MAX,
            leaves_max: descent::LEAVES_MAX,
        }
    }
}

/// The account of a volume's owners. For the method of accounting, see the module's documentation.
#[derive(Debug)]
pub struct Accounting {
    owners: Vec<Owner>,
    sets: Vec<Arc<[sets::Run]>>,
    counted: Counted,
    extents: Option<ExtentTable>,
    failures: Vec<Error>,
    failure_count: u64,
}

/// Counts which owner uses which space, as of the last commit.
///
/// `progress` receives the number of leaves that have been read. The result lists unreadable parts
/// in [`Accounting::failures`]. Blocks below unreadable parts are missing from all figures.
///
/// # Errors
/// Fails with [`Error::AccountingTooBig`], [`Error::Cancelled`], [`Error::SubvolumeNotFound`] for
/// parts of a missing subvolume, or with an error of reading the root tree.
pub(crate) fn account_space(
    filesystem: &Filesystem,
    options: &Options,
    progress: &Progress,
) -> Result<Accounting> {
    let mut owners = Owners::gather(filesystem, progress)?;
    owners.find_unlinked(filesystem, progress)?;
    let detail = match &options.parts {
        Some(parts) => {
            let subvolume = parts.subvolume();
            let root = owners.whole(subvolume);
            let whole = root.ok_or(Error::SubvolumeNotFound { subvolume })?.owner;
            owners.add_parts(parts)?;
            Some((whole, parts))
        }
        None => None,
    };
    let sets = Mutex::new(Sets::new(sets::SETS_BYTES_MAX));
    let failures = Mutex::new(Failures::default());
    let descent = Descent {
        filesystem,
        roots: &owners.roots,
        sets: &sets,
        progress,
        failures: &failures,
        leaves_max: options.leaves_max.clamp(2, descent::LEAVES_MAX),
        is_first: true,
    };
    let (counted, split, extents) = passes(descent, &owners, detail, options)?;
    let mut accounting = Accounting {
        owners: Vec::new(),
        sets: Vec::new(),
        counted,
        extents: None,
        failures: Vec::new(),
        failure_count: 0,
    };
    accounting.look_up(filesystem, &owners, &sets, &split, progress)?;
    let sets = sets.into_inner();
    if options.keep_extents {
        accounting.extents = Some(ExtentTable::new(extents, &sets, &owners.list));
    }
    accounting.sets = sets.into_list();
    accounting.owners = owners.list;
    let failures = failures.into_inner();
    accounting.failures = failures.list;
    accounting.failure_count = failures.count;
    Ok(accounting)
}

/// Makes as many passes over all file tree leaves as needed. Returns the counts, and each single
/// extent if the options request them.
fn passes(
    mut descent: Descent<'_>,
    owners: &Owners,
    detail: Option<(OwnerIndex, &Parts)>,
    options: &Options,
) -> Result<(Counted, Vec<Split>, Vec<Extent>)> {
    let (mut counted, mut split) = (Counted::default(), Vec::new());
    let mut start = 0;
    loop {
        let limit = options.extents_max.clamp(2, EXTENTS_MAX);
        // A hole's file extent item has address zero, at which no extent begins.
        let gatherer = Gatherer::new(descent.sets, start, limit);
        let mut leaves = Leaves {
            sets: descent.sets,
            owners,
            detail,
            extents: &gatherer,
            sector_bytes: descent.filesystem.sector_bytes(),
            failures: descent.failures,
            with_names: options.names,
            only_extents: !descent.is_first,
            counted,
            split,
        };
        descent.run(&mut leaves)?;
        (counted, split) = (leaves.counted, leaves.split);
        let (extents, end) = gatherer.finish()?;
        for extent in &extents {
            let occupied = counted.occupied.entry(extent.set).or_default();
            occupied.add(&extent.occupied(), 1);
        }
        if end == u64::MAX {
            return Ok((counted, split, extents));
        }
        if options.keep_extents {
            return Err(Error::AccountingTooBig {
                what: "data extents, one by one",
                limit: u64_of(limit),
            });
        }
        start = end;
        descent.is_first = false;
    }
}

impl Owners {
    /// Adds an owner for each part.
    fn add_parts(&mut self, parts: &Parts) -> Result<()> {
        for part in 0..parts.count() {
            let owner = self.add(Owner {
                tree: parts.subvolume().tree(),
                share: Share::Part(part),
                deleted: false,
            })?;
            self.parts.push(owner);
        }
        Ok(())
    }
}

impl Accounting {
    /// Looks up the rest of inodes that continue in leaves without the inode item, and so without
    /// the file type.
    fn look_up(
        &mut self,
        filesystem: &Filesystem,
        owners: &Owners,
        sets: &Mutex<Sets, SetsLock>,
        split: &[Split],
        progress: &Progress,
    ) -> Result<()> {
        let pointers = owners.roots.iter().map(|root| (root.pointer.tree, root.pointer));
        let pointers: HashMap<TreeId, RootPointer> = pointers.collect();
        for one in split {
            let of: Vec<OwnerIndex> = members(sets.lock().runs(one.set)).collect();
            for owner in of {
                progress.check()?;
                let index = usize_of(owner);
                let known = owners.list.get(index).filter(|owner| !owner.deleted);
                let Some(pointer) = known.and_then(|owner| pointers.get(&owner.tree)) else {
                    continue;
                };
                let tree = filesystem.forest().tree(*pointer);
                let rest = rest_of_inode(&tree, one.after, filesystem.sector_bytes());
                let set: SetId = sets.lock().of_one(owner)?;
                let (sums, times) = match one.further_names {
                    Some(names) => (&mut self.counted.further, names),
                    None => (&mut self.counted.excess, 1),
                };
                sums.entry(set).or_default().add(&rest, times);
            }
        }
        Ok(())
    }

    /// Returns all owners; their positions are their [`OwnerIndex`]es.
    #[must_use]
    pub fn owners(&self) -> &[Owner] {
        &self.owners
    }

    /// Returns the single extents, if the options keep them.
    #[must_use]
    pub const fn extents(&self) -> Option<&ExtentTable> {
        self.extents.as_ref()
    }

    /// Returns errors of unreadable parts, up to a limit. If there are no such errors, the figures
    /// are complete.
    #[must_use]
    pub fn failures(&self) -> &[Error] {
        &self.failures
    }

    /// Returns the number of unreadable parts.
    #[must_use]
    pub const fn failure_count(&self) -> u64 {
        self.failure_count
    }

    /// Returns the scope that consists of all owners of a subvolume.
    #[must_use]
    pub fn subvolumes(&self, wanted: &[SubvolumeId]) -> Scope {
        self.scope(|owner| owner.subvolume().is_some_and(|id| wanted.contains(&id)))
    }
}

/// Returns the content items of an inode after a key, as far as they can be read. The descent
/// already reported errors of these blocks.
fn rest_of_inode(tree: &buttress_tree::Tree, after: Key, sector_bytes: u32) -> Files {
    let last = Key::new(after.objectid, ItemType::EXTENT_DATA, u64::MAX);
    let mut files = Files::default();
    let behind = (std::ops::Bound::Excluded(after), std::ops::Bound::Included(last));
    for item in tree.range(behind, ReadAhead::Forward) {
        let Ok(item) = item else { break };
        if item.key().item_type != ItemType::EXTENT_DATA {
            continue;
        }
        if let Ok(extent) = FileExtent::parse(&item.key(), item.data(), sector_bytes)
            && let Some((kind, references)) = leaves::references_of(&extent, item.data().len())
        {
            files.references.of_mut(kind).add(&references, 1);
        }
    }
    files
}
