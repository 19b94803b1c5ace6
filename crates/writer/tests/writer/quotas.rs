//! Quotas: counters equal those of the kernel's rescan, and a crash during any change leaves a
//! state that is marked correctly.
#![allow(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "tests compute with known numbers, and a panic is how a test fails"
)]

use anyhow::{Context as _, Result, ensure};
use buttress_accounts::Accounts as _;
use buttress_accounts::quotas::QuotaGroups;
use buttress_accounts::space::accounting::Options;
use buttress_device::{Backend, Device, Engine, MemoryBackend, OpenOptions as DeviceOptions};
use buttress_format::{ByteCount, FileOffset, QgroupId, SubvolumeId, Timestamp, Uuid};
use buttress_fs::error::QuotaRefusal;
use buttress_fs::{Error, Filesystem, Location, OpenOptions, Progress};
use buttress_lab::crash::{CrashLab, Cuts};
use buttress_mkfs::{self as mkfs, Identity};
use buttress_oracle::btrfs_check::btrfs_check;
use buttress_oracle::loop_device::Mount;
use buttress_oracle::needs::{REFERENCE_PROGS, missing};
use buttress_oracle::skip::skips;
use buttress_oracle::tools::{kernel_missing, newest, run};
use buttress_oracle::volumes::scratch;
use buttress_writer::operations::{NewInode, QuotaLimit};
use buttress_writer::{QuotaKind, WritableFilesystem, WriteOptions};
use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

const ROOT: Location = Location::root_of(SubvolumeId::TOP_LEVEL);

/// Referenced and exclusive bytes by group, as `btrfs qgroup show --raw` prints them.
pub(crate) type Counts = BTreeMap<String, (u64, u64)>;

pub(crate) const fn group(level: u64, number: u64) -> QgroupId {
    QgroupId::new(level << 48 | number)
}

pub(crate) fn open(devices: Vec<Device>) -> Result<WritableFilesystem, Error> {
    WritableFilesystem::new(OpenOptions::new(devices).open()?, WriteOptions::default())
}

pub(crate) fn open_image(image: &Path) -> WritableFilesystem {
    let options = DeviceOptions {
        write: true,
        ..DeviceOptions::default()
    };
    open(vec![Device::open(image, &options).unwrap()]).unwrap()
}

pub(crate) fn counts_of(groups: &QuotaGroups) -> Counts {
    let count = |(id, group): (&QgroupId, &buttress_accounts::QuotaGroup)| {
        let info = group.info;
        (id.to_string(), (info.referenced.get(), info.exclusive.get()))
    };
    groups.groups.iter().map(count).collect()
}

/// Returns the counters as the kernel shows them on a mount.
fn shown(mount: &Mount) -> Result<Counts> {
    let mut show = Command::new(newest("btrfs"));
    let output = run(show.args(["qgroup", "show", "--raw"]).arg(mount.path()))?;
    let text = String::from_utf8(output.stdout)?;
    let lines = text.lines().skip(2).map(|line| {
        let mut words = line.split_whitespace();
        let mut word = || words.next().context("a word");
        let id = word()?.to_owned();
        Ok((id, (word()?.parse()?, word()?.parse()?)))
    });
    lines.collect()
}

fn btrfs(mount: &Mount, words: &[&str]) -> Result<()> {
    run(Command::new(newest("btrfs")).args(words).arg(mount.path())).map(drop)
}

pub(crate) fn shell(mount: &Mount, script: &str) -> Result<()> {
    let mut command = Command::new("sh");
    command.args(["-e", "-c", script]).current_dir(mount.path());
    run(command.env("BTRFS", newest("btrfs"))).map(drop)
}

pub(crate) fn check(image: &Path) -> Result<()> {
    btrfs_check(&[image.to_owned()])?;
    let report = run(Command::new(newest("btrfs"))
        .args(["check", "--qgroup-report"])
        .arg(image))?;
    let text = String::from_utf8_lossy(&report.stdout).into_owned();
    ensure!(!text.contains("are different"), "{text}");
    Ok(())
}

