//! Tests of hand-made manifests. The tests of the command `buttress` compare manifests of images.

use super::*;
use buttress_build::{Compress, EntryPath, Precedence, SubvolumeMark, Verdict};
use buttress_format::{FileOffset, InodeFlags};
use buttress_fs::DeviceNumber;
use buttress_fs::NodeKind;
use std::io::Cursor;

const TIME: Timestamp = Timestamp {
    seconds: 1_000,
    nanoseconds: 0,
};

fn open(text: &str, folder: &Path) -> Result<Manifest, SourceError> {
    let input = Box::new(Cursor::new(text.as_bytes().to_vec()));
    Manifest::new("plan", input, folder, TIME, &|_| Err("no images here".into()))
}

fn entries(text: &str) -> Result<Vec<Entry>, String> {
    let mut manifest = open(text, Path::new("/nonexistent")).map_err(|error| error.to_string())?;
    let mut entries = Vec::new();
    while let Some(entry) = manifest.next_entry().map_err(|error| error.to_string())? {
        entries.push(entry);
    }
    Ok(entries)
}

fn path(text: &str) -> EntryPath {
    EntryPath::new(text.as_bytes()).unwrap()
}

fn read(manifest: &mut Manifest, entry: &Entry) -> Result<Vec<u8>, SourceError> {
    let EntryKind::File(content) = &entry.kind else {
        panic!("{entry:?} is no file");
    };
    let mut reader = manifest.contents()?.open(&entry.path, content)?;
    let mut bytes = vec![0; content.size.get() as usize];
    reader.read_exact_at(FileOffset::new(0), &mut bytes)?;
    reader.finish()?;
    Ok(bytes)
}

/// A manifest with every table and every key.
const EVERYTHING: &str = r#"
manifest = 1
[volume]
label = "root"
features = ["^no-holes"]
[[directory]]
path = "/etc"
mode = "1750"
owner = 3
group = 4
time = 1970-01-01T00:00:01.5Z
accessed = 2
changed = "@-3.25"
created = 1970-01-01T00:00:04Z
flags = ["noatime"]
nodatacow = true
[directory.xattrs]
"user.b" = { base64 = "AAE=" }
"user.a" = "text"
[[subvolume]]
path = "/home"
read-only = true
[[snapshot]]
path = "/old"
of = "/home"
default = true
[[file]]
path = "/etc/hostname"
text = "guest\n"
compression = "zstd:9"
nodatacow = true
xattrs-base64 = [["/w==", "AA=="]]
[[file]]
path-base64 = "/w=="
base64 = "AAEC"
size = 3
[[symlink]]
path = "link"
target = "etc/hostname"
[[hard-link]]
path = "again"
to = "/etc/hostname"
[[device]]
path = "dev/null"
kind = "character"
major = 1
minor = 3
mode = "666"
[[device]]
path = "dev/sda"
kind = "block"
major = 8
minor = 0
[[fifo]]
path = "pipe"
[[socket]]
path = "socket"
[[remove]]
path = "gone"
"#;

