//! Tests of scrubs and healing beside readers and writers: no false error, no missed error, no
//! blocked caller.
#![allow(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    clippy::print_stderr,
    reason = "tests compute with known numbers, and a panic is how a test fails; figures are printed"
)]

use crate::support;

use buttress_device::{Backend, Device, Engine};
use buttress_format::{
    BlockGroupFlags, ByteCount, DeviceStatistics, FileOffset, Logical, Physical, Profile, SubvolumeId, TreeId,
};
use buttress_fs::{Follow, Location, OpenOptions, Progress};
use buttress_lab::gate::{GatedBackend, Request, WatchedThread};
use buttress_scrub::{Healer, Options, Report, Scrub};
use buttress_volume::{MappedChunk, MappingContent};
use buttress_writer::operations::NewInode;
use buttress_writer::{WritableFilesystem, WriteOptions};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use support::{Lab, Make, Use};

/// The operations of a writer.
#[derive(Debug, Default)]
struct Written {
    calls: u64,
    longest: Duration,
    elapsed: Duration,
}

impl Written {
    fn add(&mut self, more: &Self) {
        self.calls += more.calls;
        self.longest = self.longest.max(more.longest);
        self.elapsed += more.elapsed;
    }

    fn rate(&self) -> f64 {
        self.calls as f64 / self.elapsed.as_secs_f64()
    }
}

/// The number of turns into which each run is divided.
const SLICES: u32 = 4;

/// Tells the writer to stop when dropped, also after a failed assertion.
struct Stops<'a>(&'a AtomicBool);

impl Drop for Stops<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Makes, overwrites and removes files, takes and deletes snapshots, and commits, until it must
/// stop.
fn write(filesystem: &WritableFilesystem, stop: &AtomicBool, seed: u64) -> Written {
    let root = Location::root_of(SubvolumeId::TOP_LEVEL);
    let bare = filesystem.view().resolve(root, b"/bare", Follow::All).unwrap();
    let mut random = support::random(seed);
    let mut written = Written::default();
    let mut snapshots = Vec::new();
    let begun = Instant::now();
    for number in 0_u64.. {
        if stop.load(Ordering::SeqCst) {
            break;
        }
        let at = Instant::now();
        let name = format!("beside-{seed}-{number}");
        let length = 1 + random.below(60_000) as usize;
        let content = random.bytes(length, false);
        let made = filesystem
            .create(root, name.as_bytes(), &NewInode::of_root(0o644))
            .and_then(|file| filesystem.write_at(file, FileOffset::MIN, &content));
        let block = random.bytes(4096, false);
        // After a snapshot, an overwrite needs new space.
        let made =
            made.and_then(|_| filesystem.write_at(bare, FileOffset::new(4096 * (number % 30)), &block));
        if number >= 20 {
            let old = format!("beside-{seed}-{}", number - 20);
            let _it_may_be_missing = filesystem.unlink(root, old.as_bytes());
        }
        if number % 16 == 3 && made.is_ok() {
            let name = format!("snapshot-{seed}-{number}");
            let snapshot =
                filesystem
                    .subvolumes()
                    .snapshot(SubvolumeId::TOP_LEVEL, root, name.as_bytes(), true);
            snapshots.push(snapshot.unwrap());
        }
        let is_full = matches!(made, Err(buttress_fs::Error::NoSpace { .. }));
        assert!(is_full || made.is_ok(), "{made:?}");
        if snapshots.len() > 2 || is_full {
            for snapshot in snapshots.drain(..) {
                filesystem.subvolumes().delete(snapshot).unwrap();
            }
            filesystem.subvolumes().drop_deleted(&Progress::new()).unwrap();
        }
        if number % 10 == 0 || is_full {
            filesystem.commit().unwrap();
        }
        written.calls += 1;
        written.longest = written.longest.max(at.elapsed());
    }
    written.elapsed = begun.elapsed();
    written
}

