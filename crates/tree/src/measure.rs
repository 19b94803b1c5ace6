//! The cost of a tree walk in each read-ahead mode, compared with reading the same blocks in
//! address order.
//!
//! The measurement is meant for simulated devices: time is virtual there, and two runs yield the
//! same numbers. On real devices, the comparison measures real time. Each measured walk has a
//! separate forest, so the walk begins with an empty node cache.

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

/// The cost of a walk over all nodes and leaves of a tree.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WalkCost {
    /// The number of readable nodes and leaves.
    pub blocks: u64,
    /// The number of unreadable nodes and leaves.
    pub damaged: u64,
    /// The total size of the readable blocks, in bytes.
    pub bytes: ByteCount,
    /// The duration by the devices' clock, which is virtual for simulated devices.
    pub elapsed: Duration,
    /// The number of requests to the devices after merging.
    pub requests: u64,
    /// The bytes that the counted requests read.
    pub request_bytes: ByteCount,
}

impl WalkCost {
    /// Returns the mean size of a request, or zero if there was none.
    #[must_use]
    pub fn mean_request_bytes(&self) -> ByteCount {
        ByteCount::new(self.request_bytes.get().quotient(self.requests))
    }
}

/// A row of the table that [`compare`] makes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Comparison {
    /// The name of the measured mode or of the reference.
    pub name: &'static str,
    /// The cost of the walk.
    pub cost: WalkCost,
}

/// Walks a tree in every mode, from [`ReadAhead::None`] to [`ReadAhead::sweep`], then by address.
/// Finally, the measurement reads the same blocks in address order without following the tree.
///
/// `fresh` opens the volume for each row, so that a drive's own cache does not help the next row.
///
/// # Errors
/// Fails if `fresh` fails, or if an unreadable block hides the list of blocks for the last row. The
/// walks count damaged blocks and do not fail.
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

/// Walks a tree like [`walk`], in the order of
/// [`Tree::blocks_by_address`](crate::Tree::blocks_by_address).
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

/// Returns the pointers to all nodes and leaves of a tree, in address order.
///
/// # Errors
/// Fails if a block cannot be read, because its children's addresses are then unknown.
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

/// A predicate: true if a walk wants any key of `[first, end)`; see
/// [`Tree::leaves_where`](crate::Tree::leaves_where).
pub type Wanted = fn(&Key, Option<&Key>) -> bool;

/// Walks the wanted leaves of a tree in key order, with an empty cache. The walk counts only leaves
/// as blocks, but counts damaged nodes too.
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

/// Returns the pointers to the wanted leaves of a tree, in address order.
///
/// # Errors
/// Fails if a node cannot be read, because its children's addresses are then unknown.
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
            // Clamp: a root begins before every key.
            let first = child.first_key.unwrap_or(Key::MIN);
            child.level == 0 && wanted(&first, child.end_key.as_ref())
        }));
    }
    pointers.sort_unstable_by_key(|pointer| pointer.logical);
    Ok(pointers)
}

/// Reads and checks blocks in the given order, with two windows of a sweep's size in flight. If the
/// pointers are in address order, this read is the reference: no walk that follows the tree can be
/// faster.
///
/// # Errors
/// Fails if a block cannot be read.
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

/// The values of the devices' counters at the beginning of the measurement.
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
