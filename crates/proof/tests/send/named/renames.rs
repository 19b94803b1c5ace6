//! Moving names: into former descendants, in cycles, past each other.

use super::{Named, named};
use buttress_oracle::history::operation::{mkdir, mv, rm, rm_r, swap, symlink, touch, write};

pub fn situations() -> Vec<Named> {
    let mut situations = inversions();
    situations.extend(circles());
    situations.extend(between_old_and_new());
    situations
}

fn inversions() -> Vec<Named> {
    vec![
        named(
            "directory_below_its_former_child",
            "The parent is older, so it is moved first, into a directory that still lies below it: the receiver refuses the loop.",
            vec![mkdir("a"), mkdir("a/b")],
            vec![mv("a/b", "b"), mv("a", "b/a")],
        ),
        named(
            "parent_and_child_inverted_with_both_renamed",
            "The move that waits is made with the name that the child had when it began to wait.",
            vec![mkdir("a"), mkdir("a/b"), touch("a/b/f")],
            vec![mv("a/b", "y"), mv("a", "y/x")],
        ),
        named(
            "same_name_at_both_levels",
            "Parent and child have one name; taking paths for identities ends with one of them lost.",
            vec![mkdir("a"), mkdir("a/a"), touch("a/f"), touch("a/a/g")],
            vec![mv("a/a", "t"), mv("a", "t/a"), mv("t", "a")],
        ),
        named(
            "deep_inversion",
            "Each move waits for the next: a single level of waiting is not enough.",
            vec![
                mkdir("a"),
                mkdir("a/b"),
                mkdir("a/b/c"),
                mkdir("a/b/c/d"),
                mkdir("a/b/c/d/e"),
            ],
            vec![
                mv("a/b/c/d/e", "e"),
                mv("a/b/c/d", "e/d"),
                mv("a/b/c", "e/d/c"),
                mv("a/b", "e/d/c/b"),
                mv("a", "e/d/c/b/a"),
            ],
        ),
        named(
            "inversion_over_an_ancestor_that_stays",
            "The new parent is no child but a descendant two levels down; only looking at the direct parent finds no loop.",
            vec![
                mkdir("a"),
                mkdir("a/stays"),
                mkdir("a/stays/c"),
                touch("a/stays/f"),
            ],
            vec![mv("a/stays/c", "c"), mv("a", "c/a")],
        ),
        named(
            "siblings_become_a_chain",
            "Each older directory goes into a younger one that itself still has to move.",
            vec![mkdir("a"), mkdir("b"), mkdir("c"), mkdir("d")],
            vec![mv("c", "d/c"), mv("b", "d/c/b"), mv("a", "d/c/b/a")],
        ),
        named(
            "two_chains_exchange_their_ends",
            "Two moves wait for each other's ancestors; the order that works is neither's own.",
            vec![mkdir("a"), mkdir("a/b"), mkdir("c"), mkdir("c/d")],
            vec![mv("c/d", "d"), mv("a/b", "b"), mv("c", "b/c"), mv("a", "d/a")],
        ),
        named(
            "moved_below_what_another_waiting_move_brings",
            "The directory waited for is not moved itself: an ancestor of it is.",
            vec![mkdir("a"), mkdir("b"), mkdir("b/x"), mkdir("c"), mkdir("a/y")],
            vec![
                mv("b", "c/b"),
                mv("a", "c/b/x/a"),
                mv("c/b/x/a/y", "y"),
                mv("c", "y/c"),
            ],
        ),
        named(
            "renamed_ancestor_and_child_moved_up",
            "The child's old path goes through the ancestor's new name once that was renamed.",
            vec![
                mkdir("a"),
                mkdir("a/b"),
                mkdir("a/b/c"),
                write("a/b/c/f", 0, 5000),
            ],
            vec![mv("a", "x"), mv("x/b/c/f", "x/f"), mv("x/b", "y")],
        ),
    ]
}

