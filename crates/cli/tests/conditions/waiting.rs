//! One signal ends a command that waits for input, or for the reader of its output, in any state.
//!
//! The parent module has the tests for standard output.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::fs::{CWD, FileType, Mode, OFlags};
use rustix::process::{Pid, Signal};

use crate::world::World;

/// Longest time for a command to end after a signal.
const PATIENCE: Duration = Duration::from_secs(10);

/// The stream that a command waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Waits {
    /// Standard input: a pipe that has delivered a part of this file and stays open.
    Input(&'static str),
    /// Standard input that stays open and has delivered nothing.
    NoInput,
    /// A FIFO at `{fifo}` that no process opens for writing.
    Opening,
    /// A FIFO at `{fifo}` that has delivered a part of this file.
    Fifo(&'static str),
    /// A FIFO at `{fifo}` that no process reads.
    Reader,
}

use Waits::{Fifo, Input, NoInput, Opening, Reader};

/// Command lines that wait.
const LINES: &[(&str, Waits)] = &[
    ("receive {image}:/home", NoInput),
    ("receive {image}:/home", Input("stream")),
    ("receive -e {image}:/home", Input("stream")),
    ("receive --keep-partial {image}:/home", Input("stream")),
    ("receive -E 0 {image}:/home", Input("stream")),
    ("receive --resume {image}:/home", Input("stream")),
    ("receive --progress always {image}:/home", Input("stream")),
    ("receive -f {fifo} {image}:/home", Opening),
    ("receive -f {fifo} {image}:/home", Fifo("stream")),
    ("receive -f {stream} -f {fifo} {image}:/home", Opening),
    ("receive --dump", Input("stream")),
    ("receive --dump --format json", Input("stream")),
    ("receive --dump -f {fifo}", Fifo("stream")),
    ("stream ls -", Input("stream")),
    ("stream ls {fifo}", Fifo("stream")),
    ("stream cat {fifo}:/plain/text", Fifo("stream")),
    ("stream tar -f {out}/a.tar -", Input("stream")),
    ("stream merge -f {out}/merged -", Input("stream")),
    (
        "stream rebase -f {out}/rebased --onto {stream} -",
        Input("stream"),
    ),
    ("stream verify -", Input("stream")),
    ("mkfs --tar - {out}/new.img", NoInput),
    ("mkfs --tar - {out}/new.img", Input("archive")),
    ("mkfs --tar {fifo} {out}/new.img", Opening),
    ("mkfs --tar {fifo} {out}/new.img", Fifo("archive")),
    ("mkfs --manifest - {out}/new.img", NoInput),
    ("mkfs --manifest {fifo} {out}/new.img", Opening),
    ("send --resume - {image}:/home-monday", NoInput),
    ("shell {image}", NoInput),
    ("shell -w {image}", NoInput),
    ("send -f {fifo} {image}:/home-monday", Reader),
    ("tar -f {fifo} {image}:/home", Reader),
    ("manifest -f {fifo} {image}", Reader),
    ("stream tar -f {fifo} {stream}", Reader),
    ("stream merge -f {fifo} {stream}", Reader),
];

/// A waiting command, with the stream that it waits for.
struct Waiting {
    child: Child,
    _input: Option<File>,
}

fn start(words: &str, waits: Waits, world: &World) -> Waiting {
    let fifo = world.path("fifo");
    let _ = fs::remove_file(&fifo);
    if !matches!(waits, Input(_) | NoInput) {
        rustix::fs::mknodat(CWD, &fifo, FileType::Fifo, Mode::from_raw_mode(0o666), 0).unwrap();
    }
    let mut command = Command::new("env");
    command
        .args(["--default-signal=INT,TERM", env!("CARGO_BIN_EXE_buttress")])
        .args(words.split_whitespace().map(|word| world.fill(word)))
        .env("TZ", "UTC")
        .current_dir(world.path("out"))
        .stdin(if matches!(waits, Input(_) | NoInput) {
            Stdio::piped()
        } else {
            Stdio::null()
        })
        .stdout(Stdio::null())
        .stderr(Stdio::from(File::create(world.path("stderr")).unwrap()));
    let both_ways = || {
        OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(OFlags::NONBLOCK.bits().cast_signed())
            .open(&fifo)
            .unwrap()
    };
    let fifo = matches!(waits, Fifo(_) | Reader).then(both_ways);
    let mut child = command.spawn().unwrap();
    let part = |name: &str| {
        let bytes = fs::read(world.path(name)).unwrap();
        // The length of the partial input is below a pipe's capacity and beyond the headers.
        bytes[..(bytes.len() / 2).min(40_000)].to_vec()
    };
    let mut input = match waits {
        Fifo(_) | Reader => fifo,
        _ => child
            .stdin
            .take()
            .map(|pipe| File::from(std::os::fd::OwnedFd::from(pipe))),
    };
    if let (Input(name) | Fifo(name), Some(input)) = (waits, &mut input) {
        input.write_all(&part(name)).unwrap();
    }
    Waiting { child, _input: input }
}

/// Waits until all threads of a process have been asleep for some time.
fn wait_until_it_sleeps(process: u32) {
    let begun = Instant::now();
    let mut quiet = 0;
    let mut last = 0;
    while quiet < 10 && begun.elapsed() < PATIENCE {
        std::thread::sleep(Duration::from_millis(20));
        let times = |thread: fs::DirEntry| {
            let line = fs::read_to_string(thread.path().join("schedstat")).unwrap_or_default();
            line.split(' ')
                .next()
                .and_then(|time| time.parse::<u64>().ok())
                .unwrap_or(0)
        };
        let Ok(threads) = fs::read_dir(format!("/proc/{process}/task")) else {
            return;
        };
        let spent: u64 = threads.flatten().map(times).sum();
        quiet = if spent == last { quiet + 1 } else { 0 };
        last = spent;
    }
}

fn ends(child: &mut Child) -> Option<ExitStatus> {
    let begun = Instant::now();
    while begun.elapsed() < PATIENCE {
        if let Some(status) = child.try_wait().unwrap() {
            return Some(status);
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    None
}

#[test]
fn a_signal_ends_a_command_that_waits() {
    let mut wrong = Vec::new();
    for (words, waits) in LINES {
        for signal in [Signal::INT, Signal::TERM] {
            let world = World::new();
            let mut waiting = start(words, *waits, &world);
            wait_until_it_sleeps(waiting.child.id());
            let title = format!("{words}, {waits:?}, {signal:?}");
            let told = || fs::read_to_string(world.path("stderr")).unwrap();
            if let Some(status) = waiting.child.try_wait().unwrap() {
                wrong.push(format!("{title}: it does not wait: {status}: {}", told()));
                continue;
            }
            rustix::process::kill_process(Pid::from_child(&waiting.child), signal).unwrap();
            let status = ends(&mut waiting.child);
            if status.is_none() {
                waiting.child.kill().unwrap();
                waiting.child.wait().unwrap();
                wrong.push(format!("{title}: it goes on"));
                continue;
            }
            let status = status.unwrap();
            let is_session = words.starts_with("shell");
            if status.success()
                || status.signal().is_some_and(|ended| ended != signal.as_raw()) && !is_session
            {
                wrong.push(format!("{title}: {status}: {}", told()));
            }
            if told().contains("panicked") {
                wrong.push(format!("{title}: {}", told()));
            }
            if world.has_outputs() {
                wrong.push(format!("{title}: {:?} is left", world.outputs()));
            }
            let image = world.image();
            let check = Command::new(env!("CARGO_BIN_EXE_buttress"))
                .args(["check", &image])
                .output()
                .unwrap();
            if !check.status.success() {
                wrong.push(format!("{title}: {}", String::from_utf8_lossy(&check.stdout)));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
