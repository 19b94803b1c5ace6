//! Volumes that the kernel wrote, in every profile. All blocks and all data must verify with every
//! device, with every allowed set missing, and with one device's copies overwritten by noise.
//!
//! The test walks trees by recursion, because the tree layer is above this crate. Needs root, loop
//! devices, mkfs.btrfs and a kernel with btrfs; elsewhere each case is skipped.
#![allow(
    clippy::arithmetic_side_effects,
    clippy::cast_possible_truncation,
    clippy::panic,
    clippy::unreachable,
    clippy::too_many_lines,
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test"
)]

use buttress_device::Device;
use buttress_format::{
    ByteCount, Chunk, DeviceItem, Expectation, Generation, ItemType, Logical, TreeBlock, TreeId,
};
use buttress_oracle::harness::{Case, Outcome, run as run_cases};
use buttress_oracle::tools::kernel_missing;
use buttress_volume::{ExtentRead, OpenOptions, Rejection, Volume};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// Metadata profile, data profile, devices, devices that may be missing, further options of mkfs.
const SHAPES: [(&str, &str, usize, usize, &[&str]); 11] = [
    ("single", "single", 1, 0, &[]),
    ("dup", "dup", 1, 0, &["--csum", "xxhash"]),
    ("single", "single", 1, 0, &["--mixed"]),
    ("raid1", "raid0", 3, 0, &[]),
    ("raid1", "raid1", 2, 1, &["--csum", "sha256"]),
    ("raid1c3", "raid1c3", 3, 2, &[]),
    ("raid1c4", "raid1c4", 4, 3, &["--csum", "blake2b"]),
    ("raid10", "raid10", 4, 1, &[]),
    ("raid5", "raid5", 3, 1, &[]),
    ("raid6", "raid6", 4, 2, &[]),
    ("raid6", "raid6", 5, 2, &["--nodesize", "64k"]),
];
const DEVICE_BYTES: u64 = 256 << 20;

fn run(program: &str, arguments: &[&str]) -> Result<String, String> {
    let output = Command::new(program)
        .args(arguments)
        .output()
        .map_err(|error| format!("{program}: {error}"))?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned()),
        false => Err(format!(
            "{program} {arguments:?}: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        )),
    }
}

/// Loop devices and a mount, which are removed in the correct order.
struct Mounted {
    loops: Vec<String>,
    point: PathBuf,
    mounted: bool,
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if self.mounted {
            let _ = run("umount", &[self.point.to_str().unwrap()]);
        }
        for device in &self.loops {
            let _ = run("btrfs", &["device", "scan", "--forget", device]);
            let _ = run("losetup", &["--detach", device]);
        }
    }
}

impl Mounted {
    /// Attaches the images and mounts their volume.
    fn new(images: &[PathBuf], options: &str) -> Result<Self, String> {
        let point = images[0].with_extension("mount");
        std::fs::create_dir_all(&point).unwrap();
        let mut mounted = Self {
            loops: Vec::new(),
            point,
            mounted: false,
        };
        for image in images {
            let device = run(
                "losetup",
                &["--partscan", "--find", "--show", image.to_str().unwrap()],
            )?;
            mounted.loops.push(device);
        }
        for device in &mounted.loops {
            run("btrfs", &["device", "scan", device])?;
        }
        run(
            "mount",
            &[
                "-t",
                "btrfs",
                "-o",
                options,
                &mounted.loops[0],
                mounted.point.to_str().unwrap(),
            ],
        )?;
        mounted.mounted = true;
        Ok(mounted)
    }

    /// Writes files of many sizes that hold noise.
    fn fill(&self, seed: u64) -> Result<(), String> {
        let mut state = seed;
        let mut noise = |length: usize| -> Vec<u8> {
            let bytes = core::iter::repeat_with(|| {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                (state >> 24) as u8
            });
            bytes.take(length).collect()
        };
        for (index, length) in [5 << 20, 3 << 20, 1 << 20, 300_000, 70_000, 9 << 20]
            .into_iter()
            .enumerate()
        {
            std::fs::write(self.point.join(format!("large{seed}-{index}")), noise(length)).unwrap();
        }
        for index in 0..2000usize {
            std::fs::write(
                self.point.join(format!("file{seed}-{index}")),
                noise(index % 97 * 40),
            )
            .unwrap();
        }
        run("sync", &["-f", self.point.to_str().unwrap()]).map(drop)
    }
}

