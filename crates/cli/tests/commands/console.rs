//! Runs the sessions in README.md and docs/, whose output must match the documents.
//!
//! A fence of the kind `console` is a session. Lines that begin with `$ ` are commands for a shell,
//! in a directory with the files that the documents assume. In a document's session, the lines
//! after a command are its output. In the output, `…` matches anything within a line, a line that
//! is only `…` matches any lines, and dates in the format of `ls` match any date. Lines after a
//! prompt of `buttress shell` are typed at a terminal.
//!
//! `console,norun` is not run; the line before its fence gives the reason, as `<!-- not run: …
//! -->`. The test refuses sessions in fences of other kinds, so that it misses none.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::string_slice,
    reason = "tests state what must hold"
)]

use crate::support::pty;

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use pty::Terminal;

/// Time of all files and volumes in the sessions.
const EPOCH: &str = "1763706660";

/// A session in a document.
struct Session {
    place: String,
    lines: Vec<String>,
}

/// A command of a session, its typed input, and its output.
struct Step {
    command: String,
    shown: Vec<String>,
}

/// Returns README.md and everything below docs.
fn documents() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut found = vec![root.join("README.md")];
    let mut folders = vec![root.join("docs")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "md") {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

/// Returns the sessions of a document to run; `faults` receives the problems of other sessions.
fn sessions(path: &Path, faults: &mut Vec<String>) -> Vec<Session> {
    let text = fs::read_to_string(path).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    let mut found = Vec::new();
    let mut at = 0;
    while at < lines.len() {
        let Some(kind) = lines[at].trim_start().strip_prefix("```") else {
            at += 1;
            continue;
        };
        let place = format!("{}:{}", path.file_name().unwrap().display(), at + 1);
        let before = at.checked_sub(1).map_or("", |before| lines[before]);
        let begin = at + 1;
        let end = (begin..lines.len())
            .find(|line| lines[*line].trim() == "```")
            .unwrap_or(lines.len());
        let body: Vec<String> = lines[begin..end].iter().map(|line| (*line).to_owned()).collect();
        at = end + 1;
        let has_commands = body.iter().any(|line| line.starts_with("$ "));
        match kind.trim() {
            "console" => found.push(Session { place, lines: body }),
            "console,norun" if before.starts_with("<!-- not run: ") => {}
            "console,norun" => faults.push(format!("{place}: nothing says why it is not run")),
            kind if has_commands => faults.push(format!("{place}: a session in a fence of kind {kind:?}")),
            _ => {}
        }
    }
    found
}

fn steps(session: &Session) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    for line in &session.lines {
        if let Some(command) = line.strip_prefix("$ ") {
            steps.push(Step {
                command: command.to_owned(),
                shown: Vec::new(),
            });
        } else {
            // In the documents, a session begins with a command.
            steps.last_mut().unwrap().shown.push(line.clone());
        }
    }
    for step in &mut steps {
        while step.shown.last().is_some_and(String::is_empty) {
            step.shown.pop();
        }
    }
    steps
}

/// The directory of the sessions.
struct Home(tempfile::TempDir);

impl Home {
    fn command(&self, program: &str, words: &[&str]) -> Command {
        let folder = Path::new(env!("CARGO_BIN_EXE_buttress")).parent().unwrap();
        let path = format!("{}:{}", folder.display(), std::env::var("PATH").unwrap());
        let mut command = Command::new(program);
        command
            .args(words)
            .current_dir(self.0.path())
            .env("HOME", self.0.path())
            .env("PATH", path)
            .env("TERM", "dumb")
            .env("NO_COLOR", "1")
            .env("LC_ALL", "C.UTF-8")
            .env("TZ", "UTC")
            .env("SOURCE_DATE_EPOCH", EPOCH);
        command
    }

    fn run(&self, line: &str) -> String {
        let line = format!("umask 022; exec 2>&1; {line}");
        let output = self
            .command("sh", &["-c", &line])
            .stdin(Stdio::null())
            .output()
            .unwrap();
        String::from_utf8(output.stdout).unwrap()
    }

    /// Creates the files that the documents assume.
    fn new() -> Self {
        let home = Self(tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap());
        let path = |name: &str| home.0.path().join(name);
        fs::create_dir_all(path("project/src")).unwrap();
        fs::write(path("project/README.md"), "# A project\n").unwrap();
        fs::write(path("project/src/main.rs"), "fn main() {}\n".repeat(1000)).unwrap();
        fs::write(path("todo.txt"), "Nothing\n").unwrap();
        fs::write(path("plan.toml"), PLAN).unwrap();
        fs::write(path("script"), SCRIPT).unwrap();
        let made = home.run(
            "buttress mkfs -q -L backup --size 256M backup.img && buttress shell -w backup.img < script && rm script",
        );
        assert_eq!(made, "");
        fs::copy(path("backup.img"), path("damaged.img")).unwrap();
        let damaged = File::options().write(true).open(path("damaged.img")).unwrap();
        // The damaged byte is at the offset of the superblock's magic.
        damaged.write_all_at(b"x", (64 << 10) + 0x40).unwrap();
        home
    }

    /// Returns the output of a step.
    fn print(&self, step: &Step) -> String {
        let typed: Vec<(&str, &str)> = step.shown.iter().filter_map(|line| typed(line)).collect();
        if !step.command.starts_with("buttress shell ") || typed.is_empty() {
            return self.run(&step.command);
        }
        let words: Vec<&str> = step.command.split(' ').collect();
        let mut terminal = Terminal::start(&mut self.command(env!("CARGO_BIN_EXE_buttress"), &words[1..]));
        for (prompt, line) in typed {
            terminal.expect(prompt);
            terminal.send(&format!("{line}\n"));
        }
        // Remove the progress bar of a command.
        terminal.finish().1.replace("\r\x1b[K", "").replace('\r', "")
    }
}

