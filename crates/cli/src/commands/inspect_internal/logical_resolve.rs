//! `buttress inspect-internal logical-resolve`: the files that use a logical address.

use buttress::unstable::filesystem_of;
use std::ffi::OsString;
use std::io::Write;

use anyhow::{Context as _, Result};
use buttress::{DataReference, Logical};
use clap::Args;
use serde_json::{Map, Value};

use super::paths::PathFinder;
use crate::context::Context;
use crate::exit::Outcome;
use crate::manual::{Example, example};
use crate::output::json;
use crate::table::{MountView, Subcommand};

/// Print the paths of the files that use a logical address
#[derive(Args, Debug)]
pub struct LogicalResolve {
    /// Print inodes, offsets and subvolumes, not paths
    #[arg(short = 'P')]
    inodes: bool,
    /// Print every file that refers to the extent, even if it does not use this byte
    #[arg(short = 'o')]
    ignore_offset: bool,
    /// For compatibility: no buffer can be too small
    #[arg(short = 's', value_name = "BYTES")]
    buffer_bytes: Option<u64>,
    /// The logical address, in bytes
    #[arg(value_name = "ADDRESS")]
    logical: u64,
    /// The image or device; a path in it is accepted and ignored
    #[arg(value_name = "IMAGE")]
    target: OsString,
}

impl Subcommand for LogicalResolve {
    const NAME: &'static str = "logical-resolve";
    const ON_MOUNTS: bool = true;
    const MOUNT_VIEW: MountView = MountView::Committed;
    const EXAMPLES: &'static [Example] = &[example(
        "buttress inspect-internal logical-resolve 30408704 backup.img",
        "Prints the files that use an address from a kernel message",
    )];

    fn run(self, context: &Context) -> Result<Outcome> {
        let opened = context.open_volume(&context.target(&self.target).image)?;
        let references = opened
            .volume()
            .data_references(Logical::new(self.logical), self.ignore_offset)
            .with_context(|| format!("logical address {}", self.logical))?;
        for failure in &references.failures {
            context.lost(&anyhow::Error::new(failure.clone()));
        }
        let filesystem = filesystem_of(opened.volume());
        let mut finder = PathFinder::new(&filesystem);
        let mut report = Report {
            context,
            finder: &mut finder,
            inodes: self.inodes,
        };
        if context.json() {
            let values = references
                .iter()
                .map(|reference| report.value(reference))
                .collect();
            context.print_json(Self::NAME, values)?;
            return Ok(Outcome::Done);
        }
        let mut out = context.stdout();
        let mut printed = None;
        for reference in &references {
            // References are sorted, so those of one file are consecutive.
            if self.inodes || printed != Some(reference.location) {
                report.print(&mut out, reference)?;
                printed = Some(reference.location);
            }
        }
        out.flush()?;
        Ok(Outcome::Done)
    }
}

struct Report<'a, 'b> {
    context: &'a Context,
    finder: &'a mut PathFinder<'b>,
    inodes: bool,
}

impl Report<'_, '_> {
    fn print(&mut self, out: &mut impl Write, reference: &DataReference) -> Result<()> {
        if self.inodes {
            let location = reference.location;
            let (inode, subvolume) = (location.inode, location.subvolume);
            writeln!(out, "inode {inode} offset {} root {subvolume}", reference.offset)?;
            return Ok(());
        }
        for path in self.paths(reference) {
            out.write_all(&self.context.printable(&path))?;
            out.write_all(b"\n")?;
        }
        Ok(())
    }

    fn value(&mut self, reference: &DataReference) -> Value {
        let mut object = Map::new();
        object.insert("inode".to_owned(), reference.location.inode.get().into());
        object.insert("offset".to_owned(), reference.offset.get().into());
        object.insert("root".to_owned(), reference.location.subvolume.get().into());
        if !self.inodes {
            let paths = self.paths(reference);
            let paths: Vec<Value> = paths
                .iter()
                .map(|path| {
                    let mut entry = Map::new();
                    json::insert_name(&mut entry, "path", path);
                    Value::Object(entry)
                })
                .collect();
            object.insert("paths".to_owned(), paths.into());
        }
        Value::Object(object)
    }

    /// Returns the paths of a reference. If the paths of the inodes cannot be found, reports this
    /// as a loss.
    fn paths(&mut self, reference: &DataReference) -> Vec<Vec<u8>> {
        let location = reference.location;
        self.finder.paths(location).unwrap_or_else(|error| {
            let (inode, subvolume) = (location.inode, location.subvolume);
            self.context
                .lost(&error.context(format!("inode {inode} of subvolume {subvolume}")));
            Vec::new()
        })
    }
}
