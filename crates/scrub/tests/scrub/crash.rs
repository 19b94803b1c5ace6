//! Tests that cut repairs and replacements at every write: nothing is lost, and the job continues
//! or is given up.
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
use buttress_format::{ByteCount, DeviceId, FileOffset, Profile, ReplaceState, SubvolumeId};
use buttress_fs::{Follow, Location, OpenOptions, Progress};
use buttress_lab::crash::{CrashLab, Event, History, Outcome as Cut};
use buttress_oracle::content::Random;
use buttress_scrub::{Cause, Damage, Options, Part, Replaced, Report, Scrub};
use buttress_volume::MappingContent;
use buttress_writer::{WritableFilesystem, WriteOptions, replacement_item};
use std::sync::Arc;
use support::replacing::{check_files, open, run, spoil, tolerated, writable};
use support::{Lab, Make, REDUNDANT, Spy, Use};

/// The cuts that each run tries, unless `BUTTRESS_SOAK` requests all.
const CUTS: usize = 16;

/// A function that inspects the images of a crash; the text describes the crash.
type Tried<'a> = dyn FnMut(&[Arc<dyn Backend>], &str) + 'a;

/// Returns the devices after a crash that keep all writes in doubt, except writes to one slow
/// device.
fn all_but(history: &History, cut: usize, slow: usize) -> Vec<Arc<dyn Backend>> {
    let of_slow: Vec<bool> = history
        .events()
        .map(|event| matches!(event, Event::Write { device, .. } if *device == slow))
        .collect();
    history.images_with(cut, &mut |number, _, _| !of_slow[number])
}

/// Tries cuts, each with all, none, and some of the writes in doubt, and with all except those to
/// the last device.
fn each_cut(what: &str, history: &History, cuts: &[usize], tried: &mut Tried<'_>) {
    let all = std::env::var_os("BUTTRESS_SOAK").is_some();
    let step = if all { 1 } else { cuts.len().div_ceil(CUTS) };
    let mut images = 0;
    for cut in cuts.iter().copied().rev().step_by(step) {
        for outcome in [
            Cut::AllKept,
            Cut::NoneKept,
            Cut::Drawn {
                seed: support::seed(cut as u64),
            },
        ] {
            let what = format!("{what}, cut {cut} of {}, {outcome:?}", history.len());
            tried(&history.images_at(cut, outcome), &what);
            images += 1;
        }
        let last = history.images_at(0, Cut::NoneKept).len() - 1;
        let what = format!("{what}, cut {cut} of {}, all but the last device", history.len());
        tried(&all_but(history, cut, last), &what);
        images += 1;
    }
    eprintln!(
        "{what}: {} events, {} cuts, {images} crashes tried",
        history.len(),
        cuts.len()
    );
}

/// Tries cuts directly after a primary superblock of the last device, each without that device's
/// other writes in doubt. A drive may write its last request first, so all blocks under the
/// superblock must have been flushed before.
fn each_superblock(what: &str, history: &History, cuts: &[usize], tried: &mut Tried<'_>) {
    let last = history.images_at(0, Cut::NoneKept).len() - 1;
    let (mut after, mut blocks) = (Vec::new(), Vec::new());
    for (number, event) in history.events().enumerate() {
        let of_last = match event {
            Event::Write {
                device, offset_bytes, ..
            } if *device == last => Some(*offset_bytes),
            _ => None,
        };
        blocks.push(of_last.is_some_and(|at| !is_superblock(at)));
        if of_last == Some(64 << 10) && cuts.contains(&(number + 1)) {
            after.push(number + 1);
        }
    }
    assert!(!after.is_empty(), "{what}: no superblock of the last device");
    let all = std::env::var_os("BUTTRESS_SOAK").is_some();
    let step = if all { 1 } else { after.len().div_ceil(CUTS) };
    for cut in after.iter().copied().rev().step_by(step) {
        let images = history.images_with(cut, &mut |number, _, _| !blocks[number]);
        let what = format!(
            "{what}, cut {cut} of {}, the last device's superblock before its blocks",
            history.len()
        );
        tried(&images, &what);
    }
}

const fn is_superblock(at: u64) -> bool {
    matches!(at, 0x1_0000 | 0x400_0000)
}

fn all_cuts(history: &History) -> Vec<usize> {
    (0..=history.len()).collect()
}

