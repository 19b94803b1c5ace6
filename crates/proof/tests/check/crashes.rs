//! Volumes in use by the kernel, in the state after a crash, for every kind of activity of the
//! suite: none of it is damage.
//!
//! A finding of Buttress without one of `btrfs check` is a false alarm. If a case can copy the
//! devices at any time, the check's notes must contain the expected state. For activity concurrent
//! with the copies, the test only reports how often it met the state.

use crate::case;
use crate::live::{Live, expect_no_false_alarm};
use anyhow::{Context, Result, ensure};
use buttress_oracle::history::subvolume;
use buttress_oracle::tools::{newest, run};
use buttress_oracle::volumes::{Specification, format};
use buttress_proof::harness::Case;
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, symlink};
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// Name of a kind of volume, its mount options and its specification.
type Kind = (&'static str, &'static str, Specification);

fn empty() -> Specification {
    Specification {
        fill: buttress_oracle::volumes::Fill::Empty,
        device_mib: 768,
        ..Specification::default()
    }
}

/// Returns the kinds of volumes that affect the form of a log.
fn kinds() -> Vec<Kind> {
    let with = |features| Specification { features, ..empty() };
    let profile = |data, metadata, devices| Specification {
        data,
        metadata,
        devices,
        ..empty()
    };
    let small = Specification {
        node_kib: 4,
        checksum: "sha256",
        ..empty()
    };
    let mixed = Specification {
        mixed: true,
        ..empty()
    };
    vec![
        ("plain", "", empty()),
        ("nodes_of_4_kib", "", small),
        ("mixed", "", mixed),
        ("v1_space_cache", "space_cache=v1", with(&["^free-space-tree"])),
        ("no_space_cache", "nospace_cache", with(&["^free-space-tree"])),
        ("holes_as_items", "", with(&["^no-holes"])),
        ("block_group_tree", "", with(&["block-group-tree"])),
        ("quotas", "", with(&["quota"])),
        ("simple_quotas", "", with(&["squota"])),
        ("zstd", "compress-force=zstd", empty()),
        ("nodatasum", "nodatasum", empty()),
        ("nodatacow", "nodatacow", empty()),
        ("inline_none", "max_inline=0", empty()),
        ("raid1", "", profile("raid1", "raid1", 2)),
        ("raid0", "", profile("raid0", "raid1", 3)),
        ("raid10", "", profile("raid10", "raid1c4", 4)),
        ("raid5", "", profile("raid5", "raid1", 3)),
        ("raid6", "", profile("raid6", "raid1c3", 4)),
    ]
}

fn notes(live: &Live) -> Result<BTreeSet<&'static str>> {
    let report = live.look()?;
    Ok(report.notes.iter().map(buttress::check::Note::code).collect())
}

fn require(live: &Live, note: &str) -> Result<()> {
    let found = notes(live)?;
    ensure!(found.contains(note), "no note {note} among {found:?}");
    Ok(())
}

fn write(path: &Path, byte: u8, length: usize) -> Result<File> {
    let file = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .read(true)
        .open(path)?;
    file.write_all_at(&vec![byte; length], 0)?;
    Ok(file)
}

fn allocate(file: &File, offset: u64, length: u64, flags: rustix::fs::FallocateFlags) -> Result<()> {
    Ok(rustix::fs::fallocate(file, flags, offset, length)?)
}

fn sync_directory(path: &Path) -> Result<()> {
    Ok(File::open(path)?.sync_all()?)
}

