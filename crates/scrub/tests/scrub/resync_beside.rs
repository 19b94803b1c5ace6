//! Tests that bring devices up to date while threads write, sync and commit: a power cut at any
//! point loses no synced data, and no read returns old data.
#![allow(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::panic,
    clippy::cast_possible_truncation,
    clippy::print_stderr,
    reason = "tests compute with known numbers, and a panic is how a test fails; what was tried is printed"
)]

use crate::support;

use buttress_device::{Backend, Device, Engine};
use buttress_format::{ByteCount, FileOffset, Profile};
use buttress_fs::{FileAttributes, Filesystem, Location, Progress};
use buttress_lab::crash::{CrashLab, Outcome as Cut};
use buttress_lab::gate::SetOnDrop;
use buttress_oracle::content::Random;
use buttress_scrub::{Resync, ResyncOptions};
use buttress_writer::WritableFilesystem;
use buttress_writer::operations::NewInode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use support::away::{
    Away, content_of, is_whole_alone, require_up_to_date, require_up_to_date_except_in_place, resync, root,
    scrub, session, write,
};
use support::replacing::{open, writable};
use support::{Lab, Make, Spy};

const SECTOR: usize = 4096;

/// The number of bytes that a device writes completely or not at all.
const UNIT: usize = 512;

/// The number of sectors of each file.
const SECTORS: usize = 40;

/// The least number of writes of each thread.
const ROUNDS: u64 = 25;

/// The cuts that each run tries, unless `BUTTRESS_SOAK` requests all.
const CUTS: usize = 24;

/// The files of the threads: for each thread, one with copy-on-write and one that is overwritten in
/// place.
const FILES: usize = 6;

/// The content version of each sector of a file.
type Versions = Vec<u64>;

fn name(file: usize) -> String {
    format!("threads-{file}")
}

/// Returns a sector whose units each name its file, its place and its version. If data is
/// overwritten in place, a power cut may keep only some units.
fn sector(file: usize, at: usize, version: u64) -> Vec<u8> {
    let seed = version << 24 | (file as u64) << 16 | at as u64;
    let mut bytes = Random::new(seed).bytes(SECTOR, false);
    for unit in bytes.chunks_mut(UNIT) {
        unit[..8].copy_from_slice(&version.to_le_bytes());
    }
    bytes
}

/// Returns the oldest version in a sector. Panics if a unit was never written there.
fn version_of(file: usize, at: usize, bytes: &[u8], what: &str) -> u64 {
    let units = bytes.chunks(UNIT).enumerate().map(|(number, unit)| {
        let version = u64::from_le_bytes(unit[..8].try_into().unwrap());
        let written = &sector(file, at, version)[number * UNIT..][..UNIT];
        assert!(
            unit == written,
            "{what}: sector {at} of {} holds what nobody wrote there",
            name(file)
        );
        version
    });
    units.min().unwrap()
}

/// Requires that no sector is older than promised.
fn require_no_older(file: usize, content: &[u8], least: &Versions, what: &str) {
    assert_eq!(content.len(), SECTORS * SECTOR, "{what}: {}", name(file));
    for (at, bytes) in content.chunks(SECTOR).enumerate() {
        let version = version_of(file, at, bytes, what);
        assert!(
            version >= least[at],
            "{what}: sector {at} of {} has version {version}, {} was promised",
            name(file),
            least[at]
        );
    }
}

/// The durable state after an event of the history.
struct Promise {
    event: usize,
    file: usize,
    versions: Versions,
}

#[derive(Default)]
struct Promises(Mutex<Vec<Promise>>);

impl Promises {
    /// Returns the least versions that a file must have after a cut.
    fn least(&self, file: usize, cut: usize) -> Versions {
        let promises = self.0.lock().unwrap();
        let kept = promises
            .iter()
            .filter(|promise| promise.file == file && promise.event <= cut);
        let last = kept.max_by_key(|promise| promise.event);
        last.map_or_else(|| vec![0; SECTORS], |promise| promise.versions.clone())
    }
}

