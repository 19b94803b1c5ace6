//! Seed volumes: small volumes that the kernel made, without blocks of zeros.
//!
//! `fuzz/volumes/NAME.zst` holds the number of devices. For each device the file holds the size,
//! the number of blocks that are not zero, and these blocks: a block number and 4096 bytes. All
//! numbers are little-endian. A [`SeedVolume`] is such a volume in memory, shared by all inputs. An
//! [`Overlay`] is one of its devices with the changes of one input.

use buttress_device::Backend;
use std::collections::{BTreeSet, HashMap};
use std::io::{Error, ErrorKind, Read, Result};
use std::ops::Range;
use std::sync::Arc;

/// The unit in which devices are stored.
pub const BLOCK_BYTES: usize = 4096;

/// The largest unpacked seed volume, in bytes.
const UNPACKED_BYTES_MAX: usize = 256 << 20;

/// A block of a device.
pub type Block = Box<[u8; BLOCK_BYTES]>;

/// A device of a seed volume.
#[derive(Debug)]
pub struct SeedDevice {
    /// The device's size, in bytes.
    pub size_bytes: u64,
    /// The device's blocks that are not zero, by number.
    pub blocks: HashMap<u64, Block>,
}

impl SeedDevice {
    /// Reads a device from any reader of its image.
    ///
    /// # Errors
    /// Reading fails.
    pub fn of_image(mut image: impl Read) -> Result<Self> {
        let mut blocks = HashMap::new();
        let mut number = 0_u64;
        loop {
            let mut block: Block = Box::new([0; BLOCK_BYTES]);
            match image.read_exact(&mut block[..]) {
                Ok(()) => {}
                Err(error) if error.kind() == ErrorKind::UnexpectedEof => break,
                Err(error) => return Err(error),
            }
            if block.iter().any(|byte| *byte != 0) {
                blocks.insert(number, block);
            }
            number += 1;
        }
        Ok(Self {
            size_bytes: number * BLOCK_BYTES as u64,
            blocks,
        })
    }

    /// Returns `length` bytes from `offset` on.
    #[must_use]
    pub fn read(&self, offset: u64, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        copy_out(offset, &mut bytes, |number| self.blocks.get(&number));
        bytes
    }
}

/// A small volume.
#[derive(Debug)]
pub struct SeedVolume {
    /// The volume's name.
    pub name: String,
    /// The volume's devices.
    pub devices: Vec<Arc<SeedDevice>>,
}

impl SeedVolume {
    /// Returns the content of a seed volume's file.
    ///
    /// # Errors
    /// The compression fails.
    pub fn pack(devices: &[SeedDevice]) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        bytes.extend_from_slice(&(devices.len() as u32).to_le_bytes());
        for device in devices {
            bytes.extend_from_slice(&device.size_bytes.to_le_bytes());
            bytes.extend_from_slice(&(device.blocks.len() as u32).to_le_bytes());
            let mut numbers: Vec<_> = device.blocks.keys().copied().collect();
            numbers.sort_unstable();
            for number in numbers {
                bytes.extend_from_slice(&(number as u32).to_le_bytes());
                bytes.extend_from_slice(&device.blocks[&number][..]);
            }
        }
        zstd::bulk::compress(&bytes, 22)
    }

    /// Reads a volume from the content of its file.
    ///
    /// # Errors
    /// Fails if the file is not a seed volume.
    pub fn unpack(name: &str, packed: &[u8]) -> Result<Self> {
        let bytes = zstd::bulk::decompress(packed, UNPACKED_BYTES_MAX)?;
        let mut rest = bytes.as_slice();
        let mut take = |length: usize| {
            let (taken, after) = rest
                .split_at_checked(length)
                .ok_or_else(|| Error::new(ErrorKind::InvalidData, "a seed volume is cut short"))?;
            rest = after;
            Ok::<_, Error>(taken)
        };
        let number = |bytes: &[u8]| {
            bytes
                .iter()
                .rev()
                .fold(0_u64, |sum, byte| sum << 8 | u64::from(*byte))
        };
        let mut devices = Vec::new();
        for _ in 0..number(take(4)?) {
            let size_bytes = number(take(8)?);
            let mut blocks = HashMap::new();
            for _ in 0..number(take(4)?) {
                let at = number(take(4)?);
                let mut block: Block = Box::new([0; BLOCK_BYTES]);
                block.copy_from_slice(take(BLOCK_BYTES)?);
                blocks.insert(at, block);
            }
            devices.push(Arc::new(SeedDevice { size_bytes, blocks }));
        }
        Ok(Self {
            name: name.to_owned(),
            devices,
        })
    }
}

/// A device of a seed volume with changes on top. Users of the overlay can only read it.
#[derive(Clone, Debug)]
pub struct Overlay {
    name: String,
    below: Arc<SeedDevice>,
    changed: HashMap<u64, Block>,
    size_bytes: u64,
}

impl Overlay {
    /// Returns an overlay of a device without changes so far.
    #[must_use]
    pub fn new(name: String, below: Arc<SeedDevice>) -> Self {
        Self {
            name,
            size_bytes: below.size_bytes,
            below,
            changed: HashMap::new(),
        }
    }

    /// Makes the device smaller.
    pub fn cut(&mut self, size_bytes: u64) {
        self.size_bytes = self.size_bytes.min(size_bytes);
    }

