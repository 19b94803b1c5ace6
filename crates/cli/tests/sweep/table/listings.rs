//! Commands that list and copy files.

use super::{PLAIN, covered};
use crate::rows::{Covered, Row, Sweep, acts, ends, idle_without, manner, nothing, refused};

const LS: &[Row] = &[
    acts("-l", "-l"),
    acts("--numeric-uid-gid", "-n"),
    acts("--recursive", "-R"),
    acts("--all", "-a"),
    acts("--almost-all", "-A"),
    acts("--inode", "-i"),
    acts("--directory", "-d"),
    idle_without("-l", "--human-readable", "-h"),
    nothing("-1", "-1"),
    idle_without("-l", "--time-style", "--time-style iso"),
    acts("--full-time", "--full-time"),
    acts("--unsorted", "-U"),
    idle_without("-R", "--one-file-system", "--one-file-system"),
];

pub(super) const STREAM_LS: &[Row] = &[
    acts("-l", "-l"),
    acts("--numeric-uid-gid", "-n"),
    acts("--recursive", "-R"),
    acts("--all", "-a"),
    acts("--almost-all", "-A"),
    acts("--inode", "-i"),
    acts("--directory", "-d"),
    idle_without("-l", "--human-readable", "-h"),
    nothing("-1", "-1"),
    idle_without("-l", "--time-style", "--time-style iso"),
    acts("--full-time", "--full-time"),
    acts("--snapshot", "--snapshot home-monday"),
];

pub(super) const LS_COVERED: &[Covered] = &[
    covered("-l", &["--numeric-uid-gid"], "owners are numbers in any case"),
    covered(
        "--time-style",
        &["--numeric-uid-gid"],
        "-l is there: owners are numbers in any case",
    ),
    covered(
        "--human-readable",
        &["--numeric-uid-gid"],
        "-l is there: owners are numbers in any case",
    ),
    covered("--numeric-uid-gid", &["-l"], "it implies -l"),
    covered(
        "--full-time",
        &["-l", "--numeric-uid-gid", "--time-style"],
        "it implies -l and a style, as in GNU ls",
    ),
    covered("--all", &["--almost-all"], "it shows all of them and two more"),
    covered(
        "--directory",
        &[
            "--recursive",
            "--all",
            "--almost-all",
            "--unsorted",
            "--one-file-system",
        ],
        "as in GNU ls",
    ),
];

pub(super) const LISTINGS: &[Sweep] = &[
    Sweep {
        command: "ls",
        base: "{volume.img}:/home",
        own: LS,
        covered: LS_COVERED,
        ..PLAIN
    },
    Sweep {
        command: "cat",
        base: "{volume.img}:/home/plain/text",
        ..PLAIN
    },
    Sweep {
        command: "stat",
        base: "{volume.img}:/home/special/symlink",
        own: &[acts("--dereference", "-L")],
        ..PLAIN
    },
    Sweep {
        command: "tree",
        base: "{volume.img}:/home",
        own: &[
            acts("--all", "-a"),
            acts("-d", "-d"),
            acts("-L", "-L 1"),
            acts("--one-file-system", "-x"),
        ],
        covered: &[
            covered("-d", &["--all"], "no directory of the volume is hidden"),
            covered(
                "-L",
                &["--one-file-system"],
                "the nested subvolume is below that level",
            ),
        ],
        ..PLAIN
    },
    Sweep {
        command: "diff",
        base: "{volume.img}:/home {volume.img}:/home-monday",
        code: 1,
        own: &[
            ends("--ignore", "--ignore content,mtime", 1),
            manner("--holes", "--holes"),
            ends("--brief", "--brief", 1),
            ends("--name-only", "--name-only", 1),
            manner("--no-sharing", "--no-sharing"),
            ends("--one-file-system", "--one-file-system", 1),
        ],
        covered: &[covered(
            "--brief",
            &["--ignore", "--one-file-system"],
            "the exit code is the same",
        )],
        ..PLAIN
    },
];

pub(super) const COPIES: &[Sweep] = &[
    Sweep {
        command: "cp",
        base: "{volume.img}:/home/special/symlink {out}/there",
        own: &[
            acts("--recursive", "-r"),
            acts("--archive", "-a"),
            ends("--no-target-directory", "-T", 1),
            acts("--no-dereference", "-P"),
            acts("-d", "-d"),
            refused("--compress", "--compress zstd"),
            ends("--target-directory", "-t {out}/there", 1),
        ],
        covered: &[
            covered(
                "--recursive",
                &["--no-dereference", "-d"],
                "it copies links as links",
            ),
            covered(
                "--archive",
                &["--recursive", "--no-dereference", "-d"],
                "it implies them",
            ),
            covered(
                "--no-dereference",
                &["--recursive", "-d"],
                "a link is a link either way",
            ),
            covered(
                "-d",
                &["--recursive", "--no-dereference"],
                "a link is a link either way",
            ),
            covered("--no-target-directory", &["*"], "a directory is there: it fails"),
        ],
        ..PLAIN
    },
    Sweep {
        command: "cp",
        base: "{volume.img}:/home/plain/holes {out}/there",
        own: &[
            acts("--no-clobber", "-n"),
            acts("--remove-destination", "--remove-destination"),
            // Root can write to every existing file, so `--force` has no visible effect.
            manner("--force", "-f"),
        ],
        ..PLAIN
    },
    Sweep {
        command: "cp",
        base: "-r {volume.img}:/nested {out}/copy",
        own: &[acts("--one-file-system", "--one-file-system")],
        ..PLAIN
    },
    Sweep {
        command: "cp",
        base: "-r {host} {volume.img}:/home",
        own: &[
            acts("--archive", "-a"),
            acts("--no-target-directory", "-T"),
            acts("-d", "-d"),
            acts("--compress", "--compress zstd"),
        ],
        covered: &[covered("--archive", &["-d"], "it implies it")],
        ..PLAIN
    },
    Sweep {
        command: "tar",
        base: "{volume.img}:/home",
        own: &[
            acts("--file", "-f {out}/a.tar"),
            acts("--one-file-system", "--one-file-system"),
            acts("--no-xattrs", "--no-xattrs"),
            acts("--times", "--times mtime"),
        ],
        ..PLAIN
    },
    Sweep {
        command: "manifest",
        base: "{volume.img}",
        own: &[
            acts("--file", "-f {out}/plan.toml"),
            acts("--contents", "--contents elsewhere.img"),
            acts("--compressed-with", "--compressed-with zstd:9"),
        ],
        ..PLAIN
    },
];
