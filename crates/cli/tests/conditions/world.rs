//! The files that command lines use: a volume, a send stream, a folder of the host, a folder for
//! outputs.
//!
//! All files of the world are in one folder that other users can access. Temporary files of the
//! command go to the folder for outputs, so that the tests see remaining files.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::support::{buttress, image, inside, json};

/// The folder with all files of the test world.
pub(crate) struct World {
    folder: tempfile::TempDir,
}

/// State of the image that a test compares: every change of the image changes one of these values.
type ImageState = (u64, i64, i64);

impl World {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let world = Self { folder };
        world.set_mode(world.folder.path(), 0o755);
        let copied = Command::new("cp")
            .args(["--sparse=always", "--reflink=auto"])
            .args([image(), Path::new(&world.image())])
            .status();
        assert!(copied.unwrap().success());
        fs::write(world.path("stream"), stream()).unwrap();
        for name in ["host", "out"] {
            fs::create_dir(world.path(name)).unwrap();
        }
        fs::write(world.path("host/file"), vec![7; 100_000]).unwrap();
        fs::write(
            world.path("plan.toml"),
            "manifest = 1\n[[file]]\npath = \"/planned\"\ntext = \"planned\"\n",
        )
        .unwrap();
        let packed = Command::new("tar")
            .arg("-C")
            .arg(world.path("host"))
            .arg("-cf")
            .arg(world.path("archive"))
            .arg(".")
            .status();
        assert!(packed.unwrap().success());
        // An ordinary user can read all files of the world, and write to the output folder. Some
        // conditions of the tests restrict this user's rights.
        world.set_mode(&world.path("out"), 0o777);
        world.set_mode(Path::new(&world.image()), 0o666);
        world
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Returns the folder's own name, which occurs in every message with a path of this world.
    pub(crate) fn folder_name(&self) -> &str {
        self.folder.path().file_name().unwrap().to_str().unwrap()
    }

    pub(crate) fn image(&self) -> String {
        self.path("volume.img").to_str().unwrap().to_owned()
    }

    /// Replaces the placeholders of a word.
    pub(crate) fn fill(&self, word: &str) -> String {
        let mut word = word.to_owned();
        if word.contains("{overlay}") {
            self.make_overlay();
        }
        if word.contains("{incremental}") {
            self.make_incremental();
        }
        if word.contains("{target}") {
            self.make_target();
        }
        if word.contains("{ext}") {
            self.make_ext();
        }
        if word.contains("{second}") {
            self.make_second();
        }
        if word.contains("{quotas}") {
            self.enable_quotas();
        }
        if word.contains("{deleted}") {
            self.delete_a_file();
        }
        for (placeholder, name) in [
            ("{fifo}", "fifo"),
            ("{archive}", "archive"),
            ("{plan}", "plan.toml"),
            ("{image}", "volume.img"),
            ("{quotas}", "volume.img"),
            ("{deleted}", "volume.img"),
            ("{stream}", "stream"),
            ("{incremental}", "incremental"),
            ("{host}", "host"),
            ("{out}", "out"),
            ("{overlay}", "overlay"),
            ("{target}", "target"),
            ("{ext}", "ext4.img"),
            ("{second}", "second.img"),
            ("{absent}", "absent"),
        ] {
            word = word.replace(placeholder, self.path(name).to_str().unwrap());
        }
        word.replace("{data}", &data_address().to_string())
    }

    /// Creates an overlay with changes of the image.
    fn make_overlay(&self) {
        if self.path("overlay").exists() {
            return;
        }
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let overlay = self.path("overlay");
        let made = buttress(&[
            "subvolume",
            "create",
            "--overlay",
            overlay.to_str().unwrap(),
            &format!(
                "{}:/beside-{}",
                self.image(),
                NUMBER.fetch_add(1, Ordering::Relaxed)
            ),
        ]);
        assert!(made.status.success(), "{made:?}");
        self.set_mode(&overlay, 0o666);
    }