fn scrub_beside(filesystem: &WritableFilesystem, limit: Option<ByteCount>) -> Report {
    let views = || filesystem.committed_view();
    let options = Options {
        limit,
        ..Options::default()
    };
    let scrub = Scrub::new(&views(), options, Progress::new())
        .unwrap()
        .beside(&views);
    scrub.run().unwrap();
    scrub.report()
}

/// Returns the used ranges of the file `a`, which no thread changes.
fn uses_of_a(lab: &Lab) -> Vec<Use> {
    let filesystem = lab.open().unwrap();
    let root = Location::root_of(SubvolumeId::TOP_LEVEL);
    let file = filesystem.resolve(root, b"/a", Follow::All).unwrap();
    let mut extents = Vec::new();
    for range in filesystem.open_file(file).unwrap().extents().unwrap() {
        if let buttress_fs::RangeKind::Data(extent) = range.unwrap().kind {
            extents.push(extent.logical.get()..extent.logical.get() + extent.disk_bytes.get());
        }
    }
    let mut uses = lab.uses().unwrap();
    uses.retain(|used| extents.iter().any(|extent| extent.contains(&used.logical.get())));
    uses
}

/// Returns offsets 64 KiB apart on the first device, in the first copy.
fn places(uses: &[Use]) -> Vec<u64> {
    let first = |used: &&Use| used.device == 0 && used.content == MappingContent::Data { copy: 1 };
    let places = |used: &Use| (used.physical..used.physical + used.length as u64).step_by(65536);
    let found: Vec<u64> = uses.iter().filter(first).flat_map(places).collect();
    assert!(!found.is_empty());
    found
}

/// Returns the logical address of an offset on the first device.
fn logical_of(uses: &[Use], place: u64) -> u64 {
    let holds = |used: &&Use| {
        used.device == 0
            && used.content == MappingContent::Data { copy: 1 }
            && (used.physical..used.physical + used.length as u64).contains(&place)
    };
    let used = uses.iter().find(holds).unwrap();
    used.logical.get() + (place - used.physical)
}

/// Returns the seconds of each of twelve test runs, three for each of four profiles.
/// `BUTTRESS_SOAK_SECONDS` sets the sum of all runs.
fn seconds() -> u64 {
    let all = std::env::var("BUTTRESS_SOAK_SECONDS").map(|text| text.parse::<u64>().unwrap());
    all.map_or(1, |all| all.div_ceil(12))
}

