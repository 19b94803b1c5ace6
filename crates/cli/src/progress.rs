//! Shows on stderr how far a long job is, as `--progress` asks: a line that is rewritten on a terminal, or one
//! JSON object a line.

use std::io::{self, IsTerminal, Write};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use buttress_fs::Progress;
use crossbeam_channel::{RecvTimeoutError, Sender, bounded};
use serde_json::json;

use crate::context::Context;
use crate::globals::Progress as When;
use crate::output::size::Units;

/// How often a terminal's line is rewritten.
const TERMINAL_PERIOD: Duration = Duration::from_millis(200);

/// How often a JSON line is printed.
const JSON_PERIOD: Duration = Duration::from_secs(1);

/// Watches a job until [`Watch::end`] or until it is dropped.
#[derive(Debug)]
pub struct Watch {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    /// Whether anybody will see it.
    pub fn is_wanted(context: &Context) -> bool {
        match context.globals().progress.unwrap_or(When::Auto) {
            When::Never => false,
            When::Auto => !context.globals().quiet && io::stderr().is_terminal(),
            When::Always | When::Json => true,
        }
    }

    /// Begins to watch a job of the command `name`.
    pub fn start(context: &Context, name: &'static str, progress: Progress) -> Self {
        if !Self::is_wanted(context) {
            return Self {
                stop: None,
                thread: None,
            };
        }
        let json = context.globals().progress == Some(When::Json);
        let (stop, stopped) = bounded::<()>(0);
        let thread = std::thread::spawn(move || {
            let begun = Instant::now();
            let period = if json { JSON_PERIOD } else { TERMINAL_PERIOD };
            while stopped.recv_timeout(period) == Err(RecvTimeoutError::Timeout) {
                show(name, &progress, begun.elapsed(), json);
            }
            if json {
                show(name, &progress, begun.elapsed(), json);
            } else {
                let _ = write!(io::stderr(), "\r\x1b[K");
            }
        });
        Self {
            stop: Some(stop),
            thread: Some(thread),
        }
    }

    /// Ends it, and takes the line away.
    pub fn end(self) {}
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
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

fn show(name: &str, progress: &Progress, elapsed: Duration, json: bool) {
    let now = progress.snapshot();
    let line = if json {
        let line = json!({
            "job": name,
            "elapsed_seconds": elapsed.as_secs_f64(),
            "items": now.items,
            "bytes": now.bytes.get(),
            "expected_bytes": now.expected.get(),
            "errors": now.errors,
        });
        format!("{line}\n")
    } else {
        let errors = if now.errors == 0 {
            String::new()
        } else {
            format!(", {} errors", now.errors)
        };
        let units = Units::default();
        let rate = rate_text(now.bytes.get(), now.expected.get(), elapsed);
        format!(
            "\r\x1b[K{name}: {} files, {}{rate}{errors}",
            now.items,
            units.text(now.bytes.get())
        )
    };
    // Nothing depends on progress being seen.
    let _ = io::stderr().write_all(line.as_bytes());
}
