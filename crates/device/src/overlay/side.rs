//! The side file of an overlay consists of a header, a map of changed blocks, and these blocks.
//!
//! | at | bytes | what |
//! |---|---|---|
//! | 0 | 4096 | header: all numbers little-endian, unused bytes zero |
//! | 4096 | one bit for each block of the base, in whole 4096 bytes | map: bit `n mod 8` of byte `n / 8` is set when the file has block `n` |
//! | the next whole MiB | the base's size | blocks of 4096 bytes, each as far from here as on the base from its start |
//!
//! | header at | what |
//! |---|---|
//! | 0 | the 8 bytes `BUTTROVL` |
//! | 8 | version: 1 (4 bytes) |
//! | 12 | block size: 4096 (4 bytes) |
//! | 16 | size of the base in bytes (8 bytes) |
//! | 24 | the base's time of last change: seconds (8 bytes) and nanoseconds (4 bytes) since 1970; all zero where that says nothing, as for block devices |
//! | 36 | state (4 bytes): 0 in use, 1 being applied to the base |
//! | 40 | number of volumes in the base, at most 64 (4 bytes); 0 in overlays of earlier versions |
//! | 48 | for each volume, the byte of the base at which it begins (8 bytes) |
//! | 560 | for each volume, its recorded identity (8 bytes, below); zero if unknown |
//! | 4092 | CRC-32C of all before it (4 bytes), as btrfs computes it |
//!
//! | identity at | field |
//! |---|---|
//! | 0 | CRC-32C of the base's primary superblock without its first 32 bytes (4 bytes) |
//! | 4 | CRC-32C of the fsid and the device's uuid in this superblock (4 bytes) |
//!
//! Holes in the file read as zeros, so an overlay takes as much space as its changes.

use buttress_exact::{Exact as _, at_most};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::FlockOperation;

use super::identity::{Identity, crc32c};
use crate::error::byte_length;

/// The unit in which an overlay keeps changes.
pub const BLOCK_BYTES: u64 = 4096;

const HEADER_BYTES: usize = 4096;
const MAP_START: u64 = 4096;
/// The number of map bytes that the overlay writes at once, and the number of blocks that they
/// represent.
const MAP_PAGE: usize = 4096;
const BLOCKS_PER_PAGE: u64 = 8 * 4096;
const MAGIC: &[u8; 8] = b"BUTTROVL";
const VERSION: u32 = 1;
/// The place of the volumes' starts in the header, and the largest number of volumes.
const VOLUMES_AT: usize = 48;
const VOLUMES_MAX: usize = 64;

/// The facts that an overlay records about its base, to recognise it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BaseState {
    pub(crate) size_bytes: u64,
    pub(crate) changed_seconds: i64,
    pub(crate) changed_nanoseconds: u32,
}

impl BaseState {
    /// Returns the recorded state of an open file or block device.
    pub(crate) fn of(file: &File, size_bytes: u64) -> io::Result<Self> {
        let metadata = file.metadata()?;
        let is_file = metadata.is_file();
        Ok(Self {
            size_bytes,
            changed_seconds: if is_file { metadata.mtime() } else { 0 },
            changed_nanoseconds: if is_file {
                // Clamp: the number comes from the system.
                u32::try_from(metadata.mtime_nsec()).unwrap_or(0)
            } else {
                0
            },
        })
    }
}

/// The state of a side file: usable, or being applied to the base.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    InUse,
    BeingApplied,
}

/// An open side file.
#[derive(Debug)]
pub(super) struct SideFile {
    file: File,
    path: PathBuf,
    base: BaseState,
    pub(super) state: State,
    /// The bytes of the base at which volumes begin, and the identities of these volumes.
    volumes: Vec<(u64, Identity)>,
    data_start: u64,
}

fn invalid(what: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.into())
}

fn number<const N: usize>(header: &[u8], at: usize) -> [u8; N] {
    let bytes = header.get(at..at.exact_add(N));
    // Clamp: the bytes are at least as long as a header.
    bytes.and_then(|bytes| bytes.try_into().ok()).unwrap_or([0; N])
}

fn put(header: &mut [u8], at: usize, bytes: &[u8]) {
    if let Some(place) = header.get_mut(at..at.exact_add(bytes.len())) {
        place.copy_from_slice(bytes);
    }
}

fn checksum(header: &[u8]) -> u32 {
    // Clamp: `header` is at least as long as the header.
    crc32c(header.get(..HEADER_BYTES - 4).unwrap_or_default())
}

