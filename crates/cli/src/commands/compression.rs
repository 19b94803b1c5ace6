//! `buttress compression IMAGE[:/path]`: compression ratios of files, in the format of compsize.
//!
//! Every extent counts once, however many files, subvolumes and snapshots below the path use it. It
//! counts as a whole, however little of it they use. *Referenced* is the sum of the ranges in all
//! files, so shared extents count several times. Inline content counts at every reference. Blocks
//! that several subvolumes share are read once.

use std::ffi::OsString;
use std::io::Write;

use anyhow::Result;
use buttress::accounting::{Extents, Files, Occupied, Options, References};
use buttress::{Follow, Progress};
use clap::Args;
use serde_json::{Map, Value};

use crate::context::Context;
use crate::exit::Outcome;
use crate::manual::{Example, example};
use crate::progress::Watch;
use crate::signals::Cancelling;
use crate::table::Subcommand;

/// Show the compression of files, like compsize
#[derive(Args, Debug)]
pub struct Compression {
    /// Print sizes in bytes
    #[arg(short = 'b', long)]
    bytes: bool,
    /// Do not descend into nested subvolumes
    #[arg(short = 'x', long)]
    one_file_system: bool,
    /// Files and directories to count
    #[arg(value_name = "IMAGE[:/path]")]
    target: OsString,
}

/// A line of the compression table.
#[derive(Clone, Copy, Debug, Default)]
struct Line {
    disk: u64,
    uncompressed: u64,
    referenced: u64,
}

impl Line {
    fn of(extents: &Extents, references: &References) -> Self {
        let sum = |a: u64, b: u64| a.saturating_add(b);
        let inline = references.inline_bytes.get();
        Self {
            disk: sum(extents.disk.get(), references.inline_stored.get()),
            uncompressed: sum(extents.uncompressed.get(), inline),
            referenced: sum(references.bytes.get(), inline),
        }
    }

    fn percent(self) -> Option<u64> {
        self.disk.saturating_mul(100).checked_div(self.uncompressed)
    }
}

impl Subcommand for Compression {
    const NAME: &'static str = "compression";
    const ON_MOUNTS: bool = true;
    const EXAMPLES: &'static [Example] = &[example(
        "buttress compression backup.img:/home",
        "Shows the sizes of a directory's files by compression algorithm",
    )];

    fn run(self, context: &Context) -> Result<Outcome> {
        let target = context.target(&self.target);
        let opened = context.open_volume_for_one_pass(&target.image)?;
        let location = opened
            .locate(&target.path, Follow::NotLast)
            .map_err(|error| target.name_in(error))?;
        let filesystem = opened.volume();
        let progress = Progress::new();
        let _cancelling = Cancelling::start_reading(&progress)?;
        let watch = Watch::start(context, "compression", progress.clone());
        let all = filesystem.subvolumes()?;
        let place = filesystem.place_of(location, &all, self.one_file_system, &progress)?;
        let options = Options {
            parts: place.parts.clone(),
            names: true,
            ..Options::default()
        };
        let accounting = filesystem.account_space(&options, &progress)?;
        watch.end();
        super::space::tell_failures(context, &target, &accounting);
        let scope = place.scope(&accounting, false);
        let files = accounting.named_files(&scope);
        let occupied = accounting.occupied_by(&scope);
        if context.json() {
            context.print_json("compression", as_json(&files, &occupied))?;
            return Ok(Outcome::Done);
        }
        if files.sum() == References::default() {
            // Like compsize, print no ratio for zero bytes.
            let nothing = if files.count == 0 {
                "No files."
            } else {
                "All empty or still-delalloced files."
            };
            return Err(anyhow::anyhow!("{nothing}").context(target.display()));
        }
        let mut out = context.stdout();
        print(&mut out, &files, &occupied, self.bytes)?;
        out.flush()?;
        Ok(Outcome::Done)
    }
}

