//! Times of tests and their programs: the recorded times, and the tables of `cargo xtask test
//! --times`.

use super::running::Ended;
use crate::run::target;
use anyhow::{Context, Result};
use std::fmt::Write;

/// Programs with their seconds, package and target, as measured by `--times` with one thread each.
/// Only the order and the ratios of the times matter.
const KNOWN: &str = include_str!("times.txt");

/// The assumed time of an unlisted program, in seconds.
const UNKNOWN: f64 = 20.0;

/// The number of slowest tests that the chore prints.
const SLOWEST: usize = 20;

/// Returns the expected time of the program of this package and target, in seconds.
pub(super) fn expected((package, target): &(String, String)) -> f64 {
    known()
        .find(|(_, known_package, known_target)| known_package == package && known_target == target)
        .map_or(UNKNOWN, |(seconds, _, _)| seconds)
}

fn known() -> impl Iterator<Item = (f64, &'static str, &'static str)> {
    KNOWN.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        let seconds = words.next()?.parse().ok()?;
        Some((seconds, words.next()?, words.next().unwrap_or_default()))
    })
}

/// Prints the time of each program and the slowest tests. The chore writes all tests, and the
/// programs in the form of `times.txt`, to files below `target/test-times`.
pub(super) fn print(ended: &[Ended]) -> Result<()> {
    let mut programs: Vec<_> = ended.iter().collect();
    programs.sort_by_key(|ended| std::cmp::Reverse(ended.time));
    let mut tests: Vec<_> = ended
        .iter()
        .flat_map(|ended| {
            ended
                .tests
                .iter()
                .map(move |test| (test.time, &ended.name, &test.test))
        })
        .collect();
    tests.sort_by_key(|(time, _, _)| std::cmp::Reverse(*time));
    let mut of_programs = String::new();
    for ended in &programs {
        let (package, target) = &ended.name;
        let line = format!("{:.1} {package} {target}", ended.time.as_secs_f64());
        writeln!(of_programs, "{}", line.trim_end())?;
    }
    let mut of_tests = String::new();
    for (time, (package, target), test) in &tests {
        writeln!(
            of_tests,
            "{:>7.2} s  {package} {target} {test}",
            time.as_secs_f64()
        )?;
    }
    let folder = target()?.join("test-times");
    std::fs::create_dir_all(&folder)?;
    let write = |name: &str, text: &str| {
        let path = folder.join(name);
        std::fs::write(&path, text).with_context(|| format!("writing {}", path.display()))
    };
    write("programs.txt", &of_programs)?;
    write("tests.txt", &of_tests)?;
    println!("\nprograms:");
    for line in of_programs.lines() {
        println!("  {line}");
    }
    println!("\nthe {SLOWEST} slowest tests:");
    for line in of_tests.lines().take(SLOWEST) {
        println!("{line}");
    }
    let (user, system) = children_seconds();
    println!(
        "\n{user:.0} s of CPU time as user and {system:.0} s in the kernel, with the build; all times: {}",
        folder.display()
    );
    Ok(())
}

/// Returns the CPU time of all ended children: as user, and in the kernel.
fn children_seconds() -> (f64, f64) {
    // SAFETY: a `rusage` consists of numbers, for which zeros are valid values.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the pointer is to a `rusage` that lives for the duration of the call.
    let answer = unsafe { libc::getrusage(libc::RUSAGE_CHILDREN, &raw mut usage) };
    if answer != 0 {
        return (0.0, 0.0);
    }
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    (seconds(usage.ru_utime), seconds(usage.ru_stime))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_known_of_programs_that_exist() {
        let targets = super::super::quick::test_targets().unwrap();
        let lines = KNOWN.lines().filter(|line| !line.starts_with('#')).count();
        assert_eq!(known().count(), lines, "a line is not understood");
        for (_, package, target) in known() {
            let name = (package.to_owned(), target.to_owned());
            let is_unit = ["lib", "bin", ""].contains(&target);
            assert!(is_unit || targets.contains(&name), "{package} {target}");
        }
        let longest = known().next().unwrap();
        assert_eq!(expected(&(longest.1.to_owned(), longest.2.to_owned())), longest.0);
        assert_eq!(expected(&("a".to_owned(), "b".to_owned())), UNKNOWN);
    }
}