fn images(directory: &Path, count: usize) -> Vec<PathBuf> {
    let images: Vec<_> = (0..count)
        .map(|index| directory.join(format!("{index}.img")))
        .collect();
    for image in &images {
        std::fs::File::create(image)
            .and_then(|file| file.set_len(DEVICE_BYTES))
            .unwrap();
    }
    images
}

fn mkfs(images: &[PathBuf], options: &[&str]) -> Result<(), String> {
    let paths: Vec<&str> = images.iter().map(|image| image.to_str().unwrap()).collect();
    run("mkfs.btrfs", &[&["-q", "-f"], options, &paths[..]].concat()).map(drop)
}

/// Tests reads of a profile with all devices, with missing devices, and with damaged devices.
fn profile(directory: &Path, shape: (&str, &str, usize, usize, &[&str])) -> Result<(), String> {
    let (metadata, data, devices, tolerated, options) = shape;
    let images = images(directory, devices);
    mkfs(&images, &[&["-m", metadata, "-d", data], options].concat())?;
    Mounted::new(&images, "defaults")?.fill(1)?;
    check(&images, tolerated);
    Ok(())
}

/// Tests a volume that sprouted from a seed: its tree blocks have two fsids, and so do its
/// superblocks.
fn seed(directory: &Path) -> Result<(), String> {
    let images = images(directory, 2);
    let [seed, sprout] = &images[..] else {
        unreachable!()
    };
    mkfs(core::slice::from_ref(seed), &["-m", "single", "-d", "single"])?;
    Mounted::new(core::slice::from_ref(seed), "defaults")?.fill(1)?;
    run("btrfstune", &["-S", "1", seed.to_str().unwrap()])?;
    {
        let mut mounted = Mounted::new(core::slice::from_ref(seed), "defaults")?;
        let device = run(
            "losetup",
            &["--partscan", "--find", "--show", sprout.to_str().unwrap()],
        )?;
        mounted.loops.push(device.clone());
        let point = mounted.point.to_str().unwrap().to_owned();
        run("btrfs", &["device", "add", "-f", &device, &point])?;
        run("mount", &["-o", "remount,rw", &point])?;
        mounted.fill(2)?;
    }
    let reader = open(&images, &[]);
    assert!(reader.volume.block_format().seed_fsids.len() == 1);
    assert!(
        reader.volume.notices().is_empty(),
        "{:?}",
        reader.volume.notices()
    );
    assert!(reader.read_all().sectors > 8000);
    assert!(reader.volume.faults().is_empty());
    let alone = open(&images, &[1]);
    assert_eq!(alone.volume.notices(), [buttress_volume::Notice::Seed]);
    assert!(alone.read_all().sectors > 4000);
    Ok(())
}

/// Tests a volume whose fsid was changed while its tree blocks kept the old fsid.
fn metadata_uuid(directory: &Path) -> Result<(), String> {
    let images = images(directory, 1);
    mkfs(&images, &["-m", "dup", "-d", "single"])?;
    Mounted::new(&images, "defaults")?.fill(1)?;
    run("btrfstune", &["-m", images[0].to_str().unwrap()])?;
    let superblock = open(&images, &[]).volume.superblock().clone();
    assert_ne!(superblock.fsid, superblock.metadata_uuid);
    check(&images, 0);
    Ok(())
}

/// Tests a device that was absent while the volume was written.
fn stale(directory: &Path) -> Result<(), String> {
    let images = images(directory, 2);
    mkfs(&images, &["-m", "raid1", "-d", "raid1"])?;
    Mounted::new(&images, "defaults")?.fill(1)?;
    Mounted::new(&images[1..], "degraded")?.fill(2)?;
    let reader = open(&images, &[]);
    let notices = reader.volume.notices();
    assert!(
        matches!(notices[..], [buttress_volume::Notice::StaleDevice { .. }]),
        "{notices:?}"
    );
    assert!(reader.read_all().sectors > 8000);
    assert!(
        reader.volume.faults().is_empty(),
        "the stale copies were not needed"
    );
    assert!(open(&images, &[0]).read_all().sectors > 8000);
    Ok(())
}

/// The results of a walk over a volume.
#[derive(Default, Debug, PartialEq, Eq, Clone, Copy)]
struct Seen {
    blocks: usize,
    sectors: usize,
}

