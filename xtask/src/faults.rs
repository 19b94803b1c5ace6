//! `cargo xtask faults [NAME…] [--list]`: enables each deliberate fault of the list, one at a time,
//! and checks that the tests named for the fault fail.
//!
//! A single build serves all faults ([`build`]): an environment variable names the fault of a
//! process. First the chore runs every test without a fault, and each must pass. Then it runs each
//! fault's tests with the fault, and each must fail. The report distinguishes a fault point that no
//! test reached from one that a test reached and survived.
//!
//! Limit: a run does not show that a test fails because of the fault's effect on a user. The author
//! of a fault reads why its tests fail (`docs/internals/faults.md`).

pub(crate) mod build;
mod list;

use crate::programs::Programs;
use anyhow::{Context, Result, bail};
use list::{FAULTS, Fault, Test};
use std::collections::BTreeMap;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// The variable that names the enabled fault.
const FAULT: &str = "BUTTRESS_FAULT";

/// The time after which a test that loops with a fault is killed. Tests that pass have no limit.
const PATIENCE: Duration = Duration::from_secs(900);

/// The result of a test under a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Passed,
    Failed,
    Skipped,
    Absent,
    Endless,
}

/// The end of a fault's test with the fault enabled.
#[derive(Clone, Debug)]
struct Trial {
    end: End,
    reached: bool,
    time: Duration,
}

/// The programs and the environment of the tests.
struct Build {
    programs: Programs,
    /// The folder of a newer btrfs-progs, with which some tests compare.
    progs: Option<std::path::PathBuf>,
}

pub(crate) fn run(words: &[String]) -> Result<()> {
    let (options, names): (Vec<&String>, Vec<&String>) = words.iter().partition(|word| word.starts_with('-'));
    if let Some(unknown) = options.iter().find(|option| **option != "--list") {
        bail!("{unknown} is no option of this; there is --list");
    }
    if let Some(unknown) = names
        .iter()
        .find(|name| !FAULTS.iter().any(|fault| fault.name == **name))
    {
        bail!("no fault is called {unknown}; --list shows them");
    }
    let is_wanted = |fault: &&Fault| names.is_empty() || names.iter().any(|name| *name == fault.name);
    let faults: Vec<&Fault> = FAULTS.iter().filter(is_wanted).collect();
    if !options.is_empty() {
        print_list(&faults);
        return Ok(());
    }
    crate::tools::install_missing();
    let progs = crate::tools::newer_progs()?;
    let tests = || faults.iter().flat_map(|fault| fault.tests);
    let programs = Build {
        programs: build::build(tests())?,
        progs,
    };
    expect_sound(&programs, tests())?;
    let trials = try_all(&programs, &faults)?;
    judge(&faults, &trials)
}

fn print_list(faults: &[&Fault]) {
    for fault in faults {
        let loss = if fault.loses_data { " (loses data)" } else { "" };
        println!("{}{loss}\n  {}", fault.name, fault.harm);
        for test in fault.tests {
            println!("  caught by {test}");
        }
    }
    let losing = faults.iter().filter(|fault| fault.loses_data).count();
    println!("{} faults, of which {losing} lose data", faults.len());
}

/// Requires that every test passes without a fault.
fn expect_sound<'a>(programs: &Build, tests: impl Iterator<Item = &'a Test>) -> Result<()> {
    let mut unique: Vec<&Test> = tests.collect();
    unique.sort_unstable();
    unique.dedup();
    println!("{} tests without a fault", unique.len());
    let ends = in_parallel(&unique, |test| run_test(programs, test, None))?;
    let mut unsound = false;
    for (test, trial) in unique.iter().zip(ends) {
        if trial.end != End::Passed {
            println!("  {test}: {:?}, though no fault is on", trial.end);
            unsound = true;
        }
    }
    if unsound {
        bail!("tests that do not pass without a fault prove nothing about one");
    }
    Ok(())
}

fn try_all(programs: &Build, faults: &[&Fault]) -> Result<BTreeMap<(&'static str, Test), Trial>> {
    let pairs: Vec<(&Fault, &Test)> = faults
        .iter()
        .flat_map(|fault| fault.tests.iter().map(|test| (*fault, test)))
        .collect();
    println!("{} faults, {} tests with one on", faults.len(), pairs.len());
    let trials = in_parallel(&pairs, |(fault, test)| run_test(programs, test, Some(fault.name)))?;
    let keys = pairs.into_iter().map(|(fault, test)| (fault.name, *test));
    Ok(keys.zip(trials).collect())
}