fn print(out: &mut dyn Write, files: &Files, occupied: &Occupied, in_bytes: bool) -> Result<()> {
    let (extents, references) = (occupied.sum(), files.sum());
    let plural = if files.count == 1 { "" } else { "s" };
    writeln!(
        out,
        "Processed {} file{plural}, {} regular extents ({} refs), {} inline.",
        files.count, extents.count, references.count, references.inline_count
    )?;
    writeln!(
        out,
        "{:<10} {:<8} {:<12} {:<12} {:<12}",
        "Type", "Perc", "Disk Usage", "Uncompressed", "Referenced"
    )?;
    let size = |bytes: u64| {
        if in_bytes {
            bytes.to_string()
        } else {
            format!("{:>5}", human(bytes))
        }
    };
    let mut line = |name: &str, line: Line| {
        let percent = line
            .percent()
            .map_or_else(|| "-".to_owned(), |of| format!("{of}%"));
        let (disk, uncompressed) = (size(line.disk), size(line.uncompressed));
        let referenced = size(line.referenced);
        writeln!(
            out,
            "{name:<10} {percent:>4}     {disk:<12} {uncompressed:<12} {referenced:<12}"
        )
    };
    line("TOTAL", Line::of(&extents, &references))?;
    for ((kind, extents), (_, references)) in occupied.extents.iter().zip(files.references.iter()) {
        if *extents != Extents::default() || *references != References::default() {
            line(kind.name(), Line::of(extents, references))?;
        }
    }
    Ok(())
}

fn as_json(files: &Files, occupied: &Occupied) -> Value {
    let object = |extents: &Extents, references: &References| {
        let line = Line::of(extents, references);
        let mut object = Map::new();
        for (name, number) in [
            ("extents", extents.count),
            ("references", references.count),
            ("inline", references.inline_count),
            ("disk_usage", line.disk),
            ("uncompressed", line.uncompressed),
            ("referenced", line.referenced),
        ] {
            object.insert(name.to_owned(), number.into());
        }
        object
    };
    let mut document = Map::new();
    document.insert("files".to_owned(), files.count.into());
    let total = object(&occupied.sum(), &files.sum());
    document.insert("total".to_owned(), total.into());
    let mut types = Map::new();
    for ((kind, extents), (_, references)) in occupied.extents.iter().zip(files.references.iter()) {
        types.insert(kind.name().to_owned(), object(extents, references).into());
    }
    document.insert("types".to_owned(), types.into());
    document.into()
}

/// Formats a size as compsize does: with one decimal below ten, without decimals above.
fn human(bytes: u64) -> String {
    const UNITS: [char; 7] = ['B', 'K', 'M', 'G', 'T', 'P', 'E'];
    let power = bytes.checked_ilog2().unwrap_or(0).checked_div(10).unwrap_or(0);
    let unit = UNITS.get(power as usize).copied().unwrap_or('B');
    if power == 0 {
        return format!("{bytes}{unit}");
    }
    let shift = power.saturating_mul(10);
    let whole = bytes.checked_shr(shift).unwrap_or(0);
    if whole >= 10 {
        return format!("{whole}{unit}");
    }
    let tenths = u128::from(bytes)
        .saturating_mul(10)
        .checked_shr(shift)
        .unwrap_or(0);
    let tenth = tenths.checked_rem(10).unwrap_or(0);
    format!("{whole}.{tenth}{unit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_cut_off_as_in_compsize() {
        for (bytes, text) in [
            (0, "0B"),
            (500, "500B"),
            (1023, "1023B"),
            (4096, "4.0K"),
            (307_700, "300K"),
            (1_005_020, "981K"),
            (1_389_063, "1.3M"),
            (2_361_296, "2.2M"),
            (3_966_928, "3.7M"),
            (u64::MAX, "15E"),
        ] {
            assert_eq!(human(bytes), text);
        }
    }
}
