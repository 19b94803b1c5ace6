//! Reading the content of many small files together.
//!
//! The reads of a batch of files are planned before the first read starts. The walk then looks up
//! these files' checksums, and starts the reads in address order for the device to merge. The
//! worker threads verify and decompress, with one job for each piece.

use super::WalkEntry;
use super::WalkItem;
use crate::checksums::ChecksumReader;
use crate::content::{Chunk, Piece, Planned, inflate_inline, plan};
use crate::error::Error;
use crate::extents::FileExtents;
use crate::file::File;
use crate::filesystem::Filesystem;
use crate::reader::{FileReader, Prefetched};
use buttress_exact::{Defect, Exact as _};
use buttress_format::{ByteCount, FileOffset};

/// The memory limit of a file that is read ahead. Even a small file can exceed it, because its
/// ranges may be small parts of large compressed extents.
const FILE_MEMORY_MAX: usize = 4 << 20;

/// The content of a batch of files, planned and not yet read.
pub(super) struct ContentBatch {
    filesystem: Filesystem,
    files: Vec<Planning>,
}

struct Planning {
    /// The index of the file's entry among the items of the batch.
    item: usize,
    file: File,
    planned: Vec<Planned>,
}

/// A piece of file content to read, and the destination of its chunks.
struct Wanted {
    file: usize,
    place: usize,
    piece: Piece,
}

impl ContentBatch {
    pub(super) fn new(filesystem: &Filesystem) -> Self {
        Self {
            filesystem: filesystem.clone(),
            files: Vec::new(),
        }
    }

    /// Plans the content of an entry that will be item number `item`. Returns its memory. If the
    /// content of a file cannot be planned, the caller reads the file itself and gets the error.
    pub(super) fn plan(&mut self, item: usize, entry: &WalkEntry) -> usize {
        let Ok(file) = self.filesystem.open_record(&entry.record) else {
            return 0;
        };
        let location = entry.location();
        let sector_bytes = self.filesystem.sector_bytes();
        // Clamp: a record without extents belongs to a file without any, or to no file.
        let ranges = entry.record.extents.clone().unwrap_or_default();
        let whole = FileOffset::MIN..FileOffset::new(file.size().get());
        let mut planned = Vec::new();
        for range in FileExtents::of_record(ranges, location, sector_bytes, file.size()) {
            let Ok(range) = range else { return 0 };
            plan(location, sector_bytes, &range, &whole, &mut planned);
        }
        let bytes = planned
            .iter()
            .map(|planned| match planned {
                Planned::Read(piece) => piece.memory_bytes(),
                Planned::Ready(_) => 0,
                Planned::Inline(_, _, _, length) => length.exact_usize(),
            })
            .fold(0, usize::exact_add);
        if bytes > FILE_MEMORY_MAX {
            return 0;
        }
        self.files.push(Planning { item, file, planned });
        bytes
    }

    /// Starts all reads, and gives each entry among `items` its reader.
    pub(super) fn start(self, items: &mut [WalkItem]) {
        let Self { filesystem, files } = self;
        if files.is_empty() {
            return;
        }
        let mut contents: Vec<Vec<Option<Prefetched>>> = Vec::with_capacity(files.len());
        let mut wanted: Vec<Wanted> = Vec::new();
        let mut opened = Vec::with_capacity(files.len());
        for (number, Planning { item, file, planned }) in files.into_iter().enumerate() {
            let content = planned
                .into_iter()
                .enumerate()
                .map(|(place, planned)| match planned {
                    Planned::Ready(chunk) => Some(Prefetched::Chunk(chunk)),
                    Planned::Inline(location, offset, inline, length) => Some(Prefetched::Chunk(
                        inflate_inline(&filesystem, location, offset, &inline, length),
                    )),
                    Planned::Read(piece) => {
                        wanted.push(Wanted {
                            file: number,
                            place,
                            piece,
                        });
                        None
                    }
                })
                .collect();
            contents.push(content);
            opened.push((item, file));
        }
        wanted.sort_by_key(|wanted| wanted.piece.read().logical);
        read(&filesystem, wanted, &opened, &mut contents);
        for ((item, file), content) in opened.into_iter().zip(contents) {
            // If a piece had no content, it would look like a hole.
            let lost = || {
                let defect = Defect::new("a piece of a file was planned and not read");
                Prefetched::Chunk(Chunk::damaged(FileOffset::MIN, ByteCount::ZERO, defect))
            };
            let content = content.into_iter().map(|content| content.unwrap_or_else(lost));
            if let Some(WalkItem::Entry(entry)) = items.get_mut(item) {
                entry.reader = Some(FileReader::prefetched(file, content));
            }
        }
    }
}

/// Starts reading `wanted`, which is in address order.
fn read(
    filesystem: &Filesystem,
    mut wanted: Vec<Wanted>,
    opened: &[(usize, File)],
    contents: &mut [Vec<Option<Prefetched>>],
) {
    let mut checksums = ChecksumReader::new(filesystem);
    let mut put = |wanted: &Wanted, content: Prefetched| {
        if let Some(slot) = contents
            .get_mut(wanted.file)
            .and_then(|content| content.get_mut(wanted.place))
        {
            *slot = Some(content);
        }
    };
    wanted.retain_mut(|wanted| {
        let verified = opened
            .get(wanted.file)
            .is_some_and(|(_, file)| file.is_verified());
        let expected: Result<(), Error> = match &mut checksums {
            Ok(Some(checksums)) if verified => wanted.piece.expect(checksums),
            Err(error) if verified => Err(error.clone()),
            _ => Ok(()),
        };
        match expected {
            Ok(()) => true,
            Err(error) => {
                let chunks = wanted.piece.lost(&error);
                put(
                    wanted,
                    Prefetched::Task(filesystem.executor().spawn(move || chunks)),
                );
                false
            }
        }
    });
    let reads: Vec<_> = wanted.iter().map(|wanted| wanted.piece.read()).collect();
    let pending = filesystem.volume().start_reads(&reads);
    for (Wanted { file, place, piece }, pending) in wanted.into_iter().zip(pending) {
        let worker = filesystem.clone();
        let task = filesystem.executor().spawn(move || piece.wait(&worker, pending));
        if let Some(slot) = contents.get_mut(file).and_then(|content| content.get_mut(place)) {
            *slot = Some(Prefetched::Task(task));
        }
    }
}
