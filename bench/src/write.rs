//! `write`: changing volumes, against the kernel on a loop device.
//!
//! Both sides do the same calls in the same order from one thread, on image files of the same size that the same mkfs
//! made, and end with a sync that reached the image. Each of our steps is a process of its own, so that its peak memory is
//! its own; its seconds are those from the first call to the end of the last commit, as the kernel's are between the mount
//! and the end of `syncfs`. Dropping is timed on the kernel until `btrfs subvolume sync` returns, which looks every
//! second.
//!
//! A snapshot is timed by itself, on a volume that has just been mounted or opened, until it is durable: the kernel's call
//! commits, so ours is followed by a commit; a second row is our call alone. From the kernel's time that of a `btrfs`
//! process that does nothing is taken off.
//!
//! | room | holds |
//! |---|---|
//! | `steps` | what each side does in a step |
//! | `readers` | how long readers wait while somebody writes: a table of its own |

mod readers;
mod steps;

use crate::Scale;
use crate::images::folder;
use crate::measure::{self, Run};
use crate::report::Pairs;
use anyhow::{Context, Result, bail};
use buttress_oracle::tools::{buttress, newest, run};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use steps::Step;
pub(crate) use steps::our_step;

/// Steps that follow each other on one image, with the largest ratio that each is to have.
struct Chain {
    name: &'static str,
    gib: u64,
    steps: Vec<(Step, f64)>,
}

/// The name of the row that compares checking the volume that a chain made.
const CHECK: &str = "check";

/// The largest ratio for it.
const CHECK_GOAL: f64 = 0.15;

fn chains(scale: Scale) -> Vec<Chain> {
    let large_gib = (scale.large_bytes >> 30) + 6;
    vec![
        Chain {
            name: "files",
            gib: 4,
            steps: vec![(Step::Inline, 0.4), (Step::Unlink, 0.5)],
        },
        Chain {
            name: "large",
            gib: large_gib,
            steps: vec![
                (Step::Sequential, 1.0),
                (Step::Overwrite, 0.7),
                (Step::Snapshot, 1.0),
                (Step::Drop, 0.5),
            ],
        },
        Chain {
            name: "zstd",
            gib: large_gib,
            steps: vec![(Step::SequentialZstd, 1.0)],
        },
    ]
}

fn new_image(name: &str, gib: u64) -> Result<PathBuf> {
    let path = folder()?.join(format!("write-{name}.img"));
    let _ = std::fs::remove_file(&path);
    File::create(&path)?.set_len(gib << 30)?;
    run(Command::new(newest("mkfs.btrfs")).args(["-q", "-f"]).arg(&path))?;
    Ok(path)
}

/// One of our steps: how long it took, and how long the call that it is about took by itself.
fn timed_ours(scale: Scale, step: Step, image: &Path) -> Result<(Run, f64)> {
    let seconds_file = image.with_extension("seconds");
    let mut command = Command::new(std::env::current_exe()?);
    command
        .args(["write-step", scale.name, step.name()])
        .arg(image)
        .arg(&seconds_file);
    let whole = measure::run(&mut command)?;
    let text = std::fs::read_to_string(&seconds_file)?;
    std::fs::remove_file(&seconds_file)?;
    let mut words = text.split_whitespace().map(str::parse);
    let mut next = || words.next().context("the seconds of a step")?.context("seconds");
    let (seconds, call) = (next()?, next()?);
    Ok((Run { seconds, ..whole }, call))
}

fn pairs_of(job: String, goal: f64) -> Pairs {
    Pairs {
        job,
        cache: "",
        ours: Vec::new(),
        theirs: Vec::new(),
        goal,
    }
}

impl Chain {
    fn knows(&self, word: &str) -> bool {
        word == self.name || self.steps.iter().any(|(step, _)| step.name() == word) || self.has_check(word)
    }

    fn has_check(&self, word: &str) -> bool {
        word == CHECK && self.steps.iter().any(|(step, _)| *step == Step::Snapshot)
    }

    /// Runs the steps in pairs, each side on an image of its own, up to the last one that is wanted, and prints the rows of
    /// those that are.
    fn run(&self, scale: Scale, wanted: &[&str]) -> Result<()> {
        let whole = wanted.is_empty() || wanted.contains(&self.name);
        let is_wanted = |name: &str| whole || wanted.contains(&name);
        let checks = self.has_check(CHECK) && is_wanted(CHECK);
        let last = self
            .steps
            .iter()
            .rposition(|(step, _)| is_wanted(step.name()) || (checks && *step == Step::Snapshot));
        let Some(last) = last else { return Ok(()) };
        let steps = &self.steps[..=last];
        let mut table: Vec<Pairs> = steps
            .iter()
            .map(|(step, goal)| pairs_of(step.name().to_owned(), *goal))
            .collect();
        let mut alone = pairs_of("snapshot, our call alone".to_owned(), 1.0);
        let mut checked = pairs_of(format!("check after {}", self.name), CHECK_GOAL);
        for _ in 0..scale.rounds {
            let ours = new_image(&format!("{}-ours", self.name), self.gib)?;
            let theirs = new_image(&format!("{}-kernel", self.name), self.gib)?;
            for ((step, _), pairs) in steps.iter().zip(&mut table) {
                let (run_of_ours, call) = timed_ours(scale, *step, &ours)?;
                pairs.ours.push(run_of_ours);
                pairs.theirs.push(steps::kernel_step(scale, *step, &theirs)?);
                if *step == Step::Snapshot {
                    alone.ours.push(Run {
                        seconds: call,
                        ..run_of_ours
                    });
                    alone.theirs.extend(pairs.theirs.last());
                    if checks {
                        compare_checks(&ours, &mut checked)?;
                    }
                }
            }
            // What we wrote must be what btrfs-progs finds clean.
            measure::run(Command::new(newest("btrfs")).arg("check").arg(&ours))?;
            std::fs::remove_file(&ours)?;
            std::fs::remove_file(&theirs)?;
        }
        for pairs in table.iter().filter(|pairs| is_wanted(&pairs.job)) {
            println!("{}", pairs.row());
            if pairs.job == Step::Snapshot.name() {
                println!("{}", alone.row());
            }
        }
        if checks {
            println!("{}", checked.row());
        }
        Ok(())
    }
}

fn compare_checks(image: &Path, checked: &mut Pairs) -> Result<()> {
    checked.ours.push(measure::run(
        Command::new(buttress()?).args(["check", "-q"]).arg(image),
    )?);
    checked.theirs.push(measure::run(
        Command::new(newest("btrfs")).arg("check").arg(image),
    )?);
    Ok(())
}

/// Runs the jobs whose names are given, or all: chains, single steps of them, and `readers`.
pub(crate) fn run_all(scale: Scale, wanted: &[&str]) -> Result<()> {
    let chains = chains(scale);
    let knows = |word: &str| word == readers::NAME || chains.iter().any(|chain| chain.knows(word));
    if let Some(unknown) = wanted.iter().find(|word| !knows(word)) {
        let names: Vec<&str> = chains
            .iter()
            .flat_map(|chain| {
                let steps = chain.steps.iter().map(|(step, _)| step.name());
                core::iter::once(chain.name).chain(steps)
            })
            .collect();
        bail!(
            "no job {unknown}; there are {}, {CHECK}, {}",
            names.join(", "),
            readers::NAME
        );
    }
    if wanted != [readers::NAME] {
        println!("{}", Pairs::head());
        for chain in &chains {
            chain.run(scale, wanted)?;
        }
    }
    if wanted.is_empty() || wanted.contains(&readers::NAME) {
        readers::run(scale)?;
    }
    Ok(())
}
