//! Tests of obstacles to writing: other processes, read-only files, a full disk under the image or
//! under a block device. Each failure gives a clear error, and leaves the volume unchanged. If the
//! volume can do without the failed device, the command reports the device and succeeds. The
//! kernel's mount verifies the content that these tests write.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::print_stderr,
    reason = "tests state what must hold, and say what they skipped"
)]

use crate::support;

use buttress_oracle::needs::{any_missing, missing};
use buttress_oracle::skip::skips;
use buttress_oracle::tools::copy_program;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use support::{Volume, buttress, failure, stdout};

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

#[test]
fn two_processes_on_one_image() {
    let volume = Volume::copy();
    let mut writer = Command::new(env!("CARGO_BIN_EXE_buttress"))
        .args(["shell", "-w", volume.path()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = writer.stdin.take().unwrap();
    let mut answers = BufReader::new(writer.stdout.take().unwrap());
    lines.write_all(b"mkdir /first\npwd\n").unwrap();
    let mut answer = String::new();
    answers.read_line(&mut answer).unwrap();
    assert_eq!(answer, "/\n");

    // While the writer has the volume open, neither a second writer nor a reader can open it.
    let (code, message) = failure(&["shell", "-w", volume.path(), "-c", "mkdir /second"]);
    assert_eq!(code, 1);
    assert!(
        message.contains(volume.path()) && message.contains("another process"),
        "{message}"
    );
    assert_eq!(failure(&["ls", volume.path()]).0, 1);

    drop(lines);
    assert!(writer.wait().unwrap().success());
    volume.check();
    let names = volume.stdout("ls", &[], "/");
    assert!(names.contains("first") && !names.contains("second"), "{names}");
}

#[test]
fn readers_share_an_image_and_keep_writers_out() {
    let volume = Volume::copy();
    let mut reader = Command::new(env!("CARGO_BIN_EXE_buttress"))
        .args(["shell", volume.path()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = reader.stdin.take().unwrap();
    let mut answers = BufReader::new(reader.stdout.take().unwrap());
    lines.write_all(b"pwd\n").unwrap();
    let mut answer = String::new();
    answers.read_line(&mut answer).unwrap();
    stdout(&["ls", volume.path()]);
    let (code, message) = failure(&["shell", "-w", volume.path(), "-c", "mkdir /second"]);
    assert_eq!(code, 1);
    assert!(message.contains("another process"), "{message}");
    drop(lines);
    assert!(reader.wait().unwrap().success());
    stdout(&["shell", "-w", volume.path(), "-c", "mkdir /second"]);
    volume.check();
}

#[test]
fn a_file_that_may_only_be_read() {
    let volume = Volume::copy();
    let before = fs::read(volume.path()).unwrap();
    let path = Path::new(volume.path());
    fs::set_permissions(path, fs::Permissions::from_mode(0o444)).unwrap();
    fs::set_permissions(path.parent().unwrap(), fs::Permissions::from_mode(0o755)).unwrap();
    // Another user may be unable to access the build folder.
    let program = path.with_file_name("buttress");
    copy_program(Path::new(env!("CARGO_BIN_EXE_buttress")), &program).unwrap();
    let mut command = Command::new(program);
    command.args(["shell", "-w", volume.path(), "-c", "mkdir /new"]);
    if is_root() {
        // Permissions do not restrict root.
        command.uid(65_534).gid(65_534);
    }
    let output = command.output().unwrap();
    let message = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{message}");
    assert!(message.contains("Permission denied"), "{message}");
    assert!(fs::read(path).unwrap() == before, "the image was changed");
}

/// A small file system that becomes full quickly.
struct SmallDisk {
    folder: tempfile::TempDir,
}

impl SmallDisk {
    fn mount(options: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let status = Command::new("mount")
            .args(["-t", "tmpfs", "-o", options, "buttress-test"])
            .arg(folder.path())
            .status();
        assert!(status.unwrap().success());
        Self { folder }
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Copies a volume to this disk, with its holes.
    fn copy(&self, volume: &Volume) -> PathBuf {
        let image = self.path().join("volume.img");
        let copied = Command::new("cp")
            .args(["--sparse=always", volume.path()])
            .arg(&image)
            .status();
        assert!(copied.unwrap().success());
        image
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.folder.path()).status();
    }
}

/// Returns the listing line of the file whose content did not fit on the host. Everything else of
/// the session is committed, including the file's name.
fn large(image: &str) -> String {
    let listed = stdout(&["ls", "-l", image]);
    let line = listed.lines().find(|line| line.ends_with(" large"));
    line.map(|line| format!("{line}\n")).unwrap_or_default()
}

#[test]
fn a_full_disk_under_the_image() {
    if skips(any_missing(&["root", "mount"])) {
        return;
    }
    let volume = Volume::copy();
    let disk = SmallDisk::mount("size=24M");
    let image = disk.copy(&volume);
    let image = image.to_str().unwrap();
    let before = stdout(&["ls", "-lR", image]);
    // This content is incompressible: a pattern would fill the disk, but not the volume.
    let (code, message) = failure(&["shell", "-w", image, "-c", "pwrite 0 40M /large"]);
    assert_eq!(code, 1);
    assert!(message.contains("No space left on device"), "{message}");
    assert_eq!(stdout(&["ls", "-lR", image]).replace(&large(image), ""), before);
    stdout(&["check", "--check-data-csum", image]);
    if skips(missing("btrfs")) {
        return;
    }
    let checked = Command::new("btrfs").args(["check", image]).output().unwrap();
    assert!(
        checked.status.success(),
        "{}",
        String::from_utf8_lossy(&checked.stderr)
    );
}

/// If one device's host is full, the session fails with ENOSPC, and both devices stay in use.
/// Everything except the content without space is committed to both devices.
#[test]
fn a_full_disk_under_one_of_two_copies() {
    if skips(any_missing(&["root", "mount"])) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let disk = SmallDisk::mount("size=24M");
    let images = [folder.path().join("first.img"), disk.path().join("second.img")];
    for image in &images {
        fs::File::create(image).unwrap().set_len(256 << 20).unwrap();
    }
    let [first, second] = [0, 1].map(|number: usize| images[number].to_str().unwrap());
    stdout(&["mkfs", "-q", "-d", "raid1", "-m", "raid1", first, second]);
    let pwrite = "pwrite -S 0x5a 0 40M /large";
    let shell = [
        "shell",
        "-w",
        "--device",
        second,
        first,
        "-c",
        "mkdir /before",
        "-c",
        pwrite,
    ];
    let (code, message) = failure(&shell);
    assert_eq!(code, 1, "{message}");
    assert!(
        message.contains(second) && message.contains("No space left on device"),
        "{message}"
    );
    assert!(!message.contains("left out"), "{message}");
    for (one, other) in [(first, second), (second, first)] {
        let listed = stdout(&["ls", "--device", other, one]);
        assert_eq!(listed, "before\nlarge\n");
        assert_eq!(stdout(&["ls", "--degraded", one]), listed, "{one} alone");
    }
    stdout(&["check", "--device", second, first]);
    let grown = Command::new("mount")
        .args(["-o", "remount,size=256M"])
        .arg(disk.path())
        .status();
    assert!(grown.unwrap().success());
    stdout(&["shell", "-w", "--device", second, first, "-c", pwrite]);
    for one in [first, second] {
        assert_eq!(
            stdout(&["cat", "--degraded", &format!("{one}:/large")]).len(),
            40 << 20
        );
    }
}

/// A loop device over an image, detached on drop.
struct Attached {
    device: String,
}

impl Attached {
    /// Attaches a loop device; skips the test without root or a loop device.
    fn to(image: &str) -> Option<Self> {
        if skips(any_missing(&["root", "loop-devices", "losetup"])) {
            return None;
        }
        let attached = Command::new("losetup")
            .args(["-P", "-f", "--show", image])
            .output()
            .unwrap();
        assert!(attached.status.success(), "{attached:?}");
        let device = String::from_utf8_lossy(&attached.stdout).trim().to_owned();
        Some(Self { device })
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        let _ = Command::new("losetup").args(["-d", &self.device]).status();
    }
}

/// A block device accepts writes into the kernel's memory, and fails when they should reach the
/// full disk below. Once the disk below the loop device has space, the volume is unchanged, and is
/// writable again.
#[test]
fn a_block_device_that_fails_half_way() {
    if skips(any_missing(&["root", "mount"])) {
        return;
    }
    let volume = Volume::copy();
    let disk = SmallDisk::mount("size=24M");
    let image = disk.copy(&volume);
    let image = image.to_str().unwrap();
    let before = stdout(&["ls", "-lR", image]);
    let Some(attached) = Attached::to(image) else {
        return;
    };
    let (code, message) = failure(&["shell", "-w", &attached.device, "-c", "pwrite 0 40M /large"]);
    assert_eq!(code, 1);
    assert!(
        message.contains(&attached.device)
            && (message.contains("Input/output error") || message.contains("No space left on device")),
        "{message}"
    );
    drop(attached);
    assert_eq!(stdout(&["ls", "-lR", image]).replace(&large(image), ""), before);
    stdout(&["check", "--check-data-csum", image]);
    let grown = Command::new("mount")
        .args(["-o", "remount,size=256M"])
        .arg(disk.path())
        .status();
    assert!(grown.unwrap().success());
    let attached = Attached::to(image).unwrap();
    stdout(&["shell", "-w", &attached.device, "-c", "pwrite 0 40M /large"]);
    drop(attached);
    stdout(&["check", "--check-data-csum", image]);
    assert!(stdout(&["ls", "-l", image]).contains("large"));
}

/// A mount by the kernel of an image on a separate loop device.
struct Mounted {
    folder: PathBuf,
    attached: Attached,
    _temporary: tempfile::TempDir,
}

impl Mounted {
    /// Mounts an image; `None` without root or without btrfs in the kernel.
    fn of(image: &str) -> Option<Self> {
        if skips(missing("kernel")) {
            return None;
        }
        let attached = Attached::to(image)?;
        let temporary = tempfile::tempdir().unwrap();
        let folder = temporary.path().to_owned();
        let status = Command::new("mount")
            .args(["-t", "btrfs", &attached.device])
            .arg(&folder)
            .status();
        let mounted = Self {
            folder,
            attached,
            _temporary: temporary,
        };
        assert!(status.unwrap().success(), "the kernel does not mount it");
        Some(mounted)
    }
}

impl Drop for Mounted {
    // Unmounting comes first; the loop device is detached after this.
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.folder).status();
    }
}

#[test]
fn the_kernel_shows_written_files_and_its_mount_blocks_writes() {
    let volume = Volume::copy();
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/src");
    stdout(&["cp", "-a", "--compress", "zstd", source, &volume.inside("/src")]);
    let lines = [
        "pwrite -S 0x5a 0 1M /plain",
        "reflink /plain 0 128K 256K /linked",
        "fallocate -k 0 64K /linked",
        "fpunch 4K 8K /linked",
        "ln -s src /symlink",
        "ln /plain /second",
        "chattr +C /",
        "setfattr -n user.x -v y /plain",
        "subvolume create /sub",
        "put -a /etc/passwd /sub",
        "snapshot -r /sub /snap",
        "rm /sub/passwd",
    ];
    let mut words = vec!["shell", "-w", volume.path()];
    for line in lines {
        words.extend(["-c", line]);
    }
    stdout(&words);
    volume.check();
    let Some(mounted) = Mounted::of(volume.path()) else {
        return;
    };
    // Nested subvolumes are compared separately, because their placeholders in snapshots show the
    // current time.
    for path in ["/", "/sub", "/snap"] {
        let inside = volume.inside(path);
        let shown = mounted.folder.join(path.trim_start_matches('/'));
        let output = buttress(&["diff", "--one-file-system", &inside, shown.to_str().unwrap()]);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert_eq!(output.status.code(), Some(0), "{path}: {text}");
    }
    let same = Command::new("diff")
        .args(["-r", source])
        .arg(mounted.folder.join("src"))
        .output();
    assert!(same.unwrap().status.success());

    let (code, message) = failure(&["shell", "-w", volume.path(), "-c", "mkdir /new"]);
    assert_eq!(code, 1);
    assert!(
        message.contains("mounted") && message.contains(&mounted.attached.device),
        "{message}"
    );
    fs::write(mounted.folder.join("by-the-kernel"), b"x").unwrap();
    drop(mounted);
    volume.check();
    assert_eq!(volume.cat("/by-the-kernel"), b"x");
}
