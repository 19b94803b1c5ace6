//! Volumes in memory with all uses known, and devices that record writes to them.
#![allow(
    dead_code,
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "tests compute with known numbers, and a panic is how a test fails; each test uses a part of this"
)]

pub(crate) mod away;
pub(crate) mod blocks;
pub(crate) mod images;
pub(crate) mod replacing;
pub(crate) mod with_kernel;

use anyhow::Result;
use buttress_device::{Backend, Device, Engine, MemoryBackend};
use buttress_format::{
    ByteCount, ChecksumType, ExtentItem, FileOffset, ItemType, Key, Logical, Profile, SubvolumeId, TreeId,
};
use buttress_fs::{FileAttributes, Filesystem, Location, OpenOptions, Progress};
use buttress_mkfs::{self as mkfs, Feature, Identity, Options as MkfsOptions};
use buttress_oracle::content::Random;
use buttress_scrub::{Options, Report, Scrub};
use buttress_volume::MappingContent;
use buttress_writer::operations::{NewInode, SetXattr};
use buttress_writer::{Environment, SystemEnvironment, WritableFilesystem, WriteOptions};
use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex};

/// A memory device that lists writes, has sectors that are unreadable until they are written, and
/// can stop a job.
#[derive(Debug)]
pub(crate) struct Spy {
    pub(crate) memory: MemoryBackend,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    writes: Vec<Range<u64>>,
    unreadable: Vec<Range<u64>>,
    reads: Vec<Range<u64>>,
    lost_writes: Vec<Range<u64>>,
    fail_writes: bool,
    stop: Option<(usize, Progress)>,
    stop_from: Option<(u64, Progress)>,
}

fn overlap(a: &Range<u64>, b: &Range<u64>) -> bool {
    a.start < b.end && b.start < a.end
}

impl Spy {
    /// Returns a device with noise where chunks begin.
    pub(crate) fn of_noise(name: &str, size: u64) -> Arc<Self> {
        let spy = Self::new(name.to_owned(), size as usize);
        spy.put_noise(size / 4);
        spy
    }

    /// Returns a device with noise everywhere.
    pub(crate) fn all_of_noise(name: &str, size: u64) -> Arc<Self> {
        let spy = Self::new(name.to_owned(), size as usize);
        spy.put_noise(size);
        spy
    }

    fn put_noise(&self, bytes: u64) {
        let noise = Random::new(99).bytes(1 << 20, false);
        for at in (0..bytes).step_by(noise.len()) {
            self.put(at, &noise[..noise.len().min((bytes - at) as usize)]);
        }
    }

    pub(crate) fn device(self: &Arc<Self>) -> Device {
        let backend: Arc<dyn Backend> = Arc::clone(self) as Arc<dyn Backend>;
        Device::with_backend(backend, Engine::Inline)
    }

    fn new(name: String, size: usize) -> Arc<Self> {
        Arc::new(Self {
            memory: MemoryBackend::new(name, vec![0; size]),
            state: Mutex::default(),
        })
    }

    /// Returns the writes since the last call.
    pub(crate) fn take_writes(&self) -> Vec<Range<u64>> {
        std::mem::take(&mut self.state.lock().unwrap().writes)
    }

    /// Returns the reads since the last call.
    pub(crate) fn take_reads(&self) -> Vec<Range<u64>> {
        std::mem::take(&mut self.state.lock().unwrap().reads)
    }

    /// Returns the reads since the last `take_reads`, and keeps the list.
    pub(crate) fn read_so_far(&self) -> Vec<Range<u64>> {
        self.state.lock().unwrap().reads.clone()
    }

    /// Makes reads of the range fail until it is written.
    pub(crate) fn make_unreadable(&self, range: Range<u64>) {
        self.state.lock().unwrap().unreadable.push(range);
    }

    /// Drops all later writes and reports success.
    pub(crate) fn lose_writes(&self) {
        self.lose_writes_to(0..u64::MAX);
    }

    /// Drops later writes to a range of bytes and reports success.
    pub(crate) fn lose_writes_to(&self, range: Range<u64>) {
        self.state.lock().unwrap().lost_writes.push(range);
    }

    /// Makes later writes to the device fail or succeed.
    pub(crate) fn fail_writes(&self, fails: bool) {
        self.state.lock().unwrap().fail_writes = fails;
    }

    /// Stops the job after `reads` more reads.
    pub(crate) fn stop_after(&self, reads: usize, progress: &Progress) {
        self.state.lock().unwrap().stop = Some((reads, progress.clone()));
    }

    /// Stops the job at the first read after `offset`.
    pub(crate) fn stop_from(&self, offset: u64, progress: &Progress) {
        self.state.lock().unwrap().stop_from = Some((offset, progress.clone()));
    }

