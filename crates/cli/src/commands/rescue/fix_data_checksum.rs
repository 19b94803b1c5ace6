//! `buttress rescue fix-data-checksum IMAGE`: checksums of data that is right although it does not
//! match them.

use std::ffi::OsString;
use std::io::{BufRead as _, Write};

use anyhow::{Context as _, Result};
use buttress::repair::{Mismatch, accept_data, find_mismatches};
use buttress::{ByteCount, DeviceOptions, Logical, Progress, Volume};
use clap::Args;
use serde_json::{Map, Value, json};

use crate::commands::inspect_internal::inode_resolve::with_finder;
use crate::commands::inspect_internal::paths::PathFinder;
use crate::context::Context;
use crate::exit::Outcome;
use crate::globals::{DEFAULT_CACHE_BYTES, Uses};
use crate::manual::{Example, ExitCode, example};
use crate::output::json::insert_name;
use crate::output::terminal;
use crate::progress::Watch;
use crate::signals::Cancelling;
use crate::table::Subcommand;
use crate::target::Target;

/// The most sectors that one run accepts, which bounds its memory.
const SECTORS_MAX: usize = 1 << 20;

/// The most files that are named for a sector.
const PATHS_MAX: usize = 10;

/// Compute checksums again for data that does not match them
///
/// A program that changes its buffer during direct I/O leaves data that does not match its checksum.
/// Without an option, the command only lists such data with its files. If one copy matches, `scrub
/// start` repairs the other copies instead.
#[derive(Args, Debug)]
pub struct FixDataChecksum {
    /// List the data, and change nothing; this is the default
    #[arg(short = 'r', long, conflicts_with_all = ["interactive", "mirror"])]
    readonly: bool,
    /// Ask for each sector which copy counts; no answer leaves the checksum as it is
    #[arg(short = 'i', long, conflicts_with = "mirror")]
    interactive: bool,
    /// Compute all wrong checksums from this copy, from 1; past the last copy, numbers count from 1 again
    #[arg(short = 'm', long, value_name = "MIRROR", value_parser = clap::value_parser!(u32).range(1..))]
    mirror: Option<u32>,
    /// The image or device
    #[arg(value_name = "IMAGE")]
    image: OsString,
}

/// A sector without a matching copy, the files that use it, and the chosen copy.
struct Found {
    mismatch: Mismatch,
    paths: Vec<Vec<u8>>,
    chosen: Option<u32>,
}

impl Subcommand for FixDataChecksum {
    const NAME: &'static str = "fix-data-checksum";
    const EXAMPLES: &'static [Example] = &[
        example(
            "buttress rescue fix-data-checksum backup.img",
            "Lists the data that does not match its checksums",
        ),
        example(
            "buttress rescue fix-data-checksum -m 1 --overlay tried backup.img",
            "Accepts the first copy of all such data, in an overlay",
        ),
    ];
    const EXIT_CODES: &'static [ExitCode] = &[
        (0, "All data matches its checksums, or was accepted"),
        (1, "Data does not match its checksum, or the command failed"),
        (2, "The command line is wrong"),
    ];

    fn uses(&self) -> Uses {
        Uses {
            state: false,
            ..Uses::VOLUME
        }
    }

    fn run(self, context: &Context) -> Result<Outcome> {
        let target = Target::parse(&self.image);
        let name = || target.image.display().to_string();
        let options = DeviceOptions {
            write: self.interactive || self.mirror.is_some(),
            ..context.device_options()
        };
        let devices = context.open_devices_with(core::slice::from_ref(&target.image), &options)?;
        let progress = context.progress();
        let volume = context.volume_options().on_disk().open_devices(devices.clone())?;
        let (found, repairable) = self.survey(context, &volume, &progress).with_context(name)?;
        drop(volume);
        let accepted: Vec<(Logical, u32)> = found
            .iter()
            .filter_map(|found| Some((found.mismatch.logical, found.chosen?)))
            .collect();
        let mut changed = 0;
        if !accepted.is_empty() {
            // Clamp: without the option, the default budget counts.
            let cache = context.globals().cache_bytes.unwrap_or(DEFAULT_CACHE_BYTES);
            let _cancelling = Cancelling::start(&progress)?;
            changed =
                accept_data(&devices, ByteCount::new(cache), &accepted, &progress).with_context(name)?;
        }
        if repairable > 0 {
            context.notice(format_args!(
                "{repairable} sectors have a copy that matches: `buttress scrub start` repairs the other copies"
            ));
        }
        report(context, &target, &found, changed)?;
        Ok(match found.len() == accepted.len() {
            true => Outcome::Done,
            false => Outcome::Negative,
        })
    }
}

