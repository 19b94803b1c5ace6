//! Extraction of files from a volume into a directory of the host, safely and in parallel.
//!
//! The volume is not trusted, and other processes may change the destination during the extraction.
//! An extraction creates each file by a single name relative to an open directory (`beneath`). No
//! path is ever followed, so no symbolic link in the destination can lead out of it. The extraction
//! refuses an invalid name (`..`, or with a slash). [`crate::replacing`] defines the treatment of
//! existing files. The extractor follows no link when it writes, except at the single name that the
//! user gave. The command never writes to its own source files. `attributes` defines the
//! permissions of extracted files.
//!
//! [`Extractor`] takes the items of a walk, in order, on one thread. It creates directories, links
//! and special files itself and passes regular files to a few threads. A directory is finished
//! (owner, mode, attributes, times) after its last file: each file holds its directory by an
//! [`Arc`], and the thread that drops the last reference finishes it. Modification times are
//! therefore correct, and memory does not grow with the number of directories.
//!
//! To preserve hard links, the extractor creates a file with several names before the walk
//! continues. The extractor links later names to this file, and only to it.

mod attributes;
mod beneath;
mod destination;
mod file;
mod preserve;
mod replacing;
mod staging;

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;

use anyhow::{Context as _, Result};
use buttress::salvage::FileFindings;
use buttress::{ByteCount, Chunk, FileKind, Location, Progress, WalkEntry, WalkItem, is_valid_name};
use crossbeam_channel::{Receiver, Sender, bounded};

pub use attributes::Refusal;
use attributes::Refusals;
use beneath::Identity;
use destination::Directory;
pub use preserve::{Chosen, Preserve};
use replacing::Spot;

use crate::replacing::Replacing;
use crate::sources::Sources;

use crate::ending::ends_the_job;

/// Largest number of queued files. Each queued file may hold read-ahead content.
const QUEUE_LENGTH: usize = 32;

/// Largest number of threads that create files.
const WORKERS_MAX: usize = 4;

/// Judges the content of files while they are extracted from a damaged volume.
pub trait Review: Send + Sync + fmt::Debug {
    /// Receives each chunk of a file's content, and returns the chunks to write in its place.
    fn take(&self, entry: &WalkEntry, chunk: Chunk, findings: &mut FileFindings) -> Vec<Chunk>;

    /// Receives the findings about a file whose content is written under a temporary name.
    ///
    /// # Errors
    /// Fails if the file must not stay; the file is then removed, and an existing one stays.
    fn check(&self, entry: &WalkEntry, findings: &FileFindings) -> Result<()>;

    /// Receives the findings about a file that has its name.
    fn end(&self, entry: &WalkEntry, findings: &FileFindings);

    /// Receives an entry that was left out, because a file with its name exists.
    fn skipped(&self, entry: &WalkEntry);

    /// Receives the error of an entry of which nothing was written.
    fn failed(&self, path: &[u8], error: &anyhow::Error);
}

/// Counts of extracted items.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Number of regular files.
    pub files: u64,
    /// Number of directories.
    pub directories: u64,
    /// Number of further names of files.
    pub hard_links: u64,
    /// Number of symbolic links, devices, pipes and sockets.
    pub others: u64,
    /// Bytes written, without holes.
    pub bytes: u64,
}

/// State shared by the threads.
#[derive(Debug)]
struct Shared {
    preserve: Preserve,
    replacing: Replacing,
    /// Sources of the command, which it must not write to.
    sources: Sources,
    progress: Progress,
    /// The judge of a restoration; a plain copy has none.
    review: Option<Arc<dyn Review>>,
    refusals: Refusals,
    files: AtomicU64,
    bytes: AtomicU64,
    /// Errors of writing threads that the caller has not collected yet.
    errors: parking_lot::Mutex<Vec<anyhow::Error>>,
    /// True once the extractor can create nothing more, as on a full disk.
    ended: AtomicBool,
    /// Path of the walk's root in the destination, for messages.
    destination: PathBuf,
}

impl Shared {
    /// Records an error. If several errors would end the job, the extractor keeps only the first,
    /// because the others would repeat it.
    fn lost(&self, error: anyhow::Error) {
        if !ends_the_job(&error) {
            self.errors.lock().push(error);
        } else if !self.ended.swap(true, Ordering::Relaxed) {
            self.errors
                .lock()
                .push(error.context("the copy stops here, incomplete"));
        }
    }

    fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Relaxed)
    }

    /// Returns the host path of the walk's item `inner`.
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

