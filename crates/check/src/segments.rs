//! Segments: parts of trees that belong together, through whichever tree they are reached.
//!
//! Every root begins a segment, and so does every tree block with more than one reference. An edge
//! leads from the segment of a pointer to the segment of the shared block to which it points.
//! Levels decrease along edges, so the sums over everything that a tree reaches are computed from
//! the lowest level up.

use crate::roots::Root;
use buttress_exact::Exact as _;
use buttress_format::{Generation, Key, Logical};
use buttress_tree::BlockPointer;
use parking_lot::Mutex;
use std::collections::HashMap;

/// The most edges that are kept. With more edges, the check does not use the sums, and checks every
/// subvolume item by item.
const EDGES_MAX: usize = 8 << 20;

/// The expectations of the first pointer to a shared block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    generation: Generation,
    level: u8,
    first_key: Option<Key>,
    end_key: Option<Key>,
}

impl Found {
    pub(crate) const fn of(pointer: &BlockPointer) -> Self {
        Self {
            generation: pointer.generation,
            level: pointer.level,
            first_key: pointer.first_key,
            end_key: pointer.end_key,
        }
    }
}

/// Edges that one thread found.
#[derive(Debug, Default)]
pub(crate) struct Edges {
    list: Vec<(u32, u32)>,
    overflown: bool,
}

impl Edges {
    pub(crate) fn add(&mut self, from: u32, to: u32) {
        if self.list.len() < EDGES_MAX {
            self.list.push((from, to));
        } else {
            self.overflown = true;
        }
    }
}

/// All segments. The segment of a root has the number of the root.
#[derive(Debug)]
pub(crate) struct Segments {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    by_block: HashMap<Logical, (u32, Found)>,
    levels: Vec<u8>,
    sums: Vec<u64>,
    edges: Vec<(u32, u32)>,
    damaged: Vec<u32>,
    overflown: bool,
}

impl Segments {
    pub(crate) fn new(roots: &[Root]) -> Self {
        let mut inner = Inner::default();
        for (root, number) in roots.iter().zip(0_u32..) {
            // The level is one more than the block's: a shared root has an edge to itself as a
            // block.
            inner.levels.push(root.pointer.level.saturating_add(1));
            let found = Found::of(&BlockPointer::root(&root.pointer));
            inner.by_block.insert(root.pointer.logical, (number, found));
        }
        Self {
            inner: Mutex::new(inner),
        }
    }

    /// Returns the segment that a shared block begins, and the expectations of the first pointer to
    /// it.
    pub(crate) fn of_block(&self, pointer: &BlockPointer) -> (u32, Found) {
        let inner = &mut *self.inner.lock();
        let next = u32::try_from(inner.levels.len()).unwrap_or(u32::MAX);
        let known = inner.by_block.entry(pointer.logical).or_insert_with(|| {
            inner.levels.push(pointer.level);
            (next, Found::of(pointer))
        });
        *known
    }

    /// Adds the results of one thread.
    pub(crate) fn add(&self, sums: Vec<u64>, edges: Edges, damaged: &[u32]) {
        let inner = &mut *self.inner.lock();
        if inner.sums.len() < sums.len() {
            inner.sums.resize(sums.len(), 0);
        }
        for (total, sum) in inner.sums.iter_mut().zip(sums) {
            *total = total.wrapping_add(sum);
        }
        inner.damaged.extend_from_slice(damaged);
        inner.overflown |= edges.overflown;
        if inner.edges.len().saturating_add(edges.list.len()) > EDGES_MAX {
            inner.overflown = true;
        } else {
            inner.edges.extend(edges.list);
        }
    }

    /// Returns the number of segments.
    pub(crate) fn len(&self) -> usize {
        self.inner.lock().levels.len()
    }

