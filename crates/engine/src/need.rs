//! What an edit asks for: places of trees, and whether it may use the reserve.
//!
//! The caller counts places, not nodes: how many nodes a place takes depends on the height of the trees
//! ([`super::worst_case`]). An item is at most one place.

use super::worst_case::Shape;

/// The places of one more edit. Space for it should be left beside dirty data.
pub(crate) const OTHER_PLACES: u64 = 32;

/// When a reservation may allocate a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NewChunks {
    /// Whenever the reservation does not fit.
    Always,
    /// If chunks are plentiful, or if the reservation does not fit even without dirty data. Otherwise the caller writes back
    /// data or commits, which lowers the worst case; the unallocated space stays for data.
    Sparing,
}

/// Dirty data has its items promised. The edit that makes them asks for the paths to where they begin and end.
const PLACES_OF_PROMISED: u64 = 8;

/// What an edit may take at its worst.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Need {
    /// Places of trees that it changes: runs of adjacent items that fit into one leaf.
    pub places: u64,
    /// Whether it may use the reserve.
    pub claim: Claim,
}

/// What an edit has a claim on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Claim {
    /// What is left beside the reserve and what was promised.
    #[default]
    Ordinary,
    /// It gives back more than it takes: the reserve, too.
    Freeing,
    /// It keeps a promise: it writes back data for which room was reserved.
    Reserved,
}

impl Need {
    /// An edit that adds or changes items at so many places.
    pub const fn places(places: u64) -> Self {
        Self {
            places,
            claim: Claim::Ordinary,
        }
    }

    /// An edit at so many places that frees space in the end. A run of items that it removes has two: its ends. The leaves
    /// between are freed whole.
    pub const fn freeing(places: u64) -> Self {
        Self {
            places,
            claim: Claim::Freeing,
        }
    }

    /// An edit at so many places that makes extents of dirty data.
    pub const fn promised(places: u64) -> Self {
        Self {
            places,
            claim: Claim::Reserved,
        }
    }

    /// Returns the nodes that the edit asks for.
    pub(crate) fn nodes(self, shape: &Shape) -> u64 {
        match self.claim {
            Claim::Ordinary | Claim::Freeing => shape.edited_nodes(self.places),
            Claim::Reserved => shape.edited_nodes(self.places.min(PLACES_OF_PROMISED)),
        }
    }
}