pub(crate) fn made_by_kernel(folder: &Path, mib: u64) -> Result<PathBuf> {
    let image = folder.join("image");
    File::create(&image)?.set_len(mib << 20)?;
    run(Command::new(newest("mkfs.btrfs")).args(["-q", "-f"]).arg(&image))?;
    Ok(image)
}

/// Subvolumes with inline files, reflinks, preallocation, compression, partial overwrites, and 52
/// snapshots, some of them deleted.
const HISTORY: &str = r#"
    "$BTRFS" subvolume create a >/dev/null; "$BTRFS" subvolume create b >/dev/null
    mkdir a/d
    for n in $(seq 300); do echo "inline $n" > a/d/$n; done
    head -c 3000000 /dev/urandom > a/big; head -c 700000 /dev/urandom > a/other; sync
    cp --reflink=always a/big b/clone; cp --reflink=always a/big a/clone
    fallocate -l 1M a/room; "$BTRFS" property set b compression zstd
    yes text | head -c 900000 > b/packed; sync
    for n in $(seq 52); do
        "$BTRFS" subvolume snapshot a s$n >/dev/null
        dd if=/dev/urandom of=a/big bs=4096 count=3 seek=$n conv=notrunc status=none
        rm a/d/$n; echo "again $n" > a/d/x$n
        [ $((n % 7)) -ne 0 ] || { echo "own $n" > s$n/d/y; rm s$n/other; }
    done
    cp --reflink=always s3/big b/second; rm b/clone
    "$BTRFS" subvolume delete s5 s30 s31 >/dev/null; sync
"#;

#[test]
fn rescan_equals_the_kernels_rescan() {
    if skips(kernel_missing()) {
        return;
    }
    let folder = scratch().unwrap();
    let image = made_by_kernel(folder.path(), 512).unwrap();
    let mount = Mount::new(std::slice::from_ref(&image), "noatime").unwrap();
    shell(&mount, HISTORY).unwrap();
    mount.close().unwrap();
    let filesystem = open_image(&image);
    assert!(filesystem.quotas().enable(QuotaKind::Classic).unwrap());
    assert!(!filesystem.quotas().enable(QuotaKind::Simple).unwrap());
    for parent in [group(1, 1), group(1, 2), group(2, 1)] {
        filesystem.quotas().create_group(parent).unwrap();
    }
    for (member, parent) in [
        (256, group(1, 1)),
        (257, group(1, 1)),
        (258, group(1, 2)),
        (259, group(1, 2)),
    ] {
        filesystem
            .quotas()
            .assign_group(group(0, member), parent)
            .unwrap();
    }
    for member in [group(1, 1), group(1, 2)] {
        filesystem.quotas().assign_group(member, group(2, 1)).unwrap();
    }
    let rescanned = filesystem.quotas().rescan(&Progress::new()).unwrap();
    assert!(rescanned.is_exact && rescanned.groups > 50, "{rescanned:?}");
    let ours = counts_of(&filesystem.view().quota_groups().unwrap().unwrap());
    drop(filesystem);
    check(&image).unwrap();
    let mount = Mount::new(std::slice::from_ref(&image), "noatime").unwrap();
    assert_eq!(shown(&mount).unwrap(), ours);
    btrfs(&mount, &["quota", "rescan", "-w"]).unwrap();
    assert_eq!(shown(&mount).unwrap(), ours);
    // The kernel continues with our counters. On a busy machine, it may free the extents of the
    // removed file only when it unmounts.
    shell(&mount, "echo more > a/more; rm b/packed; sync").unwrap();
    mount.close().unwrap();
    let mount = Mount::new(std::slice::from_ref(&image), "noatime").unwrap();
    let counted = shown(&mount).unwrap();
    btrfs(&mount, &["quota", "rescan", "-w"]).unwrap();
    assert_eq!(shown(&mount).unwrap(), counted);
    mount.close().unwrap();
    check(&image).unwrap();
}

