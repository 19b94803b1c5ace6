//! Tests of this program's commands on paths below a mount: the same output and effects as on the
//! image, and only for users with the server's rights.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "tests state what must hold"
)]

use crate::mounting;

use buttress_oracle::skip::skips;
use buttress_oracle::tools::copy_program;
use mounting::{Mounted, PROGRAM, buttress, no_fuse, sound, text};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

/// Mounts a volume with a subvolume, a read-only snapshot of it, and a file with extents.
fn furnished() -> Mounted {
    let mounted = Mounted::new();
    mounted.mount("rw");
    let at = |name: &str| format!("{}/{name}", mounted.directory());
    sound(&["subvolume", "create", &at("home")]);
    fs::create_dir(at("home/d")).unwrap();
    fs::write(at("home/d/file"), vec![7; 300_000]).unwrap();
    sound(&["subvolume", "snapshot", "-r", &at("home"), &at("monday")]);
    fs::write(at("home/d/file"), vec![8; 200_000]).unwrap();
    sound(&["filesystem", "label", mounted.directory(), "a label"]);
    mounted
}

#[test]
fn a_cached_listing_shows_later_changes_of_commands_and_calls() {
    if skips(no_fuse()) {
        return;
    }
    let mounted = Mounted::new();
    mounted.mount("rw");
    let listed = |below: &str| {
        let entries = fs::read_dir(mounted.at.join(below)).unwrap();
        let mut names: Vec<String> = entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    };
    let at = |name: &str| format!("{}/{name}", mounted.directory());
    sound(&["subvolume", "create", &at("home")]);
    assert_eq!(listed(""), ["home"]);
    assert_eq!(listed(""), ["home"]);
    sound(&["subvolume", "snapshot", &at("home"), &at("monday")]);
    assert_eq!(listed(""), ["home", "monday"]);
    fs::write(at("file"), b"content").unwrap();
    fs::create_dir(at("home/below")).unwrap();
    assert_eq!(listed(""), ["file", "home", "monday"]);
    assert_eq!(listed("home"), ["below"]);
    sound(&["subvolume", "snapshot", "-r", &at("home"), &at("home/below/copy")]);
    assert_eq!(listed("home/below"), ["copy"]);
    sound(&["subvolume", "delete", &at("monday")]);
    fs::rename(at("file"), at("renamed")).unwrap();
    assert_eq!(listed(""), ["home", "renamed"]);
    assert_eq!(listed("home"), ["below"]);
    sound(&["subvolume", "delete", &at("home/below/copy")]);
    assert_eq!(listed("home/below"), Vec::<String>::new());
    mounted.umount();
    mounted.expect_sound();
}

#[test]
fn trim_releases_deleted_space_of_a_mount_and_its_image() {
    if skips(no_fuse()) {
        return;
    }
    let mounted = Mounted::new();
    let room = || fs::metadata(mounted.image()).unwrap().blocks() * 512;
    mounted.mount("rw");
    let large = mounted.at.join("large");
    for target in [mounted.directory(), mounted.image()] {
        let is_image = target == mounted.image();
        fs::write(&large, vec![7; 40 << 20]).unwrap();
        sound(&["filesystem", "sync", mounted.directory()]);
        fs::remove_file(&large).unwrap();
        if is_image {
            mounted.umount();
        }
        let before = room();
        // The server accepts shortened commands, too.
        let [group, word] = if is_image {
            ["filesystem", "trim"]
        } else {
            ["fi", "tri"]
        };
        let said = text(&sound(&[group, word, "--raw", target]).stdout);
        assert!(said.starts_with(target) && said.contains(" trimmed, "), "{said}");
        assert!(room() + (38 << 20) < before, "{target}: {} of {before}", room());
    }
    mounted.expect_sound();
}

/// Other references to an extent are known, although the references of a new file are pending until
/// a commit.
#[test]
fn sharing_is_reported_for_a_new_file() {
    if skips(no_fuse()) {
        return;
    }
    let mounted = furnished();
    let file = format!("{}/home/d/file", mounted.directory());
    for length in [400_000, 500_000] {
        fs::write(&file, vec![9; length]).unwrap();
        let shown = text(&sound(&["fiemap", "-v", &file]).stdout);
        assert!(
            shown.contains("extent found") && !shown.contains("shared"),
            "{shown}"
        );
        fs::write(&file, vec![10; length]).unwrap();
        let used = text(&sound(&["filesystem", "du", "--raw", &file]).stdout);
        let bytes = length.next_multiple_of(4096).to_string();
        assert_eq!(used.matches(&bytes).count(), 2, "{used}");
    }
    mounted.umount();
    mounted.expect_sound();
}

