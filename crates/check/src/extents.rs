//! The extent tree, one block group after another on all cores: compares extents with block groups,
//! free space and checksums, and adds all recorded references to the [`Ledger`].
//!
//! Extents, free space and checksums are all in order of address, so the check of a block group is
//! one merge of three lists. The check keeps only sums of extents in the ledger, and two sets of
//! tree blocks. The first of the check's two sets contains tree blocks with full back references,
//! whose children are recorded under their address. The second of the check's two sets contains
//! tree blocks with several parents.

use crate::chunks::Group;
use crate::context::Check;
use crate::coverage;
use crate::finding::{Finding, Reference};
use crate::fingerprint::{Fact, Hash, Ledger};
use crate::free_space::Recorded;
use crate::log::Log;
use crate::neighbourhoods::Neighbourhoods;
use crate::roots::Root;
use crate::runs::{self, Run};
use buttress_format::{
    BlockGroupFlags, ByteCount, CompatRo, ExtentFlags, ExtentItem, Generation, InlineReference, ItemType,
    Key, Logical, ObjectId, TreeId, parse_keyed_references,
};
use buttress_fs::Result;
use buttress_tree::{ReadAhead, Sectors, Tree};
use core::sync::atomic::{AtomicUsize, Ordering};
use std::collections::BTreeMap;

/// The combined result of all parts of the extent tree.
pub(crate) struct Extents {
    /// Recorded references minus found references.
    pub(crate) ledger: Ledger,
    /// Tree blocks whose children are recorded under their address.
    pub(crate) full: Sectors,
    /// Tree blocks with more than one reference.
    pub(crate) shared: Sectors,
    /// The ranges of data without checksums.
    pub(crate) bare: Neighbourhoods,
    /// The ranges of data with checksums.
    pub(crate) covered: Neighbourhoods,
    /// Sums over all extents.
    pub(crate) sums: Sums,
    /// Whether the whole extent tree was readable.
    pub(crate) complete: bool,
}

/// Sums over all extents.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sums {
    pub(crate) used: u64,
    pub(crate) data: u64,
    pub(crate) checksums: u64,
    /// For simple quotas, the bytes of data by the tree that owns them.
    pub(crate) owned: BTreeMap<u64, u64>,
}

impl Sums {
    fn add(&mut self, other: &Self) {
        self.used = self.used.saturating_add(other.used);
        self.data = self.data.saturating_add(other.data);
        self.checksums = self.checksums.saturating_add(other.checksums);
        for (tree, bytes) in &other.owned {
            let sum = self.owned.entry(*tree).or_default();
            *sum = sum.saturating_add(*bytes);
        }
    }
}

/// Returns the hash of a reference to an extent.
pub(crate) fn reference_hash(logical: Logical, length: ByteCount, reference: &Reference) -> Hash {
    let at = |fact| Hash::of(fact).number(logical.get());
    match *reference {
        Reference::TreeBlock { tree } => at(Fact::TreeBlock).number(tree.get()),
        Reference::SharedBlock { parent } => at(Fact::SharedBlock).number(parent.get()),
        Reference::Data { tree, inode, offset } => at(Fact::Data)
            .number(length.get())
            .number(tree.get())
            .number(inode.get())
            .number(offset),
        Reference::SharedData { parent } => at(Fact::SharedData).number(length.get()).number(parent.get()),
    }
}

/// Returns the hash of the facts about a tree block.
pub(crate) fn block_hash(logical: Logical, level: u8, generation: Generation) -> Hash {
    Hash::of(Fact::Block)
        .number(logical.get())
        .number(level.into())
        .number(generation.get())
}

/// Returns a recorded reference and its count; `None` for the owner reference of simple quotas.
pub(crate) fn recorded(reference: &InlineReference) -> Option<(Reference, u64)> {
    Some(match reference {
        InlineReference::Owner { .. } => return None,
        InlineReference::TreeBlock { root } => (Reference::TreeBlock { tree: *root }, 1),
        InlineReference::SharedBlock { parent } => (Reference::SharedBlock { parent: *parent }, 1),
        InlineReference::ExtentData(data) => (
            Reference::Data {
                tree: data.root,
                inode: data.inode,
                offset: data.offset,
            },
            data.count.into(),
        ),
        InlineReference::SharedData { parent, count } => {
            (Reference::SharedData { parent: *parent }, (*count).into())
        }
    })
}

/// A block group, or the range between two block groups.
struct Part<'a> {
    start: u64,
    end: u64,
    group: Option<&'a Group>,
}

fn parts(groups: &[Group]) -> Vec<Part<'_>> {
    let mut parts = Vec::new();
    let mut at = 0;
    for group in groups {
        if at < group.start {
            parts.push(Part {
                start: at,
                end: group.start,
                group: None,
            });
        }
        parts.push(Part {
            start: group.start,
            end: group.end,
            group: Some(group),
        });
        at = group.end;
    }
    parts.push(Part {
        start: at,
        end: u64::MAX,
        group: None,
    });
    parts
}