fn circles() -> Vec<Named> {
    vec![
        named(
            "two_directories_swap_names",
            "Each name is taken by the other: without a made-up name in between, the first rename fails.",
            vec![mkdir("a"), mkdir("b"), touch("a/in-a"), touch("b/in-b")],
            vec![swap("a", "b")],
        ),
        named(
            "two_files_swap_names",
            "A rename over the other file would replace it: its content is lost.",
            vec![write("a", 0, 3000), write("b", 0, 70_000)],
            vec![swap("a", "b")],
        ),
        named(
            "a_file_and_a_directory_swap_names",
            "A file cannot be renamed over a directory, nor the other way round.",
            vec![touch("f"), mkdir("d"), touch("d/x")],
            vec![swap("f", "d")],
        ),
        named(
            "three_directories_rotate",
            "The made-up name of the first must be the one that is found when its turn comes.",
            vec![
                mkdir("a"),
                mkdir("b"),
                mkdir("c"),
                touch("a/1"),
                touch("b/2"),
                touch("c/3"),
            ],
            vec![mv("a", "t"), mv("b", "a"), mv("c", "b"), mv("t", "c")],
        ),
        named(
            "swap_across_directories_that_swap",
            "The paths of both files change twice: by their own swap and by their parents'.",
            vec![mkdir("a"), mkdir("b"), write("a/f", 0, 100), write("b/g", 0, 200)],
            vec![swap("a/f", "b/g"), swap("a", "b")],
        ),
        named(
            "parents_swap_and_children_change_sides",
            "A child is moved by the path that its parent has no more.",
            vec![
                mkdir("a"),
                mkdir("b"),
                mkdir("a/x"),
                mkdir("b/y"),
                touch("a/x/1"),
                touch("b/y/2"),
            ],
            vec![swap("a/x", "b/y"), swap("a", "b"), mv("a/y", "a/z")],
        ),
    ]
}

fn between_old_and_new() -> Vec<Named> {
    vec![
        named(
            "into_a_younger_directory_that_was_there",
            "The target exists, but comes later in the order: it must not be waited for.",
            vec![touch("f"), mkdir("d")],
            vec![mv("f", "d/f")],
        ),
        named(
            "new_file_in_a_younger_new_directory",
            "The file comes first, and its directory does not exist yet: it has to be made early, once.",
            vec![],
            vec![write("f", 0, 6000), mkdir("d"), mv("f", "d/f")],
        ),
        named(
            "new_directories_nested_against_their_order",
            "Making each where it belongs fails: its parent is made later.",
            vec![],
            vec![
                mkdir("a"),
                mkdir("b"),
                mkdir("c"),
                mv("a", "b/a"),
                mv("b", "c/b"),
                touch("c/b/a/f"),
            ],
        ),
        named(
            "old_directory_into_a_new_one_that_takes_its_name",
            "The new directory's name is still taken by what is to go into it.",
            vec![mkdir("d"), touch("d/f")],
            vec![mkdir("n"), mv("d", "n/d"), mv("n", "d")],
        ),
        named(
            "a_new_file_takes_the_name_of_a_directory_that_moved_to_a_younger_one",
            "The directory's move waits, and its name is given to the file while it is still there.",
            vec![mkdir("d"), mkdir("d/x"), mkdir("younger")],
            vec![mv("d", "younger/d"), touch("d")],
        ),
        named(
            "an_old_file_takes_the_name_of_a_directory_that_moved",
            "The file is older: its rename comes before the directory has left.",
            vec![
                write("f", 0, 10),
                mkdir("d"),
                mkdir("younger"),
                mkdir("younger/still"),
            ],
            vec![mv("d", "younger/still/d"), mv("f", "d")],
        ),
        named(
            "directory_becomes_a_file_and_a_link_a_directory",
            "The kind of what a name stands for changes with the name still there.",
            vec![mkdir("d"), touch("d/f"), symlink("d", "l")],
            vec![rm_r("d"), write("d", 0, 50), rm("l"), mkdir("l"), touch("l/f")],
        ),
        named(
            "renamed_over_another_file",
            "The replaced inode is younger and is still there when the rename is sent.",
            vec![write("a", 0, 9000), write("b", 0, 9000)],
            vec![mv("a", "b")],
        ),
        named(
            "renamed_over_an_empty_directory",
            "A directory is replaced by an older one, and must be gone before.",
            vec![mkdir("a"), touch("a/f"), mkdir("b")],
            vec![mv("a", "b")],
        ),
        named(
            "only_the_case_of_a_deep_parent_changes",
            "Everything below is as it was: paths that were remembered are wrong all the same.",
            vec![mkdir("p"), mkdir("p/q"), write("p/q/f", 0, 8192)],
            vec![mv("p", "P"), write("P/q/f", 4096, 100)],
        ),
        named(
            "names_that_are_not_utf_8",
            "A sender that takes names for text changes or refuses them.",
            vec![mkdir(b"\xff\xfe"), touch(b"\xff\xfe/\x80\n")],
            vec![mv(b"\xff\xfe/\x80\n", b"\xc3\x28"), mv(b"\xff\xfe", b"\xfe\xff")],
        ),
    ]
}