fn make_files(filesystem: &WritableFilesystem) {
    for file in 0..FILES {
        let location = filesystem
            .create(root(), name(file).as_bytes(), &NewInode::of_root(0o644))
            .unwrap();
        if file >= FILES / 2 {
            filesystem.set_flags(location, FileAttributes::NOCOW).unwrap();
        }
        let content: Vec<u8> = (0..SECTORS).flat_map(|at| sector(file, at, 0)).collect();
        filesystem.write_at(location, FileOffset::MIN, &content).unwrap();
    }
}

/// Makes a volume whose first device missed write sessions, with files for the writing threads.
fn volume(profile: Profile, devices: usize) -> Away {
    let make = Make::new(profile, devices);
    let away = Away::with(&make, &[0], 2, &|lab: &Lab| {
        let filesystem = writable(lab.devices()).unwrap();
        make_files(&filesystem);
        filesystem.close().unwrap();
    });
    assert_eq!(
        content_of(&open(away.lab.devices()).unwrap(), &name(0)).len(),
        SECTORS * SECTOR
    );
    away
}

/// The state that the threads share.
struct Shared<'a> {
    filesystem: &'a WritableFilesystem,
    crashes: &'a CrashLab,
    locations: Vec<Location>,
    /// The bytes of every write that has returned.
    written: Vec<Mutex<Versions>>,
    promises: Promises,
    is_over: AtomicBool,
}

impl<'a> Shared<'a> {
    fn new(filesystem: &'a WritableFilesystem, crashes: &'a CrashLab) -> Self {
        let view = filesystem.view();
        let locate = |file| {
            let path = format!("/{}", name(file));
            view.resolve(root(), path.as_bytes(), buttress_fs::Follow::All)
                .unwrap()
        };
        Self {
            filesystem,
            crashes,
            locations: (0..FILES).map(locate).collect(),
            written: (0..FILES).map(|_| Mutex::new(vec![0; SECTORS])).collect(),
            promises: Promises::default(),
            is_over: AtomicBool::new(false),
        }
    }

    /// Writes parts of one file of each kind, and syncs or commits at times.
    fn write(&self, thread: usize) {
        let mut random = support::random(thread as u64);
        let mut version = 0;
        while version < ROUNDS || !self.is_over.load(Ordering::SeqCst) {
            version += 1;
            let file = if random.one_in(2) {
                thread
            } else {
                thread + FILES / 2
            };
            let from = random.below(SECTORS as u64) as usize;
            let end = (from + 1 + random.below(16) as usize).min(SECTORS);
            let content: Vec<u8> = (from..end).flat_map(|at| sector(file, at, version)).collect();
            let offset = FileOffset::new((from * SECTOR) as u64);
            self.filesystem
                .write_at(self.locations[file], offset, &content)
                .unwrap();
            let versions = {
                let mut written = self.written[file].lock().unwrap();
                written[from..end].fill(version);
                written.clone()
            };
            match random.below(4) {
                0 => {
                    self.filesystem.commit().unwrap();
                }
                1 => continue,
                _ => {
                    self.filesystem.log_tree().fsync(self.locations[file]).unwrap();
                }
            }
            let event = self.crashes.len();
            self.promises.0.lock().unwrap().push(Promise {
                event,
                file,
                versions,
            });
        }
    }

    /// Reads all files repeatedly. A read returns the content from before its begin, or newer
    /// content.
    fn read(&self) {
        while !self.is_over.load(Ordering::SeqCst) {
            for file in 0..FILES {
                let least = self.written[file].lock().unwrap().clone();
                let mut content = vec![0; SECTORS * SECTOR];
                let length = self
                    .filesystem
                    .live()
                    .read_at(self.locations[file], FileOffset::MIN, &mut content)
                    .unwrap();
                assert_eq!(length, content.len());
                require_no_older(file, &content, &least, "a read beside the return");
            }
        }
    }
}

