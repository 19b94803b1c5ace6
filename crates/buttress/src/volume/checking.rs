//! Every cross-reference of a volume, checked.

use super::{Access, Volume};
use crate::error::Result;
use buttress_check as check;
use buttress_fs::Progress;

impl Volume {
    /// Goes over every cross-reference and says what is wrong. Only on a volume that is open for reading: what changes
    /// meanwhile would look like damage.
    ///
    /// # Errors
    /// The volume is open for writing, or the job was cancelled. What is wrong with the volume is in the report.
    pub fn check(&self, options: &check::Options, progress: &Progress) -> Result<check::Report> {
        match &self.access {
            Access::Reading(shown) => Ok(check::check(&shown.on_disk, options, progress)?),
            Access::Writing(_) => Err(buttress_fs::Error::Invalid {
                what: "a check of a volume that is open for writing: open it for reading",
            }
            .into()),
        }
    }
}
