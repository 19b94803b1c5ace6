//! `buttress inspect-internal list-chunks`: the position of each stripe of each chunk.
//!
//! The printed table is that of btrfs-progs. Each stripe of a chunk has a line with the length of
//! the chunk. PNumber counts the lines of a device by physical address, LNumber by logical address.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::io::Write;
use std::path::PathBuf;
use std::str::FromStr;

use anyhow::{Context as _, Result};
use buttress::unstable::filesystem_of;
use buttress::unstable::format::{BlockGroupItem, Chunk, ItemType, Key, ObjectId};
use buttress::unstable::fs::Filesystem;
use buttress::unstable::tree::Tree;
use buttress::{BlockGroupFlags, DeviceId, Physical, ReadAhead, TreeId};
use clap::Args;
use serde_json::{Value, json};

use crate::context::Context;
use crate::exit::Outcome;
use crate::globals::Uses;
use crate::manual::{Example, example};
use crate::output::size::{UnitFlags, Units};
use crate::table::Subcommand;

/// List the stripes of chunks with their positions
#[derive(Args, Debug)]
pub struct ListChunks {
    #[command(flatten)]
    units: UnitFlags,
    /// Columns to sort by, joined by commas: devid, pstart, lstart, usage, length [default: devid,pstart]
    #[arg(long, value_name = "COLUMNS", value_delimiter = ',')]
    sort: Vec<Column>,
    /// The volume's image or block device
    #[arg(value_name = "DEVICE")]
    device: PathBuf,
}

/// A column for sorting the lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Column {
    Device,
    PhysicalStart,
    LogicalStart,
    Usage,
    Length,
}

impl FromStr for Column {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "devid" => Ok(Self::Device),
            "pstart" => Ok(Self::PhysicalStart),
            "lstart" => Ok(Self::LogicalStart),
            "usage" => Ok(Self::Usage),
            "length" => Ok(Self::Length),
            _ => Err(format!(
                "unknown column {text:?} (expected devid, pstart, lstart, usage or length)"
            )),
        }
    }
}

impl Subcommand for ListChunks {
    const NAME: &'static str = "list-chunks";
    const EXAMPLES: &'static [Example] = &[
        example(
            "buttress inspect-internal list-chunks backup.img",
            "Lists the stripes of chunks with their positions",
        ),
        example(
            "buttress inspect-internal list-chunks --sort lstart backup.img",
            "Sorts the stripes by logical address",
        ),
    ];

    fn uses(&self) -> Uses {
        Uses::VOLUME
    }

    fn run(self, context: &Context) -> Result<Outcome> {
        let filesystem = filesystem_of(context.open_volume(&self.device)?.volume());
        let mut lines = lines(context, &filesystem)?;
        // The sort of lines is stable: equal lines stay in the order of devices and physical
        // addresses.
        lines.sort_by(|left, right| {
            self.sort
                .iter()
                .map(|column| compare(*column, left, right))
                .find(|order| order.is_ne())
                .unwrap_or(Ordering::Equal)
        });
        if context.json() {
            context.print_json(Self::NAME, lines.iter().map(Line::json).collect())?;
        } else {
            let mut out = context.stdout();
            print(&mut out, &lines, self.units.units())?;
            out.flush()?;
        }
        Ok(Outcome::Done)
    }
}

/// One stripe of a chunk.
#[derive(Clone, Debug)]
struct Line {
    device: DeviceId,
    /// Number of the line in its device by physical address, from 1.
    physical_number: u64,
    physical: Physical,
    length: u64,
    profile: BlockGroupFlags,
    /// Number of the line in its device by logical address, from 1.
    logical_number: u64,
    logical: u64,
    /// Used bytes of the chunk; `None` if its block group is missing.
    used: Option<u64>,
}

fn lines(context: &Context, filesystem: &Filesystem) -> Result<Vec<Line>> {
    let sector_bytes = filesystem.superblock().sector_bytes;
    let groups = block_group_tree(filesystem)?;
    let mut lines = Vec::new();
    let keys = Key::new(ObjectId::FIRST_CHUNK_TREE, ItemType::CHUNK_ITEM, 0)
        ..=Key::new(ObjectId::FIRST_CHUNK_TREE, ItemType::CHUNK_ITEM, u64::MAX);
    for item in filesystem.tree(TreeId::CHUNK)?.range(keys, ReadAhead::Forward) {
        let item = item.context("chunk tree")?;
        let key = item.key();
        let chunk = Chunk::parse(&key, item.data(), sector_bytes)?;
        let length = chunk.length.get();
        let used = used_bytes(&groups, key.offset, length).unwrap_or_else(|error| {
            context.lost(&error);
            None
        });
        lines.extend(chunk.stripes.iter().map(|stripe| Line {
            device: stripe.device,
            physical_number: 0,
            physical: stripe.physical,
            length,
            profile: chunk.profile,
            logical_number: 0,
            logical: key.offset,
            used,
        }));
    }
    lines.sort_by_key(|line| (line.device, line.logical, line.physical));
    number(&mut lines, |line| &mut line.logical_number);
    lines.sort_by_key(|line| (line.device, line.physical));
    number(&mut lines, |line| &mut line.physical_number);
    Ok(lines)
}

