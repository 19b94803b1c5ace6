//! The arguments of `cargo xtask test`.

use anyhow::{Context, Result, ensure};
use buttress_oracle::needs;

/// The parsed command line.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Words {
    /// Needs that may be missing, and that count as missing.
    pub(super) without: Vec<String>,
    /// Runs only the quick tests.
    pub(super) quick: bool,
    /// Gives random tests further seeds from the day's date.
    pub(super) nightly: bool,
    /// Prints the slowest tests and the time of each program.
    pub(super) times: bool,
    /// The number of test threads, of all programs together.
    pub(super) threads: Option<usize>,
    /// The arguments for cargo.
    pub(super) cargo: Vec<String>,
}

/// Tests that can run side by side: tests of some or all packages, with a part of their names.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Chosen {
    /// The packages; empty for the whole workspace.
    pub(super) packages: Vec<String>,
    pub(super) filter: Option<String>,
}

impl Words {
    pub(super) fn parse(words: &[String]) -> Result<Self> {
        let mut parsed = Self::default();
        let mut words = words.iter();
        while let Some(word) = words.next() {
            match word.as_str() {
                "--quick" => parsed.quick = true,
                "--nightly" => parsed.nightly = true,
                "--times" => parsed.times = true,
                "--threads" => {
                    let number = words.next().and_then(|number| number.parse().ok());
                    let number = number.filter(|number| *number > 0);
                    parsed.threads = Some(number.context("--threads wants a number")?);
                }
                word => match without(word, &mut words)? {
                    Some(need) => parsed.without.push(need),
                    None => parsed.cargo.push(word.to_owned()),
                },
            }
        }
        ensure!(
            !parsed.quick || parsed.cargo.is_empty(),
            "--quick has tests of its own; without it `cargo xtask test {}` runs those that are named",
            parsed.cargo.join(" ")
        );
        let is_side_by_side = !parsed.quick && parsed.chosen().is_some();
        ensure!(
            is_side_by_side || (!parsed.times && parsed.threads.is_none()),
            "--times and --threads go with a part of names and with -p PACKAGE, with nothing else"
        );
        Ok(parsed)
    }

    /// Returns whether the arguments choose packages.
    pub(super) fn choose_packages(&self) -> bool {
        let chooses = |word: &String| word == "-p" || word == "--package" || word.starts_with("--package=");
        self.cargo.iter().any(chooses)
    }

    /// Returns the choice of tests in cargo's arguments, or `None` if only cargo itself understands
    /// them.
    pub(super) fn chosen(&self) -> Option<Chosen> {
        let mut chosen = Chosen::default();
        let mut words = self.cargo.iter();
        while let Some(word) = words.next() {
            if word == "-p" || word == "--package" {
                chosen.packages.push(words.next()?.clone());
            } else if let Some(package) = word.strip_prefix("--package=") {
                chosen.packages.push(package.to_owned());
            } else if word.starts_with('-') || chosen.filter.is_some() {
                return None;
            } else {
                chosen.filter = Some(word.clone());
            }
        }
        Some(chosen)
    }
}

/// Returns the need that a `--without NEED` or `--without=NEED` names; `None` for another word.
fn without<'a>(word: &'a str, words: &mut impl Iterator<Item = &'a String>) -> Result<Option<String>> {
    let need = match word.strip_prefix("--without") {
        Some("") => words
            .next()
            .map(String::as_str)
            .context("--without wants the name of a tool")?,
        Some(rest) => rest
            .strip_prefix('=')
            .context("--without wants the name of a tool")?,
        None => return Ok(None),
    };
    let known: Vec<_> = needs::names().collect();
    ensure!(
        known.contains(&need),
        "no test needs {need:?}; what may be missing is one of: {}",
        known.join(", ")
    );
    Ok(Some(need.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(words: &[&str]) -> Result<Words> {
        Words::parse(&words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn words_are_ours_or_cargos() {
        let parsed = parse(&["--without", "tar", "-p", "xtask", "--without=root", "name"]);
        let parsed = parsed.unwrap();
        assert_eq!(parsed.without, ["tar", "root"]);
        assert_eq!(parsed.cargo, ["-p", "xtask", "name"]);
        assert!(parsed.choose_packages());
        assert!(parse(&["--quick", "--without", "root"]).unwrap().quick);
        for wrong in [
            &["--without"][..],
            &["--without", "a-thing"],
            &["--without-tar"],
            &["--quick", "name"],
            &["--threads", "0"],
            &["--times", "--test", "mount"],
            &["--times", "--quick"],
        ] {
            assert!(parse(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn packages_and_one_part_of_names_run_side_by_side() {
        let chosen = |words: &[&str]| parse(words).unwrap().chosen();
        assert_eq!(chosen(&["--nightly"]), Some(Chosen::default()));
        let both = Chosen {
            packages: vec!["xtask".to_owned(), "buttress".to_owned()],
            filter: Some("name".to_owned()),
        };
        assert_eq!(
            chosen(&["--times", "-p", "xtask", "name", "--package=buttress"]),
            Some(both)
        );
        for cargos in [
            &["--test", "mount"][..],
            &["name", "--", "--nocapture"],
            &["one", "two"],
            &["-p"],
        ] {
            assert_eq!(chosen(cargos), None, "{cargos:?}");
        }
    }
}
