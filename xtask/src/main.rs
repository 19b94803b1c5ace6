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
#[cfg(test)]
mod methods;
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
                       run all tests, or those with FILTER in their names, with programs side by side. Install missing
                       tools, or name them. Fail if tests were skipped for a tool that --without does not name.
                       --nightly: random tests take further seeds from the date, and their full sizes.
                       --times: print the slowest tests and the time of each program
  test [--nightly] [--without TOOL]… WORDS
                       run the tests that other arguments of cargo test choose, one program after another
  test --quick [--without TOOL]…
                       run the most informative tests, in under 90 seconds, and list the tests left out
  nightly [--seconds N]
                       run all checks that take too long for each change, in four hours or N seconds, with one report
  licences [--advisories]
                       check every dependency's licence and source against deny.toml, and published advisories if their
                       database is on this machine. --advisories: fetch the database, or fail
  bench [--write] NAME [WORDS]
                       run a benchmark, both sides in one run: read, send, receive, write, fsync, mkfs, sweep, check, scrub,
                       live, fiemap, mount, space, tiny. --write: replace its tables in docs/internals/performance.md
  fuzz [--seconds N] [--jobs N] [--keep] [TARGET…]
                       run fuzz targets with coverage, and print the coverage
  soak [--seed N] [--seconds N] [--histories N | --seeds N,N… | --operations N | --concurrent N | --cuts N | --receive N | --fsync N |
       --fiemap N | --scrub SECONDS | --mount SECONDS | --mount-calls N | --mount-cuts N]
                       run deep random tests against the kernel, or one kind of them: sends, concurrent writers, crashes,
                       received streams, syncs, extents, scrubs, mounts
  schedules [--seed N] [--schedules N] [SCENE]
                       run the live layer under a model checker that chooses the next thread at each lock
  suites xfstests FOLDER [TEST…] | programs [NAME…]
                       run other projects' suites on mounts: a built tree of xfstests, compared with the recorded table;
                       programs of Debian
  faults [NAME…] [--list]
                       enable deliberate faults, one at a time: the tests named for a fault must catch it
  targets [--add] [--all] [TARGET…]
                       check a program that reads volumes for 32-bit, big-endian and other systems' targets. Targets without
                       a standard library are skipped; --add installs the library, --all fails without it
  miri [--all] [PACKAGE]
                       run tests of the crates with unsafe code under Miri. Without a nightly toolchain with Miri they are
                       skipped; --all fails then
  book                 make the documentation into a site below target/book, by mdbook
  docs                 write docs/commands.md from the command table
  dist [--target TRIPLE]
                       make a release below target/dist: the static command, man pages, completions, a Debian package,
                       checksums
  api [--write]        compare the library's public items with crates/buttress/api.txt, or write that list
  prose [AREA [KIND]]  count hard sentences, rejected words and long names by area, or list those of an area
  semver [--baseline-rev REVISION]
                       check by cargo-semver-checks whether the library's interface fits its version
  tour-image           make the volume that `buttress tour` shows (needs root)
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
