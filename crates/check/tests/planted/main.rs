//! One damage planted, and exactly what follows from it found.
//!
//! Each plant edits one of the kernel's small volumes (the seeds of the fuzz targets) and names the codes that must be
//! found: those and no others. Where one damage breaks two rules (an extent that is gone leaves space that is not
//! recorded as free), both are named. The volumes themselves are clean.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "tests state what must hold, with known numbers"
)]

mod extents;
mod files;
mod volume;

use buttress_check::{Finding, Options, Report, check};
use buttress_fs::Progress;
use buttress_hostile::editor::Editor;
use buttress_hostile::seeds;
use std::collections::BTreeSet;

/// A seed volume to be edited.
fn volume(name: &str) -> Editor {
    let aims = seeds::volumes()
        .iter()
        .find(|aims| aims.volume.name.contains(name))
        .unwrap_or_else(|| panic!("there is a volume {name}"));
    Editor::new(aims)
}

fn check_it(editor: &Editor, data_checksums: bool) -> Report {
    let options = Options {
        data_checksums,
        ..Options::default()
    };
    check(&editor.open(), &options, &Progress::new()).expect("nobody cancels")
}

fn text(report: &Report) -> String {
    let lines = report.findings.iter().map(|reported| {
        let paths: Vec<String> = reported
            .affected
            .iter()
            .map(|path| String::from_utf8_lossy(path).into_owned())
            .collect();
        format!("{}: {} {paths:?}\n", reported.finding.code(), reported.finding)
    });
    let notes = report.notes.iter().map(|note| format!("note: {note}\n"));
    lines.chain(notes).collect()
}

/// Checks, and expects these codes and no others.
#[track_caller]
fn expect(editor: &Editor, codes: &[&str]) -> Vec<Finding> {
    expect_with(editor, false, codes)
}

#[track_caller]
fn expect_with(editor: &Editor, data_checksums: bool, codes: &[&str]) -> Vec<Finding> {
    let report = check_it(editor, data_checksums);
    let found: BTreeSet<&str> = report.counts.keys().copied().collect();
    let expected: BTreeSet<&str> = codes.iter().copied().collect();
    assert_eq!(found, expected, "\n{}", text(&report));
    report
        .findings
        .into_iter()
        .map(|reported| reported.finding)
        .collect()
}

#[test]
fn the_kernel_s_volumes_are_clean() {
    for aims in seeds::volumes() {
        let report = check_it(&Editor::new(aims), true);
        assert!(report.is_clean(), "{}:\n{}", aims.volume.name, text(&report));
    }
}

#[test]
fn a_check_that_is_cancelled_says_so() {
    let progress = Progress::new();
    progress.cancel();
    let result = check(&volume("kinds").open(), &Options::default(), &progress);
    assert!(matches!(result, Err(buttress_fs::Error::Cancelled)));
}

#[test]
fn outcomes_are_the_same_each_time() {
    let mut editor = volume("kinds");
    files::plant_many(&mut editor);
    let first = text(&check_it(&editor, false));
    for _ in 0..5 {
        assert_eq!(text(&check_it(&editor, false)), first);
    }
}

/// Findings that cannot be planted in one leaf: the check of the leaf itself forbids them, or they need more than a small
/// volume has.
const NOT_PLANTED: [&str; 5] = [
    // Neighbouring leaves that overlap.
    "device-extents-overlap",
    "extents-overlap",
    "file-extents-overlap",
    // More differences than are looked into, and none that looking explains.
    "references-differ",
    "files-unexplained",
];

#[test]
fn every_finding_is_planted() {
    let sources = [
        include_str!("extents.rs"),
        include_str!("files.rs"),
        include_str!("volume.rs"),
    ];
    for (code, ..) in Finding::CODES {
        let quoted = format!("\"{code}\"");
        let planted = sources.iter().any(|source| source.contains(&quoted));
        assert_eq!(planted, !NOT_PLANTED.contains(code), "{code}");
    }
}
