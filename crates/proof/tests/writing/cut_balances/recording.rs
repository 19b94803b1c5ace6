//! Cuts of a running balance of Linux: clones of the images of a mounted volume.
//!
//! The images are files of another btrfs volume, the host. A clone of an image holds all writes up
//! to some moment, and nothing later: the state after a power cut at that moment. With several
//! images, a set of clones counts only if no commit of the volume came in between.

use anyhow::{Context, Result, ensure};
use buttress::unstable::format::{ItemType, Key, RootItem, TreeId};
use buttress::unstable::fs::{Filesystem, OpenOptions};
use buttress::unstable::tree::ReadAhead;
use buttress_oracle::content::Random;
use buttress_oracle::history::subvolume;
use buttress_oracle::ioctls::clone_range;
use buttress_oracle::loop_device::Mount;
use buttress_oracle::tools::{newest, run};
use buttress_oracle::volumes::{Fill, Specification, format};
use buttress_proof::writing::volume::open_images;
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The offsets of the superblock and of its generation on a device.
const SUPERBLOCK_OFFSET: u64 = 65_536;
const GENERATION_OFFSET: u64 = SUPERBLOCK_OFFSET + 0x48;

const DEVICE_BYTES: u64 = 256 << 20;

/// The pause between two commits that the recording asks for.
const COMMIT_PAUSE: Duration = Duration::from_millis(25);

/// How long a small balance may take.
const BALANCE_TIME: Duration = Duration::from_secs(60);

/// The state of the relocation trees after a cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Stage {
    /// Copies of blocks are made. No subvolume uses them.
    Copying,
    /// Each merge was about to begin.
    Ready,
    /// A merge has progress, or some merges have ended.
    Merging,
    /// A tree is being dropped.
    Dropping,
}

/// A power cut during a balance.
#[derive(Debug)]
pub(super) struct Cut {
    pub(super) images: Vec<PathBuf>,
    pub(super) stage: Stage,
    pub(super) generation: u64,
}

/// A mounted btrfs volume whose files are images.
pub(super) struct Host {
    mount: Mount,
    clones: std::cell::Cell<u64>,
    _folder: tempfile::TempDir,
}

impl Host {
    pub(super) fn new() -> Result<Self> {
        let (folder, images) = format(&Specification {
            device_mib: 8192,
            metadata: "single",
            fill: Fill::Empty,
            ..Specification::default()
        })?;
        Ok(Self {
            mount: Mount::new(&images, "noatime,commit=300")?,
            clones: std::cell::Cell::new(0),
            _folder: folder,
        })
    }

    /// Clones images, each at one moment.
    pub(super) fn clone_images(&self, images: &[PathBuf]) -> Result<Vec<PathBuf>> {
        let number = self.clones.replace(self.clones.get() + 1);
        let clone = |(index, image): (usize, &PathBuf)| {
            let path = self.mount.path().join(format!("clone-{number}-{index}"));
            clone_range(&File::open(image)?, 0, 0, &File::create(&path)?, 0)?;
            Ok(path)
        };
        images.iter().enumerate().map(clone).collect()
    }
}

fn generation_of(image: &Path) -> Result<u64> {
    let mut bytes = [0; 8];
    File::open(image)?.read_exact_at(&mut bytes, GENERATION_OFFSET)?;
    Ok(u64::from_le_bytes(bytes))
}

pub(super) fn remove(images: &[PathBuf]) -> Result<()> {
    images.iter().try_for_each(|image| Ok(fs::remove_file(image)?))
}

/// The root items of a volume's relocation trees.
pub(super) fn relocation_trees(filesystem: &Filesystem) -> Result<Vec<RootItem>> {
    let first = Key::new(TreeId::TREE_RELOCATION.object_id(), ItemType::ROOT_ITEM, 0);
    let last = Key {
        offset: u64::MAX,
        ..first
    };
    let items = filesystem.root_tree().range(first..=last, ReadAhead::None);
    items
        .map(|item| {
            let item = item?;
            Ok(RootItem::parse(
                &item.key(),
                item.data(),
                filesystem.sector_bytes(),
            )?)
        })
        .collect()
}

fn stage_of(images: &[PathBuf]) -> Result<Option<Stage>> {
    let trees = relocation_trees(&OpenOptions::new(open_images(images, false)?).open()?)?;
    if trees.is_empty() {
        return Ok(None);
    }
    let has_progress = |tree: &RootItem| tree.drop_progress != Key::MIN;
    let merges = |tree: &RootItem| tree.references > 0;
    let (some, all) = (trees.iter().any(merges), trees.iter().all(merges));
    let has_any = trees.iter().any(has_progress);
    Ok(Some(match (all, some, has_any) {
        (true, _, false) => Stage::Ready,
        (_, true, _) => Stage::Merging,
        (_, false, true) => Stage::Dropping,
        (_, false, false) => Stage::Copying,
    }))
}

/// The volume, the balance and the writers of a recording.
#[derive(Debug)]
pub(super) struct Recording {
    seed: u64,
    node_bytes: u64,
    devices: usize,
    files: u64,
    words: &'static [&'static str],
    has_writer: bool,
}

const BALANCES: [(usize, &[&str]); 5] = [
    (1, &["-m"]),
    (1, &["--full-balance"]),
    (1, &["-f", "-dconvert=dup", "-mconvert=single"]),
    (2, &["-dconvert=raid1", "-mconvert=raid1"]),
    (2, &["--full-balance"]),
];

impl Recording {
    /// Returns the recording of the ordinary suite.
    pub(super) const fn small() -> Self {
        Self {
            seed: 5,
            node_bytes: 4096,
            devices: 1,
            files: 220,
            words: BALANCES[1].1,
            has_writer: false,
        }
    }

