//! Changes of a whole volume, cut off at writes and flushes, then finished by a second run.
//!
//! After each cut, the same change runs again. Then the volume has the changed property, checks
//! clean, and has all its content; a change that had already ended refuses the second run. The
//! kernel and `btrfs check` agree on a share of the images. The environment variable
//! `BUTTRESS_SOAK` asks for all cuts.
#![allow(
    clippy::arithmetic_side_effects,
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stderr,
    reason = "tests compute with known numbers, and a panic is how a test fails; what was tried is printed"
)]

use anyhow::{Context, Result, bail, ensure};
use buttress::mkfs::{Feature, Options};
use buttress::unstable::device::MemoryBackend;
use buttress::unstable::format::superblock::SuperblockFlags;
use buttress::unstable::format::{CompatRo, Incompat, Superblock};
use buttress::unstable::fs::OpenOptions;
use buttress::unstable::writer::{BlockGroupPlace, WholeVolume, WritableFilesystem, WriteOptions};
use buttress::{
    ChecksumType, Device, FileOffset, Generation, Location, NewInode, Profile, Progress, SubvolumeId, Uuid,
};
use buttress_lab::crash::{CrashLab, History, Outcome};
use buttress_oracle::loop_device::LoopDevice;
use buttress_oracle::skip::skips;
use buttress_oracle::tools::{kernel_missing, newest, progs_missing, run};
use buttress_oracle::volumes::scratch;
use buttress_proof::writing::state::describe;
use buttress_proof::writing::volume::{
    Backends, Ticking, devices, empty, expect_kernel_agrees, is_clean, open_after_crash, open_for_writing,
    write_images,
};
use buttress_proof::writing::workload::Workload;
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError};

#[path = "whole_changes/lost.rs"]
mod lost;
#[path = "whole_changes/overlay.rs"]
mod overlay;

const MIB: usize = 1 << 20;

/// Returns the fsid that the changes of this process write. btrfstune refuses a fsid that any attached
/// device of the machine has, so two processes must differ.
fn new_fsid() -> Uuid {
    of_this_process(0x0123_4567_89ab_4def_8123_0000_0000_cdef)
}

/// Returns the fsid of changes that keep the metadata uuid.
fn other_fsid() -> Uuid {
    of_this_process(0xabcd_4567_89ab_4def_8123_0000_0000_cdef)
}

fn of_this_process(id: u128) -> Uuid {
    Uuid::from_u128(id | u128::from(std::process::id()) << 16)
}

/// Of this many finished images, the test lets the kernel inspect one.
const KERNEL_EVERY: usize = 19;

/// Held while the kernel has a volume: it mounts one volume of a fsid at a time.
static KERNEL: Mutex<()> = Mutex::new(());

fn kernel_agrees(images: &Backends) -> Result<()> {
    let _alone = KERNEL.lock().unwrap_or_else(PoisonError::into_inner);
    expect_kernel_agrees(images)
}

/// A volume with content.
struct Base {
    backends: Backends,
    state: String,
}

impl Base {
    fn new(sizes: &[usize], options: &Options) -> Result<Self> {
        let backends = empty(sizes, options)?;
        let filesystem = open_for_writing(&backends)?;
        let mut workload = Workload::on(&filesystem, 11)?;
        for _ in 0..120 {
            workload.step(&filesystem)?;
        }
        filesystem.commit()?;
        let state = describe(&filesystem.view())?;
        drop((workload, filesystem));
        Ok(Self { backends, state })
    }
}

/// A change and the property that it gives to the volume.
struct Change {
    name: &'static str,
    run: fn(&WholeVolume) -> Result<()>,
    is_done: fn(&Superblock) -> bool,
}

fn whole(devices: Vec<Device>) -> WholeVolume {
    let options = WriteOptions {
        environment: Arc::new(Ticking::default()),
        ..WriteOptions::default()
    };
    WholeVolume::new(devices, options)
}

impl Change {
    fn record(&self, base: &Base) -> Result<History> {
        let lab = CrashLab::new();
        let recorded: Backends = base
            .backends
            .iter()
            .map(|backend| lab.device(Arc::clone(backend)))
            .collect();
        (self.run)(&whole(devices(&recorded)))?;
        Ok(lab.history())
    }

