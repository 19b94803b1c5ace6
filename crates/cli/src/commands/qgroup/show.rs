//! `buttress qgroup show IMAGE[:/path]`, in the format of `btrfs qgroup show`.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::io::Write;
use std::str::FromStr;

use anyhow::Result;
use buttress::quota::{QgroupId, QgroupLimitFlags, QgroupStatusFlags, QuotaGroup, QuotaGroups};
use buttress::{ByteCount, Follow, SubvolumeId, SubvolumeInfo};
use clap::Args;
use serde_json::{Map, Value, json};

use crate::commands::quota::not_enabled;
use crate::context::Context;
use crate::exit::Outcome;
use crate::manual::{Example, example};
use crate::output::json::insert_name;
use crate::output::size::{UnitFlags, Units};
use crate::table::{MountView, Subcommand};

/// The least widths of columns.
const GROUP_WIDTH: usize = 8;
const REFERENCED_WIDTH: usize = 13;
const EXCLUSIVE_WIDTH: usize = 12;
const MAX_REFERENCED_WIDTH: usize = 15;
const MAX_EXCLUSIVE_WIDTH: usize = 14;
const PARENT_WIDTH: usize = 8;
const CHILD_WIDTH: usize = 5;

/// List quota groups with their counters, limits and relations
#[derive(Args, Debug)]
pub(super) struct Show {
    /// Print the groups of which each group is a member
    #[arg(short = 'p')]
    parents: bool,
    /// Print the members of each group
    #[arg(short = 'c')]
    members: bool,
    /// Print the limit of referenced bytes
    #[arg(short = 'r')]
    max_referenced: bool,
    /// Print the limit of exclusive bytes
    #[arg(short = 'e')]
    max_exclusive: bool,
    /// List only the group of the subvolume at the path, and all groups above it
    #[arg(short = 'F')]
    with_ancestors: bool,
    /// List only the group of the subvolume at the path
    #[arg(short = 'f')]
    of_path: bool,
    #[command(flatten)]
    units: UnitFlags,
    /// Sort by qgroupid, rfer, excl, max_rfer, max_excl or path, each with + (the default) or - before it
    #[arg(long, value_name = "KEYS", value_delimiter = ',', allow_hyphen_values = true)]
    sort: Vec<SortKey>,
    /// Commit before the groups are read; an image always shows its last commit
    #[arg(long)]
    sync: bool,
    /// The image or device, or a path in it
    #[arg(value_name = "IMAGE[:/path]")]
    image: OsString,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SortField {
    Group,
    Referenced,
    Exclusive,
    MaxReferenced,
    MaxExclusive,
    Path,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SortKey {
    field: SortField,
    descending: bool,
}

impl FromStr for SortKey {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let descending = text.starts_with('-');
        // Clamp: a key without a sign is ascending.
        let name = text.strip_prefix(['+', '-']).unwrap_or(text);
        let field = match name {
            "qgroupid" => SortField::Group,
            "rfer" => SortField::Referenced,
            "excl" => SortField::Exclusive,
            "max_rfer" => SortField::MaxReferenced,
            "max_excl" => SortField::MaxExclusive,
            "path" => SortField::Path,
            _ => {
                return Err(format!(
                    "unknown sort key {name:?} (expected qgroupid, rfer, excl, max_rfer, max_excl or path)"
                ));
            }
        };
        Ok(Self { field, descending })
    }
}

/// A group to be printed.
struct Listed<'a> {
    id: QgroupId,
    group: &'a QuotaGroup,
    /// The path of the subvolume, or a note in its place.
    path: Vec<u8>,
    /// The path of the subvolume, if the group belongs to one that exists.
    subvolume: Option<Vec<u8>>,
}

impl Subcommand for Show {
    const NAME: &'static str = "show";
    const ON_MOUNTS: bool = true;
    const MOUNT_VIEW: MountView = MountView::Committed;
    const EXAMPLES: &'static [Example] = &[
        example(
            "buttress qgroup show -re disk.img",
            "Lists what each subvolume references and has alone, with limits",
        ),
        example(
            "buttress qgroup show -F disk.img:/home",
            "Lists the group of a subvolume, and the groups above it",
        ),
    ];

    fn run(self, context: &Context) -> Result<Outcome> {
        let target = context.target(&self.image);
        let (opened, location) = context.open_target(&target, Follow::All)?;
        let volume = opened.volume();
        let groups = volume.quota_groups()?.ok_or_else(|| not_enabled(&target))?;
        warn_of_state(context, &groups);
        let mut listed = list(&groups, &volume.subvolumes()?);
        if self.with_ancestors || self.of_path {
            let of = QgroupId::new(location.subvolume.get());
            let mut wanted = BTreeSet::from([of]);
            if self.with_ancestors {
                wanted.extend(groups.above(of));
            }
            listed.retain(|one| wanted.contains(&one.id));
        }
        listed.sort_by(|a, b| self.compare(a, b));
        if context.json() {
            let list: Vec<Value> = listed.iter().map(to_json).collect();
            context.print_json("qgroup-show", Value::from(list))?;
            return Ok(Outcome::Done);
        }
        let mut out = context.stdout();
        self.write_table(&mut out, context, &listed)?;
        out.flush()?;
        Ok(Outcome::Done)
    }
}

