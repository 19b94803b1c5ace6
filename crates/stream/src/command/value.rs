//! Attribute values, as fields of a command and as bytes.

use crate::error::CommandProblem;
use buttress_format::send::AttributeKind;
use buttress_format::{ByteCount, FileOffset, Generation, InodeNumber, Timestamp, Uuid};

/// The value of one attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value<'a> {
    /// One byte.
    U8(u8),
    /// A number of 4 bytes.
    U32(u32),
    /// A number of 8 bytes.
    U64(u64),
    /// A UUID.
    Uuid(Uuid),
    /// A time.
    Time(Timestamp),
    /// A path, a name, or data.
    Bytes(&'a [u8]),
}

impl Value<'_> {
    /// Returns the length of the value on the wire, in bytes.
    #[must_use]
    #[inline]
    pub const fn size_bytes(&self) -> usize {
        match self {
            Self::U8(_) => 1,
            Self::U32(_) => 4,
            Self::U64(_) => 8,
            Self::Uuid(_) => 16,
            Self::Time(_) => 12,
            Self::Bytes(bytes) => bytes.len(),
        }
    }

    /// Appends the wire form of the value.
    #[inline]
    pub(crate) fn append_to(&self, out: &mut Vec<u8>) {
        match self {
            Self::U8(number) => out.push(*number),
            Self::U32(number) => out.extend_from_slice(&number.to_le_bytes()),
            Self::U64(number) => out.extend_from_slice(&number.to_le_bytes()),
            Self::Uuid(uuid) => out.extend_from_slice(uuid.as_bytes()),
            Self::Time(time) => {
                out.extend_from_slice(&time.seconds.to_le_bytes());
                out.extend_from_slice(&time.nanoseconds.to_le_bytes());
            }
            Self::Bytes(bytes) => out.extend_from_slice(bytes),
        }
    }
}

/// A type that a field of a command may have.
pub trait Field<'a>: Sized {
    /// Length of a value on the wire in bytes; `None` if the type allows any length. No two types
    /// of the wire share a length, so the length alone shows whether a field fits its attribute.
    const SIZE_BYTES: Option<usize>;

    /// Returns the field as an attribute value; `None` if the command lacks the attribute.
    fn value(self) -> Option<Value<'a>>;

    /// Parses the field from the bytes of its attribute.
    ///
    /// # Errors
    /// The attribute is missing or has the wrong length.
    fn from_bytes(kind: AttributeKind, bytes: Option<&'a [u8]>) -> Result<Self, CommandProblem>;

    /// Applies `map` to a path inside a subvolume, and returns any other field unchanged.
    #[inline]
    #[must_use]
    fn map_path(self, _kind: AttributeKind, _map: &mut impl FnMut(&'a [u8]) -> &'a [u8]) -> Self {
        self
    }
}

/// Returns whether a field with values of `size_bytes` fits the attribute.
pub(super) const fn fits(size_bytes: Option<usize>, attribute: AttributeKind) -> bool {
    match (size_bytes, attribute.value_type().size_bytes()) {
        (Some(field), Some(wire)) => field == wire,
        (None, None) => true,
        _ => false,
    }
}

/// Returns the bytes of an attribute of a fixed size.
#[inline]
fn exactly<const SIZE: usize>(
    kind: AttributeKind,
    bytes: Option<&[u8]>,
) -> Result<[u8; SIZE], CommandProblem> {
    let bytes = bytes.ok_or(CommandProblem::AttributeMissing { attribute: kind })?;
    <[u8; SIZE]>::try_from(bytes).map_err(|_| CommandProblem::AttributeLength {
        attribute: kind,
        expected_bytes: SIZE,
        found_bytes: bytes.len(),
    })
}

macro_rules! number_field {
    ($($type:ty: $raw:ty, $size:literal, $value:ident, $from:expr, $to:expr;)*) => {$(
        impl<'a> Field<'a> for $type {
            const SIZE_BYTES: Option<usize> = Some($size);

            #[inline]
            fn value(self) -> Option<Value<'a>> {
                Some(Value::$value($to(self)))
            }

            #[inline]
            fn from_bytes(kind: AttributeKind, bytes: Option<&'a [u8]>) -> Result<Self, CommandProblem> {
                Ok($from(<$raw>::from_le_bytes(exactly(kind, bytes)?)))
            }
        }
    )*};
}

number_field! {
    u8: u8, 1, U8, core::convert::identity, core::convert::identity;
    u32: u32, 4, U32, core::convert::identity, core::convert::identity;
    u64: u64, 8, U64, core::convert::identity, core::convert::identity;
    FileOffset: u64, 8, U64, FileOffset::new, FileOffset::get;
    ByteCount: u64, 8, U64, ByteCount::new, ByteCount::get;
    Generation: u64, 8, U64, Generation::new, Generation::get;
    InodeNumber: u64, 8, U64, InodeNumber::new, InodeNumber::get;
}

impl<'a> Field<'a> for Uuid {
    const SIZE_BYTES: Option<usize> = Some(16);

    #[inline]
    fn value(self) -> Option<Value<'a>> {
        Some(Value::Uuid(self))
    }

    #[inline]
    fn from_bytes(kind: AttributeKind, bytes: Option<&'a [u8]>) -> Result<Self, CommandProblem> {
        Ok(Self::from_bytes(exactly(kind, bytes)?))
    }
}

impl<'a> Field<'a> for Timestamp {
    const SIZE_BYTES: Option<usize> = Some(12);

    #[inline]
    fn value(self) -> Option<Value<'a>> {
        Some(Value::Time(self))
    }

    #[inline]
    fn from_bytes(kind: AttributeKind, bytes: Option<&'a [u8]>) -> Result<Self, CommandProblem> {
        let [a, b, c, d, e, f, g, h, nanoseconds @ ..] = exactly::<12>(kind, bytes)?;
        Ok(Self {
            seconds: i64::from_le_bytes([a, b, c, d, e, f, g, h]),
            nanoseconds: u32::from_le_bytes(nanoseconds),
        })
    }
}

impl<'a> Field<'a> for &'a [u8] {
    const SIZE_BYTES: Option<usize> = None;

    #[inline]
    fn value(self) -> Option<Value<'a>> {
        Some(Value::Bytes(self))
    }

    #[inline]
    fn from_bytes(kind: AttributeKind, bytes: Option<&'a [u8]>) -> Result<Self, CommandProblem> {
        bytes.ok_or(CommandProblem::AttributeMissing { attribute: kind })
    }

    #[inline]
    fn map_path(self, kind: AttributeKind, map: &mut impl FnMut(&'a [u8]) -> &'a [u8]) -> Self {
        match kind {
            AttributeKind::Path | AttributeKind::PathTo | AttributeKind::ClonePath => map(self),
            _ => self,
        }
    }
}

impl<'a, F: Field<'a>> Field<'a> for Option<F> {
    const SIZE_BYTES: Option<usize> = F::SIZE_BYTES;

    #[inline]
    fn value(self) -> Option<Value<'a>> {
        self.and_then(F::value)
    }

    #[inline]
    fn from_bytes(kind: AttributeKind, bytes: Option<&'a [u8]>) -> Result<Self, CommandProblem> {
        match bytes {
            None => Ok(None),
            present => F::from_bytes(kind, present).map(Some),
        }
    }
}
