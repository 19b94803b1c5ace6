//! `FITRIM`, the command of fstrim(8): discards all unused space.
//!
//! The start and length of a trim are logical addresses, as in the kernel's btrfs. Device space
//! outside of all chunks is discarded in any case.
//!
//! Source: `linux/fs.h`, `struct fstrim_range`.

use super::super::MountedVolume;
use super::arguments::{Answer, Fields};
use super::rights::require_privileged;
use crate::vfs::{Answered, Control, Errno, Result};
use buttress::{ByteCount, Logical};

impl MountedVolume {
    pub(super) fn trim(&self, control: &Control<'_>) -> Result<Answered> {
        require_privileged(control.caller)?;
        let mut fields = Fields(control.input);
        let (start, length, shortest) = (fields.u64()?, fields.u64()?, fields.u64()?);
        let writer = self.writer()?;
        let sector_bytes = u64::from(writer.view().superblock().sector_bytes);
        if length < sector_bytes || start == u64::MAX {
            return Err(Errno::INVAL);
        }
        self.let_removed_go();
        // The default range extends to the end of all addresses.
        let range = Logical::new(start)..Logical::new(start.saturating_add(length));
        let trimmed = writer
            .trims()
            .trim(range, ByteCount::new(shortest))
            .map_err(|error| self.failed(&error))?;
        let mut answer = Answer::default();
        answer
            .u64(start)
            .u64(trimmed.total().get())
            .u64(shortest.max(sector_bytes));
        Ok(answer.0.into())
    }
}
