//! Jobs that move a volume's content, on a device that fails, rots, tears a write or becomes full
//! in the middle.
//!
//! Each job runs on three mirrored devices, of which one has a fault at a quarter or three quarters
//! of its writes. The job ends, with or without an error. Then the device is sound again: the volume
//! opens, has all its content, and the same job runs to its end.
#![allow(
    clippy::arithmetic_side_effects,
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "tests compute with known numbers, and a panic is how a test fails; what was tried is printed"
)]

use anyhow::{Context, Result, ensure};
use buttress::balance::{BalanceArguments, BalanceControl, BalanceFlags, BalanceItem};
use buttress::mkfs::Options;
use buttress::scrub::ResyncOptions;
use buttress::{
    Backend, ByteCount, ChecksumType, DefragmentOptions, DeviceId, FileOffset, Follow, NewInode, Profile,
    Progress, Volume, WritableVolume,
};
use buttress_lab::crash::copy_of;
use buttress_lab::{Fault, FaultyBackend};
use buttress_proof::writing::volume::{Backends, devices, empty};
use std::sync::Arc;

const MIB: usize = 1 << 20;
const FILES: usize = 6;
const FILE_BYTES: usize = MIB;

/// The device with the fault, by its place.
const BAD: usize = 1;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Job {
    Balance,
    Convert,
    Remove,
    Shrink,
    Checksums,
    Defragment,
}

const JOBS: [Job; 6] = [
    Job::Balance,
    Job::Convert,
    Job::Remove,
    Job::Shrink,
    Job::Checksums,
    Job::Defragment,
];

fn content(number: usize) -> Vec<u8> {
    let words = (0..FILE_BYTES / 8).map(|at| (at * 2_654_435_761 + number).to_le_bytes());
    words.flatten().collect()
}

fn name(number: usize) -> String {
    format!("file {number}")
}

/// Mirrored devices with files, each of many extents that are not in order.
fn base() -> Backends {
    let options = Options {
        data: Some(Profile::Raid1),
        metadata: Some(Profile::Raid1),
        ..Options::default()
    };
    let backends = empty(&[256 * MIB; 3], &options).unwrap();
    let volume = open(&backends).unwrap();
    let root = volume.root();
    for number in 0..FILES {
        let place = volume.create_file(
            root.locate("/", Follow::All).unwrap(),
            name(number).as_bytes(),
            &NewInode::of_root(0o600),
        );
        let file = volume.open_file(place.unwrap()).unwrap();
        let bytes = content(number);
        for part in (0..8).rev() {
            let (start, end) = (part * FILE_BYTES / 8, (part + 1) * FILE_BYTES / 8);
            file.write_at(FileOffset::new(start as u64), &bytes[start..end])
                .unwrap();
            volume.sync().unwrap();
        }
    }
    volume.close().unwrap();
    backends
}

fn open(backends: &[Arc<dyn Backend>]) -> buttress::Result<WritableVolume> {
    Volume::options().open_writable_devices(devices(backends))
}

fn copies(base: &Backends) -> Backends {
    base.iter().map(|backend| copy_of(Arc::clone(backend))).collect()
}

fn balance(volume: &WritableVolume, target: Option<Profile>) -> buttress::Result<()> {
    let arguments = match target {
        Some(target) => BalanceArguments::NONE.with_target(target),
        None => BalanceArguments::NONE,
    };
    let item = BalanceItem {
        flags: BalanceFlags::DATA
            .union(BalanceFlags::METADATA)
            .union(BalanceFlags::SYSTEM)
            .union(BalanceFlags::FORCE),
        data: arguments,
        metadata: arguments,
        system: arguments,
    };
    let choice = match volume.balance_status()? {
        Some(_) => volume.resume_balance()?,
        None => volume.start_balance(item)?,
    };
    volume
        .run_balance(&choice, None, &BalanceControl::default())
        .map(drop)
}

fn checksums(backends: &[Arc<dyn Backend>], degraded: bool) -> buttress::Result<()> {
    let options = Volume::options().degraded(degraded);
    let whole = options.open_whole_devices(devices(backends));
    let info = whole.info()?;
    match info.checksum_type == ChecksumType::Xxhash64 && !info.is_unfinished {
        true => Ok(()),
        false => whole.change_checksums(ChecksumType::Xxhash64, &Progress::new()),
    }
}

