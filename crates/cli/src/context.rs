//! The context of a running command: its global flags, standard output, warnings, and the number of
//! losses.
//!
//! Standard output carries only results. Warnings, notices and errors go to stderr. A command that
//! continues after an error reports it with [`Context::lost`]; its exit code is then never 0.

use std::fmt::Display;
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use anstyle::AnsiColor;
use anyhow::Result;
use buttress::Progress;
use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::exit;
use crate::failures::ToldFailures;
use crate::globals::{Format, Globals, Progress as When};
use crate::mounted::passed::Passed;
use crate::mounted::places::Below;
use crate::opening::Place;
use crate::output::terminal;
use crate::output::{self, events, json};
use crate::sources::Sources;

pub use crate::output::terminal::Stdout;

/// The context of one running command.
#[derive(Debug)]
pub struct Context {
    globals: Globals,
    losses: AtomicU64,
    stdout_is_terminal: bool,
    reports: Mutex<Vec<Report>>,
    told_failures: ToldFailures,
    /// In a session: the volume and directory that targets refer to.
    place: Mutex<Option<Place>>,
    sources: Sources,
    /// True if the server of a mount can execute the command.
    takes_mounted: AtomicBool,
    /// Mount whose server is to execute the command.
    handed_on: Mutex<Option<Below>>,
    /// Files that this process passes to the server of that mount.
    passed: Mutex<Vec<Passed>>,
    /// True if this process has opened a device.
    has_opened: AtomicBool,
    /// Text of the first loss.
    first_loss: Mutex<Option<String>>,
    /// In a session: set to cancel the running shell command.
    cancel: Arc<AtomicBool>,
}

/// Raises the limit of open files as far as the system allows, for jobs that keep each directory of
/// a path open.
pub fn allow_deep_trees() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    // If the system refuses, trees deeper than the current limit fail with an error that names the
    // limit.
    let _ = setrlimit(
        Resource::Nofile,
        Rlimit {
            current: limit.maximum,
            maximum: limit.maximum,
        },
    );
}

/// Source of warnings at the end of a command.
type ReportFunction = Box<dyn Fn() -> Vec<String> + Send>;

struct Report(ReportFunction);

impl std::fmt::Debug for Report {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Report")
    }
}

impl Context {
    /// Creates the context of a command with these flags.
    pub fn new(globals: Globals) -> Self {
        if globals.progress == Some(When::Json) {
            events::want();
        }
        Self {
            globals,
            losses: AtomicU64::new(0),
            stdout_is_terminal: terminal::stdout_is_terminal(),
            reports: Mutex::new(Vec::new()),
            told_failures: ToldFailures::default(),
            place: Mutex::new(None),
            sources: Sources::default(),
            takes_mounted: AtomicBool::new(false),
            handed_on: Mutex::new(None),
            passed: Mutex::default(),
            has_opened: AtomicBool::new(false),
            first_loss: Mutex::new(None),
            cancel: Arc::default(),
        }
    }

    /// Returns the sources that this command reads and must not write to.
    pub fn sources(&self) -> &Sources {
        &self.sources
    }

    /// Returns the global flags.
    pub fn globals(&self) -> &Globals {
        &self.globals
    }

    /// Returns whether the command prints its results as JSON.
    pub fn json(&self) -> bool {
        self.globals.format == Some(Format::Json)
    }

    /// Returns whether standard output is a terminal.
    pub fn stdout_is_terminal(&self) -> bool {
        self.stdout_is_terminal
    }

    /// Returns buffered standard output. Flush the output before returning: dropping the buffer
    /// would lose an error.
    pub fn stdout(&self) -> Stdout {
        terminal::stdout(self.json())
    }

    /// Prints a short answer: a document for `--format json`, else one line; nothing with `--quiet`.
    ///
    /// # Errors
    /// Fails if the answer cannot be printed.
    pub fn print_answer(&self, name: &str, document: Value, line: std::fmt::Arguments<'_>) -> Result<()> {
        if self.json() {
            return self.print_json(name, document);
        }
        if !self.globals().quiet {
            let mut out = self.stdout();
            writeln!(out, "{line}")?;
            out.flush()?;
        }
        Ok(())
    }

    /// Prints `value` as the JSON document of the command `name` (`subvolume-list`).
    pub fn print_json(&self, name: &str, value: Value) -> Result<()> {
        let mut out = self.stdout();
        json::write_document(&mut out, name, value)?;
        out.flush()?;
        Ok(())
    }

