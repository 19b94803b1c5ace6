//! The one table of commands. Parser, help, man pages and shell completions are generated from it,
//! so they cannot disagree.
//!
//! A command is a type that derives [`clap::Args`] and implements [`Subcommand`]; its doc comment
//! is the help text. [`leaf`] makes a table row of such a command. Groups are rows with nested
//! rows.
//!
//! `command_line` describes the table to clap and parses; `running` runs the command that a line
//! names.

mod command_line;
mod running;

use anyhow::Result;
use clap::{ArgMatches, Command};

use crate::commands;
use crate::context::Context;
use crate::exit::{self, Outcome};
use crate::globals::{self, Uses};
use crate::manual::{self, Example, ExitCode};
pub use command_line::command;
#[cfg(test)]
pub(crate) use command_line::parse;
pub(crate) use command_line::subcommand_named;
pub use running::run;
pub(crate) use running::run_on_mount;

/// The state of a mounted volume that a command sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MountView {
    /// A view of the newest state.
    Newest,
    /// A view of a commit that the server makes first. The command keeps its view for long, or reads
    /// references to extents, which do not include delayed references.
    Committed,
    /// The live volume. The command moves extents and waits until nothing needs their old places; a
    /// view of its own would need them.
    Live,
}

/// A command, whose arguments are the type's fields.
pub trait Subcommand: clap::Args {
    /// Name of the command in its group.
    const NAME: &'static str;
    /// True if help omits the command.
    const HIDDEN: bool = false;
    /// True if the server of a mount can execute the command for a path below the mount. Such a
    /// command opens volumes only through the context, and opens no files.
    const ON_MOUNTS: bool = false;
    /// The state of a mounted volume that the command sees.
    const MOUNT_VIEW: MountView = MountView::Newest;
    /// Exit code if the command fails or loses something.
    const TROUBLE: u8 = exit::FAILURE;
    /// Example command lines; the first is the most important one.
    const EXAMPLES: &'static [Example];
    /// Exit codes of the command.
    const EXIT_CODES: &'static [ExitCode] = manual::EXIT_CODES;

    /// Returns whether standard output carries contents (of a file, an archive, a stream, a script)
    /// instead of results. Such raw output has no JSON form, so the command refuses JSON.
    fn writes_contents(&self) -> bool {
        false
    }

    /// Returns the global options about volumes that the command uses. The command refuses the
    /// other global options about volumes.
    fn uses(&self) -> Uses {
        Uses::PATHS
    }

    /// Runs the command.
    fn run(self, context: &Context) -> Result<Outcome>;
}

/// A row of the table.
#[derive(Debug)]
pub struct Row {
    name: &'static str,
    /// A shorter name that stays unambiguous with any future commands.
    alias: Option<&'static str>,
    kind: Kind,
}

#[derive(Debug)]
pub(crate) enum Kind {
    Group {
        about: &'static str,
        rows: &'static [Row],
    },
    Leaf {
        hidden: bool,
        on_mounts: bool,
        mount_view: MountView,
        trouble: u8,
        examples: &'static [Example],
        exit_codes: &'static [ExitCode],
        /// Function that adds the command's arguments and the global flags.
        complete: fn(Command) -> Command,
        run: RunFunction,
    },
}

pub(crate) type RunFunction = fn(&ArgMatches, &Context) -> Result<Outcome>;

/// Creates the row of a command.
pub const fn leaf<C: Subcommand>() -> Row {
    Row {
        name: C::NAME,
        alias: None,
        kind: Kind::Leaf {
            hidden: C::HIDDEN,
            on_mounts: C::ON_MOUNTS,
            mount_view: C::MOUNT_VIEW,
            trouble: C::TROUBLE,
            examples: C::EXAMPLES,
            exit_codes: C::EXIT_CODES,
            complete: |command| globals::attach(C::augment_args(command)),
            run: run_parsed::<C>,
        },
    }
}

/// Creates the row of a group of commands.
pub const fn group(name: &'static str, about: &'static str, rows: &'static [Row]) -> Row {
    Row {
        name,
        alias: None,
        kind: Kind::Group { about, rows },
    }
}

impl Row {
    /// Adds a shorter name to the row.
    const fn or(self, alias: &'static str) -> Self {
        Self {
            alias: Some(alias),
            ..self
        }
    }

    pub(crate) const fn name(&self) -> &'static str {
        self.name
    }

    pub(crate) const fn kind(&self) -> &Kind {
        &self.kind
    }
}

