//! Tests that plant one damage in each volume, and expect exactly the findings of this damage.
//!
//! The plants ([`buttress_hostile::plants`]) edit small volumes of the kernel (the seeds of the
//! fuzz targets), which are undamaged before. The module [`fields`] tests the fields of findings.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "tests state what must hold, with known numbers"
)]

mod fields;

use buttress_check::{Finding, Note, Options, Report, check};
use buttress_fs::Progress;
use buttress_hostile::editor::Editor;
use buttress_hostile::{plants, seeds};
use std::collections::BTreeSet;

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

#[test]
fn the_kernel_s_volumes_are_clean() {
    for aims in seeds::volumes() {
        let report = check_it(&Editor::new(aims), true);
        assert!(report.is_clean(), "{}:\n{}", aims.volume.name, text(&report));
    }
}

#[test]
fn cancelled_check_returns_cancelled() {
    let progress = Progress::new();
    progress.cancel();
    let result = check(&plants::seed("kinds").open(), &Options::default(), &progress);
    assert!(matches!(result, Err(buttress_fs::Error::Cancelled)));
}

#[test]
fn outcomes_are_the_same_each_time() {
    let mut editor = plants::seed("kinds");
    fields::plant_many(&mut editor);
    let first = text(&check_it(&editor, false));
    for _ in 0..5 {
        assert_eq!(text(&check_it(&editor, false)), first);
    }
}

/// Every plant gives exactly the codes and notes that it names.
#[test]
fn every_plant_gives_its_codes() {
    let mut wrong = String::new();
    for plant in plants::all() {
        let Ok(editor) = std::panic::catch_unwind(|| plant.make()) else {
            wrong += &format!("{}: it cannot be planted\n", plant.name);
            continue;
        };
        let report = check_it(&editor, plant.reads_data);
        let found: BTreeSet<&str> = report.counts.keys().copied().collect();
        let expected: BTreeSet<&str> = plant.codes.iter().copied().collect();
        let noted: BTreeSet<&str> = report.notes.iter().map(Note::code).collect();
        let is_noted = plant.notes.iter().all(|note| noted.contains(note));
        if found != expected || !is_noted {
            wrong += &format!(
                "{}: expected {expected:?} and {:?}\n{}",
                plant.name,
                plant.notes,
                text(&report)
            );
        }
    }
    assert!(wrong.is_empty(), "\n{wrong}");
}

/// Findings that cannot be planted in one leaf: the check of the leaf itself forbids them, or they
/// need more than a small volume has.
const NOT_PLANTED: [&str; 6] = [
    // This finding needs adjacent leaves that overlap.
    "device-extents-overlap",
    "extents-overlap",
    "file-extents-overlap",
    "checksums-overlap",
    // This finding needs a tree block at another address.
    "block-crosses-stripe",
    // This finding needs more differences than the check compares one by one.
    "references-differ",
];

#[test]
fn every_finding_is_planted() {
    let plants = plants::all();
    assert!(plants.len() >= 60, "{}", plants.len());
    for (code, ..) in Finding::CODES {
        let planted = plants.iter().any(|plant| plant.codes.contains(code));
        assert_eq!(planted, !NOT_PLANTED.contains(code), "{code}");
    }
}

#[test]
fn every_finding_is_documented() {
    let page = include_str!("../../../../docs/check.md");
    for (code, grade, step) in Finding::CODES {
        let row = format!("| `{code}` | {grade} | {} |", step.name());
        assert!(page.contains(&row), "{row}");
    }
}
