//! Partitions inside an image or a device: where a volume's byte 0 lies.
//!
//! A GUID partition table is taken first ([`gpt`]), from its backup if the primary is damaged, then a master boot
//! record ([`mbr`]) with the logical partitions of its extended ones. A volume on a partition then sees a
//! backend of its own ([`mod@window`]) that begins and ends where the partition does.
//!
//! Tables are not trusted: what lies outside the device, overflows, or runs in a circle is an error or is
//! passed over; never more than [`gpt::TABLE_BYTES`] are read, nor more than [`mbr::MAX_LOGICAL`] links followed.
//!
//! Clamps: numbers of a partition table, which can be anything; what they reach past the device is refused.

pub(crate) mod gpt;
pub(crate) mod mbr;
mod window;

use std::io;
use std::ops::Range;
use std::sync::Arc;

use crate::backend::Backend;
use crate::error::check_range;
use window::Window;

/// Where on a file or block device the volume starts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Offset {
    /// At its first byte; the volume may use all of it.
    #[default]
    Whole,
    /// At this byte; the volume may use all that follows.
    Bytes(u64),
    /// At the start of the partition with this number, counted from 1 as `sda1` is; it ends where that ends.
    Partition(u32),
}

/// One partition of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Partition {
    /// Counted from 1; logical partitions of a master boot record from 5.
    pub(crate) number: u32,
    /// The bytes it takes on the device.
    pub(crate) range: Range<u64>,
}

/// The part of `whole` that `offset` names, as a backend of its own.
///
/// `sector_bytes` is the device's logical sector, in which tables count; `None` for image files, which do not
/// tell: there a GUID table shows it by where it lies, and a master boot record is taken to count 512 bytes.
///
/// # Errors
/// When there is no such place, or no table, or the table is damaged.
pub fn window(
    whole: Arc<dyn Backend>,
    offset: Offset,
    sector_bytes: Option<u32>,
) -> io::Result<Arc<dyn Backend>> {
    let size = whole.size_bytes();
    let (name, range) = match offset {
        Offset::Whole => return Ok(whole),
        Offset::Bytes(start) if start > size => {
            let what = format!("the offset {start} is past its end at {size} bytes");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        }
        Offset::Bytes(start) => (format!("{} at offset {start}", whole.name()), start..size),
        Offset::Partition(number) => {
            let table = read_table(whole.as_ref(), sector_bytes)?;
            let name = format!("{} partition {number}", whole.name());
            (name, table.find(number, size)?)
        }
    };
    Ok(Arc::new(Window::new(whole, name, range)))
}

/// A partition table, and what kind it is.
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

/// `length` bytes from `offset` on, or `None` if the device does not have them.
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
