//! The sound volumes: what is on them, and what each of their commits held.
//!
//! A base is made with the kernel in steps. Each step ends with a sync, and then all files are read,
//! so the contents that any commit holds are known. A restored file whose content no commit held is
//! wrong.

use anyhow::{Context, Result, ensure};
use buttress_hostile::damage::Subject;
use buttress_hostile::mutation::Aims;
use buttress_hostile::seed_volume::{SeedDevice, SeedVolume};
use buttress_hostile::seeds;
use buttress_oracle::content::Random;
use buttress_oracle::loop_device::Mount;
use buttress_oracle::tools::{newest, run};
use buttress_oracle::volumes::{Fill, Specification, format};
use rustix::fs::{FallocateFlags, fallocate};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

/// The content of regular files by path.
pub type Files = BTreeMap<PathBuf, Vec<u8>>;

/// A sound volume.
#[derive(Debug)]
pub struct Base {
    pub aims: Aims,
    before: Option<SeedDevice>,
    formatted: Option<SeedDevice>,
    /// The files of the last commit.
    pub files: Files,
    /// The hashes of the contents of each path in any commit; `None` if only the last one is known.
    commits: Option<BTreeMap<PathBuf, BTreeSet<u64>>>,
}

impl Base {
    pub const fn subject(&self) -> Subject<'_> {
        Subject {
            aims: &self.aims,
            before: self.before.as_ref(),
            formatted: self.formatted.as_ref(),
        }
    }

    /// Returns whether a commit held this content of a path. Without known commits, only the last
    /// commit can be wrong.
    pub fn held(&self, path: &Path, content: &[u8], is_last: bool) -> bool {
        if self.files.get(path).is_some_and(|last| last == content) {
            return true;
        }
        match &self.commits {
            Some(commits) => commits
                .get(path)
                .is_some_and(|hashes| hashes.contains(&hash(content))),
            None => !is_last,
        }
    }
}

fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3)
    })
}

/// Reads all regular files below a directory. Files that cannot be read are left out.
pub fn read_all(top: &Path) -> Files {
    let mut files = Files::new();
    let mut waiting = vec![PathBuf::new()];
    while let Some(directory) = waiting.pop() {
        let Ok(entries) = std::fs::read_dir(top.join(&directory)) else {
            continue;
        };
        for entry in entries.filter_map(Result::ok) {
            let path = directory.join(entry.file_name());
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => waiting.push(path),
                Ok(kind) if kind.is_file() => {
                    if let Ok(content) = read_partly(&entry.path()) {
                        files.insert(path, content);
                    }
                }
                _ => {}
            }
        }
    }
    files
}

/// The most bytes of a file that count.
const FILE_BYTES_MAX: u64 = 8 << 20;

/// Reads a file in blocks. Blocks that cannot be read are zeros.
fn read_partly(path: &Path) -> std::io::Result<Vec<u8>> {
    use std::os::unix::fs::FileExt;
    const BLOCK: usize = 4096;
    let file = File::open(path)?;
    let length = usize::try_from(file.metadata()?.len().min(FILE_BYTES_MAX)).unwrap_or(0);
    let mut content = vec![0; length];
    if file.read_exact_at(&mut content, 0).is_ok() {
        return Ok(content);
    }
    for (number, block) in content.chunks_mut(BLOCK).enumerate() {
        if file.read_exact_at(block, (number * BLOCK) as u64).is_err() {
            block.fill(0);
        }
    }
    Ok(content)
}

/// Returns a seed volume of one device. Its earlier commits are unknown.
pub fn of_seed(name: &str) -> Result<Base> {
    let mut volumes = seeds::volumes().iter();
    let aims = volumes.find(|aims| aims.volume.name.contains(name));
    let aims = aims.context("the seed volume exists")?;
    let copy = SeedVolume {
        name: aims.volume.name.clone(),
        devices: aims.volume.devices.clone(),
    };
    let folder = buttress_oracle::volumes::scratch()?;
    let images = buttress_hostile::editor::Editor::new(aims).write_images(folder.path())?;
    let mount = Mount::new(&images, "ro,subvolid=5")?;
    let files = read_all(mount.path());
    mount.close()?;
    ensure!(!files.is_empty(), "{name} has files");
    Ok(Base {
        aims: Aims::new(copy),
        before: None,
        formatted: None,
        files,
        commits: None,
    })
}

