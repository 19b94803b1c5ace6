//! A subvolume and two generations of snapshots, all with changed content, are deleted and dropped
//! one after another. After each drop, the test checks, reads and writes the remaining snapshots,
//! because a write reveals a wrong reference.

use anyhow::{Context, Result, ensure};
use buttress::mkfs::Options;
use buttress::unstable::fs::Filesystem;
use buttress::unstable::writer::WritableFilesystem;
use buttress::{FileOffset, Location, NewInode, Progress, SubvolumeId};
use buttress_proof::harness::{Case, Outcome};
use buttress_proof::writing::volume::{Backends, empty, open_checked, open_for_writing};
use std::collections::BTreeMap;

const TOP: Location = Location::root_of(SubvolumeId::TOP_LEVEL);
const FILES: usize = 200;
const BYTES: usize = 8192;

/// Fill byte of each file in a subvolume.
type Contents = BTreeMap<usize, u8>;

fn name(file: usize) -> Vec<u8> {
    format!("file-{file:04}").into_bytes()
}

fn fill(filesystem: &WritableFilesystem, id: SubvolumeId, file: usize, with: u8) -> Result<()> {
    let root = Location::root_of(id);
    let location = match filesystem.live().lookup(root, &name(file))? {
        Some(entry) => entry.target,
        None => filesystem.create(root, &name(file), &NewInode::of_root(0o644))?,
    };
    Ok(filesystem.write_at(location, FileOffset::new(0), &[with; BYTES])?)
}

/// Writes to every `step`th file.
fn write(
    filesystem: &WritableFilesystem,
    id: SubvolumeId,
    contents: &mut Contents,
    step: usize,
    with: u8,
) -> Result<()> {
    for file in (0..FILES).step_by(step) {
        fill(filesystem, id, file, with)?;
        contents.insert(file, with);
    }
    Ok(())
}

fn expect(filesystem: &Filesystem, id: SubvolumeId, contents: &Contents) -> Result<()> {
    for (file, with) in contents {
        let entry = filesystem.lookup(Location::root_of(id), &name(*file))?;
        let entry = entry.with_context(|| format!("file {file} of {id} is gone"))?;
        let mut found = vec![0; BYTES];
        filesystem
            .open_file(entry.target)?
            .read_at(FileOffset::new(0), &mut found)?;
        ensure!(found.iter().all(|byte| byte == with), "file {file} of {id}");
    }
    Ok(())
}

struct World {
    backends: Backends,
    filesystem: WritableFilesystem,
    subvolumes: BTreeMap<SubvolumeId, Contents>,
}

impl World {
    /// Creates `a`, its snapshot `b`, and `c`, a snapshot of `b`; each is changed after the next
    /// snapshot was taken.
    fn new() -> Result<(Self, [SubvolumeId; 3])> {
        let options = Options {
            node_bytes: Some(4096),
            ..Options::default()
        };
        let backends = empty(&[256 << 20], &options)?;
        let filesystem = open_for_writing(&backends)?;
        let a = filesystem.subvolumes().create(TOP, b"a")?;
        let mut of_a = Contents::new();
        write(&filesystem, a, &mut of_a, 1, b'0')?;
        filesystem.commit()?;
        let b = filesystem.subvolumes().snapshot(a, TOP, b"b", false)?;
        let mut of_b = of_a.clone();
        write(&filesystem, a, &mut of_a, 23, b'1')?;
        write(&filesystem, b, &mut of_b, 29, b'2')?;
        filesystem.commit()?;
        let c = filesystem.subvolumes().snapshot(b, TOP, b"c", false)?;
        let mut of_c = of_b.clone();
        write(&filesystem, b, &mut of_b, 31, b'3')?;
        write(&filesystem, c, &mut of_c, 37, b'4')?;
        filesystem.commit()?;
        let world = Self {
            backends,
            filesystem,
            subvolumes: BTreeMap::from([(a, of_a), (b, of_b), (c, of_c)]),
        };
        world.expect_all()?;
        Ok((world, [a, b, c]))
    }

    fn expect_all(&self) -> Result<()> {
        let found = open_checked(&self.backends)?;
        let mut subvolumes = self.subvolumes.iter();
        subvolumes.try_for_each(|(id, contents)| expect(&found, *id, contents))
    }

    fn drop_one(&mut self, id: SubvolumeId, with: u8) -> Result<()> {
        self.filesystem.subvolumes().delete(id)?;
        self.subvolumes.remove(&id);
        self.filesystem.subvolumes().drop_deleted(&Progress::new())?;
        self.filesystem.commit()?;
        self.expect_all()?;
        for (id, contents) in &mut self.subvolumes {
            write(&self.filesystem, *id, contents, 17, with)?;
        }
        self.filesystem.commit()?;
        self.expect_all()
    }
}

fn in_order(order: [usize; 3]) -> Result<Outcome> {
    let (mut world, ids) = World::new()?;
    for (with, index) in (b'5'..).zip(order) {
        let id = ids[index];
        world
            .drop_one(id, with)
            .with_context(|| format!("after dropping {id}"))?;
    }
    Ok(Outcome::Passed)
}

pub fn cases() -> Vec<Case> {
    vec![
        Case::new("dropping::the_source_first", || in_order([0, 1, 2])),
        Case::new("dropping::the_snapshot_between_first", || in_order([1, 0, 2])),
        Case::new("dropping::the_last_snapshot_first", || in_order([2, 1, 0])),
    ]
}
