//! `buttress qgroup …`: quota groups, their relations and limits, with btrfs-progs' words.
//!
//! `show` lists the groups; this module changes them. A change of relations counts the groups
//! again if it must, as in btrfs-progs.

mod show;

use std::ffi::{OsStr, OsString};
use std::io::Write as _;

use anyhow::{Context as _, Result};
use buttress::quota::{QgroupId, QuotaLimit};
use buttress::{ByteCount, Follow};
use clap::Args;
use serde_json::{Value, json};

use super::quota;
use crate::context::Context;
use crate::exit::{Outcome, usage};
use crate::globals::{Uses, parse_size};
use crate::manual::{Example, example};
use crate::table::{MountView, Row, Subcommand, leaf};
use crate::target::Target;
use crate::writing::Writing;

/// The group's rows of the command table.
pub const ROWS: &[Row] = &[
    leaf::<Create>(),
    leaf::<Destroy>(),
    leaf::<Assign>(),
    leaf::<Remove>(),
    leaf::<Limit>(),
    leaf::<show::Show>(),
    leaf::<ClearStale>(),
];

/// The number of bits of a group's number within its level.
const NUMBER_BITS: u32 = 48;

/// Parses `level/number`, or the number of a subvolume.
pub(crate) fn parse_group(text: &str) -> Result<QgroupId, String> {
    let wrong = || format!("{text:?} is not a quota group (expected LEVEL/NUMBER, such as 1/100)");
    let (level, number) = text.split_once('/').map_or(("0", text), |parts| parts);
    let level: u16 = level.parse().map_err(|_| wrong())?;
    let number: u64 = number.parse().map_err(|_| wrong())?;
    if number >> NUMBER_BITS != 0 {
        return Err(wrong());
    }
    Ok(QgroupId::new(u64::from(level) << NUMBER_BITS | number))
}

/// Make a quota group of level 1 or higher
#[derive(Args, Debug)]
struct Create {
    /// The new group, such as 1/100
    #[arg(value_name = "QGROUPID", value_parser = parse_group)]
    group: QgroupId,
    /// The image or device
    #[arg(value_name = "IMAGE")]
    image: OsString,
}

/// Remove a quota group
#[derive(Args, Debug)]
struct Destroy {
    /// The group
    #[arg(value_name = "QGROUPID", value_parser = parse_group)]
    group: QgroupId,
    /// The image or device
    #[arg(value_name = "IMAGE")]
    image: OsString,
}

/// Switches of commands that change relations.
#[derive(Args, Debug)]
struct Rescanning {
    /// Count the groups again if the change needs it (the default)
    #[arg(long, overrides_with = "no_rescan")]
    rescan: bool,
    /// Do not count the groups again
    #[arg(long, overrides_with = "rescan")]
    no_rescan: bool,
}

/// Make a quota group a member of a group of a higher level
#[derive(Args, Debug)]
struct Assign {
    #[command(flatten)]
    rescanning: Rescanning,
    /// The group that becomes a member, or the path of a subvolume for its group
    #[arg(value_name = "SRC")]
    member: OsString,
    /// The group of a higher level
    #[arg(value_name = "DST", value_parser = parse_group)]
    parent: QgroupId,
    /// The image or device
    #[arg(value_name = "IMAGE")]
    image: OsString,
}

/// End the membership of a quota group in another one
#[derive(Args, Debug)]
struct Remove {
    #[command(flatten)]
    rescanning: Rescanning,
    /// The member, or the path of a subvolume for its group
    #[arg(value_name = "SRC")]
    member: OsString,
    /// The group of a higher level
    #[arg(value_name = "DST", value_parser = parse_group)]
    parent: QgroupId,
    /// The image or device
    #[arg(value_name = "IMAGE")]
    image: OsString,
}

/// Set or remove the limit of a quota group or of a subvolume
#[derive(Args, Debug)]
struct Limit {
    /// Record the limit as one on compressed bytes, which Linux enforces like any other
    #[arg(short = 'c')]
    compressed: bool,
    /// Limit the bytes that only this group references
    #[arg(short = 'e')]
    exclusive: bool,
    /// The most bytes, or none
    #[arg(value_name = "SIZE|none")]
    size: String,
    /// The group, or the image with the path of a subvolume
    #[arg(value_name = "QGROUPID|IMAGE[:/path]")]
    group: OsString,
    /// The image or device, if a group is given
    #[arg(value_name = "IMAGE")]
    image: Option<OsString>,
}

