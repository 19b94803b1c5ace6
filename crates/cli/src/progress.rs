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
    /// Begins to watch a job of the command `name`.
    pub fn start(context: &Context, name: &'static str, progress: Progress) -> Self {
        let json = match context.globals().progress.unwrap_or(When::Auto) {
            When::Never => {
                return Self {
                    stop: None,
                    thread: None,
                };
            }
            When::Auto if context.globals().quiet || !io::stderr().is_terminal() => {
                return Self {
                    stop: None,
                    thread: None,
                };
            }
            When::Auto | When::Always => false,
            When::Json => true,
        };
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
        format!(
            "\r\x1b[K{name}: {} files, {}{errors}",
            now.items,
            units.text(now.bytes.get())
        )
    };
    // Nothing depends on progress being seen.
    let _ = io::stderr().write_all(line.as_bytes());
}
