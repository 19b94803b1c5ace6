//! `buttress inspect-internal map-swapfile`: the location of a swap file, for resuming from it.

use std::ffi::OsString;
use std::io::Write;

use anyhow::{Result, bail, ensure};
use buttress::unstable::filesystem_of;
use buttress::unstable::format::{FileExtent, FileExtentBody, InodeItem, ItemType, Key};
use buttress::unstable::fs::Filesystem;
use buttress::{
    BlockGroupFlags, ByteCount, Compression, FileKind, Follow, InodeFlags, Location, Logical, Physical,
    ReadAhead,
};
use clap::Args;
use serde_json::json;

use crate::context::Context;
use crate::exit::Outcome;
use crate::manual::{Example, example};
use crate::table::{MountView, Subcommand};

/// Print the start of a swap file on its device, and its resume offset
#[derive(Args, Debug)]
pub struct MapSwapfile {
    /// Print only the offset in pages, for the kernel's resume_offset
    #[arg(short = 'r', long)]
    resume_offset: bool,
    /// A file in a volume
    #[arg(value_name = "IMAGE:/PATH")]
    target: OsString,
}

/// Page size in bytes, the unit of a swap file's offset.
const PAGE_BYTES: u64 = 4096;

impl Subcommand for MapSwapfile {
    const NAME: &'static str = "map-swapfile";
    const ON_MOUNTS: bool = true;
    const MOUNT_VIEW: MountView = MountView::Committed;
    const EXAMPLES: &'static [Example] = &[example(
        "buttress inspect-internal map-swapfile -r backup.img:/swapfile",
        "Prints the number for the kernel's resume_offset",
    )];

    fn run(self, context: &Context) -> Result<Outcome> {
        let target = context.target(&self.target);
        let (opened, location) = context.open_target(&target, Follow::All)?;
        let start = start_of(&filesystem_of(opened.volume()), location)
            .map_err(|error| error.context(format!("{}: not a swap file", target.display())))?
            .get();
        let offset = start / PAGE_BYTES;
        if context.json() {
            context.print_json(
                Self::NAME,
                json!({ "physical_start": start, "resume_offset": offset }),
            )?;
            return Ok(Outcome::Done);
        }
        let mut out = context.stdout();
        if self.resume_offset {
            writeln!(out, "{offset}")?;
        } else {
            writeln!(out, "Physical start: {start:>12}")?;
            writeln!(out, "Resume offset:  {offset:>12}")?;
        }
        out.flush()?;
        Ok(Outcome::Done)
    }
}

/// Returns the physical offset of the swap file on its device. Returns an error for a file that
/// Linux does not accept as swap.
fn start_of(filesystem: &Filesystem, location: Location) -> Result<Physical> {
    let key = InodeItem::key(location.inode);
    let tree = filesystem.subvolume_tree(location.subvolume)?;
    let item = tree
        .get(&key)?
        .ok_or_else(|| anyhow::anyhow!("its inode is missing"))?;
    let inode = InodeItem::parse(&key, item.data())?;
    ensure!(inode.kind() == FileKind::Regular, "it is not a regular file");
    ensure!(
        inode.flags.contains(InodeFlags::NODATACOW),
        "it is copied on write (found no flag NOCOW)"
    );
    ensure!(
        !inode.flags.contains(InodeFlags::COMPRESS),
        "it has compression enabled"
    );
    let sector_bytes = filesystem.sector_bytes();
    let key = |offset| Key::new(location.inode.object_id(), ItemType::EXTENT_DATA, offset);
    let mut first = None;
    let mut end = 0;
    let mut device = None;
    for item in filesystem
        .subvolume_tree(location.subvolume)?
        .range(key(0)..=key(u64::MAX), ReadAhead::Forward)
    {
        let item = item?;
        let extent = FileExtent::parse(&item.key(), item.data(), sector_bytes)?;
        let slice = match extent.body {
            FileExtentBody::Inline(_) => bail!("its content is inline"),
            FileExtentBody::Regular(slice) | FileExtentBody::Preallocated(slice) => slice,
        };
        ensure!(
            !slice.is_hole() && item.key().offset == end,
            "it has a hole at {end}"
        );
        ensure!(extent.compression == Compression::None, "it is compressed");
        let beyond = || anyhow::anyhow!("its extent at {end} ends beyond the largest address");
        let logical = slice.disk.checked_add(slice.offset).ok_or_else(beyond)?;
        let (id, physical) = place(filesystem, logical)?;
        ensure!(
            *device.get_or_insert(id) == id,
            "its extents are on several devices"
        );
        first.get_or_insert(physical);
        let next = item.key().offset.checked_add(slice.num_bytes.get());
        end = next.ok_or_else(beyond)?;
    }
    ensure!(end >= inode.size.get(), "it has a hole at {end}");
    first.ok_or_else(|| anyhow::anyhow!("it is empty"))
}

/// Returns the only physical location of an address.
fn place(filesystem: &Filesystem, logical: Logical) -> Result<(buttress::DeviceId, Physical)> {
    let volume = filesystem.volume();
    if let Some(chunk) = volume.chunk_map().find(logical) {
        let is_single = !chunk.flags().intersects(BlockGroupFlags::PROFILES);
        ensure!(is_single, "its profile is not single");
    }
    let mappings = volume.map(logical, ByteCount::new(1))?;
    let mapping = mappings
        .first()
        .ok_or_else(|| anyhow::anyhow!("{logical} is not mapped"))?;
    Ok((mapping.device, mapping.physical))
}
