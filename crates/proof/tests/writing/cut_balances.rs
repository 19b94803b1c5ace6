//! Volumes on which a power cut ended a balance of Linux: opening for writing ends the relocation
//! trees, as the kernel does at a mount.
//!
//! Each cut is judged beside the kernel: content stays, and each set of subvolumes shares the same
//! bytes as after the kernel's end of the same trees. The balance is then resumed here, and
//! cancelled on another clone. The suite has one small balance, and one cut of each of its stages.
//! `cargo xtask soak --cut-balances N` judges N cuts of drawn balances.

mod recording;

use crate::converted::{State, run_to_the_end};
use crate::number;
use anyhow::{Context, Result, ensure};
use buttress::unstable::device::MemoryBackend;
use buttress::unstable::fs::{Filesystem, OpenOptions};
use buttress::unstable::writer::{WritableFilesystem, WriteOptions};
use buttress::{Backend, Device, DeviceEngine};
use buttress_lab::crash::{CrashLab, Cuts};
use buttress_oracle::btrfs_check::btrfs_check;
use buttress_oracle::loop_device::Mount;
use buttress_oracle::tools::{kernel_missing, newest, run};
use buttress_proof::harness::{Case, Outcome};
use buttress_proof::writing::comparing::expect_nothing_found;
use buttress_proof::writing::volume::{open_after_crash, open_for_writing, open_images};
use recording::{Cut, Host, Recording, Stage, relocation_trees, remove};
use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;

/// The number of crashes while one cut is ended, in the suite and in the soak.
const SUITE_CRASHES: usize = 6;
const SOAK_CRASHES: usize = 24;

/// Of the cuts of a soak, this share has crashes.
const CRASHES_EVERY: usize = 5;

fn open(images: &[PathBuf]) -> Result<Filesystem> {
    Ok(OpenOptions::new(open_images(images, false)?).open()?)
}

fn open_writable(images: &[PathBuf]) -> Result<WritableFilesystem> {
    let filesystem = OpenOptions::new(open_images(images, true)?).open()?;
    Ok(WritableFilesystem::new(filesystem, WriteOptions::default())?)
}

/// Checks a volume by this program and by `btrfs check`, and compares its state.
fn expect_sound(images: &[PathBuf], expected: &State) -> Result<()> {
    let filesystem = open(images)?;
    expect_nothing_found(&filesystem)?;
    ensure!(
        relocation_trees(&filesystem)?.is_empty(),
        "relocation trees remain"
    );
    expected.expect(&State::of(&filesystem)?)?;
    drop(filesystem);
    btrfs_check(images).map(drop)
}

/// The state that the kernel makes of a cut.
fn ended_by_kernel(images: &[PathBuf]) -> Result<State> {
    Mount::new(images, "noatime,skip_balance")?.close()?;
    State::of(&open(images)?)
}

/// Mounts the volume, and has the kernel balance and scrub all of it.
fn expect_kernel_content(images: &[PathBuf]) -> Result<()> {
    let mount = Mount::new(images, "noatime,skip_balance")?;
    for words in [
        &["balance", "start", "--full-balance"][..],
        &["scrub", "start", "-B"],
    ] {
        run(Command::new(newest("btrfs")).args(words).arg(mount.path()))?;
    }
    mount.close()?;
    expect_nothing_found(&open(images)?).map(drop)
}

/// Ends the trees and resumes the balance.
fn expect_resumed(images: &[PathBuf], expected: &State) -> Result<()> {
    open_writable(images)?.close()?;
    // Without a change, closing writes nothing.
    open_writable(images)?.close()?;
    expect_sound(images, expected).context("after opening")?;
    let filesystem = open_writable(images)?;
    if filesystem.balances().current().is_some() {
        run_to_the_end(&filesystem, None).context("resuming")?;
    }
    filesystem.close()?;
    expect_sound(images, expected).context("after resuming")?;
    expect_kernel_content(images).context("the kernel after resuming")
}

fn expect_cancelled(images: &[PathBuf], expected: &State) -> Result<()> {
    let filesystem = open_writable(images)?;
    filesystem.balances().end()?;
    filesystem.close()?;
    expect_sound(images, expected)?;
    Mount::new(images, "noatime")?.close()
}