    /// Finishes the change at about `most` cuts.
    fn at_cuts(&self, base: &Base, most: usize) -> Result<()> {
        let history = self.record(base)?;
        let step = match std::env::var_os("BUTTRESS_SOAK") {
            Some(_) => 1,
            None => history.len().div_ceil(most).max(1),
        };
        let (mut tried, mut unfinished, mut kernel) = (0_usize, 0_usize, 0_usize);
        for cut in (0..=history.len()).rev().step_by(step) {
            for outcome in [
                Outcome::AllKept,
                Outcome::NoneKept,
                Outcome::Drawn { seed: cut as u64 },
            ] {
                let images = history.images_at(cut, outcome);
                let place = || format!("{}: cut {cut} of {}, {outcome:?}", self.name, history.len());
                unfinished += usize::from(self.is_unfinished(&images));
                self.finish(&images, base).with_context(place)?;
                tried += 1;
                if tried.is_multiple_of(KERNEL_EVERY) && !skips(kernel_missing()) && is_clean(&images)? {
                    kernel_agrees(&images).with_context(place)?;
                    kernel += 1;
                }
            }
        }
        eprintln!(
            "{}: {} events, {tried} cuts, {unfinished} of them unfinished, {kernel} read by the kernel",
            self.name,
            history.len()
        );
        Ok(())
    }

    fn is_unfinished(&self, images: &Backends) -> bool {
        let superblock = whole(devices(images)).superblock();
        superblock.is_ok_and(|superblock| superblock.flags.unfinished().is_some())
    }

    fn finish(&self, images: &Backends, base: &Base) -> Result<()> {
        if let Err(error) = (self.run)(&whole(devices(images))) {
            let superblock = whole(devices(images)).superblock()?;
            let has_ended = (self.is_done)(&superblock) && superblock.flags.unfinished().is_none();
            ensure!(has_ended && error.to_string().contains("already"), error);
        }
        self.expect_done(images, base)
    }

    /// Requires that the volume has the property and all content, and accepts more changes.
    fn expect_done(&self, images: &Backends, base: &Base) -> Result<()> {
        let found = open_after_crash(images)?;
        let superblock = found.superblock();
        ensure!((self.is_done)(&superblock), "the change has no effect");
        ensure!(
            superblock.flags == SuperblockFlags::WRITTEN,
            "{:?}",
            superblock.flags
        );
        ensure!(describe(&found)? == base.state, "the content differs");
        drop(found);
        let filesystem = open_for_writing(images).context("opening it for writing")?;
        let mut workload = Workload::on(&filesystem, 12)?;
        for _ in 0..5 {
            workload.step(&filesystem)?;
        }
        filesystem.commit().context("the commit after it")?;
        drop((workload, filesystem));
        open_after_crash(images).context("after more changes").map(drop)
    }
}

fn mirror() -> Options {
    Options {
        data: Some(Profile::Raid1),
        metadata: Some(Profile::Raid1),
        ..Options::default()
    }
}

const SET_FSID: Change = Change {
    name: "a new fsid beside the metadata uuid",
    run: |whole| {
        whole.set_fsid(Some(new_fsid()))?;
        Ok(())
    },
    is_done: |superblock| {
        superblock.fsid == new_fsid() && superblock.incompat.contains(Incompat::METADATA_UUID)
    },
};

const REWRITE_FSID: Change = Change {
    name: "a new fsid in all blocks",
    run: |whole| {
        let fsid = whole.superblock()?.fsid;
        let flags = whole.superblock()?.flags;
        if fsid == new_fsid() && flags.unfinished().is_none() {
            bail!("the volume has the fsid already");
        }
        whole.rewrite_fsid(Some(new_fsid()), &Progress::new())?;
        Ok(())
    },
    is_done: |superblock| superblock.fsid == new_fsid() && superblock.device_item.fsid == new_fsid(),
};

const TO_SHA256: Change = Change {
    name: "SHA-256",
    run: |whole| Ok(whole.change_checksums(ChecksumType::Sha256, &Progress::new())?),
    is_done: |superblock| superblock.checksum_type == ChecksumType::Sha256,
};

const TO_CRC32C: Change = Change {
    name: "CRC-32C",
    run: |whole| Ok(whole.change_checksums(ChecksumType::Crc32c, &Progress::new())?),
    is_done: |superblock| superblock.checksum_type == ChecksumType::Crc32c,
};

