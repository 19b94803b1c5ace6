//! The crash laboratory against a model that keeps, for every sector, all values possible after a
//! crash.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::cast_possible_truncation,
    reason = "a test"
)]

use std::collections::BTreeSet;
use std::sync::Arc;

use buttress_device::{Backend, Device, Engine, MemoryBackend, WriteRequest};
use buttress_lab::crash::{CrashLab, Event, History, Outcome};
use bytes::Bytes;
use proptest::prelude::*;

const SECTORS: usize = 64;
const SECTOR: usize = 512;

#[derive(Clone, Debug)]
enum Step {
    Write(usize, usize, usize),
    Zero(usize, usize, usize),
    Flush(usize),
}

fn step() -> impl Strategy<Value = Step> {
    let range = || (0..2_usize, 0..SECTORS, 1..9_usize);
    prop_oneof![
        5 => range().prop_map(|(device, at, count)| Step::Write(device, at, count.min(SECTORS - at))),
        1 => range().prop_map(|(device, at, count)| Step::Zero(device, at, count.min(SECTORS - at))),
        2 => (0..2_usize).prop_map(Step::Flush),
    ]
}

fn lab_of_two() -> (CrashLab, Vec<Device>) {
    let lab = CrashLab::new();
    let devices = (0..2).map(|_| {
        let base = Arc::new(MemoryBackend::new("base", vec![0xff; SECTORS * SECTOR]));
        Device::with_backend(lab.device(base), Engine::Inline)
    });
    let devices = devices.collect();
    (lab, devices)
}

/// Returns for each device and sector the first bytes that are possible at `cut`.
fn possible(history: &History, cut: usize) -> Vec<Vec<BTreeSet<u8>>> {
    let mut possible = vec![vec![BTreeSet::from([0xff]); SECTORS]; 2];
    // The last written value of a sector, which a flush makes the only possible value.
    let mut last = vec![vec![0xff_u8; SECTORS]; 2];
    for event in history.events().take(cut) {
        match event {
            Event::Write {
                device,
                offset_bytes,
                bytes,
            } => {
                for (index, sector) in bytes.chunks(SECTOR).enumerate() {
                    let at = *offset_bytes as usize / SECTOR + index;
                    possible[*device][at].insert(sector[0]);
                    last[*device][at] = sector[0];
                }
            }
            Event::Zero { device, range } => {
                for at in range.start as usize / SECTOR..range.end as usize / SECTOR {
                    possible[*device][at].insert(0);
                    last[*device][at] = 0;
                }
            }
            Event::Flush { device } => {
                for at in 0..SECTORS {
                    possible[*device][at] = BTreeSet::from([last[*device][at]]);
                }
            }
            _ => {}
        }
    }
    possible
}

fn sectors(image: &Arc<dyn Backend>) -> Vec<u8> {
    let mut bytes = vec![0; SECTORS * SECTOR];
    image.read_vectored_at(0, &mut [&mut bytes]).unwrap();
    for sector in bytes.chunks(SECTOR) {
        assert!(
            sector.iter().all(|byte| *byte == sector[0]),
            "a sector was torn within"
        );
    }
    bytes.chunks(SECTOR).map(|sector| sector[0]).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn every_sector_has_a_value_that_the_flushes_allow(steps in proptest::collection::vec(step(), 1..40), seed in any::<u64>()) {
        let (lab, devices) = lab_of_two();
        for (number, step) in steps.iter().enumerate() {
            let value = number as u8 + 1;
            match step {
                Step::Write(device, at, count) => devices[*device].write((at * SECTOR) as u64, &vec![value; count * SECTOR]).unwrap(),
                Step::Zero(device, at, count) => devices[*device].zero((at * SECTOR) as u64, (count * SECTOR) as u64).unwrap(),
                Step::Flush(device) => devices[*device].flush().unwrap(),
            }
        }
        let history = lab.history();
        prop_assert_eq!(history.len(), steps.len());
        // The images of a history can be requested for cuts in any order.
        let cuts = (0..=history.len()).chain((0..=history.len()).rev());
        for cut in cuts {
            let possible = possible(&history, cut);
            for outcome in [Outcome::AllKept, Outcome::NoneKept, Outcome::Drawn { seed }, Outcome::Drawn { seed: seed ^ 1 }] {
                let images = history.images_at(cut, outcome);
                let again = history.images_at(cut, outcome);
                for (device, image) in images.iter().enumerate() {
                    let found = sectors(image);
                    prop_assert_eq!(&found, &sectors(&again[device]), "the same again");
                    for (at, value) in found.iter().enumerate() {
                        prop_assert!(possible[device][at].contains(value), "cut {}, device {}, sector {}: {}", cut, device, at, value);
                    }
                }
            }
        }
        // The last image with all writes kept equals the live devices.
        for (device, image) in history.images_at(history.len(), Outcome::AllKept).iter().enumerate() {
            let live = devices[device].read(0, SECTORS * SECTOR).unwrap();
            prop_assert_eq!(sectors(image), live.chunks(SECTOR).map(|sector| sector[0]).collect::<Vec<_>>());
        }
    }
}