    pub(super) fn drawn(seed: u64) -> Result<Self> {
        let mut random = Random::new(seed);
        let (devices, words) = BALANCES[usize::try_from(random.below(5))?];
        Ok(Self {
            seed,
            node_bytes: [4096, 4096, 16384][usize::try_from(random.below(3))?],
            devices,
            files: 200 + random.below(600),
            words,
            has_writer: random.one_in(2),
        })
    }

    fn fill(&self, top: &Path) -> Result<()> {
        let mut random = Random::new(self.seed);
        let mut sources = Vec::new();
        for number in 0..2 {
            let source = top.join(format!("source-{number}"));
            subvolume(&["create"], &[&source])?;
            self.write_files(&mut random, &source, "file", self.files)?;
            sources.push(source);
        }
        for number in 0..6 {
            let source = &sources[usize::try_from(random.below(2))?];
            subvolume(&["snapshot"], &[source, &top.join(format!("snapshot-{number}"))])?;
            self.write_files(&mut random, source, &format!("later-{number}"), self.files / 16)?;
            for file in 0..self.files / 16 {
                let path = source.join(format!("file-{}", (file * 16 + number) % self.files));
                File::options()
                    .write(true)
                    .open(path)?
                    .write_all_at(&random.bytes(100, false), random.below(4000))?;
            }
        }
        Ok(())
    }

    fn write_files(&self, random: &mut Random, directory: &Path, name: &str, count: u64) -> Result<()> {
        for number in 0..count {
            let length = [10, 600, 1900, 5000, 20_000, 70_000][usize::try_from(random.below(6))?];
            fs::write(
                directory.join(format!("{name}-{number}")),
                random.bytes(length, false),
            )?;
        }
        Ok(())
    }

    /// Makes the volume, balances it, and returns one cut for each commit with relocation trees.
    pub(super) fn cuts(&self, host: &Host) -> Result<Vec<Cut>> {
        let images: Vec<PathBuf> = (0..self.devices)
            .map(|number| host.mount.path().join(format!("volume-{}-{number}", self.seed)))
            .collect();
        for image in &images {
            File::create(image)?.set_len(DEVICE_BYTES)?;
        }
        let metadata = if self.devices == 1 { "dup" } else { "raid1" };
        run(Command::new(newest("mkfs.btrfs"))
            .args(["-q", "-d", "single", "-m", metadata, "-n"])
            .arg(self.node_bytes.to_string())
            .args(&images))?;
        let mount = Mount::new(&images, "noatime,commit=300")?;
        self.fill(mount.path())?;
        sync(mount.path())?;
        let clones = self.record(host, &images, mount.path())?;
        mount.close()?;
        remove(&images)?;
        let mut cuts = Vec::new();
        for (generation, images) in clones {
            match stage_of(&images)? {
                Some(stage) => cuts.push(Cut {
                    images,
                    stage,
                    generation,
                }),
                None => remove(&images)?,
            }
        }
        Ok(cuts)
    }

    fn record(&self, host: &Host, images: &[PathBuf], top: &Path) -> Result<Vec<(u64, Vec<PathBuf>)>> {
        let mut balance = Command::new(newest("btrfs"))
            .args(["balance", "start"])
            .args(self.words)
            .arg(top)
            .stdout(Stdio::null())
            .spawn()?;
        let has_ended = AtomicBool::new(false);
        let begin = Instant::now();
        std::thread::scope(|threads| {
            threads.spawn(|| {
                while !has_ended.load(Ordering::Relaxed) {
                    let _ = sync(top);
                    std::thread::sleep(COMMIT_PAUSE);
                }
            });
            if self.has_writer {
                threads.spawn(|| self.write_beside(top, &has_ended));
            }
            let recorded = (|| -> Result<Vec<(u64, Vec<PathBuf>)>> {
                let (mut seen, mut clones) = (BTreeSet::new(), Vec::new());
                while balance.try_wait()?.is_none() {
                    ensure!(begin.elapsed() < BALANCE_TIME, "the balance does not end");
                    let generation = generation_of(&images[0])?;
                    if seen.contains(&generation) {
                        continue;
                    }
                    let clone = host.clone_images(images)?;
                    let found = clone
                        .iter()
                        .map(|image| generation_of(image))
                        .collect::<Result<BTreeSet<_>>>()?;
                    let is_one_state = found.len() == 1
                        && (images.len() == 1 || found.contains(&generation_of(&images[0])?));
                    match found.first() {
                        Some(generation) if is_one_state && seen.insert(*generation) => {
                            clones.push((*generation, clone));
                        }
                        _ => remove(&clone)?,
                    }
                }
                Ok(clones)
            })();
            has_ended.store(true, Ordering::Relaxed);
            let _ = balance.kill();
            let _ = balance.wait();
            recorded.context("recording a balance")
        })
    }

    /// Changes files, and makes a snapshot at times, until the balance has ended.
    fn write_beside(&self, top: &Path, has_ended: &AtomicBool) {
        let mut random = Random::new(self.seed + 1);
        for number in 0_u64.. {
            if has_ended.load(Ordering::Relaxed) {
                return;
            }
            let source = top.join(format!("source-{}", random.below(2)));
            let path = source.join(format!("beside-{}", random.below(40)));
            let _ = fs::write(path, random.bytes(2000, false));
            let _ = fs::remove_file(source.join(format!("file-{}", random.below(self.files))));
            if random.one_in(30) {
                let _ = subvolume(&["snapshot"], &[&source, &top.join(format!("late-{number}"))]);
            }
            std::thread::sleep(Duration::from_millis(8));
        }
    }
}

fn sync(top: &Path) -> Result<()> {
    run(Command::new("sync").arg("-f").arg(top)).map(drop)
}
