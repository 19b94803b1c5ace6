//! Comparison of findings: every kind of planted damage, checked by Buttress and by two versions of
//! `btrfs check` in both modes.
//!
//! The result table is `docs/check-comparison.md`; the test fails if the result differs.
//! `BUTTRESS_BLESS=1` rewrites the table.

use crate::open;
use crate::theirs::{Judge, judges};
use anyhow::{Context, Result, ensure};
use buttress::Progress;
use buttress::check::{Note, Options};
use buttress::unstable::check::check;
use buttress_hostile::plants::{self, Plant};
use buttress_oracle::needs::{Missing, REFERENCE_PROGS};
use buttress_oracle::volumes::scratch;
use buttress_proof::harness::{Case, Outcome};
use std::fmt::Write as _;
use std::path::PathBuf;

/// Versions in the table: the distribution's, and a newer one.
const VERSIONS: [&str; 2] = ["6.2", "6.14"];

const HEAD: &str = "\
# Check against `btrfs check`

The test `comparison` of `buttress-proof` (`--test check`) makes this table, and fails if the table differs. `BUTTRESS_BLESS=1` writes
it again.

Each row is a small volume that the kernel made, with one damage planted behind valid checksums (`crates/hostile/src/plants`). Column
`ours` has the findings of `buttress check`. The other columns have the verdicts of `btrfs check` 6.2 and 6.14 in their two modes: `error`, or a
dash if they report nothing. Codes in brackets are notes: Buttress regards these volumes as undamaged.

";

/// Builds a row of the table for a plant, without the plant's own columns.
fn look_at(plant: &Plant, judges: &[Judge]) -> Result<(String, Vec<&'static str>)> {
    let editor = plant.make();
    let folder = scratch()?;
    let images = editor.write_images(folder.path())?;
    let options = Options {
        data_checksums: plant.reads_data,
        ..Options::default()
    };
    let progress = Progress::new();
    let report = match open(&images) {
        Ok(filesystem) => check(&filesystem, &options, &progress)?,
        // If one of several devices is missing, its image cannot be opened.
        Err(_) => check(&editor.open(), &options, &progress)?,
    };
    let found: Vec<String> = report.counts.keys().map(|code| format!("`{code}`")).collect();
    let ours = if found.is_empty() {
        let expected = plant.notes.iter();
        let noted: Vec<String> = report
            .notes
            .iter()
            .map(Note::code)
            .filter(|code| expected.clone().any(|note| note == code))
            .map(|code| format!("[`{code}`]"))
            .collect();
        noted.join(" ")
    } else {
        found.join(" ")
    };
    let data: &[&str] = if plant.reads_data {
        &["--check-data-csum"]
    } else {
        &[]
    };
    let mut theirs = Vec::new();
    for judge in judges {
        let (verdict, said) = judge.look_at(&images, data)?;
        if std::env::var_os("BUTTRESS_VERBOSE").is_some() {
            println!("{} by {}: {}\n{said}", plant.name, judge.name, verdict.word());
        }
        theirs.push(verdict.word());
    }
    Ok((ours, theirs))
}

fn table(judges: &[Judge]) -> Result<String> {
    let mut text = HEAD.to_owned();
    let names: Vec<&str> = judges.iter().map(|judge| judge.name.as_str()).collect();
    writeln!(text, "| damage | ours | {} |", names.join(" | "))?;
    writeln!(text, "|---|---|{}", "---|".repeat(names.len()))?;
    let (mut alone, mut missed, mut rows) = (0, 0, 0);
    for plant in plants::all() {
        let (ours, theirs) = look_at(&plant, judges).with_context(|| plant.name)?;
        let finds = !ours.is_empty() && !ours.starts_with('[');
        let silent = theirs.iter().all(|word| *word == "–");
        rows += 1;
        alone += i32::from(finds && silent);
        missed += i32::from(!finds && !silent);
        writeln!(text, "| {} | {ours} | {} |", plant.what, theirs.join(" | "))?;
    }
    writeln!(
        text,
        "\n{rows} volumes. Only `buttress check` reports {alone} of them; only `btrfs check` reports {missed}."
    )?;
    Ok(text)
}

fn compare() -> Result<Outcome> {
    if let Some(reason) = buttress_oracle::tools::kernel_missing() {
        return Ok(Outcome::Skipped(reason));
    }
    let judges = match judges(VERSIONS) {
        Ok(judges) => judges,
        Err(reason) => return Ok(Outcome::Skipped(Missing::new(REFERENCE_PROGS, reason))),
    };
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/check-comparison.md");
    let made = table(&judges)?;
    if std::env::var_os("BUTTRESS_BLESS").is_some() {
        std::fs::write(&path, &made)?;
        return Ok(Outcome::Passed);
    }
    let kept = std::fs::read_to_string(&path)?;
    let differing: Vec<String> = made
        .lines()
        .zip(kept.lines().chain(std::iter::repeat("")))
        .filter(|(made, kept)| made != kept)
        .map(|(made, kept)| format!("is    {made}\nkept: {kept}"))
        .collect();
    ensure!(made == kept, "{}\n{}", path.display(), differing.join("\n"));
    Ok(Outcome::Passed)
}

pub fn cases() -> Vec<Case> {
    vec![Case::new("comparison::table", compare)]
}
