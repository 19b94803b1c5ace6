//! Commands that send, receive and inspect streams.

use super::listings::LS_COVERED;
use super::listings::STREAM_LS;
use super::{PLAIN, covered};
use crate::rows::{Sweep, acts, elsewhere, idle_without, manner, nothing, refused};

pub(super) const STREAMS: &[Sweep] = &[
    Sweep {
        command: "send",
        base: "{volume.img}:/home-tuesday",
        own: &[
            acts("--output", "-f {out}/s"),
            acts("--parent", "-p {volume.img}:/home-monday"),
            acts("--clone-source", "-c {volume.img}:/home-monday"),
            // A send of one snapshot has no boundary between snapshots.
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
            // The file has one stream, so it ends with the first end command.
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
        // The directory has no kept stream.
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
    // Without this option, the command line is invalid.
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
