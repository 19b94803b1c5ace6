//! `buttress rescue chunk-recover IMAGE`: the chunk tree from all other records.

use std::ffi::OsString;
use std::io::{BufRead as _, Write};
use std::path::PathBuf;

use anyhow::{Context as _, Result};
use buttress::repair::{ChunkRecovery, RecoveryOptions};
use buttress::salvage::{BlockIndex, ChunkEvidence, RecoveredChunk, RecoveredChunks, identify};
use buttress::{ByteCount, Device, DeviceOptions, Progress};
use clap::Args;
use serde_json::{Value, json};

use super::scan::scan_into;
use crate::context::Context;
use crate::exit::Outcome;
use crate::globals::{DEFAULT_CACHE_BYTES, Uses};
use crate::manual::{Example, ExitCode, example};
use crate::output::terminal;
use crate::progress::Watch;
use crate::signals::Cancelling;
use crate::sources::Role;
use crate::table::Subcommand;
use crate::target::Target;

const QUESTION: &str =
    "The chunk tree will be written again, and superblocks will name it. Continue? [y/N]: ";

/// Write a lost chunk tree again, from all other records
///
/// A scan finds all tree blocks. Device extents, chunk items that are left, and block groups name the
/// chunks. Tree blocks and checksums prove the order of the stripes. If a chunk is not proved, the
/// command names it and writes nothing. Before it writes, it tries the recovery in memory. -v lists
/// all chunks. All devices must be given.
#[derive(Args, Debug)]
pub struct ChunkRecover {
    /// Assume the answer yes
    #[arg(short = 'y')]
    yes: bool,
    /// Keep the index of the scan in this file, or use the one that is there
    #[arg(long, value_name = "FILE")]
    index: Option<PathBuf>,
    /// The image or device
    #[arg(value_name = "IMAGE")]
    image: OsString,
}

impl Subcommand for ChunkRecover {
    const NAME: &'static str = "chunk-recover";
    const EXAMPLES: &'static [Example] = &[
        example(
            "buttress rescue chunk-recover -y --overlay tried backup.img",
            "Recovers a lost chunk tree in an overlay",
        ),
        example(
            "buttress rescue chunk-recover -v --device second.img first.img",
            "Lists the chunks of a volume on two devices, and asks before it writes",
        ),
    ];
    const EXIT_CODES: &'static [ExitCode] = &[
        (0, "The chunk tree is whole, or was recovered"),
        (
            1,
            "The recovery failed or was declined, or the extent tree could not be rebuilt after it",
        ),
        (2, "The command line is wrong"),
    ];

    fn uses(&self) -> Uses {
        Uses {
            state: false,
            ..Uses::VOLUME
        }
    }

    fn run(self, context: &Context) -> Result<Outcome> {
        let target = Target::parse(&self.image);
        let options = DeviceOptions {
            write: true,
            ..context.device_options()
        };
        let devices = context.open_devices_with(core::slice::from_ref(&target.image), &options)?;
        if let Some(path) = &self.index {
            context.sources().refuse_path(path)?;
            context.sources().add(path, Role::Index)?;
        }
        let progress = context.progress();
        let done = self.recover(context, &target, &devices, &progress);
        done.with_context(|| target.image.display().to_string())
    }
}

impl ChunkRecover {
    fn recover(
        &self,
        context: &Context,
        target: &Target,
        devices: &[Device],
        progress: &Progress,
    ) -> Result<Outcome> {
        let found = identify(devices, progress)?.into_iter().next();
        let identity = found.context("the devices hold no file system")?;
        let folder = tempfile::tempdir()?;
        // Clamp: without the option, the index is a temporary file.
        let path = self.index.clone().unwrap_or_else(|| folder.path().join("index"));
        // A signal ends the command while it prints or asks.
        let cancelling = Cancelling::start(progress)?;
        let watch = Watch::start(context, "scan", progress.clone());
        let scanned = scan_into(context, devices, &identity, &path, progress);
        watch.end_as(scanned.is_ok());
        let index: BlockIndex = scanned?;
        let recovery = ChunkRecovery::plan(devices, &identity, &index, progress)?;
        drop(cancelling);
        let recovered = recovery.recovered();
        let mut out = context.stdout();
        if context.globals().verbose > 0 && !context.json() {
            list(&mut out, recovered, devices)?;
        }
        recovery.require_proof().context("Chunk tree recovery failed")?;
        if !recovery.is_needed() {
            let lines = &["Check chunks successfully with no orphans"];
            print(context, target, recovered, false, lines)?;
            return Ok(Outcome::Done);
        }
        if !self.yes && !confirmed()? {
            print(
                context,
                target,
                recovered,
                false,
                &["Chunk tree recovery aborted"],
            )?;
            return Ok(Outcome::Negative);
        }
        let cancelling = Cancelling::start(progress)?;
        let watch = Watch::start(context, "chunk-recover", progress.clone());
        let ran = recovery.run(&options(context), progress);
        watch.end_as(ran.is_ok());
        drop(cancelling);
        ran.context("Chunk tree recovery failed")?;
        print(
            context,
            target,
            recovered,
            true,
            &["Chunk tree recovered successfully"],
        )?;
        Ok(Outcome::Done)
    }
}

