//! Devices that are added, removed and resized, cut off at every write and flush.
//!
//! After each cut the volume opens, checks clean and has all its content, with the device that was
//! to come or go where that device still carries the volume's superblock, and without it where no
//! commit lists it. After the cut, the volume accepts more changes and a commit. The kernel and
//! `btrfs check` agree on a share of the images.
#![allow(
    clippy::arithmetic_side_effects,
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stderr,
    reason = "tests compute with known numbers, and a panic is how a test fails; what was tried is printed"
)]

use anyhow::{Context, Result, ensure};
use buttress::mkfs::Options;
use buttress::unstable::device::MemoryBackend;
use buttress::unstable::fs::OpenOptions;
use buttress::unstable::volume::superblocks;
use buttress::unstable::writer::{
    ChunkInTheWay, JoinOptions, WritableFilesystem, WriteOptions, relocation::RelocationOptions,
};
use buttress::{
    Backend, ByteCount, Device, DeviceEngine as Engine, DeviceId, FileOffset, Location, Logical, NewInode,
    Profile, Progress, SubvolumeId,
};
use buttress_lab::crash::{CrashLab, History, Outcome};
use buttress_oracle::skip::skips;
use buttress_oracle::tools::kernel_missing;
use buttress_proof::writing::state::describe;
use buttress_proof::writing::volume::{
    Backends, devices, empty, expect_kernel_agrees, is_clean, open_after_crash, open_checked,
    open_for_writing,
};
use buttress_proof::writing::workload::Workload;
use std::sync::Arc;

const MIB: u64 = 1 << 20;

/// Of this many crash images that the kernel can mount, the test lets the kernel inspect one.
const KERNEL_EVERY: usize = 12;

/// A test volume with content, and devices that do not belong to the volume.
struct Base {
    backends: Backends,
    /// Number of backends that belong to the volume.
    members: usize,
    state: String,
}

fn memory(name: &str, bytes: u64) -> Arc<dyn Backend> {
    Arc::new(MemoryBackend::new(name, vec![0; usize::try_from(bytes).unwrap()]))
}

impl Base {
    fn new(sizes: &[u64], options: &Options) -> Result<Self> {
        let sizes: Vec<usize> = sizes.iter().map(|size| usize::try_from(*size).unwrap()).collect();
        let backends = empty(&sizes, options)?;
        let filesystem = open_for_writing(&backends)?;
        let mut workload = Workload::on(&filesystem, 7)?;
        for _ in 0..150 {
            workload.step(&filesystem)?;
        }
        filesystem.commit()?;
        let state = describe(&filesystem.view())?;
        drop((workload, filesystem));
        let members = backends.len();
        Ok(Self {
            backends,
            members,
            state,
        })
    }

    /// Makes a change without recording it.
    fn prepare(mut self, new: Option<Arc<dyn Backend>>, change: Change<'_>) -> Result<Self> {
        self.backends.extend(new);
        let mut given = devices(&self.backends);
        let others = given.split_off(self.members);
        change(&open_for_writing(&self.backends[..self.members])?, others)?;
        self.members = self.backends.len();
        Ok(self)
    }

    /// Records a change of devices.
    fn record(&self, change: Change<'_>) -> Result<History> {
        let lab = CrashLab::new();
        let recorded: Backends = self
            .backends
            .iter()
            .map(|backend| lab.device(Arc::clone(backend)))
            .collect();
        let others = devices(&recorded[self.members..]);
        let filesystem = open_for_writing(&recorded[..self.members])?;
        change(&filesystem, others)?;
        lab.mark(1);
        drop(filesystem);
        Ok(lab.history())
    }

    /// Judges each power cut of a history.
    fn each_cut(&self, what: &str, history: &History) -> Result<()> {
        self.some_cuts(what, history, usize::MAX)
    }

