//! `buttress subvolume set-default IMAGE:/path`, or `set-default ID IMAGE`: sets the subvolume that
//! a mount without options shows.

use std::ffi::OsString;

use anyhow::{Context as _, Result};
use buttress::{Follow, SubvolumeId};
use clap::Args;

use crate::context::Context;
use crate::exit::{Outcome, usage};
use crate::manual::{Example, example};
use crate::table::Subcommand;

/// Set the default subvolume, which a mount without options shows
#[derive(Args, Debug)]
pub struct SetDefault {
    /// Subvolume, or its id followed by the image
    #[arg(value_name = "IMAGE:/PATH|ID")]
    subvolume: OsString,
    /// The image or device, if the subvolume is given by its id
    #[arg(value_name = "IMAGE")]
    image: Option<OsString>,
}

impl Subcommand for SetDefault {
    const NAME: &'static str = "set-default";
    const ON_MOUNTS: bool = true;
    const EXAMPLES: &'static [Example] = &[
        example(
            "buttress subvolume set-default new.img:/home",
            "Makes a subvolume the default",
        ),
        example(
            "buttress subvolume set-default 256 new.img",
            "Sets the default subvolume by its id",
        ),
    ];

    fn run(self, context: &Context) -> Result<Outcome> {
        let (id, target) = match &self.image {
            Some(image) => {
                let id = self.subvolume.to_str().and_then(|text| text.parse().ok());
                let id: u64 = id.ok_or_else(|| {
                    usage(format_args!("{} is not a subvolume id", self.subvolume.display()))
                })?;
                // As in btrfs-progs, 0 means the top level.
                let id = if id == 0 {
                    SubvolumeId::TOP_LEVEL
                } else {
                    SubvolumeId::new(id)
                };
                (Some(id), context.target(image))
            }
            None => (None, context.target(&self.subvolume)),
        };
        let volume = context.open_for_writing(&target.image)?;
        let id = match id {
            Some(id) => id,
            None => super::subvolume_at(&volume, &target, Follow::All)?,
        };
        let default = volume.volume().subvolume_by_id(id);
        default
            .and_then(|default| volume.volume().set_default_subvolume(default))
            .with_context(|| target.display())?;
        volume.commit()?;
        if context.json() {
            context.print_json("subvolume-set-default", target.with_id(id))?;
        }
        Ok(Outcome::Done)
    }
}
