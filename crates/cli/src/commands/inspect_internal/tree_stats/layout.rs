//! How the blocks of a tree lie in the address space.
//!
//! A walk in order of the keys reads, after a node, its children one after the other. Where a child does not
//! begin at the end of what was read before it (the node itself, for the first child), that is a seek; runs
//! between two seeks are clusters. Each node is looked at by itself: a run does not go on across nodes, and the
//! last run of a node is not counted. That is how btrfs-progs counts, and its figures are reproduced.

use buttress_exact::Exact as _;
use std::collections::BTreeMap;
use std::io::{self, Write};

/// Counters over the nodes that were added.
#[derive(Debug)]
pub(super) struct Layout {
    node_bytes: u64,
    /// Blocks by level.
    blocks: Vec<u64>,
    lowest: u64,
    highest: u64,
    /// Children that lie behind what was read before them.
    pub(super) forward_seeks: u64,
    /// Children that lie before it.
    pub(super) backward_seeks: u64,
    seek_bytes: u64,
    /// How far the seeks went.
    pub(super) distances: Histogram,
    cluster_count: u64,
    cluster_bytes: u64,
    cluster_min_bytes: u64,
    cluster_max_bytes: u64,
}

/// Runs of blocks without a seek.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Clusters {
    pub(super) count: u64,
    pub(super) mean_bytes: u64,
    pub(super) min_bytes: u64,
    pub(super) max_bytes: u64,
}

impl Layout {
    /// A tree of which only the root is known so far.
    pub(super) fn new(root: u64, node_bytes: u32, root_level: u8) -> Self {
        let mut blocks = vec![0; usize::from(root_level).saturating_add(1)];
        if let Some(count) = blocks.last_mut() {
            *count = 1;
        }
        let node_bytes = u64::from(node_bytes);
        Self {
            node_bytes,
            blocks,
            lowest: root,
            highest: root,
            forward_seeks: 0,
            backward_seeks: 0,
            seek_bytes: 0,
            distances: Histogram::default(),
            cluster_count: 0,
            cluster_bytes: 0,
            cluster_min_bytes: u64::MAX,
            cluster_max_bytes: node_bytes,
        }
    }

    /// Adds the children of a node.
    pub(super) fn add_node(&mut self, level: u8, address: u64, children: impl Iterator<Item = u64>) {
        let mut before = address;
        let mut run_bytes = self.node_bytes;
        let mut count = 0u64;
        for child in children {
            count = count.saturating_add(1);
            self.lowest = self.lowest.min(child);
            self.highest = self.highest.max(child);
            let end = before.saturating_add(self.node_bytes);
            if child == end {
                run_bytes = run_bytes.saturating_add(self.node_bytes);
            } else {
                self.add_seek(before, child);
                if run_bytes != self.node_bytes {
                    self.add_cluster(run_bytes);
                }
                run_bytes = self.node_bytes;
            }
            before = child;
        }
        let below = usize::from(level)
            .checked_sub(1)
            .and_then(|level| self.blocks.get_mut(level));
        if let Some(blocks) = below {
            *blocks = blocks.saturating_add(count);
        }
    }

    /// The way is from the end of the block before to the start of the child.
    fn add_seek(&mut self, before: u64, child: u64) {
        if before < child {
            self.forward_seeks = self.forward_seeks.saturating_add(1);
        } else {
            self.backward_seeks = self.backward_seeks.saturating_add(1);
        }
        let distance = before.saturating_add(self.node_bytes).abs_diff(child);
        self.seek_bytes = self.seek_bytes.saturating_add(distance);
        self.distances.add(distance);
    }

    fn add_cluster(&mut self, bytes: u64) {
        self.cluster_count = self.cluster_count.saturating_add(1);
        self.cluster_bytes = self.cluster_bytes.saturating_add(bytes);
        self.cluster_min_bytes = self.cluster_min_bytes.min(bytes);
        self.cluster_max_bytes = self.cluster_max_bytes.max(bytes);
    }

    /// Nodes and leaves together.
    pub(super) fn blocks(&self) -> u64 {
        self.blocks.iter().copied().fold(0, u64::saturating_add)
    }

    /// Blocks of one level.
    pub(super) fn blocks_on(&self, level: u8) -> u64 {
        self.blocks.get(usize::from(level)).copied().unwrap_or(0)
    }

    /// Children of a node of this level on average; none for leaves.
    pub(super) fn mean_fanout(&self, level: u8) -> Option<u64> {
        self.blocks_on(level.checked_sub(1)?)
            .checked_div(self.blocks_on(level))
    }

    /// Bytes of all blocks.
    pub(super) fn total_bytes(&self) -> u64 {
        self.blocks().saturating_mul(self.node_bytes)
    }

    /// All seeks.
    pub(super) fn seeks(&self) -> u64 {
        self.forward_seeks.saturating_add(self.backward_seeks)
    }

    /// How far a seek goes on average.
    pub(super) fn mean_seek_bytes(&self) -> u64 {
        self.seek_bytes.checked_div(self.seeks()).unwrap_or(0)
    }

