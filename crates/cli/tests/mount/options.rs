//! Tests of mount options, which have the same effects as in the kernel; a mount by a user without
//! rights; the sandboxed server.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "tests state what must hold"
)]

use crate::mounting;

use buttress_oracle::loop_device::Mount;
use buttress_oracle::needs::{Missing, any_missing};
use buttress_oracle::skip::skips;
use buttress_oracle::tools::kernel_missing;
use mounting::{DETACH_OTHERS, Mounted, NAMESPACES, PROGRAM, buttress, no_fuse, sound, text};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::process::Command;

fn refusal(words: &[&str]) -> String {
    let output = buttress(words);
    assert!(!output.status.success(), "{words:?}");
    text(&output.stderr)
}

#[test]
fn all_files_are_shown_as_one_users() {
    if skips(no_fuse()) {
        return;
    }
    let mounted = Mounted::new();
    let owner = |name: &str| {
        let found = fs::metadata(mounted.path(name)).unwrap();
        (found.uid(), found.gid())
    };
    mounted.mount("rw");
    fs::write(mounted.path("file"), b"x").unwrap();
    std::os::unix::fs::chown(mounted.path("file"), Some(1000), Some(1001)).unwrap();
    mounted.umount();
    for (options, expected) in [
        ("rw,uid=7", (7, 1001)),
        ("rw,gid=8", (1000, 8)),
        ("rw,uid=7,gid=8", (7, 8)),
        ("ro,fakeroot", (0, 0)),
    ] {
        mounted.mount(options);
        assert_eq!(owner("file"), expected, "{options}");
        mounted.umount();
    }
    // After the mount, the volume has none of these changes.
    mounted.mount("ro");
    assert_eq!(owner("file"), (1000, 1001));
    mounted.umount();
    mounted.expect_sound();
}

#[test]
fn an_overlay_keeps_the_image_as_it_is() {
    if skips(no_fuse()) {
        return;
    }
    let mounted = Mounted::new();
    let before = fs::read(&mounted.image).unwrap();
    let overlay = mounted.image.with_file_name("changes");
    let overlay = overlay.to_str().unwrap();
    let mount = |options: &str| {
        sound(&[
            "mount",
            "--overlay",
            overlay,
            "-o",
            options,
            mounted.image(),
            mounted.directory(),
        ])
    };
    mount("rw");
    fs::write(mounted.path("tried"), vec![5; 2 << 20]).unwrap();
    sound(&["subvolume", "create", &format!("{}/sub", mounted.directory())]);
    mounted.umount();
    assert!(fs::read(&mounted.image).unwrap() == before, "the image changed");
    mount("ro");
    assert_eq!(fs::read(mounted.path("tried")).unwrap(), vec![5; 2 << 20]);
    assert!(mounted.path("sub").is_dir());
    mounted.umount();
    mounted.mount("ro");
    assert!(!mounted.path("tried").exists());
    mounted.umount();
    sound(&["check", "--overlay", overlay, mounted.image()]);
}

/// Returns the amount of a file's extents by compression method, from `compression`.
fn extents(mounted: &Mounted, name: &str) -> Vec<String> {
    let output = sound(&["fiemap", "-v", &format!("{}:/{name}", mounted.image())]);
    let lines = text(&output.stdout);
    let flags = lines.lines().filter_map(|line| {
        let flags: Vec<&str> = line
            .split([' ', ','])
            .filter(|word| ["encoded", "inline"].contains(word))
            .collect();
        line.trim_start()
            .starts_with(|first: char| first.is_ascii_digit())
            .then(|| flags.join(","))
    });
    flags.collect()
}

