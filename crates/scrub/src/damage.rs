//! Damage at one place of one device: its cause, and the outcome of repair.
//!
//! The device may not return the bytes, or the bytes may not match their checksum. Bytes that match
//! their checksum may belong elsewhere (a misdirected write), or be an older state (a lost write).
//! Parity may not match its data.

use buttress_format::{BlockProblem, ByteCount, DeviceId, Generation, Logical, Physical};
use core::fmt;
use std::sync::Arc;

/// The reason why bytes are wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The device did not return the bytes.
    Unreadable(Arc<str>),
    /// The damaged bytes do not match their checksum.
    Checksum,
    /// A tree block with a right checksum that does not belong at this address.
    Header(Arc<BlockProblem>),
    /// A tree block of an older transaction: a write was lost.
    Generation {
        /// The generation in the header of the tree block.
        stored: Generation,
        /// The generation in the extent tree.
        expected: Generation,
    },
    /// Parity that does not match the data of its row.
    Parity,
    /// Copies of data without checksums differ, or parity over such data does not match.
    Differs,
    /// A superblock copy that is bad for the given reason.
    Superblock(Arc<str>),
}

impl Cause {
    /// Returns the cause of the damage in one word, for machine-readable output.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Unreadable(_) => "unreadable",
            Self::Checksum => "checksum",
            Self::Header(_) => "header",
            Self::Generation { .. } => "generation",
            Self::Parity => "parity",
            Self::Differs => "differs",
            Self::Superblock(_) => "superblock",
        }
    }

    /// Returns whether a tree block may be right nevertheless: its checksum and address are right,
    /// and only the extent tree has another generation or level. The parent block decides whether
    /// such a block is right.
    pub(crate) fn may_be_right(&self) -> bool {
        match self {
            Self::Generation { .. } => true,
            Self::Header(problem) => matches!(**problem, BlockProblem::Level { .. }),
            _ => false,
        }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreadable(reason) => write!(f, "unreadable: {reason}"),
            Self::Checksum => f.write_str("the checksum does not match"),
            Self::Header(problem) => write!(f, "another block is at this address: {problem}"),
            Self::Generation { stored, expected } => {
                write!(f, "a write was lost: generation is {stored}, expected {expected}")
            }
            Self::Parity => f.write_str("parity does not match its row"),
            Self::Differs => f.write_str("copies without checksums differ"),
            Self::Superblock(reason) => write!(f, "superblock: {reason}"),
        }
    }
}

/// The kind of the damaged bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// File data.
    Data,
    /// A tree block.
    Tree,
    /// Parity `P` of a row. The damage has the first address of the row.
    P,
    /// Parity `Q` of a row.
    Q,
    /// A superblock.
    Superblock,
}

impl Part {
    /// Returns the kind in one word.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Data => "data",
            Self::Tree => "tree block",
            Self::P => "parity P",
            Self::Q => "parity Q",
            Self::Superblock => "superblock",
        }
    }
}

/// The outcome of repairing damage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The bytes were rewritten and read back, and are right.
    Corrected,
    /// The damaged bytes could be rewritten, but the scrub is read-only.
    Correctable,
    /// The bytes cannot be repaired; `tried` lists the copies and columns tried.
    Uncorrectable {
        /// Each place that was tried, with the reason why it did not help.
        tried: Vec<String>,
    },
    /// If copies without checksums differ, it is unknown which bytes are right, so they stay
    /// unchanged.
    Unverified,
}

impl Outcome {
    /// Returns the outcome in one word.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Corrected => "corrected",
            Self::Correctable => "correctable",
            Self::Uncorrectable { .. } => "uncorrectable",
            Self::Unverified => "unverified",
        }
    }
}

/// Damage at one place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// The id of the device.
    pub device: DeviceId,
    /// The name by which the device was opened.
    pub device_name: Arc<str>,
    /// The offset on the device.
    pub physical: Physical,
    /// The logical address of the damage; zero for superblocks.
    pub logical: Logical,
    /// The number of damaged bytes.
    pub length: ByteCount,
    /// The kind of the damaged bytes.
    pub part: Part,
    /// The reason why the damaged bytes are wrong.
    pub cause: Cause,
    /// The outcome of the repair.
    pub outcome: Outcome,
}

impl Damage {
    /// Returns whether `next` begins where this damage ends, with the same cause and outcome.
    fn continues_in(&self, next: &Self) -> bool {
        self.part == Part::Data
            && next.part == Part::Data
            && self.device == next.device
            && self.physical.checked_add(self.length) == Some(next.physical)
            && self.logical.checked_add(self.length) == Some(next.logical)
            && self.cause == next.cause
            && self.outcome == next.outcome
    }

    /// Merges `next` into this damage if it continues it. Returns whether the two damages were
    /// merged.
    pub(crate) fn absorb(&mut self, next: &Self) -> bool {
        let continues = self.continues_in(next);
        if continues {
            self.length = self.length.exact_add(next.length);
        }
        continues
    }
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "device {} ({}) at physical {}, {} bytes of {}",
            self.device,
            self.device_name,
            self.physical,
            self.length,
            self.part.name(),
        )?;
        if self.part != Part::Superblock {
            write!(f, " at logical {}", self.logical)?;
        }
        write!(f, ": {}; {}", self.cause, self.outcome.name())?;
        if let Outcome::Uncorrectable { tried } = &self.outcome {
            for place in tried {
                write!(f, "\n\ttried: {place}")?;
            }
        }
        Ok(())
    }
}
