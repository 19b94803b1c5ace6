//! `cargo xtask prose [AREA [KIND]]`: counts of faults in comments, pages and messages, by area and
//! kind.
//!
//! A table holds the counts, and a test requires that none grows. With an area, the chore prints
//! each finding with its file and line. The rules are those of CONTRIBUTING.md.
//!
//! | kind | counts |
//! |---|---|
//! | `subject` | sentences that begin with a clause or a pronoun as the subject |
//! | `word` | words and phrases for which the field has a term |
//! | `long` | sentences of more than [`WORDS_MAX`] words |
//! | `wide` | comment lines of more than [`COLUMNS_MAX`] columns |
//! | `name` | names of tests with more than [`NAME_MAX`] letters |
//!
//! An area is a crate, a page's folder, or `messages`. Code, links' targets and quoted names count
//! as one word.
//!
//! Limit: the chore does not judge meaning. A sentence can pass and still be hard to read.

mod sentences;
mod sources;

use anyhow::{Result, bail};
use std::collections::BTreeMap;

pub(crate) use sentences::{Sentence, sentences};
use sources::Piece;

const USAGE: &str = "usage: cargo xtask prose [AREA [KIND]]";

/// The path of the table, from the repository's root.
#[cfg(test)]
const TABLE: &str = "xtask/src/prose.txt";

const WORDS_MAX: usize = 30;
const COLUMNS_MAX: usize = 110;
const NAME_MAX: usize = 60;

/// Beginnings of sentences with a clause or a pronoun as the subject. In lower case.
const SUBJECTS: [&str; 13] = [
    "what",
    "whatever",
    "who",
    "whoever",
    "where",
    "wherever",
    "that",
    "those",
    "one",
    "so",
    "the same",
    "the others",
    "else",
];

/// Rejected words and phrases, each with its term. In lower case.
const WORDS: [(&str, &str); 42] = [
    ("anew", "again"),
    ("as there", "name the section"),
    ("asks for room", "reserves space"),
    ("be told", "report"),
    ("but for", "except"),
    ("but where", "except where"),
    ("found missing", "missing"),
    ("gives back", "frees, returns"),
    ("go on", "continue"),
    ("goes on", "continues"),
    ("going on", "continuing"),
    ("went on", "continued"),
    ("is told", "report"),
    ("are told", "report"),
    ("let go of", "release"),
    ("lets go of", "releases"),
    ("let others in", "release the lock"),
    ("look at", "inspect"),
    ("looked at", "inspected"),
    ("looking at", "inspecting"),
    ("looks at", "inspects"),
    ("look for", "search"),
    ("looked for", "searched"),
    ("looks for", "searches"),
    ("mend", "repair"),
    ("mended", "repaired"),
    ("mending", "repairing"),
    ("mends", "repairs"),
    ("no more of", "end"),
    ("nobody", "no thread, no caller"),
    ("of use", "useful"),
    ("on its way", "in flight"),
    ("on the way", "in flight"),
    ("room", "space"),
    ("rooms", "modules"),
    ("rotten", "damaged"),
    ("so is", "repeat the noun"),
    ("so are", "repeat the noun"),
    ("somebody", "another thread, another caller"),
    ("spoilt", "damaged"),
    ("under way", "in progress"),
    ("whoever", "name the actor"),
];

/// A fault in a text, with its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Finding {
    kind: &'static str,
    place: String,
    text: String,
}

/// Prints the counts, or the findings of an area.
pub(crate) fn run(words: &[String]) -> Result<()> {
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let all = findings()?;
    match words.as_slice() {
        [] => print!("{}", table(&all)),
        [area] | [area, _] if all.contains_key(*area) => {
            let kind = words.get(1).copied();
            let of_area = all.get(*area).into_iter().flatten();
            for finding in of_area.filter(|finding| kind.is_none_or(|kind| finding.kind == kind)) {
                println!("{}: {}: {}", finding.place, finding.kind, finding.text);
            }
        }
        [area] | [area, _] => bail!("no area {area}: `cargo xtask prose` lists the areas"),
        _ => bail!(USAGE),
    }
    Ok(())
}

/// Returns the style faults of each area.
fn findings() -> Result<BTreeMap<String, Vec<Finding>>> {
    let mut all: BTreeMap<String, Vec<Finding>> = BTreeMap::new();
    for piece in sources::pieces()? {
        let found = all.entry(piece.area.clone()).or_default();
        found.extend(of_piece(&piece));
    }
    Ok(all)
}

