//! Reserves space for data ahead of writes, as long as free space is plentiful, and releases it when free space is short.

use crate::core_state::Core;
use crate::running_parts::DataSpace;
use buttress_exact::Exact as _;
use buttress_fs::error::Error;
use buttress_fs::error::defect::take;

/// The most bytes that one refill reserves.
const BATCH_BYTES_MAX: u64 = 1 << 20;

/// The divisor of free space that limits one refill.
const PART_OF_FREE: u64 = 1024;

impl Core {
    /// Releases the space reserved ahead of writes. Returns whether any space was reserved ahead.
    pub fn give_up_reserved_ahead(&mut self) -> bool {
        let ahead = self.ahead.take_all();
        let what = "more is reserved ahead than is promised to data";
        let given_up = take(&mut self.reserved_data_bytes, ahead, what);
        self.settle(given_up.map_err(Error::from));
        ahead > 0
    }
}

impl DataSpace<'_> {
    /// Reserves a batch ahead of writes if free space is plentiful.
    pub fn reserve_ahead(&mut self) {
        let free = self.free_bytes();
        let part = free.quotient(PART_OF_FREE);
        let sector_bytes = self.running.core.sector_bytes();
        let batch = part.min(BATCH_BYTES_MAX);
        let batch = batch.exact_sub(batch.remainder(sector_bytes));
        let reserved = self.running.core.reserved_data_bytes.exact_add(batch);
        if reserved > free >> 1 {
            return;
        }
        self.running.core.reserved_data_bytes = reserved;
        self.running.core.ahead.refill(batch);
    }
}