#[test]
fn content_is_written_as_the_kernel_writes_it() {
    if skips(no_fuse()) || skips(kernel_missing()) {
        return;
    }
    // The kernel chooses differently which parts are worth compressing; these test files are clear
    // cases.
    let files = [("plain", vec![b'a'; 300_000]), ("small", vec![b'b'; 1000])];
    for options in [
        "compress=zstd",
        "compress-force=zlib",
        "compress=no",
        "nodatacow",
        "nodatasum",
        "max_inline=0",
        "compress=lzo,max_inline=100",
    ] {
        let (ours, theirs) = (Mounted::new(), Mounted::new());
        ours.mount(&format!("rw,{options}"));
        let kernel = Mount::new(std::slice::from_ref(&theirs.image), options).unwrap();
        for root in [ours.at.as_path(), kernel.path()] {
            for (name, content) in &files {
                fs::write(root.join(name), content).unwrap();
                fs::File::open(root.join(name)).unwrap().sync_all().unwrap();
            }
        }
        ours.umount();
        kernel.close().unwrap();
        for (name, content) in &files {
            let (found, expected) = (extents(&ours, name), extents(&theirs, name));
            // The kernel has no inline extents in nodatacow files.
            if (options, *name) != ("nodatacow", "small") {
                assert_eq!(found, expected, "{options}: {name}");
            }
            let attributes = |of: &Mounted| {
                let output = sound(&["stat", &format!("{}:/{name}", of.image())]);
                let lines = text(&output.stdout);
                lines
                    .lines()
                    .find(|line| line.starts_with("Flags"))
                    .map(str::to_owned)
            };
            assert_eq!(attributes(&ours), attributes(&theirs), "{options}: {name}");
            let read = sound(&["cat", &format!("{}:/{name}", ours.image())]);
            assert!(read.stdout == *content, "{options}: {name}");
        }
        ours.expect_sound();
    }
}

#[test]
fn degraded_and_damaged_volumes_are_mounted_on_request() {
    if skips(no_fuse()) {
        return;
    }
    let mounted = Mounted::new();
    let second = mounted.image.with_file_name("second.img");
    let (first, second) = (mounted.image(), second.to_str().unwrap());
    fs::remove_file(first).unwrap();
    sound(&[
        "mkfs", "-q", "-b", "512M", "-d", "raid1", "-m", "raid1", first, second,
    ]);
    let both = format!("rw,device={second}");
    mounted.mount(&both);
    fs::write(mounted.path("file"), vec![9; 100_000]).unwrap();
    mounted.umount();
    let refused = refusal(&["mount", "-o", "ro", first, mounted.directory()]);
    assert!(
        refused.contains("missing") || refused.contains("device"),
        "{refused}"
    );
    mounted.mount("ro,degraded");
    assert_eq!(fs::read(mounted.path("file")).unwrap(), vec![9; 100_000]);
    mounted.umount();
    // The primary superblock's root tree block is destroyed, so the volume opens from an older
    // root.
    mounted.mount(&format!("ro,rescue=usebackuproot:nologreplay,device={second}"));
    assert_eq!(fs::read(mounted.path("file")).unwrap(), vec![9; 100_000]);
    mounted.umount();
}

#[test]
fn nothing_is_mounted_over_the_root_of_all_files() {
    if skips(no_fuse()) {
        return;
    }
    let mounted = Mounted::new();
    let refused = refusal(&["mount", mounted.image(), "/"]);
    assert!(refused.contains("root of the file system"), "{refused}");
    let file = mounted.image.with_file_name("file");
    fs::write(&file, b"").unwrap();
    refusal(&["mount", mounted.image(), file.to_str().unwrap()]);
    refusal(&["mount", mounted.image(), "/nowhere/at/all"]);
    assert_eq!(fs::read_dir(&mounted.at).unwrap().count(), 0);
}

#[test]
fn the_server_is_closed_in_with_all_of_its_threads() {
    if skips(no_fuse()) {
        return;
    }
    let mounted = Mounted::new();
    mounted.mount("rw");
    fs::write(mounted.path("file"), b"x").unwrap();
    let threads = fs::read_dir(format!("/proc/{}/task", mounted.server())).unwrap();
    let mut count = 0;
    for thread in threads {
        let status = fs::read_to_string(thread.unwrap().path().join("status")).unwrap();
        assert!(status.contains("\nSeccomp:\t2\n"), "{status}");
        assert!(status.contains("\nNoNewPrivs:\t1\n"), "{status}");
        count += 1;
    }
    assert!(count > 16, "{count} threads");
    mounted.umount();
    mounted.expect_sound();
}

/// Returns the requirement that this machine lacks for a mount by a user without rights.
fn no_helper() -> Option<Missing> {
    any_missing(&["fusermount3"]).or_else(no_fuse)
}

