//! Execution of the command that a command line names. Such a command ends with an exit code or an
//! error, and with one document if it prints JSON.
//!
//! A command for a path below a mount runs in the mount's server, by the same table
//! ([`run_on_mount`]).
//!
//! Invariants:
//! - With `--format json` standard output is one document, even for a command that fails.
//! - If the reader closed the pipe, that is no failure, but earlier losses remain losses.

use std::ffi::OsString;

use anyhow::Result;
use clap::ArgMatches;

use super::command_line::{command, parse, under_own_name};
use super::{Kind, MountView, ROWS, RunFunction};
use crate::context::Context;
use crate::exit::{self, Advice, End, Outcome};
use crate::globals::{self, Globals, Uses};
use crate::mounted::client;
use crate::opening::Place;
use crate::output::{events, json, stdout};
use crate::progs;

/// A command with its parsed command line.
struct Called<'a> {
    run: RunFunction,
    trouble: u8,
    on_mounts: bool,
    mount_view: MountView,
    matches: &'a ArgMatches,
    globals: Globals,
}

impl<'a> Called<'a> {
    fn find(matches: &'a ArgMatches) -> Result<Self, clap::Error> {
        let mut levels = vec![matches];
        let mut rows = ROWS;
        let mut current = matches;
        while let Some((name, below)) = current.subcommand() {
            levels.push(below);
            current = below;
            let Some(row) = rows.iter().find(|row| row.name == name) else {
                break;
            };
            match &row.kind {
                Kind::Group { rows: inner, .. } => rows = inner,
                Kind::Leaf {
                    trouble,
                    run,
                    on_mounts,
                    mount_view,
                    ..
                } => {
                    return Ok(Self {
                        run: *run,
                        trouble: *trouble,
                        on_mounts: *on_mounts,
                        mount_view: *mount_view,
                        matches: current,
                        globals: Globals::collect(&levels)?,
                    });
                }
            }
        }
        Err(command().error(clap::error::ErrorKind::MissingSubcommand, "a command is missing"))
    }
}

/// Parses and runs a command line, which begins with the program's name.
pub fn run(arguments: impl IntoIterator<Item = OsString>) -> End {
    let arguments = under_own_name(arguments.into_iter().collect());
    let matches = match parse(&arguments) {
        Ok(matches) => matches,
        Err(error) => {
            if asks_for(&arguments, "--progress", "json") {
                events::want();
            }
            let is_json = asks_for(&arguments, "--format", "json");
            return match progs::answer(&arguments, &error) {
                Some(answer) => {
                    if is_json {
                        failure_as_json(&answer, exit::USAGE);
                    }
                    End::Failed(exit::USAGE, answer)
                }
                None => {
                    if is_json {
                        command_line_as_json(&error);
                    }
                    End::CommandLine(error)
                }
            };
        }
    };
    match Called::find(&matches) {
        Ok(called) => run_leaf(&arguments, called),
        Err(error) => End::CommandLine(error),
    }
}

/// Runs a command line of another process in the server of a mount, on its volume. `enter` returns
/// the place of the command, with the state of the volume that the command sees.
pub(crate) fn run_on_mount(arguments: &[OsString], enter: impl FnOnce(MountView) -> Result<Place>) -> End {
    let matches = match parse(arguments) {
        Ok(matches) => matches,
        Err(error) => return End::CommandLine(error),
    };
    let called = match Called::find(&matches) {
        Ok(called) if called.on_mounts => called,
        Ok(called) => {
            let error = anyhow::anyhow!("the mount's server does not support this command");
            return End::Failed(called.trouble, error);
        }
        Err(error) => return End::CommandLine(error),
    };
    if let Some(option) = called.globals.unused(Uses::NOTHING) {
        let error =
            format!("{option} has no effect on a path below a mount, because the volume is already open\n");
        return End::CommandLine(clap::Error::raw(clap::error::ErrorKind::ArgumentConflict, error));
    }
    let globals = Globals {
        progress: Some(globals::Progress::Never),
        ..called.globals
    };
    let context = Context::new(globals);
    json::forget_document();
    let result = enter(called.mount_view).and_then(|place| {
        context.enter(place);
        (called.run)(called.matches, &context)
    });
    context.finish();
    ended(&context, called.trouble, result)
}

/// Returns whether an invalid command line nevertheless has this flag with this value.
fn asks_for(arguments: &[OsString], flag: &str, value: &str) -> bool {
    let is_pair = |pair: &[OsString]| matches!(pair, [first, second] if first == flag && second == value);
    let joined = format!("{flag}={value}");
    arguments.windows(2).any(is_pair) || arguments.iter().any(|argument| *argument == *joined)
}

fn run_leaf(arguments: &[OsString], called: Called<'_>) -> End {
    let Called { run, trouble, .. } = called;
    let context = Context::new(called.globals);
    if called.on_mounts {
        context.allow_mounted();
    }
    if trouble != exit::FAILURE {
        stdout::go_on_unread();
    }
    let mut result = run(called.matches, &context);
    if let Some(mount) = context.handed_on() {
        stdout::discard(false);
        json::forget_document();
        result = client::ask(&mount, arguments, called.matches, &context.take_passed()).map(Outcome::Code);
    }
    context.finish();
    let result = result.and_then(|outcome| Ok(stdout::finish().map(|()| outcome)?));
    ended(&context, trouble, result)
}

/// Returns the outcome of a command.
fn ended(context: &Context, trouble: u8, result: Result<Outcome>) -> End {
    let end = end_of(context, trouble, result);
    if context.json() {
        end_json(context, &end);
    }
    end
}

/// Completes standard output to one document, if a JSON command failed.
fn end_json(context: &Context, end: &End) {
    match end {
        End::Failed(_, error) if exit::is_broken_pipe(error) => {}
        End::Failed(code, error) => failure_as_json(error, *code),
        End::CommandLine(error) => command_line_as_json(error),
        End::Code(code) => {
            if let Some(message) = context.first_loss() {
                exit::end_json(&message, None, *code);
            }
        }
    }
}

/// Completes standard output with the error of a failed command.
fn failure_as_json(error: &anyhow::Error, code: u8) {
    let help = error.downcast_ref::<Advice>().map(ToString::to_string);
    exit::end_json(&exit::chain_text(error), help, code);
}

/// Completes standard output with the error of an invalid command line.
fn command_line_as_json(error: &clap::Error) {
    if error.use_stderr() {
        exit::end_json(&exit::command_line_text(error), None, exit::USAGE);
    }
}

fn end_of(context: &Context, trouble: u8, result: Result<Outcome>) -> End {
    match result {
        Err(error) => match error.downcast::<clap::Error>() {
            Ok(error) => End::CommandLine(error),
            // If the reader closed the pipe, this is no failure, but earlier losses remain losses.
            Err(error) if context.losses() > 0 && exit::is_broken_pipe(&error) => End::Code(trouble),
            Err(error) => End::Failed(trouble, error),
        },
        Ok(Outcome::Signalled(code) | Outcome::Code(code)) => End::Code(code),
        Ok(_) if context.losses() > 0 => End::Code(trouble),
        Ok(Outcome::Done) => End::Code(exit::SUCCESS),
        Ok(Outcome::Negative) => End::Code(exit::FAILURE),
    }
}
