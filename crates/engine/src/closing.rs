//! The end of a handle: everything is committed, or abandoned by name; and what would be lost now.

use crate::engine::Engine;
use crate::uncommitted::Uncommitted;
use buttress_format::Generation;
use buttress_fs::error::Result;

impl Engine {
    /// What is not committed yet. It waits for nobody.
    #[must_use]
    pub fn uncommitted(&self) -> Uncommitted {
        self.shared.account.since_commit()
    }

    /// Commits and lets go of the volume. Where there are other handles, they keep it open.
    ///
    /// # Errors
    /// As for [`Engine::commit`]; what could not be committed is lost with the last handle.
    pub fn close(self) -> Result<Generation> {
        self.commit()
    }

    /// Lets go of the volume without a commit, and says what is forgotten: the volume stays as the last commit made it, which
    /// may have been one that no call made. Where there are other handles, they may still commit it; unless one does, it is gone.
    pub fn abandon(self) -> Uncommitted {
        self.shared.account.abandon();
        self.uncommitted()
    }

    /// Counts a change.
    pub fn count_change(&self) {
        self.shared.account.count_change();
    }

    /// Counts content that was taken in.
    pub fn count_content(&self, bytes: usize) {
        self.shared.account.count_content(bytes);
    }
}