#[test]
fn draws_reach_every_subset_and_torn_writes() {
    let (lab, devices) = lab_of_two();
    for at in 0..3_u64 {
        devices[0].write(at * 4096, &[at as u8 + 1; 1024]).unwrap();
    }
    let history = lab.history();
    assert_eq!(
        (history.in_doubt(3), history.in_doubt(1), history.in_doubt(0)),
        (3, 1, 0)
    );
    let mut subsets = BTreeSet::new();
    let mut states = vec![BTreeSet::new(); 3];
    for seed in 0..2000 {
        let found = sectors(&history.images_at(3, Outcome::Drawn { seed })[0]);
        let pairs: Vec<_> = (0..3)
            .map(|write| (found[write * 8] != 0xff, found[write * 8 + 1] != 0xff))
            .collect();
        for (write, pair) in pairs.iter().enumerate() {
            states[write].insert(*pair);
        }
        if pairs.iter().all(|(first, second)| first == second) {
            subsets.insert(pairs);
        }
    }
    assert_eq!(subsets.len(), 8, "each of three writes there or not");
    for states in states {
        assert_eq!(states.len(), 4, "none, the first, the second, both sectors");
    }
}

#[test]
fn a_flush_vouches_for_its_own_device_and_for_what_had_returned() {
    let (lab, devices) = lab_of_two();
    devices[0].write(0, &[1; 512]).unwrap();
    devices[1].write(0, &[2; 512]).unwrap();
    devices[0].flush().unwrap();
    lab.mark(7);
    let history = lab.history();
    assert_eq!((history.last_mark(3), history.last_mark(4)), (None, Some(7)));
    let images = history.images_at(4, Outcome::NoneKept);
    assert_eq!((sectors(&images[0])[0], sectors(&images[1])[0]), (1, 0xff));
    // The test's choice keeps the second device's write, which is event 1.
    let images = history.images_with(4, &mut |event, sector, sectors| {
        event == 1 && sector == 0 && sectors == 1
    });
    assert_eq!(sectors(&images[1])[0], 2);
}

#[test]
fn images_are_devices_of_their_own() {
    let (lab, devices) = lab_of_two();
    devices[0].write(0, &[1; 512]).unwrap();
    devices[0].flush().unwrap();
    let history = lab.history();
    let image = Device::with_backend(history.images_at(2, Outcome::NoneKept).remove(0), Engine::Threads);
    image.write(0, &[9; 512]).unwrap();
    devices[0].write(0, &[8; 512]).unwrap();
    assert_eq!(
        sectors(&history.images_at(2, Outcome::AllKept)[0])[0],
        1,
        "neither changes the history"
    );
    assert_eq!(image.read(0, 1).unwrap()[0], 9);
    // This records a crash during the recovery from a crash.
    let second = CrashLab::new();
    let base = history.images_at(1, Outcome::AllKept).remove(0);
    let device = Device::with_backend(second.device(base), Engine::Inline);
    device.write(512, &[5; 512]).unwrap();
    assert_eq!(
        sectors(&second.history().images_at(1, Outcome::NoneKept)[0])[..2],
        [1, 0xff]
    );
}

#[test]
fn a_hundred_thousand_cuts_of_an_image_of_64_mib_are_cheap() {
    let lab = CrashLab::new();
    let base = Arc::new(MemoryBackend::new("base", vec![0; 64 << 20]));
    let device = Device::with_backend(lab.device(base), Engine::Threads);
    // Each commit has 30 blocks of 16 KiB.
    let mut next = 0_u64;
    for commit in 0..400_u64 {
        let requests: Vec<_> = (0..30)
            .map(|_| {
                next = (next + 7919) % 4096;
                WriteRequest {
                    offset_bytes: next * 16384,
                    bytes: Bytes::from(vec![commit as u8; 16384]),
                }
            })
            .collect();
        device
            .start_writes(requests)
            .into_iter()
            .for_each(|write| write.wait().unwrap());
        device.flush().unwrap();
        lab.mark(commit);
    }
    let history = lab.history();
    let started = std::time::Instant::now();
    let mut images = 0_u32;
    for cut in (0..=history.len()).step_by(3) {
        drop(history.images_at(cut, Outcome::Drawn { seed: cut as u64 }));
        images += 1;
    }
    let each = started.elapsed() / images;
    eprintln!("{images} images of {} events, {each:?} each", history.len());
    // A hundred thousand images take at most five minutes, also in a debug build on a busy machine.
    assert!(each < std::time::Duration::from_millis(3), "{each:?}");
}
