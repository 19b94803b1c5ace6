//! Tests of files, block devices and partition tables that other programs make.
//!
//! Tests that need root, loop devices or a partitioning tool return early if these are missing, and
//! report this.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may panic")]
#![allow(clippy::arithmetic_side_effects, reason = "small numbers of the test's own")]
#![allow(clippy::cast_possible_truncation, reason = "small numbers of the test's own")]

use std::io::Write as _;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use buttress_device::{Device, Engine, Offset, OpenOptions, ReadRequest};
use buttress_oracle::needs::{Missing, any_missing, missing};
use buttress_oracle::skip::{skip, skips};
use buttress_oracle::tools;
use rustix::fs::Advice;

fn image(bytes: u64) -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    file.as_file().set_len(bytes).unwrap();
    file
}

/// Returns the output of a program, which must succeed.
fn run(program: &str, arguments: &[&str]) -> String {
    let output = tools::run(Command::new(program).args(arguments)).unwrap();
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

/// A loop device, detached when dropped.
struct Loop(PathBuf);

impl Loop {
    /// Attaches an image. Returns `None`, so that the test is skipped, if the machine has no loop
    /// devices.
    #[track_caller]
    fn attach(image: &Path, sector_bytes: u32) -> Option<Self> {
        if skips(any_missing(&["root", "loop-devices", "losetup"])) {
            return None;
        }
        let sector = sector_bytes.to_string();
        // Without the option `-P`, the kernel would keep the image's partitions for the next
        // attached image.
        let path = run(
            "losetup",
            &["-P", "-f", "--show", "-b", &sector, image.to_str().unwrap()],
        );
        Some(Self(path.into()))
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").arg("-d").arg(&self.0).output();
    }
}

fn open(path: &Path, options: &OpenOptions) -> Device {
    Device::open(path, options).unwrap()
}

#[test]
fn block_device_reports_its_sizes_and_is_read_and_written() {
    for sector in [512_u32, 4096] {
        let size = 24 << 20;
        let file = image(size);
        let Some(device_node) = Loop::attach(file.path(), sector) else {
            return;
        };
        for engine in [Engine::Threads, Engine::IoUring] {
            for direct in [false, true] {
                let options = OpenOptions {
                    write: true,
                    direct,
                    engine,
                    ..OpenOptions::default()
                };
                let device = open(&device_node.0, &options);
                assert_eq!((device.size_bytes(), device.sector_bytes()), (size, sector));
                // Neither end of the range is aligned.
                device.write(5000, &[7; 10_000]).unwrap();
                device.flush().unwrap();
                let bytes = device.read(4999, 10_002).unwrap();
                assert_eq!((bytes[0], bytes[1], bytes[10_000], bytes[10_001]), (0, 7, 7, 0));
                device.zero(8192, 4096).unwrap();
                device.zero(6000, 100).unwrap();
                let bytes = device.read(5000, 10_000).unwrap();
                let zeros = bytes.iter().filter(|byte| **byte == 0).count();
                assert_eq!(zeros, 4096 + 100);
                device.discard(0, size).unwrap();
                assert!(device.read(0, 16384).unwrap().iter().all(|byte| *byte == 0));
                assert!(device.read(size - 1, 2).is_err());
            }
        }
    }
}

#[test]
fn a_block_device_for_writing_is_exclusive() {
    let file = image(8 << 20);
    let Some(device_node) = Loop::attach(file.path(), 512) else {
        return;
    };
    let write = OpenOptions {
        write: true,
        ..OpenOptions::default()
    };
    let writer = open(&device_node.0, &write);
    assert!(Device::open(&device_node.0, &write).is_err());
    drop(writer);
    let reader = open(&device_node.0, &OpenOptions::default());
    assert!(reader.write(0, &[1]).is_err(), "read-only by default");
    assert_eq!(
        Device::open(&device_node.0, &write).unwrap_err().kind,
        std::io::ErrorKind::ResourceBusy
    );
}

#[test]
fn a_mounted_image_is_read_with_a_notice_and_not_written() {
    let file = image(16 << 20);
    if skips(any_missing(&["mkfs.ext4", "mount"])) {
        return;
    }
    run("mkfs.ext4", &["-q", file.path().to_str().unwrap()]);
    let Some(device_node) = Loop::attach(file.path(), 512) else {
        return;
    };
    let directory = tempfile::tempdir().unwrap();
    let mount_point = directory.path().to_str().unwrap();
    run(
        "mount",
        &["-o", "ro", device_node.0.to_str().unwrap(), mount_point],
    );
    let seen: Vec<_> = [file.path(), &device_node.0]
        .into_iter()
        .map(|path| {
            let notices = Device::open(path, &OpenOptions::default()).map(|device| device.notices().to_vec());
            let write = OpenOptions {
                write: true,
                ..OpenOptions::default()
            };
            (notices, Device::open(path, &write).map(|_| ()))
        })
        .collect();
    run("umount", &[mount_point]);
    for (notices, write) in seen {
        let notices = notices.unwrap();
        assert!(
            notices.iter().any(|notice| notice.contains("mounted")),
            "{notices:?}"
        );
        assert_eq!(write.unwrap_err().kind, std::io::ErrorKind::ResourceBusy);
    }
}

/// The mount table names only one of a volume's devices, but the other devices are also in use.
#[test]
fn every_device_of_a_mounted_volume_is_seen() {
    let files = [image(160 << 20), image(160 << 20)];
    let paths = files.each_ref().map(|file| file.path().to_str().unwrap());
    if skips(any_missing(&["mkfs.btrfs", "btrfs", "kernel", "mount"])) {
        return;
    }
    run("mkfs.btrfs", &["-q", paths[0], paths[1]]);
    let nodes = files.each_ref().map(|file| Loop::attach(file.path(), 512));
    let [Some(first), Some(second)] = &nodes else {
        return;
    };
    let directory = tempfile::tempdir().unwrap();
    let mount_point = directory.path().to_str().unwrap();
    let names = [first, second].map(|node| node.0.to_str().unwrap());
    let options = format!("device={},device={}", names[0], names[1]);
    run("mount", &["-t", "btrfs", "-o", &options, names[0], mount_point]);
    let write = OpenOptions {
        write: true,
        ..OpenOptions::default()
    };
    let refused = paths.map(|path| Device::open(path, &write).is_err());
    run("umount", &[mount_point]);
    run("btrfs", &["device", "scan", "--forget", names[0]]);
    run("btrfs", &["device", "scan", "--forget", names[1]]);
    assert_eq!(refused, [true, true]);
    assert!(Device::open(paths[1], &write).is_ok(), "free again");
}

#[test]
fn files_are_opened_only_if_they_can_hold_a_volume() {
    let missing = Device::open("/nonexistent/image", &OpenOptions::default()).unwrap_err();
    assert_eq!(missing.kind, std::io::ErrorKind::NotFound);
    assert!(missing.to_string().contains("/nonexistent/image"), "{missing}");
    assert!(Device::open("/", &OpenOptions::default()).is_err());
    assert!(Device::open("/dev/null", &OpenOptions::default()).is_err());
    let empty = image(0);
    let device = open(empty.path(), &OpenOptions::default());
    assert_eq!(device.size_bytes(), 0);
    assert!(device.read(0, 1).is_err());
    let past = OpenOptions {
        partition: Offset::Bytes(1),
        ..OpenOptions::default()
    };
    assert!(
        Device::open(empty.path(), &past)
            .unwrap_err()
            .to_string()
            .contains("past its end")
    );
}

#[test]
fn zeroed_and_discarded_ranges_of_files_become_holes() {
    let file = image(0);
    file.as_file().write_all_at(&vec![1; 1 << 20], 0).unwrap();
    let device = open(
        file.path(),
        &OpenOptions {
            write: true,
            ..OpenOptions::default()
        },
    );
    device.zero(100, (1 << 20) - 200).unwrap();
    let bytes = device.read(0, 1 << 20).unwrap();
    assert_eq!(bytes.iter().map(|byte| u32::from(*byte)).sum::<u32>(), 200);
    device.discard(0, 1 << 20).unwrap();
    assert_eq!(file.as_file().metadata().unwrap().len(), 1 << 20);
}

/// Makes a table with `program`, and checks the position of each partition's first byte.
fn check_table(file: &tempfile::NamedTempFile, expected: &[(u32, u64, u64)]) {
    for &(number, start, length) in expected {
        file.as_file().write_all_at(&number.to_le_bytes(), start).unwrap();
        let partition = Offset::Partition(number);
        let device = open(
            file.path(),
            &OpenOptions {
                partition,
                ..OpenOptions::default()
            },
        );
        assert_eq!(device.read(0, 4).unwrap()[..], number.to_le_bytes());
        assert_eq!(device.size_bytes(), length, "partition {number}");
    }
    let absent = OpenOptions {
        partition: Offset::Partition(99),
        ..OpenOptions::default()
    };
    let error = Device::open(file.path(), &absent).unwrap_err();
    assert!(error.to_string().contains("no partition 99"), "{error}");
}

const MIB: u64 = 1 << 20;

#[test]
fn tables_made_by_sgdisk_are_read() {
    let file = image(64 * MIB);
    let path = file.path().to_str().unwrap();
    if skips(missing("sgdisk")) {
        return;
    }
    run("sgdisk", &["-n", "1:1M:+8M", "-n", "7:16M:+4M", path]);
    // In sgdisk's arguments, "+8M" is a length.
    check_table(&file, &[(1, MIB, 8 * MIB), (7, 16 * MIB, 4 * MIB)]);
    // After the loss of the primary GPT header, the backup header is used.
    file.as_file().write_all_at(&[0; 512], 512).unwrap();
    check_table(&file, &[(1, MIB, 8 * MIB), (7, 16 * MIB, 4 * MIB)]);
}

#[test]
fn tables_made_by_parted_are_read() {
    let file = image(64 * MIB);
    let path = file.path().to_str().unwrap();
    let arguments = "mklabel msdos mkpart primary 1MiB 9MiB mkpart extended 10MiB 60MiB \
                     mkpart logical 11MiB 20MiB mkpart logical 21MiB 30MiB";
    let arguments: Vec<&str> = ["-s", path]
        .into_iter()
        .chain(arguments.split_whitespace())
        .collect();
    if skips(missing("parted")) {
        return;
    }
    run("parted", &arguments);
    check_table(
        &file,
        &[(1, MIB, 8 * MIB), (5, 11 * MIB, 9 * MIB), (6, 21 * MIB, 9 * MIB)],
    );
}

#[test]
fn tables_on_devices_with_large_sectors_are_read() {
    let file = image(64 * MIB);
    if skips(missing("parted")) {
        return;
    }
    let Some(device_node) = Loop::attach(file.path(), 4096) else {
        return;
    };
    let node = device_node.0.to_str().unwrap();
    for label in ["gpt", "msdos"] {
        let arguments = ["-s", node, "mklabel", label, "mkpart", "primary", "8MiB", "24MiB"];
        run("parted", &arguments);
        let partition = Offset::Partition(1);
        let options = OpenOptions {
            partition,
            ..OpenOptions::default()
        };
        let device = open(&device_node.0, &options);
        assert_eq!(device.size_bytes(), 16 * MIB, "{label}");
        if label == "gpt" {
            // The image does not state its sector size, but the partition table's position reveals
            // it.
            assert_eq!(open(file.path(), &options).size_bytes(), 16 * MIB);
        }
    }
}

/// Runs in the other process of the test below: opens the device, reports this, and waits to be
/// killed.
fn hold_and_wait(path: &std::ffi::OsStr, write: &std::ffi::OsStr) {
    let options = OpenOptions {
        write: write == "yes",
        ..OpenOptions::default()
    };
    let device = Device::open(path, &options).unwrap();
    println!("\nholding {}", device.size_bytes());
    std::io::stdout().flush().unwrap();
    std::thread::sleep(std::time::Duration::from_secs(60));
}

struct Other(std::process::Child);

impl Other {
    /// Starts a process that has the device open.
    fn holding(path: &Path, write: bool) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "two_processes_read_together_and_write_alone"])
            .args(["--nocapture", "--test-threads=1"])
            .env("LOCK_PATH", path)
            .env("LOCK_WRITE", if write { "yes" } else { "no" })
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let lines = std::io::BufRead::lines(std::io::BufReader::new(child.stdout.take().unwrap()));
        assert!(
            lines
                .map_while(Result::ok)
                .any(|line| line.starts_with("holding"))
        );
        Self(child)
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn two_processes_read_together_and_write_alone() {
    if let (Some(path), Some(write)) = (std::env::var_os("LOCK_PATH"), std::env::var_os("LOCK_WRITE")) {
        return hold_and_wait(&path, &write);
    }
    let file = image(1 << 20);
    let writing = OpenOptions {
        write: true,
        ..OpenOptions::default()
    };
    let reader = Other::holding(file.path(), false);
    open(file.path(), &OpenOptions::default());
    let error = Device::open(file.path(), &writing).unwrap_err();
    assert_eq!(error.kind, std::io::ErrorKind::ResourceBusy);
    assert!(
        error
            .to_string()
            .contains("another process has it open; wait for this process, or open it read-only"),
        "{error}"
    );
    drop(reader);
    let writer = Other::holding(file.path(), true);
    let error = Device::open(file.path(), &OpenOptions::default()).unwrap_err();
    assert_eq!(error.kind, std::io::ErrorKind::ResourceBusy);
    assert!(
        error.to_string().contains("another process is writing to it"),
        "{error}"
    );
    // The system releases a process's lock, however the process ends.
    drop(writer);
    open(file.path(), &writing);
}

