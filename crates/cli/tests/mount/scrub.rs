//! Tests of `scrub` on a mounted volume, which its server executes; and of repairing the bad copies
//! that readers of a mount skip.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "tests state what must hold"
)]

use crate::mounting;

use buttress_oracle::skip::skips;
use mounting::{Mounted, buttress, no_fuse, sound, text};
use serde_json::Value;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};

const BLOCK: usize = 4096;

/// Returns a block with unique content.
fn block(number: u64) -> Vec<u8> {
    (0..BLOCK as u64 / 8)
        .flat_map(|word| (number << 32 | word << 8 | 0x5d).to_le_bytes())
        .collect()
}

fn content(blocks: u64) -> Vec<u8> {
    (0..blocks).flat_map(block).collect()
}

/// Mounts a volume for writing, with two copies of everything and a file of this number of blocks.
fn mounted(blocks: u64) -> Mounted {
    let mounted = Mounted::new();
    sound(&[
        "mkfs",
        "-q",
        "-f",
        "-d",
        "dup",
        "-m",
        "dup",
        "-b",
        "512M",
        mounted.image(),
    ]);
    mounted.mount("rw");
    fs::write(mounted.path("file"), content(blocks)).unwrap();
    sound(&["filesystem", "sync", mounted.directory()]);
    mounted
}

/// Returns the offsets of both copies of a block.
fn places(mounted: &Mounted, number: u64) -> [u64; 2] {
    let (bytes, wanted) = (fs::read(&mounted.image).unwrap(), block(number));
    let all = bytes.chunks(BLOCK).zip((0..).step_by(BLOCK));
    let found: Vec<u64> = all
        .filter(|(block, _)| *block == wanted)
        .map(|(_, at)| at)
        .collect();
    found.try_into().unwrap()
}

fn spoil(mounted: &Mounted, at: u64) {
    let image = File::options().write(true).open(&mounted.image).unwrap();
    image.write_all_at(&[0xa5; BLOCK], at).unwrap();
}

fn is_whole(mounted: &Mounted, number: u64) {
    let image = File::open(&mounted.image).unwrap();
    for at in places(mounted, number) {
        let mut bytes = vec![0; BLOCK];
        image.read_exact_at(&mut bytes, at).unwrap();
        assert!(bytes == block(number));
    }
}

fn json(words: &[&str]) -> Value {
    let output = buttress(words);
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
}

fn status(mounted: &Mounted) -> Value {
    let document = json(&["scrub", "status", "--format", "json", mounted.directory()]);
    document["scrub-status"].clone()
}

#[test]
fn a_mounted_volume_is_scrubbed_beside_those_who_use_it() {
    if skips(no_fuse()) {
        return;
    }
    let mounted = mounted(500);
    let at = mounted.directory();
    assert_eq!(status(&mounted)["status"], "none");
    let places = [places(&mounted, 7)[0], places(&mounted, 300)[1]];
    for place in places {
        spoil(&mounted, place);
    }
    let looked = json(&["scrub", "start", "-Br", "--format", "json", at]);
    assert_eq!(
        looked["scrub-start"]["totals"]["csum_errors"], 2,
        "only read: {looked}"
    );
    assert_eq!(looked["scrub-start"]["totals"]["corrected_errors"], 0);

    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for number in 0_u64.. {
                let name = format!("beside-{}", number % 20);
                fs::write(mounted.path(&name), block(number | 1 << 30)).unwrap();
                if is_done.load(Ordering::SeqCst) {
                    break;
                }
            }
        });
        let mended = sound(&["scrub", "start", "-B", at]);
        is_done.store(true, Ordering::SeqCst);
        let told = text(&mended.stdout);
        for wanted in [
            "scrub done for ",
            "Error summary:    csum=2",
            "  Corrected:      2",
            "file: /file",
        ] {
            assert!(told.contains(wanted), "no {wanted:?} in {told}");
        }
        assert!(
            text(&mended.stderr).contains("2 corrected"),
            "{}",
            text(&mended.stderr)
        );
    });
    is_whole(&mounted, 7);
    is_whole(&mounted, 300);
    assert_eq!(status(&mounted)["status"], "finished");
    assert_eq!(status(&mounted)["totals"]["corrected_errors"], 2);
    let counted = buttress(&["device", "stats", at]);
    // A read-only scrub counts no errors in the devices' statistics.
    let counted = text(&counted.stdout);
    assert!(counted.contains("].corruption_errs  2\n"), "{counted}");
    let nothing = buttress(&["scrub", "resume", at]);
    assert_eq!(nothing.status.code(), Some(2), "{}", text(&nothing.stderr));
    assert!(text(&nothing.stdout).contains("nothing to resume"));
    let nothing = buttress(&["scrub", "cancel", at]);
    assert_eq!(nothing.status.code(), Some(2), "{}", text(&nothing.stderr));
    mounted.umount();
    mounted.expect_sound();
}

