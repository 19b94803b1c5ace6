//! File systems over a volume whose chunks are known already.

use super::{attach_stripe_tree, check_roots, executor_for, report_trees};
use crate::error::Result;
use crate::filesystem::{Filesystem, Parts};
use crate::notice::Notice;
use buttress_tree::{Forest, RootPointer};
use buttress_volume::Rescue;
use std::sync::Arc;

/// The roots of a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateRoots {
    /// The root of the root tree.
    pub root: RootPointer,
    /// The root of the chunk tree.
    pub chunk: RootPointer,
}

impl Filesystem {
    /// Returns the file system of a state. The volume of the forest has all chunks of the state.
    /// Unreadable trees become notices, as in an opening.
    ///
    /// # Errors
    /// Fails if the root of the root tree cannot be read.
    pub fn assemble(forest: &Arc<Forest>, roots: &StateRoots, rescue: Rescue) -> Result<Self> {
        let volume = forest.volume();
        let root_tree = forest.tree(roots.root);
        check_roots(forest, &root_tree, false)?;
        attach_stripe_tree(volume, forest, &root_tree);
        let mut notices = Vec::new();
        report_trees(forest, &root_tree, &mut notices);
        if rescue.ignore_data_checksums {
            notices.push(Notice::DataUnverified);
        }
        Ok(Self::from_parts(Parts {
            forest: Arc::clone(forest),
            root_tree,
            chunk_tree: forest.tree(roots.chunk),
            rescue,
            notices,
            executor: executor_for(volume),
        }))
    }
}
