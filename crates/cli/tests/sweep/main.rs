//! Tests of all options of each command: every option has an effect or is refused, alone and in
//! combination with every other option. The command silently ignores no option.
//!
//! - `table`: a command line for each command, and the effect of each of its own options. An option
//!   without a row fails.
//! - `effects`: the effects of a command line: exit code, standard output, files, the image.
//!
//! Global options have a separate sweep, in `tests/conditions`.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "tests state what must hold, and print what fails"
)]

#[path = "../support/mod.rs"]
mod support;

mod effects;
mod making;
mod rows;
mod table;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use effects::{Effect, World};
use rows::{Kind, Row, SHORT_UNITS, Sweep, UNITS};

/// Exit code of an invalid command line.
const REFUSED: i32 = 2;

/// Returns the name of an option in rows: the long one, or the short one if it has no long one.
fn name_of(argument: &clap::Arg) -> String {
    match (argument.get_long(), argument.get_short()) {
        (Some(long), _) => format!("--{long}"),
        (None, Some(short)) => format!("-{short}"),
        (None, None) => panic!("an option has no name"),
    }
}

/// Returns the options of each command, by the command's name, without global options.
fn options() -> BTreeMap<String, Vec<clap::Arg>> {
    fn add(command: &clap::Command, above: &str, all: &mut BTreeMap<String, Vec<clap::Arg>>) {
        for below in command.get_subcommands() {
            add(below, &format!("{above}{} ", below.get_name()), all);
        }
        if command.has_subcommands() {
            return;
        }
        let globals: BTreeSet<_> = buttress_cli::table::command()
            .get_arguments()
            .map(|argument| {
                (
                    argument.get_id().clone(),
                    argument.get_help().map(ToString::to_string),
                )
            })
            .collect();
        let own = command.get_arguments().filter(|argument| {
            let same = (
                argument.get_id().clone(),
                argument.get_help().map(ToString::to_string),
            );
            !argument.is_positional() && !globals.contains(&same)
        });
        all.insert(above.trim_end().to_owned(), own.cloned().collect());
    }
    let mut all = BTreeMap::new();
    add(&buttress_cli::table::command(), "", &mut all);
    all
}

/// Returns whether an option concerns this process alone, or is help.
fn is_of_no_use(argument: &clap::Arg) -> bool {
    ["in_background", "help", "version"].contains(&argument.get_id().as_str())
}

#[test]
fn every_option_of_every_command_has_a_row() {
    let sweeps = table::sweeps();
    let mut missing = Vec::new();
    for (command, options) in options() {
        for option in options.iter().filter(|option| !is_of_no_use(option)) {
            let name = name_of(option);
            let mut own = sweeps.iter().filter(|sweep| sweep.command == command);
            if !own.any(|sweep| sweep.rows().iter().any(|row| row.name == name)) {
                missing.push(format!("{command} {name}"));
            }
        }
    }
    assert!(missing.is_empty(), "options without a row: {missing:#?}");
}

#[test]
fn every_row_names_an_option() {
    let options = options();
    for sweep in table::sweeps() {
        let own: Vec<String> = options[sweep.command].iter().map(name_of).collect();
        for row in sweep.rows() {
            assert!(
                own.contains(&row.name.to_owned()),
                "{}: {}",
                sweep.command,
                row.name
            );
        }
    }
}

/// The help of an option without effect says so.
#[test]
fn options_without_effect_are_documented() {
    let options = options();
    for sweep in table::sweeps() {
        for row in sweep.rows().iter().filter(|row| row.kind == Kind::Nothing) {
            let own = &options[sweep.command];
            let argument = own.iter().find(|argument| name_of(argument) == row.name).unwrap();
            let help = argument.get_help().map(ToString::to_string).unwrap_or_default();
            let says = ["compatib", "btrfs-progs' sake", "(the default)", "always is"];
            assert!(
                says.iter().any(|words| help.contains(words)),
                "{} {}: {help}",
                sweep.command,
                row.name
            );
        }
    }
}

/// If a row of the sweep refers to another test, that test must exist.
#[test]
fn tests_that_rows_name_exist() {
    let mut sources = String::new();
    let mut folders = vec![std::path::PathBuf::from(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/.."
    ))];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                sources.push_str(&std::fs::read_to_string(path).unwrap());
            }
        }
    }
    for sweep in table::sweeps() {
        for row in sweep.rows() {
            if let Kind::Elsewhere(test) = row.kind {
                let is_there = sources.contains(&format!("fn {test}("));
                assert!(is_there, "{} {}: no test {test}", sweep.command, row.name);
            }
        }
    }
}

