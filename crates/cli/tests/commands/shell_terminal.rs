//! Tests of sessions at a terminal: effects of Ctrl-C, Ctrl-D, signals and a lost terminal on
//! uncommitted changes, line editing, history, and Tab completion.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "tests state what must hold"
)]

use crate::support;
use crate::support::pty;

use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

use pty::Terminal;
use rustix::process::{Pid, Signal, kill_process};
use support::Volume;

/// Returns the command with these arguments, in a separate home directory.
fn command(home: &Path, words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_buttress"));
    command
        .args(words)
        .current_dir(home)
        .env("HOME", home)
        .env("TERM", "xterm")
        .env("TZ", "UTC")
        .env_remove("XDG_STATE_HOME")
        .env_remove("BUTTRESS_HISTORY")
        // Only the session itself commits.
        .env("SOURCE_DATE_EPOCH", "1700000000");
    command
}

/// A session on a volume, with its home directory.
struct Sitting {
    volume: Volume,
    home: tempfile::TempDir,
}

impl Sitting {
    fn new() -> Self {
        Self {
            volume: Volume::copy(),
            home: tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap(),
        }
    }

    fn start(&self) -> Terminal {
        self.start_with(&[], &[])
    }

    fn start_with(&self, words: &[&str], variables: &[(&str, &str)]) -> Terminal {
        let words = [&["shell", "-w", self.volume.path()], words].concat();
        let mut command = command(self.home.path(), &words);
        command.envs(variables.iter().copied());
        let mut terminal = Terminal::start(&mut command);
        terminal.expect("/> ");
        terminal
    }

    fn has(&self, path: &str) -> bool {
        self.volume.check();
        let found = support::buttress(&["stat", &self.volume.inside(path)]);
        found.status.success()
    }

    /// Returns the lines of the history file.
    fn history(&self) -> Option<String> {
        std::fs::read_to_string(self.home.path().join(".local/state/buttress/shell_history")).ok()
    }
}

fn signal(terminal: &Terminal, signal: Signal) {
    kill_process(Pid::from_raw(terminal.id()).unwrap(), signal).unwrap();
}

#[test]
fn ctrl_c_clears_the_line_and_the_work_is_committed() {
    let sitting = Sitting::new();
    let mut terminal = sitting.start();
    terminal.send("mkdir /kept\r");
    terminal.send("cd /kept\r");
    terminal.expect("/kept> ");
    terminal.send("rmdir /kept\x03");
    terminal.expect("rmdir /kept");
    terminal.send("mkdir /after\r");
    terminal.send("cd /after\r");
    terminal.expect("/after> ");
    terminal.send("\x04");
    let (code, seen) = terminal.finish();
    assert_eq!(code, Some(0), "{seen}");
    assert!(seen.contains("committed 2 changes"), "{seen}");
    assert!(sitting.has("/kept") && sitting.has("/after"));
}

#[test]
fn ctrl_c_at_a_terminal_without_an_editor_asks_again() {
    let sitting = Sitting::new();
    let mut terminal = sitting.start_with(&[], &[("TERM", "dumb")]);
    terminal.send("mkdir /kept\n");
    terminal.expect("/> ");
    terminal.send("rmdir /kept\x03");
    terminal.expect("/> ");
    terminal.send("mkdir /after\n");
    terminal.expect("/> ");
    terminal.send("\x04");
    let (code, seen) = terminal.finish();
    assert_eq!(code, Some(0), "{seen}");
    assert!(seen.contains("committed 2 changes"), "{seen}");
    assert!(sitting.has("/kept") && sitting.has("/after"));
}

#[test]
fn ctrl_c_cancels_the_word_that_runs() {
    let sitting = Sitting::new();
    let mut terminal = sitting.start();
    for (word, cancelled) in [
        ("truncate 1T /hole", None),
        ("cat /hole", Some("cat: cancelled")),
        ("pread 0 1T /hole", Some("pread: cancelled")),
        ("pwrite 0 1T /written", Some("pwrite: cancelled")),
    ] {
        terminal.send(&format!("{word}\r"));
        if let Some(cancelled) = cancelled {
            terminal.wait_until_no_line_is_edited();
            terminal.expect_typing(cancelled, "\x03");
            terminal.expect("interrupted");
        }
        terminal.expect("/> ");
    }
    terminal.send("mkdir /after\r");
    terminal.send("quit\r");
    let (code, seen) = terminal.finish();
    // The session's user saw the failure of the earlier command.
    assert_eq!(code, Some(1), "{seen}");
    assert!(seen.contains("remain uncommitted"), "{seen}");
    let (_, left) = seen.rsplit_once("quit").unwrap();
    assert!(left.contains("committed "), "{seen}");
    assert!(sitting.has("/after") && sitting.has("/written"));
}

