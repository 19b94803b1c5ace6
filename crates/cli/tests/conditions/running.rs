//! Runs the command with closed, full, broken or terminal streams, as an ordinary user, or
//! interrupted.

use std::fs::{self, File, OpenOptions};
use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::fs::OFlags;
use rustix::process::{Pid, Signal};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

use crate::world::World;

/// A condition of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum How {
    Plain,
    /// Standard output is closed.
    ClosedOutput,
    /// Standard output accepts no bytes, like a full disk.
    FullOutput,
    /// Standard output is discarded.
    NullOutput,
    /// Standard output is discarded, by a descriptor open for reading and writing, as other
    /// languages' libraries open it.
    NullOutputBoth,
    /// The pipe has no reader.
    BrokenPipe,
    Terminal,
    /// An ordinary user runs the command.
    AsUser,
    /// This signal arrives while the command waits for a full pipe whose reader reads nothing.
    Signalled(Signal),
}

/// Outcome of a run.
pub(crate) struct Ended {
    pub(crate) code: Option<i32>,
    pub(crate) signal: Option<i32>,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: String,
}

/// The user as which a command runs, if the tests run as root and need an ordinary user.
const USER: u32 = 65_534;

/// Capacity of a pipe, as large as the command requests.
const PIPE_BYTES: usize = 1 << 20;

pub(crate) fn run(how: How, words: &[String], world: &World) -> Ended {
    let mut command = match how {
        // The shell closes the stream, so that no Rust library is involved.
        How::ClosedOutput => {
            let mut command = Command::new("sh");
            command.args(["-c", "exec \"$0\" \"$@\" >&-", env!("CARGO_BIN_EXE_buttress")]);
            command
        }
        // The test runner may ignore the signal, as a shell does for background jobs.
        How::Signalled(_) => {
            let mut command = Command::new("env");
            command.args(["--default-signal=INT,TERM", env!("CARGO_BIN_EXE_buttress")]);
            command
        }
        _ => Command::new(env!("CARGO_BIN_EXE_buttress")),
    };
    command
        .args(words)
        .env("TZ", "UTC")
        .env("TMPDIR", world.path("out"))
        .current_dir(world.path("out"))
        .stdin(Stdio::null())
        .stderr(Stdio::piped());
    if how == How::AsUser && rustix::process::geteuid().is_root() {
        command.uid(USER).gid(USER);
    }
    match how {
        How::Signalled(signal) => interrupt(command, signal),
        How::Terminal => on_a_terminal(command),
        _ => {
            command.stdout(output(how));
            ended(command.spawn().unwrap())
        }
    }
}

fn output(how: How) -> Stdio {
    let open =
        |path: &str, read: bool| Stdio::from(OpenOptions::new().read(read).write(true).open(path).unwrap());
    match how {
        How::FullOutput => open("/dev/full", false),
        How::NullOutput => open("/dev/null", false),
        How::NullOutputBoth => open("/dev/null", true),
        How::BrokenPipe => {
            let (reader, writer) = io::pipe().unwrap();
            drop(reader);
            writer.into()
        }
        _ => Stdio::piped(),
    }
}

fn ended(child: Child) -> Ended {
    let output = child.wait_with_output().unwrap();
    Ended::new(output.status, output.stdout, &output.stderr)
}

impl Ended {
    fn new(status: ExitStatus, stdout: Vec<u8>, stderr: &[u8]) -> Self {
        Self {
            code: status.code(),
            signal: status.signal(),
            stdout,
            stderr: String::from_utf8_lossy(stderr).into_owned(),
        }
    }
}

/// Reads a stream to its end in a separate thread.
fn reading(mut from: impl Read + Send + 'static) -> JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        // Reading a terminal whose other side is closed returns an error.
        let _ = from.read_to_end(&mut bytes);
        bytes
    })
}

fn on_a_terminal(mut command: Command) -> Ended {
    let terminal = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&terminal).unwrap();
    unlockpt(&terminal).unwrap();
    let name = ptsname(&terminal, Vec::new()).unwrap();
    let other_side = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(OFlags::NOCTTY.bits().cast_signed())
        .open(name.to_str().unwrap())
        .unwrap();
    command.stdout(other_side);
    let mut child = command.spawn().unwrap();
    // The command's copy of the descriptor is the last descriptor of that side.
    drop(command);
    let shown = reading(File::from(terminal));
    let told = reading(child.stderr.take().unwrap());
    let status = child.wait().unwrap();
    Ended::new(status, shown.join().unwrap(), &told.join().unwrap())
}

/// Creates a pipe that is full until it is read.
fn full_pipe() -> (PipeReader, PipeWriter) {
    let (reader, mut writer) = io::pipe().unwrap();
    rustix::pipe::fcntl_setpipe_size(&writer, PIPE_BYTES).unwrap();
    set_nonblocking(&writer, true);
    let block = [b'.'; 4096];
    loop {
        match writer.write(&block) {
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
            Err(error) => panic!("{error}"),
        }
    }
    set_nonblocking(&writer, false);
    (reader, writer)
}

fn set_nonblocking(descriptor: impl AsFd, nonblocking: bool) {
    let mut flags = rustix::fs::fcntl_getfl(&descriptor).unwrap();
    flags.set(OFlags::NONBLOCK, nonblocking);
    rustix::fs::fcntl_setfl(&descriptor, flags).unwrap();
}

/// Longest time for a command to end after a signal.
const PATIENCE: Duration = Duration::from_secs(10);

fn interrupt(mut command: Command, signal: Signal) -> Ended {
    let (reader, writer) = full_pipe();
    command.stdout(OwnedFd::from(writer));
    let mut child = command.spawn().unwrap();
    drop(command);
    let told = reading(child.stderr.take().unwrap());
    while child.try_wait().unwrap().is_none() && !waits_for_a_pipe(child.id()) {
        std::thread::yield_now();
    }
    // If the process has ended, its id is still reserved until the wait.
    let _ = rustix::process::kill_process(Pid::from_child(&child), signal);
    // Nothing reads before the command has ended.
    let begun = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if begun.elapsed() > PATIENCE {
            child.kill().unwrap();
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    let shown = reading(reader);
    let status = child.wait().unwrap();
    Ended::new(status, shown.join().unwrap(), &told.join().unwrap())
}

/// Returns whether a thread of the process sleeps in a write to a pipe.
fn waits_for_a_pipe(process: u32) -> bool {
    let Ok(threads) = fs::read_dir(format!("/proc/{process}/task")) else {
        return false;
    };
    threads.flatten().any(|thread| {
        let place = fs::read_to_string(thread.path().join("wchan")).unwrap_or_default();
        place.contains("pipe") || place.contains("poll")
    })
}
