//! Devices are replaced on every profile: there, missing, damaged; beside a writer; cut off at every write.
#![allow(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::panic,
    clippy::cast_possible_truncation,
    reason = "tests compute with known numbers, and a panic is how a test fails"
)]

mod support;

use buttress_device::crash::{CrashLab, Outcome as Cut};
use buttress_device::{Backend, Device, Engine, Fault, FaultyBackend};
use buttress_format::{ByteCount, DeviceId, FileOffset, Physical, Profile, ReplaceState, SubvolumeId};
use buttress_fs::{Filesystem, Location, OpenOptions, Progress};
use buttress_oracle::content::Random;
use buttress_scrub::{Cause, Damage, Options, Part, Replace, ReplaceOptions, Replaced, Scrub};
use buttress_writer::operations::NewInode;
use buttress_writer::{WritableFilesystem, WriteOptions, replacement_item};
use core::time::Duration;
use std::sync::Arc;
use support::{Lab, Make, REDUNDANT, Spy, Use};

/// What is to be true of the device that goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    /// It is good.
    There,
    /// It is good, and read only where nothing else helps.
    Avoided,
    /// A third of its blocks is noise.
    Rotten,
    /// It is gone.
    Missing,
    /// It is gone, and a third of another device's blocks is noise.
    MissingAndMore,
}

fn open(devices: Vec<Device>) -> buttress_fs::Result<Filesystem> {
    OpenOptions::new(devices)
        .cache(ByteCount::new(4 << 20))
        .degraded(true)
        .open()
}

fn writable(devices: Vec<Device>) -> buttress_fs::Result<WritableFilesystem> {
    WritableFilesystem::new(open(devices)?, WriteOptions::default())
}

fn often() -> ReplaceOptions {
    ReplaceOptions {
        commit_every: Duration::ZERO,
        ..ReplaceOptions::default()
    }
}

fn run(filesystem: &WritableFilesystem) -> Result<Replaced, buttress_scrub::Error> {
    Replace::new(filesystem.clone(), often(), Progress::new()).run()
}

/// Spoils a third of the blocks that a device has in use.
fn spoil(spy: &Spy, uses: &[Use], device: usize, seed: u64) {
    let mut random = Random::new(seed);
    for used in uses.iter().filter(|used| used.device == device) {
        for at in (0..used.length as u64).step_by(4096) {
            if random.one_in(3) {
                spy.put(used.physical + at, &random.bytes(4096, false));
            }
        }
    }
}

/// How many devices a profile can lose.
fn tolerated(profile: Profile) -> usize {
    match profile {
        Profile::Raid1 | Profile::Raid10 | Profile::Raid5 => 1,
        Profile::Raid1C3 | Profile::Raid6 => 2,
        Profile::Raid1C4 => 3,
        _ => 0,
    }
}

fn replaced(profile: Profile, devices: usize, lost: usize, source: Source, bare: bool) {
    let what = format!("{profile}, device {lost} of {devices}, {source:?}");
    let lab = Lab::new(&Make {
        bare,
        ..Make::new(profile, devices)
    })
    .unwrap();
    let uses = lab.uses().unwrap();
    let data: Vec<Use> = uses.iter().filter(|used| used.is_data).cloned().collect();
    let before = lab.contents(&data);
    if source == Source::Rotten {
        spoil(&lab.spies[lost], &uses, lost, 5);
    }
    if source == Source::MissingAndMore {
        let other = (lost + 1) % devices;
        spoil(&lab.spies[other], &uses, other, 6);
    }
    let target = Spy::of_noise("target", lab.spies[lost].size_bytes() + (lost as u64) * (1 << 20));
    let mut given = lab.devices();
    if matches!(source, Source::Missing | Source::MissingAndMore) {
        given.remove(lost);
    }
    let filesystem = writable(given).unwrap();
    let id = DeviceId::new(lost as u64 + 1);
    filesystem
        .start_replacement(id, target.device(), source == Source::Avoided)
        .unwrap();
    for spy in &lab.spies {
        spy.take_reads();
    }
    let Replaced::Finished {
        lost: bytes, unwiped, ..
    } = run(&filesystem).unwrap()
    else {
        panic!("{what}: not finished");
    };
    assert_eq!(bytes, ByteCount::ZERO, "{what}");
    assert!(unwiped.is_none(), "{what}");
    // It goes on being written to, at once.
    let root = Location::root_of(SubvolumeId::TOP_LEVEL);
    filesystem
        .create(root, b"after", &NewInode::of_root(0o644))
        .unwrap();
    filesystem.close().unwrap();
    if !matches!(source, Source::Missing | Source::MissingAndMore) {
        assert!(
            open(vec![lab.spies[lost].device()]).is_err(),
            "{what}: the old device is wiped"
        );
    }
    let mut spies = lab.spies.clone();
    spies[lost] = target;
    let lab = Lab { spies };
    let filesystem = OpenOptions::new(lab.devices()).open().unwrap();
    let item = replacement_item(&filesystem).unwrap().unwrap();
    assert_eq!(item.state, ReplaceState::Finished, "{what}");
    assert_eq!(item.source, id, "{what}");
    drop(filesystem);
    if source == Source::MissingAndMore {
        let report = lab.scrub().unwrap();
        assert!(!report.has_uncorrectable(), "{what}: {:#?}", report.damages);
    }
    lab.require_sound();
    assert!(lab.contents(&data) == before, "{what}");
}

