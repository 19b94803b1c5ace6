//! Calls that change attributes: times, owner, mode, flags, extended attributes.

use super::History;
use buttress::unstable::fs::inode::FileAttributes;
use buttress::{AttributeChanges, FileKind, InodeFlags, Location, SetXattr, Timestamp};

impl History {
    pub(super) fn some_time(&mut self) -> Timestamp {
        let seconds = i64::try_from(self.random.below(4_000_000_000)).unwrap() - 1_000_000_000;
        Timestamp {
            seconds,
            nanoseconds: u32::try_from(self.random.below(1_000_000_000)).unwrap(),
        }
    }

    pub(super) fn maybe_time(&mut self) -> Option<Timestamp> {
        let time = self.some_time();
        self.random.one_in(2).then_some(time)
    }

    pub(super) fn change_attributes(&mut self) -> String {
        let (volume, now, at) = (self.volume(), self.now(), self.any());
        let kind = self.model.inodes[&at].kind;
        match self.random.below(8) {
            0 => {
                let mode = u32::try_from(self.random.below(0o1000)).unwrap();
                let changes = AttributeChanges {
                    mode: Some(mode),
                    ..AttributeChanges::default()
                };
                volume.set_attributes(at, &changes).unwrap();
                self.model.touch(at, now);
            }
            // Set the owner to its current value.
            1 => {
                volume.set_attributes(at, &AttributeChanges::default()).unwrap();
                self.model.touch(at, now);
            }
            2 if kind != FileKind::Symlink => {
                let is_noatime = self.random.one_in(3);
                let flag = FileAttributes::NOATIME;
                let flags = if is_noatime { flag } else { FileAttributes::empty() };
                // A flag that the volume's options set on new files stays set.
                let found = volume.live().metadata(at).unwrap();
                let nocow = found.flags.contains(InodeFlags::NODATACOW);
                let kept = if nocow {
                    FileAttributes::NOCOW
                } else {
                    FileAttributes::empty()
                };
                volume.set_flags(at, flags | kept).unwrap();
                self.model.inodes.get_mut(&at).unwrap().is_noatime = is_noatime;
                self.model.touch(at, now);
            }
            3 => {
                let (name, value) = (b"trusted.x", self.random.below(100).to_le_bytes());
                volume
                    .set_xattr(at, name, &value, SetXattr::CreateOrReplace)
                    .unwrap();
                self.model.touch(at, now);
            }
            4 => {
                if volume.remove_xattr(at, b"trusted.x").is_ok() {
                    self.model.touch(at, now);
                }
            }
            5 => {
                let (accessed, modified) = (self.random.one_in(2), self.random.one_in(2));
                let changes = AttributeChanges {
                    accessed: accessed.then_some(now),
                    modified: modified.then_some(now),
                    ..AttributeChanges::default()
                };
                volume.touch(at, &changes).unwrap();
                self.set_times(at, &changes, now);
            }
            _ => {
                let changed = self.maybe_time().filter(|_| self.random.one_in(3));
                let changes = AttributeChanges {
                    accessed: self.maybe_time(),
                    modified: self.maybe_time(),
                    changed,
                    ..AttributeChanges::default()
                };
                volume.set_attributes(at, &changes).unwrap();
                self.set_times(at, &changes, now);
            }
        }
        format!("attributes of {at}")
    }

    pub(super) fn set_times(&mut self, at: Location, changes: &AttributeChanges, now: Timestamp) {
        self.model.change(at, |times| {
            times.accessed = changes.accessed.unwrap_or(times.accessed);
            times.modified = changes.modified.unwrap_or(times.modified);
            times.changed = changes.changed.unwrap_or(now);
        });
    }
}
