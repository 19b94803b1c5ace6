//! Calls drawn from a seed, on a volume and in the model.

use super::model::{Inode, Model, Times};
use buttress::format::{InodeFlags, SubvolumeId, Uuid};
use buttress::fs::inode::FileAttributes;
use buttress::fs::{Error, Location};
use buttress::writer::data::DataOptions;
use buttress::writer::mkfs::Options;
use buttress::writer::operations::{
    AccessPolicy, AccessTimes, AttributeChanges, NewInode, RenameMode, SetXattr,
};
use buttress::writer::{AllocateMode, Environment, WritableFilesystem, WriteOptions};
use buttress::{ByteCount, FileKind, FileOffset, OpenOptions, Timestamp};
use buttress_oracle::content::Random;
use buttress_proof::writing::volume::{Backends, devices, empty};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

const ROOT: Location = Location::root_of(SubvolumeId::TOP_LEVEL);
const STEPS: u64 = 120;
const DEVICE_BYTES: usize = 128 << 20;
const SECTOR: u64 = 4096;
const SNAPSHOTS: u64 = 2;
const NANOSECONDS: i64 = 1_000_000_000;

/// A clock that stands still until the test moves it.
#[derive(Debug, Default)]
struct Clock {
    nanoseconds: AtomicI64,
    uuids: AtomicU64,
}

impl Environment for Clock {
    fn now(&self) -> Timestamp {
        let now = self.nanoseconds.load(Ordering::SeqCst);
        Timestamp {
            seconds: now.div_euclid(NANOSECONDS),
            nanoseconds: u32::try_from(now.rem_euclid(NANOSECONDS)).unwrap(),
        }
    }

    fn new_uuid(&self) -> Uuid {
        Uuid::from_u128(7 << 100 | u128::from(self.uuids.fetch_add(1, Ordering::SeqCst)))
    }
}

/// Counts of the events in histories.
#[derive(Clone, Copy, Debug, Default)]
pub struct Met {
    pub cuts: u64,
    pub remounts: u64,
    pub snapshots: u64,
    pub accesses: u64,
    pub reads_of_dirty_files: u64,
    /// Inodes that a cut had to leave exactly as they were synced.
    pub exact: u64,
}

impl Met {
    pub fn add(&mut self, other: &Self) {
        self.cuts += other.cuts;
        self.remounts += other.remounts;
        self.snapshots += other.snapshots;
        self.accesses += other.accesses;
        self.reads_of_dirty_files += other.reads_of_dirty_files;
        self.exact += other.exact;
    }
}

/// A volume, and what it must show.
pub struct History {
    random: Random,
    clock: Arc<Clock>,
    backends: Backends,
    data: DataOptions,
    policy: AccessPolicy,
    filesystem: Option<WritableFilesystem>,
    model: Model,
    met: Met,
    made: u64,
}

