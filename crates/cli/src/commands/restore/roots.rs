//! The choice of the state that is restored.
//!
//! Without options, candidates are tried in this order, each only if the ones before fail:
//!
//! 1. the volume as any command opens it, with a pending log;
//! 2. the states that superblocks name, the newest first;
//! 3. the states of a scan, the newest first. The scan reads the devices once, unless an index exists.
//!
//! A candidate counts if all blocks of its root tree, and the root block of each subvolume, can be
//! read. If no candidate counts, the state with the most readable tree blocks is restored.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Result, anyhow};
use buttress::salvage::{
    BlockIndex, Identity, Origin, SUPERBLOCK_OFFSETS, State, Surveyor, ViewOptions, identify,
    identify_by_blocks, is_usable, open_state, states, states_at, volume_of,
};
use buttress::{ByteCount, Device, Progress, Volume};
use serde_json::{Value, json};

use crate::commands::rescue::scan::scan_into;
use crate::context::Context;
use crate::globals::DEFAULT_CACHE_BYTES;
use crate::opening::states::index_of;

/// The state that the user asked for.
pub(super) struct Wanted<'a> {
    pub(super) image: &'a Path,
    pub(super) index: Option<&'a Path>,
    pub(super) generation: Option<u64>,
    pub(super) tree_root: Option<u64>,
    pub(super) mirror: Option<u8>,
}

impl Wanted<'_> {
    /// Returns whether the user named a state.
    pub(super) fn is_named(&self) -> bool {
        self.generation.is_some() || self.tree_root.is_some() || self.mirror.is_some()
    }
}

/// The state that is restored.
pub(super) struct Chosen {
    pub(super) volume: Volume,
    /// The state, or `None` for the last commit with its log.
    pub(super) state: Option<State>,
    /// The newest known generation.
    pub(super) newest: u64,
    /// True if a part of the root tree or a subvolume's root cannot be read.
    pub(super) is_damaged: bool,
}

impl Chosen {
    /// Returns the generation of the state.
    pub(super) fn generation(&self) -> u64 {
        self.state.map_or(self.newest, |state| state.generation().get())
    }

    /// Returns the description of the state as JSON and as text.
    pub(super) fn described(&self) -> (Value, String) {
        let origin = match self.state.map(|state| state.origin) {
            None => "last commit, with its log",
            Some(Origin::Superblock(_)) => "superblock",
            Some(Origin::Backup(_)) => "backup root",
            Some(Origin::Scan) => "scan",
        };
        let (generation, newest) = (self.generation(), self.newest);
        let value = json!({
            "generation": generation,
            "named-by": origin,
            "newest-generation": newest,
            "damaged": self.is_damaged,
        });
        let newer = match self.is_older() {
            true => format!(", the newest is {newest}"),
            false => String::new(),
        };
        (value, format!("generation {generation} ({origin}){newer}"))
    }

    /// Returns whether a newer state is known.
    pub(super) fn is_older(&self) -> bool {
        self.generation() < self.newest
    }
}

/// Marks the error that no state could be opened.
#[derive(Debug)]
pub(super) struct NothingOpens;

impl fmt::Display for NothingOpens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("no state of the volume could be opened")
    }
}

/// Chooses the state to restore.
pub(super) fn choose(
    context: &Context,
    devices: &[Device],
    wanted: &Wanted<'_>,
    progress: &Progress,
) -> Result<Chosen> {
    if !wanted.is_named()
        && let Some(chosen) = last_commit(context, devices, progress)?
    {
        return Ok(chosen);
    }
    let index = index_of(context, wanted.image, wanted.index, devices)?.map(Arc::new);
    let mut choice = Choice {
        context,
        devices,
        wanted,
        progress,
        failure: None,
    };
    let known = match &index {
        Some(index) => Some(index.identity().clone()),
        // Without superblocks, the scan finds the file system.
        None => identify(devices, progress)
            .ok()
            .and_then(|found| found.into_iter().next()),
    };
    if let Some(identity) = &known
        && let Some(chosen) = choice.newest(identity, index.as_ref())?
    {
        return Ok(chosen);
    }
    let (identity, index) = match known.zip(index) {
        Some(scanned) => scanned,
        None => {
            context.warn(format_args!(
                "{}: superblocks lead to no usable state: all blocks are searched",
                wanted.image.display()
            ));
            let (identity, index) = scanned(context, devices, progress)?;
            if let Some(chosen) = choice.newest(&identity, Some(&index))? {
                return Ok(chosen);
            }
            (identity, index)
        }
    };
    if let Some(chosen) = choice.most_readable(&identity, &index)? {
        return Ok(chosen);
    }
    let failure = choice
        .failure
        .unwrap_or_else(|| anyhow!("no root tree was found"));
    Err(failure.context(NothingOpens))
}

/// Opens the volume as other commands do, if this state can be used.
fn last_commit(context: &Context, devices: &[Device], progress: &Progress) -> Result<Option<Chosen>> {
    let options = context.volume_options().degraded(true);
    let Ok(volume) = options.open_devices(devices.to_vec()) else {
        return Ok(None);
    };
    if !is_usable(&volume, progress)? {
        return Ok(None);
    }
    for notice in volume.notices() {
        context.warn(notice);
    }
    let states = volume.states(None)?;
    Ok(Some(Chosen {
        volume,
        state: None,
        newest: newest_of(&states),
        is_damaged: false,
    }))
}

