//! `write`: changes of volumes, against the kernel on a loop device.
//!
//! Both sides make the same calls in the same order from one thread, on image files of equal size
//! by the same mkfs. Both end with a sync that reached the image. Each step of our side is a
//! separate process, so that its peak memory is its own. Its seconds run from the first call to the
//! end of the last commit; the kernel's run from the mount to the end of `syncfs`. The kernel's
//! time of dropping runs until `btrfs subvolume sync` returns, which checks once a second. The
//! kernel's cleaner is woken before, and the benchmark prints that time.
//!
//! Steps alternate between the sides if the disk has space for both images. Otherwise a side makes
//! all of its steps, and its image is removed before the other side starts.
//!
//! A snapshot is timed alone, on a freshly mounted or opened volume, until it is durable. The
//! kernel's call commits, so a commit follows our call; a second row has our call alone. The time
//! of an idle `btrfs` process is subtracted from the kernel's time.
//!
//! | module | holds |
//! |---|---|
//! | `steps` | the calls of each side in a step |
//! | `readers` | the waits of readers beside a writer, with a table of its own |

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

/// Consecutive steps on one image, with the goal for the ratio of each.
struct Chain {
    name: &'static str,
    gib: u64,
    steps: Vec<(Step, f64)>,
}

/// The name of the row that compares checking the volume that a chain made.
const CHECK: &str = "check";

/// The largest ratio of the single step's row.
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
            name: "subvolume",
            gib: 4,
            steps: vec![(Step::SubvolumeInline, 0.4), (Step::DropUnshared, 0.5)],
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

/// Runs a step of our side. Returns the run, and the seconds of the measured call alone.
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

/// The pairs of a chain.
struct Rows {
    table: Vec<Pairs>,
    /// Our call for a snapshot, without the commit after it.
    alone: Pairs,
    checked: Pairs,
}

/// A side of a running chain.
struct Side<'a> {
    chain: &'a Chain,
    scale: Scale,
    is_ours: bool,
    image: Option<PathBuf>,
}

impl Side<'_> {
    /// Runs the step with the number `at`. Before the first step the side makes the image.
    fn step(&mut self, step: Step, checks: bool, rows: &mut Rows, at: usize) -> Result<()> {
        if self.image.is_none() {
            let side = if self.is_ours { "ours" } else { "kernel" };
            let name = format!("{}-{side}", self.chain.name);
            self.image = Some(new_image(&name, self.chain.gib)?);
        }
        let image = self.image.as_deref().context("the image was made")?;
        let pairs = rows.table.get_mut(at).context("a row for each step")?;
        if self.is_ours {
            let (run, call) = timed_ours(self.scale, step, image)?;
            pairs.ours.push(run);
            if step == Step::Snapshot {
                rows.alone.ours.push(Run { seconds: call, ..run });
                if checks {
                    compare_checks(image, &mut rows.checked)?;
                }
            }
        } else {
            pairs.theirs.push(steps::kernel_step(self.scale, step, image)?);
        }
        Ok(())
    }

    /// Ends the side. btrfs-progs must find our volume clean.
    fn end(&mut self) -> Result<()> {
        let Some(image) = self.image.take() else {
            return Ok(());
        };
        if self.is_ours {
            measure::run(Command::new(newest("btrfs")).arg("check").arg(&image))?;
        }
        Ok(std::fs::remove_file(image)?)
    }
}

/// Dropping a side removes its image, also after a failed run.
impl Drop for Side<'_> {
    fn drop(&mut self) {
        if let Some(image) = self.image.take() {
            let _is_gone = std::fs::remove_file(image);
        }
    }
}

/// Returns whether the disk has space for two images of this size.
fn has_room(image_bytes: u64) -> Result<bool> {
    let disk = rustix::fs::statvfs(&folder()?)?;
    Ok(disk.f_bavail.saturating_mul(disk.f_frsize) > image_bytes.saturating_mul(2))
}

impl Chain {
    /// Returns the largest part of its image that a chain fills: all content, half as much again
    /// for overwritten data, and tree blocks.
    fn bytes_used(&self, scale: Scale) -> u64 {
        (self.gib << 30).min((scale.large_bytes / 2).saturating_mul(3) + (2 << 30))
    }

    fn knows(&self, word: &str) -> bool {
        word == self.name || self.steps.iter().any(|(step, _)| step.name() == word) || self.has_check(word)
    }

    fn has_check(&self, word: &str) -> bool {
        word == CHECK && self.steps.iter().any(|(step, _)| *step == Step::Snapshot)
    }

    /// Runs the steps in pairs, up to the last chosen step, with an image for each side. Prints the
    /// rows of the chosen steps.
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
        let mut rows = Rows {
            table: steps
                .iter()
                .map(|(step, goal)| pairs_of(step.name().to_owned(), *goal))
                .collect(),
            alone: pairs_of("snapshot, our call alone".to_owned(), 1.0),
            checked: pairs_of(format!("check after {}", self.name), CHECK_GOAL),
        };
        for _ in 0..scale.rounds {
            let mut sides = [true, false].map(|is_ours| Side {
                chain: self,
                scale,
                is_ours,
                image: None,
            });
            if has_room(self.bytes_used(scale))? {
                for (at, (step, _)) in steps.iter().enumerate() {
                    for side in &mut sides {
                        side.step(*step, checks, &mut rows, at)?;
                    }
                }
                sides.iter_mut().try_for_each(Side::end)?;
            } else {
                for side in &mut sides {
                    for (at, (step, _)) in steps.iter().enumerate() {
                        side.step(*step, checks, &mut rows, at)?;
                    }
                    side.end()?;
                }
            }
        }
        let Rows {
            table,
            mut alone,
            checked,
        } = rows;
        let snapshot = table.iter().find(|pairs| pairs.job == Step::Snapshot.name());
        alone.theirs = snapshot.map(|pairs| pairs.theirs.clone()).unwrap_or_default();
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

/// Runs the named jobs, or all: chains, single steps of them, and `readers`.
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