/// The trees to be merged, and the extents of the pending log.
struct Trees<'a> {
    log: Option<&'a Log>,
    extents: Tree,
    free_space: Option<Tree>,
    checksums: Option<Tree>,
    groups_inside: bool,
    /// The first generation of data that simple quotas count.
    counted_from: Option<Generation>,
}

/// Reads the extent tree, the free space tree and the checksum tree.
pub(crate) fn read(
    check: &Check<'_>,
    roots: &[Root],
    groups: &[Group],
    counted_from: Option<Generation>,
    log: Option<&Log>,
) -> Result<Extents> {
    let superblock = check.superblock();
    let mut extents = Extents {
        ledger: Ledger::new(superblock.bytes_used.get()),
        full: Sectors::new(check.sector_bytes),
        shared: Sectors::new(check.sector_bytes),
        bare: Neighbourhoods::new(),
        covered: Neighbourhoods::new(),
        sums: Sums::default(),
        complete: false,
    };
    let Some(tree) = check.tree(TreeId::EXTENT, roots) else {
        return Ok(extents);
    };
    let valid = superblock.compat_ro.contains(CompatRo::FREE_SPACE_TREE)
        && superblock.compat_ro.contains(CompatRo::FREE_SPACE_TREE_VALID);
    let trees = Trees {
        log,
        extents: tree,
        free_space: check.tree(TreeId::FREE_SPACE, roots).filter(|_| valid),
        checksums: check.tree(TreeId::CHECKSUM, roots),
        groups_inside: !superblock.compat_ro.contains(CompatRo::BLOCK_GROUP_TREE),
        counted_from,
    };
    let parts = parts(groups);
    let next = AtomicUsize::new(0);
    let work = || -> Result<(Sums, bool)> {
        let mut sums = Sums::default();
        let mut complete = true;
        while let Some(part) = parts.get(next.fetch_add(1, Ordering::Relaxed)) {
            complete &= read_part(check, &trees, part, &extents, &mut sums)?;
        }
        Ok((sums, complete))
    };
    let mut all = Sums::default();
    let mut complete = true;
    for result in crate::threads::run(check, parts.len(), &work) {
        let (sums, whole) = result?;
        all.add(&sums);
        complete &= whole;
    }
    extents.sums = all;
    extents.complete = complete;
    if complete && extents.sums.used != superblock.bytes_used.get() && !check.is_older_state() {
        check.find(Finding::BytesUsed {
            stored: superblock.bytes_used,
            counted: ByteCount::new(extents.sums.used),
        });
    }
    Ok(extents)
}

/// Reads one part. Returns whether the whole part was readable.
fn read_part(
    check: &Check<'_>,
    trees: &Trees<'_>,
    part: &Part<'_>,
    extents: &Extents,
    sums: &mut Sums,
) -> Result<bool> {
    let (start, end) = (part.start, part.end);
    let recorded = trees
        .free_space
        .as_ref()
        .map(|tree| Recorded::read(check, tree, start, end, part.group));
    let covered = match &trees.checksums {
        Some(tree) => coverage::read(check, tree, start, end, &mut sums.checksums)?,
        None => None,
    };
    let mut scan = Scan {
        check,
        part,
        trees,
        extents,
        sums,
        open: None,
        covered_to: start,
        used: 0,
        free: Vec::new(),
        data: Vec::new(),
    };
    let first = Key::new(ObjectId::new(start), ItemType(0), 0);
    let last = Key::new(ObjectId::new(end), ItemType(0), 0);
    let mut leaves = trees.extents.leaves(first..last, ReadAhead::sweep());
    let mut complete = true;
    loop {
        check.progress.check()?;
        match leaves.next() {
            Ok(Some(leaf)) => {
                for item in leaf.items() {
                    scan.item(&item.key, item.data);
                }
            }
            Ok(None) => break,
            Err(_) => complete = false,
        }
    }
    scan.close();
    if complete {
        let (used, free, data) = scan.finish();
        if let Some(group) = part.group {
            if used != group.used {
                check.find(Finding::BlockGroupUsed {
                    logical: Logical::new(group.start),
                    stored: ByteCount::new(group.used),
                    counted: ByteCount::new(used),
                });
            }
            if let Some(recorded) = recorded {
                recorded.compare(check, group, &free);
            }
        }
        if let Some(covered) = covered {
            // Each range of data that only the log uses is either in this part, or in no part of
            // the extent tree.
            let marks = (&extents.covered, &extents.bare);
            coverage::compare(check, &covered, &data, trees.log, (start, end), marks);
        }
    }
    Ok(complete)
}

/// The extent whose references the scan is reading.
struct Open {
    logical: Logical,
    length: ByteCount,
    references: u64,
    counted: u64,
}

/// A part of the extent tree while it is read.
struct Scan<'a> {
    check: &'a Check<'a>,
    part: &'a Part<'a>,
    trees: &'a Trees<'a>,
    extents: &'a Extents,
    sums: &'a mut Sums,
    open: Option<Open>,
    /// The end of the last extent.
    covered_to: u64,
    used: u64,
    free: Vec<Run>,
    data: Vec<Run>,
}

