//! Progress of a long job on stderr, as `--progress` requests: a line that is rewritten on a
//! terminal, or JSON lines ([`events`]). The last JSON line states whether the job completed or
//! stopped early.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use buttress::Progress;
use crossbeam_channel::{RecvTimeoutError, Sender, bounded};
use serde_json::json;

use crate::context::Context;
use crate::globals::Progress as When;
use crate::output::events;
use crate::output::size::Units;
use crate::output::terminal;

/// Interval between updates of the terminal line.
const TERMINAL_PERIOD: Duration = Duration::from_millis(200);

/// Interval between JSON lines.
const JSON_PERIOD: Duration = Duration::from_secs(1);

/// Display of a job's progress until [`Watch::end`] reports its completion, or until it is dropped
/// because the job failed.
#[derive(Debug)]
pub struct Watch {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
    is_done: Arc<AtomicBool>,
}

impl Watch {
    /// Returns whether the progress is displayed at all.
    pub fn is_wanted(context: &Context) -> bool {
        match context.globals().progress.unwrap_or(When::Auto) {
            When::Never => false,
            When::Auto => !context.globals().quiet && terminal::stderr_is_terminal(),
            When::Always | When::Json => true,
        }
    }

    /// Starts to display the progress of the command `name`.
    pub fn start(context: &Context, name: &'static str, progress: Progress) -> Self {
        let is_done = Arc::new(AtomicBool::new(false));
        if !Self::is_wanted(context) {
            return Self {
                stop: None,
                thread: None,
                is_done,
            };
        }
        let json = context.globals().progress == Some(When::Json);
        let (stop, stopped) = bounded::<()>(0);
        let has_ended = Arc::clone(&is_done);
        let thread = std::thread::spawn(move || {
            let begun = Instant::now();
            let period = if json { JSON_PERIOD } else { TERMINAL_PERIOD };
            while stopped.recv_timeout(period) == Err(RecvTimeoutError::Timeout) {
                if json {
                    tell(name, &progress, begun.elapsed(), State::Running);
                } else {
                    show(name, &progress, begun.elapsed());
                }
            }
            if !json {
                terminal::status_line("");
                return;
            }
            let state = if has_ended.load(Ordering::Acquire) {
                State::Done
            } else {
                State::Stopped
            };
            tell(name, &progress, begun.elapsed(), state);
        });
        Self {
            stop: Some(stop),
            thread: Some(thread),
            is_done,
        }
    }

    /// Ends the display after the job completed: removes the line, and reports completion in the
    /// last event.
    pub fn end(self) {
        self.end_as(true);
    }

    /// Ends the display after the job completed or stopped early.
    pub fn end_as(self, is_done: bool) {
        self.is_done.store(is_done, Ordering::Release);
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Current activity of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Running,
    Done,
    Stopped,
}

/// Formats bytes per second and, if the expected total is known, percentage and remaining time.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "figures to look at"
)]
fn rate_text(bytes: u64, expected: u64, elapsed: Duration) -> String {
    let rate = bytes as f64 / elapsed.as_secs_f64().max(1e-3);
    let shown = Units::default().text(rate as u64);
    if expected == 0 {
        return format!(", {shown}/s");
    }
    let percent = (bytes as f64 / expected as f64 * 100.0).min(100.0);
    let left = expected.saturating_sub(bytes) as f64 / rate.max(1.0);
    let (minutes, seconds) = (left as u64 / 60, left as u64 % 60);
    format!(", {shown}/s, {percent:.0} %, {minutes}:{seconds:02} left")
}

/// Builds one event about a job. The expected total is an estimate until the job is done.
#[expect(clippy::cast_precision_loss, reason = "a figure to look at")]
fn tell(name: &str, progress: &Progress, elapsed: Duration, state: State) {
    let now = progress.snapshot();
    let bytes = now.bytes.get();
    let expected = if state == State::Done {
        bytes
    } else {
        now.expected.get()
    };
    let percent = match (state, expected) {
        (State::Done, _) => Some(100.0),
        (_, 0) => None,
        _ => Some((bytes as f64 / expected as f64 * 1000.0).floor().min(999.0) / 10.0),
    };
    let event = match state {
        State::Running => "progress",
        State::Done => "done",
        State::Stopped => "stopped",
    };
    let fields = json!({
        "job": name,
        "elapsed_seconds": elapsed.as_secs_f64(),
        "items": now.items,
        "bytes": bytes,
        "expected_bytes": expected,
        "percent": percent,
        "errors": now.errors,
    });
    events::tell(event, fields);
}

fn show(name: &str, progress: &Progress, elapsed: Duration) {
    let now = progress.snapshot();
    let errors = if now.errors == 0 {
        String::new()
    } else {
        format!(", {} errors", now.errors)
    };
    let units = Units::default();
    let rate = rate_text(now.bytes.get(), now.expected.get(), elapsed);
    let total = if now.expected.get() > 0 {
        format!(" of {}", units.text(now.expected.get()))
    } else {
        String::new()
    };
    terminal::status_line(&format!(
        "{name}: {} files, {}{total}{rate}{errors}",
        now.items,
        units.text(now.bytes.get())
    ));
}
