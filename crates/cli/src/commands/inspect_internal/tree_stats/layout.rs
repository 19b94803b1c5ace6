//! Layout of a tree's blocks in the address space.
//!
//! A walk of a tree in key order reads a node, then its children one after another. A child that
//! does not begin at the end of the previously read block (the node itself, for the first child)
//! causes a seek. Runs between two seeks are clusters. Each node counts separately: a run does not
//! continue across nodes, and the last run of a node does not count. btrfs-progs counts in this
//! way, and this module reproduces its figures.

use buttress_exact::Exact as _;
use std::collections::BTreeMap;
use std::io::{self, Write};

/// Counters over the tree nodes that were added.
#[derive(Debug)]
pub(super) struct Layout {
    node_bytes: u64,
    /// Number of blocks by level.
    blocks: Vec<u64>,
    lowest: u64,
    highest: u64,
    /// Number of children at a higher address than the end of the previously read block.
    pub(super) forward_seeks: u64,
    /// Number of seeks to a child that is located before the previously read block.
    pub(super) backward_seeks: u64,
    seek_bytes: u64,
    /// Distances of the seeks.
    pub(super) distances: Histogram,
    cluster_count: u64,
    cluster_bytes: u64,
    cluster_min_bytes: u64,
    cluster_max_bytes: u64,
}

/// Statistics of runs of blocks without a seek.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Clusters {
    pub(super) count: u64,
    pub(super) mean_bytes: u64,
    pub(super) min_bytes: u64,
    pub(super) max_bytes: u64,
}

impl Layout {
    /// Creates the counters of a tree with only its root.
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

    /// The distance is from the end of the previous block to the start of the child.
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

    /// Returns the number of nodes and leaves.
    pub(super) fn blocks(&self) -> u64 {
        self.blocks.iter().copied().fold(0, u64::saturating_add)
    }

    /// Returns the number of blocks of one level.
    pub(super) fn blocks_on(&self, level: u8) -> u64 {
        self.blocks.get(usize::from(level)).copied().unwrap_or(0)
    }

    /// Returns the average number of children of a node at this level; `None` for leaves.
    pub(super) fn mean_fanout(&self, level: u8) -> Option<u64> {
        self.blocks_on(level.checked_sub(1)?)
            .checked_div(self.blocks_on(level))
    }

    /// Returns the size of all blocks in bytes.
    pub(super) fn total_bytes(&self) -> u64 {
        self.blocks().saturating_mul(self.node_bytes)
    }

    /// Returns the number of all seeks, forward and backward.
    pub(super) fn seeks(&self) -> u64 {
        self.forward_seeks.saturating_add(self.backward_seeks)
    }

    /// Returns the average distance of a seek.
    pub(super) fn mean_seek_bytes(&self) -> u64 {
        self.seek_bytes.checked_div(self.seeks()).unwrap_or(0)
    }

    /// Returns the clusters. A tree without any seeks counts as one cluster.
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

    /// Returns the distance from the lowest block to the highest.
    pub(super) fn spread_bytes(&self) -> u64 {
        self.highest.saturating_sub(self.lowest)
    }
}

/// Number of occurrences of each distance.
#[derive(Debug, Default)]
pub(super) struct Histogram {
    counts: BTreeMap<u64, u64>,
    total: u64,
}

/// Smallest number of seeks for which a histogram is printed.
const HISTOGRAM_SEEKS_MIN: u64 = 20;
/// Number of marks that stand for all seeks.
const MARKS: u64 = 20;
/// Largest number of marks of a rare distance, which is grouped with adjacent ones.
const FEW_MARKS: u64 = 2;

impl Histogram {
    fn add(&mut self, distance: u64) {
        let count = self.counts.entry(distance).or_default();
        *count = count.saturating_add(1);
        self.total = self.total.saturating_add(1);
    }

    /// Prints a bar for each frequent distance, and for the ranges of rare ones between them.
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

    /// Groups rare distances until their sum is no longer rare, or a frequent distance follows. If
    /// a rare distance ends a group, it is not shown, as in btrfs-progs.
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
        // Node at 100, blocks of 10: 110 follows it; 130 is 10 away; 140 follows; 50 is 100 before
        // the end of 140.
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
        // Each mark of the bar stands for 3 of 60 seeks. In this example, groups close at 9 (3
        // marks), and each omits the distance after it.
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
