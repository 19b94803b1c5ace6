//! `buttress subvolume show IMAGE[:/path]`, in the format of `btrfs subvolume show`.
//!
//! In one field the commands differ: `Send time` is the time of sending, or `-`; btrfs-progs prints
//! the creation time there.

use std::ffi::OsString;
use std::io::Write;

use anyhow::Result;
use buttress::{ByteCount, Follow, Location, SubvolumeId, SubvolumeInfo, Timestamp};
use clap::Args;
use serde_json::{Map, Value, json};

use super::{TOP_LEVEL_NAME, uuid_or_dash};
use crate::commands::subvolume::quota::{Quota, quota_of};
use crate::context::Context;
use crate::exit::{Advice, Outcome};
use crate::manual::{Example, example};
use crate::output::json::insert_name;
use crate::output::size::UnitFlags;
use crate::output::time::Clock;
use crate::table::Subcommand;

/// Show all attributes of a subvolume
#[derive(Args, Debug)]
pub struct Show {
    /// Find the subvolume by its id instead of a path
    #[arg(short = 'r', long = "rootid", value_name = "ID")]
    id: Option<u64>,
    /// Find the subvolume by its uuid instead of a path
    #[arg(short = 'u', long = "uuid", value_name = "UUID", conflicts_with = "id")]
    uuid: Option<uuid::Uuid>,
    #[command(flatten)]
    units: UnitFlags,
    /// The image or device, or a subvolume in it
    #[arg(value_name = "IMAGE[:/path]")]
    image: OsString,
}

impl Subcommand for Show {
    const NAME: &'static str = "show";
    const ON_MOUNTS: bool = true;
    const EXAMPLES: &'static [Example] = &[example(
        "buttress subvolume show backup.img:/home",
        "Shows ids, times, flags and snapshots of a subvolume",
    )];

    fn run(self, context: &Context) -> Result<Outcome> {
        let target = context.target(&self.image);
        let (opened, location) = context.open_target(&target, Follow::All)?;
        let all = opened.volume().subvolumes()?;
        let info = self.choose(&all, location)?;
        let snapshots: Vec<Vec<u8>> = info
            .snapshots(&all)
            .filter_map(|other| other.path.clone())
            .collect();
        let quota = quota_of(opened.volume(), info.id)?;
        if context.json() {
            context.print_json("subvolume-show", as_json(info, &snapshots, quota.as_ref()))?;
            return Ok(Outcome::Done);
        }
        let mut out = context.stdout();
        self.write_text(&mut out, context, info, &snapshots, quota.as_ref())?;
        out.flush()?;
        Ok(Outcome::Done)
    }
}

