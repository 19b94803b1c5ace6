//! Every call on a placeholder of a nested subvolume, and below one, ends as on the kernel's btrfs.

use super::{Mounted, is_placeholder, open, seen, subvolume};
use buttress_oracle::ioctls;
use buttress_oracle::loop_device::Mount;
use buttress_oracle::skip::skips;
use buttress_oracle::tools::kernel_missing;
use rustix::fs::{
    AtFlags, CWD, FileType, Gid, Mode, OFlags, RenameFlags, Timespec, Timestamps, Uid, XattrFlags,
};
use rustix::io::Result;
use std::path::Path;

/// A call in the snapshot of `original`, which is in the same directory.
type Call = fn(snapshot: &Path, original: &Path) -> Result<String>;

fn control(path: &Path, number: u32) -> Result<String> {
    let file = open(path, OFlags::RDONLY)?;
    let mut data: ioctls::Data = [0; 4096];
    ioctls::numbered(&file, number, &mut data).map(|answer| answer.to_string())
}

fn set_xattr(path: &Path, name: &str) -> Result<String> {
    rustix::fs::lsetxattr(path, name, b"value", XattrFlags::empty()).map(|()| String::new())
}

fn get_xattr(path: &Path, name: &str) -> Result<String> {
    let mut value = [0_u8; 64];
    rustix::fs::lgetxattr(path, name, &mut value).map(|length| length.to_string())
}

fn rename(from: &Path, to: &Path, flags: RenameFlags) -> Result<String> {
    rustix::fs::renameat_with(CWD, from, CWD, to, flags)?;
    Ok(format!("{:?}, {:?}", seen(from), seen(to)))
}

fn make(path: &Path, kind: FileType) -> Result<String> {
    rustix::fs::mknodat(CWD, path, kind, Mode::from_raw_mode(0o600), 0).map(|()| String::new())
}

