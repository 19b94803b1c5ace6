//! The stages of a walk, and the batches between them.
//!
//! The first stage takes up to [`BATCH_ENTRIES`] entries in walk order. It loads their inodes in
//! jobs of [`LOAD_INODES`], in order of inode numbers. The second stage waits for the jobs, reads
//! small content ahead, and passes on batches of at most [`BATCH_BYTES`] (or one entry). A walk
//! queues at most one batch between two stages. At most four batches of each kind exist at any
//! time, for any sizes on disk.

use super::content::ContentBatch;
use super::order::{Found, Order, kind_wrong};
use super::{WalkEntry, WalkError, WalkItem, WalkOptions, join};
use crate::directory::DirEntry;
use crate::error::{Error, Result};
use crate::executor::Task;
use crate::filesystem::Filesystem;
use crate::inode::InodeRecord;
use crate::location::Location;
use buttress_exact::Exact as _;
use buttress_format::{FileKind, SubvolumeId};
use buttress_tree::ReadAhead;
use crossbeam_channel::{Receiver, bounded};
use std::collections::VecDeque;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

/// The maximum number of entries in a batch of the first stage.
const BATCH_ENTRIES: usize = 512;

/// The maximum number of path bytes in a batch of the first stage.
const BATCH_PATH_BYTES: usize = 1 << 20;

/// The number of inodes that one job loads.
const LOAD_INODES: usize = 64;

/// The number of bytes that one job loads. If one job would load more bytes, its remaining inodes
/// are loaded one by one.
const LOAD_BYTES: usize = 2 << 20;

/// The maximum number of bytes of content and records in a batch of the second stage.
const BATCH_BYTES: usize = 8 << 20;

/// The inodes that one job loaded, with their numbers in the batch. The result lacks inodes that
/// the job skipped.
type Loaded = Vec<(usize, Result<InodeRecord>)>;

/// A batch of the first stage.
struct NamesBatch {
    found: Vec<Found>,
    loads: Vec<Task<Loaded>>,
}

/// The stages of a walk.
#[derive(Debug)]
pub(super) struct Pipeline {
    source: Source,
    current: VecDeque<WalkItem>,
}

#[derive(Debug)]
enum Source {
    /// The batches from the threads, and the threads.
    Threads(Receiver<Vec<WalkItem>>, Vec<JoinHandle<()>>),
    Inline {
        order: Box<Order>,
        second: Box<SecondStage>,
    },
}

impl Pipeline {
    pub(super) fn new(filesystem: &Filesystem, start: Location, options: WalkOptions) -> Self {
        let second = SecondStage {
            filesystem: filesystem.clone(),
            options: options.clone(),
        };
        let source = if filesystem.executor().is_parallel() {
            start_threads(filesystem, start, &options, second)
        } else {
            None
        };
        let source = source.unwrap_or_else(|| Source::Inline {
            order: Box::new(Order::new(filesystem, start, options.clone())),
            second: Box::new(SecondStage {
                filesystem: filesystem.clone(),
                options,
            }),
        });
        Self {
            source,
            current: VecDeque::new(),
        }
    }

    pub(super) fn next(&mut self) -> Option<WalkItem> {
        loop {
            if let Some(item) = self.current.pop_front() {
                return Some(item);
            }
            match &mut self.source {
                Source::Threads(items, threads) => match items.recv() {
                    Ok(items) => self.current.extend(items),
                    Err(_) => {
                        // A thread of the pipeline that panicked has not reached the end of the
                        // walk.
                        for thread in threads.drain(..) {
                            if let Err(panic) = thread.join() {
                                std::panic::resume_unwind(panic);
                            }
                        }
                        return None;
                    }
                },
                Source::Inline { order, second } => {
                    let batch = next_batch(order, &second.filesystem)?;
                    let current = &mut self.current;
                    second.handle(batch, &mut |items| {
                        current.extend(items);
                        true
                    });
                }
            }
        }
    }
}

/// Starts both stages. The stages end at their next batch after the walk is dropped. Returns `None`
/// if the walk can start no threads.
fn start_threads(
    filesystem: &Filesystem,
    start: Location,
    options: &WalkOptions,
    second: SecondStage,
) -> Option<Source> {
    let (names_sender, names_receiver) = bounded::<NamesBatch>(1);
    let (items_sender, items_receiver) = bounded::<Vec<WalkItem>>(1);
    let mut order = Order::new(filesystem, start, options.clone());
    let first_filesystem = filesystem.clone();
    let progress = options.progress.clone();
    let content = thread::Builder::new()
        .name("buttress-walk-content".into())
        .spawn(move || {
            for batch in names_receiver {
                if !second.handle(batch, &mut |items| items_sender.send(items).is_ok()) {
                    return;
                }
            }
        })
        .ok()?;
    let names = thread::Builder::new()
        .name("buttress-walk-names".into())
        .spawn(move || {
            while let Some(batch) = next_batch(&mut order, &first_filesystem) {
                if progress.is_cancelled() || names_sender.send(batch).is_err() {
                    return;
                }
            }
        })
        .ok()?;
    Some(Source::Threads(items_receiver, vec![names, content]))
}

