//! The content of a volume cannot control a terminal: every command and every shell command runs
//! under a terminal, with names full of escape sequences.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::too_many_lines,
    reason = "tests state what must hold"
)]

use crate::support;

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::process::{Command, Stdio};

use support::Volume;

/// ESC, CSI, OSC 52 (the clipboard), a window title, DEL, CR, a bell, a backspace, C1 controls as
/// UTF-8, marks that reorder text, bytes that are not UTF-8, and a line feed before text that could
/// pose as output.
const EVIL: &[u8] = b"e\x1b[2J\x1b]52;c;eA==\x07\x1b]0;t\x1b\\\x7f\r\x08\xc2\x9b31m\xc2\x9d\xe2\x80\xae\xe2\x81\xa6\xd8\x9c\xff\x9b\nFORGED";

/// Bytes that the output must not contain: a file name would otherwise start a line with them.
const FORGED: &[u8] = b"\nFORGED";

/// Returns the name as a quoted word of a session.
fn quoted() -> String {
    let mut word = String::from("\"");
    for byte in EVIL {
        word.push_str(&format!("\\x{byte:02x}"));
    }
    word.push('"');
    word
}

/// A volume in which every name, and the content of a file, is this text.
struct Evil {
    folder: tempfile::TempDir,
    image: OsString,
    /// Stream that creates names full of escape sequences.
    stream: OsString,
}

impl Evil {
    fn make() -> Self {
        let volume = Volume::copy();
        let evil = quoted();
        let lines = [
            format!("mkdir /{evil}"),
            format!("pwrite -S 1 0 200K /{evil}/{evil}"),
            format!("pwrite 0 100 /{evil}/small"),
            format!("ln /{evil}/small /{evil}/second{evil}"),
            format!("ln -s {evil} /{evil}/link"),
            format!("mknod /{evil}/pipe{evil} p"),
            format!("setfattr -n user.{evil} -v {evil} /{evil}/{evil}"),
            format!("subvolume create /sub{evil}"),
            format!("mkdir -p /sub{evil}/{evil}/deep"),
            format!("pwrite 0 100K /sub{evil}/{evil}/{evil}"),
            format!("snapshot -r /sub{evil} /snap{evil}"),
            format!("mv /sub{evil}/{evil}/{evil} /sub{evil}/moved{evil}"),
            format!("rm -r /sub{evil}/{evil}"),
            format!("snapshot -r /sub{evil} /after{evil}"),
            format!("subvolume set-default /sub{evil}"),
        ];
        let mut words = vec!["shell", "-w", volume.path()];
        for line in &lines {
            words.extend(["-c", line]);
        }
        support::stdout(&words);
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let name = OsString::from_vec([b"image".as_slice(), EVIL].concat());
        let image = folder.path().join(&name).into_os_string();
        let copied = Command::new("cp")
            .arg("--sparse=always")
            .arg(volume.path())
            .arg(&image)
            .status();
        assert!(copied.unwrap().success());
        let stream = folder.path().join(OsStr::from_bytes(EVIL)).into_os_string();
        let evil = Self {
            folder,
            image,
            stream,
        };
        let sent = Command::new(env!("CARGO_BIN_EXE_buttress"))
            .args([
                OsStr::new("send"),
                OsStr::new("-f"),
                &evil.stream,
                &evil.inside(b"/snap%"),
            ])
            .output();
        let sent = sent.unwrap();
        assert!(sent.status.success(), "{}", String::from_utf8_lossy(&sent.stderr));
        evil
    }

    /// Returns `IMAGE:/path`, with the name in place of `%`.
    fn inside(&self, path: &[u8]) -> OsString {
        let path = filled(path);
        OsString::from_vec([self.image.as_bytes(), b":", &path].concat())
    }
}

/// Returns a text with the name in place of `%`.
fn filled(text: &[u8]) -> Vec<u8> {
    text.split(|byte| *byte == b'%').collect::<Vec<_>>().join(EVIL)
}

