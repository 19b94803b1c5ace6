//! The need of an edit: the number of tree places it changes, and whether it may use the reserve.
//!
//! The caller counts places, not nodes: the nodes of a place depend on the height of the trees
//! ([`super::worst_case`]). An inserted or changed item needs at most one place.

use super::worst_case::Shape;

/// The places of one more edit. The space for one more edit should stay free beside dirty data.
pub(crate) const OTHER_PLACES: u64 = 32;

/// When a reservation may allocate a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NewChunks {
    /// Make a chunk whenever the reservation does not fit.
    Always,
    /// Make chunks only if they are plentiful, or if the reservation does not fit even without
    /// dirty data. Otherwise, the caller writes back data or commits, which lowers the worst case;
    /// the unallocated space stays for data.
    Sparing,
    /// Make no chunk: the caller commits instead, because the commit frees space.
    Never,
}

/// The places of an edit that inserts reserved items of dirty data: the paths to both ends of its
/// ranges. The reservation of the dirty data already covers the items themselves.
const PLACES_OF_PROMISED: u64 = 8;

/// The most that an edit may allocate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Need {
    /// The number of tree places that the edit changes: runs of adjacent items that fit into one
    /// leaf.
    pub places: u64,
    /// The space that the edit may use.
    pub claim: Claim,
}

/// The space that an edit may use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Claim {
    /// The edit may use only space outside the reserve and outside of promises.
    #[default]
    Ordinary,
    /// Free space and also the reserve, because the edit frees more space than it takes.
    Freeing,
    /// Free space and promised space, because the edit writes back data for which space was
    /// reserved.
    Reserved,
}

impl Need {
    /// Returns the need of an edit that adds or changes items at `places` places.
    pub const fn places(places: u64) -> Self {
        Self {
            places,
            claim: Claim::Ordinary,
        }
    }

    /// Returns the need of an edit at `places` places that frees space in the end. Removing a run
    /// of items counts as two places: the run's two ends. The leaves between the two ends are freed
    /// whole.
    pub const fn freeing(places: u64) -> Self {
        Self {
            places,
            claim: Claim::Freeing,
        }
    }

    /// Returns the need of an edit at `places` places that makes extents of dirty data.
    pub const fn promised(places: u64) -> Self {
        Self {
            places,
            claim: Claim::Reserved,
        }
    }

    /// Returns the maximum number of nodes that the edit needs.
    pub(crate) fn nodes(self, shape: &Shape) -> u64 {
        match self.claim {
            Claim::Ordinary | Claim::Freeing => shape.edited_nodes(self.places),
            Claim::Reserved => shape.edited_nodes(self.places.min(PLACES_OF_PROMISED)),
        }
    }
}