#[test]
fn a_device_of_each_profile_is_replaced() {
    for (profile, devices) in [(Profile::Single, 1), (Profile::Raid0, 2)]
        .into_iter()
        .chain(REDUNDANT)
    {
        // Where the other copy would be right, too, nothing else tells of data without checksums.
        replaced(profile, devices, devices - 1, Source::There, true);
        if tolerated(profile) > 0 {
            replaced(profile, devices, 0, Source::Avoided, false);
            replaced(profile, devices, devices / 2, Source::Missing, false);
        }
        if tolerated(profile) > 0 {
            replaced(profile, devices, 0, Source::Rotten, false);
        }
        if tolerated(profile) > 1 {
            replaced(profile, devices, 1, Source::MissingAndMore, false);
        }
    }
}

/// What the files of the lab hold, and those of a writer.
fn check_files(filesystem: &Filesystem, files: &[(String, Vec<u8>)]) {
    let root = Location::root_of(SubvolumeId::TOP_LEVEL);
    for (name, content) in files {
        let path = format!("/{name}");
        let location = filesystem
            .resolve(root, path.as_bytes(), buttress_fs::Follow::All)
            .unwrap();
        let file = filesystem.open_file(location).unwrap();
        let mut read = vec![0; content.len()];
        let length = file.read_at(FileOffset::MIN, &mut read).unwrap();
        assert_eq!(length, content.len(), "{name}");
        assert!(read == *content, "{name}");
    }
}

#[test]
fn a_device_is_replaced_beside_a_writer() {
    for (profile, devices, missing) in [
        (Profile::Raid1, 2, false),
        (Profile::Raid0, 2, false),
        (Profile::Raid5, 3, true),
        (Profile::Raid6, 5, false),
    ] {
        let lab = Lab::new(&Make {
            bare: true,
            ..Make::new(profile, devices)
        })
        .unwrap();
        let target = Spy::of_noise("target", lab.spies[0].size_bytes());
        let mut given = lab.devices();
        if missing {
            given.remove(0);
        }
        let filesystem = writable(given).unwrap();
        let root = Location::root_of(SubvolumeId::TOP_LEVEL);
        let in_place = filesystem
            .view()
            .resolve(root, b"/bare", buttress_fs::Follow::All)
            .unwrap();
        filesystem
            .start_replacement(DeviceId::new(1), target.device(), false)
            .unwrap();
        let done = std::sync::atomic::AtomicBool::new(false);
        let mut files = Vec::new();
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                let mut random = Random::new(8);
                let mut files = Vec::new();
                for number in 0..2000 {
                    let name = format!("beside-{number}");
                    let content = random.bytes(1 + random_length(number), false);
                    let file = filesystem
                        .create(root, name.as_bytes(), &NewInode::of_root(0o644))
                        .unwrap();
                    filesystem.write_at(file, FileOffset::MIN, &content).unwrap();
                    let block = random.bytes(4096, false);
                    filesystem
                        .write_at(in_place, FileOffset::new(4096 * (number % 30)), &block)
                        .unwrap();
                    files.push((name, content));
                    if number % 20 == 0 {
                        filesystem.commit().unwrap();
                    }
                    if number > 40 && done.load(std::sync::atomic::Ordering::SeqCst) {
                        break;
                    }
                }
                files
            });
            let replaced = run(&filesystem).unwrap();
            done.store(true, std::sync::atomic::Ordering::SeqCst);
            assert!(matches!(replaced, Replaced::Finished { .. }), "{profile}");
            files = writer.join().unwrap();
        });
        filesystem.close().unwrap();
        let mut spies = lab.spies.clone();
        spies[0] = target;
        let lab = Lab { spies };
        lab.require_sound();
        check_files(&lab.open().unwrap(), &files);
    }
}