impl Scan<'_> {
    fn item(&mut self, key: &Key, data: &[u8]) {
        match key.item_type {
            ItemType::EXTENT_ITEM | ItemType::METADATA_ITEM => {
                self.close();
                if let Ok(extent) = ExtentItem::parse(key, data, self.check.format()) {
                    self.extent(&extent);
                }
            }
            ItemType::TREE_BLOCK_REF
            | ItemType::EXTENT_DATA_REF
            | ItemType::SHARED_BLOCK_REF
            | ItemType::SHARED_DATA_REF => {
                let Ok(references) = parse_keyed_references(key, data, self.check.sector_bytes) else {
                    return;
                };
                let belongs = self
                    .open
                    .as_ref()
                    .is_some_and(|open| open.logical.get() == key.objectid.get());
                if !belongs {
                    self.check.find(Finding::ReferenceWithoutExtent { key: *key });
                    return;
                }
                references.iter().for_each(|reference| self.reference(reference));
            }
            ItemType::BLOCK_GROUP_ITEM if self.trees.groups_inside => {
                let start = key.objectid.get();
                let known = self
                    .part
                    .group
                    .is_some_and(|group| group.start == start && group.length() == key.offset);
                if !known {
                    self.check.find(Finding::ChunkMissing {
                        logical: Logical::new(start),
                        length: ByteCount::new(key.offset),
                    });
                }
            }
            _ => {}
        }
    }

    fn extent(&mut self, extent: &ExtentItem) {
        let (logical, length) = (extent.start, extent.length);
        let (start, end) = (logical.get(), extent.end().get());
        self.place(extent);
        if let Some(log) = self.trees.log {
            log.meet(self.check, extent);
        }
        if let Some(level) = extent.level {
            if extent.references > 1 {
                self.extents.shared.insert(logical);
            }
            if extent.flags.contains(ExtentFlags::FULL_BACKREF) {
                self.extents.full.insert(logical);
            }
            let hash = block_hash(logical, level, extent.generation);
            self.extents.ledger.add(logical, hash.get());
        } else {
            runs::push(&mut self.data, start, end);
            self.sums.data = self.sums.data.saturating_add(length.get());
            self.count_owner(extent);
        }
        self.open = Some(Open {
            logical,
            length,
            references: extent.references,
            counted: 0,
        });
        for reference in &extent.inline_references {
            self.reference(reference);
        }
    }

    /// Checks that an extent is in a suitable block group, and collects the free range before it.
    fn place(&mut self, extent: &ExtentItem) {
        let (start, end) = (extent.start.get(), extent.end().get());
        if start < self.covered_to {
            self.check.find(Finding::ExtentsOverlap {
                logical: extent.start,
                previous_end: Logical::new(self.covered_to),
            });
        } else {
            runs::push(&mut self.free, self.covered_to, start);
        }
        self.covered_to = self.covered_to.max(end);
        self.used = self.used.saturating_add(extent.length.get());
        let Some(group) = self.part.group.filter(|group| end <= group.end) else {
            self.check.find(Finding::ExtentOutsideBlockGroup {
                logical: extent.start,
                length: extent.length,
            });
            return;
        };
        let (kind, wanted) = if extent.is_data() {
            ("data", BlockGroupFlags::DATA)
        } else {
            (
                "a tree block",
                BlockGroupFlags::METADATA | BlockGroupFlags::SYSTEM,
            )
        };
        if !group.flags.intersects(wanted) {
            self.check.find(Finding::ExtentKind {
                logical: extent.start,
                kind,
                group: group.flags.to_string(),
            });
        }
    }

    fn count_owner(&mut self, extent: &ExtentItem) {
        let Some(from) = self.trees.counted_from else {
            return;
        };
        for reference in &extent.inline_references {
            if let InlineReference::Owner { root } = reference
                && extent.generation >= from
            {
                let sum = self.sums.owned.entry(root.get()).or_default();
                *sum = sum.saturating_add(extent.length.get());
            }
        }
    }

    fn reference(&mut self, reference: &InlineReference) {
        let Some(open) = &mut self.open else { return };
        if let Some((reference, count)) = recorded(reference) {
            open.counted = open.counted.saturating_add(count);
            let hash = reference_hash(open.logical, open.length, &reference);
            self.extents.ledger.add(open.logical, hash.times(count));
        }
    }

    /// Ends an extent after all its references were read.
    fn close(&mut self) {
        if let Some(open) = self.open.take()
            && open.counted != open.references
        {
            self.check.find(Finding::ReferenceTotal {
                logical: open.logical,
                stored: open.references,
                counted: open.counted,
            });
        }
    }

    /// Returns the bytes in use, the free ranges, and the ranges of data.
    fn finish(mut self) -> (u64, Vec<Run>, Vec<Run>) {
        runs::push(&mut self.free, self.covered_to, self.part.end);
        self.sums.used = self.sums.used.saturating_add(self.used);
        (self.used, self.free, self.data)
    }
}
