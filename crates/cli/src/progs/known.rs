//! Commands of btrfs-progs 6.19 and their options, as facts: only names, in the order of its help.
//!
//! Each string of options contains all spellings of each option: `-r|--readonly -q|--quiet`. The
//! command table, not this list, determines whether Buttress has a command.

use super::Known;

/// Declares a command that Buttress has.
const fn here(path: &'static str, options: &'static str) -> Known {
    missing(path, options, "")
}

/// Declares a command that Buttress lacks, with the command to use instead.
const fn missing(path: &'static str, options: &'static str, instead: &'static str) -> Known {
    Known {
        path,
        options,
        instead,
    }
}

/// All commands of btrfs-progs.
pub(super) const KNOWN: &[Known] = &[
    here(
        "balance start",
        "-d -m -s -f --full-balance --background|--bg --enqueue",
    ),
    here("balance pause", ""),
    here("balance cancel", ""),
    here("balance resume", ""),
    here("balance status", ""),
    here(
        "check",
        "-s|--super -b|--backup -r|--tree-root --chunk-root --readonly --repair --force --mode \
         --init-csum-tree --init-extent-tree --check-data-csum -Q|--qgroup-report -E|--subvol-extents \
         -p|--progress --clear-space-cache",
    ),
    here("device add", "-K|--nodiscard -f|--force --enqueue"),
    here("device delete", ""),
    here("device remove", "--enqueue"),
    missing("device replace", "", "run `buttress replace start|status|cancel`"),
    missing(
        "device scan",
        "-d|--all-devices -u|--forget",
        "name the devices of a volume with `--device`; `buttress filesystem show DIRECTORY` lists the \
         images of each volume",
    ),
    missing(
        "device ready",
        "",
        "`buttress filesystem show IMAGE` lists missing devices",
    ),
    here("device stats", "-c|--check -z|--reset -T --offline"),
    here(
        "device usage",
        "-b|--raw -h|--human-readable -H --iec --si -k|--kbytes -m|--mbytes -g|--gbytes -t|--tbytes",
    ),
    here(
        "filesystem df",
        "-b|--raw -h|--human-readable -H --iec --si -k|--kbytes -m|--mbytes -g|--gbytes -t|--tbytes",
    ),
    here(
        "filesystem du",
        "-s|--summarize --raw --human-readable --iec --si --kbytes --mbytes --gbytes --tbytes",
    ),
    here(
        "filesystem show",
        "-d|--all-devices -m|--mounted --raw --human-readable --iec --si --kbytes --mbytes --gbytes \
         --tbytes",
    ),
    here("filesystem sync", ""),
    here(
        "filesystem defragment",
        "-r -c -L|--level -f -s -l -t --step --nocomp",
    ),
    here("filesystem resize", "--enqueue --offline"),
    here("filesystem label", ""),
    here(
        "filesystem usage",
        "-b|--raw -h|--human-readable -H --iec --si -k|--kbytes -m|--mbytes -g|--gbytes -t|--tbytes -T",
    ),
    missing(
        "filesystem commit-stats",
        "-z|--reset",
        "mount the volume with Linux and run `btrfs filesystem commit-stats …` on the mount",
    ),
    missing(
        "filesystem mkswapfile",
        "-s|--size -U|--uuid",
        "mount the volume with Linux and run `btrfs filesystem mkswapfile …` on the mount",
    ),
    here("inspect-internal inode-resolve", ""),
    here("inspect-internal logical-resolve", "-P -o -s"),
    here("inspect-internal subvolid-resolve", ""),
    here("inspect-internal rootid", ""),
    here("inspect-internal map-swapfile", "-r|--resume-offset"),
    here("inspect-internal min-dev-size", "--id"),
    here(
        "inspect-internal dump-tree",
        "-e|--extents -d|--device -r|--roots -R|--backups -u|--uuid -b|--block -t|--tree --follow --noscan \
         --bfs --dfs --hide-names --csum-headers --csum-items",
    ),
    here(
        "inspect-internal dump-super",
        "-f|--full -a|--all -s|--super -F|--force --bytenr",
    ),
    here(
        "inspect-internal tree-stats",
        "-b --raw --human-readable --iec --si --kbytes --mbytes --gbytes --tbytes -t",
    ),
    here(
        "inspect-internal list-chunks",
        "--raw --human-readable --iec --si --kbytes --mbytes --gbytes --tbytes --sort",
    ),
    here("property get", "-t"),
    here("property set", "-t -f"),
    here("property list", "-t"),
    here("qgroup assign", "--rescan --no-rescan"),
    here("qgroup remove", "--rescan --no-rescan"),
    here("qgroup create", ""),
    here("qgroup clear-stale", ""),
    here("qgroup destroy", ""),
    here(
        "qgroup show",
        "-p -c -r -e -F -f --raw --human-readable --iec --si --kbytes --mbytes --gbytes --tbytes --sort \
         --sync",
    ),
    here("qgroup limit", "-c -e"),
    here("quota enable", "-s|--simple"),
    here("quota disable", ""),
    here("quota rescan", "-s|--status -w|--wait -W|--wait-norescan"),
    here("quota status", "--is-enabled"),
    here(
        "receive",
        "-f -e -C|--chroot -E|--max-errors -m --force-decompress --dump",
    ),
    here("replace start", "-r -f -B --enqueue -K|--nodiscard"),
    here("replace status", "-1"),
    here("replace cancel", ""),
    here("rescue chunk-recover", "-y"),
    here("rescue super-recover", "-y"),
    here("rescue zero-log", ""),
    here("rescue fix-device-size", ""),
    here(
        "rescue fix-data-checksum",
        "-r|--readonly -i|--interactive -m|--mirror",
    ),
    missing(
        "rescue create-control-device",
        "",
        "Buttress needs no control device; for btrfs-progs, run `modprobe btrfs`",
    ),
    here("rescue clear-ino-cache", ""),
    here("rescue clear-space-cache", ""),
    here("rescue clear-uuid-tree", ""),
    here(
        "restore",
        "-D|--dry-run -i|--ignore-errors -o|--overwrite -m|--metadata -S|--symlink -s|--snapshots \
         -x|--xattr --path-regex -c -d -l|--list-roots -f -r|--root -t -u|--super",
    ),
    here("scrub start", "-B -d -r -R -c -n -f --limit"),
    here("scrub cancel", ""),
    here("scrub resume", "-B -d -r -R -c -n"),
    here(
        "scrub status",
        "-d -R --raw --human-readable --iec --si --kbytes --mbytes --gbytes --tbytes",
    ),
    missing(
        "scrub limit",
        "-a|--all -d|--devid -l|--limit --raw --human-readable --iec --si --kbytes --mbytes --gbytes \
         --tbytes",
        "run `buttress scrub start` under `ionice`, or with `systemd-run -p IOReadBandwidthMax=`",
    ),
    here("send", "-e -p -c -f --no-data --proto --compressed-data"),
    here("subvolume create", "-i -p|--parents"),
    here(
        "subvolume delete",
        "-c|--commit-after -C|--commit-each -i|--subvolid -R|--recursive",
    ),
    here("subvolume list", "-o -a -p -c -g -u -R -s -r -d -t -G -C --sort"),
    here("subvolume snapshot", "-r -i"),
    here("subvolume get-default", ""),
    here("subvolume set-default", ""),
    here("subvolume find-new", ""),
    here(
        "subvolume show",
        "-r|--rootid -u|--uuid -b|--raw -h|--human-readable -H --iec --si -k|--kbytes -m|--mbytes \
         -g|--gbytes -t|--tbytes",
    ),
    here("subvolume sync", "-s"),
    here("help", "--full --box"),
    here("version", ""),
    here(
        "mkfs",
        "-d|--data -m|--metadata -M|--mixed --csum|--checksum -n|--nodesize -s|--sectorsize -O|--features \
         -L|--label -U|--uuid --device-uuid -b|--byte-count -r|--rootdir --compress -u|--subvol --shrink \
         -K|--nodiscard -f|--force -V|--version -R|--runtime-features --reflink --inode-flags",
    ),
];
