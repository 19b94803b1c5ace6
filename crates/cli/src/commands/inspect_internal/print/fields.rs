//! Parser of the consecutive little-endian fields of an item.
//!
//! `dump-tree` shows the bytes on disk, even of an item that every other reader's checks would
//! refuse. The parser therefore reads fields by position and does not check values; its only check
//! is the length. A field beyond the item's end is an error, never a guess.

use buttress::unstable::format::{ItemType, Key, ObjectId};
use uuid::Uuid;

use super::value::Moment;

/// An item that ends before its last field.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the item has {have_bytes} bytes, but its fields reach to byte {need_bytes}")]
pub(crate) struct Short {
    /// Length of the item in bytes.
    pub(crate) have_bytes: usize,
    /// End of the field in bytes from the item's start.
    pub(crate) need_bytes: usize,
}

/// A position in an item's bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fields<'a> {
    data: &'a [u8],
    position: usize,
}

impl<'a> Fields<'a> {
    /// Creates a parser at the item's start.
    pub(crate) fn new(data: &'a [u8]) -> Self {
        Self { data, position: 0 }
    }

    /// Returns an error if the item is shorter than `need_bytes`.
    pub(crate) fn need(self, need_bytes: usize) -> Result<Self, Short> {
        if self.data.len() < need_bytes {
            return Err(Short {
                have_bytes: self.data.len(),
                need_bytes,
            });
        }
        Ok(self)
    }

    /// Parses the next `count` bytes.
    pub(crate) fn bytes(&mut self, count: usize) -> Result<&'a [u8], Short> {
        let end = self.position.saturating_add(count);
        let short = Short {
            have_bytes: self.data.len(),
            need_bytes: end,
        };
        let bytes = self.data.get(self.position..end).ok_or(short)?;
        self.position = end;
        Ok(bytes)
    }

    fn array<const COUNT: usize>(&mut self) -> Result<[u8; COUNT], Short> {
        let mut array = [0; COUNT];
        array.copy_from_slice(self.bytes(COUNT)?);
        Ok(array)
    }

    /// Parses the next byte.
    pub(crate) fn u8(&mut self) -> Result<u8, Short> {
        Ok(u8::from_le_bytes(self.array()?))
    }

    /// Parses the next 16-bit field.
    pub(crate) fn u16(&mut self) -> Result<u16, Short> {
        Ok(u16::from_le_bytes(self.array()?))
    }

    /// Parses the next 32-bit field.
    pub(crate) fn u32(&mut self) -> Result<u32, Short> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    /// Parses the next 64-bit field.
    pub(crate) fn u64(&mut self) -> Result<u64, Short> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    /// Parses the next uuid.
    pub(crate) fn uuid(&mut self) -> Result<Uuid, Short> {
        Ok(Uuid::from_bytes(self.array()?))
    }

    /// Parses the next key.
    pub(crate) fn key(&mut self) -> Result<Key, Short> {
        let objectid = ObjectId::new(self.u64()?);
        let item_type = ItemType(self.u8()?);
        Ok(Key::new(objectid, item_type, self.u64()?))
    }

    /// Parses the next timestamp, with nanoseconds.
    pub(crate) fn moment(&mut self) -> Result<Moment, Short> {
        let seconds = self.u64()?;
        Ok(Moment {
            seconds,
            nanoseconds: Some(self.u32()?),
        })
    }

    /// Returns the remaining bytes.
    pub(crate) fn rest(&self) -> &'a [u8] {
        self.data.get(self.position..).unwrap_or_default()
    }

    /// Returns the number of remaining bytes.
    pub(crate) fn rest_bytes(&self) -> usize {
        self.rest().len()
    }

    /// Returns the offset of the next field from the item's start.
    pub(crate) fn position(&self) -> usize {
        self.position
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_come_in_order_and_end_with_an_error() {
        let mut fields = Fields::new(&[1, 2, 0, 3, 0, 0, 0, 4]);
        assert_eq!(fields.u8(), Ok(1));
        assert_eq!(fields.u16(), Ok(2));
        assert_eq!(fields.u32(), Ok(3));
        assert_eq!(fields.rest(), [4]);
        assert_eq!(
            fields.u64(),
            Err(Short {
                have_bytes: 8,
                need_bytes: 15
            })
        );
        assert_eq!(fields.u8(), Ok(4), "a failed read takes nothing");
        assert_eq!(Fields::new(&[0; 3]).need(4).unwrap_err().need_bytes, 4);
    }
}
