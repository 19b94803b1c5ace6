//! `buttress scrub start IMAGE` and `buttress scrub resume IMAGE`.

use std::io::Write as _;
use std::path::Path;

use anyhow::{Context as _, Result, anyhow};
use buttress::Uuid;
use buttress::scrub::Position;
use clap::Args;
use serde_json::json;

use super::options::Options;
use super::record::{Record, State};
use super::{EXIT_CODES, NOTHING, STATUS_ENDING, described, online, running};
use crate::background::{self, status_file};
use crate::context::Context;
use crate::exit::{Advice, Outcome};
use crate::globals::Uses;
use crate::manual::{Example, ExitCode, example};
use crate::output::{stdout, terminal};
use crate::table::Subcommand;
use crate::target::Target;

/// Read every copy and all parity of a volume, and repair damage
///
/// The scrub reads and verifies superblocks, tree blocks, data and parity. The scrub rewrites
/// damaged copies from another copy or from parity. A list shows each uncorrectable error, with
/// every place that was tried and the affected files. The volume must not be mounted, unless
/// `buttress mount` mounted it: IMAGE is then the mounted directory, and the mount's server scrubs
/// while the volume is in use.
#[derive(Args, Debug)]
pub(super) struct Start {
    /// Start from the beginning, and ignore the status file
    #[arg(short = 'f')]
    force: bool,
    #[command(flatten)]
    options: Options,
}

/// Continue a scrub that was cancelled or interrupted
#[derive(Args, Debug)]
pub(super) struct Resume {
    #[command(flatten)]
    options: Options,
}

impl Subcommand for Start {
    const NAME: &'static str = "start";
    const ON_MOUNTS: bool = true;
    const EXAMPLES: &'static [Example] = &[
        example(
            "buttress scrub start -B backup.img",
            "Reads every copy, repairs damage, and prints a summary",
        ),
        example(
            "buttress scrub start -Bd --device second.img first.img",
            "Scrubs a volume of two devices, and prints counters of each",
        ),
        example(
            "buttress scrub start -B --overlay changes.overlay backup.img",
            "Writes repairs to an overlay, and leaves the image unchanged",
        ),
        example(
            "buttress scrub start --limit 50M /mnt",
            "Scrubs a mounted volume in the background, at most 50 MiB per second of each device",
        ),
    ];
    const EXIT_CODES: &'static [ExitCode] = EXIT_CODES;

    fn uses(&self) -> Uses {
        // Repairs from an older state would write its content over newer content.
        Uses {
            state: false,
            ..Uses::VOLUME
        }
    }

    fn run(self, context: &Context) -> Result<Outcome> {
        self.options.refuse_unprinted()?;
        if let Some(online) = online::find(context, &self.options.image)? {
            return online.run(context, &self.options, None, Self::NAME);
        }
        let target = Target::parse(&self.options.image);
        let path = status_path(&described(context, &target.image), &self.options)?;
        if !self.force
            && let Some(path) = &path
            && let Some(record) = Record::find(path)?
            && record.state == State::Running
            && !self.options.in_background
        {
            return Err(already_running(&target.image, &record));
        }
        if !self.options.foreground && !self.options.in_background {
            return go_to_background(context, &target.image, path.as_deref());
        }
        running::run(
            context,
            &target.image,
            &self.options,
            path.as_deref(),
            None,
            Self::NAME,
        )
    }
}

