//! Tests of `buttress send`: refusals, outcomes, and resuming.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::cast_possible_truncation,
    reason = "tests state what must hold"
)]

use crate::support;

use buttress::stream::send::resume::{Digest, Token};
use buttress::stream::send::{Error, Options, Snapshot, send};
use buttress::stream::{Command, Decoder};
use buttress::unstable::fs::{Filesystem, OpenOptions};
use buttress::{Device, Progress};
use std::io::{self, Read, Write};
use std::process::{Command as Process, Stdio};
use support::{buttress, failure, image, inside, json};

/// Opens the two read-only snapshots of the tour's volume.
fn snapshots() -> (Filesystem, Snapshot, Snapshot) {
    let volume = std::fs::read(image()).unwrap();
    let filesystem = OpenOptions::new(vec![Device::memory(volume)]).open().unwrap();
    let mut snapshots: Vec<Snapshot> = filesystem
        .subvolumes()
        .unwrap()
        .iter()
        .filter(|subvolume| subvolume.is_read_only())
        .map(|subvolume| Snapshot::open(&filesystem, subvolume.id).unwrap())
        .collect();
    let second = snapshots.pop().unwrap();
    let first = snapshots.pop().unwrap();
    (filesystem, first, second)
}

fn changes() -> Vec<String> {
    vec![
        "send".into(),
        "-p".into(),
        inside("/home-monday"),
        inside("/home-tuesday"),
    ]
}

fn bytes(arguments: &[&str]) -> Vec<u8> {
    let output = buttress(arguments);
    assert!(output.status.success(), "{arguments:?}: {output:?}");
    output.stdout
}

fn words(words: &[String]) -> Vec<&str> {
    words.iter().map(String::as_str).collect()
}

#[test]
fn send_is_repeatable_and_the_exact_estimate_equals_its_size() {
    for more in [&[][..], &["--proto", "2", "--compressed-data"], &["--no-data"]] {
        let full = inside("/home-monday");
        for arguments in [vec!["send", &full], words(&changes())] {
            let arguments: Vec<&str> = arguments.iter().chain(more).copied().collect();
            let stream = bytes(&arguments);
            assert_eq!(stream, bytes(&arguments), "{arguments:?}");
            for how in ["--estimate", "--estimate=exact"] {
                let estimate: Vec<&str> = arguments.iter().copied().chain([how]).collect();
                let estimate = json(&estimate, "send-estimate");
                // Both kinds of estimate count a tree of this size completely.
                assert_eq!(estimate[0]["stream-bytes"], stream.len(), "{arguments:?} {how}");
            }
        }
    }
}

#[test]
fn a_stream_goes_on_at_any_byte() {
    let (_, first, second) = snapshots();
    let parent = Some(first.clone());
    for (snapshot, parent) in [(&first, None), (&second, parent)] {
        let options = Options {
            parent,
            ..Options::default()
        };
        let mut whole = Vec::new();
        send(snapshot, &options, &mut whole, &Progress::new()).unwrap();
        // Resume at every byte of the first commands, at some later bytes, and at the end.
        let length = whole.len();
        for offset in (0..300)
            .chain((300..length).step_by(length / 60))
            .chain([length - 1, length])
        {
            let mut rest = Vec::new();
            let options = Options {
                skip_bytes: offset as u64,
                ..options.clone()
            };
            let summary = send(snapshot, &options, &mut rest, &Progress::new()).unwrap();
            assert!(rest == whole[offset..], "from byte {offset}");
            assert_eq!(summary.stream_bytes.get(), length as u64);
        }
    }
}

