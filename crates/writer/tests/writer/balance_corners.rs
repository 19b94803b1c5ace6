//! Corners of balances: other exclusive operations, and devices that rot, fail, missed commits or
//! become full.

use buttress_device::{Backend, Device, Engine, MemoryBackend};
use buttress_exact::Exact as _;
use buttress_format::{
    BalanceArguments, BalanceFlags, BalanceItem, BlockGroupFlags, ByteCount, DeviceId, FileOffset, Profile,
    SubvolumeId, Timestamp, Uuid,
};
use buttress_fs::error::BalanceRefusal;
use buttress_fs::inode::FileAttributes;
use buttress_fs::{Error, Location, OpenOptions, Progress};
use buttress_lab::{Fault, FaultyBackend};
use buttress_mkfs::{self as mkfs, Identity};
use buttress_writer::balance::job::{BalanceControl, BalanceEnd, BalanceSummary};
use buttress_writer::operations::NewInode;
use buttress_writer::{JoinOptions, RelocationOptions, WritableFilesystem, WriteOptions};
use core::ops::Range;
use std::sync::Arc;
use std::time::Duration;

const ROOT: Location = Location::root_of(SubvolumeId::TOP_LEVEL);
const DEVICE_BYTES: usize = 192 << 20;
const FILES: usize = 20;
const FILE_BYTES: usize = 1 << 20;

type Backends = Vec<Arc<MemoryBackend>>;

fn content(number: usize) -> Vec<u8> {
    let words = (0..FILE_BYTES / 8).map(|at| (at * 2_654_435_761 + number).to_le_bytes());
    words.flatten().collect()
}

fn device(backend: &Arc<MemoryBackend>) -> Device {
    Device::with_backend(Arc::clone(backend) as Arc<dyn Backend>, Engine::Inline)
}

fn open(devices: Vec<Device>) -> Result<WritableFilesystem, Error> {
    WritableFilesystem::new(OpenOptions::new(devices).open()?, WriteOptions::default())
}

fn open_memory(backends: &Backends) -> WritableFilesystem {
    open(backends.iter().map(device).collect()).unwrap()
}

fn memory_of(bytes: usize) -> Arc<MemoryBackend> {
    Arc::new(MemoryBackend::new("memory", vec![0; bytes]))
}

fn memory() -> Arc<MemoryBackend> {
    memory_of(DEVICE_BYTES)
}

/// A volume with files. Each third file has no copy-on-write, and so no checksums.
fn volume(count: usize, data: Profile, metadata: Profile) -> Backends {
    volume_on((0..count).map(|_| memory()).collect(), data, metadata)
}

fn volume_on(backends: Backends, data: Profile, metadata: Profile) -> Backends {
    let identity = Identity {
        fsid: Uuid::from_u128(1),
        chunk_tree: Uuid::from_u128(2),
        top_level: Uuid::from_u128(3),
        devices: (10..).take(backends.len()).map(Uuid::from_u128).collect(),
        time: Timestamp::default(),
    };
    let options = mkfs::Options {
        data: Some(data),
        metadata: Some(metadata),
        ..mkfs::Options::default()
    };
    let devices: Vec<Device> = backends.iter().map(device).collect();
    mkfs::make(&devices, &options, &identity).unwrap();
    let filesystem = open_memory(&backends);
    for number in 0..FILES {
        let name = format!("f{number}");
        let file = filesystem
            .create(ROOT, name.as_bytes(), &NewInode::of_root(0o600))
            .unwrap();
        if number % 3 == 0 {
            filesystem.set_flags(file, FileAttributes::NOCOW).unwrap();
        }
        filesystem
            .write_at(file, FileOffset::MIN, &content(number))
            .unwrap();
    }
    filesystem.commit().unwrap();
    backends
}

fn item(flags: BalanceFlags, target: Option<Profile>) -> BalanceItem {
    let arguments = match target {
        Some(target) => BalanceArguments::NONE.with_target(target),
        None => BalanceArguments::NONE,
    };
    BalanceItem {
        flags: flags.union(BalanceFlags::FORCE),
        data: arguments,
        metadata: arguments,
        system: arguments,
    }
}

