//! Compares single references in ranges of addresses whose sums differ, and finds recorded
//! references that do not exist, and existing ones that are not recorded.
//!
//! The recount reads the extent tree and all other trees again, and keeps only references to these
//! ranges. Memory is bounded: the recount inspects ranges with about [`REFERENCES_MAX`] references
//! in all, and reports the rest only as differing.

use crate::block_scan::{child_reference, data_reference, is_gone, refers_to_data, root_reference};
use crate::context::Check;
use crate::extents::{Extents, recorded};
use crate::finding::{Finding, Reference};
use crate::log::Log;
use crate::roots::{Dropped, Root};
use buttress_exact::Exact as _;
use buttress_format::{
    ByteCount, ExtentItem, FileExtent, InlineReference, ItemType, Key, Logical, TreeBlock, TreeId,
    parse_keyed_references,
};
use buttress_fs::Result;
use buttress_tree::{BlockPointer, Error, ReadAhead, Scanner, Sectors};
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap, HashSet};

/// The largest number of references that the recount keeps at once.
const REFERENCES_MAX: u64 = 400_000;

/// The counted and recorded facts about one address.
#[derive(Debug, Default)]
struct Target {
    /// Length, level and generation in the extent item.
    item: Option<(ByteCount, Option<u8>, u64)>,
    /// Level and generation of the tree block, and whether it was reached through an ordinary tree.
    /// In trees that are being dropped and in relocation trees, an extent item may be older than
    /// the block.
    block: Option<(u8, u64, bool)>,
    /// The length in a file extent item, or of a tree block, if it differs from the extent item's.
    length: Option<ByteCount>,
    /// For each reference, how often it is recorded and how often it exists.
    references: BTreeMap<Reference, (u64, u64)>,
}

struct Recount<'a> {
    check: &'a Check<'a>,
    extents: &'a Extents,
    places: HashSet<usize>,
    targets: Mutex<HashMap<Logical, Target>>,
    seen: Sectors,
    /// Trees of deleted subvolumes that the cleaner is dropping.
    dead: HashSet<TreeId>,
}

/// Finds the references whose recorded and counted numbers differ. `whole` tells whether every tree
/// block was readable. A reference that was not found is missing only if every tree block was
/// readable.
pub(crate) fn run(
    check: &Check<'_>,
    roots: &[Root],
    extents: &Extents,
    log: Option<&Log>,
    references: u64,
    whole: bool,
) -> Result<()> {
    let mut places = extents.ledger.differing();
    if places.is_empty() {
        return Ok(());
    }
    let each = references
        .checked_div(extents.ledger.len())
        .unwrap_or(0)
        .saturating_add(1);
    let most = REFERENCES_MAX.checked_div(each).unwrap_or(1).narrow::<usize>();
    let kept = most.max(16);
    let rest = places.len().saturating_sub(kept);
    places.truncate(kept);
    let recount = Recount {
        check,
        extents,
        places: places.into_iter().collect(),
        targets: Mutex::default(),
        seen: Sectors::new(check.sector_bytes),
        dead: roots.iter().filter(|root| root.dead).map(Root::id).collect(),
    };
    recount.read_extents(roots)?;
    recount.read_trees(roots)?;
    let mut targets: Vec<(Logical, Target)> = recount.targets.into_inner().into_iter().collect();
    targets.sort_unstable_by_key(|(logical, _)| *logical);
    for (logical, target) in targets {
        compare(check, logical, &target, log, extents.complete, whole);
    }
    if rest > 0 {
        check.find(Finding::ReferencesDiffer {
            stretches: ByteCount::of(rest).get(),
        });
    }
    Ok(())
}

impl Recount<'_> {
    fn wants_address(&self, logical: Logical) -> bool {
        self.places.contains(&self.extents.ledger.place(logical))
    }

    fn with(&self, logical: Logical, change: impl FnOnce(&mut Target)) {
        if self.wants_address(logical) {
            change(self.targets.lock().entry(logical).or_default());
        }
    }

    fn record(&self, logical: Logical, reference: &InlineReference) {
        if let Some((reference, count)) = recorded(reference) {
            self.with(logical, |target| {
                let (recorded, _) = target.references.entry(reference).or_default();
                *recorded = recorded.saturating_add(count);
            });
        }
    }

    fn find(&self, logical: Logical, length: ByteCount, reference: Reference) {
        self.with(logical, |target| {
            if target.item.is_none_or(|(recorded, ..)| recorded != length) {
                target.length = Some(length);
            }
            let (_, found) = target.references.entry(reference).or_default();
            *found = found.saturating_add(1);
        });
    }

    fn read_extents(&self, roots: &[Root]) -> Result<()> {
        let Some(tree) = self.check.tree(TreeId::EXTENT, roots) else {
            return Ok(());
        };
        let mut leaves = tree.leaves(.., ReadAhead::sweep());
        loop {
            self.check.progress.check()?;
            let leaf = match leaves.next() {
                Ok(Some(leaf)) => leaf,
                Ok(None) => return Ok(()),
                Err(_) => continue,
            };
            for item in leaf.items() {
                let logical = Logical::new(item.key.objectid.get());
                if self.wants_address(logical) {
                    self.extent_item(logical, &item.key, item.data);
                }
            }
        }
    }

    fn extent_item(&self, logical: Logical, key: &Key, data: &[u8]) {
        match key.item_type {
            ItemType::EXTENT_ITEM | ItemType::METADATA_ITEM => {
                if let Ok(extent) = ExtentItem::parse(key, data, self.check.format()) {
                    let item = (extent.length, extent.level, extent.generation.get());
                    self.with(logical, |target| target.item = Some(item));
                    for reference in &extent.inline_references {
                        self.record(logical, reference);
                    }
                }
            }
            ItemType::TREE_BLOCK_REF
            | ItemType::EXTENT_DATA_REF
            | ItemType::SHARED_BLOCK_REF
            | ItemType::SHARED_DATA_REF => {
                for reference in parse_keyed_references(key, data, self.check.sector_bytes)
                    .into_iter()
                    .flatten()
                {
                    self.record(logical, &reference);
                }
            }
            _ => {}
        }
    }

    fn read_trees(&self, roots: &[Root]) -> Result<()> {
        let length = ByteCount::new(self.check.node_bytes.into());
        let starts = roots.iter().filter_map(|root| {
            let logical = root.pointer.logical;
            self.find(logical, length, root_reference(root));
            self.seen.insert(logical).then_some((root.pointer, root.dropped))
        });
        let starts: Vec<_> = starts.collect();
        self.check.forest.survey(starts, self);
        self.check.progress.check()
    }
}