/// Returns cuts at which all writes to some devices, except superblocks, are durable, so that no
/// row is half-written. A half-written row of RAID5 or RAID6 loses the data of a missing device:
/// the write hole.
fn cuts_of_whole_rows(history: &History, devices: usize) -> Vec<usize> {
    let mut open = vec![false; devices];
    let mut cuts = vec![0];
    for (number, event) in history.events().enumerate() {
        match event {
            Event::Write {
                device, offset_bytes, ..
            } if *device < devices && !is_superblock(*offset_bytes) => open[*device] = true,
            Event::Flush { device } if *device < devices => open[*device] = false,
            _ => {}
        }
        if !open.contains(&true) {
            cuts.push(number + 1);
        }
    }
    cuts
}

fn device(image: &Arc<dyn Backend>) -> Device {
    Device::with_backend(Arc::clone(image), Engine::Inline)
}

fn record(crashes: &CrashLab, spies: &[Arc<Spy>]) -> Vec<Device> {
    let record = |spy: &Arc<Spy>| device(&crashes.device(Arc::clone(spy) as Arc<dyn Backend>));
    spies.iter().map(record).collect()
}

/// A replacement in the images of a crash: those of the volume, then the target.
struct Replacement {
    source: usize,
    is_missing: bool,
}

impl Replacement {
    /// Completes the state found after a crash. Returns the volume's devices after the recovery.
    fn recover(&self, images: &[Arc<dyn Backend>], what: &str) -> Vec<Device> {
        let (target, own) = images.split_last().unwrap();
        let is_there = |(number, _): &(usize, &Arc<dyn Backend>)| !self.is_missing || *number != self.source;
        let without = || -> Vec<Device> {
            let there = own.iter().enumerate().filter(is_there);
            there.map(|(_, image)| device(image)).collect()
        };
        let with_target = || [without(), vec![device(target)]].concat();
        let mut in_place: Vec<Device> = own.iter().map(device).collect();
        in_place[self.source] = device(target);
        let filesystem = match open(with_target()) {
            Ok(filesystem) => filesystem,
            // Both the source and the target claim to be the device, because the source was not
            // wiped yet.
            Err(error) if error.to_string().contains("same") || error.to_string().contains("uuid") => {
                return in_place;
            }
            // The replacement target has no superblock yet, or the source has no superblock any
            // more.
            Err(_) => {
                let is_finished = open(in_place.clone()).is_ok_and(|filesystem| {
                    replacement_item(&filesystem)
                        .is_ok_and(|item| item.is_some_and(|item| item.state == ReplaceState::Finished))
                });
                if is_finished {
                    return in_place;
                }
                let filesystem = open(without()).unwrap_or_else(|error| panic!("{what}: {error}"));
                let item = replacement_item(&filesystem).unwrap();
                drop(filesystem);
                if item.is_some_and(|item| item.state == ReplaceState::Started) {
                    give_up(without());
                }
                return without();
            }
        };
        let state = replacement_item(&filesystem).unwrap().map(|item| item.state);
        drop(filesystem);
        match state {
            Some(ReplaceState::Started | ReplaceState::Suspended) => {
                let filesystem = writable(with_target()).unwrap_or_else(|error| panic!("{what}: {error}"));
                let ended = run(&filesystem).unwrap();
                let Replaced::Finished { lost, .. } = ended else {
                    panic!("{what}: {ended:?}");
                };
                assert_eq!(lost, ByteCount::ZERO, "{what}");
                filesystem.close().unwrap();
                in_place
            }
            // The newest superblocks record the replacement as finished. Superblocks of a missing
            // source do not matter.
            Some(ReplaceState::Finished) if self.is_missing => in_place,
            // The target's superblocks are older, so the source is complete.
            _ => without(),
        }
    }
}

fn give_up(devices: Vec<Device>) {
    let options = WriteOptions {
        gives_up_replacement: true,
        ..WriteOptions::default()
    };
    let filesystem = WritableFilesystem::new(open(devices).unwrap(), options).unwrap();
    filesystem.replacements().cancel().unwrap();
    filesystem.close().unwrap();
}

fn scrub(devices: Vec<Device>, read_only: bool, what: &str) -> Report {
    let filesystem = open(devices).unwrap_or_else(|error| panic!("{what}: {error}"));
    let options = Options {
        read_only,
        ..Options::default()
    };
    let scrub = Scrub::new(&filesystem, options, Progress::new()).unwrap();
    scrub.run().unwrap();
    let report = scrub.report();
    assert_eq!(report.unwalked, Vec::<String>::new(), "{what}");
    report
}

