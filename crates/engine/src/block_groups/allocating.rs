//! Allocations from block groups.
//!
//! An allocation tries the group of the last allocation first, then the groups after it, then those
//! before it. Groups of the last resort come after all other groups.

use super::{BlockGroups, Found, Purpose};
use buttress_exact::Exact as _;
use buttress_fs::error::Defect;

impl BlockGroups {
    /// Allocates `wanted` bytes for a kind of extent, starting at the end of the last allocation.
    /// If no free range has the wanted length, the call allocates the length of the longest range,
    /// but at least `least` bytes.
    ///
    /// # Errors
    /// Fails with a [`Defect`] if the group's shares do not add up.
    pub fn allocate(
        &mut self,
        purpose: Purpose,
        wanted: u64,
        least: u64,
        unit_bytes: u64,
    ) -> Result<Found, Defect> {
        self.rooms.take();
        let cursor = self.cursor(purpose);
        let mut order: Vec<u64> = self.in_turn(cursor).collect();
        if self.targets.of(purpose).is_some() {
            order.sort_by_key(|start| !self.is_preferred(*start, purpose));
        }
        // Only a job that keeps empty groups marks groups of the last resort.
        let (ordinary, resort): (Vec<u64>, Vec<u64>) = match self.keeps_empty {
            true => order.into_iter().partition(|start| !self.is_last_resort(*start)),
            false => (order, Vec::new()),
        };
        for order in [ordinary, resort] {
            match self.allocate_from(&order, purpose, (wanted, least), unit_bytes)? {
                Found::Nothing => {}
                found => return Ok(found),
            }
        }
        Ok(Found::Nothing)
    }

    fn is_last_resort(&self, start: u64) -> bool {
        self.groups.get(&start).is_some_and(|group| group.is_last_resort)
    }

    /// Allocates from the first of these groups that has space.
    fn allocate_from(
        &mut self,
        order: &[u64],
        purpose: Purpose,
        (wanted, least): (u64, u64),
        unit_bytes: u64,
    ) -> Result<Found, Defect> {
        let cursor = self.cursor(purpose);
        // Search for one range that holds all bytes first, then for the longest range.
        for least_here in [wanted, least] {
            for start in order {
                let Some(group) = self.groups.get_mut(start) else {
                    continue;
                };
                if !group.serves(purpose) || group.read_only || group.free_bytes() < least_here {
                    continue;
                }
                let Some(free) = group.free.as_mut() else {
                    return Ok(Found::Load(*start));
                };
                if let Some((found, length)) = free.allocate(wanted, least_here, unit_bytes, cursor) {
                    if !buttress_faults::on("ledger-allocation-uncounted") {
                        group.allocated_bytes = group.allocated_bytes.exact_add(length);
                    }
                    group.balance()?;
                    self.cursors.insert(purpose, found.exact_add(length));
                    return Ok(Found::Range(found, length));
                }
            }
            if least >= wanted {
                break;
            }
        }
        Ok(Found::Nothing)
    }
}
