//! Headers and pages of an index as bytes. All numbers are little-endian, and unused bytes are
//! zero.

use crate::error::IndexProblem;
use crate::identity::{FoundDevice, Identity};
use crate::record::RECORD_BYTES;
use crate::scan::{OTHERS_MAX, Scanned};
use buttress_exact::Exact as _;
use buttress_format::superblock::{CompatRo, Incompat};
use buttress_format::{ByteCount, ChecksumType, DeviceId, Generation, crc32c};
use uuid::Uuid;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

pub(super) const HEADER_BYTES: usize = 16 << 10;
pub(super) const PAGE_BYTES: usize = 64 << 10;

/// The offset of the first page.
pub(super) const PAGES_AT: u64 = 2 * HEADER_BYTES as u64;

const PAGE_HEAD_BYTES: usize = 16;

/// The bytes of a record number in an order page.
pub(super) const NUMBER_BYTES: usize = 4;

/// The largest number of records: record numbers have 32 bits.
pub(super) const RECORDS_MAX: u64 = u32::MAX as u64;

/// The largest number of devices of an index.
pub const DEVICES_MAX: usize = 240;

const MAGIC: [u8; 8] = *b"BUTTSCAN";
const VERSION: u32 = 1;

/// The content of an index page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub(super) enum PageKind {
    Records = 1,
    Order = 2,
}

impl PageKind {
    pub(super) const fn entry_bytes(self) -> usize {
        match self {
            Self::Records => RECORD_BYTES,
            Self::Order => NUMBER_BYTES,
        }
    }

    /// Returns the number of entries of a full page.
    pub(super) fn entries_max(self) -> usize {
        (PAGE_BYTES - PAGE_HEAD_BYTES).quotient(self.entry_bytes())
    }
}

/// The state of an index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) sequence: u64,
    /// True if the records are sorted, and the order pages exist.
    pub(super) is_complete: bool,
    pub(super) identity: Identity,
    /// The position of each device: all blocks before it are in the pages.
    pub(super) positions: Vec<u64>,
    pub(super) found: Scanned,
    /// The number of pages of records.
    pub(super) pages: u64,
    pub(super) records: u64,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawOther {
    fsid: [u8; 16],
    count: U64,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawDevice {
    uuid: [u8; 16],
    id: U64,
    generation: U64,
    size: U64,
    changed_seconds: U64,
    changed_nanoseconds: U32,
    /// 1: a superblock of the file system was found. 2: the time of change is known.
    flags: U32,
    position: U64,
}

#[derive(Clone, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawHeader {
    magic: [u8; 8],
    version: U32,
    is_complete: U32,
    sequence: U64,
    node_bytes: U32,
    sector_bytes: U32,
    fsid: [u8; 16],
    metadata_uuid: [u8; 16],
    former_uuid: [u8; 16],
    incompat: U64,
    compat_ro: U64,
    checksum_type: U16,
    devices: U16,
    zero: U32,
    pages: U64,
    records: U64,
    read: U64,
    unreadable: U64,
    blocks: U64,
    damaged: U64,
    others: [RawOther; OTHERS_MAX],
    device: [RawDevice; DEVICES_MAX],
    rest: [u8; REST_BYTES],
    checksum: U32,
}

const REST_BYTES: usize = HEADER_BYTES
    - (8 + 4 + 4 + 8 + 4 + 4 + 16 * 3 + 8 * 2 + 2 + 2 + 4 + 8 * 6)
    - OTHERS_MAX * size_of::<RawOther>()
    - DEVICES_MAX * size_of::<RawDevice>()
    - 4;

const _: () = assert!(size_of::<RawHeader>() == HEADER_BYTES);

fn checksum_of(bytes: &[u8]) -> u32 {
    !crc32c(u32::MAX, bytes)
}

fn option_of(uuid: [u8; 16]) -> Option<Uuid> {
    let uuid = Uuid::from_bytes(uuid);
    (!uuid.is_nil()).then_some(uuid)
}