/// Requires that a scrub finds no damage except superblocks of an interrupted commit, and the write
/// hole.
fn require_sound(devices: Vec<Device>, what: &str) {
    let report = scrub(devices, true, what);
    let is_left = |damage: &&Damage| damage.part == Part::Superblock || damage.cause == Cause::Parity;
    let damages: Vec<_> = report.damages.iter().filter(|damage| !is_left(damage)).collect();
    assert!(damages.is_empty(), "{what}: {damages:#?}");
}

/// Returns the files of a lab, with their content.
fn files(lab: &Lab) -> Vec<(String, Vec<u8>)> {
    let filesystem = lab.open().unwrap();
    let root = Location::root_of(SubvolumeId::TOP_LEVEL);
    let content = |name: &str| {
        let path = format!("/{name}");
        let location = filesystem.resolve(root, path.as_bytes(), Follow::All).unwrap();
        let file = filesystem.open_file(location).unwrap();
        let mut content = vec![0; 1 << 20];
        let length = file.read_at(FileOffset::MIN, &mut content).unwrap();
        content.truncate(length);
        (name.to_owned(), content)
    };
    ["a", "b", "c"].map(content).into()
}

fn replaced_and_cut(profile: Profile, devices: usize, is_missing: bool) {
    let lab = Lab::new(&Make::new(profile, devices)).unwrap();
    let expected = files(&lab);
    let target = Spy::of_noise("target", lab.spies[0].size_bytes());
    let crashes = CrashLab::new();
    let mut given = record(&crashes, &[lab.spies.clone(), vec![target]].concat());
    let to = given.pop().unwrap();
    if is_missing {
        given.remove(0);
    }
    let filesystem = writable(given).unwrap();
    filesystem
        .replacements()
        .start(DeviceId::new(1), to, false)
        .unwrap();
    run(&filesystem).unwrap();
    filesystem.close().unwrap();
    let replacement = Replacement {
        source: 0,
        is_missing,
    };
    let what = match is_missing {
        true => format!("{profile}, missing"),
        false => format!("{profile}"),
    };
    let mut tried = |images: &[Arc<dyn Backend>], what: &str| {
        let found = replacement.recover(images, what);
        require_sound(found.clone(), what);
        check_files(&open(found).unwrap(), &expected);
    };
    let history = crashes.history();
    let cuts = match is_missing && matches!(profile, Profile::Raid5 | Profile::Raid6) {
        true => cuts_of_whole_rows(&history, devices),
        false => all_cuts(&history),
    };
    assert!(cuts.len() > 40, "{what}: {} cuts", cuts.len());
    each_cut(&what, &history, &cuts, &mut tried);
    each_superblock(&what, &history, &cuts, &mut tried);
}

#[test]
fn a_replacement_that_is_cut_off_goes_on_or_is_given_up() {
    for (profile, devices) in [(Profile::Single, 1), (Profile::Raid0, 2)]
        .into_iter()
        .chain(REDUNDANT)
    {
        replaced_and_cut(profile, devices, false);
    }
}

#[test]
fn a_replacement_of_a_missing_device_that_is_cut_off_goes_on_or_is_given_up() {
    for (profile, devices) in REDUNDANT {
        if tolerated(profile) > 0 {
            replaced_and_cut(profile, devices, true);
        }
    }
}

/// Damages as much of the volume as its profile can repair: whole devices, and the primary
/// superblock of one device.
fn spoil_all(lab: &Lab, uses: &[Use], profile: Profile) {
    if profile == Profile::Dup {
        let first = |used: &&Use| used.content == MappingContent::Data { copy: 1 };
        let first: Vec<Use> = uses.iter().filter(first).cloned().collect();
        spoil(&lab.spies[0], &first, 0, 11);
    }
    for device in 0..tolerated(profile) {
        spoil(&lab.spies[device], uses, device, 12 + device as u64);
    }
    let noise = Random::new(13).bytes(4096, false);
    lab.spies.last().unwrap().put(64 << 10, &noise);
}

