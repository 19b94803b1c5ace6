//! Tests of bypassing the page cache for files that are not in it.

use super::{open, system};
use crate::device::OpenOptions;
use crate::error::byte_length;
use buttress_oracle::needs::Missing;
use buttress_oracle::skip::skip;
use rustix::fs::Advice;
use std::io::Write;

fn drop_from_cache(file: &std::fs::File) {
    file.sync_all().unwrap();
    rustix::fs::fadvise(file, 0, None, Advice::DontNeed).unwrap();
}

#[test]
fn reads_bypass_the_page_cache_for_cold_files_only() {
    // The test file is beside the build's output. A temporary directory may be in memory, which is
    // never cold.
    let mut file = tempfile::NamedTempFile::new_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    let content: Vec<u8> = (0..1_u32 << 20).flat_map(u32::to_le_bytes).collect();
    file.write_all(&content).unwrap();
    drop_from_cache(file.as_file());
    if !system::is_cold(file.as_file()) {
        // The kernel is older than 6.5, or the file system keeps its files in memory.
        return skip(&Missing::new(
            "page-cache",
            "the kernel does not say what is in the page cache",
        ));
    }
    let options = OpenOptions {
        direct_when_cold: true,
        ..OpenOptions::default()
    };
    let read_all = || {
        let backend = open(file.path(), &options).unwrap().backend;
        let mut bytes = vec![0; content.len() - 5000];
        // Neither end of the range is aligned.
        backend.read_vectored_at(3000, &mut [&mut bytes]).unwrap();
        assert!(bytes == content[3000..content.len() - 2000]);
        assert_eq!(backend.size_bytes(), byte_length(content.len()));
    };
    read_all();
    assert!(system::is_cold(file.as_file()), "the reads filled the page cache");
    assert_eq!(std::fs::read(file.path()).unwrap(), content);
    assert!(!system::is_cold(file.as_file()));
    read_all();
    // A writer must not bypass the cached data of other programs, unless its options allow it.
    drop_from_cache(file.as_file());
    let write = OpenOptions {
        write: true,
        ..options.clone()
    };
    let backend = open(file.path(), &write).unwrap().backend;
    let mut bytes = vec![0; 1 << 20];
    backend.read_vectored_at(0, &mut [&mut bytes]).unwrap();
    assert!(
        !system::is_cold(file.as_file()),
        "reading through the page cache left nothing there"
    );
}
