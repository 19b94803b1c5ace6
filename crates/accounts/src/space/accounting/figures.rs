//! Figures of an account: extents by kind of content, and the file items that refer to them.
//!
//! Clamps: sums of lengths from disk, which are only shown. A hostile volume can make such sums
//! overflow.

use buttress_format::{ByteCount, Compression};

/// The kind of content of an extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum ContentKind {
    /// Uncompressed bytes.
    Plain = 0,
    /// A zlib-compressed extent.
    Zlib = 1,
    /// LZO, in btrfs's framing.
    Lzo = 2,
    /// A zstd frame.
    Zstd = 3,
    /// Preallocated space without content, which reads as zeros.
    Preallocated = 4,
}

impl ContentKind {
    /// All kinds, in display order.
    pub const ALL: [Self; 5] = [Self::Plain, Self::Zlib, Self::Lzo, Self::Zstd, Self::Preallocated];

    /// Returns the kind of written content with this compression.
    #[must_use]
    pub const fn of(compression: Compression) -> Self {
        match compression {
            Compression::None => Self::Plain,
            Compression::Zlib => Self::Zlib,
            Compression::Lzo => Self::Lzo,
            Compression::Zstd => Self::Zstd,
        }
    }

    /// Returns the name of the kind, as compsize prints it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Preallocated => "prealloc",
            Self::Plain => Compression::None.name(),
            Self::Zlib => Compression::Zlib.name(),
            Self::Lzo => Compression::Lzo.name(),
            Self::Zstd => Compression::Zstd.name(),
        }
    }
}

/// Figures for all kinds of content.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ByKind<T>([T; 5]);

impl<T> ByKind<T> {
    /// Returns the figure for one kind of content.
    #[must_use]
    pub const fn of(&self, kind: ContentKind) -> &T {
        let [plain, zlib, lzo, zstd, preallocated] = &self.0;
        match kind {
            ContentKind::Plain => plain,
            ContentKind::Zlib => zlib,
            ContentKind::Lzo => lzo,
            ContentKind::Zstd => zstd,
            ContentKind::Preallocated => preallocated,
        }
    }

    pub(super) const fn of_mut(&mut self, kind: ContentKind) -> &mut T {
        let [plain, zlib, lzo, zstd, preallocated] = &mut self.0;
        match kind {
            ContentKind::Plain => plain,
            ContentKind::Zlib => zlib,
            ContentKind::Lzo => lzo,
            ContentKind::Zstd => zstd,
            ContentKind::Preallocated => preallocated,
        }
    }

    /// Returns all figures with their kinds.
    pub fn iter(&self) -> impl Iterator<Item = (ContentKind, &T)> {
        ContentKind::ALL.into_iter().zip(&self.0)
    }
}

/// Figures of an owner that can be added up.
pub(super) trait Sum: Copy {
    /// Adds `other` to these figures `times` times.
    fn add(&mut self, other: &Self, times: u64);
}

fn add(sum: &mut ByteCount, more: ByteCount, times: u64) {
    *sum = sum.saturating_add(ByteCount::new(more.get().saturating_mul(times)));
}

fn add_count(sum: &mut u64, more: u64, times: u64) {
    *sum = sum.saturating_add(more.saturating_mul(times));
}

impl<T: Sum> Sum for ByKind<T> {
    fn add(&mut self, other: &Self, times: u64) {
        for (sum, more) in self.0.iter_mut().zip(&other.0) {
            sum.add(more, times);
        }
    }
}

/// Sums of extents, each counted once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extents {
    /// The number of extents.
    pub count: u64,
    /// The length of whole extents on disk, in one copy, even if files use only a part.
    pub disk: ByteCount,
    /// The length of the content without compression.
    pub uncompressed: ByteCount,
}

impl Sum for Extents {
    fn add(&mut self, other: &Self, times: u64) {
        add_count(&mut self.count, other.count, times);
        add(&mut self.disk, other.disk, times);
        add(&mut self.uncompressed, other.uncompressed, times);
    }
}

/// Sums of file extent items, counted for each file of each subvolume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct References {
    /// The number of items that refer to extents.
    pub count: u64,
    /// The length of these items in their files, in bytes.
    pub bytes: ByteCount,
    /// The number of inline items.
    pub inline_count: u64,
    /// The stored bytes of inline content.
    pub inline_stored: ByteCount,
    /// The length of inline content without compression.
    pub inline_bytes: ByteCount,
}

impl Sum for References {
    fn add(&mut self, other: &Self, times: u64) {
        add_count(&mut self.count, other.count, times);
        add(&mut self.bytes, other.bytes, times);
        add_count(&mut self.inline_count, other.inline_count, times);
        add(&mut self.inline_stored, other.inline_stored, times);
        add(&mut self.inline_bytes, other.inline_bytes, times);
    }
}

/// The number of files and of their references.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Files {
    /// The number of regular files.
    pub count: u64,
    /// The content of these files.
    pub references: ByKind<References>,
}

impl Sum for Files {
    fn add(&mut self, other: &Self, times: u64) {
        add_count(&mut self.count, other.count, times);
        self.references.add(&other.references, times);
    }
}

/// The space of a part of the volume on disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Occupied {
    /// Data extents by kind.
    pub extents: ByKind<Extents>,
    /// The bytes of subvolumes' tree blocks, in one copy.
    pub metadata: ByteCount,
}

impl Sum for Occupied {
    fn add(&mut self, other: &Self, times: u64) {
        self.extents.add(&other.extents, times);
        add(&mut self.metadata, other.metadata, times);
    }
}

impl Occupied {
    /// Returns the bytes of data of all kinds on disk.
    #[must_use]
    pub fn data(&self) -> ByteCount {
        self.sum().disk
    }

    /// Returns the extents of all kinds.
    #[must_use]
    pub fn sum(&self) -> Extents {
        let mut sum = Extents::default();
        for (_, extents) in self.extents.iter() {
            sum.add(extents, 1);
        }
        sum
    }
}

impl References {
    fn remove(&mut self, other: &Self, times: u64) {
        let take = |sum: &mut ByteCount, less: ByteCount| {
            let less = ByteCount::new(less.get().saturating_mul(times));
            *sum = sum.checked_sub(less).unwrap_or(ByteCount::ZERO);
        };
        self.count = self.count.saturating_sub(other.count.saturating_mul(times));
        let inline = other.inline_count.saturating_mul(times);
        self.inline_count = self.inline_count.saturating_sub(inline);
        take(&mut self.bytes, other.bytes);
        take(&mut self.inline_stored, other.inline_stored);
        take(&mut self.inline_bytes, other.inline_bytes);
    }
}

impl Files {
    /// Subtracts counted figures that belong to no file.
    pub(super) fn remove(&mut self, other: &Self, times: u64) {
        for (sum, less) in self.references.0.iter_mut().zip(&other.references.0) {
            sum.remove(less, times);
        }
    }

    /// Returns the references of all kinds.
    #[must_use]
    pub fn sum(&self) -> References {
        let mut sum = References::default();
        for (_, references) in self.references.iter() {
            sum.add(references, 1);
        }
        sum
    }

    /// Returns the length of all files' content, including inline content, without holes.
    #[must_use]
    pub fn logical(&self) -> ByteCount {
        let sum = self.sum();
        sum.bytes.saturating_add(sum.inline_bytes)
    }
}