#[test]
fn kernels_quotas_are_changed_and_given_back() {
    if skips(kernel_missing()) {
        return;
    }
    let folder = scratch().unwrap();
    let image = made_by_kernel(folder.path(), 300).unwrap();
    let mount = Mount::new(std::slice::from_ref(&image), "noatime").unwrap();
    let script = r#"
        "$BTRFS" quota enable .; "$BTRFS" subvolume create a >/dev/null
        head -c 200000 /dev/urandom > a/f; sync
        "$BTRFS" qgroup create 1/7 .; "$BTRFS" qgroup assign 0/256 1/7 . >/dev/null
        "$BTRFS" qgroup limit 5M 0/256 .; "$BTRFS" qgroup limit -e 9M 1/7 .
        "$BTRFS" subvolume snapshot a gone >/dev/null; sync
        "$BTRFS" quota rescan -w . >/dev/null
    "#;
    shell(&mount, script).unwrap();
    let theirs = shown(&mount).unwrap();
    mount.close().unwrap();
    let filesystem = open_image(&image);
    let groups = filesystem.view().quota_groups().unwrap().unwrap();
    assert_eq!(counts_of(&groups), theirs);
    assert_eq!(
        groups.groups[&group(0, 256)].limit.max_referenced,
        ByteCount::new(5 << 20)
    );
    assert_eq!(
        groups.groups[&group(1, 7)].limit.max_exclusive,
        ByteCount::new(9 << 20)
    );
    assert_eq!(
        groups.above(group(0, 256)).into_iter().collect::<Vec<_>>(),
        [group(1, 7)]
    );
    // A commit that changes no file keeps the counters valid.
    filesystem.set_label(b"new").unwrap();
    filesystem.commit().unwrap();
    assert!(
        !filesystem
            .view()
            .quota_groups()
            .unwrap()
            .unwrap()
            .is_inconsistent()
    );
    let file = filesystem
        .create(ROOT, b"ours", &NewInode::of_root(0o600))
        .unwrap();
    filesystem
        .write_at(file, FileOffset::MIN, &vec![3; 123_456])
        .unwrap();
    filesystem.commit().unwrap();
    assert!(
        filesystem
            .view()
            .quota_groups()
            .unwrap()
            .unwrap()
            .is_inconsistent()
    );
    filesystem.subvolumes().delete(SubvolumeId::new(257)).unwrap();
    assert!(filesystem.quotas().rescan(&Progress::new()).unwrap().is_exact);
    let ours = counts_of(&filesystem.view().quota_groups().unwrap().unwrap());
    assert!(!ours.contains_key("0/257"), "the group goes with its subvolume");
    drop(filesystem);
    check(&image).unwrap();
    let mount = Mount::new(std::slice::from_ref(&image), "noatime").unwrap();
    assert_eq!(shown(&mount).unwrap(), ours);
    btrfs(&mount, &["quota", "rescan", "-w"]).unwrap();
    assert_eq!(shown(&mount).unwrap(), ours);
    mount.close().unwrap();
    let filesystem = open_image(&image);
    assert!(filesystem.quotas().disable().unwrap());
    assert!(!filesystem.quotas().disable().unwrap());
    filesystem.commit().unwrap();
    assert_eq!(filesystem.view().quota_groups().unwrap(), None);
    drop(filesystem);
    check(&image).unwrap();
    let mount = Mount::new(std::slice::from_ref(&image), "").unwrap();
    assert!(shown(&mount).is_err(), "the kernel finds no quotas");
    mount.close().unwrap();
}