/// Prints the result of each fault.
fn judge(faults: &[&Fault], trials: &BTreeMap<(&'static str, Test), Trial>) -> Result<()> {
    let mut survivors = 0_usize;
    let mut total = Duration::ZERO;
    println!("\n{:<38} {:>6}  caught by", "fault", "time");
    for fault in faults {
        let own: Vec<(&Test, &Trial)> = fault
            .tests
            .iter()
            .filter_map(|test| Some((test, trials.get(&(fault.name, *test))?)))
            .collect();
        let time: Duration = own.iter().map(|(_, trial)| trial.time).sum();
        total += time;
        let mut first = format!("{:<38} {:>4.1} s", fault.name, time.as_secs_f64());
        for (test, trial) in &own {
            let verdict = match trial.end {
                End::Failed => String::new(),
                End::Passed if !trial.reached => " PASSED, and never came to the fault".to_owned(),
                other => format!(" {other:?}").to_uppercase(),
            };
            println!("{first:<45}  {test}{verdict}");
            first.clear();
        }
        survivors += usize::from(own.iter().any(|(_, trial)| trial.end != End::Failed));
    }
    println!(
        "\n{} of {} faults are caught by all tests that are named for them; {:.0} s of tests",
        faults.len() - survivors,
        faults.len(),
        total.as_secs_f64()
    );
    if survivors > 0 {
        bail!("{survivors} faults get past a test that must catch them");
    }
    Ok(())
}

/// Calls `each` for all elements, on all cores. Returns the results in order.
fn in_parallel<T: Sync, A: Send>(all: &[T], each: impl Fn(&T) -> Result<A> + Sync) -> Result<Vec<A>> {
    let next = AtomicUsize::new(0);
    let answers: Mutex<Vec<(usize, Result<A>)>> = Mutex::new(Vec::new());
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    let Some(one) = all.get(index) else { return };
                    let answer = each(one);
                    if let Ok(mut answers) = answers.lock() {
                        answers.push((index, answer));
                    }
                }
            });
        }
    });
    let mut answers = answers
        .into_inner()
        .ok()
        .context("a thread of this chore panicked")?;
    answers.sort_by_key(|(index, _)| *index);
    answers.into_iter().map(|(_, answer)| answer).collect()
}

