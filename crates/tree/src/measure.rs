//! What walking a tree costs under each read-ahead mode, beside reading the same blocks in order of address.
//!
//! Meant for simulated devices, where the time is virtual and two runs give the same figures; on real devices
//! it measures real time. Each walk gets a forest of its own, so it begins with an empty node cache.

use crate::blocks::{BlockOrder, Visit};
use crate::error::{Error, Result};
use crate::forest::Forest;
use crate::pointer::{BlockPointer, RootPointer};
use crate::read_ahead::{ReadAhead, SWEEP_WINDOW};
use crate::reader::BlockReader;
use buttress_device::QueueStatistics;
use buttress_exact::{Exact as _, u64_of};
use buttress_format::{ByteCount, Key};
use buttress_volume::Volume;
use core::time::Duration;
use std::collections::VecDeque;
use std::sync::Arc;

/// What a walk over all nodes and leaves of a tree took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WalkCost {
    /// Nodes and leaves that could be read.
    pub blocks: u64,
    /// Nodes and leaves that could not.
    pub damaged: u64,
    /// Their bytes.
    pub bytes: ByteCount,
    /// How long it took, by the devices' clock: virtual for simulated ones.
    pub elapsed: Duration,
    /// Requests that the devices got, after merging.
    pub requests: u64,
    /// Bytes that those requests read.
    pub request_bytes: ByteCount,
}

impl WalkCost {
    /// The mean size of a request; zero when there was none.
    #[must_use]
    pub fn mean_request_bytes(&self) -> ByteCount {
        ByteCount::new(self.request_bytes.get().quotient(self.requests))
    }
}

/// One row of the table that [`compare`] makes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Comparison {
    /// The mode's name, or that of the yardstick.
    pub name: &'static str,
    /// What it cost.
    pub cost: WalkCost,
}

/// Walks a tree in every mode, from [`ReadAhead::None`] to [`ReadAhead::sweep`], then by address, and then reads
/// the same blocks in order of address without following the tree.
///
/// `fresh` opens the volume for each row, so that what a drive keeps in its own cache does not help the next one.
///
/// # Errors
/// What `fresh` fails with, and an unreadable block when the list of blocks for the last row cannot be made;
/// the walks count damaged blocks.
pub fn compare<E: From<Error>>(
    mut fresh: impl FnMut() -> Result<Arc<Volume>, E>,
    root: RootPointer,
    cache_budget: ByteCount,
) -> Result<Vec<Comparison>, E> {
    let modes = [
        ("none", ReadAhead::None),
        ("backward", ReadAhead::Backward),
        ("forward", ReadAhead::Forward),
        ("forward-always", ReadAhead::ForwardAlways),
        ("sweep", ReadAhead::sweep()),
    ];
    let mut rows = Vec::new();
    for (name, mode) in modes {
        rows.push(Comparison {
            name,
            cost: walk(&fresh()?, root, cache_budget, mode),
        });
    }
    rows.push(Comparison {
        name: "sweep, any order",
        cost: walk_by_address(&fresh()?, root, cache_budget),
    });
    let pointers = pointers_by_address(&fresh()?, root, cache_budget)?;
    rows.push(Comparison {
        name: "address order",
        cost: read_in_order(&fresh()?, &pointers)?,
    });
    Ok(rows)
}

/// Walks all nodes and leaves of a tree once, with an empty cache.
#[must_use]
pub fn walk(
    volume: &Arc<Volume>,
    root: RootPointer,
    cache_budget: ByteCount,
    read_ahead: ReadAhead,
) -> WalkCost {
    let tree = Forest::new(Arc::clone(volume), cache_budget).tree(root);
    count(volume, || tree.blocks(read_ahead))
}

/// As [`walk`], in the order of [`Tree::blocks_by_address`](crate::Tree::blocks_by_address).
#[must_use]
pub fn walk_by_address(volume: &Arc<Volume>, root: RootPointer, cache_budget: ByteCount) -> WalkCost {
    let tree = Forest::new(Arc::clone(volume), cache_budget).tree(root);
    count(volume, || tree.blocks_by_address())
}

fn count<Walk: Iterator<Item = Result<Visit>>>(volume: &Volume, start: impl FnOnce() -> Walk) -> WalkCost {
    let meter = Meter::start(volume);
    let (mut blocks, mut damaged): (u64, u64) = (0, 0);
    for visit in start() {
        match visit {
            Ok(_) => blocks = blocks.exact_add(1),
            Err(_) => damaged = damaged.exact_add(1),
        }
    }
    meter.stop(volume, blocks, damaged)
}