#[test]
fn simple_quotas_count_as_the_kernel_does() {
    if skips(kernel_missing()) || skips(missing(REFERENCE_PROGS)) {
        return;
    }
    let folder = scratch().unwrap();
    let image = made_by_kernel(folder.path(), 300).unwrap();
    let filesystem = open_image(&image);
    let old = filesystem
        .create(ROOT, b"old", &NewInode::of_root(0o600))
        .unwrap();
    filesystem
        .write_at(old, FileOffset::MIN, &vec![1; 500_000])
        .unwrap();
    assert!(filesystem.quotas().enable(QuotaKind::Simple).unwrap());
    let refused = filesystem.quotas().rescan(&Progress::new()).unwrap_err();
    assert!(
        matches!(refused, Error::QuotaRefused(QuotaRefusal::NoRescan)),
        "{refused}"
    );
    filesystem.commit().unwrap();
    let home = filesystem.subvolumes().create(ROOT, b"home").unwrap();
    let file = filesystem
        .create(Location::root_of(home), b"f", &NewInode::of_root(0o600))
        .unwrap();
    filesystem
        .write_at(file, FileOffset::MIN, &vec![2; 1_000_000])
        .unwrap();
    filesystem.quotas().create_group(group(1, 1)).unwrap();
    filesystem.commit().unwrap();
    assert!(
        !filesystem
            .quotas()
            .assign_group(group(0, home.get()), group(1, 1))
            .unwrap()
    );
    let copy = filesystem
        .subvolumes()
        .snapshot(home, ROOT, b"copy", false)
        .unwrap();
    filesystem.unlink(ROOT, b"old").unwrap();
    filesystem.commit().unwrap();
    filesystem.subvolumes().delete(home).unwrap();
    filesystem.subvolumes().drop_deleted(&Progress::new()).unwrap();
    filesystem.commit().unwrap();
    let ours = counts_of(&filesystem.view().quota_groups().unwrap().unwrap());
    let maker = format!("0/{home}");
    assert_eq!(
        ours[&maker].0, 1_003_520,
        "the maker counts while the snapshot exists: {ours:?}"
    );
    assert_eq!(ours[&maker], ours["1/1"]);
    let in_use = filesystem
        .quotas()
        .destroy_group(group(0, home.get()))
        .unwrap_err();
    assert!(
        matches!(in_use, Error::QuotaRefused(QuotaRefusal::InUse { .. })),
        "{in_use}"
    );
    drop(filesystem);
    check(&image).unwrap();
    let mount = Mount::new(std::slice::from_ref(&image), "noatime").unwrap();
    assert_eq!(shown(&mount).unwrap(), ours);
    shell(&mount, "head -c 100000 /dev/urandom > copy/g; sync").unwrap();
    mount.close().unwrap();
    check(&image).unwrap();
    let filesystem = open_image(&image);
    filesystem.subvolumes().delete(copy).unwrap();
    filesystem.subvolumes().drop_deleted(&Progress::new()).unwrap();
    assert_eq!(
        filesystem.quotas().clear_stale_groups().unwrap(),
        [group(0, home.get())]
    );
    filesystem.commit().unwrap();
    drop(filesystem);
    check(&image).unwrap();
}

pub(crate) fn limit_of(bytes: u64, exclusive: bool) -> QuotaLimit {
    QuotaLimit {
        exclusive,
        bytes: Some(ByteCount::new(bytes)),
        compressed: false,
    }
}

pub(crate) fn file_in(
    filesystem: &WritableFilesystem,
    directory: Location,
    name: &[u8],
) -> Result<Location, Error> {
    filesystem.create(directory, name, &NewInode::of_root(0o600))
}

pub(crate) fn exceeded<T: std::fmt::Debug>(result: Result<T, Error>) -> buttress_fs::QuotaExceeded {
    match result {
        Err(Error::QuotaExceeded(exceeded)) => exceeded,
        other => panic!("{other:?}"),
    }
}

