//! `buttress balance start IMAGE`: starts a balance.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow};
use buttress::balance::{BalanceArguments, BalanceFlags, BalanceItem};
use buttress::{Profile, WritableVolume};
use clap::Args;
use serde_json::json;

use super::online::Online;
use super::record::Record;
use super::running::{Running, Signals, go_to_background, status_path};
use super::{filters, online, printing};
use crate::context::Context;
use crate::exit::{Advice, Outcome, usage};
use crate::globals::{Uses, parse_size};
use crate::manual::{Example, ExitCode, example};
use crate::output::size::UnitFlags;
use crate::output::terminal;
use crate::status_files::{self, Record as _};
use crate::table::{MountView, Subcommand};

/// Delay before a full balance on a terminal, in which the user can cancel.
const DELAY: Duration = Duration::from_secs(10);

/// Move block groups that pass all filters, and convert them to other profiles
///
/// Without -d, -m and -s, all block groups move. Filters follow their option directly, separated by
/// commas: profiles=, usage=, devid=, drange=, vrange=, convert=, limit=, stripes=, soft. System
/// block groups use the filters of metadata. While a balance converts, all new data gets the new
/// profile. After an interruption, `balance resume` continues the balance; Linux continues it when
/// it mounts the volume.
#[derive(Args, Debug)]
pub(super) struct Start {
    /// Move data block groups
    #[arg(
        short = 'd', value_name = "FILTERS", num_args = 0..=1, require_equals = true, default_missing_value = "",
        value_parser = parse_filters
    )]
    data: Option<BalanceArguments>,
    /// Move metadata block groups
    #[arg(
        short = 'm', value_name = "FILTERS", num_args = 0..=1, require_equals = true, default_missing_value = "",
        value_parser = parse_filters
    )]
    metadata: Option<BalanceArguments>,
    /// Move system block groups by separate filters (with -f)
    #[arg(
        short = 's', value_name = "FILTERS", num_args = 0..=1, require_equals = true, default_missing_value = "",
        value_parser = parse_filters
    )]
    system: Option<BalanceArguments>,
    /// Allow less redundancy of metadata, and allow -s
    #[arg(short = 'f', long)]
    force: bool,
    /// Move all block groups without a warning
    #[arg(long)]
    full_balance: bool,
    /// Run in the background
    #[arg(long, visible_alias = "bg")]
    background: bool,
    /// For compatibility: the command waits for no other job
    #[arg(long, hide = true)]
    enqueue: bool,
    /// Show the block groups that would move, and change nothing
    #[arg(long)]
    dry_run: bool,
    /// Limit moves to this many bytes per second; 0 means no limit
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    limit: Option<u64>,
    /// Keep the status in this file while the job runs, not in IMAGE.balance-status
    #[arg(long, value_name = "FILE")]
    status_file: Option<PathBuf>,
    /// This is the process in the background
    #[arg(long, hide = true)]
    in_background: bool,
    #[command(flatten)]
    units: UnitFlags,
    /// The image or device, or a path on a mount
    #[arg(value_name = "IMAGE")]
    image: OsString,
}

fn parse_filters(text: &str) -> Result<BalanceArguments, String> {
    filters::parse(text).map_err(|error| error.to_string())
}

impl Subcommand for Start {
    const NAME: &'static str = "start";
    const ON_MOUNTS: bool = true;
    const MOUNT_VIEW: MountView = MountView::Live;
    const EXAMPLES: &'static [Example] = &[
        example(
            "buttress balance start -dusage=50 disk.img",
            "Empties data block groups that are less than half full",
        ),
        example(
            "buttress balance start --dry-run -dusage=50 disk.img",
            "Lists these block groups, and changes nothing",
        ),
        example(
            "buttress balance start -dconvert=raid1 -mconvert=raid1 --device second.img first.img",
            "Keeps two copies of everything, on two devices",
        ),
    ];
    const EXIT_CODES: &'static [ExitCode] = &[
        (0, "The balance finished, or was paused or cancelled on request"),
        (1, "The balance failed, or had no space for a block group"),
        (2, "The command line is wrong"),
    ];

    fn uses(&self) -> Uses {
        Uses::VOLUME
    }

    fn run(self, context: &Context) -> Result<Outcome> {
        let item = self.item()?;
        let image = context.target(&self.image).image;
        let online = online::find(context, &image)?;
        if self.dry_run {
            let choice = match &online {
                Some(online) => online.volume().plan_balance(&item),
                None => context.open_volume(&image)?.volume().plan_balance(&item),
            };
            let choice = choice.with_context(|| image.display().to_string())?;
            return printing::plan(context, self.units.units(), &choice);
        }
        self.warn(context, &item);
        if let Some(online) = online {
            return self.run_online(context, &image, &online, item);
        }
        let goes_away = self.background && !self.in_background;
        let status = status_path(&image, self.status_file.as_deref(), self.background)?;
        if let Some(record) = Record::load_running(status.as_deref()).filter(|_| !self.in_background) {
            return Err(already_running(&image, &record));
        }
        if goes_away {
            return go_to_background(context, "balance-start", status.as_deref());
        }
        let writing = context.open_for_writing(&image)?;
        let signals = Signals::handle(context)?;
        // A status file that cannot be written must leave no balance behind.
        if let Some(path) = &status {
            Record::beginning(item).save(context, path)?;
        }
        let choice = writing.volume().start_balance(item);
        let choice = choice.with_context(|| image.display().to_string());
        let choice = choice.inspect_err(|_| {
            // The first error matters more than a status file that stays.
            let _stays = status.as_deref().map(status_files::remove);
        })?;
        let running = Running {
            context,
            writing,
            status: status.as_deref(),
            in_background: self.in_background,
            limit: self.limit,
            signals,
        };
        let summary = running.run(&image, item, &choice)?;
        printing::ended(context, "balance-start", &image, &summary)
    }
}

