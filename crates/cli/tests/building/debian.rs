//! Tests with a Debian root file system, unpacked by Debian's own tool. From the directory as root,
//! from an archive without root, and from a plan, the image has the same bytes. The image does not
//! depend on directory order, workers, time zone, locale, umask or user.

use super::{deterministic, done, mkfs, same_bytes, wanted};
use buttress_oracle::loop_device::Mount;
use buttress_oracle::manifest::{self, expect_equal};
use buttress_oracle::needs::{Missing, any_missing};
use buttress_oracle::skip::{skip, skips};
use buttress_oracle::tools::{copy_program, newest};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Packages of a small system; the dependencies of libboost-dev provide many files.
const PACKAGES: [&str; 13] = [
    "base-files",
    "base-passwd",
    "bash",
    "coreutils",
    "dash",
    "passwd",
    "login",
    "util-linux",
    "mount",
    "libc6",
    "perl-base",
    "iputils-ping",
    "tzdata",
];

/// Returns the folder with the packages, downloaded once per build folder.
fn packages() -> Result<PathBuf, Missing> {
    if let Some(folder) = std::env::var_os("BUTTRESS_DEBIAN_PACKAGES") {
        return Ok(PathBuf::from(folder));
    }
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("debian-packages");
    if folder.join("whole").exists() {
        return Ok(folder);
    }
    let missing = |what: String| Missing::new("debian-archive", what);
    let run = |command: &mut Command| {
        let output = command
            .output()
            .map_err(|error| missing(format!("{command:?}: {error}")))?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        output
            .status
            .success()
            .then_some(text)
            .ok_or_else(|| missing(error))
    };
    std::fs::create_dir_all(&folder).unwrap();
    let depends = run(Command::new("apt-cache").args(["depends", "libboost-dev"]))?;
    let many = depends
        .lines()
        .find_map(|line| line.trim().strip_prefix("Depends: "));
    let many = many.ok_or_else(|| missing(format!("libboost-dev depends on {depends:?}")))?;
    let mut download = Command::new("apt-get");
    download
        .arg("download")
        .args(PACKAGES)
        .arg(many)
        .current_dir(&folder);
    run(&mut download)?;
    std::fs::write(folder.join("whole"), "").unwrap();
    Ok(folder)
}

/// Unpacks the packages, and performs the relevant actions of their scripts.
fn unpack(packages: &Path, root: &Path) {
    std::fs::create_dir(root).unwrap();
    for entry in std::fs::read_dir(packages).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "deb") {
            done(Command::new("dpkg-deb").arg("-x").arg(path).arg(root));
        }
    }
    let ping = ["usr/bin/ping", "bin/ping"].map(|name| root.join(name));
    let ping = ping.iter().find(|path| path.is_file()).unwrap();
    // The package sets the capability cap_net_raw.
    let capability = [1, 0, 0, 2, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let name = "security.capability";
    rustix::fs::setxattr(ping, name, &capability, rustix::fs::XattrFlags::empty()).unwrap();
    std::fs::create_dir_all(root.join("dev")).unwrap();
    for (name, words) in [
        ("null", ["c", "1", "3"]),
        ("zero", ["c", "1", "5"]),
        ("vda", ["b", "254", "0"]),
    ] {
        done(Command::new("mknod").arg(root.join("dev").join(name)).args(words));
    }
}

struct Debian {
    folder: tempfile::TempDir,
    root: PathBuf,
    first: PathBuf,
}

impl Debian {
    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Asserts that a command makes the same image as the first command.
    fn expect_same(&self, what: &str, command: &mut Command) {
        let image = self.path("again.img");
        done(command.arg(&image));
        assert!(same_bytes(&image, &self.first), "{what}: other bytes");
        std::fs::remove_file(image).unwrap();
    }

    fn of_directory(&self) -> Command {
        let mut command = mkfs();
        command.arg("--rootdir").arg(&self.root);
        command
    }
}

fn prepared() -> Option<Debian> {
    if skips(any_missing(&[
        "debian-archive",
        "dpkg-deb",
        "root",
        "kernel",
        "loop-devices",
        "losetup",
        "btrfs",
        "tar",
    ])) {
        return None;
    }
    let packages = match packages() {
        Ok(packages) => packages,
        Err(missing) => {
            skip(&missing);
            return None;
        }
    };
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let root = folder.path().join("root");
    unpack(&packages, &root);
    let first = folder.path().join("first.img");
    let debian = Debian { folder, root, first };
    done(debian.of_directory().arg(&debian.first));
    Some(debian)
}

