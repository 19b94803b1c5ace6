//! Commands of btrfs-progs: the error for a command that only btrfs-progs or only the shell has, and
//! the table of `docs/btrfs-progs-compatibility.md`.

mod known;

use std::ffi::OsString;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, Args as _, Command};

use crate::exit::Advice;
use crate::globals::Globals;
use crate::shell;
use crate::table::{self, Kind, Row};
use known::KNOWN;

/// A command of btrfs-progs.
#[derive(Debug)]
pub struct Known {
    /// Name of the command, with its group before it.
    path: &'static str,
    /// Options of the command, separated by spaces, each with all its spellings: `-r|--readonly`.
    options: &'static str,
    /// The command to use instead, if Buttress lacks this one.
    instead: &'static str,
}

impl Known {
    /// Returns whether an argument is this command's `index`th name, whole or shortened as
    /// btrfs-progs accepts it.
    fn has_word(&self, index: usize, word: &str) -> bool {
        let mut words = self.path.split(' ');
        words.nth(index).is_some_and(|known| known == word)
    }

    fn has_word_shortened(&self, index: usize, word: &str) -> bool {
        let mut words = self.path.split(' ');
        words.nth(index).is_some_and(|known| known.starts_with(word))
    }

    /// Returns whether Buttress has the command.
    fn is_here(&self) -> bool {
        row_of(table::ROWS, self.path).is_some()
    }
}

/// Returns the row of a command by its full path.
fn row_of(rows: &'static [Row], path: &str) -> Option<&'static Row> {
    let (name, rest) = path.split_once(' ').unwrap_or((path, ""));
    let row = rows.iter().find(|row| row.name() == name)?;
    match row.kind() {
        Kind::Group { rows, .. } => row_of(rows, rest),
        Kind::Leaf { .. } => rest.is_empty().then_some(row),
    }
}

/// Returns the error for a command that only btrfs-progs or only the shell has. For any other parser
/// error, returns `None`.
pub fn answer(arguments: &[OsString], error: &clap::Error) -> Option<anyhow::Error> {
    if error.kind() != ErrorKind::InvalidSubcommand {
        return None;
    }
    let Some(ContextValue::String(invalid)) = error.get(ContextKind::InvalidSubcommand) else {
        return None;
    };
    let words: Vec<&str> = arguments
        .iter()
        .skip(1)
        .filter_map(|word| word.to_str())
        .collect();
    let at = words.iter().position(|word| word == invalid)?;
    let (before, rest) = words.split_at_checked(at)?;
    let next = rest.iter().skip(1).find(|word| !word.starts_with('-')).copied();
    // The argument before the invalid word names the command's group, or is the value of a global
    // option.
    let group = before.iter().rev().find_map(|word| group_named(word));
    if group.is_none()
        && let Some(writes) = shell::table::writes_by(shell::words::ROWS, invalid)
    {
        let switch = if writes { "-w " } else { "" };
        let advice = format!("run `buttress shell {switch}-c '{invalid} …' IMAGE`");
        let error = anyhow::anyhow!("{invalid}: a command of `buttress shell` only");
        return Some(error.context(Advice(advice)));
    }
    let in_group = group.and_then(|group| find(&[group, invalid]));
    let with_next = || next.and_then(|next| find(&[invalid, next]));
    let known = in_group.or_else(with_next).or_else(|| find(&[invalid]))?;
    let of_group = in_group.is_none() && next.is_none_or(|next| !known.has_word_shortened(1, next));
    let name = match known.path.split_once(' ') {
        Some((group, _)) if of_group => group,
        _ => known.path,
    };
    let error = anyhow::anyhow!("{name}: not in this version of Buttress");
    Some(if known.instead.is_empty() {
        error
    } else {
        error.context(Advice::new(known.instead))
    })
}

/// Returns the group of the table that an argument names.
fn group_named(word: &str) -> Option<&'static str> {
    let is_group = |row: &&Row| matches!(row.kind(), Kind::Group { .. });
    let mut groups = table::ROWS.iter().filter(is_group);
    groups
        .find(|row| word.len() > 1 && row.name().starts_with(word))
        .map(Row::name)
}

/// Returns the missing command that these arguments name, by its whole path or its first name. A
/// match of the whole path takes precedence.
fn find(words: &[&str]) -> Option<&'static Known> {
    let missing = || KNOWN.iter().filter(|known| !known.is_here());
    let names = |known: &&Known, is_word: fn(&Known, usize, &str) -> bool| {
        let mut words = words.iter().enumerate();
        words.all(|(index, word)| is_word(known, index, word))
    };
    missing().find(|known| names(known, Known::has_word)).or_else(|| {
        // A single letter would be an ambiguous abbreviation.
        let is_long = words.iter().all(|word| word.len() > 1);
        missing().find(|known| is_long && names(known, Known::has_word_shortened))
    })
}