#[test]
fn scrub_beside_writer_finds_exactly_the_damage() {
    for (profile, devices) in [
        (Profile::Dup, 1),
        (Profile::Raid1, 2),
        (Profile::Raid5, 3),
        (Profile::Raid6, 5),
    ] {
        let lab = Lab::new(&Make {
            bare: true,
            ..Make::new(profile, devices)
        })
        .unwrap();
        let mut uses = uses_of_a(&lab);
        // Parity changes with every write to its row, so only copies are damaged.
        uses.retain(Use::is_copy);
        let before = lab.contents(&uses);
        let mut random = support::random(3);
        let mut damaged = 0;
        for place in places(&uses) {
            lab.spies[0].put(place, &random.bytes(4096, false));
            damaged += 1;
        }
        let filesystem = WritableFilesystem::new(lab.open().unwrap(), WriteOptions::default()).unwrap();
        let stop = AtomicBool::new(false);
        let (alone, beside, limited, scrubs) = std::thread::scope(|scope| {
            let for_a_while = |seed: u64, scrubs: &mut dyn FnMut()| {
                stop.store(false, Ordering::SeqCst);
                let stops = Stops(&stop);
                let (filesystem, stop) = (&filesystem, &stop);
                let writer = scope.spawn(move || write(filesystem, stop, seed));
                scrubs();
                drop(stops);
                writer.join().unwrap()
            };
            let mut scrubs = 0;
            let slice = Duration::from_secs(seconds()) / SLICES;
            let mut round = |limit: Option<ByteCount>, is_first: bool| {
                let begun = Instant::now();
                let mut is_first = is_first;
                while begun.elapsed() < slice {
                    let report = scrub_beside(&filesystem, limit);
                    let totals = report.totals();
                    let expected = if is_first { damaged } else { 0 };
                    assert_eq!(totals.errors(), expected, "{profile}: {:#?}", report.damages);
                    assert_eq!(totals.corrected_errors, expected, "{profile}");
                    assert_eq!(totals.unverified_errors, 0, "{profile}: {:#?}", report.damages);
                    assert_eq!(report.unwalked, Vec::<String>::new(), "{profile}");
                    is_first = false;
                    scrubs += 1;
                }
            };
            let (mut alone, mut beside, mut limited) =
                (Written::default(), Written::default(), Written::default());
            // The runs alternate, so that the load of the machine and the fill of the volume are
            // the same for all.
            for turn in 0..u64::from(SLICES) {
                let is_first = turn == 0;
                beside.add(&for_a_while(turn * 3 + 1, &mut || round(None, is_first)));
                let limit = Some(ByteCount::new(8 << 20));
                limited.add(&for_a_while(turn * 3 + 2, &mut || round(limit, false)));
                alone.add(&for_a_while(turn * 3 + 3, &mut || std::thread::sleep(slice)));
            }
            (alone, beside, limited, scrubs)
        });
        eprintln!(
            "{profile}: {scrubs} scrubs; writer alone {:.0}/s, longest {:?}; beside a scrub {:.0}/s ({:.2}), longest {:?}; beside \
             one with a limit {:.0}/s ({:.2}), longest {:?}",
            alone.rate(),
            alone.longest,
            beside.rate(),
            beside.rate() / alone.rate(),
            beside.longest,
            limited.rate(),
            limited.rate() / alone.rate(),
            limited.longest
        );
        filesystem.close().unwrap();
        assert!(lab.contents(&uses) == before, "{profile}");
        lab.require_sound();
    }
}

/// During a write in place, one copy has the new data before the other. A scrub that runs at that
/// moment waits, and finds no error.
#[test]
fn copies_that_are_being_written_are_waited_for() {
    let lab = Lab::new(&Make {
        bare: true,
        ..Make::new(Profile::Raid1, 2)
    })
    .unwrap();
    let gates: Vec<Arc<GatedBackend>> = lab
        .spies
        .iter()
        .map(|spy| GatedBackend::new(Arc::clone(spy) as Arc<dyn Backend>))
        .collect();
    let device =
        |gate: &Arc<GatedBackend>| Device::with_backend(Arc::clone(gate) as Arc<dyn Backend>, Engine::Inline);
    let opened = OpenOptions::new(gates.iter().map(device).collect())
        .open()
        .unwrap();
    let filesystem = WritableFilesystem::new(opened, WriteOptions::default()).unwrap();
    let root = Location::root_of(SubvolumeId::TOP_LEVEL);
    let bare = filesystem.view().resolve(root, b"/bare", Follow::All).unwrap();
    let first = addresses(&filesystem, "bare")[0];
    let uses = lab.uses().unwrap();
    let is_second = |used: &&Use| used.logical == first && used.content == MappingContent::Data { copy: 2 };
    let second = uses.iter().find(is_second).unwrap();
    let gate = Arc::clone(&gates[second.device]);
    let at = second.physical;
    let (own, own_gate) = (filesystem.clone(), Arc::clone(&gate));
    // The scrub first requests the state after it has checked the superblocks, during which no
    // commit may write.
    let writing = Arc::new(Mutex::new(None));
    let begins = Arc::clone(&writing);
    let scrubbing = WatchedThread::start(move || {
        let views = || {
            let mut writer = begins.lock().unwrap();
            if writer.is_none() {
                own_gate.close(
                    move |request| matches!(request, Request::Write { offset_bytes, .. } if offset_bytes == at),
                );
                let filesystem = own.clone();
                *writer = Some(std::thread::spawn(move || {
                    filesystem
                        .write_at(bare, FileOffset::MIN, &[0x5a; 4096])
                        .unwrap();
                    filesystem.writeback().write_file(bare).unwrap();
                }));
                own_gate.wait_for_arrivals(1);
            }
            own.committed_view()
        };
        let scrub = Scrub::new(&own.committed_view(), Options::default(), Progress::new())
            .unwrap()
            .beside(&views);
        scrub.run().unwrap();
        scrub.report()
    })
    .unwrap();
    assert!(scrubbing.comes_to_wait(), "it did not wait for who writes");
    gate.open();
    let report = scrubbing.join().unwrap();
    assert_eq!(report.totals().errors(), 0, "{:#?}", report.damages);
    assert_eq!(report.totals().unverified_errors, 0, "{:#?}", report.damages);
    let writer = writing.lock().unwrap().take().unwrap();
    writer.join().unwrap();
    filesystem.close().unwrap();
    lab.require_sound();
}

