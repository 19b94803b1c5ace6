//! The shares of a block group: every byte is in exactly one share, and moves between them.
//!
//! | share | contents |
//! |---|---|
//! | free | bytes that can be allocated |
//! | unbacked | free bytes that can be allocated once the host reserves space for them |
//! | allocated | bytes taken from free space that the extent tree does not record yet |
//! | trimming | free bytes that devices are discarding |
//! | used | extents of the extent tree |
//! | pinned | bytes that were freed, or may still be read, and must not be reused yet |
//!
//! Once a group's free ranges are loaded, its shares and unaccounted bytes (superblock copies, lost
//! space) add up to its length. Wrong shares would allocate bytes twice or never again. An
//! imbalance of shares is a [`Defect`] with the numbers, and writing stops before wrong data
//! reaches the devices.
//!
//! The records of a volume may be wrong since before the opening: more free bytes than the group
//! has, or less used bytes than are freed. Wrong records on disk are [`Corruption`] errors.

use super::{BlockGroups, Group, Purpose};
use crate::free_ranges::FreeRanges;
use buttress_format::{ByteCount, Logical};
use buttress_fs::error::defect::{add, take};
use buttress_fs::error::{Corruption, Defect, Result};

/// The share of space that a range of a block group belongs to. See the module's documentation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Share {
    /// Free space, with space reserved on the host.
    Free,
    /// Free, without space on the host.
    Unbacked,
    /// Allocated in the running transaction.
    Allocated,
    /// Free space that devices are discarding.
    Trimming,
    /// In use by an extent.
    Used,
    /// Freed, and not reusable yet.
    Pinned,
}

impl Group {
    fn told(&self, what: &'static str) -> Defect {
        let free = self.free.as_ref().map(FreeRanges::total_bytes);
        let told = Defect::new(what)
            .with("block group", self.start)
            .with("length", self.length)
            .with("used", self.used)
            .with("allocated", self.allocated_bytes)
            .with("trimming", self.trimming_bytes)
            .with("unbacked", self.unbacked.total_bytes())
            .with("pinned", self.pinned_bytes);
        let told = match free {
            Some(free) => told.with("free", free),
            None => told,
        };
        match self.unaccounted_bytes {
            Some(unaccounted) => told.with("unaccounted", unaccounted),
            None => told,
        }
    }

    /// Checks that the shares of a block group add up to its length.
    pub fn balance(&self) -> Result<(), Defect> {
        let taken = i128::from(self.used)
            .saturating_add(i128::from(self.allocated_bytes))
            .saturating_add(i128::from(self.trimming_bytes))
            .saturating_add(i128::from(self.unbacked.total_bytes()))
            .saturating_add(i128::from(self.pinned_bytes));
        let length = i128::from(self.length);
        match (&self.free, self.unaccounted_bytes) {
            (Some(free), Some(unaccounted)) => {
                let sum = taken
                    .saturating_add(i128::from(free.total_bytes()))
                    .saturating_add(i128::from(unaccounted));
                if sum == length {
                    return Ok(());
                }
                Err(self.told("the shares of a block group do not add up to its length"))
            }
            // The free ranges are not loaded, and a volume may record more used bytes than the
            // group has.
            _ => Ok(()),
        }
    }

    /// Stores the free ranges that a tree records, without pinned and excluded ranges.
    pub fn load(&mut self, free: FreeRanges) -> Result<(), Corruption> {
        let taken = [
            self.used,
            self.allocated_bytes,
            self.trimming_bytes,
            self.pinned_bytes,
            free.total_bytes(),
        ];
        let sum = taken.into_iter().try_fold(0_u64, u64::checked_add);
        let unaccounted = sum.and_then(|sum| self.length.checked_sub(sum));
        let Some(unaccounted) = unaccounted else {
            return Err(Corruption::FreeSpaceInUse {
                group: Logical::new(self.start),
                length: ByteCount::new(self.length),
                used: ByteCount::new(self.used),
                free: ByteCount::new(free.total_bytes()),
            });
        };
        (self.unbacked, self.free) = match self.is_backed {
            true => (free, Some(FreeRanges::default())),
            false => (FreeRanges::default(), Some(free)),
        };
        self.unaccounted_bytes = Some(unaccounted);
        Ok(())
    }

    /// Returns whether all of a range is free, with or without reserved space on the host.
    pub fn is_free(&self, start: u64, length: u64) -> bool {
        let free = self
            .free
            .as_ref()
            .map_or(0, |free| free.overlap_bytes(start, length));
        free.saturating_add(self.unbacked.overlap_bytes(start, length)) == length
    }

