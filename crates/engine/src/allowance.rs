//! What an edit asked for, compared with what it took: an assertion of builds with debug assertions.
//!
//! An edit that takes more than it asked for may leave a commit without space, which loses the transaction. So the end of
//! each edit compares both. A commit compares its own nodes with what was reserved ([`super::converging`]).
//!
//! Left out: edits that keep a promise ([`super::reservation::Claim::Reserved`]) are compared with all of their places,
//! although they asked for fewer.

use super::reservation::Need;
use super::running::Running;
use super::worst_case::PLACES_OF_COMMIT;

/// What an edit may take, and where it began: for the assertion that it asked for enough.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Allowance {
    need: Need,
    nodes_before: u64,
    nodes_most: u64,
    groups_before: usize,
}

impl Allowance {
    pub(crate) fn of(need: Need, running: &Running) -> Self {
        let (shape, nodes_before) = running.shape();
        Self {
            need,
            nodes_before,
            nodes_most: shape.edited_nodes(need.places),
            groups_before: running.core.groups.iter().count(),
        }
    }

    /// Requires that the edit took no more nodes than it asked for. A chunk that was made for data is the commit's.
    pub(crate) fn check(self, running: &Running) {
        let (shape, nodes) = running.shape();
        let chunks = running
            .core
            .groups
            .iter()
            .count()
            .saturating_sub(self.groups_before);
        let of_chunks = u64::try_from(chunks)
            .unwrap_or(u64::MAX)
            .saturating_mul(shape.edited_nodes(PLACES_OF_COMMIT));
        let taken = nodes.saturating_sub(self.nodes_before);
        assert!(
            taken <= self.nodes_most.saturating_add(of_chunks),
            "an edit took {taken} nodes and asked for {}: {:?}, {shape:?}",
            self.nodes_most,
            self.need,
        );
    }
}