fn random_length(number: u64) -> usize {
    (number.wrapping_mul(2_654_435_761) % 200_000) as usize
}

#[test]
fn a_target_that_fails_leaves_the_volume_as_it_was() {
    let lab = Lab::new(&Make::new(Profile::Raid1, 2)).unwrap();
    let target = Spy::of_noise("target", lab.spies[0].size_bytes());
    let faulty = FaultyBackend::new(Arc::clone(&target) as Arc<dyn Backend>, 1);
    faulty.inject(Fault::FailWritesFrom(6));
    let device = Device::with_backend(faulty, Engine::Inline);
    let filesystem = writable(lab.devices()).unwrap();
    filesystem
        .start_replacement(DeviceId::new(2), device, false)
        .unwrap();
    let error = run(&filesystem).unwrap_err();
    assert!(matches!(error, buttress_scrub::Error::TargetFailed(_)), "{error}");
    assert_eq!(filesystem.replacement().unwrap().state, ReplaceState::Suspended);
    assert!(filesystem.replacement().unwrap().write_errors > 0);
    filesystem.cancel_replacement().unwrap();
    filesystem.close().unwrap();
    lab.require_sound();
    let item = replacement_item(&lab.open().unwrap()).unwrap().unwrap();
    assert_eq!(item.state, ReplaceState::Canceled);
}

#[test]
fn a_target_that_missed_a_commit_is_filled_anew() {
    let lab = Lab::new(&Make::new(Profile::Raid1, 2)).unwrap();
    let target = Spy::of_noise("target", lab.spies[0].size_bytes());
    let filesystem = writable(lab.devices()).unwrap();
    filesystem
        .start_replacement(DeviceId::new(1), target.device(), false)
        .unwrap();
    // As if half of it had been copied.
    filesystem.set_replacement_progress(Physical::new(200 << 20), ReplaceState::Suspended, 0);
    filesystem.close().unwrap();
    // Without the target nobody writes, but for giving it up.
    let error = writable(lab.devices()).unwrap_err();
    assert!(error.to_string().contains("replace cancel"), "{error}");
    let with_target = || [lab.devices(), vec![target.device()]].concat();
    let mut half = writable(with_target()).unwrap();
    assert_eq!(half.replacement().unwrap().cursor_left, Physical::new(200 << 20));
    // A commit that the target takes no part in.
    half.abandon();
    let backup = lab.spies[0].read(65536, 4096);
    target.lose_writes();
    half = writable(with_target()).unwrap();
    let root = Location::root_of(SubvolumeId::TOP_LEVEL);
    half.create(root, b"missed", &NewInode::of_root(0o644)).unwrap();
    half.close().unwrap();
    assert!(lab.spies[0].read(65536, 4096) != backup);
    let half = writable(with_target()).unwrap();
    assert_eq!(half.replacement().unwrap().cursor_left, Physical::MIN);
    half.abandon();
}

/// What is found after a crash, brought to its end.
fn recover(images: &[Arc<dyn Backend>], source: usize, what: &str) -> Lab2 {
    let device = |image: &Arc<dyn Backend>| Device::with_backend(Arc::clone(image), Engine::Inline);
    let (target, own) = images.split_last().unwrap();
    let with_target = || images.iter().map(device).collect::<Vec<_>>();
    let without = || own.iter().map(device).collect::<Vec<_>>();
    let mut in_place: Vec<Device> = own.iter().map(device).collect();
    in_place[source] = device(target);
    let filesystem = match open(with_target()) {
        Ok(filesystem) => filesystem,
        // Both say that they are the device: the old one was not wiped yet.
        Err(error) if error.to_string().contains("same") || error.to_string().contains("uuid") => {
            let devices = || in_place.clone();
            require_sound(devices(), what);
            return Lab2(in_place);
        }
        // The target has no superblock yet, or the source none any more.
        Err(_) => {
            if open(in_place.clone()).is_ok_and(|filesystem| {
                replacement_item(&filesystem)
                    .is_ok_and(|item| item.is_some_and(|item| item.state == ReplaceState::Finished))
            }) {
                require_sound(in_place.clone(), what);
                return Lab2(in_place);
            }
            let filesystem = open(without()).unwrap_or_else(|error| panic!("{what}: {error}"));
            let started = replacement_item(&filesystem)
                .unwrap()
                .is_some_and(|item| item.state == ReplaceState::Started);
            drop(filesystem);
            if started {
                let options = WriteOptions {
                    gives_up_replacement: true,
                    ..WriteOptions::default()
                };
                let filesystem = WritableFilesystem::new(open(without()).unwrap(), options).unwrap();
                filesystem.cancel_replacement().unwrap();
                filesystem.close().unwrap();
            }
            require_sound(without(), what);
            return Lab2(without());
        }
    };
    let state = replacement_item(&filesystem).unwrap().map(|item| item.state);
    drop(filesystem);
    match state {
        Some(ReplaceState::Started | ReplaceState::Suspended) => {
            let filesystem = writable(with_target()).unwrap_or_else(|error| panic!("{what}: {error}"));
            assert!(
                matches!(
                    run(&filesystem).unwrap(),
                    Replaced::Finished {
                        lost: ByteCount::ZERO,
                        ..
                    }
                ),
                "{what}"
            );
            filesystem.close().unwrap();
            require_sound(in_place.clone(), what);
            Lab2(in_place)
        }
        // The newest superblocks say that it is finished, and those of the target came no further: the source is whole.
        _ => {
            require_sound(without(), what);
            Lab2(without())
        }
    }
}

