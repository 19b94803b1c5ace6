//! Reading a complete index.

use super::layout::{HEADER_BYTES, Header, NUMBER_BYTES, PAGE_BYTES, PAGES_AT, PageKind, check_page};
use crate::error::{Error, IndexProblem, Result};
use crate::identity::Identity;
use crate::record::{RECORD_BYTES, Record};
use crate::scan::Scanned;
use buttress_exact::Exact as _;
use buttress_format::{Logical, TreeId};
use core::ops::Range;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// The number of pages that one reader keeps in memory.
const PAGES_KEPT: usize = 16;

/// A complete index of a scan.
#[derive(Debug)]
pub struct BlockIndex {
    file: File,
    path: PathBuf,
    header: Header,
}

impl BlockIndex {
    /// Opens a complete index.
    ///
    /// # Errors
    /// Fails if the file cannot be read, is no index, is damaged, or is not complete.
    pub fn open(path: &Path) -> Result<Self> {
        let file = File::open(path).map_err(|cause| Error::file(path, cause))?;
        let header = read_header(&file, path)?;
        let wrong = |problem| Error::index(path, problem);
        if !header.is_complete {
            return Err(wrong(IndexProblem::Incomplete));
        }
        let [pages, order] = [PageKind::Records, PageKind::Order]
            .map(|kind| header.records.div_ceil(kind.entries_max() as u64));
        if header.pages != pages {
            return Err(wrong(IndexProblem::Field {
                field: "number of pages",
                found: header.pages,
            }));
        }
        let expected = PAGES_AT.exact_add(pages.exact_add(order).exact_mul(PAGE_BYTES as u64));
        let found = file.metadata().map_err(|cause| Error::file(path, cause))?.len();
        if found != expected {
            return Err(wrong(IndexProblem::Length { found, expected }));
        }
        Ok(Self {
            file,
            path: path.to_owned(),
            header,
        })
    }

    /// Returns the file system of the index, and the devices at the time of the scan.
    #[must_use]
    pub const fn identity(&self) -> &Identity {
        &self.header.identity
    }

    /// Returns what the scan found, apart from the records.
    #[must_use]
    pub const fn found(&self) -> &Scanned {
        &self.header.found
    }

    /// Returns the path of the index.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the number of records.
    #[must_use]
    pub const fn records(&self) -> u64 {
        self.header.records
    }

    /// Returns a reader.
    #[must_use]
    pub const fn reader(&self) -> IndexReader<'_> {
        IndexReader {
            index: self,
            pages: Vec::new(),
        }
    }
}

/// A reader of an index, with a few pages in memory.
#[derive(Debug)]
pub struct IndexReader<'a> {
    index: &'a BlockIndex,
    /// The pages that were used last, the newest at the end. Order pages follow record pages.
    pages: Vec<(u64, Vec<u8>)>,
}