/// Numbers the lines of each device in their order, from 1.
fn number(lines: &mut [Line], field: fn(&mut Line) -> &mut u64) {
    let mut numbers: BTreeMap<DeviceId, u64> = BTreeMap::new();
    for line in lines {
        let number = numbers.entry(line.device).or_default();
        *number = number.saturating_add(1);
        *field(line) = *number;
    }
}

/// Returns the tree that holds the block group items.
fn block_group_tree(filesystem: &Filesystem) -> Result<Tree> {
    let separate = filesystem
        .superblock()
        .compat_ro
        .contains(buttress::unstable::format::CompatRo::BLOCK_GROUP_TREE);
    Ok(filesystem.tree(if separate {
        TreeId::BLOCK_GROUP
    } else {
        TreeId::EXTENT
    })?)
}

fn used_bytes(groups: &Tree, start: u64, length: u64) -> Result<Option<u64>> {
    let key = Key::new(ObjectId::new(start), ItemType::BLOCK_GROUP_ITEM, length);
    let Some(item) = groups.get(&key)? else {
        return Ok(None);
    };
    Ok(Some(BlockGroupItem::parse(&key, item.data())?.used.get()))
}

fn compare(column: Column, left: &Line, right: &Line) -> Ordering {
    match column {
        Column::Device => left.device.cmp(&right.device),
        Column::PhysicalStart => (left.device, left.physical).cmp(&(right.device, right.physical)),
        Column::LogicalStart => left.logical.cmp(&right.logical),
        Column::Usage => left.usage_percent().total_cmp(&right.usage_percent()),
        Column::Length => left.length.cmp(&right.length),
    }
}

impl Line {
    #[expect(clippy::cast_precision_loss, reason = "two digits are printed")]
    fn usage_percent(&self) -> f64 {
        match self.used {
            Some(used) if self.length > 0 => used as f64 * 100.0 / self.length as f64,
            _ => 0.0,
        }
    }

    fn kind(&self) -> String {
        let names = [
            (BlockGroupFlags::DATA, "Data"),
            (BlockGroupFlags::METADATA, "Metadata"),
            (BlockGroupFlags::SYSTEM, "System"),
        ];
        let set: Vec<&str> = names
            .iter()
            .filter(|(flag, _)| self.profile.contains(*flag))
            .map(|(_, name)| *name)
            .collect();
        set.join("+")
    }

    fn profile_name(&self) -> &'static str {
        self.profile.profile().map_or("unknown", |profile| profile.name())
    }

    fn physical_end(&self) -> u64 {
        self.physical.get().saturating_add(self.length)
    }

    fn json(&self) -> Value {
        json!({
            "devid": self.device.get(),
            "pnumber": self.physical_number,
            "type": self.kind(),
            "profile": self.profile_name(),
            "pstart": self.physical.get(),
            "length": self.length,
            "pend": self.physical_end(),
            "lnumber": self.logical_number,
            "lstart": self.logical,
            "used": self.used,
            "usage_percent": self.used.map(|_| self.usage_percent()),
        })
    }
}

const HEADINGS: [&str; 9] = [
    "Devid",
    "PNumber",
    "Type/profile",
    "PStart",
    "Length",
    "PEnd",
    "LNumber",
    "LStart",
    "Usage%",
];
/// Smallest widths of the type and profile columns; the profile is padded on the right.
const TYPE_COLUMNS: usize = 10;
const PROFILE_COLUMNS: usize = 6;

fn print(out: &mut impl Write, lines: &[Line], units: Units) -> Result<()> {
    let rows: Vec<[String; 9]> = lines
        .iter()
        .map(|line| {
            [
                line.device.to_string(),
                line.physical_number.to_string(),
                format!("{}/{:PROFILE_COLUMNS$}", line.kind(), line.profile_name()),
                units.text(line.physical.get()),
                units.text(line.length),
                units.text(line.physical_end()),
                line.logical_number.to_string(),
                units.text(line.logical),
                format!("{:.2}", line.usage_percent()),
            ]
        })
        .collect();
    let mut widths = HEADINGS.map(str::len);
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.len());
        }
    }
    let longest =
        |lengths: &mut dyn Iterator<Item = usize>, least: usize| lengths.max().unwrap_or(0).max(least);
    if let Some(width) = widths.get_mut(2) {
        *width = longest(&mut lines.iter().map(|line| line.kind().len()), TYPE_COLUMNS)
            .saturating_add(1)
            .saturating_add(longest(
                &mut lines.iter().map(|line| line.profile_name().len()),
                PROFILE_COLUMNS,
            ));
    }
    print_row(out, &HEADINGS.map(str::to_owned), &widths)?;
    print_row(out, &widths.map(|width| "-".repeat(width)), &widths)?;
    rows.iter().try_for_each(|row| print_row(out, row, &widths))
}

fn print_row(out: &mut impl Write, cells: &[String; 9], widths: &[usize; 9]) -> Result<()> {
    for (index, (cell, width)) in cells.iter().zip(widths).enumerate() {
        let separator = if index == 0 { "" } else { " " };
        write!(out, "{separator}{cell:>width$}")?;
    }
    writeln!(out)?;
    Ok(())
}
