//! Exit codes, in one place, and how errors are printed.
//!
//! | code | meaning |
//! |---|---|
//! | 0 | all of it was done (also: the reader of our output closed the pipe; `diff` and `check` still say what they found) |
//! | 1 | it failed, or something was lost on the way; `diff`: there are differences; `check`: something was found |
//! | 2 | the command line is wrong; `diff`: it could not compare; `check`: it could not check |
//!
//! An error prints as one chain, outermost first, and where there is something the user can do, a last line
//! `help: …` says it. With `--progress json` both are one event. What each command does in which circumstances is in
//! `docs/exit-codes.md`.

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
/// It failed, or something was lost, or `diff` found differences.
pub const FAILURE: u8 = 1;
/// The command line is wrong.
pub const USAGE: u8 = 2;

/// How a command that did not fail outright ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Everything that was asked for. What was reported through
    /// [`Context::lost`](crate::context::Context::lost) still makes the exit code [`FAILURE`].
    Done,
    /// The answer is "no": `diff` found differences, `check` found something. Exit code 1.
    Negative,
    /// An exit code of the command's own, which its manual names.
    Code(u8),
    /// A signal ended it, in order: 128 and the signal's number.
    Signalled(u8),
}

/// What the table hands to [`status`].
#[derive(Debug)]
pub enum End {
    /// The command ran; the code it asks for.
    Code(u8),
    /// The command failed; the code that its failures have, and the error.
    Failed(u8, anyhow::Error),
    /// The command line was not understood, or help was asked for.
    CommandLine(clap::Error),
}

/// A piece of advice, attached to an error with `.context(Advice("…"))`: printed as `help: …` after the chain.
#[derive(Debug)]
pub struct Advice(pub String);

impl Advice {
    /// Advice from anything that turns into text.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }
}

impl fmt::Display for Advice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Prints what is to be printed on stderr and gives the exit code.
pub fn status(end: End) -> ExitCode {
    ExitCode::from(code(end))
}

/// The same as a number.
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

/// Prints an error of the command line, or the help that was asked for.
fn command_line(error: &mut clap::Error) -> u8 {
    if error.use_stderr() {
        if events::are_wanted() {
            let text = error.render().to_string();
            let text = text.trim_end();
            let message = text.strip_prefix("error: ").unwrap_or(text);
            events::tell("error", json!({ "message": message }));
        } else {
            // Nobody can be told that nobody can be told.
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

/// The error of a command line that is wrong in a way that only the command knows.
pub fn usage(message: impl fmt::Display) -> anyhow::Error {
    let error = clap::Error::raw(ErrorKind::ValueValidation, format_args!("{message}\n"));
    anyhow::Error::new(error)
}

/// Whether the error, at any depth, is that the reader of our standard output went away.
pub fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        cause
            .downcast_ref::<io::Error>()
            .is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
    })
}

/// The chain of an error on one line: outermost first, `: ` between.
///
/// Causes whose text the causes above hold already are not repeated.
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
        // A cause that begins with the whole text so far replaces it.
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
        // What the cause is about may have been named already: `IMAGE:/a: /a: no such file`.
        let rest = match line.split_once(": ") {
            Some((about, rest)) if about.starts_with('/') && text.ends_with(about) => rest,
            _ => &line,
        };
        text.push_str(": ");
        text.push_str(rest);
    }
    text
}

/// Returns whether a text contains a cause that is not part of a longer word.
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

/// Ends JSON output with an error, so that standard output is one document in any case. A failure to write there was
/// already printed on stderr.
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
        // A cause in the middle of what is above it, and one that begins with all of it.
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
        // A part of a longer word does not count.
        let word = Err::<(), _>(io::Error::other("full"))
            .context("it was not done fully")
            .unwrap_err();
        assert_eq!(chain_text(&word), "it was not done fully: full");
        assert_eq!(error.downcast_ref::<Advice>().unwrap().0, "give the image first");
    }
}
