//! `buttress quota …`: quotas on and off, their state, and the rescan, with btrfs-progs' words.
//!
//! A rescan always runs in the foreground: it counts the trees of files once, in seconds.

use std::ffi::OsString;
use std::io::Write as _;

use anyhow::{Context as _, Result};
use buttress::quota::{QgroupStatusFlags, QuotaGroups, QuotaKind, Rescanned};
use clap::Args;
use serde_json::{Value, json};

use crate::context::Context;
use crate::exit::{Advice, Outcome};
use crate::globals::Uses;
use crate::manual::{Example, ExitCode, example};
use crate::progress::Watch;
use crate::signals::Cancelling;
use crate::table::{MountView, Row, Subcommand, leaf};
use crate::target::Target;
use crate::writing::Writing;

/// The group's rows of the command table.
pub const ROWS: &[Row] = &[
    leaf::<Enable>(),
    leaf::<Disable>(),
    leaf::<Rescan>(),
    leaf::<Status>(),
];

/// Enable quotas, and count what each subvolume uses
#[derive(Args, Debug)]
struct Enable {
    /// Enable simple quotas, which count each extent for the subvolume that made it
    #[arg(short = 's', long)]
    simple: bool,
    /// The image or device
    #[arg(value_name = "IMAGE")]
    image: OsString,
}

/// Disable quotas, and remove all quota groups
#[derive(Args, Debug)]
struct Disable {
    /// The image or device
    #[arg(value_name = "IMAGE")]
    image: OsString,
}

/// Count again what each subvolume uses
#[derive(Args, Debug)]
struct Rescan {
    /// Show whether a rescan is pending, and start none
    #[arg(short = 's', long)]
    status: bool,
    /// For compatibility: the command always waits for the end
    #[arg(short = 'w', long, conflicts_with = "status")]
    wait: bool,
    /// For compatibility: wait for a running rescan, and start none
    #[arg(short = 'W', long, conflicts_with_all = ["status", "wait"])]
    wait_norescan: bool,
    /// The image or device
    #[arg(value_name = "IMAGE")]
    image: OsString,
}

/// Show whether quotas are enabled, and their state
#[derive(Args, Debug)]
struct Status {
    /// Print nothing; the exit code says whether quotas are enabled
    #[arg(long)]
    is_enabled: bool,
    /// The image or device
    #[arg(value_name = "IMAGE")]
    image: OsString,
}

/// Counts the groups again. If other writers made the counters inexact, the command fails at its end.
pub(super) fn rescan(context: &Context, target: &Target, volume: &Writing) -> Result<Rescanned> {
    let progress = context.progress();
    let _job = context.begin_job(&progress)?;
    let cancelling = Cancelling::start(&progress)?;
    let watch = Watch::start(context, "quota-rescan", progress.clone());
    let rescanned = volume.volume().rescan_quotas(&progress);
    watch.end_as(rescanned.is_ok());
    drop(cancelling);
    let rescanned = rescanned.with_context(|| format!("rescan of {}", target.display()))?;
    if !rescanned.is_exact {
        context.lost(&anyhow::anyhow!(
            "{}: quota data is inexact, because files changed during the rescan; run `buttress quota rescan` \
             again when fewer programs write",
            target.display()
        ));
    }
    Ok(rescanned)
}

/// The error of a command that needs quotas.
pub(super) fn not_enabled(target: &Target) -> anyhow::Error {
    anyhow::anyhow!("{}: quotas are not enabled", target.display())
        .context(Advice::new("run `buttress quota enable IMAGE`"))
}

impl Subcommand for Enable {
    const NAME: &'static str = "enable";
    const ON_MOUNTS: bool = true;
    const MOUNT_VIEW: MountView = MountView::Live;
    const EXAMPLES: &'static [Example] = &[
        example(
            "buttress quota enable disk.img",
            "Counts for each subvolume what it references, and what it has alone",
        ),
        example(
            "buttress quota enable --simple disk.img",
            "Counts for each subvolume what it writes from now on",
        ),
    ];

    fn uses(&self) -> Uses {
        Uses::VOLUME
    }

    fn run(self, context: &Context) -> Result<Outcome> {
        let target = context.target(&self.image);
        let volume = context.open_for_writing(&target.image)?;
        let kind = match self.simple {
            true => QuotaKind::Simple,
            false => QuotaKind::Classic,
        };
        let was_off = volume.volume().enable_quotas(kind)?;
        volume.commit()?;
        if was_off && kind == QuotaKind::Classic {
            rescan(context, &target, &volume)?;
        }
        print_change(context, "quota-enable", &target, was_off)
    }
}

/// Prints the JSON document of a change. As in btrfs-progs, text output is empty.
fn print_change(context: &Context, name: &str, target: &Target, changed: bool) -> Result<Outcome> {
    if context.json() {
        let mut object = target.as_json();
        object.insert("changed".to_owned(), Value::Bool(changed));
        context.print_json(name, Value::Object(object))?;
    }
    Ok(Outcome::Done)
}

impl Subcommand for Disable {
    const NAME: &'static str = "disable";
    const ON_MOUNTS: bool = true;
    const MOUNT_VIEW: MountView = MountView::Live;
    const EXAMPLES: &'static [Example] = &[example(
        "buttress quota disable disk.img",
        "Removes all quota groups, and their limits",
    )];

    fn uses(&self) -> Uses {
        Uses::VOLUME
    }

    fn run(self, context: &Context) -> Result<Outcome> {
        let target = context.target(&self.image);
        let volume = context.open_for_writing(&target.image)?;
        let was_on = volume.volume().disable_quotas()?;
        volume.commit()?;
        print_change(context, "quota-disable", &target, was_on)
    }
}