/// The pointers to all nodes and leaves of a tree, in order of address.
///
/// # Errors
/// When a block cannot be had: then its children's addresses are not known.
pub fn pointers_by_address(
    volume: &Arc<Volume>,
    root: RootPointer,
    cache_budget: ByteCount,
) -> Result<Vec<BlockPointer>> {
    let tree = Forest::new(Arc::clone(volume), cache_budget).tree(root);
    let visits = tree.blocks_by_address();
    let mut pointers = visits
        .map(|visit| Ok(visit?.pointer))
        .collect::<Result<Vec<BlockPointer>>>()?;
    pointers.sort_unstable_by_key(|pointer| pointer.logical);
    Ok(pointers)
}

/// Says whether a walk wants anything with a key of `[first, end)`; see
/// [`Tree::leaves_where`](crate::Tree::leaves_where).
pub type Wanted = fn(&Key, Option<&Key>) -> bool;

/// Walks the leaves of a tree that are wanted, in order of keys, with an empty cache. Counts leaves only, and among
/// the damaged blocks nodes too.
#[must_use]
pub fn walk_leaves(
    volume: &Arc<Volume>,
    root: RootPointer,
    cache_budget: ByteCount,
    read_ahead: ReadAhead,
    wanted: Wanted,
) -> WalkCost {
    let tree = Forest::new(Arc::clone(volume), cache_budget).tree(root);
    let meter = Meter::start(volume);
    let (mut blocks, mut damaged): (u64, u64) = (0, 0);
    let mut leaves = tree.leaves_where(.., read_ahead, wanted);
    loop {
        match leaves.next() {
            Ok(Some(_)) => blocks = blocks.exact_add(1),
            Ok(None) => return meter.stop(volume, blocks, damaged),
            Err(_) => damaged = damaged.exact_add(1),
        }
    }
}

/// The pointers to the leaves of a tree that are wanted, in order of address.
///
/// # Errors
/// When a node cannot be had: then its children's addresses are not known.
pub fn leaf_pointers_by_address(
    volume: &Arc<Volume>,
    root: RootPointer,
    cache_budget: ByteCount,
    wanted: Wanted,
) -> Result<Vec<BlockPointer>> {
    let tree = Forest::new(Arc::clone(volume), cache_budget).tree(root);
    let mut pointers = Vec::new();
    for visit in tree.blocks_in(BlockOrder::DepthDownTo(1), ReadAhead::sweep()) {
        let Visit { pointer, block } = visit?;
        let children = (0..block.item_count()).filter_map(|slot| pointer.child(&block, slot));
        pointers.extend(children.filter(|child| {
            // Clamp: a root begins left of everything.
            let first = child.first_key.unwrap_or(Key::MIN);
            child.level == 0 && wanted(&first, child.end_key.as_ref())
        }));
    }
    pointers.sort_unstable_by_key(|pointer| pointer.logical);
    Ok(pointers)
}

/// Reads and checks blocks in the order given, two windows of the size of a sweep's in flight. In order of
/// address this is the yardstick, which nothing that follows the tree can beat.
///
/// # Errors
/// When a block cannot be had.
pub fn read_in_order(volume: &Arc<Volume>, pointers: &[BlockPointer]) -> Result<WalkCost> {
    let reader = BlockReader::new(Arc::clone(volume));
    let node_bytes = u64::from(reader.node_bytes());
    let window_blocks = SWEEP_WINDOW.get().quotient(node_bytes).max(1);
    let meter = Meter::start(volume);
    let mut windows = pointers.chunks(window_blocks.narrow::<usize>());
    let mut started: VecDeque<_> = windows
        .by_ref()
        .take(2)
        .map(|window| (window, reader.start(window)))
        .collect();
    while let Some((window, reads)) = started.pop_front() {
        for (pointer, read) in window.iter().zip(reads) {
            reader.finish(read, pointer)?;
        }
        started.extend(windows.next().map(|window| (window, reader.start(window))));
    }
    let blocks = u64_of(pointers.len());
    Ok(meter.stop(volume, blocks, 0))
}

/// The devices' counters when the measurement began.
struct Meter {
    before: Vec<QueueStatistics>,
}

impl Meter {
    fn start(volume: &Volume) -> Self {
        Self {
            before: statistics(volume),
        }
    }

    fn stop(self, volume: &Volume, blocks: u64, damaged: u64) -> WalkCost {
        let node_bytes = u64::from(volume.block_format().node_bytes);
        let bytes = ByteCount::new(blocks.exact_mul(node_bytes));
        let mut cost = WalkCost {
            blocks,
            damaged,
            bytes,
            ..WalkCost::default()
        };
        for (after, before) in statistics(volume).iter().zip(&self.before) {
            let during = after.since(before);
            cost.elapsed = cost.elapsed.max(during.elapsed);
            cost.requests = cost.requests.exact_add(during.reads.requests);
            let bytes = ByteCount::new(during.reads.bytes);
            cost.request_bytes = cost.request_bytes.exact_add(bytes);
        }
        cost
    }
}

fn statistics(volume: &Volume) -> Vec<QueueStatistics> {
    volume
        .devices()
        .iter()
        .filter_map(|slot| slot.device().map(|device| device.statistics()))
        .collect()
}