/// Splits a line into its prompt and the typed text.
fn typed(line: &str) -> Option<(&str, &str)> {
    let end = line.find("> ").filter(|_| line.starts_with('/'))? + 2;
    Some((&line[..end], &line[end..]))
}

/// Content of `plan.toml`.
const PLAN: &str = r#"manifest = 1

[[subvolume]]
path = "/home"

[[file]]
path = "/etc/hostname"
text = "guest\n"

[[snapshot]]
path = "/home-fresh"
of = "/home"
read-only = true
"#;

/// Script that creates `backup.img`.
const SCRIPT: &str = "\
subvolume create /home
mkdir /home/plain /home/letters
put todo.txt /home/plain/todo
pwrite -q -S 0x41 0 1M /home/plain/large
put project/src/main.rs /home/plain/main.rs
ln -s todo /home/plain/link
chmod 644 /home/plain/todo /home/plain/large /home/plain/main.rs
chmod 755 /home /home/plain /home/letters
chown -R 0:0 /home
snapshot -r /home /home-monday
subvolume create /home/projects
rmdir /home/letters
mkdir /home/projects/letters
rm /home/plain/main.rs
put todo.txt /home/after-the-snapshot
chmod 644 /home/after-the-snapshot
chmod 755 /home/projects /home/projects/letters
chown -R 0:0 /home
snapshot -r /home /home-tuesday
";

/// Replaces dates in the format of `ls` in a line.
fn without_dates(line: &str) -> String {
    const MONTHS: &str = "JanFebMarAprMayJunJulAugSepOctNovDec";
    let words: Vec<&str> = line.split(' ').collect();
    let is_month = |word: &str| word.len() == 3 && MONTHS.find(word).is_some_and(|at| at % 3 == 0);
    let Some(month) = words.iter().position(|word| is_month(word)) else {
        return line.to_owned();
    };
    // A day of one digit, and a year instead of a time, have an additional blank before them.
    let rest = words[month + 1..].iter().filter(|word| !word.is_empty()).skip(2);
    let mut kept: Vec<&str> = words[..month].to_vec();
    kept.push("DATE");
    kept.extend(rest);
    kept.join(" ")
}

fn is_like(shown: &str, printed: &str) -> bool {
    let (shown, printed) = (without_dates(shown), without_dates(printed));
    let mut parts = shown.split('…');
    let first = parts.next().unwrap();
    let Some(mut rest) = printed.strip_prefix(first) else {
        return false;
    };
    let mut parts = parts.peekable();
    if parts.peek().is_none() {
        return rest.is_empty();
    }
    while let Some(part) = parts.next() {
        if parts.peek().is_none() {
            return rest.ends_with(part);
        }
        let Some(at) = rest.find(part) else {
            return false;
        };
        rest = &rest[at + part.len()..];
    }
    true
}

/// Returns whether the printed lines match the shown ones.
fn are_like(shown: &[String], printed: &[&str]) -> bool {
    match shown.split_first() {
        None => printed.is_empty(),
        Some((first, shown)) if first == "…" => {
            (0..=printed.len()).any(|skipped| are_like(shown, &printed[skipped..]))
        }
        Some((first, shown)) => match printed.split_first() {
            Some((line, printed)) => is_like(first, line) && are_like(shown, printed),
            None => false,
        },
    }
}

#[test]
fn sessions_in_the_documents_are_as_they_are_shown() {
    let mut faults = Vec::new();
    let mut count = 0;
    for document in documents() {
        let sessions = sessions(&document, &mut faults);
        if sessions.is_empty() {
            continue;
        }
        // All sessions of a document run in one directory, in order.
        let home = Home::new();
        for session in sessions {
            for step in steps(&session) {
                count += 1;
                let printed = home.print(&step);
                let lines: Vec<&str> = printed.trim_end().lines().map(str::trim_end).collect();
                if !are_like(&step.shown, &lines) {
                    faults.push(format!(
                        "{}: $ {}\nshown:\n{}\nprinted:\n{}\n",
                        session.place,
                        step.command,
                        step.shown.join("\n"),
                        printed.trim_end()
                    ));
                }
            }
        }
    }
    #[expect(clippy::disallowed_methods, reason = "what a test says of itself")]
    let mut all = std::io::stderr();
    for fault in &faults {
        writeln!(all, "{fault}").unwrap();
    }
    assert!(
        faults.is_empty(),
        "{} steps are not as they are shown",
        faults.len()
    );
    assert!(count > 15, "{count} steps");
}

#[test]
fn shown_lines_may_omit_differences() {
    for (shown, printed, expected) in [
        ("a", "a", true),
        ("a", "b", false),
        ("a…c", "abbc", true),
        ("a…c", "abb", false),
        ("a…b…c", "axbyc", true),
        ("drwx 5 Nov 21 06:31 home", "drwx 5 Jan  1  2020 home", true),
        ("drwx 5 Nov 21 06:31 home", "drwx 6 Jan  1  2020 home", false),
        ("drwx 5 Nov 21 06:31 home", "drwx 5 Jan  1  2020 house", false),
    ] {
        assert_eq!(is_like(shown, printed), expected, "{shown} {printed}");
    }
    let shown: Vec<String> = ["a", "…", "b"].map(str::to_owned).into();
    assert!(are_like(&shown, &["a", "b"]) && are_like(&shown, &["a", "x", "b", "b"]));
    assert!(!are_like(&shown, &["a", "x"]));
}
