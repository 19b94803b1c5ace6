//! Contents: workers read each file, and turn it into pieces that are compressed and checksummed,
//! ready for addresses.
//!
//! A file is split into *segments*, each of which is one job for one worker, so all workers help
//! with a large file. A job of a file with holes covers several segments ([`span`]), so the number
//! of jobs depends on the data, not on the size. The builder starts jobs in the order of their
//! creation, and takes results in the same order. The output therefore does not depend on the
//! number of workers. Each job's pieces queue in a channel of its own. A new job is made only while
//! the bytes in flight stay below a limit ([`Budget`]).

use crate::entry::{Compress, FileContent};
use crate::error::{Error, Result, shown};
use crate::layout::FileInfo;
use crate::source::{ContentReader, Contents, SourceError};
use buttress_exact::Exact as _;
use buttress_format::compression::{CompressionMethod, Compressor, looks_compressible};
use buttress_format::{COMPRESSED_EXTENT_BYTES_MAX, ChecksumType, Compression, FileOffset};
use buttress_fs::Progress;
use core::ops::Range;
use crossbeam_channel::{Receiver, Sender, bounded};
use std::sync::Arc;

/// The number of bytes of a file that one job reads. A multiple of [`PIECE_BYTES`].
pub(crate) const SEGMENT_BYTES: u64 = 4 << 20;

/// The maximum length of a piece.
const PIECE_BYTES: u64 = 512 << 10;

/// The maximum number of queued pieces of one job: all pieces of one segment. If a worker's job
/// covers more than one segment, the worker waits for the emitting pass.
const PIECES_MAX: usize = 40;

/// The number of jobs that a file with holes gets for each segment's worth of data, because its
/// data may be unevenly spread.
const SPARSE_JOBS: u64 = 4;

/// Returns the maximum inline content: Linux's default, and less than a sector. More would save
/// reads of contents, but would cost as much for readers of names and inodes only
/// (docs/internals/performance.md, "Building images").
pub(crate) fn inline_bytes_max(sector_bytes: u32) -> u64 {
    u64::from(sector_bytes.saturating_sub(1)).min(2048)
}

/// The unit of work of one worker.
pub(crate) struct Job {
    pub(crate) file: Arc<FileInfo>,
    pub(crate) start: u64,
    /// The start of the next job. Start and end of a job are multiples of [`SEGMENT_BYTES`].
    pub(crate) end: u64,
    pub(crate) is_first: bool,
    pub(crate) method: Option<CompressionMethod>,
    pub(crate) checksums: bool,
    /// True if the content may be inline.
    pub(crate) inline: bool,
    pub(crate) to: Sender<Result<Piece>>,
}

/// The results of a job, in this order: `Begin` of a first segment, then data in file order.
#[derive(Debug)]
pub(crate) enum Piece {
    /// The number of the file's bytes outside of holes, in whole sectors.
    Begin {
        data_bytes: u64,
    },
    /// The whole content, which is short.
    Inline {
        stored: Vec<u8>,
        compression: Compression,
        content_bytes: u64,
    },
    Data(Data),
}

/// A run of content that is not a hole.
#[derive(Debug)]
pub(crate) struct Data {
    pub(crate) at: u64,
    /// The length of the content in whole sectors.
    pub(crate) content_bytes: u64,
    pub(crate) stored: Vec<u8>,
    pub(crate) compression: Compression,
    /// The checksums of the stored bytes; empty if the file has none.
    pub(crate) checksums: Vec<u8>,
    /// The digest of the stored bytes, if equal pieces share them.
    pub(crate) digest: Option<Digest>,
}

/// The identity of equal pieces: a cryptographic hash of the stored bytes, and their compression.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Digest([u8; 32], u8);

/// The state that all workers share.
pub(crate) struct Shop {
    pub(crate) contents: Vec<Arc<dyn Contents>>,
    pub(crate) sector_bytes: u32,
    /// See [`inline_bytes_max`].
    pub(crate) inline_bytes: u64,
    pub(crate) checksum: ChecksumType,
    /// True if equal pieces of content share their stored bytes.
    pub(crate) dedupe: bool,
    pub(crate) progress: Progress,
}

/// Makes the channel that carries the pieces of a new compression job.
pub(crate) fn channel() -> (Sender<Result<Piece>>, Receiver<Result<Piece>>) {
    bounded(PIECES_MAX)
}

