//! Tests of volumes with a given latest time (`SOURCE_DATE_EPOCH`): the same commands create the
//! same bytes.

use std::path::Path;
use std::process::Command;

use super::support::{failure, stdout};
use super::{check, fresh};

#[test]
fn the_same_epoch_gives_the_same_bytes() {
    let make = |image: &str| {
        let words = ["mkfs", "-q", "-b", "128M", image];
        let mut command = Command::new(env!("CARGO_BIN_EXE_buttress"));
        let output = command
            .args(words)
            .env("SOURCE_DATE_EPOCH", "1700000000")
            .output()
            .unwrap();
        assert!(output.status.success());
        std::fs::read(image).unwrap()
    };
    let (_folder, image) = fresh();
    assert!(make(&image) == make(&format!("{image}.2")));
}

/// `mkfs -r` creates the smallest image that holds a directory, with the same bytes for any number
/// of workers. If the program is called as `mkfs.btrfs`, it makes the same bytes.
#[test]
fn mkfs_builds_a_directory_into_the_same_image_each_time() {
    let (folder, image) = fresh();
    let source = folder.path().join("source");
    make_source(&source);
    std::fs::create_dir(source.join("home")).unwrap();
    std::fs::write(source.join("home/large"), vec![b'x'; 3_000_000]).unwrap();
    std::fs::hard_link(source.join("home/large"), source.join("linked")).unwrap();
    let link = folder.path().join("mkfs.btrfs");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_buttress"), &link).unwrap();
    let make = |program: &Path, words: &[&str], image: &str| {
        let output = Command::new(program)
            .args(words)
            .args(["-q", "-U", "12345678-1234-1234-1234-123456789abc", "-r"])
            .arg(&source)
            .args([
                "--subvol",
                "ro:home",
                "-u",
                "new:default",
                "--compress",
                "zstd:5",
                image,
            ])
            .env("SOURCE_DATE_EPOCH", "1700000000")
            .env("DETERMINISTIC_SEED", "1")
            .output()
            .unwrap();
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        std::fs::read(image).unwrap()
    };
    let program = Path::new(env!("CARGO_BIN_EXE_buttress"));
    let one = make(program, &["mkfs", "--workers", "1"], &image);
    let again = folder.path().join("again.img");
    let two = make(&link, &["--workers", "5"], again.to_str().unwrap());
    assert!(one == two);
    assert!(one.len() < 16 << 20, "{} bytes", one.len());
    check(&image);
    let list = stdout(&["subvolume", "list", &image]);
    assert!(list.contains("path home") && list.contains("path new"), "{list}");
    assert_eq!(
        stdout(&["cat", &format!("{image}:/home/large")]),
        "x".repeat(3_000_000)
    );
    // The program fails if the seed variable is set without the uuid from which all uuids derive.
    let output = Command::new(program)
        .args(["mkfs", "-f", &image])
        .env("DETERMINISTIC_SEED", "1")
        .output()
        .unwrap();
    assert!(String::from_utf8_lossy(&output.stderr).contains("-U is missing"));
    // A missing source leaves no image.
    let none = folder.path().join("none.img");
    let (code, error) = failure(&["mkfs", "-r", "/nowhere/at/all", none.to_str().unwrap()]);
    assert!(code == 1 && error.contains("/nowhere/at/all"), "{error}");
    assert!(!none.exists());
    let (_, error) = failure(&["mkfs", "--compress", "zstd", none.to_str().unwrap()]);
    assert!(error.contains("needs a source of content"), "{error}");
}

/// Returns the kind and the seconds of each time in a volume.
fn times(image: &str) -> Vec<(String, i64)> {
    let dump = stdout(&["inspect-internal", "dump-tree", image]);
    let words: Vec<&str> = dump.split_whitespace().collect();
    let is_time = |word: &str| ["atime", "mtime", "ctime", "otime", "stime", "rtime"].contains(&word);
    let pairs = words.windows(2).filter(|pair| is_time(pair[0]));
    pairs
        .filter_map(|pair| Some((pair[0].to_owned(), pair[1].split('.').next()?.parse().ok()?)))
        .collect()
}

