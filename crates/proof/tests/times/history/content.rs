//! Calls that change and read content.

use super::{History, SECTOR};
use buttress::unstable::fs::Error;
use buttress::{AllocateMode, ByteCount, FiemapFlags, FileOffset, Location};
use core::ops::Range;

impl History {
    pub(super) fn change_content(&mut self) -> String {
        let (volume, now) = (self.volume(), self.now());
        let (Some(at), Some(other)) = (self.file(), self.file()) else {
            return "nothing".to_owned();
        };
        let size = volume.contents().size_of(at).unwrap();
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
                // The write is a cached write, whose client sets the times.
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
                // Punching an existing hole changes no times.
                let is_changed = mode != AllocateMode::PunchHole || !self.extents(at, &range).is_empty();
                volume.allocate(at, range, mode).unwrap();
                self.met.punched_holes += u64::from(!is_changed);
                is_changed
            }
            9 => {
                let from = volume.contents().size_of(other).unwrap() / SECTOR * SECTOR;
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

    /// Returns the extents in the sectors of a range, including dirty content.
    fn extents(&self, at: Location, range: &Range<FileOffset>) -> Vec<FiemapFlags> {
        let start = range.start.get() / SECTOR * SECTOR;
        let end = range.end.get().next_multiple_of(SECTOR);
        let sectors = FileOffset::new(start)..FileOffset::new(end);
        let found = self.volume().live().fiemap(at, sectors).unwrap();
        found.map(|extent| extent.unwrap().flags).collect()
    }

    /// A direct read counts as an access only if it is unaligned, or meets inline or compressed
    /// content.
    fn read_directly(&mut self) -> String {
        let (volume, now, at) = (self.volume(), self.now(), self.file().unwrap());
        let is_aligned = self.random.one_in(2);
        let start = self.random.below(4) * SECTOR + if is_aligned { 0 } else { 100 };
        let range = FileOffset::new(start)..FileOffset::new(start + SECTOR);
        let moved = volume.note_direct_read(at, &range, self.policy).unwrap();
        let extents = self.extents(at, &range);
        let size = volume.contents().size_of(at).unwrap();
        // Dirty content of a grown file replaces the inline extent.
        let falls_back = match size > SECTOR && volume.contents().is_waiting(at) {
            true => FiemapFlags::ENCODED,
            false => FiemapFlags::INLINE | FiemapFlags::ENCODED,
        };
        let is_inside = start < size;
        let is_cached = !is_aligned || extents.iter().any(|flags| flags.intersects(falls_back));
        let expected = is_inside && is_cached && self.model.access(at, self.policy, now);
        assert_eq!(moved, expected, "direct read of {at} from {start}, {extents:?}");
        self.met.direct_accesses += u64::from(moved);
        format!("direct read of {at} by {:?}", self.policy)
    }

    pub(super) fn read(&mut self) -> String {
        if self.random.one_in(4) {
            return self.read_directly();
        }
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