impl FixDataChecksum {
    /// Finds the sectors without a matching copy, and the number of other sectors with a wrong copy.
    fn survey(&self, context: &Context, volume: &Volume, progress: &Progress) -> Result<(Vec<Found>, u64)> {
        // A signal ends the command while it prints or asks.
        let cancelling = Cancelling::start(progress)?;
        let watch = Watch::start(context, "fix-data-checksum", progress.clone());
        let (mut wrong, mut repairable, mut is_cut) = (Vec::new(), 0_u64, false);
        let surveyed = find_mismatches(volume, progress, &mut |mismatch| {
            match mismatch.has_good_copy() {
                true => repairable = repairable.saturating_add(1), // Clamp: a count for display.
                false if wrong.len() < SECTORS_MAX => wrong.push(mismatch),
                false => is_cut = true,
            }
        });
        watch.end_as(surveyed.is_ok());
        drop(cancelling);
        surveyed?;
        anyhow::ensure!(
            !is_cut,
            "more than {SECTORS_MAX} sectors have no copy that matches its checksum"
        );
        let found = with_finder(volume, |finder| {
            self.choose(context, volume, finder, (wrong, progress))
        })?;
        Ok((found, repairable))
    }

    /// Finds the files of wrong sectors, and chooses the copies.
    fn choose(
        &self,
        context: &Context,
        volume: &Volume,
        finder: &mut PathFinder<'_>,
        (wrong, progress): (Vec<Mismatch>, &Progress),
    ) -> Result<Vec<Found>> {
        let mut found = Vec::new();
        let shows = !context.json() && !context.globals().quiet;
        for mismatch in wrong {
            progress.check()?;
            let paths = paths_of(volume, finder, mismatch.logical);
            let mut one = Found {
                mismatch,
                paths,
                chosen: None,
            };
            if shows || self.interactive {
                print(context, &one)?;
            }
            one.chosen = match (self.interactive, self.mirror) {
                (true, _) => asked(one.mismatch.copies)?,
                (false, Some(mirror)) => Some(wrapped(mirror, one.mismatch.copies)),
                (false, None) => None,
            };
            found.push(one);
        }
        Ok(found)
    }
}

/// Returns the number of a copy that exists: after the last copy, the numbers count from 1 again.
fn wrapped(mirror: u32, copies: u32) -> u32 {
    let from_zero = mirror.saturating_sub(1).checked_rem(copies); // Clamp: the option is at least 1.
    from_zero.map_or(1, |from_zero| from_zero.saturating_add(1)) // Clamp: less than the number of copies.
}

/// Returns paths of the files that use an address. An address whose files cannot be found has none.
fn paths_of(volume: &Volume, finder: &mut PathFinder<'_>, logical: Logical) -> Vec<Vec<u8>> {
    let Ok(references) = volume.data_references(logical, false) else {
        return Vec::new();
    };
    let mut paths = Vec::new();
    for reference in references.iter().take(PATHS_MAX) {
        paths.extend(finder.paths(reference.location).unwrap_or_default()); // Clamp: see above.
    }
    paths.sort_unstable();
    paths.dedup();
    paths.truncate(PATHS_MAX);
    paths
}

/// Asks which copy counts. No answer, and any answer except a number of a copy, means none.
fn asked(copies: u32) -> Result<Option<u32>> {
    let choices: Vec<String> = (1..=copies).map(|copy| format!("({copy})")).collect();
    terminal::prompt(&format_args!(
        "Which copy is right? (i)gnore/{} [i]: ",
        choices.join("/")
    ));
    let mut answer = String::new();
    std::io::stdin().lock().read_line(&mut answer)?;
    let chosen = answer.trim().parse().ok();
    Ok(chosen.filter(|copy| (1..=copies).contains(copy)))
}

fn print(context: &Context, found: &Found) -> Result<()> {
    let mut out = context.stdout();
    let wrong: Vec<String> = found.mismatch.wrong.iter().map(u32::to_string).collect();
    writeln!(
        out,
        "logical={} corrupted mirrors={} affected files:",
        found.mismatch.logical,
        wrong.join(",")
    )?;
    for path in &found.paths {
        write!(out, "  ")?;
        out.write_all(&context.printable(path))?;
        writeln!(out)?;
    }
    out.flush()?;
    Ok(())
}

fn report(context: &Context, target: &Target, found: &[Found], changed: u64) -> Result<()> {
    if context.json() {
        let sectors = found.iter().map(|one| {
            let paths = one.paths.iter().map(|path| {
                let mut object = Map::new();
                insert_name(&mut object, "path", path);
                Value::Object(object)
            });
            json!({
                "logical": one.mismatch.logical.get(),
                "copies": one.mismatch.copies,
                "chosen": one.chosen,
                "files": paths.collect::<Vec<_>>(),
            })
        });
        let mut object = target.as_json();
        object.insert("sectors".to_owned(), sectors.collect());
        object.insert("changed".to_owned(), json!(changed));
        return context.print_json("rescue-fix-data-checksum", Value::Object(object));
    }
    if context.globals().quiet {
        return Ok(());
    }
    let mut out = context.stdout();
    match (found.len(), changed) {
        (0, _) => writeln!(out, "No data checksum mismatch found")?,
        (count, 0) => writeln!(out, "{count} sectors do not match; no checksum was changed")?,
        (count, _) => writeln!(
            out,
            "{count} sectors do not match; {changed} checksums were changed"
        )?,
    }
    out.flush()?;
    Ok(())
}
