//! A half-dropped subvolume: its dropped blocks are free, and other content may have overwritten
//! them. The check must not read the dropped blocks.

use crate::text;
use anyhow::{Context, Result, ensure};
use buttress::check::{Note, Options};
use buttress::unstable::check::check;
use buttress::unstable::format::{ItemType, Key};
use buttress::unstable::fs::{Filesystem, OpenOptions};
use buttress::{
    ByteCount, FileAttributes, FileOffset, Location, NewInode, Progress, ReadAhead, SubvolumeId, mkfs,
};
use buttress_fs::Error;
use buttress_proof::harness::{Case, Outcome};
use buttress_proof::writing::volume::{Backends, devices, empty, open_for_writing};

const TOP: Location = Location::root_of(SubvolumeId::TOP_LEVEL);
/// Number of extents of the file, so many that its tree has several levels.
const EXTENTS: u64 = 6000;
/// Number of interrupted drops. Each interrupted drop frees about one block.
const DROPS: u32 = 60;

/// Overwrites a tree block in all its copies.
fn overwrite(backends: &Backends, filesystem: &Filesystem, logical: buttress::Logical) -> Result<()> {
    let length = ByteCount::new(4096);
    for mapping in filesystem.volume().map(logical, length)? {
        let device = usize::try_from(mapping.device.get() - 1)?;
        let backend = backends.get(device).context("a backend for the mapped device")?;
        backend.write_at(mapping.physical.get(), &[0x5a; 4096])?;
    }
    Ok(())
}

/// Drops half of a file without checksums. In a half-dropped subvolume, the leaf of the file's
/// inode is freed and overwritten; leaves with its extents remain.
fn a_file_without_checksums_is_half_gone() -> Result<Outcome> {
    let options = mkfs::Options {
        node_bytes: Some(4096),
        ..mkfs::Options::default()
    };
    let backends = empty(&[256 << 20], &options)?;
    let filesystem = open_for_writing(&backends)?;
    let id = filesystem.subvolumes().create(TOP, b"s")?;
    let file = filesystem.create(Location::root_of(id), b"f", &NewInode::of_root(0o644))?;
    filesystem.set_flags(file, FileAttributes::NOCOW)?;
    for number in 0..EXTENTS {
        filesystem.write_at(file, FileOffset::new(number * 8192), &[1; 4096])?;
    }
    filesystem.commit()?;
    let inode = Key::new(file.inode.object_id(), ItemType::INODE_ITEM, 0);
    let leaf = {
        let view = OpenOptions::new(devices(&backends)).open()?;
        let mut cursor = view.tree(id.tree())?.cursor(ReadAhead::None);
        ensure!(cursor.seek(&inode)?, "the file has an inode");
        cursor.current_leaf().context("a leaf of the inode")?.logical()
    };
    filesystem.subvolumes().delete(id)?;
    filesystem.commit()?;
    let cancelled = Progress::new();
    cancelled.cancel();
    for _ in 0..DROPS {
        let dropped = filesystem.subvolumes().drop_deleted(&cancelled);
        ensure!(matches!(dropped, Err(Error::Cancelled)), "{dropped:?}");
    }
    filesystem.commit()?;
    drop(filesystem);
    let view = OpenOptions::new(devices(&backends)).for_inspection(true).open()?;
    overwrite(&backends, &view, leaf)?;
    let view = OpenOptions::new(devices(&backends)).for_inspection(true).open()?;
    let info = view.subvolume(id)?;
    ensure!(
        info.is_half_dropped() && info.root_item.drop_progress > inode,
        "the inode is not gone: {:?}",
        info.root_item.drop_progress
    );
    let report = check(&view, &Options::default(), &Progress::new())?;
    ensure!(report.is_clean(), "{}", text(&report));
    let is_half = |note: &Note| matches!(note, Note::BeingDeleted { half: true, .. });
    ensure!(report.notes.iter().any(is_half), "{:?}", report.notes);
    Ok(Outcome::Passed)
}

pub fn cases() -> Vec<Case> {
    vec![Case::new(
        "dropped::a_file_without_checksums_is_half_gone",
        a_file_without_checksums_is_half_gone,
    )]
}