impl Subcommand for Resume {
    const NAME: &'static str = "resume";
    const ON_MOUNTS: bool = true;
    const EXAMPLES: &'static [Example] = &[example(
        "buttress scrub resume -B backup.img",
        "Continues a stopped scrub",
    )];
    const EXIT_CODES: &'static [ExitCode] = EXIT_CODES;

    fn uses(&self) -> Uses {
        // Repairs from an older state would write its content over newer content.
        Uses {
            state: false,
            ..Uses::VOLUME
        }
    }

    fn run(self, context: &Context) -> Result<Outcome> {
        self.options.refuse_unprinted()?;
        if let Some(online) = online::find(context, &self.options.image)? {
            return match online.record() {
                Some(record) if record.state != State::Finished => {
                    online.run(context, &self.options, Some(record), Self::NAME)
                }
                _ => nothing_to_resume(context, Path::new(&self.options.image), online.uuid()),
            };
        }
        let target = Target::parse(&self.options.image);
        let beside = described(context, &target.image);
        let path = status_file(&beside, self.options.status_file.as_deref(), STATUS_ENDING)?;
        let record = match Record::find(&path)? {
            Some(record) if record.state == State::Running && !self.options.in_background => {
                return Err(already_running(&target.image, &record));
            }
            Some(record) if record.state != State::Finished => record,
            _ => {
                // Open the volume, so that a missing volume gives the usual error.
                let filesystem = context.open_for_one_pass(&target.image)?;
                return nothing_to_resume(context, &target.image, filesystem.info().fsid);
            }
        };
        if !self.options.foreground && !self.options.in_background {
            return go_to_background(context, &target.image, Some(&path));
        }
        running::run(
            context,
            &target.image,
            &self.options,
            Some(&path),
            Some(record),
            Self::NAME,
        )
    }
}

/// Returns the status file. If a scrub of a block device runs in the foreground, it has no status
/// file, unless one is named.
fn status_path(image: &Path, options: &Options) -> Result<Option<std::path::PathBuf>> {
    match status_file(image, options.status_file.as_deref(), STATUS_ENDING) {
        Ok(path) => Ok(Some(path)),
        Err(_) if options.foreground => Ok(None),
        Err(error) => Err(error),
    }
}

fn already_running(image: &Path, record: &Record) -> anyhow::Error {
    let (process, _) = record.process;
    anyhow!(
        "{}: a scrub is already running (process {process})",
        image.display()
    )
    .context(Advice::new(
        "`buttress scrub cancel IMAGE` stops it; `buttress scrub status IMAGE` shows its progress",
    ))
}

fn nothing_to_resume(context: &Context, image: &Path, uuid: Uuid) -> Result<Outcome> {
    if !context.is_on_mount() {
        stdout::go_on_unread();
    }
    if context.json() {
        let document = json!({ "uuid": uuid.to_string(), "status": "nothing to resume" });
        context.print_json("scrub-resume", document)?;
    } else {
        let mut out = context.stdout();
        let image = terminal::shown(image.display());
        writeln!(out, "scrub: nothing to resume for {image}, fsid {uuid}")?;
        out.flush()?;
    }
    Ok(Outcome::Code(NOTHING))
}

/// Starts this command line again as a separate process, and waits until its record has the state
/// "running".
fn go_to_background(context: &Context, image: &Path, path: Option<&Path>) -> Result<Outcome> {
    let path = path.context("a scrub in the background needs a status file")?;
    let (process, record) = background::start(|process| {
        let record = Record::find(path).ok().flatten();
        record.filter(|record| record.process.0 == process)
    })?;
    let record = record.context("the scrub ended without a status file")?;
    say_started(context, image, record.uuid, process)
}

/// Prints that a scrub is running, and its process.
pub(super) fn say_started(context: &Context, image: &Path, uuid: Uuid, process: u32) -> Result<Outcome> {
    if context.json() {
        let document = json!({ "uuid": uuid.to_string(), "status": "started", "process": process });
        context.print_json("scrub-start", document)?;
    } else if !context.globals().quiet {
        let mut out = context.stdout();
        let image = terminal::shown(image.display());
        writeln!(out, "scrub started on {image}, fsid {uuid} (pid={process})")?;
        out.flush()?;
    }
    Ok(Outcome::Done)
}

/// Returns the position from which the scrub of a record resumes.
pub(super) fn position_of(record: Option<&Record>) -> Position {
    record.map_or_else(Position::default, |record| record.position.clone())
}