/// Returns the bytes that arrive at the terminal of a command. Nothing is typed.
fn at_a_terminal(evil: &Evil, words: &[OsString]) -> Vec<u8> {
    let mut line = Vec::new();
    for word in words {
        let parts: Vec<&[u8]> = word.as_bytes().split(|byte| *byte == b'\'').collect();
        line.extend_from_slice(b" '");
        line.extend(parts.join(&b"'\\''"[..]));
        line.push(b'\'');
    }
    // The program `script` exists on every system; it creates a new terminal.
    let output = Command::new("script")
        .args(["-q", "-e", "-c"])
        .arg(OsString::from_vec(line))
        .arg("/dev/null")
        .current_dir(evil.folder.path())
        .env("TZ", "UTC")
        .env("TERM", "xterm")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    // The terminal converts each line feed to CR and LF.
    let mut arrived = Vec::new();
    let mut bytes = output.stdout.iter().peekable();
    while let Some(byte) = bytes.next() {
        if *byte != b'\r' || bytes.peek() != Some(&&b'\n') {
            arrived.push(*byte);
        }
    }
    arrived
}

/// Escape sequences of this program itself: colours, and the progress line.
const OURS: [&[u8]; 9] = [
    b"\x1b[0m",
    b"\x1b[1m",
    b"\x1b[4m",
    b"\x1b[31m",
    b"\x1b[32m",
    b"\x1b[33m",
    b"\x1b[35m",
    b"\x1b[36m",
    b"\r\x1b[K",
];

/// Returns the forbidden bytes that arrived at the terminal; `None` if none arrived.
fn fault(arrived: &[u8]) -> Option<String> {
    let mut rest = Vec::new();
    let mut index = 0;
    while index < arrived.len() {
        match OURS.iter().find(|ours| arrived[index..].starts_with(ours)) {
            Some(ours) => index += ours.len(),
            None => {
                rest.push(arrived[index]);
                index += 1;
            }
        }
    }
    if rest.windows(FORGED.len()).any(|window| window == FORGED) {
        return Some("a line feed in a name".into());
    }
    let is_fine = |character: char| matches!(character, '\n' | '\t') || buttress::is_printable(character);
    match String::from_utf8(rest) {
        Ok(text) => text
            .chars()
            .find(|character| !is_fine(*character))
            .map(|character| format!("{character:?}")),
        Err(error) => Some(format!("bytes that are no UTF-8: {error}")),
    }
}

/// Collects the commands of a table in typed form.
fn leaves(command: &clap::Command, above: &str, found: &mut BTreeSet<String>) {
    for inner in command.get_subcommands() {
        let name = format!("{above}{}", inner.get_name());
        if inner.has_subcommands() {
            leaves(inner, &format!("{name} "), found);
        } else {
            found.insert(name);
        }
    }
}

