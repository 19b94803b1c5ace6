//! The space that a deletion of snapshots frees, by the kernel and by Buttress, compared with the
//! prediction.
//!
//! For data, the test compares the used bytes of block groups before and after. For metadata, it
//! compares the blocks of the subvolumes. The tree that holds the deleted directory entries changes
//! itself, so blocks that it reaches are excluded on both sides.

use crate::volumes::{open, open_for_writing};
use anyhow::{Context, Result, ensure};
use buttress::accounting::Options;
use buttress::unstable::accounts::Accounts as _;
use buttress::unstable::fs::Filesystem;
use buttress::{BlockGroupFlags, Progress, SubvolumeId};
use buttress_oracle::content::Random;
use buttress_oracle::loop_device::Mount;
use buttress_oracle::tools::{newest, run};
use std::path::PathBuf;
use std::process::Command;

/// Deletes random snapshots on copies of a volume.
pub fn compare(images: &[PathBuf], mount: &str, seed: u64) -> Result<()> {
    // The kernel drops deleted subvolumes after a commit; without this mount option, a commit would
    // come only every 30 s.
    let mount = &format!("{mount},commit=1");
    // Let the kernel do all work of a first mount before computing the prediction.
    let settled = Mount::new(images, mount)?;
    settle(&settled)?;
    settled.close()?;
    let mut random = Random::new(seed);
    let before = Figures::of(&open(images)?)?;
    let chosen: Vec<(SubvolumeId, Vec<u8>)> = snapshots(&open(images)?)?
        .into_iter()
        .filter(|_| random.below(3) > 0)
        .collect();
    ensure!(!chosen.is_empty(), "no snapshot was chosen");
    let ids: Vec<SubvolumeId> = chosen.iter().map(|(id, _)| *id).collect();
    let filesystem = open(images)?;
    let accounting = filesystem.account_space(&Options::default(), &Progress::new())?;
    let freed = accounting.freed_by(&accounting.subvolumes(&ids));
    let expected = Figures {
        data: before.data - freed.data().get(),
        metadata: before.metadata - freed.metadata.get(),
    };
    drop(filesystem);
    let own: Vec<PathBuf> = images.iter().map(|image| image.with_extension("own")).collect();
    for (image, copy) in images.iter().zip(&own) {
        run(Command::new("cp").arg("--sparse=always").arg(image).arg(copy))?;
    }
    by_buttress(&own, &ids)?;
    let found = Figures::of(&open(&own)?)?;
    ensure!(
        found == expected,
        "of {before:?}, {expected:?} should be left; Buttress leaves {found:?}"
    );
    by_the_kernel(images, mount, &chosen)?;
    let found = Figures::of(&open(images)?)?;
    ensure!(
        found == expected,
        "of {before:?}, {expected:?} should be left; the kernel leaves {found:?}"
    );
    Ok(())
}

/// Compared values.
#[derive(Debug, PartialEq, Eq)]
struct Figures {
    /// Used bytes in data block groups. If block groups also contain metadata, the value is that of
    /// the account, which another test compares with block groups.
    data: u64,
    /// Bytes of subvolumes, without blocks that the top level reaches.
    metadata: u64,
}

impl Figures {
    fn of(filesystem: &Filesystem) -> Result<Self> {
        let accounting = filesystem.account_space(&Options::default(), &Progress::new())?;
        let scope =
            accounting.scope(|owner| owner.subvolume().is_some_and(|id| id != SubvolumeId::TOP_LEVEL));
        let space = filesystem.space()?;
        let is_mixed = |flags: BlockGroupFlags| flags.contains(BlockGroupFlags::METADATA);
        let groups = space
            .groups
            .iter()
            .filter(|group| group.flags.contains(BlockGroupFlags::DATA));
        let is_any_mixed = groups.clone().any(|group| is_mixed(group.flags));
        // Data of the root tree itself is the free space cache, which every commit rewrites.
        let owners = accounting.scope(|owner| owner.subvolume().is_some());
        let accounted = accounting.occupied_by(&owners).data().get();
        let cached = accounting.all().data().get() - accounted;
        let used: u64 = groups.map(|group| group.used.get()).sum();
        Ok(Self {
            data: if is_any_mixed { accounted } else { used - cached },
            metadata: accounting.exclusive_to(&scope).metadata.get(),
        })
    }
}

/// Returns snapshots in the top level's tree without nested subvolumes.
fn snapshots(filesystem: &Filesystem) -> Result<Vec<(SubvolumeId, Vec<u8>)>> {
    let all = filesystem.subvolumes()?;
    let found = all.iter().filter_map(|info| {
        let place = info.place.as_ref()?;
        let is_holding = all
            .iter()
            .filter_map(|other| other.place.as_ref())
            .any(|other| other.parent == info.id);
        (place.parent == SubvolumeId::TOP_LEVEL && !is_holding).then_some((info.id, info.path.clone()?))
    });
    Ok(found.collect())
}

fn settle(mount: &Mount) -> Result<()> {
    run(Command::new(newest("btrfs"))
        .args(["subvolume", "sync"])
        .arg(mount.path()))?;
    rustix::fs::syncfs(std::fs::File::open(mount.path())?)?;
    Ok(())
}

fn by_the_kernel(images: &[PathBuf], options: &str, chosen: &[(SubvolumeId, Vec<u8>)]) -> Result<()> {
    use std::os::unix::ffi::OsStrExt;
    let mount = Mount::new(images, options)?;
    for (_, path) in chosen {
        let path = mount.path().join(std::ffi::OsStr::from_bytes(path));
        run(Command::new(newest("btrfs"))
            .args(["subvolume", "delete", "--commit-after"])
            .arg(path))?;
    }
    settle(&mount)?;
    mount.close()
}

fn by_buttress(images: &[PathBuf], chosen: &[SubvolumeId]) -> Result<()> {
    let filesystem = open_for_writing(images)?;
    for id in chosen {
        filesystem
            .subvolumes()
            .delete(*id)
            .with_context(|| format!("subvolume {id}"))?;
    }
    filesystem.subvolumes().drop_deleted(&Progress::new())?;
    filesystem.commit()?;
    Ok(())
}
