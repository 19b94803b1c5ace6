//! `buttress subvolume snapshot [-r] IMAGE:/source IMAGE:/path`.

use std::ffi::OsString;
use std::io::Write;

use anyhow::{Context as _, Result};
use buttress::Follow;
use buttress::quota::QgroupId;
use clap::Args;
use serde_json::Value;

use crate::commands::qgroup::parse_group;
use crate::context::Context;
use crate::exit::{Advice, Outcome};
use crate::manual::{Example, example};
use crate::output::terminal;
use crate::table::Subcommand;
use crate::target::Target;

/// Create a snapshot of a subvolume, in constant time
#[derive(Args, Debug)]
pub struct Snapshot {
    /// Make the snapshot read-only
    #[arg(short)]
    read_only: bool,
    /// Make the quota group of the snapshot a member of this group; repeatable
    #[arg(short = 'i', value_name = "QGROUPID", value_parser = parse_group)]
    groups: Vec<QgroupId>,
    /// The subvolume
    #[arg(value_name = "IMAGE:/SOURCE")]
    source: OsString,
    /// Path of the snapshot: a new name, or a directory in which the snapshot gets the name of the
    /// source
    #[arg(value_name = "IMAGE:/PATH")]
    destination: OsString,
}

impl Subcommand for Snapshot {
    const NAME: &'static str = "snapshot";
    const ON_MOUNTS: bool = true;
    const EXAMPLES: &'static [Example] = &[
        example(
            "buttress subvolume snapshot -r new.img:/home new.img:/home-monday",
            "Creates a read-only snapshot, which can be sent",
        ),
        example(
            "buttress subvolume snapshot new.img:/home-monday new.img:/home-again",
            "Creates a writable snapshot of the read-only snapshot",
        ),
    ];

    fn run(self, context: &Context) -> Result<Outcome> {
        let (source, destination) = (context.target(&self.source), context.target(&self.destination));
        let volume = super::open_one_volume(context, &[source.clone(), destination.clone()])?;
        let from = volume
            .resolve(&source.path, Follow::All)
            .with_context(|| source.display())?;
        if !from.is_subvolume_root() {
            return Err(anyhow::anyhow!("{} is not a subvolume", source.display())).context(Advice::new(
                "`buttress subvolume list IMAGE` lists all subvolumes",
            ));
        }
        let mut path = destination.path.clone();
        if volume.resolve(&path, Follow::All).is_ok() {
            // If the destination is a directory, the snapshot goes into it under the source's name.
            let name = source
                .path
                .rsplit(|byte| *byte == b'/')
                .find(|name| !name.is_empty());
            let name =
                name.with_context(|| format!("{} has no name: give the snapshot a name", source.display()))?;
            path.push(b'/');
            path.extend_from_slice(name);
        }
        let (directory, name) = volume.place(&path).with_context(|| destination.display())?;
        let id = volume.volume().create_snapshot_in_groups(
            from.subvolume,
            directory,
            &name,
            self.read_only,
            &self.groups,
        );
        let id = id.with_context(|| destination.display())?;
        volume.commit()?;
        if context.json() {
            let made = Target { path, ..destination };
            let mut object = made.as_json();
            object.insert("id".into(), id.get().into());
            object.insert("read_only".into(), self.read_only.into());
            object.insert("source".into(), source.with_id(from.subvolume));
            context.print_json("subvolume-snapshot", Value::Object(object))?;
        } else if !context.globals().quiet {
            let kind = if self.read_only {
                "readonly snapshot"
            } else {
                "snapshot"
            };
            let mut out = context.stdout();
            writeln!(
                out,
                "Create {kind} of '{}' in '{}'",
                terminal::shown(source.display()),
                terminal::shown(destination.display())
            )?;
            out.flush()?;
        }
        Ok(Outcome::Done)
    }
}
