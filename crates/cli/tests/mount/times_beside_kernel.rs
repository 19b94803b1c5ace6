//! Makes the same random histories on a mount of this program and on the kernel's btrfs: after each
//! call the same files have the same times.
//!
//! A time is compared by the call that set it, or by its value if the call gave one. Between two
//! calls the clock advances by more than a tick, so both sides agree on the times that each call
//! changed, on their order, and on equal times.
//!
//! A FUSE server cannot see some calls ([docs/mount.md], "Times"). The histories omit only these:
//! reads that the kernel answers from its caches, reads at the end of a file, and, with the
//! kernel's write-back cache, punches of existing holes.
//!
//! `BUTTRESS_MOUNT_SEED` is the seed of the first history, `BUTTRESS_TIMES_HISTORIES` the number of
//! histories.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "tests state what must hold"
)]

mod calls;
use crate::mounting;

use buttress_oracle::content::Random;
use buttress_oracle::ioctls;
use buttress_oracle::loop_device::Mount;
use buttress_oracle::seeds::{number, seed};
use buttress_oracle::skip::skips;
use buttress_oracle::tools::kernel_missing;
use calls::{Call, DIRECTORIES, FILES, LINKS, allocate_flags, choose, first_calls, has_extent, make, open};
use mounting::{Mounted, no_fuse};
use rustix::fs::{AtFlags, CWD, FallocateFlags, OFlags, StatxFlags};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::thread;
use std::time::{Duration, SystemTime};

const HISTORIES: u64 = 30;
const CALLS: usize = 40;
/// Tick of most kernels' clocks.
const TICK: Duration = Duration::from_millis(4);
const SECTOR: usize = 4096;

/// Mount options of both sides.
const MOUNTS: [(&str, &str); 10] = [
    ("rw", ""),
    ("rw,writeback_cache", "relatime"),
    ("rw,strictatime", "strictatime"),
    ("rw,strictatime,writeback_cache", "strictatime"),
    ("rw,noatime", "noatime"),
    ("rw,noatime,writeback_cache", "noatime"),
    ("rw,lazytime", "lazytime"),
    ("rw,lazytime,writeback_cache", "lazytime"),
    ("rw,nodiratime", "nodiratime"),
    ("rw,strictatime,nodiratime", "strictatime,nodiratime"),
];

/// Origin of a recorded time: the call that set it, or the value that a call gave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum When {
    Call(usize),
    Given(i64, u32),
}

/// Returns the time of the kernel's last tick.
fn coarse_now() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::RealtimeCoarse);
    Duration::new(
        u64::try_from(now.tv_sec).unwrap(),
        u32::try_from(now.tv_nsec).unwrap(),
    )
}

/// Times at which calls began.
struct Moments(Vec<Duration>);

impl Moments {
    /// Begins a call: waits until the coarse clock has advanced. On a busy machine, the kernel's
    /// clock ticks late.
    fn begin_call(&mut self) {
        thread::sleep(TICK);
        let moment = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
        while coarse_now() <= moment {
            thread::sleep(TICK);
        }
        self.0.push(moment);
    }

    fn when(&self, seconds: i64, nanoseconds: u32) -> When {
        const HOUR: u64 = 3600;
        let given = When::Given(seconds, nanoseconds);
        let Ok(whole) = u64::try_from(seconds) else {
            return given;
        };
        let time = Duration::new(whole, nanoseconds);
        if time < self.0[0] || whole > self.0[0].as_secs() + HOUR {
            return given;
        }
        When::Call(self.0.partition_point(|moment| *moment <= time) - 1)
    }
}

type Seen = BTreeMap<String, [When; 4]>;

/// Returns the times of all files that may exist.
fn seen(root: &Path, moments: &Moments) -> Seen {
    let mut all = Seen::new();
    for directory in DIRECTORIES {
        for name in FILES.iter().chain(&LINKS).chain(&["."]) {
            let path = format!("{directory}/{name}");
            let found = rustix::fs::statx(
                CWD,
                root.join(&path),
                AtFlags::SYMLINK_NOFOLLOW,
                StatxFlags::BASIC_STATS | StatxFlags::BTIME,
            );
            let Ok(found) = found else { continue };
            let times = [found.stx_atime, found.stx_mtime, found.stx_ctime, found.stx_btime];
            all.insert(path, times.map(|time| moments.when(time.tv_sec, time.tv_nsec)));
        }
    }
    all
}

/// State of both sides of a comparison.
struct Sides<'a> {
    roots: [&'a Path; 2],
    kept_back: bool,
    moments: Moments,
    /// Paths that the kernel has cached and answers without the server.
    cached: BTreeSet<String>,
    /// Number of calls that changed times.
    changes: usize,
}

