//! Exit codes, in one place, and the printing of errors.
//!
//! | code | meaning |
//! |---|---|
//! | 0 | success (also if the reader of the output closed the pipe; `diff` and `check` still report their findings) |
//! | 1 | failure, or something was lost; `diff`: the volumes differ; `check`: the check has findings |
//! | 2 | invalid command line; `diff`: the comparison failed; `check`: the check failed |
//!
//! A failed command prints its error as one chain, outermost cause first. If the user can do
//! something about it, a last line `help: …` says so. With `--progress json`, error and help are
//! one event. `docs/exit-codes.md` lists the exit codes of each command.

use std::error::Error as StdError;
use std::fmt;
use std::io::{self, Write as _};
use std::process::ExitCode;

use anstyle::AnsiColor;
use buttress_stdio::Stream;
use clap::error::ErrorKind;
use serde_json::json;

use crate::output::events;
use crate::output::json as output_json;
use crate::output::stdout::{self, Raw};
use crate::output::terminal;

/// The command succeeded.
pub const SUCCESS: u8 = 0;
/// Failure: the command failed or lost something, or `diff` found differences.
pub const FAILURE: u8 = 1;
/// The command line is invalid.
pub const USAGE: u8 = 2;

/// Outcome of a command that did not fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The command completed all of its work. Losses reported through
    /// [`Context::lost`](crate::context::Context::lost) still make the exit code [`FAILURE`].
    Done,
    /// The answer is "no": `diff` found differences, or `check` has findings. Exit code 1.
    Negative,
    /// A command-specific exit code, which the command's manual lists.
    Code(u8),
    /// A signal ended the command in order; the exit code is 128 plus the signal's number.
    Signalled(u8),
}

/// Result of the command table, for [`status`].
#[derive(Debug)]
pub enum End {
    /// The command ran and returned this code.
    Code(u8),
    /// The command failed, with its exit code for failures and the error.
    Failed(u8, anyhow::Error),
    /// The command line is invalid, or the user asked for help.
    CommandLine(clap::Error),
}

/// Advice to the user, attached to an error with `.context(Advice("…"))`; printed as `help: …`
/// after the chain.
#[derive(Debug)]
pub struct Advice(pub String);

impl Advice {
    /// Creates advice from a text.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }
}

impl fmt::Display for Advice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Prints the error, if any, on stderr and returns the exit code.
pub fn status(end: End) -> ExitCode {
    ExitCode::from(code(end))
}

/// Prints the error, if any, on stderr and returns the exit code as a number.
pub fn code(end: End) -> u8 {
    match end {
        End::Code(code) => code,
        End::Failed(_, error) if is_broken_pipe(&error) => SUCCESS,
        End::Failed(code, error) => {
            print_error(&error);
            code
        }
        End::CommandLine(mut error) => command_line(&mut error),
    }
}

/// Prints an error of the command line, or the requested help.
fn command_line(error: &mut clap::Error) -> u8 {
    if error.use_stderr() {
        if events::are_wanted() {
            let text = error.render().to_string();
            let text = text.trim_end();
            let message = text.strip_prefix("error: ").unwrap_or(text);
            events::tell("error", json!({ "message": message }));
        } else {
            // A failure to print an error cannot be reported.
            let _ = terminal::print_clap_error(error);
        }
        return USAGE;
    }
    let printed = if buttress_stdio::was_closed(Stream::Output) {
        Raw::Closed.write_all(b"help")
    } else {
        terminal::print_clap_error(error)
            .map_err(stdout::named)
            .and_then(|()| stdout::finish())
    };
    match printed.map_err(anyhow::Error::new) {
        Err(error) if !is_broken_pipe(&error) => {
            print_error(&error);
            FAILURE
        }
        _ => SUCCESS,
    }
}

/// Builds the error of a command line that only the command itself recognises as invalid.
pub fn usage(message: impl fmt::Display) -> anyhow::Error {
    let error = clap::Error::raw(ErrorKind::ValueValidation, format_args!("{message}\n"));
    anyhow::Error::new(error)
}

/// Returns whether the error, at any depth, is that the reader of standard output closed the pipe.
pub fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        cause
            .downcast_ref::<io::Error>()
            .is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
    })
}

