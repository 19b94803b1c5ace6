//! Syncs, commits, snapshots, remounts and power cuts, and the times that survive them.

use super::super::model::{Inode, Times};
use super::{History, ROOT, SNAPSHOTS};
use buttress::{FileKind, FileOffset, InodeFlags, Location, SubvolumeId};

impl History {
    pub(super) fn make_durable(&mut self) -> String {
        let volume = self.volume();
        let what = self.random.below(12);
        match what {
            0 | 1 => {
                let at = self.any();
                volume.log_tree().fsync(at).unwrap();
                self.model.sync(at);
            }
            2 => {
                let _synced = volume.log_tree().fdatasync(self.any()).unwrap();
            }
            3 => {
                let at = self.file().unwrap();
                volume.writeback().write_file(at).unwrap();
                self.model.inodes.get_mut(&at).unwrap().is_dirty = false;
            }
            4 => volume.writeback().write_all().unwrap(),
            5 => {
                let range = FileOffset::new(0)..FileOffset::new(self.random.below(50_000));
                let at = self.file().unwrap();
                let _synced = volume.log_tree().sync_range(at, range).unwrap();
            }
            6 => drop(volume.view()),
            7 | 8 => {
                volume.commit().unwrap();
                self.model.commit();
            }
            9 if self.met.snapshots < SNAPSHOTS => self.snapshot(),
            10 => self.remount(),
            11 => self.cut(),
            _ => {}
        }
        format!("durable {what}")
    }

    pub(super) fn snapshot(&mut self) {
        let (volume, now, name) = (self.volume(), self.now(), self.new_name());
        let read_only = self.random.one_in(2);
        let id = volume
            .subvolumes()
            .snapshot(SubvolumeId::TOP_LEVEL, ROOT, name.as_bytes(), read_only)
            .unwrap();
        for (at, inode) in &self.model.inodes {
            if *at != ROOT {
                self.model.kept.insert(Location::new(id, at.inode), inode.times);
            }
        }
        // The new snapshot and all earlier changes are durable.
        self.model.modify(ROOT, now);
        self.model.commit();
        self.met.snapshots += 1;
        // Reads change no times in a read-only subvolume.
        let inside = self.model.kept.keys().next_back().copied();
        if let Some(inside) = inside.filter(|_| read_only) {
            assert!(!volume.note_access(inside, self.policy).unwrap());
        }
    }

    pub(super) fn remount(&mut self) {
        self.filesystem.take().unwrap().close().unwrap();
        self.model.commit();
        self.open();
        self.met.remounts += 1;
    }

    /// Cuts the power of the simulated device. The state of the volume after the power cut becomes
    /// the model.
    pub(super) fn cut(&mut self) {
        self.filesystem.take().unwrap().abandon();
        self.pass_time();
        self.open();
        self.met.cuts += 1;
        let volume = self.volume();
        let old = std::mem::take(&mut self.model);
        self.model.kept = old.kept;
        let mut directories = vec![ROOT];
        let root = old.inodes[&ROOT].clone();
        self.find(ROOT, &root);
        while let Some(directory) = directories.pop() {
            for entry in volume.live().list(directory, 0, usize::MAX).unwrap() {
                if entry.target.subvolume != SubvolumeId::TOP_LEVEL {
                    continue;
                }
                let (at, name) = (entry.target, String::from_utf8(entry.name).unwrap());
                let known = old.inodes.get(&at).or_else(|| old.gone.get(&at));
                let known = known.unwrap_or_else(|| panic!("{at} ({name}) came from nowhere"));
                self.find(at, known);
                self.model.names.insert((directory, name), at);
                if entry.kind == FileKind::Directory {
                    directories.push(at);
                }
            }
        }
    }

    /// Checks an inode after a power cut: its times must be times that it had since it was last
    /// durable.
    pub(super) fn find(&mut self, at: Location, known: &Inode) {
        let found = self.volume().live().metadata(at).unwrap();
        let times = Times::of(&found);
        assert!(
            known.since_durable.contains(&times),
            "{at} has {times:?} after a power cut, and had {:?}",
            known.since_durable
        );
        self.met.exact += u64::from(known.since_durable.len() == 1);
        let mut inode = Inode::new(known.kind, times);
        inode.is_noatime = found.flags.contains(InodeFlags::NOATIME);
        inode.links = found.nlink;
        self.model.inodes.insert(at, inode);
    }
}
