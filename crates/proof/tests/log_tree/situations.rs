//! The situations. Each sentence states the loss or error that its rule prevents.

use buttress::CommitCause;

/// A situation of a log test: committed changes, then further changes that end with syncs.
#[derive(Clone, Copy, Debug)]
pub struct Situation {
    pub sentence: &'static str,
    pub before: &'static str,
    pub after: &'static str,
    /// Causes of commits in this situation, because a log cannot express the change.
    pub commits: &'static [CommitCause],
    /// True if the kernel gives the same guarantee.
    pub kernel_keeps: bool,
    /// Features for mkfs.btrfs.
    pub features: &'static [&'static str],
    pub node_kib: u32,
}

const fn logged(sentence: &'static str, before: &'static str, after: &'static str) -> Situation {
    Situation {
        sentence,
        before,
        after,
        commits: &[],
        kernel_keeps: true,
        features: &[],
        node_kib: 16,
    }
}

/// Builds a situation that a log cannot express.
const fn committed(
    cause: &'static [CommitCause],
    sentence: &'static str,
    before: &'static str,
    after: &'static str,
) -> Situation {
    Situation {
        commits: cause,
        ..logged(sentence, before, after)
    }
}

/// Builds a situation with a guarantee beyond the kernel's, which does not sync existing parents of
/// a file.
const fn beyond_the_kernel(sentence: &'static str, before: &'static str, after: &'static str) -> Situation {
    Situation {
        kernel_keeps: false,
        ..logged(sentence, before, after)
    }
}

/// Builds a situation on a volume with hole items.
const fn with_hole_items(sentence: &'static str, before: &'static str, after: &'static str) -> Situation {
    Situation {
        features: &["^no-holes"],
        ..logged(sentence, before, after)
    }
}

/// Builds a situation with small leaves, which are soon full.
const fn small_nodes(sentence: &'static str, before: &'static str, after: &'static str) -> Situation {
    Situation {
        node_kib: 4,
        ..logged(sentence, before, after)
    }
}