    pub(crate) fn read(&self, offset: u64, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.memory
            .read_vectored_at(offset, &mut [&mut bytes[..]])
            .unwrap();
        bytes
    }

    /// Stores bytes without recording the write.
    pub(crate) fn put(&self, offset: u64, bytes: &[u8]) {
        self.memory.write_at(offset, bytes).unwrap();
    }
}

impl Backend for Spy {
    fn name(&self) -> &str {
        self.memory.name()
    }

    fn size_bytes(&self) -> u64 {
        self.memory.size_bytes()
    }

    fn is_writable(&self) -> bool {
        true
    }

    fn read_vectored_at(&self, offset: u64, buffers: &mut [&mut [u8]]) -> io::Result<()> {
        let length: usize = buffers.iter().map(|buffer| buffer.len()).sum();
        let range = offset..offset + length as u64;
        {
            let mut state = self.state.lock().unwrap();
            state.reads.push(range.clone());
            if let Some((left, progress)) = &mut state.stop {
                *left = left.saturating_sub(1);
                if *left == 0 {
                    progress.cancel();
                }
            }
            if let Some((_, progress)) = state.stop_from.as_ref().filter(|(from, _)| *from <= offset) {
                progress.cancel();
            }
            if state.unreadable.iter().any(|bad| overlap(bad, &range)) {
                return Err(io::Error::other("a bad sector"));
            }
        }
        self.memory.read_vectored_at(offset, buffers)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let range = offset..offset + bytes.len() as u64;
        let mut state = self.state.lock().unwrap();
        if state.fail_writes {
            return Err(io::Error::other("the device takes no writes"));
        }
        state.writes.push(range.clone());
        if state.lost_writes.iter().any(|lost| overlap(lost, &range)) {
            return Ok(());
        }
        state.unreadable.retain(|bad| !overlap(bad, &range));
        self.memory.write_at(offset, bytes)
    }

    fn flush(&self) -> io::Result<()> {
        Ok(())
    }

    fn discard(&self, _: u64, _: u64) -> io::Result<()> {
        Ok(())
    }

    fn zero(&self, offset: u64, length: u64) -> io::Result<()> {
        self.memory.zero(offset, length)
    }
}

/// Options for making a volume.
#[derive(Clone, Debug)]
pub(crate) struct Make {
    pub(crate) profile: Profile,
    pub(crate) devices: usize,
    pub(crate) checksum: ChecksumType,
    pub(crate) mixed: bool,
    /// Whether the volume has a file without checksums.
    pub(crate) bare: bool,
    /// The profile of data, if it is not that of metadata.
    pub(crate) data: Option<Profile>,
}

impl Make {
    pub(crate) fn new(profile: Profile, devices: usize) -> Self {
        Self {
            profile,
            devices,
            checksum: ChecksumType::Crc32c,
            mixed: false,
            bare: false,
            data: None,
        }
    }
}

/// The redundant profiles, each with a possible number of devices.
pub(crate) const REDUNDANT: [(Profile, usize); 7] = [
    (Profile::Dup, 1),
    (Profile::Raid1, 2),
    (Profile::Raid1C3, 3),
    (Profile::Raid1C4, 4),
    (Profile::Raid10, 4),
    (Profile::Raid5, 3),
    (Profile::Raid6, 5),
];

/// A part of a device in use.
#[derive(Clone, Debug)]
pub(crate) struct Use {
    pub(crate) device: usize,
    pub(crate) physical: u64,
    pub(crate) length: usize,
    pub(crate) logical: Logical,
    pub(crate) content: MappingContent,
    pub(crate) is_data: bool,
}

impl Use {
    /// Returns whether the part is a copy, not parity.
    pub(crate) const fn is_copy(&self) -> bool {
        matches!(self.content, MappingContent::Data { .. })
    }
}

/// Returns everything in use on all devices, found through the volume's map without the scrub.
pub(crate) fn uses_of(filesystem: &Filesystem) -> Result<Vec<Use>> {
    let volume = filesystem.volume();
    let devices: Vec<_> = volume.devices().iter().map(|slot| slot.uuid()).collect();
    let mut uses = Vec::new();
    let items = filesystem
        .tree(TreeId::EXTENT)?
        .range(Key::MIN..=Key::MAX, buttress_tree::ReadAhead::None);
    for item in items {
        let item = item?;
        let key = item.key();
        if !matches!(key.item_type, ItemType::EXTENT_ITEM | ItemType::METADATA_ITEM) {
            continue;
        }
        let extent = ExtentItem::parse(&key, item.data(), volume.block_format())?;
        for mapping in volume.map(extent.start, extent.length)? {
            let device = devices
                .iter()
                .position(|uuid| *uuid == mapping.device_uuid)
                .unwrap();
            uses.push(Use {
                device,
                physical: mapping.physical.get(),
                length: mapping.length.to_usize().unwrap(),
                logical: mapping.logical,
                content: mapping.content,
                is_data: extent.is_data(),
            });
        }
    }
    Ok(uses)
}

