//! Draws numbers and bytes from an input, front to back. Past its end, numbers are zero and bytes
//! are empty.

/// The rest of an input.
#[derive(Clone, Debug)]
pub struct Input<'a> {
    rest: &'a [u8],
}

impl<'a> Input<'a> {
    /// Makes an input of all of `bytes`.
    #[must_use]
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// Returns whether the input is used up.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// Returns the next byte.
    pub fn byte(&mut self) -> u8 {
        self.bytes(1).first().copied().unwrap_or(0)
    }

    /// Returns the next two bytes, little-endian.
    pub fn u16(&mut self) -> u16 {
        u16::from(self.byte()) | u16::from(self.byte()) << 8
    }

    /// Returns the next eight bytes, little-endian.
    pub fn u64(&mut self) -> u64 {
        let mut bytes = [0; 8];
        let drawn = self.bytes(8);
        bytes[..drawn.len()].copy_from_slice(drawn);
        u64::from_le_bytes(bytes)
    }

    /// Returns the next `length` bytes, or fewer at the end.
    pub fn bytes(&mut self, length: usize) -> &'a [u8] {
        let (drawn, rest) = self.rest.split_at(length.min(self.rest.len()));
        self.rest = rest;
        drawn
    }

    /// Returns all remaining bytes.
    pub fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.rest)
    }

    /// Returns one of the choices.
    pub fn choose<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[usize::from(self.byte()) % choices.len()]
    }
}