    /// The clusters. Without any the tree counts as one.
    pub(super) fn clusters(&self) -> Clusters {
        if self.cluster_count == 0 {
            return Clusters {
                count: 1,
                mean_bytes: 0,
                min_bytes: 0,
                max_bytes: self.cluster_max_bytes,
            };
        }
        Clusters {
            count: self.cluster_count,
            mean_bytes: self.cluster_bytes.checked_div(self.cluster_count).unwrap_or(0),
            min_bytes: self.cluster_min_bytes,
            max_bytes: self.cluster_max_bytes,
        }
    }

    /// From the lowest block to the highest.
    pub(super) fn spread_bytes(&self) -> u64 {
        self.highest.saturating_sub(self.lowest)
    }
}

/// How often each distance occurred.
#[derive(Debug, Default)]
pub(super) struct Histogram {
    counts: BTreeMap<u64, u64>,
    total: u64,
}

/// Below this many seeks there is nothing to see.
const HISTOGRAM_SEEKS_MIN: u64 = 20;
/// One mark is this part of all seeks.
const MARKS: u64 = 20;
/// Distances with at most this many marks are gathered with their neighbours.
const FEW_MARKS: u64 = 2;

impl Histogram {
    fn add(&mut self, distance: u64) {
        let count = self.counts.entry(distance).or_default();
        *count = count.saturating_add(1);
        self.total = self.total.saturating_add(1);
    }

    /// Prints a bar for each distance that is frequent, and for the ranges of rare ones between them.
    pub(super) fn print(&self, out: &mut impl Write) -> io::Result<()> {
        if self.total < HISTOGRAM_SEEKS_MIN {
            return Ok(());
        }
        let largest = self.counts.last_key_value().map_or(0, |(distance, _)| *distance);
        let width = largest.to_string().len();
        writeln!(out, "\tSeek histogram")?;
        for bar in self.bars() {
            let Bar {
                first,
                last,
                count,
                marks,
            } = bar;
            let marks = marks.narrow::<usize>();
            let drawn = if marks == 0 {
                "|".to_owned()
            } else {
                "#".repeat(marks)
            };
            writeln!(out, "\t\t{first:width$} - {last:width$}: {count:width$} {drawn}")?;
        }
        Ok(())
    }

    /// Rare distances are gathered until their sum is no longer rare, or a frequent one comes; the distance
    /// that ends a group that way and is rare itself is not shown. So does btrfs-progs.
    fn bars(&self) -> Vec<Bar> {
        let marks = |count: u64| count.checked_div(self.total / MARKS).unwrap_or(0);
        let mut bars = Vec::new();
        let mut group: Option<Bar> = None;
        for (&distance, &count) in &self.counts {
            let gathered = group.as_ref().map_or(0, |group| marks(group.count));
            let rare = marks(count) <= FEW_MARKS;
            if rare && gathered <= FEW_MARKS {
                let group = group.get_or_insert(Bar {
                    first: distance,
                    last: distance,
                    count: 0,
                    marks: 0,
                });
                group.last = distance;
                group.count = group.count.saturating_add(count);
                continue;
            }
            bars.extend(group.take().map(|group| Bar {
                marks: gathered,
                ..group
            }));
            if !rare {
                bars.push(Bar {
                    first: distance,
                    last: distance,
                    count,
                    marks: marks(count),
                });
            }
        }
        bars.extend(group.map(|group| Bar {
            marks: marks(group.count),
            ..group
        }));
        bars
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Bar {
    first: u64,
    last: u64,
    count: u64,
    marks: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_and_seeks_of_one_node() {
        // Node at 100, blocks of 10: 110 follows it; 130 is 10 away; 140 follows; from its end, 50 is back by 100.
        let mut layout = Layout::new(100, 10, 1);
        layout.add_node(1, 100, [110, 130, 140, 50].into_iter());
        assert_eq!((layout.forward_seeks, layout.backward_seeks), (1, 1));
        assert_eq!(layout.seek_bytes, 10 + 100);
        assert_eq!(
            layout.clusters(),
            Clusters {
                count: 2,
                mean_bytes: 20,
                min_bytes: 20,
                max_bytes: 20
            }
        );
        assert_eq!(layout.spread_bytes(), 90);
        assert_eq!(layout.blocks(), 5);
        assert_eq!(layout.mean_fanout(1), Some(4));
        assert_eq!(layout.mean_fanout(0), None);
    }

    #[test]
    fn a_tree_of_one_leaf_is_one_cluster() {
        let layout = Layout::new(4096, 4096, 0);
        assert_eq!(
            layout.clusters(),
            Clusters {
                count: 1,
                mean_bytes: 0,
                min_bytes: 0,
                max_bytes: 4096
            }
        );
        assert_eq!(layout.total_bytes(), 4096);
        assert_eq!(layout.mean_seek_bytes(), 0);
    }

    #[test]
    fn rare_distances_are_gathered() {
        let mut histogram = Histogram::default();
        for distance in 1..=40 {
            histogram.add(distance);
        }
        for _ in 0..20 {
            histogram.add(1000);
        }
        // 60 seeks: a mark is 3 of them. Groups close at 9 (3 marks), and each swallows the distance after it.
        let bars = histogram.bars();
        assert_eq!(
            bars.first(),
            Some(&Bar {
                first: 1,
                last: 9,
                count: 9,
                marks: 3
            })
        );
        assert_eq!(bars.get(1).map(|bar| bar.first), Some(11));
        assert_eq!(
            bars.last(),
            Some(&Bar {
                first: 1000,
                last: 1000,
                count: 20,
                marks: 6
            })
        );
    }
}
