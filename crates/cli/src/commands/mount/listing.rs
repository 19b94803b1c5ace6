//! `buttress mount --list`: all directories that show a volume served by this user.

use std::io::Write as _;

use anyhow::Result;
use serde_json::{Value, json};

use super::registry::Known;
use crate::context::Context;
use crate::exit::Outcome;
use crate::mounted::places::{self, Mounted};
use crate::output::terminal;

/// A server with one mount that shows its volume, or `None` if no directory shows it any more.
type Row<'a> = (&'a Known, Option<&'a Mounted>);

fn writes((server, mount): Row<'_>) -> bool {
    server.writes() && mount.is_none_or(|mount| !mount.is_read_only)
}

fn directory((_, mount): Row<'_>) -> Option<String> {
    mount.map(|mount| mount.directory.display().to_string())
}

fn row_as_json(row: Row<'_>) -> Value {
    let mut record = row.0.record.clone();
    if let Some(record) = record.as_object_mut() {
        record.insert("directory".to_owned(), json!(directory(row)));
        record.insert("writes".to_owned(), json!(writes(row)));
    }
    record
}

/// Prints the list of mounts.
pub(super) fn list(context: &Context) -> Result<Outcome> {
    let (servers, mounts) = (Known::all()?, places::all());
    let rows = servers.iter().flat_map(|server| {
        let shown: Vec<Option<&Mounted>> = server.shown_by(&mounts).map(Some).collect();
        let shown = if shown.is_empty() { vec![None] } else { shown };
        shown.into_iter().map(move |mount| (server, mount))
    });
    if context.json() {
        let rows: Vec<Value> = rows.map(row_as_json).collect();
        context.print_json("mount-list", json!(rows))?;
        return Ok(Outcome::Done);
    }
    let mut out = context.stdout();
    for row in rows {
        let image = terminal::shown(row.0.text("image").unwrap_or_default());
        let mode = if writes(row) { "rw" } else { "ro" };
        let process = row.0.record.get("pid").unwrap_or(&Value::Null);
        match directory(row) {
            Some(directory) => {
                let directory = terminal::shown(directory);
                writeln!(out, "{image} on {directory} ({mode}, process {process})")?;
            }
            None => writeln!(out, "{image} unmounted, still in use ({mode}, process {process})")?,
        }
    }
    out.flush()?;
    Ok(Outcome::Done)
}
