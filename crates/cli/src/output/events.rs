//! Standard error for programs: with `--progress json` it holds JSON lines and nothing else, one event a line.
//!
//! | `event` | says |
//! |---|---|
//! | `progress` | how far a job is, about once a second |
//! | `done`, `stopped` | the last of a job: it came to its end, at 100 percent; it failed or was cancelled before |
//! | `step` | a job that goes in steps has come to this one |
//! | `note`, `warning`, `error` | what is otherwise printed for people, in `message`; `help` where something can be done |
//!
//! Whether it is wanted holds for the whole process, so that no message gets around it.

use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::{Map, Value};

use super::terminal;

static WANTED: AtomicBool = AtomicBool::new(false);

/// From now on standard error is for programs.
pub fn want() {
    WANTED.store(true, Ordering::Relaxed);
}

/// Whether standard error is for programs.
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
