//! `buttress filesystem sync IMAGE`: finishes what is unfinished, and makes everything durable.

use std::ffi::OsString;

use anyhow::Result;
use buttress_fs::Progress;
use clap::Args;

use crate::context::Context;
use crate::exit::Outcome;
use crate::table::Subcommand;
use crate::target::Target;

/// Drop deleted subvolumes, commit, and flush the devices
#[derive(Args, Debug)]
pub struct Sync {
    /// The image or device
    #[arg(value_name = "IMAGE")]
    image: OsString,
}

impl Subcommand for Sync {
    const NAME: &'static str = "sync";

    fn run(self, context: &Context) -> Result<Outcome> {
        let target = Target::parse(&self.image);
        let volume = context.open_for_writing(&target.image)?;
        volume.filesystem.drop_deleted_subvolumes(&Progress::new())?;
        volume.commit()?;
        volume.filesystem.view().volume().flush()?;
        Ok(Outcome::Done)
    }
}