#[test]
fn every_table_and_key() {
    let entries = entries(EVERYTHING).unwrap();
    let kinds: Vec<&EntryKind> = entries.iter().map(|entry| &entry.kind).collect();
    let mark = |read_only, default| SubvolumeMark { read_only, default };
    assert_eq!(kinds[0], &EntryKind::Directory(None));
    assert_eq!(kinds[1], &EntryKind::Directory(Some(mark(true, false))));
    assert_eq!(
        kinds[2],
        &EntryKind::Snapshot {
            of: path("home"),
            mark: mark(false, true)
        }
    );
    assert!(matches!(kinds[3], EntryKind::File(content) if content.size.get() == 6));
    assert_eq!(entries[4].path.as_bytes(), b"\xff");
    assert_eq!(kinds[5], &EntryKind::Symlink(b"etc/hostname".to_vec()));
    assert_eq!(kinds[6], &EntryKind::HardLink(path("etc/hostname")));
    let null = DeviceNumber { major: 1, minor: 3 };
    assert_eq!(kinds[7], &EntryKind::Node(NodeKind::CharacterDevice(null)));
    assert!(matches!(kinds[8], EntryKind::Node(NodeKind::BlockDevice(_))));
    assert_eq!(kinds[9], &EntryKind::Node(NodeKind::Fifo));
    assert_eq!(kinds[10], &EntryKind::Node(NodeKind::Socket));
    assert_eq!(kinds[11], &EntryKind::Whiteout);
    assert_eq!(entries[11].precedence, Precedence(0));
    assert_eq!(entries[10].precedence, Precedence(1));
    let directory = &entries[0].attributes;
    assert_eq!(
        (directory.permissions, directory.uid, directory.gid),
        (0o1750, 3, 4)
    );
    let time = |seconds, nanoseconds| Timestamp { seconds, nanoseconds };
    assert_eq!(directory.mtime, time(1, 500_000_000));
    assert_eq!(directory.atime, Some(time(2, 0)));
    assert_eq!(directory.ctime, Some(time(-3, 250_000_000)));
    assert_eq!(directory.otime, Some(time(4, 0)));
    assert_eq!(directory.flags, InodeFlags::NOATIME | InodeFlags::NODATACOW);
    let xattrs: Vec<(&[u8], &[u8])> = directory
        .xattrs
        .iter()
        .map(|xattr| (xattr.name.as_slice(), xattr.value.as_slice()))
        .collect();
    assert_eq!(xattrs, [(&b"user.a"[..], &b"text"[..]), (b"user.b", b"\0\x01")]);
    let file = &entries[3].attributes;
    assert_eq!(file.flags, InodeFlags::NODATACOW | InodeFlags::NODATASUM);
    assert!(matches!(file.compression, Some(Compress::With(method)) if method.level() == 9));
    assert_eq!(file.mtime, TIME);
    assert_eq!(entries[7].attributes.permissions, 0o666);
    assert_eq!(entries[5].attributes.permissions, 0o777);
}

/// Invalid text, its line, and a word of the error. The test puts a valid head before text that
/// begins with a table.
const WRONG: &[(&str, u64, &str)] = &[
    ("", 1, "manifest = 1"),
    ("manifest = 2\n", 1, "found 2"),
    ("manifest = 1\n[volume]\nlable = \"x\"\n", 3, "lable"),
    (
        "manifest = 1\n[volume]\nquotas = \"some\"\n",
        1,
        "expected none, full or simple",
    ),
    ("manifest = 1\n[contents]\n", 1, "image"),
    (
        "manifest = 1\n[contents]\nimage = \"no.img\"\n",
        1,
        "no images here",
    ),
    ("[[files]]\npath = \"/a\"\n", 2, "unknown table [[files]]"),
    ("[[file]]\n", 2, "the key path is missing"),
    ("[[file]]\npath = \"/a\"\n", 2, "no content"),
    (
        "[[file]]\npath = \"/a\"\ntext = \"\"\nsize = 1\n",
        2,
        "found 0 bytes, expected 1); correct the content, or `size` in the manifest",
    ),
    (
        "[[file]]\npath = \"/a\"\ntext = \"\"\nbase64 = \"\"\n",
        2,
        "cannot be combined",
    ),
    (
        "[[file]]\npath = \"/a\"\npath-base64 = \"\"\n",
        2,
        "cannot be combined",
    ),
    ("[[file]]\npath = \"/a\"\nsource = \"b\"\n", 2, "/nonexistent/b"),
    (
        "[[file]]\npath = \"/a\"\ntarget = \"b\"\ntext = \"\"\n",
        2,
        "unknown key target",
    ),
    ("[[file]]\npath = \"/a\"\ntext = \"\"\n\nmod = \"1\"\n", 6, "mod"),
    ("[[file]]\npath = \"/a\"\ntext = \"\"\nowner = -1\n", 5, "-1"),
    ("[[file]]\npath = \"/a\npath = 1\n", 3, ""),
    ("[[directory]]\npath = \"/a/../b\"\n", 2, "\"..\""),
    ("[[directory]]\npath = \"/a\"\nmode = \"888\"\n", 2, "octal"),
    ("[[directory]]\npath = \"/a\"\nmode = \"10000\"\n", 2, "octal"),
    ("[[directory]]\npath = \"/a\"\nmode = \"+7\"\n", 2, "octal"),
    ("[[directory]]\npath = \"/a\"\ntime = \"now\"\n", 2, "time"),
    ("[[directory]]\npath = \"/a\"\nflags = [\"x\"]\n", 2, "nodatacow"),
    (
        "[[directory]]\npath = \"/a\"\nxattrs = { \"\" = \"\" }\n",
        2,
        "xattrs",
    ),
    (
        "[[directory]]\npath = \"/a\"\ncompression = \"zstd\"\n",
        2,
        "unknown key compression",
    ),
    (
        "[[file]]\npath = \"/a\"\ntext = \"\"\ncompression = \"zstd:99\"\n",
        2,
        "zstd:15",
    ),
    ("[[symlink]]\npath = \"/a\"\ntarget = \"\"\n", 2, "1 to 4095"),
    (
        "[[device]]\npath = \"/a\"\nkind = \"c\"\nmajor = 1\nminor = 1\n",
        2,
        "\"block\"",
    ),
    (
        "[[fifo]]\npath = \"/a\"\n[[fifo]]\npath = \"a\"\n",
        4,
        "already in line 2",
    ),
    (
        "[[fifo]]\npath = \"/a\"\n[[rule]]\npath = \"a\"\n",
        4,
        "a rule must come before",
    ),
];

