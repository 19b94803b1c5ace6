//! The check of every cross-reference of a volume.

use super::{Access, Volume};
use crate::error::Result;
use buttress_check as check;
use buttress_fs::Progress;

impl Volume {
    /// Checks every cross-reference, without reporting steps. See [`check_with`](Self::check_with).
    ///
    /// # Errors
    /// Fails as [`check_with`](Self::check_with) does.
    pub fn check(&self, options: &check::Options, progress: &Progress) -> Result<check::Report> {
        self.check_with(options, progress, &|_, _| {})
    }

    /// Checks every cross-reference of the last commit. The check calls `on_step` when a step
    /// begins, with the reason if a step does not apply to the volume. The volume must be open for
    /// reading only: concurrent changes would look like damage.
    ///
    /// # Errors
    /// Fails if the volume is open for writing, or the job was cancelled. Damage of the volume is
    /// no error but part of the report.
    pub fn check_with(
        &self,
        options: &check::Options,
        progress: &Progress,
        on_step: &(dyn Fn(check::Step, Option<&'static str>) + Sync),
    ) -> Result<check::Report> {
        match &self.access {
            Access::Reading(shown) => Ok(check::check_with(&shown.on_disk, options, progress, on_step)?),
            #[cfg(feature = "write")]
            Access::Writing(_) => Err(buttress_fs::Error::Invalid {
                what: "cannot check a volume that is open for writing; open it read-only",
            }
            .into()),
        }
    }
}