    /// Creates a stream that builds on another one.
    fn make_incremental(&self) {
        let volume = image();
        let inside = |name: &str| format!("{}:/{name}", volume.to_str().unwrap());
        let made = buttress(&["send", "-p", &inside("home-monday"), &inside("home-tuesday")]);
        assert!(made.status.success(), "{made:?}");
        fs::write(self.path("incremental"), made.stdout).unwrap();
    }

    /// Creates an empty image as large as the volume's.
    fn make_target(&self) {
        let target = File::create(self.path("target")).unwrap();
        let length = fs::metadata(self.image()).unwrap().len();
        target.set_len(length).unwrap();
        self.set_mode(&self.path("target"), 0o666);
    }

    /// Creates an ext4 image with a file.
    fn make_ext(&self) {
        let image = self.path("ext4.img");
        if image.exists() {
            return;
        }
        File::create(&image).unwrap().set_len(64 << 20).unwrap();
        let mut mke2fs = Command::new("mke2fs");
        mke2fs.args(["-q", "-F", "-t", "ext4", "-b", "4096", "-d"]);
        let made = mke2fs.arg(self.path("host")).arg(&image).output().unwrap();
        assert!(made.status.success(), "{made:?}");
        self.set_mode(&image, 0o666);
    }

    /// Creates a second device of the volume, which holds no data yet.
    fn make_second(&self) {
        let second = self.path("second.img");
        if second.exists() {
            return;
        }
        File::create(&second).unwrap().set_len(64 << 20).unwrap();
        let added = buttress(&["-q", "device", "add", second.to_str().unwrap(), &self.image()]);
        assert!(added.status.success(), "{added:?}");
        self.set_mode(&second, 0o666);
    }

    /// Makes and removes the file `/deleted`, once.
    fn delete_a_file(&self) {
        if self.path("deleted").exists() {
            return;
        }
        let file = self.path("host/file");
        let target = format!("{}:/deleted", self.image());
        let made = buttress(&["-q", "cp", file.to_str().unwrap(), &target]);
        assert!(made.status.success(), "{made:?}");
        let image = self.image();
        let removed = buttress(&["-q", "shell", "-w", "-c", "rm /deleted", "-c", "sync", &image]);
        assert!(removed.status.success(), "{removed:?}");
        fs::write(self.path("deleted"), "").unwrap();
    }

    /// Enables quotas on the image, with groups of level 1, once.
    fn enable_quotas(&self) {
        let marker = self.path("quotas");
        if marker.exists() {
            return;
        }
        for words in [
            &["quota", "enable"][..],
            &["qgroup", "create", "1/1"],
            &["qgroup", "create", "1/2"],
            &["qgroup", "assign", "0/5", "1/1"],
        ] {
            let done = buttress(&[words, &[self.image().as_str()]].concat());
            assert!(done.status.success(), "{words:?}: {done:?}");
        }
        fs::write(marker, "").unwrap();
    }

    pub(crate) fn image_state(&self) -> ImageState {
        let metadata = fs::metadata(self.image()).unwrap();
        (metadata.len(), metadata.mtime(), metadata.mtime_nsec())
    }