/// Returns the call forms of each command. In the call forms, `@` begins a path in the volume,
/// `IMAGE` is its file, `STREAM` a stream, `NEW` a file that does not exist, and `%` the name.
fn cases() -> BTreeMap<&'static str, Vec<&'static str>> {
    BTreeMap::from([
        (
            "ls",
            vec!["@/", "-lR @/", "-R --format json @/", "@/none%", "@/%/link"],
        ),
        ("cat", vec!["@/none%", "@/%"]),
        (
            "stat",
            vec!["@/%/%", "@/%/link", "--format json @/%/%", "@/none%"],
        ),
        ("tree", vec!["@/", "--format json @/", "@/none%"]),
        (
            "cp",
            vec![
                "-a @/% NEW",
                "-v @/none% NEW",
                "@/% NEW",
                "-a --progress always @/ NEW2",
                "-a --format json @/% NEW3",
            ],
        ),
        ("tar", vec!["-f NEW4 @/", "@/none%", "@/"]),
        ("manifest", vec!["IMAGE", "-f NEW21 IMAGE", "IMAGE%"]),
        (
            "diff",
            vec![
                "@/snap% @/after%",
                "--format json @/snap% @/after%",
                "--name-only @/snap% @/after%",
                "@/snap% @/none%",
            ],
        ),
        (
            "mkfs",
            vec!["-L % --size 128M NEW5", "--size 128M NEW12%", "-f IMAGE%"],
        ),
        (
            "check",
            vec![
                "IMAGE",
                "--format json IMAGE",
                "--repair --dry-run IMAGE",
                "--repair --yes-to x IMAGE",
                "IMAGE%",
            ],
        ),
        (
            "space",
            vec!["IMAGE", "--format json IMAGE", "--export ncdu @/", "@/none%"],
        ),
        ("compression", vec!["@/", "@/none%"]),
        (
            "send",
            vec![
                "@/snap%",
                "-f NEW6 @/sub%",
                "--estimate @/snap%",
                "-f NEW7 @/none%",
            ],
        ),
        (
            "receive",
            vec![
                "--dump -f STREAM",
                "--dump --format json -f STREAM",
                "--dump -f IMAGE",
                "-f STREAM @/",
                "-f STREAM @/none%",
                "-f IMAGE @/",
                "--token @/",
                "--resume=% -f STREAM @/",
            ],
        ),
        ("fiemap", vec!["@/%/%", "--format json @/%/%", "@/none%", "@/%"]),
        ("stream ls", vec!["STREAM", "--format json STREAM", "IMAGE"]),
        ("stream cat", vec!["STREAM:/none%"]),
        ("stream tar", vec!["STREAM", "-f NEW8 STREAM"]),
        ("stream merge", vec!["-f NEW9 STREAM", "-f NEW9 IMAGE"]),
        (
            "stream rebase",
            vec!["--onto STREAM -f NEW10 STREAM", "--onto IMAGE STREAM"],
        ),
        ("stream verify", vec!["STREAM", "IMAGE"]),
        ("subvolume list", vec!["IMAGE", "--format json IMAGE", "-t IMAGE"]),
        (
            "subvolume show",
            vec!["@/sub%", "--format json @/sub%", "@/none%"],
        ),
        ("subvolume create", vec!["@/new%", "@/sub%"]),
        ("subvolume snapshot", vec!["@/sub% @/again%", "@/none% @/x%"]),
        ("subvolume delete", vec!["@/again%", "@/none%", "@/%"]),
        ("subvolume get-default", vec!["IMAGE"]),
        ("subvolume set-default", vec!["@/none%", "@/snap%"]),
        ("device resync", vec!["IMAGE", "IMAGE%"]),
        ("device usage", vec!["IMAGE", "IMAGE%"]),
        ("help", vec!["", "%"]),
        ("version", vec!["", "%"]),
        (
            "inspect-internal subvolid-resolve",
            vec!["5 IMAGE", "256 IMAGE", "999 IMAGE%"],
        ),
        ("inspect-internal map-swapfile", vec!["@/%", "@/none%"]),
        ("inspect-internal min-dev-size", vec!["IMAGE", "IMAGE%"]),
        ("subvolume find-new", vec!["@/% 0", "@/none% 0"]),
        ("subvolume sync", vec!["IMAGE", "IMAGE%"]),
        (
            "device stats",
            vec!["IMAGE", "-T IMAGE", "--format json IMAGE", "-z IMAGE%"],
        ),
        (
            "scrub start",
            vec![
                "-B --status-file NEW20 IMAGE",
                "-Bd --status-file NEW20% IMAGE",
                "-B IMAGE%",
            ],
        ),
        (
            "scrub cancel",
            vec!["--status-file NEW20 IMAGE", "--status-file NEW20% IMAGE%"],
        ),
        ("scrub resume", vec!["-B --status-file NEW20 IMAGE", "-B IMAGE%"]),
        (
            "scrub status",
            vec![
                "-d --status-file NEW20 IMAGE",
                "--status-file NEW20 --format json IMAGE",
                "IMAGE%",
            ],
        ),
        (
            "replace start",
            vec![
                "-B --status-file NEW22 1 NEW21 IMAGE",
                "-B NEW21% NEW21 IMAGE",
                "1 IMAGE IMAGE%",
            ],
        ),
        (
            "replace status",
            vec![
                "--status-file NEW22 IMAGE",
                "--format json IMAGE",
                "--status-file NEW22% IMAGE%",
            ],
        ),
        (
            "replace cancel",
            vec!["--status-file NEW22 IMAGE", "--status-file NEW22% IMAGE%"],
        ),
        ("filesystem show", vec!["IMAGE", "--format json IMAGE"]),
        ("filesystem df", vec!["IMAGE"]),
        ("filesystem usage", vec!["IMAGE", "-T IMAGE"]),
        ("filesystem du", vec!["@/", "--format json @/", "@/none%"]),
        (
            "filesystem label",
            vec!["IMAGE a\x1b[2Jb", "IMAGE", "--format json IMAGE", "IMAGE %"],
        ),
        ("filesystem sync", vec!["IMAGE", "IMAGE%"]),
        (
            "filesystem trim",
            vec!["IMAGE", "-m 4K --format json IMAGE", "IMAGE%"],
        ),
        ("property get", vec!["@/sub%", "@/%/%", "@/none%", "IMAGE"]),
        (
            "property set",
            vec!["@/sub% ro true", "@/%/% compression %", "@/%/% % %"],
        ),
        ("property list", vec!["@/sub%", "@/none%"]),
        ("image", vec!["IMAGE NEW8%", "-r NEW9% NEW7%"]),
        ("convert", vec!["IMAGE", "-r IMAGE", "IMAGE%", "-l % IMAGE"]),
        ("overlay commit", vec!["IMAGE% NEW9", "NEW9%"]),
        ("overlay discard", vec!["NEW9%"]),
        ("rescue chunk-recover", vec!["-v -y IMAGE", "IMAGE%"]),
        ("rescue clear-ino-cache", vec!["IMAGE", "IMAGE%"]),
        ("rescue clear-space-cache", vec!["v1 IMAGE", "v1 IMAGE%"]),
        ("rescue clear-uuid-tree", vec!["IMAGE", "IMAGE%"]),
        ("rescue fix-data-checksum", vec!["IMAGE", "-m 1 IMAGE%"]),
        ("rescue fix-device-size", vec!["IMAGE", "IMAGE%"]),
        ("rescue super-recover", vec!["-v IMAGE", "IMAGE%"]),
        (
            "restore",
            vec!["IMAGE NEW20", "-D IMAGE NEW21%", "-l IMAGE", "IMAGE% NEW22%"],
        ),
        (
            "undelete",
            vec!["--no-scan IMAGE /", "--format json IMAGE /%", "IMAGE% %"],
        ),
        ("generations", vec!["IMAGE", "--format json IMAGE", "IMAGE%"]),
        ("rescue scan", vec!["IMAGE", "--format json IMAGE", "IMAGE%"]),
        ("rescue zero-log", vec!["IMAGE", "IMAGE%"]),
        (
            "inspect-internal dump-super",
            vec!["IMAGE", "--format json IMAGE", "-f IMAGE", "IMAGE%"],
        ),
        (
            "inspect-internal dump-tree",
            vec!["IMAGE", "--format json IMAGE", "--hide-names IMAGE"],
        ),
        ("inspect-internal inode-resolve", vec!["257 @/", "257 @/sub%"]),
        (
            "inspect-internal find-root",
            vec!["-a IMAGE", "--format json IMAGE", "IMAGE%"],
        ),
        (
            "inspect-internal map-logical",
            vec!["-l 30408704 IMAGE", "-l 1 IMAGE%"],
        ),
        ("inspect-internal select-super", vec!["-s 1 IMAGE", "-s 1 IMAGE%"]),
        ("inspect-internal list-chunks", vec!["IMAGE"]),
        (
            "inspect-internal logical-resolve",
            vec!["30408704 IMAGE", "13631488 IMAGE"],
        ),
        ("inspect-internal rootid", vec!["@/sub%", "@/none%"]),
        ("inspect-internal tree-stats", vec!["IMAGE"]),
        (
            "mount",
            vec!["IMAGE /none%", "-o none% IMAGE /none", "IMAGE% /none"],
        ),
        ("umount", vec!["/none%"]),
        ("shell", vec!["-c ls IMAGE", "IMAGE -c %"]),
        ("tour", vec!["NEW10%"]),
        ("tune", vec!["-r IMAGE", "-M % IMAGE", "--csum % IMAGE"]),
        ("quota enable", vec!["IMAGE", "IMAGE%"]),
        ("quota rescan", vec!["IMAGE", "-s IMAGE"]),
        ("quota status", vec!["IMAGE", "--is-enabled IMAGE%"]),
        ("qgroup create", vec!["1/1 IMAGE", "% IMAGE"]),
        ("qgroup assign", vec!["0/5 1/1 IMAGE", "% 1/1 IMAGE"]),
        (
            "qgroup limit",
            vec!["1G @/sub%", "1G @/none%", "% IMAGE", "1G % IMAGE"],
        ),
        (
            "qgroup show",
            vec![
                "-pcre IMAGE",
                "-F @/sub%",
                "--format json IMAGE",
                "--sort % IMAGE",
            ],
        ),
        ("qgroup remove", vec!["0/5 1/1 IMAGE", "% 1/1 IMAGE"]),
        ("qgroup destroy", vec!["1/1 IMAGE", "% IMAGE"]),
        ("qgroup clear-stale", vec!["IMAGE", "IMAGE%"]),
        ("quota disable", vec!["IMAGE", "IMAGE%"]),
        (
            "balance start",
            vec!["IMAGE", "-dusage=% IMAGE", "--dry-run IMAGE"],
        ),
        ("balance pause", vec!["IMAGE"]),
        ("balance cancel", vec!["IMAGE"]),
        ("balance resume", vec!["IMAGE"]),
        ("balance status", vec!["IMAGE", "--status-file NEW12% IMAGE"]),
        ("device add", vec!["NEW13% IMAGE"]),
        ("device remove", vec!["% IMAGE", "7 IMAGE"]),
        ("device delete", vec!["% IMAGE"]),
        ("filesystem resize", vec!["+1M IMAGE", "% IMAGE"]),
        ("filesystem shrink", vec!["--dry-run IMAGE", "--dry-run IMAGE%"]),
        (
            "filesystem defragment",
            vec!["-vr @/", "@/sub%", "-c=% @/", "@/none%"],
        ),
        ("completions", vec!["bash", "%"]),
        ("man", vec!["NEW11", "%"]),
        ("reference", vec![""]),
    ])
}

