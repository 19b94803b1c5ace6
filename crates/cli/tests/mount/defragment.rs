//! Defragmentation of files on a mount: by the command, and by the ioctl of btrfs-progs.

use crate::mounting;

use buttress_oracle::ioctls::numbered;
use buttress_oracle::skip::skips;
use mounting::{Mounted, buttress, no_fuse, sound, text};
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};

const DEFRAG: u32 = 1 << 30 | 4096 << 16 | 0x94 << 8 | 2;
const DEFRAG_RANGE: u32 = 1 << 30 | 48 << 16 | 0x94 << 8 | 16;

const SECTORS: usize = 64;

fn content(seed: u8) -> Vec<u8> {
    (0..SECTORS * 4096).map(|at| (at / 100) as u8 ^ seed).collect()
}

/// Writes a file whose sectors are extents of their own.
fn in_pieces(mounted: &Mounted, name: &str, content: &[u8]) -> File {
    let file = File::create_new(mounted.path(name)).unwrap();
    for first in [0, 1] {
        for sector in (first..SECTORS).step_by(2) {
            let at = sector * 4096;
            file.write_all_at(&content[at..at + 4096], at as u64).unwrap();
            file.sync_data().unwrap();
        }
    }
    file
}

/// The number of extents of a file.
fn extents(mounted: &Mounted, name: &str) -> usize {
    let path = mounted.path(name);
    let told = text(&sound(&["fiemap", path.to_str().unwrap()]).stdout);
    let count = told.rsplit(": ").next().and_then(|rest| rest.split(' ').next());
    count
        .and_then(|count| count.parse().ok())
        .unwrap_or_else(|| panic!("{told}"))
}

/// Calls the ioctl for a range.
fn by_ioctl(file: &File, (start, length): (u64, u64), flags: u64, compression: u32) -> bool {
    let words = [start, length, flags].into_iter().flat_map(u64::to_ne_bytes);
    let halves = [32 << 20, compression].into_iter().flat_map(u32::to_ne_bytes);
    let mut data = [0; 4096];
    for (place, byte) in data.iter_mut().zip(words.chain(halves)) {
        *place = byte;
    }
    numbered(file, DEFRAG_RANGE, &mut data).is_ok()
}

#[test]
fn files_of_a_mount_are_defragmented_beside_a_writer() {
    if skips(no_fuse()) {
        return;
    }
    let mounted = Mounted::new();
    sound(&["mkfs", "-q", "-f", "-b", "256M", mounted.image()]);
    mounted.mount("rw");
    let files: Vec<File> = (0..3_u8)
        .map(|number| in_pieces(&mounted, &format!("f{number}"), &content(number)))
        .collect();
    assert!(
        extents(&mounted, "f0") > SECTORS / 2,
        "{}",
        extents(&mounted, "f0")
    );
    let times = |file: &File| {
        let found = file.metadata().unwrap();
        (found.mtime_nsec(), found.ctime_nsec())
    };
    let before = times(&files[0]);
    let open = files[2].try_clone().unwrap();
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            for round in 0..200_u64 {
                open.write_all_at(&[round as u8; 700], (round * 911) % 250_000)
                    .unwrap();
            }
        });
        for name in ["f0", "f2"] {
            let path = mounted.path(name);
            sound(&["filesystem", "defragment", path.to_str().unwrap()]);
        }
        writer.join().unwrap();
    });
    assert_eq!((extents(&mounted, "f0"), times(&files[0])), (1, before));
    // The ioctl compresses the other file.
    assert!(by_ioctl(&files[1], (0, u64::MAX), 1 | 2, 3));
    assert_eq!(extents(&mounted, "f1"), 2);
    numbered(&files[1], DEFRAG, &mut [0; 4096]).unwrap();
    assert!(!by_ioctl(&files[1], (0, 1), 1 << 20, 0) && !by_ioctl(&files[1], (1 << 40, 1), 0, 0));
    let mut model = content(2);
    for round in 0..200_u64 {
        let at = ((round * 911) % 250_000) as usize;
        model[at..at + 700].fill(round as u8);
    }
    let missing = buttress(&["filesystem", "defragment", mounted.path("none").to_str().unwrap()]);
    assert_eq!(missing.status.code(), Some(1));
    drop((files, open));
    mounted.umount();
    sound(&["check", "--check-data-csum", mounted.image()]);
    mounted.mount("ro");
    for (number, expected) in [(0, content(0)), (1, content(1)), (2, model)] {
        assert!(
            fs::read(mounted.path(&format!("f{number}"))).unwrap() == expected,
            "f{number}"
        );
    }
    let read_only = buttress(&["filesystem", "defragment", mounted.path("f0").to_str().unwrap()]);
    assert_eq!(read_only.status.code(), Some(1));
}

/// A file of many small extents, whose defragmentation takes a while.
fn long_job(mounted: &Mounted, name: &str) -> File {
    const LARGE: usize = 6000;
    let file = File::create_new(mounted.path(name)).unwrap();
    for first in [0, 1] {
        for sector in (first..LARGE).step_by(2) {
            let bytes = [sector as u8; 4096];
            file.write_all_at(&bytes, sector as u64 * 4096).unwrap();
        }
        file.sync_all().unwrap();
    }
    file
}

#[test]
fn signal_to_the_caller_ends_a_defragmentation() {
    if skips(no_fuse()) {
        return;
    }
    let mounted = Mounted::sized("256M");
    mounted.mount("rw");
    let file = long_job(&mounted, "file");
    let before = extents(&mounted, "file");
    let handled = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    signal_hook::flag::register(signal_hook::consts::SIGUSR1, handled).unwrap();
    let (sends, received) = std::sync::mpsc::channel();
    let result = std::thread::scope(|scope| {
        let caller = scope.spawn(|| {
            // SAFETY: the call takes nothing, and returns this thread's handle.
            sends.send(unsafe { libc::pthread_self() }).unwrap();
            numbered(&file, DEFRAG, &mut [0; 4096])
        });
        let thread = received.recv().unwrap();
        while !caller.is_finished() {
            // SAFETY: the scope joins the thread below, so its handle is valid.
            unsafe { libc::pthread_kill(thread, libc::SIGUSR1) };
        }
        caller.join().unwrap()
    });
    assert_eq!(result, Err(rustix::io::Errno::INTR));
    assert!(extents(&mounted, "file") > before / 2);
    // Without a signal the same call ends.
    numbered(&file, DEFRAG, &mut [0; 4096]).unwrap();
    drop(file);
    mounted.umount();
    sound(&["check", "--check-data-csum", mounted.image()]);
}

#[test]
fn unmount_ends_a_defragmentation_by_the_server() {
    if skips(no_fuse()) {
        return;
    }
    let mounted = Mounted::sized("256M");
    mounted.mount("rw");
    let files: Vec<String> = (0..4)
        .map(|number| {
            let name = format!("f{number}");
            drop(long_job(&mounted, &name));
            mounted.path(&name).to_str().unwrap().to_owned()
        })
        .collect();
    let mut words = vec!["filesystem", "defragment"];
    words.extend(files.iter().map(String::as_str));
    let mut command = std::process::Command::new(mounting::PROGRAM)
        .args(words)
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    // The unmount may come at any moment of the job.
    std::thread::sleep(std::time::Duration::from_millis(200));
    mounted.umount();
    command.wait().unwrap();
    sound(&["check", "--check-data-csum", mounted.image()]);
    mounted.mount("ro");
    assert!(extents(&mounted, "f3") > 100, "the unmount waited for all files");
}
