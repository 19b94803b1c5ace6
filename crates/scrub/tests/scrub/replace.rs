//! Tests that replace devices on every profile: present, missing, or damaged; and beside a writer.
#![allow(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::panic,
    clippy::cast_possible_truncation,
    reason = "tests compute with known numbers, and a panic is how a test fails"
)]

use crate::support;

use buttress_device::{Backend, Device, Engine};
use buttress_format::{
    BlockGroupFlags, ByteCount, DeviceId, FileOffset, Physical, Profile, ReplaceState, SubvolumeId,
};
use buttress_fs::{Location, OpenOptions, Progress};
use buttress_lab::{Fault, FaultyBackend};
use buttress_scrub::{Replace, Replaced};
use buttress_volume::MappedChunk;
use buttress_writer::operations::NewInode;
use buttress_writer::replacement_item;
use std::sync::Arc;
use support::replacing::{
    check_files, finished, lab_with_target, often, open, run, spoil, tolerated, writable,
};
use support::{Lab, Make, REDUNDANT, Spy, Use};

/// The state of the replaced device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    /// The replaced device is good.
    There,
    /// The device is good, and read only if no other device helps.
    Avoided,
    /// A third of the replaced device's blocks are noise.
    Rotten,
    /// The device to be replaced is missing.
    Missing,
    /// The device is missing, and a third of another device's blocks are noise.
    MissingAndMore,
    /// The replaced device is good, and a third of another device's blocks are noise.
    ThereAndMore,
    /// A third of the replaced device's blocks and of another device's blocks are noise.
    RottenAndMore,
}

impl Source {
    const fn is_missing(self) -> bool {
        matches!(self, Self::Missing | Self::MissingAndMore)
    }

    const fn is_rotten(self) -> bool {
        matches!(self, Self::Rotten | Self::RottenAndMore)
    }

