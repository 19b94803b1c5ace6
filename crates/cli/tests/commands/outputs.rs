//! No command writes to its own sources, under any of their names. Files named by options are
//! written completely or not at all.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::panic,
    clippy::print_stderr,
    reason = "tests state what must hold, and say what they skipped"
)]

use crate::support;

use buttress_oracle::needs::missing;
use buttress_oracle::skip::skips;
use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use support::{Volume, buttress, failure, stdout};

const PROGRAM: &str = env!("CARGO_BIN_EXE_buttress");

/// A volume, and other names of its image: itself, another spelling, a symbolic link, a hard link,
/// and for root a loop device.
struct Named {
    volume: Volume,
    before: Vec<u8>,
    names: Vec<String>,
    device: Option<String>,
}

impl Named {
    fn new() -> Self {
        let volume = Volume::copy();
        let image = Path::new(volume.path());
        let folder = image.parent().unwrap();
        symlink("volume.img", folder.join("link")).unwrap();
        fs::hard_link(image, folder.join("hard")).unwrap();
        fs::create_dir(folder.join("below")).unwrap();
        let name = |name: &str| folder.join(name).to_str().unwrap().to_owned();
        let mut names = vec![
            volume.path().to_owned(),
            name("below/../volume.img"),
            name("link"),
            name("hard"),
        ];
        let attached = Command::new("losetup")
            .args(["-f", "--show", volume.path()])
            .output();
        let device = attached
            .ok()
            .filter(|output| output.status.success())
            .map(|output| String::from_utf8(output.stdout).unwrap().trim().to_owned());
        names.extend(device.clone());
        Self {
            before: fs::read(image).unwrap(),
            volume,
            names,
            device,
        }
    }

    fn is_untouched(&self, what: &str) {
        for name in &self.names[..4] {
            assert!(
                fs::read(name).unwrap() == self.before,
                "{what}: {name} was changed"
            );
        }
        assert!(
            fs::symlink_metadata(&self.names[2]).unwrap().is_symlink(),
            "{what}"
        );
    }
}

impl Drop for Named {
    fn drop(&mut self) {
        if let Some(device) = &self.device {
            let _ = Command::new("losetup").args(["-d", device]).status();
        }
    }
}

#[test]
fn no_output_is_the_volume_that_is_read() {
    let named = Named::new();
    let image = named.volume.path();
    let file = named.volume.inside("/home/plain/text");
    let snapshot = named.volume.inside("/home-monday");
    for name in &named.names {
        let get = format!("get /home/plain/text {name}");
        let commands: [&[&str]; 7] = [
            &["cp", &file, name],
            &["cp", "-a", &file, name],
            &["cp", "-T", &file, name],
            &["shell", image, "-c", &get],
            &["tar", "-f", name, image],
            &["send", "-f", name, &snapshot],
            &[
                "send",
                "--no-data",
                "-p",
                &snapshot,
                "-f",
                name,
                &named.volume.inside("/home-tuesday"),
            ],
        ];
        for words in commands {
            let (code, message) = failure(words);
            assert_eq!(code, 1, "{words:?}: {message}");
            assert!(
                message.contains("nothing was written") && message.contains(name),
                "{words:?}: {message}"
            );
            named.is_untouched(&format!("{words:?}"));
        }
        // The command reads and writes the same file under different names.
        let other = format!("{name}:/home/plain/text");
        assert_eq!(failure(&["cp", &other, image]).0, 1);
        named.is_untouched(name);
    }
}

#[test]
fn no_output_is_another_device_or_an_overlay() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (one, two) = (path("one"), path("two"));
    stdout(&["mkfs", "--size", "300M", "-d", "raid1", "-m", "raid1", &one, &two]);
    let before = (fs::read(&one).unwrap(), fs::read(&two).unwrap());
    let (code, message) = failure(&["tar", "--device", &two, "-f", &two, &one]);
    assert_eq!(code, 1);
    assert!(message.contains("nothing was written"), "{message}");
    assert!((fs::read(&one).unwrap(), fs::read(&two).unwrap()) == before);

    let volume = Volume::copy();
    let side = path("side");
    stdout(&[
        "shell",
        "--overlay",
        &side,
        "-w",
        volume.path(),
        "-c",
        "mkdir /new",
    ]);
    let before = fs::read(&side).unwrap();
    let (code, message) = failure(&["tar", "--overlay", &side, "-f", &side, volume.path()]);
    assert_eq!(code, 1);
    assert!(message.contains("overlay"), "{message}");
    assert!(fs::read(&side).unwrap() == before);
    // An overlay cannot be its own image, or another image.
    let image = fs::read(volume.path()).unwrap();
    for other in [volume.path(), &one] {
        let words = ["shell", "--overlay", volume.path(), "-w", other, "-c", "mkdir /x"];
        assert_eq!(failure(&words).0, 1);
        assert!(fs::read(volume.path()).unwrap() == image);
    }
}

