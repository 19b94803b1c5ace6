//! `buttress tune IMAGE`: changes of a whole volume, with the options of btrfstune.
//!
//! All changes of one `tune` call are one commit. Left out: the options of btrfstune that rewrite
//! tree blocks (`-u`, `--csum`, `--convert-to-block-group-tree`) and `-S 0`, which the command
//! refuses as unknown options or by name.

use std::ffi::OsString;
use std::io::Write;

use anyhow::{Result, bail};
use buttress::Uuid;
use buttress::mkfs::Feature;
use clap::Args;
use serde_json::{Value, json};

use crate::context::Context;
use crate::exit::Outcome;
use crate::globals::Uses;
use crate::manual::{Example, example};
use crate::table::Subcommand;

/// Change features, the uuid or the seed flag of an unmounted volume
#[derive(Args, Debug)]
pub struct Tune {
    /// Allow more hard links in one directory (extref)
    #[arg(short = 'r')]
    extref: bool,
    /// Use short extent items for new tree blocks (skinny-metadata)
    #[arg(short = 'x')]
    skinny_metadata: bool,
    /// Store no items for holes in new files (no-holes)
    #[arg(short = 'n')]
    no_holes: bool,
    /// Give the volume a new random uuid; tree blocks keep the old one
    #[arg(short = 'm', conflicts_with = "fsid")]
    random_fsid: bool,
    /// Give the volume this uuid; tree blocks keep the old one
    #[arg(short = 'M', value_name = "UUID")]
    fsid: Option<Uuid>,
    /// 1 makes the volume a read-only seed, on which other volumes can be based
    #[arg(short = 'S', value_name = "0|1", value_parser = clap::value_parser!(u8).range(0..=1))]
    seed: Option<u8>,
    /// For compatibility with btrfstune: no change needs it
    #[arg(short = 'f', long)]
    force: bool,
    /// The image or device
    #[arg(value_name = "IMAGE")]
    image: OsString,
}

impl Tune {
    fn features(&self) -> Vec<Feature> {
        let wanted = [
            (self.extref, Feature::ExtendedReferences),
            (self.skinny_metadata, Feature::SkinnyMetadata),
            (self.no_holes, Feature::NoHoles),
        ];
        wanted
            .into_iter()
            .filter_map(|(is_wanted, feature)| is_wanted.then_some(feature))
            .collect()
    }
}

impl Subcommand for Tune {
    const NAME: &'static str = "tune";
    const EXAMPLES: &'static [Example] = &[
        example(
            "buttress tune -rxn old.img",
            "Adds the features that old volumes lack",
        ),
        example(
            "buttress tune -m copy.img",
            "Gives a copy of an image a uuid of its own",
        ),
    ];

    fn uses(&self) -> Uses {
        Uses::VOLUME
    }

    fn run(self, context: &Context) -> Result<Outcome> {
        let target = context.target(&self.image);
        let features = self.features();
        if features.is_empty() && !self.random_fsid && self.fsid.is_none() && self.seed.is_none() {
            bail!("tune: no change is given; give at least one of -r, -x, -n, -m, -M and -S");
        }
        if self.seed == Some(0) {
            bail!("tune: -S 0 is not supported yet; run `btrfstune -S 0`");
        }
        let volume = context.open_for_writing(&target.image)?;
        for feature in features {
            volume.volume().add_feature(feature)?;
        }
        let mut fsid = self.fsid;
        if let Some(fsid) = fsid {
            volume.volume().set_fsid(fsid)?;
        }
        if self.random_fsid {
            fsid = Some(volume.volume().set_new_fsid()?);
        }
        if self.seed == Some(1) {
            volume.volume().make_seed()?;
        }
        volume.commit()?;
        if context.json() {
            let mut object = target.as_json();
            object.insert("fsid".to_owned(), json!(fsid.map(|fsid| fsid.to_string())));
            context.print_json("tune", Value::Object(object))?;
            return Ok(Outcome::Done);
        }
        let mut out = context.stdout();
        if let Some(fsid) = fsid {
            writeln!(out, "new uuid: {fsid}")?;
        }
        out.flush()?;
        Ok(Outcome::Done)
    }
}
