//! Inherited quota groups and limits equal the kernel's: both sides make the same subvolumes on
//! copies of one volume.

use crate::quotas::{check, counts_of, group, made_by_kernel, open_image, shell};

use buttress_accounts::Accounts as _;
use buttress_format::{ByteCount, QgroupId, QgroupLimitFlags, SubvolumeId};
use buttress_fs::error::QuotaRefusal;
use buttress_fs::{Error, Location};
use buttress_oracle::loop_device::Mount;
use buttress_oracle::needs::{REFERENCE_PROGS, missing};
use buttress_oracle::skip::skips;
use buttress_oracle::tools::kernel_missing;
use buttress_oracle::volumes::scratch;
use buttress_writer::WritableFilesystem;
use std::collections::BTreeMap;
use std::path::Path;

const ROOT: Location = Location::root_of(SubvolumeId::TOP_LEVEL);

/// Subvolume 256 with data, limits and two parents.
const BEFORE: &str = r#"
    "$BTRFS" quota enable $KIND . ; "$BTRFS" subvolume create p >/dev/null
    for group in 1/100 1/101 2/1; do "$BTRFS" qgroup create $group .; done
    for pair in "0/256 1/100" "0/256 1/101" "1/100 2/1"; do "$BTRFS" qgroup assign $pair . >/dev/null; done
    "$BTRFS" qgroup limit 100M p; "$BTRFS" qgroup limit -e 50M p
    head -c 4000000 /dev/urandom > p/f; sync
    [ -n "$KIND" ] || "$BTRFS" quota rescan -w . >/dev/null
"#;

/// Subvolumes and snapshots inside and outside of subvolume 256, with and without named groups.
const THEIRS: &str = r#"
    "$BTRFS" subvolume create p/child >/dev/null; "$BTRFS" subvolume snapshot p outside >/dev/null
    "$BTRFS" subvolume snapshot p p/inside >/dev/null
    "$BTRFS" subvolume create -i 2/1 p/named >/dev/null
    "$BTRFS" subvolume snapshot -i 2/1 -i 1/100 p p/copy >/dev/null; sync
"#;

fn ours(filesystem: &WritableFilesystem) -> Result<(), Error> {
    let source = SubvolumeId::new(256);
    let inside = Location::root_of(source);
    filesystem.subvolumes().create(inside, b"child")?;
    filesystem
        .subvolumes()
        .snapshot(source, ROOT, b"outside", false)?;
    filesystem
        .subvolumes()
        .snapshot(source, inside, b"inside", false)?;
    filesystem
        .subvolumes()
        .create_in_groups(inside, b"named", &[group(2, 1)])?;
    let groups = [group(2, 1), group(1, 100), group(2, 1)];
    filesystem
        .subvolumes()
        .snapshot_in_groups(source, inside, b"copy", false, &groups)?;
    Ok(())
}

/// The parents and limits of each group.
type Inherited = BTreeMap<QgroupId, (Vec<QgroupId>, QgroupLimitFlags, ByteCount, ByteCount)>;

fn inherited(filesystem: &WritableFilesystem) -> Inherited {
    let groups = filesystem.view().quota_groups().unwrap().unwrap();
    let of_group = |(id, found): (&QgroupId, &buttress_accounts::QuotaGroup)| {
        let limit = &found.limit;
        let above = groups.above(*id).into_iter().collect();
        (
            *id,
            (above, limit.flags, limit.max_referenced, limit.max_exclusive),
        )
    };
    groups.groups.iter().map(of_group).collect()
}

/// Runs a script on a mount by the kernel.
fn on_kernel(image: &Path, kind: &str, script: &str) {
    let mount = Mount::new(&[image.to_owned()], "noatime").unwrap();
    shell(&mount, &format!("KIND={kind}\n{script}")).unwrap();
    mount.close().unwrap();
}

#[test]
fn new_subvolumes_inherit_groups_and_limits_as_in_linux() {
    if skips(kernel_missing()) || skips(missing(REFERENCE_PROGS)) {
        return;
    }
    for kind in ["", "--simple"] {
        let folder = scratch().unwrap();
        let image = made_by_kernel(folder.path(), 300).unwrap();
        on_kernel(&image, kind, BEFORE);
        let copy = folder.path().join("copy");
        std::fs::copy(&image, &copy).unwrap();
        on_kernel(&image, kind, THEIRS);
        let filesystem = open_image(&copy);
        ours(&filesystem).unwrap();
        filesystem.commit().unwrap();
        let theirs = open_image(&image);
        assert_eq!(inherited(&filesystem), inherited(&theirs), "{kind}");
        let counts =
            |filesystem: &WritableFilesystem| counts_of(&filesystem.view().quota_groups().unwrap().unwrap());
        if kind.is_empty() {
            // The counters of a snapshot are its source's, as in Linux, until the next rescan.
            assert_eq!(counts(&filesystem)["0/258"], counts(&theirs)["0/258"]);
            filesystem.quotas().rescan(&buttress_fs::Progress::new()).unwrap();
        } else {
            assert_eq!(counts(&filesystem), counts(&theirs));
        }
        drop(filesystem);
        check(&copy).unwrap();
    }
}

#[test]
fn unsuitable_groups_are_refused_and_ignored_without_quotas() {
    let filesystem = crate::quotas::open_memory();
    let in_groups =
        |name: &[u8], groups: &[QgroupId]| filesystem.subvolumes().create_in_groups(ROOT, name, groups);
    // As in Linux, a volume without quotas ignores the groups.
    in_groups(b"off", &[group(1, 7)]).unwrap();
    assert!(
        filesystem
            .quotas()
            .enable(buttress_writer::QuotaKind::Simple)
            .unwrap()
    );
    let missing = in_groups(b"made", &[group(1, 7)]).unwrap_err();
    assert!(
        matches!(missing, Error::QuotaRefused(QuotaRefusal::NoGroup { .. })),
        "{missing}"
    );
    let level = in_groups(b"made", &[group(0, 256)]).unwrap_err();
    assert!(
        matches!(level, Error::QuotaRefused(QuotaRefusal::Levels { .. })),
        "{level}"
    );
    assert!(filesystem.view().lookup(ROOT, b"made").unwrap().is_none());
    filesystem.quotas().create_group(group(1, 7)).unwrap();
    let made = in_groups(b"made", &[group(1, 7)]).unwrap();
    let refused = filesystem
        .subvolumes()
        .snapshot_in_groups(made, ROOT, b"copied", false, &[group(1, 8)])
        .unwrap_err();
    assert!(
        matches!(refused, Error::QuotaRefused(QuotaRefusal::NoGroup { .. })),
        "{refused}"
    );
    filesystem.commit().unwrap();
    let groups = filesystem.view().quota_groups().unwrap().unwrap();
    let above: Vec<QgroupId> = groups.above(group(0, made.get())).into_iter().collect();
    assert_eq!(above, [group(1, 7)]);
}
