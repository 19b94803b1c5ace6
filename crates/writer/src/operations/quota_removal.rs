//! Removal of simple quotas with all that they leave on disk.
//!
//! Order: the quota tree goes with a commit; the references to makers go with several; the feature
//! flag goes last. Each cut leaves a valid volume, and the next call finishes the removal.
//!
//! Source: behaviour of btrfstune 6.14 (`--remove-simple-quota`).

use crate::areas::Quotas;
use buttress_engine::quota_tree::QuotaKind;
use buttress_format::{Incompat, Key};
use buttress_fs::error::{Error, Result};
use buttress_fs::progress::Progress;

impl Quotas<'_> {
    /// Disables simple quotas, and removes all that they leave on disk: the maker of each extent, and
    /// the feature flag, without which older kernels mount the volume. Nothing else may use the
    /// volume meanwhile. After a cancellation or a crash, the same call finishes the removal.
    ///
    /// # Errors
    /// Fails with [`Error::Invalid`] if the volume has classic quotas, or no trace of simple quotas.
    /// Also fails if the job is cancelled, or with an error of a commit.
    pub fn remove_simple(&self, progress: &Progress) -> Result<()> {
        let (kind, has_feature) = self.filesystem.read_under_lock(|access| {
            let kind = access.lookups().core().quota_kind();
            Ok((kind, access.has(Incompat::SIMPLE_QUOTA)))
        })?;
        if kind == Some(QuotaKind::Classic) {
            let what = "the volume has classic quotas (run `buttress quota disable` to remove them)";
            return Err(Error::Invalid { what });
        }
        if !has_feature {
            let what = "the volume has no simple quotas";
            return Err(Error::Invalid { what });
        }
        self.disable()?;
        // No delayed reference is left after a commit, so the extent tree is whole.
        self.filesystem.commit()?;
        let mut next = Some(Key::MIN);
        while let Some(from) = next {
            progress.check()?;
            next = self.filesystem.conversions().remove_owner_references(from)?;
            self.filesystem.commit()?;
        }
        self.filesystem.conversions().forget_simple_quotas()?;
        self.filesystem.commit().map(drop)
    }
}
