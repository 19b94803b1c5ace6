//! Names that are taken while their old inode still exists; links; deletions around moves.

use super::{Named, named, with_history};
use buttress_oracle::history::operation::{Operation, link, mkdir, mv, rm, rm_r, swap, touch, write};
use buttress_oracle::history::{Base, History};

pub fn situations() -> Vec<Named> {
    let mut situations = deleted_directories();
    situations.extend(names_taken());
    situations.extend(links());
    situations.extend(generations());
    situations
}

fn deleted_directories() -> Vec<Named> {
    vec![
        named(
            "child_leaves_a_directory_that_is_deleted",
            "The directory is older: it is removed while the child is still in it.",
            vec![mkdir("d"), write("d/f", 0, 5000)],
            vec![mv("d/f", "f"), rm("d")],
        ),
        named(
            "children_older_and_younger_than_the_deleted_directory_leave",
            "It can only be removed after the youngest child has left, not after the first.",
            vec![
                mkdir("old"),
                mkdir("d"),
                mv("old", "d/old"),
                mkdir("d/young"),
                touch("d/f"),
            ],
            vec![
                mv("d/old", "old-2"),
                mv("d/young", "young-2"),
                mv("d/f", "f"),
                rm("d"),
            ],
        ),
        named(
            "removal_waits_for_a_move_that_waits",
            "The child's move is itself delayed, and the removal has to wait for that.",
            vec![mkdir("p"), mkdir("p/q"), mkdir("p/q/r")],
            vec![mv("p/q/r", "r"), mv("p/q", "r/q"), rm("p")],
        ),
        named(
            "two_deleted_directories_in_each_other",
            "The outer one is older: it is not empty until the inner one is gone, which waits for its own child.",
            vec![mkdir("a"), mkdir("a/b"), mkdir("a/b/c"), mkdir("d")],
            vec![mv("a/b/c", "d/c"), rm("a/b"), rm("a")],
        ),
        named(
            "deleted_tree_with_a_child_older_than_its_parent",
            "Removing in the order of numbers meets a directory that is not empty.",
            vec![
                touch("f"),
                mkdir("x"),
                mkdir("d"),
                mv("x", "d/x"),
                mv("f", "d/x/f"),
                touch("d/g"),
            ],
            vec![rm_r("d")],
        ),
        named(
            "deleted_name_reused_by_a_new_directory_with_the_moved_files",
            "The old files go into the new directory, whose name is that of the old one until it is removed.",
            vec![mkdir("d"), write("d/a", 0, 100), write("d/b", 0, 5000)],
            vec![
                mv("d/a", "a"),
                mv("d/b", "b"),
                rm("d"),
                mkdir("d"),
                mv("a", "d/a"),
                mv("b", "d/b"),
            ],
        ),
        named(
            "deleted_name_reused_by_a_file_that_was_inside",
            "The name must be free before its last child takes it.",
            vec![mkdir("d"), write("d/f", 0, 100)],
            vec![mv("d/f", "f"), rm("d"), mv("f", "d")],
        ),
        named(
            "deleted_directory_recreated_with_all_its_names",
            "Same names, other inodes: by names alone nothing has changed.",
            vec![
                mkdir("d"),
                mkdir("d/e"),
                write("d/e/f", 0, 4096),
                write("d/g", 0, 10),
            ],
            vec![
                rm_r("d"),
                mkdir("d"),
                mkdir("d/e"),
                write("d/e/f", 0, 4096),
                write("d/g", 0, 10),
            ],
        ),
        named(
            "hundreds_of_deleted_directories_with_moved_children",
            "Remembering removals by searching a list for each child takes time in the square of their number.",
            (0..300)
                .flat_map(|n| [mkdir(&format!("d{n}")), touch(&format!("d{n}/f"))])
                .collect(),
            (0..300)
                .flat_map(|n| [mv(&format!("d{n}/f"), &format!("f{n}")), rm(&format!("d{n}"))])
                .collect(),
        ),
    ]
}

