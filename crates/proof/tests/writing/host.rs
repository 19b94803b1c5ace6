//! An image file with holes whose host becomes full at some write of a run. On a full host, calls
//! fail with the host's error number and with no other error, and writing continues. While the
//! volume is open, no acknowledged content is lost. Synced content survives a crash. With space on
//! the host again, or after files are deleted, a commit succeeds.
//!
//! The host becomes full at writes that a seed draws from those of the run (`BUTTRESS_HOST_SEED`, `BUTTRESS_HOST_CUTS`).

use anyhow::{Context, Result, bail, ensure};
use buttress::mkfs::{Feature, Options};
use buttress::unstable::fs::{Error, Filesystem, OpenOptions};
use buttress::unstable::writer::{WritableFilesystem, WriteOptions};
use buttress::{Backend, Device, DeviceEngine as Engine, FileOffset, Location, NewInode, Profile};
use buttress_lab::SparseBackend;
use buttress_oracle::content::Random;
use buttress_proof::harness::{Case, Outcome};
use buttress_proof::writing::fill::TOP;
use buttress_proof::writing::volume::{Backends, Ticking, empty, open_checked};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Number of operations in a run.
const OPERATIONS: u64 = 60;

/// Space of a host that never becomes full, in bytes.
const PLENTY: u64 = 1 << 40;

/// The content of files, by name.
type Contents = BTreeMap<Vec<u8>, Vec<u8>>;

/// A volume on a host that becomes full, with its known contents.
struct Subject {
    /// Underlying devices.
    backends: Backends,
    sparse: Vec<Arc<SparseBackend>>,
    filesystem: WritableFilesystem,
    random: Random,
    /// Contents that calls have acknowledged.
    acknowledged: Contents,
    /// Contents that a sync of the file, or a commit, has acknowledged. If a name is missing, it
    /// was later synced with other content.
    synced: Contents,
    /// Number of calls that found no space.
    refused: u64,
    errno: i32,
}

impl Subject {
    fn new(device_bytes: &[usize], options: &Options, seed: u64, errno: i32) -> Result<Self> {
        let backends = empty(device_bytes, options)?;
        let sparse = |backend: &Arc<dyn Backend>| SparseBackend::new(Arc::clone(backend), PLENTY);
        let sparse: Vec<_> = backends.iter().map(sparse).collect();
        sparse.iter().for_each(|sparse| sparse.fail_with(errno));
        let filesystem = Self::open(&sparse)?;
        Ok(Self {
            backends,
            sparse,
            filesystem,
            random: Random::new(seed),
            acknowledged: Contents::new(),
            synced: Contents::new(),
            refused: 0,
            errno,
        })
    }

    fn open(sparse: &[Arc<SparseBackend>]) -> Result<WritableFilesystem> {
        let devices = sparse.iter().map(|sparse| {
            let backend = Arc::clone(sparse) as Arc<dyn Backend>;
            Device::with_backend(backend, Engine::Inline)
        });
        let options = WriteOptions {
            environment: Arc::new(Ticking::default()),
            ..WriteOptions::default()
        };
        let filesystem = OpenOptions::new(devices.collect()).open()?;
        Ok(WritableFilesystem::new(filesystem, options)?)
    }

    /// Returns the result of a successful call; the only allowed failure is missing space on the
    /// host.
    fn took<T>(&mut self, answer: Result<T, Error>) -> Result<Option<T>> {
        match answer {
            Ok(answer) => Ok(Some(answer)),
            Err(error) if error.errno() == self.errno && matches!(error, Error::OutOfHostSpace(_)) => {
                let told = error.to_string();
                ensure!(
                    told.contains("host file system"),
                    "{told} does not name the host file system"
                );
                self.refused += 1;
                Ok(None)
            }
            Err(error) => Err(error).context("an error of another kind"),
        }
    }

    fn name(&mut self) -> Vec<u8> {
        format!("file-{}", self.random.below(12)).into_bytes()
    }

    fn file(&mut self, name: &[u8]) -> Result<Option<Location>> {
        if let Some(found) = self.filesystem.live().lookup(TOP, name)? {
            return Ok(Some(found.target));
        }
        let made = self.filesystem.create(TOP, name, &NewInode::of_root(0o600));
        let made = self.took(made)?;
        if made.is_some() {
            self.acknowledged.insert(name.to_vec(), Vec::new());
        }
        Ok(made)
    }

