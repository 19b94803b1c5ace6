//! Standard error for programs: with `--progress json` it carries only JSON lines, one event per
//! line.
//!
//! | `event` | meaning |
//! |---|---|
//! | `progress` | progress of a job, about once a second |
//! | `done`, `stopped` | end of a job: completed at 100 percent; failed or cancelled |
//! | `step` | a job with several steps has begun this one |
//! | `note`, `warning`, `error` | a message, in `message`; advice to the user in `help` |
//!
//! The setting applies to the whole process, so that it covers every message.

use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::{Map, Value};

use super::terminal;

static WANTED: AtomicBool = AtomicBool::new(false);

/// Switches standard error to JSON events.
pub fn want() {
    WANTED.store(true, Ordering::Relaxed);
}

/// Returns whether standard error carries JSON events.
pub fn are_wanted() -> bool {
    WANTED.load(Ordering::Relaxed)
}

/// Writes one event. `fields` is an object.
pub fn tell(event: &str, fields: Value) {
    let mut object = Map::new();
    object.insert("event".to_owned(), event.into());
    if let Value::Object(fields) = fields {
        object.extend(fields);
    }
    terminal::json_line(&Value::Object(object));
}
