//! The one table of shell commands: their names, arguments, help, and functions.
//!
//! A shell command is a type that derives [`clap::Args`] (its doc comment is the help text) and
//! implements [`Word`]. Commands of the program that only read a volume are shell commands
//! unchanged: [`Looking`] names their path argument.

use std::ffi::OsString;

use anyhow::{Result, bail};
use clap::{Arg, ArgAction, ArgMatches, Command};

use super::Session;
use crate::table::{Subcommand, refuse_as_json};

/// A shell command, whose arguments are the type's fields.
pub trait Word: clap::Args {
    /// Name of the command.
    const NAME: &'static str;
    /// Alternative names of the command.
    const ALIASES: &'static [&'static str] = &[];
    /// True if the command needs a volume that is open for writing.
    const WRITES: bool = false;

    /// Executes the command.
    fn run(self, session: &mut Session<'_>) -> Result<()>;
}

/// A command of the program that is also a shell command: it reads the session's volume.
pub trait Looking: Subcommand {
    /// Name of the argument that is a path in the session; if optional, it defaults to the
    /// session's directory.
    const PATHS: &'static str;
    /// True if the path argument is optional.
    const OPTIONAL: bool;
}

/// A row of the table.
#[derive(Debug)]
pub struct Row {
    name: &'static str,
    aliases: &'static [&'static str],
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    Group {
        about: &'static str,
        rows: &'static [Row],
    },
    Leaf {
        writes: bool,
        arguments: fn(Command) -> Command,
        run: RunWord,
    },
}

