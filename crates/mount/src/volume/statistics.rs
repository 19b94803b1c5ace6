//! The space of a mounted volume, as `statfs(2)` shows it.
//!
//! A volume that is open for writing has exact numbers at each call. The numbers of a writable
//! volume count dirty data and the running transaction. A volume that is open for reading does not
//! change, so its numbers are computed once.
//!
//! Invariant: the reported blocks are sectors of data. Free raw bytes are divided by the number of
//! copies that the data profile stores.

use super::{Access, MountedVolume};
use crate::vfs::{Errno, Result, Statistics};
use buttress::ByteCount;
use buttress::unstable::accounts::Accounts as _;
use buttress::unstable::fs::Filesystem;
use buttress::unstable::writer::WritableFilesystem;

impl MountedVolume {
    /// Returns the space of the volume as it is now.
    pub(super) fn statistics_now(&self) -> Result<Statistics> {
        if self.is_down() {
            return Err(Errno::SHUTDOWN);
        }
        match &self.access {
            Access::Writing(writer) => self.space_now(writer),
            Access::Reading(filesystem) => match self.statistics.get() {
                Some(statistics) => Ok(*statistics),
                None => {
                    let statistics = Self::space(filesystem);
                    let statistics = statistics.map_err(|error| self.failed(&error))?;
                    Ok(*self.statistics.get_or_init(|| statistics))
                }
            },
        }
    }

    fn space_now(&self, writer: &WritableFilesystem) -> Result<Statistics> {
        let space = writer.space_now().map_err(|error| self.failed(&error))?;
        let block_bytes = space.sector_bytes;
        let blocks = |bytes: ByteCount| bytes.get().checked_div(u64::from(block_bytes)).unwrap_or(0);
        Ok(Statistics {
            block_bytes,
            blocks: blocks(space.size),
            free: blocks(space.free),
            available: blocks(space.available),
            name_bytes_max: 255,
        })
    }

    fn space(view: &Filesystem) -> core::result::Result<Statistics, buttress::unstable::fs::Error> {
        let space = view.space()?;
        let totals = space.totals();
        let block_bytes = view.sector_bytes();
        let unit = u64::from(block_bytes.max(1));
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            clippy::cast_precision_loss,
            reason = "a ratio of raw bytes, as `filesystem usage` shows it"
        )]
        let by_ratio = |raw: u64| (raw as f64 / totals.data_ratio.max(1.0)) as u64;
        let size = by_ratio(totals.device_size.get());
        let used = by_ratio(totals.used.get());
        let free = size
            .saturating_sub(used)
            .saturating_sub(space.global_reserve.get());
        let blocks = |bytes: u64| bytes.checked_div(unit).unwrap_or(0);
        Ok(Statistics {
            block_bytes,
            blocks: blocks(size),
            free: blocks(free),
            available: blocks(space.available().get()),
            name_bytes_max: 255,
        })
    }
}