/// Returns the number of bytes of a file that one job covers: whole segments.
pub(crate) fn span(content: &FileContent, sector_bytes: u32) -> u64 {
    let segments = content.size.get().div_ceil(SEGMENT_BYTES);
    let Some(data) = content.data else {
        return SEGMENT_BYTES;
    };
    let full = data.bytes_in_sectors(sector_bytes).div_ceil(SEGMENT_BYTES);
    let jobs = full.max(1).saturating_mul(SPARSE_JOBS);
    segments.div_ceil(jobs).max(1).saturating_mul(SEGMENT_BYTES)
}

/// Returns the compression of a file's content.
pub(crate) fn method(own: Option<Compress>, default: Compress, may: bool) -> Option<CompressionMethod> {
    match own.unwrap_or(default) {
        Compress::With(method) if may && method.compression() != Compression::None => Some(method),
        _ => None,
    }
}

/// Performs jobs until the queue ends.
pub(crate) fn work(shop: &Shop, jobs: &Receiver<Job>) {
    let mut worker = Worker {
        shop,
        compressor: Compressor::new(),
        buffer: Vec::new(),
    };
    for job in jobs {
        if let Err(error) = shop
            .progress
            .check()
            .map_err(Error::from)
            .and_then(|()| worker.job(&job))
        {
            // The receiver may be gone.
            let _ = job.to.send(Err(error));
        }
    }
}

struct Worker<'a> {
    shop: &'a Shop,
    compressor: Compressor,
    buffer: Vec<u8>,
}

impl Worker<'_> {
    fn job(&mut self, job: &Job) -> Result<()> {
        let file = &job.file;
        let contents = self.shop.contents.get(usize::from(file.source));
        let contents = contents.ok_or(Error::Defect {
            what: "a source that is not there",
        })?;
        let mut reader = contents.open(&file.path, &file.content)?;
        self.segment(job, reader.as_mut())?;
        reader.finish()?;
        Ok(())
    }

    fn segment(&mut self, job: &Job, reader: &mut dyn ContentReader) -> Result<()> {
        let size = job.file.content.size.get();
        if job.is_first {
            if job.inline && size <= u64::from(self.shop.sector_bytes) && self.inline(job, reader)? {
                return Ok(());
            }
            let mut data_bytes = 0_u64;
            let mut scan = Scan::new(self.shop.sector_bytes, 0..size);
            while let Some(range) = scan.next(reader, job)? {
                data_bytes = data_bytes.saturating_add(range.end.saturating_sub(range.start));
            }
            send(job, Piece::Begin { data_bytes })?;
        }
        let end = job.end.min(size);
        let mut at = job.start;
        while at < end {
            // Segments without data are skipped.
            let Some(data) = reader.next_data(FileOffset::new(at))? else {
                break;
            };
            let from = data.start.get().max(at);
            let start = from.saturating_sub(from.checked_rem(SEGMENT_BYTES).unwrap_or(0));
            at = start.saturating_add(SEGMENT_BYTES).min(size);
            if start >= end {
                break;
            }
            let mut scan = Scan::new(self.shop.sector_bytes, start..at);
            while let Some(range) = scan.next(reader, job)? {
                self.range(job, reader, range)?;
            }
        }
        Ok(())
    }

    /// Reads content that is short enough to be inline. Returns false if it is too long after all.
    fn inline(&mut self, job: &Job, reader: &mut dyn ContentReader) -> Result<bool> {
        let size = job.file.content.size.get();
        if size > self.shop.inline_bytes && job.method.is_none() {
            return Ok(false);
        }
        if reader.next_data(FileOffset::MIN)?.is_none() {
            return Ok(false);
        }
        self.read(reader, 0, size, size)?;
        let limit = self.shop.inline_bytes.narrow::<usize>();
        let sector_bytes = self.sector_bytes();
        let compressed = job.method.and_then(|method| {
            let stored = self
                .compressor
                .compress_inline(method, &self.buffer, sector_bytes, limit);
            stored.map(|stored| (stored, method.compression()))
        });
        let (stored, compression) = match compressed {
            Some(compressed) => compressed,
            None if size <= self.shop.inline_bytes => (self.buffer.clone(), Compression::None),
            None => return Ok(false),
        };
        send(
            job,
            Piece::Inline {
                stored,
                compression,
                content_bytes: size,
            },
        )?;
        Ok(true)
    }

    fn sector_bytes(&self) -> usize {
        self.shop.sector_bytes.narrow::<usize>()
    }

    /// Reads `length` bytes of content into the buffer, and fills it with zeros up to `whole`
    /// bytes.
    fn read(&mut self, reader: &mut dyn ContentReader, at: u64, length: u64, whole: u64) -> Result<()> {
        let number = |bytes: u64| bytes.narrow::<usize>();
        self.buffer.clear();
        self.buffer.resize(number(whole), 0);
        if let Some(place) = self.buffer.get_mut(..number(length)) {
            reader.read_exact_at(FileOffset::new(at), place)?;
        }
        Ok(())
    }

    /// Processes a range of data in whole sectors.
    fn range(&mut self, job: &Job, reader: &mut dyn ContentReader, range: Range<u64>) -> Result<()> {
        let size = job.file.content.size.get();
        let mut at = range.start;
        let step = match job.method {
            Some(_) => COMPRESSED_EXTENT_BYTES_MAX,
            None => PIECE_BYTES,
        };
        while at < range.end {
            self.shop.progress.check()?;
            let end = range.end.min(at.saturating_add(step));
            let whole = end.saturating_sub(at);
            let length = end.min(size).saturating_sub(at);
            self.read(reader, at, length, whole)?;
            let sector_bytes = self.sector_bytes();
            let compressed = match job.method {
                Some(method) if looks_compressible(&self.buffer) => {
                    let stored = self.compressor.compress(method, &self.buffer, sector_bytes);
                    stored.map(|stored| (stored, method.compression()))
                }
                _ => None,
            };
            let (stored, compression) =
                compressed.unwrap_or_else(|| (core::mem::take(&mut self.buffer), Compression::None));
            let mut checksums = Vec::new();
            if job.checksums {
                self.shop
                    .checksum
                    .compute_sectors(&stored, sector_bytes, &mut checksums);
            }
            // Data without checksums may be overwritten in place, so it is never shared.
            let digest = (self.shop.dedupe && job.checksums).then(|| digest(&stored, compression));
            send(
                job,
                Piece::Data(Data {
                    at,
                    content_bytes: whole,
                    stored,
                    compression,
                    checksums,
                    digest,
                }),
            )?;
            at = end;
        }
        Ok(())
    }
}