impl Scanner for Recount<'_> {
    /// The dropped children of the last visited block.
    type Tally = Option<Dropped>;
    type Tag = Option<Dropped>;

    fn begin(&self) -> Option<Dropped> {
        None
    }

    fn wants(
        &self,
        dropped: &mut Option<Dropped>,
        pointer: &BlockPointer,
        tag: Option<Dropped>,
    ) -> Option<Option<Dropped>> {
        let parent_level = pointer.level.saturating_add(1);
        let gone = is_gone(*dropped, parent_level, pointer.end_key);
        (!gone && self.seen.insert(pointer.logical)).then_some(tag)
    }

    fn visit(
        &self,
        dropped: &mut Option<Dropped>,
        pointer: &BlockPointer,
        block: &TreeBlock,
        tag: Option<Dropped>,
    ) {
        let (logical, owner) = (block.logical(), block.header().owner);
        *dropped = tag.filter(|_| !self.extents.shared.contains(logical));
        let is_settled = pointer.tree != TreeId::TREE_RELOCATION && !self.dead.contains(&pointer.tree);
        let identity = (block.level(), block.header().generation.get(), is_settled);
        self.with(logical, |target| target.block = Some(identity));
        let full = self.extents.full.contains(logical);
        if !block.is_leaf() {
            let length = ByteCount::new(self.check.node_bytes.into());
            let reference = child_reference(full, logical, owner);
            for slot in 0..block.item_count() {
                if let Some(child) = pointer.child(block, slot)
                    && !is_gone(*dropped, pointer.level, child.end_key)
                {
                    self.find(child.logical, length, reference);
                }
            }
        } else if refers_to_data(owner) {
            for item in block.items() {
                if item.key.item_type == ItemType::EXTENT_DATA
                    && let Ok(extent) = FileExtent::parse(&item.key, item.data, self.check.sector_bytes)
                    && let Some((address, length, reference)) =
                        data_reference(&item.key, &extent, full, logical, owner)
                {
                    self.find(address, length, reference);
                }
            }
        }
    }

    fn failed(&self, _: &mut Option<Dropped>, _: Error, _: Option<Dropped>) {}

    fn is_cancelled(&self) -> bool {
        self.check.progress.is_cancelled()
    }
}

/// Reports the differences between recorded and counted references at one address.
fn compare(
    check: &Check<'_>,
    logical: Logical,
    target: &Target,
    log: Option<&Log>,
    recorded_whole: bool,
    found_whole: bool,
) {
    // Nothing else may use the log's blocks and data until the replay.
    let is_logged = log.is_some_and(|log| log.uses(logical));
    let mut references = target.references.iter();
    let Some((length, level, generation)) = target.item else {
        let used = references.find(|(_, (_, found))| *found > 0);
        if let Some((user, _)) = used
            && recorded_whole
        {
            check.find(Finding::ExtentMissing {
                logical,
                length: target.length.unwrap_or(ByteCount::ZERO),
                user: *user,
            });
        }
        return;
    };
    let is_used = target.references.values().any(|(_, found)| *found > 0);
    if !is_used {
        if found_whole && !is_logged {
            check.find(Finding::ExtentUnused { logical, length });
        }
        return;
    }
    if let Some(found) = target.length.filter(|found| *found != length) {
        check.find(Finding::ExtentLength {
            logical,
            length,
            found,
        });
    }
    if let (Some(level), Some((block_level, block_generation, is_settled))) = (level, target.block) {
        for (field, recorded, found) in [
            ("level", u64::from(level), u64::from(block_level)),
            ("generation", generation, block_generation),
        ] {
            let is_allowed = field == "generation" && recorded < found && !is_settled;
            if recorded != found && !is_allowed {
                check.find(Finding::BlockDiffers {
                    logical,
                    field,
                    recorded,
                    found,
                });
            }
        }
    }
    for (user, (recorded, found)) in references {
        let (user, recorded, found) = (*user, *recorded, *found);
        if buttress_faults::on("check-references-uncompared") {
            continue;
        }
        if found > recorded && recorded_whole {
            check.find(Finding::ReferenceMissing {
                logical,
                user,
                recorded,
                found,
            });
        } else if found < recorded && found_whole && !is_logged {
            check.find(Finding::ReferenceSurplus {
                logical,
                user,
                recorded,
                found,
            });
        }
    }
}