struct Reader {
    volume: Volume,
}

impl Reader {
    fn block(&self, expected: &Expectation) -> TreeBlock {
        let length = usize::try_from(self.volume.superblock().node_bytes).unwrap();
        let read = ExtentRead {
            logical: expected.logical,
            length,
        };
        let format = self.volume.block_format();
        let mut verify = |bytes| TreeBlock::check(bytes, format, expected).map_err(Rejection::from);
        self.volume
            .read_verified(read, &mut verify)
            .unwrap_or_else(|error| panic!("{error}"))
    }

    /// Visits the leaves below a block. Returns the number of blocks.
    fn walk(&self, expected: &Expectation, visit: &mut dyn FnMut(&TreeBlock)) -> usize {
        let block = self.block(expected);
        let mut blocks = 1;
        if block.is_leaf() {
            visit(&block);
        }
        for pointer in block.pointers() {
            let below = Expectation {
                logical: pointer.logical,
                level: block.level().checked_sub(1),
                generation: Some(pointer.generation),
                owner: expected.owner,
                first_key: Some(pointer.key),
            };
            blocks += self.walk(&below, visit);
        }
        blocks
    }

    fn root(logical: Logical, level: u8, generation: Generation, owner: TreeId) -> Expectation {
        Expectation {
            level: Some(level),
            generation: Some(generation),
            owner: Some(owner),
            ..Expectation::at(logical)
        }
    }

    fn open(devices: Vec<Device>) -> Self {
        let volume = Volume::open(
            devices,
            OpenOptions {
                degraded: true,
                ..OpenOptions::default()
            },
        )
        .unwrap();
        let reader = Self { volume };
        let superblock = reader.volume.superblock();
        let root = Self::root(
            superblock.chunk_root,
            superblock.chunk_root_level,
            superblock.chunk_root_generation,
            TreeId::CHUNK,
        );
        reader.walk(&root, &mut |leaf| {
            for item in leaf.items() {
                match item.key.item_type {
                    ItemType::DEV_ITEM => {
                        reader
                            .volume
                            .add_device(DeviceItem::parse(&item.key, item.data).unwrap())
                            .unwrap();
                    }
                    ItemType::CHUNK_ITEM => {
                        let chunk = Chunk::parse(&item.key, item.data, superblock.sector_bytes).unwrap();
                        reader
                            .volume
                            .add_chunk(Logical::new(item.key.offset), chunk)
                            .unwrap();
                    }
                    _ => {}
                }
            }
        });
        reader.volume.finish_bootstrap().unwrap();
        reader
    }

    /// Reads and verifies every block of every tree and every sector that has a checksum.
    fn read_all(&self) -> Seen {
        let superblock = self.volume.superblock();
        let root = Self::root(
            superblock.root,
            superblock.root_level,
            superblock.generation,
            TreeId::ROOT,
        );
        let mut roots = Vec::new();
        let mut seen = Seen::default();
        seen.blocks += self.walk(&root, &mut |leaf| {
            for item in leaf
                .items()
                .filter(|item| item.key.item_type == ItemType::ROOT_ITEM)
            {
                // On-disk format documentation, section "ROOT_ITEM": address, generation and level.
                let number = |at: usize| u64::from_le_bytes(item.data[at..at + 8].try_into().unwrap());
                let owner = TreeId::new(item.key.objectid.get());
                let generation = Generation::new(number(160));
                roots.push(Self::root(
                    Logical::new(number(176)),
                    item.data[238],
                    generation,
                    owner,
                ));
            }
        });
        for root in roots {
            seen.blocks += self.walk(&root, &mut |leaf| {
                for item in leaf
                    .items()
                    .filter(|item| item.key.item_type == ItemType::EXTENT_CSUM)
                {
                    seen.sectors += self.verify_data(item.key.offset, item.data);
                }
            });
        }
        seen
    }

