//! Shows on stderr how far a long job is, as `--progress` asks: a line that is rewritten on a terminal, or JSON
//! lines ([`events`]), of which the last says that the job is done, or that it stopped before.

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

/// How often a terminal's line is rewritten.
const TERMINAL_PERIOD: Duration = Duration::from_millis(200);

/// How often a JSON line is printed.
const JSON_PERIOD: Duration = Duration::from_secs(1);

/// Watches a job until [`Watch::end`] says that it came to its end, or until it is dropped because it did not.
#[derive(Debug)]
pub struct Watch {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
    is_done: Arc<AtomicBool>,
}

impl Watch {
    /// Whether anybody will see it.
    pub fn is_wanted(context: &Context) -> bool {
        match context.globals().progress.unwrap_or(When::Auto) {
            When::Never => false,
            When::Auto => !context.globals().quiet && terminal::stderr_is_terminal(),
            When::Always | When::Json => true,
        }
    }

    /// Begins to watch a job of the command `name`.
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

    /// The job came to its end: the line is taken away, and the last event says that all was done.
    pub fn end(self) {
        self.end_as(true);
    }

    /// The job is over: it came to its end, or stopped before.
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

/// What a job is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Running,
    Done,
    Stopped,
}

/// Bytes a second; and percent and time left where it is known what will come.
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

/// One event about a job. What a job expects is an estimate: only when it is done is that what it was.
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