/// Remove the quota groups of subvolumes that no longer exist
#[derive(Args, Debug)]
struct ClearStale {
    /// The image or device
    #[arg(value_name = "IMAGE")]
    image: OsString,
}

/// Returns the group that an argument names: by its id, or by the path of its subvolume.
fn member_of(context: &Context, volume: &Writing, image: &Target, word: &OsStr) -> Result<QgroupId> {
    let wrong = match parse_group(&word.to_string_lossy()) {
        Ok(group) => return Ok(group),
        Err(wrong) => wrong,
    };
    let target = context.target(word);
    if !target.has_path || target.image != image.image {
        return Err(usage(wrong));
    }
    let subvolume = super::subvolume::subvolume_at(volume, &target, Follow::All)?;
    Ok(QgroupId::new(subvolume.get()))
}

/// Opens the volume, changes one group, and commits. `change` returns the group.
fn change(
    context: &Context,
    name: &str,
    image: &OsStr,
    change: impl FnOnce(&Target, &Writing) -> Result<QgroupId>,
) -> Result<Outcome> {
    let target = context.target(image);
    let volume = context.open_for_writing(&target.image)?;
    let group = change(&target, &volume).with_context(|| target.display())?;
    volume.commit()?;
    if context.json() {
        let mut object = target.as_json();
        object.insert("qgroupid".to_owned(), json!(group.to_string()));
        context.print_json(name, Value::Object(object))?;
    }
    Ok(Outcome::Done)
}

impl Rescanning {
    /// Counts the groups again after a change of relations, if that is needed and wanted.
    fn after(&self, context: &Context, target: &Target, volume: &Writing, needs_rescan: bool) -> Result<()> {
        if !needs_rescan {
            return Ok(());
        }
        if self.no_rescan {
            context.warn("quotas may be inconsistent, rescan needed; run `buttress quota rescan IMAGE`");
            return Ok(());
        }
        volume.commit()?;
        quota::rescan(context, target, volume)?;
        Ok(())
    }
}

impl Subcommand for Create {
    const NAME: &'static str = "create";
    const ON_MOUNTS: bool = true;
    const EXAMPLES: &'static [Example] = &[example(
        "buttress qgroup create 1/100 disk.img",
        "Makes a group that can have subvolumes' groups as members",
    )];

    fn uses(&self) -> Uses {
        Uses::VOLUME
    }

    fn run(self, context: &Context) -> Result<Outcome> {
        change(context, "qgroup-create", &self.image, |_, volume| {
            volume.volume().create_quota_group(self.group)?;
            Ok(self.group)
        })
    }
}

impl Subcommand for Destroy {
    const NAME: &'static str = "destroy";
    const ON_MOUNTS: bool = true;
    const EXAMPLES: &'static [Example] = &[example(
        "buttress qgroup destroy 1/100 disk.img",
        "Removes a group without members",
    )];

    fn uses(&self) -> Uses {
        Uses::VOLUME
    }

    fn run(self, context: &Context) -> Result<Outcome> {
        change(context, "qgroup-destroy", &self.image, |_, volume| {
            volume.volume().destroy_quota_group(self.group)?;
            Ok(self.group)
        })
    }
}

impl Subcommand for Assign {
    const NAME: &'static str = "assign";
    const ON_MOUNTS: bool = true;
    const MOUNT_VIEW: MountView = MountView::Live;
    const EXAMPLES: &'static [Example] = &[example(
        "buttress qgroup assign 0/256 1/100 disk.img",
        "Counts the subvolume with id 256 in group 1/100 also",
    )];

    fn uses(&self) -> Uses {
        Uses::VOLUME
    }

    fn run(self, context: &Context) -> Result<Outcome> {
        change(context, "qgroup-assign", &self.image, |target, volume| {
            let member = member_of(context, volume, target, &self.member)?;
            let needs_rescan = volume.volume().assign_quota_group(member, self.parent)?;
            self.rescanning.after(context, target, volume, needs_rescan)?;
            Ok(member)
        })
    }
}

