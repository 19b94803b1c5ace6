//! `mount --auto-reclaim`: space returns without a balance, beside a writer, and an unmount ends it.

use crate::mounting;

use buttress_oracle::skip::skips;
use mounting::{Mounted, buttress, no_fuse, sound, text};
use serde_json::Value;
use std::fs;
use std::time::{Duration, Instant};

const MIB: usize = 1 << 20;
const FILES: usize = 32;

/// Unallocated bytes of the volume.
fn unallocated(directory: &str) -> u64 {
    let output = buttress(&["filesystem", "usage", "--format", "json", directory]);
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    document["filesystem-usage"]["unallocated"]
        .as_u64()
        .unwrap_or_else(|| panic!("{}", text(&output.stdout)))
}

fn content(number: usize) -> Vec<u8> {
    let words = (0..MIB).map(|at| (at.wrapping_mul(2_654_435_761) + number).to_le_bytes());
    words.flatten().collect()
}

/// A volume on which files were written and most of them deleted, beside a reclaim.
fn deleted(options: &[&str]) -> Option<(Mounted, u64)> {
    if skips(no_fuse()) {
        return None;
    }
    let mounted = Mounted::new();
    sound(&["mkfs", "-q", "-f", "-b", "512M", mounted.image()]);
    let image = mounted.image().to_owned();
    let log = format!("{image}.log");
    let words = [
        &["mount", "-o", "rw", "--log", &log],
        options,
        &[&image, mounted.directory()],
    ]
    .concat();
    sound(&words);
    for number in 0..FILES {
        fs::write(mounted.path(&format!("f{number}")), content(number)).unwrap();
    }
    sound(&["filesystem", "sync", mounted.directory()]);
    let full = unallocated(mounted.directory());
    for number in (0..FILES).filter(|number| number % 6 != 0) {
        fs::remove_file(mounted.path(&format!("f{number}"))).unwrap();
    }
    sound(&["filesystem", "sync", mounted.directory()]);
    Some((mounted, full))
}

fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < Duration::from_mins(2), "{what}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn reclaim_returns_space_beside_a_writer() {
    let Some((mounted, full)) = deleted(&["--auto-reclaim"]) else {
        return;
    };
    let mut round = 0_u8;
    wait_until("no space came back", || {
        round = round.wrapping_add(1);
        fs::write(mounted.path("written beside"), vec![round; 50_000]).unwrap();
        unallocated(mounted.directory()) >= full + 100 * (MIB as u64)
    });
    for number in (0..FILES).step_by(6) {
        assert!(fs::read(mounted.path(&format!("f{number}"))).unwrap() == content(number));
    }
    assert_eq!(
        fs::read(mounted.path("written beside")).unwrap(),
        vec![round; 50_000]
    );
    mounted.umount();
    let log = fs::read_to_string(format!("{}.log", mounted.image())).unwrap();
    assert!(
        log.contains("auto-reclaim: block groups of data that fall below 30 %"),
        "{log}"
    );
    assert!(log.contains(" in use) was removed"), "{log}");
    sound(&["check", "--check-data-csum", mounted.image()]);
}

#[test]
fn unmount_ends_a_reclaim_in_progress() {
    let Some((mounted, full)) = deleted(&["--auto-reclaim=90"]) else {
        return;
    };
    wait_until("the reclaim does not begin", || {
        let log = fs::read_to_string(format!("{}.log", mounted.image())).unwrap();
        log.contains("in use)") || unallocated(mounted.directory()) > full
    });
    let begun = Instant::now();
    mounted.umount();
    // A relocation of all that is left would take longer at its limited rate.
    assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
    sound(&["check", "--check-data-csum", mounted.image()]);
    for words in [
        &["--auto-reclaim=0"][..],
        &["--auto-reclaim=100"],
        &["-o", "auto_reclaim=x"],
    ] {
        let words = [
            &["mount", "-o", "rw"],
            words,
            &[mounted.image(), mounted.directory()],
        ]
        .concat();
        assert!(!buttress(&words).status.success(), "{words:?}");
    }
    let reading = buttress(&["mount", "--auto-reclaim", mounted.image(), mounted.directory()]);
    assert_eq!(reading.status.code(), Some(2));
}
