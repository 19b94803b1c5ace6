//! Calls that change and read content.

use super::{History, SECTOR};
use buttress::fs::Error;
use buttress::writer::AllocateMode;
use buttress::{ByteCount, FileOffset};

impl History {
    pub(super) fn change_content(&mut self) -> String {
        let (volume, now) = (self.volume(), self.now());
        let (Some(at), Some(other)) = (self.file(), self.file()) else {
            return "nothing".to_owned();
        };
        let size = volume.size_of(at).unwrap();
        let start = self.random.below(40_000);
        let length = 1 + self.random.below(30_000);
        let what = self.random.below(12);
        let offset = FileOffset::new;
        let is_changed = match what {
            0..=3 => {
                let bytes = vec![b'w'; usize::try_from(length).unwrap()];
                volume.write_at(at, offset(start), &bytes).unwrap();
                self.model.inodes.get_mut(&at).unwrap().is_dirty = true;
                true
            }
            4 => {
                let bytes = vec![b'a'; usize::try_from(length).unwrap()];
                volume.append(at, &bytes).unwrap();
                self.model.inodes.get_mut(&at).unwrap().is_dirty = true;
                true
            }
            5 => {
                // A write of a cache whose owner sets the times.
                volume.write_cached_at(at, offset(start), b"cached").unwrap();
                self.model.inodes.get_mut(&at).unwrap().is_dirty = true;
                false
            }
            6 => {
                volume.truncate(at, ByteCount::new(start)).unwrap();
                true
            }
            7 => {
                let new_size = if self.random.one_in(2) { size } else { start };
                volume.truncate_by_path(at, ByteCount::new(new_size)).unwrap();
                new_size != size
            }
            8 => {
                let modes = [
                    AllocateMode::Allocate,
                    AllocateMode::AllocateKeepSize,
                    AllocateMode::PunchHole,
                    AllocateMode::ZeroRange,
                    AllocateMode::ZeroRangeKeepSize,
                ];
                let mode = modes[usize::try_from(self.random.below(5)).unwrap()];
                let range = offset(start)..offset(start + length);
                volume.allocate(at, range, mode).unwrap();
                true
            }
            9 => {
                let from = volume.size_of(other).unwrap() / SECTOR * SECTOR;
                let to = offset(start / SECTOR * SECTOR);
                volume
                    .clone_range(other, offset(0)..offset(from), at, to)
                    .is_ok_and(|()| true)
            }
            10 => {
                let end = offset(SECTOR);
                let same = volume.dedupe_range(other, offset(0)..end, at, offset(0));
                assert!(!matches!(same, Err(Error::Corrupt(_))), "{same:?}");
                false
            }
            _ => {
                let from = self.random.below(3) * 1000;
                let range = offset(from)..offset(from + length);
                let copied = volume.copy_range(other, range, at, offset(start));
                copied.is_ok_and(|copied| copied > ByteCount::ZERO)
            }
        };
        if is_changed {
            self.model.modify(at, now);
        }
        format!("content {what} of {at}, from {start}, {length} bytes")
    }

    pub(super) fn read(&mut self) -> String {
        let (volume, now) = (self.volume(), self.now());
        let at = if self.random.one_in(3) {
            self.any()
        } else {
            self.file().unwrap()
        };
        let moved = volume.note_access(at, self.policy).unwrap();
        let is_dirty = self.model.inodes[&at].is_dirty;
        assert_eq!(moved, self.model.access(at, self.policy, now), "read of {at}");
        self.met.accesses += u64::from(moved);
        self.met.reads_of_dirty_files += u64::from(is_dirty);
        format!("read of {at} by {:?}", self.policy)
    }
}
