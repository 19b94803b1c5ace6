//! Commands that print structures of a volume.

use super::{PLAIN, covered};
use crate::rows::{Row, Sweep, Units, acts, beside, elsewhere, ends, manner, nothing};

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

pub(super) const STRUCTURES: &[Sweep] = &[
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
        command: "inspect-internal find-root",
        base: "{volume.img}",
        own: &[
            acts("-a", "-a"),
            acts("-o", "-o 5"),
            acts("-l", "-l 3"),
            acts("-g", "-g 99999"),
        ],
        covered: &[
            covered("-o", &["-a"], "the superblock names no root of this tree"),
            covered("-l", &["-a", "-g"], "no block has this level"),
            covered("-g", &["-a", "-l"], "no block has this generation"),
        ],
        ..PLAIN
    },
    Sweep {
        command: "inspect-internal map-logical",
        base: "-l @data {volume.img}",
        own: &[
            elsewhere("-l", "places"),
            elsewhere("-b", "places"),
            elsewhere("-c", "places"),
            manner("-o", "-o {out}/copy"),
        ],
        ..PLAIN
    },
    Sweep {
        command: "inspect-internal select-super",
        base: "-s 1 {volume.img}",
        own: &[elsewhere("-s", "superblock_copy")],
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
