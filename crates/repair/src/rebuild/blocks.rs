//! Counting and packing the rebuilt trees.

use super::description::{Description, Guess, NewRoot, Sink};
use super::errors::{failed, of_caller, refused};
use buttress_exact::{Defect, Exact as _, u64_of};
use buttress_format::{ByteCount, Key, Logical, TreeBlock, TreeId};
use buttress_fs::{Error, Result};
use buttress_packing::{BlockFormat, BlockNote, BlockSink, Packer, Places, Shape};
use buttress_volume::{ExtentWrite, Volume};
use bytes::Bytes;
use std::collections::BTreeMap;

/// The most rounds in which the trees describe each other.
const ROUNDS: usize = 32;

/// The number of rounds after which the blocks get other places.
const ROUNDS_OF_A_LAYOUT: usize = 8;

/// The number of blocks that are written together.
const BLOCKS_AT_ONCE: usize = 256;

/// A sink that counts blocks.
struct Counting<'a> {
    format: &'a BlockFormat,
    trees: BTreeMap<TreeId, Shape>,
    order: Order,
}

/// The last key of each tree, to assert the order of items.
#[derive(Default)]
struct Order(BTreeMap<TreeId, Key>);

impl Order {
    fn check(&mut self, tree: TreeId, key: &Key) -> Result<()> {
        match self.0.insert(tree, *key) {
            Some(last) if last >= *key => Err(Defect::new("the items of a rebuilt tree are out of order")
                .with("tree", tree.get())
                .with("objectid", key.objectid.get())
                .into()),
            _ => Ok(()),
        }
    }
}

impl Sink for Counting<'_> {
    fn put(&mut self, tree: TreeId, key: &Key, data: &[u8]) -> Result<()> {
        self.order.check(tree, key)?;
        let shape = self.trees.entry(tree).or_insert_with(|| Shape::new(self.format));
        shape.push(key, data.len());
        Ok(())
    }
}

/// A pool of addresses for new blocks.
struct Pool<'a> {
    free: &'a mut dyn Iterator<Item = Logical>,
    taken: Vec<Logical>,
}

impl<'a> Pool<'a> {
    const fn new(free: &'a mut dyn Iterator<Item = Logical>) -> Self {
        Self {
            free,
            taken: Vec::new(),
        }
    }

    /// Returns the first `count` addresses.
    fn first(&mut self, count: usize, format: &BlockFormat) -> Result<&[Logical]> {
        while self.taken.len() < count {
            let needed = count.exact_sub(self.taken.len());
            let place = self.free.next().ok_or(Error::NoSpace {
                what: "the blocks of the rebuilt trees",
                wanted: ByteCount::new(u64_of(needed).exact_mul(format.node_bytes.into())),
                pinned_by_readers: ByteCount::ZERO,
                reclaimable: None,
            })?;
            self.taken.push(place);
        }
        let first = self.taken.get(..count);
        Ok(first.ok_or_else(|| Defect::new("a block without a place"))?)
    }

    /// Passes over the first address.
    fn skip(&mut self) {
        if !self.taken.is_empty() {
            self.taken.remove(0);
        }
    }
}

/// Finds the blocks of the rebuilt trees, and an address for each of them. The blocks of the chunk
/// tree are in `system`, and all others in `metadata`.
pub(super) fn settle(
    description: &Description<'_>,
    format: &BlockFormat,
    metadata: &mut dyn Iterator<Item = Logical>,
    system: &mut dyn Iterator<Item = Logical>,
) -> Result<(Guess, Vec<Logical>)> {
    let (mut metadata, mut system) = (Pool::new(metadata), Pool::new(system));
    let mut guess = Guess::default();
    for tree in &description.replaced {
        guess.trees.push((*tree, vec![(0, Key::MIN)]));
    }
    for round in 1..=ROUNDS {
        let of_chunks = guess.blocks_of(TreeId::CHUNK);
        let others = guess.blocks().exact_sub(of_chunks);
        // The chunk tree is the last one.
        let mut places = metadata.first(others, format)?.to_vec();
        places.extend_from_slice(system.first(of_chunks, format)?);
        let mut counting = Counting {
            format,
            trees: BTreeMap::new(),
            order: Order::default(),
        };
        description.describe(&guess, &places, &mut counting)?;
        let mut counted = Guess::default();
        for tree in &description.replaced {
            // A tree without items is one empty leaf.
            let shape = counting.trees.remove(tree);
            let shape = shape.unwrap_or_else(|| Shape::new(format));
            counted.trees.push((*tree, shape.finish()));
        }
        if counted == guess {
            return Ok((guess, places));
        }
        guess = counted;
        if round.remainder(ROUNDS_OF_A_LAYOUT) == 0 {
            // A further block can join two free ranges, whose items then need one block less. Other
            // places end such a cycle.
            metadata.skip();
        }
    }
    Err(refused("the blocks of the rebuilt trees do not settle"))
}

