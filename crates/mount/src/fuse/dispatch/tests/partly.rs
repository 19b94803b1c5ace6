//! Calls that fail after a part of their change, on a subvolume with a quota limit.

use super::{BYTES, Served, WRITE};
use crate::fuse::dispatch::When;
use crate::fuse::wire::{Output, operation};
use crate::vfs::{HandleId, Opened, ReadHow, Stale, Vfs as _};
use buttress::quota::{QgroupId, QuotaKind, QuotaLimit};
use buttress::{ByteCount, Progress};

impl Served {
    /// Limits the bytes that the default subvolume may refer to.
    fn limit(&self, bytes: u64) {
        let quotas = self.writer.quotas();
        quotas.enable(QuotaKind::Classic).unwrap();
        quotas.rescan(&Progress::new()).unwrap();
        let limit = QuotaLimit {
            exclusive: false,
            bytes: Some(ByteCount::new(bytes)),
            compressed: false,
        };
        quotas.limit_group(QgroupId::new(5), limit).unwrap();
    }

    /// Grows a file to a size in bytes.
    fn grow(&self, handle: HandleId, bytes: usize) {
        for at in (0..bytes).step_by(BYTES) {
            let content = vec![3; BYTES];
            self.mounted
                .write(handle, at as u64, &content, false, false)
                .unwrap();
        }
        self.mounted.sync_all().unwrap();
    }
}

/// `copy_file_range(2)` returns the length before a failure, so the kernel learns of the new size.
#[test]
fn copy_that_meets_a_limit_returns_its_first_part() {
    const MIB: u64 = 1 << 20;
    let served = Served::new();
    let (_, _, from) = served.file("source", 1, WRITE);
    served.grow(from, 12 << 20);
    let (_, node, to) = served.file("target", 1, WRITE);
    served.limit(16 * MIB);
    // A copy from an odd offset shares no extents.
    let copied = served.mounted.copy((from, 1), (to, 0), 10 * MIB).unwrap().bytes;
    let size = served.mounted.attributes(node).unwrap().metadata.size;
    assert!(copied > 0 && copied < 10 * MIB, "{copied}");
    assert_eq!(size.get(), copied);
}

/// The kernel drops cached pages after success only.
#[test]
fn failed_allocation_makes_the_kernel_drop_the_range() {
    let served = Served::new();
    let (_, node, handle) = served.file("file", 1, WRITE);
    served.limit(BYTES as u64 * 2);
    let mut body = Output::default();
    body.u64(handle.0)
        .u64(0)
        .u64(64 << 20)
        .u32(libc::FALLOC_FL_ZERO_RANGE.cast_unsigned())
        .u32(0);
    let (errno, when) = served.ask(operation::FALLOCATE, node.0, &body.body);
    assert_eq!(errno, libc::EDQUOT);
    let expected = vec![Stale::Content(node, 0..64 << 20)];
    assert!(matches!(when, When::After(stale) if stale == expected));
    let mut content = vec![0; BYTES];
    let file = Opened::Handle(handle);
    served
        .mounted
        .read(file, 0, &mut content, ReadHow::Direct)
        .unwrap();
    assert_eq!(
        content,
        vec![1; BYTES],
        "the call failed before it removed content"
    );
}
