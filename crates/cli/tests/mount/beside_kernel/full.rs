//! Tests of space: the answers of `statfs(2)` on a mount, and the capacity of a full volume
//! compared with the kernel's.

use super::{Mounted, open};
use crate::mounting::sound;
use buttress_oracle::content::Random;
use buttress_oracle::loop_device::Mount;
use buttress_oracle::skip::skips;
use buttress_oracle::tools::kernel_missing;
use rustix::fs::OFlags;
use rustix::io::{Errno, Result};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;

const MIB: u64 = 1 << 20;

fn volume(size: &str, options: &[&str]) -> Mounted {
    let made = Mounted::sized("256M");
    fs::remove_file(&made.image).unwrap();
    let words = [&["mkfs", "-q", "-b", size], options, &[made.image()]].concat();
    sound(&words);
    made
}

fn available(at: &Path) -> u64 {
    let state = rustix::fs::statvfs(at).unwrap();
    assert!(state.f_bavail <= state.f_bfree && state.f_bfree <= state.f_blocks);
    state.f_bavail * state.f_frsize
}

fn new_file(path: &Path) -> Result<File> {
    open(path, OFlags::CREATE | OFlags::WRONLY)
}

fn write(file: &File, bytes: &[u8], at: u64) -> Result<()> {
    file.write_all_at(bytes, at)
        .map_err(|error| Errno::from_io_error(&error).unwrap())
}

/// Fills a volume with one file, in ever smaller pieces; returns its synced length.
fn fill_with_data(at: &Path) -> u64 {
    let file = new_file(&at.join("data")).unwrap();
    let bytes = Random::new(5).bytes(1 << 20, false);
    let (mut end, mut piece) = (0, bytes.len());
    while piece >= 4096 {
        match write(&file, &bytes[..piece], end) {
            Ok(()) => end += piece as u64,
            Err(error) => {
                assert_eq!(error, Errno::NOSPC);
                // If writing a piece failed, a part of it may be written.
                end = file.metadata().unwrap().len();
                piece /= 4;
            }
        }
    }
    rustix::fs::fsync(&file).unwrap();
    end
}

/// Fills a volume with small files; returns their number.
fn fill_with_files(at: &Path) -> u64 {
    let bytes = Random::new(6).bytes(1500, false);
    let mut count = 0;
    loop {
        let directory = at.join(format!("{}", count / 1000));
        let made = match fs::create_dir(&directory) {
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => Ok(()),
            made => made.map_err(|error| Errno::from_io_error(&error).unwrap()),
        };
        let file = made.and_then(|()| new_file(&directory.join(count.to_string())));
        match file.and_then(|file| write(&file, &bytes, 0)) {
            Ok(()) => count += 1,
            Err(error) => {
                assert_eq!(error, Errno::NOSPC);
                return count;
            }
        }
    }
}

/// Returns the results of `fill` on a volume of this program and of the kernel, and the remaining
/// space on the former.
fn filled(size: &str, options: &[&str], fill: fn(&Path) -> u64) -> Option<(u64, u64, u64)> {
    if skips(super::no_fuse()) || skips(kernel_missing()) {
        return None;
    }
    let (ours, theirs) = (volume(size, options), volume(size, options));
    let kernel = Mount::new(std::slice::from_ref(&theirs.image), "").unwrap();
    let expected = fill(kernel.path());
    kernel.close().unwrap();
    ours.mount("rw");
    let found = fill(&ours.at);
    let left = available(&ours.at);
    ours.umount();
    ours.expect_sound();
    println!("{size} {options:?}: {found} here, {expected} in the kernel, {left} bytes available");
    Some((found, expected, left))
}

#[test]
fn statfs_is_exact_after_each_fsync() {
    if skips(super::no_fuse()) {
        return;
    }
    let ours = volume("512M", &[]);
    ours.mount("rw");
    let bytes = Random::new(4).bytes(1 << 20, false);
    let mut before = available(&ours.at);
    for (number, count) in [60, 1, 20].into_iter().enumerate() {
        let file = new_file(&ours.path(&number.to_string())).unwrap();
        for piece in 0..count {
            write(&file, &bytes, piece * MIB).unwrap();
        }
        rustix::fs::fsync(&file).unwrap();
        let now = available(&ours.at);
        assert_eq!(
            before - now,
            count * MIB,
            "{before} before {count} MiB, {now} after"
        );
        before = now;
    }
    ours.umount();
}

#[test]
fn full_volume_holds_as_much_as_the_kernels_and_shows_no_space() {
    for (size, options) in [("128M", &["--mixed"][..]), ("300M", &[])] {
        let Some((found, expected, left)) = filled(size, options, fill_with_data) else {
            return;
        };
        assert!(
            found >= expected,
            "{size} {options:?}: {found} here, {expected} in the kernel"
        );
        assert!(left < MIB, "{size} {options:?}: {left} bytes are promised");
    }
}

#[test]
fn as_many_small_files_fit_as_in_the_kernel() {
    let Some((found, expected, _)) = filled("128M", &[], fill_with_files) else {
        return;
    };
    assert!(found >= expected, "{found} here, {expected} in the kernel");
}
