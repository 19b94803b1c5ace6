//! Filling the target of a replacement: the order of chunks, groups with locked rows, and progress.

use crate::copying::{Copied, Copying, Lost, Wanted};
use crate::damage::Part;
use crate::group::Arrived;
use crate::job::{Job, physical_of};
use crate::scrub::Scrub;
use buttress_device::IoError;
use buttress_exact::Exact as _;
use buttress_format::{Logical, Physical};
use buttress_volume::{DeviceErrors, MappedChunk};
use std::sync::Arc;

/// Filling the target of a replacement. A job that fills a replacement target repairs nothing.
#[derive(Clone, Debug)]
pub(crate) struct Replacing {
    pub(crate) copying: Copying,
    /// The offset below which the target has everything.
    pub(crate) cursor: Physical,
}

/// The result of filling the target so far.
#[derive(Debug, Default)]
pub(crate) struct Filled {
    /// The chunks to be copied that have a stripe on the source, with the offset of their first
    /// stripe there.
    pub(crate) chunks: Option<Vec<(Logical, Physical)>>,
    /// The bytes of data without a valid copy.
    pub(crate) lost_bytes: u64,
    /// The places of lost bytes, at most [`LOST_MAX`].
    pub(crate) lost: Vec<Lost>,
    /// Whether the replacement lost a tree block.
    pub(crate) loses_metadata: bool,
    /// The bytes that the job wrote to the target.
    pub(crate) written: u64,
    /// The error of the target.
    pub(crate) failure: Option<IoError>,
}

/// The largest number of places with lost bytes that the result lists.
const LOST_MAX: usize = 10_000;

impl Filled {
    /// Returns whether the replacement has already failed, so that the remaining groups need no
    /// copy.
    pub(crate) const fn is_over(&self) -> bool {
        self.loses_metadata || self.failure.is_some()
    }

    fn lose(&mut self, lost: Vec<Lost>) {
        for lost in lost {
            // On DUP, each copy on the source reports the loss.
            if self.lost.iter().any(|known| known.covers(&lost)) {
                continue;
            }
            match lost.part {
                Part::Tree => self.loses_metadata = true,
                _ => self.lost_bytes = self.lost_bytes.exact_add(lost.length.get()),
            }
            let is_joined = self.lost.last_mut().is_some_and(|last| last.absorb(&lost));
            if !is_joined && self.lost.len() < LOST_MAX {
                self.lost.push(lost);
            }
        }
    }
}

impl Scrub<'_> {
    /// For a replacement, returns the offset below which the target has everything.
    pub(crate) fn cursor(&self) -> Physical {
        let done = self.job.running.lock().position();
        let Some(replaces) = &self.job.replaces else {
            return Physical::MIN;
        };
        let item = replaces.copying.replacement.source().item();
        let replaced = self.job.replaced.lock();
        let Some(chunks) = &replaced.chunks else {
            return replaces.cursor;
        };
        let mut open = chunks.iter();
        let end = item.map_or(Physical::MAX, |item| Physical::new(item.total_bytes.get()));
        if buttress_faults::on("replace-cursor-ahead") {
            open.find(|(chunk, _)| !done.finished.contains(chunk));
        }
        open.find(|(chunk, _)| !done.finished.contains(chunk))
            .map_or(end, |(_, physical)| *physical)
    }

    /// Removes and returns the result of filling the target.
    pub(crate) fn filled(&self) -> Filled {
        core::mem::take(&mut *self.job.replaced.lock())
    }
}

impl Job<'_> {
    /// Copies a group to the target of a replacement. The group's rows stay locked until the target
    /// has the group. If a writer changed some rows after the copy read them, the copy reads them
    /// again.
    pub(crate) fn copy(&self, copying: &Copying, mut arrived: Arrived, writes: Option<u64>) {
        let chunk = Arc::clone(&arrived.group.chunk);
        let rows = arrived.group.rows();
        let counts_inspected = copying.counts_inspected(&chunk);
        if counts_inspected {
            self.progress.advance(0, copying.bytes_on_source(&arrived.group));
        }
        let _locked = self.volume.lock_rows(&chunk, rows.clone());
        let is_unwritten = writes.is_some() && self.volume.writes_to_rows(&chunk, rows) == writes;
        if !is_unwritten {
            arrived = self.fetch_again(arrived, Wanted::Few);
        }
        let copied = self.copied(copying, &arrived, Wanted::Few);
        if !copied.is_lacking {
            self.count_group(&arrived);
            return self.write_copied(copied, copying, counts_inspected);
        }
        drop(copied);
        let arrived = self.fetch_again(arrived, Wanted::All);
        self.judge(&arrived);
        let copied = self.copied(copying, &arrived, Wanted::All);
        // A returning device keeps its bytes: nothing replaces lost bytes on it.
        let keeps_target = copying.replacement.returning().is_some() && !copied.lost.is_empty();
        if keeps_target || copied.loses_metadata() {
            return self.replaced.lock().lose(copied.lost);
        }
        self.write_copied(copied, copying, counts_inspected);
    }

    fn write_copied(&self, mut copied: Copied<'_>, copying: &Copying, is_counted: bool) {
        let lost = core::mem::take(&mut copied.lost);
        let target = copying.replacement.target();
        let written = match target.device().filter(|_| target.is_written()) {
            Some(device) => copied.write(device),
            // The target failed a write of another thread.
            None => return self.fail(target.failure().cloned()),
        };
        match written {
            Ok(bytes) => {
                if !is_counted {
                    self.progress.advance(0, bytes);
                }
                let mut replaced = self.replaced.lock();
                replaced.written = replaced.written.exact_add(bytes.get());
            }
            Err(error) => {
                let errors = DeviceErrors {
                    writes: 1,
                    ..DeviceErrors::default()
                };
                target.count_errors(errors);
                return self.fail(Some(error));
            }
        }
        self.replaced.lock().lose(lost);
    }

    fn fail(&self, failure: Option<IoError>) {
        let mut replaced = self.replaced.lock();
        if replaced.failure.is_none() {
            replaced.failure = failure;
        }
    }

    /// Returns the chunks that the job visits, in order of logical address, or of offset on a
    /// device that is being replaced.
    pub(crate) fn chunks(&self) -> Vec<Arc<MappedChunk>> {
        let map = self.volume.chunk_map();
        let is_open = |chunk: &&Arc<MappedChunk>| self.first_group(chunk.start()).is_some();
        let open = map.chunks().iter().filter(is_open).cloned();
        let Some(replacing) = &self.replaces else {
            return open.collect();
        };
        let mut placed: Vec<(Physical, Arc<MappedChunk>)> = Vec::new();
        for chunk in open {
            let own = replacing.copying.stripes_on_source(&chunk);
            let starts: Vec<Physical> = own
                .iter()
                .filter_map(|stripe| physical_of(&chunk, *stripe))
                .collect();
            let length = chunk.layout().device_extent_bytes();
            if let (Some(first), Some(last)) = (starts.iter().min(), starts.iter().max())
                // Clamp: a chunk item can point anywhere.
                && last.saturating_add(length) > replacing.cursor
            {
                placed.push((*first, chunk));
            }
        }
        placed.sort_by_key(|(physical, _)| *physical);
        let listed = placed.iter().map(|(at, chunk)| (chunk.start(), *at));
        self.replaced.lock().chunks = Some(listed.collect());
        placed.into_iter().map(|(_, chunk)| chunk).collect()
    }
}