impl SideFile {
    /// Opens the side file of a base. Creates the side file if it does not exist and `writable` is
    /// set.
    pub(super) fn open(path: &Path, base: &BaseState, writable: bool) -> io::Result<Self> {
        let opened = File::options()
            .read(true)
            .write(writable)
            .create(writable)
            .truncate(false)
            .open(path);
        let file = opened
            .map_err(|cause| io::Error::new(cause.kind(), format!("overlay {}: {cause}", path.display())))?;
        lock(&file, path, writable)?;
        if file.metadata()?.len() == 0 && writable {
            return Self::create(file, path, base);
        }
        let side = Self::read_header(file, path)?;
        if side.state == State::BeingApplied {
            return Err(invalid(format!(
                "overlay {} is being applied to its base; to finish, run `overlay commit`",
                path.display()
            )));
        }
        if side.base != *base {
            return Err(invalid(format!(
                "overlay {} belongs to another state of the device ({} bytes, changed at {}.{:09}; this device has {} bytes, changed at {}.{:09}). Its changes do not fit this state; to discard them, delete {}",
                path.display(),
                side.base.size_bytes,
                side.base.changed_seconds,
                side.base.changed_nanoseconds,
                base.size_bytes,
                base.changed_seconds,
                base.changed_nanoseconds,
                path.display(),
            )));
        }
        Ok(side)
    }

    /// Opens the side file to apply it to a base of this size.
    pub(super) fn open_to_apply(path: &Path) -> io::Result<Self> {
        let file = File::options().read(true).write(true).open(path)?;
        lock(&file, path, true)?;
        Self::read_header(file, path)
    }

    pub(super) const fn base(&self) -> &BaseState {
        &self.base
    }

    fn create(file: File, path: &Path, base: &BaseState) -> io::Result<Self> {
        let side = Self {
            file,
            path: path.to_owned(),
            base: *base,
            state: State::InUse,
            volumes: Vec::new(),
            data_start: data_start(base.size_bytes),
        };
        let end = side
            .data_start
            .checked_add(base.size_bytes.next_multiple_of(BLOCK_BYTES));
        side.file
            .set_len(end.ok_or_else(|| invalid("the base is too large"))?)?;
        side.write_header()?;
        side.sync()?;
        Ok(side)
    }

    fn read_header(file: File, path: &Path) -> io::Result<Self> {
        let mut header = [0; HEADER_BYTES];
        let name = path.display();
        file.read_exact_at(&mut header, 0)
            .map_err(|_| invalid(format!("{name} is not an overlay: it is too short")))?;
        if header.get(..MAGIC.len()) != Some(&MAGIC[..]) {
            return Err(invalid(format!("{name} is not an overlay")));
        }
        let version = u32::from_le_bytes(number(&header, 8));
        let block_bytes = u32::from_le_bytes(number(&header, 12));
        if version != VERSION || u64::from(block_bytes) != BLOCK_BYTES {
            return Err(io::Error::new(
                io::ErrorKind::Unsupported,
                format!(
                    "overlay {name}: unknown format (found version {version} with blocks of {block_bytes} bytes, expected version 1 with 4096)"
                ),
            ));
        }
        if u32::from_le_bytes(number(&header, HEADER_BYTES - 4)) != checksum(&header) {
            return Err(invalid(format!("overlay {name}: the header's checksum is wrong")));
        }
        let base = BaseState {
            size_bytes: u64::from_le_bytes(number(&header, 16)),
            changed_seconds: i64::from_le_bytes(number(&header, 24)),
            changed_nanoseconds: u32::from_le_bytes(number(&header, 32)),
        };
        let state = match u32::from_le_bytes(number(&header, 36)) {
            0 => State::InUse,
            1 => State::BeingApplied,
            other => return Err(invalid(format!("overlay {name}: state {other} is unknown"))),
        };
        let count = u32::from_le_bytes(number(&header, 40));
        let count = usize::try_from(count).ok().filter(|count| *count <= VOLUMES_MAX);
        let Some(count) = count else {
            return Err(invalid(format!(
                "overlay {name}: it lists more than {VOLUMES_MAX} volumes"
            )));
        };
        let volumes = (0..count).map(|index| {
            let start = u64::from_le_bytes(number(&header, volume_at(index)));
            (start, Identity::from_bytes(number(&header, identity_at(index))))
        });
        Ok(Self {
            volumes: volumes.collect(),
            file,
            path: path.to_owned(),
            base,
            state,
            data_start: data_start(base.size_bytes),
        })
    }