#[test]
fn signals_and_a_lost_terminal_commit() {
    for (ends, code) in [(Some(Signal::TERM), 143), (Some(Signal::HUP), 129), (None, 129)] {
        let sitting = Sitting::new();
        let mut terminal = sitting.start();
        terminal.send("mkdir /kept\r");
        terminal.send("cd /kept\r");
        terminal.expect("/kept> ");
        let ended = match ends {
            Some(ends) => {
                signal(&terminal, ends);
                let (ended, seen) = terminal.finish();
                assert!(seen.contains("ends and commits 1 change;"), "{seen}");
                assert!(seen.contains("note: committed 1 change"), "{seen}");
                ended
            }
            None => terminal.hang_up(),
        };
        // A lost terminal gives the session both an end of input and a signal.
        assert!(
            ended == Some(code) || ends.is_none() && matches!(ended, Some(0 | 1)),
            "{ended:?}"
        );
        assert!(sitting.has("/kept"), "{ends:?}");
    }
}

#[test]
fn abort_says_what_it_drops() {
    let sitting = Sitting::new();
    let mut terminal = sitting.start();
    terminal.send("mkdir /kept\r");
    terminal.send("sync\r");
    terminal.send("mkdir /dropped\r");
    terminal.send("pwrite -q 0 5000 /file\r");
    terminal.send("abort\r");
    let (code, seen) = terminal.finish();
    assert_eq!(code, Some(0), "{seen}");
    assert!(
        seen.contains("discarded 2 changes and 5000 bytes of content"),
        "{seen}"
    );
    assert!(seen.contains("`sync`"), "{seen}");
    assert!(sitting.has("/kept") && !sitting.has("/dropped"));
}

#[test]
fn lines_are_recalled_and_kept_for_the_user_alone() {
    let sitting = Sitting::new();
    let mut terminal = sitting.start();
    terminal.send("mkdir /first\r");
    terminal.send(" mkdir /secret\r");
    terminal.send("quit\r");
    assert_eq!(terminal.finish().0, Some(0));
    assert!(sitting.has("/first") && sitting.has("/secret"));
    assert_eq!(sitting.history().unwrap(), "mkdir /first\nquit\n");
    let path = sitting.home.path().join(".local/state/buttress/shell_history");
    assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);

    // The next session recalls the lines.
    let mut terminal = sitting.start();
    // Press Up twice, and edit the recalled line.
    terminal.send("\x1b[A\x1b[A\x7f\x7fXY\r");
    terminal.send("quit\r");
    assert_eq!(terminal.finish().0, Some(0));
    assert!(sitting.has("/firXY"));
    assert_eq!(
        sitting.history().unwrap(),
        "mkdir /first\nquit\nmkdir /firXY\nquit\n"
    );
}

#[test]
fn history_can_be_switched_off() {
    for (words, variables) in [
        (&["--no-history"][..], &[][..]),
        (&[], &[("BUTTRESS_HISTORY", "")]),
        (&[], &[("BUTTRESS_HISTORY", "elsewhere")]),
    ] {
        let sitting = Sitting::new();
        let mut terminal = sitting.start_with(words, variables);
        terminal.send("pwd\r");
        terminal.send("quit\r");
        assert_eq!(terminal.finish().0, Some(0));
        assert_eq!(sitting.history(), None);
        let elsewhere = std::fs::read_to_string(sitting.home.path().join("elsewhere")).ok();
        let named = variables.first().is_some_and(|(_, value)| *value == "elsewhere");
        assert_eq!(elsewhere.as_deref(), named.then_some("pwd\nquit\n"));
    }
}

#[test]
fn tab_completes_words_flags_and_paths() {
    let sitting = Sitting::new();
    std::fs::create_dir(sitting.home.path().join("on the host")).unwrap();
    std::fs::write(sitting.home.path().join("on the host/a file"), "content").unwrap();
    let mut terminal = sitting.start();
    for line in [
        // The keys type `mkdir -p /notes/of mine/inner`.
        "mkd\t-p '/notes/of mine/inner'\r",
        // The keys type `touch` with the path of a new file. Each Tab completes a directory's name.
        "touch /note\tof\tinn\tfile\r",
        "mkdir --par\t/notes/more\r",
        "subv\tcr\t/notes/sub\r",
        "put on\ta\t/notes/put\r",
        "cd /note\tof\t\r",
    ] {
        terminal.send(line);
    }
    terminal.expect("/notes/of mine> ");
    terminal.send("mkdir in\tdeep\r");
    terminal.send("quit\r");
    let (code, seen) = terminal.finish();
    assert_eq!(code, Some(0), "{seen}");
    for path in [
        "/notes/of mine/inner/file",
        "/notes/more",
        "/notes/sub",
        "/notes/put",
        "/notes/of mine/inner/deep",
    ] {
        assert!(sitting.has(path), "{path}: {seen}");
    }
    assert_eq!(sitting.volume.cat("/notes/put"), b"content");
}