fn names_taken() -> Vec<Named> {
    vec![
        named(
            "name_of_a_deleted_directory_taken_by_an_older_file",
            "The directory cannot be removed yet, its children come later: it needs a made-up name.",
            vec![
                touch("old"),
                mkdir("d"),
                touch("d/x"),
                mkdir("d/y"),
                touch("d/y/z"),
            ],
            vec![rm_r("d"), mv("old", "d")],
        ),
        named(
            "name_of_a_moved_directory_taken_by_an_older_one",
            "Its children are younger: their paths go through the made-up name until it gets its own.",
            vec![
                mkdir("a"),
                mkdir("b"),
                write("b/f", 0, 8192),
                mkdir("b/c"),
                write("b/c/g", 0, 100),
            ],
            vec![
                mv("b", "z"),
                mv("a", "b"),
                write("z/f", 4096, 50),
                mv("z/c/g", "z/c/h"),
            ],
        ),
        named(
            "ancestor_under_a_made_up_name_is_deleted_later",
            "Paths that were remembered before the ancestor got its made-up name are used to remove its children.",
            vec![
                mkdir("old"),
                mkdir("d"),
                mkdir("d/e"),
                mkdir("d/e/f"),
                touch("d/e/f/g"),
                touch("d/h"),
            ],
            vec![mv("d/e/f/g", "g"), rm_r("d"), mv("old", "d")],
        ),
        named(
            "made_up_name_inside_a_made_up_name",
            "Two levels lose their names to older inodes; the inner path has to be made anew after the outer.",
            vec![
                mkdir("old-1"),
                touch("old-2"),
                mkdir("a"),
                mkdir("a/b"),
                touch("a/b/f"),
                mkdir("a/b/c"),
            ],
            vec![
                mv("a/b", "b-2"),
                mv("old-2", "a/b"),
                mv("a", "a-2"),
                mv("old-1", "a"),
                mv("b-2/f", "a/f"),
            ],
        ),
        named(
            "the_name_goes_round_three_inodes",
            "Each one's name is taken by the next older: only the first needs a made-up name, all need their own in the end.",
            vec![write("a", 0, 10), write("b", 0, 20), write("c", 0, 30)],
            vec![mv("c", "t"), mv("b", "c"), mv("a", "b"), mv("t", "a")],
        ),
        named(
            "the_moved_directorys_name_and_its_childs_name_are_taken",
            "The child is found neither under the old path nor under the final one of its parent.",
            vec![
                mkdir("x"),
                mkdir("y"),
                mkdir("d"),
                mkdir("d/c"),
                write("d/c/f", 0, 99),
            ],
            vec![
                mv("d/c", "c"),
                mv("d", "c/d"),
                mv("x", "d"),
                mv("y", "d/c"),
                write("c/f", 0, 10),
            ],
        ),
    ]
}

