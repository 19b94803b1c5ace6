//! `buttress subvolume list IMAGE[:/path]`, in the formats of `btrfs subvolume list`.
//!
//! The path replaces the mount point of btrfs-progs: `-o` and `-a` refer to its subvolume, and
//! paths below it are printed relative to it. JSON always has all fields.

use std::cmp::Ordering;
use std::ffi::OsString;
use std::io::Write;
use std::str::FromStr;

use anyhow::Result;
use buttress::{Follow, SubvolumeId, SubvolumeInfo};
use clap::Args;
use serde_json::{Map, Value, json};

use super::{TOP_LEVEL_NAME, uuid_or_dash};
use crate::context::Context;
use crate::exit::Outcome;
use crate::manual::{Example, example};
use crate::output::json::insert_name;
use crate::output::time::Clock;
use crate::table::Subcommand;

/// List subvolumes and snapshots
#[derive(Args, Debug)]
pub struct List {
    /// List only direct children of the subvolume at the path
    #[arg(short = 'o')]
    below: bool,
    /// Mark paths outside of the subvolume at the path with <FS_TREE>/
    #[arg(short = 'a', conflicts_with = "below")]
    all: bool,
    /// Print the id of the parent
    #[arg(short = 'p')]
    parent: bool,
    /// Print the generation of creation
    #[arg(short = 'c')]
    created_generation: bool,
    /// For compatibility: the generation is always printed
    #[arg(short = 'g')]
    generation: bool,
    /// Print the uuid
    #[arg(short = 'u')]
    uuid: bool,
    /// Print the uuid of the source of a snapshot
    #[arg(short = 'q')]
    parent_uuid: bool,
    /// Print the received uuid, which is the uuid at the sender
    #[arg(short = 'R')]
    received_uuid: bool,
    /// List only snapshots
    #[arg(short = 's')]
    snapshots: bool,
    /// List only read-only subvolumes
    #[arg(short = 'r')]
    read_only: bool,
    /// List only deleted subvolumes that are not yet dropped
    #[arg(short = 'd')]
    deleted: bool,
    /// Print a table
    #[arg(short = 't')]
    table: bool,
    /// List only subvolumes of generation N; +N: N or later, -N: N or earlier
    #[arg(short = 'G', value_name = "[+|-]N", allow_hyphen_values = true)]
    generation_filter: Option<NumberFilter>,
    /// List only subvolumes created in generation N; +N: N or later, -N: N or earlier
    #[arg(short = 'C', value_name = "[+|-]N", allow_hyphen_values = true)]
    created_filter: Option<NumberFilter>,
    /// Sort by gen, ogen, rootid or path, each with + (the default) or - before it
    #[arg(long, value_name = "KEYS", value_delimiter = ',', allow_hyphen_values = true)]
    sort: Vec<SortKey>,
    /// The image or device, or a path in it
    #[arg(value_name = "IMAGE[:/path]")]
    image: OsString,
}

/// A filter of numbers: `N`, `+N` or `-N`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct NumberFilter {
    wanted: Ordering,
    value: u64,
}

impl FromStr for NumberFilter {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (wanted, digits) = match text.split_at_checked(1) {
            Some(("+", digits)) => (Ordering::Greater, digits),
            Some(("-", digits)) => (Ordering::Less, digits),
            _ => (Ordering::Equal, text),
        };
        let value = digits
            .parse()
            .map_err(|_| format!("{text:?} is not a generation"))?;
        Ok(Self { wanted, value })
    }
}

impl NumberFilter {
    fn accepts(self, value: u64) -> bool {
        let order = value.cmp(&self.value);
        order == Ordering::Equal || order == self.wanted
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SortField {
    Generation,
    CreatedGeneration,
    Id,
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
        let name = text.strip_prefix(['+', '-']).unwrap_or(text);
        let field = match name {
            "gen" => SortField::Generation,
            "ogen" => SortField::CreatedGeneration,
            "rootid" => SortField::Id,
            "path" => SortField::Path,
            _ => {
                return Err(format!(
                    "unknown sort key {name:?} (expected gen, ogen, rootid or path)"
                ));
            }
        };
        Ok(Self { field, descending })
    }
}

/// A subvolume with the path to print.
struct Listed {
    info: SubvolumeInfo,
    path: Vec<u8>,
}

impl Listed {
    fn top_level(&self) -> u64 {
        self.info.place.as_ref().map_or(0, |place| place.parent.get())
    }
}

impl Subcommand for List {
    const NAME: &'static str = "list";
    const ON_MOUNTS: bool = true;
    const EXAMPLES: &'static [Example] = &[
        example(
            "buttress subvolume list backup.img",
            "Lists all subvolumes and snapshots",
        ),
        example(
            "buttress subvolume list -s -r --sort=-ogen backup.img",
            "Lists read-only snapshots, the newest first",
        ),
    ];

