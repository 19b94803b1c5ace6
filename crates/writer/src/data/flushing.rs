//! Write-back of many files: when it runs, in which order, and on which thread.
//!
//! A background thread begins at half of the limit of dirty data, with the oldest files, and ends
//! at a quarter. Writers continue while the background thread writes back. When dirty data reaches
//! its full limit, writers write back themselves, newest files first. A commit writes back all
//! dirty data. Several large files are written back side by side, small files [many at a
//! time](super::small_files).

use super::small_files::SMALL_BYTES;
use crate::areas::WriteBack;
use buttress_fs::error::{Defect, Error, Result};
use buttress_fs::location::Location;
use buttress_locks::atomic::{AtomicUsize, Ordering};

/// The number of large files that are written back at the same time.
const FILES_SIDE_BY_SIDE: usize = 4;

/// The first error about missing space on the host, kept while other files are written back.
#[derive(Debug, Default)]
struct LacksHostSpace(Option<Error>);

impl LacksHostSpace {
    /// Keeps an error about missing space on the host, and returns any other error.
    fn pass(&mut self, written: Result<()>) -> Result<()> {
        match written {
            Err(error @ Error::OutOfHostSpace(_)) => {
                self.0.get_or_insert(error);
                Ok(())
            }
            written => written,
        }
    }

    fn end(self) -> Result<()> {
        self.0.map_or(Ok(()), Err)
    }
}

impl WriteBack<'_> {
    /// Wakes the background write-back when dirty data reaches half of its limit. At the full
    /// limit, the caller writes back: until data is below the limit, or below half without a
    /// background thread. If space on the volume is short, the caller writes back all dirty data
    /// instead.
    pub(crate) fn write_excess(&self) -> Result<()> {
        let table = self.filesystem.data();
        let has_thread = table.is_half_full() && self.filesystem.wake_write_back();
        let is_over_limit = table.is_over_limit();
        if !is_over_limit && !self.filesystem.is_short_of_space()? {
            return Ok(());
        }
        let mut waiting = self.filesystem.contents().waiting_files();
        if has_thread {
            // This thread begins at the other end than the background thread: two write-backs of
            // one file would wait for each other.
            waiting.reverse();
        }
        let written = self.write_files(&waiting, || {
            !is_over_limit
                || match has_thread {
                    true => table.is_over_limit(),
                    false => table.is_half_full(),
                }
        });
        match written {
            // Content without space on the host stays dirty while memory for more dirty data
            // remains.
            Err(Error::OutOfHostSpace(_)) if !table.is_over_limit() => Ok(()),
            written => written,
        }
    }

    /// Writes back content before a caller adds more, if dirty data is at its limit and the last
    /// write found no space on the host. Without the check for host space, dirty data would grow
    /// without bounds.
    ///
    /// # Errors
    /// Fails with [`Error::OutOfHostSpace`], before any content is added.
    pub(crate) fn require_host_space(&self) -> Result<()> {
        let table = self.filesystem.data();
        match table.lacks_host_space() && table.is_over_limit() {
            true => self.write_excess(),
            false => Ok(()),
        }
    }

    /// Starts or does write-back after a call added content. Content that finds no space on the
    /// host stays dirty. If content stays dirty for lack of host space, the next call fails
    /// ([`require_host_space`](Self::require_host_space)).
    pub(crate) fn write_taken_in(&self) -> Result<()> {
        match self.write_excess() {
            Err(Error::OutOfHostSpace(_)) => Ok(()),
            written => written,
        }
    }

    /// Writes back content until dirty data is at a quarter of its limit.
    pub(crate) fn write_in_background(&self) -> Result<()> {
        self.write_files(&self.filesystem.contents().waiting_files(), || {
            self.filesystem.data().is_quarter_full()
        })
    }

    /// Writes back all dirty data.
    ///
    /// # Errors
    /// Fails with [`Error::NoSpace`], or with an error of a tree, or with the error that stopped
    /// writing. Content whose write-back failed stays dirty.
    pub fn write_all(&self) -> Result<()> {
        let waiting = self.filesystem.contents().waiting_files();
        if !self.filesystem.has_company() {
            return self.write_files(&waiting, || true);
        }
        let bytes = self.dirty_bytes_of(&waiting);
        let is_large = |bytes: u64| bytes >= SMALL_BYTES;
        let of_kind = |large: bool| {
            let files = waiting.iter().zip(&bytes);
            let wanted = files.filter(move |(_, bytes)| is_large(**bytes) == large);
            wanted.map(|(location, _)| *location).collect::<Vec<_>>()
        };
        let mut lacks = LacksHostSpace::default();
        lacks.pass(self.write_side_by_side(&of_kind(true)))?;
        lacks.pass(self.write_files(&of_kind(false), || true))?;
        lacks.end()
    }

    /// Writes back several files at the same time, which keeps more requests on the devices than
    /// one file would. Stops at the first error, except lack of space on the host: the write-back
    /// of another file may need no space.
    fn write_side_by_side(&self, files: &[Location]) -> Result<()> {
        let next = AtomicUsize::new(0);
        let work = || -> Result<()> {
            let mut lacks = LacksHostSpace::default();
            while let Some(file) = files.get(next.fetch_add(1, Ordering::Relaxed)) {
                lacks
                    .pass(self.write_file(*file))
                    .inspect_err(|_| next.store(files.len(), Ordering::Relaxed))?;
            }
            lacks.end()
        };
        std::thread::scope(|scope| {
            let others = 1..files.len().min(FILES_SIDE_BY_SIDE);
            let others: Vec<_> = others
                .map(|_| {
                    scope.spawn(|| {
                        buttress_device::placement::run_anywhere();
                        work()
                    })
                })
                .collect();
            others.into_iter().fold(work(), |result, other| {
                let defect = |_| Defect::new("a thread that wrote content back panicked");
                let other = other.join().map_err(defect).map_err(Error::from);
                result.and(other.flatten())
            })
        })
    }

    /// Writes back files in this order while `goes_on` returns true. Consecutive small files form
    /// one batch. Stops at the first error, except lack of space on the host.
    fn write_files(&self, files: &[Location], goes_on: impl Fn() -> bool) -> Result<()> {
        let mut lacks = LacksHostSpace::default();
        let mut rest = files;
        while !rest.is_empty() && goes_on() {
            let count = self.count_small_files(rest).max(1);
            let (now, later) = rest.split_at_checked(count).unwrap_or((rest, &[]));
            lacks.pass(match now {
                [alone] => self.write_file(*alone),
                several => self.write_together(several),
            })?;
            rest = later;
        }
        lacks.end()
    }

    /// Returns the memory of each file's dirty data, in bytes.
    pub(super) fn dirty_bytes_of(&self, files: &[Location]) -> Vec<u64> {
        let present = self.filesystem.data().present(files);
        let mut present = present.iter().peekable();
        let bytes_of = |location: &Location| {
            let (_, file) = present.next_if(|(of, _)| of == location)?;
            Some(file.memory_bytes())
        };
        let bytes = files.iter().map(bytes_of);
        bytes.map(Option::unwrap_or_default).collect()
    }
}
