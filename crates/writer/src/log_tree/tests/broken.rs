//! Tests of logs that a defect of this program made impossible to write.

use super::*;

/// A log with changes and without a tree cannot be written. No sync may return success while the
/// log cannot be written.
fn expect_no_promise(sync: impl Fn(&WritableFilesystem, Location) -> buttress_fs::error::Result<Synced>) {
    let backends = made(&[160 * MIB], None);
    let filesystem = open(&backends);
    let subvolume = filesystem.subvolumes().create(ROOT, b"subvolume").unwrap();
    filesystem.commit().unwrap();
    let inside = Location::root_of(subvolume);
    let inside = filesystem.create(inside, b"inside", &NEW).unwrap();
    write(&filesystem, inside, b'a', 10_000);
    assert_eq!(filesystem.log_tree().fsync(inside).unwrap(), Synced::Logged);
    let log = Arc::clone(&filesystem.logs().subvolumes.lock()[&subvolume.tree()]);
    let tree = log.log.lock().tree.take();
    log.log.lock().is_dirty = true;
    let file = filesystem.create(ROOT, b"file", &NEW).unwrap();
    write(&filesystem, file, b'b', 10_000);
    let error = sync(&filesystem, file).unwrap_err();
    assert!(error.is_defect(), "{error}");
    let number = subvolume.get().to_string();
    assert!(
        error.to_string().contains(&number),
        "names the subvolume: {error}"
    );
    // The log of the top level was frozen before the broken invariant was found, and is not
    // durable.
    let mut healed = log.log.lock();
    (healed.tree, healed.is_dirty) = (tree, false);
    drop(healed);
    let synced = sync(&filesystem, file).unwrap();
    assert_eq!(synced, Synced::Committed(CommitCause::Incomplete));
    filesystem.abandon();
    let filesystem = open(&backends);
    let mut content = vec![0; 10_000];
    let file = filesystem.live().lookup(ROOT, b"file").unwrap().unwrap().target;
    assert_eq!(
        filesystem
            .live()
            .read_at(file, FileOffset::MIN, &mut content)
            .unwrap(),
        10_000
    );
    assert_eq!(content, vec![b'b'; 10_000]);
    filesystem.close().unwrap();
}

#[test]
fn dirty_log_without_tree_fails_fsync() {
    expect_no_promise(|filesystem, file| filesystem.log_tree().fsync(file));
}

#[test]
fn dirty_log_without_tree_fails_durable_writes() {
    expect_no_promise(|filesystem, file| {
        filesystem
            .log_tree()
            .write_durably_at(file, FileOffset::MIN, &[b'b'; 5000])
    });
}