fn run_test(programs: &Build, test: &Test, fault: Option<&str>) -> Result<Trial> {
    let key = (test.package.to_owned(), test.target.to_owned());
    let program = programs
        .programs
        .get(&key)
        .with_context(|| format!("no program for {test}"))?;
    let folder = tempfile(test)?;
    let said = std::fs::File::create(&folder)?;
    let mut command = Command::new(&program.path);
    command
        .args(["--exact", test.name, "--test-threads", "1"])
        .current_dir(&program.folder)
        .env_remove(FAULT)
        .stdin(Stdio::null())
        .stdout(said.try_clone()?)
        .stderr(said);
    if let Some(fault) = fault {
        command.env(FAULT, fault);
    }
    if let Some(progs) = &programs.progs {
        command.env("BUTTRESS_PROGS", progs);
    }
    let begin = Instant::now();
    let mut child = command.spawn().with_context(|| format!("starting {test}"))?;
    let mut endless = false;
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if begin.elapsed() > PATIENCE {
            endless = true;
            child.kill()?;
            break child.wait()?;
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    let said = String::from_utf8_lossy(&std::fs::read(&folder)?).into_owned();
    std::fs::remove_file(&folder)?;
    Ok(Trial {
        end: if endless {
            End::Endless
        } else {
            end_of(status.success(), &said)
        },
        reached: said.contains("buttress-faults:"),
        time: begin.elapsed(),
    })
}

/// Returns a file for a test's output. A pipe without a reader would block the test.
fn tempfile(test: &Test) -> Result<std::path::PathBuf> {
    static NUMBER: AtomicUsize = AtomicUsize::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let folder = crate::run::target()?.join("faults");
    std::fs::create_dir_all(&folder)?;
    Ok(folder.join(format!("{}-{number}", test.target)))
}

fn end_of(success: bool, said: &str) -> End {
    if !success {
        return End::Failed;
    }
    let closing = said
        .lines()
        .find(|line| line.starts_with("test result:"))
        .unwrap_or_default();
    if closing.contains(" 1 passed") {
        End::Passed
    } else if closing.contains(" 1 ignored") {
        End::Skipped
    } else {
        End::Absent
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::path::{Path, PathBuf};

    pub(crate) fn sources(folder: &Path) -> Vec<PathBuf> {
        let mut found = Vec::new();
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                found.extend(sources(&path));
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                found.push(path);
            }
        }
        found
    }

    fn crates() -> PathBuf {
        crate::run::root().unwrap().join("crates")
    }

    /// Returns the names in a source's fault points.
    fn points(source: &str) -> impl Iterator<Item = &str> {
        let calls = ["buttress_faults::on(\"", "flush_unless(\""];
        calls.into_iter().flat_map(move |call| {
            let behind = source.split(call).skip(1);
            behind.filter_map(|rest| Some(rest.split_once('"')?.0))
        })
    }

    #[test]
    fn every_fault_has_a_point_and_every_point_is_a_fault() {
        let mut found = BTreeSet::new();
        for path in sources(&crates()) {
            if path.starts_with(crates().join("faults")) {
                continue;
            }
            let source = std::fs::read_to_string(path).unwrap();
            found.extend(points(&source).map(str::to_owned));
        }
        let listed: BTreeSet<String> = FAULTS.iter().map(|fault| fault.name.to_owned()).collect();
        assert_eq!(listed.len(), FAULTS.len(), "two faults have one name");
        assert_eq!(found, listed);
    }

    #[test]
    fn faults_that_lose_data_are_caught_twice() {
        assert!(FAULTS.len() >= 40);
        for fault in FAULTS.iter() {
            let least = if fault.loses_data { 2 } else { 1 };
            let tests: BTreeSet<&Test> = fault.tests.iter().collect();
            assert!(tests.len() >= least, "{}: {} tests", fault.name, tests.len());
            assert!(fault.harm.ends_with('.'), "{}", fault.name);
        }
    }

    /// Returns the sources of a test target, the file of the target's root first.
    fn sources_of(test: &Test) -> Vec<PathBuf> {
        let package = crates().join(test.package.trim_start_matches("buttress-"));
        if test.target == "lib" {
            return sources(&package.join("src"));
        }
        let tests = package.join("tests");
        let file = tests.join(test.target).with_extension("rs");
        if file.exists() {
            return vec![file];
        }
        let folder = tests.join(test.target);
        assert!(folder.join("main.rs").exists(), "{test}: no such target");
        let mut all = sources(&folder);
        all.sort_by_key(|path| *path != folder.join("main.rs"));
        all
    }

    /// Only a run shows that the names are those of tests. This test requires that the target's
    /// sources contain the parts of each name.
    #[test]
    fn every_test_that_is_named_is_there() {
        let mut of_target: BTreeMap<(&str, &str), Vec<String>> = BTreeMap::new();
        for test in FAULTS.iter().flat_map(|fault| fault.tests) {
            let texts = of_target.entry((test.package, test.target)).or_insert_with(|| {
                let paths = sources_of(test).into_iter();
                paths.map(|path| std::fs::read_to_string(path).unwrap()).collect()
            });
            let (modules, last) = match test.name.rsplit_once("::") {
                Some((modules, last)) => (modules.split("::").collect(), last),
                None => (Vec::new(), test.name),
            };
            // The root of a test target has the tests whose names have no module.
            let is_in_root = modules.is_empty() && test.target != "lib";
            let searched = if is_in_root { &texts[..1] } else { &texts[..] };
            for module in modules {
                let sentence = module.replace('_', " ");
                let mut texts = texts.iter();
                let is_there = texts.any(|text| text.contains(module) || text.contains(&sentence));
                assert!(is_there, "{test}: the target has no module {module}");
            }
            // Generated cases of a row end with a number.
            let stem = last.trim_end_matches(|c: char| c.is_ascii_digit());
            let stem = stem.trim_end_matches('_');
            // Cases of tables get their names from sentences.
            let sentence = stem.replace('_', " ");
            let is_there = searched
                .iter()
                .any(|text| text.contains(stem) || text.contains(&sentence));
            assert!(is_there, "{test} is not there");
        }
    }

    #[test]
    fn how_a_test_ended() {
        assert_eq!(
            end_of(true, "test result: ok. 1 passed; 0 failed; 0 ignored"),
            End::Passed
        );
        assert_eq!(
            end_of(true, "test result: ok. 0 passed; 0 failed; 1 ignored"),
            End::Skipped
        );
        assert_eq!(
            end_of(true, "test result: ok. 0 passed; 0 failed; 0 ignored"),
            End::Absent
        );
        assert_eq!(end_of(false, ""), End::Failed);
    }
}
