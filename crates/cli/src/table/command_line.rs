//! clap's description of the command line, generated from the table of commands, and its parsing.
//!
//! As in btrfs-progs, every unambiguous prefix of a group's or command's name is accepted:
//! `buttress sub li`. A link with another program's name stands for a command (`mkfs.btrfs`).
//!
//! Left out: the meaning of arguments, which each command's type derives.

use std::borrow::Cow;
use std::ffi::OsString;

use clap::{ArgMatches, Command};

use super::{Kind, ROWS, Row};
use crate::globals;

const ABOUT: &str = "btrfs images and devices, without a mount and without root";

const AFTER_HELP: &str = "\
Write a path inside a volume as IMAGE:/path. IMAGE is an image file or a block device. Name further
devices of the volume with --device. A group or command can be shortened to an unambiguous prefix:
`buttress sub list IMAGE`.

Exit codes: 0 success, 1 failure or loss, 2 wrong command line. Some commands differ.
`diff`: 0 equal, 1 different, 2 failure. `check`: 0 no findings, 1 findings, 2 failure.
`scrub`: 2 nothing to resume or cancel, 3 uncorrectable errors. `replace`: 2 nothing to cancel.
`balance`: 2 no balance in progress; `balance status`: 1 a balance is in progress.";

/// Extent of a generated description.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Extent {
    /// The extent covers the whole description, for help, documents and errors.
    Whole,
    /// The description contains only the names of commands; the parser adds the arguments of the
    /// named command.
    Named,
}

/// Returns clap's description of the whole command line.
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

/// Returns the full name of the subcommand that an argument names: by its name, an alias, or a unique prefix.
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

/// Parses a command line, which begins with the program's name.
///
/// Describing every argument of every command takes longer than some commands run. The parser
/// therefore describes all arguments only for help and errors, which show other commands too.
pub(crate) fn parse(arguments: &[OsString]) -> Result<ArgMatches, clap::Error> {
    let arguments = with_attached_values(arguments);
    command_of(Extent::Named)
        .try_get_matches_from(arguments.iter())
        .or_else(|_| command().try_get_matches_from(arguments.iter()))
}

/// A command's names, each with its fewest letters, and its options.
type Options = ([(&'static str, usize); 2], &'static [&'static str]);

/// Commands with options whose values are attached.
const ATTACHED: [Options; 2] = [
    ([("balance", 1), ("start", 4)], &["-d", "-m", "-s"]),
    ([("filesystem", 2), ("defragment", 3)], &["-c"]),
];

/// Returns a command line with an equals sign before the values of `balance start -dFILTERS` and
/// `filesystem defragment -cALGORITHM`.
///
/// btrfs-progs accepts the value of such an option only without a blank between both. The parser
/// has no options with attached values, except with an equals sign.
fn with_attached_values(arguments: &[OsString]) -> Cow<'_, [OsString]> {
    let found = ATTACHED
        .iter()
        .find_map(|(names, options)| Some((place_of_command(arguments, names)?, *options)));
    let Some((start, options)) = found else {
        return Cow::Borrowed(arguments);
    };
    let with_sign = |(at, argument): (usize, &OsString)| match argument.to_str() {
        Some(text) if at > start => match text.split_at_checked(2) {
            Some((option, value))
                if options.contains(&option) && !value.is_empty() && !value.starts_with('=') =>
            {
                format!("{option}={value}").into()
            }
            _ => argument.clone(),
        },
        _ => argument.clone(),
    };
    arguments.iter().enumerate().map(with_sign).collect()
}

/// Returns the position of the last name of a command, if these arguments name the command.
fn place_of_command(arguments: &[OsString], names: &[(&str, usize)]) -> Option<usize> {
    let is_value = |at: usize| {
        let before = at.checked_sub(1).and_then(|before| arguments.get(before));
        before.is_some_and(|before| {
            let bytes = before.as_encoded_bytes();
            bytes.starts_with(b"--") && !bytes.contains(&b'=')
        })
    };
    let is_word = |(at, argument): &(usize, &OsString)| {
        *at > 0 && !argument.as_encoded_bytes().starts_with(b"-") && !is_value(*at)
    };
    let mut words = arguments.iter().enumerate().filter(is_word);
    let mut place = None;
    for (name, least) in names {
        let (at, word) = words.next()?;
        let word = word.to_str()?;
        if word.len() < *least || !name.starts_with(word) {
            return None;
        }
        place = Some(at);
    }
    place
}

/// Names under which a link can call this program, and their commands.
const PROGRAMS: [(&str, &str); 1] = [("mkfs.btrfs", "mkfs")];

/// Converts a command line to one with the program's own name.
pub(super) fn under_own_name(mut arguments: Vec<OsString>) -> Vec<OsString> {
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
            // If the program was called as mkfs.btrfs, `--version` means the version of the whole
            // program.
            arguments = vec!["buttress".into(), "--version".into()];
        } else {
            arguments.insert(1, command.into());
        }
    }
    arguments
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::globals::Globals;

    /// Returns the path of the command that a command line names, and its global flags; `None` if
    /// it is invalid.
    fn path_and_globals(line: &str) -> Option<(String, Globals)> {
        let arguments: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        let matches = parse(&arguments).ok()?;
        assert_eq!(
            command()
                .try_get_matches_from(with_attached_values(&arguments).iter())
                .ok()
                .as_ref(),
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
    fn values_are_attached_to_their_option() {
        let attached = |line: &str| {
            let arguments: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            let words = with_attached_values(&arguments);
            words.join(std::ffi::OsStr::new(" ")).into_string().unwrap()
        };
        for (line, expected) in [
            (
                "b balance start -dusage=5 -m -s i",
                "b balance start -d=usage=5 -m -s i",
            ),
            (
                "b --device x bal star -d=usage=5 i",
                "b --device x bal star -d=usage=5 i",
            ),
            (
                "b --device x bal star -musage=5 i",
                "b --device x bal star -m=usage=5 i",
            ),
            ("b balance status -dusage=5 i", "b balance status -dusage=5 i"),
            ("b ls balance start -sx", "b ls balance start -sx"),
            ("b balance start --dry-run -d i", "b balance start --dry-run -d i"),
            ("b fi def -r -czstd:9 i", "b fi def -r -c=zstd:9 i"),
            ("b filesystem defragment -c i", "b filesystem defragment -c i"),
            ("b filesystem du -czlib i", "b filesystem du -czlib i"),
        ] {
            assert_eq!(attached(line), expected, "{line}");
        }
        assert!(path_and_globals("buttress balance start -dusage=5,limit=1 -m i").is_some());
        assert!(path_and_globals("buttress balance start -d -musage=5 i").is_some());
        assert!(path_and_globals("buttress balance start -d usage=5 i").is_none());
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
        // `-h` selects a size format here, not help.
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
