//! Tests of commands that read a volume, on the volume of the tour.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::cast_possible_truncation,
    reason = "tests state what must hold"
)]

use crate::support;

use support::{buttress, failure, image, inside, json, stdout};

#[test]
fn ls_sorts_and_aligns_as_ls_does() {
    let text = stdout(&["ls", &inside("/home")]);
    let names: Vec<&str> = text.lines().collect();
    assert_eq!(
        names,
        [
            "after-the-snapshot",
            "compressed",
            "many",
            "plain",
            "projects",
            "special"
        ]
    );
    let long = stdout(&["ls", "-l", &inside("/home/special")]);
    let lines: Vec<&str> = long.lines().collect();
    assert!(lines[0].starts_with("total "));
    let line = |name: &str| *lines.iter().find(|line| line.contains(name)).unwrap();
    assert!(
        line("attributes").starts_with("-rw-r-----+ 1 1000 1000 "),
        "{}",
        line("attributes")
    );
    assert!(line(" null").starts_with("crw-r-----"), "{}", line(" null"));
    assert!(line(" null").contains(" 1, 3 "), "{}", line(" null"));
    assert!(line(" loop").starts_with("brw-r-----"));
    assert!(line(" pipe").starts_with("prw-r-----"));
    assert!(line(" socket").starts_with('s'));
    assert!(line("dangling").ends_with("dangling -> /nowhere/at/all"));
    // The tested time is a nanosecond before 1970, so its second and its year are those before.
    assert!(
        line("first-name").contains("Dec 31  1969 first-name"),
        "{}",
        line("first-name")
    );
}

#[test]
fn ls_goes_down_in_the_order_of_ls() {
    let text = stdout(&["ls", "-R", &inside("/home/compressed")]);
    let path = |name: &str| format!("/home/compressed{name}:");
    let headings: Vec<&str> = text.lines().filter(|line| line.ends_with(':')).collect();
    assert_eq!(headings, [path(""), path("/lzo"), path("/zlib"), path("/zstd")]);
    assert!(
        text.starts_with("/home/compressed:\nlzo\nzlib\nzstd\n\n/home/compressed/lzo:\n"),
        "{text}"
    );
}

#[test]
fn a_nested_subvolume_in_a_snapshot_is_an_empty_directory() {
    assert_eq!(stdout(&["ls", &inside("/home/projects")]), "README\n");
    assert_eq!(stdout(&["ls", &inside("/home-monday/projects")]), "");
    let stat = json(&["stat", &inside("/home-monday/projects")], "stat");
    assert_eq!(
        (&stat[0]["inode"], &stat[0]["type"]),
        (&2.into(), &"directory".into())
    );
    let here = stdout(&["ls", "-R", "--one-file-system", &inside("/home")]);
    assert!(!here.contains("README"), "{here}");
}

#[test]
fn snapshots_show_what_was_there() {
    assert_eq!(
        stdout(&["cat", &inside("/home-monday/plain/inline")]),
        "Small files lie in the tree itself.\n"
    );
    let (code, error) = failure(&["cat", &inside("/home/plain/inline")]);
    assert_eq!(code, 1);
    assert!(error.contains("no such file or directory"), "{error}");
}

#[test]
fn cat_reads_holes_as_zeros_and_compression_is_not_seen() {
    let holes = buttress(&["cat", &inside("/home/plain/holes")]).stdout;
    assert_eq!(holes.len(), 3 << 20);
    assert_eq!(&holes[..4], b"head");
    assert!(holes[4..1 << 20].iter().all(|byte| *byte == 0));
    assert!(holes[(1 << 20) + 8192..].iter().all(|byte| *byte == 0));
    let zlib = buttress(&["cat", &inside("/home/compressed/zlib/text-160000")]).stdout;
    assert_eq!(zlib.len(), 160_000);
    for other in ["lzo", "zstd"] {
        let other = buttress(&["cat", &inside(&format!("/home/compressed/{other}/text-160000"))]).stdout;
        assert!(other == zlib);
    }
}

