//! `buttress stream verify FILE…`: reads streams to their ends and prints their contents.
//!
//! The command verifies every checksum, executes every command, decodes all compressed data, and
//! checks the end of each stream. The first error stops the command with exit code 1, and the
//! message has the exact position. The command still lists the streams that were complete before
//! the damage.

use std::ffi::OsString;
use std::io::Write;

use anyhow::Result;
use buttress::stream::view::{Node, Options, Series, Snapshot};
use clap::Args;
use serde_json::{Map, Value};

use crate::context::Context;
use crate::exit::Outcome;
use crate::globals::Uses;
use crate::manual::{Example, example};
use crate::output::escape_controls;
use crate::output::json::{insert_name, write_document};
use crate::progress::Watch;
use crate::table::Subcommand;

/// Verify that streams are complete and can be received, and list their content
#[derive(Args, Debug)]
pub(super) struct Verify {
    /// A stream and its incremental streams, in order; - is standard input
    #[arg(value_name = "FILE", required = true)]
    files: Vec<OsString>,
}

/// Numbers of files in a snapshot by kind.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    files: u64,
    directories: u64,
    others: u64,
    without_data: u64,
}

impl Subcommand for Verify {
    const NAME: &'static str = "verify";
    const EXAMPLES: &'static [Example] = &[example(
        "buttress stream verify monday.stream tuesday.stream",
        "Verifies that a full and an incremental stream can be received",
    )];

    fn uses(&self) -> Uses {
        Uses::NOTHING
    }

    fn run(self, context: &Context) -> Result<Outcome> {
        let options = Options {
            decode_data: true,
            ..Options::default()
        };
        let watch = Watch::start(context, "stream verify", options.progress.clone());
        let mut series = Series::new(options);
        let mut damage = None;
        for file in &self.files {
            let added = super::open(context, file)
                .and_then(|opened| Ok(series.add(file.to_string_lossy(), Box::new(opened))?));
            if let Err(error) = added {
                damage = Some(error);
                break;
            }
        }
        watch.end_as(damage.is_none());
        let snapshots = series.snapshots();
        if context.json() {
            let mut report = Map::new();
            report.insert("streams".into(), snapshots.iter().map(as_json).collect());
            let text = damage.as_ref().map(crate::exit::chain_text);
            report.insert("damage".into(), text.into());
            let mut out = context.stdout();
            write_document(&mut out, "stream-verify", Value::Object(report))?;
            out.flush()?;
        } else {
            print_table(context, snapshots)?;
        }
        match damage {
            Some(error) => Err(error),
            None => Ok(Outcome::Done),
        }
    }
}

fn count(snapshot: &Snapshot) -> Counts {
    let mut counts = Counts::default();
    for inode in snapshot.tree.inodes() {
        let counter = match &inode.node {
            Node::File(file) => {
                counts.without_data = counts.without_data.saturating_add(u64::from(file.lacks_data()));
                &mut counts.files
            }
            Node::Directory(_) => &mut counts.directories,
            _ => &mut counts.others,
        };
        *counter = counter.saturating_add(1);
    }
    counts
}

fn as_json(snapshot: &Snapshot) -> Value {
    let counts = count(snapshot);
    let mut object = Map::new();
    insert_name(&mut object, "snapshot", &snapshot.name);
    object.insert("file".into(), snapshot.file.clone().into());
    object.insert("stream".into(), snapshot.stream.into());
    object.insert("version".into(), snapshot.version.to_raw().into());
    object.insert("uuid".into(), snapshot.uuid.to_string().into());
    object.insert("transid".into(), snapshot.transid.get().into());
    let parent = snapshot.parent.map(|uuid| uuid.to_string());
    object.insert("parent_uuid".into(), parent.into());
    object.insert("commands".into(), snapshot.commands.into());
    object.insert("bytes".into(), snapshot.stream_bytes.get().into());
    object.insert("data_bytes".into(), snapshot.data_bytes.get().into());
    object.insert("files".into(), counts.files.into());
    object.insert("directories".into(), counts.directories.into());
    object.insert("others".into(), counts.others.into());
    object.insert("files_without_data".into(), counts.without_data.into());
    Value::Object(object)
}

const HEADINGS: [&str; 10] = [
    "Snapshot",
    "Version",
    "Commands",
    "Bytes",
    "Data",
    "Files",
    "Directories",
    "Others",
    "UUID",
    "Builds on",
];

fn print_table(context: &Context, snapshots: &[Snapshot]) -> Result<()> {
    let mut rows = vec![HEADINGS.map(str::to_owned)];
    for snapshot in snapshots {
        let counts = count(snapshot);
        if counts.without_data > 0 {
            context.notice(format!(
                "{}: the content of {} files was not sent",
                snapshot.name.escape_ascii(),
                counts.without_data
            ));
        }
        rows.push([
            escape_controls(&snapshot.name),
            snapshot.version.to_raw().to_string(),
            snapshot.commands.to_string(),
            snapshot.stream_bytes.to_string(),
            snapshot.data_bytes.to_string(),
            counts.files.to_string(),
            counts.directories.to_string(),
            counts.others.to_string(),
            snapshot.uuid.to_string(),
            snapshot
                .parent
                .map_or_else(|| "-".to_owned(), |uuid| uuid.to_string()),
        ]);
    }
    if snapshots.is_empty() {
        return Ok(());
    }
    let mut widths = [0; HEADINGS.len()];
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = cell.chars().count().max(*width);
        }
    }
    let mut out = context.stdout();
    for row in &rows {
        let mut line = String::new();
        for (number, (cell, width)) in row.iter().zip(widths).enumerate() {
            // Names and uuids are left-aligned, numbers are right-aligned.
            line.push_str(&match number {
                0 | 8 | 9 => format!("{cell:<width$}  "),
                _ => format!("{cell:>width$}  "),
            });
        }
        writeln!(out, "{}", line.trim_end())?;
    }
    out.flush()?;
    Ok(())
}