    /// Judges at most about so many cuts, unless `BUTTRESS_SOAK` asks for all.
    fn some_cuts(&self, what: &str, history: &History, most: usize) -> Result<()> {
        let (mut with, mut without, mut kernel) = (0, 0, 0);
        let all = std::env::var_os("BUTTRESS_SOAK").is_some();
        let step = if all {
            1
        } else {
            history.len().div_ceil(most).max(1)
        };
        for cut in (0..=history.len()).rev().step_by(step) {
            for outcome in [
                Outcome::AllKept,
                Outcome::NoneKept,
                Outcome::Drawn { seed: cut as u64 },
            ] {
                let images = history.images_at(cut, outcome);
                let judged = self.judge(&images, &mut kernel);
                let (opens_with, opens_without) =
                    judged.with_context(|| format!("{what}: cut {cut} of {}, {outcome:?}", history.len()))?;
                with += usize::from(opens_with);
                without += usize::from(opens_without);
            }
        }
        eprintln!(
            "{what}: {} events, opened {with} times with the last device and {without} times without it, {kernel} times by the \
             kernel",
            history.len()
        );
        ensure!(with > 0 && without > 0, "{what}: one of both was never tried");
        Ok(())
    }

    fn judge(&self, images: &Backends, kernel: &mut usize) -> Result<(bool, bool)> {
        let (last, others) = images.split_last().context("no device")?;
        let others = others.to_vec();
        // If only one device remains, the volume can only change its size.
        if others.is_empty() {
            self.expect_whole(images, kernel)?;
            return Ok((true, true));
        }
        let last = Device::with_backend(Arc::clone(last), Engine::Inline);
        let has_superblock = superblocks::choose(&last).is_ok();
        let opens_without = open_after_crash(&others).is_ok();
        ensure!(opens_without || has_superblock, "the volume opens neither way");
        if has_superblock {
            self.expect_whole(images, kernel)
                .context("with the last device")?;
        }
        if opens_without && !has_superblock {
            self.expect_whole(&others, kernel)
                .context("without the last device")?;
        }
        Ok((has_superblock, opens_without))
    }

    fn expect_whole(&self, images: &Backends, kernel: &mut usize) -> Result<()> {
        let found = open_after_crash(images)?;
        ensure!(describe(&found)? == self.state, "the content differs");
        let listed = found.superblock().num_devices;
        drop(found);
        *kernel += 1;
        let all_listed = listed == images.len() as u64;
        if all_listed && kernel.is_multiple_of(KERNEL_EVERY) && !skips(kernel_missing()) && is_clean(images)?
        {
            // The kernel's comparison writes to copies of the images.
            expect_kernel_agrees(images).context("beside the kernel")?;
        }
        let filesystem = open_for_writing(images).context("opening it for writing")?;
        let mut workload = Workload::on(&filesystem, 8)?;
        for _ in 0..5 {
            workload.step(&filesystem)?;
        }
        filesystem.set_label(b"after the cut")?;
        filesystem.commit().context("the commit after it")?;
        drop((workload, filesystem));
        open_after_crash(images).context("after more changes")?;
        Ok(())
    }
}

type Change<'a> = &'a dyn Fn(&WritableFilesystem, Vec<Device>) -> Result<()>;

const JOIN: JoinOptions = JoinOptions {
    overwrites: false,
    discards: false,
};

fn add(filesystem: &WritableFilesystem, new: Vec<Device>) -> Result<()> {
    for device in new {
        filesystem.devices().add(device, JOIN)?;
    }
    Ok(())
}

fn remove(filesystem: &WritableFilesystem, id: u64) -> Result<()> {
    let slot = filesystem.devices().begin_removal(DeviceId::new(id))?.remove()?;
    let device = slot.device().context("it is there")?;
    buttress::unstable::writer::wipe_superblocks(device, slot.uuid())?;
    Ok(())
}

fn mirror() -> Options {
    Options {
        data: Some(Profile::Raid1),
        metadata: Some(Profile::Raid1),
        ..Options::default()
    }
}

#[test]
fn crash_while_a_device_joins_keeps_the_volume() {
    // The test runs with a copy of the superblock, and without one.
    for new in [72 * MIB, 32 * MIB] {
        let mut base = Base::new(&[128 * MIB], &Options::default()).unwrap();
        base.backends.push(memory("new", new));
        let history = base.record(&add).unwrap();
        base.each_cut(&format!("a device of {new} bytes joins"), &history)
            .unwrap();
    }
}

