//! Random calls from a seed, on a volume and in the model.

mod attributes;
mod content;
mod durability;
mod names;

use super::model::{Inode, Model, Times};
use buttress::mkfs::Options;
use buttress::unstable::fs::OpenOptions;
use buttress::unstable::writer::{WritableFilesystem, WriteOptions};
use buttress::{
    AccessPolicy, AccessTimes, ByteCount, Compression, CompressionMethod, DataOptions, Environment, FileKind,
    Location, SubvolumeId, Timestamp, Uuid,
};
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

/// Environment with a clock that only the test advances.
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
    /// Number of inodes that had exactly their synced times after a cut.
    pub exact: u64,
    pub punched_holes: u64,
    pub direct_accesses: u64,
}

impl Met {
    pub fn add(&mut self, other: &Self) {
        self.cuts += other.cuts;
        self.remounts += other.remounts;
        self.snapshots += other.snapshots;
        self.accesses += other.accesses;
        self.reads_of_dirty_files += other.reads_of_dirty_files;
        self.exact += other.exact;
        self.punched_holes += other.punched_holes;
        self.direct_accesses += other.direct_accesses;
    }
}

/// A volume with its model.
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
            // A small limit causes much automatic write-back, a large one causes none.
            delalloc_bytes_max: ByteCount::new(if random.one_in(3) { 64 << 10 } else { 32 << 20 }),
            copy_on_write: !random.one_in(6),
            compression: random
                .one_in(4)
                .then(|| CompressionMethod::new(Compression::Zstd)),
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
        let found = history.volume().live().metadata(ROOT).unwrap();
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
            // This step sets the clock back.
            3 => -5 * NANOSECONDS,
            _ => i64::try_from(self.random.below(3_000_000_000)).unwrap(),
        };
        self.clock.nanoseconds.fetch_add(passes, Ordering::SeqCst);
    }

    fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// Asserts that every inode, and every snapshot, shows the model's times.
    fn compare(&self, when: &str) {
        let volume = self.volume();
        for (at, inode) in &self.model.inodes {
            let found = Times::of(&volume.live().metadata(*at).unwrap());
            assert_eq!(found, inode.times, "{when}: {at}");
        }
        for (at, times) in &self.model.kept {
            let found = Times::of(&volume.live().metadata(*at).unwrap());
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

    /// Makes one call. Returns its description.
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
}
