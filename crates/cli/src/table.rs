//! The one table of commands. Parser, help, man pages and shell completions are made from it, so they cannot
//! disagree.
//!
//! A command is a type that derives [`clap::Args`] (its doc comment is the help text) and implements
//! [`Subcommand`]; [`leaf`] makes a table row of it. Groups are rows with rows of their own. As in
//! btrfs-progs every unambiguous prefix of a group's or command's name will do: `buttress sub li`.

use std::ffi::OsString;

use anyhow::Result;
use clap::{ArgMatches, Command};

use crate::commands;
use crate::context::Context;
use crate::exit::{self, Advice, End, Outcome};
use crate::globals::{self, Globals, Uses};
use crate::manual::{self, Example, ExitCode};
use crate::mounted::client;
use crate::opening::Place;
use crate::output::{events, json, stdout};
use crate::progs;

/// A command: its arguments are the type's fields.
pub trait Subcommand: clap::Args {
    /// The command's name in its group.
    const NAME: &'static str;
    /// Whether help leaves it out.
    const HIDDEN: bool = false;
    /// Whether the server of a mount does it for a path below the mount. It then opens volumes by the context only, and no files.
    const ON_MOUNTS: bool = false;
    /// Whether that server commits before: the view that the command looks at would keep what a later commit frees, or it asks who refers to
    /// extents, and delayed references are not found.
    const COMMITS_BEFORE: bool = false;
    /// The exit code when it fails or loses something.
    const TROUBLE: u8 = exit::FAILURE;
    /// Command lines that show what it is for; the first is the one to know.
    const EXAMPLES: &'static [Example];
    /// Its exit codes.
    const EXIT_CODES: &'static [ExitCode] = manual::EXIT_CODES;

    /// Whether what it writes to standard output are contents (of a file, an archive, a stream, a script) and not results:
    /// then there is no JSON in place of them, and it is refused.
    fn writes_contents(&self) -> bool {
        false
    }

    /// Which global options about volumes mean something to it. It is refused with others.
    fn uses(&self) -> Uses {
        Uses::PATHS
    }

    /// Runs it.
    fn run(self, context: &Context) -> Result<Outcome>;
}

/// A row of the table.
#[derive(Debug)]
pub struct Row {
    name: &'static str,
    /// A shorter name that stays unambiguous whatever commands there are.
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
        commits_before: bool,
        trouble: u8,
        examples: &'static [Example],
        exit_codes: &'static [ExitCode],
        /// Adds the command's arguments and the global flags.
        complete: fn(Command) -> Command,
        run: RunFunction,
    },
}

pub(crate) type RunFunction = fn(&ArgMatches, &Context) -> Result<Outcome>;

/// The row of a command.
pub const fn leaf<C: Subcommand>() -> Row {
    Row {
        name: C::NAME,
        alias: None,
        kind: Kind::Leaf {
            hidden: C::HIDDEN,
            on_mounts: C::ON_MOUNTS,
            commits_before: C::COMMITS_BEFORE,
            trouble: C::TROUBLE,
            examples: C::EXAMPLES,
            exit_codes: C::EXIT_CODES,
            complete: |command| globals::attach(C::augment_args(command)),
            run: run_parsed::<C>,
        },
    }
}

/// The row of a group of commands.
pub const fn group(name: &'static str, about: &'static str, rows: &'static [Row]) -> Row {
    Row {
        name,
        alias: None,
        kind: Kind::Group { about, rows },
    }
}

