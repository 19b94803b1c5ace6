//! `buttress rescue scan IMAGE`: an index of every tree block on the devices.

use std::ffi::OsString;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use buttress::salvage::{
    self, BlockIndex, Identity, IndexWriter, OpenedIndex, SpoolFolder, identify, identify_by_blocks, states,
};
use buttress::{Device, Progress, Uuid};
use clap::Args;
use serde_json::{Value, json};

use crate::context::Context;
use crate::exit::{Advice, Outcome};
use crate::globals::{DEFAULT_CACHE_BYTES, Uses};
use crate::manual::{Example, example};
use crate::opening::states::default_index;
use crate::output::size::Units;
use crate::output::terminal;
use crate::progress::Watch;
use crate::signals::Cancelling;
use crate::sources::Role;
use crate::table::Subcommand;
use crate::target::Target;

/// Find every tree block on the devices, and keep the blocks' places in an index
///
/// The scan reads the devices once and changes nothing. An interrupted scan continues at the next
/// call. Older versions of blocks are found as long as their space was not used again.
#[derive(Args, Debug)]
pub struct Scan {
    /// The index file [default: the image's name with .scan appended]
    #[arg(long, value_name = "FILE")]
    index: Option<PathBuf>,
    /// Find the blocks of the file system with this uuid, even if no superblock has it
    #[arg(long, value_name = "UUID")]
    fsid: Option<Uuid>,
    /// The image or device
    #[arg(value_name = "IMAGE")]
    image: OsString,
}

/// The part of the memory budget that sorting uses.
const SORTER_PARTS: u64 = 4;

impl Subcommand for Scan {
    const NAME: &'static str = "scan";
    const EXAMPLES: &'static [Example] = &[
        example(
            "buttress rescue scan broken.img",
            "Keeps the places of all tree blocks in broken.img.scan",
        ),
        example(
            "buttress rescue scan --fsid 7b0f3d0a-6e5c-4b1e-9c37-0d1b2f6a5e11 broken.img",
            "Finds the blocks of a file system whose superblocks were overwritten",
        ),
    ];

    fn uses(&self) -> Uses {
        Uses {
            volume: false,
            state: false,
            ..Uses::VOLUME
        }
    }

    fn run(self, context: &Context) -> Result<Outcome> {
        let target = Target::parse(&self.image);
        let devices = context.open_devices(std::slice::from_ref(&target.image))?;
        let path = match &self.index {
            Some(path) => path.clone(),
            None => default_index(&target.image),
        };
        context.sources().refuse_path(&path)?;
        context.sources().add(&path, Role::Index)?;
        let progress = context.progress();
        let cancelling = Cancelling::start(&progress)?;
        let watch = Watch::start(context, "scan", progress.clone());
        let done = self.index_of(context, &devices, &path, &progress);
        watch.end_as(done.is_ok());
        drop(cancelling);
        let index = done.map_err(|error| advised(error, &path))?;
        let states = states(&devices, index.identity().fsid, Some(&index))?;
        let generations: Vec<u64> = states.iter().map(|state| state.generation().get()).collect();
        report(context, &target, &index, &generations)?;
        Ok(Outcome::Done)
    }
}

impl Scan {
    fn index_of(
        &self,
        context: &Context,
        devices: &[Device],
        path: &Path,
        progress: &Progress,
    ) -> Result<BlockIndex> {
        let identity = self.identity(devices, progress)?;
        scan_into(context, devices, &identity, path, progress)
    }

    /// Returns the file system to scan for.
    fn identity(&self, devices: &[Device], progress: &Progress) -> Result<Identity> {
        let known = match self.fsid {
            None => identify(devices, progress)?,
            Some(fsid) => {
                let with_superblock = identify(devices, progress).ok();
                let is_wanted = |known: &Identity| known.fsid == fsid || known.metadata_uuid == fsid;
                match with_superblock.into_iter().flatten().find(is_wanted) {
                    Some(found) => vec![found],
                    None => identify_by_blocks(devices, Some(fsid), progress)?,
                }
            }
        };
        known
            .into_iter()
            .next()
            .context("the devices hold no file system")
    }
}

/// Scans the devices into an index, or continues an earlier scan of them.
pub(crate) fn scan_into(
    context: &Context,
    devices: &[Device],
    identity: &Identity,
    path: &Path,
    progress: &Progress,
) -> Result<BlockIndex> {
    let (mut writer, continues) = match IndexWriter::open(path, identity)? {
        OpenedIndex::Scanning(writer, continues) => (writer, continues),
        OpenedIndex::Complete(index) => return Ok(index),
    };
    if continues && !context.globals().quiet {
        context.warn(format_args!("{}: an earlier scan is continued", path.display()));
    }
    salvage::scan(devices, identity, &mut writer, progress).inspect_err(|_| {
        // The next call continues from here. A failure of the file leaves the last durable header.
        let _ = writer.checkpoint();
    })?;
    // Clamp: without the option, the default budget counts.
    let budget = context.globals().cache_bytes.unwrap_or(DEFAULT_CACHE_BYTES);
    let memory = budget
        .checked_div(SORTER_PARTS)
        .and_then(|bytes| usize::try_from(bytes).ok());
    let memory = memory.context("the memory budget exceeds the memory of this machine")?;
    Ok(writer.finish(memory, &SpoolFolder::new(None), progress)?)
}

fn advised(error: anyhow::Error, path: &Path) -> anyhow::Error {
    match error.downcast_ref() {
        Some(salvage::Error::Cancelled) => error.context(Advice(format!(
            "{} keeps what was found; to continue, run the same command again",
            path.display()
        ))),
        _ => error,
    }
}

fn report(context: &Context, target: &Target, index: &BlockIndex, generations: &[u64]) -> Result<()> {
    let (identity, found) = (index.identity(), index.found());
    let span = generations.last().zip(generations.first());
    if context.json() {
        let others: Vec<Value> = found
            .others
            .iter()
            .map(|(fsid, headers)| json!({ "fsid": fsid.to_string(), "headers": headers }))
            .collect();
        let mut object = target.as_json();
        object.insert("index".to_owned(), json!(index.path().to_string_lossy()));
        object.insert("fsid".to_owned(), json!(identity.fsid.to_string()));
        object.insert("blocks".to_owned(), json!(found.blocks));
        object.insert("damaged-blocks".to_owned(), json!(found.damaged));
        object.insert("read-bytes".to_owned(), json!(found.read.get()));
        object.insert("unreadable-bytes".to_owned(), json!(found.unreadable.get()));
        object.insert("generations".to_owned(), json!(generations));
        object.insert("others".to_owned(), others.into());
        return context.print_json("rescue-scan", Value::Object(object));
    }
    let units = Units::default();
    let mut out = context.stdout();
    writeln!(out, "file system:  {}", identity.fsid)?;
    writeln!(
        out,
        "tree blocks:  {} sound, {} damaged",
        found.blocks, found.damaged
    )?;
    let (read, unreadable) = (units.text(found.read.get()), units.text(found.unreadable.get()));
    writeln!(out, "read:         {read}, {unreadable} unreadable")?;
    if let Some((oldest, newest)) = span {
        writeln!(
            out,
            "root trees:   {}, generations {oldest} to {newest}",
            generations.len()
        )?;
    }
    for (fsid, headers) in &found.others {
        writeln!(out, "other blocks: {headers} of file system {fsid}")?;
    }
    writeln!(out, "index:        {}", terminal::shown(index.path().display()))?;
    out.flush()?;
    Ok(())
}