#[test]
fn errors_are_reported_with_their_line() {
    for (text, line, words) in WRONG {
        let text = if text.starts_with("[[") {
            format!("manifest = 1\n{text}")
        } else {
            (*text).to_owned()
        };
        let error = entries(&text).unwrap_err();
        assert!(
            error.starts_with(&format!("plan: line {line}: ")),
            "{text}: {error}"
        );
        assert!(error.contains(words), "{text}: {error}");
    }
}

#[test]
fn changed_content_files_of_a_manifest_are_reported() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("base")).unwrap();
    std::fs::write(folder.path().join("hosts"), "127.0.0.1\n").unwrap();
    std::fs::write(folder.path().join("base/b"), "base").unwrap();
    let text = "manifest = 1\n[contents]\ndirectory = \"base\"\n[[file]]\npath = \"/a\"\nsource = \"hosts\"\n[[file]]\npath = \"/b\"\n[[file]]\npath = \"/c\"\ntext = \"own\"\n";
    let mut manifest = open(text, folder.path()).unwrap();
    let mut all = Vec::new();
    while let Some(entry) = manifest.next_entry().unwrap() {
        all.push(entry);
    }
    assert_eq!(read(&mut manifest, &all[0]).unwrap(), b"127.0.0.1\n");
    assert_eq!(read(&mut manifest, &all[1]).unwrap(), b"base");
    assert_eq!(read(&mut manifest, &all[2]).unwrap(), b"own");
    std::fs::write(folder.path().join("hosts"), "127.0.0.2 more\n").unwrap();
    let error = read(&mut manifest, &all[0]).unwrap_err();
    assert!(matches!(error, SourceError::Changed { .. }), "{error}");
}

#[test]
fn rules_precede_tables_and_apply_to_all_sources() {
    let text = "manifest = 1\n[[rule]]\npath = \"/var\"\nnodatacow = true\ncompression = \"none\"\n[[rule]]\npath = \"/var/x\"\nbelow = false\nowner = 5\n[[directory]]\npath = \"/var\"\n";
    let mut manifest = open(text, Path::new("")).unwrap();
    let rules = manifest.rules();
    let mut entry = manifest.next_entry().unwrap().unwrap();
    assert_eq!(rules.apply(&mut entry), Verdict::Keep);
    assert_eq!(entry.attributes.flags, InodeFlags::NODATACOW);
    entry.path = path("var/x");
    entry.kind = EntryKind::File(FileContent::default());
    rules.apply(&mut entry);
    assert_eq!(entry.attributes.uid, 5);
    assert_eq!(entry.attributes.compression, Some(Compress::No));
    assert!(entry.attributes.flags.contains(InodeFlags::NODATASUM));
}