/// Commits files of all kinds, then changes and logs them one by one.
fn logs(live: &Live) -> Result<()> {
    use rustix::fs::FallocateFlags as Flags;
    let top = live.top();
    let below = top.join("below");
    fs::create_dir(&below)?;
    for number in 0..300_usize {
        write(
            &below.join(format!("file-{number}")),
            7,
            number * 97 % 9000 + (number % 7) * 40_000,
        )?;
    }
    symlink("file-1", below.join("link"))?;
    let prepared = write(&top.join("prepared"), 1, 10)?;
    allocate(&prepared, 0, 4 << 20, Flags::empty())?;
    live.commit()?;
    // Write new content, append, overwrite, write into preallocated extents, punch a hole.
    write(&top.join("new"), 8, 300_000)?.sync_all()?;
    require(live, "pending-log")?;
    let file = File::options().append(true).open(below.join("file-20"))?;
    std::io::Write::write_all(&mut &file, &[9; 70_000])?;
    file.sync_all()?;
    write(&below.join("file-21"), 9, 4096)?.sync_data()?;
    for offset in [0_u64, 1 << 20, 3 << 20] {
        prepared.write_all_at(&[3; 20_000], offset)?;
    }
    prepared.sync_all()?;
    let punched = File::options().write(true).open(below.join("file-27"))?;
    allocate(&punched, 8192, 16384, Flags::PUNCH_HOLE | Flags::KEEP_SIZE)?;
    punched.sync_all()?;
    require(live, "pending-log")?;
    // Create, move, replace, link and remove names.
    fs::rename(below.join("file-1"), top.join("moved"))?;
    fs::rename(below.join("file-2"), below.join("file-3"))?;
    for number in 0..40 {
        fs::hard_link(below.join("file-4"), below.join(format!("name-{number}")))?;
    }
    File::open(below.join("file-4"))?.sync_all()?;
    fs::remove_file(below.join("file-5"))?;
    fs::create_dir(below.join("directory"))?;
    write(&below.join("directory/inside"), 2, 100)?.sync_all()?;
    sync_directory(&below)?;
    sync_directory(top)?;
    live.look()?;
    // The steps truncate, clone, and take a snapshot.
    let short = File::options().write(true).open(below.join("file-6"))?;
    short.set_len(5000)?;
    short.sync_all()?;
    run(Command::new("cp")
        .arg("--reflink=always")
        .args([below.join("file-13"), top.join("clone")]))?;
    if let Ok(clone) = File::options().write(true).open(top.join("clone")) {
        clone.write_all_at(&[5; 4096], 8192)?;
        clone.sync_all()?;
    }
    live.look()?;
    subvolume(&["create"], &[&top.join("subvolume")])?;
    live.commit()?;
    write(&top.join("subvolume/file"), 6, 90_000)?.sync_all()?;
    write(&top.join("another"), 6, 90_000)?.sync_all()?;
    // Leave dirty data beside the logged files.
    write(&top.join("unlogged"), 4, 6 << 20)?;
    live.look()?;
    Ok(())
}

fn logged(kind: &Kind) -> Result<()> {
    let (_, options, specification) = kind;
    let (folder, images) = format(specification)?;
    let live = Live::mount(folder, images, options)?;
    logs(&live)?;
    live.close()
}

fn live(options: &str, specification: &Specification) -> Result<Live> {
    let (folder, images) = format(specification)?;
    Live::mount(folder, images, options)
}

fn small_nodes() -> Specification {
    Specification {
        node_kib: 4,
        ..empty()
    }
}

/// Creates a file of this number of extents, enough that its deletion takes several transactions.
fn fragments(path: &Path, count: u64) -> Result<File> {
    let file = File::create(path)?;
    for number in 0..count {
        file.write_all_at(&[1; 4096], number * 8192)?;
        if number % 512 == 0 {
            file.sync_data()?;
        }
    }
    file.sync_all()?;
    Ok(file)
}

fn orphans_held_open() -> Result<()> {
    let live = live("", &small_nodes())?;
    let top = live.top();
    let file = write(&top.join("file"), 1, 300_000)?;
    let named = fragments(&top.join("fragments"), 8000)?;
    fs::create_dir(top.join("directory"))?;
    let directory = File::open(top.join("directory"))?;
    for name in ["file", "fragments"] {
        fs::remove_file(top.join(name))?;
    }
    fs::remove_dir(top.join("directory"))?;
    let nameless = rustix::fs::open(
        top,
        rustix::fs::OFlags::TMPFILE | rustix::fs::OFlags::RDWR,
        rustix::fs::Mode::RUSR,
    )?;
    rustix::io::write(&nameless, &[7; 50_000])?;
    live.commit()?;
    require(&live, "orphans")?;
    file.write_all_at(&[2; 70_000], 10_000)?;
    file.set_len(12_345)?;
    live.commit()?;
    require(&live, "orphans")?;
    drop((file, directory, nameless));
    live.commit()?;
    live.look()?;
    // The kernel deletes the large file during the copies.
    let dropping = std::thread::spawn(move || drop(named));
    for _ in 0..6 {
        live.commit()?;
        live.look()?;
    }
    drop(dropping.join());
    live.commit()?;
    live.look()?;
    live.close()
}

