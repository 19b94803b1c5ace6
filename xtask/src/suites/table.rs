//! The recorded table of results of xfstests: for each test whether it passes, does not run, or
//! fails, and the reason.
//!
//! The table holds only the failures of the run in docs/mount.md; `--write` records all results of
//! a run. A line is `OUTCOME: REASON: NUMBERS`. The numbers, also as ranges, are those of the
//! generic group.

use anyhow::{Context, Result, bail};
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// The table.
pub(super) const KEPT: &str = include_str!("xfstests.txt");

/// The result of a test.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Outcome {
    Passed,
    NotRun,
    Failed,
    /// The volume was damaged after the test.
    Inconsistent,
    /// The test did not end in time.
    Hung,
}

impl Outcome {
    const ALL: [(Self, &'static str); 5] = [
        (Self::Passed, "passed"),
        (Self::NotRun, "not run"),
        (Self::Failed, "failed"),
        (Self::Inconsistent, "inconsistent"),
        (Self::Hung, "hung"),
    ];

    pub(super) fn name(self) -> &'static str {
        let found = Self::ALL.iter().find(|(outcome, _)| *outcome == self);
        found.map_or("", |(_, name)| name)
    }
}

/// Outcomes and reasons, by the test's number.
pub(super) type Table = BTreeMap<u32, (Outcome, String)>;

/// Reads a table.
pub(super) fn parse(text: &str) -> Result<Table> {
    let mut table = Table::new();
    for line in text
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
    {
        let mut parts = line.splitn(3, ": ");
        let (Some(name), Some(reason), Some(numbers)) = (parts.next(), parts.next(), parts.next()) else {
            bail!("the table's line {line:?} has no three parts");
        };
        let outcome = Outcome::ALL.iter().find(|(_, known)| *known == name);
        let (outcome, _) = outcome.with_context(|| format!("{name:?} is no outcome"))?;
        for word in numbers.split(' ') {
            let (first, last) = word.split_once('-').unwrap_or((word, word));
            for number in first.parse()?..=last.parse::<u32>()? {
                if table.insert(number, (*outcome, reason.to_owned())).is_some() {
                    bail!("the table has {number} twice");
                }
            }
        }
    }
    Ok(table)
}

/// Returns a table as text.
pub(super) fn text(table: &Table) -> String {
    let mut groups: BTreeMap<(Outcome, &str), Vec<u32>> = BTreeMap::new();
    for (number, (outcome, reason)) in table {
        groups.entry((*outcome, reason)).or_default().push(*number);
    }
    let mut text =
        String::from("# What comes of xfstests' generic tests of the group quick; see table.rs.\n");
    for ((outcome, reason), numbers) in groups {
        let _ = write!(text, "{}: {reason}:", outcome.name());
        let mut rest = numbers.as_slice();
        while let Some(first) = rest.first() {
            let length = (*first..).zip(rest).take_while(|(a, b)| a == *b).count();
            let last = first + u32::try_from(length).unwrap_or(1) - 1;
            let _ = match length {
                1 => write!(text, " {first:03}"),
                _ => write!(text, " {first:03}-{last:03}"),
            };
            rest = &rest[length..];
        }
        text.push('\n');
    }
    text
}

