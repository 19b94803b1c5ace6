//! While devices are missing, commands that describe a volume describe as much as possible.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests state what must hold"
)]

use crate::support::in_folder;

use std::fs::{self, File};

use std::process::Command;

use in_folder::{buttress, done};

#[test]
fn show_and_scrub_status_work_with_devices_missing() {
    for profile in ["raid1", "raid0"] {
        let folder = tempfile::tempdir().unwrap();
        let at = folder.path();
        done(
            at,
            &[
                "mkfs", "-q", "-b", "300M", "-L", "both", "-d", profile, "-m", profile, "1.img", "2.img",
            ],
        );
        done(at, &["scrub", "start", "-B", "1.img", "--device", "2.img"]);
        let whole = done(at, &["scrub", "status", "1.img"]);
        fs::remove_file(at.join("2.img")).unwrap();
        let shown = done(at, &["filesystem", "show", "1.img"]);
        assert!(
            shown.contains("Label: 'both'") && shown.contains("Total devices 2"),
            "{shown}"
        );
        assert!(
            shown.contains("path 1.img") && shown.contains("MISSING"),
            "{shown}"
        );
        // The findings of the last scrub remain available while devices are missing.
        assert_eq!(done(at, &["scrub", "status", "1.img"]), whole, "{profile}");
        assert!(whole.contains("finished"), "{whole}");
        fs::remove_file(at.join("1.img.scrub-status")).unwrap();
        let none = done(at, &["scrub", "status", "1.img"]);
        assert!(
            none.contains("no stats available") && none.contains("unknown, devices are missing"),
            "{none}"
        );
    }
}

#[test]
fn show_reads_superblocks_if_the_volume_does_not_open() {
    // Only one of the two images holds the block of the chunk tree.
    let mut unopened = 0;
    for missing in ["1.img", "2.img"] {
        let folder = tempfile::tempdir().unwrap();
        let at = folder.path();
        done(
            at,
            &[
                "mkfs", "-q", "-b", "300M", "-d", "raid0", "-m", "raid0", "1.img", "2.img",
            ],
        );
        fs::remove_file(at.join(missing)).unwrap();
        let left = if missing == "1.img" { "2.img" } else { "1.img" };
        unopened += i32::from(!buttress(at, &["ls", "--degraded", left]).status.success());
        let shown = done(at, &["filesystem", "show", left]);
        assert!(
            shown.contains("Total devices 2") && shown.contains(&format!("path {left}")),
            "{shown}"
        );
        assert!(
            shown.contains("MISSING") || shown.contains("*** Some devices missing"),
            "{shown}"
        );
    }
    assert!(unopened > 0);
}

#[test]
fn show_of_a_directory_prints_into_a_file_of_it() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    done(at, &["mkfs", "-q", "-b", "256M", "a.img"]);
    let expected = done(at, &["filesystem", "show", "."]);
    let list = File::create(at.join("list")).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_buttress"));
    command
        .current_dir(at)
        .args(["filesystem", "show", "."])
        .stdout(list);
    let output = command.output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty());
    assert!(expected.contains("a.img"));
    assert_eq!(fs::read_to_string(at.join("list")).unwrap(), expected);

    // The command refuses output to a device of the volume.
    let before = fs::read(at.join("a.img")).unwrap();
    let device = File::options().append(true).open(at.join("a.img")).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_buttress"));
    command
        .current_dir(at)
        .args(["filesystem", "show", "."])
        .stdout(device);
    assert_eq!(command.output().unwrap().status.code(), Some(1));
    assert!(fs::read(at.join("a.img")).unwrap() == before);
}
