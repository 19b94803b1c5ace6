//! What is wrong at one place of one device, and what became of it.
//!
//! A cause is told as a person would tell it: the device did not give the bytes, the bytes do not match their checksum, they
//! match it but are something else (a misdirected write), they are an older state (a lost write), parity does not fit.

use buttress_format::{BlockProblem, ByteCount, DeviceId, Generation, Logical, Physical};
use core::fmt;
use std::sync::Arc;

/// Why bytes are not as they should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The device did not give them.
    Unreadable(Arc<str>),
    /// They do not match their checksum.
    Checksum,
    /// A tree block with a right checksum that is not the one that belongs here.
    Header(Arc<BlockProblem>),
    /// A tree block as an older transaction left it: a write that was lost.
    Generation {
        /// What the block says.
        stored: Generation,
        /// What the extent tree says.
        expected: Generation,
    },
    /// Parity that does not fit the data of its row.
    Parity,
    /// Copies of data without checksums differ; or parity over such data does not fit.
    Differs,
    /// A superblock, for the reason given.
    Superblock(Arc<str>),
}

impl Cause {
    /// The cause in one word, for machines.
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

    /// Whether a tree block may be right nevertheless: its checksum and address are right. Only the extent tree has
    /// another generation or level. Its parent decides.
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

/// What the bytes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// File data.
    Data,
    /// A tree block.
    Tree,
    /// Parity `P` of a row, whose first address is the damage's.
    P,
    /// Parity `Q` of a row.
    Q,
    /// A superblock.
    Superblock,
}

impl Part {
    /// The part in one word.
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

/// What became of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It was rewritten, read back, and is right.
    Corrected,
    /// It could be rewritten, but the scrub only reads.
    Correctable,
    /// It cannot be mended; these places were tried.
    Uncorrectable {
        /// Each place that was tried, and why it did not help.
        tried: Vec<String>,
    },
    /// Nothing says what is right here: left as it is.
    Unverified,
}

impl Outcome {
    /// The outcome in one word.
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
    /// The device.
    pub device: DeviceId,
    /// The name that it was opened by.
    pub device_name: Arc<str>,
    /// Where on it.
    pub physical: Physical,
    /// What lies there; zero for superblocks.
    pub logical: Logical,
    /// How many bytes.
    pub length: ByteCount,
    /// What they are.
    pub part: Part,
    /// Why they are wrong.
    pub cause: Cause,
    /// What became of it.
    pub outcome: Outcome,
}

impl Damage {
    /// Whether `next` goes on where this ends, for the same reason and with the same outcome.
    fn continues_in(&self, next: &Self) -> bool {
        self.part == Part::Data
            && next.part == Part::Data
            && self.device == next.device
            && self.physical.checked_add(self.length) == Some(next.physical)
            && self.logical.checked_add(self.length) == Some(next.logical)
            && self.cause == next.cause
            && self.outcome == next.outcome
    }

    /// Takes `next` in if it goes on where this ends.
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