fn record(crashes: &CrashLab, spies: &[Arc<Spy>]) -> Vec<Device> {
    let record = |spy: &Arc<Spy>| device(&crashes.device(Arc::clone(spy) as Arc<dyn Backend>));
    spies.iter().map(record).collect()
}

fn device(image: &Arc<dyn Backend>) -> Device {
    Device::with_backend(Arc::clone(image), Engine::Inline)
}

/// Brings the device up to date beside three writers and a reader. Returns the contents that the
/// test promised to the writers.
fn beside_threads(given: Vec<Device>, crashes: &CrashLab) -> (Promises, Vec<Versions>) {
    let filesystem = writable(given).unwrap();
    let shared = Shared::new(&filesystem, crashes);
    std::thread::scope(|scope| {
        let over = SetOnDrop::new(&shared.is_over);
        let writers: Vec<_> = (0..FILES / 2)
            .map(|thread| {
                let shared = &shared;
                scope.spawn(move || shared.write(thread))
            })
            .collect();
        let reader = scope.spawn(|| shared.read());
        let options = ResyncOptions {
            // The resync is slow enough that the writers change much during it.
            limit: Some(ByteCount::new(6 << 20)),
            ..ResyncOptions::default()
        };
        let resynced = Resync::new(filesystem.clone(), options, Progress::new()).run();
        drop(over);
        writers.into_iter().for_each(|writer| writer.join().unwrap());
        reader.join().unwrap();
        assert_eq!(resynced.unwrap().devices.len(), 1);
    });
    let Shared {
        promises, written, ..
    } = shared;
    filesystem.close().unwrap();
    let written = written.into_iter().map(|file| file.into_inner().unwrap());
    (promises, written.collect())
}

fn check_versions(filesystem: &Filesystem, least: impl Fn(usize) -> Versions, what: &str) {
    for file in 0..FILES {
        let content = content_of(filesystem, &name(file));
        require_no_older(file, &content, &least(file), what);
    }
}

/// Checks the device alone after a cut: it is complete, in its own state or in the volume's. In the
/// volume's state, the device has all synced data. Returns whether the device is in the volume's
/// state.
fn check_alone(
    image: &Arc<dyn Backend>,
    volume: &Away,
    least: impl Fn(usize) -> Versions,
    what: &str,
) -> bool {
    let what = format!("{what}, alone");
    assert!(is_whole_alone(device(image), &["a", "b", "c"]), "{what}");
    let alone = open(vec![device(image)]).unwrap();
    let is_new = alone.superblock().generation != volume.since;
    drop(alone);
    // Opening the device for writing replays the log.
    let filesystem = writable(vec![device(image)]).unwrap_or_else(|error| panic!("{what}: {error}"));
    let least = |file: usize| match is_new {
        true => least(file),
        false => vec![0; SECTORS],
    };
    check_versions(&filesystem.view(), least, &what);
    drop(filesystem);
    is_new
}

