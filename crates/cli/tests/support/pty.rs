//! A pseudo-terminal for tests: a command runs at it, and the test types and reads.
#![allow(dead_code, unreachable_pub, reason = "each test program uses a part of this")]

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::OFlags;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};

/// A command at a terminal.
pub struct Terminal {
    child: Child,
    /// The test's side of the terminal.
    end: File,
    /// All output so far.
    seen: String,
    /// Length of the output that the test has already matched.
    looked_at: usize,
}

impl Terminal {
    /// Starts a command with this terminal as its controlling terminal.
    pub fn start(command: &mut Command) -> Self {
        let end = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&end).unwrap();
        unlockpt(&end).unwrap();
        let name = ptsname(&end, Vec::new()).unwrap();
        let size = Winsize {
            ws_row: 50,
            ws_col: 200,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        tcsetwinsize(&end, size).unwrap();
        let other = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(i32::try_from(OFlags::NOCTTY.bits()).unwrap())
            .open(Path::new(std::ffi::OsStr::from_bytes(name.as_bytes())))
            .unwrap();
        // setsid makes the terminal on standard input the controlling one, and executes the
        // command.
        let mut session = Command::new("setsid");
        session
            .arg("--ctty")
            .arg(command.get_program())
            .args(command.get_args());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => session.env(name, value),
                None => session.env_remove(name),
            };
        }
        if let Some(directory) = command.get_current_dir() {
            session.current_dir(directory);
        }
        let child = session
            .stdin(Stdio::from(other.try_clone().unwrap()))
            .stdout(Stdio::from(other.try_clone().unwrap()))
            .stderr(Stdio::from(other))
            .spawn()
            .unwrap();
        Self {
            child,
            end: File::from(end),
            seen: String::new(),
            looked_at: 0,
        }
    }

    /// Types text.
    pub fn send(&mut self, text: &str) {
        self.end.write_all(text.as_bytes()).unwrap();
    }

    /// Returns the command's process id.
    pub fn id(&self) -> i32 {
        i32::try_from(self.child.id()).unwrap()
    }

    /// Waits until this text appears after the text matched before. Returns the terminal's output
    /// up to the expected text.
    pub fn expect(&mut self, text: &str) -> String {
        loop {
            if let Some(found) = self.find(text) {
                return found;
            }
            assert!(self.read(), "ended before {text:?}: {:?}", self.seen);
        }
    }

    /// Waits as [`expect`](Self::expect), and types this text repeatedly.
    pub fn expect_typing(&mut self, text: &str, typed: &str) -> String {
        let pause = Duration::from_millis(50);
        let mut next = Instant::now();
        loop {
            if let Some(found) = self.find(text) {
                return found;
            }
            if next <= Instant::now() {
                self.send(typed);
                next = Instant::now() + pause;
            }
            let mut descriptors = [PollFd::new(&self.end, PollFlags::IN)];
            if poll(&mut descriptors, Some(&Timespec::try_from(pause).unwrap())).unwrap() > 0 {
                assert!(self.read(), "ended before {text:?}: {:?}", self.seen);
            }
        }
    }

    /// Waits until the terminal itself handles Ctrl-C: no line is being edited.
    pub fn wait_until_no_line_is_edited(&self) {
        while !tcgetattr(&self.end)
            .unwrap()
            .local_modes
            .contains(LocalModes::ISIG)
        {
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn find(&mut self, text: &str) -> Option<String> {
        let rest = self.seen.get(self.looked_at..).unwrap();
        let end = self.looked_at + rest.find(text)? + text.len();
        let found = self.seen.get(self.looked_at..end).unwrap().to_owned();
        self.looked_at = end;
        Some(found)
    }

    /// Reads some output; returns false at its end.
    fn read(&mut self) -> bool {
        let mut buffer = [0; 4096];
        // After the other side of the terminal was closed, the read returns an error.
        let Ok(count) = self.end.read(&mut buffer) else {
            return false;
        };
        self.seen.push_str(&String::from_utf8_lossy(&buffer[..count]));
        count > 0
    }

    /// Waits for the program's end; returns its exit code and all output.
    pub fn finish(mut self) -> (Option<i32>, String) {
        while self.read() {}
        (self.child.wait().unwrap().code(), self.seen)
    }

    /// Closes the terminal, and waits for the program's end.
    pub fn hang_up(self) -> Option<i32> {
        let Self { mut child, end, .. } = self;
        drop(end);
        child.wait().unwrap().code()
    }
}
