//! A whole history in every format, and the files kept of a failing one.

use super::compare::{same_but_for_times_of_directories, same_content, same_holes, same_sharing};
use super::merged;
use super::received::{self, Expected, Receivers};
use super::transfer::{receive, send};
use super::tree::{Tree, of_snapshot};
use super::volumes::{Flavour, Pair, lend, unused_name};
use super::{Format, Sender, wire};
use anyhow::{Context, Result, ensure};
use buttress_oracle::history::random::smaller;
use buttress_oracle::history::{History, Made, Strictness};
use std::fmt;
use std::ops::AddAssign;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Sums over sent histories.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sums {
    /// Bytes of the streams under test.
    pub ours: u64,
    /// Bytes of the kernel's streams.
    pub kernel: u64,
    /// Number of cases (histories, formats) in which the kernel's own streams did not give the
    /// snapshots.
    pub kernel_wrong: u64,
    /// Number of streams that were longer than the kernel's only because of their paths.
    pub longer: u64,
}

impl AddAssign for Sums {
    fn add_assign(&mut self, other: Self) {
        self.ours += other.ours;
        self.kernel += other.kernel;
        self.kernel_wrong += other.kernel_wrong;
        self.longer += other.longer;
    }
}

impl fmt::Display for Sums {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "{} bytes of streams, the kernel's {}, which were wrong {} times; longer by paths {} times",
            self.ours, self.kernel, self.kernel_wrong, self.longer
        )
    }
}

/// A history to send, receive and compare.
#[derive(Clone, Copy, Debug)]
pub struct RoundTrip<'a> {
    /// Name for messages and files.
    pub name: &'a str,
    /// The creator of the streams.
    pub sender: Sender,
    /// Formats of the streams.
    pub formats: &'a [Format],
    /// Kind of the source volume.
    pub flavour: Flavour,
    /// Treatment of changes of a history that cannot be made.
    pub strictness: Strictness,
    /// Number of the history, which selects the format whose streams Buttress receives, its own or
    /// the kernel's; `None`: no format.
    pub received: Option<u64>,
}

