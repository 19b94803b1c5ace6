//! What the check can find: one variant for each finding, with a code that stays.
//!
//! The variants, their codes, grades and messages are in `list`, in a module for each step. A finding is data: its code and its fields
//! ([`Finding::fields`]) go to JSON as they are; its [`Display`](core::fmt::Display) is the sentence for people.

mod list;

pub use list::Finding;

use buttress_format::{
    ByteCount, DeviceId, FileOffset, Generation, InodeNumber, Key, Logical, Physical, SubvolumeId, TreeId,
};
use buttress_fs::Name;
use core::fmt;
use uuid::Uuid;

/// What a finding means for who asks whether the volume is in order. A [`Note`](crate::Note) is of the lowest level; only the
/// other two make the outcome of a check a bad one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// A state that the kernel leaves behind, or passes over, and no damage.
    Note,
    /// A copy is bad or missing; what it holds is there elsewhere.
    LostRedundancy,
    /// Something is wrong.
    Error,
}

impl Level {
    /// The level in words.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Note => "note",
            Self::LostRedundancy => "lost redundancy",
            Self::Error => "error",
        }
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// How bad a finding is, by what follows from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Grade {
    /// One copy is bad or missing; what it holds is there elsewhere.
    Redundancy,
    /// Two places contradict one another. Nothing is lost, and writing makes it no worse.
    Inconsistent,
    /// What is there can be read, but writing to the volume may destroy it.
    Unsafe,
    /// Something cannot be read any more.
    Loss,
}

impl Grade {
    /// All grades, the lightest first.
    pub const ALL: [Self; 4] = [Self::Redundancy, Self::Inconsistent, Self::Unsafe, Self::Loss];

    /// The level of findings of this grade.
    #[must_use]
    pub const fn level(self) -> Level {
        match self {
            Self::Redundancy => Level::LostRedundancy,
            Self::Inconsistent | Self::Unsafe | Self::Loss => Level::Error,
        }
    }

    /// The grade in one word.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Redundancy => "redundancy",
            Self::Inconsistent => "inconsistent",
            Self::Unsafe => "unsafe",
            Self::Loss => "loss",
        }
    }
}

impl fmt::Display for Grade {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A field of a finding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// A number: an address, a count, bytes.
    Number(u64),
    /// Words.
    Text(String),
    /// A name, in bytes.
    Name(Vec<u8>),
}

/// What a finding is about, for telling which files and subvolumes it touches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Subject {
    /// The volume.
    Volume,
    /// A tree.
    Tree(TreeId),
    /// An inode.
    Inode(SubvolumeId, InodeNumber),
    /// What lies at an address.
    Address(Logical),
}

/// What fields of findings become in reports.
pub(crate) trait Field {
    fn value(&self) -> Value;
}

macro_rules! numbers {
    ($($type:ty),*) => {
        $(impl Field for $type {
            fn value(&self) -> Value {
                Value::Number(u64::from(*self))
            }
        })*
    };
}

macro_rules! words {
    ($($type:ty),*) => {
        $(impl Field for $type {
            fn value(&self) -> Value {
                Value::Text(self.to_string())
            }
        })*
    };
}

numbers!(
    u64,
    u32,
    u8,
    ByteCount,
    DeviceId,
    FileOffset,
    Generation,
    InodeNumber,
    Logical,
    Physical,
    SubvolumeId,
    TreeId
);
words!(String, &'static str, Key, Uuid, Reference);

impl Field for Name {
    fn value(&self) -> Value {
        Value::Name(self.0.clone())
    }
}

/// A reference to an extent, from its user's side.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reference {
    /// A tree block, by its tree.
    TreeBlock {
        /// The tree.
        tree: TreeId,
    },
    /// A tree block, by the block above it.
    SharedBlock {
        /// The block above.
        parent: Logical,
    },
    /// Data, by tree, inode and the offset in the file at which the extent would begin.
    Data {
        /// The tree.
        tree: TreeId,
        /// The inode.
        inode: InodeNumber,
        /// The offset; wraps below zero.
        offset: u64,
    },
    /// Data, by the leaf.
    SharedData {
        /// The leaf.
        parent: Logical,
    },
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TreeBlock { tree } => write!(f, "tree {tree}"),
            Self::SharedBlock { parent } => write!(f, "parent block {parent}"),
            Self::Data { tree, inode, offset } => {
                write!(f, "tree {tree} inode {inode} offset {}", offset.cast_signed())
            }
            Self::SharedData { parent } => write!(f, "leaf {parent}"),
        }
    }
}

macro_rules! findings {
    ([] $(
        $(#[$meta:meta])*
        $variant:ident = $code:literal, $grade:ident, $step:ident {
            $($(#[$field_meta:meta])* $field:ident: $type:ty,)*
        } $message:literal
    )*) => {
        /// Something that is wrong with a volume.
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
        #[non_exhaustive]
        pub enum Finding {
            $($(#[$meta])* $variant { $($(#[$field_meta])* $field: $type,)* },)*
        }

        impl Finding {
            /// Every code, with the grade and the step of its finding.
            pub const CODES: &'static [(&'static str, Grade, Step)] =
                &[$(($code, Grade::$grade, Step::$step),)*];

            /// The code of the finding, which stays the same between versions.
            #[must_use]
            pub const fn code(&self) -> &'static str {
                match self { $(Self::$variant { .. } => $code,)* }
            }

            /// How bad it is.
            #[must_use]
            pub const fn grade(&self) -> Grade {
                match self { $(Self::$variant { .. } => Grade::$grade,)* }
            }

            /// Whether it is an error, or a copy that is lost.
            #[must_use]
            pub const fn level(&self) -> Level {
                self.grade().level()
            }

            /// In which step it was found.
            #[must_use]
            pub const fn step(&self) -> Step {
                match self { $(Self::$variant { .. } => Step::$step,)* }
            }

            /// The fields with their names.
            #[must_use]
            pub fn fields(&self) -> Vec<(&'static str, Value)> {
                match self {
                    $(Self::$variant { $($field,)* } => vec![$((stringify!($field), Field::value($field)),)*],)*
                }
            }
        }

        impl fmt::Display for Finding {
            #[allow(unused_variables, reason = "messages leave out fields that say the same as others")]
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self { $(Self::$variant { $($field,)* } => write!(f, $message),)* }
            }
        }
    };
}

pub(crate) use findings;
