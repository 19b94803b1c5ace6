//! Initial attributes of a new inode, by the rules of acl(5), inode(7), btrfs(5): mode, group,
//! flags, lists, and the compression property of its directory.

use super::model::{DIRECTORY, Inode, REGULAR, SET_GROUP_ID};
use buttress::FileAttributes;

/// Permission bits that the umask clears on new inodes, unless a default access list applies.
pub const UMASK: u32 = 0o022;

/// Name of the compression property's attribute.
pub const COMPRESSION: &[u8] = b"btrfs.compression";

/// Creates an inode of the type `kind` with these requested permission bits, in this directory.
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

/// Creates the root directory of a subvolume in `directory`, which is in a subvolume with root
/// `root`. The root directory of the new subvolume inherits neither flags nor group. The
/// directory's default list limits its mode but is not passed on. The new subvolume's root inherits
/// the compression property of the parent subvolume's root.
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

/// A compression algorithm is inherited, but "no compression" is not; nodatacow files inherit
/// neither.
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

/// Returns the flags of a file or directory after chattr(1), or `None` if they cannot be set.
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
        // A file with content keeps the flags of its data.
        if !inode.content.is_empty() {
            flags.set(in_place, inode.flags.contains(in_place));
        }
    }
    Some(flags)
}

/// Returns whether an inode is a regular file with checksums or without; files of different kinds
/// share no extents.
#[must_use]
pub fn share_extents(one: &Inode, other: &Inode) -> bool {
    let in_place =
        |inode: &Inode| inode.mode & 0o170_000 == REGULAR && inode.flags.contains(FileAttributes::NOCOW);
    in_place(one) == in_place(other)
}