impl RoundTrip<'_> {
    /// Makes the changes of `history`, sends and receives it in each format, and compares. Streams
    /// are kept in `folder`.
    fn run(&self, history: &History, folder: &Path) -> Result<Sums> {
        let pair = lend(self.flavour)?;
        let directory = pair.source.top().join(unused_name("history"));
        let made = Made::new(history, &directory, self.strictness)?;
        pair.source.commit()?;
        let compared = self.compare(history, &pair, &made, folder);
        made.remove()?;
        compared
    }

    fn compare(&self, history: &History, pair: &Pair, made: &Made, folder: &Path) -> Result<Sums> {
        let mut sources = Vec::new();
        for path in &made.snapshots {
            sources.push(of_snapshot(path).with_context(|| path.display().to_string())?);
        }
        let mut sizes = Sums::default();
        for format in self.formats {
            sizes += self.compare_format(history, pair, made, folder, &sources, *format)?;
        }
        Ok(sizes)
    }

    fn compare_format(
        &self,
        history: &History,
        pair: &Pair,
        made: &Made,
        folder: &Path,
        sources: &[Tree],
        format: Format,
    ) -> Result<Sums> {
        let theirs = send(Sender::Kernel, format, &pair.source, history, made, folder)?;
        for stream in &theirs {
            wire::check(stream).with_context(|| stream.display().to_string())?;
        }
        let kernel = receive(pair, history, &theirs);
        let verdict = match &kernel {
            Ok(trees) => sent(sources, trees).try_for_each(|(number, source, tree)| {
                same_but_for_times_of_directories(&format!("s{number}, {}", format.name), source, tree)
            }),
            Err(error) => Err(anyhow::anyhow!("{error:#}")),
        };
        let mut sums = Sums {
            ours: 0,
            kernel: bytes(&theirs)?,
            kernel_wrong: u64::from(verdict.is_err()),
            longer: 0,
        };
        self.receive_theirs(history, format, sources, &theirs, &kernel)?;
        if self.sender == Sender::Kernel {
            verdict.context("the kernel's own streams")?;
            return Ok(sums);
        }
        let ours = send(self.sender, format, &pair.source, history, made, folder)?;
        sums.ours = bytes(&ours)?;
        let received = receive(pair, history, &ours)?;
        for (number, source, tree) in sent(sources, &received) {
            let what = format!("s{number}, {}", format.name);
            same_content(&what, source, tree)?;
            let reference = kernel.as_ref().ok().and_then(|trees| trees.get(number)?.as_ref());
            let transfer = history
                .transfers
                .iter()
                .find(|transfer| transfer.snapshot == number);
            let before = transfer
                .and_then(|transfer| transfer.parent)
                .filter(|_| !format.says_holes)
                .and_then(|parent| received.get(parent)?.as_ref());
            same_holes(&what, source, reference, tree, before)?;
        }
        if let Some(number) = self.receives(format, Sender::Buttress) {
            let expected = Expected {
                sources,
                kernel: Some(&received),
                has_times_of_directories: true,
            };
            received::compare(number, Receivers::of(number >> 3), history, &ours, expected)?;
            merged::compare(number, history, &ours, sources).context("of streams that were merged")?;
        }
        // If the kernel's streams are wrong, only the snapshot is a reference.
        if verdict.is_ok()
            && let Ok(kernel) = &kernel
        {
            same_sharing(format.name, kernel, &received)?;
            sums.longer += u64::from(sums.ours > sums.kernel);
            let (ours, theirs) = (wire::size(&ours)?, wire::size(&theirs)?);
            ensure!(
                ours.commands <= theirs.commands && ours.without_paths() <= theirs.without_paths(),
                "{}: larger than the kernel's: {sums}; {ours:?}, {theirs:?}",
                format.name
            );
        }
        Ok(sums)
    }

    /// Returns the number with which Buttress receives the streams of this format and sender;
    /// `None` if it does not.
    fn receives(&self, format: Format, sender: Sender) -> Option<u64> {
        let number = self.received?;
        let chosen = usize::try_from(number % 3).unwrap_or(0);
        let is_format = self.formats.get(chosen % self.formats.len().max(1))?.name == format.name;
        let of = match (number / 3) % 2 {
            0 => Sender::Kernel,
            _ => Sender::Buttress,
        };
        (is_format && of == sender).then_some(number)
    }

    /// Makes Buttress receive the kernel's streams.
    fn receive_theirs(
        &self,
        history: &History,
        format: Format,
        sources: &[Tree],
        streams: &[PathBuf],
        kernel: &Result<Vec<Option<Tree>>>,
    ) -> Result<()> {
        let Some(number) = self.receives(format, Sender::Kernel) else {
            return Ok(());
        };
        // If the kernel cannot receive its own streams, Buttress has no reference for them.
        let Ok(trees) = kernel else { return Ok(()) };
        let expected = Expected {
            sources,
            kernel: Some(trees),
            has_times_of_directories: false,
        };
        received::compare(number, Receivers::of(number >> 3), history, streams, expected)
    }

    /// Runs `history`. If the run fails, looks for a smaller failing history for at most
    /// `time_to_look`, and keeps its changes and streams; the error names their location.
    pub fn check(&self, history: &History, time_to_look: Duration) -> Result<Sums> {
        let folder = buttress_oracle::volumes::scratch()?;
        let error = match self.run(history, folder.path()) {
            Ok(sizes) => return Ok(sizes),
            Err(error) => error,
        };
        let kept = failures()?.join(self.name.replace("::", "-"));
        if kept.exists() {
            std::fs::remove_dir_all(&kept)?;
        }
        std::fs::create_dir_all(&kept)?;
        let lenient = RoundTrip {
            strictness: Strictness::Lenient,
            ..*self
        };
        let class = class_of(&error);
        let small = smaller(history, time_to_look, |candidate| {
            let Ok(folder) = buttress_oracle::volumes::scratch() else {
                return false;
            };
            let failed = lenient.run(candidate, folder.path()).err();
            failed.is_some_and(|error| class_of(&error) == class)
        });
        let small_error = lenient.run(&small, &kept).err();
        std::fs::write(kept.join("history.txt"), format!("{history}\n{error:?}\n"))?;
        std::fs::write(kept.join("smaller.txt"), format!("{small}\n{small_error:?}\n"))?;
        Err(error.context(format!(
            "{} on a {:?} volume; {} of {} changes suffice; kept in {}",
            self.name,
            self.flavour,
            small.operations(),
            history.operations(),
            kept.display()
        )))
    }
}

/// Pairs the transfers' snapshots with their results.
fn sent<'a>(
    sources: &'a [Tree],
    trees: &'a [Option<Tree>],
) -> impl Iterator<Item = (usize, &'a Tree, &'a Tree)> {
    let pairs = sources.iter().zip(trees).enumerate();
    pairs.filter_map(|(number, (source, tree))| Some((number, source, tree.as_ref()?)))
}

fn bytes(streams: &[PathBuf]) -> Result<u64> {
    streams.iter().map(|path| Ok(path.metadata()?.len())).sum()
}

/// Returns the class of a failure, so that a smaller history counts only if it fails in the same
/// way.
fn class_of(error: &anyhow::Error) -> &'static str {
    const CLASSES: [&str; 14] = [
        "receiving",
        "not expected",
        "missing",
        "mode is",
        "data is",
        "size is",
        "linked is",
        "target is",
        "xattr",
        "modified is",
        "extra is",
        "has data in",
        "shares snapshot",
        "larger than",
    ];
    let text = format!("{error:#}");
    CLASSES
        .into_iter()
        .find(|class| text.contains(class))
        .unwrap_or("other")
}

/// Returns the folder for failing histories, beside the build's other results.
fn failures() -> Result<PathBuf> {
    let program = std::env::current_exe().context("the running program's own path")?;
    let target = program.ancestors().nth(3).context("the build's folder")?;
    Ok(target.join("send-failures"))
}