impl Subcommand for Remove {
    const NAME: &'static str = "remove";
    const ON_MOUNTS: bool = true;
    const MOUNT_VIEW: MountView = MountView::Live;
    const EXAMPLES: &'static [Example] = &[example(
        "buttress qgroup remove 0/256 1/100 disk.img",
        "No longer counts the subvolume with id 256 in group 1/100",
    )];

    fn uses(&self) -> Uses {
        Uses::VOLUME
    }

    fn run(self, context: &Context) -> Result<Outcome> {
        change(context, "qgroup-remove", &self.image, |target, volume| {
            let member = member_of(context, volume, target, &self.member)?;
            let needs_rescan = volume.volume().unassign_quota_group(member, self.parent)?;
            self.rescanning.after(context, target, volume, needs_rescan)?;
            Ok(member)
        })
    }
}

impl Subcommand for Limit {
    const NAME: &'static str = "limit";
    const ON_MOUNTS: bool = true;
    const EXAMPLES: &'static [Example] = &[
        example(
            "buttress qgroup limit 2G disk.img:/home",
            "Limits what the subvolume /home references to 2 GiB",
        ),
        example(
            "buttress qgroup limit -e 500M 1/100 disk.img",
            "Limits what the group 1/100 has alone",
        ),
        example(
            "buttress qgroup limit none disk.img:/home",
            "Removes the limit of a subvolume",
        ),
    ];

    fn run(self, context: &Context) -> Result<Outcome> {
        let bytes = match self.size.as_str() {
            "none" => None,
            size => Some(ByteCount::new(parse_size(size).map_err(usage)?)),
        };
        let (group, target) = match &self.image {
            Some(image) => {
                let text = self.group.to_string_lossy();
                (Some(parse_group(&text).map_err(usage)?), context.target(image))
            }
            None => (None, context.target(&self.group)),
        };
        let volume = context.open_for_writing(&target.image)?;
        let group = match group {
            Some(group) => group,
            None => {
                let subvolume = super::subvolume::subvolume_at(&volume, &target, Follow::All)?;
                QgroupId::new(subvolume.get())
            }
        };
        let limit = QuotaLimit {
            exclusive: self.exclusive,
            bytes,
            compressed: self.compressed,
        };
        let limited = volume.volume().limit_quota_group(group, limit);
        limited.with_context(|| target.display())?;
        volume.commit()?;
        if context.json() {
            let mut object = target.as_json();
            object.insert("qgroupid".to_owned(), json!(group.to_string()));
            object.insert("limit".to_owned(), json!(bytes.map(ByteCount::get)));
            context.print_json("qgroup-limit", Value::Object(object))?;
        }
        Ok(Outcome::Done)
    }
}

impl Subcommand for ClearStale {
    const NAME: &'static str = "clear-stale";
    const ON_MOUNTS: bool = true;
    const MOUNT_VIEW: MountView = MountView::Live;
    const EXAMPLES: &'static [Example] = &[example(
        "buttress qgroup clear-stale disk.img",
        "Removes the groups of deleted subvolumes",
    )];

    fn uses(&self) -> Uses {
        Uses::VOLUME
    }

    fn run(self, context: &Context) -> Result<Outcome> {
        let target = context.target(&self.image);
        let volume = context.open_for_writing(&target.image)?;
        let cleared = volume.volume().clear_stale_quota_groups();
        let cleared = cleared.with_context(|| target.display())?;
        volume.commit()?;
        let cleared: Vec<String> = cleared.iter().map(ToString::to_string).collect();
        if context.json() {
            context.print_json("qgroup-clear-stale", json!(cleared))?;
            return Ok(Outcome::Done);
        }
        let mut out = context.stdout();
        if !context.globals().quiet {
            for group in cleared {
                writeln!(out, "Delete stale qgroup {group}")?;
            }
        }
        out.flush()?;
        Ok(Outcome::Done)
    }
}