#[test]
fn no_output_is_the_stream_that_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let stream = folder.path().join("stream");
    let stream = stream.to_str().unwrap();
    stdout(&["send", "-f", stream, &support::inside("/home-monday")]);
    let before = fs::read(stream).unwrap();
    let (code, message) = failure(&["stream", "tar", "-f", stream, stream]);
    assert_eq!(code, 1);
    assert!(message.contains("a stream that this command reads"), "{message}");
    for line in [
        "receive --dump -f S >> S",
        "receive --dump < S >> S",
        "stream tar S >> S",
        "stream ls S >> S",
        "stream verify S 1<> S",
    ] {
        let output = shell(&line.replace('S', stream));
        assert_eq!(output.status.code(), Some(1), "{line}");
        assert!(fs::read(stream).unwrap() == before, "{line} changed the stream");
    }
}

/// Runs `buttress` with these arguments and redirections in a shell.
fn shell(line: &str) -> Output {
    Command::new("sh")
        .args(["-c", &format!("exec \"$0\" {line}"), PROGRAM])
        .output()
        .unwrap()
}

#[test]
fn standard_streams_that_lead_to_the_volume_are_refused() {
    let named = Named::new();
    let commands = [
        "tar IMG",
        "send IMG:/home-monday",
        "cat IMG:/home/plain/text",
        "ls -lR IMG",
        "check IMG",
        "stat IMG:/home",
        "diff IMG:/home IMG:/home-monday",
        "space --export ncdu IMG",
        "inspect-internal dump-tree IMG",
        "inspect-internal dump-super IMG",
        "--format json subvolume list IMG",
        "shell -w IMG -c 'mkdir /x'",
        "mkfs -f IMG",
    ];
    for (number, command) in commands.iter().enumerate() {
        let command = command.replace("IMG", named.volume.path());
        let name = &named.names[number % named.names.len()];
        for redirection in [format!(">> {name}"), format!("1<> {name}")] {
            let output = shell(&format!("{command} {redirection}"));
            let message = String::from_utf8_lossy(&output.stderr);
            assert_ne!(output.status.code(), Some(0), "{command} {redirection}");
            assert!(
                message.contains("standard output is redirected to"),
                "{command}: {message}"
            );
            named.is_untouched(&command);
        }
    }
    // The error message goes to standard output.
    let output = shell(&format!("tar {} 2>> {}", named.volume.path(), named.names[3]));
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("standard error is redirected to"), "{text}");
    named.is_untouched("2>>");
    let both = format!("ls {} >> {} 2>&1", named.volume.path(), named.names[2]);
    assert_eq!(shell(&both).status.code(), Some(1));
    named.is_untouched("both");
}

#[test]
fn a_missing_source_truncates_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    fs::write(&out, b"from yesterday").unwrap();
    let name = out.to_str().unwrap();
    let missing = folder.path().join("missing");
    let missing = missing.to_str().unwrap();
    let commands: [&[&str]; 8] = [
        &["tar", "-f", name, missing],
        &["tar", "-f", name, &support::inside("/missing")],
        &["send", "-f", name, missing],
        &["send", "-f", name, &support::inside("/missing")],
        &["send", "-f", name, &support::inside("/home")],
        &["stream", "tar", "-f", name, missing],
        &["cp", &support::inside("/missing"), name],
        &[
            "shell",
            support::image().to_str().unwrap(),
            "-c",
            &format!("get /missing {name}"),
        ],
    ];
    for words in commands {
        assert_eq!(failure(words).0, 1, "{words:?}");
        assert_eq!(fs::read(&out).unwrap(), b"from yesterday", "{words:?}");
    }
    let names = fs::read_dir(folder.path()).unwrap().count();
    assert_eq!(names, 1, "something was left");
}

/// Runs the program with a low file size limit. A write past the file size limit gives an error, or
/// a signal that ends the program.
fn limited(words: &[&str], as_error: bool) -> Output {
    let trap = if as_error { "trap '' XFSZ; " } else { "" };
    Command::new("sh")
        .args([
            "-c",
            &format!("{trap}ulimit -c 0; ulimit -f 128; exec \"$0\" \"$@\""),
            PROGRAM,
        ])
        .args(words)
        .output()
        .unwrap()
}

