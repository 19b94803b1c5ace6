//! The items of all rebuilt trees, as a function of the blocks that will hold them.
//!
//! The extent tree, the free-space tree, the block groups and the root tree describe the blocks in
//! which they are. A [`Guess`] says which blocks these are. [`Description::describe`] yields all
//! items for a guess, in the order of keys for each tree. Counting the blocks of these items gives
//! the next guess, until both are equal.

use super::checksums::OldSums;
use super::errors::refused;
use super::extents::{Content, Coverage, Doubt, Extent, Extents, Form};
use super::free_space;
use super::lengths::Lengths;
use super::places::Group;
use super::roots::FORSAKEN;
use super::survey::Survey;
use buttress_exact::{Defect, Exact as _, u64_of};
use buttress_format::{ByteCount, Generation, InlineReference, ItemType, Key, Logical, RootItem, TreeId};
use buttress_fs::error::Corruption;
use buttress_fs::{Filesystem, Progress, Result};
use buttress_tree::ReadAhead;
use core::iter::Peekable;
use core::ops::Range;
use std::collections::BTreeMap;

/// Items in the order of their keys.
pub(super) type Items = Vec<(Key, Vec<u8>)>;

/// The receiver of items.
pub(super) trait Sink {
    /// Receives the next item of a tree.
    fn put(&mut self, tree: TreeId, key: &Key, data: &[u8]) -> Result<()>;
}

/// The levels and first keys of the blocks of each rebuilt tree, in the order of packing. The last
/// block of a tree is its root.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Guess {
    pub(super) trees: Vec<(TreeId, Vec<(u8, Key)>)>,
}

impl Guess {
    pub(super) fn blocks(&self) -> usize {
        self.trees.iter().map(|(_, blocks)| blocks.len()).sum()
    }

    pub(super) fn blocks_of(&self, tree: TreeId) -> usize {
        let own = self.trees.iter().filter(|(id, _)| *id == tree);
        own.map(|(_, blocks)| blocks.len()).sum()
    }
}

/// The root of a tree that is packed or will be packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NewRoot {
    pub(super) tree: TreeId,
    pub(super) logical: Logical,
    pub(super) level: u8,
    pub(super) blocks: u64,
}

/// Everything that the rebuilt trees describe, except their own blocks.
#[derive(Debug)]
pub(super) struct Description<'a> {
    pub(super) filesystem: &'a Filesystem,
    pub(super) survey: &'a Survey,
    pub(super) groups: Vec<Group>,
    pub(super) form: Form,
    /// The trees that the rebuild replaces, in the order of packing: the chunk tree is the last one.
    pub(super) replaced: Vec<TreeId>,
    /// The items of replaced trees that do not describe the new blocks.
    pub(super) small: Vec<(TreeId, Items)>,
    /// The generation of the new blocks.
    pub(super) generation: Generation,
    pub(super) progress: &'a Progress,
}

/// The blocks of a guess, as extents.
struct NewBlocks<'a> {
    extents: Peekable<Box<dyn Iterator<Item = Extent> + 'a>>,
}