const ALL: BalanceFlags = BalanceFlags::DATA
    .union(BalanceFlags::METADATA)
    .union(BalanceFlags::SYSTEM);

fn balance(filesystem: &WritableFilesystem, item: BalanceItem) -> Result<BalanceSummary, Error> {
    let choice = filesystem.balances().start(item)?;
    filesystem
        .balances()
        .run(&choice, None, &BalanceControl::default())
}

/// Resumes the balance that an error left, and expects its end and all content.
fn ends_after(backends: &Backends) {
    let filesystem = open_memory(backends);
    if filesystem.balances().current().is_some() {
        let choice = filesystem.balances().resume().unwrap();
        let summary = filesystem
            .balances()
            .run(&choice, None, &BalanceControl::default())
            .unwrap();
        assert_eq!(summary.end, BalanceEnd::Finished);
        assert_eq!(summary.without_space, []);
    }
    expect_files(&filesystem);
    filesystem.close().unwrap();
    expect_files(&open_memory(backends));
}

#[track_caller]
fn expect_files(filesystem: &WritableFilesystem) {
    for number in 0..FILES {
        let name = format!("f{number}");
        let entry = filesystem.view().lookup(ROOT, name.as_bytes()).unwrap().unwrap();
        let mut bytes = vec![0; FILE_BYTES];
        filesystem
            .live()
            .read_at(entry.target, FileOffset::MIN, &mut bytes)
            .unwrap();
        assert!(bytes == content(number), "{name} has other content");
    }
}

/// The physical ranges of block groups of a type on a device.
fn ranges_of(filesystem: &WritableFilesystem, kind: BlockGroupFlags, device: u64) -> Vec<Range<u64>> {
    let map = filesystem.view().volume().chunk_map();
    let chunks = map.chunks().iter().filter(|chunk| chunk.flags().contains(kind));
    let ranges = chunks.flat_map(|chunk| {
        let length = chunk.layout().device_extent_bytes().get();
        let stripes = chunk.chunk().stripes.iter();
        let stripes = stripes.filter(|stripe| stripe.device.get() == device);
        let starts: Vec<u64> = stripes.map(|stripe| stripe.physical.get()).collect();
        starts
            .into_iter()
            .map(move |start| start..start.exact_add(length))
    });
    ranges.collect()
}