/// Returns the call forms of each shell command, whose paths need no `@`.
fn word_cases() -> BTreeMap<&'static str, Vec<&'static str>> {
    BTreeMap::from([
        ("ls", vec!["-lR /", "/none%"]),
        ("tree", vec!["/"]),
        ("cd", vec!["/%", "/none%"]),
        ("pwd", vec![""]),
        ("cat", vec!["/none%"]),
        ("stat", vec!["/%/%", "/none%"]),
        ("du", vec!["/"]),
        ("df", vec![""]),
        ("get", vec!["/none%", "-a /% /nowhere/%"]),
        ("put", vec!["/none% /"]),
        ("cp", vec!["/none% /", "-r /% /copy%"]),
        ("mkdir", vec!["/%"]),
        ("rmdir", vec!["/%"]),
        ("rm", vec!["/%", "/none%"]),
        ("mv", vec!["/none% /x%"]),
        ("ln", vec!["/% /%", "/none% /%"]),
        ("mknod", vec!["/% p", "/q% %"]),
        ("touch", vec!["/none%/x%"]),
        ("chmod", vec!["% /%", "0600 /none%"]),
        ("chown", vec!["% /%", "0 /none%"]),
        ("getfattr", vec!["/%/%", "-d /%/%", "-n user.none% /%/%"]),
        ("setfattr", vec!["-x user.none% /%/%", "-n % -v % /%/%"]),
        ("lsattr", vec!["/%/%", "/none%"]),
        ("chattr", vec!["+% /%", "+C /none%"]),
        ("pwrite", vec!["0 % /x%", "0 1 /%"]),
        ("pread", vec!["0 10 /none%", "-v 0 64 /%/%"]),
        ("truncate", vec!["% /%", "0 /%"]),
        ("fallocate", vec!["0 % /%", "0 4K /%"]),
        ("fpunch", vec!["0 4K /none%"]),
        ("fzero", vec!["0 4K /none%"]),
        ("reflink", vec!["/none% 0 0 0 /%"]),
        ("dedupe", vec!["/none% 0 0 4K /%"]),
        ("copy_range", vec!["/none% /%"]),
        ("fiemap", vec!["/%/%", "-v /%/%", "/none%"]),
        ("seek", vec!["-a -r 0 /%/%", "-d 0 /none%"]),
        ("fsync", vec!["/none%", "-d /%/%"]),
        ("fdatasync", vec!["/none%", "/%/%"]),
        ("stats", vec![""]),
        ("sync", vec![""]),
        ("snapshot", vec!["/none% /x%"]),
        ("subvolume list", vec![""]),
        ("subvolume show", vec!["/sub%"]),
        ("subvolume create", vec!["/sub%"]),
        ("subvolume snapshot", vec!["/sub% /again%"]),
        ("subvolume delete", vec!["/none%"]),
        ("subvolume get-default", vec![""]),
        ("subvolume set-default", vec!["/none%"]),
        ("label", vec!["", "%"]),
        ("help", vec!["", "%"]),
        ("abort", vec![""]),
        ("quit", vec![""]),
    ])
}