    /// Moves a range of a block group from one share of space to another.
    fn shift(&mut self, start: u64, length: u64, from: Share, to: Share) -> Result<()> {
        match from {
            Share::Free => self.take_free(start, length)?,
            Share::Unbacked => self.take_unbacked(start, length)?,
            Share::Allocated => {
                let what = "more is given back or used of a block group than was allocated";
                take(&mut self.allocated_bytes, length, what).map_err(|_| self.told(what))?;
            }
            Share::Trimming => {
                let what = "more of a block group becomes free after trimming than was trimmed";
                let length = match buttress_faults::on("ledger-trimmed-never-falls") {
                    true => 0,
                    false => length,
                };
                take(&mut self.trimming_bytes, length, what).map_err(|_| self.told(what))?;
            }
            Share::Used => {
                // The bytes in use at opening are those that the block group item records.
                let rest = self.used.checked_sub(length).ok_or(Corruption::GroupUsedTooLow {
                    group: Logical::new(self.start),
                    used: ByteCount::new(self.used),
                    freed: ByteCount::new(length),
                })?;
                if !buttress_faults::on("ledger-used-never-falls") {
                    self.used = rest;
                }
            }
            Share::Pinned => {
                let what = "more is released of a block group than was pinned";
                let length = match buttress_faults::on("ledger-pinned-never-falls") {
                    true => 0,
                    false => length,
                };
                take(&mut self.pinned_bytes, length, what).map_err(|_| self.told(what))?;
            }
        }
        match to {
            Share::Free => self.give_free(start, length)?,
            Share::Unbacked => self.give_unbacked(start, length)?,
            Share::Allocated => add(
                &mut self.allocated_bytes,
                length,
                "allocated bytes of a block group",
            )?,
            Share::Trimming => add(
                &mut self.trimming_bytes,
                length,
                "bytes of a block group that are trimmed",
            )?,
            Share::Used => add(&mut self.used, length, "used bytes of a block group")?,
            Share::Pinned => add(&mut self.pinned_bytes, length, "pinned bytes of a block group")?,
        }
        Ok(self.balance()?)
    }

    fn take_unbacked(&mut self, start: u64, length: u64) -> Result<(), Defect> {
        let taken = self.unbacked.remove(start, length);
        if taken == length {
            return Ok(());
        }
        let told = self.told("a range that has space of the host is removed from ranges without it");
        Err(told.with("start", start).with("bytes", length))
    }

    /// Marks a free range as unbacked: the host must reserve space for it again.
    fn give_unbacked(&mut self, start: u64, length: u64) -> Result<(), Defect> {
        let before = self.unbacked.total_bytes();
        self.unbacked.add(start, length);
        if self.unbacked.total_bytes().checked_sub(before) == Some(length) {
            return Ok(());
        }
        let told = self.told("a range that has no space of the host loses it again");
        Err(told.with("start", start).with("bytes", length))
    }

    /// Takes a chosen free range. The range was written before, so it has space on the host.
    fn take_free(&mut self, start: u64, length: u64) -> Result<(), Defect> {
        let taken = match self.free.as_mut() {
            Some(free) => free
                .remove(start, length)
                .saturating_add(self.unbacked.remove(start, length)),
            None => length,
        };
        if taken == length {
            return Ok(());
        }
        let told = self.told("a range that is not free is taken from what is free");
        Err(told
            .with("start", start)
            .with("bytes", length)
            .with("of them free", taken))
    }

    /// Makes a range free, except its excluded parts.
    fn give_free(&mut self, start: u64, length: u64) -> Result<(), Defect> {
        let Some(free) = self.free.as_mut() else {
            return Ok(());
        };
        let before = free.total_bytes();
        free.add(start, length);
        let added = free.total_bytes().saturating_sub(before);
        let mut kept_out = 0_u64;
        for range in &self.excluded_ranges {
            kept_out =
                kept_out.saturating_add(free.remove(range.start, range.end.saturating_sub(range.start)));
        }
        if added != length {
            let told = self.told("a range becomes free that is free already");
            return Err(told
                .with("start", start)
                .with("bytes", length)
                .with("of them new", added));
        }
        match self.unaccounted_bytes.as_mut() {
            Some(unaccounted) => add(unaccounted, kept_out, "bytes of a block group that are kept out"),
            None => Ok(()),
        }
    }
}

impl BlockGroups {
    /// Moves a range of a block group from one share of space to another.
    ///
    /// # Errors
    /// Fails with [`Corruption`] if no block group contains the range, or with a [`Defect`] for a
    /// wrong sum of shares.
    pub fn shift(&mut self, start: u64, length: u64, from: Share, to: Share) -> Result<()> {
        let end = start.checked_add(length);
        let group = self
            .holding_mut(start)
            .filter(|group| end.is_some_and(|end| end <= group.end()));
        let Some(group) = group else {
            return Err(Corruption::OutsideGroups {
                logical: Logical::new(start),
                length: ByteCount::new(length),
            }
            .into());
        };
        group.shift(start, length, from, to)
    }

    /// Frees a range that was allocated and never used.
    pub fn give_back(&mut self, start: u64, length: u64) -> Result<()> {
        self.shift(start, length, Share::Allocated, Share::Free)
    }

    /// Moves a range to the used share when its extent appears in the extent tree.
    pub fn use_extent(&mut self, start: u64, length: u64) -> Result<()> {
        self.shift(start, length, Share::Allocated, Share::Used)?;
        if let Some(group) = self.holding_mut(start)
            && !buttress_faults::on("ledger-used-range-unrecorded")
        {
            group.note_used(start, length);
        }
        Ok(())
    }

