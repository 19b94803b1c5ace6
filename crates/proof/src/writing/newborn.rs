//! What an inode has when it is made, by the rules of acl(5), inode(7), btrfs(5): mode, group, flags, lists, and the
//! property of compression, of the directory that it is made in.

use super::model::{DIRECTORY, Inode, REGULAR, SET_GROUP_ID};
use buttress::FileAttributes;

/// Permission bits that are taken from new inodes where no default list says otherwise.
pub const UMASK: u32 = 0o022;

/// The name of the property of compression.
pub const COMPRESSION: &[u8] = b"btrfs.compression";

/// An inode of the type `kind`, asked for with these permission bits, in this directory.
#[must_use]
pub fn newborn(directory: &Inode, kind: u32, permissions: u32, now: i64) -> Inode {
    let mut inode = Inode {
        mode: kind | permissions,
        flags: inherited_flags(directory.flags),
        modified: now,
        links: 1,
        ..Inode::default()
    };
    if directory.mode & SET_GROUP_ID != 0 {
        inode.gid = directory.gid;
        if kind == DIRECTORY {
            inode.mode |= SET_GROUP_ID;
        }
    }
    give_compression(&mut inode, directory);
    give_lists(&mut inode, directory);
    inode
}

/// The root directory of a subvolume that is made in `directory`, in a subvolume with this root. It has neither flags nor
/// group from them; the lists of the one limit its mode but are not passed on; it has the property of the other.
#[must_use]
pub fn newborn_subvolume(directory: &Inode, root: &Inode, now: i64) -> Inode {
    let mut inode = Inode {
        mode: DIRECTORY | 0o777 & !UMASK,
        modified: now,
        links: 1,
        ..Inode::default()
    };
    give_compression(&mut inode, root);
    if let Some(default) = &directory.default_list {
        inode.mode = default.given_to(inode.mode).1;
    }
    inode
}

fn inherited_flags(directory: FileAttributes) -> FileAttributes {
    let mut flags =
        directory & (FileAttributes::NOCOMPRESS | FileAttributes::COMPRESS | FileAttributes::NOCOW);
    if flags.contains(FileAttributes::NOCOMPRESS) {
        flags.remove(FileAttributes::COMPRESS);
    }
    flags
}

/// An algorithm is passed on, to be without compression is not; and never to what is written in place.
fn give_compression(inode: &mut Inode, from: &Inode) {
    let algorithm = from
        .xattrs
        .get(COMPRESSION)
        .filter(|value| [&b"zlib"[..], b"lzo", b"zstd"].contains(&value.as_slice()));
    let is_for = inode.is_file() || inode.is_directory();
    if let Some(algorithm) = algorithm
        && is_for
        && !inode.flags.contains(FileAttributes::NOCOW)
    {
        inode.xattrs.insert(COMPRESSION.to_vec(), algorithm.clone());
        inode.flags.remove(FileAttributes::NOCOMPRESS);
        inode.flags.insert(FileAttributes::COMPRESS);
    }
}

fn give_lists(inode: &mut Inode, directory: &Inode) {
    if inode.mode & 0o170_000 == 0o120_000 {
        return;
    }
    let Some(default) = &directory.default_list else {
        inode.mode &= !UMASK;
        return;
    };
    let (list, mode) = default.given_to(inode.mode);
    inode.mode = mode;
    inode.access_list = list.says_more_than_a_mode().then_some(list);
    if inode.is_directory() {
        inode.default_list = Some(default.clone());
    }
}

/// Flags of a file or directory after chattr(1), or `None` where they cannot be set.
#[must_use]
pub fn flags_after(inode: &Inode, wanted: FileAttributes) -> Option<FileAttributes> {
    let compression = FileAttributes::COMPRESS | FileAttributes::NOCOMPRESS;
    let in_place = FileAttributes::NOCOW;
    let excludes = wanted.contains(compression)
        || wanted.contains(FileAttributes::COMPRESS | in_place)
        || inode.flags.contains(in_place) && wanted.intersects(compression)
        || inode.flags.intersects(compression) && wanted.contains(in_place);
    if excludes || !(inode.is_file() || inode.is_directory()) {
        return None;
    }
    let mut flags = wanted;
    if inode.is_file() {
        flags.remove(FileAttributes::DIRSYNC);
        // What has content stays as it was written.
        if !inode.content.is_empty() {
            flags.set(in_place, inode.flags.contains(in_place));
        }
    }
    Some(flags)
}

/// Whether an inode is a regular file with checksums, or one without; two of different kinds share no extents.
#[must_use]
pub fn share_extents(one: &Inode, other: &Inode) -> bool {
    let in_place =
        |inode: &Inode| inode.mode & 0o170_000 == REGULAR && inode.flags.contains(FileAttributes::NOCOW);
    in_place(one) == in_place(other)
}
