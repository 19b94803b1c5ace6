//! Compares quota groups with the use of space by subvolumes.
//!
//! Simple quotas count an extent for the tree that made it, so sums by owner suffice. Classic
//! quotas count an extent for every subvolume that reaches it, and as exclusive if only one does.
//! The segments of the [scan](crate::block_scan) that use an extent show which subvolumes reach it.

use crate::block_scan::BlockScan;
use crate::context::Check;
use crate::finding::Finding;
use crate::report::{Note, Step};
use crate::roots::Root;
use crate::segments::Segments;
use buttress_format::{
    ByteCount, Generation, ItemType, Key, Logical, QgroupId, QgroupInfo, QgroupRelation, QgroupStatus,
    QgroupStatusFlags, TreeId,
};
use buttress_fs::Result;
use buttress_tree::ReadAhead;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// The most uses of data that are kept. If there are more uses, classic quotas are not checked.
const USES_MAX: usize = 4 << 20;

/// The most words of bits that the scan keeps. If there are more, classic quotas are not checked.
const WORDS_MAX: usize = 4 << 20;

/// The segments that use each extent.
#[derive(Debug, Default)]
pub(crate) struct Uses {
    /// Bytes of tree blocks by segment.
    blocks: HashMap<u32, u64>,
    /// Address, length and segment of each use of data.
    data: Vec<(Logical, ByteCount, u32)>,
    overflown: bool,
}

impl Uses {
    pub(crate) fn block(&mut self, bytes: ByteCount, segment: u32) {
        let sum = self.blocks.entry(segment).or_default();
        *sum = sum.saturating_add(bytes.get());
    }

    pub(crate) fn data(&mut self, logical: Logical, length: ByteCount, segment: u32) {
        let last = self.data.last();
        if last.is_some_and(|last| (last.0, last.2) == (logical, segment)) {
            return;
        }
        if self.data.len() < USES_MAX {
            self.data.push((logical, length, segment));
        } else {
            self.overflown = true;
        }
    }

    pub(crate) fn add(&mut self, other: Self) {
        for (segment, bytes) in other.blocks {
            self.block(ByteCount::new(bytes), segment);
        }
        self.overflown |= other.overflown || self.data.len().saturating_add(other.data.len()) > USES_MAX;
        if !self.overflown {
            self.data.extend(other.data);
        }
    }
}

/// The kind of quotas that a check counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// No quotas, or quotas whose counts are marked as invalid.
    None,
    /// Classic quotas, which count every subvolume that reaches an extent.
    Classic,
    /// Simple quotas, which count by owner from this generation on.
    Simple(Generation),
}

/// Reads the state of quotas.
pub(crate) fn mode(check: &Check<'_>, roots: &[Root]) -> Mode {
    let Some(tree) = check.tree(TreeId::QUOTA, roots) else {
        check.skip(Step::Quotas, "not enabled on this FS");
        return Mode::None;
    };
    let key = Key::new(buttress_format::ObjectId::MIN, ItemType::QGROUP_STATUS, 0);
    let status = match tree.get(&key) {
        Ok(Some(item)) => QgroupStatus::parse(&key, item.data()).ok(),
        _ => None,
    };
    let Some(status) = status.filter(|status| status.flags.contains(QgroupStatusFlags::ON)) else {
        check.skip(Step::Quotas, "not enabled on this FS");
        return Mode::None;
    };
    if status.flags.contains(QgroupStatusFlags::INCONSISTENT) {
        check.note(Note::QuotasInconsistent);
        return Mode::None;
    }
    if status.flags.contains(QgroupStatusFlags::RESCAN) {
        check.note(Note::QuotaRescan);
        return Mode::None;
    }
    if status.flags.contains(QgroupStatusFlags::SIMPLE_MODE) {
        return Mode::Simple(status.enable_generation.unwrap_or(Generation::MIN));
    }
    if roots
        .iter()
        .any(|root| root.dead && root.id().as_subvolume().is_some())
    {
        check.note(Note::NotChecked {
            what: "counts of quota groups, because a subvolume is being deleted".to_owned(),
        });
        return Mode::None;
    }
    Mode::Classic
}