    /// Returns the device's size.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// Returns `length` bytes of the overlay from `offset` on, changes included.
    #[must_use]
    pub fn read(&self, offset: u64, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        copy_out(offset, &mut bytes, |number| self.block(number));
        bytes
    }

    /// Returns the numbers of blocks of the overlay that may be other than zero.
    #[must_use]
    pub fn block_numbers(&self) -> BTreeSet<u64> {
        self.below
            .blocks
            .keys()
            .chain(self.changed.keys())
            .copied()
            .collect()
    }

    /// Changes the bytes from `offset` on. Bytes past the end of the device are dropped.
    pub fn write(&mut self, offset: u64, bytes: &[u8]) {
        let space = self.size_bytes.saturating_sub(offset);
        let mut rest = &bytes[..bytes.len().min(usize::try_from(space).unwrap_or(usize::MAX))];
        let mut at = offset;
        while !rest.is_empty() {
            let number = at / BLOCK_BYTES as u64;
            let inside = at as usize % BLOCK_BYTES;
            let (part, after) = rest.split_at(rest.len().min(BLOCK_BYTES - inside));
            let below = &self.below;
            let block = self.changed.entry(number).or_insert_with(|| {
                below
                    .blocks
                    .get(&number)
                    .cloned()
                    .unwrap_or_else(|| Box::new([0; BLOCK_BYTES]))
            });
            block[inside..inside + part.len()].copy_from_slice(part);
            at += part.len() as u64;
            rest = after;
        }
    }

    fn block(&self, number: u64) -> Option<&Block> {
        self.changed
            .get(&number)
            .or_else(|| self.below.blocks.get(&number))
    }
}

fn copy_out<'a>(offset: u64, bytes: &mut [u8], block: impl Fn(u64) -> Option<&'a Block>) {
    let mut done = 0;
    while done < bytes.len() {
        let at = offset + done as u64;
        let inside = at as usize % BLOCK_BYTES;
        let length = (BLOCK_BYTES - inside).min(bytes.len() - done);
        let to = &mut bytes[done..done + length];
        match block(at / BLOCK_BYTES as u64) {
            Some(block) => to.copy_from_slice(&block[inside..inside + length]),
            None => to.fill(0),
        }
        done += length;
    }
}

impl Backend for Overlay {
    fn name(&self) -> &str {
        &self.name
    }

    fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    fn is_writable(&self) -> bool {
        false
    }

    fn read_vectored_at(&self, offset_bytes: u64, buffers: &mut [&mut [u8]]) -> Result<()> {
        let mut at = offset_bytes;
        for buffer in buffers {
            let end = at.checked_add(buffer.len() as u64);
            if end.is_none_or(|end| end > self.size_bytes) {
                return Err(Error::new(ErrorKind::UnexpectedEof, "past the end"));
            }
            copy_out(at, buffer, |number| self.block(number));
            at += buffer.len() as u64;
        }
        Ok(())
    }

    fn next_data(&self, from_bytes: u64) -> Result<Option<Range<u64>>> {
        let unit = BLOCK_BYTES as u64;
        let mut blocks = from_bytes / unit..self.size_bytes.div_ceil(unit);
        let Some(first) = blocks.find(|number| self.block(*number).is_some()) else {
            return Ok(None);
        };
        let end = blocks.find(|number| self.block(*number).is_none());
        let end = end.map_or(self.size_bytes, |number| number * unit);
        Ok(Some((first * unit).max(from_bytes)..end))
    }

    fn write_at(&self, _: u64, _: &[u8]) -> Result<()> {
        Err(Error::from(ErrorKind::ReadOnlyFilesystem))
    }

    fn flush(&self) -> Result<()> {
        Ok(())
    }

    fn discard(&self, _: u64, _: u64) -> Result<()> {
        Err(Error::from(ErrorKind::ReadOnlyFilesystem))
    }

    fn zero(&self, _: u64, _: u64) -> Result<()> {
        Err(Error::from(ErrorKind::ReadOnlyFilesystem))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packed_volumes_come_back_and_take_changes() {
        let mut image = vec![0; 5 * BLOCK_BYTES];
        image[BLOCK_BYTES + 7] = 9;
        let device = SeedDevice::of_image(image.as_slice()).unwrap();
        assert_eq!((device.size_bytes, device.blocks.len()), (5 * 4096, 1));
        let packed = SeedVolume::pack(&[device]).unwrap();
        let volume = SeedVolume::unpack("name", &packed).unwrap();
        let mut overlay = Overlay::new("name".to_owned(), Arc::clone(&volume.devices[0]));
        assert_eq!(overlay.read(4096 + 6, 3), [0, 9, 0]);
        overlay.write(2 * 4096 - 1, &[1, 2]);
        assert_eq!(overlay.read(2 * 4096 - 2, 4), [0, 1, 2, 0]);
        assert_eq!(volume.devices[0].read(2 * 4096 - 2, 4), [0; 4]);
        overlay.write(5 * 4096 - 1, &[1, 2]);
        let mut end = [0; 1];
        assert!(overlay.read_vectored_at(5 * 4096 - 1, &mut [&mut end]).is_ok());
        assert_eq!(end, [1]);
        assert!(overlay.read_vectored_at(5 * 4096, &mut [&mut end]).is_err());
    }
}