    /// Returns the entries of the folder for outputs.
    pub(crate) fn outputs(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.path("out")).unwrap();
        entries.map(|entry| entry.unwrap().path()).collect()
    }

    pub(crate) fn has_outputs(&self) -> bool {
        !self.outputs().is_empty()
    }

    /// Returns the files in the folder for outputs, at any depth.
    pub(crate) fn files_in_outputs(&self) -> Vec<PathBuf> {
        let mut folders = vec![self.path("out")];
        let mut files = Vec::new();
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    folders.push(path);
                } else {
                    files.push(path);
                }
            }
        }
        files
    }

    /// Returns whether an output file equals the file in the volume: `cp` extracts `/home/plain` to
    /// `copy`, and `restore` extracts the root to `restored`.
    pub(crate) fn is_whole(&self, file: &Path) -> bool {
        let sources = [("out/copy", "/home/plain"), ("out/restored", "")];
        let found = sources.into_iter().find_map(|(target, source)| {
            let inner = file.strip_prefix(self.path(target)).ok()?;
            Some(format!("{source}/{}", inner.display()))
        });
        let Some(inner) = found else {
            return false;
        };
        if !file.symlink_metadata().unwrap().is_file() {
            return true;
        }
        let shown = buttress(&["cat", &inside(&inner)]);
        assert!(
            shown.status.success(),
            "{inner}: {}",
            String::from_utf8_lossy(&shown.stderr)
        );
        let content = fs::read(file).unwrap();
        let is_whole = content == shown.stdout;
        if !is_whole {
            let same = content
                .iter()
                .zip(&shown.stdout)
                .take_while(|(one, other)| one == other);
            eprintln!(
                "{inner}: {} bytes, in the volume {}, the first {} the same",
                content.len(),
                shown.stdout.len(),
                same.count()
            );
        }
        is_whole
    }

    pub(crate) fn clear_outputs(&self) {
        for path in self.outputs() {
            if path.is_dir() {
                fs::remove_dir_all(path).unwrap();
            } else {
                fs::remove_file(path).unwrap();
            }
        }
    }

    fn set_mode(&self, path: &Path, mode: u32) {
        fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }

    fn sources(&self) -> Vec<PathBuf> {
        let names = ["volume.img", "ext4.img", "stream", "host", "host/file"];
        let paths = names.map(|name| self.path(name));
        paths.into_iter().filter(|path| path.exists()).collect()
    }

    /// Makes the commands' inputs unreadable for everyone except root.
    pub(crate) fn forbid_reading(&self) {
        self.sources()
            .iter()
            .rev()
            .for_each(|path| self.set_mode(path, 0));
    }

    pub(crate) fn allow_reading(&self) {
        for path in self.sources() {
            let mode = if path.is_dir() { 0o755 } else { 0o666 };
            self.set_mode(&path, mode);
        }
    }

    pub(crate) fn forbid_writing(&self) {
        self.set_mode(&self.path("out"), 0o555);
    }

    pub(crate) fn allow_writing(&self) {
        self.set_mode(&self.path("out"), 0o777);
    }

    /// Makes the image read-only.
    pub(crate) fn forbid_changing(&self) {
        self.set_mode(Path::new(&self.image()), 0o444);
    }

    /// Mounts a disk of a few pages on the folder for outputs. Requires root.
    pub(crate) fn fill_outputs(&self) -> SmallDisk {
        let folder = self.path("out");
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=4k", "buttress-test"])
            .arg(&folder)
            .status();
        assert!(mounted.unwrap().success());
        SmallDisk { folder }
    }
}

/// A small file system that becomes full quickly, unmounted on drop.
pub(crate) struct SmallDisk {
    folder: PathBuf,
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let unmounted = Command::new("umount").arg(&self.folder).status();
        assert!(unmounted.unwrap().success());
    }
}

/// Returns a send stream, created once.
fn stream() -> &'static [u8] {
    static STREAM: OnceLock<Vec<u8>> = OnceLock::new();
    STREAM.get_or_init(|| {
        let sent = buttress(&["send", &inside("/home-monday")]);
        assert!(sent.status.success(), "{sent:?}");
        sent.stdout
    })
}

/// Returns an address with file data.
fn data_address() -> u64 {
    static ADDRESS: OnceLock<u64> = OnceLock::new();
    *ADDRESS.get_or_init(|| {
        let map = json(&["fiemap", "-v", &inside("/home/plain/holes")], "fiemap");
        find_number(&map, "logical")
            .or_else(|| find_number(&map, "physical"))
            .unwrap_or_else(|| panic!("{map}"))
    })
}

/// Returns the first number under this key, at any depth.
fn find_number(value: &serde_json::Value, key: &str) -> Option<u64> {
    match value {
        serde_json::Value::Object(object) => object
            .get(key)
            .and_then(serde_json::Value::as_u64)
            .or_else(|| object.values().find_map(|value| find_number(value, key))),
        serde_json::Value::Array(values) => values.iter().find_map(|value| find_number(value, key)),
        _ => None,
    }
}
