//! The order in which a file's content leaves memory when the last call on the file ends.

use super::NEW;
use crate::live::tests::new_volume;
use crate::operations::tests::volume::ROOT;
use buttress_engine::inodes::id_of;
use buttress_lab::gate::WatchedThread;
use std::sync::mpsc;

/// A call that finds no content in the table stores new content. If the earlier content left the
/// table first, hiding it would hide the new content.
#[test]
fn content_is_hidden_before_it_leaves_the_table() {
    let filesystem = new_volume();
    let file = filesystem.create(ROOT, b"file", &NEW).unwrap();
    let inode = filesystem.live_inodes().entry(id_of(file));
    let (tell_begin, begun) = mpsc::channel();
    let (tell_end, may_end) = mpsc::channel();
    let of = filesystem.clone();
    let call = WatchedThread::start(move || {
        of.contents()
            .with(file, |_| {
                tell_begin.send(()).unwrap();
                may_end.recv().unwrap();
                Ok(())
            })
            .unwrap();
    })
    .unwrap();
    begun.recv().unwrap();
    // The end of the call cannot hide the content while this thread reads the inode.
    let reading = inode.read();
    tell_end.send(()).unwrap();
    let waits = call.comes_to_wait();
    let (is_shown, is_in_table) = (reading.content.is_some(), filesystem.contents().is_waiting(file));
    drop(reading);
    call.join().unwrap();
    assert!(waits && is_shown, "waits {waits}, shown {is_shown}");
    assert!(is_in_table, "content that readers find left the table");
    assert!(!filesystem.contents().is_waiting(file));
    filesystem.close().unwrap();
}