#[test]
fn limits_of_simple_quotas_refuse_writes() {
    let memory = volume();
    let filesystem = open(vec![device(&memory)]).unwrap();
    filesystem.quotas().enable(QuotaKind::Simple).unwrap();
    filesystem.quotas().create_group(group(1, 1)).unwrap();
    filesystem.commit().unwrap();
    let home = Location::root_of(filesystem.subvolumes().create(ROOT, b"work").unwrap());
    let own = group(0, home.subvolume.get());
    filesystem.quotas().assign_group(own, group(1, 1)).unwrap();
    filesystem
        .quotas()
        .limit_group(group(1, 1), limit_of(1 << 20, true))
        .unwrap();
    let first = file_in(&filesystem, home, b"first").unwrap();
    let data = vec![7; 600_000];
    filesystem.write_at(first, FileOffset::MIN, &data).unwrap();
    let second = file_in(&filesystem, home, b"second").unwrap();
    let refused = exceeded(filesystem.write_at(second, FileOffset::MIN, &data));
    assert_eq!((refused.group, refused.exclusive), (group(1, 1), true));
    assert_eq!((refused.limit.get(), refused.wanted.get()), (1 << 20, 602_112));
    assert!(refused.used.get() >= 602_112, "{refused}");
    let allocated = filesystem.allocate(
        second,
        FileOffset::MIN..FileOffset::new(600_000),
        buttress_writer::AllocateMode::Allocate,
    );
    assert_eq!(exceeded(allocated).group, group(1, 1));
    // Other subvolumes have no limit.
    let other = file_in(&filesystem, ROOT, b"other").unwrap();
    filesystem.write_at(other, FileOffset::MIN, &data).unwrap();
    // Freed space is available at once: the refused call commits and retries.
    filesystem.unlink(home, b"first").unwrap();
    filesystem.write_at(second, FileOffset::MIN, &data).unwrap();
    // A copy to parts of sectors is charged as a write is.
    filesystem.unlink(home, b"second").unwrap();
    let copy = file_in(&filesystem, home, b"copy").unwrap();
    let range = FileOffset::MIN..FileOffset::new(600_000);
    filesystem
        .copy_range(other, range, copy, FileOffset::new(100))
        .unwrap();
    filesystem.commit().unwrap();
    drop(filesystem);
    // A limit below the use refuses new files, too, also after the volume is opened again.
    let filesystem = open(vec![device(&memory)]).unwrap();
    filesystem
        .quotas()
        .limit_group(own, limit_of(600_000, false))
        .unwrap();
    assert_eq!(exceeded(file_in(&filesystem, home, b"third")).group, own);
    let lifted = QuotaLimit {
        bytes: None,
        ..limit_of(0, false)
    };
    filesystem.quotas().limit_group(own, lifted).unwrap();
    file_in(&filesystem, home, b"third").unwrap();
    filesystem.commit().unwrap();
}

#[test]
fn landed_data_of_one_writer_ends_no_charge_of_another() {
    let memory = volume();
    let filesystem = open(vec![device(&memory)]).unwrap();
    filesystem.quotas().enable(QuotaKind::Simple).unwrap();
    filesystem.commit().unwrap();
    let home = Location::root_of(filesystem.subvolumes().create(ROOT, b"beside").unwrap());
    let own = group(0, home.subvolume.get());
    let early = file_in(&filesystem, home, b"early").unwrap();
    let late = file_in(&filesystem, home, b"late").unwrap();
    // The first file's data is dirty before the limit exists, so it is not charged.
    filesystem
        .write_at(early, FileOffset::MIN, &vec![7; 400_000])
        .unwrap();
    filesystem
        .quotas()
        .limit_group(own, limit_of(1_200_000, false))
        .unwrap();
    filesystem
        .write_at(late, FileOffset::MIN, &vec![7; 600_000])
        .unwrap();
    filesystem.writeback().write_file(early).unwrap();
    filesystem.commit_metadata().unwrap();
    // The subvolume uses a million bytes: 400,000 in the counters, 600,000 dirty.
    let third = file_in(&filesystem, home, b"third").unwrap();
    let refused = exceeded(filesystem.write_at(third, FileOffset::MIN, &vec![7; 400_000]));
    assert!(refused.used.get() >= 1_000_000, "{refused}");
    filesystem
        .write_at(third, FileOffset::MIN, &vec![7; 100_000])
        .unwrap();
    filesystem.commit().unwrap();
}

