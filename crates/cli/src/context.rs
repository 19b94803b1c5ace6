//! What a running command is given: its global flags, standard output, a place for warnings, and a count of
//! what was lost.
//!
//! Standard output carries nothing but results. Warnings, notices and errors go to stderr. A command that
//! goes on after an error reports it with [`Context::lost`]; the exit code is then not 0, whatever follows.

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
use crate::mounted::places::Below;
use crate::opening::Place;
use crate::output::terminal;
use crate::output::{self, events, json};
use crate::sources::Sources;

pub use crate::output::terminal::Stdout;

/// The surroundings of one running command.
#[derive(Debug)]
pub struct Context {
    globals: Globals,
    losses: AtomicU64,
    stdout_is_terminal: bool,
    reports: Mutex<Vec<Report>>,
    told_failures: ToldFailures,
    /// In a session: where targets are.
    place: Mutex<Option<Place>>,
    sources: Sources,
    /// Whether the command can be done by the server of a mount.
    takes_mounted: AtomicBool,
    /// The mount whose server is to do it.
    handed_on: Mutex<Option<Below>>,
    /// Whether this process opened something already.
    has_opened: AtomicBool,
    /// The first loss that was printed.
    first_loss: Mutex<Option<String>>,
    /// In a session: set when the word that runs is to end.
    cancel: Arc<AtomicBool>,
}

/// For jobs that keep each directory on the way down open: allows as many open files as the system lets this
/// process have.
pub fn allow_deep_trees() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    // If it is refused, trees deeper than the present limit fail with an error that says so.
    let _ = setrlimit(
        Resource::Nofile,
        Rlimit {
            current: limit.maximum,
            maximum: limit.maximum,
        },
    );
}

/// Something that is asked for late faults when the command ends.
type ReportFunction = Box<dyn Fn() -> Vec<String> + Send>;

struct Report(ReportFunction);

impl std::fmt::Debug for Report {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Report")
    }
}

impl Context {
    /// The context of a command with these flags.
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
            has_opened: AtomicBool::new(false),
            first_loss: Mutex::new(None),
            cancel: Arc::default(),
        }
    }

    /// What this command reads: nothing may be written there.
    pub fn sources(&self) -> &Sources {
        &self.sources
    }

    /// The global flags.
    pub fn globals(&self) -> &Globals {
        &self.globals
    }

    /// Whether results are to be JSON.
    pub fn json(&self) -> bool {
        self.globals.format == Some(Format::Json)
    }

    /// Whether standard output is a terminal.
    pub fn stdout_is_terminal(&self) -> bool {
        self.stdout_is_terminal
    }

    /// Standard output, buffered. Flush it before returning: an error in a dropped buffer would be lost.
    pub fn stdout(&self) -> Stdout {
        terminal::stdout(self.json())
    }

    /// Prints `value` as the JSON document of the command `name` (`subvolume-list`).
    pub fn print_json(&self, name: &str, value: Value) -> Result<()> {
        let mut out = self.stdout();
        json::write_document(&mut out, name, value)?;
        out.flush()?;
        Ok(())
    }

    /// A name as it is to be printed: control characters are escaped on a terminal, and only there.
    pub fn printable<'a>(&self, name: &'a [u8]) -> std::borrow::Cow<'a, [u8]> {
        if self.stdout_is_terminal {
            output::escape_controls_bytes(name)
        } else {
            name.into()
        }
    }

    /// Prints a notice on stderr, unless `--quiet`: something the user may want to know.
    pub fn notice(&self, message: impl Display) {
        if !self.globals.quiet {
            message_on_stderr("note", AnsiColor::Cyan, &message);
        }
    }

    /// Prints a warning on stderr, unless `--quiet`: nothing was lost, but something is not as it should be.
    pub fn warn(&self, message: impl Display) {
        if !self.globals.quiet {
            message_on_stderr("warning", AnsiColor::Yellow, &message);
        }
    }

    /// Prints a notice on stderr, also with `--quiet`: what became of a job that did not do all of it.
    pub fn tell(&self, message: impl Display) {
        message_on_stderr("note", AnsiColor::Cyan, &message);
    }

    /// From now on the server of a mount may be asked to do this.
    pub(crate) fn allow_mounted(&self) {
        self.takes_mounted.store(true, Ordering::Relaxed);
    }

    /// Whether the server of a mount may be asked.
    pub(crate) fn takes_mounted(&self) -> bool {
        self.takes_mounted.load(Ordering::Relaxed)
    }

    /// This process opened a device: it does the work itself.
    pub(crate) fn set_opened(&self) {
        self.has_opened.store(true, Ordering::Relaxed);
    }

    /// Whether this process opened a device.
    pub(crate) fn has_opened(&self) -> bool {
        self.has_opened.load(Ordering::Relaxed)
    }

    /// Returns the first loss, as it was printed.
    pub(crate) fn first_loss(&self) -> Option<String> {
        self.first_loss.lock().clone()
    }

    /// The server of this mount is to do it, and prints all of it.
    pub(crate) fn set_handed_on(&self, below: Below) {
        output::stdout::discard(true);
        *self.handed_on.lock() = Some(below);
    }

    /// The mount whose server is to do it.
    pub(crate) fn handed_on(&self) -> Option<Below> {
        self.handed_on.lock().clone()
    }

    /// Prints an error on stderr and goes on: something that was asked for is missing from the result, so the
    /// command will not exit with 0.
    pub fn lost(&self, error: &anyhow::Error) {
        if self.handed_on().is_some() {
            // Its server does it.
            return;
        }
        if !buttress_faults::on("command-forgets-losses") {
            self.losses.fetch_add(1, Ordering::Relaxed);
        }
        self.keep_first_loss(|| exit::chain_text(error));
        exit::print_error(error);
    }

    /// As [`Context::lost`], for an error that was printed already. `message` is its text for JSON output.
    pub fn count_loss(&self, message: impl FnOnce() -> String) {
        self.losses.fetch_add(1, Ordering::Relaxed);
        self.keep_first_loss(message);
    }

    fn keep_first_loss(&self, message: impl FnOnce() -> String) {
        self.first_loss.lock().get_or_insert_with(message);
    }

    /// In a session: the volume and the directory in which targets are looked for.
    pub fn place(&self) -> Option<Place> {
        self.place.lock().clone()
    }

    /// From now on targets are paths in this volume.
    pub fn enter(&self, place: Place) {
        *self.place.lock() = Some(place);
    }

    /// The progress of a job, which a session can cancel.
    pub fn progress(&self) -> Progress {
        Progress::cancelled_by(Arc::clone(&self.cancel))
    }

    /// What cancels the jobs of a session's word.
    pub fn cancellation(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.cancel)
    }

    /// How often [`Context::lost`] was called.
    pub fn losses(&self) -> u64 {
        self.losses.load(Ordering::Relaxed)
    }

    /// What was told of devices that failed.
    pub fn told_failures(&self) -> ToldFailures {
        self.told_failures.clone()
    }

    /// Registers a source of warnings that is asked once, when the command has ended.
    pub fn report_at_end(&self, report: impl Fn() -> Vec<String> + Send + 'static) {
        self.reports.lock().push(Report(Box::new(report)));
    }

    /// Prints what the registered sources have to say.
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
