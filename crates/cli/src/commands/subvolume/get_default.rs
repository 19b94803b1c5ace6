//! `buttress subvolume get-default IMAGE`: prints the subvolume that a mount without options shows.

use std::ffi::OsString;
use std::io::Write;

use anyhow::Result;
use buttress::SubvolumeId;
use clap::Args;
use serde_json::{Map, Value};

use super::TOP_LEVEL_NAME;
use crate::context::Context;
use crate::exit::Outcome;
use crate::manual::{Example, example};
use crate::output::json::insert_name;
use crate::table::Subcommand;

/// Show the default subvolume, which a mount without options shows
#[derive(Args, Debug)]
pub struct GetDefault {
    /// The image or device
    #[arg(value_name = "IMAGE")]
    image: OsString,
}

impl Subcommand for GetDefault {
    const NAME: &'static str = "get-default";
    const ON_MOUNTS: bool = true;
    const EXAMPLES: &'static [Example] = &[example(
        "buttress subvolume get-default backup.img",
        "Prints the default subvolume",
    )];

    fn run(self, context: &Context) -> Result<Outcome> {
        let target = context.target(&self.image);
        let filesystem = context.open_volume(&target.image)?.volume().clone();
        let default = filesystem.default_subvolume()?;
        let (id, info) = (default.id(), default.info()?);
        let top_level = info.place.as_ref().map_or(0, |place| place.parent.get());
        let path = info.path.clone().unwrap_or_default();
        if context.json() {
            let mut object = Map::new();
            object.insert("id".into(), id.get().into());
            object.insert("generation".into(), info.generation().get().into());
            object.insert("top_level".into(), top_level.into());
            insert_name(&mut object, "path", &path);
            context.print_json("subvolume-get-default", Value::Object(object))?;
            return Ok(Outcome::Done);
        }
        let mut out = context.stdout();
        if id == SubvolumeId::TOP_LEVEL {
            writeln!(out, "ID {id} ({})", TOP_LEVEL_NAME.trim_matches(['<', '>']))?;
        } else {
            write!(
                out,
                "ID {id} gen {} top level {top_level} path ",
                info.generation()
            )?;
            out.write_all(&context.printable(&path))?;
            writeln!(out)?;
        }
        out.flush()?;
        Ok(Outcome::Done)
    }
}
