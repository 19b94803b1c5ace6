//! `restore` and older states where a fault would lose data silently: existing files, expressions that
//! match nothing, hard links, copies of superblocks, and writes at an older state.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "tests state what must hold"
)]

use crate::support::in_folder;

use serde_json::Value;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use in_folder::{buttress, done, text};

/// The offset of the primary superblock.
const PRIMARY: u64 = 64 << 10;

/// Makes a volume with the given directories and files of 100 KiB below its top level.
fn small(folder: &Path, image: &str, directories: &[&str], files: &[&str]) {
    done(folder, &["mkfs", "-q", "-f", "--size", "128M", image]);
    let mut words = vec!["shell".to_owned(), "-w".to_owned()];
    for directory in directories {
        words.extend(["-c".to_owned(), format!("mkdir {directory}")]);
    }
    for file in files {
        words.extend(["-c".to_owned(), format!("pwrite -S 0x41 0 100k {file}")]);
    }
    words.push(image.to_owned());
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    done(folder, &words);
}

#[test]
fn refused_file_leaves_the_existing_one() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    small(folder, "photo.img", &[], &["/photo"]);
    let shown = done(folder, &["restore", "-q", "photo.img", "out"]);
    assert!(shown.is_empty(), "{shown}");
    let good = fs::read(folder.join("out/photo")).unwrap();
    // Every copy of the first sector of data is wrong.
    let image = folder.join("photo.img");
    let mut bytes = fs::read(&image).unwrap();
    for start in (0..bytes.len()).step_by(4096) {
        if bytes[start..start + 4096].iter().all(|byte| *byte == 0x41) {
            bytes[start] = 0;
            break;
        }
    }
    fs::write(&image, bytes).unwrap();
    let output = buttress(
        folder,
        &[
            "restore",
            "-o",
            "--verified-only",
            "--report",
            "report",
            "photo.img",
            "out",
        ],
    );
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(
        fs::read(folder.join("out/photo")).unwrap() == good,
        "the file changed"
    );
    assert_eq!(
        fs::read_dir(folder.join("out")).unwrap().count(),
        1,
        "a temporary file stays"
    );
    let report: Value = serde_json::from_slice(&fs::read(folder.join("report")).unwrap()).unwrap();
    assert_eq!(report["files"].as_array().unwrap().len(), 1, "{report}");
    assert_eq!(report["files"][0]["verdict"], "partial");
    // A directory in the way is a failure that the report names once, too.
    fs::remove_file(folder.join("out/photo")).unwrap();
    fs::create_dir(folder.join("out/photo")).unwrap();
    let output = buttress(
        folder,
        &[
            "restore",
            "-o",
            "--verified-only",
            "--report",
            "report",
            "photo.img",
            "out",
        ],
    );
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    let report: Value = serde_json::from_slice(&fs::read(folder.join("report")).unwrap()).unwrap();
    assert_eq!(report["files"].as_array().unwrap().len(), 1, "{report}");
    assert_eq!(report["files"][0]["verdict"], "lost");
}

#[test]
fn path_expression_that_refuses_everything_is_reported() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    small(folder, "home.img", &["/home"], &["/home/photo"]);
    let regex = |expression: &str, target: &str| {
        buttress(
            folder,
            &["restore", "-q", "--path-regex", expression, "home.img", target],
        )
    };
    assert_eq!(regex("^/home", "all").status.code(), Some(0));
    assert!(folder.join("all/home/photo").exists());
    let output = regex("^/none", "none");
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let output = buttress(
        folder,
        &["restore", "-q", "-c", "--path-regex", "^/HOME", "home.img", "any"],
    );
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(folder.join("any/home/photo").exists());
}

