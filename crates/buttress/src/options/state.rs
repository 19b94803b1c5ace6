//! Opening an older state of a volume.

use super::VolumeOptions;
use crate::error::Result;
use crate::volume::Volume;
use buttress_device::Device;
use buttress_format::Generation;
use buttress_fs::Progress;
use buttress_salvage::survey::is_usable;
use buttress_salvage::{BlockIndex, Error, Identity, State, ViewOptions, identify, states, view};
use std::path::PathBuf;
use std::sync::Arc;

/// The state that the options ask for.
#[derive(Clone, Debug, Default)]
pub(super) struct WantedState {
    generation: Option<Generation>,
    index: Option<PathBuf>,
}

impl VolumeOptions {
    /// Opens the volume as the commit with this generation left it, for reading. The superblocks name
    /// the last four commits. An [`index`](Self::index) finds older ones, as long as their blocks are
    /// still on the devices.
    ///
    /// Each tree block is checked by address and generation, so a block that a later commit
    /// overwrote is an error. File content with checksums is the content of the state, or an error.
    /// Content without checksums may be newer.
    ///
    /// ```
    /// # fn main() -> buttress::Result<()> {
    /// # let folder = std::env::temp_dir().join(format!("buttress-doc-state-{}", std::process::id()));
    /// # std::fs::create_dir_all(&folder).unwrap();
    /// # let path = folder.join("new.img");
    /// # let new = buttress::Volume::create().in_file(&path, buttress::ByteCount::new(256 << 20))?;
    /// # new.root().write("report", "first")?;
    /// # new.sync()?;
    /// # new.root().write("report", "second")?;
    /// # new.sync()?;
    /// # drop(new);
    /// let volume = buttress::Volume::open(&path)?;
    /// for state in volume.states(None)? {
    ///     let older = buttress::Volume::options().generation(state.generation()).open(&path)?;
    ///     if older.root().read("report").is_ok_and(|content| content == b"first") {
    ///         println!("generation {} has the first report", state.generation());
    ///     }
    /// }
    /// # let mut found = volume.states(None)?.into_iter();
    /// # assert!(found.any(|state| {
    /// #     let older = buttress::Volume::options().generation(state.generation()).open(&path);
    /// #     older.is_ok_and(|older| older.root().read("report").is_ok_and(|content| content == b"first"))
    /// # }));
    /// # std::fs::remove_dir_all(&folder).unwrap();
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn generation(mut self, generation: Generation) -> Self {
        self.state.generation = Some(generation);
        self
    }

    /// Sets the index of a scan that finds the roots of [`generation`](Self::generation), and chunk
    /// trees that no superblock leads to.
    ///
    /// ```no_run
    /// # fn main() -> buttress::Result<()> {
    /// use buttress::{Generation, Volume};
    ///
    /// let options = Volume::options().index("disk.img.scan");
    /// let volume = options.generation(Generation::new(12)).open("disk.img")?;
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn index(mut self, path: impl Into<PathBuf>) -> Self {
        self.state.index = Some(path.into());
        self
    }

    /// Returns whether the options ask for a generation.
    pub(super) const fn wants_older_state(&self) -> bool {
        self.state.generation.is_some()
    }

    /// Returns the volume at the wanted generation, or `None` if the newest state is wanted.
    pub(super) fn older_state(&self, devices: &[Device]) -> Result<Option<Volume>> {
        let WantedState { generation, index } = &self.state;
        let Some(generation) = *generation else {
            return Ok(None);
        };
        let index = index.as_deref().map(BlockIndex::open).transpose()?.map(Arc::new);
        let identity = match &index {
            Some(index) => index.identity().clone(),
            None => first_identity(devices)?,
        };
        let found = states(devices, identity.fsid, index.as_deref())?;
        let options = ViewOptions {
            // Clamp: without the option, the default budget counts.
            cache: self.cache.unwrap_or(ViewOptions::default().cache),
            rescue: self.rescue,
            degraded: self.degraded,
            index,
        };
        let of_generation: Vec<&State> = found
            .iter()
            .filter(|state| state.generation() == generation)
            .collect();
        let mut failure = Error::NoState { generation };
        // Of several roots of one generation, the one that a superblock names comes first. A root
        // whose trees cannot be read counts only if no other root is better.
        let mut ordered = of_generation;
        ordered.sort_by_key(|state| state.origin);
        let has_rivals = ordered.len() > 1;
        let mut damaged = None;
        for state in ordered {
            match view::open(devices, &identity, state, &options) {
                Ok(view) => {
                    if !has_rivals || is_usable(&view.filesystem, &Progress::new())? {
                        return Ok(Some(Volume::over(view.filesystem)));
                    }
                    damaged.get_or_insert(view);
                }
                Err(error) => failure = error,
            }
        }
        match damaged {
            Some(view) => Ok(Some(Volume::over(view.filesystem))),
            None => Err(failure.into()),
        }
    }
}

/// Returns the identity of the first superblock's file system.
fn first_identity(devices: &[Device]) -> Result<Identity> {
    let identities = identify(devices, &Progress::new())?;
    let first = identities.into_iter().next();
    Ok(first.ok_or(Error::NoBlocks {
        devices: String::new(),
        bytes: 0,
    })?)
}