/// The calls. The snapshot has the placeholders `nested` and `other`, the directories `empty` and `full`, and the file
/// `file`. `full` holds the placeholder `third`. The original has subvolumes in place of the placeholders.
const CALLS: &[(&str, Call)] = &[
    ("stat", |s, _| seen(&s.join("nested"))),
    ("create", |s, _| {
        open(&s.join("nested/new"), OFlags::CREATE | OFlags::WRONLY).map(|_| String::new())
    }),
    ("mkdir", |s, _| {
        rustix::fs::mkdir(s.join("nested/new"), Mode::from_raw_mode(0o700)).map(|()| String::new())
    }),
    ("mkfifo", |s, _| make(&s.join("nested/new"), FileType::Fifo)),
    ("mknod of a file", |s, _| {
        make(&s.join("nested/new"), FileType::RegularFile)
    }),
    ("symlink", |s, _| {
        rustix::fs::symlink("to", s.join("nested/new")).map(|()| String::new())
    }),
    ("link", |s, _| {
        rustix::fs::link(s.join("file"), s.join("nested/new")).map(|()| String::new())
    }),
    ("file without a name", |s, _| {
        open(&s.join("nested"), OFlags::TMPFILE | OFlags::RDWR).map(|_| String::new())
    }),
    ("unlink below", |s, _| {
        rustix::fs::unlink(s.join("nested/new")).map(|()| String::new())
    }),
    ("open for writing", |s, _| {
        open(&s.join("nested"), OFlags::WRONLY).map(|_| String::new())
    }),
    ("fsync", |s, _| {
        rustix::fs::fsync(open(&s.join("nested"), OFlags::RDONLY)?).map(|()| String::new())
    }),
    ("set user.", |s, _| set_xattr(&s.join("nested"), "user.a")),
    ("set trusted.", |s, _| set_xattr(&s.join("nested"), "trusted.a")),
    ("set security.", |s, _| set_xattr(&s.join("nested"), "security.a")),
    ("set btrfs.", |s, _| {
        set_xattr(&s.join("nested"), "btrfs.compression")
    }),
    ("set of no name space", |s, _| {
        set_xattr(&s.join("nested"), "nonsense")
    }),
    ("get user.", |s, _| get_xattr(&s.join("nested"), "user.a")),
    ("get an access list", |s, _| {
        get_xattr(&s.join("nested"), "system.posix_acl_access")
    }),
    ("remove user.", |s, _| {
        rustix::fs::lremovexattr(s.join("nested"), "user.a").map(|()| String::new())
    }),
    ("get flags", |s, _| control(&s.join("nested"), 0x8008_6601)),
    ("set flags", |s, _| control(&s.join("nested"), 0x4008_6602)),
    ("get subvolume flags", |s, _| {
        control(&s.join("nested"), 0x8008_9419)
    }),
    ("volume's information", |s, _| {
        control(&s.join("nested"), 0x8400_941f)
    }),
    ("subvolume's information", |s, _| {
        control(&s.join("nested"), 0x81f8_943c)
    }),
    ("sync", |s, _| control(&s.join("nested"), 0x9408)),
    ("subvolume below", |s, _| {
        subvolume(&s.join("nested/new"), ioctls::create_subvolume).map(|()| String::new())
    }),
    ("snapshot of it", |s, original| {
        let source = open(&s.join("nested"), OFlags::RDONLY)?;
        subvolume(&original.join("new"), |directory, name| {
            ioctls::snapshot(&source, directory, name, false)
        })
        .map(|()| String::new())
    }),
    ("delete as a subvolume", |s, _| {
        subvolume(&s.join("nested"), ioctls::delete_subvolume).map(|()| String::new())
    }),
    ("delete a file as a subvolume", |s, _| {
        subvolume(&s.join("file"), ioctls::delete_subvolume).map(|()| String::new())
    }),
    ("chmod", |s, _| {
        let path = s.join("nested");
        rustix::fs::chmodat(CWD, &path, Mode::from_raw_mode(0o1700), AtFlags::empty())?;
        // The two placeholders of a directory differ.
        Ok(format!("{} {}", seen(&path)?, seen(&s.join("other"))?))
    }),
    ("chown", |s, _| {
        let path = s.join("nested");
        let (uid, gid) = (Uid::from_raw(3), Gid::from_raw(4));
        rustix::fs::chownat(CWD, &path, Some(uid), Some(gid), AtFlags::empty())?;
        seen(&path)
    }),
    ("chown of its directory", |s, _| {
        let path = s.join("nested");
        let before = seen(&path)?;
        rustix::fs::chownat(CWD, s, Some(Uid::from_raw(3)), None, AtFlags::empty())?;
        Ok(format!("{before} {}", seen(&path)?))
    }),
    ("utimes", |s, _| {
        let path = s.join("nested");
        let time = |tv_sec| Timespec { tv_sec, tv_nsec: 7 };
        let times = Timestamps {
            last_access: time(11),
            last_modification: time(12),
        };
        rustix::fs::utimensat(CWD, &path, &times, AtFlags::empty())?;
        let found = rustix::fs::stat(&path)?;
        Ok(format!("{} {}", found.st_atime > 12, found.st_mtime > 12))
    }),
    ("rename into it", |s, _| {
        rename(&s.join("file"), &s.join("nested/new"), RenameFlags::empty())
    }),
    ("rename into it from elsewhere", |s, original| {
        rename(
            &original.join("file"),
            &s.join("nested/new"),
            RenameFlags::empty(),
        )
    }),
    ("rename", |s, _| {
        rename(&s.join("nested"), &s.join("new"), RenameFlags::empty())
    }),
    ("rename to another directory", |s, _| {
        rename(&s.join("nested"), &s.join("full/new"), RenameFlags::empty())
    }),
    ("rename to its own name", |s, _| {
        rename(&s.join("nested"), &s.join("nested"), RenameFlags::empty())
    }),
    ("rename over another", |s, _| {
        rename(&s.join("nested"), &s.join("other"), RenameFlags::empty())
    }),
    ("rename over another elsewhere", |s, _| {
        rename(&s.join("nested"), &s.join("full/third"), RenameFlags::empty())
    }),
    ("rename over a directory", |s, _| {
        rename(&s.join("nested"), &s.join("empty"), RenameFlags::empty())
    }),
    ("rename to another subvolume", |s, original| {
        rename(&s.join("nested"), &original.join("new"), RenameFlags::empty())
    }),
    ("rename over its subvolume", |s, original| {
        rename(&s.join("nested"), &original.join("nested"), RenameFlags::empty())
    }),
    ("rename without replacing", |s, _| {
        rename(&s.join("nested"), &s.join("new"), RenameFlags::NOREPLACE)
    }),
    ("rename leaving a whiteout", |s, _| {
        rename(&s.join("nested"), &s.join("new"), RenameFlags::WHITEOUT)
    }),
    ("rename an empty directory over it", |s, _| {
        rename(&s.join("empty"), &s.join("nested"), RenameFlags::empty())
    }),
    ("rename a full directory over it", |s, _| {
        rename(&s.join("full"), &s.join("nested"), RenameFlags::empty())
    }),
    ("rename over it leaving a whiteout", |s, _| {
        rename(&s.join("full"), &s.join("nested"), RenameFlags::WHITEOUT)
    }),
    ("rename a directory over it from elsewhere", |s, original| {
        rename(&original.join("empty"), &s.join("nested"), RenameFlags::empty())
    }),
    ("rename its directory", |s, _| {
        rename(&s.join("full"), &s.join("new"), RenameFlags::empty())?;
        seen(&s.join("new/third"))
    }),
    ("rmdir of its directory", |s, _| {
        rustix::fs::rmdir(s.join("full")).map(|()| String::new())
    }),
    ("rmdir", |s, _| {
        let path = s.join("nested");
        rustix::fs::rmdir(&path)?;
        Ok(format!("{:?} {}", seen(&path), seen(&s.join("other"))?))
    }),
    // Renaming the subvolume must come last, because it moves the subvolume out of the original.
    ("rename its subvolume over it", |s, original| {
        rename(&original.join("nested"), &s.join("nested"), RenameFlags::empty())
    }),
];