    /// Returns for every root the sum of everything it reaches; `None` for a root with an
    /// unreadable part. Returns `None` if there were too many edges.
    pub(crate) fn totals(&self) -> Option<Vec<Option<u64>>> {
        let inner = &mut *self.inner.lock();
        if inner.overflown {
            return None;
        }
        let count = inner.levels.len();
        let mut totals: Vec<Option<u64>> = inner.sums.iter().map(|sum| Some(*sum)).collect();
        totals.resize(count, Some(0));
        for damaged in &inner.damaged {
            if let Some(total) = totals.get_mut(index(*damaged)) {
                *total = None;
            }
        }
        inner.sort();
        for (from, to) in &inner.edges {
            let below = totals.get(index(*to)).copied().flatten();
            if let Some(total) = totals.get_mut(index(*from)) {
                *total = total.zip(below).map(|(total, below)| total.wrapping_add(below));
            }
        }
        Some(totals)
    }

    /// Returns for every segment which of the numbered roots reach it, as bits in words; `roots`
    /// maps counted roots to numbers.
    pub(crate) fn reaching(&self, roots: &[Option<u32>], words: usize) -> Option<Vec<u64>> {
        let inner = &mut *self.inner.lock();
        if inner.overflown {
            return None;
        }
        let count = inner.levels.len();
        let mut bits = vec![0_u64; count.checked_mul(words)?];
        for (root, number) in roots.iter().enumerate() {
            if let Some(number) = number {
                let word = root.checked_mul(words)?.checked_add(index(number >> 6))?;
                *bits.get_mut(word)? |= 1 << (number & 63);
            }
        }
        inner.sort();
        for (from, to) in inner.edges.iter().rev() {
            for word in 0..words {
                let source = index(*from).checked_mul(words)?.checked_add(word)?;
                let target = index(*to).checked_mul(words)?.checked_add(word)?;
                let value = *bits.get(source)?;
                *bits.get_mut(target)? |= value;
            }
        }
        Some(bits)
    }
}

fn index(number: u32) -> usize {
    number.narrow::<usize>()
}

impl Inner {
    /// Sorts edges by the level at which they begin, so that a segment is complete before its sum
    /// is added.
    fn sort(&mut self) {
        let levels = &self.levels;
        let level = |segment: u32| levels.get(index(segment)).copied().unwrap_or(0);
        self.edges
            .sort_unstable_by_key(|(from, to)| (level(*from), *from, *to));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use buttress_format::TreeId;
    use buttress_tree::RootPointer;
    use uuid::Uuid;

    fn root(tree: u64, logical: u64, level: u8) -> Root {
        Root {
            pointer: RootPointer {
                tree: TreeId::new(tree),
                logical: Logical::new(logical),
                generation: Generation::new(1),
                level,
            },
            key_offset: 0,
            dropped: None,
            dead: false,
            unreferenced: false,
            last_snapshot: Generation::MIN,
            uuid: Uuid::nil(),
            received_uuid: Uuid::nil(),
        }
    }

    fn block(logical: u64, level: u8) -> BlockPointer {
        BlockPointer {
            level,
            ..BlockPointer::root(&root(256, logical, level).pointer)
        }
    }

    #[test]
    fn shared_segments_count_for_each_tree() {
        let roots = [root(256, 1, 3), root(257, 2, 3), root(258, 3, 0)];
        let segments = Segments::new(&roots);
        let (middle, _) = segments.of_block(&block(100, 2));
        let (leaf, _) = segments.of_block(&block(200, 0));
        assert_eq!(segments.of_block(&block(100, 2)).0, middle);
        assert_eq!((middle, leaf), (3, 4));
        let mut edges = Edges::default();
        for (from, to) in [(0, middle), (middle, leaf), (1, middle), (1, leaf)] {
            edges.add(from, to);
        }
        segments.add(vec![1, 10, 5, 100, 1000], edges, &[]);
        let totals = segments.totals().unwrap();
        assert_eq!(totals[..3], [Some(1101), Some(2110), Some(5)]);
        let bits = segments.reaching(&[Some(0), Some(1), Some(2)], 1).unwrap();
        assert_eq!(bits, [1, 2, 4, 3, 3]);
        segments.add(Vec::new(), Edges::default(), &[leaf]);
        assert_eq!(segments.totals().unwrap()[..3], [None, None, Some(5)]);
    }
}
