//! The image right after a sync, replayed by the kernel and by Buttress, and compared.
//!
//! For each situation, and each side that logs, the initial state is committed. After the initial
//! commit, the script runs, whose last lines sync. The test copies the devices with all other
//! writes unflushed. The kernel mounts one copy, which replays the log; Buttress opens another one
//! for writing, which also replays it. The kernel and Buttress must show the same names, bytes,
//! attributes and times. `btrfs check` and Buttress's own check must find nothing in either copy.
//! Opened for reading, the image must show the same, with everything that the last syncs guarantee.
//!
//! One difference is excluded: the kernel's replay sets the time of directories from which it
//! removes names; Buttress keeps their time.

use crate::script::{Line, parse};
use crate::sides::{Kernel, Ours};
use crate::situations::{SITUATIONS, Situation};
use anyhow::{Context, Result, ensure};
use buttress::unstable::fs::OpenOptions;
use buttress::unstable::writer::{WritableFilesystem, WriteOptions, open_replayed};
use buttress::{CommitCause, Environment, Location, Logical, Notice, SubvolumeId, Timestamp};
use buttress_oracle::btrfs_check::btrfs_check;
use buttress_oracle::loop_device::Mount;
use buttress_oracle::manifest::{Manifest, expect_equal, of_directory};
use buttress_oracle::tools::progs_missing;
use buttress_oracle::volumes::{Fill, Specification, format};
use buttress_proof::harness::{Case, Outcome};
use buttress_proof::library::manifest;
use buttress_proof::writing::comparing::expect_nothing_found;
use buttress_proof::writing::volume::open_images;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

/// Mount options with a commit interval that the test never reaches.
const NO_COMMIT: &str = "commit=300,noatime";

/// Environment with the system's clock, and without a commit thread.
#[derive(Debug)]
struct Clock;

impl Environment for Clock {
    fn now(&self) -> Timestamp {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Timestamp {
            seconds: i64::try_from(since.as_secs()).unwrap_or(0),
            nanoseconds: since.subsec_nanos(),
        }
    }

    fn new_uuid(&self) -> uuid::Uuid {
        uuid::Uuid::new_v4()
    }
}

fn open_for_writing(image: &Path) -> Result<WritableFilesystem> {
    let devices = open_images(&[image.to_path_buf()], true)?;
    let options = WriteOptions {
        environment: Arc::new(Clock),
        ..WriteOptions::default()
    };
    Ok(WritableFilesystem::new(
        OpenOptions::new(devices).open()?,
        options,
    )?)
}

/// Reads the content of a volume from its devices after a check.
fn read_checked(image: &Path) -> Result<Manifest> {
    let filesystem = OpenOptions::new(open_images(&[image.to_path_buf()], false)?).open()?;
    expect_nothing_found(&filesystem)?;
    manifest(&filesystem, Location::root_of(SubvolumeId::TOP_LEVEL))
}

fn copy(image: &Path, name: &str) -> Result<PathBuf> {
    let to = image.with_file_name(name);
    let status = Command::new("cp")
        .arg("--sparse=always")
        .args([image, &to])
        .status()?;
    ensure!(status.success(), "copying the image");
    Ok(to)
}

/// Guarantee of a sync: its path, and the content at that moment.
struct Promise {
    path: &'static str,
    only_data: bool,
    state: Manifest,
}

fn promised(line: &Line) -> Option<(&'static str, bool)> {
    match line {
        Line::Fsync(path) => Some((path, false)),
        Line::Fdatasync(path) => Some((path, true)),
        _ => None,
    }
}

/// Returns the guarantees of the syncs at the end of the script.
fn last_promises(
    script: &[Line],
    mut run: impl FnMut(&Line) -> Result<()>,
    state: impl Fn() -> Result<Manifest>,
) -> Result<Vec<Promise>> {
    let after = script
        .iter()
        .rposition(|line| promised(line).is_none())
        .map_or(0, |last| last + 1);
    let mut promises = Vec::new();
    for (number, line) in script.iter().enumerate() {
        run(line).with_context(|| format!("{line:?}"))?;
        if let Some((path, only_data)) = promised(line).filter(|_| number >= after) {
            let state = state()?;
            promises.push(Promise {
                path,
                only_data,
                state,
            });
        }
    }
    Ok(promises)
}

