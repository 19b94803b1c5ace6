//! Files from a volume into a directory of the host, safely and in parallel.
//!
//! The volume is not trusted, and others may change the destination meanwhile. Everything is made relative to an open
//! directory by a single name (`beneath`): no path is ever followed, so no symbolic link that lies (or comes to lie) in
//! the destination can lead out of it, and a name that is no name (`..`, with a slash) is refused. What becomes of what is
//! there already, [`crate::replacing`] says: but for the one name that the user gave, no link is written through, and nothing
//! is ever that this command reads. What gets which rights, `attributes` says.
//!
//! [`Extractor`] takes what a walk finds, in its order, on one thread. It makes directories, links and special
//! files itself and hands regular files to a few threads. A directory is finished (owner, mode, attributes, times)
//! when the last file in it is: each holds its directory by an [`Arc`], and whoever lets go of it last finishes it.
//! So modification times are right in the end, and memory does not grow with the number of directories.
//!
//! Where names of one file are to stay that, it is made before the walk goes on: later names are linked to it, and only
//! to it.

mod attributes;
mod beneath;
mod destination;
mod file;
mod replacing;

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;

use anyhow::{Context as _, Result};
use buttress::{ByteCount, FileKind, Location, Progress, WalkEntry, WalkItem, is_valid_name};
use crossbeam_channel::{Receiver, Sender, bounded};

use attributes::Refusals;
pub use attributes::{Preserve, Refusal};
use beneath::Identity;
use destination::Directory;
use replacing::Spot;

use crate::replacing::Replacing;
use crate::sources::Sources;

use crate::ending::ends_the_job;

/// Files that wait for a thread. Each may hold content that was read ahead.
const QUEUE_LENGTH: usize = 32;

/// Threads that make files, at most.
const WORKERS_MAX: usize = 4;

/// What was taken out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Regular files.
    pub files: u64,
    /// Directories.
    pub directories: u64,
    /// Further names of files.
    pub hard_links: u64,
    /// Symbolic links, devices, pipes and sockets.
    pub others: u64,
    /// Bytes written; holes do not count.
    pub bytes: u64,
}

/// State that the threads share.
#[derive(Debug)]
struct Shared {
    preserve: Preserve,
    replacing: Replacing,
    /// What may not be written to.
    sources: Sources,
    progress: Progress,
    refusals: Refusals,
    files: AtomicU64,
    bytes: AtomicU64,
    /// Errors that are not yet reported.
    errors: parking_lot::Mutex<Vec<anyhow::Error>>,
    /// Set when nothing more can be made, as on a full disk.
    ended: AtomicBool,
    /// What the walk's beginning becomes, for messages.
    destination: PathBuf,
}

impl Shared {
    /// Notes an error. Of those that end the job only the first counts: all others would say the same.
    fn lost(&self, error: anyhow::Error) {
        if !ends_the_job(&error) {
            self.errors.lock().push(error);
        } else if !self.ended.swap(true, Ordering::Relaxed) {
            self.errors
                .lock()
                .push(error.context("the copy ends here, unfinished"));
        }
    }

    fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Relaxed)
    }

    /// The path on the host of what lies at `inner` below the walk's beginning.
    fn shown(&self, inner: &[u8]) -> String {
        let inner = OsStr::from_bytes(inner);
        let path = if inner.is_empty() {
            self.destination.clone()
        } else {
            self.destination.join(inner)
        };
        path.as_os_str().as_bytes().escape_ascii().to_string()
    }
}

/// One regular file that is to be made.
struct Job {
    directory: Arc<Directory>,
    name: OsString,
    /// Whether the user named it.
    is_named: bool,
    entry: Box<WalkEntry>,
}

