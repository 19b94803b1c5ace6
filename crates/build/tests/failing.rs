//! Tests of unfinished images: after any failure at any write, nothing on the device opens as a
//! volume.
//!
//! The device held another volume before, which no failed build may make visible again.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::cast_possible_truncation,
    reason = "tests state what must hold"
)]

use buttress_build::{
    Attributes, BuildOptions, ContentReader, Contents, DirectorySource, Entry, EntryKind, EntryPath, Error,
    FileContent, ImageBuilder, LocatorContents, MemorySource, Precedence, Source, SourceError,
};
use buttress_check::{Finding, Options as CheckOptions, Reported};
use buttress_device::{Device, Engine, MemoryBackend};
use buttress_format::{ByteCount, FileOffset, Timestamp, Uuid};
use buttress_fs::{OpenOptions, Progress};
use buttress_lab::crash::{CrashLab, Outcome};
use buttress_lab::{Fault, FaultyBackend};
use buttress_mkfs::Identity;
use core::ops::Range;
use std::sync::Arc;

/// The test device has space for a second superblock.
const SIZE: usize = 72 << 20;

fn identity(volume: u128) -> Identity {
    Identity {
        fsid: Uuid::from_u128(volume),
        chunk_tree: Uuid::from_u128(volume + 1),
        top_level: Uuid::from_u128(volume + 2),
        devices: vec![Uuid::from_u128(volume + 3)],
        time: Timestamp::default(),
    }
}

fn noise(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let step = |_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 56) as u8
    };
    (0..length).map(step).collect()
}

fn entries() -> Vec<Entry> {
    let file = |number: usize| {
        let content = noise(number as u64, number * 70_000);
        Entry {
            path: EntryPath::new(format!("d/f{number:02}").as_bytes()).unwrap(),
            precedence: Precedence::default(),
            kind: EntryKind::File(FileContent {
                data: None,
                size: ByteCount::of(content.len()),
                locator: content,
                share: None,
            }),
            attributes: Attributes::default(),
        }
    };
    (0..16).map(file).collect()
}

fn write(builder: ImageBuilder, device: &Device, volume: u128, progress: &Progress) -> Result<(), Error> {
    let identity = identity(volume);
    let gathered = builder.gather(1, identity.time, progress)?;
    gathered.write(std::slice::from_ref(device), &identity, progress)?;
    Ok(())
}

fn builder() -> ImageBuilder {
    ImageBuilder::new(BuildOptions::default()).source(MemorySource::new(entries()))
}

/// Returns the bytes of a device that already holds another volume.
fn old() -> Vec<u8> {
    let device = Device::memory(vec![0; SIZE]);
    write(builder(), &device, 100, &Progress::new()).unwrap();
    device.read(0, SIZE).unwrap().to_vec()
}

/// Returns the volume that opens, if one does. The volume must be complete, except for copies of
/// its superblock.
fn opens(device: &Device, what: &str) -> Option<Uuid> {
    let filesystem = OpenOptions::new(vec![device.clone()]).open().ok()?;
    let options = CheckOptions {
        data_checksums: true,
        ..CheckOptions::default()
    };
    let report = buttress_check::check(&filesystem, &options, &Progress::new()).unwrap();
    let fsid = filesystem.superblock().fsid;
    let of_superblocks = |reported: &Reported| matches!(reported.finding, Finding::SuperblockDamaged { .. });
    let whole = report.findings.iter().all(of_superblocks);
    assert!(whole, "{what}: it opens, but {:?}", report.findings);
    Some(fsid)
}

/// The power is cut at every write. After the power cut, unflushed writes are kept, lost, or mixed.
/// After a failed build the path holds the old volume unchanged, no volume, or the complete new
/// volume.
#[test]
fn power_cuts_leave_a_complete_volume_or_none() {
    let lab = CrashLab::new();
    let backend = lab.device(Arc::new(MemoryBackend::new("disk", old())));
    let device = Device::with_backend(backend, Engine::Inline);
    write(builder(), &device, 200, &Progress::new()).unwrap();
    let history = lab.history();
    let (mut old, mut none, mut whole) = (0, 0, 0);
    for cut in 0..=history.len() {
        let drawn = (0..4).map(|seed| Outcome::Drawn { seed });
        for outcome in [Outcome::AllKept, Outcome::NoneKept].into_iter().chain(drawn) {
            let image = history.images_at(cut, outcome).remove(0);
            let image = Device::with_backend(image, Engine::Inline);
            let what = format!("cut {cut} of {}, {outcome:?}", history.len());
            match opens(&image, &what) {
                None => none += 1,
                Some(fsid) if fsid == identity(200).fsid => whole += 1,
                // Only the superblocks of the old volume were overwritten.
                Some(_) => old += 1,
            }
        }
    }
    assert!(
        old > 0 && none > 40 && whole > 0,
        "{old} with the old volume, {none} without one, {whole} with the new one"
    );
}

