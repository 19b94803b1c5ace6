//! `buttress check IMAGE`: checks every cross-reference of a volume, read-only. With `--repair`, the
//! command also repairs findings: see the module `repair`.
//!
//! Stages appear on stderr under the names of `btrfs check`. Findings, states and the closing lines
//! that scripts search for go to stdout, each with its severity. Exit code 0: only notes; 1: an
//! error or lost redundancy; 2: the check itself failed.

mod recovery;
mod repair;

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io::Write;

use anyhow::{Context as _, Result};
use buttress::check::{Finding, Options, Report, Reported, Step, Totals, Value as Field};
use buttress::{ByteCount, Progress, Volume};
use clap::Args;
use serde_json::{Map, Value, json};

use crate::context::Context;
use crate::exit::{self, Advice, Outcome};
use crate::globals::{DEFAULT_CACHE_BYTES, Uses};
use crate::manual::{Example, ExitCode, example};
use crate::output::events;
use crate::output::json::insert_name;
use crate::output::terminal;
use crate::progress::Watch;
use crate::sources::Role;
use crate::table::Subcommand;
use crate::target::Target;

/// Check every cross-reference of a volume; with --repair, repair it in an overlay
#[derive(Args, Debug)]
pub struct Check {
    /// Read every copy of all data, and verify its checksums
    #[arg(long)]
    check_data_csum: bool,
    /// For compatibility: without --repair, the check never writes
    #[arg(long, conflicts_with = "repair")]
    readonly: bool,
    /// Repair what the check finds, and check again. The changes go to an overlay beside the image:
    /// IMAGE.repair, or the file of --overlay. docs/repair.md describes the repairs
    #[arg(long)]
    repair: bool,
    /// Write the repair to the image if it makes the volume better, and delete the overlay
    #[arg(long, requires = "repair", conflicts_with_all = ["in_place", "dry_run"])]
    commit: bool,
    /// Write the repair to the image itself, after a trial in memory that makes the volume better
    #[arg(long, requires = "repair", conflicts_with = "dry_run")]
    in_place: bool,
    /// Allow the repair of this finding to lose what its step names; `all` allows every repair
    #[arg(long, value_name = "CODE", requires = "repair")]
    yes_to: Vec<String>,
    /// Try the repair in memory, and write nothing
    #[arg(long, requires = "repair")]
    dry_run: bool,
    /// For compatibility: a read-only check needs no force
    #[arg(long)]
    force: bool,
    /// For compatibility: progress is shown on terminals
    #[arg(short = 'p')]
    show_progress: bool,
    /// Print at most this many findings
    #[arg(long, value_name = "COUNT", default_value_t = 10_000)]
    most: usize,
    /// Name at most this many files or subvolumes that a finding affects
    #[arg(long, value_name = "COUNT", default_value_t = 10)]
    affected: usize,
    /// List the codes of all findings, and check nothing
    #[arg(long, conflicts_with_all = ["check_data_csum", "most", "affected", "repair", "image"])]
    codes: bool,
    /// The image or device
    #[arg(value_name = "IMAGE", required_unless_present = "codes")]
    image: Option<OsString>,
}

/// Divisor of the memory budget for the cache; the check itself uses the rest.
const CACHE_PARTS: u64 = 4;

impl Subcommand for Check {
    const NAME: &'static str = "check";
    const TROUBLE: u8 = exit::USAGE;
    const EXAMPLES: &'static [Example] = &[
        example(
            "buttress check backup.img",
            "Checks every cross-reference of a volume",
        ),
        example(
            "buttress check --check-data-csum backup.img",
            "Also reads every copy of all data",
        ),
        example(
            "buttress check --repair backup.img",
            "Repairs the volume in the overlay backup.img.repair",
        ),
    ];
    const EXIT_CODES: &'static [ExitCode] = &[
        (0, "There are no findings, or none are left after the repair"),
        (1, "There are findings"),
        (2, "The check could not run, or the command line is wrong"),
    ];

    fn uses(&self) -> Uses {
        // A plan for an older state does not fit the newest one.
        Uses {
            state: !self.repair,
            ..Uses::VOLUME
        }
    }

    fn run(self, context: &Context) -> Result<Outcome> {
        let Some(image) = &self.image else {
            print_codes(context)?;
            return Ok(Outcome::Done);
        };
        let target = Target::parse(image);
        if self.repair {
            return repair::Job::new(&self, context, target).run();
        }
        let volume = {
            self.begin(context, &target)?;
            context.open_for_check(&target.image)?
        };
        let report = self.check(context, &target, &volume)?;
        let uuid = volume.info().fsid;
        if context.json() {
            let document = as_json(&report, &target.image.to_string_lossy(), &uuid.to_string());
            context.print_json("check", document)?;
        } else {
            let mut out = context.stdout();
            print(context, &mut out, &report)?;
            out.flush()?;
        }
        Ok(if report.is_clean() {
            Outcome::Done
        } else {
            Outcome::Negative
        })
    }
}