impl Row {
    /// The same, with a shorter name as well.
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

fn run_parsed<C: Subcommand>(matches: &ArgMatches, context: &Context) -> Result<Outcome> {
    let command = C::from_arg_matches(matches)?;
    if context.json() && command.writes_contents() {
        return Err(exit::usage(format_args!(
            "--format json: `{}` writes contents to standard output, which have no form in JSON",
            C::NAME
        )));
    }
    if let Some(option) = context.globals().unused(command.uses()) {
        return Err(exit::usage(format_args!(
            "{option} means nothing to `{}`",
            C::NAME
        )));
    }
    command.run(context)
}

/// The table.
pub const ROWS: &[Row] = &[
    leaf::<commands::ls::Ls>(),
    leaf::<commands::cat::Cat>(),
    leaf::<commands::stat::Stat>(),
    leaf::<commands::tree::Tree>(),
    leaf::<commands::cp::Cp>(),
    leaf::<commands::tar::Tar>(),
    leaf::<commands::manifest::Manifest>(),
    leaf::<commands::diff::Diff>(),
    leaf::<commands::mkfs::Mkfs>(),
    leaf::<commands::check::Check>(),
    leaf::<commands::space::Space>(),
    leaf::<commands::compression::Compression>(),
    leaf::<commands::send::Send>(),
    leaf::<commands::receive::Receive>(),
    leaf::<commands::fiemap::FiemapCommand>(),
    group(
        "stream",
        "Look into send streams without receiving them",
        commands::stream::ROWS,
    ),
    group(
        "subvolume",
        "List, show, make and delete subvolumes and snapshots",
        commands::subvolume::ROWS,
    ),
    group(
        "filesystem",
        "Show devices and where the space went, set the label",
        commands::filesystem::ROWS,
    )
    .or("fi"),
    group(
        "device",
        "Show how often the devices of a volume failed",
        commands::device::ROWS,
    ),
    group(
        "scrub",
        "Read every copy and all parity, and mend what is bad",
        commands::scrub::ROWS,
    ),
    group(
        "replace",
        "Put another device in the place of one",
        commands::replace::ROWS,
    ),
    group(
        "property",
        "Show and set properties of volumes, subvolumes and files",
        commands::property::ROWS,
    ),
    group(
        "overlay",
        "Put changes that were kept beside an image into it",
        commands::overlay::ROWS,
    ),
    group(
        "rescue",
        "Make volumes usable again that are damaged",
        commands::rescue::ROWS,
    ),
    group(
        "inspect-internal",
        "Look at the structures of a volume as they lie on disk",
        commands::inspect_internal::ROWS,
    ),
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

/// The names of all commands with those of their groups before them, in the table's order, hidden ones too.
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

const ABOUT: &str = "btrfs images and devices, without a mount and without root";

const AFTER_HELP: &str = "\
Paths inside a volume are written IMAGE:/path, where IMAGE is an image file or a block device; the devices
of a volume beyond the first are given with --device. Groups and commands can be shortened as long as they
stay unambiguous: `buttress sub list IMAGE`.

Exit codes: 0 all of it was done, 1 it failed or something was lost, 2 the command line is wrong;
`diff`: 0 the same, 1 different, 2 trouble; `check`: 0 nothing found, 1 something, 2 it could not check;
`scrub`: 2 there is nothing to resume or to cancel, 3 there are uncorrectable errors; `replace`: 2 there is nothing to cancel.";

/// How much of the command line is made at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Extent {
    /// All of it, for help, documents and errors.
    Whole,
    /// Of commands only the name: the arguments of the one that is named are added when it is parsed.
    Named,
}

/// The whole command line as clap knows it.
pub fn command() -> Command {
    command_of(Extent::Whole)
}

fn command_of(extent: Extent) -> Command {
    let root = Command::new("buttress")
        .version(env!("CARGO_PKG_VERSION"))
        .about(ABOUT)
        .after_help(AFTER_HELP)
        .max_term_width(110)
        .disable_help_subcommand(true);
    add_rows(globals::attach(root), ROWS, extent)
}

fn add_rows(parent: Command, rows: &'static [Row], extent: Extent) -> Command {
    let parent = parent
        .subcommand_required(true)
        .arg_required_else_help(true)
        .infer_subcommands(true);
    rows.iter().fold(parent, |parent, row| {
        let command = Command::new(row.name).aliases(row.alias);
        parent.subcommand(match &row.kind {
            Kind::Group { about, rows } => {
                let command = globals::attach(command.about(*about)).disable_help_subcommand(true);
                add_rows(command, rows, extent)
            }
            Kind::Leaf { hidden, complete, .. } => match extent {
                Extent::Whole => complete(command).hide(*hidden),
                Extent::Named => command.defer(*complete).hide(*hidden),
            },
        })
    })
}

/// The full name of the subcommand that a word names: its name, an alias, or a prefix of one name only.
pub(crate) fn subcommand_named(parent: &Command, word: &str) -> Option<String> {
    let visible = || parent.get_subcommands().filter(|command| !command.is_hide_set());
    if let Some(exact) = visible()
        .find(|command| command.get_name() == word || command.get_all_aliases().any(|alias| alias == word))
    {
        return Some(exact.get_name().to_owned());
    }
    let mut found = visible().filter(|command| command.get_name().starts_with(word));
    match (found.next(), found.next()) {
        (Some(only), None) => Some(only.get_name().to_owned()),
        _ => None,
    }
}

/// Parses a command line, the program's name first.
///
/// To describe every argument of every command takes longer than some commands run: it is done for help and errors, which
/// show other commands too.
pub(crate) fn parse(arguments: &[OsString]) -> Result<ArgMatches, clap::Error> {
    command_of(Extent::Named)
        .try_get_matches_from(arguments)
        .or_else(|_| command().try_get_matches_from(arguments))
}

/// Names of programs that are commands of this one, when it is called by them: through a link.
const PROGRAMS: [(&str, &str); 1] = [("mkfs.btrfs", "mkfs")];

/// A command line as if the program had been called by its own name.
fn under_own_name(mut arguments: Vec<OsString>) -> Vec<OsString> {
    let name = arguments
        .first()
        .map(std::path::Path::new)
        .and_then(std::path::Path::file_name);
    let program = PROGRAMS
        .iter()
        .find(|(program, _)| name.is_some_and(|name| name == *program));
    if let Some((_, command)) = program {
        let version = |argument: &OsString| argument == "-V" || argument == "--version";
        if arguments.get(1).is_some_and(version) {
            // Who calls it by that name asks for the version of all of it.
            arguments = vec!["buttress".into(), "--version".into()];
        } else {
            arguments.insert(1, command.into());
        }
    }
    arguments
}

/// A command as a command line calls it.
struct Called<'a> {
    run: RunFunction,
    trouble: u8,
    on_mounts: bool,
    commits_before: bool,
    matches: &'a ArgMatches,
    globals: Globals,
}