impl Header {
    pub(super) fn encode(&self) -> Box<[u8; HEADER_BYTES]> {
        let identity = &self.identity;
        let mut raw = RawHeader::new_zeroed();
        raw.magic = MAGIC;
        raw.version = VERSION.into();
        raw.is_complete = u32::from(self.is_complete).into();
        raw.sequence = self.sequence.into();
        raw.node_bytes = identity.node_bytes.into();
        raw.sector_bytes = identity.sector_bytes.into();
        raw.fsid = identity.fsid.into_bytes();
        raw.metadata_uuid = identity.metadata_uuid.into_bytes();
        raw.former_uuid = identity.former_uuid.unwrap_or_default().into_bytes(); // Clamp: nil means none.
        raw.incompat = identity.incompat.bits().into();
        raw.compat_ro = identity.compat_ro.bits().into();
        raw.checksum_type = identity.checksum_type.to_raw().into();
        raw.devices = identity.devices.len().narrow::<u16>().into();
        raw.pages = self.pages.into();
        raw.records = self.records.into();
        raw.read = self.found.read.get().into();
        raw.unreadable = self.found.unreadable.get().into();
        raw.blocks = self.found.blocks.into();
        raw.damaged = self.found.damaged.into();
        for (place, (fsid, count)) in raw.others.iter_mut().zip(&self.found.others) {
            place.fsid = fsid.into_bytes();
            place.count = (*count).into();
        }
        let devices = identity.devices.iter().zip(&self.positions);
        for (place, (device, position)) in raw.device.iter_mut().zip(devices) {
            *place = encode_device(device, *position);
        }
        let mut bytes = Box::new([0; HEADER_BYTES]);
        bytes.copy_from_slice(raw.as_bytes());
        let (covered, checksum) = bytes.split_at_mut(HEADER_BYTES - 4);
        checksum.copy_from_slice(&checksum_of(covered).to_le_bytes());
        bytes
    }

    /// Decodes and checks a header.
    pub(super) fn decode(bytes: &[u8; HEADER_BYTES]) -> Result<Self, IndexProblem> {
        let raw = RawHeader::ref_from_bytes(bytes).map_err(|_| IndexProblem::Header)?;
        if raw.magic != MAGIC {
            return Err(IndexProblem::NoIndex);
        }
        let (covered, _) = bytes.split_at(HEADER_BYTES - 4);
        if checksum_of(covered) != raw.checksum.get() {
            return Err(IndexProblem::Header);
        }
        if raw.version.get() != VERSION {
            return Err(IndexProblem::Version {
                found: raw.version.get(),
                expected: VERSION,
            });
        }
        let wrong = |field, found| IndexProblem::Field { field, found };
        let node_bytes = raw.node_bytes.get();
        if !node_bytes.is_power_of_two() || !(4 << 10..=64 << 10).contains(&node_bytes) {
            return Err(wrong("node size", node_bytes.into()));
        }
        let sector_bytes = raw.sector_bytes.get();
        if !sector_bytes.is_power_of_two() || !(4 << 10..=node_bytes).contains(&sector_bytes) {
            return Err(wrong("sector size", sector_bytes.into()));
        }
        let checksum_type = raw.checksum_type.get();
        let devices = usize::from(raw.devices.get());
        if !(1..=DEVICES_MAX).contains(&devices) {
            return Err(wrong("number of devices", devices as u64));
        }
        let (pages, records) = (raw.pages.get(), raw.records.get());
        let most = pages.checked_mul(PageKind::Records.entries_max() as u64);
        if records > RECORDS_MAX || most.is_none_or(|most| records > most) {
            return Err(wrong("number of records", records));
        }
        let is_complete = match raw.is_complete.get() {
            0 => false,
            1 => true,
            other => return Err(wrong("phase", other.into())),
        };
        let decoded = raw.device.iter().take(devices).map(decode_device);
        let (devices, positions) = decoded.collect::<Result<_, _>>()?;
        Ok(Self {
            sequence: raw.sequence.get(),
            is_complete,
            identity: Identity {
                fsid: Uuid::from_bytes(raw.fsid),
                metadata_uuid: Uuid::from_bytes(raw.metadata_uuid),
                former_uuid: option_of(raw.former_uuid),
                node_bytes,
                sector_bytes,
                checksum_type: ChecksumType::from_raw(checksum_type)
                    .ok_or_else(|| wrong("checksum type", checksum_type.into()))?,
                incompat: Incompat::from_bits_retain(raw.incompat.get()),
                compat_ro: CompatRo::from_bits_retain(raw.compat_ro.get()),
                devices,
            },
            positions,
            found: Scanned {
                read: ByteCount::new(raw.read.get()),
                unreadable: ByteCount::new(raw.unreadable.get()),
                blocks: raw.blocks.get(),
                damaged: raw.damaged.get(),
                others: raw
                    .others
                    .iter()
                    .filter_map(|other| Some((option_of(other.fsid)?, other.count.get())))
                    .collect(),
            },
            pages,
            records,
        })
    }
}

