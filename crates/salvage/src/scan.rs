//! A pass over whole devices, which finds every tree block of a file system.
//!
//! The pass reads each device in units of 1 MiB, in address order and on all devices at once. Holes
//! of image files are skipped. Each worker thread reads one unit, compares the uuid in each sector
//! with the file system's, and checks the blocks that have it. The calling thread hands out the
//! units and takes their records in the order of the units. A block with a wrong checksum counts if
//! its header is plausible: its items may be useful.
//!
//! # Invariants
//!
//! - At most `WINDOW` units are read or waiting, so memory has a bound.
//! - The calling thread gets one answer for each unit, even if a worker panics.
//! - The order of records depends on the devices alone, not on threads.

use crate::error::{Error, Result};
use crate::header::{self, STEP_BYTES};
use crate::identity::Identity;
use crate::record::{Record, RecordFlags};
use buttress_device::{Buffer, Device};
use buttress_exact::{Defect, Exact as _, at_most, usize_of};
use buttress_format::node::{Expectation, HeaderFlags};
use buttress_format::{BlockFormat, ByteCount, Generation, Key, Logical, Physical, TreeBlock, TreeId};
use buttress_fs::Progress;
use core::ops::Range;
use crossbeam_channel::{Receiver, Sender, bounded};
use std::collections::{BTreeMap, VecDeque};
use uuid::Uuid;

/// The bytes of a device that a worker scans at once.
const UNIT_BYTES: u64 = 1 << 20;

/// The number of units that are read or waiting at once.
const WINDOW: usize = 64;

/// The smallest number of worker threads, which keeps several reads in flight.
const WORKERS_MIN: usize = 4;

/// The number of other file systems that a scan counts.
pub const OTHERS_MAX: usize = 8;

/// The counts of a scan.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scanned {
    /// The bytes that the scan read. Holes are left out.
    pub read: ByteCount,
    /// The bytes that could not be read.
    pub unreadable: ByteCount,
    /// The number of blocks with a correct checksum.
    pub blocks: u64,
    /// The number of blocks with a wrong checksum and a plausible header.
    pub damaged: u64,
    /// The plausible headers of other file systems, by uuid; at most [`OTHERS_MAX`] uuids. Their
    /// checksums were not computed.
    pub others: BTreeMap<Uuid, u64>,
}

impl Scanned {
    /// Adds the counts of another part of the devices.
    pub fn add(&mut self, more: &Self) {
        let sum = |one: ByteCount, other: ByteCount| ByteCount::new(one.get().exact_add(other.get()));
        self.read = sum(self.read, more.read);
        self.unreadable = sum(self.unreadable, more.unreadable);
        self.blocks = self.blocks.exact_add(more.blocks);
        self.damaged = self.damaged.exact_add(more.damaged);
        for (fsid, count) in &more.others {
            if self.others.len() < OTHERS_MAX || self.others.contains_key(fsid) {
                let sum = self.others.entry(*fsid).or_default();
                *sum = sum.exact_add(*count);
            }
        }
    }
}

/// The receiver of a scan's results, in the order of the units.
pub trait ScanSink {
    /// Returns the position from which a device is scanned.
    fn start(&self, device: usize) -> u64;

    /// Receives the results for one device up to this position: all blocks that begin before it.
    ///
    /// # Errors
    /// Fails if the records cannot be kept.
    fn take(&mut self, device: usize, position: u64, records: &[Record], found: &Scanned) -> Result<()>;
}

/// A part of one device.
struct Unit {
    device: usize,
    range: Range<u64>,
}

/// The records of one unit, and its counts.
type Answer = Result<(Vec<Record>, Scanned)>;

