//! Tests of every command in every condition: documented exit codes, messages that name their
//! object, no misleading standard output, no panic, no partial output, and no change of an image by
//! a command that only reads.
//!
//! - the module `cases` holds a valid command line for each row of the command table, and its
//!   answers. A row of the table without a command line fails the test.
//! - `world`: the files that the command lines use.
//! - `running`: a command with closed, full, broken or terminal streams, as an ordinary user, or
//!   interrupted.
//! - `waiting`: commands that wait for input or for a reader, and a signal.
//! - `page`: `docs/exit-codes.md`, generated from these expectations.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "tests state what must hold, and say what they skipped"
)]

#[path = "../support/mod.rs"]
mod support;

mod cases;
mod options;
mod page;
mod running;
mod waiting;
mod world;

use buttress_oracle::needs::missing;
use buttress_oracle::skip::skips;
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};

use cases::{Answer, Case, Json, Source, cases};
use running::{Ended, How, run};
use rustix::process::Signal;
use world::World;

/// Asserts that the output shows no panic.
fn expect_no_panic(case: &Case, condition: &str, ended: &Ended) {
    for text in [
        &ended.stderr,
        &String::from_utf8_lossy(&ended.stdout).into_owned(),
    ] {
        for word in ["panicked", "RUST_BACKTRACE", "fault of this program"] {
            assert!(!text.contains(word), "{case}, {condition}: {text}");
        }
    }
}

/// Runs a case in a world and checks the general rules: no panic, and no change by commands that
/// only read.
fn run_in(case: &Case, world: &World, condition: &str, how: How, words: &[String]) -> Ended {
    let before = world.image_state();
    let ended = run(how, words, world);
    expect_no_panic(case, condition, &ended);
    if !case.writes {
        assert_eq!(
            before,
            world.image_state(),
            "{case}, {condition}: the image changed"
        );
    }
    ended
}

/// Runs each case: all reading commands share one world, and each run of a changing command gets a
/// new world. Reports the failures of all cases.
fn each_case(condition: &str, check: impl Fn(&Case, &World, &str)) {
    let shared = World::new();
    let mut failed = Vec::new();
    for case in cases() {
        let own = case.writes.then(World::new);
        let world = own.as_ref().unwrap_or(&shared);
        if catch_unwind(AssertUnwindSafe(|| check(&case, world, condition))).is_err() {
            failed.push(case.to_string());
        }
        shared.clear_outputs();
    }
    assert!(failed.is_empty(), "{condition}: {failed:?}, see above");
}

fn expect_code(case: &Case, condition: &str, ended: &Ended, code: i32) {
    assert_eq!(
        ended.code,
        Some(code),
        "{case}, {condition}: signal {:?}, {}",
        ended.signal,
        ended.stderr
    );
}

/// Asserts a failure: the code, a message on standard error that contains `names`, and no remaining
/// outputs.
fn expect_failure(case: &Case, world: &World, condition: &str, ended: &Ended, code: i32, names: &str) {
    expect_code(case, condition, ended, code);
    assert!(
        ended.stderr.contains(names),
        "{case}, {condition}: no {names:?} in {:?}",
        ended.stderr
    );
    assert!(
        !case.leaves_nothing() || !world.has_outputs(),
        "{case}, {condition}: {:?} is left",
        world.outputs()
    );
}

#[test]
fn every_command_has_a_case() {
    // The first two conditions need a mount, so `tests/mount` has them. The last of these commands
    // needs a swap file, so the tests `filesystem_commands` of the crate `proof` cover it.
    let elsewhere = ["mount", "umount", "inspect-internal map-swapfile"].map(str::to_owned);
    let cases = cases();
    let here = cases.iter().map(|case| case.command.to_owned());
    let named: BTreeSet<String> = here.chain(elsewhere).collect();
    let commands = BTreeSet::from_iter(buttress_cli::table::commands());
    assert_eq!(named, commands);
}

#[test]
fn sound() {
    each_case("sound", |case, world, condition| {
        let ended = run_in(case, world, condition, How::Plain, &case.words(world));
        expect_code(case, condition, &ended, case.sound());
        assert!(!ended.stderr.contains("error:"), "{case}: {}", ended.stderr);
        let is_empty = ended.stdout.is_empty();
        assert_eq!(is_empty, case.answer == Answer::Silent, "{case}: standard output");
    });
}