impl History {
    pub fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let backends = empty(&[DEVICE_BYTES], &Options::default()).unwrap();
        let clock = Arc::new(Clock::default());
        clock
            .nanoseconds
            .store(1_700_000_000 * NANOSECONDS, Ordering::SeqCst);
        let data = DataOptions {
            // Much is written back by itself, or nothing is.
            delalloc_bytes_max: ByteCount::new(if random.one_in(3) { 64 << 10 } else { 32 << 20 }),
            copy_on_write: !random.one_in(6),
            ..DataOptions::default()
        };
        let times = [AccessTimes::Relative, AccessTimes::Strict, AccessTimes::Never];
        let policy = AccessPolicy {
            times: times[usize::try_from(random.below(5).min(2)).unwrap() * usize::from(random.one_in(2))],
            without_directories: random.one_in(4),
        };
        let mut history = Self {
            random,
            clock,
            backends,
            data,
            policy,
            filesystem: None,
            model: Model::default(),
            met: Met::default(),
            made: 0,
        };
        history.open();
        let found = history.volume().metadata(ROOT).unwrap();
        let root = Inode::new(FileKind::Directory, Times::of(&found));
        history.model.inodes.insert(ROOT, root);
        history
    }

    pub fn run(mut self) -> Met {
        for directory in ["a", "b"] {
            self.make(directory, FileKind::Directory);
        }
        for number in 0..STEPS {
            self.pass_time();
            let what = self.step();
            println!("call {number}, {what}");
            self.compare(&format!("after call {number}, {what}"));
        }
        self.remount();
        self.compare("at the end");
        self.met
    }

    fn volume(&self) -> WritableFilesystem {
        self.filesystem.clone().unwrap()
    }

    fn open(&mut self) {
        let options = WriteOptions {
            environment: Arc::clone(&self.clock) as Arc<dyn Environment>,
            data: self.data,
            ..WriteOptions::default()
        };
        let opened = OpenOptions::new(devices(&self.backends)).open().unwrap();
        self.filesystem = Some(WritableFilesystem::new(opened, options).unwrap());
    }

    fn pass_time(&mut self) {
        let passes = match self.random.below(12) {
            0 => 0,
            1 => 1,
            2 => 86_400 * NANOSECONDS,
            // The clock is set back.
            3 => -5 * NANOSECONDS,
            _ => i64::try_from(self.random.below(3_000_000_000)).unwrap(),
        };
        self.clock.nanoseconds.fetch_add(passes, Ordering::SeqCst);
    }

    fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// Every inode shows the model's times, and so does every snapshot.
    fn compare(&self, when: &str) {
        let volume = self.volume();
        for (at, inode) in &self.model.inodes {
            let found = Times::of(&volume.metadata(*at).unwrap());
            assert_eq!(found, inode.times, "{when}: {at}");
        }
        for (at, times) in &self.model.kept {
            let found = Times::of(&volume.metadata(*at).unwrap());
            assert_eq!(&found, times, "{when}: {at} in a snapshot");
        }
    }

    fn pick(&mut self, wanted: impl Fn(&Inode) -> bool) -> Option<Location> {
        let all = self.model.inodes.iter();
        let all: Vec<_> = all
            .filter(|(_, inode)| wanted(inode))
            .map(|(at, _)| *at)
            .collect();
        let index = usize::try_from(self.random.below(u64::try_from(all.len()).unwrap())).unwrap();
        all.get(index).copied()
    }

    fn file(&mut self) -> Option<Location> {
        self.pick(|inode| inode.kind == FileKind::Regular)
    }

    fn directory(&mut self) -> Location {
        self.pick(|inode| inode.kind == FileKind::Directory).unwrap()
    }

    fn any(&mut self) -> Location {
        self.pick(|_| true).unwrap()
    }

    fn new_name(&mut self) -> String {
        self.made += 1;
        format!("n{}", self.made)
    }

    fn make(&mut self, name: &str, kind: FileKind) {
        let (volume, now) = (self.volume(), self.now());
        let directory = if kind == FileKind::Directory {
            ROOT
        } else {
            self.directory()
        };
        let new = NewInode::of_root(0o644);
        let bytes = name.as_bytes();
        let made = match kind {
            FileKind::Directory => volume.make_directory(directory, bytes, &new),
            FileKind::Symlink => volume.make_symlink(directory, bytes, &new, b"target"),
            _ => volume.create(directory, bytes, &new),
        };
        let at = made.unwrap();
        self.model.inodes.insert(at, Inode::new(kind, Times::all(now)));
        self.model.add(directory, name, at, now);
    }

    /// Makes one call. Returns what it was.
    fn step(&mut self) -> String {
        let files = self.model.inodes.values();
        let files = files.filter(|inode| inode.kind == FileKind::Regular).count();
        if files < 3 {
            let name = self.new_name();
            self.make(&name, FileKind::Regular);
            return format!("create {name}");
        }
        match self.random.below(10) {
            0 => self.change_names(),
            1 | 2 => self.change_attributes(),
            3..=5 => self.change_content(),
            6 | 7 => self.read(),
            _ => self.make_durable(),
        }
    }

    fn change_names(&mut self) -> String {
        let (volume, now) = (self.volume(), self.now());
        let name = self.new_name();
        let names: Vec<_> = self.model.names.keys().cloned().collect();
        let index = usize::try_from(self.random.below(u64::try_from(names.len()).unwrap())).unwrap();
        let (from, old) = names[index].clone();
        let at = self.model.names[&(from, old.clone())];
        let is_directory = self.model.inodes[&at].kind == FileKind::Directory;
        let to = if is_directory { ROOT } else { self.directory() };
        match self.random.below(6) {
            0 => self.make(&name, FileKind::Symlink),
            1 | 2 if !is_directory => {
                volume.link(at, to, name.as_bytes()).unwrap();
                self.model.inodes.get_mut(&at).unwrap().links += 1;
                self.model.touch(at, now);
                self.model.add(to, &name, at, now);
            }
            3 if !is_directory => {
                volume.unlink(from, old.as_bytes()).unwrap();
                self.model.remove(from, &old, now);
            }
            4 if !is_directory && names.iter().any(|name| name.0 == to) => {
                // The new name exists already.
                let onto = names.iter().find(|name| name.0 == to).unwrap().clone();
                let victim = self.model.names[&onto];
                if victim == at || self.model.inodes[&victim].kind == FileKind::Directory {
                    return "nothing".to_owned();
                }
                let target = onto.1.as_bytes();
                volume
                    .rename(from, old.as_bytes(), to, target, RenameMode::Replace)
                    .unwrap();
                self.model.remove(to, &onto.1, now);
                self.model.names.remove(&(from, old.clone()));
                self.model.modify(from, now);
                self.model.touch(at, now);
                self.model.add(to, &onto.1, at, now);
            }
            _ => {
                let target = name.as_bytes();
                volume
                    .rename(from, old.as_bytes(), to, target, RenameMode::NoReplace)
                    .unwrap();
                self.model.names.remove(&(from, old.clone()));
                self.model.modify(from, now);
                self.model.touch(at, now);
                self.model.add(to, &name, at, now);
            }
        }
        format!("names: {old}, {name}")
    }

    fn some_time(&mut self) -> Timestamp {
        let seconds = i64::try_from(self.random.below(4_000_000_000)).unwrap() - 1_000_000_000;
        Timestamp {
            seconds,
            nanoseconds: u32::try_from(self.random.below(1_000_000_000)).unwrap(),
        }
    }

    fn maybe_time(&mut self) -> Option<Timestamp> {
        let time = self.some_time();
        self.random.one_in(2).then_some(time)
    }

    fn change_attributes(&mut self) -> String {
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
            // An owner that stays.
            1 => {
                volume.set_attributes(at, &AttributeChanges::default()).unwrap();
                self.model.touch(at, now);
            }
            2 if kind != FileKind::Symlink => {
                let is_noatime = self.random.one_in(3);
                let flag = FileAttributes::NOATIME;
                let flags = if is_noatime { flag } else { FileAttributes::empty() };
                // A flag that the volume's options set stays.
                let found = volume.metadata(at).unwrap();
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

    fn set_times(&mut self, at: Location, changes: &AttributeChanges, now: Timestamp) {
        self.model.change(at, |times| {
            times.accessed = changes.accessed.unwrap_or(times.accessed);
            times.modified = changes.modified.unwrap_or(times.modified);
            times.changed = changes.changed.unwrap_or(now);
        });
    }

    fn change_content(&mut self) -> String {
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

    fn read(&mut self) -> String {
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

    fn make_durable(&mut self) -> String {
        let volume = self.volume();
        let what = self.random.below(12);
        match what {
            0 | 1 => {
                let at = self.any();
                volume.fsync(at).unwrap();
                self.model.sync(at);
            }
            2 => {
                let _synced = volume.fdatasync(self.any()).unwrap();
            }
            3 => {
                let at = self.file().unwrap();
                volume.write_back_file(at).unwrap();
                self.model.inodes.get_mut(&at).unwrap().is_dirty = false;
            }
            4 => volume.write_back().unwrap(),
            5 => {
                let range = FileOffset::new(0)..FileOffset::new(self.random.below(50_000));
                let at = self.file().unwrap();
                let _synced = volume.sync_range(at, range).unwrap();
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

    fn snapshot(&mut self) {
        let (volume, now, name) = (self.volume(), self.now(), self.new_name());
        let read_only = self.random.one_in(2);
        let id = volume
            .snapshot(SubvolumeId::TOP_LEVEL, ROOT, name.as_bytes(), read_only)
            .unwrap();
        for (at, inode) in &self.model.inodes {
            if *at != ROOT {
                self.model.kept.insert(Location::new(id, at.inode), inode.times);
            }
        }
        // The commit that froze the source comes before the name.
        self.model.commit();
        self.model.modify(ROOT, now);
        self.model.new_snapshots.push(id);
        self.met.snapshots += 1;
        // Reading moves no time in a read-only subvolume.
        let inside = self.model.kept.keys().next_back().copied();
        if let Some(inside) = inside.filter(|_| read_only) {
            assert!(!volume.note_access(inside, self.policy).unwrap());
        }
    }

    fn remount(&mut self) {
        self.filesystem.take().unwrap().close().unwrap();
        self.model.commit();
        self.open();
        self.met.remounts += 1;
    }

    /// The power goes. Cuts the power. The state found afterwards becomes the model.
    fn cut(&mut self) {
        self.filesystem.take().unwrap().abandon();
        self.pass_time();
        self.open();
        self.met.cuts += 1;
        let volume = self.volume();
        let old = std::mem::take(&mut self.model);
        self.model.kept = old.kept;
        let is_lost =
            |at: &Location| old.new_snapshots.contains(&at.subvolume) && volume.metadata(*at).is_err();
        self.model.kept.retain(|at, _| !is_lost(at));
        let mut directories = vec![ROOT];
        let root = old.inodes[&ROOT].clone();
        self.find(ROOT, &root);
        while let Some(directory) = directories.pop() {
            for entry in volume.list(directory, 0, usize::MAX).unwrap() {
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

    /// Checks an inode after a power cut: it has times that it had since it was last durable.
    fn find(&mut self, at: Location, known: &Inode) {
        let found = self.volume().metadata(at).unwrap();
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
