//! Writing an index: appended pages while the scan runs, then a sorted file.

use super::layout::{
    DEVICES_MAX, HEADER_BYTES, Header, NUMBER_BYTES, PAGE_BYTES, PAGES_AT, PageKind, RECORDS_MAX, check_page,
    encode_page,
};
use super::reader::{BlockIndex, read_header};
use crate::error::{Error, IndexProblem, Result};
use crate::identity::Identity;
use crate::record::{DEVICE_BYTES_MAX, RECORD_BYTES, Record};
use crate::scan::{ScanSink, Scanned};
use buttress_exact::{Defect, Exact as _};
use buttress_fs::Progress;
use buttress_packing::{Record as SortRecord, Sorted, Sorter, SpoolFolder};
use std::ffi::OsString;
use std::fs::{File, Permissions};
use std::io;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use tempfile::NamedTempFile;

/// The bytes of a device that a scan reads between two durable headers.
const CHECKPOINT_BYTES: u64 = 256 << 20;

/// An index file that a scan may continue, or that is complete.
#[derive(Debug)]
pub enum OpenedIndex {
    /// The scan must run; it continues an earlier one if the flag is true.
    Scanning(IndexWriter, bool),
    /// An earlier scan of the same devices is complete.
    Complete(BlockIndex),
}

/// An index that is being written.
#[derive(Debug)]
pub struct IndexWriter {
    file: File,
    path: PathBuf,
    header: Header,
    /// The encoded records of the page that is not full yet.
    pending: Vec<u8>,
    /// The bytes of each device that were read since the last durable header.
    since: Vec<u64>,
}

impl IndexWriter {
    /// Opens the index at `path` for a scan of the file system `identity`, and creates the file if
    /// it does not exist. An index of changed devices is replaced by an empty one, as is a complete
    /// index of a device whose changes [leave no trace](Identity::shows_changes).
    ///
    /// # Errors
    /// Fails if the file is no index, if it belongs to another file system, if another process
    /// writes it, or if the devices exceed what an index can hold.
    pub fn open(path: &Path, identity: &Identity) -> Result<OpenedIndex> {
        check_devices(identity)?;
        let file = open_locked(path, false)?;
        let length = file.metadata().map_err(|cause| Error::file(path, cause))?.len();
        let header = match length {
            0 => None,
            _ => Some(read_header(&file, path)?),
        };
        if let Some(header) = &header
            && header.identity.metadata_uuid != identity.metadata_uuid
        {
            let problem = IndexProblem::OtherFileSystem {
                found: header.identity.metadata_uuid,
                expected: identity.metadata_uuid,
            };
            return Err(Error::index(path, problem));
        }
        match header {
            Some(header)
                if header.identity == *identity && header.is_complete && identity.shows_changes() =>
            {
                Ok(OpenedIndex::Complete(BlockIndex::open(path)?))
            }
            Some(header) if header.identity == *identity && !header.is_complete => {
                let since = vec![0; header.positions.len()];
                let writer = Self {
                    file,
                    path: path.to_owned(),
                    header,
                    pending: Vec::new(),
                    since,
                };
                Ok(OpenedIndex::Scanning(writer, true))
            }
            Some(_) => {
                // Readers of the old index keep its file.
                std::fs::remove_file(path).map_err(|cause| Error::file(path, cause))?;
                let file = open_locked(path, true)?;
                Ok(OpenedIndex::Scanning(Self::create(file, path, identity)?, false))
            }
            None => Ok(OpenedIndex::Scanning(Self::create(file, path, identity)?, false)),
        }
    }

    fn create(file: File, path: &Path, identity: &Identity) -> Result<Self> {
        let devices = identity.devices.len();
        let mut writer = Self {
            file,
            path: path.to_owned(),
            header: Header {
                sequence: 0,
                is_complete: false,
                identity: identity.clone(),
                positions: vec![0; devices],
                found: Scanned::default(),
                pages: 0,
                records: 0,
            },
            pending: Vec::new(),
            since: vec![0; devices],
        };
        writer.checkpoint()?;
        Ok(writer)
    }

    /// Returns what the scan found so far, apart from the records.
    #[must_use]
    pub const fn found(&self) -> &Scanned {
        &self.header.found
    }

    fn failed(&self, cause: io::Error) -> Error {
        Error::file(&self.path, cause)
    }

    fn push(&mut self, record: &Record) -> Result<()> {
        if self.header.records >= RECORDS_MAX {
            let defect = Defect::new("more blocks than an index can hold");
            return Err(defect.with("records", self.header.records).into());
        }
        self.pending.extend_from_slice(&record.encode());
        self.header.records = self.header.records.exact_add(1);
        let full = PageKind::Records.entries_max().exact_mul(RECORD_BYTES);
        if self.pending.len() >= full {
            self.write_pending()?;
        }
        Ok(())
    }

