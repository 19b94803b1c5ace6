//! Subvolumes by their calls: made, filled, snapshot, changed on both sides, deleted, dropped; checked by btrfs-progs.

use super::volume::Image;
use crate::error::Error;
use crate::location::Location;
use crate::operations::{NewInode, ReceivedUuid};
use crate::progress::Progress;
use buttress_format::SubvolumeId;

const TOP: Location = Location::root_of(SubvolumeId::TOP_LEVEL);

#[test]
fn subvolumes_live_and_die() {
    let Some(image) = Image::make(&[]) else {
        return;
    };
    let filesystem = image.open();
    let file = NewInode::of_root(0o644);
    let home = filesystem.create_subvolume(TOP, b"home").unwrap();
    for number in 0..2000 {
        let name = format!("file-{number}");
        filesystem
            .create(Location::root_of(home), name.as_bytes(), &file)
            .unwrap();
    }
    let inner = filesystem
        .create_subvolume(Location::root_of(home), b"inner")
        .unwrap();
    let monday = filesystem.snapshot(home, TOP, b"monday", true).unwrap();
    let work = filesystem.snapshot(monday, TOP, b"work", false).unwrap();
    filesystem.commit().unwrap();
    image.check();
    for number in 0..1500 {
        let name = format!("file-{number}");
        filesystem
            .unlink(Location::root_of(home), name.as_bytes())
            .unwrap();
        filesystem
            .unlink(
                Location::root_of(work),
                format!("file-{}", 500 + number).as_bytes(),
            )
            .unwrap();
    }
    assert!(matches!(
        filesystem.create(Location::root_of(monday), b"new", &file),
        Err(Error::ReadOnlySubvolume { .. })
    ));
    filesystem
        .set_read_only(monday, false, ReceivedUuid::Refuse)
        .unwrap();
    filesystem
        .create(Location::root_of(monday), b"new", &file)
        .unwrap();
    filesystem.set_default_subvolume(work).unwrap();
    filesystem.set_label(b"a label").unwrap();
    assert!(matches!(
        filesystem.delete_subvolume(home),
        Err(Error::NotEmpty { .. })
    ));
    assert!(matches!(
        filesystem.delete_subvolume(work),
        Err(Error::NotPermitted { .. })
    ));
    filesystem.delete_subvolume(inner).unwrap();
    filesystem.delete_subvolume(home).unwrap();
    filesystem.commit().unwrap();
    image.check();
    drop(filesystem);

    // Deleted ones wait across a new opening, and go.
    let filesystem = image.open();
    assert_eq!(filesystem.deleted_subvolumes().unwrap(), vec![home, inner]);
    filesystem.drop_deleted_subvolumes(&Progress::new()).unwrap();
    filesystem.commit().unwrap();
    image.check();
    let view = filesystem.view();
    let names: Vec<_> = view
        .subvolumes()
        .unwrap()
        .into_iter()
        .filter_map(|info| info.path)
        .collect();
    assert_eq!(names, [&b""[..], b"monday", b"work"]);
    assert_eq!(view.default_subvolume().unwrap(), work);
    assert_eq!(view.superblock().label, b"a label");
    drop(view);
    filesystem.set_default_subvolume(SubvolumeId::TOP_LEVEL).unwrap();
    for id in [monday, work] {
        filesystem.delete_subvolume(id).unwrap();
    }
    filesystem.drop_deleted_subvolumes(&Progress::new()).unwrap();
    filesystem.commit().unwrap();
    image.check();
}
