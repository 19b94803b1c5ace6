//! The parts of a commit that stand above the engine.
//!
//! The engine commits trees. Dirty data becomes items of trees before that, by the writer. A value that implements
//! [`CommitStages`] is given to [`Engine::open`](crate::Engine::open) and called by commits and by the engine's threads.

use crate::Engine;
use buttress_fs::error::Result;
use core::fmt;
use std::sync::Arc;

/// The calls of a commit to the layer above. See the module.
pub trait CommitStages: fmt::Debug + Send + Sync {
    /// Writes back the dirty data of all files. No lock of the engine is held.
    ///
    /// # Errors
    /// [`Error::OutOfHostSpace`](buttress_fs::Error::OutOfHostSpace) for data that stays dirty; errors of devices and trees.
    fn write_back(self: Arc<Self>, engine: &Engine) -> Result<()>;

    /// Writes back dirty data until little is left, on the engine's own thread.
    ///
    /// # Errors
    /// As for [`write_back`](Self::write_back). Data that could not be written stays dirty.
    fn write_back_in_background(self: Arc<Self>, engine: &Engine) -> Result<()>;
}
