//! Tests that nothing superfluous remains and nothing needed disappears: items of removed files,
//! the mark of compressed content, and a reader's view of an old state during writes.

use anyhow::{Context, Result, ensure};
use buttress::mkfs::Options;
use buttress::unstable::device::MemoryBackend;
use buttress::unstable::format::{Incompat, ItemType};
use buttress::unstable::fs::OpenOptions;
use buttress::unstable::writer::{WritableFilesystem, WriteOptions};
use buttress::{
    Backend, Compression, CompressionMethod, DataOptions, FileOffset, Location, NewInode, Profile, ReadAhead,
    SubvolumeId, TreeId,
};
use buttress_oracle::content::Random;
use buttress_proof::harness::{Case, Outcome};
use buttress_proof::writing::fill::{FILE_BYTES, Filling};
use buttress_proof::writing::volume::{Backends, devices, empty, open_checked, open_for_writing};
use std::sync::Arc;

const TOP: Location = Location::root_of(SubvolumeId::TOP_LEVEL);
const BYTES: usize = 128 << 20;

/// Creates a volume with a held file that has content and no name.
fn with_unnamed_file() -> Result<(
    Backends,
    WritableFilesystem,
    buttress::unstable::writer::operations::OpenInode,
)> {
    let backends = empty(&[BYTES], &Options::default())?;
    let filesystem = open_for_writing(&backends)?;
    let file = filesystem.create(TOP, b"file", &NewInode::of_root(0o644))?;
    filesystem.write_at(file, FileOffset::new(0), &[b'x'; 10_000])?;
    filesystem.commit()?;
    let held = filesystem.open_inode(file)?;
    filesystem.unlink(TOP, b"file")?;
    filesystem.commit()?;
    Ok((backends, filesystem, held))
}

/// Asserts that nothing of the removed file remains in the volume.
fn expect_gone(backends: &Backends, file: Location) -> Result<()> {
    let found = open_checked(backends)?;
    for item in found.tree(TreeId::FS)?.range(.., ReadAhead::None) {
        let key = item?.key();
        let is_orphan = key.item_type == ItemType::ORPHAN_ITEM;
        let is_of_file = key.objectid.get() == file.inode.get();
        ensure!(!is_orphan && !is_of_file, "{key:?} is left");
    }
    Ok(())
}

fn removed_while_open() -> Result<Outcome> {
    let (backends, filesystem, held) = with_unnamed_file()?;
    let file = held.location();
    drop(held);
    filesystem.commit()?;
    expect_gone(&backends, file)?;
    Ok(Outcome::Passed)
}

/// Opens the durable state of a moment for writing, as after a crash.
fn left_by_a_crash() -> Result<Outcome> {
    let (backends, filesystem, held) = with_unnamed_file()?;
    let mut bytes = vec![0; BYTES];
    let memory = backends.first().context("a device")?;
    memory.read_vectored_at(0, &mut [&mut bytes[..]])?;
    let copy: Backends = vec![Arc::new(MemoryBackend::new("after the crash", bytes)) as Arc<dyn Backend>];
    let file = held.location();
    let opened = open_for_writing(&copy)?;
    opened.commit()?;
    drop(opened);
    expect_gone(&copy, file)?;
    drop(held);
    filesystem.commit()?;
    Ok(Outcome::Passed)
}

fn compressed_content_is_marked() -> Result<Outcome> {
    for (compression, feature) in [
        (Compression::Zstd, Incompat::COMPRESS_ZSTD),
        (Compression::Lzo, Incompat::COMPRESS_LZO),
    ] {
        let backends = empty(&[BYTES], &Options::default())?;
        let options = WriteOptions {
            data: DataOptions {
                compression: Some(CompressionMethod::new(compression)),
                ..DataOptions::default()
            },
            ..WriteOptions::default()
        };
        let filesystem = OpenOptions::new(devices(&backends)).open()?;
        let filesystem = WritableFilesystem::new(filesystem, options)?;
        let file = filesystem.create(TOP, b"file", &NewInode::of_root(0o644))?;
        filesystem.write_at(file, FileOffset::new(0), &vec![b'x'; 100_000])?;
        filesystem.commit()?;
        drop(filesystem);
        let features = open_checked(&backends)?.superblock().incompat;
        ensure!(features.contains(feature), "{compression:?}: {features:?}");
    }
    Ok(Outcome::Passed)
}

/// Takes a view of a full volume, removes everything, and fills the volume again: the view must
/// return the old content.
fn a_view_keeps_what_it_sees() -> Result<Outcome> {
    let options = Options {
        metadata: Some(Profile::Single),
        ..Options::default()
    };
    let backends = empty(&[72 << 20], &options)?;
    let filesystem = open_for_writing(&backends)?;
    let filling = Filling::Data;
    let count = filling.fill(&filesystem, "first", u64::MAX)?;
    filesystem.commit()?;
    let view = filesystem.view();
    for number in 0..count {
        filling.remove(&filesystem, &filling.name("first", number))?;
    }
    filesystem.commit()?;
    // Fill the space beside the view's extents with files; their names have another length, so they
    // have other content.
    filling.fill(&filesystem, "second time", u64::MAX)?;
    filesystem.commit()?;
    let content = Random::new("first".len() as u64).bytes(FILE_BYTES, false);
    for number in 0..count {
        let entry = view.lookup(TOP, &filling.name("first", number))?;
        let entry = entry.with_context(|| format!("file {number} is gone from the view"))?;
        let mut found = vec![0; FILE_BYTES];
        view.open_file(entry.target)?
            .read_at(FileOffset::new(0), &mut found)?;
        ensure!(found == content, "file {number} has other content in the view");
    }
    Ok(Outcome::Passed)
}

pub fn cases() -> Vec<Case> {
    vec![
        Case::new("leftovers::of_a_file_removed_while_open", removed_while_open),
        Case::new(
            "leftovers::of_a_crash_with_a_file_removed_while_open",
            left_by_a_crash,
        ),
        Case::new(
            "leftovers::the_mark_of_compressed_content",
            compressed_content_is_marked,
        ),
        Case::new("leftovers::what_a_view_sees", a_view_keeps_what_it_sees),
    ]
}
