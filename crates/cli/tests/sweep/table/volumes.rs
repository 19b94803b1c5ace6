//! Commands that create volumes and report on them.

use super::{PLAIN, covered};
use crate::rows::{Row, Sweep, Units, acts, beside, elsewhere, ends, manner, nothing, refused};

const OCI: [Row; 3] = [
    elsewhere("--oci", "layers_make_the_volume_that_their_unpacked_tree_makes"),
    elsewhere("--platform", "tags_and_platforms_choose"),
    elsewhere(
        "--layer-snapshots",
        "each_layer_s_state_is_kept_where_that_is_asked_for",
    ),
];

/// Options of mkfs for an empty volume.
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
    // For root the option has no effect, because the root directory belongs to root anyway.
    manner("--all-root", "--all-root"),
    acts("--force-uid", "--force-uid 7"),
    acts("--force-gid", "--force-gid 7"),
    acts("--root-owner", "--root-owner 3:4:1777"),
    refused("--workers", "--workers 1"),
    manner("--nodiscard", "-K"),
    manner("--force", "-f"),
];

/// Options of mkfs for a volume with the content of a directory.
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

pub(super) const VOLUMES: &[Sweep] = &[
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
    // This sweep tests options of the smallest size beside those of a given size.
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
            elsewhere("--repair", "repair_leaves_the_image_until_it_is_committed"),
            elsewhere("--commit", "repair_leaves_the_image_until_it_is_committed"),
            elsewhere("--in-place", "repair_in_place_changes_the_image_after_a_trial"),
            elsewhere("--dry-run", "dry_run_of_a_repair_writes_nothing"),
            elsewhere("--yes-to", "repair_refuses_unknown_codes_and_earlier_overlays"),
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

pub(super) const REPORTS: &[Sweep] = &[
    Sweep {
        command: "restore",
        base: "{volume.img} {out}/restored",
        own: &[
            elsewhere("--snapshots", "restored_files_are_those_of_btrfs_restore"),
            elsewhere("--xattr", "restored_files_are_those_of_btrfs_restore"),
            elsewhere("--metadata", "restored_files_are_those_of_btrfs_restore"),
            elsewhere("--symlink", "restored_files_are_those_of_btrfs_restore"),
            nothing("--ignore-errors", "-i"),
            elsewhere("--overwrite", "restored_files_are_those_of_btrfs_restore"),
            ends("-t", "-t 1", 2),
            ends("--super", "-u 2", 2),
            ends("--root", "-r 9999", 2),
            elsewhere("-d", "restored_files_are_those_of_btrfs_restore"),
            acts("--list-roots", "-l"),
            acts("--dry-run", "-D"),
            elsewhere("--path-regex", "restored_files_are_those_of_btrfs_restore"),
            elsewhere("-c", "nested_expressions_accept_directories_above_a_file"),
            elsewhere("--verified-only", "damaged_volumes_are_restored_with_verdicts"),
            acts("--report", "--report {out}/report"),
            ends("--index", "--index {stream} -t 1", 2),
        ],
        pairs: false,
        ..PLAIN
    },
    Sweep {
        command: "undelete",
        base: "{volume.img} /",
        own: &[
            elsewhere("--output", "deleted_files_of_ours_come_back"),
            elsewhere("--all", "versions_have_the_content_of_their_commits"),
            refused("--verified-only", "--verified-only"),
            refused("--xattr", "-x"),
            refused("--metadata", "-m"),
            elsewhere("--symlink", "deleted_files_of_ours_come_back"),
            refused("--report", "--report {out}/report"),
            ends("--index", "--index {stream}", 2),
            ends("--no-scan", "--no-scan", 1),
        ],
        pairs: false,
        ..PLAIN
    },
    Sweep {
        command: "generations",
        base: "{volume.img}",
        own: &[ends("--index", "--index {stream}", 1)],
        ..PLAIN
    },
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
