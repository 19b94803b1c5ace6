//! The table: command lines for each command, and what its options do there.

use crate::rows::{
    Covered, Row, Sweep, Units, acts, beside, elsewhere, ends, idle_without, manner, nothing, refused,
};

const PLAIN: Sweep = Sweep {
    command: "",
    base: "",
    code: 0,
    own: &[],
    units: Units::No,
    pairs: true,
    covered: &[],
};

const fn covered(by: &'static str, options: &'static [&'static str], why: &'static str) -> Covered {
    Covered { by, options, why }
}

pub(crate) fn sweeps() -> Vec<Sweep> {
    [
        LISTINGS,
        COPIES,
        VOLUMES,
        REPORTS,
        STREAMS,
        SUBVOLUMES,
        FILESYSTEMS,
        JOBS,
        STRUCTURES,
        OTHERS,
    ]
    .concat()
}

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

const STREAM_LS: &[Row] = &[
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

const LS_COVERED: &[Covered] = &[
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

const LISTINGS: &[Sweep] = &[
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

const COPIES: &[Sweep] = &[
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
            // To root everything can be written to.
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

const OCI: [Row; 3] = [
    elsewhere("--oci", "layers_make_the_volume_that_their_unpacked_tree_makes"),
    elsewhere("--platform", "tags_and_platforms_choose"),
    elsewhere(
        "--layer-snapshots",
        "each_layer_s_state_is_kept_where_that_is_asked_for",
    ),
];

/// An empty volume.
const MKFS_EMPTY: &[Row] = &[
    acts("--data", "-d dup"),
    acts("--metadata", "-m single"),
    acts("--mixed", "-M"),
    acts("--csum", "--csum xxhash"),
    acts("--nodesize", "-n 32K"),
    acts("--sectorsize", "-s 8K"),
    acts("--features", "-O squota"),
    acts("--runtime-features", "-R quota"),
    acts("--label", "-L label"),
    acts("--uuid", "-U 12345678-1234-1234-1234-123456789abc"),
    acts(
        "--device-uuid",
        "--device-uuid 12345678-1234-1234-1234-123456789abd",
    ),
    acts("--byte-count", "-b 256M"),
    acts("--tar", "--tar {host.tar}"),
    acts("--manifest", "--manifest {plan.toml}"),
    OCI[0],
    OCI[1],
    OCI[2],
    refused("--platform", "--platform linux/amd64"),
    refused("--layer-snapshots", "--layer-snapshots layers"),
    refused("--uid-map", "--uid-map 5:0:1"),
    refused("--gid-map", "--gid-map 5:0:1"),
    refused("--exclude", "--exclude *.o"),
    refused("--file-contexts", "--file-contexts {contexts}"),
    acts("--rootdir", "-r {host}"),
    acts("--subvol", "--subvol sub"),
    refused("--inode-flags", "--inode-flags nodatacow:text"),
    refused("--compress", "--compress zstd"),
    acts("--shrink", "--shrink"),
    refused("--slack", "--slack 64M"),
    refused("--dedupe", "--dedupe"),
    refused("--reflink", "--reflink"),
    // As root: the root directory is root's anyway.
    manner("--all-root", "--all-root"),
    acts("--force-uid", "--force-uid 7"),
    acts("--force-gid", "--force-gid 7"),
    acts("--root-owner", "--root-owner 3:4:1777"),
    refused("--workers", "--workers 1"),
    manner("--nodiscard", "-K"),
    manner("--force", "-f"),
];

/// A volume made from a directory.
const MKFS_BUILT: &[Row] = &[
    acts("--data", "-d dup"),
    acts("--metadata", "-m single"),
    acts("--mixed", "-M"),
    acts("--csum", "--csum xxhash"),
    acts("--nodesize", "-n 32K"),
    acts("--sectorsize", "-s 8K"),
    acts("--features", "-O squota"),
    acts("--label", "-L label"),
    acts("--uuid", "-U 12345678-1234-1234-1234-123456789abc"),
    acts(
        "--device-uuid",
        "--device-uuid 12345678-1234-1234-1234-123456789abd",
    ),
    acts("--byte-count", "-b 256M"),
    acts("--tar", "--tar {host.tar}"),
    acts("--manifest", "--manifest {plan.toml}"),
    refused("--platform", "--platform linux/amd64"),
    refused("--layer-snapshots", "--layer-snapshots layers"),
    acts("--uid-map", "--uid-map 5:0:1,6:1000:1"),
    beside(
        "--uid-map 5:0:1,6:1000:1",
        "--gid-map",
        "--gid-map 15:0:1,16:1000:1",
    ),
    acts("--exclude", "--exclude *.o"),
    acts("--file-contexts", "--file-contexts {contexts}"),
    acts("--subvol", "--subvol folder"),
    acts("--inode-flags", "--inode-flags nodatacow:same"),
    acts("--compress", "--compress zstd"),
    acts("--slack", "--slack 64M"),
    acts("--dedupe", "--dedupe"),
    elsewhere(
        "--reflink",
        "an_image_that_shares_blocks_has_the_same_bytes_and_takes_next_to_no_space",
    ),
    acts("--all-root", "--all-root"),
    acts("--force-uid", "--force-uid 7"),
    acts("--force-gid", "--force-gid 7"),
    acts("--root-owner", "--root-owner 3:4:1777"),
    manner("--workers", "--workers 1"),
    manner("--nodiscard", "-K"),
    manner("--force", "-f"),
];

const VOLUMES: &[Sweep] = &[
    Sweep {
        command: "mkfs",
        base: "{out}/new.img",
        own: MKFS_EMPTY,
        covered: &[
            covered("--mixed", &["--metadata"], "single is what it has anyway"),
            covered(
                "--root-owner",
                &["--force-uid", "--force-gid"],
                "it wins, and the volume holds nothing else",
            ),
            covered("--shrink", &["--byte-count"], "the volume is smaller than that"),
            covered(
                "--rootdir",
                &["--shrink"],
                "a new image is as small as possible anyway",
            ),
            covered(
                "--tar",
                &["--shrink"],
                "a new image is as small as possible anyway",
            ),
            covered(
                "--manifest",
                &["--shrink"],
                "a new image is as small as possible anyway",
            ),
            covered(
                "--subvol",
                &["--shrink"],
                "a new image is as small as possible anyway",
            ),
        ],
        ..PLAIN
    },
    Sweep {
        command: "mkfs",
        base: "-r {host} {out}/new.img",
        own: MKFS_BUILT,
        covered: &[covered(
            "--mixed",
            &["--metadata"],
            "single is what it has anyway",
        )],
        ..PLAIN
    },
    // What belongs to what is as small as possible, on what is as large as it is.
    Sweep {
        command: "mkfs",
        base: "-r {host} -b 256M {out}/new.img",
        own: &[acts("--shrink", "--shrink"), refused("--slack", "--slack 64M")],
        ..PLAIN
    },
    Sweep {
        command: "mkfs",
        base: "-f {volume.img}",
        own: &[manner("--nodiscard", "-K"), acts("--shrink", "--shrink")],
        ..PLAIN
    },
    Sweep {
        command: "mkfs",
        base: "{volume.img}",
        code: 1,
        own: &[acts("--force", "-f")],
        pairs: false,
        ..PLAIN
    },
    Sweep {
        command: "check",
        base: "{damaged}",
        own: &[
            ends("--check-data-csum", "--check-data-csum", 1),
            nothing("--readonly", "--readonly"),
            nothing("--force", "--force"),
            nothing("-p", "-p"),
            refused("--codes", "--codes"),
        ],
        ..PLAIN
    },
    Sweep {
        command: "check",
        base: "--check-data-csum {damaged}",
        code: 1,
        own: &[
            ends("--most", "--most 0", 1),
            ends("--affected", "--affected 0", 1),
        ],
        covered: &[covered("--most", &["--affected"], "no finding is printed")],
        ..PLAIN
    },
    Sweep {
        command: "check",
        base: "--codes",
        own: &[
            refused("--check-data-csum", "--check-data-csum"),
            refused("--most", "--most 3"),
            refused("--affected", "--affected 3"),
        ],
        ..PLAIN
    },
];

const REPORTS: &[Sweep] = &[
    Sweep {
        command: "space",
        base: "{volume.img}",
        own: &[
            acts("--if-deleted", "--if-deleted home-monday"),
            acts("--export", "--export ncdu"),
            refused("--one-file-system", "-x"),
        ],
        units: Units::Long,
        ..PLAIN
    },
    Sweep {
        command: "space",
        base: "{volume.img}:/home",
        own: &[
            refused("--if-deleted", "--if-deleted home-monday"),
            acts("--export", "--export ncdu"),
            acts("--one-file-system", "-x"),
        ],
        units: Units::Long,
        ..PLAIN
    },
    Sweep {
        command: "compression",
        base: "{volume.img}:/home",
        own: &[acts("--bytes", "-b"), acts("--one-file-system", "-x")],
        ..PLAIN
    },
    Sweep {
        command: "fiemap",
        base: "{volume.img}:/home/plain/holes",
        own: &[acts("-v", "-v"), acts("--summary", "--summary")],
        ..PLAIN
    },
];

const STREAMS: &[Sweep] = &[
    Sweep {
        command: "send",
        base: "{volume.img}:/home-tuesday",
        own: &[
            acts("--output", "-f {out}/s"),
            acts("--parent", "-p {volume.img}:/home-monday"),
            acts("--clone-source", "-c {volume.img}:/home-monday"),
            // With one snapshot there is nothing between snapshots.
            idle_without("{volume.img}:/home-monday", "-e", "-e"),
            acts("--no-data", "--no-data"),
            acts("--compressed-data", "--compressed-data"),
            acts("--proto", "--proto 2"),
            acts("--estimate", "--estimate"),
            elsewhere("--resume", "a_stream_goes_on_at_any_byte"),
            manner("--read-ahead", "--read-ahead none"),
        ],
        covered: &[
            covered(
                "--clone-source",
                &["-e"],
                "it fails: no clone source is of the same subvolume",
            ),
            covered(
                "--clone-source",
                &["--parent"],
                "a single clone source is the parent",
            ),
            covered(
                "--compressed-data",
                &["--proto"],
                "it makes the stream version 2 anyway",
            ),
            covered("--parent", &["--clone-source"], "the parent is a clone source"),
        ],
        ..PLAIN
    },
    Sweep {
        command: "receive",
        base: "-f {compressed} {volume.img}:/nested",
        own: &[
            acts("-f", "-f {incremental}"),
            // One stream in a file: it ends with it.
            manner("-e", "-e"),
            elsewhere("--max-errors", "as_many_errors_are_let_pass_as_the_user_allows"),
            elsewhere(
                "--skip-unknown",
                "unknown_commands_are_skipped_with_the_option_only",
            ),
            elsewhere("--keep-partial", "sender_and_receiver_agree_on_the_place"),
            elsewhere("--resume", "sender_and_receiver_agree_on_the_place"),
            refused("--token", "--token"),
            acts("--force-decompress", "--force-decompress"),
            nothing("--chroot", "-C"),
            nothing("-m", "-m /"),
            refused("--dump", "--dump"),
        ],
        pairs: false,
        ..PLAIN
    },
    Sweep {
        command: "receive",
        base: "--dump -f {stream}",
        own: &[
            refused("-f", "-f {incremental}"),
            manner("-e", "-e"),
            refused("--max-errors", "-E 5"),
            refused("--skip-unknown", "--skip-unknown"),
            refused("--keep-partial", "--keep-partial"),
            refused("--resume", "--resume"),
            refused("--token", "--token"),
            refused("--force-decompress", "--force-decompress"),
            nothing("--chroot", "-C"),
            nothing("-m", "-m /"),
        ],
        ..PLAIN
    },
    Sweep {
        command: "receive",
        base: "--token {volume.img}:/",
        // Nothing is kept there.
        code: 1,
        own: &[
            refused("-f", "-f {incremental}"),
            refused("-e", "-e"),
            refused("--max-errors", "-E 5"),
            refused("--skip-unknown", "--skip-unknown"),
            refused("--keep-partial", "--keep-partial"),
            refused("--force-decompress", "--force-decompress"),
            refused("--dump", "--dump"),
        ],
        ..PLAIN
    },
    Sweep {
        command: "stream ls",
        base: "{stream} {incremental}",
        own: STREAM_LS,
        covered: &[
            covered(
                "--snapshot",
                &["--almost-all"],
                "that snapshot has no hidden name",
            ),
            LS_COVERED[0],
            LS_COVERED[1],
            LS_COVERED[2],
            LS_COVERED[3],
            LS_COVERED[4],
            LS_COVERED[5],
            LS_COVERED[6],
            covered(
                "--directory",
                &["--snapshot"],
                "the directory itself looks the same",
            ),
        ],
        ..PLAIN
    },
    Sweep {
        command: "stream cat",
        base: "{stream} {incremental}:/plain/text",
        own: &[manner("--snapshot", "--snapshot home-monday")],
        ..PLAIN
    },
    Sweep {
        command: "stream tar",
        base: "{stream} {incremental}",
        own: &[
            acts("--file", "-f {out}/a.tar"),
            acts("--no-xattrs", "--no-xattrs"),
            acts("--snapshot", "--snapshot home-monday"),
        ],
        ..PLAIN
    },
    Sweep {
        command: "stream merge",
        base: "{stream} {incremental}",
        own: &[
            acts("--output", "-f {out}/s"),
            acts("--snapshot", "--snapshot home-monday"),
        ],
        ..PLAIN
    },
    Sweep {
        command: "stream rebase",
        base: "--onto {stream} {incremental}",
        own: &[acts("--output", "-f {out}/s")],
        ..PLAIN
    },
    // Without it the command line is wrong.
    Sweep {
        command: "stream rebase",
        base: "{incremental}",
        code: 2,
        own: &[acts("--onto", "--onto {stream}")],
        ..PLAIN
    },
    Sweep {
        command: "stream verify",
        base: "{stream}",
        ..PLAIN
    },
];

const SUBVOLUME_LIST: &[Row] = &[
    acts("-o", "-o"),
    acts("-a", "-a"),
    acts("-p", "-p"),
    acts("-c", "-c"),
    nothing("-g", "-g"),
    acts("-u", "-u"),
    acts("-q", "-q"),
    acts("-R", "-R"),
    acts("-s", "-s"),
    acts("-r", "-r"),
    acts("-d", "-d"),
    acts("-t", "-t"),
    acts("-G", "-G -9"),
    acts("-C", "-C +10"),
    acts("--sort", "--sort=-path"),
];

const SUBVOLUMES: &[Sweep] = &[
    Sweep {
        command: "subvolume list",
        base: "{volume.img}:/home",
        own: SUBVOLUME_LIST,
        covered: &[
            covered("-d", &["*"], "the list is empty: no subvolume is deleted"),
            covered(
                "-o",
                &["-s", "-r", "-G", "-C", "--sort"],
                "one subvolume is left, or none",
            ),
            covered(
                "-s",
                &["-c", "-r", "-G", "-C", "--sort"],
                "the same ones are left",
            ),
            covered("-r", &["-s", "-G", "-C"], "the same ones are left"),
            covered("-G", &["*"], "one subvolume is left, or none"),
            covered("-C", &["-r", "-s", "--sort"], "the same ones are left"),
        ],
        ..PLAIN
    },
    Sweep {
        command: "subvolume show",
        base: "{volume.img}:/home",
        own: &[acts("--rootid", "-r 258"), acts("--uuid", "-u @uuid")],
        // Limits of quota groups alone are sizes.
        units: Units::Idle,
        ..PLAIN
    },
    Sweep {
        command: "subvolume create",
        base: "{volume.img}:/home/new/one",
        code: 1,
        own: &[acts("--parents", "-p")],
        ..PLAIN
    },
    Sweep {
        command: "subvolume snapshot",
        base: "{volume.img}:/home {volume.img}:/new",
        own: &[acts("-r", "-r")],
        ..PLAIN
    },
    Sweep {
        command: "subvolume delete",
        base: "{volume.img}",
        code: 1,
        own: &[
            acts("-i", "-i 258"),
            nothing("--commit-after", "-c"),
            nothing("--commit-each", "-C"),
        ],
        ..PLAIN
    },
    Sweep {
        command: "subvolume delete",
        base: "{volume.img}:/home-tuesday",
        own: &[refused("-i", "-i 258")],
        ..PLAIN
    },
    Sweep {
        command: "subvolume get-default",
        base: "{volume.img}",
        ..PLAIN
    },
    Sweep {
        command: "subvolume set-default",
        base: "{volume.img}:/home",
        ..PLAIN
    },
    Sweep {
        command: "subvolume find-new",
        base: "{volume.img}:/home 0",
        ..PLAIN
    },
    Sweep {
        command: "subvolume sync",
        base: "{volume.img}",
        own: &[nothing("-s", "-s 5")],
        ..PLAIN
    },
];

const FILESYSTEMS: &[Sweep] = &[
    Sweep {
        command: "filesystem show",
        base: "{volume.img}",
        units: Units::Long,
        ..PLAIN
    },
    Sweep {
        command: "filesystem df",
        base: "{volume.img}",
        units: Units::All,
        ..PLAIN
    },
    Sweep {
        command: "filesystem usage",
        base: "{volume.img}",
        own: &[acts("-T", "-T")],
        units: Units::All,
        ..PLAIN
    },
    Sweep {
        command: "filesystem du",
        base: "{volume.img}:/home",
        own: &[
            acts("--summarize", "-s"),
            acts("--one-file-system", "--one-file-system"),
        ],
        units: Units::Long,
        ..PLAIN
    },
    Sweep {
        command: "filesystem label",
        base: "{volume.img}",
        ..PLAIN
    },
    Sweep {
        command: "filesystem sync",
        base: "{volume.img}",
        ..PLAIN
    },
    Sweep {
        command: "filesystem trim",
        base: "{volume.img}",
        own: &[acts("--minimum", "-m 64M")],
        units: Units::Long,
        ..PLAIN
    },
    Sweep {
        command: "device resync",
        base: "{volume.img}",
        own: &[manner("--limit", "--limit 50M")],
        ..PLAIN
    },
    Sweep {
        command: "device stats",
        base: "{damaged}",
        own: &[
            elsewhere("--check", "a_bad_copy_is_mended_told_with_its_file_and_counted"),
            elsewhere("--reset", "a_bad_copy_is_mended_told_with_its_file_and_counted"),
            acts("-T", "-T"),
        ],
        ..PLAIN
    },
    Sweep {
        command: "device usage",
        base: "{volume.img}",
        units: Units::All,
        ..PLAIN
    },
    Sweep {
        command: "property get",
        base: "{volume.img}:/home",
        own: &[acts("-t", "-t inode")],
        ..PLAIN
    },
    Sweep {
        command: "property set",
        base: "{received.img}:/home-monday ro false",
        code: 1,
        own: &[refused("-t", "-t inode"), acts("-f", "-f")],
        ..PLAIN
    },
    Sweep {
        command: "property set",
        base: "{received.img} label name",
        own: &[refused("-f", "-f")],
        ..PLAIN
    },
    Sweep {
        command: "property list",
        base: "{volume.img}:/home",
        own: &[acts("-t", "-t inode")],
        ..PLAIN
    },
    Sweep {
        command: "overlay commit",
        base: "{stream} {volume.img}",
        code: 1,
        ..PLAIN
    },
    Sweep {
        command: "rescue zero-log",
        base: "{volume.img}",
        ..PLAIN
    },
];

const STATUS_FILE: Row = elsewhere(
    "--status-file",
    "a_status_file_that_is_none_is_told_and_named_elsewhere",
);

const JOBS: &[Sweep] = &[
    Sweep {
        command: "scrub start",
        base: "-B {damaged}",
        own: &[
            elsewhere("-f", "a_status_file_that_is_none_is_told_and_named_elsewhere"),
            elsewhere("-B", "a_scrub_in_the_background_is_cancelled"),
            acts("-d", "-d"),
            acts("-r", "-r"),
            acts("-R", "-R"),
            manner("--limit", "--limit 1G"),
            acts("--files", "--files 0"),
            acts("--most", "--most 0"),
            STATUS_FILE,
            nothing("-c", "-c 3"),
            nothing("-n", "-n 3"),
        ],
        units: Units::Long,
        covered: &[
            covered("--most", &["--files"], "no damage is listed"),
            covered("-R", &["--raw"], "counters are numbers"),
        ],
        ..PLAIN
    },
    Sweep {
        command: "scrub resume",
        base: "-B {volume.img}",
        code: 2,
        own: &[
            elsewhere("-B", "a_scrub_that_a_signal_pauses_is_resumed"),
            manner("-d", "-d"),
            manner("-r", "-r"),
            manner("-R", "-R"),
            manner("--limit", "--limit 3"),
            manner("--files", "--files 3"),
            manner("--most", "--most 3"),
            STATUS_FILE,
            nothing("-c", "-c 3"),
            nothing("-n", "-n 3"),
        ],
        units: Units::Idle,
        ..PLAIN
    },
    Sweep {
        command: "scrub cancel",
        base: "{volume.img}",
        code: 2,
        own: &[STATUS_FILE],
        ..PLAIN
    },
    Sweep {
        command: "scrub status",
        base: "{volume.img}",
        own: &[
            elsewhere("-d", "a_bad_copy_is_mended_told_with_its_file_and_counted"),
            elsewhere("-R", "a_bad_copy_is_mended_told_with_its_file_and_counted"),
            STATUS_FILE,
        ],
        units: Units::Long,
        ..PLAIN
    },
    Sweep {
        command: "replace start",
        base: "-B 1 {out}/target {volume.img}",
        code: 1,
        own: &[
            elsewhere(
                "-B",
                "one_in_the_background_is_looked_at_given_up_and_brought_to_its_end",
            ),
            elsewhere("-f", "forced_target_keeps_no_signature_of_what_it_held"),
            elsewhere("-r", "a_device_is_replaced_and_the_old_one_is_none_any_more"),
            nothing("--nodiscard", "-K"),
            manner("--limit", "--limit 1G"),
            elsewhere(
                "--status-file",
                "one_in_the_background_is_looked_at_given_up_and_brought_to_its_end",
            ),
        ],
        ..PLAIN
    },
    Sweep {
        command: "replace status",
        base: "{volume.img}",
        own: &[
            manner("--status-file", "--status-file {out}/s"),
            nothing("-1", "-1"),
        ],
        ..PLAIN
    },
    Sweep {
        command: "replace cancel",
        base: "{volume.img}",
        code: 2,
        own: &[manner("--status-file", "--status-file {out}/s")],
        ..PLAIN
    },
];

const DUMP_TREE: &[Row] = &[
    acts("--device-trees", "-d"),
    acts("--roots", "-r"),
    acts("--backups", "-R"),
    acts("--uuid", "-u"),
    acts("--extents", "-e"),
    acts("--block", "-b @block"),
    beside("-b @block", "--follow", "--follow"),
    acts("--dfs", "--dfs"),
    nothing("--bfs", "--bfs"),
    nothing("--noscan", "--noscan"),
];

const STRUCTURES: &[Sweep] = &[
    Sweep {
        command: "inspect-internal dump-super",
        base: "{volume.img}",
        own: &[
            acts("--full", "-f"),
            acts("--all", "-a"),
            acts("--super", "-s 1"),
            acts("-i", "-i 1"),
            manner("--force", "-F"),
            acts("--bytenr", "--bytenr 67108864"),
        ],
        ..PLAIN
    },
    Sweep {
        command: "inspect-internal dump-super",
        base: "{host.tar}",
        code: 1,
        own: &[acts("--force", "-F")],
        pairs: false,
        ..PLAIN
    },
    Sweep {
        command: "inspect-internal dump-tree",
        base: "{volume.img}",
        own: &[
            acts("--extents", "-e"),
            acts("--device-trees", "-d"),
            acts("--roots", "-r"),
            acts("--backups", "-R"),
            acts("--uuid", "-u"),
            acts("--tree", "-t 256"),
            acts("--hide-names", "--hide-names"),
            acts("--csum-headers", "--csum-headers"),
            acts("--csum-items", "--csum-items"),
        ],
        covered: &[
            covered(
                "--roots",
                &["--hide-names", "--csum-headers", "--csum-items"],
                "no block is printed",
            ),
            covered("--backups", &["--roots"], "it implies it"),
            covered(
                "--backups",
                &["--hide-names", "--csum-headers", "--csum-items"],
                "no block is printed",
            ),
            covered(
                "--extents",
                &["--hide-names", "--csum-items"],
                "these trees have neither",
            ),
            covered("--device-trees", &["--csum-items"], "these trees have none"),
            covered(
                "--uuid",
                &["--hide-names", "--csum-items"],
                "the tree has neither",
            ),
            covered("--tree", &["--csum-items"], "the tree has none"),
        ],
        ..PLAIN
    },
    Sweep {
        command: "inspect-internal dump-tree",
        base: "{deep}",
        own: DUMP_TREE,
        covered: &[
            covered("--block", &["--dfs"], "one block has no order"),
            covered("--roots", &["--dfs"], "no block is printed"),
            covered("--backups", &["--dfs", "--roots"], "no block is printed"),
            covered("--uuid", &["--dfs"], "the tree is a leaf"),
            covered("--device-trees", &["--dfs"], "these trees are leaves"),
            covered(
                "--extents",
                &["--dfs"],
                "as in btrfs-progs, the order is that anyway",
            ),
            covered("--follow", &["--block"], "it needs it"),
        ],
        ..PLAIN
    },
    Sweep {
        command: "inspect-internal inode-resolve",
        base: "256 {volume.img}:/home",
        ..PLAIN
    },
    Sweep {
        command: "inspect-internal list-chunks",
        base: "{volume.img}",
        own: &[acts("--sort", "--sort length")],
        units: Units::Long,
        ..PLAIN
    },
    Sweep {
        command: "inspect-internal logical-resolve",
        base: "@data {volume.img}",
        own: &[acts("-P", "-P"), manner("-o", "-o"), nothing("-s", "-s 4096")],
        ..PLAIN
    },
    Sweep {
        command: "inspect-internal map-swapfile",
        base: "{volume.img}:/home/plain/text",
        code: 1,
        own: &[elsewhere("--resume-offset", "swap_file")],
        ..PLAIN
    },
    Sweep {
        command: "inspect-internal min-dev-size",
        base: "{volume.img}",
        own: &[ends("--id", "--id 7", 2)],
        ..PLAIN
    },
    Sweep {
        command: "inspect-internal rootid",
        base: "{volume.img}:/home",
        ..PLAIN
    },
    Sweep {
        command: "inspect-internal subvolid-resolve",
        base: "256 {volume.img}",
        ..PLAIN
    },
    Sweep {
        command: "inspect-internal tree-stats",
        base: "{volume.img}",
        own: &[acts("-t", "-t 256")],
        units: Units::LongAndRaw,
        ..PLAIN
    },
];

const OTHERS: &[Sweep] = &[
    Sweep {
        command: "mount",
        base: "--list",
        own: &[
            refused("-o", "-o rw"),
            refused("--foreground", "-f"),
            refused("--log", "--log {out}/log"),
            elsewhere("--list", "umount_of_one_directory_leaves_the_others"),
        ],
        ..PLAIN
    },
    Sweep {
        command: "umount",
        base: "{out}",
        code: 1,
        own: &[
            elsewhere("--lazy", "umount_refuses_what_is_no_mount_of_ours"),
            elsewhere(
                "--force",
                "deleted_or_replaced_image_fails_syncs_and_can_be_saved",
            ),
        ],
        ..PLAIN
    },
    Sweep {
        command: "shell",
        base: "{volume.img}",
        own: &[
            elsewhere("--write", "a_session_for_reading_writes_nothing"),
            acts("--command", "-c ls"),
            elsewhere("--no-history", "history_can_be_switched_off"),
        ],
        ..PLAIN
    },
    Sweep {
        command: "shell",
        base: "-c ls {volume.img}",
        own: &[manner("--no-history", "--no-history")],
        ..PLAIN
    },
    Sweep {
        command: "tour",
        base: "{volume.img}",
        own: &[refused("--keep", "--keep")],
        ..PLAIN
    },
    Sweep {
        command: "help",
        base: "ls",
        own: &[refused("--full", "--full")],
        ..PLAIN
    },
    Sweep {
        command: "help",
        own: &[acts("--full", "--full")],
        ..PLAIN
    },
    Sweep {
        command: "version",
        ..PLAIN
    },
    Sweep {
        command: "completions",
        base: "bash",
        ..PLAIN
    },
    Sweep {
        command: "man",
        base: "{out}/man",
        ..PLAIN
    },
    Sweep {
        command: "reference",
        own: &[acts("--btrfs-progs", "--btrfs-progs")],
        ..PLAIN
    },
];