/// Scans all devices, and passes the records to `sink`.
///
/// # Errors
/// Fails if `progress` was cancelled, if the sink fails, or if a device cannot report its data. A
/// read that fails is no error: its bytes are counted as unreadable.
pub fn scan(
    devices: &[Device],
    identity: &Identity,
    sink: &mut dyn ScanSink,
    progress: &Progress,
) -> Result<()> {
    let format = format_of(identity);
    let starts: Vec<u64> = (0..devices.len()).map(|device| sink.start(device)).collect();
    let expected = devices.iter().zip(&starts).map(|(device, start)| {
        // Clamp: an image that was cut off since its last scan has no rest.
        device.size_bytes().saturating_sub(*start)
    });
    progress.expect(ByteCount::new(expected.sum()));
    let workers = buttress_device::placement::processors().max(WORKERS_MIN);
    std::thread::scope(|scope| {
        let (units_in, units) = bounded::<(u64, Unit)>(WINDOW);
        let (answers_in, answers) = bounded::<(u64, Answer)>(WINDOW);
        for _ in 0..workers {
            let (units, answers) = (units.clone(), answers_in.clone());
            let format = &format;
            scope.spawn(move || work(devices, format, &units, &answers));
        }
        drop((units, answers_in));
        let mut plan = Plan::new(devices, starts);
        collect(&mut plan, &units_in, &answers, sink, progress)
    })
}

/// Hands out units, and passes their records on in order.
fn collect(
    plan: &mut Plan<'_>,
    units: &Sender<(u64, Unit)>,
    answers: &Receiver<(u64, Answer)>,
    sink: &mut dyn ScanSink,
    progress: &Progress,
) -> Result<()> {
    let lost = || Error::from(Defect::new("the threads of a scan ended early"));
    let mut positions: Vec<u64> = plan
        .states
        .iter()
        .map(|state| state.map_or(0, |(at, _)| at))
        .collect();
    let mut waiting: VecDeque<(usize, Range<u64>)> = VecDeque::new();
    let mut early: BTreeMap<u64, Answer> = BTreeMap::new();
    let (mut sent, mut taken) = (0_u64, 0_u64);
    loop {
        while waiting.len() < WINDOW {
            let Some(unit) = plan.next()? else { break };
            waiting.push_back((unit.device, unit.range.clone()));
            units.send((sent, unit)).map_err(|_| lost())?;
            sent = sent.exact_add(1);
        }
        let Some((device, range)) = waiting.pop_front() else {
            return Ok(());
        };
        let answer = loop {
            if let Some(answer) = early.remove(&taken) {
                break answer;
            }
            progress.check()?;
            let (number, answer) = answers.recv().map_err(|_| lost())?;
            early.insert(number, answer);
        };
        taken = taken.exact_add(1);
        let (records, found) = answer?;
        progress.check()?;
        sink.take(device, range.end, &records, &found)?;
        if let Some(position) = positions.get_mut(device) {
            // Holes before the unit count as done.
            let done = range.end.exact_sub(*position);
            *position = range.end;
            progress.advance(records.len() as u64, ByteCount::new(done));
        }
    }
}

/// The units that are left, one device after another in turn.
struct Plan<'a> {
    devices: &'a [Device],
    /// The position of each device, and the end of the data at it. `None` at the end of the device.
    states: Vec<Option<(u64, u64)>>,
    turn: usize,
}

impl<'a> Plan<'a> {
    fn new(devices: &'a [Device], starts: Vec<u64>) -> Self {
        Self {
            devices,
            states: starts.into_iter().map(|start| Some((start, start))).collect(),
            turn: 0,
        }
    }

    fn next(&mut self) -> Result<Option<Unit>> {
        for _ in 0..self.devices.len() {
            let number = self.turn;
            self.turn = self.turn.exact_add(1).remainder(self.devices.len());
            let (Some(device), Some(state)) = (self.devices.get(number), self.states.get_mut(number)) else {
                continue;
            };
            if let Some(range) = next_range(device, state)? {
                return Ok(Some(Unit {
                    device: number,
                    range,
                }));
            }
        }
        Ok(None)
    }
}

