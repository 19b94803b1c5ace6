//! Scrubs, replacements, mounts and the remaining commands.

use super::{PLAIN, covered};
use crate::rows::{Row, Sweep, Units, acts, elsewhere, manner, nothing, refused};

const STATUS_FILE: Row = elsewhere(
    "--status-file",
    "a_status_file_that_is_none_is_told_and_named_elsewhere",
);

/// Options of commands that change relations of quota groups.
const RESCANNING: &[Row] = &[
    manner("--rescan", "--rescan"),
    manner("--no-rescan", "--no-rescan"),
];

pub(super) const JOBS: &[Sweep] = &[
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
        command: "balance start",
        base: "--dry-run -m {volume.img}",
        own: &[
            acts("-d", "-d"),
            elsewhere("-m", "dry_run_shows_what_linux_relocates"),
            elsewhere("-s", "system_alone_needs_force"),
            manner("--force", "-f"),
            manner("--full-balance", "--full-balance"),
            elsewhere("--background", "background_balance_is_paused_and_resumed"),
            nothing("--enqueue", "--enqueue"),
            elsewhere("--dry-run", "dry_run_shows_what_linux_relocates"),
            manner("--limit", "--limit 1G"),
            manner("--status-file", "--status-file {out}/s"),
        ],
        units: Units::Long,
        ..PLAIN
    },
    Sweep {
        command: "balance pause",
        base: "{volume.img}",
        code: 2,
        own: &[STATUS_FILE],
        ..PLAIN
    },
    Sweep {
        command: "balance cancel",
        base: "{volume.img}",
        code: 2,
        own: &[STATUS_FILE],
        ..PLAIN
    },
    Sweep {
        command: "balance resume",
        base: "{volume.img}",
        code: 2,
        own: &[manner("--limit", "--limit 1G"), STATUS_FILE],
        ..PLAIN
    },
    Sweep {
        command: "balance status",
        base: "{volume.img}",
        own: &[STATUS_FILE],
        ..PLAIN
    },
    Sweep {
        command: "quota enable",
        base: "{volume.img}",
        own: &[acts("--simple", "-s")],
        ..PLAIN
    },
    Sweep {
        command: "quota disable",
        base: "{received.img}",
        ..PLAIN
    },
    Sweep {
        command: "quota rescan",
        base: "{received.img}",
        own: &[
            acts("--status", "-s"),
            nothing("--wait", "-w"),
            acts("--wait-norescan", "-W"),
        ],
        pairs: false,
        ..PLAIN
    },
    Sweep {
        command: "quota status",
        base: "{received.img}",
        own: &[acts("--is-enabled", "--is-enabled")],
        ..PLAIN
    },
    Sweep {
        command: "qgroup create",
        base: "1/5 {received.img}",
        ..PLAIN
    },
    Sweep {
        command: "qgroup destroy",
        base: "1/1 {received.img}",
        ..PLAIN
    },
    Sweep {
        command: "qgroup assign",
        base: "0/5 1/1 {received.img}",
        own: RESCANNING,
        ..PLAIN
    },
    Sweep {
        command: "qgroup remove",
        base: "0/5 2/1 {received.img}",
        own: RESCANNING,
        ..PLAIN
    },
    Sweep {
        command: "qgroup limit",
        base: "1M 2/1 {received.img}",
        own: &[acts("-c", "-c"), acts("-e", "-e")],
        ..PLAIN
    },
    Sweep {
        command: "qgroup show",
        base: "{received.img}",
        own: &[
            acts("-p", "-p"),
            acts("-c", "-c"),
            acts("-r", "-r"),
            acts("-e", "-e"),
            acts("-F", "-F"),
            acts("-f", "-f"),
            acts("--sort", "--sort=-qgroupid"),
            manner("--sync", "--sync"),
        ],
        units: Units::Long,
        covered: &[
            covered("-F", &["-f"], "it lists the same group, and more"),
            covered("-f", &["--sort"], "one group is left"),
        ],
        ..PLAIN
    },
    Sweep {
        command: "qgroup clear-stale",
        base: "{received.img}",
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
            elsewhere("-f", "forced_target_keeps_no_former_signature"),
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

pub(super) const OTHERS: &[Sweep] = &[
    Sweep {
        command: "mount",
        base: "--list",
        own: &[
            refused("-o", "-o rw"),
            refused("--foreground", "-f"),
            refused("--log", "--log {out}/log"),
            refused("--auto-reclaim", "--auto-reclaim"),
            elsewhere("--list", "umount_of_one_directory_leaves_the_others"),
        ],
        ..PLAIN
    },
    Sweep {
        command: "umount",
        base: "{out}",
        code: 1,
        own: &[
            elsewhere("--lazy", "umount_refuses_a_foreign_mount"),
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
