//! Space of a removed file that the kernel still refers to: writers wait for its release, unless a
//! process has the file open.
#![allow(
    clippy::unwrap_used,
    clippy::arithmetic_side_effects,
    reason = "tests state what must hold"
)]

use buttress::Location;
use buttress::unstable::writer_of;
use buttress::{Device, Volume};
use buttress_mount::vfs::{Errno, HandleId, NewNode, NodeId, OpenMode, Vfs as _};
use buttress_mount::volume::{Access, MountedVolume, Showing};
use std::sync::Arc;
use std::sync::mpsc::RecvTimeoutError;
use std::time::Duration;

const MIB: usize = 1 << 20;

/// Size of the content in MiB, more than half of the volume's space.
const CONTENT_MIB: usize = 120;

const MODE: OpenMode = OpenMode {
    write: true,
    write_only: false,
    append: false,
    truncate: false,
    drop_privileges: false,
    durable: false,
};

fn volume() -> MountedVolume {
    let device = Device::memory(vec![0; 256 * MIB]);
    let volume = Volume::create().on_devices(vec![device]).unwrap();
    let writer = writer_of(&volume).clone();
    let root = Location::root_of(writer.view().default_subvolume().unwrap());
    let log = Arc::new(|_: &str| {});
    MountedVolume::new(Access::Writing(writer), root, Showing::default(), log)
}

fn create(mounted: &MountedVolume, name: &[u8]) -> (NodeId, HandleId) {
    let new = NewNode {
        mode: 0o600,
        umask: 0,
        uid: 0,
        gid: 0,
    };
    let (entry, handle) = mounted.create(mounted.root(), name, &new, MODE).unwrap();
    (entry.node, handle)
}

/// Writes a file, and reports its progress to `told`.
fn fill(mounted: &MountedVolume, handle: HandleId, told: impl Fn(usize)) -> Result<(), Errno> {
    for piece in 0..CONTENT_MIB {
        mounted.write(handle, (piece * MIB) as u64, &vec![7; MIB], false, false)?;
        told(piece);
    }
    Ok(())
}

#[test]
fn a_write_waits_for_space_of_removed_files_without_handles() {
    let mounted = volume();
    let (first, handle) = create(&mounted, b"first");
    fill(&mounted, handle, |_| {}).unwrap();
    mounted.release(handle);
    mounted.unlink(mounted.root(), b"first").unwrap();
    let (_, handle) = create(&mounted, b"second");
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        let mounted = &mounted;
        let writing = scope.spawn(move || fill(mounted, handle, |piece| tell.send(piece).unwrap()));
        // The writer of this test pauses, because it found no space.
        let halted = loop {
            match told.recv_timeout(Duration::from_millis(300)) {
                Ok(piece) => assert!(piece + 1 < CONTENT_MIB, "there was space for both"),
                Err(stopped) => break stopped,
            }
        };
        assert_eq!(halted, RecvTimeoutError::Timeout, "it waits");
        mounted.forget(first, 1);
        writing.join().unwrap().unwrap();
    });
    mounted.leave().unwrap();
}

#[test]
fn a_write_fails_while_a_removed_file_is_open() {
    let mounted = volume();
    let (_, open) = create(&mounted, b"first");
    fill(&mounted, open, |_| {}).unwrap();
    mounted.unlink(mounted.root(), b"first").unwrap();
    let (_, handle) = create(&mounted, b"second");
    let ended = fill(&mounted, handle, |_| {});
    assert_eq!(ended, Err(Errno(libc::ENOSPC)));
    mounted.leave().unwrap();
}