/// Returns the newest generation of states, and 0 without any.
fn newest_of(states: &[State]) -> u64 {
    states.first().map_or(0, |state| state.generation().get())
}

/// Scans the devices into an index without a name.
pub(crate) fn scanned(
    context: &Context,
    devices: &[Device],
    progress: &Progress,
) -> Result<(Identity, Arc<BlockIndex>)> {
    let nothing = |error: anyhow::Error| error.context(NothingOpens);
    let identities = identify(devices, progress)
        .or_else(|_| identify_by_blocks(devices, None, progress))
        .map_err(|error| nothing(error.into()))?;
    let identity = identities.into_iter().next();
    let identity = identity.ok_or_else(|| nothing(anyhow!("the devices hold no tree block")))?;
    let folder = tempfile::tempdir()?;
    let index = scan_into(
        context,
        devices,
        &identity,
        &folder.path().join("index"),
        progress,
    )?;
    Ok((identity, Arc::new(index)))
}

struct Choice<'a> {
    context: &'a Context,
    devices: &'a [Device],
    wanted: &'a Wanted<'a>,
    progress: &'a Progress,
    /// The failure of the newest state, which explains most.
    failure: Option<anyhow::Error>,
}

impl Choice<'_> {
    fn options(&self, index: Option<&Arc<BlockIndex>>) -> ViewOptions {
        // Clamp: without the option, the default budget counts.
        let cache = self.context.globals().cache_bytes.unwrap_or(DEFAULT_CACHE_BYTES);
        ViewOptions {
            cache: ByteCount::new(cache),
            rescue: self.context.globals().rescue(),
            degraded: true,
            index: index.cloned(),
        }
    }

    /// Returns the states that the user's options allow, the newest first, and the newest known
    /// generation.
    fn candidates(&self, identity: &Identity, index: Option<&Arc<BlockIndex>>) -> Result<(Vec<State>, u64)> {
        let wanted = self.wanted;
        let mut found = states(self.devices, identity.fsid, index.map(Arc::as_ref))?;
        let newest = newest_of(&found);
        if let Some(mirror) = wanted.mirror {
            // A healthy copy names the commit of the primary, so it has no state of its own.
            let offset = SUPERBLOCK_OFFSETS.get(usize::from(mirror)).copied();
            found = offset.map_or_else(Vec::new, |at| states_at(self.devices, identity.fsid, at));
        }
        found.retain(|state| {
            wanted
                .generation
                .is_none_or(|wanted| state.generation().get() == wanted)
                && wanted
                    .tree_root
                    .is_none_or(|wanted| state.root.logical.get() == wanted)
        });
        Ok((found, newest))
    }

    /// Returns the newest usable state. A state that the user named need not be usable.
    fn newest(&mut self, identity: &Identity, index: Option<&Arc<BlockIndex>>) -> Result<Option<Chosen>> {
        let options = self.options(index);
        let (candidates, newest) = self.candidates(identity, index)?;
        let mut damaged = None;
        for state in candidates {
            match open_state(self.devices, identity, &state, &options) {
                Ok(view) => {
                    let volume = volume_of(view);
                    let usable = is_usable(&volume, self.progress)?;
                    let chosen = Chosen {
                        volume,
                        state: Some(state),
                        newest,
                        is_damaged: !usable,
                    };
                    if usable {
                        return Ok(Some(chosen));
                    }
                    // A generation can have several roots, so a named state also prefers a usable root.
                    if self.wanted.is_named() {
                        damaged.get_or_insert(chosen);
                    }
                }
                Err(error) => {
                    self.failure.get_or_insert(error.into());
                }
            }
        }
        if let Some(chosen) = &damaged {
            self.context.warn(format_args!(
                "generation {}: the root tree or a subvolume's root cannot be read",
                chosen.generation()
            ));
        }
        Ok(damaged)
    }

    /// Returns the state with the most readable tree blocks.
    fn most_readable(&mut self, identity: &Identity, index: &Arc<BlockIndex>) -> Result<Option<Chosen>> {
        let options = self.options(Some(index));
        let mut surveyor = Surveyor::new();
        let mut best: Option<(u64, State)> = None;
        let (candidates, newest) = self.candidates(identity, Some(index))?;
        for state in candidates {
            let Ok(view) = open_state(self.devices, identity, &state, &options) else {
                continue;
            };
            let survey = surveyor.survey(&view, self.progress)?;
            if survey.subvolumes > 0 && best.is_none_or(|(most, _)| most < survey.blocks.readable) {
                best = Some((survey.blocks.readable, state));
            }
        }
        let Some((_, state)) = best else {
            return Ok(None);
        };
        let view = open_state(self.devices, identity, &state, &options)?;
        Ok(Some(Chosen {
            volume: volume_of(view),
            state: Some(state),
            newest,
            is_damaged: true,
        }))
    }
}