    fn step(&mut self) -> Result<()> {
        let name = self.name();
        match self.random.below(20) {
            0..10 => self.write(&name),
            10..14 => self.sync(&name),
            14..16 => self.commit(),
            16..18 => self.make_small_files(),
            _ => self.remove(&name),
        }
    }

    fn write(&mut self, name: &[u8]) -> Result<()> {
        let Some(file) = self.file(name)? else {
            return Ok(());
        };
        let length = usize::try_from(1 + self.random.below(400_000))?;
        let bytes = self.random.bytes(length, false);
        let content = self.acknowledged.get(name).cloned().unwrap_or_default();
        let at = usize::try_from(self.random.below(content.len() as u64 + 1))?;
        let written = self.filesystem.write_at(file, FileOffset::new(at as u64), &bytes);
        if self.took(written)?.is_some() {
            let mut content = content;
            content.resize(content.len().max(at + length), 0);
            content[at..at + length].copy_from_slice(&bytes);
            self.acknowledged.insert(name.to_vec(), content);
        }
        Ok(())
    }

    fn sync(&mut self, name: &[u8]) -> Result<()> {
        let Some(found) = self.filesystem.live().lookup(TOP, name)? else {
            return Ok(());
        };
        let synced = self.filesystem.log_tree().fsync(found.target);
        if self.took(synced)?.is_some() {
            let content = self
                .acknowledged
                .get(name)
                .context("a file that was acknowledged")?;
            self.synced.insert(name.to_vec(), content.clone());
        }
        Ok(())
    }

    fn commit(&mut self) -> Result<()> {
        let committed = self.filesystem.commit();
        if self.took(committed)?.is_some() {
            self.synced = self.acknowledged.clone();
        }
        Ok(())
    }

    /// Makes files with inline content, which changes metadata only.
    fn make_small_files(&mut self) -> Result<()> {
        for _ in 0..40 {
            let name = format!("small-{}", self.random.below(4000)).into_bytes();
            let Some(file) = self.file(&name)? else {
                return Ok(());
            };
            let bytes = self.random.bytes(600, false);
            let written = self.filesystem.write_at(file, FileOffset::MIN, &bytes);
            if self.took(written)?.is_some() {
                self.acknowledged.insert(name, bytes);
            }
        }
        Ok(())
    }

    fn remove(&mut self, name: &[u8]) -> Result<()> {
        if self.filesystem.live().lookup(TOP, name)?.is_none() {
            return Ok(());
        }
        let removed = self.filesystem.unlink(TOP, name);
        if self.took(removed)?.is_some() {
            self.acknowledged.remove(name);
            self.synced.remove(name);
        }
        Ok(())
    }

    /// Returns the number of writes that took space of the hosts.
    fn takes(&self) -> u64 {
        self.sparse.iter().map(|sparse| sparse.takes()).sum()
    }

    fn expect_acknowledged(&self) -> Result<()> {
        for (name, content) in &self.acknowledged {
            let found = self.filesystem.live().lookup(TOP, name)?;
            let file = found
                .with_context(|| format!("{} is gone", name.escape_ascii()))?
                .target;
            let mut bytes = vec![0; content.len() + 1];
            let length = self
                .filesystem
                .live()
                .read_at(file, FileOffset::MIN, &mut bytes)?;
            bytes.truncate(length);
            ensure!(bytes == *content, "{} holds something else", name.escape_ascii());
        }
        Ok(())
    }
}

/// Asserts that a volume has the synced contents of files, or later contents of these files.
fn expect_contents(filesystem: &Filesystem, wanted: &Contents, later: &Contents) -> Result<()> {
    for (name, content) in wanted {
        let shown = name.escape_ascii();
        let found = filesystem
            .lookup(TOP, name)?
            .with_context(|| format!("{shown} is gone"))?;
        let file = filesystem.open_file(found.target)?;
        let mut bytes = vec![0; usize::try_from(file.size().get())?];
        file.read_at(FileOffset::MIN, &mut bytes)?;
        let is_later = later.get(name).is_some_and(|later| *later != *content);
        // If a file was written after the sync, it may have a part of the later content.
        ensure!(is_later || bytes == *content, "{shown} holds something else");
    }
    Ok(())
}

/// Event after the last operation of a run.
#[derive(Clone, Copy, Debug)]
enum End {
    /// This step gives the host space again.
    SpaceComesBack,
    /// The host stays full, and files are deleted.
    FilesAreDeleted,
    /// The power fails while the host is full.
    Crash,
}

