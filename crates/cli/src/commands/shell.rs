//! `buttress shell IMAGE`: a session on a volume, from a terminal, a script, or `-c`.

use std::ffi::OsString;

use anyhow::Result;
use clap::Args;

use crate::context::Context;
use crate::exit::Outcome;
use crate::shell::Session;
use crate::table::Subcommand;
use crate::target::Target;

/// Look at a volume and change it in a session, one word with its arguments a line; `help` lists the words
#[derive(Args, Debug)]
pub struct Shell {
    /// Open the volume for writing
    #[arg(short = 'w', long)]
    write: bool,
    /// Do this line and leave; may be repeated, and stops at the first that fails
    #[arg(short = 'c', long, value_name = "COMMAND")]
    command: Vec<OsString>,
    /// The image or device, and the directory in which the session begins
    #[arg(value_name = "IMAGE[:/path]")]
    image: OsString,
}

impl Subcommand for Shell {
    const NAME: &'static str = "shell";

    fn run(self, context: &Context) -> Result<Outcome> {
        let target = Target::parse(&self.image);
        let mut session = if self.write {
            let writing = context.open_for_writing(&target.image)?;
            Session::writing(context, target.image, writing)
        } else {
            let opened = context.open_volume(&target.image)?;
            Session::reading(context, target.image, opened)
        };
        session.go_to(&target.path)?;
        session.run(&self.command)?;
        Ok(Outcome::Done)
    }
}
