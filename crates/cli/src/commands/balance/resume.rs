//! `buttress balance resume IMAGE`: continues a balance that was paused or interrupted, here or by Linux.

use std::ffi::OsString;
use std::path::PathBuf;

use anyhow::{Context as _, Result, bail};
use clap::Args;

use super::record::Record;
use super::running::{Running, Signals, open_existing, status_path};
use super::stopping::not_in_progress;
use super::{EXIT_CODES, online, printing};
use crate::context::Context;
use crate::exit::Outcome;
use crate::globals::{Uses, parse_size};
use crate::manual::{Example, ExitCode, example};
use crate::status_files::Record as _;
use crate::table::{MountView, Subcommand};

/// Continue a balance that was paused or interrupted
///
/// The resumed balance skips converted block groups. Without a usage filter, it also skips block
/// groups that are at least 90 % full, like Linux.
#[derive(Args, Debug)]
pub(super) struct Resume {
    /// Limit moves to this many bytes per second; 0 means no limit
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    limit: Option<u64>,
    /// Keep the status in this file while the job runs, not in IMAGE.balance-status
    #[arg(long, value_name = "FILE")]
    status_file: Option<PathBuf>,
    /// The image or device, or a path on a mount
    #[arg(value_name = "IMAGE")]
    image: OsString,
}

impl Subcommand for Resume {
    const NAME: &'static str = "resume";
    const ON_MOUNTS: bool = true;
    const MOUNT_VIEW: MountView = MountView::Live;
    const EXAMPLES: &'static [Example] = &[example(
        "buttress balance resume disk.img",
        "Continues a balance that was paused, here or by Linux",
    )];
    const EXIT_CODES: &'static [ExitCode] = EXIT_CODES;

    fn uses(&self) -> Uses {
        Uses::VOLUME
    }

    fn run(self, context: &Context) -> Result<Outcome> {
        let image = context.target(&self.image).image;
        let name = || image.display().to_string();
        if let Some(online) = online::find(context, &image)? {
            if online.volume().balance_status()?.is_none() {
                return not_in_progress(context, "resume", &image, "Not in progress");
            }
            let resume = |volume: &buttress::WritableVolume| Ok(volume.resume_balance()?);
            let summary = online.balances.run(online.writable()?, self.limit, resume)?;
            return printing::ended(context, "balance-resume", &image, &summary);
        }
        let status = status_path(&image, self.status_file.as_deref(), false)?;
        if Record::load_running(status.as_deref()).is_some() {
            bail!("balance resume on '{}' failed: Already running", image.display());
        }
        let Some((writing, item)) = open_existing(context, &image)? else {
            return not_in_progress(context, "resume", &image, "Not in progress");
        };
        let choice = writing.volume().resume_balance().with_context(name)?;
        let running = Running {
            context,
            writing,
            status: status.as_deref(),
            in_background: false,
            limit: self.limit,
            signals: Signals::handle(context)?,
        };
        let summary = running.run(&image, item, &choice)?;
        printing::ended(context, "balance-resume", &image, &summary)
    }
}
