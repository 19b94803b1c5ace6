//! Partitions inside an image or a device: the location of a volume's byte 0.
//!
//! The search tries a GUID partition table first ([`gpt`]), from its backup if the primary is
//! damaged. After a GUID table, the search tries a master boot record ([`mbr`]), with the logical
//! partitions of its extended ones. A volume on a partition uses a backend of its own
//! ([`mod@window`]) with the bounds of the partition.
//!
//! The reader does not trust partition tables. An entry that lies outside the device, overflows, or
//! forms a cycle is an error or is skipped. The parser reads at most [`gpt::TABLE_BYTES`], and
//! follows at most [`mbr::MAX_LOGICAL`] links.
//!
//! Clamps: a partition table may contain any numbers; ranges beyond the device are refused.

pub(crate) mod gpt;
pub(crate) mod mbr;
mod window;

use std::io;
use std::ops::Range;
use std::sync::Arc;

use crate::backend::Backend;
use crate::error::check_range;
use window::Window;

/// The offset on a file or block device at which the volume starts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Offset {
    /// The volume begins at the first byte. The volume may use the whole device.
    #[default]
    Whole,
    /// At this byte of the device. The volume may use all bytes from this offset on.
    Bytes(u64),
    /// At the start of the partition with this number, counted from 1 as in `sda1`. If a partition
    /// is given, the volume ends at the partition's end.
    Partition(u32),
}

/// A partition of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Partition {
    /// The number of the partition, from 1. Logical partitions of a master boot record are numbered
    /// from 5.
    pub(crate) number: u32,
    /// The range of bytes on the device.
    pub(crate) range: Range<u64>,
}

/// Returns the part of `whole` that `offset` names, as a backend of its own.
///
/// `sector_bytes` is the device's logical sector, the unit of partition tables. `sector_bytes` is
/// `None` for image files, whose sector size is unknown. A GUID table reveals the sector by its
/// position, and a master boot record is assumed to use 512 bytes.
///
/// # Errors
/// Fails if the offset does not exist, if the device has no table, or if the table is damaged.
pub fn window(
    whole: Arc<dyn Backend>,
    offset: Offset,
    sector_bytes: Option<u32>,
) -> io::Result<Arc<dyn Backend>> {
    let name = match offset {
        Offset::Whole => return Ok(whole),
        Offset::Bytes(start) => format!("{} at offset {start}", whole.name()),
        Offset::Partition(number) => format!("{} partition {number}", whole.name()),
    };
    let range = range_of(whole.as_ref(), offset, sector_bytes)?;
    Ok(Arc::new(Window::new(whole, name, range)))
}

/// Returns the range of bytes of `whole` that `offset` names.
///
/// # Errors
/// Fails as [`window`] does.
pub(crate) fn range_of(
    whole: &dyn Backend,
    offset: Offset,
    sector_bytes: Option<u32>,
) -> io::Result<Range<u64>> {
    let size = whole.size_bytes();
    match offset {
        Offset::Whole => Ok(0..size),
        Offset::Bytes(start) if start > size => {
            let what = format!("the offset {start} is past its end at {size} bytes");
            Err(io::Error::new(io::ErrorKind::InvalidInput, what))
        }
        Offset::Bytes(start) => Ok(start..size),
        Offset::Partition(number) => read_table(whole, sector_bytes)?.find(number, size),
    }
}

/// A partition table and its kind.
pub(crate) struct Table {
    pub(crate) kind: &'static str,
    pub(crate) partitions: Vec<Partition>,
}

impl Table {
    fn find(&self, number: u32, size: u64) -> io::Result<Range<u64>> {
        let Some(found) = self
            .partitions
            .iter()
            .find(|partition| partition.number == number)
        else {
            let present: Vec<String> = self.partitions.iter().map(|p| p.number.to_string()).collect();
            let present = if present.is_empty() {
                "none".to_owned()
            } else {
                present.join(", ")
            };
            let what = format!("its {} has no partition {number} (found {present})", self.kind);
            return Err(io::Error::new(io::ErrorKind::NotFound, what));
        };
        let Range { start, end } = found.range;
        if start >= end || end > size {
            return Err(invalid(format!(
                "partition {number} of its {} exceeds the device (found bytes [{start}, {end}), expected at most {size})",
                self.kind
            )));
        }
        Ok(start..end)
    }
}

fn read_table(device: &dyn Backend, sector_bytes: Option<u32>) -> io::Result<Table> {
    if let Some(table) = gpt::read(device, sector_bytes)? {
        return Ok(table);
    }
    match mbr::read(device, sector_bytes.unwrap_or(512))? {
        Some(table) => Ok(table),
        None => Err(io::Error::new(
            io::ErrorKind::NotFound,
            "it has no partition table (neither GPT nor MBR); to use the whole device, leave out --offset",
        )),
    }
}

fn invalid(what: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.into())
}

/// Returns `length` bytes from `offset` on, or `None` if the device is too short.
fn read_at(device: &dyn Backend, offset: u64, length: usize) -> io::Result<Option<Vec<u8>>> {
    if check_range(device.size_bytes(), offset, crate::error::byte_length(length)).is_err() {
        return Ok(None);
    }
    let mut bytes = vec![0; length];
    device.read_vectored_at(offset, &mut [&mut bytes[..]])?;
    Ok(Some(bytes))
}

fn le_u32(bytes: &[u8], at: usize) -> Option<u32> {
    bytes
        .get(at..)?
        .first_chunk()
        .map(|chunk| u32::from_le_bytes(*chunk))
}

fn le_u64(bytes: &[u8], at: usize) -> Option<u64> {
    bytes
        .get(at..)?
        .first_chunk()
        .map(|chunk| u64::from_le_bytes(*chunk))
}