impl Start {
    /// Has the server of the mount run the balance.
    fn run_online(
        &self,
        context: &Context,
        image: &Path,
        online: &Online,
        item: BalanceItem,
    ) -> Result<Outcome> {
        let start = |volume: &WritableVolume| Ok(volume.start_balance(item)?);
        let volume = online.writable()?;
        if !self.background {
            let summary = online.balances.run(volume, self.limit, start)?;
            return printing::ended(context, "balance-start", image, &summary);
        }
        online
            .balances
            .run_in_background(volume.clone(), self.limit, start)?;
        if context.json() {
            let document = json!({ "end": null, "process": std::process::id() });
            context.print_json("balance-start", document)?;
        }
        Ok(Outcome::Done)
    }

    /// Returns the item for the options. System block groups follow metadata, unless they have filters of their own.
    fn item(&self) -> Result<BalanceItem> {
        if self.system.is_some() && !self.force {
            return Err(usage(format_args!(
                "Refusing to explicitly operate on system chunks.\nPass --force if you really want to do that."
            )));
        }
        let is_full = self.data.is_none() && self.metadata.is_none() && self.system.is_none();
        let none = is_full.then_some(BalanceArguments::NONE);
        let (data, metadata) = (self.data.or(none), self.metadata.or(none));
        let system = self.system.or(metadata);
        let mut flags = BalanceFlags::empty();
        flags.set(BalanceFlags::DATA, data.is_some());
        flags.set(BalanceFlags::METADATA, metadata.is_some());
        flags.set(BalanceFlags::SYSTEM, system.is_some());
        flags.set(BalanceFlags::FORCE, self.force);
        // Clamp: an option that is not given has no filters.
        Ok(BalanceItem {
            flags,
            data: data.unwrap_or(BalanceArguments::NONE),
            metadata: metadata.unwrap_or(BalanceArguments::NONE),
            system: system.unwrap_or(BalanceArguments::NONE),
        })
    }

    /// Warns before a full balance and before RAID5 and RAID6, as btrfs-progs does. The delay
    /// before a full balance is for interactive users only.
    fn warn(&self, context: &Context, item: &BalanceItem) {
        if self.in_background {
            return;
        }
        let targets = [&item.data, &item.metadata, &item.system];
        let is_parity = |filters: &&BalanceArguments| {
            matches!(filters.target_profile(), Some(Profile::Raid5 | Profile::Raid6))
        };
        if targets.iter().any(is_parity) && !self.force {
            context.warn(format_args!(
                "Linux discourages RAID5 and RAID6: after a power cut, rows in the middle of a write may lose their parity"
            ));
        }
        if self.data.is_some() || self.metadata.is_some() || self.system.is_some() || self.full_balance {
            return;
        }
        context.warn(format_args!(
            "a full balance without filters moves all data and metadata; filters such as -dusage=50 narrow it down, \
             --full-balance skips this warning"
        ));
        if terminal::stderr_is_terminal() && !context.is_on_mount() && !self.background {
            std::thread::sleep(DELAY);
        }
    }
}

fn already_running(image: &Path, record: &Record) -> anyhow::Error {
    let (process, _) = record.process;
    anyhow!(
        "{}: a balance is already running (process {process})",
        image.display()
    )
    .context(Advice::new(
        "`buttress balance status IMAGE` shows its progress; `buttress balance pause IMAGE` pauses it",
    ))
}
