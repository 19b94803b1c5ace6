//! Tab completion: shell commands, their flags, names in the volume, and host names for `put` and
//! `get`.
//!
//! Names come from an untrusted volume. The displayed and the inserted text therefore contains no
//! control characters, but still means the name ([`super::line::quoted`]). The number of inspected
//! entries is bounded.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use buttress::{FileKind, Follow};
use clap::Command;
use rustyline::completion::{Completer, Pair};
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::validate::Validator;
use rustyline::{Context, Helper};

use super::line::{Unfinished, needs_quotes, quoted, unfinished};
use super::words::ROWS;
use super::{Surroundings, table};
use crate::opening::absolute;
use crate::output::escape_controls;

/// Largest number of directory entries that are inspected.
const ENTRIES_MAX: usize = 100_000;

/// Largest number of offered names.
const OFFERS_MAX: usize = 10_000;

/// Completer of lines.
#[derive(Debug)]
pub(super) struct Assistant {
    surroundings: Arc<Surroundings>,
}

/// Kinds of values that an argument may have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Wanted {
    in_volume: bool,
    on_host: bool,
    only_directories: bool,
}

/// A possible completion of a word.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Offer {
    /// The whole word that a completion inserts: for a name, with the directories typed before it.
    word: Vec<u8>,
    /// Displayed text.
    shown: Vec<u8>,
    is_directory: bool,
}

impl Offer {
    fn word(text: impl Into<Vec<u8>>) -> Self {
        let word = text.into();
        Self {
            shown: word.clone(),
            word,
            is_directory: false,
        }
    }

    /// Returns the text that replaces the word. If the completion is the `only` one, a quote and a
    /// blank end the word.
    fn pair(self, with_quotes: bool, only: bool) -> Pair {
        let Self {
            mut word,
            mut shown,
            is_directory,
        } = self;
        if is_directory {
            word.push(b'/');
            shown.push(b'/');
        }
        let mut replacement = quoted(&word, with_quotes);
        if only && !is_directory {
            if with_quotes {
                replacement.push('"');
            }
            replacement.push(' ');
        }
        Pair {
            display: escape_controls(&shown),
            replacement,
        }
    }
}

impl Assistant {
    pub(super) const fn new(surroundings: Arc<Surroundings>) -> Self {
        Self { surroundings }
    }

    /// Returns the completions of the word before the cursor, and the start of this word.
    fn offers(&self, line: &[u8]) -> (usize, Vec<Pair>) {
        let Some(typed) = unfinished(line) else {
            return (line.len(), Vec::new());
        };
        let mut offers = self.offers_for(&typed);
        offers.sort();
        offers.dedup();
        offers.truncate(OFFERS_MAX);
        // The common beginning of all completions enters the line, so either all completions are
        // quoted or none.
        let with_quotes = typed.is_quoted || offers.iter().any(|offer| needs_quotes(&offer.word));
        let only = offers.len() == 1;
        let pairs = offers.into_iter().map(|offer| offer.pair(with_quotes, only));
        (typed.start, pairs.collect())
    }

    fn offers_for(&self, typed: &Unfinished) -> Vec<Offer> {
        let parser = table::parser(ROWS);
        let Some((first, arguments)) = typed.words.split_first() else {
            return names_of(&parser, &typed.word);
        };
        if first == "help" || first == "?" {
            return names_of(&parser, &typed.word);
        }
        let Some(mut command) = parser.find_subcommand(first) else {
            return Vec::new();
        };
        let mut arguments = arguments;
        if command.has_subcommands() {
            let Some((second, others)) = arguments.split_first() else {
                return names_of(command, &typed.word);
            };
            let Some(below) = command.find_subcommand(second) else {
                return Vec::new();
            };
            (command, arguments) = (below, others);
        }
        if typed.word.starts_with(b"-") && !typed.is_quoted {
            return flags_of(command, &typed.word);
        }
        let wanted = wanted(command, arguments);
        let mut offers = Vec::new();
        if wanted.in_volume {
            self.find_in_volume(&typed.word, wanted.only_directories, &mut offers);
        }
        if wanted.on_host {
            find_on_host(&typed.word, &mut offers);
        }
        offers
    }