/// Stored counters and relations.
#[derive(Default)]
struct Stored {
    groups: BTreeMap<QgroupId, QgroupInfo>,
    relations: BTreeSet<(QgroupId, QgroupId)>,
}

impl Stored {
    fn read(check: &Check<'_>, roots: &[Root]) -> Result<Option<Self>> {
        let Some(tree) = check.tree(TreeId::QUOTA, roots) else {
            return Ok(None);
        };
        let mut stored = Self::default();
        for item in tree.range(.., ReadAhead::sweep()) {
            check.progress.check()?;
            let Ok(item) = item else { return Ok(None) };
            let key = item.key();
            match key.item_type {
                ItemType::QGROUP_INFO => {
                    if let Ok(info) = QgroupInfo::parse(&key, item.data()) {
                        stored.groups.insert(info.group, info);
                    }
                }
                ItemType::QGROUP_RELATION => {
                    if let Ok(relation) = QgroupRelation::parse(&key, item.data()) {
                        stored.relations.insert((relation.group, relation.other));
                    }
                }
                _ => {}
            }
        }
        Ok(Some(stored))
    }

    /// Returns a quota group and all groups above it.
    fn with_parents(&self, group: QgroupId) -> BTreeSet<QgroupId> {
        let mut all = BTreeSet::from([group]);
        let mut new = vec![group];
        while let Some(group) = new.pop() {
            let from = (group, QgroupId::new(0));
            let above = self.relations.range(from..).take_while(|(of, _)| *of == group);
            let above: Vec<QgroupId> = above
                .map(|(_, other)| *other)
                .filter(|other| other.level() > group.level())
                .collect();
            new.extend(above.into_iter().filter(|other| all.insert(*other)));
        }
        all
    }
}

/// Referenced and exclusive bytes by group.
type Counts = BTreeMap<QgroupId, (u64, u64)>;

/// Checks all quota groups.
pub(crate) fn check(
    check: &Check<'_>,
    roots: &[Root],
    mode: Mode,
    scan: &BlockScan,
    owned_data: &BTreeMap<u64, u64>,
) -> Result<()> {
    let Some(stored) = Stored::read(check, roots)? else {
        return Ok(());
    };
    for (group, other) in &stored.relations {
        if !stored.relations.contains(&(*other, *group)) {
            check.find(Finding::QgroupRelation {
                group: group.to_string(),
                other: other.to_string(),
            });
        }
    }
    let counts = match mode {
        Mode::None => return Ok(()),
        Mode::Simple(_) => count_owned(&stored, scan, owned_data),
        Mode::Classic => match count_reached(roots, scan, &stored) {
            Some(counts) => counts,
            None => {
                check.note(Note::NotChecked {
                    what: "counts of quota groups, because they need too much memory".to_owned(),
                });
                return Ok(());
            }
        },
    };
    for root in roots.iter().filter(|root| root.is_live_subvolume()) {
        let group = QgroupId::new(root.id().get());
        if !stored.groups.contains_key(&group) {
            check.find(Finding::QgroupMissing {
                group: group.to_string(),
            });
        }
    }
    for (group, info) in &stored.groups {
        let (referenced, exclusive) = counts.get(group).copied().unwrap_or_default();
        if (info.referenced.get(), info.exclusive.get()) != (referenced, exclusive) {
            check.find(Finding::QgroupCount {
                group: group.to_string(),
                stored_referenced: info.referenced,
                referenced: ByteCount::new(referenced),
                stored_exclusive: info.exclusive,
                exclusive: ByteCount::new(exclusive),
            });
        }
    }
    Ok(())
}