    /// Reads the data that a checksum item covers, in pieces, and compares the checksums.
    fn verify_data(&self, start: u64, checksums: &[u8]) -> usize {
        let superblock = self.volume.superblock();
        let size = superblock.checksum_type.size_bytes();
        let sector = usize::try_from(superblock.sector_bytes).unwrap();
        let wanted: Vec<&[u8]> = checksums.chunks(size).collect();
        for (index, wanted) in wanted.chunks(200).enumerate() {
            let logical = Logical::new(start + ByteCount::of(index * 200 * sector).get());
            let verify = |data: &[u8], bad: &mut Vec<Range<usize>>| {
                for (index, (data, wanted)) in data.chunks(sector).zip(wanted).enumerate() {
                    if superblock.checksum_type.compute(data).as_bytes() != *wanted {
                        bad.push(index * sector..(index + 1) * sector);
                    }
                }
            };
            let read = ExtentRead {
                logical,
                length: wanted.len() * sector,
            };
            let (_, lost) = self.volume.read_data(read, &verify).unwrap();
            assert!(lost.is_empty(), "{}", lost[0].error);
        }
        wanted.len()
    }
}

/// Returns all sets of at most `size` of the numbers below `count`.
fn subsets(count: usize, size: usize) -> Vec<Vec<usize>> {
    (0u32..1 << count)
        .map(|bits| {
            (0..count)
                .filter(|index| bits >> index & 1 == 1)
                .collect::<Vec<_>>()
        })
        .filter(|set| set.len() <= size)
        .collect()
}

fn open(images: &[PathBuf], missing: &[usize]) -> Reader {
    let given = images
        .iter()
        .enumerate()
        .filter(|(index, _)| !missing.contains(index));
    let options = buttress_device::OpenOptions::default();
    Reader::open(
        given
            .map(|(_, image)| Device::open(image, &options).unwrap())
            .rev()
            .collect(),
    )
}

/// Asserts that all blocks and data verify: with all devices, with every allowed set missing, with
/// noise on the last device.
fn check(images: &[PathBuf], tolerated: usize) {
    let whole = open(images, &[]);
    let seen = whole.read_all();
    assert!(seen.blocks > 20 && seen.sectors > 4000, "{seen:?}");
    assert!(whole.volume.faults().is_empty(), "{:?}", whole.volume.faults());
    assert!(whole.volume.notices().is_empty(), "{:?}", whole.volume.notices());
    for missing in subsets(images.len(), tolerated) {
        let reader = open(images, &missing);
        assert_eq!(reader.read_all(), seen, "without {missing:?}");
        assert!(reader.volume.may_be_written());
    }
    if tolerated > 0 {
        let last = images.len() - 1;
        spoil(&images[last]);
        let reader = open(images, &[]);
        assert_eq!(reader.read_all(), seen, "with noise in {last}");
        let faults = reader.volume.faults();
        assert!(faults.total() > 0);
        assert_eq!(
            faults.counts.keys().map(|id| id.get()).collect::<Vec<_>>(),
            [last as u64 + 1]
        );
    }
}

/// Overwrites all used bytes after the first mebibyte with noise, so the superblock stays.
fn spoil(image: &Path) {
    use std::os::unix::fs::FileExt;
    let file = std::fs::File::options()
        .read(true)
        .write(true)
        .open(image)
        .unwrap();
    let mut buffer = vec![0; 1 << 20];
    for at in (1 << 20..DEVICE_BYTES).step_by(buffer.len()) {
        file.read_exact_at(&mut buffer, at).unwrap();
        if buffer.iter().any(|byte| *byte != 0) {
            buffer.iter_mut().for_each(|byte| *byte ^= 0x5a);
            file.write_all_at(&buffer, at).unwrap();
        }
    }
}

/// Makes a test case with a directory of its own.
fn case(name: String, body: impl Fn(&Path) -> Result<(), String> + Send + Sync + 'static) -> Case {
    Case::new(name, move || {
        if let Some(missing) = kernel_missing() {
            return Ok(Outcome::Skipped(missing));
        }
        body(scratch().path()).map_err(anyhow::Error::msg)?;
        Ok(Outcome::Passed)
    })
}

fn main() -> ExitCode {
    let profiles = SHAPES.map(|shape| {
        let (metadata, data, devices, _, options) = shape;
        let name = format!("{metadata}_{data}_on_{devices}{}", options.concat());
        case(name, move |directory| profile(directory, shape))
    });
    let mut cases = Vec::from(profiles);
    cases.push(case("seed".to_owned(), seed));
    cases.push(case("metadata_uuid".to_owned(), metadata_uuid));
    cases.push(case("stale_device".to_owned(), stale));
    run_cases(cases)
}

/// Returns a directory in memory if possible, so that the kernel's commits wait for no disk.
fn scratch() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm")
        .or_else(|_| tempfile::tempdir())
        .unwrap()
}
