//! Compares `cp`, `mv` and `ln` with GNU's over a table of cases: the same exit code, the same
//! messages and the same tree. The comparison runs GNU's tools on files of the host. This program
//! copies from a volume to the host, from the host to a volume, and within one.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::print_stderr,
    reason = "tests state what must hold, and say what they skipped"
)]

use crate::support;

use buttress_oracle::needs::{Missing, missing};
use buttress_oracle::skip::skips;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, UNIX_EPOCH};

use support::{Volume, buttress, stdout};

/// Kinds of sources.
const SOURCES: [&str; 6] = ["file", "linked", "link", "dangling", "directory", "fifo"];

/// Kinds of existing destinations.
const DESTINATIONS: [&str; 9] = [
    "nothing",
    "file",
    "protected",
    "linked",
    "to-file",
    "to-directory",
    "dangling",
    "empty",
    "full",
];

const OPTIONS: [&[&str]; 16] = [
    &[],
    &["-r"],
    &["-a"],
    &["-d"],
    &["-P"],
    &["-f"],
    &["-n"],
    &["-r", "-n"],
    &["-T"],
    &["-r", "-T"],
    &["-a", "-T"],
    &["-r", "-d"],
    &["--remove-destination"],
    &["-r", "--remove-destination"],
    &["-a", "--remove-destination"],
    &["-a", "-T", "-f"],
];

/// Phrases that must occur in both messages or in neither.
const WORDS: [&str; 7] = [
    "are the same file",
    "cannot overwrite non-directory",
    "cannot overwrite directory",
    "not writing through dangling symlink",
    "into itself",
    "to a subdirectory of itself",
    "will not overwrite just-created",
];

struct Case {
    source: &'static str,
    destination: &'static str,
    options: &'static [&'static str],
}

/// Returns the cases in which GNU cp does not wait for a writer: it copies a pipe as a pipe.
fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for source in SOURCES {
        for destination in DESTINATIONS {
            for options in OPTIONS {
                let as_itself = options.iter().any(|option| matches!(*option, "-r" | "-a"));
                if source != "fifo" || as_itself {
                    cases.push(Case {
                        source,
                        destination,
                        options,
                    });
                }
            }
        }
    }
    cases
}

/// Modification time of all files.
const LONG_AGO: i64 = 1_000_000_000;

fn write(path: &Path, text: &str, mode: u32) {
    fs::write(path, text).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    let time = UNIX_EPOCH + Duration::from_secs(LONG_AGO.unsigned_abs());
    fs::File::open(path).unwrap().set_modified(time).unwrap();
}

fn plant_source(top: &Path) {
    fs::create_dir_all(top.join("directory/below")).unwrap();
    write(&top.join("file"), "new content", 0o640);
    write(&top.join("linked"), "two names", 0o604);
    fs::hard_link(top.join("linked"), top.join("linked-too")).unwrap();
    symlink("file", top.join("link")).unwrap();
    symlink("nowhere", top.join("dangling")).unwrap();
    write(&top.join("directory/one"), "one", 0o600);
    fs::hard_link(top.join("directory/one"), top.join("directory/two")).unwrap();
    write(&top.join("directory/below/three"), "three", 0o644);
    symlink("one", top.join("directory/link")).unwrap();
    make_fifo(&top.join("fifo"));
}

fn make_fifo(path: &Path) {
    let mode = rustix::fs::Mode::from_raw_mode(0o644);
    rustix::fs::mknodat(rustix::fs::CWD, path, rustix::fs::FileType::Fifo, mode, 0).unwrap();
}