#[test]
fn standard_output_that_is_closed_or_full() {
    for (condition, how, names) in [
        ("closed stdout", How::ClosedOutput, "standard output is closed"),
        (
            "full stdout",
            How::FullOutput,
            "writing to standard output: No space left",
        ),
    ] {
        each_case(condition, |case, world, condition| {
            let ended = run_in(case, world, condition, how, &case.words(world));
            if case.answer == Answer::Silent {
                expect_code(case, condition, &ended, case.sound());
            } else {
                expect_code(case, condition, &ended, case.trouble());
                assert!(
                    ended.stderr.contains(names),
                    "{case}, {condition}: {}",
                    ended.stderr
                );
            }
        });
    }
}

/// An open stream never counts as closed, however the parent process opened it.
#[test]
fn standard_output_that_is_thrown_away() {
    for (condition, how) in [
        ("to /dev/null", How::NullOutput),
        ("to /dev/null, opened for both", How::NullOutputBoth),
    ] {
        each_case(condition, |case, world, condition| {
            let ended = run_in(case, world, condition, how, &case.words(world));
            expect_code(case, condition, &ended, case.sound());
        });
    }
}

#[test]
fn a_reader_that_is_gone() {
    each_case("closed pipe", |case, world, condition| {
        let ended = run_in(case, world, condition, How::BrokenPipe, &case.words(world));
        expect_code(case, condition, &ended, case.unread());
        let is_cut_off = case.command == "send" && case.answer == Answer::Binary;
        assert_eq!(
            ended.stderr.contains("error:"),
            is_cut_off,
            "{case}: {}",
            ended.stderr
        );
        assert_eq!(
            ended.stderr.contains("--resume"),
            is_cut_off,
            "{case}: {}",
            ended.stderr
        );
    });
}

#[test]
fn json_is_a_document_with_a_header_or_is_refused() {
    each_case("--format json", |case, world, condition| {
        let mut words = case.words(world);
        words.extend(["--format".to_owned(), "json".to_owned()]);
        let ended = run_in(case, world, condition, How::Plain, &words);
        let name = match case.json {
            Json::Named(name) => name.to_owned(),
            Json::Own => case.document(),
            Json::Refused => {
                expect_failure(case, world, condition, &ended, 2, "--format json");
                let document: serde_json::Value = serde_json::from_slice(&ended.stdout).unwrap();
                assert_eq!(document["error"]["exit_code"], 2, "{case}");
                return;
            }
            Json::Words => return expect_code(case, condition, &ended, 0),
        };
        expect_code(case, condition, &ended, case.sound());
        let document: serde_json::Value = serde_json::from_slice(&ended.stdout)
            .unwrap_or_else(|error| panic!("{case}: {error}: {}", String::from_utf8_lossy(&ended.stdout)));
        assert_eq!(document["__header"]["version"], "1", "{case}");
        assert!(document.get(&name).is_some(), "{case}: no {name} in {document}");
        assert_eq!(document.as_object().unwrap().len(), 2, "{case}");
    });
}

/// If the output is contents, no JSON document follows: standard output under any name is refused
/// together with JSON.
#[test]
fn json_never_follows_contents() {
    let world = World::new();
    for words in [
        "tar -f FILE {image}:/home",
        "manifest -f FILE {image}",
        "send -f FILE {image}:/home-monday",
        "stream tar -f FILE {stream}",
        "stream merge -f FILE {stream}",
        "stream rebase -f FILE --onto {stream} {incremental}",
    ] {
        for file in ["-", "/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"] {
            let line = words.replace("FILE", file);
            let mut all: Vec<String> = line.split_whitespace().map(|word| world.fill(word)).collect();
            all.extend(["--format".to_owned(), "json".to_owned()]);
            let ended = run(How::Plain, &all, &world);
            assert_eq!(ended.code, Some(2), "{line}: {}", ended.stderr);
            let document: serde_json::Value = serde_json::from_slice(&ended.stdout).unwrap();
            assert_eq!(document["error"]["exit_code"], 2, "{line}");
        }
    }
    for line in [
        "cat {image}:/home/plain/text {image}:/no/such",
        "shell -c cat\u{a0}/home/plain/text {image}",
    ] {
        let mut all: Vec<String> = line
            .split(' ')
            .map(|word| world.fill(&word.replace('\u{a0}', " ")))
            .collect();
        all.push("--format=json".to_owned());
        let ended = run(How::Plain, &all, &world);
        assert_ne!(ended.code, Some(0), "{line}");
        let document: serde_json::Value = serde_json::from_slice(&ended.stdout).unwrap();
        assert!(document["error"]["message"].is_string(), "{line}: {document}");
    }
}

