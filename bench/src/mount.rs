//! A mounted volume, three sides in one run: the kernel's btrfs on a loop device, Buttress on the
//! image, and an empty FUSE server that answers from memory ([`memory`]). The empty server shows
//! the cost of FUSE alone.
//!
//! - `tree`: untar, `find -ls`, `grep -r`, `git status`, `cp -a`, `rm -r` of a source tree;
//! - `create`: four processes that make inline files in one directory;
//! - `large`: one large file, written and read in order, plain and compressed;
//! - `random`: 4 KiB anywhere in a file, by one thread and by sixteen;
//! - `sqlite`: transactions, each durable.
//!
//! A cold run mounts again after dropping the system's caches; the server in memory keeps its
//! files. A job that writes one file ends with `fsync`. Jobs on trees have a time without a sync,
//! and once a time until the unmount ends. `BUTTRESS_BENCH_FILES`, `BUTTRESS_BENCH_GIB` and
//! `BUTTRESS_BENCH_INLINE` set the sizes, and `BUTTRESS_BENCH_SIDES` (`kernel`, `buttress`,
//! `memory`) the sides.

mod files;
mod memory;
mod sides;
mod tree;

use crate::Scale;
use crate::report::{median, sorted};
use anyhow::{Context, Result, bail};
use sides::{Kind, Side};
use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

type Job = fn(Scale, &mut Side, &mut Times) -> Result<()>;

const JOBS: [(&str, Job); 5] = [
    ("tree", tree::run),
    ("create", files::create),
    ("large", files::large),
    ("random", files::random),
    ("sqlite", files::sqlite),
];

/// The largest ratio of a job's time to the kernel's time.
const WORST: f64 = 2.5;

/// The goal for jobs in which FUSE itself is slower than the kernel: the largest ratio to the empty
/// server's time.
const ABOVE_FLOOR: f64 = 1.3;

/// The times of one side: for each row, a time of each round.
#[derive(Default)]
struct Times {
    rows: Vec<Row>,
    seconds: BTreeMap<&'static str, Vec<f64>>,
    peak_kib: u64,
}

/// A measured job, with its own goal if it has one.
#[derive(Clone, Copy, PartialEq)]
struct Row {
    name: &'static str,
    goal: Option<f64>,
}

impl Times {
    fn put(&mut self, name: &'static str, goal: Option<f64>, seconds: f64) {
        let row = Row { name, goal };
        if !self.rows.contains(&row) {
            self.rows.push(row);
        }
        self.seconds.entry(name).or_default().push(seconds);
    }

    /// Runs a job and records its time.
    fn take(
        &mut self,
        name: &'static str,
        goal: Option<f64>,
        what: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        let begin = Instant::now();
        what().context(name)?;
        self.put(name, goal, begin.elapsed().as_secs_f64());
        Ok(())
    }

    fn median(&self, row: &Row) -> f64 {
        self.seconds
            .get(row.name)
            .map_or(f64::NAN, |all| median(&sorted(all.clone())))
    }
}

/// Runs a program to its end; `ends` are the accepted exit codes.
fn program(command: &mut Command, ends: &[i32]) -> Result<()> {
    let output = command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .output()
        .with_context(|| format!("starting {command:?}"))?;
    match output.status.code() {
        Some(code) if ends.contains(&code) => Ok(()),
        _ => bail!(
            "{command:?} ended with {}: {}",
            output.status,
            String::from_utf8_lossy(&output.stderr)
        ),
    }
}

fn is_installed(name: &str) -> bool {
    std::env::var_os("PATH")
        .is_some_and(|path| std::env::split_paths(&path).any(|folder| folder.join(name).exists()))
}

/// Returns a number from the environment, or the default number.
fn amount(name: &str, usual: u64) -> Result<u64> {
    match std::env::var(name) {
        Ok(text) => text.parse().with_context(|| format!("{name} is a number")),
        Err(_) => Ok(usual),
    }
}

fn scaled(scale: Scale) -> Result<Scale> {
    Ok(Scale {
        source_files: usize::try_from(amount("BUTTRESS_BENCH_FILES", scale.source_files as u64)?)?,
        inline_files: amount("BUTTRESS_BENCH_INLINE", scale.inline_files)?,
        large_bytes: match std::env::var("BUTTRESS_BENCH_GIB") {
            Ok(_) => amount("BUTTRESS_BENCH_GIB", 0)? << 30,
            Err(_) => scale.large_bytes,
        },
        ..scale
    })
}

/// Runs the named jobs, or all.
pub(crate) fn run_all(scale: Scale, wanted: &[&str]) -> Result<()> {
    if let Some(unknown) = wanted
        .iter()
        .find(|word| !JOBS.iter().any(|(name, _)| name == *word))
    {
        bail!("no job {unknown}; there are tree, create, large, random, sqlite");
    }
    let scale = scaled(scale)?;
    let sides = std::env::var("BUTTRESS_BENCH_SIDES").unwrap_or_else(|_| "kernel buttress memory".to_owned());
    println!(
        "| mounted | kernel s | buttress s | memory s | to kernel | to memory | goal | met |\n\
         |---|---|---|---|---|---|---|---|"
    );
    let mut peaks = Vec::new();
    for (name, job) in JOBS {
        if !wanted.is_empty() && !wanted.contains(&name) {
            continue;
        }
        let mut all = [Times::default(), Times::default(), Times::default()];
        for _ in 0..scale.rounds {
            for (kind, times) in Kind::ALL.into_iter().zip(&mut all) {
                if sides.contains(kind.name()) {
                    let mut side = Side::new(kind, scale)?;
                    job(scale, &mut side, times).with_context(|| format!("{name} by {}", kind.name()))?;
                    side.close()?;
                    times.peak_kib = times.peak_kib.max(side.peak_kib);
                }
            }
        }
        print_rows(&all);
        peaks.push(format!("{name} {} MiB", all[1].peak_kib / 1024));
    }
    println!("\nPeak memory of the server: {}\n", peaks.join(", "));
    Ok(())
}

fn print_rows([kernel, ours, memory]: &[Times; 3]) {
    let rows = [ours, kernel, memory]
        .into_iter()
        .find(|times| !times.rows.is_empty());
    for row in rows.map_or(&[][..], |times| &times.rows) {
        let [theirs, own, floor] = [kernel, ours, memory].map(|times| times.median(row));
        let (goal, allowed) = match row.goal {
            Some(goal) => (format!("{goal:.2} of kernel"), goal * theirs),
            None if floor > theirs => (format!("{ABOVE_FLOOR} of memory"), ABOVE_FLOOR * floor),
            None => (format!("{WORST} of kernel"), WORST * theirs),
        };
        println!(
            "| {} | {} | {} | {} | {} | {} | {goal} | {} |",
            row.name,
            figure(theirs, 3),
            figure(own, 3),
            figure(floor, 3),
            figure(own / theirs, 2),
            figure(own / floor, 2),
            if own <= allowed && own <= WORST * theirs {
                "yes"
            } else {
                "no"
            }
        );
    }
}

/// Formats a number, or returns an empty text for a side without this row.
fn figure(number: f64, places: usize) -> String {
    match number.is_nan() {
        true => String::new(),
        false => format!("{number:.places$}"),
    }
}

/// Runs a part of a job in this process, which another process of the benchmark started.
pub(crate) fn part(words: &[&str]) -> Result<()> {
    match words {
        ["serve", directory] => memory::serve(Path::new(directory)),
        ["create", directory, first, count] => {
            files::create_some(Path::new(directory), first.parse()?, count.parse()?)
        }
        _ => bail!("mount-part is for the benchmark itself"),
    }
}