/// Returns the arguments of a case.
fn words(evil: &Evil, case: &str) -> Vec<OsString> {
    case.split(' ')
        .filter(|word| !word.is_empty())
        .map(|word| {
            if let Some(path) = word.strip_prefix('@') {
                return evil.inside(path.as_bytes());
            }
            let word = filled(word.as_bytes());
            for (begin, path) in [("IMAGE", &evil.image), ("STREAM", &evil.stream)] {
                if let Some(rest) = word.strip_prefix(begin.as_bytes()) {
                    return OsString::from_vec([path.as_bytes(), rest].concat());
                }
            }
            if word.starts_with(b"NEW") {
                return evil.folder.path().join(OsStr::from_bytes(&word)).into_os_string();
            }
            OsString::from_vec(word)
        })
        .collect()
}

fn assert_each_has_a_case(parser: &clap::Command, cases: &BTreeMap<&'static str, Vec<&'static str>>) {
    let mut expected = BTreeSet::new();
    leaves(parser, "", &mut expected);
    let cases: BTreeSet<String> = cases.keys().map(|name| (*name).to_owned()).collect();
    assert_eq!(expected, cases, "each needs a case here");
}

#[test]
fn no_command_lets_a_name_drive_the_terminal() {
    let evil = Evil::make();
    let cases = cases();
    assert_each_has_a_case(&buttress_cli::table::command(), &cases);
    let mut faults = Vec::new();
    for (command, cases) in cases {
        for case in cases {
            let mut line = vec![OsString::from(env!("CARGO_BIN_EXE_buttress"))];
            line.extend(command.split(' ').map(OsString::from));
            line.extend(words(&evil, case));
            let arrived = at_a_terminal(&evil, &line);
            if let Some(fault) = fault(&arrived) {
                faults.push(format!("{command} {case}: {fault}: {}", excerpt(&arrived)));
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn no_word_of_a_session_lets_a_name_drive_the_terminal() {
    let evil = Evil::make();
    let cases = word_cases();
    let parser = buttress_cli::shell::table::parser(buttress_cli::shell::words::ROWS);
    assert_each_has_a_case(&parser, &cases);
    let mut faults = Vec::new();
    for (word, cases) in cases {
        for case in cases {
            let typed = format!("{word} {case}").replace('%', &quoted());
            let mut line = [env!("CARGO_BIN_EXE_buttress"), "shell", "-w"]
                .map(OsString::from)
                .to_vec();
            line.extend([
                evil.image.clone(),
                "-c".into(),
                typed.into(),
                "-c".into(),
                "abort".into(),
            ]);
            let arrived = at_a_terminal(&evil, &line);
            if let Some(fault) = fault(&arrived) {
                faults.push(format!("{word} {case}: {fault}: {}", excerpt(&arrived)));
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// Returns the first forbidden bytes with their context.
fn excerpt(arrived: &[u8]) -> String {
    let position = arrived.windows(FORGED.len()).position(|window| window == FORGED);
    let position = position.or_else(|| {
        (0..arrived.len()).find(|index| {
            let rest = &arrived[*index..];
            (rest[0] < b' ' && !matches!(rest[0], b'\n' | b'\t') || rest[0] >= 0x7f)
                && !OURS.iter().any(|ours| rest.starts_with(ours))
        })
    });
    let position = position.unwrap_or_default();
    let end = arrived.len().min(position + 60);
    arrived[position.saturating_sub(60)..end]
        .escape_ascii()
        .to_string()
}

/// Without a terminal, names appear unchanged, as in `ls` and btrfs-progs.
#[test]
fn scripts_get_names_as_they_are() {
    let evil = Evil::make();
    let line = Command::new(env!("CARGO_BIN_EXE_buttress"))
        .arg("ls")
        .arg(evil.inside(b"/%"))
        .output()
        .unwrap();
    assert!(line.stdout.windows(EVIL.len()).any(|window| window == EVIL));
}
