//! Power cuts at every write of a conversion: the old file system or the new volume survives.

use crate::mount::Image;
use crate::options;
use anyhow::{Result, ensure};
use buttress_convert::{Resumed, prepare, resume};
use buttress_device::{Backend, Device, MemoryBackend};
use buttress_extfs::Ext;
use buttress_format::{SUPERBLOCK_BYTES, SUPERBLOCK_OFFSETS, Superblock};
use buttress_lab::crash::{CrashLab, Cuts};
use buttress_oracle::needs::any_missing;
use buttress_oracle::skip::skips;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

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

#[test]
fn power_cuts_leave_the_old_or_the_new_file_system() -> Result<()> {
    if skips(any_missing(&["mkfs.ext4"])) {
        return Ok(());
    }
    let old = image()?;
    let volume = Ext::open(&Device::memory(old.clone()))?;
    let mut used: Vec<Range<usize>> = Vec::new();
    for range in volume.used_blocks() {
        let range = range?;
        // Pieces of 64 KiB, so that reserved ranges are pieces of their own.
        used.extend(
            (range.start.get()..range.end.get())
                .map(|block| block as usize * 4096..(block as usize + 1) * 4096),
        );
    }
    ensure!(
        used.contains(&(64 << 20..(64 << 20) + 4096)),
        "no file is at the second superblock"
    );
    let disk: Arc<dyn Backend> = Arc::new(MemoryBackend::new("disk", old.clone()));
    let history = CrashLab::record([disk], |lab, devices| {
        let prepared = prepare(&devices[0], &options(5))?;
        lab.mark(1);
        prepared.publish()?;
        lab.mark(2);
        anyhow::Ok(())
    })?;
    let outcomes = std::sync::Mutex::new(BTreeMap::<String, u32>::new());
    let verdict = history.judge(&Cuts::every().draws(3), |state| {
        let device = state.devices().remove(0);
        let resumed = resume(&device).map_err(|error| error.to_string())?;
        // A second call has nothing to do.
        if resume(&device).map_err(|error| error.to_string())? != Resumed::Nothing {
            return Err("the record is still there".to_owned());
        }
        *outcomes
            .lock()
            .unwrap()
            .entry(format!("{resumed:?}"))
            .or_default() += 1;
        let is_old = Ext::open(&device).is_ok();
        match (is_old, state.last_mark()) {
            (true, Some(2)) => Err("the new volume is lost after its publication".to_owned()),
            (true, _) => check_old(&device, &old, &used),
            (false, Some(1 | 2)) => check_new(&device, &old, &used),
            (false, _) => Err("the old file system is lost before the publication".to_owned()),
        }
    });
    let states = verdict.accepted()?;
    let outcomes = outcomes.into_inner()?;
    println!("{states} states: {outcomes:?}");
    ensure!(outcomes.len() == 3, "not every outcome was seen: {outcomes:?}");
    Ok(())
}
