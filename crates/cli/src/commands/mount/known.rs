//! Options of mount(8) and btrfs(5) that are accepted without effect, with the reason. If an option
//! requests unsupported behaviour, a note says so.
//!
//! A name that ends with `=` stands for the option with any value. Options for access times are in
//! `access_times`.

/// The effect of an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Meaning {
    /// The option is for mount(8) or fstab, or requests the behaviour that always applies. The
    /// option causes no message.
    Nothing,
    /// The option requests unsupported behaviour; the text is the note for the user.
    Note(&'static str),
}

use Meaning::{Note, Nothing};

const NO_LOG_CHOICE: &str = "fsync always writes a log tree";
const BARRIERS: &str = "Buttress always flushes devices";
const SYSTEM: &str = "the option configures the kernel's btrfs";
const SPACE: &str = "the volume keeps its kind of free-space tracking";
const DEBUG: &str = "the option debugs the kernel's btrfs";
const LABELS: &str = "the system's policy for FUSE sets security contexts";

/// The table of options, which docs/mount.md repeats.
pub(super) const KNOWN: &[(&str, Meaning)] = &[
    ("defaults", Nothing),
    ("auto", Nothing),
    ("noauto", Nothing),
    ("user", Nothing),
    ("nouser", Nothing),
    ("users", Nothing),
    ("owner", Nothing),
    ("group", Nothing),
    ("_netdev", Nothing),
    ("nofail", Nothing),
    ("loop", Nothing),
    ("silent", Nothing),
    ("loud", Nothing),
    ("async", Nothing),
    ("noiversion", Nothing),
    ("nomand", Nothing),
    ("symfollow", Nothing),
    ("fsname=", Nothing),
    ("subtype=", Nothing),
    // Options of FUSE mounts in the table of mounts: mount(8) repeats them for a remount.
    ("user_id=", Nothing),
    ("group_id=", Nothing),
    ("default_permissions", Nothing),
    ("max_read=", Nothing),
    ("blksize=", Nothing),
    ("comment=", Nothing),
    ("sync", Note("a write is durable only after fsync or with O_SYNC")),
    (
        "dirsync",
        Note("a change of a directory is durable only after fsync of the directory"),
    ),
    ("nosymfollow", Note("the mount follows symbolic links")),
    ("iversion", Note("FUSE has no inode versions")),
    ("mand", Note("Linux no longer has mandatory locks")),
    ("context=", Note(LABELS)),
    ("fscontext=", Note(LABELS)),
    ("defcontext=", Note(LABELS)),
    ("rootcontext=", Note(LABELS)),
    ("ssd", Nothing),
    ("nossd", Nothing),
    ("ssd_spread", Nothing),
    ("nossd_spread", Nothing),
    ("space_cache", Nothing),
    ("space_cache=", Nothing),
    ("barrier", Nothing),
    ("acl", Nothing),
    ("treelog", Nothing),
    ("noautodefrag", Nothing),
    ("noflushoncommit", Nothing),
    ("noenospc_debug", Nothing),
    ("nospace_cache", Note(SPACE)),
    ("clear_cache", Note(SPACE)),
    ("noinode_cache", Nothing),
    ("inode_cache", Note("Buttress stores no cache of inode numbers")),
    ("nobarrier", Note(BARRIERS)),
    ("noacl", Note("access lists always apply")),
    ("notreelog", Note(NO_LOG_CHOICE)),
    (
        "autodefrag",
        Note("Buttress does not defragment files automatically"),
    ),
    ("flushoncommit", Note("every commit writes dirty data back")),
    (
        "skip_balance",
        Note("a mount resumes no balance by itself; `balance resume` does"),
    ),
    (
        "user_subvol_rm_allowed",
        Note("only root and the server's user can remove a subvolume"),
    ),
    ("rescan_uuid_tree", Note("a mount does not rebuild the uuid tree")),
    ("enospc_debug", Note(DEBUG)),
    ("check_int", Note(DEBUG)),
    ("check_int_data", Note(DEBUG)),
    ("check_int_print_mask=", Note(DEBUG)),
    ("fragment=", Note(DEBUG)),
    (
        "fatal_errors=",
        Note("a device error can stop writes to the volume, never the system"),
    ),
    ("thread_pool=", Note(SYSTEM)),
    (
        "metadata_ratio=",
        Note("Buttress allocates metadata block groups on demand"),
    ),
    ("alloc_start=", Note("Linux no longer has this option")),
    ("subvolrootid=", Note("Linux no longer has this option")),
];

/// Returns the effect of an option that is accepted without effect.
pub(super) fn meaning(option: &str) -> Option<Meaning> {
    let name = option.split_inclusive('=').next().unwrap_or(option);
    let is_for_others = ["x-", "X-"].iter().any(|start| option.starts_with(start));
    let known = KNOWN.iter().find(|(known, _)| *known == name);
    known
        .map(|(_, meaning)| *meaning)
        .or_else(|| is_for_others.then_some(Nothing))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_known_once_and_are_in_the_manual() {
        let manual = include_str!("../../../../../docs/mount.md");
        for (number, (name, meaning)) in KNOWN.iter().enumerate() {
            let is_first = KNOWN.iter().position(|(other, _)| other == name) == Some(number);
            assert!(is_first, "{name} occurs twice");
            assert!(
                manual.contains(&format!("`{name}`")),
                "{name} is not in docs/mount.md"
            );
            if let Note(text) = meaning {
                assert!(manual.contains(text), "{name}: its note is not in docs/mount.md");
            }
        }
        assert_eq!(meaning("x-systemd.automount"), Some(Nothing));
        assert_eq!(meaning("thread_pool=8"), Some(Note(SYSTEM)));
        assert_eq!(meaning("thread_pool"), None);
        assert_eq!(meaning("nonsense"), None);
    }
}