    /// Moves a range from the used share to `to` when its extent leaves the extent tree.
    pub fn free_extent(&mut self, start: u64, length: u64, to: Share) -> Result<()> {
        let group = self.holding_mut(start);
        let used = group.map(|group| group.used);
        self.shift(start, length, Share::Used, to)?;
        if let Some(group) = self.holding_mut(start) {
            if buttress_faults::on("block-group-used-never-falls") {
                group.used = used.unwrap_or(0);
            }
            group.note_freed(start, length);
        }
        Ok(())
    }

    /// Makes a pinned range free.
    pub fn unpin(&mut self, start: u64, length: u64) -> Result<()> {
        self.shift(start, length, Share::Pinned, Share::Free)
    }

    /// Checks that the shares of every block group add up, and the used bytes of all groups to
    /// `bytes_used`.
    pub fn balance(&self, bytes_used: u64) -> Result<(), Defect> {
        let mut used = 0_u64;
        for group in self.iter() {
            group.balance()?;
            // Tree blocks get their addresses in the same commit that records their extents.
            if group.allocated_bytes > 0 && !group.serves(Purpose::Data) {
                return Err(group.told("space of tree blocks is allocated that no extent came to have"));
            }
            add(&mut used, group.used, "used bytes of all block groups")?;
        }
        if used == bytes_used {
            return Ok(());
        }
        let what = "the superblock's count of bytes in use is not the sum over block groups";
        Err(Defect::new(what)
            .with("superblock", bytes_used)
            .with("block groups", used))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use buttress_format::{BlockGroupFlags, ObjectId};
    use buttress_fs::Error;

    const START: u64 = 1 << 20;
    const LENGTH: u64 = 1 << 20;

    fn groups(used: u64, free: u64) -> BlockGroups {
        let mut group = Group::new(
            Logical::new(START),
            ByteCount::new(LENGTH),
            BlockGroupFlags::DATA,
            ObjectId::FIRST_CHUNK_TREE,
        );
        group.used = used;
        let mut ranges = FreeRanges::default();
        ranges.add(START + used, free);
        group.load(ranges).unwrap();
        let mut groups = BlockGroups::default();
        groups.insert(group);
        groups
    }

    fn defect(result: Result<()>) -> String {
        match result.unwrap_err() {
            Error::Defect(defect) => defect.to_string(),
            error => panic!("{error}"),
        }
    }

    #[test]
    fn a_range_goes_from_free_to_free_and_the_shares_add_up() {
        let mut groups = groups(0, LENGTH);
        for (from, to) in [
            (Share::Free, Share::Trimming),
            (Share::Trimming, Share::Free),
            (Share::Free, Share::Allocated),
            (Share::Allocated, Share::Used),
            (Share::Used, Share::Pinned),
            (Share::Pinned, Share::Free),
        ] {
            groups.shift(START + 4096, 8192, from, to).unwrap();
            let used = groups.iter().map(|group| group.used).sum();
            assert_eq!(groups.balance(used), Ok(()));
        }
        assert!(
            groups
                .balance(1)
                .unwrap_err()
                .to_string()
                .contains("superblock 1, block groups 0")
        );
    }

    #[test]
    fn what_is_taken_or_given_twice_is_told_with_its_numbers() {
        let mut twice = groups(0, LENGTH);
        twice.shift(START, 4096, Share::Free, Share::Allocated).unwrap();
        let told = defect(twice.shift(START, 8192, Share::Free, Share::Allocated));
        assert!(
            told.contains("start 1048576, bytes 8192, of them free 4096"),
            "{told}"
        );
        let told = defect(groups(0, LENGTH).shift(START, 4096, Share::Allocated, Share::Free));
        assert!(
            told.contains("than was allocated (block group 1048576, length 1048576"),
            "{told}"
        );
        let told = defect(groups(0, LENGTH).shift(START, 4096, Share::Pinned, Share::Free));
        assert!(told.contains("than was pinned"), "{told}");
        let mut freed = groups(8192, LENGTH - 8192);
        freed.shift(START, 4096, Share::Used, Share::Free).unwrap();
        let told = defect(freed.shift(START, 4096, Share::Used, Share::Free));
        assert!(told.contains("free already"), "{told}");
    }

    #[test]
    fn wrong_record_of_volume_is_corruption() {
        let corrupt = |result: Result<()>| matches!(result, Err(Error::Corrupt(_)));
        assert!(corrupt(groups(4096, 8192).shift(
            START,
            8192,
            Share::Used,
            Share::Pinned
        )));
        assert!(corrupt(groups(0, 8192).shift(
            START + LENGTH - 4096,
            8192,
            Share::Used,
            Share::Pinned
        )));
        assert!(corrupt(groups(0, 8192).shift(
            0,
            4096,
            Share::Used,
            Share::Pinned
        )));
        let mut group = Group::new(
            Logical::new(START),
            ByteCount::new(LENGTH),
            BlockGroupFlags::DATA,
            ObjectId::FIRST_CHUNK_TREE,
        );
        group.used = 4096;
        let mut ranges = FreeRanges::default();
        ranges.add(START, LENGTH);
        assert!(group.load(ranges).is_err());
    }
}
