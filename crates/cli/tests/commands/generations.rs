//! `IMAGE:/.generations/N/path`: older states in the commands that read, and in sessions.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "tests state what must hold"
)]

use crate::support::in_folder;

use std::fs;
use std::path::Path;

use in_folder::{buttress, done, text};

/// Makes a volume whose file `/letter` was replaced, and whose file `/note` was removed. Returns the
/// generation of the state before.
fn changed(folder: &Path, image: &str) -> u64 {
    done(folder, &["mkfs", "-q", "--size", "128M", image]);
    let first = [
        "-c",
        "mkdir /home",
        "-c",
        "pwrite -S 0x41 0 60k /home/letter",
        "-c",
        "pwrite 0 9 /note",
    ];
    done(folder, &[&["shell", "-w"][..], &first, &[image]].concat());
    let listed = done(folder, &["ls", &format!("{image}:/.generations")]);
    let before = listed.lines().next().unwrap().parse().unwrap();
    let then = ["-c", "pwrite -S 0x42 0 60k /home/letter", "-c", "rm /note"];
    done(folder, &[&["shell", "-w"][..], &then, &[image]].concat());
    before
}

#[test]
fn paths_below_generations_show_older_states() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let before = changed(folder, "v.img");
    let at = |path: &str| format!("v.img:/.generations/{before}{path}");
    let listed = done(folder, &["ls", "v.img:/.generations"]);
    assert!(listed.lines().any(|line| line == before.to_string()), "{listed}");
    assert_eq!(done(folder, &["ls", &at("")]), "home\nnote\n");
    assert_eq!(done(folder, &["ls", "v.img:/"]), "home\n");
    assert_eq!(done(folder, &["cat", &at("/home/letter")]), "A".repeat(60 << 10));
    done(folder, &["cp", &at("/home/letter"), "old"]);
    assert_eq!(fs::read(folder.join("old")).unwrap(), vec![b'A'; 60 << 10]);
    let inside = text(&buttress(folder, &["tar", "-f", "old.tar", &at("/home")]).stderr);
    assert!(folder.join("old.tar").exists(), "{inside}");
    for command in [
        "stat",
        "tree",
        "manifest",
        "subvolume list",
        "filesystem du",
        "space",
    ] {
        let words: Vec<&str> = command.split(' ').chain([at("").leak() as &str]).collect();
        done(folder, &words);
    }
    // Two states of one volume, side by side.
    let output = buttress(folder, &["diff", &at("/home"), "v.img:/home"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(text(&output.stdout).contains("letter"), "{output:?}");
    let output = buttress(folder, &["diff", &at("/home"), &at("/home")]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    // A state that no root leads to, and no state at all.
    for path in ["v.img:/.generations/999999/note", "v.img:/.generations/none/note"] {
        let output = buttress(folder, &["cat", path]);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
    }
    let output = buttress(folder, &["cat", "--generation", "7", &at("/note")]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
}

#[test]
fn paths_below_generations_are_never_written() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let before = changed(folder, "w.img");
    let at = |path: &str| format!("w.img:/.generations/{before}{path}");
    let image = fs::read(folder.join("w.img")).unwrap();
    fs::write(folder.join("host"), "host").unwrap();
    for words in [
        vec!["cp", "host", &at("/new")],
        vec!["cp", &at("/note"), "w.img:/note"],
        vec!["subvolume", "create", &at("/new")],
        vec!["subvolume", "delete", &at("/home")],
        vec!["property", "set", &at("/home"), "compression", "zstd"],
        vec!["filesystem", "defragment", &at("/home")],
        vec![
            "shell",
            "-w",
            "-c",
            &format!("rm /.generations/{before}/note"),
            "w.img",
        ],
        vec![
            "shell",
            "-w",
            "-c",
            &format!("cp /.generations/{before}/note /note"),
            "w.img",
        ],
    ] {
        let output = buttress(folder, &words);
        assert!(
            output.status.code().is_some_and(|code| code > 0),
            "{words:?}: {output:?}"
        );
        assert!(fs::read(folder.join("w.img")).unwrap() == image, "{words:?}");
    }
}

#[test]
fn session_goes_to_older_states() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let before = changed(folder, "s.img");
    let go = format!("cd /.generations/{before}/home");
    for mode in [&[][..], &["-w"]] {
        let words = [
            &["shell"][..],
            mode,
            &[
                "-c",
                &go,
                "-c",
                "pwd",
                "-c",
                "ls",
                "-c",
                "get letter found",
                "s.img",
            ],
        ];
        let shown = done(folder, &words.concat());
        assert_eq!(shown, format!("/.generations/{before}/home\nletter\n"));
        assert_eq!(fs::read(folder.join("found")).unwrap(), vec![b'A'; 60 << 10]);
        fs::remove_file(folder.join("found")).unwrap();
    }
    let listed = done(
        folder,
        &[
            "shell",
            "-c",
            "cd /.generations",
            "-c",
            "ls",
            "-c",
            &format!("ls {before}"),
            "s.img",
        ],
    );
    assert!(
        listed.contains(&format!("{before}\n")) && listed.ends_with("home\nnote\n"),
        "{listed}"
    );
}

#[test]
fn entry_named_generations_hides_states() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    done(folder, &["mkfs", "-q", "--size", "128M", "own.img"]);
    let words = [
        "shell",
        "-w",
        "-c",
        "mkdir /.generations",
        "-c",
        "mkdir /.generations/7",
        "own.img",
    ];
    done(folder, &words);
    assert_eq!(done(folder, &["ls", "own.img:/.generations"]), "7\n");
    assert_eq!(done(folder, &["ls", "own.img:/.generations/7"]), "");
}