fn links() -> Vec<Named> {
    vec![
        named(
            "link_replaced_by_another_files_name",
            "One of two names is replaced: removing the inode instead of the name loses the other.",
            vec![write("a", 0, 100), link("a", "b"), write("c", 0, 200)],
            vec![mv("c", "b")],
        ),
        named(
            "links_of_two_files_swapped",
            "Each file keeps one name and gives the other away; both names exist all the time.",
            vec![
                write("a", 0, 1),
                link("a", "a2"),
                write("b", 0, 2),
                link("b", "b2"),
            ],
            vec![swap("a2", "b2")],
        ),
        named(
            "link_replaced_by_a_directory",
            "The name must be unlinked before the directory is made.",
            vec![touch("f"), link("f", "l")],
            vec![rm("l"), mkdir("l"), touch("l/x")],
        ),
        named(
            "first_name_removed_and_given_to_another_file",
            "The file is to be found by its other name when its data is written.",
            vec![write("a", 0, 5000), link("a", "z")],
            vec![rm("a"), write("a", 0, 7000), write("z", 1000, 10)],
        ),
        named(
            "links_below_a_directory_that_loses_its_name",
            "The paths of the file's names change under it, once its directory has a made-up name.",
            vec![
                mkdir("old"),
                mkdir("d"),
                write("d/f", 0, 100),
                link("d/f", "d/g"),
                link("d/f", "h"),
            ],
            vec![
                mv("d", "e"),
                mv("old", "d"),
                rm("e/g"),
                link("e/f", "e/i"),
                link("e/f", "d/j"),
            ],
        ),
        named(
            "link_moves_out_of_a_deleted_directory",
            "The other name goes with the directory: the inode must not.",
            vec![mkdir("d"), write("f", 0, 100), link("f", "d/l"), link("f", "d/m")],
            vec![mv("d/l", "l"), rm_r("d"), rm("f")],
        ),
        named(
            "new_link_in_a_directory_that_still_has_to_move",
            "The link's path is that of the future, the directory's that of the past.",
            vec![touch("f"), mkdir("a"), mkdir("a/b")],
            vec![
                mv("a/b", "b"),
                mv("a", "b/a"),
                link("f", "b/a/l"),
                link("f", "b/m"),
            ],
        ),
        named(
            "all_names_change",
            "No name of old is a name of now: the last old one may only go after the first new one is there.",
            vec![write("a", 0, 4096), link("a", "b"), link("a", "c")],
            vec![mv("a", "x"), mv("b", "y"), rm("c"), link("x", "z")],
        ),
        named(
            "link_takes_the_name_of_a_directory_that_moves_below_it",
            "The new name is an ancestor's old one.",
            vec![touch("f"), mkdir("d"), mkdir("d/e")],
            vec![mv("d/e", "e"), mv("d", "e/d"), link("f", "d")],
        ),
        named(
            "a_symbolic_links_target_changes",
            "It can only be made anew: the inode is another under the same name.",
            vec![Operation::Symlink(b"l".to_vec(), b"one".to_vec())],
            vec![rm("l"), Operation::Symlink(b"l".to_vec(), b"two".to_vec())],
        ),
    ]
}

/// Builds two unrelated subvolumes, the second one sent with the first one as its parent.
fn unrelated(first: Vec<Operation>, second: Vec<Operation>) -> History {
    let mut history = History::chain(vec![first, second]);
    history.steps[1].base = Base::Empty;
    history
}

fn generations() -> Vec<Named> {
    vec![
        with_history(
            "same_number_another_file",
            "The number was used again: comparing sizes and times alone sends a change of the old file.",
            unrelated(
                vec![write("a", 0, 9000)],
                vec![write("a", 0, 9000), write("b", 0, 10)],
            ),
        ),
        with_history(
            "same_number_a_directory_before_and_a_file_now",
            "The old inode must be removed with its kind, and its children come later.",
            unrelated(
                vec![mkdir("d"), touch("d/f"), mkdir("d/e"), touch("g")],
                vec![write("d", 0, 10), mkdir("e"), touch("e/f"), mkdir("g")],
            ),
        ),
        with_history(
            "same_numbers_and_names_nested_the_other_way_round",
            "Every directory is both deleted and made anew while the other still needs its name.",
            unrelated(
                vec![mkdir("a"), mkdir("a/b"), write("a/b/f", 0, 10), touch("a/g")],
                vec![mkdir("b"), mkdir("b/a"), write("b/a/f", 0, 20), touch("b/g")],
            ),
        ),
        with_history(
            "parent_of_another_history",
            "Nothing is the same but the top directory, which must not be deleted and made anew.",
            unrelated(
                (0..20)
                    .flat_map(|n| [mkdir(&format!("d{n}")), write(&format!("d{n}/f"), 0, 100 * n)])
                    .collect(),
                (0..20)
                    .flat_map(|n| [write(&format!("f{n}"), 0, 300 * n), mkdir(&format!("d{n}"))])
                    .collect(),
            ),
        ),
    ]
}
