//! A volume of mkfs.btrfs in a file, opened for writing with a clock that a test sets.

use crate::{Environment, WritableFilesystem, WriteOptions};
use buttress_device::Device;
use buttress_engine::data_options::DataOptions;
use buttress_format::{SubvolumeId, Timestamp, Uuid};
use buttress_fs::location::Location;
use buttress_fs::open::OpenOptions;
use buttress_oracle::needs::any_missing;
use buttress_oracle::skip::skips;
use buttress_oracle::tools::{newest, run};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

/// A clock that advances by one second on each read.
#[derive(Debug, Default)]
pub(crate) struct Ticking {
    seconds: AtomicI64,
}

impl Environment for Ticking {
    fn now(&self) -> Timestamp {
        Timestamp {
            seconds: 1_000_000 + self.seconds.fetch_add(1, Ordering::Relaxed),
            nanoseconds: 7,
        }
    }

    fn new_uuid(&self) -> Uuid {
        Uuid::from_u128(
            0xfeed << 64 | u128::from(self.seconds.fetch_add(1, Ordering::Relaxed).unsigned_abs()),
        )
    }
}

/// An image in a directory of its own, which is removed with the image.
pub(crate) struct Image {
    _directory: tempfile::TempDir,
    pub(crate) path: PathBuf,
}

impl Image {
    /// Makes an image. Without mkfs.btrfs, the test is skipped.
    #[track_caller]
    pub(crate) fn make(options: &[&str]) -> Option<Self> {
        if skips(any_missing(&["mkfs.btrfs", "btrfs"])) {
            return None;
        }
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("image");
        std::fs::File::create(&path).unwrap().set_len(512 << 20).unwrap();
        run(Command::new(newest("mkfs.btrfs"))
            .args(["-q", "-f"])
            .args(options)
            .arg(&path))
        .unwrap();
        Some(Self {
            _directory: directory,
            path,
        })
    }

    /// Returns the image as a crash at this moment would leave it.
    pub(crate) fn copy(&self) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("image");
        run(Command::new("cp")
            .arg("--sparse=always")
            .arg(&self.path)
            .arg(&path))
        .unwrap();
        Self {
            _directory: directory,
            path,
        }
    }

    pub(crate) fn open(&self) -> WritableFilesystem {
        open(&self.path)
    }

    /// Commits without closing, and lets btrfs-progs check the image.
    #[track_caller]
    pub(crate) fn commit_and_check(&self, filesystem: &WritableFilesystem) {
        filesystem.commit().unwrap();
        self.check();
    }

    #[track_caller]
    pub(crate) fn check(&self) {
        let output = Command::new(newest("btrfs"))
            .args(["check", "--force", "--check-data-csum"])
            .arg(&self.path)
            .output()
            .unwrap();
        let text = format!(
            "{}{}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
        assert!(
            output.status.success() && text.contains("no error found"),
            "{text}"
        );
    }
}

pub(crate) fn open(path: &Path) -> WritableFilesystem {
    open_with(path, DataOptions::default())
}

pub(crate) fn open_with(path: &Path, data: DataOptions) -> WritableFilesystem {
    let options = buttress_device::OpenOptions {
        write: true,
        ..buttress_device::OpenOptions::default()
    };
    let device = Device::open(path, &options).unwrap();
    let filesystem = OpenOptions::new(vec![device]).open().unwrap();
    let options = WriteOptions {
        environment: Arc::new(Ticking::default()),
        data,
        ..WriteOptions::default()
    };
    WritableFilesystem::new(filesystem, options).unwrap()
}

/// The root directory of the top level.
pub(crate) const ROOT: Location = Location::root_of(SubvolumeId::TOP_LEVEL);