fn plant_destination(top: &Path) {
    for directory in ["other", "empty", "full/directory/below", "full/directory/two"] {
        fs::create_dir_all(top.join(directory)).unwrap();
    }
    write(&top.join("file"), "old content, which is longer", 0o600);
    write(&top.join("protected"), "old content", 0o400);
    write(&top.join("linked"), "old and linked", 0o755);
    fs::hard_link(top.join("linked"), top.join("linked-too")).unwrap();
    write(&top.join("other/file"), "behind the link", 0o644);
    symlink("other/file", top.join("to-file")).unwrap();
    symlink("other", top.join("to-directory")).unwrap();
    symlink("nowhere", top.join("dangling")).unwrap();
    for name in ["file", "linked", "fifo", "directory/one", "directory/below/three"] {
        write(&top.join("full").join(name), "in the way", 0o606);
    }
    fs::hard_link(top.join("full/linked"), top.join("full/also")).unwrap();
    symlink("file", top.join("full/link")).unwrap();
    symlink("file", top.join("full/dangling")).unwrap();
}

/// Lists everything below a directory: kinds, modes, content, hard links, and preserved
/// modification times.
fn listing(top: &Path) -> String {
    let mut text = String::new();
    let mut first_names = BTreeMap::new();
    list(top, "", &mut first_names, &mut text);
    text
}

fn list(top: &Path, below: &str, names: &mut BTreeMap<u64, String>, text: &mut String) {
    let mut entries: Vec<String> = fs::read_dir(top.join(below))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    entries.sort();
    for entry in entries {
        let name = format!("{below}{entry}");
        let path = top.join(&name);
        let metadata = fs::symlink_metadata(&path).unwrap();
        let first = names.entry(metadata.ino()).or_insert_with(|| name.clone());
        write!(text, "{name}: {:o}", metadata.mode()).unwrap();
        if *first != name {
            write!(text, " = {first}").unwrap();
        }
        if metadata.is_symlink() {
            write!(text, " -> {}", fs::read_link(&path).unwrap().display()).unwrap();
        } else if metadata.is_file() {
            write!(text, " {:?}", fs::read_to_string(&path).unwrap()).unwrap();
            // All files begin with an old time; a copy that does not preserve times has the current
            // time.
            let is_kept = metadata.mtime() < LONG_AGO + 100;
            write!(text, "{}", if is_kept { " old" } else { "" }).unwrap();
        }
        text.push('\n');
        if metadata.is_dir() {
            list(top, &format!("{name}/"), names, text);
        }
    }
}

fn gnu_missing() -> Option<Missing> {
    let version = Command::new("cp").arg("--version").output();
    let is_here =
        version.is_ok_and(|output| String::from_utf8_lossy(&output.stdout).contains("GNU coreutils"));
    missing("gnu-cp").or_else(|| (!is_here).then(|| Missing::new("gnu-cp", "there is no GNU cp")))
}

fn text_of(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout)
}

/// Collects the differences between GNU's answer and this program's answer to a command.
fn compare(name: &str, gnu: &Output, ours: &Output, problems: &mut Vec<String>) {
    let (theirs, own) = (text_of(gnu), text_of(ours));
    // Releases of GNU cp differ in whether -n with an existing destination is a failure.
    let is_free = name.contains("-n");
    if gnu.status.code() != ours.status.code() && !is_free {
        problems.push(format!(
            "{name}: GNU ends with {:?}, we with {:?}\n  {theirs}  {own}",
            gnu.status.code(),
            ours.status.code()
        ));
    }
    for words in WORDS {
        if theirs.contains(words) != own.contains(words) {
            problems.push(format!("{name}: {words:?}\n  {theirs}  {own}"));
        }
    }
}

