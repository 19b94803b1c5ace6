//! Trees whose blocks the index locates, so that no chunk map is needed.
//!
//! A pointer names a block by address and generation. The index has the places of all sound blocks
//! with this address. A block is read from its place and checked against the pointer.
//!
//! # Invariants
//!
//! - Each block passes every check of its pointer: address, generation, level, owner and key range.
//! - A block has at most one place in a tree, so a walk ends: levels fall, and the ranges of the
//!   children of a node do not overlap.
//!
//! # Left out
//!
//! Blocks that only a parity can rebuild.

use crate::error::Result;
use crate::identity::Identity;
use crate::index::{BlockIndex, IndexReader};
use crate::record::Record;
use crate::scan::format_of;
use buttress_device::Device;
use buttress_exact::usize_of;
use buttress_format::node::{BlockFormat, Expectation, TreeBlock};
use buttress_format::{Generation, Key, Logical};
use buttress_tree::{BlockPointer, RootPointer};
use buttress_volume::superblocks::choose;
use core::ops::{ControlFlow, RangeInclusive};
use std::collections::HashMap;
use uuid::Uuid;

/// The number of copies of one block that are tried.
const COPIES_MAX: usize = 64;

/// The number of nodes that stay in memory.
const NODES_MAX: usize = 256;

/// The reader of trees by the index.
#[derive(Debug)]
pub(crate) struct IndexedTrees<'a> {
    /// The devices by their numbers in the index.
    devices: Vec<Option<Device>>,
    format: BlockFormat,
    reader: IndexReader<'a>,
    nodes: HashMap<(Logical, Generation), TreeBlock>,
}

/// The end of a walk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Walked {
    /// All items of the range were passed on.
    Whole,
    /// At least one block is missing.
    Incomplete,
    /// The receiver ended the walk.
    Stopped,
}

/// The receiver of the items of a walk.
pub(crate) type TakeItem<'a> = dyn FnMut(&Key, &[u8]) -> ControlFlow<()> + 'a;

impl<'a> IndexedTrees<'a> {
    pub(crate) fn new(devices: &[Device], identity: &Identity, index: &'a BlockIndex) -> Self {
        Self {
            devices: indexed_devices(devices, index.identity()),
            format: format_of(identity),
            reader: index.reader(),
            nodes: HashMap::new(),
        }
    }

    /// Returns the format of the blocks.
    pub(crate) const fn format(&self) -> &BlockFormat {
        &self.format
    }

    /// Returns the reader of the index.
    pub(crate) const fn reader(&mut self) -> &mut IndexReader<'a> {
        &mut self.reader
    }

    /// Returns the device with a number in the index.
    pub(crate) fn device(&self, number: u8) -> Option<&Device> {
        self.devices.get(usize::from(number))?.as_ref()
    }

    /// Reads the block that a pointer names, from the first of its places that has it.
    pub(crate) fn read(&mut self, pointer: &BlockPointer) -> Result<Option<TreeBlock>> {
        let place = (pointer.logical, pointer.generation);
        if let Some(known) = self.nodes.get(&place) {
            return Ok(Some(known.clone()).filter(|block| is_inside(pointer, block)));
        }
        for record in self.reader.at(pointer.logical, COPIES_MAX)? {
            if record.generation != pointer.generation || record.level != pointer.level {
                continue;
            }
            let Some(block) = self.block(&record, &pointer.expectation()) else {
                continue;
            };
            if pointer.level > 0 {
                if self.nodes.len() >= NODES_MAX {
                    self.nodes.clear();
                }
                self.nodes.insert(place, block.clone());
            }
            return Ok(Some(block).filter(|block| is_inside(pointer, block)));
        }
        Ok(None)
    }

    /// Reads the block of a record again. Returns `None` if the device has changed since the scan.
    pub(crate) fn block_of(&self, record: &Record) -> Option<TreeBlock> {
        let expectation = Expectation {
            logical: record.logical,
            level: Some(record.level),
            generation: Some(record.generation),
            owner: Some(record.owner),
            first_key: None,
        };
        self.block(record, &expectation)
    }

    fn block(&self, record: &Record, expectation: &Expectation) -> Option<TreeBlock> {
        if !record.is_sound() {
            return None;
        }
        let length = usize_of(self.format.node_bytes);
        let read = self.device(record.device)?.read(record.physical.get(), length);
        TreeBlock::check(read.ok()?.into_bytes(), &self.format, expectation).ok()
    }

    /// Passes the items of a tree on whose keys are in `range`, in order of keys. A missing block
    /// does not end the walk.
    pub(crate) fn items(
        &mut self,
        root: &RootPointer,
        range: &RangeInclusive<Key>,
        take: &mut TakeItem<'_>,
    ) -> Result<Walked> {
        self.visit(&BlockPointer::root(root), range, take)
    }

    /// Walks a subtree. The level of the pointer bounds the depth.
    fn visit(
        &mut self,
        pointer: &BlockPointer,
        range: &RangeInclusive<Key>,
        take: &mut TakeItem<'_>,
    ) -> Result<Walked> {
        let Some(block) = self.read(pointer)? else {
            return Ok(Walked::Incomplete);
        };
        let mut walked = Walked::Whole;
        for slot in 0..block.item_count() {
            if let Some(child) = pointer.child(&block, slot) {
                let is_before = child.end_key.is_some_and(|end| end <= *range.start());
                if is_before || child.first_key.is_some_and(|first| first > *range.end()) {
                    continue;
                }
                match self.visit(&child, range, take)? {
                    Walked::Whole => {}
                    Walked::Incomplete => walked = Walked::Incomplete,
                    Walked::Stopped => return Ok(Walked::Stopped),
                }
            } else if let Some(item) = block.item(slot)
                && range.contains(&item.key)
                && take(&item.key, item.data).is_break()
            {
                return Ok(Walked::Stopped);
            }
        }
        Ok(walked)
    }
}

/// Returns whether the last key of a block is before the end that the parent sets.
pub(crate) fn is_inside(pointer: &BlockPointer, block: &TreeBlock) -> bool {
    let last = block.item_count().checked_sub(1).and_then(|slot| block.key(slot));
    last.is_none_or(|last| pointer.end_key.is_none_or(|end| last < end))
}

/// Returns the devices in the order of the scan: by their uuids, else in the given order.
fn indexed_devices(devices: &[Device], scanned: &Identity) -> Vec<Option<Device>> {
    let uuids: Vec<Option<Uuid>> = devices
        .iter()
        .map(|device| {
            let chosen = choose(device).ok()?;
            Some(chosen.superblock.device_item.uuid)
        })
        .collect();
    let found = scanned.devices.iter().enumerate().map(|(number, found)| {
        let member = found.member.map(|(uuid, _, _)| uuid);
        let place = uuids.iter().position(|uuid| uuid.is_some() && *uuid == member);
        devices.get(place.unwrap_or(number)).cloned() // Clamp: without a uuid, the order counts.
    });
    found.collect()
}