    fn write_pending(&mut self) -> Result<()> {
        let number = self.header.pages;
        let page = encode_page(PageKind::Records, number, &self.pending);
        let written = self.file.write_all_at(&page, place_of(number));
        written.map_err(|cause| self.failed(cause))?;
        self.pending.clear();
        self.header.pages = number.exact_add(1);
        Ok(())
    }

    /// Makes all records and positions durable.
    ///
    /// # Errors
    /// Fails if the file cannot be written.
    pub fn checkpoint(&mut self) -> Result<()> {
        if !self.pending.is_empty() {
            self.write_pending()?;
        }
        // The header counts only durable pages.
        self.file.sync_data().map_err(|cause| self.failed(cause))?;
        self.header.sequence = self.header.sequence.exact_add(1);
        let slot = self.header.sequence.remainder(2).exact_mul(HEADER_BYTES as u64);
        let written = self.file.write_all_at(&*self.header.encode(), slot);
        written.map_err(|cause| self.failed(cause))?;
        self.file.sync_data().map_err(|cause| self.failed(cause))?;
        self.since.fill(0);
        Ok(())
    }

    /// Sorts the records of a finished scan, and replaces the file by the complete index. The
    /// sorter uses `memory` bytes, and `folder` for the rest.
    ///
    /// # Errors
    /// Fails if a file cannot be written, if a page is damaged, or if `progress` was cancelled. The
    /// index then keeps all records, and the next call of [`open`](Self::open) continues.
    pub fn finish(mut self, memory: usize, folder: &SpoolFolder, progress: &Progress) -> Result<BlockIndex> {
        self.checkpoint()?;
        let mut by_address = Sorter::new(folder, memory);
        let devices = self.header.identity.devices.len();
        let mut page = vec![0; PAGE_BYTES];
        for number in 0..self.header.pages {
            progress.check()?;
            let read = self.file.read_exact_at(&mut page, place_of(number));
            read.map_err(|cause| self.failed(cause))?;
            let entries = check_page(&page, PageKind::Records, number);
            let entries = entries.map_err(|problem| Error::index(&self.path, problem))?;
            let (records, _) = entries.as_chunks::<RECORD_BYTES>();
            for bytes in records {
                let record = Record::decode(bytes, devices).map_err(|(field, found)| {
                    let problem = IndexProblem::Record {
                        record: number,
                        field,
                        found,
                    };
                    Error::index(&self.path, problem)
                })?;
                by_address.push(&record.address_order(), bytes)?;
            }
        }
        let sorted = new_beside(&self.path).map_err(|cause| self.failed(cause))?;
        // If writing fails, the new file is deleted, and the index itself keeps all records.
        self.write_sorted(&sorted, by_address, memory, folder, progress)?;
        let replaced = sorted.persist(&self.path);
        replaced.map_err(|failure| self.failed(failure.error))?;
        sync_folder(&self.path).map_err(|cause| self.failed(cause))?;
        BlockIndex::open(&self.path)
    }

    fn write_sorted(
        &self,
        target: &NamedTempFile,
        by_address: Sorter,
        memory: usize,
        folder: &SpoolFolder,
        progress: &Progress,
    ) -> Result<()> {
        let failed = |cause| Error::file(target.path(), cause);
        let mut pages = Pages {
            file: target.as_file(),
            path: target.path(),
            at: PAGES_AT,
            kind: PageKind::Records,
            number: 0,
            entries: Vec::new(),
        };
        let mut by_key = Sorter::new(folder, memory);
        let devices = self.header.identity.devices.len();
        let mut count = 0_u64;
        each(&by_address.finish()?, progress, |sorted| {
            let bytes = sorted.payload.first_chunk::<RECORD_BYTES>();
            let record = bytes.and_then(|bytes| Record::decode(bytes, devices).ok());
            let record =
                record.ok_or_else(|| Defect::new("a sorted record is damaged").with("record", count))?;
            by_key.push(&record.key_order(), &count.narrow::<u32>().to_le_bytes())?;
            pages.push(&sorted.payload)?;
            count = count.exact_add(1);
            Ok(())
        })?;
        pages.end()?;
        let mut header = self.header.clone();
        header.pages = pages.number;
        (pages.kind, pages.number) = (PageKind::Order, 0);
        each(&by_key.finish()?, progress, |sorted| pages.push(&sorted.payload))?;
        pages.end()?;
        if count != header.records {
            let defect = Defect::new("an index lost records while it was sorted");
            return Err(defect.with("before", header.records).with("after", count).into());
        }
        header.is_complete = true;
        pages.file.sync_data().map_err(failed)?;
        for slot in 0..2_u64 {
            header.sequence = header.sequence.exact_add(1);
            let at = slot.exact_mul(HEADER_BYTES as u64);
            pages.file.write_all_at(&*header.encode(), at).map_err(failed)?;
        }
        pages.file.sync_all().map_err(failed)
    }
}