    fn run(self, context: &Context) -> Result<Outcome> {
        let target = context.target(&self.image);
        let (opened, location) = context.open_target(&target, Follow::All)?;
        let subvolume = location.subvolume;
        let all = opened.volume().subvolumes()?;
        let base = all
            .iter()
            .find(|info| info.id == subvolume)
            .and_then(|info| info.path.clone());
        let mut listed: Vec<Listed> = all
            .into_iter()
            .filter(|info| self.wants(info, subvolume))
            .map(|info| {
                let path = self.shown_path(&info, subvolume, base.as_deref().unwrap_or_default());
                Listed { info, path }
            })
            .collect();
        self.sort(&mut listed);
        if context.json() {
            let values = listed.iter().map(as_json).collect();
            context.print_json("subvolume-list", values)?;
            return Ok(Outcome::Done);
        }
        let clock = Clock::system();
        let mut out = context.stdout();
        let columns = self.columns();
        if self.table {
            let head: String = columns
                .iter()
                .map(|column| format!("{}\t", column.name))
                .collect();
            let rule: String = columns
                .iter()
                .map(|column| format!("{}\t", "-".repeat(column.name.len())))
                .collect();
            writeln!(out, "{head}\n{rule}")?;
        }
        for subvolume in &listed {
            write!(out, "{}", self.row(&columns, subvolume, &clock))?;
            out.write_all(&context.printable(&subvolume.path))?;
            writeln!(out)?;
        }
        out.flush()?;
        Ok(Outcome::Done)
    }
}

/// A column before the path.
struct Column {
    name: &'static str,
    value: fn(&Listed, &Clock) -> String,
}

impl List {
    fn wants(&self, info: &SubvolumeInfo, subvolume: SubvolumeId) -> bool {
        info.id != SubvolumeId::TOP_LEVEL
            && info.is_deleted() == self.deleted
            && (!self.below || info.place.as_ref().is_some_and(|place| place.parent == subvolume))
            && (!self.snapshots || info.parent_uuid().is_some())
            && (!self.read_only || info.is_read_only())
            && self
                .generation_filter
                .is_none_or(|filter| filter.accepts(info.generation().get()))
            && self
                .created_filter
                .is_none_or(|filter| filter.accepts(info.created_generation().get()))
    }

    fn shown_path(&self, info: &SubvolumeInfo, subvolume: SubvolumeId, base: &[u8]) -> Vec<u8> {
        let Some(path) = &info.path else {
            return b"DELETED".to_vec();
        };
        if self.all && info.place.as_ref().is_some_and(|place| place.parent != subvolume) {
            return [TOP_LEVEL_NAME.as_bytes(), b"/", path].concat();
        }
        let relative = path.strip_prefix(base).and_then(|rest| rest.strip_prefix(b"/"));
        match relative {
            Some(relative) if !base.is_empty() && !self.all && !self.below => relative.to_vec(),
            _ => path.clone(),
        }
    }

    fn sort(&self, listed: &mut [Listed]) {
        listed.sort_by(|a, b| {
            self.sort.iter().fold(Ordering::Equal, |order, key| {
                let next = match key.field {
                    SortField::Generation => a.info.generation().cmp(&b.info.generation()),
                    SortField::CreatedGeneration => {
                        a.info.created_generation().cmp(&b.info.created_generation())
                    }
                    SortField::Id => a.info.id.cmp(&b.info.id),
                    SortField::Path => a.path.cmp(&b.path),
                };
                order.then(if key.descending { next.reverse() } else { next })
            })
        });
    }