/// With `--progress json` standard error carries only JSON lines, even after an error. The last
/// line of a completed job states its completion.
#[test]
fn progress_as_json_is_lines_of_json() {
    let lines = |case: &Case, ended: &Ended| -> Vec<serde_json::Value> {
        let parse = |line: &str| {
            serde_json::from_str(line).unwrap_or_else(|error| panic!("{case}: {error}: {}", ended.stderr))
        };
        ended.stderr.lines().map(parse).collect()
    };
    each_case("--progress json", |case, world, condition| {
        let mut words = case.words(world);
        words.extend(["--progress".to_owned(), "json".to_owned()]);
        let ended = run_in(case, world, condition, How::Plain, &words);
        let events = lines(case, &ended);
        let last = events
            .iter()
            .rfind(|event| matches!(event["event"].as_str(), Some("progress" | "done" | "stopped")));
        assert_eq!(last.is_some(), case.is_job, "{case}: {}", ended.stderr);
        if let Some(last) = last {
            assert_eq!(last["event"], "done", "{case}");
            assert_eq!(last["percent"], 100.0, "{case}");
            assert_eq!(last["bytes"], last["expected_bytes"], "{case}");
        }
        if let Some(mut words) = case.missing(world) {
            world.clear_outputs();
            words.push("--progress=json".to_owned());
            let ended = run_in(case, world, condition, How::Plain, &words);
            let events = lines(case, &ended);
            let is_error = |event: &serde_json::Value| event["event"] == "error";
            assert!(events.iter().any(is_error), "{case}: {}", ended.stderr);
            assert!(!events.iter().any(|event| event["event"] == "done"), "{case}");
        }
        words.push("--no-such-option".to_owned());
        let ended = run_in(case, world, condition, How::Plain, &words);
        assert_eq!(lines(case, &ended).len(), 1, "{case}: {}", ended.stderr);
    });
}

#[test]
fn an_argument_that_is_wrong() {
    each_case("wrong argument", |case, world, condition| {
        let mut words = case.words(world);
        words.push("--no-such-option".to_owned());
        let ended = run_in(case, world, condition, How::Plain, &words);
        expect_failure(case, world, condition, &ended, 2, "--no-such-option");
        assert!(ended.stdout.is_empty(), "{case}");
    });
}

#[test]
fn a_source_that_is_missing() {
    each_case("missing source", |case, world, condition| {
        let Some(words) = case.missing(world) else { return };
        let ended = run_in(case, world, condition, How::Plain, &words);
        expect_failure(case, world, condition, &ended, case.trouble(), "absent");
        expect_no_pretence(case, &ended);
    });
}

#[test]
fn a_path_that_is_not_in_the_volume() {
    each_case("missing path", |case, world, condition| {
        let Some(words) = case.missing_path(world) else {
            return;
        };
        let ended = run_in(case, world, condition, How::Plain, &words);
        expect_failure(case, world, condition, &ended, case.trouble(), "/no/such/path");
        expect_no_pretence(case, &ended);
    });
}

/// Asserts that a failed command printed no results; headings may be present, as in btrfs-progs.
fn expect_no_pretence(case: &Case, ended: &Ended) {
    let text = String::from_utf8_lossy(&ended.stdout).into_owned();
    let heading = match case.command {
        "check" => "Opening filesystem to check...\n",
        "filesystem du" => "     Total   Exclusive  Set shared  Filename\n",
        _ => "",
    };
    // The tour reports for each step whether it failed.
    let is_told = case.command == "tour" && text.contains("FAILED");
    assert!(text.is_empty() || text == heading || is_told, "{case}: {text}");
}