/// Script that mounts, uses and unmounts as nobody, in separate namespaces in which every user has
/// access to `/dev/fuse`.
const AS_NOBODY: &str = r#"
set -e
cd "$1"
mkdir dev && mount -t tmpfs none dev && mknod -m 666 dev/fuse c 10 229 && mount --bind dev/fuse /dev/fuse
cp "$2" program && chmod 755 program
mkdir at run && chown 65534:65534 at run && chmod 755 .
cat > script <<'END'
set -e
./program mkfs -q -b 256M run/own.img
./program mount -o rw,uid=65534,gid=65534 run/own.img at
echo content > at/file
mkdir at/d && ln at/file at/d/link
./program subvolume create at/sub
./program subvolume snapshot -r at/sub at/fixed
test "$(cat at/d/link)" = content
test "$(stat -c %u at/sub)" = 65534
grep -q ' at/fixed$\|fixed' <<LIST
$(./program subvolume list at)
LIST
grep "$PWD/at " /proc/self/mounts | grep -q nosuid,nodev
./program mount --list | grep -q own.img
./program umount at
test -z "$(ls at)"
./program check run/own.img
END
XDG_RUNTIME_DIR="$1/run" setpriv --reuid 65534 --regid 65534 --clear-groups bash script
"#;

#[test]
fn a_user_without_rights_mounts_by_the_helper() {
    if skips(no_helper()) {
        return;
    }
    run_in_namespace(AS_NOBODY);
}

/// Runs a script in a separate mount namespace, with a new folder and the program as arguments.
fn run_in_namespace(script: &str) {
    let folder = tempfile::tempdir().unwrap();
    let script = format!("{DETACH_OTHERS} detach_others\n{script}");
    let _alone = NAMESPACES.write();
    let mut unshare = Command::new("unshare");
    unshare.args([
        "--mount",
        "--propagation",
        "private",
        "bash",
        "-c",
        &script,
        "bash",
    ]);
    let ran = unshare.arg(folder.path()).arg(PROGRAM).output().unwrap();
    let (stdout, stderr) = (text(&ran.stdout), text(&ran.stderr));
    assert!(ran.status.success(), "{stdout}\n{stderr}");
}

/// Script that remounts in a separate mount namespace, with the program in the system's path. First
/// mount(8) finds the program by the helper of package fuse3, then by a link with its own name.
const REMOUNTS: &str = r#"
set -e
cd "$1"
mount -t tmpfs none /usr/local/bin && cp "$2" /usr/local/bin/buttress
mkdir -p at local
buttress mkfs -q -b 256M v.img
buttress mount -o rw v.img at
remounts() {
  echo before > at/file
  mount -o remount,ro at
  if touch at/new 2> /dev/null; then exit 1; fi
  mount -o remount,rw at
  echo after > at/file
}
if test -x /sbin/mount.fuse; then remounts; fi
if test -e /sbin/mount.fuse.buttress; then echo "found a link, expected none"; exit 1; fi
mkdir upper work
mount -t tmpfs none work && mkdir work/u work/w
mount -t overlay none -o lowerdir=/usr/sbin,upperdir=work/u,workdir=work/w /usr/sbin
ln -s /usr/local/bin/buttress /usr/sbin/mount.fuse.buttress
remounts
umount /usr/sbin
buttress mount -o remount,ro at
if touch at/new 2> /dev/null; then exit 1; fi
buttress mount -o remount,rw at
touch at/new
if buttress mount -o ro at 2> said; then exit 1; fi
grep -q 'directory is missing' said
if buttress mount -o remount,ro v.img 2> said; then exit 1; fi
grep -q 'not a directory' said
buttress umount at
buttress check v.img
"#;

#[test]
fn a_mount_is_remounted_with_and_without_helpers() {
    if skips(no_fuse()) {
        return;
    }
    run_in_namespace(REMOUNTS);
}

#[test]
fn options_that_mean_nothing_are_noted_once() {
    if skips(no_fuse()) {
        return;
    }
    let mounted = Mounted::new();
    let options = "rw,defaults,silent,relatime,noacl,nobarrier,lazytime,thread_pool=4,user_subvol_rm_allowed";
    let done = sound(&["mount", "-o", options, mounted.image(), mounted.directory()]);
    let said = text(&done.stderr);
    assert_eq!(said.matches("has no effect").count(), 4, "{said}");
    mounted.umount();
    let said = refusal(&["mount", "-o", "nonsense", mounted.image(), mounted.directory()]);
    assert!(said.contains("unknown option"), "{said}");
}