/// Counts every extent for its owner and for all groups above.
fn count_owned(stored: &Stored, scan: &BlockScan, owned_data: &BTreeMap<u64, u64>) -> Counts {
    let mut counts = Counts::new();
    let blocks = scan.counts.owned.iter();
    for (tree, bytes) in blocks.chain(owned_data.iter()) {
        for group in stored.with_parents(QgroupId::new(*tree)) {
            let (referenced, exclusive) = counts.entry(group).or_default();
            *referenced = referenced.saturating_add(*bytes);
            *exclusive = exclusive.saturating_add(*bytes);
        }
    }
    counts
}

/// Bytes by the set of subvolumes that reach them.
struct BySet<'a> {
    bits: &'a [u64],
    words: usize,
    bytes: HashMap<Vec<u64>, u64>,
}

impl BySet<'_> {
    fn segment(&self, segment: u32) -> Option<&[u64]> {
        let start = usize::try_from(segment).ok()?.checked_mul(self.words)?;
        self.bits.get(start..start.checked_add(self.words)?)
    }

    fn add(&mut self, set: Vec<u64>, bytes: u64) {
        let sum = self.bytes.entry(set).or_default();
        *sum = sum.saturating_add(bytes);
    }
}

fn count_reached(roots: &[Root], scan: &BlockScan, stored: &Stored) -> Option<Counts> {
    let uses = scan.uses.as_ref().filter(|uses| !uses.overflown)?;
    let mut trees: Vec<TreeId> = Vec::new();
    let numbers: Vec<Option<u32>> = roots
        .iter()
        .map(|root| {
            root.id().as_subvolume()?;
            trees.push(root.id());
            u32::try_from(trees.len().checked_sub(1)?).ok()
        })
        .collect();
    let words = trees.len().div_ceil(64).max(1);
    let bits = reaching(&scan.segments, &numbers, words)?;
    let mut by_set = BySet {
        bits: &bits,
        words,
        bytes: HashMap::new(),
    };
    for (segment, bytes) in &uses.blocks {
        let set = by_set.segment(*segment).unwrap_or_default().to_vec();
        by_set.add(set, *bytes);
    }
    let mut data = uses.data.clone();
    data.sort_unstable();
    let mut rest = data.as_slice();
    while let [(logical, length, _), ..] = rest {
        let same = rest.iter().take_while(|use_| use_.0 == *logical).count();
        let (group, after) = rest.split_at_checked(same)?;
        let mut set = vec![0_u64; words];
        for (.., segment) in group {
            for (word, more) in set.iter_mut().zip(by_set.segment(*segment).unwrap_or_default()) {
                *word |= more;
            }
        }
        by_set.add(set, length.get());
        rest = after;
    }
    Some(count_sets(&by_set.bytes, &trees, stored))
}

fn reaching(segments: &Segments, numbers: &[Option<u32>], words: usize) -> Option<Vec<u64>> {
    (segments.len().checked_mul(words)? <= WORDS_MAX).then_some(())?;
    segments.reaching(numbers, words)
}

/// Adds sets to groups: a set is exclusive to a group if all its subvolumes belong to the group.
fn count_sets(sets: &HashMap<Vec<u64>, u64>, trees: &[TreeId], stored: &Stored) -> Counts {
    let above: Vec<BTreeSet<QgroupId>> = trees
        .iter()
        .map(|tree| stored.with_parents(QgroupId::new(tree.get())))
        .collect();
    let mut counts = Counts::new();
    for (set, bytes) in sets {
        let members: Vec<&BTreeSet<QgroupId>> = above
            .iter()
            .enumerate()
            .filter(|(number, _)| {
                let word = set.get(number >> 6).copied().unwrap_or(0);
                word >> (number & 63) & 1 == 1
            })
            .map(|(_, groups)| groups)
            .collect();
        let touched: BTreeSet<QgroupId> = members.iter().copied().flatten().copied().collect();
        for group in touched {
            let (referenced, exclusive) = counts.entry(group).or_default();
            *referenced = referenced.saturating_add(*bytes);
            if members.iter().all(|groups| groups.contains(&group)) {
                *exclusive = exclusive.saturating_add(*bytes);
            }
        }
    }
    counts
}
