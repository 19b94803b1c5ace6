//! Crashes that interrupt a conversion: each cut leaves the same content, and the resumed balance
//! ends the conversion.
//!
//! A crash may tear a superblock, which the next commit repairs. Volumes with parity keep the write
//! hole, so only the soak (`BUTTRESS_CONVERSION_CUTS`) cuts a conversion to RAID5.

use super::{Conversion, State, has_parity, run_to_the_end};
use crate::number;
use anyhow::{Context, Result, ensure};
use buttress::unstable::format::Profile;
use buttress::unstable::fs::OpenOptions;
use buttress::unstable::writer::{WritableFilesystem, WriteOptions, balance_item};
use buttress::{Device, DeviceEngine};
use buttress_lab::crash::{CrashLab, Cuts};
use buttress_oracle::loop_device::Mount;
use buttress_oracle::tools::{kernel_missing, newest};
use buttress_oracle::volumes::scratch;
use buttress_proof::harness::{Case, Outcome};
use buttress_proof::writing::comparing::expect_nothing_found;
use buttress_proof::writing::volume::{
    Backends, is_clean, open_after_crash, open_checked_but_for_holes, open_for_writing, open_images,
    write_images,
};
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The number of cuts in the suite.
const SUITE_CUTS: u64 = 16;

/// Every fourth cut is resumed.
const RESUMED_EVERY: usize = 4;

/// The kernel resumes one cut of this many.
const KERNEL_EVERY: usize = 16;

/// How long the kernel may take for the rest of a small balance.
const KERNEL_TIME: Duration = Duration::from_secs(60);

/// The pause between two questions for the kernel's progress.
const KERNEL_PAUSE: Duration = Duration::from_millis(20);

/// The kernel does not mount two volumes with one fsid at once.
static KERNEL: Mutex<()> = Mutex::new(());

/// Mounts the devices with the kernel, which resumes the balance. After its end, checks content,
/// sharing and profiles.
fn expect_resumed_by_kernel(images: &Backends, before: &State, conversion: &Conversion) -> Result<()> {
    let folder = scratch()?;
    let files = write_images(images, folder.path())?;
    let _one_at_a_time = KERNEL.lock().unwrap_or_else(PoisonError::into_inner);
    let mount = Mount::new(&files, "noatime")?;
    let begin = Instant::now();
    let mut status = Command::new(newest("btrfs"));
    let status = status.args(["balance", "status"]).arg(mount.path());
    // The status fails while a balance is running or paused.
    while !status.output()?.status.success() {
        ensure!(begin.elapsed() < KERNEL_TIME, "the kernel's balance does not end");
        std::thread::sleep(KERNEL_PAUSE);
    }
    mount.close()?;
    let found = OpenOptions::new(open_images(&files, false)?).open()?;
    expect_nothing_found(&found)?;
    before.expect(&State::of(&found)?)?;
    conversion.expect_converted(&found)
}

/// Resumes the balance, if one is paused, and checks its result.
fn expect_resumed(images: &Backends, before: &State, conversion: &Conversion) -> Result<()> {
    let filesystem = open_for_writing(images)?;
    let is_paused = filesystem.balances().current().is_some();
    if is_paused {
        run_to_the_end(&filesystem, None)?;
    }
    filesystem.close()?;
    if !is_paused {
        // Without a commit, a torn superblock stays.
        return before.expect(&State::of(&open_after_crash(images)?)?);
    }
    let found = open_checked_but_for_holes(images)?;
    before.expect(&State::of(&found)?)?;
    conversion.expect_converted(&found)
}

/// Cuts a conversion at its writes.
fn cut_off(conversion: &Conversion, cuts: usize) -> Result<()> {
    let base = conversion.volume(40)?;
    let before = State::of(&open_after_crash(&base)?)?;
    let lab = CrashLab::new();
    let recorded: Vec<Device> = base
        .into_iter()
        .map(|backend| Device::with_backend(lab.device(backend), DeviceEngine::Inline))
        .collect();
    let filesystem = WritableFilesystem::new(OpenOptions::new(recorded).open()?, WriteOptions::default())?;
    run_to_the_end(&filesystem, Some(conversion.item()))?;
    filesystem.close()?;
    let history = lab.history();
    let step = (history.len() / cuts).max(1);
    // Linux 6.18 may abort its transaction when it converts a nearly full device to RAID1C3.
    let kernel = kernel_missing().is_none() && !has_parity(conversion.data);
    let judge = |images: &Backends, number: usize| -> Result<()> {
        let found = open_after_crash(images).context("at the cut")?;
        let is_paused = balance_item(&found)?.is_some();
        before.expect(&State::of(&found)?).context("at the cut")?;
        drop(found);
        if number.is_multiple_of(RESUMED_EVERY) {
            expect_resumed(images, &before, conversion).context("after resuming")?;
        } else if kernel && is_paused && number % KERNEL_EVERY == 1 && is_clean(images)? {
            expect_resumed_by_kernel(images, &before, conversion).context("resumed by the kernel")?;
        }
        Ok(())
    };
    let verdict = history.judge(
        &Cuts::every().step(step).draws(1).threads(2),
        |state| -> Result<(), String> {
            judge(&state.backends(), state.cut() / step).map_err(|error| format!("{error:#}"))
        },
    );
    let accepted = verdict
        .accepted()
        .map_err(|rejected| anyhow::anyhow!("{rejected:?}"))?;
    ensure!(accepted >= cuts, "only {accepted} cuts");
    Ok(())
}

const fn conversion(source: Profile, data: Profile, metadata: Profile, devices: usize) -> Conversion {
    Conversion {
        source,
        is_mixed: false,
        data,
        metadata,
        devices,
        snapshots: 3,
        seed: 11,
    }
}

pub(super) fn cases() -> Vec<Case> {
    let single = conversion(Profile::Single, Profile::Raid1, Profile::Raid1, 2);
    let dup = conversion(Profile::Dup, Profile::Raid5, Profile::Raid1C3, 3);
    let soak = number("BUTTRESS_CONVERSION_CUTS", 0);
    let mut cut = vec![("single_to_raid1", single)];
    if soak > 0 {
        cut.push(("dup_to_raid5", dup));
    }
    let cases = cut.into_iter().map(|(name, conversion)| {
        Case::new(format!("converted::cut_{name}"), move || {
            let seed = conversion.seed + number("BUTTRESS_SOAK_SEED", 0);
            let cuts = if soak > 0 { soak } else { SUITE_CUTS };
            cut_off(&Conversion { seed, ..conversion }, usize::try_from(cuts)?)?;
            Ok(Outcome::Passed)
        })
    });
    cases.collect()
}
