//! Sums for every owner, of figures that apply to runs of owners.
//!
//! A binary tree spans all owners. A run is added to at most two nodes of each level, and an
//! owner's sum is the sum of the nodes above it. Adding figures to a run of a thousand owners thus
//! takes some twenty steps, not a thousand. With hundreds of snapshots, the number of different
//! sets can equal the number of pairs of snapshots.

use super::figures::Sum;
use super::owners::OwnerIndex;
use super::sets::Run;
use buttress_exact::Exact as _;

/// The sums.
#[derive(Debug)]
pub(super) struct RangeSums<T> {
    /// The nodes below the node at `n` are at `2n` and `2n + 1`; owners are at `leaves` and after
    /// it.
    nodes: Vec<T>,
    leaves: usize,
}

impl<T: Sum + Default> RangeSums<T> {
    /// Returns zero sums for `owners` owners.
    pub(super) fn new(owners: usize) -> Self {
        let leaves = owners.max(1);
        Self {
            nodes: vec![T::default(); leaves.exact_mul(2)],
            leaves,
        }
    }

    /// Adds figures to the sums of every owner of a set.
    pub(super) fn add(&mut self, runs: &[Run], figures: &T) {
        for (start, end) in runs {
            let (mut start, mut end) = (self.leaf(*start), self.leaf(*end));
            while start < end {
                if start & 1 == 1 {
                    self.add_to(start, figures);
                    start = start.exact_add(1);
                }
                if end & 1 == 1 {
                    end = end.exact_sub(1);
                    self.add_to(end, figures);
                }
                start >>= 1;
                end >>= 1;
            }
        }
    }

    fn leaf(&self, owner: OwnerIndex) -> usize {
        let index = owner.narrow::<usize>();
        index.min(self.leaves).exact_add(self.leaves)
    }

    fn add_to(&mut self, node: usize, figures: &T) {
        if let Some(sum) = self.nodes.get_mut(node) {
            sum.add(figures, 1);
        }
    }

    /// Returns the sum of one owner.
    pub(super) fn of(&self, owner: OwnerIndex) -> T {
        let mut sum = T::default();
        let mut node = self.leaf(owner);
        while node > 0 {
            if let Some(figures) = self.nodes.get(node) {
                sum.add(figures, 1);
            }
            node >>= 1;
        }
        sum
    }
}

#[cfg(test)]
mod tests {
    use super::super::figures::Occupied;
    use super::*;
    use buttress_format::ByteCount;

    #[test]
    fn sums_equal_adding_one_by_one() {
        let mut state = 5_u32;
        let mut random = |below: u32| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) % below
        };
        for owners in [1, 2, 3, 7, 8, 9, 100, 257] {
            let mut sums = RangeSums::new(owners as usize);
            let mut naive = vec![0_u64; owners as usize];
            for _ in 0..300 {
                let (a, b) = (random(owners + 1), random(owners + 1));
                let (run, bytes) = ((a.min(b), a.max(b)), u64::from(random(1000)));
                let figures = Occupied {
                    metadata: ByteCount::new(bytes),
                    ..Occupied::default()
                };
                sums.add(&[run], &figures);
                for owner in run.0..run.1 {
                    naive[owner as usize] += bytes;
                }
            }
            let found: Vec<u64> = (0..owners).map(|owner| sums.of(owner).metadata.get()).collect();
            assert_eq!(found, naive, "{owners} owners");
        }
    }
}
