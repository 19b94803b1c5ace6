//! Power cuts at every write of a conversion and of a roll back. A file system survives,
//! also if it was in use before the call that resumes.

use crate::mount::Image;
use crate::{back, options};
use anyhow::{Result, ensure};
use buttress_convert::{Resumed, prepare, resume};
use buttress_device::{Backend, Device, Engine, MemoryBackend};
use buttress_extfs::Ext;
use buttress_format::{SUPERBLOCK_BYTES, SUPERBLOCK_OFFSETS, Superblock, Uuid};
use buttress_fs::Progress;
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
    // Free inodes of the inode table are at the place of the primary superblock.
    let words = "-t ext4 -b 4096 -O ^has_journal,^resize_inode,^flex_bg -d";
    let words: Vec<_> = words.split(' ').chain([from.as_str()]).collect();
    let image = Image::new(88, &words)?;
    Ok(std::fs::read(&image.path)?)
}

/// Returns an error if a used byte of the old file system has changed.
fn check_old(device: &Device, old: &[u8], used: &[Range<usize>]) -> Result<(), String> {
    let runs = used.chunk_by(|a, b| a.end == b.start);
    for ranges in runs.flat_map(|run| run.chunks(64)) {
        let range = ranges[0].start..ranges[ranges.len() - 1].end;
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
    check_in_place(device, old, used)
}

/// Returns an error if a used byte of the old file system outside of reserved ranges has changed.
fn check_in_place(device: &Device, old: &[u8], used: &[Range<usize>]) -> Result<(), String> {
    let is_in_place = |range: &&Range<usize>| {
        range.start >= 1 << 20 && !(64 << 20..(64 << 20) + 65_536).contains(&range.start)
    };
    let in_place: Vec<_> = used.iter().filter(is_in_place).cloned().collect();
    check_old(device, old, &in_place)
}

/// The old file system: its device's bytes and its used ranges.
struct Old {
    bytes: Vec<u8>,
    used: Vec<Range<usize>>,
}

impl Old {
    /// Makes a file system whose content at the place of the primary superblock is the superblock of
    /// a former volume.
    fn new() -> Result<Self> {
        let mut bytes = image()?;
        let former = Device::memory(bytes.clone());
        prepare(&former, &options(9), &Progress::new())?.publish()?;
        let primary = former.read(SUPERBLOCK_OFFSETS[0].get(), SUPERBLOCK_BYTES)?;
        let at = SUPERBLOCK_OFFSETS[0].get() as usize;
        bytes[at..at + SUPERBLOCK_BYTES].copy_from_slice(&primary);
        let volume = Ext::open(&Device::memory(bytes.clone()))?;
        let mut used = Vec::new();
        for range in volume.used_blocks() {
            let range = range?;
            // Blocks one by one, so that reserved ranges are ranges of their own.
            let blocks = range.start.get() as usize..range.end.get() as usize;
            used.extend(blocks.map(|block| block * 4096..(block + 1) * 4096));
        }
        for place in &SUPERBLOCK_OFFSETS[..2] {
            let at = place.get() as usize;
            ensure!(used.contains(&(at..at + 4096)), "byte {place} is not in use");
        }
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

/// Returns the places of the copies by the record on the device, or nothing without a record.
fn copies(device: &Device) -> Vec<u64> {
    let record = device.read(512, 512).unwrap();
    if !record.starts_with(b"BUTTCONV") {
        return Vec::new();
    }
    let number = |at: usize| u64::from_le_bytes(record[at..at + 8].try_into().unwrap());
    let count = u32::from_le_bytes(record[16..20].try_into().unwrap()) as usize;
    (0..count).map(|copy| number(76 + copy * 16 + 8)).collect()
}

/// The change of a file system between a power cut and the call that resumes.
#[derive(Clone, Copy, Debug)]
enum Change {
    /// Free blocks get other bytes. In a new volume without its saved image, all copies are free.
    Content,
    /// The new volume gets another fsid.
    Fsid,
}

/// Resumes the job of a device whose file system was changed after the power cut, and restores the
/// device.
fn resumed_after(change: Change, device: &Device, old: &Old) -> Result<(), String> {
    let is_old = Ext::open(device).is_ok();
    let at = SUPERBLOCK_OFFSETS[0];
    let primary = device.read(at.get(), SUPERBLOCK_BYTES).unwrap();
    let is_former = primary[..] == old.bytes[at.get() as usize..][..SUPERBLOCK_BYTES];
    let new = Superblock::check(&primary, at).ok().filter(|_| !is_former);
    let copies = copies(device);
    if copies.is_empty() || !is_old && new.is_none() {
        return Ok(());
    }
    let places = copies.iter().map(|to| (*to, 65_536));
    let places = places.chain([(0, 1 << 20), (64 << 20, 65_536)]);
    let read = |(at, length)| (at, device.read(at, length).unwrap().to_vec());
    let before: Vec<(u64, Vec<u8>)> = places.map(read).collect();
    for to in copies {
        device.write(to, &vec![0xee; 65_536]).unwrap();
    }
    let result = resumed_with(change, device, old, new);
    for (at, bytes) in before {
        device.write(at, &bytes).unwrap();
    }
    result.map_err(|error| format!("after {change:?}: {error}"))
}

/// Resumes the job of a device with a live file system: the one that `new` leads to, or the old one.
fn resumed_with(change: Change, device: &Device, old: &Old, new: Option<Superblock>) -> Result<(), String> {
    let at = SUPERBLOCK_OFFSETS[0];
    let new = new.map(|mut superblock| {
        if matches!(change, Change::Fsid) {
            superblock.fsid = Uuid::from_u128(99);
            superblock.metadata_uuid = superblock.fsid;
            superblock.device_item.fsid = superblock.fsid;
        }
        let bytes = superblock.encode_for(&superblock.device_item, at).unwrap();
        device.write(at.get(), &bytes).unwrap();
        bytes
    });
    resume(device).map_err(|error| error.to_string())?;
    if !copies(device).is_empty() {
        return Err("the record is still there".to_owned());
    }
    let Some(new) = new else {
        let mut used = old.used.clone();
        // Neither file system uses the place of the record, and its old bytes are lost here.
        used.retain(|range| range.start > 0);
        used.push(0..512);
        used.push(1024..4096);
        return check_old(device, &old.bytes, &used);
    };
    if device.read(at.get(), SUPERBLOCK_BYTES).unwrap()[..] != new[..] {
        return Err("the superblock of the new volume has changed".to_owned());
    }
    check_in_place(device, &old.bytes, &old.used)
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
        let prepared = prepare(&devices[0], &options(5), &Progress::new())?;
        lab.mark(1);
        prepared.publish()?;
        lab.mark(2);
        anyhow::Ok(())
    })?;
    let outcomes = Outcomes::default();
    let verdict = history.judge(&Cuts::every().draws(3), |state| {
        let device = &state.devices()[0];
        for change in [Change::Content, Change::Fsid] {
            resumed_after(change, device, &old)?;
        }
        match (resumed(device, &old, &outcomes)?, state.last_mark()) {
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
        &Progress::new(),
    )?
    .publish()?;
    let history = CrashLab::record([disk], |lab, devices| {
        back(&devices[0])?;
        lab.mark(1);
        anyhow::Ok(())
    })?;
    let outcomes = Outcomes::default();
    let verdict = history.judge(&Cuts::every().draws(10), |state| {
        let device = &state.devices()[0];
        for change in [Change::Content, Change::Fsid] {
            resumed_after(change, device, &old)?;
        }
        match (resumed(device, &old, &outcomes)?, state.last_mark()) {
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

#[test]
fn bytes_after_the_old_file_system_stay() -> Result<()> {
    if skips(any_missing(&["mkfs.ext4"])) {
        return Ok(());
    }
    // The file system ends inside of the range that is reserved for the second superblock.
    let (blocks, bytes) = (16_392_u32, 66 << 20);
    let image = Image::new(
        66,
        &[
            "-t",
            "ext4",
            "-b",
            "4096",
            "-O",
            "^has_journal",
            "-E",
            "nodiscard",
        ],
    )?;
    let resized = std::process::Command::new("resize2fs")
        .arg(&image.path)
        .arg(blocks.to_string())
        .output()?;
    ensure!(resized.status.success(), "{resized:?}");
    let mut before = std::fs::read(&image.path)?;
    let end = blocks as usize * 4096;
    before.resize(bytes, 0);
    before[end..].fill(0xa5);
    let device = Device::memory(before.clone());
    let after = |step: &str| -> Result<()> {
        let now = device.read(end as u64, bytes - end)?;
        ensure!(
            now[..] == before[end..],
            "{step} changed bytes after the old file system"
        );
        Ok(())
    };
    prepare(&device, &options(10), &Progress::new())?.publish()?;
    after("the conversion")?;
    back(&device)?;
    after("the roll back")?;
    Ext::open(&device)?;
    Ok(())
}