/// Devices of a volume that was recovered.
struct Lab2(Vec<Device>);

/// Everything is right, but for superblocks of a commit that was cut off, and for the write hole.
fn require_sound(devices: Vec<Device>, what: &str) {
    let filesystem = OpenOptions::new(devices)
        .open()
        .unwrap_or_else(|error| panic!("{what}: {error}"));
    let options = Options {
        read_only: true,
        ..Options::default()
    };
    let scrub = Scrub::new(&filesystem, options, Progress::new()).unwrap();
    scrub.run().unwrap();
    let report = scrub.report();
    let is_left = |damage: &&Damage| damage.part == Part::Superblock || damage.cause == Cause::Parity;
    let damages: Vec<_> = report.damages.iter().filter(|damage| !is_left(damage)).collect();
    assert!(damages.is_empty(), "{what}: {damages:#?}");
    assert_eq!(report.unwalked, Vec::<String>::new(), "{what}");
}

/// Cuts that are tried of each run, unless `BUTTRESS_SOAK` asks for all.
const CUTS: usize = 60;

#[test]
fn a_replacement_that_is_cut_off_goes_on_or_is_given_up() {
    let all = std::env::var_os("BUTTRESS_SOAK").is_some();
    for (profile, devices, missing) in [
        (Profile::Single, 1, false),
        (Profile::Raid0, 2, false),
        (Profile::Raid1, 2, false),
        (Profile::Raid5, 3, false),
    ] {
        let lab = Lab::new(&Make::new(profile, devices)).unwrap();
        let mut expected = Vec::new();
        {
            let filesystem = lab.open().unwrap();
            let root = Location::root_of(SubvolumeId::TOP_LEVEL);
            for name in ["a", "b", "c"] {
                let path = format!("/{name}");
                let location = filesystem
                    .resolve(root, path.as_bytes(), buttress_fs::Follow::All)
                    .unwrap();
                let file = filesystem.open_file(location).unwrap();
                let mut content = vec![0; 1 << 20];
                let length = file.read_at(FileOffset::MIN, &mut content).unwrap();
                content.truncate(length);
                expected.push((name.to_owned(), content));
            }
        }
        let target = Spy::of_noise("target", lab.spies[0].size_bytes());
        let crashes = CrashLab::new();
        let record = |spy: &Arc<Spy>| crashes.device(Arc::clone(spy) as Arc<dyn Backend>);
        let recorded: Vec<Arc<dyn Backend>> = lab.spies.iter().chain([&target]).map(record).collect();
        let mut given: Vec<Device> = recorded
            .iter()
            .map(|backend| Device::with_backend(Arc::clone(backend), Engine::Inline))
            .collect();
        let to = given.pop().unwrap();
        if missing {
            given.remove(0);
        }
        let filesystem = writable(given).unwrap();
        filesystem.start_replacement(DeviceId::new(1), to, false).unwrap();
        run(&filesystem).unwrap();
        filesystem.close().unwrap();
        let history = crashes.history();
        let step = if all { 1 } else { history.len().div_ceil(CUTS) };
        for cut in (0..=history.len()).rev().step_by(step) {
            for outcome in [Cut::AllKept, Cut::NoneKept, Cut::Drawn { seed: cut as u64 }] {
                let what = format!("{profile}, cut {cut} of {}, {outcome:?}", history.len());
                let found = recover(&history.images_at(cut, outcome), 0, &what);
                check_files(&OpenOptions::new(found.0).open().unwrap(), &expected);
            }
        }
    }
}
