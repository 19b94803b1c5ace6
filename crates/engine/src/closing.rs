//! Closing a volume's handle: commits or explicitly abandons all changes, and counts uncommitted
//! changes.

use crate::engine::Engine;
use crate::uncommitted::Uncommitted;
use buttress_format::Generation;
use buttress_fs::error::Result;

impl Engine {
    /// Returns the changes that are not committed yet. Acquires no lock that a commit holds for a
    /// long time.
    #[must_use]
    pub fn uncommitted(&self) -> Uncommitted {
        self.shared.account.since_commit()
    }

    /// Commits and drops this handle. Other handles keep the volume open.
    ///
    /// # Errors
    /// Fails as [`Engine::commit`] does. Changes that could not be committed are lost when the last
    /// handle is dropped.
    pub fn close(self) -> Result<Generation> {
        self.commit()
    }

    /// Drops this handle without a commit, and returns the uncommitted changes. The volume then
    /// stays at the last commit. A background thread may have made that commit. Other handles may
    /// still commit the changes; otherwise the changes are lost.
    pub fn abandon(self) -> Uncommitted {
        self.shared.account.abandon();
        self.uncommitted()
    }

    /// Counts one uncommitted change.
    pub fn count_change(&self) {
        self.shared.account.count_change();
    }

    /// Counts content bytes that a caller wrote.
    pub fn count_content(&self, bytes: usize) {
        self.shared.account.count_content(bytes);
    }
}
