//! [`ImageBuilder`]: sources in, a volume out.
//!
//! 1. [`ImageBuilder::gather`] reads all entries, sorts them and lays out the tree: `gather`,
//!    `links`, `layers`, `tree`, `layout`. This stage writes nothing.
//! 2. [`Gathered::write`] wipes the devices, reads contents, and writes data and blocks, and
//!    finally the superblocks: `write`.

use crate::entry::Entry;
use crate::error::{Error, Result};
use crate::gather;
use crate::layout::Layout;
use crate::options::{BuildOptions, Size};
use crate::source::{Contents, Source};
use crate::write;
use buttress_device::Device;
use buttress_format::{ByteCount, Timestamp};
use buttress_fs::Progress;
use buttress_mkfs::parts::Settings;
use buttress_mkfs::{Identity, Made};
use buttress_packing::SpoolFolder;
use std::sync::Arc;

/// An adapter's decision on an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The entry stays in the form that the adapter left.
    Keep,
    /// Leave out the failed entry, together with everything of the same source below it.
    LeaveOut,
}

/// An adapter, which inspects every entry first and may change its owner, contexts or exclusion.
/// Adapters receive entries in the source's order, which has no meaning. The result of an adapter
/// must depend on the entry alone.
pub type Adapter = Box<dyn Fn(&mut Entry) -> Verdict + Send + Sync>;

/// Builds a volume from sources. A later source takes precedence over earlier sources.
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
    /// Makes a builder without sources, which builds an empty volume.
    #[must_use]
    pub fn new(options: BuildOptions) -> Self {
        Self {
            options,
            sources: Vec::new(),
            adapters: Vec::new(),
        }
    }

    /// Adds a source, which takes precedence over all earlier sources.
    #[must_use]
    pub fn source(mut self, source: impl Source + 'static) -> Self {
        self.sources.push(Box::new(source));
        self
    }

    /// Adds an adapter, which receives the entries that earlier adapters passed on.
    #[must_use]
    pub fn adapt(mut self, adapter: impl Fn(&mut Entry) -> Verdict + Send + Sync + 'static) -> Self {
        self.adapters.push(Box::new(adapter));
        self
    }

    /// Reads all entries from all sources, and lays out the tree for a volume on this number of
    /// devices. `time` is the time of directories without an entry.
    ///
    /// # Errors
    /// Fails if a source fails, or if entries or options contradict each other.
    pub fn gather(self, devices: usize, time: Timestamp, progress: &Progress) -> Result<Gathered> {
        progress.check()?;
        let settings = Settings::new(&self.options.volume, devices)?;
        if matches!(self.options.size, Size::Least { .. }) && devices != 1 {
            return Err(Error::LeastSizeDevices { devices });
        }
        gather::gather(self, settings, time, progress)
    }
}

/// A tree with all entries in order, whose contents are not read yet.
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
    /// Returns a device size that suffices for the volume on a single device. The volume may
    /// finally take less than this size.
    #[must_use]
    pub fn enough_bytes(&self) -> ByteCount {
        write::enough_bytes(self)
    }

    /// Returns the number of files, and the total size of their contents.
    #[must_use]
    pub const fn contents(&self) -> (u64, ByteCount) {
        let totals = &self.layout.totals;
        (totals.files, ByteCount::new(totals.content_bytes))
    }

    /// Reads contents and writes the volume. The writer writes superblocks last, so after a failure
    /// no device opens as a volume.
    ///
    /// # Errors
    /// Fails if a source or a device fails, or if space is short. Returns [`Error::Cancelled`] if
    /// the job was cancelled.
    pub fn write(self, devices: &[Device], identity: &Identity, progress: &Progress) -> Result<Made> {
        write::write(self, devices, identity, progress)
    }
}