/// Returns the results of the calls below `root`, each in a separate snapshot.
fn answers(root: &Path, read_only: bool) -> Vec<(&'static str, Result<String>)> {
    let original = root.join(format!("original-{read_only}"));
    let add = |name: &str| subvolume(&original.join(name), ioctls::create_subvolume).unwrap();
    add("");
    std::fs::create_dir(original.join("empty")).unwrap();
    std::fs::create_dir(original.join("full")).unwrap();
    std::fs::write(original.join("file"), "content").unwrap();
    ["nested", "other", "full/third"].into_iter().for_each(add);
    std::os::unix::fs::chown(&original, Some(5), Some(6)).unwrap();
    let source = open(&original, OFlags::RDONLY).unwrap();
    let mut answers = Vec::new();
    for (number, (name, call)) in CALLS.iter().enumerate() {
        let snapshot = root.join(format!("{read_only}-{number}"));
        subvolume(&snapshot, |directory, name| {
            ioctls::snapshot(&source, directory, name, read_only)
        })
        .unwrap();
        assert!(is_placeholder(&snapshot.join("nested")), "{}", snapshot.display());
        answers.push((*name, call(&snapshot, &original)));
    }
    answers
}

#[test]
fn placeholders_answer_as_in_the_kernel() {
    if skips(super::no_fuse()) || skips(kernel_missing()) {
        return;
    }
    let (ours, theirs) = (Mounted::sized("1G"), Mounted::sized("1G"));
    ours.mount("rw");
    let kernel = Mount::new(std::slice::from_ref(&theirs.image), "").unwrap();
    for read_only in [false, true] {
        let [found, expected] = [ours.at.as_path(), kernel.path()].map(|root| answers(root, read_only));
        for (found, expected) in found.iter().zip(&expected) {
            assert_eq!(found, expected, "read-only: {read_only}");
        }
    }
    kernel.close().unwrap();
    ours.umount();
    ours.expect_sound();
}