/// The size of the large base.
const DEVICE_MIB: u64 = 256;

/// Makes the large base: small and large files, snapshots, shared extents, compression, and trees
/// with nodes.
pub fn large(seed: u64) -> Result<Base> {
    let specification = Specification {
        device_mib: DEVICE_MIB,
        node_kib: 4,
        metadata: "single",
        fill: Fill::Empty,
        ..Specification::default()
    };
    let (folder, images) = format(&specification)?;
    let image = images.first().context("an image")?;
    let mut commits: BTreeMap<PathBuf, BTreeSet<u64>> = BTreeMap::new();
    let mut before = None;
    for step in 0..STEPS {
        if step + 1 == STEPS {
            before = Some(packed(image)?);
        }
        let mount = Mount::new(&images, "commit=300")?;
        change(mount.path(), seed, step).with_context(|| format!("step {step}"))?;
        rustix::fs::syncfs(File::open(mount.path())?)?;
        for (path, content) in read_all(mount.path()) {
            commits.entry(path).or_default().insert(hash(&content));
        }
        mount.close()?;
    }
    let mount = Mount::new(&images, "ro,subvolid=5")?;
    let files = read_all(mount.path());
    mount.close()?;
    let volume = SeedVolume {
        // The plants of this seed volume find their places here, too.
        name: "large-kinds".to_owned(),
        devices: vec![Arc::new(packed(image)?)],
    };
    drop(folder);
    let (folder, others) = buttress_oracle::volumes::format(&specification)?;
    let formatted = packed(others.first().context("an image")?)?;
    drop(folder);
    Ok(Base {
        aims: Aims::new(volume),
        before,
        formatted: Some(formatted),
        files,
        commits: Some(commits),
    })
}

fn packed(image: &Path) -> Result<SeedDevice> {
    Ok(SeedDevice::of_image(std::io::BufReader::with_capacity(
        1 << 20,
        File::open(image)?,
    ))?)
}

/// The number of steps, each with commits of its own.
const STEPS: u64 = 4;

/// Makes the changes of a step.
fn change(top: &Path, seed: u64, step: u64) -> Result<()> {
    let mut random = Random::new(seed ^ step << 32);
    let btrfs = |words: &[&str], paths: &[PathBuf]| {
        run(Command::new(newest("btrfs")).args(words).args(paths)).map(drop)
    };
    let work = top.join("work");
    if step == 0 {
        btrfs(&["subvolume", "create"], std::slice::from_ref(&work))?;
        for name in ["small", "middle", "large"] {
            std::fs::create_dir(top.join(name))?;
        }
    }
    let mut write = |path: PathBuf, length: u64| {
        let compressible = random.one_in(2);
        std::fs::write(
            path,
            random.bytes(usize::try_from(length).unwrap_or(0), compressible),
        )
    };
    for number in 0..60 {
        write(top.join(format!("small/{step}-{number}")), 100 + number * 30)?;
        write(work.join(format!("{step}-{number}")), 1000 + number * 150)?;
    }
    // Files of earlier steps get other content.
    for number in (0..60).filter(|number| number % 9 == step && step > 0) {
        write(top.join(format!("small/{}-{number}", step - 1)), 500)?;
        write(work.join(format!("{}-{number}", step - 1)), 9000)?;
    }
    for number in 0..12 {
        write(
            top.join(format!("middle/{step}-{number}")),
            20_000 + number * 9000,
        )?;
    }
    write(top.join(format!("large/{step}")), 1_500_000)?;
    if step > 0 {
        let old = top.join(format!("middle/{}-3", step - 1));
        std::fs::remove_file(old)?;
    }
    share_and_punch(top, step)?;
    rustix::fs::syncfs(File::open(top)?)?;
    btrfs(
        &["subvolume", "snapshot", "-r"],
        &[work, top.join(format!("snapshot-{step}"))],
    )
}

/// Shares extents between files, and punches a hole.
fn share_and_punch(top: &Path, step: u64) -> Result<()> {
    let source = File::options()
        .read(true)
        .write(true)
        .open(top.join(format!("large/{step}")))?;
    let clone = File::create(top.join(format!("large/clone-{step}")))?;
    rustix::fs::ioctl_ficlone(&clone, &source)?;
    let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    Ok(fallocate(&source, hole, 300_000, 200_000)?)
}