#[test]
fn limits_of_classic_quotas_refuse_writes() {
    let memory = volume();
    let filesystem = open(vec![device(&memory)]).unwrap();
    filesystem.quotas().enable(QuotaKind::Classic).unwrap();
    filesystem.quotas().rescan(&Progress::new()).unwrap();
    let top = group(0, 5);
    let used = filesystem.view().quota_groups().unwrap().unwrap().groups[&top]
        .info
        .referenced;
    filesystem
        .quotas()
        .limit_group(top, limit_of(used.get() + 900_000, false))
        .unwrap();
    let file = file_in(&filesystem, ROOT, b"file").unwrap();
    let data = vec![7; 400_000];
    // Overwritten data stays charged until a count; a refused write counts again.
    for _ in 0..5 {
        filesystem.write_at(file, FileOffset::MIN, &data).unwrap();
        filesystem.commit().unwrap();
    }
    let more = FileOffset::new(1 << 20);
    let too_much = [data.clone(), data.clone()].concat();
    let refused = exceeded(filesystem.write_at(file, more, &too_much));
    assert_eq!((refused.group, refused.exclusive), (top, false));
    // A repeated refusal counts nothing again.
    let counted = filesystem.committed_generation();
    assert_eq!(exceeded(filesystem.write_at(file, more, &too_much)), refused);
    assert_eq!(filesystem.committed_generation(), counted);
    filesystem.write_at(file, more, &data).unwrap();
    filesystem.commit().unwrap();
    drop(filesystem);
    // The stored counters are stale now; the first write to the subvolume counts again.
    let filesystem = open(vec![device(&memory)]).unwrap();
    let last = file_in(&filesystem, ROOT, b"last").unwrap();
    let refused = exceeded(filesystem.write_at(last, FileOffset::MIN, &data));
    assert!(refused.used.get() > used.get() + 800_000, "{refused}");
    filesystem.unlink(ROOT, b"file").unwrap();
    filesystem.write_at(last, FileOffset::MIN, &data).unwrap();
    filesystem.commit().unwrap();
    // After the end of counts, a refused write waits for none.
    filesystem.unlink(ROOT, b"last").unwrap();
    filesystem.commit().unwrap();
    let again = file_in(&filesystem, ROOT, b"again").unwrap();
    filesystem.commit().unwrap();
    filesystem.quotas().stop_recounting();
    let counted = filesystem.committed_generation();
    exceeded(filesystem.write_at(again, FileOffset::MIN, &[data.clone(), data].concat()));
    assert_eq!(filesystem.committed_generation(), counted);
}

#[test]
fn new_subvolume_never_has_the_number_of_a_remaining_group() {
    let memory = volume();
    let filesystem = open(vec![device(&memory)]).unwrap();
    filesystem.quotas().enable(QuotaKind::Simple).unwrap();
    filesystem.commit().unwrap();
    let maker = filesystem.subvolumes().create(ROOT, b"maker").unwrap();
    let file = file_in(&filesystem, Location::root_of(maker), b"f").unwrap();
    filesystem
        .write_at(file, FileOffset::MIN, &vec![3; 400_000])
        .unwrap();
    let clone = file_in(&filesystem, ROOT, b"clone").unwrap();
    let all = FileOffset::MIN..FileOffset::new(400_000);
    filesystem.clone_range(file, all, clone, FileOffset::MIN).unwrap();
    filesystem.subvolumes().delete(maker).unwrap();
    filesystem.subvolumes().drop_deleted(&Progress::new()).unwrap();
    filesystem.commit().unwrap();
    drop(filesystem);
    let filesystem = open(vec![device(&memory)]).unwrap();
    let next = filesystem.subvolumes().create(ROOT, b"next").unwrap();
    filesystem.commit().unwrap();
    assert_eq!(next.get(), maker.get() + 1);
    let counts = counts_of(&filesystem.view().quota_groups().unwrap().unwrap());
    assert_eq!(counts[&format!("0/{maker}")], (401_408, 401_408));
}

#[test]
fn relation_counts_a_group_once_by_two_ways() {
    let filesystem = open(vec![device(&volume())]).unwrap();
    filesystem.quotas().enable(QuotaKind::Classic).unwrap();
    let own = group(0, filesystem.subvolumes().create(ROOT, b"own").unwrap().get());
    for parent in [group(1, 1), group(1, 2), group(2, 1)] {
        filesystem.quotas().create_group(parent).unwrap();
    }
    filesystem.quotas().assign_group(own, group(1, 1)).unwrap();
    for member in [group(1, 1), group(1, 2)] {
        filesystem.quotas().assign_group(member, group(2, 1)).unwrap();
    }
    filesystem.quotas().rescan(&Progress::new()).unwrap();
    assert!(!filesystem.quotas().assign_group(own, group(1, 2)).unwrap());
    filesystem.commit().unwrap();
    wrong_counters(&filesystem.view()).unwrap();
    assert!(!filesystem.quotas().unassign_group(own, group(1, 1)).unwrap());
    filesystem.commit().unwrap();
    wrong_counters(&filesystem.view()).unwrap();
    let counts = counts_of(&filesystem.view().quota_groups().unwrap().unwrap());
    assert!(counts["2/1"].0 > 0 && counts["1/1"].0 == 0, "{counts:?}");
}