#[test]
fn exclusive_operations_refuse_each_other() {
    let backends = volume(2, Profile::Single, Profile::Single);
    let filesystem = open_memory(&backends);
    let second = DeviceId::new(2);
    let told = |result: Result<(), Error>| result.unwrap_err().to_string();
    let remove = || filesystem.devices().begin_removal(second).map(drop);
    let cut = || {
        let size = ByteCount::new(100 << 20);
        filesystem.devices().begin_cut(second, size).map(drop)
    };
    let grow = || filesystem.devices().grow(second, ByteCount::of(DEVICE_BYTES));
    let add = || {
        filesystem
            .devices()
            .add(device(&memory()), JoinOptions::default())
            .map(drop)
    };
    let replace = || {
        let started = filesystem.replacements().start(second, device(&memory()), false);
        started.map(drop)
    };
    let data = item(BalanceFlags::DATA, None);
    // A change of the devices excludes all others.
    let removing = filesystem.devices().begin_removal(second).unwrap();
    let refused = filesystem.balances().start(data).unwrap_err();
    assert!(
        matches!(
            refused,
            Error::BalanceRefused(BalanceRefusal::Excluded {
                running: "device remove"
            })
        ),
        "{refused}"
    );
    type Change<'a> = &'a dyn Fn() -> Result<(), Error>;
    let changes: [(&str, Change<'_>); 5] = [
        ("device remove", &remove),
        ("resize", &cut),
        ("resize", &grow),
        ("device add", &add),
        ("device replace", &replace),
    ];
    for (name, change) in changes {
        let expected =
            format!("no {name} is possible: the exclusive operation 'device remove' is in progress");
        let text = told(change());
        assert!(text.contains(&expected), "{text}");
    }
    drop(removing);
    // A balance that runs excludes all changes.
    let choice = filesystem.balances().start(data).unwrap();
    let control = BalanceControl::default();
    std::thread::scope(|scope| {
        let running = scope.spawn(|| filesystem.balances().run(&choice, Some(1), &control));
        while control.progress().snapshot().items == 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
        for (name, change) in changes {
            let expected = format!("no {name} is possible: the exclusive operation 'balance' is in progress");
            let text = told(change());
            assert!(text.contains(&expected), "{text}");
        }
        control.pause();
        assert_eq!(running.join().unwrap().unwrap().end, BalanceEnd::Paused);
    });
    // A paused balance allows a new device alone.
    for (name, change) in changes.into_iter().filter(|(name, _)| *name != "device add") {
        let expected = format!("no {name} is possible: a balance is paused");
        let text = told(change());
        assert!(text.contains(&expected), "{text}");
    }
    add().unwrap();
    filesystem.balances().end().unwrap();
    remove().unwrap();
    expect_files(&filesystem);
}

/// Opens a volume whose device `number` has faults that a test injects.
fn with_faults(backends: &Backends, number: usize) -> (WritableFilesystem, Arc<FaultyBackend>) {
    let faulty = FaultyBackend::new(Arc::clone(&backends[number]) as Arc<dyn Backend>, 3);
    let devices = backends
        .iter()
        .enumerate()
        .map(|(index, backend)| match index == number {
            true => Device::with_backend(Arc::clone(&faulty) as Arc<dyn Backend>, Engine::Inline),
            false => device(backend),
        });
    (open(devices.collect()).unwrap(), faulty)
}

#[test]
fn corrupt_copies_are_healed_by_a_balance() {
    for (kind, flags) in [(BlockGroupFlags::DATA, BalanceFlags::DATA)] {
        let backends = volume(2, Profile::Raid1, Profile::Raid1);
        let mut corruptions = 0;
        for number in 0..2 {
            let (filesystem, faulty) = with_faults(&backends, number);
            for range in ranges_of(&filesystem, kind, number as u64 + 1) {
                faulty.inject(Fault::RotBits {
                    range,
                    every_bytes: 64 << 10,
                });
            }
            let summary = balance(&filesystem, item(flags, None)).unwrap();
            assert!(summary.counts.relocated > 0, "{summary:?}");
            let faults = filesystem.view().volume().faults();
            let counts = faults.counts.get(&DeviceId::new(number as u64 + 1));
            corruptions += counts.map_or(0, |counts| counts.corruptions);
            faulty.heal();
            filesystem.close().unwrap();
        }
        assert!(corruptions > 0, "no corrupt copy of {kind:?} was read");
        expect_checksummed(&backends);
    }
}

/// Files with checksums are whole; rot of data without checksums cannot be seen.
fn expect_checksummed(backends: &Backends) {
    let filesystem = open_memory(backends);
    for number in (0..FILES).filter(|number| number % 3 != 0) {
        let name = format!("f{number}");
        let entry = filesystem.view().lookup(ROOT, name.as_bytes()).unwrap().unwrap();
        let mut bytes = vec![0; FILE_BYTES];
        filesystem
            .live()
            .read_at(entry.target, FileOffset::MIN, &mut bytes)
            .unwrap();
        assert!(bytes == content(number), "{name} has other content");
    }
}

#[test]
fn device_that_missed_commits_is_no_source_of_a_balance() {
    let backends = volume(2, Profile::Raid1, Profile::Raid1);
    let old: Vec<u8> = {
        let mut bytes = vec![0; DEVICE_BYTES];
        backends[1].read_vectored_at(0, &mut [&mut bytes[..]]).unwrap();
        bytes
    };
    let new = vec![0x5a; FILE_BYTES];
    {
        let filesystem = open_memory(&backends);
        for number in (0..FILES).step_by(3) {
            let name = format!("f{number}");
            let entry = filesystem.view().lookup(ROOT, name.as_bytes()).unwrap().unwrap();
            filesystem.write_at(entry.target, FileOffset::MIN, &new).unwrap();
        }
        for label in [&b"one"[..], b"two", b"three"] {
            filesystem.set_label(label).unwrap();
            filesystem.commit().unwrap();
        }
        filesystem.close().unwrap();
    }
    let stale: Backends = vec![
        Arc::clone(&backends[0]),
        Arc::new(MemoryBackend::new("stale", old)),
    ];
    let filesystem = open_memory(&stale);
    balance(&filesystem, item(BalanceFlags::DATA, Some(Profile::Single))).unwrap();
    for number in (0..FILES).step_by(3) {
        let name = format!("f{number}");
        let entry = filesystem.view().lookup(ROOT, name.as_bytes()).unwrap().unwrap();
        let mut bytes = vec![0; FILE_BYTES];
        filesystem
            .live()
            .read_at(entry.target, FileOffset::MIN, &mut bytes)
            .unwrap();
        assert!(bytes == new, "{name} has content of the stale device");
    }
}

#[test]
fn device_that_missed_commits_keeps_its_size() {
    let backends = volume(2, Profile::Raid1, Profile::Raid1);
    let bytes_of = |backend: &MemoryBackend| {
        let mut bytes = vec![0; DEVICE_BYTES];
        backend.read_vectored_at(0, &mut [&mut bytes[..]]).unwrap();
        bytes
    };
    let old = bytes_of(&backends[1]);
    let filesystem = open_memory(&backends);
    for label in [&b"one"[..], b"two", b"three"] {
        filesystem.set_label(label).unwrap();
        filesystem.commit().unwrap();
    }
    filesystem.close().unwrap();
    let outdated = Arc::new(MemoryBackend::new("outdated", old.clone()));
    let filesystem = open_memory(&vec![Arc::clone(&backends[0]), Arc::clone(&outdated)]);
    let is_refused = |error: Error| error.to_string().contains("missed commits, so its size");
    let shrunk = filesystem.shrinking().shrink(ByteCount::ZERO, &Progress::new());
    assert!(is_refused(shrunk.unwrap_err()));
    let cut = filesystem
        .devices()
        .begin_cut(DeviceId::new(2), ByteCount::new(100 << 20));
    assert!(is_refused(cut.unwrap_err()));
    filesystem.commit().unwrap();
    drop(filesystem);
    assert_eq!(outdated.size_bytes(), DEVICE_BYTES as u64);
    assert!(bytes_of(&outdated) == old);
}

#[test]
fn unreadable_extent_ends_the_balance_and_keeps_the_rest() {
    let backends = volume(1, Profile::Single, Profile::Dup);
    let (filesystem, faulty) = with_faults(&backends, 0);
    let ranges = ranges_of(&filesystem, BlockGroupFlags::DATA, 1);
    let used = ranges.last().unwrap().start;
    faulty.inject(Fault::FailReads(used..used.exact_add(64 << 10)));
    let ended = balance(&filesystem, item(BalanceFlags::DATA, None));
    assert!(matches!(ended, Err(Error::NotMoved { .. })), "{ended:?}");
    assert_eq!(filesystem.balances().current(), None);
    faulty.heal();
    expect_files(&filesystem);
    balance(&filesystem, item(ALL, None)).unwrap();
    filesystem.close().unwrap();
    ends_after(&backends);
}

#[test]
fn device_that_fails_writes_leaves_a_balance_to_resume() {
    for fault in [
        Fault::FailWritesFrom,
        Fault::FullFromWrite,
        Fault::MissingFromWrite,
    ] {
        for number in [3, 20, 60, 90] {
            let backends = volume(1, Profile::Single, Profile::Single);
            let (filesystem, faulty) = with_faults(&backends, 0);
            faulty.inject(fault(number));
            let ended = balance(&filesystem, item(ALL, Some(Profile::Dup)));
            if faulty.struck() > 0 {
                assert!(ended.is_err(), "{:?}: {ended:?}", fault(number));
            }
            filesystem.abandon();
            ends_after(&backends);
        }
    }
}

#[test]
fn mirror_with_a_failing_device_is_balanced_to_the_end() {
    for number in [5, 40] {
        let backends = volume(3, Profile::Raid1, Profile::Raid1);
        let (filesystem, faulty) = with_faults(&backends, 1);
        faulty.inject(Fault::MissingFromWrite(number));
        let ended = balance(&filesystem, item(ALL, None));
        let summary = ended.unwrap();
        assert_eq!(summary.end, BalanceEnd::Finished);
        assert!(faulty.struck() > 0);
        expect_files(&filesystem);
        filesystem.close().unwrap();
        let rest = vec![device(&backends[0]), device(&backends[2])];
        let opened = OpenOptions::new(rest).degraded(true).open().unwrap();
        expect_files(&WritableFilesystem::new(opened, WriteOptions::default()).unwrap());
    }
}

#[test]
fn device_that_a_copy_uses_does_not_join() {
    let backends = volume(1, Profile::Single, Profile::Single);
    let mut bytes = vec![0; DEVICE_BYTES];
    backends[0].read_vectored_at(0, &mut [&mut bytes[..]]).unwrap();
    let mut copy: Backends = vec![Arc::new(MemoryBackend::new("copy", bytes))];
    let filesystem = open_memory(&copy);
    let second = memory();
    filesystem
        .devices()
        .add(device(&second), JoinOptions::default())
        .unwrap();
    copy.push(Arc::clone(&second));
    // Until the second device is used, it joins the other copy, too.
    let other = open_memory(&backends);
    other
        .devices()
        .require_new(&device(&second), JoinOptions::default())
        .unwrap();
    balance(&filesystem, item(BalanceFlags::DATA, Some(Profile::Raid0))).unwrap();
    filesystem.close().unwrap();
    let error = other
        .devices()
        .require_new(&device(&second), JoinOptions::default())
        .unwrap_err()
        .to_string();
    assert!(error.contains("seems to contain btrfs"), "{error}");
    expect_files(&open_memory(&copy));
}

#[test]
fn system_chunk_gets_space_beside_a_large_data_chunk() {
    // A data chunk in DUP takes a fifth of the volume from one device. A metadata chunk then takes
    // the rest of that device.
    let devices = (0..4).map(|_| memory_of(256 << 20)).collect();
    let backends = volume_on(devices, Profile::Raid1, Profile::Raid1);
    let filesystem = open_memory(&backends);
    let metadata = BalanceArguments::NONE.with_target(Profile::Raid1C4);
    let converted = BalanceItem {
        metadata,
        system: metadata,
        ..item(ALL, Some(Profile::Dup))
    };
    let summary = balance(&filesystem, converted).unwrap();
    assert_eq!(summary.end, BalanceEnd::Finished);
    assert_eq!(summary.without_space, []);
    let map = filesystem.view().volume().chunk_map();
    let system = map
        .chunks()
        .iter()
        .filter(|chunk| chunk.flags().contains(BlockGroupFlags::SYSTEM));
    let profiles: Vec<Option<Profile>> = system.map(|chunk| chunk.flags().profile()).collect();
    assert_eq!(profiles, [Some(Profile::Raid1C4)]);
    expect_files(&filesystem);
}

/// The bytes of a device change while its resize excludes other changes of the devices.
#[test]
fn resize_changes_the_bytes_of_a_device_under_its_exclusion() {
    let backends = volume(2, Profile::Single, Profile::Single);
    let filesystem = open_memory(&backends);
    let second = DeviceId::new(2);
    let (small, large) = (160 << 20, 192 << 20);
    let emptying = filesystem
        .devices()
        .begin_cut(second, ByteCount::new(small))
        .unwrap();
    let chunks: Vec<_> = emptying.chunks().iter().map(|chunk| chunk.chunk).collect();
    filesystem
        .relocations()
        .relocate(&chunks, &RelocationOptions::default())
        .unwrap();
    emptying.cut().unwrap();
    assert_eq!(backends[1].size_bytes(), small);
    let removing = filesystem.devices().begin_removal(second).unwrap();
    let grow = || filesystem.devices().enlarge(second, ByteCount::new(large));
    grow().unwrap_err();
    assert_eq!(backends[1].size_bytes(), small);
    drop(removing);
    grow().unwrap();
    assert_eq!(backends[1].size_bytes(), large);
    assert_eq!(
        filesystem.view().volume().superblock().total_bytes,
        ByteCount::new(2 * large)
    );
}