impl IndexReader<'_> {
    fn wrong(&self, problem: IndexProblem) -> Error {
        Error::index(&self.index.path, problem)
    }

    /// Returns one entry of a kind of pages.
    fn entry<const N: usize>(&mut self, kind: PageKind, number: u64) -> Result<[u8; N]> {
        let per_page = kind.entries_max() as u64;
        let (page, slot) = (number.quotient(per_page), number.remainder(per_page));
        let place = match kind {
            PageKind::Records => page,
            PageKind::Order => self.index.header.pages.exact_add(page),
        };
        match self.pages.iter().position(|(known, _)| *known == place) {
            Some(position) => {
                let used = self.pages.remove(position);
                self.pages.push(used);
            }
            None => {
                let mut bytes = match self.pages.len() < PAGES_KEPT {
                    true => vec![0; PAGE_BYTES],
                    false => self.pages.remove(0).1,
                };
                let at = PAGES_AT.exact_add(place.exact_mul(PAGE_BYTES as u64));
                let read = self.index.file.read_exact_at(&mut bytes, at);
                read.map_err(|cause| Error::file(&self.index.path, cause))?;
                check_page(&bytes, kind, page).map_err(|problem| self.wrong(problem))?;
                self.pages.push((place, bytes));
            }
        }
        let entries = self.pages.last().map(|(_, bytes)| check_entries(bytes, kind));
        let start = slot.narrow::<usize>().exact_mul(kind.entry_bytes());
        let entry = entries.and_then(|entries| entries.get(start..)?.first_chunk::<N>().copied());
        entry.ok_or_else(|| {
            self.wrong(IndexProblem::Page {
                page,
                what: "its number of entries",
            })
        })
    }

    /// Returns a record by its number. Records are in order of address, the newest first.
    ///
    /// # Errors
    /// Fails if the page cannot be read or is damaged, or if the record has a wrong value.
    pub fn record(&mut self, number: u64) -> Result<Record> {
        let bytes = self.entry::<RECORD_BYTES>(PageKind::Records, number)?;
        let devices = self.index.header.identity.devices.len();
        Record::decode(&bytes, devices).map_err(|(field, found)| {
            self.wrong(IndexProblem::Record {
                record: number,
                field,
                found,
            })
        })
    }

    /// Returns the record at a position of the order by tree, level, first key and age.
    ///
    /// # Errors
    /// Fails as [`record`](Self::record) does.
    pub fn ordered(&mut self, position: u64) -> Result<Record> {
        let number = self.entry::<NUMBER_BYTES>(PageKind::Order, position)?;
        let number = u64::from(u32::from_le_bytes(number));
        if number >= self.index.records() {
            return Err(self.wrong(IndexProblem::Record {
                record: number,
                field: "number",
                found: position,
            }));
        }
        self.record(number)
    }

    /// Returns the blocks with an address, the newest first, at most `limit`.
    ///
    /// # Errors
    /// Fails as [`record`](Self::record) does.
    pub fn at(&mut self, logical: Logical, limit: usize) -> Result<Vec<Record>> {
        let records = self.index.records();
        let mut number = search(records, |number| Ok(self.record(number)?.logical < logical))?;
        let mut found = Vec::new();
        while number < records && found.len() < limit {
            let record = self.record(number)?;
            if record.logical != logical {
                break;
            }
            found.push(record);
            number = number.exact_add(1);
        }
        Ok(found)
    }

    /// Passes the records of all blocks on whose addresses are in `range`, in order of address.
    ///
    /// # Errors
    /// Fails as [`record`](Self::record) does.
    pub fn in_range(&mut self, range: Range<Logical>, take: &mut dyn FnMut(&Record)) -> Result<()> {
        let records = self.index.records();
        let first = search(records, |number| Ok(self.record(number)?.logical < range.start))?;
        for number in first..records {
            let record = self.record(number)?;
            if record.logical >= range.end {
                break;
            }
            take(&record);
        }
        Ok(())
    }

    /// Returns the positions of a tree's blocks of these levels in the order by tree and level.
    ///
    /// # Errors
    /// Fails as [`record`](Self::record) does.
    pub fn of_tree(&mut self, owner: TreeId, levels: Range<u8>) -> Result<Range<u64>> {
        let records = self.index.records();
        let mut bound = |level: u8| {
            search(records, |position| {
                let record = self.ordered(position)?;
                Ok((record.owner, record.level) < (owner, level))
            })
        };
        Ok(bound(levels.start)?..bound(levels.end)?)
    }

    /// Passes all records on in order of address.
    ///
    /// # Errors
    /// Fails as [`record`](Self::record) does, if records are not in order, and with the errors of
    /// `take`.
    pub fn each(&mut self, mut take: impl FnMut(u64, &Record) -> Result<()>) -> Result<()> {
        let mut before = None;
        for number in 0..self.index.records() {
            let record = self.record(number)?;
            let order = record.address_order();
            if before.is_some_and(|before| before >= order) {
                return Err(self.wrong(IndexProblem::Order { record: number }));
            }
            before = Some(order);
            take(number, &record)?;
        }
        Ok(())
    }
}

/// Returns the entries of a page that was checked.
fn check_entries(page: &[u8], kind: PageKind) -> &[u8] {
    let count = page.get(6..).and_then(|rest| rest.first_chunk::<2>());
    // Clamp: a checked page has a head and its entries.
    let count = count.map_or(0, |count| usize::from(u16::from_le_bytes(*count)));
    let length = count.exact_mul(kind.entry_bytes());
    page.get(16..)
        .and_then(|entries| entries.get(..length))
        .unwrap_or_default() // Clamp: see above.
}

/// Returns the first number for which `is_before` is false, by bisection.
fn search(count: u64, mut is_before: impl FnMut(u64) -> Result<bool>) -> Result<u64> {
    let (mut low, mut high) = (0, count);
    while low < high {
        let middle = low.midpoint(high);
        match is_before(middle)? {
            true => low = middle.exact_add(1),
            false => high = middle,
        }
    }
    Ok(low)
}

/// Returns the newer valid header.
pub(super) fn read_header(file: &File, path: &Path) -> Result<Header> {
    let mut newest: Option<Header> = None;
    let mut problem = IndexProblem::NoIndex;
    for slot in 0..2_u64 {
        let mut bytes = [0; HEADER_BYTES];
        if file
            .read_exact_at(&mut bytes, slot.exact_mul(HEADER_BYTES as u64))
            .is_err()
        {
            continue;
        }
        match Header::decode(&bytes) {
            Ok(header) => {
                if newest
                    .as_ref()
                    .is_none_or(|newest| newest.sequence < header.sequence)
                {
                    newest = Some(header);
                }
            }
            Err(IndexProblem::NoIndex) => {}
            Err(other) => problem = other,
        }
    }
    newest.ok_or_else(|| Error::index(path, problem))
}