#[test]
fn later_names_are_linked_to_the_first_restored_name() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    small(folder, "links.img", &["/a", "/b"], &["/a/x"]);
    done(
        folder,
        &[
            "shell",
            "-w",
            "-c",
            "ln /a/x /b/y",
            "-c",
            "ln /a/x /b/z",
            "links.img",
        ],
    );
    done(
        folder,
        &[
            "restore",
            "-q",
            "--path-regex",
            "^/(|b(|/.*))$",
            "links.img",
            "out",
        ],
    );
    let inode = |name: &str| fs::metadata(folder.join("out").join(name)).unwrap().ino();
    assert_eq!(inode("b/y"), inode("b/z"));
    assert!(!folder.join("out/a").exists());
    // A first name that exists already stays apart.
    fs::create_dir_all(folder.join("kept/a")).unwrap();
    fs::write(folder.join("kept/a/x"), "own").unwrap();
    let output = buttress(folder, &["restore", "-q", "links.img", "kept"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert_eq!(fs::read(folder.join("kept/a/x")).unwrap(), b"own");
    let inode = |name: &str| fs::metadata(folder.join("kept").join(name)).unwrap().ino();
    assert_eq!(inode("b/y"), inode("b/z"));
}

#[test]
fn no_command_writes_at_an_older_state() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let generations = |image: &str| -> Vec<u64> {
        let listed = done(folder, &["generations", "--format", "json", image]);
        let listed: Value = serde_json::from_str(&listed).unwrap();
        let states = listed["generations"].as_array().unwrap();
        states
            .iter()
            .map(|state| state["generation"].as_u64().unwrap())
            .collect()
    };
    small(folder, "state.img", &["/a"], &["/a/x"]);
    done(
        folder,
        &["shell", "-w", "-c", "mkdir /b", "-c", "sync", "state.img"],
    );
    let known = generations("state.img");
    let older = known[1].to_string();
    let before = fs::read(folder.join("state.img")).unwrap();
    let commands: [&[&str]; 12] = [
        &["scrub", "start", "-B", "state.img"],
        &["scrub", "resume", "-B", "state.img"],
        &["check", "--repair", "state.img"],
        &["check", "--repair", "--in-place", "state.img"],
        &["rescue", "zero-log", "state.img"],
        &["rescue", "fix-device-size", "state.img"],
        &["rescue", "clear-uuid-tree", "state.img"],
        &["balance", "start", "--full-balance", "state.img"],
        &["filesystem", "label", "state.img", "name"],
        &["filesystem", "resize", "max", "state.img"],
        &["quota", "enable", "state.img"],
        &["subvolume", "create", "state.img:/c"],
    ];
    for command in commands {
        let output = buttress(folder, &[&["--generation", &older], command].concat());
        assert_ne!(output.status.code(), Some(0), "{command:?}: {output:?}");
        assert!(
            text(&output.stderr).contains("--generation"),
            "{command:?}: {output:?}"
        );
        assert!(
            fs::read(folder.join("state.img")).unwrap() == before,
            "{command:?}"
        );
        assert!(!folder.join("state.img.repair").exists(), "{command:?}");
    }
}

#[test]
fn superblock_copy_leads_to_its_state_without_a_scan() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    small(folder, "copy.img", &[], &["/photo"]);
    for target in ["whole", "damaged"] {
        let output = buttress(folder, &["restore", "-u", "1", "copy.img", target]);
        assert_eq!(output.status.code(), Some(0), "{target}: {output:?}");
        assert!(!text(&output.stderr).contains("searched"), "{output:?}");
        assert!(folder.join(target).join("photo").exists(), "{target}");
        let image = File::options().write(true).open(folder.join("copy.img")).unwrap();
        image.write_all_at(&[0; 4096], PRIMARY).unwrap();
    }
}

#[test]
fn index_of_another_file_system_is_not_used() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    small(folder, "again.img", &[], &["/old"]);
    done(folder, &["rescue", "scan", "-q", "again.img"]);
    assert!(folder.join("again.img.scan").exists());
    small(folder, "again.img", &[], &["/new"]);
    let listed = done(folder, &["generations", "--format", "json", "again.img"]);
    let listed: Value = serde_json::from_str(&listed).unwrap();
    let newest = listed["generations"][0]["generation"].to_string();
    let output = buttress(folder, &["ls", "--generation", &newest, "again.img:/"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert_eq!(text(&output.stdout).trim(), "new");
    assert!(text(&output.stderr).contains("another file system"), "{output:?}");
    let named = [
        "restore",
        "--index",
        "again.img.scan",
        "--generation",
        &newest,
        "again.img",
        "out",
    ];
    assert_ne!(buttress(folder, &named).status.code(), Some(0));
}