/// Formats the chain of an error on one line: outermost first, separated by `: `.
///
/// Omits causes whose text the outer causes already contain.
pub fn chain_text(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain() {
        if error
            .downcast_ref::<Advice>()
            .is_some_and(|advice| same(cause, advice))
        {
            continue;
        }
        let line = cause.to_string();
        if line.is_empty() || says(&text, &line) {
            continue;
        }
        // If a cause begins with the whole text so far, the cause replaces that text.
        if !text.is_empty()
            && line
                .strip_prefix(&text)
                .is_some_and(|rest| rest.starts_with(": "))
        {
            text = line;
            continue;
        }
        if text.is_empty() {
            text = line;
            continue;
        }
        // The outer error text may already name the object of the cause: `IMAGE:/a: /a: no such
        // file`.
        let rest = match line.split_once(": ") {
            Some((about, rest)) if about.starts_with('/') && text.ends_with(about) => rest,
            _ => &line,
        };
        text.push_str(": ");
        text.push_str(rest);
    }
    text
}

/// Returns whether a text contains a cause as separate words.
fn says(text: &str, cause: &str) -> bool {
    let is_border = |letter: Option<char>| !letter.is_some_and(char::is_alphanumeric);
    text.match_indices(cause).any(|(at, found)| {
        let before = text.get(..at).and_then(|before| before.chars().next_back());
        let after = at.checked_add(found.len()).and_then(|end| text.get(end..));
        is_border(before) && is_border(after.and_then(|after| after.chars().next()))
    })
}

fn same(cause: &(dyn StdError + 'static), advice: &Advice) -> bool {
    cause.to_string() == advice.0
}

/// Completes JSON output with an error, so that standard output is always one document. The
/// function ignores write failures, because an earlier failure was already printed on stderr.
pub fn end_json(message: &str, help: Option<String>, code: u8) {
    let error = json!({ "message": message, "help": help, "exit_code": code });
    let mut out = terminal::stdout(true);
    let _ = output_json::end_with_error(&mut out, &error).and_then(|()| out.flush());
}

/// Returns the text of an error about a command line, for JSON output.
pub fn command_line_text(error: &clap::Error) -> String {
    let text = error.render().to_string();
    let text = text.trim_end();
    text.strip_prefix("error: ").unwrap_or(text).to_owned()
}

/// Prints an error on stderr, with its advice.
pub fn print_error(error: &anyhow::Error) {
    if events::are_wanted() {
        let help = error.downcast_ref::<Advice>().map(ToString::to_string);
        let message = chain_text(error);
        events::tell("error", json!({ "message": message, "help": help }));
        return;
    }
    terminal::message("error", AnsiColor::Red, &chain_text(error));
    if let Some(advice) = error.downcast_ref::<Advice>() {
        terminal::line(&format_args!("help: {advice}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::Context as _;

    #[test]
    fn a_broken_pipe_is_found_below_other_contexts() {
        let pipe = io::Error::from(io::ErrorKind::BrokenPipe);
        let error = Err::<(), _>(pipe)
            .context("writing the archive")
            .context("tar")
            .unwrap_err();
        assert!(is_broken_pipe(&error));
        let other = Err::<(), _>(io::Error::from(io::ErrorKind::NotFound))
            .context("opening")
            .unwrap_err();
        assert!(!is_broken_pipe(&other));
    }

    #[test]
    fn a_chain_is_one_line_without_repeats_and_without_the_advice() {
        let inner = io::Error::other("no such device");
        let error = Err::<(), _>(inner)
            .context("opening a.img: no such device")
            .context(Advice::new("give the image first"))
            .unwrap_err();
        assert_eq!(chain_text(&error), "opening a.img: no such device");
        let named = Err::<(), _>(io::Error::other("/a: no such file"))
            .context("v.img:/a")
            .unwrap_err();
        assert_eq!(chain_text(&named), "v.img:/a: no such file");
        // These test causes repeat text in the middle or at the beginning of the outer error.
        let inside = Err::<(), _>(io::Error::other("no such device"))
            .context("cannot open a.img (no such device), tried twice")
            .unwrap_err();
        assert_eq!(
            chain_text(&inside),
            "cannot open a.img (no such device), tried twice"
        );
        let longer = Err::<(), _>(io::Error::other("v.img: the disk is full"))
            .context("v.img")
            .unwrap_err();
        assert_eq!(chain_text(&longer), "v.img: the disk is full");
        // An error text that is only a part of a longer word does not count as a repetition.
        let word = Err::<(), _>(io::Error::other("full"))
            .context("it was not done fully")
            .unwrap_err();
        assert_eq!(chain_text(&word), "it was not done fully: full");
        assert_eq!(error.downcast_ref::<Advice>().unwrap().0, "give the image first");
    }
}