#[test]
fn a_scrub_of_a_mount_can_be_cancelled_and_resumed() {
    if skips(no_fuse()) {
        return;
    }
    // The file has 24 MiB in both copies, and the rate limit makes the scrub long.
    let mounted = mounted(3072);
    let at = mounted.directory();
    let slow = ["--limit", "1M"];
    let started = sound(&["scrub", "start", slow[0], slow[1], at]);
    assert!(
        text(&started.stdout).starts_with("scrub started on "),
        "{}",
        text(&started.stdout)
    );
    assert_eq!(status(&mounted)["status"], "running");
    let second = buttress(&["scrub", "start", at]);
    assert_eq!(second.status.code(), Some(1));
    assert!(text(&second.stderr).contains("already running"));
    let cancelled = sound(&["scrub", "cancel", at]);
    assert_eq!(text(&cancelled.stdout), "scrub cancelled\n");
    let stopped = status(&mounted);
    assert_eq!(stopped["status"], "aborted");
    let all = stopped["bytes_to_scrub"].as_u64().unwrap();
    assert!(stopped["bytes_scrubbed"].as_u64().unwrap() < all, "{stopped}");
    // The mount is in use, so the remaining amount of bytes may have changed.
    let resumed = json(&["scrub", "resume", "-B", "--format", "json", at]);
    assert_eq!(resumed["scrub-resume"]["status"], "finished", "{resumed}");
    let done = resumed["scrub-resume"]["bytes_scrubbed"].as_u64().unwrap();
    assert!(done >= 24 << 20, "{done} of {all}");

    sound(&["scrub", "start", slow[0], slow[1], at]);
    assert_eq!(status(&mounted)["status"], "running");
    // The mount's end waits until the scrub has released the volume, not until the scrub is
    // complete.
    mounted.umount();
    mounted.expect_sound();

    mounted.mount("ro");
    let refused = buttress(&["scrub", "start", "-B", at]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(
        text(&refused.stderr).contains("mounted read-only"),
        "{}",
        text(&refused.stderr)
    );
    sound(&["scrub", "start", "-Br", at]);
    mounted.umount();
}

#[test]
fn reading_a_file_of_a_mount_heals_it() {
    if skips(no_fuse()) {
        return;
    }
    let mounted = mounted(100);
    mounted.umount();
    // Each copy has a bad block: a reader of either copy skips its bad block, and the blocks around
    // it are verified.
    spoil(&mounted, places(&mounted, 10)[0]);
    spoil(&mounted, places(&mounted, 20)[1]);
    mounted.mount("rw");
    assert!(fs::read(mounted.path("file")).unwrap() == content(100));
    mounted.umount();
    is_whole(&mounted, 10);
    is_whole(&mounted, 20);
    let scrubbed = json(&["scrub", "start", "-Br", "--format", "json", mounted.image()]);
    assert_eq!(scrubbed["scrub-start"]["totals"]["csum_errors"], 0, "{scrubbed}");
    let counted = text(&buttress(&["device", "stats", mounted.image()]).stdout);
    assert!(counted.contains("].corruption_errs  2\n"), "{counted}");
    mounted.expect_sound();
}
