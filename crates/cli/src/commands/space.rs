//! `buttress space IMAGE[:/dir]`: space ownership to the byte, without quotas.
//!
//! Without a path, each subvolume and snapshot has a line. With a path, each entry of the directory
//! has a line, with the owners that it shares space with. `--if-deleted` computes the space that a
//! deletion would free. `--export ncdu` writes a file for viewers of ncdu's format.
//!
//! - `rows`: converts the account to lines;
//! - `table`, `json`: the two output formats;
//! - `deleting`: the space that a deletion would free;
//! - `ncdu`: the export.

mod deleting;
mod json;
mod ncdu;
mod rows;
mod table;

use buttress::Subvolume;
use buttress_exact::u64_of;
use std::ffi::OsString;

use anyhow::{Context as _, Result};
use buttress::accounting::{Accounting, Options};
use buttress::{FileKind, Follow, Location, Progress, SubvolumeInfo, Volume};
use clap::{Args, ValueEnum};

use crate::context::Context;
use crate::exit::{Advice, Outcome, usage};
use crate::manual::{Example, example};
use crate::output::size::UnitFlags;
use crate::progress::Watch;
use crate::signals::Cancelling;
use crate::table::Subcommand;
use crate::target::Target;

/// Show the space of subvolumes, snapshots and directories, shared and exclusive
///
/// Without a path, each line is a subvolume; with a path, each line is an entry of the directory.
/// All figures are exact and need no quotas. "On disk" counts each reachable extent once.
/// "Exclusive" counts the space that no other subvolume or entry uses: deleting this subvolume or
/// entry alone frees it.
#[derive(Args, Debug)]
pub struct Space {
    /// Show the space that deleting all of these subvolumes frees; give paths or ids
    #[arg(
        long,
        value_name = "SUBVOLUME",
        value_delimiter = ',',
        conflicts_with = "export"
    )]
    if_deleted: Vec<String>,
    /// Write a list of all files in the format of a viewer
    #[arg(long, value_name = "FORMAT")]
    export: Option<Export>,
    /// Do not descend into nested subvolumes, for a path or with --export
    #[arg(short = 'x', long, conflicts_with = "if_deleted")]
    one_file_system: bool,
    #[command(flatten)]
    units: UnitFlags,
    /// The image or device, or a path in it
    #[arg(value_name = "IMAGE[:/path]")]
    target: OsString,
}

/// The target program of an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Export {
    /// ncdu's JSON, version 1.2
    Ncdu,
}

/// State that all forms of the command share.
struct Job<'a> {
    context: &'a Context,
    target: &'a Target,
    opened: &'a Subvolume,
    subvolumes: Vec<SubvolumeInfo>,
    progress: Progress,
}

impl Subcommand for Space {
    const NAME: &'static str = "space";
    const ON_MOUNTS: bool = true;
    const EXAMPLES: &'static [Example] = &[
        example(
            "buttress space backup.img",
            "Shows the total and the exclusive space of each subvolume",
        ),
        example(
            "buttress space --if-deleted monday --if-deleted tuesday backup.img",
            "Shows the space that deleting both snapshots would free",
        ),
    ];

    fn run(self, context: &Context) -> Result<Outcome> {
        let target = context.target(&self.target);
        self.refuse_unused(&target)?;
        let opened = context.open_volume_for_one_pass(&target.image)?;
        let progress = Progress::new();
        let _cancelling = Cancelling::start_reading(&progress)?;
        let watch = Watch::start(context, "space", progress.clone());
        let job = Job {
            context,
            target: &target,
            opened: &opened,
            subvolumes: opened.volume().subvolumes()?,
            progress,
        };
        if self.export == Some(Export::Ncdu) {
            ncdu::run(&job, self.one_file_system)?;
            watch.end();
            return Ok(Outcome::Done);
        }
        if !self.if_deleted.is_empty() {
            let wanted = self.if_deleted.iter().map(|name| job.subvolume(name));
            let wanted: Vec<&SubvolumeInfo> = wanted.collect::<Result<_>>()?;
            let answer = deleting::answer(&job, &wanted)?;
            watch.end();
            deleting::print(&job, &answer, self.units.units())?;
            return Ok(Outcome::Done);
        }
        let report = if target.has_path {
            rows::of_directory(&job, self.one_file_system)?
        } else {
            rows::of_subvolumes(&job)?
        };
        watch.end();
        if context.json() {
            json::print(&job, &report)?;
        } else {
            table::print(&job, &report, self.units.units())?;
        }
        Ok(Outcome::Done)
    }
}

