//! `buttress inspect-internal dump-super`: superblocks, field by field.
//!
//! The command reads superblocks without opening a volume. The command prints the bytes at the
//! superblock offsets, for each device separately. Output and flags are those of btrfs-progs.

use std::io::Write;
use std::path::PathBuf;

use anyhow::{Context as _, Result, anyhow};
use buttress::Device;
use buttress::unstable::format::superblock::{
    SUPERBLOCK_BYTES, SUPERBLOCK_MAGIC, SUPERBLOCK_OFFSETS, Superblock,
};
use clap::Args;
use serde_json::{Value, json};

use super::print::sink::{Text, Tree};
use super::print::superblock;
use crate::context::Context;
use crate::exit::{Advice, Outcome};
use crate::globals::Uses;
use crate::manual::{Example, example};
use crate::output::terminal;
use crate::table::Subcommand;

/// Print superblocks
#[derive(Args, Debug)]
pub struct DumpSuper {
    /// Print system chunks and backup roots too
    #[arg(short, long)]
    full: bool,
    /// Print all copies
    #[arg(short, long)]
    all: bool,
    /// Print the copy with this number: 0, 1 or 2; a larger number is a byte offset
    #[arg(short, long = "super", value_name = "NUMBER", conflicts_with = "all")]
    super_number: Option<u64>,
    /// The same as --super, from older versions of btrfs-progs
    #[arg(short = 'i', value_name = "NUMBER", conflicts_with_all = ["all", "super_number"], hide = true)]
    index: Option<u64>,
    /// Print superblocks without the magic number of btrfs, too
    #[arg(short = 'F', long)]
    force: bool,
    /// Print the superblock at this byte offset
    #[arg(long, value_name = "OFFSET", conflicts_with_all = ["all", "super_number", "index"])]
    bytenr: Option<u64>,
    /// Images or block devices
    #[arg(value_name = "DEVICE", required = true)]
    devices: Vec<PathBuf>,
}

impl Subcommand for DumpSuper {
    const NAME: &'static str = "dump-super";
    const EXAMPLES: &'static [Example] = &[example(
        "buttress inspect-internal dump-super -a -f backup.img",
        "Prints all copies of the superblock in full",
    )];

    fn uses(&self) -> Uses {
        Uses::DEVICE
    }

    fn run(self, context: &Context) -> Result<Outcome> {
        let offsets = self.offsets();
        let mut dump = Dump {
            context,
            full: self.full,
            force: self.force,
            values: Vec::new(),
        };
        for path in &self.devices {
            // Devices are printed individually, so further devices of the volume are not needed.
            match context.open_device_alone(path) {
                Ok(device) => {
                    for offset in &offsets {
                        if let Err(error) = dump.superblock(&device, *offset, self.all) {
                            if crate::exit::is_broken_pipe(&error) {
                                return Err(error);
                            }
                            context.lost(&error);
                        }
                    }
                }
                Err(error) => context.lost(&error),
            }
        }
        if context.json() {
            context.print_json(Self::NAME, Value::Array(dump.values))?;
        }
        Ok(Outcome::Done)
    }
}

impl DumpSuper {
    /// Returns the offsets to print.
    fn offsets(&self) -> Vec<u64> {
        let copies = SUPERBLOCK_OFFSETS.map(buttress::Physical::get);
        let copy = |number: u64| {
            usize::try_from(number)
                .ok()
                .and_then(|number| copies.get(number))
                .copied()
                .unwrap_or(number)
        };
        match (self.all, self.super_number.or(self.index), self.bytenr) {
            (true, _, _) => copies.to_vec(),
            (false, Some(number), _) => vec![copy(number)],
            (false, None, Some(offset)) => vec![offset],
            (false, None, None) => vec![copy(0)],
        }
    }
}

struct Dump<'a> {
    context: &'a Context,
    full: bool,
    force: bool,
    values: Vec<Value>,
}

const RULE: &str = "---------------------------------------------------------";

impl Dump<'_> {
    /// Prints the superblock at `offset`. With `all`, the command skips superblock copies beyond
    /// the end of the device.
    fn superblock(&mut self, device: &Device, offset: u64, all: bool) -> Result<()> {
        let name = device.name();
        let end = offset.saturating_add(SUPERBLOCK_BYTES as u64);
        if end > device.size_bytes() {
            if all {
                return Ok(());
            }
            let size = device.size_bytes();
            return Err(anyhow!(
                "{name}: too short for a superblock at {offset} (found {size} bytes, expected at least {end})"
            ));
        }
        let bytes = device.read(offset, SUPERBLOCK_BYTES)?;
        let raw = Superblock::raw(bytes.as_ref())?;
        let shown = terminal::shown(name);
        let heading = format!("superblock: bytenr={offset}, device={shown}\n{RULE}\n");
        let bad_magic = raw.magic != SUPERBLOCK_MAGIC && !self.force;
        let mut out = self.context.stdout();
        if bad_magic {
            if !self.context.json() {
                out.write_all(heading.as_bytes())?;
                out.flush()?;
            }
            return Err(anyhow!(
                "{name}: no btrfs superblock at {offset}: the magic number is wrong"
            ))
            .context(Advice::new("to print it anyway, give --force"));
        }
        let result = if self.context.json() {
            let mut tree = Tree::default();
            let result = superblock::superblock(&mut tree, raw, self.full);
            let mut value = tree.take();
            value.insert("device".to_owned(), name.into());
            value.insert("offset".to_owned(), json!(offset));
            self.values.push(Value::Object(value));
            result
        } else {
            let mut text = Text::new(self.context.stdout_is_terminal());
            text.push(&heading);
            let result = superblock::superblock(&mut text, raw, self.full);
            text.push("\n");
            out.write_all(text.as_bytes())?;
            out.flush()?;
            result
        };
        result.with_context(|| format!("superblock on {name} at {offset}"))
    }
}