/// Returns our reason for a test that did not run, from the test's message.
pub(super) fn reason_of(said: &str) -> &'static str {
    const REASONS: [(&[&str], &str); 17] = [
        (
            &["reflink", "Reflink", "dedupe", "Dedupe", "clone"],
            "clones and dedupe by ioctl",
        ),
        (&["fiemap"], "FIEMAP"),
        (
            &["dm-", "dm_", "dm ", "device mapper", "DM target"],
            "the device mapper below the volume",
        ),
        (
            &["log writes", "logwrites", "LOGWRITES"],
            "a log of writes below the volume",
        ),
        (&["quota"], "quotas"),
        (&["swap"], "swap files"),
        (&["crypt", "encpolicy"], "encryption"),
        (&["verity"], "fs-verity"),
        (&["exchange", "Exchange", "exchangerange"], "exchanging ranges"),
        (
            &["collapse", "fcollapse", "finsert", "insert"],
            "FALLOC_FL_COLLAPSE_RANGE and FALLOC_FL_INSERT_RANGE",
        ),
        (&["dax", "DAX", "chattr +x"], "DAX"),
        (&["freez"], "freezing"),
        (&["FITRIM", "trim"], "FITRIM"),
        (&["idmap", "vfstest"], "mapped owners"),
        (&["atomic", "pwrite doesn't support -A"], "atomic writes"),
        (
            &[
                "btrfs ",
                "delayed allocation",
                "casefold",
                "extsize",
                "log state",
                "geometry",
            ],
            "of other file systems",
        ),
        (
            &[
                "module",
                "IO_URING",
                "accton",
                "selinux",
                "cgroup",
                "not built",
                "too small",
                "LOGDEV",
                "setdeleg",
                "startupdate",
            ],
            "what the machine has not",
        ),
    ];
    let found = REASONS
        .iter()
        .find(|(words, _)| words.iter().any(|word| said.contains(word)));
    found.map_or("other", |(_, reason)| reason)
}

/// Returns the results with the hand-written reasons of the recorded table, for each test with an
/// unchanged outcome.
pub(super) fn with_reasons_of(found: Table, kept: &Table) -> Table {
    let with_reason = |(number, (outcome, reason)): (u32, (Outcome, String))| {
        let was = kept.get(&number).filter(|(was, _)| *was == outcome);
        let reason = was.map_or(reason, |(_, reason)| reason.clone());
        (number, (outcome, reason))
    };
    found.into_iter().map(with_reason).collect()
}

/// Returns the differences from the recorded table, a line for each test.
pub(super) fn differences(found: &Table, kept: &Table) -> Vec<String> {
    let differs = |(number, (outcome, reason)): (&u32, &(Outcome, String))| {
        let was = kept.get(number).map(|(outcome, _)| *outcome);
        (was != Some(*outcome)).then(|| {
            let was = was.map_or("not in the table", Outcome::name);
            format!("generic/{number:03}: {} ({reason}); kept: {was}", outcome.name())
        })
    };
    found.iter().filter_map(differs).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kept_table_is_as_it_is_written() {
        let table = parse(KEPT).unwrap();
        assert_eq!(text(&table), KEPT);
        let bad = [Outcome::Inconsistent, Outcome::Hung];
        assert!(table.values().all(|(outcome, _)| !bad.contains(outcome)));
    }

    #[test]
    fn reasons_are_in_our_words() {
        let said = " Reflink not supported by test filesystem type: btrfs";
        assert_eq!(reason_of(said), "clones and dedupe by ioctl");
        assert_eq!(reason_of("something else"), "other");
    }

    #[test]
    fn reasons_that_people_wrote_stay_with_the_same_outcome() {
        let kept = parse("failed: limits that nobody may raise: 004-005\n").unwrap();
        let found = parse("failed: other: 004 006\npassed: -: 005\n").unwrap();
        let expected = "failed: limits that nobody may raise: 004\nfailed: other: 006\npassed: -: 005\n";
        assert_eq!(with_reasons_of(found, &kept), parse(expected).unwrap());
    }

    #[test]
    fn differences_are_told() {
        let kept = parse("passed: -: 001-003 007\nfailed: limits: 004\n").unwrap();
        assert_eq!(kept.len(), 5);
        assert_eq!(parse(&text(&kept)).unwrap(), kept);
        let found = parse("passed: -: 001 004\nhung: -: 002\nnot run: FIEMAP: 009\n").unwrap();
        let told = differences(&found, &kept);
        assert_eq!(told.len(), 3, "{told:?}");
        assert!(parse("passed: -: 001 001\n").is_err());
        assert!(parse("perhaps: -: 001\n").is_err());
    }
}