const HEAD: &str = "\
| btrfs-progs | here | options that are here | options that are not |
|---|---|---|---|
";

/// Builds the table of commands and options as Markdown.
pub fn compatibility() -> String {
    let mut root = table::command();
    root.build();
    let mut page = HEAD.to_owned();
    for known in KNOWN {
        let name = known.path;
        let mut command = Some(&root);
        for word in name.split(' ') {
            command = command.and_then(|command| command.find_subcommand(word));
        }
        let Some(command) = command.filter(|_| known.is_here()) else {
            let instead = if known.instead.is_empty() {
                "–"
            } else {
                known.instead
            };
            page.push_str(&format!("| `{name}` | no: {} |  |  |\n", cell(instead)));
            continue;
        };
        let options = known.options.split_whitespace();
        let (taken, others): (Vec<&str>, Vec<&str>) = options.partition(|option| takes(command, option));
        page.push_str(&format!(
            "| `{name}` | yes | {} | {} |\n",
            list(&taken),
            list(&others)
        ));
    }
    page
}

fn cell(text: &str) -> String {
    text.replace('|', "\\|")
}

fn list(options: &[&str]) -> String {
    let options: Vec<String> = options
        .iter()
        .map(|option| format!("`{}`", cell(option)))
        .collect();
    options.join(" ")
}

/// Returns whether a command takes an option, by any of its spellings.
fn takes(command: &Command, option: &str) -> bool {
    let globals = Globals::augment_args(Command::new("globals"));
    let mut all: Vec<&Arg> = command.get_arguments().collect();
    all.extend(globals.get_arguments());
    option.split('|').any(|spelling| {
        all.iter().any(|argument| match spelling.strip_prefix("--") {
            Some(long) => {
                argument.get_long() == Some(long)
                    || argument
                        .get_all_aliases()
                        .is_some_and(|aliases| aliases.contains(&long))
            }
            None => {
                let letter = spelling.trim_start_matches('-').chars().next();
                letter.is_some()
                    && (argument.get_short() == letter
                        || argument
                            .get_all_short_aliases()
                            .is_some_and(|aliases| aliases.iter().any(|alias| Some(*alias) == letter)))
            }
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answered(line: &str) -> Option<(String, Option<String>)> {
        let arguments: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        let error = table::parse(&arguments).err()?;
        let answer = answer(&arguments, &error)?;
        let advice = answer.downcast_ref::<Advice>().map(|advice| advice.0.clone());
        Some((crate::exit::chain_text(&answer), advice))
    }

    #[test]
    fn known_command_exists_or_names_its_replacement() {
        assert!(KNOWN.len() > 70, "{}", KNOWN.len());
        for known in KNOWN {
            let line = format!("buttress {} x.img", known.path);
            let expected = format!("{}: not in this version of Buttress", known.path);
            match answered(&line) {
                Some((text, _)) if !known.is_here() => assert_eq!(text, expected),
                Some(_) => panic!("{line} is here and was answered"),
                None => assert!(known.is_here(), "{line}"),
            }
            assert!(
                known.is_here() || !known.instead.is_empty() || known.path.is_empty(),
                "{line}"
            );
        }
    }

    #[test]
    fn groups_global_options_and_shortened_names_are_understood() {
        for (line, expected) in [
            (
                "buttress -q --device filesystem filesystem mkswapfile -s 1g /mnt",
                "filesystem mkswapfile",
            ),
            ("buttress -v fi mkswapfile x", "filesystem mkswapfile"),
            ("buttress filesystem mksw x", "filesystem mkswapfile"),
            ("buttress device ready x", "device ready"),
            ("buttress dev scan", "device scan"),
        ] {
            let (text, _) = answered(line).unwrap_or_else(|| panic!("{line} is not answered"));
            assert_eq!(
                text,
                format!("{expected}: not in this version of Buttress"),
                "{line}"
            );
        }
        for line in [
            "buttress nonsense",
            "buttress subvolume nonsense x",
            "buttress x y",
        ] {
            assert!(answered(line).is_none(), "{line}");
        }
    }

    #[test]
    fn the_table_in_docs_is_the_commands() {
        let page = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../docs/btrfs-progs-compatibility.md"
        );
        let page = std::fs::read_to_string(page).unwrap_or_default();
        assert!(
            page.contains(&compatibility()),
            "docs/btrfs-progs-compatibility.md is out of date: run `cargo xtask docs`"
        );
    }
}