#[test]
fn a_token_belongs_to_one_stream() {
    let (_, first, second) = snapshots();
    let options = Options {
        parent: Some(first),
        ..Options::default()
    };
    let digest = Digest::of([(&second, &options)]);
    let token = Token { digest, offset: 1000 }.to_string();
    let whole = bytes(&words(&changes()));
    let resume = |arguments: &[&str]| {
        let arguments: Vec<&str> = arguments.iter().copied().chain(["--resume", &token]).collect();
        arguments.into_iter().map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(bytes(&words(&resume(&words(&changes())))), whole[1000..]);
    let (code, error) = failure(&words(&resume(&["send", &inside("/home-tuesday")])));
    assert_eq!(code, 1);
    assert!(error.contains("the token belongs to another stream"), "{error}");

    // A resumed file continues at the token's offset, whatever follows there.
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("stream");
    std::fs::write(&file, [&whole[..1000], b"torn"].concat()).unwrap();
    let mut arguments = resume(&words(&changes()));
    arguments.extend(["-f".to_owned(), file.to_str().unwrap().to_owned()]);
    assert_eq!(bytes(&words(&arguments)), b"");
    assert_eq!(std::fs::read(&file).unwrap(), whole);
    std::fs::write(&file, &whole[..999]).unwrap();
    let (code, error) = failure(&words(&arguments));
    assert_eq!(code, 1);
    assert!(error.contains("found 999 bytes, expected 1000"), "{error}");
}

#[test]
fn writable_subvolumes_and_wrong_arguments_are_refused() {
    let (code, error) = failure(&["send", &inside("/home")]);
    assert_eq!(code, 1);
    assert!(error.contains("is not read-only"), "{error}");
    let (code, error) = failure(&["send", "-p", &inside("/home"), &inside("/home-monday")]);
    assert_eq!(code, 1);
    assert!(error.contains("is not read-only"), "{error}");
    let (code, error) = failure(&["send", &inside("/home-monday/plain")]);
    assert_eq!(code, 1);
    assert!(error.contains("not a subvolume"), "{error}");
    let (code, error) = failure(&[
        "send",
        "--proto",
        "1",
        "--compressed-data",
        &inside("/home-monday"),
    ]);
    assert_eq!(code, 1);
    assert!(error.contains("needs stream version 2"), "{error}");
}

#[test]
fn a_reader_that_goes_away_ends_it_with_an_error_and_a_token() {
    let mut child = Process::new(env!("CARGO_BIN_EXE_buttress"))
        .args(["send", &inside("/home-monday")])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut some = [0; 10];
    child.stdout.take().unwrap().read_exact(&mut some).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.contains("--resume send1-"), "{error}");
}

#[test]
fn a_signal_ends_it_with_a_token_that_goes_on() {
    let words = ["send", &inside("/home-monday")];
    let whole = bytes(&words);
    let mut child = Process::new(env!("CARGO_BIN_EXE_buttress"))
        .args(words)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut output = child.stdout.take().unwrap();
    let mut arrived = vec![0; 10];
    output.read_exact(&mut arrived).unwrap();
    // Wait until the pipe is full, so that the command cannot have ended.
    buttress_oracle::signals::deliver(&child, rustix::process::Signal::TERM).unwrap();
    output.read_to_end(&mut arrived).unwrap();
    let ended = child.wait_with_output().unwrap();
    assert_eq!(ended.status.code(), Some(1));
    let error = String::from_utf8(ended.stderr).unwrap();
    let token = error.split_whitespace().find(|word| word.starts_with("send1-"));
    assert!(
        arrived.len() < whole.len() && whole.starts_with(&arrived),
        "{error}"
    );
    let rest = bytes(&[&words[..], &["--resume", token.unwrap()]].concat());
    assert_eq!([arrived, rest].concat(), whole);
}

/// Sink that accepts a few bytes at a time, with interruptions.
struct Narrow {
    taken: Vec<u8>,
    calls: usize,
}