/// A regular file to create.
struct Job {
    directory: Arc<Directory>,
    name: OsString,
    /// True if the user named the file on the command line.
    is_named: bool,
    entry: Box<WalkEntry>,
}

/// Extractor of a walk's items.
pub struct Extractor {
    shared: Arc<Shared>,
    jobs: Option<Sender<Job>>,
    workers: Vec<JoinHandle<()>>,
    /// Directory that the next [`WalkItem::Enter`] enters.
    entering: Option<Arc<Directory>>,
    /// Directories from the destination down to the walk's position. `None` marks a directory that
    /// could not be created.
    stack: Vec<Option<Arc<Directory>>>,
    /// Directory of the walk's root, and the next field its name there.
    base: Arc<Directory>,
    base_name: Option<OsString>,
    /// Created files with several names: the path of the first created name, and the identity.
    linked: HashMap<Location, (Vec<u8>, Identity)>,
    totals: Totals,
}

impl Extractor {
    /// Creates an extractor into `parent`. The walk's root becomes `name` there or, without a name,
    /// `parent` itself, and must then be a directory.
    pub fn new(
        parent: &Path,
        name: Option<OsString>,
        preserve: Preserve,
        replacing: Replacing,
        sources: &Sources,
        progress: Progress,
        review: Option<Arc<dyn Review>>,
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
            review,
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

    /// Processes the next item of the walk.
    pub fn take(&mut self, item: WalkItem) {
        match item {
            WalkItem::Entry(entry) => {
                self.leave_unentered();
                let path = entry.path();
                if let Err(error) = self.take_entry(entry) {
                    if let Some(review) = &self.shared.review {
                        review.failed(&path, &error);
                    }
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

    /// Takes the errors since the last call.
    pub fn errors(&self) -> Vec<anyhow::Error> {
        std::mem::take(&mut *self.shared.errors.lock())
    }

    /// Returns whether the extraction can create nothing more, as on a full disk. The reason is in
    /// the list of errors, and the caller should stop.
    pub fn has_ended(&self) -> bool {
        self.shared.has_ended()
    }

    /// Waits until all queued files are extracted. Returns the totals, the remaining errors, and
    /// the operations that the system did not permit.
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

    /// Finishes a directory that the walk did not enter (a nested subvolume).
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
                    // The destination directory itself becomes the root of the walk.
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
                // The parent directory could not be created, and this was reported.
                _ => {
                    if let Some(review) = &self.shared.review {
                        let error = anyhow::anyhow!("its directory could not be made");
                        review.failed(&entry.path(), &error);
                    }
                    return Ok(());
                }
            }
        };
        let keeps_links = self.shared.replacing.keep_links;
        let location = entry.location();
        let has_more_names = keeps_links && entry.metadata().nlink > 1;
        // The first name that the extractor created counts: the walk's first name may be left out.
        if let Some((first, expected)) = self.linked.get(&location).filter(|_| keeps_links) {
            let spot = Spot {
                directory: &parent,
                name: &name,
                is_named: is_start,
                path: &entry.path(),
            };
            if !spot.for_link(&self.shared)? {
                if let Some(review) = &self.shared.review {
                    review.skipped(&entry);
                }
                return Ok(());
            }
            let top = self
                .stack
                .first()
                .cloned()
                .flatten()
                .unwrap_or_else(|| Arc::clone(&self.base));
            destination::link(&top, first, *expected, &parent, &name)?;
            self.totals.hard_links = self.totals.hard_links.saturating_add(1);
            return Ok(());
        }
        let path = if has_more_names { entry.path() } else { Vec::new() };
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
                    self.linked.insert(location, (path, identity));
                }
            }
            _ => {
                let made = destination::make_special(&parent, &name, is_start, &entry, &self.shared)?;
                if let Some(identity) = made {
                    self.totals.others = self.totals.others.saturating_add(1);
                    if has_more_names {
                        self.linked.insert(location, (path, identity));
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

/// Creates a file. Returns `None` if an existing file stays, or if the creation failed and the job
/// has reported this.
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
        if let Some(review) = &shared.review {
            review.failed(&entry.path(), &error);
        }
        let shown = shared.shown(&entry.path());
        shared.lost(error.context(format!("making {shown}")));
        None
    });
    // Unread bytes of a failed file also count as done for the progress.
    let rest = entry.metadata().size.get().saturating_sub(handled);
    shared.progress.advance(0, ByteCount::new(rest));
    destination::release(directory, shared);
    made
}
