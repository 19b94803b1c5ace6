//! `buttress inspect-internal inode-resolve`: all paths of an inode.

use std::ffi::OsString;
use std::io::Write;

use anyhow::{Context as _, Result};
use buttress::unstable::filesystem_of;
use buttress::{Follow, InodeNumber, Location, Volume};
use clap::Args;
use serde_json::{Map, Value};

use super::paths::PathFinder;
use crate::context::Context;
use crate::exit::Outcome;
use crate::manual::{Example, example};
use crate::output::json;
use crate::table::Subcommand;

/// Print all paths of an inode
#[derive(Args, Debug)]
pub struct InodeResolve {
    /// Number of the inode
    #[arg(value_name = "INODE")]
    inode: u64,
    /// A path in the subvolume that the inode belongs to
    #[arg(value_name = "IMAGE:/PATH")]
    target: OsString,
}

impl Subcommand for InodeResolve {
    const NAME: &'static str = "inode-resolve";
    const ON_MOUNTS: bool = true;
    const EXAMPLES: &'static [Example] = &[example(
        "buttress inspect-internal inode-resolve 257 backup.img:/home",
        "Prints all paths of an inode of a subvolume",
    )];

    fn run(self, context: &Context) -> Result<Outcome> {
        let (opened, place) = context.open_target(&context.target(&self.target), Follow::All)?;
        let location = Location::new(place.subvolume, InodeNumber::new(self.inode));
        let paths = with_finder(opened.volume(), |finder| finder.paths(location))
            .with_context(|| format!("inode {} of subvolume {}", self.inode, place.subvolume))?;
        if context.json() {
            context.print_json(Self::NAME, paths.iter().map(|path| path_value(path)).collect())?;
            return Ok(Outcome::Done);
        }
        let mut out = context.stdout();
        for path in &paths {
            out.write_all(&context.printable(path))?;
            out.write_all(b"\n")?;
        }
        out.flush()?;
        Ok(Outcome::Done)
    }
}

fn path_value(path: &[u8]) -> Value {
    let mut object = Map::new();
    json::insert_name(&mut object, "path", path);
    Value::Object(object)
}

/// Calls `use_finder` with a finder of paths in a volume.
pub(crate) fn with_finder<T>(volume: &Volume, use_finder: impl FnOnce(&mut PathFinder<'_>) -> T) -> T {
    use_finder(&mut PathFinder::new(&filesystem_of(volume)))
}
