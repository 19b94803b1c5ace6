//! Verdicts on restored files: the totals, and the report in JSON.
//!
//! The report is written while files are restored, so memory does not bound its size. Files are in
//! the order in which they were finished.
//!
//! | key | value |
//! |---|---|
//! | `state` | the restored generation, its source, and the newest known generation; only of `restore` |
//! | `files` | an object for each file: `path`, `verdict`, `size`, `generations` |
//! | `totals` | files and bytes by verdict, and the number of skipped files |
//!
//! A file that is not verified also has `reason`, `lost-bytes`, `lost-ranges` and
//! `unverified-bytes`. An entry is `skipped` if a file with its name exists. It has a path and a
//! reason only.

use std::fmt;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, Result};
use buttress::salvage::{FileFindings, Judge, Verdict};
use buttress::{Chunk, WalkEntry};
use parking_lot::{Mutex, RwLock};
use serde_json::{Map, Value, json};

use crate::context::Context;
use crate::exit::Outcome;
use crate::extract::Review;
use crate::output::file::OutputFile;
use crate::output::json::insert_name;
use crate::output::size::Units;

/// The number of files that are not verified and that are printed by name.
const SHOWN: usize = 20;

/// Files and bytes of one verdict.
#[derive(Clone, Copy, Debug, Default)]
struct Count {
    files: u64,
    bytes: u64,
    lost_bytes: u64,
}

/// The state of which files are restored.
#[derive(Debug)]
struct Current {
    judge: Judge,
    generation: u64,
}

/// Judges files while they are restored.
#[derive(Debug)]
pub(crate) struct Judging {
    command: &'static str,
    current: RwLock<Arc<Current>>,
    /// The description of the only state, and its text.
    state: Option<(Value, String)>,
    verified_only: bool,
    counted: Mutex<Counted>,
}

#[derive(Debug, Default)]
struct Counted {
    /// The counts of verified, unverified, partial and lost files.
    counts: [Count; 4],
    /// The number of entries that an existing file kept out.
    skipped: u64,
    /// The first files that are skipped or not verified.
    shown: Vec<String>,
    out: Option<(BufWriter<OutputFile>, PathBuf)>,
    has_files: bool,
    /// The first error of writing the report.
    failure: Option<std::io::Error>,
}

/// The name of entries that an existing file kept out.
const SKIPPED: &str = "skipped";

/// All verdicts, in the order of the counts.
const VERDICTS: [Verdict; 4] = [
    Verdict::Verified,
    Verdict::Unverified,
    Verdict::Partial,
    Verdict::Lost,
];

impl Judging {
    /// Begins a restoration by `command`. `state` describes the only state that is restored, as JSON
    /// and as text.
    pub(crate) fn start(
        context: &Context,
        command: &'static str,
        (judge, generation): (Judge, u64),
        state: Option<(Value, String)>,
        (report, verified_only): (Option<&Path>, bool),
    ) -> Result<Self> {
        let head = state.as_ref().map(|(state, _)| format!("\"state\": {state},\n"));
        let out = report
            .map(|path| {
                let mut out = BufWriter::new(context.create_output(path)?);
                // Clamp: a restoration of several states has no head.
                write!(out, "{{\n{}\"files\": [", head.unwrap_or_default())?;
                anyhow::Ok((out, path.to_owned()))
            })
            .transpose()?;
        Ok(Self {
            command,
            current: RwLock::new(Arc::new(Current { judge, generation })),
            state,
            verified_only,
            counted: Mutex::new(Counted {
                out,
                ..Counted::default()
            }),
        })
    }

    /// Continues with files of another state. No file of the last state is still being restored.
    pub(crate) fn read_from(&self, judge: Judge, generation: u64) {
        *self.current.write() = Arc::new(Current { judge, generation });
    }

    /// Returns the findings about a whole file.
    fn completed(&self, entry: &WalkEntry, findings: &FileFindings) -> FileFindings {
        let mut findings = findings.clone();
        let current = Arc::clone(&self.current.read());
        current.judge.complete(entry.lost.as_ref(), &mut findings);
        findings
    }

    /// Records an entry that could not be read.
    pub(crate) fn lost(&self, path: &[u8], reason: &str) {
        let findings = FileFindings {
            reason: Some(reason.to_owned()),
            ..FileFindings::default()
        };
        self.record(path, Verdict::Lost, 0, &findings);
    }

    fn record(&self, path: &[u8], verdict: Verdict, size: u64, findings: &FileFindings) {
        let mut object = Map::new();
        insert_name(&mut object, "path", path);
        object.insert("verdict".to_owned(), json!(verdict.name()));
        object.insert("size".to_owned(), json!(size));
        object.insert("generations".to_owned(), json!([self.current.read().generation]));
        let mut shown = None;
        if verdict != Verdict::Verified {
            let lost = findings.lost_bytes.get();
            let ranges = findings.lost.iter();
            let ranges = ranges.map(|(offset, length)| json!([offset.get(), length.get()]));
            object.insert("reason".to_owned(), json!(findings.reason));
            object.insert("lost-bytes".to_owned(), json!(lost));
            object.insert("lost-ranges".to_owned(), ranges.collect::<Vec<Value>>().into());
            let unverified = findings.unverified_bytes.get();
            object.insert("unverified-bytes".to_owned(), json!(unverified));
            let part = match verdict {
                Verdict::Partial => format!(" ({lost} of {size} bytes lost)"),
                _ => String::new(),
            };
            let reason = findings.reason.iter().map(|reason| format!(": {reason}"));
            let reason: String = reason.collect();
            let name = match path.is_empty() {
                true => "/".to_owned(),
                false => path.escape_ascii().to_string(),
            };
            shown = Some(format!("{name}: {}{part}{reason}", verdict.name()));
        }
        let mut counted = self.counted.lock();
        if let Some(count) = counted.counts.get_mut(verdict as usize) {
            count.files = count.files.saturating_add(1); // Clamp: totals for display.
            count.bytes = count.bytes.saturating_add(size); // Clamp: as above.
            count.lost_bytes = count.lost_bytes.saturating_add(findings.lost_bytes.get()); // Clamp: as above.
        }
        if counted.shown.len() < SHOWN {
            counted.shown.extend(shown);
        }
        counted.write(&Value::Object(object));
    }