impl ScanSink for IndexWriter {
    fn start(&self, device: usize) -> u64 {
        // Clamp: a scan has the devices of its index.
        self.header.positions.get(device).copied().unwrap_or(0)
    }

    fn take(&mut self, device: usize, position: u64, records: &[Record], found: &Scanned) -> Result<()> {
        for record in records {
            self.push(record)?;
        }
        self.header.found.add(found);
        let place = self
            .header
            .positions
            .get_mut(device)
            .zip(self.since.get_mut(device));
        let (place, since) = place.ok_or_else(|| Defect::new("a scan of no device"))?;
        *place = position;
        *since = since.exact_add(found.read.get());
        if *since >= CHECKPOINT_BYTES {
            self.checkpoint()?;
        }
        Ok(())
    }
}

/// Pages that are written one after another.
struct Pages<'a> {
    file: &'a File,
    path: &'a Path,
    at: u64,
    kind: PageKind,
    number: u64,
    entries: Vec<u8>,
}

impl Pages<'_> {
    fn push(&mut self, entry: &[u8]) -> Result<()> {
        self.entries.extend_from_slice(entry);
        if self.entries.len() >= self.kind.entries_max().exact_mul(self.kind.entry_bytes()) {
            self.write()?;
        }
        Ok(())
    }

    fn end(&mut self) -> Result<()> {
        match self.entries.is_empty() {
            true => Ok(()),
            false => self.write(),
        }
    }

    fn write(&mut self) -> Result<()> {
        let page = encode_page(self.kind, self.number, &self.entries);
        let written = self.file.write_all_at(&page, self.at);
        written.map_err(|cause| Error::file(self.path, cause))?;
        self.entries.clear();
        self.number = self.number.exact_add(1);
        self.at = self.at.exact_add(PAGE_BYTES as u64);
        Ok(())
    }
}

const _: () = assert!(NUMBER_BYTES == size_of::<u32>());

/// Passes the records on in order.
fn each(sorted: &Sorted, progress: &Progress, mut take: impl FnMut(&SortRecord) -> Result<()>) -> Result<()> {
    let mut reader = sorted.reader()?;
    let mut record = SortRecord::default();
    while reader.next(&mut record)? {
        progress.check()?;
        take(&record)?;
    }
    Ok(())
}

pub(super) fn place_of(page: u64) -> u64 {
    PAGES_AT.exact_add(page.exact_mul(PAGE_BYTES as u64))
}

fn check_devices(identity: &Identity) -> Result<()> {
    let devices = identity.devices.len();
    if devices > DEVICES_MAX {
        return Err(Error::TooManyDevices {
            devices,
            most: DEVICES_MAX,
        });
    }
    let large = identity.devices.iter().enumerate();
    match large
        .into_iter()
        .find(|(_, device)| device.size.get() > DEVICE_BYTES_MAX)
    {
        Some((number, device)) => Err(Error::DeviceTooLarge {
            device: format!("device {}", number.exact_add(1)),
            bytes: device.size.get(),
            most: DEVICE_BYTES_MAX,
        }),
        None => Ok(()),
    }
}

/// Opens an index file for writing, and locks it against other writers.
fn open_locked(path: &Path, must_be_new: bool) -> Result<File> {
    let mut options = File::options();
    options.read(true).write(true).create(true).truncate(false);
    let file = options.create_new(must_be_new).open(path);
    let file = file.map_err(|cause| Error::file(path, cause))?;
    match rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(rustix::io::Errno::WOULDBLOCK) => Err(Error::index(path, IndexProblem::InUse)),
        Err(cause) => Err(Error::file(path, cause.into())),
    }
}

/// Creates a file with a new name in the folder of an index, with the mode of a new index. The file
/// is deleted when it is dropped.
fn new_beside(path: &Path) -> io::Result<NamedTempFile> {
    /// The umask restricts this mode, as for all new files.
    const MODE: u32 = 0o666;
    let mut prefix = path.file_name().map(OsString::from).unwrap_or_default(); // Clamp: an index has a name.
    prefix.push(".sorting-");
    tempfile::Builder::new()
        .prefix(&prefix)
        .permissions(Permissions::from_mode(MODE))
        .tempfile_in(folder_of(path))
}

/// Returns the folder of a file.
fn folder_of(path: &Path) -> &Path {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    folder.unwrap_or(Path::new(".")) // Clamp: a bare name is in the current folder.
}

/// Makes the name of a renamed file durable.
fn sync_folder(path: &Path) -> io::Result<()> {
    File::open(folder_of(path))?.sync_all()
}
