//! Tests that a volume open for writing repairs bad copies that reads pass over, and that scrub
//! works beside writers.
#![allow(
    clippy::unwrap_used,
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    clippy::panic,
    reason = "a test"
)]

use buttress::{Device, Profile, Progress, ScrubOptions, Volume, VolumeOptions, WritableVolume};
use std::sync::atomic::{AtomicBool, Ordering};

const BLOCK: usize = 4096;
const BLOCKS: usize = 64;

/// Returns content whose blocks all differ.
fn content() -> Vec<u8> {
    let block = |number: usize| -> Vec<u8> {
        (0..BLOCK)
            .map(|at| (at * 7 + number * 13 + (at >> 8) * number) as u8)
            .collect()
    };
    (0..BLOCKS).flat_map(block).collect()
}

/// Returns two devices that mirror all data.
fn mirrored() -> Vec<Device> {
    let devices: Vec<Device> = (0..2).map(|_| Device::memory(vec![0; 256 << 20])).collect();
    let volume = Volume::create()
        .profiles(Profile::Raid1, Profile::Raid1)
        .on_devices(devices.clone())
        .unwrap();
    volume.root().write("ledger", content()).unwrap();
    volume.sync().unwrap();
    devices
}

/// Returns the address of the file's first block on a device.
fn place(device: &Device) -> u64 {
    let first = &content()[..BLOCK];
    let step = 1 << 20;
    for at in (0..device.size_bytes()).step_by(step) {
        let bytes = device.read(at, step).unwrap();
        if let Some(block) = bytes.chunks(BLOCK).position(|block| block == first) {
            return at + (block * BLOCK) as u64;
        }
    }
    panic!("the file is on each device")
}

/// Corrupts every second block of the file, on both devices in turn.
fn rot(devices: &[Device]) -> u64 {
    let places: Vec<u64> = devices.iter().map(place).collect();
    let mut spoilt = 0;
    for number in (0..BLOCKS).step_by(2) {
        let one = number / 2 % 2;
        let at = places[one] + (number * BLOCK) as u64;
        devices[one].write(at, &[0xa5; BLOCK]).unwrap();
        spoilt += 1;
    }
    spoilt
}

fn open(devices: &[Device], options: VolumeOptions) -> Volume {
    options.open_devices(devices.to_vec()).unwrap()
}

fn open_writable(devices: &[Device], options: VolumeOptions) -> WritableVolume {
    options.open_writable_devices(devices.to_vec()).unwrap()
}

#[test]
fn bad_copies_that_reads_pass_over_are_repaired() {
    let devices = mirrored();
    let spoilt = rot(&devices);
    let volume = open_writable(&devices, Volume::options());
    // For each bad copy that a read meets, the healer reads the whole group around it.
    assert!(volume.root().read("ledger").unwrap() == content());
    let healed = volume.healed();
    assert_eq!(healed.corrected, spoilt, "{healed:?}");
    assert_eq!(healed.uncorrectable, 0, "{healed:?}");
    drop(volume);
    let volume = open(&devices, Volume::options());
    let report = volume.scrub(ScrubOptions::default(), &Progress::new()).unwrap();
    assert_eq!(report.totals().errors(), 0, "{:#?}", report.damages);
}

#[test]
fn volume_without_healing_or_read_only_repairs_nothing() {
    let reading = |devices: &[Device]| open(devices, Volume::options());
    let unhealed = |devices: &[Device]| {
        let volume = open_writable(devices, Volume::options().heal(false));
        assert_eq!(volume.healed().corrected, 0);
        (*volume).clone()
    };
    for opened in [&reading as &dyn Fn(&[Device]) -> Volume, &unhealed] {
        let devices = mirrored();
        let spoilt = rot(&devices);
        let volume = opened(&devices);
        assert!(volume.root().read("ledger").unwrap() == content());
        drop(volume);
        let volume = open(&devices, Volume::options());
        let report = volume.scrub(ScrubOptions::default(), &Progress::new()).unwrap();
        assert_eq!(report.totals().csum_errors, spoilt, "{:#?}", report.damages);
        assert_eq!(report.totals().corrected_errors, 0, "it is open for reading");
    }
}

#[test]
fn a_scrub_mends_while_others_write() {
    let devices = mirrored();
    let spoilt = rot(&devices);
    let volume = open_writable(&devices, Volume::options());
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for number in 0_u64.. {
                let name = format!("file-{}", number % 50);
                volume.root().write(name, vec![number as u8; 20_000]).unwrap();
                if number % 20 == 0 {
                    volume.sync().unwrap();
                }
                if number > 100 && is_done.load(Ordering::SeqCst) {
                    break;
                }
            }
        });
        let report = volume.scrub(ScrubOptions::default(), &Progress::new()).unwrap();
        is_done.store(true, Ordering::SeqCst);
        assert_eq!(report.totals().errors(), spoilt, "{:#?}", report.damages);
        assert_eq!(report.totals().corrected_errors, spoilt);
    });
    volume.sync().unwrap();
    let report = volume.scrub(ScrubOptions::default(), &Progress::new()).unwrap();
    assert_eq!(report.totals().errors(), 0, "{:#?}", report.damages);
}