    /// Completes the report, and prints the totals. The exit code tells whether all files are
    /// verified.
    pub(crate) fn finish(self, context: &Context) -> Result<Outcome> {
        let counted = self.counted.into_inner();
        let totals = counted.totals();
        if let Some(failure) = counted.failure {
            return Err(failure).context("writing the report");
        }
        if let Some((mut out, path)) = counted.out {
            write!(out, "\n],\n\"totals\": {totals}\n}}\n")
                .and_then(|()| out.flush())
                .with_context(|| format!("writing {}", path.display()))?;
            let file = out.into_inner().map_err(|error| error.into_error())?;
            file.finish()?;
        }
        for line in &counted.shown {
            context.warn(line);
        }
        if context.json() {
            let mut object = Map::new();
            if let Some((state, _)) = self.state {
                object.insert("state".to_owned(), state);
            }
            object.insert("totals".to_owned(), totals);
            context.print_json(self.command, Value::Object(object))?;
        } else if !context.globals().quiet {
            let mut out = context.stdout();
            if let Some((_, text)) = &self.state {
                writeln!(out, "state:       {text}")?;
            }
            let units = Units::default();
            for (verdict, count) in VERDICTS.iter().zip(&counted.counts) {
                let lost = match verdict {
                    Verdict::Partial => format!(", {} lost", units.text(count.lost_bytes)),
                    _ => String::new(),
                };
                let name = format!("{}:", verdict.name());
                let size = units.text(count.bytes);
                writeln!(out, "{name:12} {}, {size}{lost}", files(count.files))?;
            }
            if counted.skipped > 0 {
                let verb = if counted.skipped == 1 { "exists" } else { "exist" };
                writeln!(out, "{SKIPPED}:     {} {verb} already", files(counted.skipped))?;
            }
            out.flush()?;
        }
        let is_whole = counted.skipped == 0 && counted.counts.iter().skip(1).all(|count| count.files == 0);
        Ok(match is_whole {
            true => Outcome::Done,
            false => Outcome::Negative,
        })
    }
}

impl Counted {
    fn totals(&self) -> Value {
        let counts = VERDICTS.iter().zip(&self.counts);
        let mut totals: Map<String, Value> = counts
            .map(|(verdict, count)| {
                let value = json!({
                    "files": count.files,
                    "bytes": count.bytes,
                    "lost-bytes": count.lost_bytes,
                });
                (verdict.name().to_owned(), value)
            })
            .collect();
        totals.insert(SKIPPED.to_owned(), json!({ "files": self.skipped }));
        Value::Object(totals)
    }

    fn write(&mut self, file: &Value) {
        let separator = if self.has_files { "," } else { "" };
        let Some((out, _)) = &mut self.out else { return };
        self.has_files = true;
        if let Err(error) = write!(out, "{separator}\n{file}") {
            self.failure.get_or_insert(error);
        }
    }
}

impl Review for Judging {
    fn take(&self, entry: &WalkEntry, chunk: Chunk, findings: &mut FileFindings) -> Vec<Chunk> {
        let current = Arc::clone(&self.current.read());
        current.judge.take(&entry.record, chunk, findings)
    }

    fn check(&self, entry: &WalkEntry, findings: &FileFindings) -> Result<()> {
        let verdict = self.completed(entry, findings).verdict();
        if self.verified_only && verdict != Verdict::Verified {
            self.end(entry, findings);
            return Err(LeftOut.into());
        }
        Ok(())
    }

    fn end(&self, entry: &WalkEntry, findings: &FileFindings) {
        let findings = self.completed(entry, findings);
        let size = entry.metadata().size.get();
        self.record(&entry.path(), findings.verdict(), size, &findings);
    }

    fn skipped(&self, entry: &WalkEntry) {
        let path = entry.path();
        let mut object = Map::new();
        insert_name(&mut object, "path", &path);
        object.insert("verdict".to_owned(), json!(SKIPPED));
        object.insert("reason".to_owned(), json!("a file with this name exists"));
        let mut counted = self.counted.lock();
        counted.skipped = counted.skipped.saturating_add(1); // Clamp: totals for display.
        if counted.shown.len() < SHOWN {
            let name = path.escape_ascii();
            let advice = match self.command {
                "restore" => "; to replace it, give -o",
                _ => "",
            };
            let shown = format!("{name}: skipped, because the file exists{advice}");
            counted.shown.push(shown);
        }
        counted.write(&Value::Object(object));
    }

    fn failed(&self, path: &[u8], error: &anyhow::Error) {
        // `check` has recorded a file that it refuses.
        if error.downcast_ref::<LeftOut>().is_none() {
            self.lost(path, &format!("{error:#}"));
        }
    }
}

/// Returns a number of files as text.
fn files(count: u64) -> String {
    match count {
        1 => "1 file".to_owned(),
        _ => format!("{count} files"),
    }
}

/// Marks the error that a file is left out because of its verdict.
#[derive(Debug)]
pub(crate) struct LeftOut;

impl fmt::Display for LeftOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("left out, because it is not verified")
    }
}

impl std::error::Error for LeftOut {}