impl<'a> Called<'a> {
    fn find(matches: &'a ArgMatches) -> Result<Self, clap::Error> {
        let mut levels = vec![matches];
        let mut rows = ROWS;
        let mut current = matches;
        while let Some((name, below)) = current.subcommand() {
            levels.push(below);
            current = below;
            let Some(row) = rows.iter().find(|row| row.name == name) else {
                break;
            };
            match &row.kind {
                Kind::Group { rows: inner, .. } => rows = inner,
                Kind::Leaf {
                    trouble,
                    run,
                    on_mounts,
                    commits_before,
                    ..
                } => {
                    return Ok(Self {
                        run: *run,
                        trouble: *trouble,
                        on_mounts: *on_mounts,
                        commits_before: *commits_before,
                        matches: current,
                        globals: Globals::collect(&levels)?,
                    });
                }
            }
        }
        Err(command().error(clap::error::ErrorKind::MissingSubcommand, "a command is missing"))
    }
}

/// Parses and runs a command line, the program's name first.
pub fn run(arguments: impl IntoIterator<Item = OsString>) -> End {
    let arguments = under_own_name(arguments.into_iter().collect());
    let matches = match parse(&arguments) {
        Ok(matches) => matches,
        Err(error) => {
            if asks_for(&arguments, "--progress", "json") {
                events::want();
            }
            let is_json = asks_for(&arguments, "--format", "json");
            return match progs::answer(&arguments, &error) {
                Some(answer) => {
                    if is_json {
                        failure_as_json(&answer, exit::USAGE);
                    }
                    End::Failed(exit::USAGE, answer)
                }
                None => {
                    if is_json {
                        command_line_as_json(&error);
                    }
                    End::CommandLine(error)
                }
            };
        }
    };
    match Called::find(&matches) {
        Ok(called) => run_leaf(&arguments, called),
        Err(error) => End::CommandLine(error),
    }
}