impl Write for Narrow {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.calls += 1;
        if self.calls.is_multiple_of(3) {
            return Err(io::ErrorKind::Interrupted.into());
        }
        let taken = bytes.len().min(1 + self.calls % 4096);
        self.taken.extend_from_slice(&bytes[..taken]);
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn partial_writes_lose_nothing() {
    let (_, first, _) = snapshots();
    let mut whole = Vec::new();
    send(&first, &Options::default(), &mut whole, &Progress::new()).unwrap();
    let mut narrow = Narrow {
        taken: Vec::new(),
        calls: 0,
    };
    send(&first, &Options::default(), &mut narrow, &Progress::new()).unwrap();
    assert!(narrow.taken == whole);
}

#[test]
fn a_cancelled_send_says_so() {
    let (_, first, _) = snapshots();
    let progress = Progress::new();
    progress.cancel();
    let error = send(&first, &Options::default(), &mut Vec::new(), &progress).unwrap_err();
    assert!(
        matches!(error, Error::Filesystem(buttress::unstable::fs::Error::Cancelled)),
        "{error}"
    );
}

#[test]
fn a_parent_in_a_copy_of_the_image_will_do() {
    let (_, _, second) = snapshots();
    let (_copy, first, _) = snapshots();
    let options = Options {
        parent: Some(first),
        ..Options::default()
    };
    let mut stream = Vec::new();
    send(&second, &options, &mut stream, &Progress::new()).unwrap();
    let mut decoder = Decoder::new(stream.as_slice());
    let (mut renames, mut writes) = (0, 0);
    while let Some(frame) = decoder.next_command().unwrap() {
        match frame.command() {
            Command::Rename { .. } => renames += 1,
            Command::Write { .. } => writes += 1,
            _ => {}
        }
    }
    // Nothing is cloned, because addresses of another volume prove nothing; names are still
    // compared.
    assert!(renames >= 1, "{renames}");
    assert!(writes >= 2, "{writes}");
}

/// Creates an empty image.
fn new_image(folder: &std::path::Path) -> String {
    let image = folder.join("kept.img").to_str().unwrap().to_owned();
    bytes(&["mkfs", "-q", "--size", "256M", &image]);
    image
}

/// Receives a partial stream into an image, and keeps the received part.
fn receive_part(image: &str, stream: &[u8]) -> std::process::Output {
    let mut receiver = Process::new(env!("CARGO_BIN_EXE_buttress"))
        .args(["receive", "-q", "--keep-partial", &format!("{image}:/")])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // The receiver may end before it has read everything.
    drop(receiver.stdin.take().unwrap().write_all(stream));
    receiver.wait_with_output().unwrap()
}

#[test]
fn sender_and_receiver_agree_on_the_place() {
    let folder = tempfile::tempdir().unwrap();
    let image = new_image(folder.path());
    let target = format!("{image}:/");
    let source = inside("/home-monday");
    let whole = bytes(&["send", &source]);
    let (code, error) = failure(&["receive", "--token", &target]);
    assert_eq!(code, 1);
    assert!(error.contains("no part of a stream is kept"), "{error}");

    let cut_off = receive_part(&image, &whole[..whole.len() / 3]);
    assert_eq!(cut_off.status.code(), Some(1));
    let said = String::from_utf8(cut_off.stderr).unwrap();
    let token = String::from_utf8(bytes(&["receive", "--token", &target])).unwrap();
    let token = token.trim();
    assert!(said.contains(&format!("--resume {token}")), "{said}");
    let offset: usize = token.rsplit('-').next().unwrap().parse().unwrap();
    assert!(offset > 0 && offset <= whole.len() / 3, "{token}");
    assert_eq!(bytes(&["send", "--resume", token, &source]), whole[offset..]);
    for other in [inside("/home-tuesday"), source.clone()] {
        let version = if other == source { "2" } else { "1" };
        let (code, error) = failure(&["send", "--resume", token, "--proto", version, &other]);
        assert_eq!(code, 1);
        assert!(error.contains("the beginning of another stream"), "{error}");
    }

    // Compare with the result of the whole stream, which does not contain the source's nested
    // subvolume.
    let uncut = folder.path().join("uncut.img").to_str().unwrap().to_owned();
    bytes(&["mkfs", "-q", "--size", "256M", &uncut]);
    let stream = folder.path().join("whole.stream");
    std::fs::write(&stream, &whole).unwrap();
    bytes(&[
        "receive",
        "-q",
        "-f",
        stream.to_str().unwrap(),
        &format!("{uncut}:/"),
    ]);
    let expected = bytes(&["tar", &format!("{uncut}:/home-monday")]);

    // Send and receive in a pipe in both directions: resumed, and without a kept part from the
    // beginning.
    for _ in 0..2 {
        let (answers, to_sender) = io::pipe().unwrap();
        let mut sender = Process::new(env!("CARGO_BIN_EXE_buttress"))
            .args(["send", "-q", "--resume", "-", &source])
            .stdin(answers)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let received = Process::new(env!("CARGO_BIN_EXE_buttress"))
            .args(["receive", "-q", "--resume", "--token", &target])
            .stdin(sender.stdout.take().unwrap())
            .stdout(to_sender)
            .status()
            .unwrap();
        assert!(received.success());
        assert!(sender.wait().unwrap().success());
        let received = format!("{image}:/home-monday");
        assert!(bytes(&["tar", &received]) == expected);
        assert_eq!(bytes(&["ls", &target]), b"home-monday\n");
        bytes(&["subvolume", "delete", &received]);
    }
}
