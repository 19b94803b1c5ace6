//! `buttress shell IMAGE`: a session on a volume, from a terminal, a script, or `-c`.

use std::ffi::OsString;

use anyhow::{Context as _, Result};
use clap::Args;

use crate::context::Context;
use crate::exit::Outcome;
use crate::manual::{Example, example};
use crate::shell::Session;
use crate::table::Subcommand;
use crate::target::Target;

/// Look at a volume and change it in a session, one word with its arguments a line; `help` lists the words
///
/// At a terminal lines are edited, Tab completes words and paths, and earlier lines are recalled: they are kept in
/// $XDG_STATE_HOME/buttress/shell_history, or in the file that BUTTRESS_HISTORY names; an empty one switches that off.
/// Ctrl-C clears the line, or cancels the word that runs; Ctrl-D leaves.
///
/// Leaving commits what was done: by `quit`, at the end of the lines, after a word that failed, on SIGTERM and SIGHUP, and
/// without a terminal also on SIGINT. `sync` commits at once, and so does the session itself every 30 seconds. `abort`
/// leaves without, and a second signal ends the session at once: both drop what was done since the last commit. Whatever
/// is dropped, or committed otherwise than by the end of a script, is said with its amount.
#[derive(Args, Debug)]
pub struct Shell {
    /// Open the volume for writing
    #[arg(short = 'w', long)]
    write: bool,
    /// Do this line and leave; may be repeated, and stops at the first that fails
    #[arg(short = 'c', long, value_name = "COMMAND")]
    command: Vec<OsString>,
    /// Neither recall lines of earlier sessions nor keep those of this one
    #[arg(long)]
    no_history: bool,
    /// The image or device, and the directory in which the session begins
    #[arg(value_name = "IMAGE[:/path]")]
    image: OsString,
}

impl Subcommand for Shell {
    const NAME: &'static str = "shell";
    const EXAMPLES: &'static [Example] = &[
        example(
            "buttress shell backup.img",
            "Begins a session that looks at a volume",
        ),
        example(
            "buttress shell -w new.img -c 'snapshot / /monday'",
            "Does one thing and commits it",
        ),
    ];

    fn run(self, context: &Context) -> Result<Outcome> {
        let target = Target::parse(&self.image);
        let shown = target.display();
        let mut session = if self.write {
            let writing = context.open_for_writing(&target.image)?;
            Session::writing(context, target.image, writing)
        } else {
            let opened = context.open_volume(&target.image)?;
            Session::reading(context, target.image, opened)
        };
        session.go_to(&target.path).with_context(|| shown)?;
        session.run(&self.command, !self.no_history)
    }
}