fn expect_kept(promises: &[Promise], found: &Manifest) -> Result<()> {
    for promise in promises {
        let path = promise.path;
        let key: &[u8] = if path == "." { b"" } else { path.as_bytes() };
        let expected = promise.state.get(key).context("a path that was synced")?;
        let entry = found
            .get(key)
            .with_context(|| format!("{path} was synced and is not there"))?;
        if expected.mode & 0o170_000 == 0o040_000 {
            let children = |of: &Manifest| -> Vec<Vec<u8>> {
                let prefix = if key.is_empty() {
                    Vec::new()
                } else {
                    [key, b"/"].concat()
                };
                of.keys()
                    .filter(|name| name.len() > prefix.len() && name.starts_with(&prefix))
                    .filter(|name| !name[prefix.len()..].contains(&b'/'))
                    .cloned()
                    .collect()
            };
            ensure!(
                children(&promise.state) == children(found),
                "{path} was synced with {:?} and has {:?}",
                children(&promise.state)
                    .iter()
                    .map(|name| name.escape_ascii().to_string())
                    .collect::<Vec<_>>(),
                children(found)
                    .iter()
                    .map(|name| name.escape_ascii().to_string())
                    .collect::<Vec<_>>()
            );
        } else {
            ensure!(
                (entry.size, &entry.data) == (expected.size, &expected.data)
                    && entry.target == expected.target,
                "{path} was synced with other content: {expected:?}, now {entry:?}"
            );
        }
        let attributes = |entry: &buttress_oracle::manifest::Entry| {
            (entry.mode, entry.uid, entry.gid, entry.xattrs.clone())
        };
        ensure!(
            promise.only_data || attributes(entry) == attributes(expected),
            "{path} was synced with other attributes: {expected:?}, now {entry:?}"
        );
    }
    Ok(())
}

/// Returns the content of a volume with a log, opened for reading, which must not change it.
fn shown(image: &Path) -> Result<Manifest> {
    let options = OpenOptions::new(open_images(&[image.to_path_buf()], false)?);
    let shown = open_replayed(options)?;
    ensure!(
        shown.on_disk.superblock().log_root == Logical::MIN
            || shown
                .filesystem
                .notices()
                .iter()
                .any(|notice| matches!(notice, Notice::LogReplayed { .. })),
        "the log is not replayed for reading: {:?}",
        shown.filesystem.notices()
    );
    expect_nothing_found(&shown.filesystem)?;
    manifest(&shown.filesystem, Location::root_of(SubvolumeId::TOP_LEVEL))
}

/// Replays copies of an image on both sides, and compares. Returns the content that both replays
/// agree on.
fn replay_both(image: &Path, logged_at: (i64, u32)) -> Result<Manifest> {
    let (by_kernel, by_us) = (copy(image, "by-kernel")?, copy(image, "by-us")?);
    let mount = Mount::new(std::slice::from_ref(&by_kernel), "noatime").context("the kernel replays")?;
    let mut expected = of_directory(mount.path())?;
    mount.close()?;
    btrfs_check(std::slice::from_ref(&by_kernel)).context("after the kernel's replay")?;
    open_for_writing(&by_us).context("Buttress replays")?.close()?;
    btrfs_check(std::slice::from_ref(&by_us)).context("after our replay")?;
    let mut found = read_checked(&by_us).context("after our replay")?;
    expect_equal("read with the log replayed in memory", &found, &shown(image)?)?;
    for (path, entry) in &mut expected {
        // The kernel's replay sets the time of these directories.
        if entry.mode & 0o170_000 == 0o040_000
            && entry.modified > logged_at
            && let Some(ours) = found.get_mut(path)
        {
            ours.modified = entry.modified;
        }
        entry.extra = None;
    }
    for entry in found.values_mut() {
        entry.extra = None;
    }
    expect_equal("the two replays", &expected, &found)?;
    std::fs::remove_file(by_kernel)?;
    std::fs::remove_file(by_us)?;
    Ok(found)
}