    /// Returns whether another device is damaged too.
    const fn and_more(self) -> bool {
        matches!(
            self,
            Self::MissingAndMore | Self::ThereAndMore | Self::RottenAndMore
        )
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
    if source.is_rotten() {
        spoil(&lab.spies[lost], &uses, lost, 5);
    }
    if source.and_more() {
        let other = (lost + 1) % devices;
        spoil(&lab.spies[other], &uses, other, 6);
    }
    let target = Spy::of_noise("target", lab.spies[lost].size_bytes() + (lost as u64) * (1 << 20));
    let mut given = lab.devices();
    if source.is_missing() {
        given.remove(lost);
    }
    let filesystem = writable(given).unwrap();
    let id = DeviceId::new(lost as u64 + 1);
    filesystem
        .replacements()
        .start(id, target.device(), source == Source::Avoided)
        .unwrap();
    for spy in &lab.spies {
        spy.take_reads();
    }
    let (bytes, ..) = finished(run(&filesystem), &what);
    assert_eq!(bytes, ByteCount::ZERO, "{what}");
    // After the replacement, the volume accepts writes at once.
    let root = Location::root_of(SubvolumeId::TOP_LEVEL);
    filesystem
        .create(root, b"after", &NewInode::of_root(0o644))
        .unwrap();
    filesystem.close().unwrap();
    if !source.is_missing() {
        assert!(
            open(vec![lab.spies[lost].device()]).is_err(),
            "{what}: the old device is wiped"
        );
    }
    let lab = lab_with_target(&lab, lost, target);
    let filesystem = OpenOptions::new(lab.devices()).open().unwrap();
    let item = replacement_item(&filesystem).unwrap().unwrap();
    assert_eq!(item.state, ReplaceState::Finished, "{what}");
    assert_eq!(item.source, id, "{what}");
    drop(filesystem);
    if source.and_more() {
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
        // If the other copy were right too, nothing else would verify data without checksums.
        replaced(profile, devices, devices - 1, Source::There, true);
        if tolerated(profile) > 0 {
            replaced(profile, devices, 0, Source::Avoided, false);
            replaced(profile, devices, devices / 2, Source::Missing, false);
        }
        if tolerated(profile) > 0 {
            replaced(profile, devices, 0, Source::Rotten, false);
            replaced(profile, devices, devices - 1, Source::ThereAndMore, false);
        }
        if tolerated(profile) > 1 {
            replaced(profile, devices, 1, Source::MissingAndMore, false);
            replaced(profile, devices, 0, Source::RottenAndMore, false);
        }
    }
}

/// The replacement computes parity for the target from verified data, and reads no parity: neither
/// the source's nor the other one.
#[test]
fn parity_is_not_read_if_all_data_has_checksums() {
    for (profile, devices) in [(Profile::Raid5, 3), (Profile::Raid6, 5)] {
        for lost in 0..devices {
            let lab = Lab::new(&Make::new(profile, devices)).unwrap();
            let parities: Vec<Use> = lab.uses().unwrap();
            let parities: Vec<Use> = parities.into_iter().filter(|used| !used.is_copy()).collect();
            assert!(parities.iter().any(|used| used.device == lost), "{profile}");
            let target = Spy::of_noise("target", lab.spies[lost].size_bytes());
            let filesystem = writable(lab.devices()).unwrap();
            let id = DeviceId::new(lost as u64 + 1);
            filesystem
                .replacements()
                .start(id, target.device(), false)
                .unwrap();
            for spy in &lab.spies {
                spy.take_reads();
            }
            run(&filesystem).unwrap();
            for used in &parities {
                let own = used.physical..used.physical + used.length as u64;
                let reads = lab.spies[used.device].read_so_far();
                let read = reads
                    .iter()
                    .find(|read| read.start < own.end && own.start < read.end);
                assert_eq!(read, None, "{profile}, device {lost}: {used:?}");
            }
            filesystem.close().unwrap();
            lab_with_target(&lab, lost, target).require_sound();
        }
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
        let target = Spy::all_of_noise("target", lab.spies[0].size_bytes());
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
            .replacements()
            .start(DeviceId::new(1), target.device(), false)
            .unwrap();
        let done = std::sync::atomic::AtomicBool::new(false);
        let mut files = Vec::new();
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                let mut random = support::random(8);
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
        let lab = lab_with_target(&lab, 0, target);
        lab.require_sound();
        check_files(&lab.open().unwrap(), &files);
    }
}

/// Makes a volume whose device `lost` was replaced by one that held noise. Files are made after
/// metadata was copied and before its data was. The tree blocks of these late files are in rows of
/// the target that the replacement has already copied, while they were free.
fn written_behind_the_copy(profile: Profile, devices: usize, lost: usize) -> (Lab, Vec<(String, Vec<u8>)>) {
    let what = format!("{profile}, device {lost} of {devices}");
    let lab = Lab::new(&Make::new(profile, devices)).unwrap();
    let target = Spy::all_of_noise("target", lab.spies[lost].size_bytes());
    let filesystem = writable(lab.devices()).unwrap();
    let id = DeviceId::new(lost as u64 + 1);
    filesystem
        .replacements()
        .start(id, target.device(), false)
        .unwrap();
    let volume = Arc::clone(filesystem.view().volume());
    let own = |chunk: &Arc<MappedChunk>| {
        let mut stripes = chunk.chunk().stripes.iter();
        let physical = stripes.find(|stripe| stripe.device == id)?.physical;
        Some((physical, chunk.chunk().profile.contains(BlockGroupFlags::DATA)))
    };
    let mut chunks: Vec<(Physical, bool)> = volume.chunk_map().chunks().iter().filter_map(own).collect();
    chunks.sort_unstable();
    let (data, _) = *chunks.iter().find(|(_, is_data)| *is_data).unwrap();
    assert_eq!(
        chunks.last(),
        Some(&(data, true)),
        "{what}: data lies behind metadata"
    );
    let progress = Progress::new();
    lab.spies[lost].stop_from(data.get(), &progress);
    let replaced = Replace::new(filesystem.clone(), often(), progress).run().unwrap();
    assert!(matches!(replaced, Replaced::Suspended), "{what}");
    let cursor = filesystem.replacements().current().unwrap().cursor_left;
    assert!(cursor >= data, "{what}: {cursor}");
    let root = Location::root_of(SubvolumeId::TOP_LEVEL);
    let mut random = support::random(17);
    let mut files = Vec::new();
    for number in 0..30 {
        // The content of this file is inline.
        let (name, content) = (format!("behind-{number}"), random.bytes(1500, false));
        let file = filesystem
            .create(root, name.as_bytes(), &NewInode::of_root(0o644))
            .unwrap();
        filesystem.write_at(file, FileOffset::MIN, &content).unwrap();
        files.push((name, content));
        if number % 5 == 4 {
            filesystem.commit().unwrap();
        }
    }
    let replaced = run(&filesystem).unwrap();
    assert!(matches!(replaced, Replaced::Finished { .. }), "{what}");
    filesystem.close().unwrap();
    (lab_with_target(&lab, lost, target), files)
}

/// Profiles with parity, each with a number of devices.
const ROWS: [(Profile, usize); 3] = [(Profile::Raid5, 3), (Profile::Raid5, 4), (Profile::Raid6, 5)];

#[test]
fn parity_that_is_written_behind_the_copy_fits_what_the_target_holds() {
    for (profile, devices) in ROWS {
        for lost in 0..devices {
            let (lab, files) = written_behind_the_copy(profile, devices, lost);
            lab.require_sound();
            check_files(&lab.open().unwrap(), &files);
        }
    }
}

#[test]
fn what_is_written_behind_the_copy_outlives_the_loss_of_other_devices() {
    let mut random = support::random(18);
    for (profile, devices) in ROWS {
        for lost in 0..devices {
            let (lab, files) = written_behind_the_copy(profile, devices, lost);
            let uses = lab.uses().unwrap();
            let before = lab.contents(&uses);
            for first in 1..devices {
                // As many devices are removed as the profile can lose; the target is not among
                // them.
                let gone = (0..tolerated(profile)).map(|next| 1 + (first - 1 + next) % (devices - 1));
                let gone: Vec<usize> = gone.map(|behind| (lost + behind) % devices).collect();
                for used in uses.iter().filter(|used| gone.contains(&used.device)) {
                    lab.spies[used.device].put(used.physical, &random.bytes(used.length, false));
                }
                let what = format!("{profile}, device {lost} replaced, {gone:?} lost");
                let report = lab.scrub().unwrap();
                assert!(!report.has_uncorrectable(), "{what}: {:#?}", report.damages);
                assert!(lab.contents(&uses) == before, "{what}");
                check_files(&lab.open().unwrap(), &files);
            }
        }
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
        .replacements()
        .start(DeviceId::new(2), device, false)
        .unwrap();
    let error = run(&filesystem).unwrap_err();
    assert!(matches!(error, buttress_scrub::Error::TargetFailed(_)), "{error}");
    assert_eq!(
        filesystem.replacements().current().unwrap().state,
        ReplaceState::Suspended
    );
    assert!(filesystem.replacements().current().unwrap().write_errors > 0);
    filesystem.replacements().cancel().unwrap();
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
        .replacements()
        .start(DeviceId::new(1), target.device(), false)
        .unwrap();
    // Pretend that half of the device was copied.
    filesystem
        .replacements()
        .set_progress(Physical::new(200 << 20), ReplaceState::Suspended, 0);
    filesystem.close().unwrap();
    // Without the target device, the volume opens for writing only to cancel the replacement.
    let error = writable(lab.devices()).unwrap_err();
    assert!(error.to_string().contains("replace cancel"), "{error}");
    let with_target = || [lab.devices(), vec![target.device()]].concat();
    let mut half = writable(with_target()).unwrap();
    assert_eq!(
        half.replacements().current().unwrap().cursor_left,
        Physical::new(200 << 20)
    );
    // In this step the target misses a commit.
    half.abandon();
    let backup = lab.spies[0].read(65536, 4096);
    target.lose_writes();
    half = writable(with_target()).unwrap();
    let root = Location::root_of(SubvolumeId::TOP_LEVEL);
    half.create(root, b"missed", &NewInode::of_root(0o644)).unwrap();
    half.close().unwrap();
    assert!(lab.spies[0].read(65536, 4096) != backup);
    let half = writable(with_target()).unwrap();
    assert_eq!(half.replacements().current().unwrap().cursor_left, Physical::MIN);
    half.abandon();
}