#[test]
fn a_repair_that_is_cut_off_loses_nothing() {
    for (profile, devices) in REDUNDANT {
        let lab = Lab::new(&Make::new(profile, devices)).unwrap();
        let expected = files(&lab);
        let uses = lab.uses().unwrap();
        let before = lab.contents(&uses);
        spoil_all(&lab, &uses, profile);
        let crashes = CrashLab::new();
        let given = record(&crashes, &lab.spies);
        let filesystem = OpenOptions::new(given).open().unwrap();
        let scrub_all = Scrub::new(&filesystem, Options::default(), Progress::new()).unwrap();
        scrub_all.run().unwrap();
        let report = scrub_all.report();
        assert!(!report.has_uncorrectable(), "{profile}: {:#?}", report.damages);
        assert!(report.totals().corrected_errors > 20, "{profile}: {report:#?}");
        drop((scrub_all, filesystem));
        let mut tried = |images: &[Arc<dyn Backend>], what: &str| {
            let devices: Vec<Device> = images.iter().map(device).collect();
            // Check the files before and after further repairs.
            check_files(&open(devices.clone()).unwrap(), &expected);
            let report = scrub(devices.clone(), false, what);
            assert!(!report.has_uncorrectable(), "{what}: {:#?}", report.damages);
            for (used, before) in uses.iter().zip(&before) {
                let found = devices[used.device].read(used.physical, used.length).unwrap();
                assert!(found[..] == before[..], "{what}: {used:?}");
            }
            let report = scrub(devices, true, what);
            assert_eq!(report.totals().errors(), 0, "{what}: {:#?}", report.damages);
        };
        let history = crashes.history();
        each_cut(&profile.to_string(), &history, &all_cuts(&history), &mut tried);
    }
}

/// How many writes and flushes before the target's superblock gets the source's id are also cut.
const BEFORE_THE_EXCHANGE: usize = 12;

/// Returns whether a set of devices opens, with everything in it right.
fn is_whole(devices: &[Device], expected: &[(String, Vec<u8>)], what: &str) -> bool {
    // All devices must be present for the volume to be whole.
    let Ok(filesystem) = OpenOptions::new(devices.to_vec()).open() else {
        return false;
    };
    check_files(&filesystem, expected);
    drop(filesystem);
    require_sound(devices.to_vec(), what);
    true
}

/// Cuts at every write and flush at the end of a replacement, until the last superblock is wiped.
/// The volume opens from the devices with the source, or from those with the target.
#[test]
fn cut_at_the_end_of_a_replacement_leaves_one_of_the_sets() {
    for (profile, devices) in [(Profile::Single, 1), (Profile::Raid0, 2)]
        .into_iter()
        .chain(REDUNDANT)
    {
        let lab = Lab::new(&Make::new(profile, devices)).unwrap();
        let expected = files(&lab);
        let target = Spy::of_noise("target", lab.spies[0].size_bytes());
        let crashes = CrashLab::new();
        let mut given = record(&crashes, &[lab.spies.clone(), vec![target]].concat());
        let to = given.pop().unwrap();
        let filesystem = writable(given).unwrap();
        filesystem
            .replacements()
            .start(DeviceId::new(1), to, false)
            .unwrap();
        run(&filesystem).unwrap();
        drop(filesystem);
        let history = crashes.history();
        let primaries = history
            .events()
            .enumerate()
            .filter_map(|(number, event)| match event {
                Event::Write {
                    device, offset_bytes, ..
                } if *device == devices && *offset_bytes == 64 << 10 => Some(number),
                _ => None,
            });
        let exchange = primaries.last().unwrap();
        let (mut from_source, mut from_target) = (0, 0);
        for cut in exchange - BEFORE_THE_EXCHANGE..=history.len() {
            let drawn = Cut::Drawn {
                seed: support::seed(cut as u64),
            };
            let outcomes = [Cut::AllKept, Cut::NoneKept, drawn];
            let images = outcomes.map(|outcome| history.images_at(cut, outcome));
            let slow = all_but(&history, cut, devices);
            for images in images.into_iter().chain([slow]) {
                let what = format!(
                    "{profile}, cut {cut} of {}, exchange at {exchange}",
                    history.len()
                );
                let (target, own) = images.split_last().unwrap();
                let with_source: Vec<Device> = own.iter().map(device).collect();
                let mut with_target = with_source.clone();
                with_target[0] = device(target);
                let source = is_whole(&with_source, &expected, &what);
                let target = is_whole(&with_target, &expected, &what);
                assert!(source || target, "{what}: neither set opens");
                from_source += usize::from(source);
                from_target += usize::from(target);
            }
        }
        eprintln!("{profile}: {from_source} states open with the source, {from_target} with the target");
        assert!(from_source > 0 && from_target > 0, "{profile}");
    }
}