fn options(context: &Context) -> RecoveryOptions {
    // Clamp: without the option, the default budget counts.
    let cache = context.globals().cache_bytes.unwrap_or(DEFAULT_CACHE_BYTES);
    RecoveryOptions {
        cache: ByteCount::new(cache),
        spool: None,
    }
}

/// Asks whether to write. Anything except yes, or no answer, means no.
fn confirmed() -> Result<bool> {
    terminal::prompt(&QUESTION);
    let mut answer = String::new();
    std::io::stdin().lock().read_line(&mut answer)?;
    Ok(matches!(
        answer.trim_start().as_bytes().first(),
        Some(b'y' | b'Y')
    ))
}

const fn name_of(evidence: ChunkEvidence) -> &'static str {
    match evidence {
        ChunkEvidence::ChunkItem => "chunk item",
        ChunkEvidence::Copies => "device extents and block group",
        ChunkEvidence::Content => "content",
        ChunkEvidence::Unused => "no content depends on the order",
    }
}

/// Lists all chunks, in the words of btrfs-progs.
fn list(out: &mut impl Write, recovered: &RecoveredChunks, devices: &[Device]) -> Result<()> {
    writeln!(out, "All Devices:")?;
    for device in devices {
        writeln!(out, "\tDevice: name = {}", terminal::shown(device.name()))?;
    }
    writeln!(out, "\nCHECK RESULT:\nRecoverable Chunks:")?;
    for RecoveredChunk {
        start,
        chunk,
        evidence,
    } in &recovered.chunks
    {
        let (length, kind) = (chunk.length.get(), chunk.profile.bits());
        let count = chunk.stripes.len();
        writeln!(
            out,
            "  Chunk: start = {start}, len = {length}, type = {kind:x}, num_stripes = {count}"
        )?;
        writeln!(out, "      Stripes list:")?;
        for (number, stripe) in chunk.stripes.iter().enumerate() {
            let (device, at) = (stripe.device, stripe.physical.get());
            writeln!(out, "      [{number:2}] Stripe: devid = {device}, offset = {at}")?;
        }
        writeln!(out, "      Evidence: {}", name_of(*evidence))?;
    }
    writeln!(out, "Unrecoverable Chunks:")?;
    for (start, reason) in &recovered.unproven {
        writeln!(out, "  Chunk: start = {start}: {reason}")?;
    }
    let (proved, unproven) = (recovered.chunks.len(), recovered.unproven.len());
    let all = proved.saturating_add(unproven); // Clamp: a count for display.
    writeln!(out, "\nTotal Chunks:\t\t{all}")?;
    writeln!(out, "  Recoverable:\t\t{proved}\n  Unrecoverable:\t{unproven}\n")?;
    out.flush()?;
    Ok(())
}

fn print(
    context: &Context,
    target: &Target,
    recovered: &RecoveredChunks,
    is_written: bool,
    lines: &[&str],
) -> Result<()> {
    if context.json() {
        let chunks = recovered.chunks.iter().map(|found| {
            let stripes = found.chunk.stripes.iter();
            let stripes: Vec<Value> = stripes
                .map(|stripe| json!({ "devid": stripe.device.get(), "offset": stripe.physical.get() }))
                .collect();
            json!({
                "start": found.start.get(),
                "length": found.chunk.length.get(),
                "type": found.chunk.profile.bits(),
                "stripes": stripes,
                "evidence": name_of(found.evidence),
            })
        });
        let mut object = target.as_json();
        object.insert("chunks".to_owned(), chunks.collect());
        object.insert("recovered".to_owned(), json!(is_written));
        return context.print_json("rescue-chunk-recover", Value::Object(object));
    }
    if !context.globals().quiet {
        let mut out = context.stdout();
        for line in lines {
            writeln!(out, "{line}")?;
        }
        out.flush()?;
    }
    Ok(())
}