impl Sides<'_> {
    fn compare(&self, below: &str, context: &str) -> Seen {
        let [ours, theirs] = self.roots.map(|root| seen(&root.join(below), &self.moments));
        assert_eq!(ours, theirs, "{context}: access, modification, change, birth");
        ours
    }

    /// Returns whether the history omits a call.
    fn is_left_out(&mut self, name: &str, call: &Call) -> bool {
        match call.what {
            // The kernel may answer this call from its caches.
            "list" | "read link" => !self.cached.insert(call.path.clone()),
            "flags" => self.kept_back,
            // For an allocation, FUSE itself sets the times before it asks the server.
            "allocate" => self.kept_back && self.punches_hole(name, call),
            _ => false,
        }
    }

    /// Returns whether a call punches an existing hole.
    fn punches_hole(&self, name: &str, call: &Call) -> bool {
        let path = self.roots[1].join(name).join(&call.path);
        let is_punch = call.what == "allocate" && allocate_flags(call).contains(FallocateFlags::PUNCH_HOLE);
        let Some(file) = is_punch.then(|| open(&path, OFlags::RDWR).ok()).flatten() else {
            return false;
        };
        let start = call.at & !4095;
        let end = (call.at + call.length).next_multiple_of(4096);
        !has_extent(&file, start, end - start).unwrap()
    }

    fn history(&mut self, seed: u64) {
        let name = format!("history{seed}");
        self.moments.begin_call();
        for root in self.roots {
            let directory = open(root, OFlags::RDONLY | OFlags::DIRECTORY).unwrap();
            ioctls::create_subvolume(&directory, name.as_bytes()).unwrap();
        }
        self.cached.clear();
        let mut random = Random::new(seed);
        let mut before = self.compare(&name, "an empty subvolume");
        let first = first_calls();
        let drawn = std::iter::repeat_with(|| choose(&mut random)).take(CALLS);
        for (number, mut call) in first.into_iter().chain(drawn).enumerate() {
            if self.is_left_out(&name, &call) {
                continue;
            }
            // Whether Linux's btrfs sets times here depends on whether its cache holds the hole in
            // pieces. A sector of a hole is always one piece.
            if self.punches_hole(&name, &call) {
                call.length = call.length.min(4096 - call.at % 4096);
            }
            println!("seed {seed}, call {number}, {call:?}");
            self.moments.begin_call();
            let kept_back = self.kept_back;
            let [ours, theirs] = self.roots.map(|root| make(&root.join(&name), &call, kept_back));
            let context = format!("seed {seed}, call {number}, {call:?}, before it {before:?}");
            assert_eq!(ours, theirs, "{context}");
            let after = self.compare(&name, &context);
            self.changes += usize::from(after != before);
            before = after;
        }
        self.snapshot(&name, &before);
    }

    /// Asserts that a snapshot has its source's times, including times that were not written back.
    fn snapshot(&mut self, name: &str, expected: &Seen) {
        self.moments.begin_call();
        let copy = format!("{name}-snapshot");
        for root in self.roots {
            let source = open(&root.join(name), OFlags::RDONLY | OFlags::DIRECTORY).unwrap();
            let directory = open(root, OFlags::RDONLY | OFlags::DIRECTORY).unwrap();
            ioctls::snapshot(&source, &directory, copy.as_bytes(), true).unwrap();
        }
        let found = self.compare(&copy, &copy);
        assert_eq!(&found, expected, "{copy}");
    }
}

/// Makes the histories of these seeds on one pair of mounts. Returns the number of calls that
/// changed times.
fn run_group((our_options, their_options): (&str, &str), seeds: &[u64]) -> usize {
    if seeds.is_empty() {
        return 0;
    }
    let (ours, theirs) = (Mounted::new(), Mounted::new());
    ours.mount(&format!("{our_options},commit=600"));
    let kernel = Mount::new(std::slice::from_ref(&theirs.image), their_options).unwrap();
    let mut sides = Sides {
        roots: [ours.at.as_path(), kernel.path()],
        kept_back: our_options.contains("writeback_cache"),
        moments: Moments(Vec::new()),
        cached: BTreeSet::new(),
        changes: 0,
    };
    seeds.iter().for_each(|seed| sides.history(*seed));
    let names: Vec<_> = seeds.iter().map(|seed| format!("history{seed}")).collect();
    let shown: Vec<_> = names.iter().map(|name| sides.compare(name, name)).collect();
    let (moments, changes) = (sides.moments, sides.changes);
    kernel.close().unwrap();
    ours.umount();
    ours.expect_sound();
    // After the unmount, the image has the times that the mount showed.
    ours.mount("ro");
    for (name, shown) in names.iter().zip(&shown) {
        assert_eq!(&seen(&ours.path(name), &moments), shown, "{name}, mounted again");
    }
    ours.umount();
    changes
}

#[test]
fn times_change_as_on_the_kernels_mount() {
    const NAME: &str = "times_change_as_on_the_kernels_mount";
    if skips(no_fuse()) || skips(kernel_missing()) {
        return;
    }
    let first = seed(NAME, "BUTTRESS_MOUNT_SEED", 1);
    let count = number("BUTTRESS_TIMES_HISTORIES").unwrap_or(HISTORIES);
    let groups = u64::try_from(MOUNTS.len()).unwrap();
    let of_group = |group: u64| (first..first + count).filter(move |seed| seed % groups == group);
    // The histories wait for the clock most of the time, so run them in parallel.
    let changes: usize = thread::scope(|scope| {
        let threads: Vec<_> = (0_u64..)
            .zip(MOUNTS)
            .map(|(group, options)| {
                let seeds: Vec<_> = of_group(group).collect();
                scope.spawn(move || run_group(options, &seeds))
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    println!("{count} histories, {changes} calls that changed times");
    assert!(
        changes >= usize::try_from(count).unwrap() * 10,
        "{changes} changes in {count} histories"
    );
}