impl Space {
    /// Refuses options without effect.
    fn refuse_unused(&self, target: &Target) -> Result<()> {
        let has_path = target.path.iter().any(|byte| *byte != b'/');
        if !self.if_deleted.is_empty() && has_path {
            return Err(usage(
                "--if-deleted applies to whole subvolumes: give the image without a path",
            ));
        }
        if self.one_file_system && !target.has_path && self.export.is_none() {
            return Err(usage(
                "--one-file-system needs a path, because without a path each line is a subvolume",
            ));
        }
        if self.export.is_some() && self.units.are_given() {
            return Err(usage("--export writes sizes in bytes, and takes no unit"));
        }
        Ok(())
    }
}

impl Job<'_> {
    fn filesystem(&self) -> &Volume {
        self.opened.volume()
    }

    /// Computes the account and reports its missing parts.
    fn account(&self, options: &Options) -> Result<Accounting> {
        let accounting = self.filesystem().account_space(options, &self.progress)?;
        tell_failures(self.context, self.target, &accounting);
        Ok(accounting)
    }

    /// Resolves the target's path.
    fn location(&self) -> Result<Location> {
        let found = self.opened.locate(&self.target.path, Follow::NotLast);
        found.map_err(|error| self.target.name_in(error))
    }

    /// Returns the subvolume for a name: a path, or an id if no such path exists.
    fn subvolume(&self, name: &str) -> Result<&SubvolumeInfo> {
        let find = |id: u64| self.subvolumes.iter().find(|info| info.id.get() == id);
        let resolved = self.opened.locate(name.as_bytes(), Follow::NotLast);
        let found = match (&resolved, name.parse()) {
            (Ok(location), _) if *location == Location::root_of(location.subvolume) => {
                find(location.subvolume.get())
            }
            (Ok(_), _) => None,
            (Err(_), Ok(id)) => find(id),
            (Err(_), Err(_)) => None,
        };
        let problem = || match resolved {
            Ok(_) => anyhow::anyhow!("{name}: not a subvolume"),
            Err(error) => anyhow::Error::new(error).context(name.to_owned()),
        };
        found.ok_or_else(problem).with_context(|| {
            Advice::new("`buttress subvolume list` prints the paths and ids of all subvolumes")
        })
    }

    /// Returns the path of a subvolume from the top level for printing.
    fn path_of(&self, info: &SubvolumeInfo) -> Vec<u8> {
        match &info.path {
            Some(path) => [b"/", path.as_slice()].concat(),
            None if info.is_deleted() => b"<deleted>".to_vec(),
            None => b"<without a path>".to_vec(),
        }
    }

    fn kind_of(&self, location: Location) -> Result<FileKind> {
        Ok(self.filesystem().metadata(location)?.kind)
    }
}

/// Reports unreadable directories and subvolumes, whose content the figures lack.
pub fn tell_failures(context: &Context, target: &Target, accounting: &Accounting) {
    for failure in accounting.failures() {
        context.lost(&target.name_in(failure.clone()));
    }
    let told = u64_of(accounting.failures().len());
    let more = accounting.failure_count().saturating_sub(told);
    if more > 0 {
        let message = format!("{more} more tree blocks could not be read");
        context.lost(&target.name_in(anyhow::anyhow!(message)));
    }
}