const TO_GROUP_TREE: Change = Change {
    name: "a block group tree",
    run: |whole| Ok(whole.move_block_group_items(BlockGroupPlace::OwnTree)?),
    is_done: |superblock| superblock.compat_ro.contains(CompatRo::BLOCK_GROUP_TREE),
};

#[test]
fn cut_change_of_the_fsid_is_finished() {
    let base = Base::new(&[160 * MIB, 160 * MIB], &mirror()).unwrap();
    SET_FSID.at_cuts(&base, usize::MAX).unwrap();
    REWRITE_FSID.at_cuts(&base, 12).unwrap();
}

#[test]
fn cut_change_of_the_fsid_on_one_device_is_finished() {
    let base = Base::new(&[128 * MIB], &Options::default()).unwrap();
    SET_FSID.at_cuts(&base, usize::MAX).unwrap();
    REWRITE_FSID.at_cuts(&base, 12).unwrap();
}

#[test]
fn cut_change_of_the_checksums_is_finished() {
    let base = Base::new(&[128 * MIB], &Options::default()).unwrap();
    TO_SHA256.at_cuts(&base, 14).unwrap();
    let from_sha256 = Options {
        checksum: Some(ChecksumType::Sha256),
        metadata: Some(Profile::Single),
        ..Options::default()
    };
    let base = Base::new(&[128 * MIB], &from_sha256).unwrap();
    TO_CRC32C.at_cuts(&base, 14).unwrap();
}

/// Removes the name of a file in the middle of a change, and leaves its inode to a later cleaning.
fn leave_orphan(images: &Backends, name: &[u8]) -> Result<()> {
    let options = WriteOptions {
        environment: Arc::new(Ticking::default()),
        finishes_change: true,
        ..WriteOptions::default()
    };
    let filesystem = WritableFilesystem::new(OpenOptions::new(devices(images)).open()?, options)?;
    let root = Location::root_of(SubvolumeId::TOP_LEVEL);
    let held = filesystem.unlink_keeping(root, name, &|_| true)?;
    filesystem.commit()?;
    filesystem.abandon();
    drop(held);
    Ok(())
}

#[test]
fn orphans_wait_for_the_end_of_a_change_of_the_checksums() {
    let base = Base::new(&[128 * MIB], &Options::default()).unwrap();
    let filesystem = open_for_writing(&base.backends).unwrap();
    let root = Location::root_of(SubvolumeId::TOP_LEVEL);
    let victim = filesystem
        .create(root, b"victim", &NewInode::of_root(0o600))
        .unwrap();
    filesystem
        .write_at(victim, FileOffset::MIN, &vec![5; 700_000])
        .unwrap();
    filesystem.close().unwrap();
    let history = TO_SHA256.record(&base).unwrap();
    let changes_data = |images: &Backends| {
        let flags = whole(devices(images)).superblock().unwrap().flags;
        let is_data = flags.contains(SuperblockFlags::CHANGING_DATA_CSUM);
        is_data && !flags.contains(SuperblockFlags::CHANGING_META_CSUM)
    };
    let cuts = (0..=history.len()).map(|cut| history.images_at(cut, Outcome::AllKept));
    let cuts: Vec<Backends> = cuts.filter(changes_data).collect();
    assert!(cuts.len() > 3);
    for images in cuts.iter().rev().step_by(cuts.len().div_ceil(4)) {
        leave_orphan(images, b"victim").unwrap();
        (TO_SHA256.run)(&whole(devices(images))).unwrap();
        let filesystem = open_for_writing(images).unwrap();
        filesystem.close().unwrap();
        open_after_crash(images).unwrap();
    }
}

#[test]
fn cut_conversion_to_a_block_group_tree_is_before_or_after() {
    let without = Options {
        features: vec![(Feature::BlockGroupTree, false)],
        ..Options::default()
    };
    let base = Base::new(&[128 * MIB], &without).unwrap();
    TO_GROUP_TREE.at_cuts(&base, 20).unwrap();
}

