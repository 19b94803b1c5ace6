//! Every cross-reference of a volume, checked.

use super::{Access, Volume};
use crate::error::Result;
use buttress_check as check;
use buttress_fs::Progress;

impl Volume {
    /// Checks every cross-reference. The volume must be open for reading: a change meanwhile would look like damage.
    ///
    /// # Errors
    /// The volume is open for writing, or the job was cancelled. The report has the damage of the volume.
    pub fn check(&self, options: &check::Options, progress: &Progress) -> Result<check::Report> {
        match &self.access {
            Access::Reading(shown) => Ok(check::check(&shown.on_disk, options, progress)?),
            #[cfg(feature = "write")]
            Access::Writing(_) => Err(buttress_fs::Error::Invalid {
                what: "a check of a volume that is open for writing: open it for reading",
            }
            .into()),
        }
    }
}
