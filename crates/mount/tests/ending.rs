//! The end of the service: the moment at which other processes can open the image.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests state what must hold")]

use buttress::unstable::writer_of;
use buttress::{Device, DeviceOptions, Location, Volume};
use buttress_mount::vfs::{Errno, NewNode, OpenMode, Vfs as _};
use buttress_mount::volume::{Access, MountedVolume, Showing};
use std::path::Path;
use std::sync::Arc;

const MODE: OpenMode = OpenMode {
    write: true,
    write_only: false,
    append: false,
    truncate: false,
    drop_privileges: false,
    durable: false,
};

fn opened_for_writing(image: &Path) -> Result<Device, String> {
    let options = DeviceOptions {
        write: true,
        ..DeviceOptions::default()
    };
    Device::open(image, &options).map_err(|error| error.to_string())
}

fn mounted_on(image: &Path) -> MountedVolume {
    std::fs::File::create(image).unwrap().set_len(256 << 20).unwrap();
    let device = opened_for_writing(image).unwrap();
    let volume = Volume::create().on_devices(vec![device]).unwrap();
    let writer = writer_of(&volume).clone();
    let root = Location::root_of(writer.view().default_subvolume().unwrap());
    let log = Arc::new(|_: &str| {});
    MountedVolume::new(Access::Writing(writer), root, Showing::default(), log)
}

fn expect_locked(image: &Path) {
    let refused = opened_for_writing(image).unwrap_err();
    assert!(refused.contains("another process"), "{refused}");
}

fn expect_unlocked_and_down(mounted: &MountedVolume, image: &Path) {
    opened_for_writing(image).unwrap();
    assert!(mounted.is_down());
    let new = NewNode {
        mode: 0o600,
        umask: 0,
        uid: 0,
        gid: 0,
    };
    let refused = mounted.create(mounted.root(), b"late", &new, MODE);
    assert!(matches!(refused, Err(Errno::SHUTDOWN)), "{refused:?}");
}

/// The process of the server may live on, and so may the volume.
#[test]
fn server_unlocks_the_image_after_its_last_commit() {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("volume.img");
    let mounted = mounted_on(&image);
    mounted.ends_after(Arc::new(|| true));
    expect_locked(&image);
    mounted.leave().unwrap();
    expect_unlocked_and_down(&mounted, &image);
}

#[test]
fn last_request_of_the_kernel_unlocks_the_image() {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("volume.img");
    let mounted = mounted_on(&image);
    mounted.ends_after(Arc::new(|| true));
    mounted.end();
    expect_unlocked_and_down(&mounted, &image);
}

/// Another writer that did not stop in time may still write.
#[test]
fn image_stays_locked_while_another_writer_runs() {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("volume.img");
    let mounted = mounted_on(&image);
    mounted.ends_after(Arc::new(|| false));
    mounted.end();
    expect_locked(&image);
}
