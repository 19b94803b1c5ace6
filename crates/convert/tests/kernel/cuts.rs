//! Power cuts at every write of a conversion and of a roll back: one of the file systems survives.

use crate::mount::Image;
use crate::options;
use anyhow::{Result, ensure};
use buttress_convert::{Resumed, prepare, resume, roll_back};
use buttress_device::{Backend, Device, Engine, MemoryBackend};
use buttress_extfs::Ext;
use buttress_format::{SUPERBLOCK_BYTES, SUPERBLOCK_OFFSETS, Superblock};
use buttress_lab::crash::{CrashLab, Cuts};
use buttress_oracle::needs::any_missing;
use buttress_oracle::skip::skips;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex};

/// Returns an image with a file over the place of the second superblock.
fn image() -> Result<Vec<u8>> {
    let folder = buttress_oracle::volumes::scratch()?;
    let bytes: Vec<u8> = (0..62_u32 << 18).flat_map(u32::to_le_bytes).collect();
    std::fs::write(folder.path().join("large"), bytes)?;
    for number in 0..50 {
        std::fs::write(folder.path().join(format!("file-{number}")), vec![number; 3000])?;
    }
    let from = folder.path().to_string_lossy().into_owned();
    let image = Image::new(
        88,
        &["-t", "ext4", "-b", "4096", "-O", "^has_journal", "-d", &from],
    )?;
    Ok(std::fs::read(&image.path)?)
}

/// Returns an error if a used byte of the old file system has changed.
fn check_old(device: &Device, old: &[u8], used: &[Range<usize>]) -> Result<(), String> {
    for range in used {
        let bytes = device
            .read(range.start as u64, range.len())
            .map_err(|error| error.to_string())?;
        if bytes[..] != old[range.clone()] {
            return Err(format!("bytes {range:?} of the old file system differ"));
        }
    }
    Ok(())
}

/// Returns an error if the device does not hold the new volume with all superblocks and copies of
/// old content.
fn check_new(device: &Device, old: &[u8], used: &[Range<usize>]) -> Result<(), String> {
    for at in &SUPERBLOCK_OFFSETS[..2] {
        let bytes = device
            .read(at.get(), SUPERBLOCK_BYTES)
            .map_err(|error| error.to_string())?;
        Superblock::check(&bytes, *at).map_err(|error| format!("superblock at {at}: {error}"))?;
    }
    let start = device.read(0, 2048).map_err(|error| error.to_string())?;
    if start[512..].iter().any(|byte| *byte != 0) {
        return Err("the record or the old superblock is still there".to_owned());
    }
    let reserved = |range: &&Range<usize>| {
        range.start >= 1 << 20 && !(64 << 20..(64 << 20) + 65_536).contains(&range.start)
    };
    let others: Vec<_> = used.iter().filter(reserved).cloned().collect();
    check_old(device, old, &others)
}

/// The old file system: its device's bytes and its used ranges.
struct Old {
    bytes: Vec<u8>,
    used: Vec<Range<usize>>,
}

impl Old {
    fn new() -> Result<Self> {
        let bytes = image()?;
        let volume = Ext::open(&Device::memory(bytes.clone()))?;
        let mut used = Vec::new();
        for range in volume.used_blocks() {
            let range = range?;
            // Blocks one by one, so that reserved ranges are ranges of their own.
            let blocks = range.start.get() as usize..range.end.get() as usize;
            used.extend(blocks.map(|block| block * 4096..(block + 1) * 4096));
        }
        ensure!(
            used.contains(&(64 << 20..(64 << 20) + 4096)),
            "no file is at the second superblock"
        );
        Ok(Self { bytes, used })
    }

    fn disk(&self) -> Arc<dyn Backend> {
        Arc::new(MemoryBackend::new("disk", self.bytes.clone()))
    }
}

/// Resumes the job of a device after a power cut. Returns whether the device holds the old file
/// system, whole, and not the new volume, whole.
fn resumed(device: &Device, old: &Old, outcomes: &Outcomes) -> Result<bool, String> {
    let resumed = resume(device).map_err(|error| error.to_string())?;
    // A second call has nothing to do.
    if resume(device).map_err(|error| error.to_string())? != Resumed::Nothing {
        return Err("the record is still there".to_owned());
    }
    *outcomes
        .lock()
        .unwrap()
        .entry(format!("{resumed:?}"))
        .or_default() += 1;
    let is_old = Ext::open(device).is_ok();
    if is_old {
        check_old(device, &old.bytes, &old.used)?;
    } else {
        check_new(device, &old.bytes, &old.used)?;
    }
    Ok(is_old)
}

/// How often each outcome of `resume` was seen.
type Outcomes = Mutex<BTreeMap<String, u32>>;

#[test]
fn power_cuts_of_a_conversion_leave_one_file_system() -> Result<()> {
    if skips(any_missing(&["mkfs.ext4"])) {
        return Ok(());
    }
    let old = Old::new()?;
    let history = CrashLab::record([old.disk()], |lab, devices| {
        let prepared = prepare(&devices[0], &options(5))?;
        lab.mark(1);
        prepared.publish()?;
        lab.mark(2);
        anyhow::Ok(())
    })?;
    let outcomes = Outcomes::default();
    let verdict = history.judge(&Cuts::every().draws(3), |state| {
        match (resumed(&state.devices()[0], &old, &outcomes)?, state.last_mark()) {
            (true, Some(2)) => Err("the new volume is lost after its publication".to_owned()),
            (false, None) => Err("the old file system is lost before the publication".to_owned()),
            _ => Ok(()),
        }
    });
    let states = verdict.accepted()?;
    let outcomes = outcomes.into_inner()?;
    ensure!(
        outcomes.len() == 3,
        "not every outcome was seen in {states} states: {outcomes:?}"
    );
    Ok(())
}

#[test]
fn power_cuts_of_a_roll_back_leave_one_file_system() -> Result<()> {
    if skips(any_missing(&["mkfs.ext4"])) {
        return Ok(());
    }
    let old = Old::new()?;
    let disk = old.disk();
    prepare(
        &Device::with_backend(Arc::clone(&disk), Engine::Inline),
        &options(6),
    )?
    .publish()?;
    let history = CrashLab::record([disk], |lab, devices| {
        roll_back(&devices[0])?;
        lab.mark(1);
        anyhow::Ok(())
    })?;
    let outcomes = Outcomes::default();
    let verdict = history.judge(&Cuts::every().draws(10), |state| {
        match (resumed(&state.devices()[0], &old, &outcomes)?, state.last_mark()) {
            (false, Some(1)) => Err("the new volume is still there after the roll back".to_owned()),
            _ => Ok(()),
        }
    });
    let states = verdict.accepted()?;
    let outcomes = outcomes.into_inner()?;
    ensure!(
        outcomes.contains_key("PutBack"),
        "no roll back was resumed in {states} states: {outcomes:?}"
    );
    Ok(())
}