/// Crashes at writes of the end: each leaves the same content, and the next opening ends the trees.
fn expect_crashes_kept(images: &[PathBuf], expected: &State, crashes: usize) -> Result<()> {
    let lab = CrashLab::new();
    let mut recorded = Vec::new();
    for image in images {
        let memory = MemoryBackend::new(image.display().to_string(), fs::read(image)?);
        let backend: Arc<dyn Backend> = Arc::new(memory);
        recorded.push(Device::with_backend(lab.device(backend), DeviceEngine::Inline));
    }
    WritableFilesystem::new(OpenOptions::new(recorded).open()?, WriteOptions::default())?.close()?;
    let history = lab.history();
    let step = (history.len() / crashes).max(1);
    let verdict = history.judge(
        &Cuts::every().step(step).draws(1).threads(2),
        |state| -> Result<(), String> {
            let judge = || -> Result<()> {
                let images = state.backends();
                let found = open_after_crash(&images).context("at the crash")?;
                expected.expect_content(&found)?;
                drop(found);
                open_for_writing(&images)?.close()?;
                let found = open_after_crash(&images).context("after the next opening")?;
                ensure!(relocation_trees(&found)?.is_empty(), "relocation trees remain");
                expected.expect(&State::of(&found)?)
            };
            judge().map_err(|error| format!("{error:#}"))
        },
    );
    let accepted = verdict
        .accepted()
        .map_err(|rejected| anyhow::anyhow!("{rejected:?}"))?;
    ensure!(accepted > 0, "no crash was judged");
    Ok(())
}

fn judge(host: &Host, cut: &Cut, crashes: usize) -> Result<()> {
    let clones = [(); 3].map(|()| host.clone_images(&cut.images));
    let [kernel, resumed, cancelled] = clones;
    let (kernel, resumed, cancelled) = (kernel?, resumed?, cancelled?);
    let expected = ended_by_kernel(&kernel).context("the kernel")?;
    remove(&kernel)?;
    {
        let before = open(&cut.images)?;
        expect_nothing_found(&before).context("at the cut")?;
        expected.expect_content(&before).context("at the cut")?;
    }
    expect_resumed(&resumed, &expected)?;
    remove(&resumed)?;
    expect_cancelled(&cancelled, &expected).context("after cancelling")?;
    remove(&cancelled)?;
    if crashes > 0 {
        expect_crashes_kept(&cut.images, &expected, crashes)?;
    }
    remove(&cut.images)
}

/// Judges one cut of each stage of a small balance.
fn small() -> Result<()> {
    let host = Host::new()?;
    let mut by_stage = BTreeMap::new();
    for cut in Recording::small().cuts(&host)? {
        by_stage.insert(cut.stage, cut);
    }
    ensure!(
        !by_stage.is_empty(),
        "no commit of the balance had relocation trees"
    );
    let last = by_stage.keys().next_back().copied();
    for (stage, cut) in &by_stage {
        let crashes = if Some(*stage) == last { SUITE_CRASHES } else { 0 };
        let context = || format!("{stage:?}, generation {}", cut.generation);
        judge(&host, cut, crashes).with_context(context)?;
    }
    Ok(())
}

/// Judges this many cuts of drawn balances.
fn soak(seed: u64, wanted: usize) -> Result<()> {
    let mut judged: BTreeMap<Stage, usize> = BTreeMap::new();
    let mut failures = Vec::new();
    let mut count = 0;
    for seed in seed.. {
        if count >= wanted {
            break;
        }
        let host = Host::new()?;
        let recording = Recording::drawn(seed)?;
        for cut in recording.cuts(&host)? {
            if count >= wanted {
                break;
            }
            let crashes = if count.is_multiple_of(CRASHES_EVERY) {
                SOAK_CRASHES
            } else {
                0
            };
            count += 1;
            *judged.entry(cut.stage).or_default() += 1;
            if let Err(error) = judge(&host, &cut, crashes) {
                let (stage, generation) = (cut.stage, cut.generation);
                failures.push(format!(
                    "{recording:?}, {stage:?}, generation {generation}: {error:#}"
                ));
            }
        }
    }
    eprintln!("{judged:?}");
    ensure!(failures.is_empty(), "{}", failures.join("\n"));
    Ok(())
}

pub(super) fn cases() -> Vec<Case> {
    vec![Case::new("cut_balances::linux_is_cut_and_ended_here", || {
        if let Some(reason) = kernel_missing() {
            return Ok(Outcome::Skipped(reason));
        }
        match usize::try_from(number("BUTTRESS_CUT_BALANCES", 0))? {
            0 => small()?,
            wanted => soak(number("BUTTRESS_SOAK_SEED", 1), wanted)?,
        }
        Ok(Outcome::Passed)
    })]
}
