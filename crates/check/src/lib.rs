//! Check: verifies every cross-reference of a volume, read-only.
//!
//! [`check`] reads an open volume completely and reports its errors as [`Finding`]s. Each has a
//! code that never changes, a [`Level`], a [`Grade`] and the affected files. [`Note`]s report
//! states that are no damage. All reads come from the devices, not from a cache.
//!
//! # How
//!
//! 1. Superblocks, root items, chunks, device extents and block groups are few: each is compared
//!    with its counterparts directly.
//! 2. Extent tree, free-space tree and checksum tree are merged by address, one block group after
//!    another.
//! 3. All trees are walked, every block once, in order of address, on all cores.
//!
//! Related facts can be far apart in the walks of a check: an extent and its users, a name and its
//! inode. The check compares related facts by sums of hashes that cancel out if both sides agree.
//! It keeps the facts of neither side in memory. Only if a sum is not zero does the check collect
//! the facts themselves: the references of the affected addresses, or the items of the affected
//! subvolume. A valid volume is therefore read once, at any size and with any number of snapshots,
//! and a damaged one about twice.
//!
//! | module | holds |
//! |---|---|
//! | [`finding`], [`report`] | findings, and the report |
//! | `log` | the pending log |
//! | `superblocks`, `roots`, `chunks` | step 1 |
//! | `extents`, `free_space`, `coverage` | step 2 |
//! | `block_scan`, `segments`, `owners`, `item_types`, `facts`, `checksum_need` | step 3 |
//! | `recount`, `files` | the search behind sums that are not zero |
//! | `data` | data against checksums |
//! | `root_references`, `quotas` | places of subvolumes, uuids; quota groups |
//! | `fingerprint`, `neighbourhoods`, `runs`, `threads`, `names`, `affected` | tools |
//!
//! # Bounds
//!
//! Besides the cache's budget, a check needs one bit for each sector of tree blocks. A check also
//! needs some 100 bytes for each tree block with several references, and 8 bytes for each pointer
//! to such a block. Each core holds the free and the covered ranges of one block group.
//!
//! # Not checked
//!
//! A check skips the content of the v1 space cache, and the parity of RAID5 and RAID6, which scrub
//! checks. Of RAID stripe and remap trees it checks only the structure of their blocks.
#![forbid(unsafe_code)]
#![cfg_attr(
    test,
    allow(clippy::arithmetic_side_effects, reason = "tests compute with known numbers")
)]

mod affected;
mod block_scan;
mod checksum_need;
mod chunks;
mod context;
mod coverage;
mod data;
mod extents;
mod facts;
mod files;
pub mod finding;
mod fingerprint;
mod free_space;
mod item_types;
mod log;
mod names;
mod neighbourhoods;
mod owners;
mod quotas;
mod recount;
pub mod report;
mod root_references;
mod roots;
mod rules;
mod runs;
mod segments;
mod superblocks;
mod threads;

pub use finding::{Finding, Grade, Level, Reference, Subject, Value};
pub use report::{Note, Report, Reported, Step, Totals};

use crate::block_scan::BlockScan;
use crate::context::Check;
use crate::extents::Extents;
use crate::quotas::Mode;
use crate::roots::Root;
use buttress_format::{
    BlockGroupFlags, ByteCount, CompatRo, Generation, ItemType, Key, ObjectId, SubvolumeId, TreeId,
};
use buttress_fs::{Filesystem, Progress, Result};
use buttress_volume::FaultReason;

/// Options of a check.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Whether all data is read and compared with its checksums, in every copy.
    pub data_checksums: bool,
    /// The budget of the check's own cache.
    pub cache: ByteCount,
    /// The most findings that are kept; all are counted.
    pub findings_max: usize,
    /// The most paths that are looked up for a finding.
    pub affected_max: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            data_checksums: false,
            cache: ByteCount::new(64 << 20),
            findings_max: 10_000,
            affected_max: 10,
        }
    }
}

