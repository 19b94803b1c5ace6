//! `buttress qgroup …`: quota groups, their relations and limits, with btrfs-progs' words.
//!
//! `show` lists the groups; this module changes them. A change of relations counts the groups
//! again if it must, as in btrfs-progs.

mod show;

use std::ffi::{OsStr, OsString};
use std::io::Write as _;

use anyhow::{Context as _, Result};
use buttress::quota::{QgroupId, QuotaLimit};
use buttress::{ByteCount, Follow, WritableVolume};
use clap::Args;
use serde_json::{Value, json};

use super::quota;
use super::subvolume::subvolume_at;
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
    let subvolume = subvolume_at(volume, &target, Follow::All)?;
    Ok(QgroupId::new(subvolume.get()))
}

/// A change of the quota groups of a volume: opens the volume, changes it, commits, and prints.
struct Frame<'a> {
    context: &'a Context,
    /// The name of the JSON document.
    name: &'a str,
    target: Target,
}

/// An open volume of a [`Frame`].
struct Opened<'a> {
    context: &'a Context,
    target: &'a Target,
    writing: Writing,
}

impl<'a> Frame<'a> {
    fn new(context: &'a Context, name: &'a str, image: &OsStr) -> Self {
        Self {
            context,
            name,
            target: context.target(image),
        }
    }

    /// Makes a change, and commits.
    fn change<T>(&self, change: impl FnOnce(&Opened<'_>) -> Result<T>) -> Result<T> {
        let opened = Opened {
            context: self.context,
            target: &self.target,
            writing: self.context.open_for_writing(&self.target.image)?,
        };
        let done = change(&opened).with_context(|| self.target.display())?;
        opened.writing.commit()?;
        Ok(done)
    }

    /// Prints the JSON document of a change of one group, with more values. As in btrfs-progs, text
    /// output is empty.
    fn print(&self, group: QgroupId, more: &[(&str, Value)]) -> Result<Outcome> {
        if self.context.json() {
            let mut object = self.target.as_json();
            object.insert("qgroupid".to_owned(), json!(group.to_string()));
            let more = more.iter();
            object.extend(more.map(|(name, value)| ((*name).to_owned(), value.clone())));
            self.context.print_json(self.name, Value::Object(object))?;
        }
        Ok(Outcome::Done)
    }
}

impl Rescanning {
    /// Changes the relation of the group that an argument names, and prints.
    fn change(
        &self,
        (context, name): (&Context, &str),
        image: &OsStr,
        member: &OsStr,
        change: impl FnOnce(&WritableVolume, QgroupId) -> buttress::Result<bool>,
    ) -> Result<Outcome> {
        let frame = Frame::new(context, name, image);
        let member = frame.change(|opened| {
            let member = member_of(context, &opened.writing, opened.target, member)?;
            let needs_rescan = change(opened.writing.volume(), member)?;
            self.after(opened, needs_rescan)?;
            Ok(member)
        })?;
        frame.print(member, &[])
    }

    /// Counts the groups again after a change of relations, if that is needed and wanted.
    fn after(&self, opened: &Opened<'_>, needs_rescan: bool) -> Result<()> {
        if !needs_rescan {
            return Ok(());
        }
        let context = opened.context;
        if self.no_rescan {
            context.warn("quotas may be inconsistent, rescan needed; run `buttress quota rescan IMAGE`");
            return Ok(());
        }
        opened.writing.commit()?;
        quota::rescan(context, opened.target, &opened.writing)?;
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
        let frame = Frame::new(context, "qgroup-create", &self.image);
        frame.change(|opened| Ok(opened.writing.volume().create_quota_group(self.group)?))?;
        frame.print(self.group, &[])
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
        let frame = Frame::new(context, "qgroup-destroy", &self.image);
        frame.change(|opened| Ok(opened.writing.volume().destroy_quota_group(self.group)?))?;
        frame.print(self.group, &[])
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
        let document = (context, "qgroup-assign");
        self.rescanning
            .change(document, &self.image, &self.member, |volume, member| {
                volume.assign_quota_group(member, self.parent)
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
        let document = (context, "qgroup-remove");
        self.rescanning
            .change(document, &self.image, &self.member, |volume, member| {
                volume.unassign_quota_group(member, self.parent)
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
        let (group, image) = match &self.image {
            Some(image) => {
                let text = self.group.to_string_lossy();
                (Some(parse_group(&text).map_err(usage)?), image)
            }
            None => (None, &self.group),
        };
        let limit = QuotaLimit {
            exclusive: self.exclusive,
            bytes,
            compressed: self.compressed,
        };
        let frame = Frame::new(context, "qgroup-limit", image);
        let group = frame.change(|opened| {
            let group = match group {
                Some(group) => group,
                None => {
                    let found = subvolume_at(&opened.writing, opened.target, Follow::All)?;
                    QgroupId::new(found.get())
                }
            };
            opened.writing.volume().limit_quota_group(group, limit)?;
            Ok(group)
        })?;
        frame.print(group, &[("limit", json!(bytes.map(ByteCount::get)))])
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
        let frame = Frame::new(context, "qgroup-clear-stale", &self.image);
        let cleared = frame.change(|opened| Ok(opened.writing.volume().clear_stale_quota_groups()?))?;
        let cleared: Vec<String> = cleared.iter().map(ToString::to_string).collect();
        if context.json() {
            context.print_json(frame.name, json!(cleared))?;
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
