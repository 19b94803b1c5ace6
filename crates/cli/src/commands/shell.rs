//! `buttress shell IMAGE`: a session on a volume, on a terminal, from a script, or with `-c`.

use std::ffi::OsString;

use anyhow::{Context as _, Result};
use clap::Args;

use crate::context::Context;
use crate::exit::Outcome;
use crate::manual::{Example, example};
use crate::shell::Session;
use crate::table::Subcommand;
use crate::target::Target;

/// Inspect and change a volume in a session, one command a line; `help` lists the commands
///
/// At a terminal, lines can be edited, Tab completes commands and paths, and earlier lines can be
/// recalled. The history file is $XDG_STATE_HOME/buttress/shell_history, or the file in
/// BUTTRESS_HISTORY. If BUTTRESS_HISTORY is empty, the session has no history file. Ctrl-C clears
/// the line, or cancels the running command; Ctrl-D exits.
///
/// The session commits its changes when it ends: by `quit`, at the end of the input, or after a
/// command that failed. SIGTERM and SIGHUP end it as well, and without a terminal also SIGINT.
/// `sync` commits immediately, and the session commits every 30 seconds. `abort` and a second
/// signal end the session and discard the changes since the last commit. The session reports the
/// number of discarded changes. The session also reports the number of committed changes, except at
/// the end of a script.
#[derive(Args, Debug)]
pub struct Shell {
    /// Open the volume for writing
    #[arg(short = 'w', long)]
    write: bool,
    /// Run this line and exit; may be repeated, and stops at the first failure
    #[arg(short = 'c', long, value_name = "COMMAND")]
    command: Vec<OsString>,
    /// Neither read nor write the history file
    #[arg(long)]
    no_history: bool,
    /// The image or device, and the directory in which the session starts
    #[arg(value_name = "IMAGE[:/path]")]
    image: OsString,
}

impl Subcommand for Shell {
    const NAME: &'static str = "shell";
    const EXAMPLES: &'static [Example] = &[
        example("buttress shell backup.img", "Starts a read-only session"),
        example(
            "buttress shell -w new.img -c 'snapshot / /monday'",
            "Runs one command, and commits",
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