fn of_piece(piece: &Piece) -> Vec<Finding> {
    let finding = |kind, line: usize, text: &str| Finding {
        kind,
        place: format!("{}:{line}", piece.file),
        text: text.to_owned(),
    };
    let mut found = Vec::new();
    for block in &piece.blocks {
        for sentence in sentences(&block.text) {
            let line = block.line.saturating_add(sentence.line);
            found.extend(of_sentence(&sentence).map(|kind| finding(kind, line, &sentence.text)));
        }
    }
    found.extend(piece.wide.iter().map(|(line, text)| finding("wide", *line, text)));
    found.extend(
        piece
            .long_names
            .iter()
            .map(|(line, text)| finding("name", *line, text)),
    );
    found
}

/// Returns the kinds of faults in a sentence, one entry for each fault.
fn of_sentence(sentence: &Sentence) -> impl Iterator<Item = &'static str> {
    let text = format!(" {} ", sentence.words.join(" "));
    let has_clause = SUBJECTS
        .iter()
        .any(|begin| text.starts_with(&format!(" {begin} ")));
    let banned = WORDS
        .iter()
        .filter(|(word, _)| text.contains(&format!(" {word} ")))
        .count();
    let is_long = sentence.words.len() > WORDS_MAX;
    let once = |is: bool, kind| is.then_some(kind).into_iter();
    once(has_clause, "subject")
        .chain(once(is_long, "long"))
        .chain(std::iter::repeat_n("word", banned))
}

/// Returns the counts in the table's form: a row for each area and kind.
fn table(all: &BTreeMap<String, Vec<Finding>>) -> String {
    let mut rows = String::new();
    for (area, found) in all {
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        for finding in found {
            let count = counts.entry(finding.kind).or_default();
            *count = count.saturating_add(1);
        }
        for (kind, count) in counts {
            rows += &format!("{area} {kind} {count}\n");
        }
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::root;

    /// Returns the counts that grew, and the counts that fell without an update of the table.
    fn changes(kept: &str, now: &str) -> Vec<String> {
        let rows = |table: &str| -> BTreeMap<String, usize> {
            let rows = table.lines().filter_map(|row| row.rsplit_once(' '));
            rows.map(|(key, count)| (key.to_owned(), count.parse().unwrap()))
                .collect()
        };
        let (kept, now) = (rows(kept), rows(now));
        let keys: std::collections::BTreeSet<&String> = kept.keys().chain(now.keys()).collect();
        let count = |rows: &BTreeMap<String, usize>, key: &String| rows.get(key).copied().unwrap_or(0);
        let changes = keys
            .into_iter()
            .map(|key| (key, count(&kept, key), count(&now, key)));
        changes
            .filter(|(_, kept, now)| kept != now)
            .map(|(key, kept, now)| match now > kept {
                true => format!("{key} grew from {kept} to {now}: `cargo xtask prose {key}` lists them"),
                false => format!("{key} fell from {kept} to {now}: write that into {TABLE}"),
            })
            .collect()
    }

    #[test]
    fn faults_of_prose_only_become_fewer() {
        let kept = std::fs::read_to_string(root().unwrap().join(TABLE)).unwrap();
        let changes = changes(&kept, &table(&findings().unwrap()));
        assert!(changes.is_empty(), "{}", changes.join("\n"));
    }

    #[test]
    fn a_row_may_not_grow_and_a_smaller_one_is_written() {
        assert_eq!(changes("a word 2\n", "a word 2\n"), Vec::<String>::new());
        assert!(changes("a word 2\n", "a word 3\n")[0].contains("grew from 2 to 3"));
        assert!(
            changes("a word 2\n", "").contains(&format!("a word fell from 2 to 0: write that into {TABLE}"))
        );
    }

    #[test]
    fn a_sentence_has_its_faults() {
        let kinds = |text: &str| -> Vec<&str> { sentences(text).iter().flat_map(of_sentence).collect() };
        assert_eq!(kinds("The commit releases the lock."), Vec::<&str>::new());
        assert_eq!(kinds("Who waits holds it."), ["subject"]);
        assert_eq!(
            kinds("The commit lets go of the lock and goes on."),
            ["word", "word"]
        );
        assert_eq!(kinds("A mushroom is no room."), ["word"]);
        assert_eq!(kinds(&format!("The{}.", " thing".repeat(WORDS_MAX))), ["long"]);
        assert_eq!(
            kinds(&format!("The{}.", " thing".repeat(WORDS_MAX - 1))),
            Vec::<&str>::new()
        );
        assert_eq!(kinds("`Who` is a type. `room` is another."), Vec::<&str>::new());
    }
}
