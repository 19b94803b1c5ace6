//! Common parts of the end-to-end tests: the volume of the tour, unpacked once, and the command.
#![allow(dead_code, unreachable_pub, reason = "each test program uses a part of this")]

pub mod in_folder;
pub mod pty;

use buttress_oracle::needs::missing;
use buttress_oracle::skip::skips;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

/// Returns the volume of `buttress tour`, as a sparse file that no test changes.
pub fn image() -> &'static Path {
    static IMAGE: OnceLock<PathBuf> = OnceLock::new();
    IMAGE.get_or_init(|| {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let path = folder.join("tour.img");
        // Test programs may run in parallel, so each installs a complete file.
        let unpacked = tempfile::NamedTempFile::new_in(folder).unwrap();
        unpack(unpacked.path());
        unpacked.persist(&path).unwrap();
        path
    })
}

fn unpack(path: &Path) {
    let packed = File::open(concat!(env!("CARGO_MANIFEST_DIR"), "/assets/tour.img.zst")).unwrap();
    let mut unpacker = zstd::stream::read::Decoder::new(packed).unwrap();
    let mut file = File::create(path).unwrap();
    let mut block = [0; 4096];
    let mut size = 0;
    while unpacker.read_exact(&mut block).is_ok() {
        if block.iter().any(|byte| *byte != 0) {
            file.seek(SeekFrom::Start(size)).unwrap();
            file.write_all(&block).unwrap();
        }
        size += block.len() as u64;
    }
    file.set_len(size).unwrap();
}

/// Returns `IMAGE:/path` for the volume of the tour.
pub fn inside(path: &str) -> String {
    format!("{}:{path}", image().display())
}

/// Runs the command with these arguments.
pub fn buttress(words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_buttress"))
        .args(words)
        .env("TZ", "UTC")
        .output()
        .unwrap()
}

/// Returns the standard output of a command that must exit with 0.
pub fn stdout(words: &[&str]) -> String {
    let output = buttress(words);
    assert!(
        output.status.success(),
        "{words:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Returns the JSON document of a command that must exit with 0, without its header.
pub fn json(words: &[&str], name: &str) -> serde_json::Value {
    let text = stdout(&[words, &["--format", "json"]].concat());
    let mut document: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(document["__header"]["version"], "1");
    assert_eq!(document.as_object().unwrap().len(), 2, "{words:?}");
    document[name].take()
}

/// Returns the exit code and standard error of a command.
pub fn failure(words: &[&str]) -> (i32, String) {
    let output = buttress(words);
    (
        output.status.code().unwrap(),
        String::from_utf8_lossy(&output.stderr).into_owned(),
    )
}

/// A volume that a test changes: a copy of the tour's, or a new one.
pub struct Volume {
    _folder: tempfile::TempDir,
    path: String,
}

impl Volume {
    /// Copies the tour's volume.
    pub fn copy() -> Self {
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let path = folder.path().join("volume.img");
        let status = Command::new("cp")
            .arg("--sparse=always")
            .args([image(), &path])
            .status();
        assert!(status.unwrap().success());
        Self {
            path: path.to_str().unwrap().to_owned(),
            _folder: folder,
        }
    }

    /// Returns the path of the image.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Returns `IMAGE:/path`.
    pub fn inside(&self, path: &str) -> String {
        format!("{}:{path}", self.path)
    }

    /// Returns the standard output of a command on a path in the volume, which must exit with 0.
    pub fn stdout(&self, command: &str, options: &[&str], path: &str) -> String {
        let target = self.inside(path);
        stdout(&[&[command], options, &[target.as_str()]].concat())
    }

    /// Returns the content of a file in the volume.
    pub fn cat(&self, path: &str) -> Vec<u8> {
        let output = buttress(&["cat", &self.inside(path)]);
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        output.stdout
    }

    /// Asserts that this program's check and btrfs-progs' check report no findings. Without
    /// btrfs-progs, the test counts as skipped.
    pub fn check(&self) {
        let ours = buttress(&["check", "--check-data-csum", &self.path]);
        assert!(
            ours.status.success(),
            "buttress check: {}{}",
            String::from_utf8_lossy(&ours.stdout),
            String::from_utf8_lossy(&ours.stderr)
        );
        if skips(missing("btrfs")) {
            return;
        }
        let theirs = Command::new("btrfs")
            .args(["check", "--check-data-csum", &self.path])
            .output()
            .unwrap();
        assert!(
            theirs.status.success(),
            "btrfs check: {}{}",
            String::from_utf8_lossy(&theirs.stdout),
            String::from_utf8_lossy(&theirs.stderr)
        );
    }
}