const HAS_SUPERBLOCK: u32 = 1;
const HAS_TIME: u32 = 2;

fn encode_device(device: &FoundDevice, position: u64) -> RawDevice {
    let mut raw = RawDevice::new_zeroed();
    let mut flags = 0;
    if let Some((uuid, id, generation)) = device.member {
        flags |= HAS_SUPERBLOCK;
        raw.uuid = uuid.into_bytes();
        raw.id = id.get().into();
        raw.generation = generation.get().into();
    }
    if let Some((seconds, nanoseconds)) = device.changed_at {
        flags |= HAS_TIME;
        raw.changed_seconds = seconds.cast_unsigned().into();
        raw.changed_nanoseconds = nanoseconds.into();
    }
    raw.size = device.size.get().into();
    raw.flags = flags.into();
    raw.position = position.into();
    raw
}

fn decode_device(raw: &RawDevice) -> Result<(FoundDevice, u64), IndexProblem> {
    let wrong = |field, found| IndexProblem::Field { field, found };
    let flags = raw.flags.get();
    if flags & !(HAS_SUPERBLOCK | HAS_TIME) != 0 {
        return Err(wrong("device", flags.into()));
    }
    let device = FoundDevice {
        size: ByteCount::new(raw.size.get()),
        changed_at: (flags & HAS_TIME != 0).then(|| {
            (
                raw.changed_seconds.get().cast_signed(),
                raw.changed_nanoseconds.get(),
            )
        }),
        member: (flags & HAS_SUPERBLOCK != 0).then(|| {
            let (id, generation) = (DeviceId::new(raw.id.get()), Generation::new(raw.generation.get()));
            (Uuid::from_bytes(raw.uuid), id, generation)
        }),
    };
    Ok((device, raw.position.get()))
}

/// Returns the bytes of a page.
pub(super) fn encode_page(kind: PageKind, number: u64, entries: &[u8]) -> Vec<u8> {
    let count = entries.len().quotient(kind.entry_bytes()).narrow::<u16>();
    let mut page = Vec::with_capacity(PAGE_BYTES);
    page.extend_from_slice(&[0; 4]);
    page.extend_from_slice(&(kind as u16).to_le_bytes());
    page.extend_from_slice(&count.to_le_bytes());
    page.extend_from_slice(&number.to_le_bytes());
    page.extend_from_slice(entries);
    page.resize(PAGE_BYTES, 0);
    let (checksum, covered) = page.split_at_mut(4);
    checksum.copy_from_slice(&checksum_of(covered).to_le_bytes());
    page
}

/// Checks a page. Returns the bytes of its entries.
pub(super) fn check_page(page: &[u8], kind: PageKind, number: u64) -> Result<&[u8], IndexProblem> {
    let wrong = |what| IndexProblem::Page { page: number, what };
    let (checksum, covered) = page.split_first_chunk::<4>().ok_or(wrong("its length"))?;
    if page.len() != PAGE_BYTES {
        return Err(wrong("its length"));
    }
    if u32::from_le_bytes(*checksum) != checksum_of(covered)
        && !buttress_faults::on("salvage-index-page-unchecked")
    {
        return Err(wrong("its checksum"));
    }
    let (stored_kind, rest) = covered.split_first_chunk::<2>().ok_or(wrong("its length"))?;
    let (count, rest) = rest.split_first_chunk::<2>().ok_or(wrong("its length"))?;
    let (stored_number, entries) = rest.split_first_chunk::<8>().ok_or(wrong("its length"))?;
    if u16::from_le_bytes(*stored_kind) != kind as u16 {
        return Err(wrong("its kind"));
    }
    if u64::from_le_bytes(*stored_number) != number {
        return Err(wrong("its number"));
    }
    let length = usize::from(u16::from_le_bytes(*count)).checked_mul(kind.entry_bytes());
    let entries = length.and_then(|length| entries.get(..length));
    entries.ok_or(wrong("its number of entries"))
}
