//! The layout of one chunk on its stripes: pure functions in both directions.
//!
//! A chunk maps a range of logical addresses to *stripes*. A stripe is one contiguous extent on one
//! device. Stripes are numbered in the order of the chunk item. The profile determines which part
//! of the chunk lies on which stripe:
//!
//! | profile | the chunk's `n` stripes |
//! |---|---|
//! | single, DUP, RAID1, RAID1C3, RAID1C4 | each stripe holds the whole chunk |
//! | RAID0 | units of `stripe_bytes` go round all stripes |
//! | RAID10 | units go round groups of `sub_stripes` neighbouring stripes; each in a group holds a copy |
//! | RAID5, RAID6 | a *row* is one unit from each stripe at the same offset: `n-1` or `n-2` data columns, then `P` (and `Q`); row `r` starts at stripe `r mod n`, so that parity rotates |
//!
//! Invariants: making a [`Layout`] checks it. After that, no function fails for an offset inside
//! the chunk, and an offset outside returns `None`. Every data byte has one [`Place`], and every
//! byte of a stripe has one [`Content`]. The two mappings, of chunk bytes and of stripe bytes, are
//! inverse to each other. Left out: the devices of the stripes, and the choice of copies to read
//! (the module `mirror`).
//!
//! Source: on-disk format documentation, section "CHUNK_ITEM", and `btrfs(5)`, section "Profiles".

use crate::parity::MAX_RAID6_DATA_BLOCKS;
use buttress_exact::Exact as _;
use buttress_format::ByteCount;
use buttress_format::block_group::Profile;

macro_rules! offset_type {
    ($(#[$meta:meta])* $name:ident) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(u64);

        impl $name {
            /// Makes an offset of a number of bytes.
            #[must_use]
            pub const fn new(bytes: u64) -> Self {
                Self(bytes)
            }

            /// Returns the number of bytes.
            #[must_use]
            pub const fn get(self) -> u64 {
                self.0
            }
        }
    };
}

offset_type! {
    /// A byte of a chunk, counted from the chunk's logical start.
    ChunkOffset
}
offset_type! {
    /// A byte of a stripe, counted from the stripe's physical start.
    StripeOffset
}

/// The reason why a chunk's profile does not allow its geometry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LayoutError {
    /// The number of stripes is too small, or is not the profile's fixed number.
    #[error("a {profile} chunk has {stripes} stripes, expected {needed}", profile = .profile.name())]
    StripeCount {
        /// The profile.
        profile: Profile,
        /// The number of stripes that the chunk lists.
        stripes: usize,
        /// The number of stripes that the profile needs.
        needed: &'static str,
    },
    /// The number of sub-stripes of RAID10 is not two, or does not divide the number of stripes.
    #[error(
        "a RAID10 chunk has {stripes} stripes and {sub_stripes} sub-stripes, expected 2 sub-stripes and complete groups"
    )]
    SubStripes {
        /// The number of stripes that the chunk lists.
        stripes: usize,
        /// The number of stripes that hold the same bytes.
        sub_stripes: u16,
    },
    /// The unit of striping is zero.
    #[error("a chunk has a stripe length of 0 bytes")]
    StripeBytes,
    /// The chunk is empty.
    #[error("a chunk has a length of 0 bytes")]
    Empty,
}

/// The location of a run of a chunk's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The first stripe that holds the run. The run's copies are on the following stripes.
    pub stripe_index: usize,
    /// The number of neighbouring stripes that hold the run, at the same [`StripeOffset`].
    pub copies: usize,
    /// The offset in the stripe at which the run starts.
    pub stripe_offset: StripeOffset,
    /// The number of bytes that are contiguous from here, both in the chunk and on the stripe.
    pub length: ByteCount,
    /// The row, and the column in it, for RAID5 and RAID6.
    pub parity: Option<Column>,
}

/// A data unit of a RAID5 or RAID6 row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Column {
    /// The row's number, from 0.
    pub row: u64,
    /// The data column in the row, from 0.
    pub column: usize,
}