/// Creates many small files, some of them shared with snapshots.
fn tree_with_snapshots(live: &Live, files: usize) -> Result<()> {
    let top = live.top();
    let big = top.join("big");
    subvolume(&["create"], &[&big])?;
    for number in 0..files {
        fs::write(
            big.join(format!("file-{number}")),
            vec![1; 600 + number % 3 * 4000],
        )?;
    }
    for name in ["kept", "gone", "also"] {
        subvolume(&["snapshot", "-r"], &[&big, &top.join(name)])?;
        for number in (0..files).step_by(7) {
            fs::write(big.join(format!("file-{number}")), vec![2; 700])?;
        }
        live.commit()?;
    }
    Ok(())
}

fn subvolumes_dropped(features: &'static [&'static str]) -> Result<()> {
    let specification = Specification {
        features,
        ..small_nodes()
    };
    let live = live("", &specification)?;
    tree_with_snapshots(&live, 9000)?;
    let mut met = 0;
    for name in ["big", "gone", "also"] {
        subvolume(&["delete", "--commit-after"], &[&live.top().join(name)])?;
        for _ in 0..4 {
            met += u32::from(notes(&live)?.contains("being-deleted"));
            live.commit()?;
        }
    }
    println!("a subvolume was being deleted in {met} copies");
    live.close()
}

/// A child process that is killed on drop.
struct Running(Child);

impl Running {
    fn start(command: &mut Command) -> Result<Self> {
        let quiet = command.stdout(Stdio::null()).stderr(Stdio::null());
        Ok(Self(quiet.spawn()?))
    }