#[test]
fn crash_while_a_device_joins_a_small_volume_keeps_it() {
    let options = Options {
        metadata: Some(Profile::Single),
        ..Options::default()
    };
    let mut base = Base::new(&[48 * MIB], &options).unwrap();
    base.backends.push(memory("new", 32 * MIB));
    let history = base.record(&add).unwrap();
    base.each_cut("a device joins a small volume", &history).unwrap();
}

#[test]
fn crash_while_a_device_joins_a_mirror_keeps_it() {
    let mut base = Base::new(&[128 * MIB, 128 * MIB], &mirror()).unwrap();
    base.backends.push(memory("new", 128 * MIB));
    let history = base.record(&add).unwrap();
    base.each_cut("a device joins a mirror", &history).unwrap();
}

#[test]
fn crash_while_a_device_leaves_keeps_the_volume() {
    for new in [72 * MIB, 32 * MIB] {
        let base = Base::new(&[128 * MIB], &Options::default()).unwrap();
        let base = base.prepare(Some(memory("second", new)), &add).unwrap();
        let history = base.record(&|filesystem, _| remove(filesystem, 2)).unwrap();
        base.each_cut(&format!("a device of {new} bytes leaves"), &history)
            .unwrap();
    }
}

#[test]
fn crash_while_a_device_is_resized_keeps_the_volume() {
    // The smaller device has no second superblock copy, neither before nor after the resize.
    for (from, to) in [(128 * MIB, 130 * MIB), (48 * MIB, 60 * MIB)] {
        resize_at_every_cut(from, to);
    }
}

fn resize_at_every_cut(from: u64, to: u64) {
    let smaller = Options {
        device_bytes: Some(ByteCount::new(from)),
        metadata: Some(Profile::Single),
        ..Options::default()
    };
    let base = Base::new(&[192 * MIB], &smaller).unwrap();
    let grow = |filesystem: &WritableFilesystem, _: Vec<Device>| {
        Ok(filesystem
            .devices()
            .grow(DeviceId::new(1), ByteCount::new(192 * MIB))?)
    };
    let history = base.record(&grow).unwrap();
    base.each_cut(&format!("a device grows from {from} bytes"), &history)
        .unwrap();
    let base = base.prepare(None, &grow).unwrap();
    let cut = move |filesystem: &WritableFilesystem, _: Vec<Device>| {
        let size = ByteCount::new(to);
        Ok(filesystem.devices().begin_cut(DeviceId::new(1), size)?.cut()?)
    };
    let history = base.record(&cut).unwrap();
    base.each_cut(&format!("a device is cut at byte {to}"), &history)
        .unwrap();
}

#[test]
fn device_with_content_of_a_copy_is_refused() {
    let base = Base::new(&[128 * MIB], &Options::default()).unwrap();
    let mut bytes = vec![0; usize::try_from(128 * MIB).unwrap()];
    base.backends[0]
        .read_vectored_at(0, &mut [bytes.as_mut_slice()])
        .unwrap();
    let original: Backends = vec![Arc::new(MemoryBackend::new("original", bytes))];
    let base = base.prepare(Some(memory("second", 512 * MIB)), &add).unwrap();
    let filesystem = open_for_writing(&base.backends).unwrap();
    let new = NewInode::of_root(0o600);
    let top = Location::root_of(SubvolumeId::TOP_LEVEL);
    let file = filesystem.create(top, b"on the second", &new).unwrap();
    filesystem
        .write_at(file, FileOffset::new(0), &vec![7; 48 << 20])
        .unwrap();
    filesystem.close().unwrap();
    let filesystem = open_for_writing(&original).unwrap();
    let second = || Device::with_backend(Arc::clone(&base.backends[1]), Engine::Inline);
    let error = filesystem.devices().add(second(), JOIN).unwrap_err().to_string();
    assert!(error.contains("seems to contain btrfs"), "{error}");
    drop(filesystem);
    drop(open_checked(&base.backends).unwrap());
}