impl Check {
    /// Prints the line before the volume is opened.
    fn begin(&self, context: &Context, target: &Target) -> Result<()> {
        // Standard output must not lead to the volume, which is not open yet.
        let devices = core::iter::once(&target.image).chain(&context.globals().devices);
        for device in devices {
            context.sources().add(device, Role::Volume)?;
        }
        if !context.json() {
            let mut out = context.stdout();
            writeln!(out, "Opening filesystem to check...")?;
            out.flush()?;
        }
        Ok(())
    }

    /// Checks a volume, and prints its name before.
    fn check(&self, context: &Context, target: &Target, volume: &Volume) -> Result<Report> {
        if !context.json() {
            let mut out = context.stdout();
            writeln!(
                out,
                "Checking filesystem on {}",
                terminal::shown(target.image.display())
            )?;
            writeln!(out, "UUID: {}", volume.info().fsid)?;
            out.flush()?;
        }
        let options = self.options(context);
        let progress = Progress::new();
        let watch = Watch::start(context, "check", progress.clone());
        let quiet = context.globals().quiet;
        let on_step = |step: Step, skipped: Option<&'static str>| {
            if !quiet {
                tell(step, skipped, options.data_checksums);
            }
        };
        let report = volume.check_with(&options, &progress, &on_step)?;
        watch.end();
        Ok(report)
    }

    fn options(&self, context: &Context) -> Options {
        let budget = context.globals().cache_bytes.unwrap_or(DEFAULT_CACHE_BYTES);
        Options {
            data_checksums: self.check_data_csum,
            cache: ByteCount::new(budget.checked_div(CACHE_PARTS).unwrap_or(0)),
            findings_max: self.most,
            affected_max: self.affected,
        }
    }

    /// Returns the codes of `--yes-to`.
    ///
    /// # Errors
    /// Fails for a word that no finding has as its code.
    fn allowed(&self) -> Result<BTreeSet<String>> {
        for code in &self.yes_to {
            if code != "all" && !Finding::CODES.iter().any(|(known, ..)| known == code) {
                return Err(anyhow::anyhow!("--yes-to {code}: no finding has this code")).context(
                    Advice::new("`buttress check --codes` lists all codes; `all` stands for every code"),
                );
            }
        }
        Ok(self.yes_to.iter().cloned().collect())
    }
}

/// Prints a stage in the wording of `btrfs check`.
fn tell(step: Step, skipped: Option<&'static str>, data: bool) {
    let what = match step {
        Step::Checksums if data => "csums against data",
        Step::Checksums => "only csums items (without verifying data)",
        other => other.name(),
    };
    let steps = Step::ALL.len();
    if events::are_wanted() {
        let fields = json!({
            "job": "check",
            "step": step.number(),
            "steps": steps,
            "checking": what,
            "skipped": skipped,
        });
        events::tell("step", fields);
        return;
    }
    let reason = skipped.map_or_else(String::new, |reason| format!(" skipped ({reason})"));
    terminal::line(&format_args!(
        "[{}/{steps}] checking {what}{reason}",
        step.number()
    ));
}