#[rustfmt::skip]
pub const SITUATIONS: &[Situation] = &[
    // Content.
    logged("a new file has its content", "", "write f 0 10000 1; fsync f"),
    logged("a new small file has its inline content", "", "write f 0 100 1; fsync f"),
    logged("an empty new file is there", "", "touch f; fsync f"),
    logged("an overwritten block has its new content", "write f 0 100k 1", "write f 8k 4k 2; fsync f"),
    logged("appended content is there, and what came before it stays", "write f 0 10000 1", "write f 10000 5000 2; fsync f"),
    logged("content appended in several syncs is all there", "", "write f 0 4k 1; fsync f; write f 4k 4k 2; fsync f; write f 8k 4k 3; fsync f"),
    logged("a block that is overwritten between two syncs has its last content", "", "write f 0 16k 1; fsync f; write f 4k 4k 2; fsync f"),
    logged("a sync of data alone makes content and size last", "write f 0 10000 1", "write f 10000 5000 2; fdatasync f"),
    logged("inline content that grew into an extent replaces what was inline", "write f 0 100 1", "write f 100 10000 2; fsync f"),
    logged("inline content logged before is gone when the file has an extent", "", "write f 0 100 1; fsync f; write f 100 10000 2; fsync f"),
    logged("inline content that is overwritten has its new bytes", "write f 0 100 1", "write f 20 30 2; fsync f"),
    logged("compressed content is read back", "", "touch f; compress f zstd; text f 0 300k 1; fsync f"),
    logged("a part of compressed content that is overwritten has its new bytes", "touch f; compress f zlib; text f 0 300k 1", "write f 20000 4k 2; fsync f"),
    logged("compressed inline content is read back", "", "touch f; compress f lzo; text f 0 1500 1; fsync f"),
    logged("content that is overwritten in place is there", "nocow f; write f 0 64k 1; sync", "write f 8k 8k 2; fsync f"),
    logged("new extents of a file without checksums are there", "nocow f; write f 0 16k 1", "write f 16k 16k 2; fsync f"),
    logged("a file of many extents has all of them", "", "write-many f 300; fsync f"),
    logged("a change in a file of many extents leaves the others", "write-many f 300", "write f 100k 4k 999; fsync f"),
    small_nodes("a log of many leaves is replayed whole", "", "write-many f 400; fsync f"),
    committed(&[CommitCause::NewChunk], "a large file written at once is there", "", "write f 0 20m 1; fsync f"),
    // Sizes and holes.
    logged("a file cut short stays short", "write f 0 100k 1", "truncate f 30000; fsync f"),
    logged("a file cut to nothing is empty", "write f 0 100k 1", "truncate f 0; fsync f"),
    logged("a file cut and grown again has zeros between", "write f 0 100k 1", "truncate f 10000; truncate f 100k; fsync f"),
    logged("a cut that was synced and then grown has zeros between", "write f 0 100k 1", "truncate f 10000; fsync f; truncate f 100k; fsync f"),
    logged("a cut file that is written further behind has a hole", "write f 0 100k 1", "truncate f 4k; write f 64k 4k 2; fsync f"),
    logged("a file that grew by a hole has its size", "write f 0 10000 1", "truncate f 1m; fsync f"),
    logged("a new file with a hole in its middle reads zeros there", "", "write f 0 4k 1; write f 256k 4k 2; fsync f"),
    logged("a hole that was punched is a hole", "write f 0 256k 1", "punch f 64k 64k; fsync f"),
    logged("a hole punched into what was just logged is a hole", "", "write f 0 256k 1; fsync f; punch f 64k 64k; fsync f"),
    logged("a hole punched at the end is one", "write f 0 256k 1", "punch f 192k 64k; fsync f"),
    logged("a hole across several extents is one", "write f 0 64k 1; sync; write f 64k 64k 2; sync; write f 128k 64k 3", "punch f 32k 128k; fsync f"),
    logged("zeroed content reads as zeros", "write f 0 256k 1", "zero f 64k 64k; fsync f"),
    with_hole_items("a hole that was punched is a hole where holes have items", "write f 0 256k 1", "punch f 64k 64k; fsync f"),
    with_hole_items("a file that grew by a hole has its size where holes have items", "write f 0 10000 1", "truncate f 1m; fsync f"),
    with_hole_items("a cut file that is written further behind has a hole where holes have items", "write f 0 100k 1", "truncate f 4k; write f 64k 4k 2; fsync f"),
    with_hole_items("a new file with a hole in its middle where holes have items", "", "write f 0 4k 1; write f 256k 4k 2; fsync f"),
    // Preallocation.
    logged("preallocated room behind the end stays", "write f 0 4k 1", "allocate-keep f 0 256k; fsync f"),
    logged("preallocated room behind the end that was committed stays", "write f 0 4k 1; allocate-keep f 0 256k", "write f 0 4k 2; fsync f"),
    logged("preallocated room reads as zeros where nothing was written", "", "allocate f 0 256k; write f 64k 8k 1; fsync f"),
    logged("what is written into preallocated room is there", "allocate f 0 256k", "write f 64k 8k 1; fsync f"),
    logged("what is written into preallocated room behind the end is there", "write f 0 4k 1; allocate-keep f 0 256k", "write f 4k 8k 1; fsync f"),
    logged("several writes into preallocated room with syncs between", "allocate f 0 256k", "write f 64k 8k 1; fsync f; write f 128k 8k 2; fsync f; write f 68k 8k 3; fsync f"),
    logged("preallocated room that is cut away is gone", "allocate f 0 256k", "truncate f 8k; fsync f"),
    logged("preallocated room in the middle of content", "write f 0 64k 1", "allocate f 128k 64k; write f 256k 4k 2; fsync f"),
    // Clones.
    logged("a file cloned from a committed one has its content", "write a 0 256k 1", "clone-all a b; fsync b"),
    logged("a part that was cloned is there beside its origin", "write a 0 256k 1; write b 0 64k 2", "clone a 64k 64k b 0; fsync b"),
    logged("a clone of content that was just written is there", "", "write a 0 256k 1; clone-all a b; fsync b"),
    logged("a clone and its origin are both synced", "", "write a 0 256k 1; clone-all a b; fsync b; fsync a"),
    logged("a clone within one file is there", "write a 0 256k 1", "clone a 0 64k a 256k; fsync a"),
    logged("a clone whose origin was overwritten keeps the old content", "write a 0 64k 1", "clone-all a b; write a 0 64k 2; fsync b; fsync a"),
    logged("two clones of parts of one new extent that overlap", "", "write a 0 256k 1; clone a 0 128k b 0; clone a 64k 128k c 0; fsync b; fsync c"),
    logged("a clone of compressed content is there", "touch a; compress a zstd; text a 0 300k 1", "clone a 0 128k b 0; fsync b"),
    logged("a clone over a hole is there", "write a 0 4k 1; write a 128k 4k 2", "clone a 0 128k b 0; fsync b"),
    // Attributes.
    logged("a mode that was changed is there", "write f 0 4k 1", "chmod f 0600; fsync f"),
    logged("an owner that was changed is there", "touch f", "chown f 12 34; fsync f"),
    logged("times that were set are there", "touch f", "times f 12345; fsync f"),
    logged("an attribute that was set is there", "touch f", "xattr f user.a one; fsync f"),
    logged("an attribute that was replaced has its new value", "touch f; xattr f user.a one", "xattr f user.a two; fsync f"),
    logged("an attribute that was removed is gone", "touch f; xattr f user.a one; xattr f user.b two", "rm-xattr f user.a; fsync f"),
    logged("the last attribute that was removed is gone", "touch f; xattr f user.a one", "rm-xattr f user.a; fsync f"),
    logged("an attribute removed after it was logged is gone", "touch f", "xattr f user.a one; fsync f; rm-xattr f user.a; fsync f"),
    logged("attributes that did not change stay", "touch f; xattr f user.a one", "write f 0 4k 1; fsync f"),
    logged("attributes of a directory that is logged for its entries stay", "mkdir d; xattr d user.a one", "touch d/f; fsync d/f"),
    logged("an attribute of a directory is there", "mkdir d", "xattr d user.a one; fsync d"),
    logged("an attribute of a directory that was removed is gone", "mkdir d; xattr d user.a one", "rm-xattr d user.a; fsync d"),
    logged("a mode of a directory is there", "mkdir d", "chmod d 0700; fsync d"),
    logged("attributes of new files in a directory that is synced are there", "", "mkdir d; touch d/f; xattr d/f user.a one; chmod d/f 0600; fsync d"),
    // New names.
    logged("a new file in a new directory is there", "", "mkdir d; write d/f 0 4k 1; fsync d/f"),
    logged("all new directories above a file are there", "", "mkdir a; mkdir a/b; mkdir a/b/c; write a/b/c/f 0 4k 1; fsync a/b/c/f"),
    logged("a new directory is there", "", "mkdir d; fsync d"),
    logged("new names of a directory are there", "mkdir d", "touch d/a; touch d/b; mkdir d/c; symlink d/a d/l; fifo d/p; char d/n; socket d/s; fsync d"),
    logged("new names come on top of the old ones", "mkdir d; touch d/a; touch d/b", "touch d/c; fsync d"),
    logged("names made between syncs of a directory are all there", "mkdir d", "touch d/a; fsync d; touch d/b; fsync d; touch d/c; fsync d"),
    logged("new directories below one that is synced are there with what they hold", "mkdir d", "mkdir d/e; touch d/e/f; mkdir d/e/g; touch d/e/g/h; fsync d"),
    logged("a symlink leads where it led", "", "symlink over/there l; mkdir d; symlink over/here d/m; fsync d; fsync ."),
    logged("the top has its new names", "touch old", "touch new; mkdir d; fsync ."),
    logged("very many new names are all there", "mkdir d", "touch-many d/f 2000; fsync d"),
    small_nodes("names of many leaves are all there", "mkdir d; touch-many d/o 300", "touch-many d/f 500; fsync d; touch-many d/g 500; fsync d"),
    logged("a file written before its directory is synced has what was synced", "mkdir d", "write d/f 0 10000 1; fsync d/f; touch d/g; fsync d"),
    logged("a fifo that is renamed keeps its kind", "fifo p; mkdir d", "mv p d/q; fsync d"),
    // Links.
    logged("a further name is there with the file", "write f 0 4k 1", "ln f g; fsync f"),
    logged("a further name in another directory is there", "mkdir d; write f 0 4k 1", "ln f d/g; fsync f"),
    logged("a further name is there when its directory is synced", "mkdir d; write f 0 4k 1", "ln f d/g; fsync d"),
    logged("a further name given after the file was logged", "", "write f 0 4k 1; fsync f; ln f g; fsync f"),
    logged("further names in a directory that was logged before", "mkdir d", "touch d/a; fsync d; ln d/a d/b; ln d/a d/c; fsync d"),
    logged("one of two names that was removed is gone", "write f 0 4k 1; ln f g", "rm g; fsync f"),
    logged("a name that was removed after it was logged is gone", "mkdir d; write d/f 0 4k 1", "ln d/f d/g; fsync d/f; rm d/g; fsync d/f"),
    logged("a removed name whose directory is synced is gone", "mkdir d; write d/f 0 4k 1; ln d/f d/g", "rm d/g; fsync d"),
    logged("very many names of one inode", "write f 0 4k 1", "ln-many f g 300; fsync f"),
    logged("very many names of one inode of which some go", "write f 0 4k 1; ln-many f g 600", "rm-many g 300; fsync f"),
    logged("a removed name that another inode takes", "mkdir d; write d/a 0 4k 1; ln d/a d/b; write d/c 0 4k 2", "rm d/b; ln d/c d/b; fsync d/c"),
    // Removals.
    logged("a removed file is gone when its directory is synced", "mkdir d; write d/f 0 4k 1; touch d/g", "rm d/f; fsync d"),
    logged("several removed files are gone", "mkdir d; touch-many d/f 50", "rm-many d/f 20; fsync d"),
    logged("all names of a directory are removed", "mkdir d; touch-many d/f 50", "rm-many d/f 50; fsync d"),
    logged("names removed between syncs are gone", "mkdir d; touch d/a; touch d/b; touch d/c", "rm d/a; fsync d; rm d/c; fsync d"),
    logged("a file made and removed between syncs is not there", "mkdir d", "touch d/a; fsync d; rm d/a; fsync d"),
    logged("a removed directory is gone", "mkdir d; mkdir d/e", "rm d/e; fsync d"),
    logged("a removed directory goes with what it held", "mkdir d; mkdir d/e; touch d/e/f; touch d/e/g", "rm-r d/e; fsync d"),
    logged("removed directories in directories go with what they held", "mkdir d; mkdir d/e; mkdir d/e/f; touch d/e/f/g", "rm-r d/e; fsync d"),
    logged("a removed file of which another was synced before", "mkdir d; touch d/a; touch d/b", "write d/b 0 4k 1; fsync d/b; rm d/a; fsync d"),
    logged("a removed file that is made anew has its new content", "mkdir d; write d/f 0 4k 1", "rm d/f; write d/f 0 8k 2; fsync d/f"),
    logged("a removed file that is made anew, its directory synced", "mkdir d; write d/f 0 4k 1; xattr d/f user.a one", "rm d/f; touch d/f; fsync d"),
    logged("a removed directory that is made anew is empty", "mkdir d; touch d/f", "rm-r d; mkdir d; touch d/g; fsync d"),
    logged("a removed directory that is made anew when a file in it is synced", "mkdir d; touch d/f; touch d/g", "rm-r d; mkdir d; write d/h 0 4k 1; fsync d/h"),
    logged("a file removed after it was logged does not come back with its directory's sync", "mkdir d", "write d/f 0 4k 1; fsync d/f; rm d/f; fsync d"),
    logged("a new name does not get the place of the last one that was removed", "mkdir d; touch d/a; touch d/b", "rm d/b; touch d/c; fsync d/c"),
    logged("the newest inode is removed and its name made anew", "touch a; touch b", "rm b; write b 0 4k 1; fsync b"),
    logged("an open file without a name is left alone", "mkdir d; write d/f 0 4k 1", "hold d/f; rm d/f; touch d/g; fsync d"),
    // Renames.
    logged("a renamed file has its new name only", "write f 0 4k 1", "mv f g; fsync g"),
    logged("a renamed file has its new name only, its directory synced", "mkdir d; write d/f 0 4k 1", "mv d/f d/g; fsync d"),
    logged("a file renamed after it was logged has its new name only", "mkdir d", "write d/f 0 4k 1; fsync d/f; mv d/f d/g; fsync d/g"),
    logged("a file that moved is in its new directory only", "mkdir a; mkdir b; write a/f 0 4k 1", "mv a/f b/f; fsync b/f"),
    logged("a file that moved, its new directory synced", "mkdir a; mkdir b; write a/f 0 4k 1", "mv a/f b/g; fsync b"),
    logged("a file that moved, its old directory synced, is not lost", "mkdir a; mkdir b; write a/f 0 4k 1", "mv a/f b/g; fsync a"),
    logged("a file that moved, both directories synced", "mkdir a; mkdir b; write a/f 0 4k 1", "mv a/f b/g; fsync a; fsync b"),
    logged("a file that moves there and back", "mkdir a; mkdir b; write a/f 0 4k 1", "mv a/f b/f; fsync b; mv b/f a/f; fsync a"),
    logged("a new file that replaces another has its content", "write f 0 4k 1", "write f.new 0 8k 2; fsync f.new; mv f.new f; fsync f"),
    logged("a new file that replaces another, the directory synced", "mkdir d; write d/f 0 4k 1", "write d/f.new 0 8k 2; fsync d/f.new; mv d/f.new d/f; fsync d"),
    logged("a new file that replaces another without a sync before", "mkdir d; write d/f 0 4k 1", "write d/f.new 0 8k 2; mv d/f.new d/f; fsync d/f"),
    logged("a name whose file moved away and that another took", "mkdir d; write d/a 0 4k 1", "mv d/a d/b; write d/a 0 4k 2; fsync d/a"),
    logged("a name whose file moved away and that another took, the directory synced", "mkdir d; write d/a 0 4k 1", "mv d/a d/b; touch d/a; fsync d"),
    logged("names in a ring", "mkdir d; write d/a 0 4k 1; write d/b 0 4k 2; write d/c 0 4k 3", "mv d/a d/x; mv d/c d/a; mv d/b d/c; mv d/x d/b; fsync d/a"),
    logged("two files that change names", "mkdir d; write d/a 0 4k 1; write d/b 0 4k 2", "swap d/a d/b; fsync d/a"),
    logged("two files in two directories that change names", "mkdir a; mkdir b; write a/f 0 4k 1; write b/g 0 4k 2", "swap a/f b/g; fsync a/f"),
    logged("two directories that change names", "mkdir a; mkdir b; touch a/f; touch b/g", "swap a b; fsync a"),
    logged("a renamed directory has its new name only", "mkdir a; touch a/f", "mv a b; fsync b"),
    logged("a directory that moved is in one place", "mkdir a; mkdir b; mkdir a/d; touch a/d/f", "mv a/d b/d; fsync b/d"),
    logged("a directory that moved, its new parent synced", "mkdir a; mkdir b; mkdir a/d; touch a/d/f", "mv a/d b/d; fsync b"),
    beyond_the_kernel("a file below a renamed directory is found under the new path", "mkdir a; write a/f 0 4k 1", "mv a b; write b/f 0 8k 2; fsync b/f"),
    beyond_the_kernel("a new file below a renamed directory is found under the new path", "mkdir a; mkdir a/c", "mv a b; write b/c/f 0 8k 2; fsync b/c/f"),
    logged("a directory renamed to what was another's name", "mkdir a; touch a/f; mkdir b; touch b/g", "mv a c; mv b a; fsync a"),
    committed(&[CommitCause::DirectoryGone], "a directory moved out of one that is removed", "mkdir a; mkdir a/b; touch a/b/f", "mv a/b c; rm a; mkdir a; fsync a"),
    committed(&[CommitCause::DirectoryGone], "a file moved out of a directory that is removed", "mkdir a; write a/f 0 4k 1", "mv a/f g; rm a; fsync g"),
    logged("a file renamed several times has its last name", "mkdir d; write d/a 0 4k 1", "mv d/a d/b; fsync d; mv d/b d/c; fsync d; mv d/c d/e; fsync d/e"),
    logged("a file renamed over one that has another name", "mkdir d; write d/a 0 4k 1; write d/b 0 4k 2; ln d/b d/c", "mv d/a d/b; fsync d"),
    logged("a new directory with files moved into it", "mkdir a; write a/f 0 4k 1; write a/g 0 4k 2", "mkdir b; mv a/f b/f; mv a/g b/g; fsync b"),
    logged("a logged file whose name is taken by another that is synced later", "mkdir d", "write d/a 0 4k 1; fsync d/a; mv d/a d/b; write d/a 0 4k 2; fsync d/a; fsync d/b"),
    logged("a file that replaced a logged one", "mkdir d", "write d/a 0 4k 1; fsync d/a; write d/b 0 4k 2; mv d/b d/a; fsync d/a"),
    logged("a hard link whose first name is renamed", "mkdir d; write d/a 0 4k 1", "ln d/a d/b; mv d/a d/c; fsync d/b"),
    // Subvolumes.
    committed(&[CommitCause::SubvolumeMoved], "a new subvolume in a directory that is synced", "mkdir d", "subvolume d/s; fsync d"),
    committed(&[CommitCause::NewSubvolume], "a file in a new subvolume", "", "subvolume s; write s/f 0 4k 1; fsync s/f"),
    logged("files in two subvolumes", "subvolume s; touch f", "write s/f 0 4k 1; fsync s/f; write f 0 4k 2; fsync f"),
    logged("a file written after a snapshot", "write f 0 64k 1", "snapshot s; write f 0 4k 2; fsync f"),
    logged("a file in a snapshot that is written", "write f 0 64k 1; snapshot s", "write s/f 4k 4k 2; fsync s/f"),
    committed(&[CommitCause::SubvolumeMoved], "a deleted subvolume in a directory that is synced", "subvolume s; touch f", "delete-subvolume s; fsync ."),
    // Changes that no sync covered may be present or not, and do no harm.
    logged("what others did beside it does no harm", "mkdir d; mkdir e; touch d/a; touch e/b", "touch d/x; mv e/b e/c; rm d/a; write f 0 4k 1; fsync f"),
    logged("a sync with nothing to do", "write f 0 4k 1", "fsync f"),
    logged("a sync of a file that was logged already", "", "write f 0 4k 1; fsync f; fsync f"),
    logged("two files synced one after the other", "", "write f 0 4k 1; write g 0 4k 2; fsync f; fsync g"),
    logged("commits between syncs", "", "write f 0 4k 1; fsync f; sync; write f 4k 4k 2; fsync f; sync; write f 8k 4k 3; fsync f"),
];