/// See the module.
pub struct Extractor {
    shared: Arc<Shared>,
    jobs: Option<Sender<Job>>,
    workers: Vec<JoinHandle<()>>,
    /// The directory that the next [`WalkItem::Enter`] enters.
    entering: Option<Arc<Directory>>,
    /// From the destination down to where the walk is. `None` where a directory could not be made.
    stack: Vec<Option<Arc<Directory>>>,
    /// The directory and name that the walk's beginning gets.
    base: Arc<Directory>,
    base_name: Option<OsString>,
    /// What was made of files with several names.
    linked: HashMap<Location, Identity>,
    totals: Totals,
}

impl Extractor {
    /// Extracts into `parent`: the walk's beginning becomes `name` there, or, without a name, `parent` itself,
    /// which must then be a directory.
    pub fn new(
        parent: &Path,
        name: Option<OsString>,
        preserve: Preserve,
        replacing: Replacing,
        sources: &Sources,
        progress: Progress,
    ) -> Result<Self> {
        crate::context::allow_deep_trees();
        let base = Directory::destination(parent)
            .with_context(|| format!("opening the directory {}", parent.display()))?;
        let shared = Arc::new(Shared {
            preserve,
            replacing,
            sources: sources.clone(),
            destination: name
                .as_ref()
                .map_or_else(|| parent.to_owned(), |name| parent.join(name)),
            progress,
            refusals: Refusals::default(),
            files: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            errors: parking_lot::Mutex::new(Vec::new()),
            ended: AtomicBool::new(false),
        });
        let (jobs, queue) = bounded(QUEUE_LENGTH);
        let count = std::thread::available_parallelism()
            .map_or(1, usize::from)
            .min(WORKERS_MAX);
        let workers = (0..count).map(|_| spawn_worker(&shared, &queue)).collect();
        Ok(Self {
            shared,
            jobs: Some(jobs),
            workers,
            entering: None,
            stack: Vec::new(),
            base: Arc::new(base),
            base_name: name,
            linked: HashMap::new(),
            totals: Totals::default(),
        })
    }

    /// Takes the next thing that the walk found.
    pub fn take(&mut self, item: WalkItem) {
        match item {
            WalkItem::Entry(entry) => {
                self.leave_unentered();
                let path = entry.path();
                if let Err(error) = self.take_entry(entry) {
                    let shown = self.shared.shown(&path);
                    self.shared.lost(error.context(format!("making {shown}")));
                }
            }
            WalkItem::Enter(_) => {
                let directory = self.entering.take();
                self.stack.push(directory);
            }
            WalkItem::Leave(_) => {
                self.leave_unentered();
                if let Some(Some(directory)) = self.stack.pop() {
                    destination::release(directory, &self.shared);
                }
            }
            WalkItem::Failed(error) => self.shared.lost(error.into()),
        }
    }

    /// Errors since the last call.
    pub fn errors(&self) -> Vec<anyhow::Error> {
        std::mem::take(&mut *self.shared.errors.lock())
    }

    /// Whether nothing more can be made, as on a full disk: that is among the errors, and taking more is of no use.
    pub fn has_ended(&self) -> bool {
        self.shared.has_ended()
    }

    /// Waits for all files and gives the totals, the last errors, and what the system did not permit.
    pub fn finish(mut self) -> (Totals, Vec<anyhow::Error>, Vec<Refusal>) {
        self.leave_unentered();
        while let Some(directory) = self.stack.pop() {
            if let Some(directory) = directory {
                destination::release(directory, &self.shared);
            }
        }
        self.jobs = None;
        for worker in std::mem::take(&mut self.workers) {
            if worker.join().is_err() {
                self.shared
                    .lost(anyhow::anyhow!("a thread that makes files died"));
            }
        }
        let totals = Totals {
            files: self.shared.files.load(Ordering::Relaxed),
            bytes: self.shared.bytes.load(Ordering::Relaxed),
            ..self.totals
        };
        (totals, self.errors(), self.shared.refusals.list())
    }

    /// A directory that the walk did not enter (a nested subvolume) is finished at once.
    fn leave_unentered(&mut self) {
        if let Some(directory) = self.entering.take() {
            destination::release(directory, &self.shared);
        }
    }