/// Returns a time after the script and before the replay, by the kernel's coarse clock, too.
fn moment() -> (i64, u32) {
    let tick = std::time::Duration::from_millis(20);
    std::thread::sleep(tick);
    let now = Clock.now();
    std::thread::sleep(tick);
    (now.seconds, now.nanoseconds)
}

fn specification(situation: &Situation) -> Specification {
    Specification {
        fill: Fill::Empty,
        device_mib: 256,
        features: situation.features,
        node_kib: situation.node_kib,
        ..Specification::default()
    }
}

fn logged_by_kernel(situation: &Situation) -> Result<()> {
    let (_folder, images) = format(&specification(situation))?;
    let mount = Mount::new(&images, NO_COMMIT)?;
    let mut kernel = Kernel::new(mount.path());
    for line in parse(situation.before)? {
        kernel.run(&line)?;
    }
    rustix::fs::syncfs(std::fs::File::open(mount.path())?)?;
    let top = mount.path().to_path_buf();
    let promises = last_promises(
        &parse(situation.after)?,
        |line| kernel.run(line),
        || of_directory(&top),
    )?;
    let logged_at = moment();
    let image = copy(&images[0], "logged")?;
    drop(kernel);
    mount.close()?;
    let found = replay_both(&image, logged_at)?;
    if situation.kernel_keeps {
        expect_kept(&promises, &found)?;
    }
    Ok(())
}

fn logged_by_us(situation: &Situation) -> Result<()> {
    ours(situation, false)
}

/// The log of a situation must not depend on state that an earlier transaction left in memory.
fn logged_by_us_opened_anew(situation: &Situation) -> Result<()> {
    ours(situation, true)
}

fn ours(situation: &Situation, is_opened_anew: bool) -> Result<()> {
    let (_folder, images) = format(&specification(situation))?;
    let mut filesystem = open_for_writing(&images[0])?;
    let mut ours = Ours::new(&filesystem);
    for line in parse(situation.before)? {
        ours.run(&line)?;
    }
    drop(ours);
    filesystem.commit()?;
    if is_opened_anew {
        filesystem.close()?;
        filesystem = open_for_writing(&images[0])?;
    }
    let mut ours = Ours::new(&filesystem);
    let state = || {
        filesystem.writeback().write_all()?;
        manifest(&filesystem.view(), Location::root_of(SubvolumeId::TOP_LEVEL))
    };
    let promises = last_promises(&parse(situation.after)?, |line| ours.run(line), state)?;
    let logged_at = moment();
    let image = copy(&images[0], "logged")?;
    drop(ours);
    let statistics = filesystem.log_tree().statistics();
    let commits: Vec<CommitCause> = statistics.commits.iter().map(|(cause, _)| *cause).collect();
    filesystem.abandon();
    ensure!(
        commits == situation.commits,
        "it was to take commits for {:?}: {statistics:?}",
        situation.commits
    );
    let found = replay_both(&image, logged_at)?;
    expect_kept(&promises, &found)
}

pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for situation in SITUATIONS {
        for (side, body) in [
            ("kernel", logged_by_kernel as fn(&Situation) -> Result<()>),
            ("us", logged_by_us),
            ("us_opened_anew", logged_by_us_opened_anew),
        ] {
            let name = format!("logged_by_{side}::{}", situation.sentence.replace(' ', "_"));
            cases.push(Case::new(name, move || match progs_missing((6, 2)) {
                Some(missing) => Ok(Outcome::Skipped(missing)),
                None => body(situation).map(|()| Outcome::Passed),
            }));
        }
    }
    cases
}
