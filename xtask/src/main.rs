//! The project's own chores: `cargo xtask CHORE`.

mod advisories;
mod api;
#[cfg(test)]
mod architecture;
mod bench;
mod book;
#[cfg(test)]
mod clamps;
mod dist;
mod docs;
mod faults;
#[cfg(test)]
mod features;
mod fuzz;
mod licences;
#[cfg(test)]
mod locks;
mod miri;
#[cfg(test)]
mod modules;
mod nightly;
mod own_files;
#[cfg(test)]
mod packages;
#[cfg(test)]
mod pages;
mod programs;
mod prose;
mod run;
mod schedules;
mod semver;
mod soak;
mod suites;
mod targets;
mod test;
mod tools;
mod tour_image;
#[cfg(test)]
mod unstable;

use std::process::ExitCode;

const HELP: &str = "\
cargo xtask CHORE

  test [--nightly] [--times] [--threads N] [--without TOOL]… [-p PACKAGE]… [FILTER]
                       all tests, or those with FILTER in their names, programs side by side; installs or names the tools
                       that are needed, and fails when tests were skipped for want of one that --without does not name.
                       With --nightly random tests take further seeds, derived from the date, and their full budgets; with
                       --times the slowest tests and the time of each program are printed
  test [--nightly] [--without TOOL]… WORDS
                       the tests that other words of cargo test choose, one program after another
  test --quick [--without TOOL]…
                       the tests that say the most in under 90 seconds, and what was left out
  nightly [--seconds N]
                       all that takes too long for each change, in four hours or N seconds, with one report: tests with full
                       budgets and the seeds of the day, faults, schedules, fuzz targets, soaks, programs
  licences [--advisories]
                       checks every dependency's licence and source against deny.toml, and the published advisories where their
                       database is on this machine; with --advisories fetches it, and fails where it cannot be had
  bench [--write] NAME [WORDS]
                       benchmarks, both sides in one run; with --write the tables go into docs/internals/performance.md: read, send, receive, write, fsync, mkfs, sweep, check, scrub, live, fiemap,
                       mount, space, tiny
  fuzz [--seconds N] [--jobs N] [--keep] [TARGET…]
                       fuzz targets with coverage, and what they reached
  soak [--seed N] [--seconds N] [--histories N | --seeds N,N… | --operations N | --concurrent N | --cuts N | --receive N | --fsync N |
       --fiemap N | --scrub SECONDS | --mount SECONDS | --mount-calls N | --mount-cuts N]
                       deep random runs against the kernel, or one kind of them: sends, writers side by side, crashes, streams
                       received, syncs, extents, scrubs, mounts
  schedules [--seed N] [--schedules N] [SCENE]
                       the live layer under a model checker that chooses who goes on at each lock
  suites xfstests FOLDER [TEST…] | programs [NAME…]
                       the field's own suites on mounts: a built tree of xfstests, compared with the kept table; programs of Debian
  faults [NAME…] [--list]
                       puts deliberate faults in, one at a time: each must be caught by the tests named for it
  targets [--add] [--all] [TARGET…]
                       checks a program that reads volumes for 32-bit, big-endian and other systems' targets; targets without a
                       standard library are skipped: --add installs it, --all fails without it
  miri [--all] [PACKAGE]
                       runs tests of the crates with unsafe code under Miri; without a nightly toolchain that has Miri they are
                       skipped: --all fails then
  book                 makes the documentation into a site below target/book, by mdbook
  docs                 writes docs/commands.md from the command table
  dist [--target TRIPLE]
                       a release below target/dist: the static command, man pages, completions, a Debian package, sums
  api [--write]        compares the library's public items with crates/buttress/api.txt, or writes that list
  prose [AREA [KIND]]  counts hard sentences, given-up words and long names by area, or lists those of an area
  semver [--baseline-rev REVISION]
                       whether the library's interface fits its version, by cargo-semver-checks
  tour-image           makes the volume that `buttress tour` shows (needs root)
";

fn main() -> ExitCode {
    if let Some(done) = faults::build::as_compiler() {
        return done;
    }
    let mut words = std::env::args().skip(1);
    let chore = words.next().unwrap_or_default();
    let rest: Vec<String> = words.collect();
    let done = match chore.as_str() {
        "api" => api::run(&rest),
        "test" => test::run(&rest),
        "dist" => dist::run(&rest),
        "book" => book::run(),
        "docs" => docs::run(),
        "faults" => faults::run(&rest),
        "nightly" => nightly::run(&rest),
        "licences" => licences::run(&rest),
        "bench" => bench::run(&rest),
        "fuzz" => fuzz::run(&rest),
        "prose" => prose::run(&rest),
        "schedules" => schedules::run(&rest),
        "semver" => semver::run(&rest),
        "soak" => soak::run(&rest),
        "miri" => miri::run(&rest),
        "suites" => suites::run(&rest),
        "targets" => targets::run(&rest),
        "tour-image" => tour_image::make(),
        _ => {
            eprint!("{HELP}");
            return ExitCode::from(2);
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}
