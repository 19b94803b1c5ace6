//! Command lines and their effects.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::hash::{DefaultHasher, Hasher};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime};

use rustix::fs::SeekFrom;

use crate::making;

/// The effects of a command line. A comparison of effects ignores standard error.
#[derive(Clone, Debug)]
pub(crate) struct Effect {
    pub(crate) code: i32,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: String,
    /// Created or changed files: size, permissions, owner, a hash of the content.
    files: BTreeMap<PathBuf, (u64, u32, u32, u64)>,
}

impl PartialEq for Effect {
    fn eq(&self, other: &Self) -> bool {
        (self.code, &self.stdout, &self.files) == (other.code, &other.stdout, &other.files)
    }
}

/// A folder with the files that the command lines use. Each run finds the folder in its initial
/// state.
pub(crate) struct World {
    folder: tempfile::TempDir,
}

impl World {
    pub(crate) fn new() -> Self {
        // Use a file system in memory if possible: a sweep of writers is slow on a disk that
        // flushes.
        let memory = Path::new("/dev/shm");
        let place = if memory.is_dir() {
            memory
        } else {
            Path::new(env!("CARGO_TARGET_TMPDIR"))
        };
        let folder = tempfile::tempdir_in(place).unwrap();
        making::fill(folder.path());
        let world = Self { folder };
        world.renew();
        world
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Removes the files that the last run of a command created.
    fn renew(&self) {
        let _ = fs::remove_dir_all(self.path("out"));
        making::fill_outputs(&self.path("out"));
        for name in making::CHANGEABLE {
            let pristine = self.path(&format!("pristine/{name}"));
            let (now, then) = (
                fs::metadata(self.path(name)).ok(),
                fs::metadata(&pristine).unwrap(),
            );
            let is_same = now.is_some_and(|now| {
                (now.mtime(), now.mtime_nsec(), now.len()) == (then.mtime(), then.mtime_nsec(), then.len())
            });
            if !is_same {
                let copied = Command::new("cp")
                    .args(["--sparse=always", "--preserve=timestamps"])
                    .args([pristine, self.path(name)])
                    .status();
                assert!(copied.unwrap().success());
            }
        }
        for entry in fs::read_dir(self.folder.path()).unwrap() {
            let path = entry.unwrap().path();
            // Before a run, remove status files and similar files of earlier runs.
            if !making::is_part(&path) {
                fs::remove_file(path).unwrap();
            }
        }
    }

    /// Runs a command line. In the command line, `{x}` stands for the path of `x`.
    pub(crate) fn run(&self, words: &str) -> Effect {
        self.renew();
        let fill = |word: &str| {
            let folder = self.folder.path().to_str().unwrap();
            making::value(self.folder.path(), word)
                .replace('{', &format!("{folder}/"))
                .replace('}', "")
        };
        let output = Command::new(env!("CARGO_BIN_EXE_buttress"))
            .args(words.split_whitespace().map(fill))
            .envs([("TZ", "UTC"), ("SOURCE_DATE_EPOCH", "1700000000")])
            .current_dir(self.path("out"))
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        for word in ["panicked", "fault of this program"] {
            assert!(!stderr.contains(word), "{words}: {stderr}");
        }
        Effect {
            code: output.status.code().unwrap_or(-1),
            stdout: timeless(&output.stdout),
            stderr,
            files: self.files(),
        }
    }

    fn files(&self) -> BTreeMap<PathBuf, (u64, u32, u32, u64)> {
        let mut files = BTreeMap::new();
        let mut folders = vec![self.path("out")];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                let metadata = path.symlink_metadata().unwrap();
                if metadata.is_dir() {
                    folders.push(path.clone());
                }
                files.insert(path.clone(), state(&path, &metadata));
            }
        }
        for name in making::CHANGEABLE {
            let path = self.path(name);
            let now = fs::metadata(&path).unwrap();
            let then = fs::metadata(self.path(&format!("pristine/{name}"))).unwrap();
            if (now.mtime(), now.mtime_nsec()) != (then.mtime(), then.mtime_nsec()) {
                files.insert(path.clone(), state(&path, &now));
            }
        }
        files
    }
}

/// Returns the output without lines about times, because these differ between runs.
fn timeless(output: &[u8]) -> Vec<u8> {
    let told = ["Scrub started", "Duration", "Rate", "Time left", "Status:"];
    let is_kept = |line: &&[u8]| !told.iter().any(|word| line.starts_with(word.as_bytes()));
    output
        .split_inclusive(|byte| *byte == b'\n')
        .filter(is_kept)
        .flatten()
        .copied()
        .collect()
}

fn state(path: &Path, metadata: &fs::Metadata) -> (u64, u32, u32, u64) {
    let mut hasher = DefaultHasher::new();
    // Record only times that the command preserved, not times of this run.
    let age = SystemTime::now().duration_since(metadata.modified().unwrap());
    let is_kept = age.is_ok_and(|age| age > Duration::from_secs(3600));
    hasher.write_i64(if is_kept { metadata.mtime() } else { 0 });
    if metadata.is_symlink() {
        hasher.write(fs::read_link(path).unwrap().as_os_str().as_encoded_bytes());
    }
    if metadata.is_file() {
        hash_content(path, metadata.len(), &mut hasher);
    }
    (
        if metadata.is_dir() { 0 } else { metadata.len() },
        metadata.mode(),
        metadata.uid(),
        hasher.finish(),
    )
}

/// Block size for hashing files.
const BLOCK_BYTES: u64 = 64 << 10;

/// Hashes the nonzero parts, and skips holes.
fn hash_content(path: &Path, length: u64, hasher: &mut impl Hasher) {
    let file = File::open(path).unwrap();
    let mut at = 0;
    let mut block = vec![0; usize::try_from(BLOCK_BYTES).unwrap()];
    while let Ok(data) = rustix::fs::seek(&file, SeekFrom::Data(at)) {
        let end = rustix::fs::seek(&file, SeekFrom::Hole(data)).unwrap();
        // Hash whole blocks, wherever holes begin.
        at = at.max(data / BLOCK_BYTES * BLOCK_BYTES);
        while at < end {
            let read = file.read_at(&mut block, at).unwrap();
            if read == 0 {
                return;
            }
            if block[..read].iter().any(|byte| *byte != 0) {
                hasher.write_u64(at);
                hasher.write(&block[..read]);
            }
            at += read as u64;
        }
        if at >= length {
            return;
        }
    }
}