#[test]
fn counters_of_an_older_generation_need_a_rescan() {
    if skips(missing(REFERENCE_PROGS)) {
        return;
    }
    let folder = scratch().unwrap();
    let image = made_by_kernel(folder.path(), 300).unwrap();
    let filesystem = open_image(&image);
    filesystem.quotas().enable(QuotaKind::Classic).unwrap();
    assert!(filesystem.quotas().rescan(&Progress::new()).unwrap().is_exact);
    drop(filesystem);
    // btrfs-progs commits, and keeps no counters.
    let mut label = Command::new(newest("btrfs"));
    run(label.args(["filesystem", "label"]).arg(&image).arg("theirs")).unwrap();
    let filesystem = open_image(&image);
    filesystem.set_label(b"ours").unwrap();
    filesystem.commit().unwrap();
    let groups = filesystem.view().quota_groups().unwrap().unwrap();
    assert!(groups.is_inconsistent());
    assert!(filesystem.quotas().rescan(&Progress::new()).unwrap().is_exact);
    drop(filesystem);
    check(&image).unwrap();
}

#[test]
fn impossible_changes_are_refused_by_name() {
    let filesystem = open(vec![device(&volume())]).unwrap();
    let refusal = |result: Result<(), Error>| match result {
        Err(Error::QuotaRefused(refusal)) => refusal,
        other => panic!("{other:?}"),
    };
    let top = group(0, 5);
    assert_eq!(
        refusal(filesystem.quotas().create_group(group(1, 1))),
        QuotaRefusal::NotEnabled
    );
    filesystem.quotas().enable(QuotaKind::Classic).unwrap();
    filesystem.quotas().create_group(group(1, 1)).unwrap();
    let group_exists = QuotaRefusal::Exists { group: group(1, 1) };
    assert_eq!(
        refusal(filesystem.quotas().create_group(group(1, 1))),
        group_exists
    );
    let of_subvolume = QuotaRefusal::OfSubvolume { group: group(0, 300) };
    assert_eq!(
        refusal(filesystem.quotas().create_group(group(0, 300))),
        of_subvolume
    );
    let assign = |member, parent| filesystem.quotas().assign_group(member, parent).map(drop);
    let levels = |member, parent| QuotaRefusal::Levels { member, parent };
    assert_eq!(refusal(assign(group(1, 1), top)), levels(group(1, 1), top));
    assert_eq!(refusal(assign(top, top)), levels(top, top));
    assert_eq!(
        refusal(assign(top, group(1, 9))),
        QuotaRefusal::NoGroup { group: group(1, 9) }
    );
    assign(top, group(1, 1)).unwrap();
    let is_member = QuotaRefusal::IsMember {
        member: top,
        parent: group(1, 1),
    };
    assert_eq!(refusal(assign(top, group(1, 1))), is_member);
    let has_members = QuotaRefusal::HasMembers { group: group(1, 1) };
    assert_eq!(
        refusal(filesystem.quotas().destroy_group(group(1, 1))),
        has_members
    );
    assert_eq!(
        refusal(filesystem.quotas().destroy_group(top)),
        QuotaRefusal::InUse { group: top }
    );
    assert!(!filesystem.quotas().unassign_group(top, group(1, 1)).unwrap());
    filesystem.quotas().destroy_group(group(1, 1)).unwrap();
    filesystem.commit().unwrap();
}

/// A small volume in memory, with files in two subvolumes and a snapshot.
pub(crate) fn volume() -> Arc<MemoryBackend> {
    let memory = Arc::new(MemoryBackend::new("memory", vec![0; 128 << 20]));
    let identity = Identity {
        fsid: Uuid::from_u128(1),
        chunk_tree: Uuid::from_u128(2),
        top_level: Uuid::from_u128(3),
        devices: vec![Uuid::from_u128(10)],
        time: Timestamp::default(),
    };
    mkfs::make(&[device(&memory)], &mkfs::Options::default(), &identity).unwrap();
    let filesystem = open(vec![device(&memory)]).unwrap();
    let home = filesystem.subvolumes().create(ROOT, b"home").unwrap();
    for (at, name) in [(ROOT, b"a"), (Location::root_of(home), b"b")] {
        let file = filesystem.create(at, name, &NewInode::of_root(0o600)).unwrap();
        filesystem
            .write_at(file, FileOffset::MIN, &vec![5; 100_000])
            .unwrap();
    }
    filesystem
        .subvolumes()
        .snapshot(home, ROOT, b"copy", true)
        .unwrap();
    filesystem.commit().unwrap();
    memory
}

