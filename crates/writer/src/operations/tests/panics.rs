//! Operations that a panic interrupts.

use super::volume::Image;
use crate::operations::Operation;
use buttress_engine::reservation::Need;
use buttress_fs::error::Result;
use buttress_fs::location::Location;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

#[test]
fn panic_after_an_edit_stops_writing() {
    let Some(image) = Image::make(&[]) else { return };
    let filesystem = image.open();
    let root = Location::root_of(filesystem.view().default_subvolume().unwrap());
    let panic_after = |edit: &dyn Fn(&mut Operation<'_>)| {
        let interrupted = catch_unwind(AssertUnwindSafe(|| {
            filesystem.operate(Need::places(8), |operation| -> Result<()> {
                operation.inode(root)?;
                edit(operation);
                resume_unwind(Box::new("the operation's panic"))
            })
        }));
        drop(interrupted.unwrap_err());
    };
    panic_after(&|_| ());
    filesystem.commit().unwrap();
    panic_after(&|operation| {
        operation.change_inode(root, |item| item.nlink = 7).unwrap();
    });
    filesystem.commit().unwrap_err();
    filesystem.abandon();
    let reopened = image.open();
    assert_eq!(reopened.live().inode(root).unwrap().0.nlink, 1);
}
