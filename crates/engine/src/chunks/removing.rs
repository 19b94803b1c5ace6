//! The removal of block groups that stay empty, and of their chunks.
//!
//! Invariants:
//! - A block group is removed only if it was empty in the last durable state and still is.
//! - The last block group of each kind stays, and so does one further empty group. Without a spare
//!   empty group, a workload near the limit would alternately make and remove chunks.
//! - Promises to edits and data still fit without the removed group.

use super::super::block_groups::{Group, Purpose};
use super::super::reservation::Need;
use crate::device_space::stripe_bytes;
use crate::running_parts::Chunks;
use buttress_format::{ItemType, Key, Logical, ObjectId, TreeId};
use buttress_fs::error::Result;
use buttress_tree::{NonBlocking, ReadAhead};

/// Whether a group had no extent in the last durable state, and still has none.
fn is_vacant(group: &Group) -> bool {
    group.used == 0
        && group.durable_used == 0
        && group.written_used == Some(0)
        && group.pinned_bytes == 0
        && group.allocated_bytes == 0
        && group.trimming_bytes == 0
}

/// Whether a vacant group also accounts for all of its space. A marked group goes without: its lost
/// space ends with it.
fn is_unused(group: &Group) -> bool {
    is_vacant(group) && group.is_untouched()
}

impl Chunks<'_> {
    /// Removes block groups that were empty in the last durable state and still are. The last block
    /// group of each type stays.
    pub fn remove_empty_groups(&mut self) -> Result<()> {
        let left = self
            .running
            .core
            .groups
            .iter()
            .filter(|group| group.read_only && is_vacant(group));
        let left: Vec<u64> = left.map(|group| group.start).collect();
        for start in left {
            self.reach_items_of_group(start)?;
            NonBlocking::lifted(|| self.remove_group(start))?;
        }
        if self.running.core.groups.keeps_empty() {
            return Ok(());
        }
        let mut empty: Vec<u64> = Vec::new();
        for purpose in [Purpose::Data, Purpose::Metadata] {
            let groups: Vec<&Group> = self
                .running
                .core
                .groups
                .iter()
                .filter(|group| group.serves(purpose) && !group.read_only)
                .collect();
            let unused = groups.iter().filter(|group| is_unused(group));
            let candidates: Vec<u64> = unused.map(|group| group.start).collect();
            let spare = usize::from(candidates.len() == groups.len());
            // Mixed groups serve both data and metadata.
            empty.extend(
                candidates
                    .into_iter()
                    .skip(spare)
                    .filter(|start| !empty.contains(start))
                    .collect::<Vec<_>>(),
            );
        }
        // Keep one empty block group, so that a workload near the limit does not alternately make
        // and remove chunks.
        for start in empty.into_iter().skip(1) {
            if self.can_spare(start) {
                self.reach_items_of_group(start)?;
                NonBlocking::lifted(|| self.remove_group(start))?;
            }
        }
        Ok(())
    }

    /// Returns whether the promises to edits and data still fit without a block group.
    fn can_spare(&self, start: u64) -> bool {
        let Some(group) = self.running.core.groups.holding(start) else {
            return false;
        };
        let left = |purpose| {
            let here = if group.serves(purpose) {
                group.free_bytes().saturating_add(group.unbacked_bytes())
            } else {
                0
            };
            self.running
                .core
                .groups
                .room(purpose)
                .with_unbacked()
                .saturating_sub(here)
        };
        left(Purpose::Metadata) >= self.running.block_reserve().metadata_bytes(Need::places(64))
            && left(Purpose::Data) >= self.running.core.reserved_data_bytes
    }

    /// Loads the paths to all items that removing a block group edits.
    fn reach_items_of_group(&mut self, start: u64) -> Result<()> {
        let volume = self.running.core.forest.volume().clone();
        let Some(group) = self.running.core.groups.holding(start) else {
            return Ok(());
        };
        let (group_key, end) = (group.item_key(), group.end());
        if self.running.core.has_free_space_tree() && !group.needs_free_space_info {
            let key = |at| Key::new(ObjectId::new(at), ItemType(0), 0);
            let tree = self.running.view(TreeId::FREE_SPACE)?;
            for item in tree.range(key(start)..key(end), ReadAhead::None) {
                item?;
            }
            self.running.reach(TreeId::FREE_SPACE, &key(end))?;
        }
        self.running
            .reach(self.running.core.block_group_tree(), &group_key)?;
        if let Some(mapped) = volume.chunk_map().find(Logical::new(start)) {
            let places = mapped.chunk().stripes.iter();
            let places: Vec<_> = places
                .map(|stripe| (stripe.device, stripe.physical.get()))
                .collect();
            self.reach_items(start, places)?;
        }
        Ok(())
    }

    fn remove_group(&mut self, start: u64) -> Result<()> {
        let logical = Logical::new(start);
        let volume = self.running.core.forest.volume().clone();
        let Some(chunk) = volume
            .chunk_map()
            .find(logical)
            .map(|mapped| (mapped.chunk().clone(), mapped.layout().device_extent_bytes()))
        else {
            return Ok(());
        };
        let Some(group) = self.running.core.groups.remove(start) else {
            return Ok(());
        };
        let (chunk, stripe_length) = chunk;
        self.running.free_space_tree().remove_group(&group)?;
        let tree = self.running.core.block_group_tree();
        let key = Key::new(ObjectId::new(start), ItemType::BLOCK_GROUP_ITEM, group.length);
        self.running.remove(tree, &key)?;
        for stripe in &chunk.stripes {
            let key = Key::new(
                stripe.device.object_id(),
                ItemType::DEV_EXTENT,
                stripe.physical.get(),
            );
            self.running.remove(TreeId::DEVICE, &key)?;
            let length = stripe_length.get();
            self.running
                .device_items()
                .change_used(stripe.device, stripe_bytes(length)?.saturating_neg())?;
            self.running
                .core
                .devices
                .freed
                .push((stripe.device, stripe.physical.get(), length));
        }
        let key = Key::new(ObjectId::FIRST_CHUNK_TREE, ItemType::CHUNK_ITEM, start);
        self.running.remove(TreeId::CHUNK, &key)?;
        self.running.core.system_chunks.retain(|(other, _)| *other != key);
        volume.remove_chunk(logical)?;
        Ok(())
    }
}
