//! Random damage with corrected checksums, checked by both programs: Buttress must report
//! everything that `btrfs check` reports.
//!
//! A seed changes one to three bytes in items, keys or headers of a seed volume, in all copies, and
//! corrects the checksums. If `btrfs check` finds an error, or crashes, Buttress must not report
//! the volume as clean. Buttress has further findings: these cases are counted, and reported by
//! their codes.

use crate::{case, open, text};
use anyhow::{Context, Result, ensure};
use buttress::check::Options;
use buttress::unstable::check::check;
use buttress::{Progress, TreeId};
use buttress_hostile::editor::Editor;
use buttress_hostile::seeds;
use buttress_oracle::content::Random;
use buttress_oracle::tools::newest;
use buttress_oracle::volumes::scratch;
use buttress_proof::harness::Case;
use std::collections::BTreeMap;
use std::process::Command;

/// Number of damaged volumes in the ordinary suite.
const DAMAGES: u64 = 300;

/// Trees to damage.
const TREES: [u64; 9] = [1, 2, 3, 4, 5, 7, 9, 10, 8];

/// Changes a few bytes of one item.
fn plant(editor: &mut Editor, random: &mut Random) -> Option<String> {
    let tree = TreeId::new(*TREES.get(usize::try_from(random.below(9)).ok()?)?);
    editor.open().tree(tree).ok()?;
    let items = editor.items(tree);
    let count = u64::try_from(items.len()).ok()?;
    if count == 0 {
        return None;
    }
    let (key, data) = items.get(usize::try_from(random.below(count)).ok()?)?;
    let length = u64::try_from(data.len()).ok()?;
    if length == 0 || random.below(8) == 0 {
        let leads = items.first().is_some_and(|(first, _)| first == key);
        if leads || editor.leads_a_leaf(tree, key) {
            return None;
        }
        editor.remove(tree, key);
        return Some(format!("tree {tree}: {key} removed"));
    }
    let at = usize::try_from(random.below(length)).ok()?;
    let bit = 1_u8 << random.below(8);
    editor.data(tree, key, |data| data[at] ^= bit);
    Some(format!("tree {tree}: {key}, byte {at} ^ {bit:#x}"))
}

/// Compares both programs' findings on one damaged volume.
fn compare(seed: u64, sums: &mut BTreeMap<String, u64>) -> Result<()> {
    let mut random = Random::new(seed ^ 0xda3a_9e00);
    let aims = seeds::volumes()
        .iter()
        .filter(|aims| aims.volume.devices.len() == 1 && !aims.volume.name.contains("log"))
        .nth(usize::try_from(random.below(5))?)
        .context("a volume")?;
    let mut editor = Editor::new(aims);
    let Some(planted) = plant(&mut editor, &mut random) else {
        return Ok(());
    };
    let folder = scratch()?;
    let images = editor.write_images(folder.path())?;
    let theirs = Command::new(newest("btrfs"))
        .arg("check")
        .args(&images)
        .output()?;
    let complains = !theirs.status.success();
    let (ours, codes) = match open(&images) {
        Err(error) => (true, vec![format!("does not open: {error}")]),
        Ok(filesystem) => {
            let report = check(&filesystem, &Options::default(), &Progress::new())?;
            ensure!(
                report.is_clean() == report.findings.is_empty(),
                "counts and findings differ: {}",
                text(&report)
            );
            let codes = report.counts.keys().map(|code| (*code).to_owned()).collect();
            (!report.is_clean(), codes)
        }
    };
    let words = |output: &[u8]| String::from_utf8_lossy(output).into_owned();
    ensure!(
        ours || !complains,
        "seed {seed}, {}, {planted}: btrfs check reports what ours does not:\n{}{}",
        aims.volume.name,
        words(&theirs.stdout),
        words(&theirs.stderr)
    );
    let kind = match (ours, complains) {
        (true, true) => "both".to_owned(),
        (true, false) => format!("ours alone: {}", codes.join(" ")),
        (false, _) => "neither".to_owned(),
    };
    if std::env::var_os("BUTTRESS_VERBOSE").is_some() {
        println!("seed {seed}: {kind}: {}, {planted}", aims.volume.name);
    }
    *sums.entry(kind).or_default() += 1;
    Ok(())
}

fn damages(from: u64, count: u64) -> Result<()> {
    let mut sums = BTreeMap::new();
    let mut failures = Vec::new();
    for seed in from..from + count {
        if let Err(error) = compare(seed, &mut sums) {
            failures.push(format!("{error:#}"));
        }
    }
    for (kind, count) in sums {
        println!("{count:>5} {kind}");
    }
    ensure!(
        failures.is_empty(),
        "{} of {count}:\n{}",
        failures.len(),
        failures.join("\n")
    );
    Ok(())
}

pub fn cases() -> Vec<Case> {
    let first = buttress_oracle::seeds::seed("check::damage", "BUTTRESS_SEED", 0);
    (0..4)
        .map(|part| {
            let each = DAMAGES / 4;
            case(format!("damage::part_{part}"), (6, 2), move || {
                damages(first + part * each, each)
            })
        })
        .collect()
}
