//! Detection of paths below a mount of this program.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::File;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use buttress_mount::fuse::is_type_of_ours;

/// Offset of a superblock's magic number on a device, in bytes.
const MAGIC_OFFSET: u64 = (64 << 10) + 64;
const MAGIC: [u8; 8] = *b"_BHRfS_M";

/// A line of the system's table of mounts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mounted {
    /// Device number: the same for all mounts of one file system.
    pub device: String,
    /// Directory of the file system that is mounted.
    pub root: PathBuf,
    /// Mount point.
    pub directory: PathBuf,
    /// Mounted source; for a mount of this program, the image.
    pub source: PathBuf,
    /// Type of the file system.
    pub kind: String,
    /// Options of this mount, joined by commas, without those of its file system.
    pub options: String,
    /// True if the mount is read-only.
    pub is_read_only: bool,
    /// True if the mounted file system is read-only, and so all of its mounts.
    pub is_file_system_read_only: bool,
    /// True if a server of this program serves the mount.
    pub is_ours: bool,
}

/// Returns the visible mount of a directory: the last one of several.
pub fn top<'a>(mounts: &'a [Mounted], directory: &Path) -> Option<&'a Mounted> {
    mounts.iter().rev().find(|mount| mount.directory == directory)
}

/// Returns a directory in the form of the table of mounts. If the server of a mount is dead, only
/// the directory's parent can be resolved.
pub fn resolved(directory: &Path) -> Option<PathBuf> {
    directory
        .canonicalize()
        .ok()
        .or_else(|| without_links(&std::path::absolute(directory).ok()?))
}

/// A path below a mount of this program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Below {
    /// Device number of the mount.
    pub device: String,
    /// Path from the root of the mount's file system; it begins with a slash.
    pub path: Vec<u8>,
}

/// Decodes a name of the table: blanks, line ends and backslashes are octal escapes.
fn unescaped(text: &[u8]) -> PathBuf {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((first, others)) = rest.split_first() {
        let digits = others.get(..3).filter(|_| *first == b'\\');
        let code = digits
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match code {
            Some(code) => {
                bytes.push(code);
                rest = others.get(3..).unwrap_or_default();
            }
            None => {
                bytes.push(*first);
                rest = others;
            }
        }
    }
    OsString::from_vec(bytes).into()
}

fn parse(line: &[u8]) -> Option<Mounted> {
    let mut fields = line.split(|byte| *byte == b' ');
    let device = String::from_utf8_lossy(fields.nth(2)?).into_owned();
    let (root, directory) = (unescaped(fields.next()?), unescaped(fields.next()?));
    let is_read_only = |options: &[u8]| options.split(|byte| *byte == b',').any(|option| option == b"ro");
    let options = fields.next()?;
    // Optional fields, a dash, the type, the source, and the options of the file system follow.
    let mut fields = fields.skip_while(|field| *field != b"-").skip(1);
    let (kind, source) = (fields.next()?, unescaped(fields.next()?));
    let is_file_system_read_only = fields.next().is_some_and(is_read_only);
    Some(Mounted {
        device,
        root,
        directory,
        source,
        kind: String::from_utf8_lossy(kind).into_owned(),
        options: String::from_utf8_lossy(options).into_owned(),
        is_read_only: is_read_only(options) || is_file_system_read_only,
        is_file_system_read_only,
        is_ours: is_type_of_ours(kind),
    })
}

/// Returns all mounts that this process sees in `/proc`.
pub fn all() -> Vec<Mounted> {
    of_table(Path::new("/proc/self/mountinfo"))
}

fn of_table(table: &Path) -> Vec<Mounted> {
    of_text(&std::fs::read(table).unwrap_or_default())
}

/// Parses the mounts in the text of a table.
pub fn of_text(table: &[u8]) -> Vec<Mounted> {
    table.split(|byte| *byte == b'\n').filter_map(parse).collect()
}

/// Returns mounts that only other processes see: those of containers, and of services with private
/// mount namespaces. Reading the tables of other users' processes requires root.
pub fn of_other_namespaces() -> Vec<Mounted> {
    let namespace = |process: &Path| std::fs::read_link(process.join("ns/mnt")).ok();
    let own = namespace(Path::new("/proc/self"));
    let mut seen: BTreeSet<PathBuf> = own.into_iter().collect();
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let is_number = |name: &OsString| name.as_bytes().iter().all(u8::is_ascii_digit);
    let processes = processes.filter(|process| is_number(&process.file_name()));
    processes
        .filter(|process| namespace(&process.path()).is_some_and(|one| seen.insert(one)))
        .flat_map(|process| of_table(&process.path().join("mountinfo")))
        .collect()
}

/// Returns the mount of a path without links: the innermost one, and the last of several on one
/// directory.
fn innermost<'a>(mounts: &'a [Mounted], path: &Path) -> Option<&'a Mounted> {
    let above = mounts.iter().filter(|mount| path.starts_with(&mount.directory));
    above.max_by_key(|mount| mount.directory.as_os_str().len())
}