#[test]
fn cached_pages_are_read_without_waiting() {
    let file = image(1 << 20);
    file.as_file().write_all_at(b"cached", 5000).unwrap();
    let mut bytes = [0; 6];
    file.as_file().read_exact_at(&mut bytes, 5000).unwrap();
    for (engine, answers) in [
        (Engine::Threads, true),
        (Engine::IoUring, true),
        (Engine::Inline, false),
    ] {
        let options = OpenOptions {
            engine,
            ..OpenOptions::default()
        };
        let device = open(file.path(), &options);
        let before = device.statistics();
        let read = device.read_cached(5000, 6);
        let during = device.statistics().since(&before);
        if read.is_none() && answers {
            // Some file systems cannot report if a read would wait.
            skip(&Missing::new(
                "page-cache",
                "nothing is known of the page cache here",
            ));
            continue;
        }
        assert_eq!(read.as_deref(), answers.then_some(&b"cached"[..]), "{engine}");
        assert_eq!(during.reads.requests, 0, "{engine}: no device was asked");
        assert_eq!(during.copies.reads, u64::from(answers), "{engine}");
        assert!(device.read_cached((1 << 20) - 1, 2).is_none(), "past the end");
    }
}

/// Bytes in the page cache never count as a request, and other bytes always do, in every kind of
/// read.
#[test]
fn copies_out_of_the_page_cache_are_not_counted_as_requests() {
    const BYTES: u64 = 4 << 20;
    let file = image(BYTES);
    file.as_file().write_all_at(&vec![7; BYTES as usize], 0).unwrap();
    file.as_file().sync_all().unwrap();
    let advise = |advice| rustix::fs::fadvise(file.as_file(), 0, None, advice).unwrap();
    // Reads through this file descriptor trigger no read-ahead.
    advise(Advice::Random);
    let small: Vec<ReadRequest> = (0..8)
        .map(|number| ReadRequest {
            offset_bytes: number * 50_000,
            length: 16 << 10,
        })
        .collect();
    let large = ReadRequest {
        offset_bytes: 1 << 20,
        length: 1 << 20,
    };
    for engine in [Engine::Threads, Engine::Inline] {
        let options = OpenOptions {
            engine,
            ..OpenOptions::default()
        };
        let device = open(file.path(), &options);
        std::fs::read(file.path()).unwrap();
        let before = device.statistics();
        device.read(3 << 20, 5000).unwrap();
        for read in device.start_reads(&small) {
            read.wait().unwrap();
        }
        device.start_read(large).wait().unwrap();
        let warm = device.statistics().since(&before);
        assert_eq!(
            (warm.reads.requests, warm.reads.bytes),
            (0, 0),
            "{engine}: {warm:?}"
        );
        assert_eq!(warm.copies.reads, 1 + 8 + 1, "{engine}: {warm:?}");
        assert_eq!(warm.copies.bytes, 5000 + 8 * (16 << 10) + (1 << 20), "{engine}");
        // The page cache holds nothing of the test file. The test makes only one read, because the
        // kernel may read ahead.
        for request in [small[0], large] {
            advise(Advice::DontNeed);
            let before = device.statistics();
            let bytes = device.start_read(request).wait().unwrap();
            assert!(bytes.iter().all(|byte| *byte == 7), "{engine}");
            let cold = device.statistics().since(&before);
            assert_eq!(
                (cold.reads.requests, cold.copies.reads),
                (1, 0),
                "{engine}: {cold:?}"
            );
            assert_eq!(cold.reads.bytes, request.length as u64, "{engine}");
        }
        // In this test, the page cache holds half of the file. The call copies the cached half
        // once.
        advise(Advice::DontNeed);
        file.as_file().read_exact_at(&mut [0; 4096], 1 << 20).unwrap();
        let before = device.statistics();
        let bytes = device.start_read(large).wait().unwrap();
        assert!(bytes.iter().all(|byte| *byte == 7), "{engine}");
        assert_eq!(device.statistics().since(&before).reads.requests, 1, "{engine}");
    }
}