    fn take_entry(&mut self, entry: Box<WalkEntry>) -> Result<()> {
        let is_start = self.stack.is_empty() && entry.name.is_empty();
        let (parent, name) = if is_start {
            match &self.base_name {
                Some(name) => (Arc::clone(&self.base), name.clone()),
                None => {
                    // The destination itself stands for the walk's beginning.
                    let again = self.base.reopen(&entry, &self.shared)?;
                    self.entering = Some(Arc::new(again));
                    return Ok(());
                }
            }
        } else {
            if !is_valid_name(&entry.name) {
                anyhow::bail!("{:?} is not a name", entry.name.escape_ascii().to_string());
            }
            match self.stack.last() {
                Some(Some(parent)) => (Arc::clone(parent), OsString::from_vec(entry.name.clone())),
                // Its directory could not be made, which was reported.
                _ => return Ok(()),
            }
        };
        let keeps_links = self.shared.replacing.keep_links;
        let location = entry.location();
        let has_more_names = keeps_links && entry.metadata().nlink > 1;
        // Where nothing was made of the first name, this one is the first.
        let expected = self.linked.get(&location).filter(|_| keeps_links).copied();
        if let Some((first, expected)) = entry.hard_link.as_ref().zip(expected) {
            let spot = Spot {
                directory: &parent,
                name: &name,
                is_named: is_start,
                path: &entry.path(),
            };
            if !spot.for_link(&self.shared)? {
                return Ok(());
            }
            let top = self
                .stack
                .first()
                .cloned()
                .flatten()
                .unwrap_or_else(|| Arc::clone(&self.base));
            destination::link(&top, first, expected, &parent, &name)?;
            self.totals.hard_links = self.totals.hard_links.saturating_add(1);
            return Ok(());
        }
        match entry.metadata().kind {
            FileKind::Directory => {
                let directory = Directory::make(&parent, &name, &entry, &self.shared)?;
                self.entering = Some(Arc::new(directory));
                self.totals.directories = self.totals.directories.saturating_add(1);
            }
            FileKind::Regular => {
                let job = Job {
                    directory: parent,
                    name,
                    is_named: is_start,
                    entry,
                };
                if !has_more_names {
                    self.queue(job);
                } else if let Some(identity) = run(job, &self.shared) {
                    self.linked.insert(location, identity);
                }
            }
            _ => {
                let made = destination::make_special(&parent, &name, is_start, &entry, &self.shared)?;
                if let Some(identity) = made {
                    self.totals.others = self.totals.others.saturating_add(1);
                    if has_more_names {
                        self.linked.insert(location, identity);
                    }
                }
            }
        }
        Ok(())
    }

    fn queue(&mut self, job: Job) {
        if let Some(jobs) = &self.jobs
            && let Err(returned) = jobs.send(job)
        {
            run(returned.into_inner(), &self.shared);
        }
    }
}

fn spawn_worker(shared: &Arc<Shared>, queue: &Receiver<Job>) -> JoinHandle<()> {
    let (shared, queue) = (Arc::clone(shared), queue.clone());
    std::thread::spawn(move || {
        for job in queue {
            run(job, &shared);
        }
    })
}

/// Makes a file; `None` if it was left as it was, or that failed, which is reported.
fn run(job: Job, shared: &Shared) -> Option<Identity> {
    let Job {
        directory,
        name,
        is_named,
        mut entry,
    } = job;
    let mut handled = 0;
    let made = if shared.has_ended() {
        Ok(None)
    } else {
        file::make(&directory, &name, is_named, &mut entry, &mut handled, shared)
    };
    let made = made.unwrap_or_else(|error| {
        let shown = shared.shown(&entry.path());
        shared.lost(error.context(format!("making {shown}")));
        None
    });
    // What was not read is done with, too.
    let rest = entry.metadata().size.get().saturating_sub(handled);
    shared.progress.advance(0, ByteCount::new(rest));
    destination::release(directory, shared);
    made
}
