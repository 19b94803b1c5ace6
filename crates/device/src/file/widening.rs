//! Widens requests with `O_DIRECT` whose offset, length or memory is not aligned to the medium's
//! sector.
//!
//! A read reads the whole sectors into an aligned buffer, and the caller copies its part. A write
//! reads the sectors at both ends first, changes its part, and writes all of them back.
//!
//! Invariants:
//! - Two widened writes never run at once: they may share a sector. The lock `widening` enforces
//!   this.
//! - A widened write never leaves the file longer than it was.

use buttress_exact::Exact as _;
use std::io;
use std::os::unix::fs::FileExt;

use super::FileBackend;
use crate::buffer::Buffer;
use crate::error::{byte_length, out_of_range};

impl FileBackend {
    /// Returns true if a request can go unchanged to a file opened with `O_DIRECT`.
    pub(super) fn is_aligned(&self, offset: u64, mut parts: impl Iterator<Item = (u64, u64)>) -> bool {
        let unit = u64::from(self.sector_bytes);
        let aligned = |value: u64| value.checked_rem(unit) == Some(0);
        aligned(offset) && parts.all(|(address, length)| aligned(address) && aligned(length))
    }

    /// Reads `[start, end)`, widened to whole sectors, into a buffer of its own. Also returns the
    /// position of `start` in the buffer.
    ///
    /// The last sector may extend beyond the end of the file. Bytes beyond the end of the file read
    /// as zeros.
    pub(super) fn read_widened(&self, start: u64, end: u64) -> io::Result<(Buffer, usize)> {
        let unit = u64::from(self.sector_bytes).max(1);
        let lead = start.remainder(unit);
        let first = start.exact_sub(lead);
        let end = end
            .checked_next_multiple_of(unit)
            .ok_or_else(|| out_of_range(self.size()))?;
        let too_long = |_| out_of_range(self.size());
        let length = usize::try_from(end.exact_sub(first)).map_err(too_long)?;
        let mut buffer = Buffer::zeroed(length);
        let mut filled = 0_usize;
        while let Some(rest) = buffer.get_mut(filled..).filter(|rest| !rest.is_empty()) {
            let at = first.exact_add(byte_length(filled));
            match self.file.read_at(rest, at) {
                Ok(0) => break,
                Ok(count) => filled = filled.exact_add(count),
                Err(cause) if cause.kind() == io::ErrorKind::Interrupted => {}
                Err(cause) => return Err(cause),
            }
            // Only at the end of a file does a read return a partial sector.
            if self.size() <= first.exact_add(byte_length(filled)) {
                break;
            }
        }
        Ok((buffer, usize::try_from(lead).map_err(too_long)?))
    }

    /// Writes unaligned bytes, after reading the sectors at both ends. The lock `widening` excludes
    /// other threads, because two such writes may share a sector.
    pub(super) fn write_widened(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let _alone = self.widening.lock();
        let end = offset.exact_add(byte_length(bytes.len()));
        let (mut buffer, lead) = self.read_widened(offset, end)?;
        if buttress_faults::on("device-widened-write-clears") {
            buffer.fill(0);
        }
        let target = lead
            .checked_add(bytes.len())
            .and_then(|end| buffer.get_mut(lead..end));
        target
            .ok_or_else(|| out_of_range(self.size()))?
            .copy_from_slice(bytes);
        let start = offset.exact_sub(byte_length(lead));
        self.file.write_all_at(&buffer, start)?;
        if !self.is_block_device && start.exact_add(byte_length(buffer.len())) > self.size() {
            // Widening made the file longer than before.
            self.file.set_len(self.size())?;
        }
        Ok(())
    }
}