#[test]
fn an_archive_is_there_whole_or_not_at_all() {
    let folder = tempfile::tempdir().unwrap();
    let stream = folder.path().join("stream");
    stdout(&[
        "send",
        "-f",
        stream.to_str().unwrap(),
        &support::inside("/home-monday"),
    ]);
    let image = support::image().to_str().unwrap();
    for as_error in [true, false] {
        for command in [
            vec!["tar", image],
            vec!["stream", "tar", stream.to_str().unwrap()],
        ] {
            let new = folder.path().join("new");
            let old = folder.path().join("old");
            fs::write(&old, b"from yesterday").unwrap();
            for file in [&new, &old] {
                let words = [&command[..], &["-f", file.to_str().unwrap()]].concat();
                let output = limited(&words, as_error);
                assert!(!output.status.success());
                let message = String::from_utf8_lossy(&output.stderr);
                assert!(!as_error || message.contains("File too large"), "{message}");
            }
            assert!(!new.exists());
            assert_eq!(fs::read(&old).unwrap(), b"from yesterday");
            assert_eq!(
                fs::read_dir(folder.path()).unwrap().count(),
                2,
                "something was left"
            );
        }
    }
    // If no obstacle exists, the new file replaces the old one.
    let old = folder.path().join("old");
    stdout(&["tar", "-f", old.to_str().unwrap(), image]);
    assert!(fs::read(&old).unwrap() == buttress(&["tar", image]).stdout);
}

#[test]
fn an_interrupted_stream_is_kept_beside_its_file_and_resumed() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("stream");
    fs::write(&file, b"from yesterday").unwrap();
    let words = [
        "send",
        "-f",
        file.to_str().unwrap(),
        &support::inside("/home-monday"),
    ];
    let mut token = String::new();
    let mut partial = PathBuf::new();
    for _ in 0..2 {
        let output = limited(&words, true);
        assert_eq!(output.status.code(), Some(1));
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        let word = message.split_whitespace().find(|word| word.starts_with("send1-"));
        token = word.unwrap().to_owned();
        assert_eq!(fs::read(&file).unwrap(), b"from yesterday");
        let names = fs::read_dir(folder.path())
            .unwrap()
            .map(|entry| entry.unwrap().path());
        let names: Vec<PathBuf> = names.filter(|path| *path != file).collect();
        assert_eq!(names.len(), 1, "{names:?}");
        partial = names[0].clone();
        assert!(message.contains(partial.to_str().unwrap()), "{message}");
    }
    let kept: u64 = token.rsplit('-').next().unwrap().parse().unwrap();
    assert!(kept > 0 && fs::metadata(&partial).unwrap().len() >= kept);
    stdout(&[&words[..], &["--resume", &token]].concat());
    assert!(fs::read(&file).unwrap() == buttress(&["send", &support::inside("/home-monday")]).stdout);
    assert!(!partial.exists());
}

/// Stops the program once it has begun to write a file in the folder. Returns whether the command
/// was stopped in time.
fn stop_while_writing(child: &mut Child, folder: &Path) -> bool {
    let open = format!("/proc/{}/fd", child.id());
    let id = rustix::process::Pid::from_child(child);
    while child.try_wait().unwrap().is_none() {
        let files = fs::read_dir(&open).into_iter().flatten().flatten();
        let mut targets = files.filter_map(|file| fs::read_link(file.path()).ok());
        if targets.any(|target| target.starts_with(folder)) {
            rustix::process::kill_process(id, rustix::process::Signal::STOP).unwrap();
            std::thread::sleep(Duration::from_millis(50));
            return child.try_wait().unwrap().is_none();
        }
    }
    false
}

