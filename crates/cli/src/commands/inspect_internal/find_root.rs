//! `buttress inspect-internal find-root`: candidates for the root of a tree.
//!
//! Output and flags are those of `btrfs-find-root`. Without `-a`, the search ends at the block that
//! the superblock names, in the order of addresses. If the chunk tree cannot be read, every block
//! counts, wherever it is located.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::PathBuf;

use anyhow::{Context as _, Result, anyhow};
use buttress::salvage::{FoundRoots, Identity, Origin, Record, RootQuery, find_roots, identify, states};
use buttress::{ByteCount, Device, DeviceId, Generation, Logical, TreeId, Volume};
use clap::Args;
use serde_json::{Value, json};

use crate::context::Context;
use crate::exit::{Advice, Outcome};
use crate::globals::Uses;
use crate::manual::{Example, example};
use crate::progress::Watch;
use crate::signals::Cancelling;
use crate::table::Subcommand;

/// Search the devices for roots of a tree
#[derive(Args, Debug)]
pub struct FindRoot {
    /// List all candidates, even after the root that the superblock names
    #[arg(short = 'a')]
    all: bool,
    /// The id of the tree
    #[arg(short = 'o', value_name = "OBJECTID", default_value_t = TreeId::ROOT.get())]
    tree: u64,
    /// The lowest level of a candidate
    #[arg(short = 'l', value_name = "LEVEL", default_value_t = 0)]
    level: u8,
    /// The lowest generation of a candidate
    #[arg(short = 'g', value_name = "GENERATION", default_value_t = 0)]
    generation: u64,
    /// The image or device
    #[arg(value_name = "DEVICE")]
    device: PathBuf,
}

/// The generation and the level of a root that the superblock names.
type Named = Option<(Generation, u8)>;

impl Subcommand for FindRoot {
    const NAME: &'static str = "find-root";
    const EXAMPLES: &'static [Example] = &[
        example(
            "buttress inspect-internal find-root -a backup.img",
            "Lists the root trees of all commits that are still on the device",
        ),
        example(
            "buttress inspect-internal find-root -a -o 5 backup.img",
            "Lists blocks that may be roots of the top-level subvolume",
        ),
    ];

    fn uses(&self) -> Uses {
        Uses {
            state: false,
            ..Uses::VOLUME
        }
    }

    fn run(self, context: &Context) -> Result<Outcome> {
        let devices = context.open_devices(std::slice::from_ref(&self.device))?;
        let progress = context.progress();
        let cancelling = Cancelling::start_reading(&progress)?;
        let watch = Watch::start(context, "find-root", progress.clone());
        let identity = identify(&devices, &progress)?;
        let identity = identity.first().context("the devices hold no file system")?;
        if identity.generation().is_none() {
            return Err(anyhow!("{}: no valid superblock", self.device.display())).context(Advice::new(
                "to find tree blocks without a superblock, run `buttress rescue scan`",
            ));
        }
        let named = self.named(&devices, identity)?;
        let opened = context
            .volume_options()
            .for_inspection()
            .open_devices(devices.clone());
        if let Err(error) = &opened {
            context.warn(format_args!(
                "{}: blocks count at any place, because the volume does not open: {error}",
                self.device.display()
            ));
        }
        let volume = opened.ok();
        let query = RootQuery {
            tree: TreeId::new(self.tree),
            level_min: self.level,
            generation_min: Generation::new(self.generation),
        };
        let is_mapped = |record: &Record| is_mapped(volume.as_ref(), identity, record);
        let found = find_roots(&devices, identity, query, &is_mapped, &progress);
        watch.end_as(found.is_ok());
        drop(cancelling);
        let found = found?;
        if found.is_cut {
            context.warn("some candidates are left out; give -g or -l");
        }
        if found.scanned.unreadable != ByteCount::ZERO {
            context.lost(&anyhow!(
                "{}: {} bytes could not be read",
                self.device.display(),
                found.scanned.unreadable
            ));
        }
        self.print(context, named, &found)?;
        Ok(Outcome::Done)
    }
}

impl FindRoot {
    fn named(&self, devices: &[Device], identity: &Identity) -> Result<Named> {
        let states = states(devices, identity.fsid, None)?;
        // As for opening, the primary superblock counts before its copies.
        let supers = states
            .iter()
            .filter(|state| matches!(state.origin, Origin::Superblock(_)));
        let newest = supers.min_by_key(|state| state.origin);
        let root = newest.and_then(|state| match TreeId::new(self.tree) {
            TreeId::ROOT => Some(state.root),
            TreeId::CHUNK => state.chunk_root,
            _ => None,
        });
        Ok(root.map(|root| (root.generation, root.level)))
    }

    fn print(&self, context: &Context, named: Named, found: &FoundRoots) -> Result<()> {
        let mut blocks: BTreeMap<(Generation, Logical), u8> = BTreeMap::new();
        for (generation, (level, addresses)) in &found.generations {
            blocks.extend(addresses.iter().map(|address| ((*generation, *address), *level)));
        }
        let is_named = |generation: Generation, level: u8| named == Some((generation, level));
        let mut first = None;
        if !self.all {
            let matching = blocks
                .iter()
                .filter(|((generation, _), level)| is_named(*generation, **level));
            first = matching.map(|((_, address), _)| *address).min();
        }
        // Without -a, blocks above the found root are not searched.
        if let Some(first) = first {
            blocks.retain(|(_, address), _| *address <= first);
        }
        if context.json() {
            let values = blocks.iter().rev().map(|((generation, address), level)| {
                json!({
                    "bytenr": address.get(),
                    "generation": generation.get(),
                    "level": level,
                    "in-superblock": is_named(*generation, *level),
                })
            });
            return context.print_json(Self::NAME, Value::Array(values.collect()));
        }
        let mut out = context.stdout();
        let tree = self.tree;
        match named {
            Some((generation, level)) => {
                writeln!(out, "Superblock thinks the generation is {generation}")?;
                writeln!(out, "Superblock thinks the level is {level}")?;
            }
            None => {
                writeln!(out, "Superblock doesn't contain generation info for root {tree}")?;
                writeln!(out, "Superblock doesn't contain the level info for root {tree}")?;
            }
        }
        if let (Some(first), Some((generation, level))) = (first, named) {
            writeln!(out, "Found tree root at {first} gen {generation} level {level}")?;
        }
        for ((generation, address), level) in blocks.iter().rev() {
            if first == Some(*address) && is_named(*generation, *level) {
                continue;
            }
            write!(
                out,
                "Well block {address}(gen: {generation} level: {level}) seems good, "
            )?;
            match named {
                None => writeln!(out, "but we are unsure about the correct generation/level")?,
                Some(_) if is_named(*generation, *level) => writeln!(out, "and it matches superblock")?,
                Some((wanted, level)) => writeln!(
                    out,
                    "but generation/level doesn't match, want gen: {wanted} level: {level}"
                )?,
            }
        }
        out.flush()?;
        Ok(())
    }
}

/// Returns whether a block is at a place that the chunk tree gives its address.
fn is_mapped(volume: Option<&Volume>, identity: &Identity, record: &Record) -> bool {
    let Some(volume) = volume else { return true };
    let device = identity.devices.get(usize::from(record.device));
    let id: Option<DeviceId> = device.and_then(|device| device.member).map(|(_, id, _)| id);
    let copies = volume.copies(record.logical, ByteCount::new(identity.node_bytes.into()));
    copies.iter().any(|copy| {
        Some(copy.device) == id && copy.physical == record.physical && copy.logical == record.logical
    })
}