/// Returns the next range of a device that may hold data, and advances the device's state.
fn next_range(device: &Device, state: &mut Option<(u64, u64)>) -> Result<Option<Range<u64>>> {
    const STEP: u64 = STEP_BYTES as u64;
    let Some((at, data_end)) = *state else {
        return Ok(None);
    };
    let (start, data_end) = if at < data_end {
        (at, data_end)
    } else {
        match device.next_data(at)? {
            // A block begins at a whole sector, and so does a unit. A unit never begins before `at`.
            Some(data) => (data.start.quotient(STEP).exact_mul(STEP).max(at), data.end),
            None => {
                *state = None;
                return Ok(None);
            }
        }
    };
    // Units end at whole MiB, so that they do not depend on the places of holes and interruptions.
    let unit_end = start.quotient(UNIT_BYTES).exact_add(1).exact_mul(UNIT_BYTES);
    let end = unit_end.min(data_end.checked_next_multiple_of(STEP).unwrap_or(data_end)); // Clamp: the end of the device.
    *state = Some((end, data_end));
    Ok(Some(start..end))
}

/// Answers the units of a scan. An answer goes out for each unit, even if the work on it panics.
fn work(
    devices: &[Device],
    format: &BlockFormat,
    units: &Receiver<(u64, Unit)>,
    answers: &Sender<(u64, Answer)>,
) {
    for (number, unit) in units {
        let mut reply = Reply {
            number,
            answer: Err(Defect::new("a thread of a scan panicked")
                .with("unit", number)
                .into()),
            answers,
        };
        reply.answer = match devices.get(unit.device) {
            Some(device) => Ok(scan_unit(device, &unit, format)),
            None => Err(Defect::new("a unit of no device").with("unit", number).into()),
        };
    }
}

/// An answer that is sent when it is dropped.
struct Reply<'a> {
    number: u64,
    answer: Answer,
    answers: &'a Sender<(u64, Answer)>,
}

impl Drop for Reply<'_> {
    fn drop(&mut self) {
        let answer = core::mem::replace(&mut self.answer, Ok(Default::default()));
        // The receiver is gone after an error or a cancellation.
        let _ = self.answers.send((self.number, answer));
    }
}

/// Returns the rules of blocks for a scan: any generation is possible.
pub(crate) fn format_of(identity: &Identity) -> BlockFormat {
    BlockFormat {
        node_bytes: identity.node_bytes,
        sector_bytes: identity.sector_bytes,
        checksum_type: identity.checksum_type,
        former_checksum_type: None,
        changes_checksums: false,
        fsid: identity.metadata_uuid,
        seed_fsids: identity.former_uuid.into_iter().collect(),
        chunk_tree_uuid: None,
        generation: Generation::new(u64::MAX - 1).into(),
        incompat: identity.incompat,
        compat_ro: identity.compat_ro,
    }
}

/// Reads a unit, with the rest of a block that begins at its end.
fn scan_unit(device: &Device, unit: &Unit, format: &BlockFormat) -> (Vec<Record>, Scanned) {
    let Range { start, end } = unit.range;
    let own = end.exact_sub(start);
    // Clamp: the device may have become shorter.
    let rest = device.size_bytes().saturating_sub(start);
    let node_bytes = usize_of(format.node_bytes);
    let length = own.narrow::<usize>().exact_add(node_bytes.exact_sub(STEP_BYTES));
    let length = at_most(rest, length);
    let mut found = Scanned {
        read: ByteCount::new(own.min(rest)),
        ..Scanned::default()
    };
    let buffer = match device.read(start, length) {
        Ok(buffer) => buffer,
        Err(_) => read_pieces(device, start, length, own, &mut found),
    };
    let bytes = buffer.into_bytes();
    let mut records = Vec::new();
    for at in (0..at_most(own, bytes.len())).step_by(STEP_BYTES) {
        let Some(sector) = bytes.get(at..) else { continue };
        let Some(fsid) = header::fsid(sector) else {
            continue;
        };
        if fsid != format.fsid && !format.seed_fsids.contains(&fsid) {
            count_other(&mut found.others, fsid, sector);
            continue;
        }
        if header::is_superblock(sector) {
            continue;
        }
        let Some(end) = at.checked_add(node_bytes).filter(|end| *end <= bytes.len()) else {
            continue;
        };
        let physical = Physical::new(start.exact_add(at as u64));
        let block = bytes.slice(at..end);
        // Clamp: the scan gave the device its number.
        let device = u8::try_from(unit.device).unwrap_or(u8::MAX);
        let Some(record) = examine(block, format, device, physical) else {
            continue;
        };
        let count = match record.has_checksum() {
            true => &mut found.blocks,
            false => &mut found.damaged,
        };
        *count = count.exact_add(1);
        records.push(record);
    }
    (records, found)
}