/// The blocks of one tree, on their way to the volume.
struct Out<'a> {
    volume: &'a Volume,
    places: core::slice::Iter<'a, Logical>,
    batch: Vec<ExtentWrite>,
}

impl Out<'_> {
    fn flush(&mut self) -> Result<()> {
        let written = self.volume.write(&self.batch);
        self.batch.clear();
        Ok(written?)
    }
}

impl Places for Out<'_> {
    fn next(&mut self) -> buttress_packing::Result<Logical> {
        let place = self.places.next();
        place
            .copied()
            .ok_or_else(|| of_caller(Defect::new("a rebuilt tree has more blocks than were counted").into()))
    }
}

impl BlockSink for Out<'_> {
    fn put(&mut self, _: &BlockNote, block: &TreeBlock) -> buttress_packing::Result<()> {
        self.batch.push(ExtentWrite {
            logical: block.logical(),
            bytes: Bytes::copy_from_slice(block.bytes()),
        });
        match self.batch.len() >= BLOCKS_AT_ONCE {
            true => self.flush().map_err(of_caller),
            false => Ok(()),
        }
    }
}

/// A sink that packs items into blocks and writes the blocks.
struct Packing<'a> {
    trees: BTreeMap<TreeId, (Packer, Out<'a>)>,
    order: Order,
}

impl Sink for Packing<'_> {
    fn put(&mut self, tree: TreeId, key: &Key, data: &[u8]) -> Result<()> {
        self.order.check(tree, key)?;
        let packed = self.trees.get_mut(&tree);
        let (packer, out) = packed.ok_or_else(|| Defect::new("an item of a tree that is not rebuilt"))?;
        packer.push(out, key, data).map_err(failed)
    }
}

/// Packs the rebuilt trees and writes their blocks. Returns their roots.
pub(super) fn write(
    description: &Description<'_>,
    format: BlockFormat,
    guess: &Guess,
    places: &[Logical],
) -> Result<Vec<NewRoot>> {
    let volume: &Volume = description.filesystem.volume();
    let mut trees = BTreeMap::new();
    let mut rest = places;
    for (tree, blocks) in &guess.trees {
        let (own, after) = rest
            .split_at_checked(blocks.len())
            .ok_or_else(|| Defect::new("a rebuilt tree without places"))?;
        rest = after;
        let out = Out {
            volume,
            places: own.iter(),
            batch: Vec::new(),
        };
        trees.insert(*tree, (Packer::new(*tree, format), out));
    }
    let mut packing = Packing {
        trees,
        order: Order::default(),
    };
    description.describe(guess, places, &mut packing)?;
    let expected = Description::roots(guess, places)?;
    for root in &expected {
        let packed = packing.trees.remove(&root.tree);
        let (packer, mut out) = packed.ok_or_else(|| Defect::new("a tree is packed twice"))?;
        let (packed, _) = packer.finish(&mut out).map_err(failed)?;
        out.flush()?;
        let is_expected =
            (packed.logical, packed.level, packed.blocks) == (root.logical, root.level, root.blocks);
        if !is_expected {
            return Err(Defect::new("a rebuilt tree is not as it was counted")
                .with("tree", root.tree.get())
                .with("blocks", packed.blocks)
                .with("counted", root.blocks)
                .into());
        }
    }
    Ok(expected)
}