/// The test device fails each write, alone and with all later writes, and fails each flush.
#[test]
fn failed_write_or_flush_is_reported_and_leaves_no_volume() {
    let run = |fault: Option<Fault>| {
        let backend = Arc::new(MemoryBackend::new("disk", old()));
        let faulty = FaultyBackend::new(backend, 1);
        if let Some(fault) = &fault {
            faulty.inject(fault.clone());
        }
        let device = Device::with_backend(faulty.clone(), Engine::Inline);
        let ended = write(builder(), &device, 200, &Progress::new());
        faulty.heal();
        (
            ended,
            opens(&device, &format!("{fault:?}")),
            faulty.request_counts(),
        )
    };
    let (ended, found, (_, writes, flushes)) = run(None);
    ended.unwrap();
    assert_eq!(found, Some(identity(200).fsid));
    assert!(writes > 10, "{writes} writes");
    for number in 0..writes {
        for fault in [Fault::FailWriteNumber(number), Fault::FailWritesFrom(number)] {
            let (ended, found, _) = run(Some(fault.clone()));
            match (ended, found) {
                (Err(error), found) => {
                    assert!(error.to_string().contains("disk"), "{fault:?}: {error}");
                    // A device that refuses all writes keeps its last superblock.
                    let can_forget = matches!(fault, Fault::FailWriteNumber(_));
                    let new = found == Some(identity(200).fsid);
                    assert!(!(new && can_forget), "{fault:?}: it opens, though {error}");
                }
                // A copy of the superblock failed: the volume exists, and the build succeeded.
                (Ok(()), found) => assert_eq!(found, Some(identity(200).fsid), "{fault:?}"),
            }
        }
    }
    for number in 0..flushes {
        let (ended, _, _) = run(Some(Fault::FailFlushNumber(number)));
        assert!(
            ended.is_err() || number + 1 >= flushes,
            "flush {number} of {flushes}"
        );
    }
}

/// The content exceeds the channels between the threads, and the device becomes full. A job that
/// waited for the failed thread would never end.
#[test]
fn full_device_ends_the_job_however_much_is_queued() {
    const CONTENT: usize = 40 << 20;
    let large = || {
        let content = noise(7, CONTENT);
        let entry = Entry {
            path: EntryPath::new(b"large").unwrap(),
            precedence: Precedence::default(),
            kind: EntryKind::File(FileContent {
                size: ByteCount::of(content.len()),
                data: None,
                locator: content,
                share: None,
            }),
            attributes: Attributes::default(),
        };
        ImageBuilder::new(BuildOptions::default()).source(MemorySource::new(vec![entry]))
    };
    for megabytes in [0, 1, 2, 4, 9, 20, 39, 41] {
        let faulty = FaultyBackend::new(Arc::new(MemoryBackend::new("disk", vec![0; SIZE])), 1);
        let device = Device::with_backend(faulty.clone(), Engine::Inline);
        faulty.inject(Fault::FullAfter(megabytes << 20));
        let ended = write(large(), &device, 200, &Progress::new());
        faulty.heal();
        if let Err(error) = ended {
            let told = error.to_string();
            assert!(
                told.contains("disk") && told.contains("No space left"),
                "{megabytes} MiB: {told}"
            );
            assert_eq!(
                opens(&device, "full"),
                None,
                "{megabytes} MiB: opens despite {told}"
            );
        } else {
            assert!(megabytes > 40, "40 MiB of content in {megabytes}");
        }
    }
}

