//! Which servers there are: one small file for each mount, locked as long as the server has the image.
//!
//! `/run/buttress` for root, `$XDG_RUNTIME_DIR/buttress` or a directory of one's own in the temporary directory for others.
//! A file whose lock nobody has is of a server that ended: whoever looks next removes it.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use rustix::fs::{FlockOperation, flock};
use serde_json::{Value, json};

/// The file of a server, which has its lock.
#[derive(Debug)]
pub(super) struct Entry {
    file: File,
    record: Value,
}

/// A server's file as others find it.
#[derive(Debug)]
pub(super) struct Known {
    file: File,
    path: PathBuf,
    /// What it says.
    pub(super) record: Value,
}

fn directory() -> Result<PathBuf> {
    let uid = rustix::process::geteuid();
    let path = if uid.is_root() {
        PathBuf::from("/run/buttress")
    } else {
        match std::env::var_os("XDG_RUNTIME_DIR") {
            Some(runtime) => PathBuf::from(runtime).join("buttress"),
            None => std::env::temp_dir().join(format!("buttress-{}", uid.as_raw())),
        }
    };
    match DirBuilder::new().mode(0o700).create(&path) {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
            return Err(error).with_context(|| format!("making {}", path.display()));
        }
        _ => {}
    }
    let found = std::fs::symlink_metadata(&path)?;
    if !found.is_dir() || found.uid() != uid.as_raw() {
        bail!("{} is not a directory of this user's", path.display());
    }
    Ok(path)
}

impl Entry {
    /// Says that this process is going to serve a mount.
    pub(super) fn make(image: &Path, mounted_on: &Path, writes: bool) -> Result<Self> {
        let pid = std::process::id();
        let path = directory()?.join(format!("mount-{pid}"));
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&path)
            .with_context(|| format!("making {}", path.display()))?;
        flock(&file, FlockOperation::NonBlockingLockExclusive)?;
        let record = json!({
            "pid": pid,
            "image": image.display().to_string(),
            "directory": mounted_on.display().to_string(),
            "writes": writes,
        });
        let mut entry = Self { file, record };
        entry.write()?;
        Ok(entry)
    }

    fn write(&mut self) -> Result<()> {
        self.file.set_len(0)?;
        self.file.seek(SeekFrom::Start(0))?;
        self.file.write_all(self.record.to_string().as_bytes())?;
        Ok(())
    }

    /// The server is done; whoever waits learns how it ended. The lock goes with the process, after its devices, which were
    /// opened before: then they are free for others.
    pub(super) fn end(mut self, result: &Result<()>) {
        if let Err(error) = result
            && let Some(record) = self.record.as_object_mut()
        {
            record.insert("failed".to_owned(), Value::String(format!("{error:#}")));
            // Whoever waits reads it from the open file.
            drop(self.write());
        }
        core::mem::forget(self.file);
    }
}

impl Known {
    /// All servers of this user.
    pub(super) fn all() -> Result<Vec<Self>> {
        let mut all = Vec::new();
        for found in std::fs::read_dir(directory()?)? {
            let path = found?.path();
            let Ok(file) = File::open(&path) else { continue };
            let mut known = Self {
                file,
                path,
                record: Value::Null,
            };
            if known.read().is_err() {
                continue;
            }
            if flock(&known.file, FlockOperation::NonBlockingLockShared).is_ok() {
                // Its server is gone.
                drop(std::fs::remove_file(&known.path));
                continue;
            }
            all.push(known);
        }
        Ok(all)
    }

    fn read(&mut self) -> Result<()> {
        let mut text = String::new();
        self.file.seek(SeekFrom::Start(0))?;
        self.file.read_to_string(&mut text)?;
        self.record = serde_json::from_str(&text)?;
        Ok(())
    }

    /// A text that it says.
    pub(super) fn text(&self, field: &str) -> Option<&str> {
        self.record.get(field)?.as_str()
    }

    /// The directory on which it is mounted.
    pub(super) fn directory(&self) -> &Path {
        Path::new(self.text("directory").unwrap_or_default())
    }

    /// Waits for servers of this image whose mount is gone already, as after a plain umount(8): they are at their last commit.
    pub(super) fn wait_for_those_that_end(image: &Path) -> Result<()> {
        // Names there are what anybody chose: not all are UTF-8.
        let mounts = std::fs::read("/proc/self/mountinfo").unwrap_or_default();
        let mounts = String::from_utf8_lossy(&mounts);
        for known in Self::all()? {
            let is_of_image = known.text("image").map(Path::new) == Some(image);
            // Names there have octal escapes for blanks: such a mount is taken for one that ends only if it is not listed.
            let directory = known.directory().to_string_lossy().replace(' ', "\\040");
            let is_mounted = mounts
                .lines()
                .any(|line| line.split(' ').nth(4) == Some(directory.as_str()));
            if is_of_image && !is_mounted {
                flock(&known.file, FlockOperation::LockShared)?;
            }
        }
        Ok(())
    }

    /// Waits until the server is done with its image.
    pub(super) fn wait(mut self) -> Result<()> {
        flock(&self.file, FlockOperation::LockShared)?;
        self.read()?;
        // Where that fails, whoever looks next does it.
        drop(std::fs::remove_file(&self.path));
        match self.text("failed") {
            Some(text) => {
                bail!("the last commit failed, and what was written since the one before is lost: {text}")
            }
            None => Ok(()),
        }
    }
}
