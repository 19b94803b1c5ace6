//! Durability of subvolume operations after a power cut, as measured with Linux's btrfs.
//!
//! | operation | durable when it returns | durable after |
//! |---|---|---|
//! | snapshot | yes | |
//! | create, delete | no | the next commit |
//! | create | | fsync of the subvolume, or of its parent directory |

use anyhow::{Context, Result, ensure};
use buttress::mkfs::Options;
use buttress::unstable::fs::OpenOptions;
use buttress::unstable::writer::{WritableFilesystem, WriteOptions};
use buttress::{Device, DeviceEngine as Engine, FileOffset, Location, NewInode, SubvolumeId};
use buttress_lab::crash::{CrashLab, Outcome as Losses};
use buttress_proof::harness::{Case, Outcome};
use buttress_proof::writing::volume::{Ticking, empty, open_after_crash};
use std::sync::Arc;

const TOP: Location = Location::root_of(SubvolumeId::TOP_LEVEL);
const BYTES: usize = 128 << 20;
const NAME: &[u8] = b"new";
const CONTENT: &[u8] = b"content of the source";
const DONE: u64 = 1;

/// Runs `operation` on a volume with a subvolume that has a dirty file, and cuts the power at each
/// write and flush. After each cut, the volume must open clean. After a cut that followed the
/// return of `operation`, the volume must have the name. Returns the number of the cuts that
/// followed the operation's return.
fn expect_promise(operation: impl Fn(&WritableFilesystem, SubvolumeId) -> Result<()>) -> Result<usize> {
    let lab = CrashLab::new();
    let base = empty(&[BYTES], &Options::default())?;
    let recorded = base.into_iter().map(|backend| lab.device(backend));
    let recorded = recorded.map(|backend| Device::with_backend(backend, Engine::Inline));
    let options = WriteOptions {
        environment: Arc::new(Ticking::default()),
        ..WriteOptions::default()
    };
    let filesystem = WritableFilesystem::new(OpenOptions::new(recorded.collect()).open()?, options)?;
    let source = filesystem.subvolumes().create(TOP, b"source")?;
    filesystem.commit()?;
    let root = Location::root_of(source);
    let file = filesystem.create(root, b"file", &NewInode::of_root(0o644))?;
    filesystem.write_at(file, FileOffset::new(0), CONTENT)?;
    operation(&filesystem, source)?;
    lab.mark(DONE);
    filesystem.make_directory(root, b"later", &NewInode::of_root(0o755))?;
    filesystem.commit()?;
    let history = lab.history();
    let mut promised = 0;
    for cut in 0..=history.len() {
        for losses in [Losses::NoneKept, Losses::AllKept] {
            let images = history.images_at(cut, losses);
            let found = open_after_crash(&images).with_context(|| format!("cut {cut}, {losses:?}"))?;
            if history.last_mark(cut) == Some(DONE) {
                promised += 1;
                let new = found.lookup(TOP, NAME)?;
                ensure!(new.is_some(), "lost by cut {cut}, {losses:?}");
            }
        }
    }
    Ok(promised)
}

fn snapshot() -> Result<Outcome> {
    let promised = expect_promise(|filesystem, source| {
        let id = filesystem.subvolumes().snapshot(source, TOP, NAME, true)?;
        let inside = filesystem.live().lookup(Location::root_of(id), b"file")?;
        ensure!(inside.is_some(), "the file is not in the snapshot");
        Ok(())
    })?;
    ensure!(promised > 2, "{promised} cuts followed the return");
    Ok(Outcome::Passed)
}

fn synced_subvolume() -> Result<Outcome> {
    let promised = expect_promise(|filesystem, _| {
        let id = filesystem.subvolumes().create(TOP, NAME)?;
        Ok(filesystem.log_tree().fsync(Location::root_of(id)).map(drop)?)
    })?;
    ensure!(promised > 2, "{promised} cuts followed the return");
    Ok(Outcome::Passed)
}

fn subvolume_in_synced_directory() -> Result<Outcome> {
    let promised = expect_promise(|filesystem, _| {
        filesystem.subvolumes().create(TOP, NAME)?;
        Ok(filesystem.log_tree().fsync(TOP).map(drop)?)
    })?;
    ensure!(promised > 2, "{promised} cuts followed the return");
    Ok(Outcome::Passed)
}

pub(crate) fn cases() -> Vec<Case> {
    vec![
        Case::new("promised::snapshot_survives_cut_after_return", snapshot),
        Case::new(
            "promised::subvolume_survives_cut_after_its_fsync",
            synced_subvolume,
        ),
        Case::new(
            "promised::subvolume_survives_cut_after_fsync_of_its_directory",
            subvolume_in_synced_directory,
        ),
    ]
}
