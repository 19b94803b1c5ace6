//! Commands on subvolumes and file systems.

use super::{PLAIN, covered};
use crate::rows::{Row, Sweep, Units, acts, elsewhere, ends, manner, nothing, refused};

/// The test of most options of convert.
const CONVERT: &str = "an_image_becomes_btrfs_and_ext4_again";

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

pub(super) const SUBVOLUMES: &[Sweep] = &[
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
        // Only limits of quota groups are sizes.
        units: Units::Idle,
        ..PLAIN
    },
    Sweep {
        command: "subvolume create",
        base: "{volume.img}:/home/new/one",
        code: 1,
        own: &[
            acts("--parents", "-p"),
            elsewhere("-i", "new_subvolumes_join_the_named_groups"),
        ],
        ..PLAIN
    },
    Sweep {
        command: "subvolume snapshot",
        base: "{volume.img}:/home {volume.img}:/new",
        own: &[
            acts("-r", "-r"),
            elsewhere("-i", "new_subvolumes_join_the_named_groups"),
        ],
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

pub(super) const FILESYSTEMS: &[Sweep] = &[
    Sweep {
        command: "filesystem show",
        base: "{volume.img}",
        own: &[ends("--mounted", "-m", 1)],
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
        command: "device add",
        base: "{out}/new {volume.img}",
        code: 1,
        own: &[
            elsewhere("--force", "device_that_holds_something_is_added_by_force"),
            elsewhere("--nodiscard", "device_that_holds_something_is_added_by_force"),
            nothing("--enqueue", "--enqueue"),
        ],
        ..PLAIN
    },
    Sweep {
        command: "device remove",
        base: "2 {volume.img}",
        code: 1,
        own: &[nothing("--enqueue", "--enqueue")],
        ..PLAIN
    },
    Sweep {
        command: "device delete",
        base: "2 {volume.img}",
        code: 1,
        ..PLAIN
    },
    Sweep {
        command: "filesystem defragment",
        base: "-r {volume.img}:/home",
        own: &[
            elsewhere("-r", "defragment_takes_the_options_of_btrfs_progs"),
            acts("-c", "-c"),
            elsewhere("--level", "defragment_takes_the_options_of_btrfs_progs"),
            elsewhere("--nocomp", "defragment_takes_the_options_of_btrfs_progs"),
            elsewhere("-f", "defragment_takes_the_options_of_btrfs_progs"),
            elsewhere("-s", "defragment_takes_the_options_of_btrfs_progs"),
            elsewhere("-l", "defragment_takes_the_options_of_btrfs_progs"),
            elsewhere("-t", "defragment_takes_the_options_of_btrfs_progs"),
            elsewhere("--step", "defragment_takes_the_options_of_btrfs_progs"),
            elsewhere("--keep-shared", "defragment_takes_the_options_of_btrfs_progs"),
        ],
        ..PLAIN
    },
    Sweep {
        command: "filesystem resize",
        base: "max {volume.img}",
        own: &[
            nothing("--enqueue", "--enqueue"),
            nothing("--offline", "--offline"),
        ],
        ..PLAIN
    },
    Sweep {
        command: "filesystem shrink",
        base: "{volume.img}",
        own: &[acts("--slack", "--slack 32M"), acts("--dry-run", "--dry-run")],
        ..PLAIN
    },
    Sweep {
        command: "tune",
        base: "-m {volume.img}",
        own: &[
            elsewhere("-r", "tune_adds_features_to_an_old_volume"),
            elsewhere("-x", "tune_adds_features_to_an_old_volume"),
            elsewhere("-n", "tune_adds_features_to_an_old_volume"),
            elsewhere("-m", "tune_changes_the_uuid_and_takes_it_back"),
            elsewhere("-M", "tune_changes_the_uuid_and_takes_it_back"),
            elsewhere("-S", "tune_makes_a_seed_and_clears_the_flag"),
            elsewhere("-u", "tune_rewrites_the_uuid_of_all_blocks"),
            elsewhere("-U", "tune_rewrites_the_uuid_of_all_blocks"),
            elsewhere("--csum", "tune_changes_all_checksums"),
            elsewhere(
                "--convert-to-block-group-tree",
                "tune_converts_block_groups_there_and_back",
            ),
            elsewhere(
                "--convert-from-block-group-tree",
                "tune_converts_block_groups_there_and_back",
            ),
            elsewhere("--convert-to-free-space-tree", "tune_makes_a_free_space_tree"),
            elsewhere("--enable-simple-quota", "tune_enables_and_removes_simple_quotas"),
            elsewhere("--remove-simple-quota", "tune_enables_and_removes_simple_quotas"),
            elsewhere("--force", "tune_makes_a_seed_and_clears_the_flag"),
        ],
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
        command: "image",
        base: "{volume.img} {out}/dump",
        own: &[
            acts("-c", "-c 9"),
            manner("-t", "-t 2"),
            manner("-w", "-w"),
            elsewhere("-s", "sanitised_dumps_mount_and_have_no_names"),
            elsewhere("--strict", "sanitised_dumps_mount_and_have_no_names"),
            elsewhere("--reduce", "reduced_dump_shows_its_finding"),
            refused("-o", "-o"),
            refused("-d", "-d"),
            acts("--with-data", "--with-data /home/plain/text"),
            elsewhere("-r", "dumps_are_those_of_btrfs_image_both_ways"),
            elsewhere("-m", "dumps_are_those_of_btrfs_image_both_ways"),
            elsewhere("--force", "damaged_dumps_and_wrong_targets_are_refused"),
        ],
        ..PLAIN
    },
    Sweep {
        command: "convert",
        base: "{volume.img}",
        code: 1,
        own: &[
            elsewhere("--no-datasum", CONVERT),
            elsewhere("--no-xattr", CONVERT),
            elsewhere("--no-inline", CONVERT),
            elsewhere("--csum", CONVERT),
            elsewhere("--nodesize", CONVERT),
            elsewhere("--rollback", CONVERT),
            elsewhere("--label", CONVERT),
            elsewhere("--copy-label", "wrong_images_and_options_are_refused_unchanged"),
            elsewhere("--uuid", CONVERT),
            elsewhere("-p", CONVERT),
            elsewhere("--no-progress", CONVERT),
            elsewhere("--features", "wrong_images_and_options_are_refused_unchanged"),
            elsewhere("--force", CONVERT),
        ],
        ..PLAIN
    },
    Sweep {
        command: "overlay commit",
        base: "{stream} {volume.img}",
        code: 1,
        ..PLAIN
    },
    Sweep {
        command: "overlay discard",
        base: "{stream}",
        code: 1,
        ..PLAIN
    },
    Sweep {
        command: "rescue scan",
        base: "{volume.img}",
        own: &[
            acts("--index", "--index {out}/index"),
            ends("--fsid", "--fsid 00000000-0000-0000-0000-000000000001", 1),
        ],
        covered: &[covered("--fsid", &["--index"], "no block has this uuid")],
        ..PLAIN
    },
    Sweep {
        command: "rescue chunk-recover",
        base: "{volume.img}",
        own: &[manner("-y", "-y"), acts("--index", "--index {out}/index")],
        ..PLAIN
    },
    Sweep {
        command: "rescue clear-ino-cache",
        base: "{volume.img}",
        ..PLAIN
    },
    Sweep {
        command: "rescue clear-space-cache",
        base: "v1 {volume.img}",
        ..PLAIN
    },
    Sweep {
        command: "rescue clear-uuid-tree",
        base: "{volume.img}",
        ..PLAIN
    },
    Sweep {
        command: "rescue fix-data-checksum",
        base: "{volume.img}",
        own: &[
            manner("--readonly", "-r"),
            manner("--interactive", "-i"),
            manner("--mirror", "-m 1"),
        ],
        ..PLAIN
    },
    Sweep {
        command: "rescue fix-device-size",
        base: "{volume.img}",
        ..PLAIN
    },
    Sweep {
        command: "rescue super-recover",
        base: "{volume.img}",
        own: &[manner("-y", "-y")],
        ..PLAIN
    },
    Sweep {
        command: "rescue zero-log",
        base: "{volume.img}",
        ..PLAIN
    },
];