#[test]
fn lack_of_space_is_reported_with_numbers() {
    for megabytes in [1_usize, 3, 5, 6, 7, 8, 9, 10, 12] {
        let device = Device::memory(vec![0; megabytes << 20]);
        if let Err(error) = write(builder(), &device, 200, &Progress::new()) {
            assert!(
                matches!(error, Error::NoRoom { .. } | Error::Volume(_)),
                "{megabytes} MiB: {error}"
            );
            assert_eq!(
                opens(&device, "too small"),
                None,
                "{megabytes} MiB, though {error}"
            );
        } else {
            assert!(megabytes >= 10, "8 MiB of content in {megabytes}");
        }
    }
}

/// Contents that cancel the job in the middle.
struct Stopping(Progress);

impl Contents for Stopping {
    fn open(&self, path: &EntryPath, content: &FileContent) -> Result<Box<dyn ContentReader>, SourceError> {
        let inner = LocatorContents.open(path, content)?;
        Ok(Box::new(StoppingReader(self.0.clone(), path.clone(), inner)))
    }
}

struct StoppingReader(Progress, EntryPath, Box<dyn ContentReader>);

impl ContentReader for StoppingReader {
    fn next_data(&mut self, from: FileOffset) -> Result<Option<Range<FileOffset>>, SourceError> {
        self.2.next_data(from)
    }

    fn read_exact_at(&mut self, at: FileOffset, into: &mut [u8]) -> Result<(), SourceError> {
        if self.1.as_bytes() == b"d/f12" {
            self.0.cancel();
        }
        self.2.read_exact_at(at, into)
    }

    fn finish(&mut self) -> Result<(), SourceError> {
        self.2.finish()
    }
}

struct StoppingSource(MemorySource, Progress);

impl Source for StoppingSource {
    fn name(&self) -> String {
        "stopping".to_owned()
    }

    fn next_entry(&mut self) -> Result<Option<Entry>, SourceError> {
        self.0.next_entry()
    }

    fn contents(&mut self) -> Result<Arc<dyn Contents>, SourceError> {
        Ok(Arc::new(Stopping(self.1.clone())))
    }
}

/// The test does what SIGINT does during the reading of contents.
#[test]
fn a_job_that_is_stopped_while_it_writes_leaves_no_volume() {
    let progress = Progress::new();
    let source = StoppingSource(MemorySource::new(entries()), progress.clone());
    let device = Device::memory(old());
    let builder = ImageBuilder::new(BuildOptions::default()).source(source);
    let error = write(builder, &device, 200, &progress).unwrap_err();
    assert!(matches!(error, Error::Cancelled), "{error}");
    assert_eq!(opens(&device, "stopped"), None);
}

/// A change of a file.
type Change = fn(&std::path::Path);

/// A host file is deleted, replaced, extended, truncated or written after its entry was read and
/// before its content is.
#[test]
fn files_that_change_or_vanish_are_named() {
    let changes: [(&str, Change); 5] = [
        ("No such file", |path| std::fs::remove_file(path).unwrap()),
        ("another file has replaced it", |path| {
            std::fs::rename(path.with_file_name("z-spare"), path).unwrap();
        }),
        ("its size changed from 5000 to 5004 bytes", |path| {
            let mut file = std::fs::File::options().append(true).open(path).unwrap();
            std::io::Write::write_all(&mut file, b"more").unwrap();
        }),
        ("its size changed from 5000 to 9 bytes", |path| {
            std::fs::File::options()
                .write(true)
                .open(path)
                .unwrap()
                .set_len(9)
                .unwrap();
        }),
        ("its change time differs", |path| {
            let file = std::fs::File::options().write(true).open(path).unwrap();
            file.set_modified(std::time::UNIX_EPOCH).unwrap();
        }),
    ];
    for (wanted, change) in changes {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        for (name, length) in [("file", 5000), ("z-spare", 5000)] {
            std::fs::write(folder.path().join(name), noise(1, length)).unwrap();
        }
        let builder = ImageBuilder::new(BuildOptions::default()).source(DirectorySource::new(folder.path()));
        let progress = Progress::new();
        let gathered = builder.gather(1, Timestamp::default(), &progress).unwrap();
        change(&path);
        let device = Device::memory(old());
        let identity = identity(200);
        let error = gathered.write(std::slice::from_ref(&device), &identity, &progress);
        let error = error.unwrap_err().to_string();
        assert!(
            error.contains("file") && error.contains(wanted),
            "{wanted}: {error}"
        );
        assert_eq!(opens(&device, wanted), None, "{wanted}");
    }
}