fn warn_of_state(context: &Context, groups: &QuotaGroups) {
    if groups.status.flags.contains(QgroupStatusFlags::RESCAN) {
        context.warn("rescan is running, qgroup data may be incorrect");
    } else if groups.is_inconsistent() {
        context.warn("qgroup data inconsistent, rescan recommended; run `buttress quota rescan IMAGE`");
    }
}

fn list<'a>(groups: &'a QuotaGroups, subvolumes: &[SubvolumeInfo]) -> Vec<Listed<'a>> {
    let paths: BTreeMap<SubvolumeId, &SubvolumeInfo> =
        subvolumes.iter().map(|info| (info.id, info)).collect();
    let one = |(id, group): (&QgroupId, &'a QuotaGroup)| {
        let info = match id.level() {
            0 => paths.get(&SubvolumeId::new(id.get())),
            _ => None,
        };
        let subvolume = info.and_then(|info| info.path.clone());
        let path = match (&subvolume, id.level()) {
            _ if id.get() == SubvolumeId::TOP_LEVEL.get() => b"<toplevel>".to_vec(),
            (Some(path), 0) => path.clone(),
            (None, 0) if groups.is_simple() && group.info.referenced != ByteCount::ZERO => {
                b"<squota space holder>".to_vec()
            }
            (None, 0) => b"<stale>".to_vec(),
            _ => of_parents(group).into_bytes(),
        };
        Listed {
            id: *id,
            group,
            path,
            subvolume,
        }
    };
    groups.groups.iter().map(one).collect()
}

/// Returns what btrfs-progs prints as the path of a higher group: the groups above it.
fn of_parents(group: &QuotaGroup) -> String {
    let parents: Vec<String> = group.parents.iter().map(ToString::to_string).collect();
    match parents.len() {
        1 => format!("{}<1 member qgroup>", parents.join(" ")),
        count => format!("{}<{count} member qgroups>", parents.join(" ")),
    }
}

impl Listed<'_> {
    fn limit(&self, flag: QgroupLimitFlags) -> Option<ByteCount> {
        let limit = &self.group.limit;
        let bytes = match flag == QgroupLimitFlags::MAX_RFER {
            true => limit.max_referenced,
            false => limit.max_exclusive,
        };
        limit.flags.contains(flag).then_some(bytes)
    }

    fn limit_text(&self, flag: QgroupLimitFlags, units: Units) -> String {
        let limit = self.limit(flag);
        limit.map_or_else(|| "none".to_owned(), |bytes| units.text(bytes.get()))
    }

    /// Returns the order of the path: paths of subvolumes come first, then levels.
    fn path_order(&self) -> (u64, Option<&[u8]>) {
        (self.id.level(), self.subvolume.as_deref())
    }
}

impl Show {
    fn compare(&self, a: &Listed<'_>, b: &Listed<'_>) -> Ordering {
        for key in &self.sort {
            let limit = |one: &Listed<'_>, flag| one.limit(flag).map_or(ByteCount::MAX, |limit| limit);
            let order = match key.field {
                SortField::Group => a.id.cmp(&b.id),
                SortField::Referenced => a.group.info.referenced.cmp(&b.group.info.referenced),
                SortField::Exclusive => a.group.info.exclusive.cmp(&b.group.info.exclusive),
                SortField::MaxReferenced => {
                    limit(a, QgroupLimitFlags::MAX_RFER).cmp(&limit(b, QgroupLimitFlags::MAX_RFER))
                }
                SortField::MaxExclusive => {
                    limit(a, QgroupLimitFlags::MAX_EXCL).cmp(&limit(b, QgroupLimitFlags::MAX_EXCL))
                }
                SortField::Path => a.path_order().cmp(&b.path_order()),
            };
            let order = if key.descending { order.reverse() } else { order };
            if order != Ordering::Equal {
                return order;
            }
        }
        a.id.cmp(&b.id)
    }

