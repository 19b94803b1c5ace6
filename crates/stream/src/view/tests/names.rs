//! Tests of names: creation, moves, links, removal, and refusals.

use super::support::*;
use crate::view::{PathProblem, Problem};

fn invalid(path: &str, problem: PathProblem) -> Problem {
    Problem::PathInvalid {
        path: path.into(),
        problem,
    }
}

#[test]
fn names_are_made_moved_linked_and_taken_away() {
    let series = full(&[
        mkdir("o1"),
        mkfile("o2"),
        rename("o1", "d"),
        rename("o2", "d/f"),
        link("g", "d/f"),
        symlink("d/l", "../anywhere"),
        mkdir("e"),
        mkdir("gone"),
        rmdir("gone"),
        mkfile("gone"),
        unlink("gone"),
        // A directory replaces an empty directory, and a file replaces a file.
        rename("d", "e"),
        mkfile("h"),
        rename("h", "e/f"),
        // Both names of the rename belong to one file, so the rename has no effect.
        link("k", "g"),
        rename("k", "g"),
    ]);
    let expected = [("", 1), ("e", 1), ("e/f", 1), ("e/l", 1), ("g", 2), ("k", 2)];
    assert_eq!(
        paths(&last(&series).tree),
        expected.map(|(path, links)| (path.to_owned(), links))
    );
    assert_eq!(last(&series).tree.inode_count(), 5);
}

#[test]
fn a_directory_may_move_into_its_own_former_child() {
    let series = full(&[
        mkdir("a"),
        mkdir("a/b"),
        rename("a/b", "b"),
        rename("a", "b/a"),
        mkfile("b/a/f"),
    ]);
    let found: Vec<_> = paths(&last(&series).tree)
        .into_iter()
        .map(|(path, _)| path)
        .collect();
    assert_eq!(found, ["", "b", "b/a", "b/a/f"]);
}

#[test]
fn commands_that_a_receiver_could_not_execute_are_refused() {
    let not_found = |path: &str| Problem::NotFound { path: path.into() };
    let exists = |path: &str, found| Problem::Exists {
        path: path.into(),
        found,
    };
    let not_directory = |path: &str, found| Problem::NotDirectory {
        path: path.into(),
        found,
    };
    let not_empty = |path: &str, names| Problem::NotEmpty {
        path: path.into(),
        names,
    };
    let made = [mkdir("d"), mkfile("d/f"), symlink("l", "d"), mkdir("empty")];
    let cases = [
        (mkfile("d"), exists("d", "directory")),
        (mkdir("d/f"), exists("d/f", "regular file")),
        (mkfile("no/such/f"), not_found("no")),
        (mkfile("d/no/f"), not_found("d/no")),
        (mkfile("d/f/g"), not_directory("d/f", "regular file")),
        // The view never follows a symbolic link.
        (mkfile("l/g"), not_directory("l", "symbolic link")),
        (unlink("no"), not_found("no")),
        (rmdir("d"), not_empty("d", 1)),
        (rename("no", "d/x"), not_found("no")),
        (rename("empty", "d"), not_empty("d", 1)),
        (link("x", "no"), not_found("no")),
        (link("l", "d/f"), exists("l", "symbolic link")),
        (
            write("l", 0, b"x"),
            Problem::WrongKind {
                path: b"l".to_vec(),
                found: "symbolic link",
                wanted: "a regular file",
            },
        ),
        (rename("d", "d/f/x"), not_directory("d/f", "regular file")),
        (
            rename("d", "d/x"),
            Problem::IntoItself {
                from: b"d".to_vec(),
                to: b"d/x".to_vec(),
            },
        ),
    ];
    for (command, expected) in cases {
        let commands: Vec<_> = made.into_iter().chain([command]).collect();
        assert_eq!(refusal(&commands), expected, "{command:?}");
    }
    for command in [
        unlink("d"),
        rmdir("d/f"),
        rmdir("l"),
        link("x", "d"),
        rename("d", "d/f"),
        rename("d/f", "empty"),
        rename("empty", "l"),
    ] {
        let commands: Vec<_> = made.into_iter().chain([command]).collect();
        let problem = refusal(&commands);
        // The path d/f is in d, and the check for d comes first.
        let expected = matches!(problem, Problem::WrongKind { .. } | Problem::IntoItself { .. });
        assert!(expected, "{command:?}: {problem}");
    }
}

#[test]
fn paths_that_no_stream_may_hold_are_refused() {
    let long = "n".repeat(256);
    let cases = [
        ("../etc/passwd", PathProblem::Dots),
        ("d/../../x", PathProblem::Dots),
        ("..", PathProblem::Dots),
        ("d/./x", PathProblem::Dots),
        ("d//x", PathProblem::EmptyName),
        ("d/a\0b", PathProblem::ZeroByte),
        (&long, PathProblem::NameTooLong { name_bytes: 256 }),
    ];
    for (path, problem) in cases {
        let commands = [
            mkfile(path),
            unlink(path),
            rename(path, "y"),
            rename("d/f", path),
            link("y", path),
            link(path, "d/f"),
            write(path, 0, b"x"),
            utimes(path, 0, 0),
            clone(("d/f", 0), 0, 1, (path, 0)),
        ];
        for command in commands {
            assert_eq!(
                refusal(&[mkdir("d"), mkfile("d/f"), command]),
                invalid(path, problem),
                "{command:?}"
            );
        }
    }
    for command in [mkdir("/"), mkdir("./"), mkdir("."), rmdir("/")] {
        assert_eq!(refusal(&[command]), invalid("", PathProblem::Root), "{command:?}");
    }
    for command in [mkdir(""), rmdir(""), unlink(""), rename("", "x"), link("x", "")] {
        assert_eq!(refusal(&[command]), invalid("", PathProblem::Root), "{command:?}");
    }
    assert_eq!(
        refusal(&[mkdir("d"), rename("d", "")]),
        invalid("", PathProblem::Root)
    );
}

#[test]
fn a_very_deep_tree_is_walked_without_recursion() {
    let depth = 20_000;
    let mut commands = vec![mkdir("a"), mkdir("b")];
    // Each command adds one level from the bottom: a moves into b, and b is renamed to a.
    for _ in 0..depth {
        commands.extend([rename("a", "b/a"), rename("b", "a"), mkdir("b")]);
    }
    let series = full(&commands);
    let deepest = last(&series).tree.walk(crate::view::NodeId::ROOT);
    let deepest = deepest.map(|entry| entry.path.len()).max();
    assert_eq!(deepest, Some(depth * 2 + 1));
}