/// Runs a command line that somebody asked the server of a mount for, in its volume. `enter` gives the place; it is told whether
/// to commit before it takes the view.
pub(crate) fn run_on_mount(arguments: &[OsString], enter: impl FnOnce(bool) -> Result<Place>) -> End {
    let matches = match parse(arguments) {
        Ok(matches) => matches,
        Err(error) => return End::CommandLine(error),
    };
    let called = match Called::find(&matches) {
        Ok(called) if called.on_mounts => called,
        Ok(called) => {
            let error = anyhow::anyhow!("the server of a mount does not do this");
            return End::Failed(called.trouble, error);
        }
        Err(error) => return End::CommandLine(error),
    };
    if let Some(option) = called.globals.unused(Uses::NOTHING) {
        let error = format!("{option} means nothing for a path below a mount: the volume is open already\n");
        return End::CommandLine(clap::Error::raw(clap::error::ErrorKind::ArgumentConflict, error));
    }
    let globals = Globals {
        progress: Some(globals::Progress::Never),
        ..called.globals
    };
    let context = Context::new(globals);
    json::forget_document();
    let result = enter(called.commits_before).and_then(|place| {
        context.enter(place);
        (called.run)(called.matches, &context)
    });
    context.finish();
    ended(&context, called.trouble, result)
}

/// Whether a command line that is wrong has this flag with this value all the same.
fn asks_for(arguments: &[OsString], flag: &str, value: &str) -> bool {
    let is_pair = |pair: &[OsString]| matches!(pair, [first, second] if first == flag && second == value);
    let joined = format!("{flag}={value}");
    arguments.windows(2).any(is_pair) || arguments.iter().any(|argument| *argument == *joined)
}

fn run_leaf(arguments: &[OsString], called: Called<'_>) -> End {
    let Called { run, trouble, .. } = called;
    let context = Context::new(called.globals);
    if called.on_mounts {
        context.allow_mounted();
    }
    if trouble != exit::FAILURE {
        stdout::go_on_unread();
    }
    let mut result = run(called.matches, &context);
    if let Some(mount) = context.handed_on() {
        stdout::discard(false);
        json::forget_document();
        result = client::ask(&mount, arguments, called.matches).map(Outcome::Code);
    }
    context.finish();
    let result = result.and_then(|outcome| Ok(stdout::finish().map(|()| outcome)?));
    ended(&context, trouble, result)
}

/// What a command's end comes to.
fn ended(context: &Context, trouble: u8, result: Result<Outcome>) -> End {
    let end = end_of(context, trouble, result);
    if context.json() {
        end_json(context, &end);
    }
    end
}

/// Has standard output hold one document where a command failed that was to print JSON.
fn end_json(context: &Context, end: &End) {
    match end {
        End::Failed(_, error) if exit::is_broken_pipe(error) => {}
        End::Failed(code, error) => failure_as_json(error, *code),
        End::CommandLine(error) => command_line_as_json(error),
        End::Code(code) => {
            if let Some(message) = context.first_loss() {
                exit::end_json(&message, None, *code);
            }
        }
    }
}

/// Ends standard output with the error of a command that failed.
fn failure_as_json(error: &anyhow::Error, code: u8) {
    let help = error.downcast_ref::<Advice>().map(ToString::to_string);
    exit::end_json(&exit::chain_text(error), help, code);
}

/// Ends standard output with the error of a command line that is wrong.
fn command_line_as_json(error: &clap::Error) {
    if error.use_stderr() {
        let text = error.render().to_string();
        let text = text.trim_end();
        exit::end_json(text.strip_prefix("error: ").unwrap_or(text), None, exit::USAGE);
    }
}

