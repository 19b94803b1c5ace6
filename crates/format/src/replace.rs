//! The item of a device replacement, running or ended. The replace item lies in the device tree
//! under `(0 DEV_REPLACE 0)`.
//!
//! Source: on-disk format documentation, section "Device replace item"; btrfs-replace(8).

use crate::item_error::ItemError;
use crate::key::{ItemType, Key};
use crate::raw;
use crate::units::{DeviceId, ObjectId, Physical};
use zerocopy::little_endian::U64;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The on-disk layout of a device replacement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawReplaceItem {
    src_devid: U64,
    cursor_left: U64,
    cursor_right: U64,
    cont_reading_from_srcdev_mode: U64,
    replace_state: U64,
    time_started: U64,
    time_stopped: U64,
    num_write_errors: U64,
    num_uncorrectable_read_errors: U64,
}

const _: () = assert!(size_of::<RawReplaceItem>() == 72);

/// The state of a device replacement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReplaceState {
    /// The volume never had a replacement.
    NeverStarted,
    /// The replacement is running.
    Started,
    /// The replacement finished.
    Finished,
    /// The replacement was cancelled.
    Canceled,
    /// The replacement is suspended and can be resumed.
    Suspended,
    /// The item holds a number that stands for no state.
    Unknown(u64),
}

impl ReplaceState {
    /// Returns the state with this number.
    #[must_use]
    pub const fn from_raw(number: u64) -> Self {
        match number {
            0 => Self::NeverStarted,
            1 => Self::Started,
            2 => Self::Finished,
            3 => Self::Canceled,
            4 => Self::Suspended,
            _ => Self::Unknown(number),
        }
    }

    /// Returns the number that stands for this state on disk.
    #[must_use]
    pub const fn to_raw(self) -> u64 {
        match self {
            Self::NeverStarted => 0,
            Self::Started => 1,
            Self::Finished => 2,
            Self::Canceled => 3,
            Self::Suspended => 4,
            Self::Unknown(number) => number,
        }
    }
}

/// A device replacement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplaceItem {
    /// The device to be replaced. The new device has id 0 until the replacement ends.
    pub source: DeviceId,
    /// The address on the device below which everything has been copied.
    pub cursor_left: Physical,
    /// The end of the range that is being copied.
    pub cursor_right: Physical,
    /// How reads use the source of a replacement: 0 always, 1 only if no other copy can be read.
    pub source_reading_mode: u64,
    /// The state of the replacement.
    pub state: ReplaceState,
    /// The start time, in seconds since 1970-01-01 00:00:00 UTC.
    pub time_started_seconds: u64,
    /// The time at which the replacement stopped, in seconds since 1970-01-01 00:00:00 UTC.
    pub time_stopped_seconds: u64,
    /// The number of failed writes.
    pub write_errors: u64,
    /// The number of reads for which every copy failed.
    pub uncorrectable_read_errors: u64,
}

impl ReplaceItem {
    /// Parses a `DEV_REPLACE`.
    ///
    /// # Errors
    /// Fails if the size is wrong.
    pub fn parse(key: &Key, data: &[u8]) -> Result<Self, ItemError> {
        let raw = raw::exactly::<RawReplaceItem>(key, data)?;
        Ok(Self {
            source: DeviceId::new(raw.src_devid.get()),
            cursor_left: Physical::new(raw.cursor_left.get()),
            cursor_right: Physical::new(raw.cursor_right.get()),
            source_reading_mode: raw.cont_reading_from_srcdev_mode.get(),
            state: ReplaceState::from_raw(raw.replace_state.get()),
            time_started_seconds: raw.time_started.get(),
            time_stopped_seconds: raw.time_stopped.get(),
            write_errors: raw.num_write_errors.get(),
            uncorrectable_read_errors: raw.num_uncorrectable_read_errors.get(),
        })
    }
}

impl ReplaceItem {
    /// `(0 DEV_REPLACE 0)`, in the device tree.
    pub const KEY: Key = Key::new(ObjectId::MIN, ItemType::DEV_REPLACE, 0);

    /// Returns the item's bytes in their on-disk layout.
    #[must_use]
    pub fn to_bytes(self) -> [u8; size_of::<RawReplaceItem>()] {
        zerocopy::transmute!(RawReplaceItem {
            src_devid: U64::new(self.source.get()),
            cursor_left: U64::new(self.cursor_left.get()),
            cursor_right: U64::new(self.cursor_right.get()),
            cont_reading_from_srcdev_mode: U64::new(self.source_reading_mode),
            replace_state: U64::new(self.state.to_raw()),
            time_started: U64::new(self.time_started_seconds),
            time_stopped: U64::new(self.time_stopped_seconds),
            num_write_errors: U64::new(self.write_errors),
            num_uncorrectable_read_errors: U64::new(self.uncorrectable_read_errors),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::item_error::ItemProblem;
    use crate::key::ItemType;
    use crate::units::ObjectId;

    #[test]
    fn fields_lie_where_they_should() {
        let key = Key::new(ObjectId::MIN, ItemType::DEV_REPLACE, 0);
        let data: Vec<u8> = (0..9_u64).flat_map(u64::to_le_bytes).collect();
        let item = ReplaceItem::parse(&key, &data).unwrap();
        assert_eq!(
            (item.source.get(), item.source_reading_mode, item.state),
            (0, 3, ReplaceState::Suspended)
        );
        assert_eq!((item.write_errors, item.uncorrectable_read_errors), (7, 8));
        assert_eq!(
            ReplaceItem::parse(&key, &data[1..]).unwrap_err().problem,
            ItemProblem::SizeWrong {
                size_bytes: 71,
                expected_bytes: 72
            }
        );
        for number in 0..7 {
            assert_eq!(ReplaceState::from_raw(number).to_raw(), number);
        }
    }
}