/// Runs the first stage: finds entries, and starts the jobs that load their inodes. Returns `None`
/// at the end of the walk.
fn next_batch(order: &mut Order, filesystem: &Filesystem) -> Option<NamesBatch> {
    let mut found = Vec::new();
    let mut entries = 0_usize;
    let mut path_bytes = 0_usize;
    while entries < BATCH_ENTRIES && path_bytes < BATCH_PATH_BYTES && found.len() < BATCH_ENTRIES * 4 {
        let Some(next) = order.next() else { break };
        if let Found::Entry { directory, entry, .. } = &next {
            entries = entries.exact_add(1);
            path_bytes = path_bytes.exact_add(directory.len()).exact_add(entry.name.len());
        }
        found.push(next);
    }
    if found.is_empty() {
        return None;
    }
    let mut wanted: Vec<(Location, usize)> = found
        .iter()
        .enumerate()
        .filter_map(|(number, found)| match found {
            Found::Entry {
                entry, record: None, ..
            } => Some((entry.target, number)),
            _ => None,
        })
        .collect();
    wanted.sort_unstable();
    let loads = wanted
        .chunks(LOAD_INODES)
        .map(|chunk| {
            let (chunk, filesystem) = (chunk.to_vec(), filesystem.clone());
            let pool = filesystem.clone();
            pool.loaders().spawn(move || load(&filesystem, &chunk))
        })
        .collect();
    Some(NamesBatch { found, loads })
}

/// Loads inodes in the order of their numbers, with one cursor for each subvolume.
fn load(filesystem: &Filesystem, wanted: &[(Location, usize)]) -> Loaded {
    let mut loaded = Vec::with_capacity(wanted.len());
    let mut cursor: Option<(SubvolumeId, buttress_tree::Cursor)> = None;
    let mut bytes = 0_usize;
    for (location, number) in wanted {
        if bytes > LOAD_BYTES {
            break;
        }
        if location.placeholder().is_some() {
            loaded.push((*number, filesystem.inode_record(*location)));
            continue;
        }
        if cursor
            .as_ref()
            .is_none_or(|(subvolume, _)| *subvolume != location.subvolume)
        {
            match filesystem.subvolume_tree(location.subvolume) {
                Ok(tree) => cursor = Some((location.subvolume, tree.cursor(ReadAhead::Forward))),
                Err(error) => {
                    loaded.push((*number, Err(error)));
                    continue;
                }
            }
        }
        if let Some((_, cursor)) = &mut cursor {
            let record = InodeRecord::load(filesystem, cursor, *location);
            bytes = bytes.exact_add(record.as_ref().map_or(0, InodeRecord::memory_bytes));
            loaded.push((*number, record));
        }
    }
    loaded
}

/// The second stage: it turns inodes into entries, and reads the content of small files.
#[derive(Debug)]
struct SecondStage {
    filesystem: Filesystem,
    options: WalkOptions,
}

impl SecondStage {
    /// Passes on all names of `batch`. Returns false if the receiver is gone.
    fn handle(&self, batch: NamesBatch, emit: &mut dyn FnMut(Vec<WalkItem>) -> bool) -> bool {
        let NamesBatch { found, loads } = batch;
        let mut records: Vec<Option<Result<InodeRecord>>> = Vec::new();
        records.resize_with(found.len(), || None);
        // The code below loads missing inodes.
        for (number, record) in loads.into_iter().filter_map(|load| load.take().ok()).flatten() {
            if let Some(slot) = records.get_mut(number) {
                *slot = Some(record);
            }
        }
        let mut items = Vec::new();
        let mut content = ContentBatch::new(&self.filesystem);
        let mut bytes = 0_usize;
        for (found, loaded) in found.into_iter().zip(records) {
            let item = match found {
                Found::Enter(path) => WalkItem::Enter(path),
                Found::Leave(path) => WalkItem::Leave(path),
                Found::Failed(error) => WalkItem::Failed(error),
                Found::Entry {
                    directory,
                    entry,
                    parent,
                    record,
                } => {
                    let record = match (record, loaded) {
                        (Some(record), _) => Ok(*record),
                        (None, Some(loaded)) => loaded,
                        (None, None) => self.filesystem.inode_record(entry.target),
                    };
                    self.entry(directory, entry, parent, record)
                }
            };
            if let WalkItem::Entry(entry) = &item {
                bytes = bytes.exact_add(entry.record.memory_bytes());
                if self.reads_ahead(entry) {
                    bytes = bytes.exact_add(content.plan(items.len(), entry));
                }
            }
            items.push(item);
            if bytes > BATCH_BYTES {
                content.start(&mut items);
                if !emit(core::mem::take(&mut items)) {
                    return false;
                }
                content = ContentBatch::new(&self.filesystem);
                bytes = 0;
            }
        }
        content.start(&mut items);
        emit(items)
    }

    fn reads_ahead(&self, entry: &WalkEntry) -> bool {
        let metadata = entry.metadata();
        metadata.kind == FileKind::Regular
            && metadata.size.get() > 0
            && metadata.size <= self.options.read_ahead
            && entry.record.extents.is_some()
    }

    fn entry(
        &self,
        directory: Arc<[u8]>,
        entry: DirEntry,
        parent: Location,
        record: Result<InodeRecord>,
    ) -> WalkItem {
        let mut lost = None;
        let record = match record {
            Err(error) if self.options.salvage && !matches!(error, Error::Cancelled) => {
                let salvaged = InodeRecord::salvage(&self.filesystem, entry.target, entry.kind);
                // The first error names the lost block.
                salvaged
                    .map_err(|_| error.clone())
                    .inspect(|_| lost = Some(error))
            }
            record => record,
        };
        let record = record.and_then(|record| {
            if record.metadata.kind == entry.kind {
                Ok(record)
            } else {
                Err(kind_wrong(parent, &entry, &record))
            }
        });
        match record {
            Ok(record) => WalkItem::Entry(Box::new(WalkEntry {
                directory,
                name: entry.name,
                record,
                hard_link: None,
                lost,
                reader: None,
                filesystem: self.filesystem.clone(),
            })),
            Err(error) => WalkItem::Failed(WalkError {
                path: join(&directory, &entry.name),
                error,
            }),
        }
    }
}
