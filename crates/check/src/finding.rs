//! The findings of the check: one variant for each, with a code that never changes.
//!
//! `list` has the variants, their codes, grades and messages, in a module for each step. A finding
//! is data. JSON output has its code and its fields ([`Finding::fields`]). The
//! [`Display`](core::fmt::Display) of a finding is the sentence for users.

mod list;

pub use list::Finding;

use buttress_format::{
    ByteCount, DeviceId, FileOffset, Generation, InodeNumber, Key, Logical, Physical, SubvolumeId, TreeId,
};
use buttress_fs::Name;
use core::fmt;
use uuid::Uuid;

/// The severity of a result. A [`Note`](crate::Note) has the lowest level; only the other two
/// levels make a check fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// A state that the kernel leaves or ignores, and that is no damage.
    Note,
    /// A copy is bad or missing; another copy has its content.
    LostRedundancy,
    /// The finding means that data or metadata is wrong.
    Error,
}

impl Level {
    /// Returns the name of the level.
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

/// The grade of a finding, by its consequences.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Grade {
    /// A copy is bad or missing; another copy has its content.
    Redundancy,
    /// Two records contradict each other. Nothing is lost, and writes do not make the error worse.
    Inconsistent,
    /// All content is readable, but writes to the volume may destroy some of it.
    Unsafe,
    /// Some content of the volume is no longer readable.
    Loss,
}

impl Grade {
    /// All grades, least severe first.
    pub const ALL: [Self; 4] = [Self::Redundancy, Self::Inconsistent, Self::Unsafe, Self::Loss];

    /// Returns the level of findings of this grade.
    #[must_use]
    pub const fn level(self) -> Level {
        match self {
            Self::Redundancy => Level::LostRedundancy,
            Self::Inconsistent | Self::Unsafe | Self::Loss => Level::Error,
        }
    }

    /// Returns the grade in one word.
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
    /// A number, such as an address, a count or a size in bytes.
    Number(u64),
    /// A text.
    Text(String),
    /// A name, in bytes.
    Name(Vec<u8>),
}

/// The subject of a finding, from which the affected files and subvolumes are derived.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Subject {
    /// The volume.
    Volume,
    /// A tree.
    Tree(TreeId),
    /// An inode.
    Inode(SubvolumeId, InodeNumber),
    /// The extent or block at an address.
    Address(Logical),
}

/// The conversion of a finding's fields for reports.
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

/// A reference to an extent, as recorded by the user of the extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reference {
    /// A keyed reference to a tree block.
    TreeBlock {
        /// The tree that owns the block.
        tree: TreeId,
    },
    /// A full back reference to a tree block, by its parent.
    SharedBlock {
        /// The address of the parent block.
        parent: Logical,
    },
    /// A keyed reference to data: tree, inode and the file offset at which the extent would begin.
    Data {
        /// The tree.
        tree: TreeId,
        /// The inode.
        inode: InodeNumber,
        /// The file offset; wraps below zero.
        offset: u64,
    },
    /// A full back reference to data, by the leaf.
    SharedData {
        /// The address of the leaf.
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
        /// An error of a volume.
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
        #[non_exhaustive]
        pub enum Finding {
            $($(#[$meta])* $variant { $($(#[$field_meta])* $field: $type,)* },)*
        }

        impl Finding {
            /// All codes, with the grade and the step of each finding.
            pub const CODES: &'static [(&'static str, Grade, Step)] =
                &[$(($code, Grade::$grade, Step::$step),)*];

            /// Returns the code of the finding, which never changes between versions.
            #[must_use]
            pub const fn code(&self) -> &'static str {
                match self { $(Self::$variant { .. } => $code,)* }
            }

            /// Returns the grade of the finding.
            #[must_use]
            pub const fn grade(&self) -> Grade {
                match self { $(Self::$variant { .. } => Grade::$grade,)* }
            }

            /// Returns the level of the finding: an error, or lost redundancy.
            #[must_use]
            pub const fn level(&self) -> Level {
                self.grade().level()
            }

            /// Returns the step that reports the finding.
            #[must_use]
            pub const fn step(&self) -> Step {
                match self { $(Self::$variant { .. } => Step::$step,)* }
            }

            /// Returns the fields with their names.
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