#[test]
fn device_that_joined_is_used_by_new_chunks_and_by_the_kernel() {
    let base = Base::new(&[128 * MIB], &Options::default()).unwrap();
    let base = base.prepare(Some(memory("second", 256 * MIB)), &add).unwrap();
    let filesystem = open_for_writing(&base.backends).unwrap();
    assert_eq!(filesystem.view().superblock().num_devices, 2);
    assert_eq!(filesystem.view().superblock().total_bytes.get(), 384 * MIB);
    let mut workload = Workload::on(&filesystem, 9).unwrap();
    for _ in 0..100 {
        workload.step(&filesystem).unwrap();
    }
    filesystem.commit().unwrap();
    drop((workload, filesystem));
    drop(open_checked(&base.backends).unwrap());
    if !skips(kernel_missing()) {
        expect_kernel_agrees(&base.backends).unwrap();
    }
}

#[test]
fn device_that_left_is_not_written_by_later_commits() {
    let base = Base::new(&[128 * MIB], &Options::default()).unwrap();
    let base = base.prepare(Some(memory("second", 128 * MIB)), &add).unwrap();
    let filesystem = open_for_writing(&base.backends).unwrap();
    let slot = filesystem
        .devices()
        .begin_removal(DeviceId::new(2))
        .unwrap()
        .remove()
        .unwrap();
    // The removed device was not wiped: it still has the superblock of the previous commit.
    let left = superblocks::choose(slot.device().unwrap()).unwrap().superblock;
    filesystem.set_label(b"later").unwrap();
    filesystem.commit().unwrap();
    drop(filesystem);
    let found = superblocks::choose(&devices(&base.backends)[1])
        .unwrap()
        .superblock;
    assert_eq!(found.generation, left.generation);
    // If the removed device is given again, the opening ignores it.
    let filesystem = open_for_writing(&base.backends).unwrap();
    filesystem.set_label(b"with it").unwrap();
    filesystem.commit().unwrap();
    drop(filesystem);
    let filesystem = open_for_writing(&base.backends[..1]).unwrap();
    assert_eq!(filesystem.view().superblock().num_devices, 1);
    assert_eq!(filesystem.view().superblock().label, b"with it");
}

#[test]
fn device_that_is_needed_stays() {
    let base = Base::new(&[128 * MIB, 128 * MIB], &mirror()).unwrap();
    let filesystem = open_for_writing(&base.backends).unwrap();
    let generation = filesystem.committed_generation();
    let told = |error: buttress::unstable::fs::Error| error.to_string();
    let error = told(filesystem.devices().begin_removal(DeviceId::new(2)).unwrap_err());
    assert!(
        error.contains("RAID1 need more devices (found 1 without it, expected at least 2)"),
        "{error}"
    );
    let error = told(filesystem.devices().begin_removal(DeviceId::new(7)).unwrap_err());
    assert!(error.contains("no device 7"), "{error}");
    let error = told(
        filesystem
            .devices()
            .grow(DeviceId::new(1), ByteCount::new(1 << 40))
            .unwrap_err(),
    );
    assert!(error.contains("goes past its end"), "{error}");
    let error = told(
        filesystem
            .devices()
            .begin_cut(DeviceId::new(1), ByteCount::new(MIB))
            .unwrap_err(),
    );
    assert!(error.contains("too small"), "{error}");
    assert_eq!(filesystem.committed_generation(), generation);
    let cut = filesystem
        .devices()
        .begin_cut(DeviceId::new(1), ByteCount::new(16 * MIB))
        .unwrap();
    let error = told(filesystem.devices().begin_removal(DeviceId::new(1)).unwrap_err());
    assert!(
        error.contains("no device remove is possible: the exclusive operation 'resize' is in progress"),
        "{error}"
    );
    let error = told(cut.cut().unwrap_err());
    assert!(error.contains("were not moved"), "{error}");
    drop(filesystem);
    let single = Base::new(&[128 * MIB], &Options::default()).unwrap();
    let filesystem = open_for_writing(&single.backends).unwrap();
    let error = told(filesystem.devices().begin_removal(DeviceId::new(1)).unwrap_err());
    assert!(error.contains("the only writable device"), "{error}");
}

