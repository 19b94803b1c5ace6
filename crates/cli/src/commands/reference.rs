//! `buttress reference` (hidden in help): the page `docs/commands.md`, generated from the command
//! table.

use std::io::Write;

use anyhow::Result;
use clap::{Arg, Args, Command};

use crate::commands::shell::Shell;
use crate::context::Context;
use crate::exit::Outcome;
use crate::globals::{Globals, Uses};
use crate::manual::{EXIT_CODES, Example, ExitCode, example};
use crate::progs;
use crate::shell;
use crate::table::{self, Kind, Row, Subcommand};

/// Print the reference of all commands as Markdown
#[derive(Args, Debug)]
pub struct Reference {
    /// Print the table of commands and options of btrfs-progs, and whether they are here
    #[arg(long)]
    btrfs_progs: bool,
}

impl Subcommand for Reference {
    const NAME: &'static str = "reference";
    const HIDDEN: bool = true;
    const EXAMPLES: &'static [Example] = &[example(
        "buttress reference > docs/commands.md",
        "Writes the reference of all commands",
    )];

    fn writes_contents(&self) -> bool {
        true
    }

    fn uses(&self) -> Uses {
        Uses::NOTHING
    }

    fn run(self, context: &Context) -> Result<Outcome> {
        let mut out = context.stdout();
        let page = if self.btrfs_progs {
            progs::compatibility()
        } else {
            markdown()
        };
        out.write_all(page.as_bytes())?;
        out.flush()?;
        Ok(Outcome::Done)
    }
}

const HEAD: &str = "\
# Commands

Made from the command table by `cargo xtask docs`; a test compares the two.

";

/// Builds the page.
pub fn markdown() -> String {
    let mut root = table::command();
    root.build();
    let mut page = HEAD.to_owned();
    if let Some(text) = root.get_after_help() {
        page.push_str(&format!("{text}\n\n"));
    }
    let globals = Globals::augment_args(Command::new("globals"));
    page.push_str("## Global options\n\nBefore the command or after it.\n\n");
    options(&mut page, globals.get_arguments());
    describe_all(&mut page, &root, table::ROWS, "buttress");
    format!("{}\n", page.trim_end())
}

fn describe_all(page: &mut String, parent: &Command, rows: &[Row], above: &str) {
    for row in rows {
        let Some(command) = parent.find_subcommand(row.name()).filter(|it| !it.is_hide_set()) else {
            continue;
        };
        let name = format!("{above} {}", row.name());
        match row.kind() {
            Kind::Group { rows, .. } => describe_all(page, command, rows, &name),
            Kind::Leaf {
                examples, exit_codes, ..
            } => {
                describe(page, command, &name);
                describe_use(page, examples, exit_codes);
            }
        }
    }
}

/// Appends examples, and exit codes that differ from the usual ones.
fn describe_use(page: &mut String, examples: &[Example], exit_codes: &[ExitCode]) {
    page.push_str("Examples:\n\n");
    for Example { line, does } in examples {
        page.push_str(&format!("- `{line}`: {}\n", lower_first(does)));
    }
    page.push('\n');
    if exit_codes != EXIT_CODES {
        page.push_str("Exit codes:\n\n");
        for (code, meaning) in exit_codes {
            page.push_str(&format!("- {code}: {}\n", lower_first(meaning)));
        }
        page.push('\n');
    }
}

/// Lowers the first letter of a sentence, to embed it in another one.
fn lower_first(sentence: &str) -> String {
    let mut letters = sentence.chars();
    let first = letters.next().map(|letter| letter.to_ascii_lowercase());
    first.into_iter().chain(letters).collect()
}

fn describe(page: &mut String, command: &Command, name: &str) {
    page.push_str(&format!("## {name}\n\n"));
    if let Some(about) = command.get_long_about().or(command.get_about()) {
        let about = about.to_string();
        page.push_str(&format!("{}.\n\n", about.trim_end_matches('.')));
    }
    let usage = command.clone().render_usage().to_string();
    page.push_str(&format!(
        "```text\n{}\n```\n\n",
        usage.trim_start_matches("Usage: ")
    ));
    let own = |argument: &&Arg| {
        let id = argument.get_id().as_str();
        !id.starts_with("global-") && !matches!(id, "help" | "version")
    };
    options(page, command.get_arguments().filter(own));
    if command.get_name() == Shell::NAME {
        shell_words(page);
    }
}

/// Appends the shell commands of a session, from their own table.
fn shell_words(page: &mut String) {
    page.push_str(
        "Commands of a session; `help COMMAND` shows the options of a command:\n\n| | |\n|---|---|\n",
    );
    for (typed, about) in shell::table::summary(shell::words::ROWS) {
        page.push_str(&format!(
            "| `{}` | {} |\n",
            typed.replace('|', "\\|"),
            about.replace('|', "\\|")
        ));
    }
    page.push('\n');
}

fn options<'a>(page: &mut String, arguments: impl Iterator<Item = &'a Arg>) {
    let mut rows = String::new();
    for argument in arguments.filter(|argument| !argument.is_hide_set()) {
        let mut names = Vec::new();
        names.extend(argument.get_short().map(|letter| format!("-{letter}")));
        names.extend(argument.get_long().map(|word| format!("--{word}")));
        let mut spelling = names.join(", ");
        let takes_value = argument.get_action().takes_values();
        let value = argument.get_value_names().filter(|_| takes_value);
        if let Some(value) = value.and_then(|names| names.first()) {
            let gap = if spelling.is_empty() { "" } else { " " };
            spelling.push_str(&format!("{gap}{value}"));
        }
        let mut help = argument.get_help().map(ToString::to_string).unwrap_or_default();
        let values: Vec<String> = argument
            .get_possible_values()
            .iter()
            .filter(|value| takes_value && !value.is_hide_set())
            .map(|value| format!("`{}`", value.get_name()))
            .collect();
        if !values.is_empty() && values.len() < LISTED_VALUES_MAX {
            help.push_str(&format!(": {}", values.join(", ")));
        }
        let cell = |text: &str| text.replace('|', "\\|").replace('\n', " ");
        rows.push_str(&format!("| `{}` | {} |\n", cell(&spelling), cell(&help)));
    }
    if !rows.is_empty() {
        page.push_str(&format!("| | |\n|---|---|\n{rows}\n"));
    }
}

/// Largest number of values that the page lists; `--help` shows longer lists.
const LISTED_VALUES_MAX: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_in_docs_is_the_table_s() {
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/commands.md");
        let written = std::fs::read_to_string(page).unwrap_or_default();
        assert!(
            written == markdown(),
            "docs/commands.md is out of date: run `cargo xtask docs`"
        );
    }
}
