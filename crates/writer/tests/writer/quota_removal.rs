//! Removal of simple quotas: every cut leaves a valid volume, which the next removal finishes.

use crate::quotas::{device, file_in, open, volume};

use buttress_accounts::Accounts as _;
use buttress_device::Backend;
use buttress_format::{
    ExtentItem, FileOffset, Incompat, InlineReference, ItemType, Key, SubvolumeId, TreeId,
};
use buttress_fs::{Error, Filesystem, Location, OpenOptions, Progress};
use buttress_lab::crash::{CrashLab, Cuts};
use buttress_tree::ReadAhead;
use buttress_writer::QuotaKind;
use std::sync::Arc;

const ROOT: Location = Location::root_of(SubvolumeId::TOP_LEVEL);

/// The number of extents whose items name their maker.
fn owner_references(filesystem: &Filesystem) -> Result<usize, Error> {
    let format = filesystem.volume().block_format();
    let tree = filesystem.tree(TreeId::EXTENT)?;
    let mut found = 0;
    for item in tree.range(Key::MIN..=Key::MAX, ReadAhead::None) {
        let item = item?;
        if item.key().item_type == ItemType::EXTENT_ITEM {
            let extent = ExtentItem::parse(&item.key(), item.data(), format).unwrap();
            let mut references = extent.inline_references.iter();
            found += usize::from(references.any(|one| matches!(one, InlineReference::Owner { .. })));
        }
    }
    Ok(found)
}

#[test]
fn cut_removal_of_simple_quotas_is_finished_by_the_next_one() {
    const REMOVED: u64 = 1;
    let memory = volume();
    let filesystem = open(vec![device(&memory)]).unwrap();
    filesystem.quotas().enable(QuotaKind::Simple).unwrap();
    filesystem.commit().unwrap();
    for number in 0..40_u8 {
        let file = file_in(&filesystem, ROOT, &[b'n', b'A' + number]).unwrap();
        filesystem
            .write_at(file, FileOffset::MIN, &vec![number; 9000])
            .unwrap();
    }
    filesystem.commit().unwrap();
    assert_eq!(owner_references(&filesystem.view()).unwrap(), 40);
    drop(filesystem);
    let disk: Arc<dyn Backend> = memory;
    let history = CrashLab::record([disk], |lab, devices| {
        let filesystem = open(devices)?;
        filesystem.quotas().remove_simple(&Progress::new())?;
        lab.mark(REMOVED);
        let again = filesystem.quotas().remove_simple(&Progress::new()).unwrap_err();
        assert!(again.to_string().contains("no simple quotas"), "{again}");
        Ok::<(), Error>(())
    })
    .unwrap();
    let verdict = history.judge(&Cuts::every().draws(1), |state| {
        let text = |error: Error| error.to_string();
        let view = OpenOptions::new(state.devices()).open().map_err(text)?;
        let has_flag = view.superblock().incompat.contains(Incompat::SIMPLE_QUOTA);
        if !has_flag
            && (owner_references(&view).map_err(text)? > 0 || view.quota_groups().map_err(text)?.is_some())
        {
            return Err("the flag went before the references".to_owned());
        }
        if state.last_mark() == Some(REMOVED) && has_flag {
            return Err("the flag is back".to_owned());
        }
        let filesystem = open(state.devices()).map_err(text)?;
        if has_flag {
            filesystem
                .quotas()
                .remove_simple(&Progress::new())
                .map_err(text)?;
        }
        let view = filesystem.view();
        let is_clean = owner_references(&view).map_err(text)? == 0
            && !view.superblock().incompat.contains(Incompat::SIMPLE_QUOTA);
        filesystem.abandon();
        is_clean.then_some(()).ok_or_else(|| "traces are left".to_owned())
    });
    assert!(verdict.accepted().unwrap() > 20);
}