/// Runs one command's sweep and lists its problems.
fn sweep(sweep: &Sweep) -> Vec<String> {
    let world = World::new();
    let mut wrong = Vec::new();
    let mut known: HashMap<String, Effect> = HashMap::new();
    let mut run = |words: &str| -> Effect {
        let words: Vec<&str> = words.split_whitespace().collect();
        let words = words.join(" ");
        let line = format!("{} {words} {}", sweep.command, sweep.base);
        known.entry(words).or_insert_with(|| world.run(&line)).clone()
    };
    let title = format!("{} … {}", sweep.command, sweep.base);
    let sound = run("");
    if sound.code != sweep.code {
        return vec![format!("{title}: exit code {}: {}", sound.code, sound.stderr)];
    }
    let rows = sweep.rows();
    for row in &rows {
        let alone = run(row.words);
        wrong.extend(judge_alone(&title, row, &sound, &alone, &mut run));
    }
    let acting: Vec<&Row> = rows.iter().filter(|row| row.takes_part()).collect();
    for (number, first) in acting.iter().enumerate() {
        for second in acting.iter().skip(number + 1) {
            if !sweep.pairs || both_are_units(first, second) {
                continue;
            }
            let context = format!("{} {}", first.context, second.context);
            let both = run(&format!("{context} {} {}", first.words, second.words));
            for (one, other) in [(first, second), (second, first)] {
                let alone = run(&format!("{context} {}", one.words));
                if both == alone && both.code != REFUSED && !sweep.covers(one, other) {
                    wrong.push(format!(
                        "{title}: {:?} is passed over beside {:?}",
                        other.words, one.words
                    ));
                }
            }
        }
    }
    wrong
}

fn both_are_units(first: &Row, second: &Row) -> bool {
    let is_unit = |row: &Row| {
        UNITS
            .iter()
            .chain(&SHORT_UNITS)
            .any(|unit| unit.words == row.words)
    };
    // If two units are given, the last one counts, which a unit test covers. For pairs of a unit
    // flag with another option, one unit represents all units.
    is_unit(first) && is_unit(second)
        || [first, second]
            .iter()
            .any(|row| is_unit(row) && row.name != "--raw")
}

/// Returns the problem of an option alone, or with the options that it needs.
fn judge_alone(
    title: &str,
    row: &Row,
    sound: &Effect,
    alone: &Effect,
    run: &mut impl FnMut(&str) -> Effect,
) -> Option<String> {
    let words = row.words;
    let tell = |what: &str, ended: &Effect| {
        Some(format!(
            "{title}: {words:?} {what}: exit code {}: {}",
            ended.code, ended.stderr
        ))
    };
    match row.kind {
        Kind::Refused if alone.code != REFUSED => tell("is not refused", alone),
        Kind::Manner if alone.code != sound.code => tell("fails", alone),
        Kind::Nothing if alone != sound => tell("does something", alone),
        Kind::Acts(code) if row.context.is_empty() => {
            if alone.code != code {
                return tell("fails", alone);
            }
            (alone == sound).then(|| format!("{title}: {words:?} does nothing"))
        }
        Kind::Acts(code) => {
            if !row.is_idle_alone && alone.code != REFUSED {
                return tell("is not refused alone", alone);
            }
            let before = run(row.context);
            let with = run(&format!("{} {words}", row.context));
            if with.code != code {
                return tell("fails", &with);
            }
            (with == before).then(|| format!("{title}: {words:?} does nothing beside {:?}", row.context))
        }
        _ => None,
    }
}

#[test]
fn no_option_of_a_command_is_passed_over() {
    let sweeps = table::sweeps();
    let only = std::env::var("SWEEP").ok();
    let next = AtomicUsize::new(0);
    let wrong = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while let Some(one) = sweeps.get(next.fetch_add(1, Ordering::Relaxed)) {
                    if only.as_ref().is_none_or(|only| one.command == only) {
                        wrong.lock().unwrap().extend(sweep(one));
                    }
                }
            });
        }
    });
    let mut wrong = wrong.into_inner().unwrap();
    wrong.sort();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