#[test]
fn an_image_that_may_not_be_read() {
    each_case("no permission", |case, world, condition| {
        if case.source == Source::Nothing {
            return;
        }
        let words = case.words(world);
        world.forbid_reading();
        let ended = run_in(case, world, condition, How::AsUser, &words);
        world.allow_reading();
        expect_failure(
            case,
            world,
            condition,
            &ended,
            case.trouble(),
            "Permission denied",
        );
        assert!(
            ended.stderr.contains(world.folder_name()),
            "{case}: no path in {:?}",
            ended.stderr
        );
        expect_no_pretence(case, &ended);
    });
}

#[test]
fn a_folder_that_may_not_be_written() {
    each_case("no permission for outputs", |case, world, condition| {
        if !case.makes_files {
            return;
        }
        world.forbid_writing();
        let ended = run_in(case, world, condition, How::AsUser, &case.words(world));
        world.allow_writing();
        expect_failure(
            case,
            world,
            condition,
            &ended,
            case.trouble(),
            "Permission denied",
        );
        assert!(
            ended.stderr.contains(world.folder_name()),
            "{case}: no path in {:?}",
            ended.stderr
        );
    });
}

#[test]
fn an_image_that_may_not_be_written() {
    each_case("read-only image", |case, world, condition| {
        if !case.writes || case.source != Source::Image {
            return;
        }
        // Words may make the files that they name.
        let words = case.words(world);
        let before = world.image_state();
        world.forbid_changing();
        let ended = run_in(case, world, condition, How::AsUser, &words);
        expect_failure(
            case,
            world,
            condition,
            &ended,
            case.trouble(),
            "Permission denied",
        );
        assert!(ended.stderr.contains(&world.image()), "{case}: {}", ended.stderr);
        assert_eq!(before, world.image_state(), "{case}: the image changed");
    });
}

#[test]
fn a_disk_that_is_full() {
    if skips(missing("root")) {
        return;
    }
    for case in cases().into_iter().filter(|case| case.makes_files) {
        let world = World::new();
        let disk = world.fill_outputs();
        let ended = run_in(&case, &world, "full disk", How::Plain, &case.words(&world));
        expect_code(&case, "full disk", &ended, case.trouble());
        let told = ended.stderr.contains("No space left on device") || ended.stderr.contains("too small");
        assert!(told, "{case}: {}", ended.stderr);
        let is_named = ended.stderr.contains(world.folder_name());
        assert!(is_named || !case.leaves_nothing(), "{case}: {}", ended.stderr);
        let is_bounded = ended.stderr.lines().count() < 8;
        assert!(is_bounded || case.command == "tour", "{case}: {}", ended.stderr);
        let left: Vec<_> = world.files_in_outputs();
        let halves: Vec<_> = left.iter().filter(|file| !world.is_whole(file)).collect();
        assert!(
            !case.leaves_nothing() || halves.is_empty(),
            "{case}: {halves:?} is left"
        );
        drop(disk);
    }
}

/// One signal ends a command that waits for an idle reader.
#[test]
fn an_interrupt() {
    for (condition, signal) in [("SIGINT", Signal::INT), ("SIGTERM", Signal::TERM)] {
        each_case(condition, |case, world, condition| {
            if case.answer == Answer::Silent {
                return;
            }
            let ended = run_in(case, world, condition, How::Signalled(signal), &case.words(world));
            let in_order = case.may_finish() && ended.code == Some(case.trouble())
                || case.ends_in_order() && ended.code == Some(case.trouble());
            let by_signal = ended.signal == Some(signal.as_raw());
            assert!(
                in_order || by_signal && !case.ends_in_order(),
                "{case}: {:?}, signal {:?}: {}",
                ended.code,
                ended.signal,
                ended.stderr
            );
        });
    }
}

#[test]
fn a_terminal() {
    each_case("terminal", |case, world, condition| {
        let ended = run_in(case, world, condition, How::Terminal, &case.words(world));
        if case.answer == Answer::Binary {
            expect_failure(case, world, condition, &ended, case.trouble(), "terminal");
            assert!(ended.stdout.is_empty(), "{case}");
            return;
        }
        expect_code(case, condition, &ended, case.sound());
        assert!(
            !ended.stdout.contains(&0x1b) || case.command == "completions",
            "{case}: an escape on the terminal"
        );
    });
}

#[test]
fn the_page_says_what_is_tested() {
    page::compare();
}