    fn is_over(&mut self) -> Result<bool> {
        Ok(self.0.try_wait()?.is_some())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // The process under test may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn btrfs(words: &[&str], path: &Path) -> Command {
    let mut command = Command::new(newest("btrfs"));
    command.args(words).arg(path);
    command
}

/// Copies the devices while a balance moves everything, and while it pauses.
fn balance(options: &str, specification: &Specification) -> Result<()> {
    let live = live(options, specification)?;
    tree_with_snapshots(&live, 4000)?;
    fragments(&live.top().join("fragments"), 1000)?;
    let mut running = Running::start(&mut btrfs(&["balance", "start", "--full-balance"], live.top()))?;
    let mut copies = Vec::new();
    while !running.is_over()? && copies.len() < 10 {
        live.commit()?;
        copies.push(live.copy(&format!("moment-{}", copies.len()))?);
    }
    let mut met = BTreeSet::new();
    for images in &copies {
        let report = expect_no_false_alarm(images)?;
        met.extend(report.notes.iter().map(buttress::check::Note::code));
    }
    if run(&mut btrfs(&["balance", "pause"], live.top())).is_ok() {
        met.extend(notes(&live)?);
        run(&mut btrfs(&["balance", "cancel"], live.top()))?;
    }
    drop(running);
    live.commit()?;
    live.look()?;
    println!("{} copies during a balance: {met:?}", copies.len());
    live.close()
}

/// Copies the devices while quotas are enabled and counted.
fn quota_rescan() -> Result<()> {
    let live = live("", &small_nodes())?;
    tree_with_snapshots(&live, 6000)?;
    run(&mut btrfs(&["quota", "enable"], live.top()))?;
    let mut met = BTreeSet::new();
    for _ in 0..6 {
        // If a quota rescan is running already, this command fails.
        let _ = btrfs(&["quota", "rescan"], live.top()).output()?;
        live.commit()?;
        met.extend(notes(&live)?);
    }
    println!("during a rescan: {met:?}");
    live.close()
}

/// Copies the devices during a send without a reader.
fn send_in_progress() -> Result<()> {
    let live = live("", &small_nodes())?;
    tree_with_snapshots(&live, 3000)?;
    let mut send = Command::new(newest("btrfs"))
        .arg("send")
        .arg(live.top().join("kept"))
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()?;
    fs::write(live.top().join("meanwhile"), vec![1; 100_000])?;
    live.commit()?;
    let looked = live.look();
    drop(send.stdout.take());
    send.wait()?;
    looked?;
    live.close()
}

fn metadata_uuid() -> Result<()> {
    let (folder, images) = format(&empty())?;
    let image = images.first().context("a device")?;
    run(Command::new(newest("btrfstune")).args(["-f", "-m"]).arg(image))?;
    let live = Live::mount(folder, images, "")?;
    logs(&live)?;
    live.close()
}

/// Creates a seed device with a device added to it.
fn sprout() -> Result<()> {
    let (folder, images) = format(&empty())?;
    let seed = Live::mount(folder, images, "")?;
    fs::write(seed.top().join("of-the-seed"), vec![1; 200_000])?;
    let (folder, mut images) = (seed.folder, seed.images);
    seed.mount.close()?;
    let image = images.first().context("a device")?.clone();
    run(Command::new(newest("btrfstune"))
        .args(["-f", "-S", "1"])
        .arg(&image))?;
    let added = folder.path().join("added");
    File::create(&added)?.set_len(768 << 20)?;
    let live = Live::mount(folder, vec![image], "")?;
    let device = buttress_oracle::loop_device::LoopDevice::attach(&added)?;
    run(Command::new(newest("btrfs"))
        .args(["device", "add", "-f"])
        .arg(device.path())
        .arg(live.top()))?;
    run(Command::new("mount").args(["-o", "remount,rw"]).arg(live.top()))?;
    images.push(added);
    let mut live = live;
    live.images = images;
    logs(&live)?;
    live.close()?;
    drop(device);
    Ok(())
}

/// Converts between both forms of the free space cache.
fn free_space_converted() -> Result<()> {
    let specification = Specification {
        features: &["^free-space-tree"],
        ..small_nodes()
    };
    let live = live("space_cache=v1", &specification)?;
    tree_with_snapshots(&live, 2000)?;
    live.commit()?;
    live.look()?;
    let (folder, images) = (live.folder, live.images);
    live.mount.close()?;
    let live = Live::mount(folder, images, "clear_cache,space_cache=v2")?;
    live.look()?;
    logs(&live)?;
    live.close()
}

/// Replaces one device of the volume, and removes another.
fn devices_changed() -> Result<()> {
    let specification = Specification {
        data: "raid1",
        metadata: "raid1",
        devices: 3,
        ..small_nodes()
    };
    let live = live("", &specification)?;
    tree_with_snapshots(&live, 3000)?;
    fragments(&live.top().join("fragments"), 2000)?;
    let removed = live.mount.devices().last().context("a device")?.path();
    let mut words = Command::new(newest("btrfs"));
    words.args(["device", "remove"]).arg(removed).arg(live.top());
    let mut running = Running::start(&mut words)?;
    let mut copies = 0;
    while !running.is_over()? && copies < 6 {
        match live.look() {
            // If the process is still running, wait: the superblocks of the removed device are
            // wiped at the end.
            Err(_) if running.is_over()? => {}
            other => drop(other?),
        }
        copies += 1;
    }
    println!("{copies} copies while a device was taken out");
    running.0.wait()?;
    let mut live = live;
    live.images.pop();
    live.look()?;
    live.close()
}

pub fn cases() -> Vec<Case> {
    let mut cases: Vec<Case> = kinds()
        .into_iter()
        .map(|kind| case(format!("crashes::log_{}", kind.0), (6, 8), move || logged(&kind)))
        .collect();
    let mut add = |name: &str, body: fn() -> Result<()>| {
        cases.push(case(format!("crashes::{name}"), (6, 8), body));
    };
    add("orphans_held_open", orphans_held_open);
    add("subvolumes_dropped", || subvolumes_dropped(&[]));
    add("subvolumes_dropped_with_quotas", || {
        subvolumes_dropped(&["quota"])
    });
    add("balance", || balance("", &small_nodes()));
    add("balance_nodes_of_16_kib", || balance("", &empty()));
    add("balance_mixed", || {
        let mixed = Specification {
            mixed: true,
            ..empty()
        };
        balance("", &mixed)
    });
    add("balance_raid1", || {
        let raid1 = Specification {
            data: "raid1",
            metadata: "raid1",
            devices: 2,
            ..small_nodes()
        };
        balance("", &raid1)
    });
    add("quota_rescan", quota_rescan);
    add("send_in_progress", send_in_progress);
    add("metadata_uuid", metadata_uuid);
    add("sprout", sprout);
    add("free_space_converted", free_space_converted);
    add("devices_changed", devices_changed);
    cases
}
