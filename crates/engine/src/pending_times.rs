//! Times that writes set and that the inode item does not record yet.
//!
//! A write changes dirty data and acquires no edit lock, so it cannot change the inode item. The
//! live inode keeps the times of a write as pending times. Every other change of times goes to the
//! inode item through [`InodeItems::change`](crate::running_parts::InodeItems::change), which
//! merges the pending times first. Each field of the inode item therefore has the value that was
//! set last.
//!
//! Invariants:
//! - Pending times are applied before any change of the item, so an older write cannot undo a
//!   change.
//! - Pending times are dropped only together with the file. Setting one pending time keeps the
//!   other pending times.
//! - The table of dirty files keeps a file that has pending times, so the next write-back merges
//!   them.
//!
//! Tests: `data::tests::times`, and histories of calls against a model in `proof/tests/times`.

use buttress_format::{InodeItem, Timestamp};

/// The pending times of one file. See the module's documentation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PendingTimes {
    /// The time of the last write, if the inode item does not record it yet: the next mtime and
    /// ctime.
    written: Option<Timestamp>,
    /// The number of writes that the item's change counter does not include yet.
    writes: u64,
}

impl PendingTimes {
    /// Records a write to the file at the time `now`.
    pub const fn note_write(&mut self, now: Timestamp) {
        self.written = Some(now);
        self.count_write();
    }

    /// Records a write whose times the caller sets.
    pub const fn count_write(&mut self) {
        self.writes = self.writes.wrapping_add(1);
    }

    /// Returns whether no times and no size are pending. A write that keeps the times still counts,
    /// because a new size may be pending too.
    pub const fn is_empty(&self) -> bool {
        self.written.is_none() && self.writes == 0
    }

    /// Merges the pending times into the inode item.
    pub fn merge_into(self, item: &mut InodeItem) {
        if let Some(written) = self.written {
            item.mtime = written;
            item.ctime = written;
        }
        item.sequence = item.sequence.wrapping_add(self.writes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use buttress_format::{ByteCount, Generation, InodeFlags};

    fn time(seconds: i64) -> Timestamp {
        Timestamp {
            seconds,
            nanoseconds: 0,
        }
    }

    #[test]
    fn merge_sets_only_the_times_of_writes() {
        let mut item = InodeItem {
            generation: Generation::new(3),
            transid: Generation::new(3),
            size: ByteCount::ZERO,
            nbytes: ByteCount::ZERO,
            block_group: 0,
            nlink: 1,
            uid: 0,
            gid: 0,
            mode: 0o10_0644,
            rdev: 0,
            flags: InodeFlags::empty(),
            sequence: 10,
            atime: time(4),
            ctime: time(2),
            mtime: time(1),
            otime: time(3),
        };
        let before = item;
        let mut pending = PendingTimes::default();
        pending.merge_into(&mut item);
        assert_eq!(item, before);
        assert!(pending.is_empty());
        pending.count_write();
        assert!(!pending.is_empty());
        pending.note_write(time(7));
        pending.note_write(time(8));
        pending.merge_into(&mut item);
        let expected = InodeItem {
            mtime: time(8),
            ctime: time(8),
            sequence: 13,
            ..before
        };
        assert_eq!(item, expected);
    }
}