#[test]
fn device_that_is_emptied_gets_no_new_chunks() {
    let base = Base::new(&[192 * MIB], &Options::default()).unwrap();
    let base = base.prepare(Some(memory("second", 512 * MIB)), &add).unwrap();
    let filesystem = open_for_writing(&base.backends).unwrap();
    let emptying = filesystem.devices().begin_removal(DeviceId::new(2)).unwrap();
    let file = |name: &[u8]| {
        let new = NewInode::of_root(0o600);
        filesystem
            .create(Location::root_of(SubvolumeId::TOP_LEVEL), name, &new)
            .unwrap()
    };
    let write = |name: &[u8]| {
        let content = vec![7; 48 << 20];
        filesystem
            .write_at(file(name), FileOffset::new(0), &content)
            .and_then(|_| filesystem.commit())
    };
    // The first device has no space for all of the content.
    let written = (0..6_u8)
        .take_while(|number| write(&[b'a' + number]).is_ok())
        .count();
    assert!(written < 6);
    assert_eq!(emptying.chunks(), []);
    drop(emptying);
    write(b"z").unwrap();
    let emptying = filesystem.devices().begin_removal(DeviceId::new(2)).unwrap();
    assert_ne!(emptying.chunks(), []);
    let error = emptying.remove().unwrap_err().to_string();
    assert!(error.contains("were not moved"), "{error}");
    drop(filesystem);
    drop(open_checked(&base.backends).unwrap());
}

/// Moves content from the part of a device that goes.
fn relocate(filesystem: &WritableFilesystem, chunks: &[ChunkInTheWay]) -> Result<()> {
    let groups: Vec<Logical> = chunks.iter().map(|chunk| chunk.chunk).collect();
    filesystem
        .relocations()
        .relocate(&groups, &RelocationOptions::default())?;
    Ok(())
}

fn remove_used(filesystem: &WritableFilesystem, id: u64) -> Result<()> {
    let emptying = filesystem.devices().begin_removal(DeviceId::new(id))?;
    emptying.require_places()?;
    relocate(filesystem, &emptying.chunks())?;
    let slot = emptying.remove()?;
    if let Some(device) = slot.device() {
        buttress::unstable::writer::wipe_superblocks(device, slot.uuid())?;
    }
    Ok(())
}

/// The profiles of a volume, and the number of its devices.
const USED: [(Profile, Profile, usize); 4] = [
    (Profile::Single, Profile::Single, 2),
    (Profile::Raid1, Profile::Raid1, 3),
    (Profile::Raid0, Profile::Raid1, 3),
    (Profile::Raid5, Profile::Raid1C3, 4),
];

#[test]
fn crash_while_a_used_device_leaves_keeps_the_volume() {
    for (data, metadata, count) in USED {
        let options = Options {
            data: Some(data),
            metadata: Some(metadata),
            ..Options::default()
        };
        let what = format!("a device of {data}, {metadata} leaves");
        let base = Base::new(&vec![256 * MIB; count], &options).unwrap();
        let last = count as u64;
        let filesystem = open_for_writing(&base.backends).unwrap();
        let is_used = !filesystem
            .devices()
            .begin_removal(DeviceId::new(last))
            .unwrap()
            .chunks()
            .is_empty();
        drop(filesystem);
        assert!(is_used || data == Profile::Single, "{what}: nothing is on it");
        let history = base
            .record(&|filesystem, _| remove_used(filesystem, last))
            .unwrap();
        base.some_cuts(&what, &history, 24).unwrap();
    }
}

#[test]
fn device_that_is_lost_leaves() {
    let options = Options {
        data: Some(Profile::Raid1),
        metadata: Some(Profile::Raid1),
        ..Options::default()
    };
    let base = Base::new(&[256 * MIB; 3], &options).unwrap();
    let rest = base.backends[1..].to_vec();
    let opened = OpenOptions::new(devices(&rest)).degraded(true).open().unwrap();
    let filesystem = WritableFilesystem::new(opened, WriteOptions::default()).unwrap();
    remove_used(&filesystem, 1).unwrap();
    drop(filesystem);
    let found = open_checked(&rest).unwrap();
    assert_eq!(describe(&found).unwrap(), base.state);
    drop(found);
    if !skips(kernel_missing()) {
        expect_kernel_agrees(&rest).unwrap();
    }
}