type RunWord = fn(&ArgMatches, &mut Session<'_>) -> Result<()>;

/// Creates the row of a shell command.
pub const fn word<W: Word>() -> Row {
    Row {
        name: W::NAME,
        aliases: W::ALIASES,
        kind: Kind::Leaf {
            writes: W::WRITES,
            arguments: W::augment_args,
            run: run_word::<W>,
        },
    }
}

/// Creates the row of a program command that reads.
pub const fn looking<C: Looking>() -> Row {
    Row {
        name: C::NAME,
        aliases: &[],
        kind: Kind::Leaf {
            writes: false,
            arguments: looking_arguments::<C>,
            run: run_looking::<C>,
        },
    }
}

/// Creates the row of a group of commands.
pub const fn group(name: &'static str, about: &'static str, rows: &'static [Row]) -> Row {
    Row {
        name,
        aliases: &[],
        kind: Kind::Group { about, rows },
    }
}

fn run_word<W: Word>(matches: &ArgMatches, session: &mut Session<'_>) -> Result<()> {
    W::from_arg_matches(matches)?.run(session)
}

fn looking_arguments<C: Looking>(command: Command) -> Command {
    C::augment_args(command).mut_arg(C::PATHS, |argument| {
        let argument = argument.value_name("PATH");
        if C::OPTIONAL {
            argument.required(false).default_value(".")
        } else {
            argument
        }
    })
}

fn run_looking<C: Looking>(matches: &ArgMatches, session: &mut Session<'_>) -> Result<()> {
    session.enter_view()?;
    let command = C::from_arg_matches(matches)?;
    refuse_as_json(&command, session.context())?;
    command.run(session.context())?;
    Ok(())
}

/// Returns whether a shell command needs a volume that is open for writing. Returns `None` if the
/// shell has no command of this name outside of a group.
pub fn writes_by(rows: &[Row], name: &str) -> Option<bool> {
    rows.iter().find_map(|row| match row.kind {
        Kind::Leaf { writes, .. } if row.name == name || row.aliases.contains(&name) => Some(writes),
        Kind::Leaf { .. } | Kind::Group { .. } => None,
    })
}

/// Builds clap's description of all shell commands.
pub fn parser(rows: &'static [Row]) -> Command {
    let parser = Command::new("shell")
        .multicall(true)
        .disable_help_subcommand(true)
        .subcommand_required(true)
        .max_term_width(110);
    add_rows(parser, rows)
}

fn add_rows(parent: Command, rows: &'static [Row]) -> Command {
    rows.iter().fold(parent, |parent, row| {
        let command = Command::new(row.name)
            .visible_aliases(row.aliases)
            .disable_help_flag(true)
            .disable_help_subcommand(true);
        let command = match &row.kind {
            Kind::Group { about, rows } => add_rows(command.about(*about).subcommand_required(true), rows),
            Kind::Leaf { arguments, .. } => arguments(command),
        };
        // Omit the short `-h`, which several commands use for sizes or file systems.
        let help = Arg::new("help").long("help").action(ArgAction::Help);
        parent.subcommand(command.arg(help.help("Print help")))
    })
}

/// Parses and executes one line's words.
pub fn run(rows: &'static [Row], words: Vec<OsString>, session: &mut Session<'_>) -> Result<()> {
    let matches = parser(rows).try_get_matches_from(words)?;
    run_matched(rows, &matches, session)
}

fn run_matched(rows: &'static [Row], matches: &ArgMatches, session: &mut Session<'_>) -> Result<()> {
    let found = matches
        .subcommand()
        .and_then(|(name, below)| Some((rows.iter().find(|row| row.name == name)?, below)));
    let Some((row, below)) = found else {
        bail!("a command is missing");
    };
    match &row.kind {
        Kind::Group { rows, .. } => run_matched(rows, below, session),
        Kind::Leaf { writes, run, .. } => {
            if *writes {
                session.require_writing()?;
            }
            run(below, session).map_err(|error| match error.downcast::<clap::Error>() {
                Ok(error) => error.into(),
                Err(error) => error.context(row.name),
            })
        }
    }
}

/// Returns the usage and description of each shell command, in the table's order.
pub fn summary(rows: &'static [Row]) -> Vec<(String, String)> {
    let mut lines = Vec::new();
    let mut root = parser(rows);
    root.build();
    for command in root.get_subcommands() {
        push_summary(command, "", &mut lines);
    }
    lines
}

fn push_summary(command: &Command, above: &str, lines: &mut Vec<(String, String)>) {
    let name = format!("{above}{}", command.get_name());
    if command.has_subcommands() {
        for inner in command.get_subcommands() {
            push_summary(inner, &format!("{name} "), lines);
        }
        return;
    }
    let aliases: Vec<&str> = command.get_visible_aliases().collect();
    let mut typed = name;
    for alias in aliases {
        typed.push_str(&format!(", {alias}"));
    }
    for argument in command.get_positionals() {
        let value = argument.get_value_names().and_then(|names| names.first());
        let value = value.map_or_else(|| argument.get_id().to_string(), ToString::to_string);
        if argument.is_required_set() {
            typed.push_str(&format!(" {value}"));
        } else {
            typed.push_str(&format!(" [{value}]"));
        }
    }
    let about = command.get_about().map(ToString::to_string).unwrap_or_default();
    lines.push((typed, about));
}

#[cfg(test)]
mod tests {
    use super::super::words::ROWS;
    use super::*;

    #[test]
    fn the_table_is_sound() {
        parser(ROWS).debug_assert();
    }

    #[test]
    fn lines_that_are_words_and_lines_that_are_not() {
        let right = [
            "ls",
            "ls -lh /a",
            "fsync /foo",
            "pwrite -S 0xab 0 256K /foo",
            "pwrite -i /etc/passwd -s 10 4096 1M foo",
            "pread -v 0 16 foo",
            "reflink /foo 256K 0 256K /bar",
            "reflink /foo /bar",
            "dedupe /foo 0 0 128k /bar",
            "fiemap -v foo",
            "seek -a -r 0 foo",
            "seek -h -d 64K foo",
            "truncate 1G foo",
            "fallocate -k 0 1M foo",
            "falloc 0 1M foo",
            "fpunch 0 1M foo",
            "put -a /etc/passwd /",
            "get /foo",
            "snapshot -r / /snap",
            "subvolume create /a",
            "subvolume list",
            "chmod -R u+x,go-w a b",
            "chattr +C a",
            "chattr -C a",
            "mknod d c 1 3",
            "quit",
            "help mkdir",
        ];
        for line in right {
            let parsed = parser(ROWS).try_get_matches_from(line.split(' '));
            assert!(parsed.is_ok(), "{line}: {}", parsed.unwrap_err());
        }
        let wrong = ["nonsense", "fsync", "mv a", "subvolume", "ls --nonsense"];
        for line in wrong {
            let parsed = parser(ROWS).try_get_matches_from(line.split(' '));
            assert!(parsed.is_err(), "{line}");
        }
    }
}
