//! Tests of quota items that other programs leave half-done.

use super::volume::Image;
use crate::WritableFilesystem;
use crate::operations::Operation;
use buttress_accounts::Accounts as _;
use buttress_engine::quota_tree::{QuotaKind, relation_keys};
use buttress_engine::reservation::Need;
use buttress_format::{Key, QgroupId, QgroupStatus, QgroupStatusFlags, TreeId};
use buttress_fs::error::{Error, QuotaRefusal, Result};
use buttress_fs::progress::Progress;

const TOP: QgroupId = QgroupId::new(5);

const fn group(level: u64, number: u64) -> QgroupId {
    QgroupId::new(level << 48 | number)
}

fn edit(filesystem: &WritableFilesystem, keys: &[Key], change: impl Fn(&mut Operation<'_>) -> Result<()>) {
    filesystem
        .operate(Need::places(8), |operation| {
            operation.reach(TreeId::QUOTA, keys)?;
            change(operation)
        })
        .unwrap();
}

#[test]
fn half_of_a_relation_can_be_repaired_and_removed() {
    let Some(image) = Image::make(&[]) else { return };
    let filesystem = image.open();
    filesystem.quotas().enable(QuotaKind::Classic).unwrap();
    filesystem.quotas().rescan(&Progress::new()).unwrap();
    let has_members = |group| {
        let refused = filesystem.quotas().destroy_group(group);
        matches!(refused, Err(Error::QuotaRefused(QuotaRefusal::HasMembers { .. })))
    };
    for (number, lost) in [(1, 0), (2, 1)] {
        let parent = group(1, number);
        let keys = relation_keys(TOP, parent);
        let half = || {
            filesystem.quotas().assign_group(TOP, parent).unwrap();
            edit(&filesystem, &keys, |operation| {
                operation.edit().remove(TreeId::QUOTA, &keys[lost]).map(drop)
            });
        };
        filesystem.quotas().create_group(parent).unwrap();
        half();
        // Linux reads the relation from the member's item.
        assert_eq!(has_members(parent), lost == 1);
        if parent_is_gone(&filesystem, parent) {
            filesystem.quotas().create_group(parent).unwrap();
            half();
        }
        filesystem.quotas().unassign_group(TOP, parent).unwrap();
        filesystem.quotas().destroy_group(parent).unwrap();
    }
    filesystem.commit().unwrap();
    let groups = filesystem.view().quota_groups().unwrap().unwrap();
    assert_eq!(groups.groups.keys().copied().collect::<Vec<_>>(), [TOP]);
    assert!(groups.above(TOP).is_empty());
}

fn parent_is_gone(filesystem: &WritableFilesystem, parent: QgroupId) -> bool {
    filesystem.commit().unwrap();
    let groups = filesystem.view().quota_groups().unwrap().unwrap();
    !groups.groups.contains_key(&parent)
}

#[test]
fn counters_of_a_rescan_that_was_cut_off_need_a_rescan() {
    let Some(image) = Image::make(&[]) else { return };
    let filesystem = image.open();
    filesystem.quotas().enable(QuotaKind::Classic).unwrap();
    filesystem.quotas().rescan(&Progress::new()).unwrap();
    edit(&filesystem, &[QgroupStatus::KEY], |operation| {
        let item = operation.get(TreeId::QUOTA, &QgroupStatus::KEY)?.unwrap();
        let mut status = QgroupStatus::parse(&QgroupStatus::KEY, item.data()).unwrap();
        status.flags |= QgroupStatusFlags::RESCAN;
        operation
            .edit()
            .put(TreeId::QUOTA, &QgroupStatus::KEY, &status.encode())
    });
    filesystem.commit().unwrap();
    drop(filesystem);
    let filesystem = image.open();
    filesystem.set_label(b"changed").unwrap();
    filesystem.commit().unwrap();
    let groups = filesystem.view().quota_groups().unwrap().unwrap();
    assert!(groups.is_inconsistent());
    assert!(!groups.status.flags.contains(QgroupStatusFlags::RESCAN));
}