#[test]
fn damaged_data_keeps_the_checksums_as_they_were() {
    let options = Options {
        data: Some(Profile::Single),
        ..Options::default()
    };
    let base = Base::new(&[128 * MIB], &options).unwrap();
    let filesystem = OpenOptions::new(devices(&base.backends)).open().unwrap();
    let map = filesystem.volume().chunk_map();
    let tree = filesystem.tree(buttress::TreeId::CHECKSUM).unwrap();
    let first = tree
        .range(
            buttress::unstable::format::Key::MIN..=buttress::unstable::format::Key::MAX,
            buttress::ReadAhead::None,
        )
        .next()
        .unwrap()
        .unwrap();
    let logical = buttress::Logical::new(first.key().offset);
    let chunk = map.find(logical).unwrap();
    let physical = chunk.chunk().stripes[0].physical.get() + (logical.get() - chunk.start().get());
    drop((map, filesystem));
    base.backends[0].write_at(physical, &[0xee; 4096]).unwrap();
    let error = whole(devices(&base.backends))
        .change_checksums(ChecksumType::Xxhash64, &Progress::new())
        .unwrap_err();
    let message = error.to_string();
    assert!(message.contains(&format!("the data at {logical}")), "{message}");
    let found = OpenOptions::new(devices(&base.backends)).open().unwrap();
    assert_eq!(found.superblock().flags, SuperblockFlags::WRITTEN);
    assert_eq!(found.checksum_type(), ChecksumType::Crc32c);
    drop(found);
    // The damaged sector still fails its checksum.
    assert!(!is_clean(&base.backends).unwrap());
    open_for_writing(&base.backends).unwrap().commit().unwrap();
}

/// The size of the pieces that a cut run of btrfstune has written whole or not at all.
const NODE: usize = 16 << 10;

/// Returns the image that a run of btrfstune leaves if it ends after this share of the blocks.
fn cut_run_of_btrfstune(before: &[u8], after: &[u8], percent: usize) -> Vec<u8> {
    let mut cut = before.to_vec();
    let changed: Vec<usize> = (0..before.len())
        .step_by(NODE)
        .filter(|at| before[*at..at + NODE] != after[*at..at + NODE])
        .collect();
    let written = changed.len() * percent / 100;
    for at in &changed[..written] {
        cut[*at..at + NODE].copy_from_slice(&after[*at..at + NODE]);
    }
    for at in buttress::unstable::format::SUPERBLOCK_OFFSETS {
        let place = usize::try_from(at.get()).unwrap();
        if place + 4096 > before.len() {
            continue;
        }
        let mut superblock = Superblock::check(&before[place..place + 4096], at).unwrap();
        superblock.flags |= SuperblockFlags::CHANGING_FSID;
        superblock.fsid = new_fsid();
        cut[place..place + 4096].copy_from_slice(&superblock.encode().unwrap());
    }
    cut
}

#[test]
fn interrupted_btrfstune_is_finished() {
    if skips(progs_missing((6, 14))) {
        return;
    }
    let base = Base::new(&[128 * MIB], &Options::default()).unwrap();
    let folder = scratch().unwrap();
    let images = write_images(&base.backends, folder.path()).unwrap();
    let before = std::fs::read(&images[0]).unwrap();
    // No attached device has the new fsid meanwhile.
    let alone = KERNEL.lock().unwrap_or_else(PoisonError::into_inner);
    run(Command::new(newest("btrfstune"))
        .args(["-f", "-U", &new_fsid().to_string()])
        .arg(&images[0]))
    .unwrap();
    drop(alone);
    let after = std::fs::read(&images[0]).unwrap();
    for percent in [0, 30, 70, 100] {
        let cut = cut_run_of_btrfstune(&before, &after, percent);
        let backends: Backends = vec![Arc::new(MemoryBackend::new("cut", cut))];
        assert!(REWRITE_FSID.is_unfinished(&backends));
        // The volume has the uuid that the run gave it, and refuses another one.
        let other = Some(Uuid::from_u128(5));
        let refused = whole(devices(&backends)).rewrite_fsid(other, &Progress::new());
        assert!(refused.unwrap_err().to_string().contains("another fsid"));
        let found = whole(devices(&backends)).rewrite_fsid(None, &Progress::new());
        assert_eq!(found.unwrap(), new_fsid(), "{percent} %");
        REWRITE_FSID.expect_done(&backends, &base).unwrap();
        kernel_agrees(&backends).unwrap();
    }
}

