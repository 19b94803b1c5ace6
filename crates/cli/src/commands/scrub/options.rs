//! The common command-line options of `scrub start` and `scrub resume`.

use std::ffi::OsString;
use std::path::PathBuf;

use anyhow::Result;
use clap::Args;

use crate::exit::usage;
use crate::globals::parse_size;
use crate::output::size::UnitFlags;

/// The arguments of both `scrub start` and `scrub resume`.
#[derive(Args, Debug)]
pub(super) struct Options {
    /// Stay in the foreground
    #[arg(short = 'B')]
    pub(super) foreground: bool,
    /// Print statistics of each device (with -B)
    #[arg(short = 'd')]
    pub(super) per_device: bool,
    /// Only read; repair nothing
    #[arg(short = 'r')]
    pub(super) read_only: bool,
    /// Print all counters instead of the summary (with -B)
    #[arg(short = 'R')]
    pub(super) raw_counters: bool,
    /// Limit reads of each device to this many bytes per second; 0 means no limit
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub(super) limit: Option<u64>,
    /// Name at most this many files for each error (with -B) [default: 10]
    #[arg(long, value_name = "COUNT")]
    files: Option<usize>,
    /// List at most this many errors (with -B) [default: 100]
    #[arg(long, value_name = "COUNT")]
    most: Option<usize>,
    /// Keep the status in this file, not in IMAGE.scrub-status
    #[arg(long, value_name = "FILE")]
    pub(super) status_file: Option<PathBuf>,
    /// For compatibility: a class for ionice, which has no effect
    #[arg(short = 'c', value_name = "CLASS", hide = true)]
    pub(super) io_class: Option<u32>,
    /// For compatibility: a priority for ionice, which has no effect
    #[arg(short = 'n', value_name = "PRIORITY", hide = true)]
    pub(super) io_priority: Option<u32>,
    /// This is the process in the background
    #[arg(long, hide = true)]
    pub(super) in_background: bool,
    #[command(flatten)]
    pub(super) units: UnitFlags,
    /// The image or device, or the mounted directory
    #[arg(value_name = "IMAGE")]
    pub(super) image: OsString,
}

impl Options {
    /// Returns the largest number of files named per damaged range.
    pub(super) fn files(&self) -> usize {
        self.files.unwrap_or(10)
    }

    /// Returns the largest number of listed damaged ranges.
    pub(super) fn most(&self) -> usize {
        self.most.unwrap_or(100)
    }

    /// Refuses options about the final output if the scrub runs in the background, because such a
    /// scrub prints none.
    pub(super) fn refuse_unprinted(&self) -> Result<()> {
        if self.foreground || self.in_background {
            return Ok(());
        }
        let given = [
            (self.per_device, "-d"),
            (self.raw_counters, "-R"),
            (self.files.is_some(), "--files"),
            (self.most.is_some(), "--most"),
            (self.units.are_given(), "a unit"),
        ];
        match given.into_iter().find(|(given, _)| *given) {
            Some((_, option)) => Err(usage(format_args!(
                "{option} needs -B, because a scrub in the background prints no summary"
            ))),
            None => Ok(()),
        }
    }
}
