//! Parsing and building of the structures of btrfs's commands, in native byte order.

use crate::vfs::{Errno, Result};

/// Parser of consecutive fields.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fields<'a>(pub(super) &'a [u8]);

impl<'a> Fields<'a> {
    pub(super) fn u64(&mut self) -> Result<u64> {
        let (first, rest) = self.0.split_first_chunk().ok_or(Errno::INVAL)?;
        self.0 = rest;
        Ok(u64::from_ne_bytes(*first))
    }

    pub(super) fn u32(&mut self) -> Result<u32> {
        let (first, rest) = self.0.split_first_chunk().ok_or(Errno::INVAL)?;
        self.0 = rest;
        Ok(u32::from_ne_bytes(*first))
    }

    pub(super) fn bytes(&mut self, count: usize) -> Result<&'a [u8]> {
        let (first, rest) = self.0.split_at_checked(count).ok_or(Errno::INVAL)?;
        self.0 = rest;
        Ok(first)
    }

    /// Parses the rest of the arguments as a text that ends with a zero byte.
    pub(super) fn text(&mut self) -> Result<&'a [u8]> {
        let end = self.0.iter().position(|byte| *byte == 0);
        self.bytes(end.ok_or(Errno(libc::ENAMETOOLONG))?)
    }
}

/// Builder of consecutive fields of a control command's answer.
#[derive(Debug, Default)]
pub(super) struct Answer(pub(super) Vec<u8>);

impl Answer {
    pub(super) fn u64(&mut self, value: u64) -> &mut Self {
        self.bytes(&value.to_ne_bytes())
    }

    pub(super) fn u32(&mut self, value: u32) -> &mut Self {
        self.bytes(&value.to_ne_bytes())
    }

    pub(super) fn u16(&mut self, value: u16) -> &mut Self {
        self.bytes(&value.to_ne_bytes())
    }

    pub(super) fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.0.extend_from_slice(bytes);
        self
    }

    /// Appends bytes, padded with zeros to the size of the field.
    pub(super) fn field(&mut self, bytes: &[u8], size: usize) -> &mut Self {
        let end = self.0.len().saturating_add(size);
        self.bytes(bytes.get(..size).unwrap_or(bytes)).up_to(end)
    }

    /// Appends zeros to the answer up to a total size.
    pub(super) fn up_to(&mut self, size: usize) -> &mut Self {
        self.0.resize(size, 0);
        self
    }
}