#[test]
fn copies_over_what_is_there() {
    if skips(gnu_missing()) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let host = |name: &str| folder.path().join(name);
    let image = host("volume.img").to_str().unwrap().to_owned();
    stdout(&["mkfs", "--size", "4G", &image]);
    let inside = |path: &str| format!("{image}:{path}");
    let cases = cases();
    for (number, _) in cases.iter().enumerate() {
        for way in ["gnu", "out", "within", "into"] {
            let place = host(way).join(number.to_string());
            fs::create_dir_all(place.join("dst")).unwrap();
            if matches!(way, "gnu" | "within") {
                fs::create_dir(place.join("src")).unwrap();
                plant_source(&place.join("src"));
            }
            plant_destination(&place.join("dst"));
        }
    }
    for way in ["within", "into"] {
        stdout(&["cp", "-a", host(way).to_str().unwrap(), &inside("/")]);
    }
    let source = host("gnu/0/src");
    stdout(&["cp", "-a", source.to_str().unwrap(), &inside("/src")]);
    let mut problems = Vec::new();
    for (number, case) in cases.iter().enumerate() {
        let name = format!(
            "cp {} {} {}",
            case.options.join(" "),
            case.source,
            case.destination
        );
        let gnu = Command::new("cp")
            .args(case.options)
            .args([
                format!("src/{}", case.source),
                format!("dst/{}", case.destination),
            ])
            .current_dir(host("gnu").join(number.to_string()))
            .output()
            .unwrap();
        let place = |way: &str, end: &str| {
            host(way)
                .join(number.to_string())
                .join(end)
                .to_str()
                .unwrap()
                .to_owned()
        };
        let at = |way: &str, end: &str| inside(&format!("/{way}/{number}/{end}"));
        let (from, to) = (
            format!("src/{}", case.source),
            format!("dst/{}", case.destination),
        );
        for (way, from, to) in [
            ("out", inside(&format!("/{from}")), place("out", &to)),
            ("into", place("gnu", &from), at("into", &to)),
            ("within", at("within", &from), at("within", &to)),
        ] {
            let words = [&["cp"], case.options, &[from.as_str(), to.as_str()]].concat();
            compare(&format!("{way}: {name}"), &gnu, &buttress(&words), &mut problems);
        }
    }
    for way in ["within", "into"] {
        let back = host(&format!("{way}-back"));
        stdout(&["cp", "-a", &inside(&format!("/{way}")), back.to_str().unwrap()]);
    }
    for (number, case) in cases.iter().enumerate() {
        let at = |way: &str| listing(&host(way).join(number.to_string()).join("dst"));
        let expected = at("gnu");
        for way in ["out", "into-back", "within-back"] {
            let found = at(way);
            if found != expected {
                let options = case.options.join(" ");
                problems.push(format!(
                    "{way}: cp {options} {} {}: GNU:\n{expected}ours:\n{found}",
                    case.source, case.destination
                ));
            }
        }
    }
    stdout(&["check", "--check-data-csum", &image]);
    assert!(
        problems.is_empty(),
        "{} problems:\n{}",
        problems.len(),
        problems.join("\n")
    );
}

/// Creates the initial files for the table of same files, in a separate directory.
fn plant_names(top: &Path) {
    for directory in ["d/sub", "e", "x", "y"] {
        fs::create_dir_all(top.join(directory)).unwrap();
    }
    write(&top.join("a"), "content of a", 0o644);
    fs::hard_link(top.join("a"), top.join("h")).unwrap();
    symlink("a", top.join("l")).unwrap();
    symlink("a", top.join("m")).unwrap();
    write(&top.join("b"), "content of b", 0o644);
    symlink("b", top.join("n")).unwrap();
    write(&top.join("d/file"), "in d", 0o644);
    write(&top.join("x/f"), "x's", 0o644);
    write(&top.join("y/f"), "y's", 0o644);
    symlink("d", top.join("to-d")).unwrap();
}

/// Commands that would copy, move or link a file onto itself, or almost.
const ONTO_ITSELF: [&str; 56] = [
    "cp a a",
    "cp ./a a",
    "cp d/../a a",
    "cp a .",
    "cp a l",
    "cp l a",
    "cp l m",
    "cp a h",
    "cp h l",
    "cp -f a a",
    "cp -n a a",
    "cp -a a a",
    "cp -a a h",
    "cp -a a l",
    "cp -a l a",
    "cp -a l m",
    "cp -a l l",
    "cp -d l a",
    "cp -P l a",
    "cp -P l m",
    "cp -P l h",
    "cp -P n b",
    "cp -r l a",
    "cp --remove-destination a a",
    "cp --remove-destination a h",
    "cp --remove-destination a l",
    "cp --remove-destination n b",
    "cp -a --remove-destination n b",
    "cp -r d .",
    "cp -rT d d",
    "cp -r d d/..",
    "cp -rT d to-d",
    "cp -r to-d e",
    "cp a a e",
    "cp x/f y/f e",
    "cp -t e x/f y/f",
    "cp -t e a b",
    "cp a b nothing",
    "cp a b b",
    "mv a a",
    "mv a ./a",
    "mv a h",
    "mv l a",
    "mv l m",
    "mv n b",
    "mv d d",
    "mv d d/sub",
    "mv d d/sub/new",
    "mv d b",
    "mv -T b d",
    "mv x/f y/f e",
    "ln a a",
    "ln -f a a",
    "ln -f a h",
    "ln -sf a a",
    "ln -f a n",
];