/// Returns the addresses of a file's extents.
fn addresses(filesystem: &WritableFilesystem, name: &str) -> Vec<Logical> {
    let view = filesystem.view();
    let root = Location::root_of(SubvolumeId::TOP_LEVEL);
    let file = view
        .resolve(root, format!("/{name}").as_bytes(), Follow::All)
        .unwrap();
    let ranges = view.open_file(file).unwrap().extents().unwrap();
    let extents = ranges.filter_map(|range| match range.unwrap().kind {
        buttress_fs::RangeKind::Data(extent) => Some(extent.logical),
        _ => None,
    });
    extents.collect()
}

/// Returns the logical addresses of data chunks, and their offsets on the first device.
fn data_chunks(filesystem: &WritableFilesystem) -> Vec<(Logical, Physical)> {
    let map = filesystem.view().volume().chunk_map();
    let is_data = |chunk: &&Arc<MappedChunk>| chunk.chunk().profile.contains(BlockGroupFlags::DATA);
    let place = |chunk: &Arc<MappedChunk>| (chunk.start(), chunk.chunk().stripes[0].physical);
    map.chunks().iter().filter(is_data).map(place).collect()
}

/// Writes files of 1 MiB until `is_enough`. Returns the names of the files.
fn write_until(filesystem: &WritableFilesystem, stem: &str, is_enough: &dyn Fn() -> bool) -> Vec<String> {
    let root = Location::root_of(SubvolumeId::TOP_LEVEL);
    let mut random = support::random(stem.len() as u64);
    let mut names = Vec::new();
    while !is_enough() {
        let name = format!("{stem}-{}", names.len());
        let file = filesystem
            .create(root, name.as_bytes(), &NewInode::of_root(0o644))
            .unwrap();
        let content = random.bytes(1 << 20, false);
        filesystem.write_at(file, FileOffset::MIN, &content).unwrap();
        filesystem.commit().unwrap();
        names.push(name);
    }
    names
}

/// During a scrub, files are removed together with their chunks. New files get a chunk at other
/// places, with the addresses of a removed chunk that the scrub has not reached.
#[test]
fn chunks_removed_and_made_during_scrub_are_no_error() {
    let lab = Lab::new(&Make::new(Profile::Single, 1)).unwrap();
    let filesystem = WritableFilesystem::new(lab.open().unwrap(), WriteOptions::default()).unwrap();
    let root = Location::root_of(SubvolumeId::TOP_LEVEL);
    let names = write_until(&filesystem, "old", &|| data_chunks(&filesystem).len() == 5);
    let before = data_chunks(&filesystem);
    let (kept, last) = (before[3].0, before[4]);
    let change = || {
        // The scrub keeps an empty chunk, so two of three are removed.
        for name in &names {
            let in_kept = |at: &Logical| (kept..last.0).contains(at);
            if !addresses(&filesystem, name).iter().all(in_kept) {
                filesystem.unlink(root, name.as_bytes()).unwrap();
            }
        }
        for number in 0.. {
            if !data_chunks(&filesystem).contains(&last) {
                break;
            }
            assert!(number < 20, "what was freed is kept for the whole of a scrub");
            let name = format!("commit-{number}");
            filesystem
                .create(root, name.as_bytes(), &NewInode::of_root(0o644))
                .unwrap();
            filesystem.commit().unwrap();
        }
        let is_there = || data_chunks(&filesystem).iter().any(|(start, _)| *start == last.0);
        write_until(&filesystem, "newer", &is_there);
        assert!(
            !data_chunks(&filesystem).contains(&last),
            "it lies where the other was"
        );
    };
    let is_changed = AtomicBool::new(false);
    let views = || {
        if !is_changed.swap(true, Ordering::SeqCst) {
            change();
        }
        filesystem.committed_view()
    };
    let scrub = Scrub::new(&filesystem.committed_view(), Options::default(), Progress::new())
        .unwrap()
        .beside(&views);
    scrub.run().unwrap();
    let report = scrub.report();
    assert_eq!(report.totals().errors(), 0, "{:#?}", report.damages);
    assert_eq!(report.unwalked, Vec::<String>::new());
    assert!(report.totals().data_bytes_scrubbed > 0);
    drop(scrub);
    filesystem.close().unwrap();
    lab.require_sound();
}