/// Ends `tar` by a signal while it writes, and returns the remaining files; `prefix` is its
/// launcher.
fn left_by_a_signal(prefix: &[&str], signal: rustix::process::Signal) -> Vec<PathBuf> {
    let volume = Volume::copy();
    let large = tempfile::NamedTempFile::new().unwrap();
    large.as_file().set_len(64 << 20).unwrap();
    let pattern = vec![b'x'; 64 << 20];
    fs::write(large.path(), pattern).unwrap();
    let large = large.path().to_str().unwrap();
    stdout(&["cp", "--compress", "zstd", large, &volume.inside("/large")]);
    for _ in 0..50 {
        let folder = tempfile::tempdir().unwrap();
        let here = folder.path().canonicalize().unwrap();
        let out = here.join("out").to_str().unwrap().to_owned();
        // The test runner may ignore signals, as a shell does for background jobs.
        let as_usual = ["env", "--default-signal=INT,HUP"];
        let words = [&as_usual, prefix, &[PROGRAM, "tar", "-f", &out, volume.path()]].concat();
        let mut child = Command::new(words[0])
            .args(&words[1..])
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let caught = stop_while_writing(&mut child, &here);
        let id = rustix::process::Pid::from_child(&child);
        if caught {
            rustix::process::kill_process(id, signal).unwrap();
            rustix::process::kill_process(id, rustix::process::Signal::CONT).unwrap();
        }
        let ended = child.wait().unwrap();
        if caught && !ended.success() {
            return fs::read_dir(&here)
                .unwrap()
                .map(|entry| entry.unwrap().path())
                .collect();
        }
    }
    panic!("the program could never be caught while it wrote");
}

#[test]
fn signals_leave_nothing() {
    use rustix::process::Signal;
    for signal in [Signal::INT, Signal::TERM, Signal::HUP, Signal::KILL] {
        assert_eq!(left_by_a_signal(&[], signal), Vec::<PathBuf>::new(), "{signal:?}");
    }
}

#[test]
fn signals_leave_nothing_where_files_must_have_names() {
    use rustix::process::Signal;
    // Unmounting /proc requires root.
    if skips(missing("root")) {
        return;
    }
    // Without /proc, an unnamed file cannot get its target name later.
    let without = [
        "unshare",
        "-m",
        "sh",
        "-c",
        "umount -l /proc && exec \"$0\" \"$@\"",
    ];
    for signal in [Signal::INT, Signal::TERM, Signal::HUP] {
        assert_eq!(
            left_by_a_signal(&without, signal),
            Vec::<PathBuf>::new(),
            "{signal:?}"
        );
    }
}

/// Only the modules that check for sources create or truncate files of the host, or write to
/// standard output.
#[test]
fn no_other_module_makes_files() {
    /// The modules that may write files, each with the reason.
    const ALLOWED: [(&str, &str); 19] = [
        (
            "signals/waiting.rs",
            "opens a pipe a second time, by its descriptor",
        ),
        ("new_files.rs", "makes images, which must not exist"),
        ("output/file.rs", "it is the mechanism"),
        (
            "output/stdout.rs",
            "standard output, which is looked at when a source is registered",
        ),
        (
            "output/terminal.rs",
            "prints to standard output, likewise, and to standard error",
        ),
        (
            "output/destination.rs",
            "asks whether standard output is a terminal",
        ),
        ("context.rs", "standard output, likewise"),
        ("identity.rs", "looks at standard output and error"),
        ("sources.rs", "turns standard error away"),
        (
            "shell/history.rs",
            "keeps the lines of sessions in a file of its own",
        ),
        ("shell/terminal.rs", "opens the terminal"),
        ("commands/image.rs", "makes the images of a restored dump"),
        ("commands/mkfs/build.rs", "gives images that it made their size"),
        ("commands/mount/background.rs", "opens /dev/null"),
        ("commands/mount/registry.rs", "keeps its own list of mounts"),
        (
            "commands/mount/watch.rs",
            "answers its server by a pipe, which is its standard output",
        ),
        (
            "commands/mount/serving.rs",
            "appends to a log, which is not the image: it asks for that itself",
        ),
        (
            "mounted/client.rs",
            "hands standard output to the server of a mount",
        ),
        (
            "commands/tour/making.rs",
            "makes its image in a temporary directory",
        ),
    ];
    const WAYS: [&str; 8] = [
        "File::create",
        "OpenOptions::new()",
        "File::options()",
        "fs::write(",
        "fs::copy(",
        "fs::rename(",
        "OFlags::TRUNC",
        "io::stdout()",
    ];
    let top = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/src"));
    let mut folders = vec![top.to_owned()];
    let mut seen = 0;
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let module = path.strip_prefix(top).unwrap().to_str().unwrap().to_owned();
            if ALLOWED.iter().any(|(allowed, _)| *allowed == module) {
                seen += 1;
                continue;
            }
            let text = fs::read_to_string(&path).unwrap();
            let code = text.split("#[cfg(test)]").next().unwrap();
            for way in WAYS {
                assert!(
                    !code.contains(way),
                    "{module} has {way}: write files by Context::create_output"
                );
            }
        }
    }
    assert_eq!(seen, ALLOWED.len(), "a module that may is not there any more");
    assert!(File::open(top.join("output/file.rs")).is_ok());
}