    fn write_header(&self) -> io::Result<()> {
        let mut header = [0; HEADER_BYTES];
        put(&mut header, 0, MAGIC);
        put(&mut header, 8, &VERSION.to_le_bytes());
        put(&mut header, 12, &BLOCK_BYTES.narrow::<u32>().to_le_bytes());
        put(&mut header, 16, &self.base.size_bytes.to_le_bytes());
        put(&mut header, 24, &self.base.changed_seconds.to_le_bytes());
        put(&mut header, 32, &self.base.changed_nanoseconds.to_le_bytes());
        put(
            &mut header,
            36,
            &u32::from(self.state == State::BeingApplied).to_le_bytes(),
        );
        let count: u32 = self.volumes.len().narrow();
        put(&mut header, 40, &count.to_le_bytes());
        for (index, (start, identity)) in self.volumes.iter().enumerate() {
            put(&mut header, volume_at(index), &start.to_le_bytes());
            put(&mut header, identity_at(index), &identity.to_bytes());
        }
        let checksum = checksum(&header);
        put(&mut header, HEADER_BYTES - 4, &checksum.to_le_bytes());
        self.file.write_all_at(&header, 0)
    }

    /// Returns whether a volume is recorded at byte `start` of the base.
    pub(super) fn has_volume(&self, start: u64) -> bool {
        self.volumes.iter().any(|(other, _)| *other == start)
    }

    /// Records durably that a volume with this identity begins at byte `start` of the base.
    pub(super) fn record_volume(&mut self, start: u64, identity: Identity) -> io::Result<()> {
        if self.has_volume(start) {
            return Ok(());
        }
        if self.volumes.len() == VOLUMES_MAX {
            let what = format!(
                "overlay {}: it has changes of {VOLUMES_MAX} volumes already; use another overlay",
                self.path.display()
            );
            return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        }
        self.volumes.push((start, identity));
        self.write_header()?;
        self.sync()
    }

    /// Returns the bytes of the base at which volumes begin.
    pub(super) fn volumes(&self) -> Vec<u64> {
        // Overlays of earlier versions list none, and most volumes begin at the first byte.
        match self.volumes.as_slice() {
            [] => vec![0],
            volumes => volumes.iter().map(|(start, _)| *start).collect(),
        }
    }

    /// Returns the start of the first volume whose identity is recorded and not what `is_same` accepts.
    pub(super) fn replaced_volume(
        &self,
        mut is_same: impl FnMut(u64, Identity) -> io::Result<bool>,
    ) -> io::Result<Option<u64>> {
        for &(start, recorded) in &self.volumes {
            if recorded != Identity::UNKNOWN && !is_same(start, recorded)? {
                return Ok(Some(start));
            }
        }
        Ok(None)
    }

    /// Marks the file as being applied to the base.
    pub(super) fn begin_to_apply(&mut self) -> io::Result<()> {
        self.state = State::BeingApplied;
        self.write_header()?;
        self.sync()
    }

    /// Deletes the side file.
    pub(super) fn remove(self) -> io::Result<()> {
        std::fs::remove_file(&self.path)
    }

    pub(super) fn read(&self, at: u64, bytes: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(bytes, self.data_start.exact_add(at))
    }

    pub(super) fn write(&self, at: u64, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all_at(bytes, self.data_start.exact_add(at))
    }

    pub(super) fn zero(&self, at: u64, length: u64) -> io::Result<()> {
        if crate::file::punch_hole(&self.file, self.data_start.exact_add(at), length)? {
            return Ok(());
        }
        let zeros = vec![0; 65536];
        let mut done = 0_u64;
        while done < length {
            let count = at_most(length.exact_sub(done), zeros.len());
            let part = zeros.get(..count).ok_or_else(|| invalid("a part of zeros"))?;
            self.write(at.exact_add(done), part)?;
            done = done.exact_add(byte_length(count));
        }
        Ok(())
    }

    pub(super) fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    /// Reads the map from the file. Reads only the parts of the map that were ever written.
    pub(super) fn load_map(&self) -> io::Result<Map> {
        let mut map = Map::default();
        let end = MAP_START.exact_add(map_bytes(self.base.size_bytes));
        let mut position = MAP_START;
        while position < end {
            position = match rustix::fs::seek(&self.file, rustix::fs::SeekFrom::Data(position)) {
                Ok(data) => data,
                // No more data follows, or the host file system does not report holes; then the
                // whole map is read.
                Err(rustix::io::Errno::NXIO) => break,
                Err(_) => position,
            };
            let page = position.exact_sub(MAP_START).quotient(byte_length(MAP_PAGE));
            position = MAP_START.exact_add(page.exact_mul(byte_length(MAP_PAGE)));
            if position >= end {
                break;
            }
            let mut bytes = vec![0; MAP_PAGE];
            self.file.read_exact_at(&mut bytes, position)?;
            if bytes.iter().any(|byte| *byte != 0) {
                map.pages.insert(page, bytes);
            }
            position = position.exact_add(byte_length(MAP_PAGE));
        }
        Ok(map)
    }

