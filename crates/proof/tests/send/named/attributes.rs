//! Owners, permissions, times, extended attributes, and what clears them.

use super::{Named, named};
use buttress_oracle::history::operation::{
    Operation, Special, capability, chmod, chown, compress, link, mkdir, mv, posix_acl, remove_xattr, rm,
    set_times, set_xattr, special, symlink, touch, write, write_text,
};

const CAPABILITY: &str = "security.capability";
const ACL: &str = "system.posix_acl_access";
const DEFAULT_ACL: &str = "system.posix_acl_default";

pub fn situations() -> Vec<Named> {
    let mut situations = owners();
    situations.extend(xattrs());
    situations.extend(times());
    situations.extend(kinds());
    situations
}

fn owners() -> Vec<Named> {
    vec![
        named(
            "capability_stays_when_the_owner_changes",
            "A change of owner clears capabilities on the receiver; unchanged in the snapshot, they are not sent again.",
            vec![write("f", 0, 100), set_xattr("f", CAPABILITY, &capability())],
            vec![chown("f", 1000, 1000), set_xattr("f", CAPABILITY, &capability())],
        ),
        named(
            "capability_of_a_new_file_with_an_owner",
            "Capabilities set before the owner are gone again.",
            vec![],
            vec![
                write("f", 0, 5000),
                chown("f", 7, 7),
                set_xattr("f", CAPABILITY, &capability()),
            ],
        ),
        named(
            "capability_stays_when_data_is_written",
            "A write clears capabilities on the receiver.",
            vec![write("f", 0, 10_000), set_xattr("f", CAPABILITY, &capability())],
            vec![write("f", 3000, 10), set_xattr("f", CAPABILITY, &capability())],
        ),
        named(
            "capability_removed_with_the_owner_changed",
            "What the change of owner has cleared already cannot be removed again.",
            vec![touch("f"), set_xattr("f", CAPABILITY, &capability())],
            vec![chown("f", 5, 5)],
        ),
        named(
            "setuid_stays_when_the_owner_changes",
            "A change of owner clears the set-user-ID bit: permissions come after it.",
            vec![write("f", 0, 10), chmod("f", 0o4755)],
            vec![chown("f", 1000, 100), chmod("f", 0o6755)],
        ),
        named(
            "a_file_that_nobody_may_write",
            "Permissions set before the data shut out a receiver that is not root.",
            vec![write("f", 0, 9000), chmod("f", 0)],
            vec![write("f", 5000, 9000), chmod("f", 0o444)],
        ),
        named(
            "owner_of_a_symbolic_link",
            "Following the link changes the owner of what it points to.",
            vec![touch("f"), symlink("f", "l")],
            vec![chown("l", 12, 34)],
        ),
        named(
            "the_top_directory_itself",
            "It has no name and is never made: its attributes are sent all the same.",
            vec![chmod("", 0o700), set_xattr("", "user.top", b"1")],
            vec![
                chmod("", 0o1777),
                chown("", 3, 4),
                set_xattr("", "user.top", b"2"),
                set_times("", 1_000_000),
            ],
        ),
    ]
}

fn xattrs() -> Vec<Named> {
    const MANY: [&str; 12] = [
        "user.0", "user.1", "user.2", "user.3", "user.4", "user.5", "user.6", "user.7", "user.8", "user.9",
        "user.10", "user.11",
    ];
    vec![
        named(
            "added_changed_removed_emptied",
            "Each of the four is another comparison; an empty value is not an absent one.",
            vec![
                touch("f"),
                set_xattr("f", "user.changed", b"1"),
                set_xattr("f", "user.removed", b"1"),
                set_xattr("f", "user.emptied", b"1"),
                set_xattr("f", "user.kept", b"1"),
            ],
            vec![
                set_xattr("f", "user.changed", b"22"),
                remove_xattr("f", "user.removed"),
                set_xattr("f", "user.emptied", b""),
                set_xattr("f", "user.added", b"\x00\xff"),
            ],
        ),
        named(
            "many_large_ones",
            "They fill several leaves: the inode's items do not end with its first leaf.",
            [touch("f")]
                .into_iter()
                .chain(MANY.map(|name| set_xattr("f", name, &[b'v'; 3000])))
                .collect(),
            MANY.into_iter()
                .step_by(2)
                .map(|name| remove_xattr("f", name))
                .collect(),
        ),
        named(
            "acl_on_a_file_and_default_acl_on_a_directory",
            "Files made in a directory with a default ACL inherit one on the receiver, which the snapshot's may not have.",
            vec![
                mkdir("d"),
                touch("d/before"),
                touch("f"),
                set_xattr("f", ACL, &posix_acl(1000, 4)),
            ],
            vec![
                set_xattr("d", DEFAULT_ACL, &posix_acl(7, 6)),
                touch("g"),
                mv("g", "d/moved"),
                touch("d/made"),
                set_xattr("f", ACL, &posix_acl(1000, 6)),
            ],
        ),
        named(
            "on_a_file_that_also_moves",
            "The attribute is set under the path before or after the move, and one of them is wrong.",
            vec![touch("f"), set_xattr("f", "user.a", b"1"), mkdir("d")],
            vec![
                mv("f", "d/g"),
                set_xattr("d/g", "user.a", b"2"),
                remove_xattr("d/g", "user.a"),
                set_xattr("d/g", "user.b", b"3"),
            ],
        ),
        named(
            "on_a_symbolic_link_and_on_device_nodes",
            "Setting it through the link sets it on the target.",
            vec![symlink("nowhere", "l"), special("n", Special::Character(1, 3))],
            vec![
                set_xattr("l", "trusted.l", b"x"),
                set_xattr("n", "trusted.n", b"y"),
            ],
        ),
        named(
            "compression_property",
            "It is an attribute that acts: what is written after it is compressed, what is written before is not.",
            vec![
                touch("f"),
                compress("f", "zstd"),
                write_text("f", 0, 200_000),
                mkdir("d"),
                compress("d", "lzo"),
            ],
            vec![
                compress("f", "none"),
                write_text("d/g", 0, 100_000),
                write_text("f", 50_000, 10_000),
            ],
        ),
        named(
            "compressed_inline_file",
            "Its length on disk is not its length.",
            vec![
                touch("a"),
                compress("a", "zlib"),
                write_text("a", 0, 2000),
                touch("b"),
                compress("b", "zstd"),
                write_text("b", 0, 3500),
            ],
            vec![
                write_text("a", 500, 1000),
                touch("c"),
                compress("c", "lzo"),
                write_text("c", 0, 1800),
            ],
        ),
    ]
}