impl Show {
    fn choose<'a>(&self, all: &'a [SubvolumeInfo], location: Location) -> Result<&'a SubvolumeInfo> {
        let found = match (self.id, self.uuid) {
            (Some(id), _) => all.iter().find(|info| info.id.get() == id),
            (None, Some(uuid)) => all.iter().find(|info| info.uuid() == Some(uuid)),
            (None, None) if location.is_subvolume_root() => {
                all.iter().find(|info| info.id == location.subvolume)
            }
            (None, None) => None,
        };
        found.ok_or_else(|| {
            let what = match (self.id, self.uuid) {
                (Some(id), _) => format!("there is no subvolume with id {id}"),
                (None, Some(uuid)) => format!("there is no subvolume with uuid {uuid}"),
                (None, None) => format!("{location} is not the root of a subvolume"),
            };
            anyhow::anyhow!(what).context(Advice::new(
                "`buttress subvolume list IMAGE` lists all subvolumes",
            ))
        })
    }

    fn write_text(
        &self,
        out: &mut impl Write,
        context: &Context,
        info: &SubvolumeInfo,
        snapshots: &[Vec<u8>],
        quota: Option<&Quota>,
    ) -> Result<()> {
        let clock = Clock::system();
        let item = &info.root_item;
        let top_level = info.id == SubvolumeId::TOP_LEVEL;
        let path = info.path.as_deref().unwrap_or(b"DELETED");
        let parent = info.place.as_ref().map_or(0, |place| place.parent.get());
        let name: &[u8] = match &info.place {
            Some(place) => &place.name,
            None if top_level => TOP_LEVEL_NAME.as_bytes(),
            None => b"DELETED",
        };
        out.write_all(
            if top_level {
                b"/".into()
            } else {
                context.printable(path)
            }
            .as_ref(),
        )?;
        write!(out, "\n\tName: \t\t\t")?;
        out.write_all(&context.printable(name))?;
        let time = |time: Timestamp| {
            if time.seconds == 0 {
                "-".to_owned()
            } else {
                clock.with_zone(time.seconds)
            }
        };
        writeln!(out, "\n\tUUID: \t\t\t{}", uuid_or_dash(info.uuid()))?;
        writeln!(out, "\tParent UUID: \t\t{}", uuid_or_dash(info.parent_uuid()))?;
        writeln!(out, "\tReceived UUID: \t\t{}", uuid_or_dash(info.received_uuid()))?;
        writeln!(out, "\tCreation time: \t\t{}", time(item.otime))?;
        writeln!(out, "\tSubvolume ID: \t\t{}", info.id)?;
        writeln!(out, "\tGeneration: \t\t{}", info.generation())?;
        writeln!(out, "\tGen at creation: \t{}", info.created_generation())?;
        writeln!(out, "\tParent ID: \t\t{parent}")?;
        writeln!(out, "\tTop level ID: \t\t{parent}")?;
        writeln!(
            out,
            "\tFlags: \t\t\t{}",
            if info.is_read_only() { "readonly" } else { "-" }
        )?;
        writeln!(out, "\tSend transid: \t\t{}", item.stransid)?;
        writeln!(out, "\tSend time: \t\t{}", time(item.stime))?;
        writeln!(out, "\tReceive transid: \t{}", item.rtransid)?;
        writeln!(out, "\tReceive time: \t\t{}", time(item.rtime))?;
        writeln!(out, "\tSnapshot(s):")?;
        for snapshot in snapshots {
            write!(out, "\t\t\t\t")?;
            out.write_all(&context.printable(snapshot))?;
            writeln!(out)?;
        }
        let Some(quota) = quota else {
            writeln!(out, "\tQuota group:\t\tn/a")?;
            return Ok(());
        };
        let units = self.units.units();
        let limit =
            |limit: Option<ByteCount>| limit.map_or_else(|| "-".to_owned(), |limit| units.text(limit.get()));
        writeln!(out, "\tQuota group:\t\t0/{}", info.id)?;
        writeln!(out, "\t  Limit referenced:\t{}", limit(quota.limit_referenced))?;
        writeln!(out, "\t  Limit exclusive:\t{}", limit(quota.limit_exclusive))?;
        writeln!(
            out,
            "\t  Usage referenced:\t{}",
            units.text(quota.referenced.get())
        )?;
        writeln!(out, "\t  Usage exclusive:\t{}", units.text(quota.exclusive.get()))?;
        Ok(())
    }
}

fn as_json(info: &SubvolumeInfo, snapshots: &[Vec<u8>], quota: Option<&Quota>) -> Value {
    let item = &info.root_item;
    let uuid = |uuid: Option<uuid::Uuid>| crate::output::json::uuid(&uuid.unwrap_or_default());
    let time = |time: Timestamp| match time.seconds {
        0 => Value::Null,
        seconds => json!({ "seconds": seconds, "nanoseconds": time.nanoseconds }),
    };
    let parent = info.place.as_ref().map_or(0, |place| place.parent.get());
    let mut object = Map::new();
    insert_name(&mut object, "path", info.path.as_deref().unwrap_or(b"DELETED"));
    let name = info
        .place
        .as_ref()
        .map_or(TOP_LEVEL_NAME.as_bytes(), |place| &place.name);
    insert_name(&mut object, "name", name);
    object.insert("uuid".into(), uuid(info.uuid()));
    object.insert("parent_uuid".into(), uuid(info.parent_uuid()));
    object.insert("received_uuid".into(), uuid(info.received_uuid()));
    object.insert("otime".into(), time(item.otime));
    object.insert("subvolume_id".into(), info.id.get().into());
    object.insert("generation".into(), info.generation().get().into());
    object.insert("ogeneration".into(), info.created_generation().get().into());
    object.insert("parent_id".into(), parent.into());
    object.insert("top_level_id".into(), parent.into());
    object.insert("readonly".into(), info.is_read_only().into());
    object.insert("deleted".into(), info.is_deleted().into());
    object.insert("send_transid".into(), item.stransid.get().into());
    object.insert("send_time".into(), time(item.stime));
    object.insert("receive_transid".into(), item.rtransid.get().into());
    object.insert("receive_time".into(), time(item.rtime));
    let snapshots = snapshots.iter().map(|path| {
        let mut object = Map::new();
        insert_name(&mut object, "path", path);
        Value::Object(object)
    });
    object.insert("snapshots".into(), snapshots.collect());
    let quota = quota.map_or(Value::Null, |quota| {
        json!({
            "qgroupid": format!("0/{}", info.id),
            "referenced": quota.referenced.get(),
            "exclusive": quota.exclusive.get(),
            "max_referenced": quota.limit_referenced.map(ByteCount::get),
            "max_exclusive": quota.limit_exclusive.map(ByteCount::get),
        })
    });
    object.insert("quota_group".into(), quota);
    Value::Object(object)
}