    /// Adds names in the volume. Completion offers no names of unreadable directories.
    fn find_in_volume(&self, typed: &[u8], only_directories: bool, offers: &mut Vec<Offer>) {
        let (directory, beginning) = split(typed);
        let path = absolute(&self.surroundings.directory(), directory);
        let opened = self.surroundings.view();
        let Ok(entries) = opened
            .locate(&path, Follow::All)
            .map_err(drop)
            .and_then(|location| opened.volume().read_dir(location).map_err(drop))
        else {
            return;
        };
        for entry in entries.take(ENTRIES_MAX).filter_map(Result::ok) {
            if !fits(&entry.name, beginning) {
                continue;
            }
            let is_directory = match entry.kind {
                FileKind::Directory => true,
                FileKind::Symlink => {
                    let target = opened.locate([&path, b"/".as_slice(), &entry.name].concat(), Follow::All);
                    let metadata = target
                        .ok()
                        .and_then(|target| opened.volume().metadata(target).ok());
                    metadata.is_some_and(|metadata| metadata.is_directory())
                }
                _ => false,
            };
            if is_directory || !only_directories {
                offers.push(name(directory, &entry.name, is_directory));
            }
            if offers.len() >= OFFERS_MAX {
                return;
            }
        }
    }
}

/// Returns the kinds of values for the next argument of a command.
fn wanted(command: &Command, arguments: &[OsString]) -> Wanted {
    let before = arguments
        .iter()
        .filter(|argument| !argument.as_bytes().starts_with(b"-"))
        .count();
    let volume = Wanted {
        in_volume: true,
        ..Wanted::default()
    };
    match command.get_name() {
        "pwrite" if arguments.last().is_some_and(|last| last == "-i") => Wanted {
            on_host: true,
            ..Wanted::default()
        },
        "put" | "get" => Wanted {
            // The last argument is on the other side of the copy, but any argument may still become
            // the last one.
            in_volume: before > 0 || command.get_name() == "get",
            on_host: before > 0 || command.get_name() == "put",
            only_directories: false,
        },
        "cd" => Wanted {
            only_directories: true,
            ..volume
        },
        _ if command.get_positionals().next().is_none() => Wanted::default(),
        _ => volume,
    }
}

/// Splits typed text after its last slash.
fn split(typed: &[u8]) -> (&[u8], &[u8]) {
    let slash = typed.iter().rposition(|byte| *byte == b'/');
    let start = slash.map_or(0, |slash| slash.saturating_add(1));
    typed.split_at_checked(start).unwrap_or((b"", typed))
}

/// Returns whether a name has this beginning. If the user did not type the dot, hidden names do not
/// match.
fn fits(name: &[u8], beginning: &[u8]) -> bool {
    name.starts_with(beginning) && (beginning.starts_with(b".") || !name.starts_with(b"."))
}

/// Returns a completed name of a directory, in the form in which it was typed.
fn name(directory: &[u8], name: &[u8], is_directory: bool) -> Offer {
    // Prevent a name that begins with a dash from looking like a flag.
    let here: &[u8] = if directory.is_empty() && name.starts_with(b"-") {
        b"./"
    } else {
        b""
    };
    Offer {
        word: [here, directory, name].concat(),
        shown: name.to_vec(),
        is_directory,
    }
}

fn names_of(command: &Command, beginning: &[u8]) -> Vec<Offer> {
    let names = command
        .get_subcommands()
        .flat_map(Command::get_name_and_visible_aliases);
    names
        .filter(|name| name.as_bytes().starts_with(beginning))
        .map(Offer::word)
        .collect()
}

fn flags_of(command: &Command, beginning: &[u8]) -> Vec<Offer> {
    let flags = command.get_arguments().flat_map(|argument| {
        let long = argument.get_long().map(|long| format!("--{long}"));
        let short = argument.get_short().map(|short| format!("-{short}"));
        [long, short].into_iter().flatten()
    });
    flags
        .filter(|flag| flag.as_bytes().starts_with(beginning))
        .map(Offer::word)
        .collect()
}

/// Adds names of the host.
fn find_on_host(typed: &[u8], offers: &mut Vec<Offer>) {
    let (directory, beginning) = split(typed);
    let path = if directory.is_empty() {
        b".".as_slice()
    } else {
        directory
    };
    let Ok(entries) = std::fs::read_dir(Path::new(OsStr::from_bytes(path))) else {
        return;
    };
    let found = entries.take(ENTRIES_MAX).filter_map(Result::ok);
    let fitting = found.filter(|entry| fits(entry.file_name().as_bytes(), beginning));
    offers.extend(
        fitting
            .take(OFFERS_MAX)
            .map(|entry| name(directory, entry.file_name().as_bytes(), entry.path().is_dir())),
    );
}

impl Completer for Assistant {
    type Candidate = Pair;

    fn complete(
        &self,
        line: &str,
        position: usize,
        _: &Context<'_>,
    ) -> rustyline::Result<(usize, Vec<Pair>)> {
        let before = line.as_bytes().get(..position).unwrap_or_default();
        Ok(self.offers(before))
    }
}

impl Hinter for Assistant {
    type Hint = String;
}

impl Highlighter for Assistant {}

impl Validator for Assistant {}

impl Helper for Assistant {}