    /// Writes parts of the side file's map.
    pub(super) fn write_map(&self, pages: &BTreeMap<u64, Vec<u8>>) -> io::Result<()> {
        for (page, bytes) in pages {
            let at = MAP_START.exact_add(page.exact_mul(byte_length(MAP_PAGE)));
            self.file.write_all_at(bytes, at)?;
        }
        Ok(())
    }
}

impl Drop for SideFile {
    fn drop(&mut self) {
        crate::file::guard::release(&self.file);
    }
}

/// Acquires the lock: exclusive for a writer, shared for a reader.
fn lock(file: &File, path: &Path, writable: bool) -> io::Result<()> {
    let operation = if writable {
        FlockOperation::NonBlockingLockExclusive
    } else {
        FlockOperation::NonBlockingLockShared
    };
    match rustix::fs::flock(file, operation) {
        Err(rustix::io::Errno::WOULDBLOCK) => Err(io::Error::new(
            io::ErrorKind::ResourceBusy,
            format!(
                "overlay {} is in use by another process; wait for this process",
                path.display()
            ),
        )),
        _ => Ok(()),
    }
}

/// Returns the place in the header of a volume's start.
fn volume_at(index: usize) -> usize {
    VOLUMES_AT.exact_add(index.exact_mul(8))
}

/// Returns the place in the header of a volume's identity, after all starts.
fn identity_at(index: usize) -> usize {
    volume_at(VOLUMES_MAX.exact_add(index))
}

fn map_bytes(base_bytes: u64) -> u64 {
    let blocks = base_bytes.div_ceil(BLOCK_BYTES);
    blocks.div_ceil(BLOCKS_PER_PAGE).exact_mul(MAP_PAGE as u64)
}

fn data_start(base_bytes: u64) -> u64 {
    let end = MAP_START.exact_add(map_bytes(base_bytes));
    end.div_ceil(1 << 20).exact_mul(1 << 20)
}

/// The blocks that a side file holds, and changes of its map that are not written yet. The memory
/// of the overlay's map is proportional to the changes.
#[derive(Debug, Default)]
pub(super) struct Map {
    pages: BTreeMap<u64, Vec<u8>>,
    dirty: BTreeSet<u64>,
}

impl Map {
    fn place(block: u64) -> (u64, usize, u8) {
        let within = block.remainder(BLOCKS_PER_PAGE);
        let byte = (within >> 3).narrow();
        (block.quotient(BLOCKS_PER_PAGE), byte, 1 << (within & 7))
    }

    pub(super) fn has(&self, block: u64) -> bool {
        let (page, byte, bit) = Self::place(block);
        let byte = self.pages.get(&page).and_then(|page| page.get(byte));
        byte.is_some_and(|byte| byte & bit != 0)
    }

    pub(super) fn add(&mut self, blocks: Range<u64>) {
        for block in blocks {
            let (page, byte, bit) = Self::place(block);
            let bytes = self.pages.entry(page).or_insert_with(|| vec![0; MAP_PAGE]);
            if let Some(byte) = bytes.get_mut(byte)
                && *byte & bit == 0
            {
                *byte |= bit;
                self.dirty.insert(page);
            }
        }
    }

    /// Returns and clears the parts of the map that changed since the last call.
    pub(super) fn take_dirty(&mut self) -> BTreeMap<u64, Vec<u8>> {
        let dirty = std::mem::take(&mut self.dirty);
        let page = |number| Some((number, self.pages.get(&number)?.clone()));
        dirty.into_iter().filter_map(page).collect()
    }

    /// Restores the changed parts that could not be written.
    pub(super) fn give_back(&mut self, pages: BTreeMap<u64, Vec<u8>>) {
        self.dirty.extend(pages.into_keys());
    }

    /// Returns the blocks that the side file holds, in ascending runs of at most `most` blocks.
    pub(super) fn runs(&self, most: u64) -> Vec<Range<u64>> {
        let mut runs: Vec<Range<u64>> = Vec::new();
        for (page, bytes) in &self.pages {
            let first = page.exact_mul(BLOCKS_PER_PAGE);
            for (byte, value) in (0_u64..).zip(bytes) {
                for bit in (0..8_u64).filter(|bit| value.wrapping_shr(bit.narrow()) & 1 == 1) {
                    let block = first.exact_add(byte.exact_mul(8)).exact_add(bit);
                    match runs.last_mut() {
                        Some(last) if last.end == block && block.exact_sub(last.start) < most => {
                            last.end = block.exact_add(1);
                        }
                        _ => runs.push(block..block.exact_add(1)),
                    }
                }
            }
        }
        runs
    }
}