fn end_of(context: &Context, trouble: u8, result: Result<Outcome>) -> End {
    match result {
        Err(error) => match error.downcast::<clap::Error>() {
            Ok(error) => End::CommandLine(error),
            // The reader went away: no failure, but what was lost before stays lost.
            Err(error) if context.losses() > 0 && exit::is_broken_pipe(&error) => End::Code(trouble),
            Err(error) => End::Failed(trouble, error),
        },
        Ok(Outcome::Signalled(code) | Outcome::Code(code)) => End::Code(code),
        Ok(_) if context.losses() > 0 => End::Code(trouble),
        Ok(Outcome::Done) => End::Code(exit::SUCCESS),
        Ok(Outcome::Negative) => End::Code(exit::FAILURE),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The path of the command that a command line names, and its global flags; or that it is wrong.
    fn path_and_globals(line: &str) -> Option<(String, Globals)> {
        let arguments: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        let matches = parse(&arguments).ok()?;
        assert_eq!(
            command().try_get_matches_from(&arguments).ok().as_ref(),
            Some(&matches),
            "{line}"
        );
        let mut levels = vec![&matches];
        let mut path = Vec::new();
        while let Some((name, below)) = levels.last().and_then(|level| level.subcommand()) {
            path.push(name);
            levels.push(below);
        }
        Some((path.join(" "), Globals::collect(&levels).ok()?))
    }

    #[test]
    fn commands_are_found_by_unambiguous_prefixes() {
        let cases = [
            ("buttress ls i", Some("ls")),
            ("buttress l i", Some("ls")),
            ("buttress sub li i", Some("subvolume list")),
            ("buttress sub get i", Some("subvolume get-default")),
            ("buttress fi df i", Some("filesystem df")),
            ("buttress file df i", Some("filesystem df")),
            ("buttress fie i", Some("fiemap")),
            ("buttress filesystem d i", None),
            ("buttress in dump-s i", Some("inspect-internal dump-super")),
            ("buttress s i", None),
            ("buttress t i", None),
            ("buttress ta i", Some("tar")),
            ("buttress nonsense i", None),
            ("buttress subvolume", None),
        ];
        for (line, expected) in cases {
            let found = path_and_globals(line).map(|(path, _)| path);
            assert_eq!(found.as_deref(), expected, "{line}");
        }
    }

    #[test]
    fn global_flags_count_wherever_they_stand() {
        let globals = |line: &str| path_and_globals(line).map(|(_, globals)| globals).unwrap();
        for line in [
            "buttress -v --device a --cache 1M --degraded ls i",
            "buttress ls i -v --device a --cache 1M --degraded",
            "buttress ls -v --device a --cache=1M i --degraded",
        ] {
            let globals = globals(line);
            assert_eq!((globals.verbose, globals.degraded), (1, true), "{line}");
            assert_eq!(globals.cache_bytes, Some(1 << 20), "{line}");
            assert_eq!(globals.devices, [std::path::PathBuf::from("a")], "{line}");
        }
        let merged = globals("buttress -v --device a sub -v --device b list --device c -v i");
        assert_eq!(merged.verbose, 3);
        assert_eq!(merged.devices, ["a", "b", "c"].map(std::path::PathBuf::from));
        assert_eq!(globals("buttress --subvol a ls --subvolid 7 i").subvolume, None);
    }

    #[test]
    fn a_command_s_own_short_flags_win_after_its_name() {
        let quiet = |line: &str| path_and_globals(line).map(|(_, globals)| globals.quiet);
        assert_eq!(quiet("buttress -q subvolume list i"), Some(true));
        assert_eq!(quiet("buttress subvolume list --quiet i"), Some(true));
        assert_eq!(quiet("buttress subvolume list -q i"), Some(false));
        assert_eq!(quiet("buttress ls -q i"), Some(true));
        // -h is a size here, not help.
        assert!(path_and_globals("buttress ls -lh i").is_some());
        assert!(path_and_globals("buttress filesystem df -h i").is_some());
    }

    #[test]
    fn options_stand_in_any_order() {
        for line in [
            "buttress cp a:/b --one-file-system c -r",
            "buttress diff a --ignore mtime,mode b --holes",
            "buttress tar i --times mtime -f out",
            "buttress subvolume list i -G +7 --sort=-gen,path -t",
            "buttress filesystem usage i -T --si",
        ] {
            assert!(path_and_globals(line).is_some(), "{line}");
        }
        for line in [
            "buttress cp",
            "buttress diff a",
            "buttress tar --times never i",
            "buttress ls --offset part=0 i",
        ] {
            assert!(path_and_globals(line).is_none(), "{line}");
        }
    }

    #[test]
    fn the_table_is_sound() {
        command().debug_assert();
    }
}