/// Opens a small volume in memory for writing.
pub(crate) fn open_memory() -> WritableFilesystem {
    open(vec![device(&volume())]).unwrap()
}

pub(crate) fn device(memory: &Arc<MemoryBackend>) -> Device {
    Device::with_backend(Arc::clone(memory) as Arc<dyn Backend>, Engine::Inline)
}

/// Returns an error if counters that claim to be exact are not.
pub(crate) fn wrong_counters(filesystem: &Filesystem) -> Result<(), Error> {
    let Some(groups) = filesystem.quota_groups()?.filter(|groups| !groups.is_simple()) else {
        return Ok(());
    };
    let accounting = filesystem.account_space(&Options::default(), &Progress::new())?;
    let counted = groups.count(&accounting)?;
    let wrong = groups.groups.iter().any(|(id, group)| {
        let used = counted[id];
        (group.info.referenced, group.info.exclusive) != (used.referenced, used.exclusive)
    });
    match wrong && !groups.is_inconsistent() {
        true => Err(Error::Invalid {
            what: "counters that are marked as exact",
        }),
        false => Ok(()),
    }
}

#[test]
fn crash_during_any_change_leaves_a_marked_state() {
    const LIMITED: u64 = 1;
    const DISABLED: u64 = 2;
    let disk: Arc<dyn Backend> = volume();
    let history = CrashLab::record([disk], |lab, devices| {
        let filesystem = open(devices)?;
        filesystem.quotas().enable(QuotaKind::Classic)?;
        filesystem.commit()?;
        filesystem.quotas().rescan(&Progress::new())?;
        filesystem.quotas().create_group(group(1, 1))?;
        filesystem.quotas().assign_group(group(0, 256), group(1, 1))?;
        filesystem.commit()?;
        let limit = QuotaLimit {
            exclusive: true,
            bytes: Some(ByteCount::new(1 << 20)),
            compressed: false,
        };
        filesystem.quotas().limit_group(group(1, 1), limit)?;
        filesystem.quotas().rescan(&Progress::new())?;
        lab.mark(LIMITED);
        let file = filesystem.create(ROOT, b"new", &NewInode::of_root(0o600))?;
        filesystem.write_at(file, FileOffset::MIN, &vec![9; 70_000])?;
        filesystem.commit()?;
        filesystem.quotas().rescan(&Progress::new())?;
        filesystem.quotas().disable()?;
        filesystem.commit()?;
        lab.mark(DISABLED);
        filesystem.quotas().enable(QuotaKind::Simple)?;
        filesystem.commit()?;
        filesystem.quotas().disable()?;
        filesystem.commit()?;
        Ok::<(), Error>(())
    })
    .unwrap();
    let verdict = history.judge(&Cuts::every().draws(1), |state| {
        let text = |error: Error| error.to_string();
        let filesystem = OpenOptions::new(state.devices()).open().map_err(text)?;
        wrong_counters(&filesystem).map_err(text)?;
        let groups = filesystem.quota_groups().map_err(text)?;
        if state.last_mark() == Some(LIMITED)
            && let Some(groups) = &groups
            && groups.groups[&group(1, 1)].limit.max_exclusive != ByteCount::new(1 << 20)
        {
            return Err("a durable limit is gone".to_owned());
        }
        if state.last_mark() == Some(DISABLED) && groups.is_some_and(|groups| !groups.is_simple()) {
            return Err("quotas are back after they were disabled".to_owned());
        }
        // The state is open for changes.
        let filesystem = open(state.devices()).map_err(text)?;
        filesystem.quotas().enable(QuotaKind::Classic).map_err(text)?;
        filesystem.commit().map_err(text)?;
        filesystem.abandon();
        Ok(())
    });
    assert!(verdict.accepted().unwrap() > 100);
}