impl Job {
    fn run(self, backends: &[Arc<dyn Backend>]) -> buttress::Result<()> {
        if self == Self::Checksums {
            return checksums(backends, false);
        }
        let volume = open(backends)?;
        let progress = Progress::new();
        match self {
            Self::Balance => balance(&volume, None)?,
            Self::Convert => balance(&volume, Some(Profile::Raid1C3))?,
            Self::Remove if volume.devices().len() == 3 => {
                volume.remove_device(DeviceId::new(3), &progress)?
            }
            Self::Shrink => volume.shrink(ByteCount::ZERO, &progress).map(drop)?,
            Self::Defragment => {
                for number in 0..FILES {
                    let place = volume.root().locate(name(number).as_str(), Follow::All)?;
                    let file = volume.open_file(place)?;
                    file.defragment(&DefragmentOptions::default(), &progress)?;
                }
            }
            Self::Remove | Self::Checksums => {}
        }
        volume.close()
    }
}

fn expect_content(volume: &Volume) -> Result<()> {
    for number in 0..FILES {
        let found = volume
            .root()
            .read(name(number).as_str())
            .with_context(|| name(number))?;
        ensure!(found == content(number), "{} has other content", name(number));
    }
    Ok(())
}

/// Requires the content, resumes the job on sound devices, and requires the content again.
fn expect_resumed(job: Job, backends: &Backends) -> Result<()> {
    let unfinished = job == Job::Checksums
        && Volume::options()
            .open_whole_devices(devices(backends))
            .info()?
            .is_unfinished;
    if unfinished {
        // A device that missed commits cannot be brought up to date now. The change ends without it.
        if checksums(backends, false).is_err() {
            let mut rest = backends.clone();
            let _left_out = rest.remove(BAD);
            checksums(&rest, true).context("without the device")?;
            let volume = Volume::options().degraded(true).open_devices(devices(&rest))?;
            return expect_content(&volume);
        }
        return expect_content(&Volume::options().open_devices(devices(backends))?);
    }
    // A device that left the volume is not given again.
    let mut members = backends.clone();
    if job == Job::Remove && Volume::options().open_devices(devices(&members[..2])).is_ok() {
        members.truncate(2);
    }
    let volume = open(&members).context("opening it again")?;
    expect_content(&volume)?;
    let (_, ended) = volume.resync(ResyncOptions::default(), &Progress::new());
    ended.context("resync")?;
    volume.close()?;
    job.run(&members).context("the same job again")?;
    if job == Job::Remove {
        members.truncate(2);
    }
    expect_content(&Volume::options().open_devices(devices(&members))?)
}

#[test]
fn jobs_on_a_bad_device_lose_nothing_and_are_resumed() {
    let base = base();
    for job in JOBS {
        let counted = copies(&base);
        let (sound, counter) = with_faults(&counted, &[]);
        job.run(&sound).unwrap();
        let (_, writes, _) = counter.request_counts();
        let (mut struck, mut failed) = (0, 0);
        for part in [1, 3] {
            let number = writes * part / 4;
            let faults = [
                vec![Fault::FailWriteNumber(number)],
                vec![Fault::FailWritesFrom(number)],
                vec![Fault::MissingFromWrite(number)],
                vec![Fault::FullFromWrite(number)],
                vec![Fault::TearWriteNumber {
                    number,
                    kept_bytes: 4096,
                }],
                vec![Fault::FailSomeReads { one_in: 5 }],
                vec![Fault::RotBits {
                    range: (2 << 20)..(250 << 20),
                    every_bytes: 64 << 10,
                }],
            ];
            for faults in faults {
                let images = copies(&base);
                let (given, faulty) = with_faults(&images, &faults);
                let ended = job.run(&given);
                let place = || format!("{job:?}, {faults:?}, ended {ended:?}");
                if let Err(error) = &ended {
                    assert!(
                        !error.to_string().contains("a fault of this program"),
                        "{}",
                        place()
                    );
                }
                failed += usize::from(ended.is_err());
                struck += usize::from(faulty.struck() > 0);
                drop(given);
                expect_resumed(job, &images).with_context(place).unwrap();
            }
        }
        eprintln!("{job:?}: {writes} writes, {struck} runs struck, {failed} ended with an error");
        assert!(struck > 0, "{job:?}");
    }
}

/// Returns the devices, with faults on one of them.
fn with_faults(images: &Backends, faults: &[Fault]) -> (Backends, Arc<FaultyBackend>) {
    let faulty = FaultyBackend::new(Arc::clone(&images[BAD]), 3);
    faults.iter().for_each(|fault| faulty.inject(fault.clone()));
    let mut given = images.clone();
    given[BAD] = Arc::clone(&faulty) as Arc<dyn Backend>;
    (given, faulty)
}