/// Refuses a command that writes contents if the user asked for JSON: an error document must not
/// follow contents.
pub(crate) fn refuse_as_json<C: Subcommand>(command: &C, context: &Context) -> Result<()> {
    if context.json() && command.writes_contents() {
        return Err(exit::usage(format_args!(
            "--format json: `{}` writes contents to standard output, which have no form in JSON",
            C::NAME
        )));
    }
    Ok(())
}

fn run_parsed<C: Subcommand>(matches: &ArgMatches, context: &Context) -> Result<Outcome> {
    let command = C::from_arg_matches(matches)?;
    refuse_as_json(&command, context)?;
    if let Some(option) = context.globals().unused(command.uses()) {
        return Err(exit::usage(format_args!(
            "{option} means nothing to `{}`",
            C::NAME
        )));
    }
    command.run(context)
}

/// Rows of the command table.
pub const ROWS: &[Row] = &[
    leaf::<commands::ls::Ls>(),
    leaf::<commands::cat::Cat>(),
    leaf::<commands::stat::Stat>(),
    leaf::<commands::tree::Tree>(),
    leaf::<commands::tune::Tune>(),
    leaf::<commands::cp::Cp>(),
    leaf::<commands::tar::Tar>(),
    leaf::<commands::manifest::Manifest>(),
    leaf::<commands::diff::Diff>(),
    leaf::<commands::mkfs::Mkfs>(),
    leaf::<commands::check::Check>(),
    leaf::<commands::generations::Generations>(),
    leaf::<commands::restore::Restore>(),
    leaf::<commands::undelete::Undelete>(),
    leaf::<commands::space::Space>(),
    leaf::<commands::compression::Compression>(),
    leaf::<commands::send::Send>(),
    leaf::<commands::receive::Receive>(),
    leaf::<commands::fiemap::FiemapCommand>(),
    group(
        "stream",
        "Inspect, merge and rebase send streams without receiving them",
        commands::stream::ROWS,
    ),
    group(
        "subvolume",
        "List, show, create and delete subvolumes and snapshots",
        commands::subvolume::ROWS,
    ),
    group(
        "filesystem",
        "Show devices and where the space went, set the label and sizes",
        commands::filesystem::ROWS,
    )
    .or("fi"),
    group(
        "device",
        "Add and remove devices, show how often they failed",
        commands::device::ROWS,
    ),
    group(
        "scrub",
        "Read every copy and all parity, and repair damage",
        commands::scrub::ROWS,
    ),
    group(
        "balance",
        "Move block groups, and convert them to other profiles",
        commands::balance::ROWS,
    ),
    group("replace", "Replace a device of a volume", commands::replace::ROWS),
    group(
        "quota",
        "Enable and disable quotas, and count what subvolumes use",
        commands::quota::ROWS,
    ),
    group(
        "qgroup",
        "Show and change quota groups, their members and limits",
        commands::qgroup::ROWS,
    ),
    group(
        "property",
        "Show and set properties of volumes, subvolumes and files",
        commands::property::ROWS,
    ),
    group(
        "overlay",
        "Write the changes of an overlay file to its image, or discard them",
        commands::overlay::ROWS,
    ),
    group(
        "rescue",
        "Make damaged volumes usable again",
        commands::rescue::ROWS,
    ),
    group(
        "inspect-internal",
        "Inspect the structures of a volume on disk",
        commands::inspect_internal::ROWS,
    ),
    leaf::<commands::image::Image>(),
    leaf::<commands::convert::Convert>(),
    leaf::<commands::mount::Mount>(),
    leaf::<commands::mount::Umount>(),
    leaf::<commands::shell::Shell>(),
    leaf::<commands::tour::TourCommand>(),
    leaf::<commands::help::Help>(),
    leaf::<commands::version::Version>(),
    leaf::<commands::completions::Completions>(),
    leaf::<commands::man::Man>(),
    leaf::<commands::reference::Reference>(),
];

/// Returns the names of all commands, prefixed with their groups, in the table's order, including
/// hidden ones.
pub fn commands() -> Vec<String> {
    fn add(rows: &[Row], above: &str, names: &mut Vec<String>) {
        for row in rows {
            let name = format!("{above}{}", row.name);
            match &row.kind {
                Kind::Group { rows, .. } => add(rows, &format!("{name} "), names),
                Kind::Leaf { .. } => names.push(name),
            }
        }
    }
    let mut names = Vec::new();
    add(ROWS, "", &mut names);
    names
}