    /// Escapes control characters in a name if standard output is a terminal.
    pub fn printable<'a>(&self, name: &'a [u8]) -> std::borrow::Cow<'a, [u8]> {
        if self.stdout_is_terminal {
            output::escape_controls_bytes(name)
        } else {
            name.into()
        }
    }

    /// Prints a notice on stderr, unless `--quiet`, about something that the user may want to know.
    pub fn notice(&self, message: impl Display) {
        if !self.globals.quiet {
            message_on_stderr("note", AnsiColor::Cyan, &message);
        }
    }

    /// Prints a warning on stderr, unless `--quiet`: nothing was lost, but something is wrong.
    pub fn warn(&self, message: impl Display) {
        if !self.globals.quiet {
            message_on_stderr("warning", AnsiColor::Yellow, &message);
        }
    }

    /// Prints a notice on stderr, even with `--quiet`, about a job that ended before completion.
    pub fn tell(&self, message: impl Display) {
        message_on_stderr("note", AnsiColor::Cyan, &message);
    }

    /// Allows the server of a mount to execute this command.
    pub(crate) fn allow_mounted(&self) {
        self.takes_mounted.store(true, Ordering::Relaxed);
    }

    /// Returns whether the server of a mount may execute this command.
    pub(crate) fn takes_mounted(&self) -> bool {
        self.takes_mounted.load(Ordering::Relaxed)
    }

    /// Records that this process has opened a device, so it executes the command itself.
    pub(crate) fn set_opened(&self) {
        self.has_opened.store(true, Ordering::Relaxed);
    }

    /// Returns whether this process has opened a device.
    pub(crate) fn has_opened(&self) -> bool {
        self.has_opened.load(Ordering::Relaxed)
    }

    /// Returns the text of the first loss.
    pub(crate) fn first_loss(&self) -> Option<String> {
        self.first_loss.lock().clone()
    }

    /// Hands the command on to the server of this mount, which prints all output.
    pub(crate) fn set_handed_on(&self, below: Below) {
        output::stdout::discard(true);
        *self.handed_on.lock() = Some(below);
    }

    /// Returns the mount whose server is to execute the command.
    pub(crate) fn handed_on(&self) -> Option<Below> {
        self.handed_on.lock().clone()
    }

    /// Passes an open file to the server that executes the command.
    pub(crate) fn pass(&self, file: Passed) {
        self.passed.lock().push(file);
    }

    /// Takes the files to pass to the server.
    pub(crate) fn take_passed(&self) -> Vec<Passed> {
        std::mem::take(&mut *self.passed.lock())
    }

    /// Prints an error on stderr, after which the command continues. A requested part is missing
    /// from the result, so the command will not exit with 0.
    pub fn lost(&self, error: &anyhow::Error) {
        if self.handed_on().is_some() {
            // The server of the mount reports this loss.
            return;
        }
        if !buttress_faults::on("command-forgets-losses") {
            self.losses.fetch_add(1, Ordering::Relaxed);
        }
        self.keep_first_loss(|| exit::chain_text(error));
        exit::print_error(error);
    }

    /// Counts a loss like [`Context::lost`], for an error that was printed already. `message`
    /// returns the error's text for JSON output.
    pub fn count_loss(&self, message: impl FnOnce() -> String) {
        self.losses.fetch_add(1, Ordering::Relaxed);
        self.keep_first_loss(message);
    }

    fn keep_first_loss(&self, message: impl FnOnce() -> String) {
        self.first_loss.lock().get_or_insert_with(message);
    }

    /// Returns, in a session, the volume and directory that targets refer to.
    pub fn place(&self) -> Option<Place> {
        self.place.lock().clone()
    }

    /// Makes targets refer to paths in this volume.
    pub fn enter(&self, place: Place) {
        *self.place.lock() = Some(place);
    }

    /// Returns a progress for a job, which a session can cancel.
    pub fn progress(&self) -> Progress {
        Progress::cancelled_by(Arc::clone(&self.cancel))
    }

    /// Returns the flag that cancels the jobs of a session's shell command.
    pub fn cancellation(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.cancel)
    }

    /// Returns the number of losses so far.
    pub fn losses(&self) -> u64 {
        self.losses.load(Ordering::Relaxed)
    }

    /// Returns the record of reported device failures.
    pub fn told_failures(&self) -> ToldFailures {
        self.told_failures.clone()
    }

    /// Registers a source of warnings that the context queries once, at the end of the command.
    pub fn report_at_end(&self, report: impl Fn() -> Vec<String> + Send + 'static) {
        self.reports.lock().push(Report(Box::new(report)));
    }

    /// Prints the warnings of the registered sources.
    pub fn finish(&self) {
        let reports = std::mem::take(&mut *self.reports.lock());
        for Report(report) in reports {
            for line in report() {
                self.warn(line);
            }
        }
    }
}

fn message_on_stderr(label: &str, colour: AnsiColor, message: &dyn Display) {
    if events::are_wanted() {
        events::tell(label, json!({ "message": message.to_string() }));
        return;
    }
    terminal::message(label, colour, message);
}