/// Checks a volume.
///
/// # Errors
/// Fails with [`buttress_fs::Error::Cancelled`]. The report has the errors of the volume.
pub fn check(filesystem: &Filesystem, options: &Options, progress: &Progress) -> Result<Report> {
    check_with(filesystem, options, progress, &|_, _| {})
}

/// Checks a volume as [`check`] does, and calls `on_step` when a step begins. If a step of the
/// check does not apply to the volume, the call of `on_step` has the reason.
///
/// # Errors
/// Fails as [`check`] does.
pub fn check_with(
    filesystem: &Filesystem,
    options: &Options,
    progress: &Progress,
    on_step: &(dyn Fn(Step, Option<&'static str>) + Sync),
) -> Result<Report> {
    let check = Check::new(filesystem, options, progress, on_step);
    let log = log::read(&check)?;
    check.begin(Step::Roots);
    let items = superblocks::read_chunk_tree(&check)?;
    superblocks::check(&check, &items);
    let roots = roots::gather(&check)?;
    check.begin(Step::Extents);
    let groups = chunks::groups(&check, &roots, &items)?;
    chunks::check_devices(&check, &roots, &items)?;
    if let Some(log) = &log {
        log.check_places(&check, &groups, &roots);
        log.check_checksums(&check, &roots)?;
    }
    progress.expect(bytes_to_read(&groups, options.data_checksums));
    let mode = quotas::mode(&check, &roots);
    let (extents, scan) = read_all(&check, &roots, &groups, mode, log.as_ref())?;
    note_copies(&check);
    check.begin(Step::FreeSpace);
    note_free_space(&check, &roots);
    check.begin(Step::Files);
    check_files(&check, &roots, &scan)?;
    check.begin(Step::Checksums);
    let verified = if options.data_checksums {
        data::check(&check, &roots)?
    } else {
        0
    };
    check.begin(Step::RootReferences);
    root_references::check(&check, &roots)?;
    check.begin(Step::Quotas);
    if scan.complete && extents.complete {
        quotas::check(&check, &roots, mode, &scan, &extents.sums.owned)?;
    }
    let totals = totals(&extents, &scan, verified);
    let mut report = check.into_collector().finish(totals);
    affected::fill(filesystem, &mut report, options.affected_max, progress)?;
    Ok(report)
}

/// Makes the two walks over all trees, and the third if their sums differ.
fn read_all(
    check: &Check<'_>,
    roots: &[Root],
    groups: &[chunks::Group],
    mode: Mode,
    log: Option<&log::Log>,
) -> Result<(Extents, BlockScan)> {
    let counted_from = match mode {
        Mode::Simple(generation) => Some(generation),
        Mode::None | Mode::Classic => None,
    };
    let extents = extents::read(check, roots, groups, counted_from, log)?;
    let scan = block_scan::run(
        check,
        roots,
        &extents,
        counted_from.map(Generation::get),
        mode == Mode::Classic,
    )?;
    let references = scan.counts.references;
    recount::run(check, roots, &extents, log, references, scan.complete)?;
    Ok((extents, scan))
}

/// Returns the bytes to be read, from the counts of block groups: all tree blocks and, if
/// requested, all data.
fn bytes_to_read(groups: &[chunks::Group], with_data: bool) -> ByteCount {
    let is_read = |group: &&chunks::Group| with_data || group.flags.intersects(TREE_GROUPS);
    let used = groups
        .iter()
        .filter(is_read)
        .map(|group| ByteCount::new(group.used));
    used.fold(ByteCount::ZERO, ByteCount::saturating_add)
}

/// The flags of block groups with tree blocks.
const TREE_GROUPS: BlockGroupFlags = BlockGroupFlags::METADATA.union(BlockGroupFlags::SYSTEM);

/// Reports bad copies of tree blocks that reads passed over.
fn note_copies(check: &Check<'_>) {
    for fault in check.volume().faults().faults {
        // Missing devices and blocks without a valid copy have other findings.
        if matches!(fault.reason, FaultReason::Missing) || check.is_lost(fault.logical) {
            continue;
        }
        check.find(Finding::CopyDamaged {
            logical: fault.logical,
            device: fault.device,
            physical: fault.physical,
            reason: fault.reason.to_string(),
        });
    }
}

/// Notes the form of the free space records, unless the check compared a free-space tree.
fn note_free_space(check: &Check<'_>, roots: &[Root]) {
    let superblock = check.superblock();
    let has = |feature| superblock.compat_ro.contains(feature);
    if has(CompatRo::FREE_SPACE_TREE) && !has(CompatRo::FREE_SPACE_TREE_VALID) {
        check.note(Note::FreeSpaceTreeInvalid);
    }
    let first = Key::new(ObjectId::FREE_SPACE, ItemType(0), 0);
    let last = Key::new(ObjectId::FREE_SPACE, ItemType(0), u64::MAX);
    let root_tree = check.tree(TreeId::ROOT, roots);
    let has_files = root_tree.is_some_and(|tree| {
        let mut headers = tree.range(first..=last, buttress_tree::ReadAhead::None);
        matches!(headers.next(), Some(Ok(_)))
    });
    if has_files {
        let in_use = superblock.cache_generation == superblock.generation && !has(CompatRo::FREE_SPACE_TREE);
        check.note(if in_use {
            Note::FreeSpaceCacheV1
        } else {
            Note::FreeSpaceCacheStale
        });
    }
}

/// Checks subvolumes whose sums of facts are not zero item by item.
fn check_files(check: &Check<'_>, roots: &[Root], scan: &BlockScan) -> Result<()> {
    for (tree, count) in &scan.counts.orphans {
        if let Some(subvolume) = tree.as_subvolume() {
            let count = *count;
            check.note(Note::Orphans { subvolume, count });
        }
    }
    let totals = scan.segments.totals();
    for (index, root) in roots.iter().enumerate() {
        check.progress.check()?;
        if root.dead {
            continue;
        }
        check_root_inode(check, root);
        if !root.id().holds_files() {
            continue;
        }
        let tree = check.forest.tree(root.pointer);
        let subvolume = SubvolumeId::new(root.id().get());
        match totals.as_ref().map(|totals| totals.get(index).copied()) {
            // The sums by subvolume were not kept, so the check walks each subvolume.
            None => files::check_each(check, &tree, subvolume, None)?,
            Some(Some(Some(0))) => {}
            Some(Some(Some(sum))) => files::check_each(check, &tree, subvolume, Some(sum))?,
            Some(_) => check.note(Note::NotChecked {
                what: format!("names and links of subvolume {subvolume}, which has unreadable blocks"),
            }),
        }
    }
    Ok(())
}

/// Checks that a tree has a root directory: subvolumes, the data relocation tree, and trees that
/// mirror subvolumes have one.
fn check_root_inode(check: &Check<'_>, root: &Root) {
    let top = Key::new(ObjectId::FIRST_FREE, ItemType::INODE_ITEM, 0);
    let tree = root.id();
    let is_expected = tree.holds_files() || root.is_relocation();
    if !is_expected || !matches!(check.forest.tree(root.pointer).get(&top), Ok(None)) {
        return;
    }
    check.find(match tree.as_subvolume() {
        Some(subvolume) => Finding::RootDirectoryMissing { subvolume },
        None => Finding::RootInodeMissing {
            tree,
            mirrored: TreeId::new(root.key_offset),
        },
    });
}

fn totals(extents: &Extents, scan: &BlockScan, verified: u64) -> Totals {
    let (sums, counts) = (&extents.sums, &scan.counts);
    Totals {
        bytes_used: ByteCount::new(sums.used),
        checksum_bytes: ByteCount::new(sums.checksums),
        tree_bytes: ByteCount::new(counts.tree_bytes),
        file_tree_bytes: ByteCount::new(counts.file_tree_bytes),
        extent_tree_bytes: ByteCount::new(counts.extent_tree_bytes),
        tree_waste_bytes: ByteCount::new(counts.waste_bytes),
        data_bytes: ByteCount::new(sums.data),
        referenced_bytes: ByteCount::new(counts.referenced_bytes),
        verified_bytes: ByteCount::new(verified),
    }
}