#[test]
fn stat_shows_attributes_and_all_times() {
    let text = stdout(&["stat", &inside("/home/special/attributes")]);
    for part in [
        "Access: (0640/-rw-r-----)  Uid:  1000   Gid:  1000",
        " Birth: 20",
        "Xattr: user.colour=\"green\"",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let stat = json(&["stat", &inside("/home/special/first-name")], "stat");
    assert_eq!(
        stat[0]["mtime"],
        serde_json::json!({ "seconds": -1, "nanoseconds": 999_999_999 })
    );
    assert_eq!(stat[0]["links"], 2);
    let link = json(&["stat", &inside("/home/special/symlink")], "stat");
    assert_eq!(
        (&link[0]["type"], &link[0]["target"]),
        (&"symlink".into(), &"first-name".into())
    );
    let followed = json(&["stat", "-L", &inside("/home/special/symlink")], "stat");
    assert_eq!(followed[0]["inode"], stat[0]["inode"]);
}

#[test]
fn names_that_are_not_utf8_come_through() {
    let output = buttress(&["ls", &inside("/home/special")]);
    let names: Vec<&[u8]> = output.stdout.split(|byte| *byte == b'\n').collect();
    assert!(names.contains(&b"not-utf8-\xff\xfe".as_slice()));
    let entries = json(&["ls", &inside("/home/special")], "ls");
    let encoded = entries
        .as_array()
        .unwrap()
        .iter()
        .find_map(|entry| entry.get("name_b64"))
        .unwrap();
    assert_eq!(encoded, "bm90LXV0Zjgt//4=");
}

#[test]
fn tree_draws_branches_and_counts() {
    let text = stdout(&["tree", "-L", "2", &inside("/home/compressed")]);
    let expected = "/home/compressed
├── lzo
│   ├── text-1000
│   ├── text-160000
│   ├── text-30000
│   └── text-5000
├── zlib
│   ├── text-1000
│   ├── text-160000
│   ├── text-30000
│   └── text-5000
└── zstd
    ├── text-1000
    ├── text-160000
    ├── text-30000
    └── text-5000

3 directories, 12 files
";
    assert_eq!(text, expected);
}

#[test]
fn subvolumes_are_listed_in_the_words_of_btrfs_progs() {
    let image = image().to_str().unwrap();
    let text = stdout(&["subvolume", "list", image]);
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 4);
    assert!(lines[0].starts_with("ID 256 gen ") && lines[0].ends_with(" top level 5 path home"));
    assert!(lines[1].ends_with(" top level 256 path home/projects"));
    assert!(stdout(&["sub", "li", "-a", image]).contains("path <FS_TREE>/home/projects\n"));
    assert_eq!(stdout(&["subvolume", "list", "-r", image]).lines().count(), 2);
    assert_eq!(stdout(&["subvolume", "list", "-d", image]), "");
    let listed = json(&["subvolume", "list", image], "subvolume-list");
    assert_eq!(listed[2]["parent_uuid"], listed[0]["uuid"]);
    // In `subvolume list`, -q is the uuid of a snapshot's source, not "quiet".
    let snapshots = stdout(&["subvolume", "list", "-s", "-q", image]);
    assert!(snapshots.contains(&format!(
        "parent_uuid {} path",
        listed[0]["uuid"].as_str().unwrap()
    )));
    let shown = stdout(&["subvolume", "show", &inside("/home")]);
    assert!(
        shown.starts_with("home\n\tName: \t\t\thome\n\tUUID: \t\t\t"),
        "{shown}"
    );
    assert!(
        shown.contains("\tSnapshot(s):\n\t\t\t\thome-monday\n\t\t\t\thome-tuesday\n\tQuota group:\t\tn/a\n"),
        "{shown}"
    );
    assert_eq!(stdout(&["subvolume", "get-default", image]), "ID 5 (FS_TREE)\n");
    let (code, error) = failure(&["subvolume", "show", &inside("/home/plain")]);
    assert_eq!(code, 1);
    assert!(
        error.contains("not the root of a subvolume") && error.contains("help:"),
        "{error}"
    );
}

#[test]
fn space_is_shown_in_the_words_of_btrfs_progs() {
    let image = image().to_str().unwrap();
    let df = stdout(&["filesystem", "df", image]);
    assert!(
        df.starts_with("Data, single: total=24.00MiB, used=1.22MiB\nSystem, DUP: total=8.00MiB"),
        "{df}"
    );
    let raw = json(&["fi", "df", image], "filesystem-df");
    assert_eq!(raw[0]["bg-type"], "Data");
    assert_eq!(raw[0]["total"], 24 << 20);
    let show = stdout(&["filesystem", "show", image]);
    assert!(
        show.starts_with("Label: 'tour'  uuid: 7b0f3d0a-6e5c-4b1e-9c37-0d1b2f6a5e11\n"),
        "{show}"
    );
    let usage = stdout(&["filesystem", "usage", "-b", image]);
    assert!(
        usage.contains("    Device size:\t\t         134217728\n"),
        "{usage}"
    );
    let du = stdout(&["filesystem", "du", "-s", &inside("/home")]);
    assert!(du.ends_with(&format!("  {}\n", inside("/home"))), "{du}");
}

#[test]
fn another_root_can_be_chosen() {
    let image = image().to_str().unwrap();
    assert_eq!(stdout(&["--subvol", "home/projects", "ls", image]), "README\n");
    assert_eq!(stdout(&["ls", "--subvolid=257", image]), "README\n");
    assert_eq!(failure(&["ls", "--subvolid=999", image]).0, 1);
    let (code, error) = failure(&["ls", "--subvol", "home/plain", image]);
    assert_eq!(code, 1);
    assert!(error.contains("is not a subvolume"), "{error}");
}

#[test]
fn every_command_speaks_json() {
    let image = image().to_str().unwrap();
    let home = inside("/home/plain");
    for (words, name) in [
        (&["ls", "-R", image][..], "ls"),
        (&["stat", &home], "stat"),
        (&["tree", &home], "tree"),
        (&["subvolume", "list", image], "subvolume-list"),
        (&["subvolume", "show", image], "subvolume-show"),
        (&["subvolume", "get-default", image], "subvolume-get-default"),
        (&["filesystem", "show", image], "filesystem-show"),
        (&["filesystem", "df", image], "filesystem-df"),
        (&["filesystem", "usage", image], "filesystem-usage"),
        (&["filesystem", "du", image], "filesystem-du"),
        (&["diff", &home, &home], "diff"),
        (&["tour", image], "tour"),
    ] {
        assert!(!json(words, name).is_null(), "{words:?}");
    }
}