fn digest(stored: &[u8], compression: Compression) -> Digest {
    let hash = ChecksumType::Sha256.compute(stored);
    let bytes = hash.as_bytes().first_chunk::<32>().copied().unwrap_or_default();
    Digest(bytes, compression.to_raw())
}

/// Passes a piece to the pass. Fails if the pass has ended early and needs no more pieces.
fn send(job: &Job, piece: Piece) -> Result<()> {
    job.to.send(Ok(piece)).map_err(|_| Error::Cancelled)
}

/// Ranges of data in whole sectors, in order and not adjacent.
struct Scan {
    sector_bytes: u64,
    at: u64,
    end: u64,
}

impl Scan {
    fn new(sector_bytes: u32, range: Range<u64>) -> Self {
        Self {
            sector_bytes: u64::from(sector_bytes),
            at: range.start,
            end: range.end,
        }
    }

    fn next(&mut self, reader: &mut dyn ContentReader, job: &Job) -> Result<Option<Range<u64>>> {
        let up = |at: u64| at.checked_next_multiple_of(self.sector_bytes).unwrap_or(u64::MAX);
        let mut found: Option<Range<u64>> = None;
        while self.at < self.end {
            let Some(data) = reader.next_data(FileOffset::new(self.at))? else {
                self.at = self.end;
                break;
            };
            let (from, to) = (data.start.get(), data.end.get());
            if to <= self.at || to < from {
                return Err(SourceError::Changed {
                    place: shown(job.file.path.as_bytes()),
                    what: format!("data from {from} to {to} is told of after {}", self.at),
                }
                .into());
            }
            let start = from.max(self.at);
            let start = start.saturating_sub(start.checked_rem(self.sector_bytes).unwrap_or(0));
            let stop = up(to.min(self.end));
            match &mut found {
                _ if start >= self.end => {
                    self.at = self.end;
                    break;
                }
                Some(range) if start > range.end => break,
                Some(range) => range.end = range.end.max(stop),
                None => found = Some(start..stop),
            }
            self.at = to.min(self.end).max(stop.min(self.end));
        }
        Ok(found)
    }
}