#[test]
fn words_say_the_same_of_a_mount_as_of_its_image() {
    if skips(no_fuse()) {
        return;
    }
    let mounted = furnished();
    sound(&["filesystem", "sync", mounted.directory()]);
    // In each line, % stands for the mount or the image; the whole output of both is compared.
    let lines = [
        "subvolume list -aqu %/",
        "subvolume list --format json %/home",
        "subvolume show %/home",
        "subvolume show %/monday",
        "subvolume get-default %/",
        "filesystem df %/",
        "filesystem usage -b %/",
        "filesystem show %/",
        "filesystem label %/",
        "property get %/monday ro",
        "property get --format json %/home",
        "fiemap -v %/home/d/file",
        "compression %/home",
        "space %/",
        "device stats %/",
        "inspect-internal rootid %/home/d",
        "stat %/home/d/file",
        "ls -lR %/home",
        "tree %/",
        "cat %/monday/d/file",
        "send %/monday",
        "send --estimate %/monday",
        "subvolume show %/nothing",
    ];
    let run = |line: &str, root: &str, short: &str| {
        let words: Vec<String> = line
            .split(' ')
            .map(|word| match word {
                // Not all commands of the table accept a path in an image.
                "%/" => short.to_owned(),
                word => word.replace("%/", &format!("{root}/")),
            })
            .collect();
        let output = Command::new(PROGRAM).args(&words).output().unwrap();
        let plain = |bytes: &[u8]| match std::str::from_utf8(bytes) {
            Ok(text) => {
                // The device list also shows the image's name.
                let text = text.replace(root, "%").replace(short, "%");
                text.replace(mounted.image(), "%").into_bytes()
            }
            Err(_) => bytes.to_vec(),
        };
        (output.status.code(), plain(&output.stdout), plain(&output.stderr))
    };
    let said: Vec<_> = lines
        .iter()
        .map(|line| run(line, mounted.directory(), mounted.directory()))
        .collect();
    mounted.umount();
    for (line, (code, out, err)) in lines.iter().zip(said) {
        let root = format!("{}:", mounted.image());
        let expected = run(line, &root, mounted.image());
        assert_eq!(code, expected.0, "{line}: {}", text(&err));
        assert!(
            out == expected.1,
            "{line}:\n{}\ninstead of\n{}",
            text(&out),
            text(&expected.1)
        );
        assert_eq!(
            text(&err).replace("%:", "%"),
            text(&expected.2).replace("%:", "%"),
            "{line}"
        );
    }
}

#[test]
fn words_change_a_mount_and_the_kernel_sees_it() {
    if skips(no_fuse()) {
        return;
    }
    let mounted = furnished();
    let at = |name: &str| format!("{}/{name}", mounted.directory());
    // The kernel caches both missing and existing names.
    for name in ["new", "into/home", "p", "p/q"] {
        assert!(fs::metadata(at(name)).is_err(), "{name}");
    }
    fs::create_dir(at("into")).unwrap();
    assert_eq!(fs::metadata(at("monday")).unwrap().ino() & 0xff_ffff, 256);
    let made = sound(&["subvolume", "create", &at("new")]);
    assert_eq!(text(&made.stdout), format!("Create subvolume '{}'\n", at("new")));
    fs::write(at("new/file"), b"inside").unwrap();
    let made = sound(&["subvolume", "snapshot", &at("home"), &at("into")]);
    assert_eq!(
        text(&made.stdout),
        format!("Create snapshot of '{}' in '{}'\n", at("home"), at("into"))
    );
    assert_eq!(fs::read(at("into/home/d/file")).unwrap(), vec![8; 200_000]);
    sound(&["subvolume", "create", "-p", &at("p/q/r")]);
    assert!(fs::metadata(at("p/q/r")).unwrap().is_dir());

    sound(&["property", "set", &at("into/home"), "ro", "true"]);
    let refused = fs::write(at("into/home/x"), b"").unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc_erofs()));
    sound(&["property", "set", &at("into/home"), "ro", "false"]);
    fs::write(at("into/home/x"), b"").unwrap();

    let listed = text(&sound(&["subvolume", "list", &at("")]).stdout);
    let id = listed
        .lines()
        .find(|line| line.ends_with("path new"))
        .and_then(|line| line.split(' ').nth(1))
        .unwrap();
    sound(&["subvolume", "delete", "-i", id, mounted.directory()]);
    assert!(fs::metadata(at("new")).is_err(), "the kernel forgot it");
    sound(&["subvolume", "delete", &at("monday"), &at("into/home")]);
    assert!(fs::metadata(at("monday")).is_err() && fs::metadata(at("into/home")).is_err());
    let twice = buttress(&["subvolume", "delete", &at("monday")]);
    assert_eq!(twice.status.code(), Some(1));
    assert!(
        text(&twice.stderr).contains("no such file"),
        "{}",
        text(&twice.stderr)
    );

    // The command committed, so its effect is durable.
    mounted.signal(rustix::process::Signal::KILL);
    mounted.wait_until_gone();
    let listed = text(&sound(&["subvolume", "list", mounted.image()]).stdout);
    let names: Vec<&str> = listed.lines().filter_map(|line| line.split(' ').nth(8)).collect();
    assert_eq!(names, ["home", "p/q/r"]);
    mounted.expect_sound();
}