/// Returns a seed: the same in each run of the tests, another with `BUTTRESS_SOAK_SEED`.
pub(crate) fn seed(own: u64) -> u64 {
    let of_run = buttress_oracle::seeds::seed("scrub", "BUTTRESS_SOAK_SEED", 0);
    of_run.wrapping_mul(1_000_003).wrapping_add(own)
}

/// Returns random numbers of such a seed.
pub(crate) fn random(own: u64) -> Random {
    Random::new(seed(own))
}

/// A volume on spies.
pub(crate) struct Lab {
    pub(crate) spies: Vec<Arc<Spy>>,
}

impl Lab {
    pub(crate) fn new(make: &Make) -> Result<Self> {
        let options = MkfsOptions {
            data: Some(make.data.unwrap_or(make.profile)),
            metadata: Some(make.profile),
            checksum: Some(make.checksum),
            features: vec![(Feature::MixedBlockGroups, make.mixed)],
            ..MkfsOptions::default()
        };
        // Each device has space for two superblocks.
        let least = mkfs::least_device_bytes(&options, make.devices)?.get();
        let size = least.max(256 << 20).next_multiple_of(1 << 20) as usize;
        let spies = (0..make.devices)
            .map(|number| Spy::new(format!("device-{number}"), size))
            .collect();
        let lab = Self { spies };
        let environment = SystemEnvironment;
        let identity = Identity {
            fsid: environment.new_uuid(),
            chunk_tree: environment.new_uuid(),
            top_level: environment.new_uuid(),
            devices: lab.spies.iter().map(|_| environment.new_uuid()).collect(),
            time: environment.now(),
        };
        mkfs::make(&lab.devices(), &options, &identity)?;
        lab.fill(make.bare)?;
        for spy in &lab.spies {
            spy.take_writes();
            spy.take_reads();
        }
        Ok(lab)
    }

    pub(crate) fn devices(&self) -> Vec<Device> {
        self.spies.iter().map(Spy::device).collect()
    }

    pub(crate) fn open(&self) -> Result<Filesystem> {
        Ok(OpenOptions::new(self.devices())
            .cache(ByteCount::new(4 << 20))
            .open()?)
    }

    fn fill(&self, bare: bool) -> Result<()> {
        let filesystem = WritableFilesystem::new(self.open()?, WriteOptions::default())?;
        let root = Location::root_of(SubvolumeId::TOP_LEVEL);
        let new = NewInode::of_root(0o644);
        let mut random = random(7);
        for (name, length) in [("a", 700_000), ("b", 5_000), ("c", 70_000)] {
            let file = filesystem.create(root, name.as_bytes(), &new)?;
            filesystem.write_at(file, FileOffset::MIN, &random.bytes(length, false))?;
        }
        if bare {
            let file = filesystem.create(root, b"bare", &new)?;
            let attributes = FileAttributes::NOCOW;
            filesystem.set_flags(file, attributes)?;
            filesystem.write_at(file, FileOffset::MIN, &random.bytes(150_000, false))?;
        }
        for number in 0..300 {
            let name = format!("a-name-that-is-long-enough-to-fill-leaves-{number}");
            let file = filesystem.create(root, name.as_bytes(), &new)?;
            filesystem.set_xattr(file, b"user.value", &random.bytes(200, false), SetXattr::Create)?;
        }
        filesystem.close()?;
        Ok(())
    }

    /// Returns everything in use on all devices, found without the scrub.
    pub(crate) fn uses(&self) -> Result<Vec<Use>> {
        uses_of(&self.open()?)
    }

    /// Returns the bytes of all given extents.
    pub(crate) fn contents(&self, uses: &[Use]) -> Vec<Vec<u8>> {
        uses.iter()
            .map(|used| self.spies[used.device].read(used.physical, used.length))
            .collect()
    }

    pub(crate) fn scrub(&self) -> Result<Report> {
        self.scrub_with(Options::default())
    }

    pub(crate) fn scrub_with(&self, options: Options) -> Result<Report> {
        let filesystem = self.open()?;
        let scrub = Scrub::new(&filesystem, options, Progress::new())?;
        scrub.run()?;
        Ok(scrub.report())
    }

    /// Returns the writes to each device since the last call.
    pub(crate) fn take_writes(&self) -> Vec<Vec<Range<u64>>> {
        self.spies.iter().map(|spy| spy.take_writes()).collect()
    }

    pub(crate) fn require_sound(&self) {
        let report = self.scrub_with(Options {
            read_only: true,
            ..Options::default()
        });
        let report = report.unwrap();
        assert_eq!(report.totals().errors(), 0, "{:#?}", report.damages);
        assert_eq!(report.unwalked, Vec::<String>::new());
    }
}