#[test]
fn syncs_during_return_survive_every_cut() {
    let all = std::env::var_os("BUTTRESS_SOAK").is_some();
    for (profile, devices) in [
        (Profile::Raid1, 2),
        (Profile::Raid1C3, 3),
        (Profile::Raid10, 4),
        (Profile::Raid5, 2),
        (Profile::Raid6, 3),
    ] {
        let volume = volume(profile, devices);
        let crashes = CrashLab::new();
        let (promises, _) = beside_threads(record(&crashes, &volume.lab.spies), &crashes);
        let history = crashes.history();
        let step = if all { 1 } else { history.len().div_ceil(CUTS) };
        let (mut at_old, mut at_new) = (0, 0);
        for cut in (0..=history.len()).rev().step_by(step) {
            let drawn = Cut::Drawn {
                seed: support::seed(cut as u64),
            };
            for outcome in [Cut::AllKept, Cut::NoneKept, drawn] {
                let what = format!(
                    "{profile} on {devices}, cut {cut} of {}, {outcome:?}",
                    history.len()
                );
                let least = |file| promises.least(file, cut);
                if volume.alone[0] {
                    let images = history.images_at(cut, outcome);
                    match check_alone(&images[0], &volume, least, &what) {
                        true => at_new += 1,
                        false => at_old += 1,
                    }
                }
                let given: Vec<Device> = history.images_at(cut, outcome).iter().map(device).collect();
                let filesystem = writable(given.clone()).unwrap_or_else(|error| panic!("{what}: {error}"));
                check_versions(&filesystem.view(), least, &what);
                resync(&filesystem);
                check_versions(&filesystem.view(), least, &what);
                write(&filesystem, 62);
                filesystem.close().unwrap();
                // The remaining errors are superblock copies of an interrupted commit.
                let scrubbed = open(given.clone()).unwrap();
                assert_eq!(scrub(&scrubbed, false).totals().uncorrectable_errors, 0, "{what}");
                drop(scrubbed);
                require_up_to_date_except_in_place(given, &what);
            }
        }
        eprintln!(
            "{profile} on {devices}: {} events, {} promises, alone {at_old} times at the old state, {at_new} at the new",
            history.len(),
            promises.0.lock().unwrap().len()
        );
        assert!(!volume.alone[0] || at_old > 0 && at_new > 0, "{profile}");
    }
}

/// At the end all devices together, and the returned device alone, have all writes.
#[test]
fn device_returned_beside_writers_has_all_writes() {
    for (profile, devices) in support::away::profiles() {
        let volume = volume(profile, devices);
        let crashes = CrashLab::new();
        let (_, written) = beside_threads(record(&crashes, &volume.lab.spies), &crashes);
        let history = crashes.history();
        let images = history.images_at(history.len(), Cut::NoneKept);
        let given: Vec<Device> = images.iter().map(device).collect();
        let what = format!("{profile} on {devices}");
        require_up_to_date(given.clone(), &what);
        // The test then removes as many of the other devices as the profile can lose.
        let lost = support::replacing::tolerated(profile);
        let left = given[..devices - lost].to_vec();
        let filesystem = open(left).unwrap();
        for (file, versions) in written.iter().enumerate() {
            let content = content_of(&filesystem, &name(file));
            require_no_older(file, &content, versions, &what);
        }
    }
}

/// New chunks get a stripe on the returning device. Writes to them have all their copies, and a
/// volume on two devices is not full too early.
#[test]
fn new_chunks_use_the_device_that_returns() {
    let volume = volume(Profile::Raid1, 2);
    let filesystem = writable(volume.lab.devices()).unwrap();
    let slot = buttress_scrub::resync::devices_behind(filesystem.committed_view().volume());
    let returning = filesystem
        .devices()
        .begin_return(slot[0].uuid(), &Progress::new())
        .unwrap();
    let chunks = || filesystem.committed_view().volume().chunk_map().chunks().len();
    let before = chunks();
    let content = Random::new(4).bytes(8 << 20, false);
    for number in 0.. {
        let name = format!("big-{number}");
        let file = filesystem
            .create(root(), name.as_bytes(), &NewInode::of_root(0o644))
            .unwrap();
        filesystem.write_at(file, FileOffset::MIN, &content).unwrap();
        filesystem.commit().unwrap();
        if chunks() > before {
            break;
        }
    }
    // After the return of the device was abandoned, the device still has its own state.
    drop(returning);
    assert!(!volume.require_alone(0, volume.lab.spies[0].device(), "a return that was given up"));
    resync(&filesystem);
    filesystem.close().unwrap();
    require_up_to_date(volume.lab.devices(), "new chunks");
    session(vec![volume.lab.spies[0].device()], 63);
}