fn libc_erofs() -> i32 {
    rustix::io::Errno::ROFS.raw_os_error()
}

#[test]
fn words_reach_a_mount_by_any_way_to_it() {
    if skips(no_fuse()) {
        return;
    }
    let mounted = furnished();
    let run = |directory: &str, words: &[&str]| {
        let output = Command::new(PROGRAM)
            .args(words)
            .current_dir(directory)
            .output()
            .unwrap();
        assert!(output.status.success(), "{words:?}: {}", text(&output.stderr));
        text(&output.stdout)
    };
    let inside = format!("{}/home", mounted.directory());
    assert_eq!(run(&inside, &["inspect-internal", "rootid", "."]), "256\n");
    assert_eq!(run(&inside, &["inspect-internal", "rootid", ".."]), "5\n");
    assert_eq!(
        run(&inside, &["inspect-internal", "rootid", "../monday"]),
        "257\n"
    );
    let link = mounted.image.with_file_name("link");
    std::os::unix::fs::symlink(&inside, &link).unwrap();
    assert_eq!(
        run("/", &["inspect-internal", "rootid", link.to_str().unwrap()]),
        "256\n"
    );
    // Another volume's image below the mount is an image, not a path of the mount.
    let other = format!("{}/other.img", mounted.directory());
    sound(&["mkfs", "-q", "-b", "128M", "-L", "other", &other]);
    assert_eq!(run("/", &["filesystem", "label", &other]), "other\n");
    assert_eq!(
        run("/", &["filesystem", "label", mounted.directory()]),
        "a label\n"
    );
    mounted.umount();
    // The test mounts the volume by its subvolume, and binds the mount on another directory.
    mounted.mount("rw,subvol=home");
    let bound = mounted.image.with_file_name("bound");
    fs::create_dir(&bound).unwrap();
    rustix::mount::mount_bind(format!("{}/d", mounted.directory()), &bound).unwrap();
    let bound = bound.to_str().unwrap();
    let made = run("/", &["-q", "subvolume", "create", &format!("{bound}/sub")]);
    assert_eq!(made, "");
    assert!(mounted.path("d/sub").is_dir());
    rustix::mount::unmount(bound, rustix::mount::UnmountFlags::empty()).unwrap();
    mounted.umount();
    mounted.expect_sound();
}

#[test]
fn only_who_has_the_servers_rights_is_served() {
    if skips(no_fuse()) {
        return;
    }
    let mounted = furnished();
    mounted.umount();
    mounted.mount("ro,allow_other");
    // In this test, every user can access everything except the server's socket.
    fs::set_permissions(mounted.at.parent().unwrap(), fs::Permissions::from_mode(0o755)).unwrap();
    let as_nobody = |words: &[&str]| {
        // In this test, the program is in a folder that other users cannot access.
        let program = mounted.image.with_file_name("program");
        if !program.exists() {
            copy_program(Path::new(PROGRAM), &program).unwrap();
        }
        let mut command = Command::new(program);
        command
            .args(words)
            .uid(65534)
            .gid(65534)
            .env("TMPDIR", "/tmp")
            .output()
            .unwrap()
    };
    let home = format!("{}/home", mounted.directory());
    assert!(fs::metadata(&home).is_ok());
    let refused = as_nobody(&["subvolume", "show", &home]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(
        text(&refused.stderr).contains("another user"),
        "{}",
        text(&refused.stderr)
    );
    // A read-only mount allows no changes.
    let read_only = buttress(&["subvolume", "delete", &home]);
    assert!(
        text(&read_only.stderr).contains("read-only"),
        "{}",
        text(&read_only.stderr)
    );
    // The server neither writes files nor executes other commands.
    let file = mounted.image.with_file_name("stream");
    let refused = buttress(&[
        "send",
        "-f",
        file.to_str().unwrap(),
        &format!("{}/monday", mounted.directory()),
    ]);
    assert!(!refused.status.success() && !file.exists());
    let refused = buttress(&["check", mounted.directory()]);
    assert!(
        text(&refused.stderr).contains("in a mounted volume"),
        "{}",
        text(&refused.stderr)
    );
    mounted.umount();
}