fn print(context: &Context, out: &mut dyn Write, report: &Report) -> Result<()> {
    for note in &report.notes {
        writeln!(out, "{} [{}]: {note}", note.code(), note.level())?;
    }
    for Reported { finding, affected } in &report.findings {
        let (code, level, grade) = (finding.code(), finding.level(), finding.grade());
        write!(out, "{code} [{level}, {grade}]: ")?;
        let text = finding.to_string();
        out.write_all(&context.printable(text.as_bytes()))?;
        writeln!(out)?;
        for path in affected {
            out.write_all(b"\t")?;
            out.write_all(&context.printable(path))?;
            writeln!(out)?;
        }
    }
    let kept = report.findings.len();
    let rest = report.count().saturating_sub(ByteCount::of(kept).get());
    if rest > 0 {
        writeln!(out, "and {rest} more findings")?;
    }
    let outcome = if report.is_clean() {
        "no error found"
    } else {
        "error(s) found"
    };
    writeln!(out, "found {} bytes used, {outcome}", report.totals.bytes_used)?;
    for (name, bytes) in totals(&report.totals) {
        writeln!(out, "{name}: {bytes}")?;
    }
    Ok(())
}

/// Returns the totals under the names of `btrfs check`.
fn totals(totals: &Totals) -> [(&'static str, ByteCount); 7] {
    [
        ("total csum bytes", totals.checksum_bytes),
        ("total tree bytes", totals.tree_bytes),
        ("total fs tree bytes", totals.file_tree_bytes),
        ("total extent tree bytes", totals.extent_tree_bytes),
        ("btree space waste bytes", totals.tree_waste_bytes),
        ("file data blocks allocated", totals.data_bytes),
        (" referenced", totals.referenced_bytes),
    ]
}

fn as_json(report: &Report, image: &str, uuid: &str) -> Value {
    let findings: Vec<Value> = report.findings.iter().map(finding_as_json).collect();
    let counts: Map<String, Value> = report
        .counts
        .iter()
        .map(|(code, count)| ((*code).to_owned(), json!(count)))
        .collect();
    let notes: Vec<Value> = report
        .notes
        .iter()
        .map(|note| json!({ "code": note.code(), "level": note.level().name(), "message": note.to_string() }))
        .collect();
    let totals: Map<String, Value> = totals(&report.totals)
        .into_iter()
        .map(|(name, bytes)| (name.trim().replace(' ', "-"), json!(bytes.get())))
        .collect();
    json!({
        "image": image,
        "uuid": uuid,
        "clean": report.is_clean(),
        "level": report.level().map(|level| level.name()),
        "worst": report.worst().map(|grade| grade.name()),
        "bytes-used": report.totals.bytes_used.get(),
        "verified-bytes": report.totals.verified_bytes.get(),
        "totals": totals,
        "counts": counts,
        "findings": findings,
        "notes": notes,
    })
}

fn finding_as_json(reported: &Reported) -> Value {
    let finding = &reported.finding;
    let mut fields = Map::new();
    for (name, value) in finding.fields() {
        match value {
            Field::Number(number) => drop(fields.insert(name.to_owned(), json!(number))),
            Field::Text(text) => drop(fields.insert(name.to_owned(), text.into())),
            Field::Name(bytes) => insert_name(&mut fields, name, &bytes),
        }
    }
    let affected: Vec<Value> = reported
        .affected
        .iter()
        .map(|path| {
            let mut object = Map::new();
            insert_name(&mut object, "path", path);
            Value::Object(object)
        })
        .collect();
    json!({
        "code": finding.code(),
        "level": finding.level().name(),
        "grade": finding.grade().name(),
        "step": finding.step().name(),
        "message": finding.to_string(),
        "fields": fields,
        "affected": affected,
    })
}

fn print_codes(context: &Context) -> Result<()> {
    if context.json() {
        let codes: Vec<Value> = Finding::CODES
            .iter()
            .map(|(code, grade, step)| {
                let level = grade.level().name();
                json!({ "code": code, "level": level, "grade": grade.name(), "step": step.name() })
            })
            .collect();
        return context.print_json("check-codes", codes.into());
    }
    let mut out = context.stdout();
    for (code, grade, step) in Finding::CODES {
        let level = grade.level();
        writeln!(out, "{code:<32} {level:<16} {grade:<14} {}", step.name())?;
    }
    out.flush()?;
    Ok(())
}