/// Commands that copy a directory into itself. For some of these commands GNU copies a part before
/// it detects the mistake; this program does not begin.
const INTO_ITSELF: [&str; 6] = [
    "cp -r d d",
    "cp -r d d/new",
    "cp -r d d/sub",
    "cp -a d d/sub",
    "cp -rT d d/sub",
    "cp -r d to-d",
];

/// Returns the arguments of a command with its paths in a directory of the volume.
fn inside(words: &[&str], top: &str) -> Vec<String> {
    let is_path = |at: usize, word: &str| at > 0 && !word.starts_with('-');
    let words = words.iter().enumerate();
    words
        .map(|(at, word)| match is_path(at, word) {
            true => format!("{top}{word}"),
            false => (*word).to_owned(),
        })
        .collect()
}

#[test]
fn nothing_is_copied_moved_or_linked_onto_itself() {
    if skips(gnu_missing()) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let host = |name: &str| folder.path().join(name);
    let volume = Volume::copy();
    let commands: Vec<&str> = ONTO_ITSELF.into_iter().chain(INTO_ITSELF).collect();
    for (number, _) in commands.iter().enumerate() {
        let place = host("gnu").join(number.to_string());
        fs::create_dir_all(&place).unwrap();
        plant_names(&place);
    }
    let before = listing(&host("gnu/0"));
    for name in ["session", "command"] {
        stdout(&[
            "cp",
            "-a",
            host("gnu").to_str().unwrap(),
            &volume.inside(&format!("/{name}")),
        ]);
    }
    let mut problems = Vec::new();
    for (number, command) in commands.iter().enumerate() {
        let words: Vec<&str> = command.split(' ').collect();
        let gnu = Command::new(words[0])
            .args(&words[1..])
            .current_dir(host("gnu").join(number.to_string()))
            .output()
            .unwrap();
        let target = volume.inside(&format!("/session/{number}"));
        // Commands of a session have no -t.
        if !words.contains(&"-t") {
            let ours = buttress(&["shell", "-w", &target, "-c", command]);
            compare(&format!("session: {command}"), &gnu, &ours, &mut problems);
        }
        if words[0] == "cp" {
            let top = volume.inside(&format!("/command/{number}/"));
            let words = inside(&words, &top);
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            compare(
                &format!("command: {command}"),
                &gnu,
                &buttress(&words),
                &mut problems,
            );
        }
    }
    for way in ["session", "command"] {
        stdout(&[
            "cp",
            "-a",
            &volume.inside(&format!("/{way}")),
            host(way).to_str().unwrap(),
        ]);
        for (number, command) in commands.iter().enumerate() {
            let is_done = if way == "session" {
                !command.contains("-t ")
            } else {
                command.starts_with("cp")
            };
            let at = |way: &str| listing(&host(way).join(number.to_string()));
            let expected = if INTO_ITSELF.contains(command) {
                before.clone()
            } else {
                at("gnu")
            };
            let found = at(way);
            if is_done && found != expected {
                problems.push(format!(
                    "{way}: {command}: expected:
{expected}found:
{found}"
                ));
            }
        }
    }
    volume.check();
    assert!(
        problems.is_empty(),
        "{} problems:
{}",
        problems.len(),
        problems.join(
            "
"
        )
    );
}