/// Reads a unit sector by sector after its read failed. Unreadable sectors are zero.
fn read_pieces(device: &Device, start: u64, length: usize, own: u64, found: &mut Scanned) -> Buffer {
    let mut bytes = vec![0; length];
    let mut lost = 0_u64;
    for (number, piece) in bytes.chunks_mut(STEP_BYTES).enumerate() {
        let offset = (number as u64).exact_mul(STEP_BYTES as u64);
        match device.read(start.exact_add(offset), piece.len()) {
            Ok(read) => piece.copy_from_slice(&read),
            // The next unit counts the sectors after this unit's end.
            Err(_) if offset < own => lost = lost.exact_add(piece.len() as u64),
            Err(_) => {}
        }
    }
    found.unreadable = ByteCount::new(lost);
    Buffer::from(bytes.as_slice())
}

fn count_other(others: &mut BTreeMap<Uuid, u64>, fsid: Uuid, sector: &[u8]) {
    if !header::is_plausible(sector) {
        return;
    }
    if others.len() < OTHERS_MAX || others.contains_key(&fsid) {
        let count = others.entry(fsid).or_default();
        *count = count.exact_add(1);
    }
}

/// Checks a block that carries the file system's uuid. Returns `None` if neither its checksum nor
/// its header tells that it is a tree block.
fn examine(block: bytes::Bytes, format: &BlockFormat, device: u8, physical: Physical) -> Option<Record> {
    let covered = block.get(32..)?;
    let has_checksum = block.starts_with(format.checksum_type.compute(covered).as_bytes());
    if !has_checksum && !header::is_plausible(&block) {
        return None;
    }
    let logical = block.get(48..)?.first_chunk::<8>()?;
    let logical = Logical::new(u64::from_le_bytes(*logical));
    let checksum = *block.first_chunk::<4>()?;
    let inspected = TreeBlock::inspect(block, format, &Expectation::at(logical));
    let (header, block) = (inspected.block.header(), &inspected.block);
    if header.level > buttress_format::superblock::HIGHEST_LEVEL {
        return None;
    }
    let mut flags = RecordFlags::empty();
    flags.set(RecordFlags::CHECKSUM, has_checksum);
    flags.set(RecordFlags::SOUND, has_checksum && inspected.is_sound());
    flags.set(RecordFlags::RELOCATION, header.flags.contains(HeaderFlags::RELOC));
    flags.set(RecordFlags::FORMER_UUID, header.fsid != format.fsid);
    flags.set(RecordFlags::LOG, header.owner == TreeId::TREE_LOG);
    // Clamp: no sound block has more items.
    let items = u16::try_from(block.item_count()).unwrap_or(u16::MAX);
    let last = block.item_count().checked_sub(1);
    Some(Record {
        logical,
        generation: header.generation,
        owner: header.owner,
        physical,
        device,
        level: header.level,
        items,
        flags,
        checksum,
        // Clamp: a block without items has no key.
        first_key: block.key(0).unwrap_or(Key::MIN),
        last_key: last.and_then(|last| block.key(last)).unwrap_or(Key::MIN),
    })
}