/// A scan skips holes: every byte outside of the ranges of data is zero.
#[test]
fn ranges_of_data_hold_every_written_byte() {
    let file = image(8 << 20);
    for at in [0, 1 << 20, (3 << 20) + 5000, (8 << 20) - 1] {
        file.as_file().write_all_at(&[1], at).unwrap();
    }
    let partition = Offset::Bytes(1 << 20);
    for (partition, start) in [(Offset::Whole, 0), (partition, 1 << 20)] {
        let options = OpenOptions {
            partition,
            ..OpenOptions::default()
        };
        let device = open(file.path(), &options);
        let whole = device.read(0, device.size_bytes() as usize).unwrap();
        let mut covered = vec![false; whole.len()];
        let mut at = 0;
        while let Some(data) = device.next_data(at).unwrap() {
            assert!(at <= data.start && data.start < data.end && data.end <= device.size_bytes());
            covered[data.start as usize..data.end as usize].fill(true);
            at = data.end;
        }
        let lost = whole
            .iter()
            .zip(&covered)
            .position(|(byte, covered)| *byte != 0 && !covered);
        assert_eq!(lost, None, "from {start} on");
        assert!(
            covered.iter().any(|covered| !covered),
            "the host file system reports holes"
        );
        assert_eq!(device.next_data(device.size_bytes()).unwrap(), None);
        // Inside of data, the range begins at the given byte.
        assert_eq!(device.next_data(7).unwrap().unwrap().start, 7);
    }
    let memory = Device::memory(vec![0; 4096]);
    assert_eq!(memory.next_data(9).unwrap(), Some(9..4096));
}