#[test]
fn a_debian_system_has_the_same_bytes_from_every_kind_of_source() {
    let Some(debian) = prepared() else {
        return;
    };
    let wanted = wanted(&debian.root);
    println!("{} files of Debian", wanted.len());
    assert!(wanted.len() >= 10_000, "{} files", wanted.len());
    let has = |test: &dyn Fn(&manifest::Entry) -> bool| wanted.values().any(test);
    assert!(has(&|entry| entry.mode & 0o4000 != 0), "setuid");
    assert!(has(&|entry| entry
        .xattrs
        .contains_key(&b"security.capability"[..])));
    assert!(has(&|entry| entry.linked.is_some()), "hard links");
    let mount = Mount::new(std::slice::from_ref(&debian.first), "ro").unwrap();
    let found = manifest::of_directory(mount.path()).unwrap();
    mount.close().unwrap();
    expect_equal("the kernel's view", &wanted, &found).unwrap();
    let mut check = Command::new(newest("btrfs"));
    done(check.args(["check", "--check-data-csum"]).arg(&debian.first));

    from_an_archive_without_root(&debian);
    from_plans(&debian);
    from_elsewhere(&debian);
}

/// Builds from an archive as the user nobody.
fn from_an_archive_without_root(debian: &Debian) {
    let archive = debian.path("root.tar");
    let mut tar = Command::new("tar");
    tar.args(["--format=posix", "--xattrs", "--xattrs-include=*", "-c", "-C"])
        .arg(&debian.root)
        .arg("-f")
        .arg(&archive)
        .arg(".");
    done(&mut tar);
    let program = debian.path("program");
    copy_program(Path::new(env!("CARGO_BIN_EXE_buttress")), &program).unwrap();
    let own = tempfile::tempdir().unwrap();
    std::os::unix::fs::chown(own.path(), Some(65_534), Some(65_534)).unwrap();
    let image = own.path().join("archive.img");
    let mut command = Command::new(&program);
    command
        .args(["mkfs", "-q", "-U", super::UUID, "--tar", "-"])
        .arg(&image)
        .stdin(std::fs::File::open(&archive).unwrap())
        .current_dir(own.path())
        .uid(65_534)
        .gid(65_534);
    deterministic(&mut command);
    // The build folder may be inaccessible to other users.
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(debian.folder.path(), open).unwrap();
    done(&mut command);
    assert!(
        same_bytes(&image, &debian.first),
        "from an archive, as nobody: other bytes"
    );
    std::fs::remove_file(archive).unwrap();
}

/// Builds from the plan of the image, with contents in the image, and in the directory.
fn from_plans(debian: &Debian) {
    let mut plan = Command::new(env!("CARGO_BIN_EXE_buttress"));
    let plan = done(plan.arg("manifest").arg(&debian.first)).stdout;
    let plan = String::from_utf8(plan).unwrap();
    let image = format!("image = \"{}\"", debian.first.display());
    assert!(plan.contains(&image), "no contents in {image}");
    for (name, contents) in [
        ("image", image.clone()),
        ("directory", format!("directory = \"{}\"", debian.root.display())),
    ] {
        let path = debian.path(&format!("{name}.toml"));
        std::fs::write(&path, plan.replace(&image, &contents)).unwrap();
        debian.expect_same(
            &format!("from a plan with contents in the {name}"),
            mkfs().args(["--size", "auto", "--manifest"]).arg(path),
        );
    }
}

/// Builds from the same directory again, and from a copy of it elsewhere.
fn from_elsewhere(debian: &Debian) {
    for workers in ["1", "2", "8"] {
        debian.expect_same(workers, debian.of_directory().args(["--workers", workers]));
    }
    let mut abroad = debian.of_directory();
    abroad
        .env("TZ", "Pacific/Kiritimati")
        .env("LC_ALL", "tr_TR.UTF-8")
        .env("LANG", "tr_TR.UTF-8")
        .env("TMPDIR", "/var/tmp");
    debian.expect_same("another time zone and locale", &mut abroad);
    let mut masked = Command::new("sh");
    masked
        .args(["-c", "umask 077; exec \"$0\" \"$@\""])
        .arg(env!("CARGO_BIN_EXE_buttress"))
        .args(["mkfs", "-q", "-U", super::UUID, "--rootdir"])
        .arg(&debian.root);
    deterministic(&mut masked);
    debian.expect_same("another umask", &mut masked);
    // On another file system and with another creation order, directories list their entries in
    // another order.
    let elsewhere = tempfile::tempdir_in("/dev/shm").unwrap();
    let copy = elsewhere.path().join("copy");
    std::fs::create_dir(&copy).unwrap();
    let mut reversed = Command::new("sh");
    reversed
        .args([
            "-c",
            "cd \"$0\" && find . -print0 | sort -zr | tar --null --no-recursion --xattrs --xattrs-include='*' -cf - -T - | \
             tar --xattrs --xattrs-include='*' -xpf - -C \"$1\"",
        ])
        .args([&debian.root, &copy]);
    done(&mut reversed);
    debian.expect_same("a copy in another order", mkfs().arg("--rootdir").arg(&copy));
}
