//! Writing of clusters. Items of a cluster are compressed by several threads, and written in order.

use crate::cluster::{Entry, INDEX_BYTES, ITEMS_MAX, Index};
use crate::error::Result;
use crate::reading::DumpItem;
use buttress_exact::Exact as _;
use flate2::Compression;
use flate2::write::ZlibEncoder;
use std::io::{self, Write};

/// Collects items, and writes full clusters.
pub(crate) struct ClusterWriter<'a> {
    out: &'a mut dyn Write,
    offset: u64,
    /// The level of zlib; 0 stores items as they are.
    level: u32,
    threads: usize,
    waiting: Vec<DumpItem>,
}

impl<'a> ClusterWriter<'a> {
    pub(crate) const fn new(out: &'a mut dyn Write, level: u32, threads: usize) -> Self {
        Self {
            out,
            offset: 0,
            level,
            threads,
            waiting: Vec::new(),
        }
    }

    pub(crate) fn push(&mut self, item: DumpItem) -> Result<()> {
        self.waiting.push(item);
        match self.waiting.len() {
            ITEMS_MAX => self.write_cluster(),
            _ => Ok(()),
        }
    }

    /// Writes the last cluster. Returns the number of bytes of the dump.
    pub(crate) fn finish(mut self) -> Result<u64> {
        if !self.waiting.is_empty() {
            self.write_cluster()?;
        }
        self.out.flush()?;
        Ok(self.offset)
    }

    fn write_cluster(&mut self) -> Result<()> {
        let mut items = core::mem::take(&mut self.waiting);
        let is_compressed = self.level > 0;
        if is_compressed {
            compress(&mut items, self.level, self.threads)?;
        }
        let entry = |item: &DumpItem| Entry {
            logical: item.logical,
            stored_bytes: item.bytes.len().narrow(),
        };
        let index = Index {
            is_compressed,
            entries: items.iter().map(entry).collect(),
        };
        let mut cluster = index.encode(self.offset);
        for item in &items {
            cluster.extend_from_slice(&item.bytes);
        }
        cluster.resize(cluster.len().next_multiple_of(INDEX_BYTES), 0);
        self.out.write_all(&cluster)?;
        self.offset = self.offset.exact_add(cluster.len() as u64);
        Ok(())
    }
}

/// Compresses each item in place. Each thread has a run of the items.
fn compress(items: &mut [DumpItem], level: u32, threads: usize) -> io::Result<()> {
    let share = items.len().div_ceil(threads.max(1)).max(1);
    std::thread::scope(|scope| {
        let parts = items.chunks_mut(share);
        let running: Vec<_> = parts
            .map(|part| scope.spawn(move || part.iter_mut().try_for_each(|item| deflate(item, level))))
            .collect();
        // Clamp: a panic of a thread becomes an error of the dump.
        let joined = running.into_iter().map(|thread| {
            let panicked = |_| Err(io::Error::other("a thread that compresses has panicked"));
            thread.join().unwrap_or_else(panicked)
        });
        joined.collect()
    })
}

fn deflate(item: &mut DumpItem, level: u32) -> io::Result<()> {
    let mut encoder = ZlibEncoder::new(Vec::new(), Compression::new(level));
    encoder.write_all(&item.bytes)?;
    item.bytes = encoder.finish()?;
    Ok(())
}
