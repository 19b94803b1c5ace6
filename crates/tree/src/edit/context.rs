//! The caller's account of the blocks of an edited tree.

use crate::error::ContextError;
use crate::pointer::BlockPointer;
use buttress_format::node::TreeBlock;
use buttress_format::{Generation, TreeId};

/// Accounts for blocks while a tree is edited.
pub trait EditContext {
    /// Returns the generation of the running transaction, which all new blocks carry.
    fn generation(&self) -> Generation;

    /// A committed or frozen block left this tree, and its content continues in memory. The content
    /// is in a copy, in a neighbour that absorbed it, or in items that
    /// [`remove_range`](super::EditableTree::remove_range) will report to its caller. Called once
    /// for each such block, parents before children, after the tree lost the block.
    ///
    /// # Errors
    /// Any error. The edit fails with the error of this method, and the tree must not be committed.
    fn copied(&mut self, tree: TreeId, old: &BlockPointer, block: &TreeBlock) -> Result<(), ContextError>;

    /// A block in memory left the tree. The dropped block had an address and was not frozen, and
    /// its content was moved or removed before. Blocks without an address cause no call.
    ///
    /// # Errors
    /// Fails with any error, as [`EditContext::copied`] does.
    fn dropped(&mut self, tree: TreeId, old: &BlockPointer, block: &TreeBlock) -> Result<(), ContextError>;
}