    /// Returns the requested columns in the order of btrfs-progs; the path is last.
    fn columns(&self) -> Vec<Column> {
        let all: [(bool, Column); 9] = [
            (
                true,
                Column {
                    name: "ID",
                    value: |s, _| s.info.id.to_string(),
                },
            ),
            (
                true,
                Column {
                    name: "gen",
                    value: |s, _| s.info.generation().to_string(),
                },
            ),
            (
                self.created_generation || self.snapshots,
                Column {
                    name: "cgen",
                    value: |s, _| s.info.created_generation().to_string(),
                },
            ),
            (
                self.parent,
                Column {
                    name: "parent",
                    value: |s, _| s.top_level().to_string(),
                },
            ),
            (
                true,
                Column {
                    name: "top level",
                    value: |s, _| s.top_level().to_string(),
                },
            ),
            (
                self.snapshots,
                Column {
                    name: "otime",
                    value: |s, clock| clock.plain(s.info.root_item.otime.seconds),
                },
            ),
            (
                self.parent_uuid,
                Column {
                    name: "parent_uuid",
                    value: |s, _| padded_uuid(s.info.parent_uuid()),
                },
            ),
            (
                self.received_uuid,
                Column {
                    name: "received_uuid",
                    value: |s, _| padded_uuid(s.info.received_uuid()),
                },
            ),
            (
                self.uuid,
                Column {
                    name: "uuid",
                    value: |s, _| padded_uuid(s.info.uuid()),
                },
            ),
        ];
        let path = Column {
            name: "path",
            value: |_, _| String::new(),
        };
        all.into_iter()
            .filter_map(|(wanted, column)| wanted.then_some(column))
            .chain([path])
            .collect()
    }

    /// Formats a line up to the path.
    fn row(&self, columns: &[Column], subvolume: &Listed, clock: &Clock) -> String {
        let mut row = String::new();
        for column in columns {
            let value = (column.value)(subvolume, clock);
            if self.table {
                row.push_str(&value);
                // As in btrfs-progs, one more tab follows the wide heading.
                row.push_str(match column.name {
                    "path" => "",
                    "top level" => "\t\t",
                    _ => "\t",
                });
            } else {
                row.push_str(column.name);
                row.push(' ');
                row.push_str(&value);
                row.push_str(if column.name == "path" { "" } else { " " });
            }
        }
        row
    }
}

/// Formats a uuid in a column of fixed width.
fn padded_uuid(uuid: Option<uuid::Uuid>) -> String {
    format!("{:<36}", uuid_or_dash(uuid))
}

fn as_json(listed: &Listed) -> Value {
    let info = &listed.info;
    let uuid = |uuid: Option<uuid::Uuid>| crate::output::json::uuid(&uuid.unwrap_or_default());
    let mut object = Map::new();
    object.insert("id".into(), info.id.get().into());
    object.insert("generation".into(), info.generation().get().into());
    object.insert("ogeneration".into(), info.created_generation().get().into());
    object.insert("parent".into(), listed.top_level().into());
    object.insert("top_level".into(), listed.top_level().into());
    object.insert(
        "otime".into(),
        json!({ "seconds": info.root_item.otime.seconds, "nanoseconds": info.root_item.otime.nanoseconds }),
    );
    object.insert("parent_uuid".into(), uuid(info.parent_uuid()));
    object.insert("received_uuid".into(), uuid(info.received_uuid()));
    object.insert("uuid".into(), uuid(info.uuid()));
    object.insert("readonly".into(), info.is_read_only().into());
    object.insert("deleted".into(), info.is_deleted().into());
    insert_name(&mut object, "path", &listed.path);
    Value::Object(object)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters() {
        let filter = |text: &str| text.parse::<NumberFilter>().unwrap();
        assert!(filter("7").accepts(7) && !filter("7").accepts(8));
        assert!(filter("+7").accepts(7) && filter("+7").accepts(8) && !filter("+7").accepts(6));
        assert!(filter("-7").accepts(7) && filter("-7").accepts(6) && !filter("-7").accepts(8));
        assert!("x".parse::<NumberFilter>().is_err());
        assert!("".parse::<NumberFilter>().is_err());
    }

    #[test]
    fn sort_keys() {
        let key = |text: &str| text.parse::<SortKey>();
        assert_eq!(
            key("gen"),
            Ok(SortKey {
                field: SortField::Generation,
                descending: false
            })
        );
        assert_eq!(
            key("-ogen"),
            Ok(SortKey {
                field: SortField::CreatedGeneration,
                descending: true
            })
        );
        assert_eq!(
            key("+path"),
            Ok(SortKey {
                field: SortField::Path,
                descending: false
            })
        );
        assert!(key("size").is_err());
    }
}
