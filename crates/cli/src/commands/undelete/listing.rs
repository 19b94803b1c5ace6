//! The list of versions: one line for each, or a JSON document.

use std::io::Write;

use anyhow::Result;
use buttress::salvage::{History, Verdict, Version};
use serde_json::{Map, Value, json};

use super::Undelete;
use crate::context::Context;
use crate::output::json::insert_name;
use crate::output::size::Units;
use crate::output::terminal;
use crate::output::time::Clock;
use crate::table::Subcommand as _;

/// Prints all versions.
pub(super) fn print(context: &Context, history: &History) -> Result<()> {
    if context.json() {
        let versions: Vec<Value> = history.versions.iter().map(as_json).collect();
        return context.print_json(
            Undelete::NAME,
            json!({
                "versions": versions,
                "states": history.states,
                "states-that-do-not-open": history.unopened,
                "unreadable-blocks": history.unreadable,
            }),
        );
    }
    if history.versions.is_empty() {
        return Ok(());
    }
    let (clock, units) = (Clock::system(), Units::default());
    let mut out = context.stdout();
    writeln!(
        out,
        "{:>10}  {:>10}  {:19}  {:10}  path",
        "generation", "size", "modified", "content"
    )?;
    for version in &history.versions {
        let size = units.text(version.size.get());
        let time = clock.plain(version.modified.seconds);
        let generation = version.generation;
        let verdict = version.verdict().name();
        let path = terminal::shown(path(version));
        let note = note(version);
        writeln!(
            out,
            "{generation:>10}  {size:>10}  {time:19}  {verdict:10}  {path}{note}"
        )?;
        if context.globals().verbose > 0
            && let Some(reason) = &version.findings.reason
        {
            writeln!(out, "{:>10}  {}", "", terminal::shown(reason))?;
        }
    }
    out.flush()?;
    Ok(())
}

/// Returns a version's path with a slash at its start, for messages.
pub(super) fn path(version: &Version) -> String {
    format!("/{}", version.path.escape_ascii())
}

fn note(version: &Version) -> String {
    let now = version.renamed_to.as_ref();
    let now = now.map(|path| format!(", now /{}", path.escape_ascii()));
    let lost = match version.verdict() {
        Verdict::Partial => Some(format!(
            ", {} of {} bytes lost",
            version.findings.lost_bytes, version.size
        )),
        _ => None,
    };
    lost.into_iter().chain(now).collect()
}

fn as_json(version: &Version) -> Value {
    let mut object = Map::new();
    insert_name(&mut object, "path", &version.path);
    object.insert("generation".to_owned(), json!(version.generation.get()));
    object.insert("read-from".to_owned(), json!(version.state.generation().get()));
    object.insert("subvolume".to_owned(), json!(version.location.subvolume.get()));
    object.insert("inode".to_owned(), json!(version.location.inode.get()));
    object.insert("size".to_owned(), json!(version.size.get()));
    object.insert("modified".to_owned(), json!(version.modified.seconds));
    object.insert("verdict".to_owned(), json!(version.verdict().name()));
    if version.verdict() != Verdict::Verified {
        object.insert("reason".to_owned(), json!(version.findings.reason));
        object.insert("lost-bytes".to_owned(), json!(version.findings.lost_bytes.get()));
    }
    if let Some(path) = &version.renamed_to {
        insert_name(&mut object, "now", path);
    }
    Value::Object(object)
}
