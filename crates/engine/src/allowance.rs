//! The maximum number of nodes that an edit or a commit may allocate, compared with its actual
//! number. Builds with debug assertions compare the two numbers.
//!
//! An edit that allocates more nodes than its need allows may leave a commit without space. A
//! commit without space loses the transaction. [`Allowance`] compares the allowed and the allocated
//! nodes at the end of each edit. [`CommitAllowance`] compares the nodes of a commit with its
//! reservation.
//!
//! Left out: edits that keep a promise ([`super::reservation::Claim::Reserved`]) may use all of
//! their places, although they reserve fewer.

#[cfg(debug_assertions)]
use super::reservation::Need;
use super::running::Running;
#[cfg(debug_assertions)]
use super::worst_case::PLACES_OF_COMMIT;
use buttress_exact::Exact as _;
#[cfg(debug_assertions)]
use buttress_exact::u64_of;

/// The most nodes that an edit may allocate, and the state at the start of the edit.
#[cfg(debug_assertions)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Allowance {
    need: Need,
    nodes_before: u64,
    nodes_max: u64,
    groups_before: usize,
}

#[cfg(debug_assertions)]
impl Allowance {
    pub(crate) fn of(need: Need, running: &Running) -> Self {
        let (shape, nodes_before) = running.block_reserve().shape();
        Self {
            need,
            nodes_before,
            nodes_max: shape.edited_nodes(need.places),
            groups_before: running.core.groups.iter().count(),
        }
    }

    /// Asserts that the edit allocated no more nodes than it may. The nodes that a new data chunk
    /// needs count for the commit, not for the edit.
    pub(crate) fn check(self, running: &Running) {
        let (shape, nodes) = running.block_reserve().shape();
        let groups = running.core.groups.iter().count();
        // An edit never removes a block group, so the difference is the number of new chunks.
        let chunks = u64_of(groups.exact_sub(self.groups_before));
        let chunk_nodes = chunks.exact_mul(shape.edited_nodes(PLACES_OF_COMMIT));
        // Clamp: an edit may free new nodes, and the tree then has fewer nodes than at the start.
        let taken = nodes.saturating_sub(self.nodes_before);
        assert!(
            taken <= self.nodes_max.exact_add(chunk_nodes),
            "an edit took {taken} nodes and may take {}: {:?}, {shape:?}",
            self.nodes_max,
            self.need,
        );
    }
}

/// The most nodes that a commit may allocate. Release builds do not record allowances.
#[derive(Debug, Default)]
pub(crate) struct CommitAllowance {
    /// The number of nodes to which all commits had given addresses when this commit began.
    addressed_before: Option<u64>,
    /// The largest number of nodes that a slice of the commit reserved for the whole commit.
    nodes_max: u64,
    /// The commit's remaining work at the last release of the edit lock.
    left: Option<Work>,
}

/// The rest of a commit's work, compared between two slices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Work {
    nodes: u64,
    references: usize,
    inodes: u64,
}

impl Work {
    fn of(running: &Running) -> Self {
        Self {
            nodes: running.block_reserve().shape().1,
            references: running.core.references.len(),
            inodes: running.inodes.changed(),
        }
    }
}

impl CommitAllowance {
    /// Records the reservation at the start of a commit's time slice, unless no edit ran since the
    /// last slice.
    pub(crate) fn slice_starts(&mut self, running: &Running) {
        if !cfg!(debug_assertions) || self.left == Some(Work::of(running)) {
            return;
        }
        let reserved = running.block_reserve().nodes_of_commit();
        self.nodes_max = self.nodes_max.max(self.taken(running).exact_add(reserved));
    }

    /// At the end of a slice, records the remaining work of the commit.
    pub(crate) fn slice_ends(&mut self, running: &Running) {
        if cfg!(debug_assertions) {
            self.left = Some(Work::of(running));
        }
    }

    /// Asserts that the commit allocated no more nodes than its allowance.
    pub(crate) fn check(&mut self, running: &Running) {
        if cfg!(debug_assertions) {
            let taken = self.taken(running);
            assert!(
                taken <= self.nodes_max,
                "a commit took {taken} nodes and may take {}",
                self.nodes_max
            );
        }
    }

    fn taken(&mut self, running: &Running) -> u64 {
        let now = running.core.nodes_addressed;
        now.exact_sub(*self.addressed_before.get_or_insert(now))
    }
}
