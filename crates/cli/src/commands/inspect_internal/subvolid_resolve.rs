//! `buttress inspect-internal subvolid-resolve`: the path of a subvolume.

use std::ffi::OsString;
use std::io::Write;

use anyhow::{Context as _, Result};
use buttress::SubvolumeId;
use clap::Args;
use serde_json::{Map, Value};

use crate::context::Context;
use crate::exit::Outcome;
use crate::manual::{Example, example};
use crate::output::json;
use crate::table::Subcommand;

/// Print the path of a subvolume from the top level
#[derive(Args, Debug)]
pub struct SubvolIdResolve {
    /// Id of the subvolume
    #[arg(value_name = "ID")]
    id: u64,
    /// The image or device
    #[arg(value_name = "IMAGE")]
    image: OsString,
}

impl Subcommand for SubvolIdResolve {
    const NAME: &'static str = "subvolid-resolve";
    const ON_MOUNTS: bool = true;
    const EXAMPLES: &'static [Example] = &[example(
        "buttress inspect-internal subvolid-resolve 257 backup.img",
        "Prints the path of a subvolume",
    )];

    fn run(self, context: &Context) -> Result<Outcome> {
        let target = context.target(&self.image);
        let filesystem = context.open_volume(&target.image)?.volume().clone();
        let id = SubvolumeId::new(self.id);
        let path = match id {
            SubvolumeId::TOP_LEVEL => Vec::new(),
            id => filesystem.subvolume_path(id).with_context(|| target.display())?,
        };
        if context.json() {
            let mut object = Map::new();
            json::insert_name(&mut object, "path", &path);
            context.print_json(Self::NAME, Value::Object(object))?;
            return Ok(Outcome::Done);
        }
        let mut out = context.stdout();
        out.write_all(&context.printable(&path))?;
        out.write_all(b"\n")?;
        out.flush()?;
        Ok(Outcome::Done)
    }
}
