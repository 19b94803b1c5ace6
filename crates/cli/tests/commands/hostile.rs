//! Tests of extraction from malicious volumes, and into destinations that change during the
//! extraction.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::print_stderr,
    reason = "tests state what must hold, and say what they skipped"
)]

use crate::support;

use buttress_oracle::needs::missing;
use buttress_oracle::skip::skips;
use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicBool, Ordering};

use support::{Volume, inside};

const NOBODY: u32 = 65_534;

/// Only root can create files of other users, and switch to another user.
fn is_root() -> bool {
    !skips(missing("root"))
}

/// Stored form of a capability for everything with any file.
const CAPABILITY: [u8; 20] = [1, 0, 0, 2, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

/// Files whose modes grant their owners' rights; the same tree on the host and in a volume.
struct Rights {
    folder: tempfile::TempDir,
    volume: Volume,
}

impl Rights {
    fn make() -> Self {
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
        let tree = folder.path().join("tree");
        fs::create_dir(&tree).unwrap();
        for (name, uid, gid, mode) in [
            ("su", 0, 0, 0o4755),
            ("wall", 0, 5, 0o2755),
            ("both", 0, 0, 0o6711),
            ("of-a-group", NOBODY, 5, 0o2755),
            ("own", NOBODY, NOBODY, 0o6755),
            ("plain", 0, 0, 0o644),
        ] {
            fs::write(tree.join(name), name).unwrap();
            chown(tree.join(name), Some(uid), Some(gid)).unwrap();
            fs::set_permissions(tree.join(name), Permissions::from_mode(mode)).unwrap();
        }
        // cp is an oracle only for files that the user nobody can read.
        fs::set_permissions(tree.join("both"), Permissions::from_mode(0o6755)).unwrap();
        for (name, gid, mode) in [("sticky", 0, 0o1777), ("shared", 50, 0o2775)] {
            fs::create_dir(tree.join(name)).unwrap();
            chown(tree.join(name), Some(0), Some(gid)).unwrap();
            fs::set_permissions(tree.join(name), Permissions::from_mode(mode)).unwrap();
        }
        rustix::fs::setxattr(
            tree.join("plain"),
            "security.capability",
            &CAPABILITY,
            rustix::fs::XattrFlags::empty(),
        )
        .unwrap();
        let made = Command::new("mknod")
            .arg(tree.join("null"))
            .args(["c", "1", "3"])
            .status();
        assert!(made.unwrap().success());
        let volume = Volume::copy();
        let target = volume.inside("/tree");
        support::stdout(&["cp", "-a", tree.to_str().unwrap(), &target]);
        let image = Path::new(volume.path());
        fs::set_permissions(image, Permissions::from_mode(0o644)).unwrap();
        fs::set_permissions(image.parent().unwrap(), Permissions::from_mode(0o755)).unwrap();
        Self { folder, volume }
    }

    /// Creates a directory that belongs to this user.
    fn destination(&self, name: &str, uid: u32) -> PathBuf {
        let path = self.folder.path().join(name);
        fs::create_dir(&path).unwrap();
        chown(&path, Some(uid), Some(uid)).unwrap();
        path
    }

    /// Runs this program's `cp` from the volume as this user.
    fn ours(&self, flag: &str, to: &Path, uid: u32) -> Output {
        let from = self.volume.inside("/tree");
        Command::new(env!("CARGO_BIN_EXE_buttress"))
            .args(["cp", flag, &from])
            .arg(to)
            .uid(uid)
            .gid(uid)
            .output()
            .unwrap()
    }

    /// Runs the host's `cp` as this user.
    fn theirs(&self, flag: &str, to: &Path, uid: u32) {
        let copied = Command::new("cp")
            .arg(flag)
            .arg(self.folder.path().join("tree"))
            .arg(to)
            .uid(uid)
            .gid(uid)
            .output();
        assert!(copied.is_ok(), "cp does not run");
    }
}

/// Lists names below a directory with mode, owner, group, and whether there is a capability.
fn listing(directory: &Path) -> Vec<(String, u32, u32, u32, bool)> {
    let mut lines: Vec<_> = fs::read_dir(directory)
        .unwrap()
        .map(|entry| {
            let entry = entry.unwrap();
            let metadata = entry.path().symlink_metadata().unwrap();
            let capability = rustix::fs::lgetxattr(entry.path(), "security.capability", &mut [0u8; 64]);
            (
                entry.file_name().into_string().unwrap(),
                metadata.mode(),
                metadata.uid(),
                metadata.gid(),
                capability.is_ok(),
            )
        })
        .collect();
    lines.sort();
    lines
}

/// GNU cp on the host, with the same tree, is the oracle.
#[test]
fn rights_of_owners_that_are_not_kept_are_not_kept_either() {
    if !is_root() {
        return;
    }
    let rights = Rights::make();
    let (ours, theirs) = (
        rights.destination("ours", NOBODY),
        rights.destination("theirs", NOBODY),
    );
    let output = rights.ours("-a", &ours, NOBODY);
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    rights.theirs("-a", &theirs, NOBODY);
    let (ours, theirs) = (listing(&ours.join("tree")), listing(&theirs.join("tree")));
    assert_eq!(ours, theirs, "{message}");
    for (name, mode, uid, _, capability) in &ours {
        assert!(!capability && *uid == NOBODY, "{name}");
        assert!(name == "own" || mode & 0o6000 == 0, "{name}: {mode:o}");
    }
    // The device node is missing, and the command reports this.
    assert!(!ours.iter().any(|line| line.0 == "null"));
    assert_eq!(output.status.code(), Some(1), "{message}");
    assert!(message.contains("1 device nodes were left out"), "{message}");
    assert!(message.contains("lost set-uid"), "{message}");
}

#[test]
fn a_privileged_archive_copy_keeps_all_of_it() {
    if !is_root() || skips(missing("setfacl")) {
        return;
    }
    let rights = Rights::make();
    let (ours, theirs) = (rights.destination("ours", 0), rights.destination("theirs", 0));
    let output = rights.ours("-a", &ours, 0);
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    rights.theirs("-a", &theirs, 0);
    let (ours, theirs) = (listing(&ours.join("tree")), listing(&theirs.join("tree")));
    assert_eq!(ours, theirs);
    assert!(ours.iter().any(|line| line.0 == "null"));
    assert!(ours.iter().any(|line| line.0 == "plain" && line.4));
}

#[test]
fn a_plain_copy_has_no_rights_and_no_devices_even_for_root() {
    if !is_root() {
        return;
    }
    let rights = Rights::make();
    let to = rights.destination("ours", 0);
    let output = rights.ours("-r", &to, 0);
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{message}");
    assert!(message.contains("to copy them, give -a"), "{message}");
    for (name, mode, uid, gid, capability) in listing(&to.join("tree")) {
        assert!(
            mode & 0o6000 == 0 && uid == 0 && gid == 0 && !capability,
            "{name}: {mode:o}"
        );
        assert_ne!(name, "null");
    }
}

/// All new files in this directory inherit a default ACL, which must not grant access in a copy
/// that preserves modes.
#[test]
fn inherited_acls_do_not_open_private_files() {
    if !is_root() || skips(missing("setfacl")) {
        return;
    }
    let rights = Rights::make();
    let (ours, theirs) = (rights.destination("ours", 0), rights.destination("theirs", 0));
    for to in [&ours, &theirs] {
        let set = Command::new("setfacl")
            .args(["-d", "-m", "u:12345:rwx"])
            .arg(to)
            .status();
        assert!(set.unwrap().success());
    }
    assert!(rights.ours("-a", &ours, 0).status.success());
    rights.theirs("-a", &theirs, 0);
    for entry in ["su", "plain", "sticky", "null"] {
        let acl = |to: &Path| {
            ["system.posix_acl_access", "system.posix_acl_default"]
                .map(|name| rustix::fs::lgetxattr(to.join("tree").join(entry), name, &mut [0u8; 0]).is_ok())
        };
        assert_eq!(acl(&ours), acl(&theirs), "{entry}");
        assert_eq!(acl(&ours), [false, false], "{entry}");
    }
}

/// Another process repeatedly replaces directories and pipes with links during the extraction.
#[test]
fn a_destination_that_changes_meanwhile_leads_nowhere_else() {
    const ROUNDS: usize = 12;
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let outside = folder.path().join("outside");
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("pipe"), "as it was").unwrap();
    fs::set_permissions(outside.join("pipe"), Permissions::from_mode(0o600)).unwrap();
    fs::set_permissions(&outside, Permissions::from_mode(0o700)).unwrap();
    let before = listing(&outside);
    for round in 0..ROUNDS {
        let to = folder.path().join(format!("to-{round}"));
        fs::create_dir(&to).unwrap();
        let running = AtomicBool::new(true);
        std::thread::scope(|scope| {
            scope.spawn(|| swap(&to, &outside, &running));
            let output = support::buttress(&["cp", "-a", "-T", &inside("/home"), to.to_str().unwrap()]);
            running.store(false, Ordering::Relaxed);
            // Extracted files that were removed during their creation are reported; no other error
            // is possible.
            assert!(matches!(output.status.code(), Some(0 | 1)), "{output:?}");
        });
        assert_eq!(listing(&outside), before, "round {round}");
        assert_eq!(fs::read(outside.join("pipe")).unwrap(), b"as it was");
        let mode = fs::metadata(&outside).unwrap().mode() & 0o7777;
        assert_eq!(mode, 0o700, "round {round}");
        fs::remove_dir_all(&to).unwrap();
    }
}

/// Moves extracted directories and a pipe of the tour's volume away, and replaces them with links
/// to the outside.
fn swap(to: &Path, outside: &Path, running: &AtomicBool) {
    while running.load(Ordering::Relaxed) {
        for (name, target) in [
            ("plain", outside.to_owned()),
            ("special", outside.to_owned()),
            ("many", outside.to_owned()),
            ("special/pipe", outside.join("pipe")),
        ] {
            let (path, aside) = (to.join(name), to.join("aside"));
            if fs::rename(&path, &aside).is_ok() {
                let _ = symlink(&target, &path);
                std::thread::yield_now();
                let _ = fs::remove_file(&path);
                let _ = fs::rename(&aside, &path);
            }
        }
    }
}