fn run_to(mut subject: Subject, end: End) -> Result<u64> {
    for _ in 0..OPERATIONS {
        subject.step()?;
    }
    subject.expect_acknowledged()?;
    match end {
        End::SpaceComesBack => {
            for sparse in &subject.sparse {
                sparse.set_free_bytes(PLENTY);
            }
            subject.filesystem.commit().context("a commit with space")?;
            subject.synced = subject.acknowledged.clone();
        }
        End::FilesAreDeleted => {
            let names: Vec<Vec<u8>> = subject.acknowledged.keys().cloned().collect();
            for name in names.iter().step_by(2) {
                subject
                    .filesystem
                    .unlink(TOP, name)
                    .context("deleting on a full host")?;
                subject.acknowledged.remove(name);
                subject.synced.remove(name);
            }
            // The commit reports the content that found no space, and commits everything else.
            let removed = names.iter().step_by(2);
            subject.commit()?;
            let view = open_checked(&subject.backends)?;
            for name in removed {
                if view.lookup(TOP, name)?.is_some() {
                    bail!("{} was deleted and committed", name.escape_ascii());
                }
            }
        }
        End::Crash => {}
    }
    let Subject {
        filesystem,
        backends,
        sparse,
        acknowledged,
        synced,
        refused,
        ..
    } = subject;
    filesystem.abandon();
    {
        // Opening for reading replays a log in memory.
        let found = OpenOptions::new(buttress_proof::writing::volume::devices(&backends)).open()?;
        expect_contents(&found, &synced, &acknowledged)?;
    }
    for sparse in &sparse {
        sparse.set_free_bytes(PLENTY);
    }
    // Opening for writing replays a log on the volume.
    let filesystem = Subject::open(&sparse)?;
    filesystem.commit()?;
    drop(filesystem);
    let found = open_checked(&backends)?;
    expect_contents(&found, &synced, &acknowledged)?;
    Ok(refused)
}

fn run(device_bytes: &[usize], options: &Options, seed: u64) -> Result<()> {
    let mut reference = Subject::new(device_bytes, options, seed, libc_errno(0))?;
    let before = reference.takes();
    for _ in 0..OPERATIONS {
        reference.step()?;
    }
    let takes = reference.takes() - before;
    ensure!(takes >= 2 && reference.refused == 0, "{takes} writes took space");
    drop(reference);
    let mut random = Random::new(!seed);
    let ends = [End::SpaceComesBack, End::FilesAreDeleted, End::Crash];
    let mut refused = 0;
    for cut in 0..super::number("BUTTRESS_HOST_CUTS", 6) {
        let end = ends[usize::try_from(cut)? % ends.len()];
        let number = random.below(takes) / device_bytes.len() as u64;
        let subject = Subject::new(device_bytes, options, seed, libc_errno(cut))?;
        subject.sparse.iter().for_each(|sparse| sparse.fill_at(number));
        let what = || format!("seed {seed}, the host full at write {number} of {takes}, then {end:?}");
        refused += run_to(subject, end).with_context(what)?;
    }
    ensure!(refused > 0, "no call ever found the host full");
    Ok(())
}

/// Returns `ENOSPC`, or `EDQUOT` in every second run.
fn libc_errno(number: u64) -> i32 {
    const ENOSPC: i32 = 28;
    const EDQUOT: i32 = 122;
    if number.is_multiple_of(2) { ENOSPC } else { EDQUOT }
}

pub fn cases() -> Vec<Case> {
    let seed = buttress_oracle::seeds::seed("writing::host", "BUTTRESS_HOST_SEED", 1);
    let case = |name: &str, devices: &[usize], options: Options| {
        let devices: Vec<usize> = devices.iter().map(|mib| mib << 20).collect();
        Case::new(format!("host::{name}"), move || {
            run(&devices, &options, seed).map(|()| Outcome::Passed)
        })
    };
    let profiles = |data, metadata| Options {
        data: Some(data),
        metadata: Some(metadata),
        ..Options::default()
    };
    let mixed = Options {
        features: vec![(Feature::MixedBlockGroups, true)],
        ..Options::default()
    };
    vec![
        case("two_copies_on_one_device", &[256], Options::default()),
        case("one_copy", &[200], profiles(Profile::Single, Profile::Single)),
        case("mixed_block_groups", &[200], mixed),
        case("mirrors", &[200; 2], profiles(Profile::Raid1, Profile::Raid1)),
        case("parity", &[200; 3], profiles(Profile::Raid5, Profile::Raid5)),
    ]
}