/// Time of all files of the test; the next constant is an earlier time.
const EPOCH: i64 = 1_700_000_000;
const EARLIER: u64 = 1_600_000_000;

/// Creates files with times before and after the epoch.
fn make_source(source: &Path) {
    std::fs::create_dir_all(source.join("directory")).unwrap();
    let moment = |seconds: u64| std::time::UNIX_EPOCH + std::time::Duration::from_secs(seconds);
    for number in 0..40_u64 {
        let path = source.join(format!("directory/file_{number}"));
        std::fs::write(&path, vec![b'x'; usize::try_from(number * 5000).unwrap()]).unwrap();
        let modified = if number % 2 == 0 { EARLIER } else { 2_000_000_000 };
        let times = std::fs::FileTimes::new()
            .set_accessed(moment(modified + number))
            .set_modified(moment(modified));
        std::fs::File::options()
            .write(true)
            .open(&path)
            .unwrap()
            .set_times(times)
            .unwrap();
    }
    std::os::unix::fs::symlink("directory", source.join("link")).unwrap();
}

#[test]
fn a_source_date_epoch_limits_times_and_makes_bytes_repeatable() {
    let (folder, image) = fresh();
    let source = folder.path().join("source");
    make_source(&source);
    let run = |words: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_buttress"))
            .args(words)
            .env("SOURCE_DATE_EPOCH", EPOCH.to_string())
            .output()
            .unwrap();
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{words:?}: {errors}");
    };
    let uuids = [
        "5ae6ac0e-6d4c-4b5d-9b1a-6a5a0a6f8a01",
        "5ae6ac0e-6d4c-4b5d-9b1a-6a5a0a6f8a02",
    ];
    let build = |image: &str| {
        let at = |path: &str| format!("{image}:{path}");
        run(&[
            "mkfs",
            "-q",
            "-b",
            "256M",
            "-U",
            uuids[0],
            "--device-uuid",
            uuids[1],
            image,
        ]);
        run(&["cp", "-a", source.to_str().unwrap(), &at("/copy")]);
        run(&[
            "cp",
            "-r",
            "--compress",
            "zstd",
            source.to_str().unwrap(),
            &at("/plain"),
        ]);
        run(&["subvolume", "create", &at("/subvolume")]);
        run(&["subvolume", "snapshot", "-r", &at("/"), &at("/snapshot")]);
        let lines = [
            "touch /now",
            "touch -d 2040-01-01T00:00:00Z /later",
            "touch -d @1600000000 /earlier",
            "put -a source /put",
            "cp -a /copy /again",
            "mv /now /moved",
            "setfattr -n user.a -v b /moved",
            "snapshot / /second",
            "subvolume delete /subvolume",
            "pwrite -q 0 1M /moved",
        ];
        let mut words = vec!["shell", "-w", image];
        for line in lines {
            words.extend(["-c", line]);
        }
        let status = Command::new(env!("CARGO_BIN_EXE_buttress"))
            .args(words)
            .current_dir(folder.path())
            .env("SOURCE_DATE_EPOCH", EPOCH.to_string())
            .status();
        assert!(status.unwrap().success());
        std::fs::read(image).unwrap()
    };
    let first = build(&image);
    assert!(first == build(&format!("{image}.2")), "the bytes differ");
    let times = times(&image);
    assert!(times.len() > 400, "{}", times.len());
    for (what, seconds) in &times {
        assert!(*seconds <= EPOCH, "{what} {seconds}");
    }
    let earlier = |wanted: &str| {
        times
            .iter()
            .any(|(what, at)| what == wanted && at.unsigned_abs() == EARLIER)
    };
    assert!(earlier("mtime") && earlier("atime"), "earlier times stay");
    check(&image);
}
