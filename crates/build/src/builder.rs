//! [`ImageBuilder`]: sources in, a volume out.
//!
//! 1. [`ImageBuilder::gather`] takes all entries, sorts them and lays out the tree: `gather`, `links`, `layers`, `tree`,
//!    `layout`. Nothing is written.
//! 2. [`Gathered::write`] wipes the devices, reads contents, writes data and blocks, and superblocks at last: `write`.

use crate::entry::Entry;
use crate::error::{Error, Result};
use crate::gather;
use crate::layout::Layout;
use crate::options::{BuildOptions, Size};
use crate::source::{Contents, Source};
use crate::spool::SpoolFolder;
use crate::write;
use buttress_device::Device;
use buttress_format::{ByteCount, Timestamp};
use buttress_fs::Progress;
use buttress_mkfs::parts::Settings;
use buttress_mkfs::{Identity, Made};
use std::sync::Arc;

/// What an adapter says of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It stays, as the adapter left it.
    Keep,
    /// It is left out, and what is below it of the same source.
    LeaveOut,
}

/// Looks at every entry before anything else does, and may change it: owners, contexts, exclusions. Adapters see entries
/// in the order of the source, which means nothing: what one says must follow from the entry alone.
pub type Adapter = Box<dyn Fn(&mut Entry) -> Verdict + Send + Sync>;

/// Builds a volume from sources. Those that are added later lie above those that are added earlier.
pub struct ImageBuilder {
    pub(crate) options: BuildOptions,
    pub(crate) sources: Vec<Box<dyn Source>>,
    pub(crate) adapters: Vec<Adapter>,
}

impl core::fmt::Debug for ImageBuilder {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("ImageBuilder")
            .field("options", &self.options)
            .field("sources", &self.sources.len())
            .finish_non_exhaustive()
    }
}

impl ImageBuilder {
    /// A builder without sources: what it builds is empty.
    #[must_use]
    pub fn new(options: BuildOptions) -> Self {
        Self {
            options,
            sources: Vec::new(),
            adapters: Vec::new(),
        }
    }

    /// Adds a source above all others.
    #[must_use]
    pub fn source(mut self, source: impl Source + 'static) -> Self {
        self.sources.push(Box::new(source));
        self
    }

    /// Adds an adapter, which sees what the ones before it left.
    #[must_use]
    pub fn adapt(mut self, adapter: impl Fn(&mut Entry) -> Verdict + Send + Sync + 'static) -> Self {
        self.adapters.push(Box::new(adapter));
        self
    }

    /// Takes all entries from all sources, and lays out the tree for a volume on so many devices. `time` is that of
    /// directories that nobody named.
    ///
    /// # Errors
    /// What a source fails with, entries that do not fit together, options that do not.
    pub fn gather(self, devices: usize, time: Timestamp, progress: &Progress) -> Result<Gathered> {
        progress.check()?;
        let settings = Settings::new(&self.options.volume, devices)?;
        if matches!(self.options.size, Size::Least { .. }) && devices != 1 {
            return Err(Error::LeastSizeDevices { devices });
        }
        gather::gather(self, settings, time, progress)
    }
}

/// A tree whose entries are all there and in order, and whose contents are still to be read.
pub struct Gathered {
    pub(crate) options: BuildOptions,
    pub(crate) settings: Settings,
    pub(crate) layout: Layout,
    pub(crate) contents: Vec<Arc<dyn Contents>>,
    pub(crate) folder: SpoolFolder,
}

impl core::fmt::Debug for Gathered {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Gathered")
            .field("settings", &self.settings)
            .field("totals", &self.layout.totals)
            .finish_non_exhaustive()
    }
}

impl Gathered {
    /// How large a device has to be that the volume fits on in any case, if it is the only one; what it takes in the end may
    /// be less.
    #[must_use]
    pub fn enough_bytes(&self) -> ByteCount {
        write::enough_bytes(self)
    }

    /// How many files there are, and how many bytes their contents have.
    #[must_use]
    pub const fn contents(&self) -> (u64, ByteCount) {
        let totals = &self.layout.totals;
        (totals.files, ByteCount::new(totals.content_bytes))
    }

    /// Reads contents and writes the volume. Superblocks come last: what fails leaves nothing that opens as a volume.
    ///
    /// # Errors
    /// What a source or a device fails with, too little room, [`Error::Cancelled`].
    pub fn write(self, devices: &[Device], identity: &Identity, progress: &Progress) -> Result<Made> {
        write::write(self, devices, identity, progress)
    }
}
