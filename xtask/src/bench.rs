//! `cargo xtask bench [--write] NAME [WORDS]`: runs a benchmark, and writes its tables into
//! `docs/internals/performance.md`.
//!
//! The document has a region for each benchmark, between `<!-- bench NAME WORDS -->` and `<!-- end
//! -->`. `--write` replaces the region with a line of conditions (commit, date, machine, load) and
//! the benchmark's tables. Other output of the benchmark is left out.
//!
//! Invariant: a table in a region comes from one whole run. Arguments that choose single rows have
//! no region.

use crate::run::{cargo, root, run as run_command, target};
use anyhow::{Context, Result, bail, ensure};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

const USAGE: &str = "usage: cargo xtask bench [--write] NAME [WORDS]";

/// The Markdown page with the regions that the benchmarks fill.
const DOCUMENT: &str = "docs/internals/performance.md";

const END: &str = "<!-- end -->";

pub(crate) fn run(words: &[String]) -> Result<()> {
    match words {
        [flag, words @ ..] if flag == "--write" && !words.is_empty() => write(words),
        [flag, ..] if flag.starts_with('-') => bail!(USAGE),
        words => run_command(&mut command(words)?),
    }
}

/// Builds the benchmarks, and returns the command for these arguments.
fn command(words: &[String]) -> Result<Command> {
    crate::tools::install_missing();
    let programs = ["-p", "buttress-cli", "-p", "buttress-bench"];
    run_command(cargo()?.args(["build", "--release", "--quiet"]).args(programs))?;
    let mut command = Command::new(target()?.join("release/buttress-bench"));
    if let Some(folder) = crate::tools::newer_progs()? {
        command.env("BUTTRESS_PROGS", folder);
    }
    command.args(words).current_dir(root()?);
    Ok(command)
}

fn write(words: &[String]) -> Result<()> {
    let name = words.join(" ");
    let path = root()?.join(DOCUMENT);
    // A missing region is an error before the long run, not after it.
    region(&read(&path)?, &name)?;
    let conditions = conditions()?;
    let printed = tee(&mut command(words)?)?;
    let tables = tables(&printed);
    ensure!(!tables.is_empty(), "`bench {name}` printed no table");
    let text = read(&path)?;
    let (start, end) = region(&text, &name)?;
    let (before, after) = (text.get(..start), text.get(end..));
    let (before, after) = before.zip(after).context("a region ends inside a letter")?;
    std::fs::write(&path, format!("{before}\n{conditions}\n\n{tables}\n{after}"))
        .with_context(|| format!("writing {DOCUMENT}"))
}

fn read(path: &Path) -> Result<String> {
    std::fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))
}

/// Runs a command, prints its output, and returns the lines.
fn tee(command: &mut Command) -> Result<Vec<String>> {
    let mut child = command
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("starting {command:?}"))?;
    let output = child.stdout.take().context("a pipe was asked for")?;
    let mut lines = Vec::new();
    for line in BufReader::new(output).lines() {
        let line = line.context("reading what the benchmark prints")?;
        println!("{line}");
        lines.push(line);
    }
    let status = child.wait()?;
    ensure!(status.success(), "{command:?} ended with {status}");
    Ok(lines)
}

/// Returns the tables among the lines, separated by empty lines.
fn tables(lines: &[String]) -> String {
    let of_tables = lines.chunk_by(|a, b| a.starts_with('|') == b.starts_with('|'));
    let tables = of_tables.filter(|lines| lines.first().is_some_and(|line| line.starts_with('|')));
    let tables: Vec<String> = tables.map(|lines| lines.join("\n") + "\n").collect();
    tables.join("\n")
}

/// Returns the byte range of a benchmark's region, without its marker lines.
fn region(text: &str, name: &str) -> Result<(usize, usize)> {
    let head = format!("<!-- bench {name} -->\n");
    let found = text.find(&head).with_context(|| {
        format!(
            "{DOCUMENT} has no region `{}`: add one, or run without --write",
            head.trim_end()
        )
    })?;
    let start = found.saturating_add(head.len());
    let length = text.get(start..).and_then(|rest| rest.find(END));
    let length = length.with_context(|| format!("the region of `bench {name}` has no `{END}`"))?;
    Ok((start, start.saturating_add(length)))
}

/// Returns a line with the commit, the date, the machine and its load.
fn conditions() -> Result<String> {
    let git = |words: &[&str]| -> Result<String> {
        let output = Command::new("git").current_dir(root()?).args(words).output()?;
        ensure!(
            output.status.success(),
            "git {words:?} ended with {}",
            output.status
        );
        Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let commit = git(&["rev-parse", "--short=8", "HEAD"])?;
    let changed = match git(&["status", "--porcelain", "--untracked-files=no"])?.is_empty() {
        true => "",
        false => " with changes",
    };
    let date = Command::new("date").args(["-u", "+%Y-%m-%d"]).output()?;
    let date = String::from_utf8_lossy(&date.stdout).trim().to_owned();
    let processor = field("/proc/cpuinfo", "model name")?;
    let count = std::thread::available_parallelism()?;
    let memory_kib = field("/proc/meminfo", "MemTotal")?;
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease")?;
    let load = std::fs::read_to_string("/proc/loadavg")?;
    let load = load.split(' ').next().unwrap_or_default();
    let kernel = kernel.trim();
    Ok(format!(
        "Commit {commit}{changed}, {date}; {count} processors ({processor}), {memory_kib} of memory, Linux {kernel}; load {load} \
         at the start."
    ))
}

/// Returns the value of a `name: value` line in a file.
fn field(path: &str, name: &str) -> Result<String> {
    let text = read(Path::new(path))?;
    let value = text.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == name).then(|| value.trim().to_owned())
    });
    value.with_context(|| format!("{path} has no `{name}`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str) -> Vec<String> {
        text.lines().map(str::to_owned).collect()
    }

    #[test]
    fn tables_are_told_from_notes() {
        let printed = lines("note\n| a |\n|---|\n| 1 |\n\nnote | more\n| b |\n|---|\n");
        assert_eq!(tables(&printed), "| a |\n|---|\n| 1 |\n\n| b |\n|---|\n");
        assert_eq!(tables(&lines("note\n")), "");
    }

    #[test]
    fn a_region_lies_between_its_lines() {
        let text = "# P\n<!-- bench read -->\nold\n<!-- end -->\n<!-- bench read x -->\n";
        let (start, end) = region(text, "read").unwrap();
        assert_eq!(text.get(start..end), Some("old\n"));
        assert!(region(text, "read x").is_err(), "it has no end");
        assert!(
            region(text, "write")
                .unwrap_err()
                .to_string()
                .contains("no region")
        );
    }

    #[test]
    fn every_region_of_the_document_ends() {
        let text = read(&root().unwrap().join(DOCUMENT)).unwrap();
        let names = text
            .lines()
            .filter_map(|line| line.strip_prefix("<!-- bench ")?.strip_suffix(" -->"));
        let names: Vec<&str> = names.collect();
        assert!(names.len() > 10, "{names:?}");
        for name in names {
            let (start, end) = region(&text, name).unwrap();
            let tables = text.get(start..end).unwrap();
            assert!(!tables.contains("<!-- bench"), "{name}");
            assert!(tables.lines().any(|line| line.starts_with('|')), "{name}");
        }
    }

    #[test]
    fn the_conditions_name_commit_and_machine() {
        let line = conditions().unwrap();
        assert!(
            line.starts_with("Commit ") && line.contains(" processors (") && line.contains("Linux "),
            "{line}"
        );
    }
}
