//! Cuts of a history: the volume is opened, which replays its log, compared and checked; also by
//! the kernel, and again after a cut during the replay.

use anyhow::{Context, Result, ensure};
use buttress::unstable::fs::OpenOptions;
use buttress::unstable::writer::{WritableFilesystem, WriteOptions};
use buttress::{Device, DeviceEngine as Engine};
use buttress_lab::crash::{CrashLab, Outcome};
use buttress_oracle::btrfs_check::btrfs_check;
use buttress_oracle::content::Random;
use buttress_oracle::loop_device::Mount;
use buttress_oracle::manifest::{expect_equal, of_directory};
use buttress_oracle::skip::skips;
use buttress_oracle::tools::kernel_missing;
use buttress_oracle::volumes::scratch;
use buttress_proof::library::manifest;
use buttress_proof::writing::volume::{
    Backends, Ticking, devices, open_checked_but_for_holes, open_for_writing, write_images,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::TOP;
use crate::history::Run;
use crate::moments::{Moment, moment};
use crate::promises::expect_promised;

/// Number of images that the kernel replayed.
pub(crate) static KERNEL_LOOKS: AtomicUsize = AtomicUsize::new(0);

/// Replays the same log with the kernel, which must find the same state.
fn ask_the_kernel(images: &Backends, ours: &WritableFilesystem) -> Result<()> {
    let folder = scratch()?;
    let images = write_images(images, folder.path())?;
    let mount = Mount::new(&images, "noatime").context("the kernel replays")?;
    let mut theirs = of_directory(mount.path())?;
    mount.close()?;
    btrfs_check(&images).context("after the kernel's replay")?;
    let mut found = manifest(&ours.view(), TOP)?;
    for (path, entry) in &mut theirs {
        entry.extra = None;
        if let Some(own) = found.get_mut(path) {
            own.extra = None;
            // The kernel sets the time of directories from which its replay removes names.
            if entry.mode & 0o170_000 == 0o040_000 {
                own.modified = entry.modified;
            }
        }
    }
    KERNEL_LOOKS.fetch_add(1, Ordering::Relaxed);
    expect_equal("the kernel's replay", &theirs, &found)
}

pub(crate) fn cut(run: &Run, seed: u64, cuts: u64, asks_kernel: bool) -> Result<()> {
    let mut random = Random::new(seed ^ 0x05_ca1e);
    for number in 0..cuts {
        let cut = usize::try_from(random.below(run.history.len() as u64 + 1))?;
        let outcome = match random.below(6) {
            0 => Outcome::AllKept,
            1 => Outcome::NoneKept,
            _ => Outcome::Drawn {
                seed: random.number(),
            },
        };
        let asks_kernel = random.one_in(8) && asks_kernel && !skips(kernel_missing());
        let told = || {
            format!(
                "seed {seed}, cut {number} at event {cut} of {}, {outcome:?}",
                run.history.len()
            )
        };
        recover(run, cut, outcome, asks_kernel)
            .with_context(|| looked_into(run, cut, outcome))
            .with_context(told)?;
    }
    Ok(())
}

/// Describes the operations before a failed cut; the environment variable `BUTTRESS_CRASH_KEEP`
/// names a folder for its images.
fn looked_into(run: &Run, cut: usize, outcome: Outcome) -> String {
    if let Some(folder) = std::env::var_os("BUTTRESS_CRASH_KEEP") {
        // Write the images in their state after the crash.
        let _ = write_images(
            &run.history.images_at(cut, outcome),
            std::path::Path::new(&folder),
        );
    }
    let done = run
        .history
        .last_mark(cut)
        .and_then(|done| usize::try_from(done).ok());
    let done = done.unwrap_or_default();
    format!(
        "after operation {done}:\n{}",
        run.told(done.saturating_sub(40), done + 1)
    )
}

fn recover(run: &Run, cut: usize, outcome: Outcome, asks_kernel: bool) -> Result<()> {
    let Some(done) = run.history.last_mark(cut) else {
        return Ok(());
    };
    let images = run.history.images_at(cut, outcome);
    let has_log = OpenOptions::new(devices(&images))
        .open()?
        .superblock()
        .log_root
        .get()
        != 0;
    let filesystem = open_for_writing(&images).context("opening it for writing")?;
    let found = moment(&filesystem)?;
    let done = usize::try_from(done)?;
    expect_promised(run, done, &found)?;
    if asks_kernel && has_log {
        let untouched = run.history.images_at(cut, outcome);
        ask_the_kernel(&untouched, &filesystem)?;
    }
    // The label gives the commit a change to write.
    filesystem.set_label(b"after the cut")?;
    filesystem.commit()?;
    drop(filesystem);
    open_checked_but_for_holes(&images)?;
    // A second cut during the replay loses nothing: the log is replayed again.
    if has_log {
        recover_again(run, cut, outcome, &found)?;
    }
    Ok(())
}

fn recover_again(run: &Run, cut: usize, outcome: Outcome, expected: &Moment) -> Result<()> {
    let lab = CrashLab::new();
    let images = run.history.images_at(cut, outcome);
    let recorded = images
        .into_iter()
        .map(|backend| Device::with_backend(lab.device(backend), Engine::Inline));
    let options = WriteOptions {
        environment: Arc::new(Ticking::default()),
        ..WriteOptions::default()
    };
    let filesystem = OpenOptions::new(recorded.collect()).open()?;
    drop(WritableFilesystem::new(filesystem, options)?);
    let history = lab.history();
    let mut random = Random::new(cut as u64);
    let cut = usize::try_from(random.below(history.len() as u64 + 1))?;
    let images = history.images_at(
        cut,
        Outcome::Drawn {
            seed: random.number(),
        },
    );
    let again = open_for_writing(&images).context("the second replay")?;
    ensure!(
        moment(&again)? == *expected,
        "the second replay finds something else"
    );
    again.set_label(b"after the cut")?;
    again.commit()?;
    drop(again);
    open_checked_but_for_holes(&images).map(drop)
}