fn below(mounts: &[Mounted], path: &Path) -> Option<Below> {
    let mount = innermost(mounts, path).filter(|mount| mount.is_ours)?;
    let rest = path.strip_prefix(&mount.directory).ok()?;
    let inside = mount.root.join(rest);
    let bytes = inside.as_os_str().as_bytes();
    // Joining an empty remaining path adds a trailing slash, so remove it.
    let path = match bytes.strip_suffix(b"/") {
        Some(shorter) if !shorter.is_empty() => shorter.to_vec(),
        _ => bytes.to_vec(),
    };
    let device = mount.device.clone();
    Some(Below { device, path })
}

/// Resolves links in a path's existing directories, but not in its last component.
fn without_links(path: &Path) -> Option<PathBuf> {
    let Some(name) = path.file_name() else {
        return path.canonicalize().ok();
    };
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let parent = parent.unwrap_or(Path::new("."));
    let above = match parent.canonicalize() {
        Ok(above) => above,
        Err(_) => without_links(parent)?,
    };
    Some(above.join(name))
}

/// Returns whether a file contains a volume of its own.
fn is_image(path: &Path) -> bool {
    let Ok(found) = path.metadata() else { return false };
    let mut magic = [0; 8];
    let mut read = || File::open(path)?.read_exact_at(&mut magic, MAGIC_OFFSET);
    found.is_file() && read().is_ok() && magic == MAGIC
}

/// Returns the location of a path that is below a mount of this program and is no image.
pub fn find(path: &Path) -> Option<Below> {
    let mounts = all();
    if !mounts.iter().any(|mount| mount.is_ours) {
        return None;
    }
    let found = without_links(path).and_then(|path| below(&mounts, &path));
    // A link outside of the mount may lead into it.
    let found = found.or_else(|| below(&mounts, &path.canonicalize().ok()?))?;
    (!is_image(path)).then_some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: [&str; 5] = [
        "22 1 254:1 / / rw,relatime shared:1 - ext4 /dev/vda1 rw",
        "80 22 0:60 / /mnt rw shared:9 - fuse.buttress /srv/a.img rw,user_id=0",
        "81 80 0:61 / /mnt/tmp rw - tmpfs tmpfs rw",
        "82 22 0:60 /sub/a\\040b /bound rw shared:9 master:2 - fuse.buttress /srv/a.img rw",
        "83 22 0:62 / /mnt2 rw - fuse.other x rw",
    ];

    #[test]
    fn paths_below_our_mounts_are_found() {
        let mounts: Vec<Mounted> = TABLE.iter().filter_map(|line| parse(line.as_bytes())).collect();
        assert_eq!(mounts.len(), TABLE.len());
        let cases = [
            ("/mnt", Some("/")),
            ("/mnt/a/b", Some("/a/b")),
            ("/mnt/tmp/a", None),
            ("/mntx", None),
            ("/mnt2/a", None),
            ("/bound", Some("/sub/a b")),
            ("/bound/c", Some("/sub/a b/c")),
            ("/", None),
        ];
        for (path, expected) in cases {
            let found = below(&mounts, Path::new(path)).map(|below| String::from_utf8(below.path).unwrap());
            assert_eq!(found.as_deref(), expected, "{path}");
        }
    }

    #[test]
    fn a_line_of_the_table_is_taken_apart() {
        let mount = |line: &str| parse(line.as_bytes()).unwrap();
        let bound = mount(TABLE[3]);
        assert_eq!(bound.root, Path::new("/sub/a b"));
        assert_eq!(
            (bound.device.as_str(), bound.kind.as_str()),
            ("0:60", "fuse.buttress")
        );
        assert_eq!(bound.source, Path::new("/srv/a.img"));
        assert!(!bound.is_read_only && bound.is_ours);
        assert_eq!(
            mount("82 22 0:60 / /b ro,noatime - ext4 x rw,lazytime").options,
            "ro,noatime"
        );
        let of_mount = mount("82 22 0:60 / /b ro,nosuid master:2 - fuse.buttress /srv/a\\040b rw");
        let of_system = mount("82 22 0:60 / /b rw,nosuid - fuse.buttress /srv/a.img ro,user_id=0");
        assert!(of_mount.is_read_only && of_system.is_read_only);
        assert_eq!(of_mount.source, Path::new("/srv/a b"));
        let stacked = [mount(TABLE[1]), bound, mount("90 80 0:70 / /mnt rw - tmpfs x rw")];
        assert_eq!(top(&stacked, Path::new("/mnt")).unwrap().device, "0:70");
        assert!(top(&stacked, Path::new("/mnt/a")).is_none());
    }

    #[test]
    fn links_are_followed_in_paths_that_do_not_exist_yet() {
        let folder = tempfile::tempdir().unwrap();
        let real = folder.path().canonicalize().unwrap();
        std::os::unix::fs::symlink(&real, real.join("link")).unwrap();
        let cases = [("link/new", "new"), ("link/a/b", "a/b"), ("link", "link")];
        for (path, expected) in cases {
            assert_eq!(
                without_links(&real.join(path)),
                Some(real.join(expected)),
                "{path}"
            );
        }
    }
}