impl Description<'_> {
    /// Counts the used bytes of all block groups, and checks that each extent has a place of its
    /// own, and a length without doubt. Returns whether chunks must get another type, which is that
    /// of all their extents. Unless `gives_up`, no extent of a subvolume without a root item may
    /// become free.
    pub(super) fn measure(&mut self, gives_up: bool) -> Result<bool> {
        let mut changes_types = false;
        let mut lengths = Lengths::new(self.filesystem);
        let mut groups = self.groups.clone();
        let mut counts = vec![Counts::default(); groups.len()];
        self.walk(&Guess::default(), &[], &mut |event| match event {
            Event::Extent(number, extent) => {
                lengths.add(extent)?;
                if let Some(counts) = counts.get_mut(number) {
                    counts.add(extent);
                }
                Ok(())
            }
            Event::Free(group, _) => lengths.end_at(group.end),
            Event::Forsaken if gives_up => Ok(()),
            Event::Forsaken => Err(refused(FORSAKEN)),
        })?;
        for (group, counts) in groups.iter_mut().zip(counts) {
            group.used = counts.used;
            let old = group.flags;
            if !group.settle_type(counts.has_data, counts.has_blocks) {
                return Err(refused("an extent in use is in a chunk of another type"));
            }
            changes_types |= old != group.flags;
        }
        self.groups = groups;
        Ok(changes_types)
    }

    /// Calls `each` with all extents that stay, and the start of their block group.
    pub(super) fn each_extent(&self, each: &mut dyn FnMut(u64, &Extent) -> Result<()>) -> Result<()> {
        self.walk(&Guess::default(), &[], &mut |event| match event {
            Event::Extent(number, extent) => match self.groups.get(number) {
                Some(group) => each(group.start, extent),
                None => Err(Defect::new("an extent in no block group").into()),
            },
            _ => Ok(()),
        })
    }

    /// Reserves the sectors of data in block groups that also hold tree blocks.
    pub(super) fn reserve_data(&self) -> Result<()> {
        let mut extents = Extents::new(&self.survey.facts, self.form)?;
        let is_mixed = |group: &&Group| group.holds(true) && group.holds(false);
        let mut groups = self.groups.iter().filter(is_mixed).peekable();
        let sector_bytes = self.filesystem.sector_bytes();
        let mut reserved = 0;
        while let Some((start, length)) = extents.next_data()? {
            self.progress.check()?;
            while groups.next_if(|group| group.end <= start).is_some() {}
            let Some(group) = groups.peek() else { break };
            // Clamp: an extent past its block group is refused before any write.
            let end = start.saturating_add(length).min(group.end);
            for at in (start.max(reserved).max(group.start)..end).step_by(sector_bytes.narrow()) {
                self.survey.reserved.insert(Logical::new(at));
            }
            reserved = reserved.max(end);
        }
        Ok(())
    }

    /// Returns the used bytes of the whole volume with `blocks` new blocks.
    pub(super) fn bytes_used(&self, blocks: usize) -> ByteCount {
        let old = self
            .groups
            .iter()
            .fold(0_u64, |sum, group| sum.exact_add(group.used));
        let new = u64_of(blocks).exact_mul(self.form.node_bytes.into());
        ByteCount::new(old.exact_add(new))
    }

    /// Returns the roots of the trees of a guess.
    pub(super) fn roots(guess: &Guess, places: &[Logical]) -> Result<Vec<NewRoot>> {
        let mut end = 0_usize;
        let root = |(tree, blocks): &(TreeId, Vec<(u8, Key)>)| {
            end = end.exact_add(blocks.len());
            let logical = end.checked_sub(1).and_then(|last| places.get(last));
            let (logical, (level, _)) = logical
                .zip(blocks.last())
                .ok_or_else(|| Defect::new("a tree without blocks or without places"))?;
            Ok(NewRoot {
                tree: *tree,
                logical: *logical,
                level: *level,
                blocks: u64_of(blocks.len()),
            })
        };
        guess.trees.iter().map(root).collect()
    }

    /// Passes all items of the rebuilt trees to a sink. `places` has the address of each block of
    /// the guess.
    pub(super) fn describe(&self, guess: &Guess, places: &[Logical], sink: &mut dyn Sink) -> Result<()> {
        let more = self.new_bytes(places);
        let group_items: Vec<_> = self
            .groups
            .iter()
            .zip(more)
            .map(|(group, more)| group.item(more))
            .collect();
        let has_group_tree = self.replaced.contains(&TreeId::BLOCK_GROUP);
        let has_free_space = self.replaced.contains(&TreeId::FREE_SPACE);
        let inside = if has_group_tree { &[][..] } else { &group_items };
        let mut inside = inside.iter().peekable();
        let has_sums = self.replaced.contains(&TreeId::CHECKSUM);
        let mut sums = has_sums.then(|| OldSums::new(self.filesystem)).transpose()?;
        self.walk(guess, places, &mut |event| match event {
            Event::Extent(_, extent) => {
                if let Some(sums) = sums.as_mut().filter(|_| extent.is_data()) {
                    let (start, end) = (extent.start.get(), extent.end()?);
                    sums.keep(start, end, &mut |key, data| sink.put(TreeId::CHECKSUM, key, data))?;
                }
                for (key, data) in extent.items(&self.form)? {
                    while let Some((group, item)) = inside.next_if(|(group, _)| *group < key) {
                        sink.put(TreeId::EXTENT, group, item)?;
                    }
                    sink.put(TreeId::EXTENT, &key, &data)?;
                }
                Ok(())
            }
            Event::Free(group, free) if has_free_space => {
                let sector_bytes = self.filesystem.sector_bytes();
                for (key, data) in free_space::items(group, free, sector_bytes) {
                    sink.put(TreeId::FREE_SPACE, &key, &data)?;
                }
                Ok(())
            }
            Event::Free(..) | Event::Forsaken => Ok(()),
        })?;
        if let Some(sums) = sums {
            sums.finish(&mut |key, data| sink.put(TreeId::CHECKSUM, key, data))?;
        }
        for (group, item) in inside {
            sink.put(TreeId::EXTENT, group, item)?;
        }
        if has_group_tree {
            for (group, item) in &group_items {
                sink.put(TreeId::BLOCK_GROUP, group, item)?;
            }
        }
        for (tree, items) in &self.small {
            for (key, data) in items {
                sink.put(*tree, key, data)?;
            }
        }
        self.root_items(&Self::roots(guess, places)?, sink)
    }

    /// Returns the bytes of new blocks in each block group.
    fn new_bytes(&self, places: &[Logical]) -> Vec<u64> {
        let node_bytes = u64::from(self.form.node_bytes);
        let mut places = places.to_vec();
        places.sort_unstable();
        let bytes = |group: &Group| {
            let first = places.partition_point(|place| place.get() < group.start);
            let end = places.partition_point(|place| place.get() < group.end);
            u64_of(end.exact_sub(first)).exact_mul(node_bytes)
        };
        self.groups.iter().map(bytes).collect()
    }

    fn new_blocks<'b>(&'b self, guess: &'b Guess, places: &'b [Logical]) -> NewBlocks<'b> {
        let blocks = guess
            .trees
            .iter()
            .flat_map(|(tree, blocks)| blocks.iter().map(move |block| (*tree, *block)));
        let mut blocks: Vec<_> = places.iter().copied().zip(blocks).collect();
        blocks.sort_unstable_by_key(|(place, _)| *place);
        let extents = blocks
            .into_iter()
            .map(|(place, (tree, (level, first_key)))| Extent {
                start: place,
                length: ByteCount::new(self.form.node_bytes.into()),
                generation: self.generation,
                content: Content::Block {
                    level,
                    first_key,
                    is_full: false,
                },
                references: vec![InlineReference::TreeBlock { root: tree }],
                doubt: Doubt::Nothing,
            });
        let extents: Box<dyn Iterator<Item = Extent> + 'b> = Box::new(extents);
        NewBlocks {
            extents: extents.peekable(),
        }
    }

    /// Calls `each` with all extents in the order of their addresses, and with the free ranges of
    /// each block group after its extents. An extent that becomes free although it belongs to a
    /// subvolume without a root item comes last.
    fn walk(
        &self,
        guess: &Guess,
        places: &[Logical],
        each: &mut dyn FnMut(Event<'_>) -> Result<()>,
    ) -> Result<()> {
        let mut old = Extents::new(&self.survey.facts, self.form)?;
        let mut new = self.new_blocks(guess, places).extents;
        let mut next_old = old.next()?;
        for (number, group) in self.groups.iter().enumerate() {
            self.progress.check()?;
            let mut coverage = Coverage::new(group.start);
            let mut free = Vec::new();
            let mut add = |range: Range<u64>| {
                if !range.is_empty() {
                    free.push(range);
                }
            };
            loop {
                let is_old = match (&next_old, new.peek()) {
                    (Some(old), Some(new)) => old.start < new.start,
                    (old, _) => old.is_some(),
                };
                let extent = match is_old {
                    true => next_old.as_ref(),
                    false => new.peek(),
                };
                let Some(extent) = extent.filter(|extent| extent.start.get() < group.end) else {
                    break;
                };
                let (start, end) = (extent.start.get(), extent.end()?);
                if start < group.start || end > group.end {
                    return Err(refused("an extent in use is in no chunk"));
                }
                add(coverage.add(start, end)?);
                each(Event::Extent(number, extent))?;
                if is_old {
                    next_old = old.next()?;
                } else {
                    new.next();
                }
            }
            add(coverage.rest(group.end));
            each(Event::Free(group, &free))?;
        }
        if old.has_forsaken {
            each(Event::Forsaken)?;
        }
        match (next_old, new.peek()) {
            (None, None) => Ok(()),
            _ => Err(refused("an extent in use is in no chunk")),
        }
    }

    /// Passes the items of the root tree, with the roots of the rebuilt trees.
    fn root_items(&self, roots: &[NewRoot], sink: &mut dyn Sink) -> Result<()> {
        let mut new: BTreeMap<Key, NewRoot> = BTreeMap::new();
        // The superblock names the roots of these two trees.
        let has_item = |root: &&NewRoot| !matches!(root.tree, TreeId::ROOT | TreeId::CHUNK);
        for root in roots.iter().filter(has_item) {
            new.insert(Key::new(root.tree.object_id(), ItemType::ROOT_ITEM, 0), *root);
        }
        let put_new = |sink: &mut dyn Sink, key: &Key, root: &NewRoot, old: Option<RootItem>| {
            let bytes = self.root_item(root, old).to_bytes();
            sink.put(TreeId::ROOT, key, &bytes)
        };
        for item in self.filesystem.root_tree().range(.., ReadAhead::Forward) {
            let item = item?;
            let key = item.key();
            while let Some(entry) = new.first_entry().filter(|entry| *entry.key() < key) {
                let (key, root) = entry.remove_entry();
                put_new(sink, &key, &root, None)?;
            }
            let Some(root) = new.remove(&key) else {
                sink.put(TreeId::ROOT, &key, item.data())?;
                continue;
            };
            let old = RootItem::parse(&key, item.data(), self.filesystem.sector_bytes());
            let old = old.map_err(|error| Corruption::Item {
                tree: TreeId::ROOT,
                error,
            })?;
            put_new(sink, &key, &root, Some(old))?;
        }
        for (key, root) in new {
            put_new(sink, &key, &root, None)?;
        }
        Ok(())
    }

    fn root_item(&self, root: &NewRoot, old: Option<RootItem>) -> RootItem {
        let bytes_used = root.blocks.exact_mul(self.form.node_bytes.into());
        RootItem {
            logical: root.logical,
            level: root.level,
            bytes_used: ByteCount::new(bytes_used),
            generation: self.generation,
            generation_v2: self.generation,
            references: 1,
            drop_progress: Key::MIN,
            drop_level: 0,
            ..old.unwrap_or_else(|| RootItem::empty(self.generation))
        }
    }
}

/// The extents of a block group.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    used: u64,
    has_data: bool,
    has_blocks: bool,
}

impl Counts {
    fn add(&mut self, extent: &Extent) {
        self.used = self.used.exact_add(extent.length.get());
        self.has_data |= extent.is_data();
        self.has_blocks |= !extent.is_data();
    }
}

/// A step of a walk over the block groups.
enum Event<'a> {
    /// The next extent, and the number of its block group.
    Extent(usize, &'a Extent),
    /// The end of a block group, and its free ranges.
    Free(&'a Group, &'a [Range<u64>]),
    /// An extent of a subvolume without a root item is not among the extents.
    Forsaken,
}