#[test]
fn what_readers_pass_over_is_mended_behind_them() {
    for (profile, devices) in [
        (Profile::Dup, 1),
        (Profile::Raid1, 2),
        (Profile::Raid10, 4),
        (Profile::Raid6, 5),
    ] {
        let lab = Lab::new(&Make::new(profile, devices)).unwrap();
        let uses = uses_of_a(&lab);
        let before = lab.contents(&uses);
        let filesystem = WritableFilesystem::new(lab.open().unwrap(), WriteOptions::default()).unwrap();
        let healer = Healer::start(&filesystem).unwrap();
        let root = Location::root_of(SubvolumeId::TOP_LEVEL);
        let read = || {
            let view = filesystem.view();
            let file = view.resolve(root, b"/a", Follow::All).unwrap();
            let mut content = vec![0; 700_000];
            let read = view
                .open_file(file)
                .unwrap()
                .read_at(FileOffset::MIN, &mut content)
                .unwrap();
            assert_eq!(read, content.len());
            content
        };
        let expected = read();
        let mut random = support::random(4);
        let mut damaged = 0;
        // The damage alternates between copies, so each group has a bad copy whichever copies are
        // read.
        let copies: Vec<&Use> = uses
            .iter()
            .filter(|used| used.is_data && used.is_copy())
            .collect();
        for (number, place) in places(&uses).into_iter().enumerate() {
            let logical = logical_of(&uses, place);
            let holds = |used: &&&Use| {
                let start = used.logical.get();
                (start..start + used.length as u64).contains(&logical)
            };
            let of_it: Vec<&&Use> = copies.iter().filter(holds).collect();
            let copy = of_it[number % of_it.len()];
            let at = copy.physical + (logical - copy.logical.get());
            lab.spies[copy.device].put(at, &random.bytes(4096, false));
            damaged += 1;
        }
        // All of several readers get the written content.
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| assert!(read() == expected, "{profile}"));
            }
        });
        healer.wait();
        let healed = healer.healed();
        assert_eq!(healed.uncorrectable, 0, "{profile}: {healed:?}");
        assert_eq!(healed.corrected, damaged, "{profile}: {healed:?}");
        assert!(lab.contents(&uses) == before, "{profile}");
        // After the scrub no bad copy remains.
        let faults = filesystem.view().volume().faults().total();
        assert!(read() == expected);
        assert_eq!(filesystem.view().volume().faults().total(), faults, "{profile}");
        drop(healer);
        filesystem.close().unwrap();
        let filesystem = lab.open().unwrap();
        let mut counted = 0;
        for slot in filesystem.volume().devices() {
            let key = DeviceStatistics::key(slot.id());
            let item = filesystem.tree(TreeId::DEVICE).unwrap().get(&key).unwrap();
            if let Some(item) = item {
                counted += DeviceStatistics::parse(&key, item.data())
                    .unwrap()
                    .corruption_errors;
            }
        }
        assert_eq!(counted, damaged, "{profile}");
    }
}