    fn write_table(&self, out: &mut impl Write, context: &Context, listed: &[Listed<'_>]) -> Result<()> {
        let units = self.units.units();
        let mut columns = vec![
            Column::new("Qgroupid", GROUP_WIDTH, false, listed, |one| one.id.to_string()),
            Column::new("Referenced", REFERENCED_WIDTH, true, listed, |one| {
                units.text(one.group.info.referenced.get())
            }),
            Column::new("Exclusive", EXCLUSIVE_WIDTH, true, listed, |one| {
                units.text(one.group.info.exclusive.get())
            }),
        ];
        if self.max_referenced {
            columns.push(Column::new(
                "Max referenced",
                MAX_REFERENCED_WIDTH,
                true,
                listed,
                |one| one.limit_text(QgroupLimitFlags::MAX_RFER, units),
            ));
        }
        if self.max_exclusive {
            columns.push(Column::new(
                "Max exclusive",
                MAX_EXCLUSIVE_WIDTH,
                true,
                listed,
                |one| one.limit_text(QgroupLimitFlags::MAX_EXCL, units),
            ));
        }
        if self.parents {
            columns.push(Column::new("Parent", PARENT_WIDTH, false, listed, |one| {
                joined(&one.group.parents)
            }));
        }
        if self.members {
            columns.push(Column::new("Child", CHILD_WIDTH, false, listed, |one| {
                joined(&one.group.members)
            }));
        }
        let titles: Vec<String> = columns.iter().map(|column| column.padded(column.title)).collect();
        writeln!(out, "{}   Path ", titles.join(" "))?;
        let lines: Vec<String> = columns
            .iter()
            .map(|column| column.padded(&"-".repeat(column.title.len())))
            .collect();
        writeln!(out, "{}   ---- ", lines.join(" "))?;
        for (row, one) in listed.iter().enumerate() {
            let cells: Vec<String> = columns
                .iter()
                .map(|column| column.padded(column.cells.get(row).map_or("", String::as_str)))
                .collect();
            write!(out, "{}   ", cells.join(" "))?;
            out.write_all(&context.printable(&one.path))?;
            writeln!(out)?;
        }
        Ok(())
    }
}

fn joined(groups: &BTreeSet<QgroupId>) -> String {
    if groups.is_empty() {
        return "-".to_owned();
    }
    let groups: Vec<String> = groups.iter().map(ToString::to_string).collect();
    groups.join(",")
}

/// A column of the table.
struct Column {
    title: &'static str,
    is_right: bool,
    width: usize,
    cells: Vec<String>,
}

impl Column {
    fn new(
        title: &'static str,
        width: usize,
        is_right: bool,
        listed: &[Listed<'_>],
        cell: impl Fn(&Listed<'_>) -> String,
    ) -> Self {
        let cells: Vec<String> = listed.iter().map(cell).collect();
        let widest = cells.iter().map(String::len).fold(width, usize::max);
        Self {
            title,
            is_right,
            width: widest,
            cells,
        }
    }

    fn padded(&self, text: &str) -> String {
        let width = self.width;
        match self.is_right {
            true => format!("{text:>width$}"),
            false => format!("{text:<width$}"),
        }
    }
}

fn to_json(one: &Listed<'_>) -> Value {
    let limit = |flag| match one.limit(flag) {
        Some(bytes) => json!(bytes.get()),
        None => json!("none"),
    };
    let texts =
        |groups: &BTreeSet<QgroupId>| -> Vec<String> { groups.iter().map(ToString::to_string).collect() };
    let mut object = Map::new();
    object.insert("qgroupid".to_owned(), json!(one.id.to_string()));
    object.insert("referenced".to_owned(), json!(one.group.info.referenced.get()));
    object.insert("max_referenced".to_owned(), limit(QgroupLimitFlags::MAX_RFER));
    object.insert("exclusive".to_owned(), json!(one.group.info.exclusive.get()));
    object.insert("max_exclusive".to_owned(), limit(QgroupLimitFlags::MAX_EXCL));
    insert_name(
        &mut object,
        "path",
        one.subvolume.as_deref().map_or(&[][..], |path| path),
    );
    object.insert("parents".to_owned(), json!(texts(&one.group.parents)));
    object.insert("children".to_owned(), json!(texts(&one.group.members)));
    Value::Object(object)
}