#[test]
fn names_that_tab_offers_cannot_drive_the_terminal() {
    let sitting = Sitting::new();
    let mut terminal = sitting.start();
    for name in ["\\x1b]0;owned\\x07", "\\x1b[31mred", "\\x1b\\xff\\n"] {
        terminal.send(&format!("mkdir \"/evil {name}\"\r"));
    }
    terminal.send("cd /\r");
    // The first Tab inserts the common beginning of the names; the second shows their list.
    terminal.send("rmdir /ev\t\t\t");
    terminal.expect("red");
    terminal.send("[31\t\"\r");
    terminal.send("quit\r");
    let (_, seen) = terminal.finish();
    for raw in ["\x1b]0;", "\x1b[31m", "\x07"] {
        assert!(!seen.contains(raw), "{seen:?}");
    }
    // Tab completion inserted the intended name.
    let names = sitting.volume.stdout("ls", &[], "/");
    assert!(names.contains("owned") && !names.contains("red"), "{names:?}");
}

/// The lines come from a pipe that stays open.
#[test]
fn a_signal_to_a_script_commits_what_was_done() {
    let sitting = Sitting::new();
    let mut child = command(sitting.home.path(), &["shell", "-w", sitting.volume.path()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = child.stdin.take().unwrap();
    input.write_all(b"mkdir /kept\npwd\n").unwrap();
    // An answer to the second input line proves that the first line was executed.
    let mut answer = [0; 2];
    std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut answer).unwrap();
    assert_eq!(&answer, b"/\n");
    kill_process(
        Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap(),
        Signal::INT,
    )
    .unwrap();
    let output = child.wait_with_output().unwrap();
    drop(input);
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(130), "{errors}");
    assert!(errors.contains("committed 1 change"), "{errors}");
    assert!(sitting.has("/kept"));
}

/// A signal ends a session with `-c` while its command runs.
#[test]
fn a_signal_cancels_the_word_and_commits() {
    let sitting = Sitting::new();
    let words = [
        "shell",
        "-w",
        sitting.volume.path(),
        "-c",
        "mkdir /kept",
        "-c",
        "truncate 1T /hole",
        "-c",
        "cat /hole",
        "-c",
        "mkdir /never",
    ];
    let mut child = command(sitting.home.path(), &words)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut first = [0];
    std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut first).unwrap();
    kill_process(
        Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap(),
        Signal::TERM,
    )
    .unwrap();
    let mut zeros = child.stdout.take().unwrap();
    std::io::copy(&mut zeros, &mut std::io::sink()).unwrap();
    let output = child.wait_with_output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(143), "{errors}");
    assert!(
        errors.contains("cat: cancelled") && errors.contains("commits"),
        "{errors}"
    );
    assert!(sitting.has("/kept") && !sitting.has("/never"));
}

#[test]
fn a_reader_that_goes_away_ends_the_word_and_not_the_session() {
    let sitting = Sitting::new();
    let words = ["-c", "truncate 1G /hole", "-c", "cat /hole", "-c", "mkdir /kept"];
    let words = [&["shell", "-w", sitting.volume.path()], words.as_slice()].concat();
    let mut child = command(sitting.home.path(), &words)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && errors.is_empty(), "{errors}");
    assert!(sitting.has("/kept"));
}

#[test]
fn scripts_end_without_newline_and_closed_outputs_do_not_panic() {
    for (input, closed) in [
        ("mkdir /a\nmkdir /kept", ""),
        ("ls\nhelp\nnonsense\n", ">&- 2>&-"),
        ("mkdir '/unclosed", ""),
    ] {
        let sitting = Sitting::new();
        let binary = env!("CARGO_BIN_EXE_buttress");
        let script = format!("exec '{binary}' shell -w '{}' {closed}", sitting.volume.path());
        let mut child = Command::new("sh")
            .args(["-c", &script])
            .stdin(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!errors.contains("panic"), "{errors}");
        let expected = if input.ends_with("kept") { 0 } else { 1 };
        assert_eq!(output.status.code(), Some(expected), "{input}: {errors}");
        assert_eq!(sitting.has("/kept"), expected == 0);
    }
}