/// Two devices as btrfstune leaves them if its second commit reaches only the device `reached`: the
/// other device has the superblock of the first commit.
fn cut_second_commit_of_btrfstune(base: &Base, reached: usize) -> Backends {
    let folder = scratch().unwrap();
    let images = write_images(&base.backends, folder.path()).unwrap();
    // The kernel's list of devices is not needed: btrfstune finds the second device by a scan.
    let _alone = KERNEL.lock().unwrap_or_else(PoisonError::into_inner);
    let loops: Vec<LoopDevice> = images
        .iter()
        .map(|image| LoopDevice::attach(image).unwrap())
        .collect();
    run(Command::new(newest("btrfstune"))
        .args(["-f", "-M", &other_fsid().to_string()])
        .arg(loops[0].path()))
    .unwrap();
    drop(loops);
    let mut cut = Backends::new();
    for (number, (image, before)) in images.iter().zip(&base.backends).enumerate() {
        let mut bytes = std::fs::read(image).unwrap();
        for at in buttress::unstable::format::SUPERBLOCK_OFFSETS {
            let place = usize::try_from(at.get()).unwrap();
            if number == reached || place + 4096 > bytes.len() {
                continue;
            }
            let mut before_bytes = vec![0; 4096];
            let mut parts = [before_bytes.as_mut_slice()];
            before.read_vectored_at(at.get(), &mut parts).unwrap();
            let before = Superblock::check(&before_bytes, at).unwrap();
            let mut superblock = Superblock::check(&bytes[place..place + 4096], at).unwrap();
            superblock.flags |= SuperblockFlags::CHANGING_FSID_V2;
            superblock.incompat.remove(Incompat::METADATA_UUID);
            (superblock.fsid, superblock.metadata_uuid) = (before.fsid, before.metadata_uuid);
            superblock.generation = Generation::new(superblock.generation.get() - 1);
            bytes[place..place + 4096].copy_from_slice(&superblock.encode().unwrap());
        }
        cut.push(Arc::new(MemoryBackend::new(format!("device {number}"), bytes)));
    }
    cut
}

#[test]
fn btrfstune_cut_between_two_devices_is_finished_or_undone() {
    if skips(progs_missing((6, 14))) || skips(kernel_missing()) {
        return;
    }
    let base = Base::new(&[160 * MIB, 160 * MIB], &mirror()).unwrap();
    let former = whole(devices(&base.backends)).superblock().unwrap().fsid;
    for reached in [0, 1] {
        let cut = cut_second_commit_of_btrfstune(&base, reached);
        // Other commands name the way out.
        let refused = OpenOptions::new(devices(&cut)).open().unwrap_err().to_string();
        assert!(refused.contains("`buttress tune`"), "{refused}");
        SET_OTHER_FSID.finish(&cut, &base).unwrap();
        kernel_agrees(&cut).unwrap();
        let cut = cut_second_commit_of_btrfstune(&base, reached);
        assert_eq!(whole(devices(&cut)).set_fsid(Some(former)).unwrap(), former);
        let found = open_after_crash(&cut).unwrap();
        assert!(!found.superblock().incompat.contains(Incompat::METADATA_UUID));
        assert_eq!(describe(&found).unwrap(), base.state);
    }
}

#[test]
fn changes_work_on_every_profile_and_node_size() {
    let of = |profile, node_bytes| Options {
        data: Some(profile),
        metadata: Some(profile),
        node_bytes: Some(node_bytes),
        ..Options::default()
    };
    let cases = [
        (3, of(Profile::Raid5, 16 << 10)),
        (4, of(Profile::Raid6, 64 << 10)),
        (4, of(Profile::Raid10, 4 << 10)),
        (2, of(Profile::Raid0, 16 << 10)),
        (4, of(Profile::Raid1C4, 32 << 10)),
    ];
    for (number, (count, options)) in cases.into_iter().enumerate() {
        let base = Base::new(&vec![160 * MIB; count], &options).unwrap();
        for change in [REWRITE_FSID, TO_SHA256, SET_OTHER_FSID] {
            let place = format!("{}: {:?}", change.name, options.metadata);
            let now = Base {
                backends: Backends::new(),
                state: describe(&open_after_crash(&base.backends).unwrap()).unwrap(),
            };
            (change.run)(&whole(devices(&base.backends)))
                .context(place.clone())
                .unwrap();
            change.expect_done(&base.backends, &now).context(place).unwrap();
        }
        if number == 0 && !skips(kernel_missing()) {
            kernel_agrees(&base.backends).unwrap();
        }
    }
}

const SET_OTHER_FSID: Change = Change {
    name: "another fsid beside the metadata uuid",
    run: |whole| {
        whole.set_fsid(Some(other_fsid()))?;
        Ok(())
    },
    is_done: |superblock| superblock.fsid == other_fsid(),
};