/// The content of a byte of a stripe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// The chunk's byte at this offset.
    Data(ChunkOffset),
    /// Parity `P` of a row.
    P {
        /// The row's number.
        row: u64,
    },
    /// Parity `Q` of a row.
    Q {
        /// The row's number.
        row: u64,
    },
    /// A byte after the end of the chunk, in a last row that is not full.
    Unused,
}

/// The checked geometry of one chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    profile: Profile,
    stripes: u64,
    /// The number of stripes over which data is striped: 1 if each stripe holds the whole chunk.
    columns: u64,
    /// The number of neighbouring stripes with the same bytes.
    copies: u64,
    stripe_bytes: u64,
    length: u64,
}

impl Layout {
    /// Checks the numbers of a chunk item: `length` bytes over `stripes` stripes in units of
    /// `stripe_bytes`.
    ///
    /// # Errors
    /// Returns [`LayoutError`] if the profile does not allow the numbers.
    pub fn new(
        profile: Profile,
        length: ByteCount,
        stripes: usize,
        sub_stripes: u16,
        stripe_bytes: u64,
    ) -> Result<Self, LayoutError> {
        let count = |allowed: bool, needed: &'static str| match allowed {
            true => Ok(()),
            false => Err(LayoutError::StripeCount {
                profile,
                stripes,
                needed,
            }),
        };
        let all = stripes as u64;
        let (columns, copies) = match profile {
            Profile::Single => count(stripes == 1, "1").map(|()| (1, 1)),
            Profile::Dup | Profile::Raid1 => count(stripes == 2, "2").map(|()| (1, 2)),
            Profile::Raid1C3 => count(stripes == 3, "3").map(|()| (1, 3)),
            Profile::Raid1C4 => count(stripes == 4, "4").map(|()| (1, 4)),
            Profile::Raid0 => count(stripes >= 1, "at least 1").map(|()| (all, 1)),
            Profile::Raid10 if sub_stripes != 2 || stripes == 0 || !stripes.is_multiple_of(2) => {
                Err(LayoutError::SubStripes { stripes, sub_stripes })
            }
            Profile::Raid10 => Ok((all >> 1, 2)),
            Profile::Raid5 => count(stripes >= 2, "at least 2").map(|()| (all.exact_sub(1), 1)),
            Profile::Raid6 => count((3..=MAX_RAID6_DATA_BLOCKS + 2).contains(&stripes), "3 to 257")
                .map(|()| (all.exact_sub(2), 1)),
        }?;
        if stripe_bytes == 0 {
            return Err(LayoutError::StripeBytes);
        }
        if length == ByteCount::ZERO {
            return Err(LayoutError::Empty);
        }
        Ok(Self {
            profile,
            stripes: all,
            columns,
            copies,
            stripe_bytes,
            length: length.get(),
        })
    }

    /// Returns the chunk's profile.
    #[must_use]
    pub const fn profile(&self) -> Profile {
        self.profile
    }

    /// Returns the unit of striping and of parity rows, in bytes.
    #[must_use]
    pub const fn stripe_bytes(&self) -> u64 {
        self.stripe_bytes
    }

    /// Returns the number of stripes of the chunk.
    #[must_use]
    pub fn stripe_count(&self) -> usize {
        self.stripes.narrow()
    }

    /// Returns the number of data columns of a row. For profiles without rows, returns the number
    /// of stripes over which data is striped.
    #[must_use]
    pub fn data_columns(&self) -> usize {
        self.columns.narrow()
    }

    /// Returns the length of each stripe on its device, in bytes.
    #[must_use]
    pub const fn device_extent_bytes(&self) -> ByteCount {
        if self.columns == 1 && !self.has_parity() {
            return ByteCount::new(self.length);
        }
        // Clamp: the last row of a chunk item from disk can end beyond the last address.
        let rows = self
            .length
            .div_ceil(self.columns.saturating_mul(self.stripe_bytes));
        ByteCount::new(rows.saturating_mul(self.stripe_bytes))
    }

    /// Returns true if the profile has parity, and therefore rows.
    #[must_use]
    pub const fn has_parity(&self) -> bool {
        matches!(self.profile, Profile::Raid5 | Profile::Raid6)
    }

    /// Returns the location of the byte at `offset`, and the length of the contiguous run from
    /// there. Returns `None` outside the chunk.
    #[must_use]
    pub fn place(&self, offset: ChunkOffset) -> Option<Place> {
        let left = self.length.checked_sub(offset.0).filter(|left| *left > 0)?;
        let copies = usize::try_from(self.copies).ok()?;
        if !self.has_parity() && self.columns == 1 {
            return Some(Place {
                stripe_index: 0,
                copies,
                stripe_offset: StripeOffset(offset.0),
                length: ByteCount::new(left),
                parity: None,
            });
        }
        let unit = offset.0.checked_div(self.stripe_bytes)?;
        let within = offset.0.checked_rem(self.stripe_bytes)?;
        let row = unit.checked_div(self.columns)?;
        let column = unit.checked_rem(self.columns)?;
        let stripe_offset = row.checked_mul(self.stripe_bytes)?.checked_add(within)?;
        let parity = match self.has_parity() {
            true => Some(Column {
                row,
                column: usize::try_from(column).ok()?,
            }),
            false => None,
        };
        let stripe_index = match parity {
            Some(Column { row, column }) => self.stripe_of_column(row, column)?,
            None => usize::try_from(column.checked_mul(self.copies)?).ok()?,
        };
        Some(Place {
            stripe_index,
            copies,
            stripe_offset: StripeOffset(stripe_offset),
            length: ByteCount::new(left.min(self.stripe_bytes.checked_sub(within)?)),
            parity,
        })
    }

    /// Returns the stripe that holds a column of a row. The columns after the data columns are `P`,
    /// then `Q`.
    #[must_use]
    pub fn stripe_of_column(&self, row: u64, column: usize) -> Option<usize> {
        let column = u64::try_from(column)
            .ok()
            .filter(|column| *column < self.stripes)?;
        let first = row.checked_rem(self.stripes)?;
        usize::try_from(first.checked_add(column)?.checked_rem(self.stripes)?).ok()
    }

    /// Returns what the stripe `stripe_index` holds at `offset`. Returns `None` outside the stripe.
    #[must_use]
    pub fn content(&self, stripe_index: usize, offset: StripeOffset) -> Option<Content> {
        let stripe = u64::try_from(stripe_index)
            .ok()
            .filter(|index| *index < self.stripes)?;
        if offset.0 >= self.device_extent_bytes().get() {
            return None;
        }
        if !self.has_parity() && self.columns == 1 {
            return Some(Content::Data(ChunkOffset(offset.0)));
        }
        let row = offset.0.checked_div(self.stripe_bytes)?;
        let within = offset.0.checked_rem(self.stripe_bytes)?;
        let column = if self.has_parity() {
            let first = row.checked_rem(self.stripes)?;
            stripe
                .checked_add(self.stripes)?
                .checked_sub(first)?
                .checked_rem(self.stripes)?
        } else {
            stripe.checked_div(self.copies)?
        };
        if let Some(parity) = column.checked_sub(self.columns) {
            return Some(if parity == 0 {
                Content::P { row }
            } else {
                Content::Q { row }
            });
        }
        let unit = row.checked_mul(self.columns)?.checked_add(column)?;
        let chunk_offset = unit.checked_mul(self.stripe_bytes)?.checked_add(within)?;
        Some(if chunk_offset < self.length {
            Content::Data(ChunkOffset(chunk_offset))
        } else {
            Content::Unused
        })
    }

    /// Returns the number of ways to read a byte, which is also btrfs's number of mirrors. Without
    /// parity, the ways are the copies. With parity, they are the direct read and each way to
    /// rebuild: one for RAID5. RAID6 rebuilds from `P`, from `Q`, or from both without one other
    /// column.
    #[must_use]
    pub fn ways(&self) -> u32 {
        let ways = match self.profile {
            Profile::Raid5 => 2,
            Profile::Raid6 => self.stripes,
            _ => self.copies,
        };
        ways.narrow()
    }
}

#[cfg(test)]
#[path = "layout/tests.rs"]
mod tests;