fn times() -> Vec<Named> {
    vec![
        named(
            "directory_whose_children_change",
            "Setting a child changes its directory's time: the directory's comes last.",
            vec![mkdir("d"), touch("d/f"), set_times("d", 1_000_000)],
            vec![touch("d/g"), rm("d/f"), set_times("d", 2_000_000)],
        ),
        named(
            "renamed_directory",
            "Its own time does not change, those of both parents do.",
            vec![
                mkdir("a"),
                mkdir("a/d"),
                mkdir("b"),
                touch("a/d/f"),
                set_times("a/d", 1_000_000),
            ],
            vec![
                mv("a/d", "b/d"),
                set_times("a", 3_000_000),
                set_times("b", 4_000_000),
                set_times("b/d", 1_000_000),
            ],
        ),
        named(
            "deep_directories_of_which_one_changes",
            "Making and moving things at the top for a while changes the top's time.",
            vec![
                mkdir("a"),
                mkdir("a/b"),
                mkdir("a/b/c"),
                set_times("a/b", 5),
                set_times("a", 6),
                set_times("", 7),
            ],
            vec![touch("a/b/c/f"), set_times("a/b/c", 8)],
        ),
        named(
            "before_1970_and_after_2106",
            "Seconds of 32 bits wrap around, unsigned ones lose their sign.",
            vec![
                touch("a"),
                touch("b"),
                set_times("a", -86_400),
                set_times("b", 7_258_118_400),
            ],
            vec![set_times("a", 7_258_118_400), set_times("b", -1)],
        ),
        named(
            "of_a_symbolic_link",
            "Followed, the time of the target is set.",
            vec![touch("f"), symlink("f", "l"), set_times("f", 10)],
            vec![set_times("l", 1_234_567)],
        ),
        named(
            "only_the_time_of_access",
            "Nothing else in the inode has changed.",
            vec![touch("f")],
            vec![
                Operation::Times(b"f".to_vec(), (99, 9), (100, 0)),
                touch("g"),
                Operation::Times(b"g".to_vec(), (1, 0), (2, 0)),
            ],
        ),
    ]
}

fn kinds() -> Vec<Named> {
    vec![
        named(
            "fifos_sockets_and_device_nodes",
            "Each has a command of its own; device numbers above 8 bits are packed in parts.",
            vec![
                special("p", Special::Fifo),
                special("s", Special::Socket),
                special("c", Special::Character(5, 1)),
                special("b", Special::Block(0xfff, 0xfffff)),
            ],
            vec![
                rm("p"),
                special("p", Special::Character(1, 7)),
                rm("c"),
                special("c", Special::Fifo),
                chmod("b", 0o600),
                link("s", "s2"),
            ],
        ),
        named(
            "device_node_made_anew_with_another_number",
            "The number is no attribute that can be changed.",
            vec![special("b", Special::Block(8, 1))],
            vec![rm("b"), special("b", Special::Block(8, 17))],
        ),
        named(
            "a_symbolic_link_as_long_as_can_be",
            "The target is no path of the receiver and has no shorter limit.",
            vec![symlink(&"x".repeat(3900), "l"), symlink("../../../etc", "m")],
            vec![mv("l", "n")],
        ),
    ]
}
