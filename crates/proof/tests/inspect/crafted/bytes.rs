//! Builder of items' bytes, field by field.

/// Bytes of an item, built field by field.
#[derive(Clone, Default)]
pub struct Bytes(pub Vec<u8>);

impl Bytes {
    pub fn u8(mut self, value: u8) -> Self {
        self.0.push(value);
        self
    }
    pub fn u16(mut self, value: u16) -> Self {
        self.0.extend(value.to_le_bytes());
        self
    }
    pub fn u32s(mut self, values: &[u32]) -> Self {
        self.0.extend(values.iter().flat_map(|value| value.to_le_bytes()));
        self
    }
    pub fn u64s(mut self, values: &[u64]) -> Self {
        self.0.extend(values.iter().flat_map(|value| value.to_le_bytes()));
        self
    }
    pub fn raw(mut self, bytes: &[u8]) -> Self {
        self.0.extend_from_slice(bytes);
        self
    }
    pub fn key(self, objectid: u64, item_type: u8, offset: u64) -> Self {
        self.u64s(&[objectid]).u8(item_type).u64s(&[offset])
    }
    pub fn uuid(self, first: u8) -> Self {
        let bytes: Vec<u8> = (first..first.saturating_add(16)).collect();
        self.raw(&bytes)
    }
}

/// Creates an empty builder.
pub fn bytes() -> Bytes {
    Bytes::default()
}