impl Subcommand for Rescan {
    const NAME: &'static str = "rescan";
    const ON_MOUNTS: bool = true;
    const MOUNT_VIEW: MountView = MountView::Live;
    const EXAMPLES: &'static [Example] = &[example(
        "buttress quota rescan disk.img",
        "Makes the counters exact again after changes of files",
    )];

    fn uses(&self) -> Uses {
        Uses::VOLUME
    }

    fn run(self, context: &Context) -> Result<Outcome> {
        let target = context.target(&self.image);
        if self.status || self.wait_norescan {
            return self.show_status(context, &target);
        }
        let volume = context.open_for_writing(&target.image)?;
        let groups = volume.volume().quota_groups()?;
        let starts = groups.is_some_and(|groups| !groups.is_simple());
        if starts && !context.json() && !context.globals().quiet {
            let mut out = context.stdout();
            writeln!(out, "quota rescan started")?;
            out.flush()?;
        }
        let rescanned = rescan(context, &target, &volume)?;
        if context.json() {
            let mut object = target.as_json();
            object.insert("groups".to_owned(), json!(rescanned.groups));
            object.insert("exact".to_owned(), json!(rescanned.is_exact));
            context.print_json("quota-rescan", Value::Object(object))?;
        }
        Ok(Outcome::Done)
    }
}

impl Rescan {
    fn show_status(&self, context: &Context, target: &Target) -> Result<Outcome> {
        let opened = context.open_volume(&target.image)?;
        let groups = opened.volume().quota_groups()?;
        let groups = groups.ok_or_else(|| not_enabled(target))?;
        let is_pending = groups.status.flags.contains(QgroupStatusFlags::RESCAN);
        if context.json() {
            let mut object = target.as_json();
            object.insert("pending".to_owned(), json!(is_pending));
            object.insert(
                "key".to_owned(),
                json!(is_pending.then_some(groups.status.rescan)),
            );
            context.print_json("quota-rescan-status", Value::Object(object))?;
            return Ok(Outcome::Done);
        }
        if self.wait_norescan || context.globals().quiet {
            return Ok(Outcome::Done);
        }
        let mut out = context.stdout();
        if is_pending {
            let key = groups.status.rescan;
            writeln!(out, "rescan operation running (current key {key})")?;
        } else {
            writeln!(out, "no rescan operation in progress")?;
        }
        out.flush()?;
        Ok(Outcome::Done)
    }
}

impl Subcommand for Status {
    const NAME: &'static str = "status";
    const ON_MOUNTS: bool = true;
    const EXAMPLES: &'static [Example] = &[example(
        "buttress quota status disk.img",
        "Shows the kind of quotas, and whether a rescan is due",
    )];
    const EXIT_CODES: &'static [ExitCode] = &[
        (0, "The state was shown; with --is-enabled: quotas are enabled"),
        (1, "It failed; with --is-enabled: quotas are not enabled"),
        (2, "The command line is wrong"),
    ];

    fn uses(&self) -> Uses {
        Uses::VOLUME
    }

    fn run(self, context: &Context) -> Result<Outcome> {
        let target = context.target(&self.image);
        let groups = context.open_volume(&target.image)?.volume().quota_groups()?;
        if self.is_enabled {
            return Ok(match groups {
                Some(_) => Outcome::Done,
                None => Outcome::Negative,
            });
        }
        if context.json() {
            let mut object = target.as_json();
            object.insert("quotas".to_owned(), groups.as_ref().map_or(Value::Null, to_json));
            context.print_json("quota-status", Value::Object(object))?;
            return Ok(Outcome::Done);
        }
        let mut out = context.stdout();
        write!(out, "Quotas on ")?;
        out.write_all(&context.printable(target.display().as_bytes()))?;
        writeln!(out, ":")?;
        let yes_or_no = |yes| if yes { "yes" } else { "no" };
        writeln!(out, "  Enabled:                 {}", yes_or_no(groups.is_some()))?;
        if let Some(groups) = groups {
            writeln!(out, "  Mode:                    {}", mode(&groups))?;
            writeln!(
                out,
                "  Inconsistent:            {}",
                yes_or_no(groups.is_inconsistent())
            )?;
            writeln!(out, "  Total count:             {}", groups.groups.len())?;
            writeln!(out, "  Level 0:                 {}", level_0(&groups))?;
        }
        out.flush()?;
        Ok(Outcome::Done)
    }
}

const fn mode(groups: &QuotaGroups) -> &'static str {
    match groups.is_simple() {
        true => "squota (simplified accounting)",
        false => "qgroup (full accounting)",
    }
}

fn level_0(groups: &QuotaGroups) -> usize {
    groups.groups.keys().filter(|group| group.level() == 0).count()
}

fn to_json(groups: &QuotaGroups) -> Value {
    json!({
        "mode": if groups.is_simple() { "squota" } else { "qgroup" },
        "inconsistent": groups.is_inconsistent(),
        "groups": groups.groups.len(),
        "groups_of_subvolumes": level_0(groups),
    })
}