#[test]
fn cut_moves_what_is_past_the_new_end() {
    let base = Base::new(&[512 * MIB], &Options::default()).unwrap();
    let filesystem = open_for_writing(&base.backends).unwrap();
    let ends: Vec<u64> = filesystem
        .devices()
        .begin_cut(DeviceId::new(1), ByteCount::new(16 * MIB))
        .unwrap()
        .chunks()
        .iter()
        .map(|chunk| chunk.bytes.get())
        .collect();
    let used: u64 = ends.iter().sum();
    drop(filesystem);
    // Somewhat more than chunks take: some are past the new end.
    let size = ByteCount::new(used + 40 * MIB);
    let change = move |filesystem: &WritableFilesystem, _: Vec<Device>| {
        let emptying = filesystem.devices().begin_cut(DeviceId::new(1), size)?;
        relocate(filesystem, &emptying.chunks())?;
        Ok(emptying.cut()?)
    };
    let history = base.record(&change).unwrap();
    base.some_cuts("what is past the end moves", &history, 24)
        .unwrap();
}

#[test]
fn cancelled_removal_leaves_a_volume_that_uses_the_device() {
    let options = Options {
        data: Some(Profile::Raid1),
        metadata: Some(Profile::Raid1),
        ..Options::default()
    };
    let base = Base::new(&[256 * MIB; 3], &options).unwrap();
    let filesystem = open_for_writing(&base.backends).unwrap();
    let emptying = filesystem.devices().begin_removal(DeviceId::new(3)).unwrap();
    let groups: Vec<Logical> = emptying.chunks().iter().map(|chunk| chunk.chunk).collect();
    let cancelled = RelocationOptions::default();
    cancelled.progress.cancel();
    filesystem
        .relocations()
        .relocate(&groups, &cancelled)
        .unwrap_err();
    drop(emptying);
    filesystem.set_label(b"after it").unwrap();
    filesystem.commit().unwrap();
    drop(filesystem);
    let found = open_checked(&base.backends).unwrap();
    assert_eq!(found.superblock().num_devices, 3);
}

#[test]
fn crash_while_a_volume_shrinks_keeps_it_and_the_next_run_ends() {
    const SLACK: ByteCount = ByteCount::new(48 << 20);
    const CUTS: usize = 24;
    let options = Options {
        metadata: Some(Profile::Single),
        ..Options::default()
    };
    let base = Base::new(&[160 * MIB], &options).unwrap();
    let shrink = |filesystem: &WritableFilesystem, _: Vec<Device>| {
        filesystem.shrinking().shrink(SLACK, &Progress::new())?;
        Ok(())
    };
    let history = base.record(&shrink).unwrap();
    base.some_cuts("a volume shrinks", &history, CUTS).unwrap();
    let size = |filesystem: &WritableFilesystem| filesystem.view().superblock().total_bytes.get();
    let whole = {
        let filesystem = open_for_writing(&history.images_at(history.len(), Outcome::AllKept)).unwrap();
        size(&filesystem)
    };
    assert!(whole < 100 * MIB, "{whole}");
    for cut in (0..history.len()).step_by(history.len().div_ceil(CUTS)) {
        let images = history.images_at(cut, Outcome::Drawn { seed: cut as u64 });
        let filesystem = open_for_writing(&images).unwrap();
        filesystem.shrinking().shrink(SLACK, &Progress::new()).unwrap();
        // A smaller gain than this is not worth a move.
        assert!(size(&filesystem) <= whole + 2 * MIB, "cut {cut}");
        drop(filesystem);
        assert_eq!(
            describe(&open_checked(&images).unwrap()).unwrap(),
            base.state,
            "cut {cut}"
        );
    }
}
