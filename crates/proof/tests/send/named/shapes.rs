//! Whole snapshots: unchanged ones, forks, nested subvolumes, very many names, very long paths.

use super::{Named, named, with_history};
use buttress_oracle::history::operation::{
    Operation, link, mkdir, mv, nested, reflink_all, rm, rm_r, touch, write,
};
use buttress_oracle::history::{Base, History, Transfer};

pub fn situations() -> Vec<Named> {
    let mut situations = chains();
    situations.extend(subvolumes());
    situations.extend(very_many());
    situations
}

fn backwards() -> History {
    let mut history = History::chain(vec![
        vec![mkdir("a"), mkdir("a/b"), write("a/b/f", 0, 20_000), touch("g")],
        vec![mv("a/b", "b"), mv("a", "b/a"), write("b/f", 0, 100), rm("g")],
    ]);
    history.transfers = vec![
        Transfer {
            snapshot: 1,
            parent: None,
            clones: vec![],
        },
        Transfer {
            snapshot: 0,
            parent: Some(1),
            clones: vec![],
        },
    ];
    history
}

fn skipping() -> History {
    let mut history = History::chain(vec![
        vec![mkdir("d"), write("d/f", 0, 50_000)],
        vec![rm_r("d"), write("d", 0, 10)],
        vec![rm("d"), mkdir("d"), write("d/f", 0, 60_000)],
    ]);
    history.transfers = vec![
        Transfer {
            snapshot: 0,
            parent: None,
            clones: vec![],
        },
        Transfer {
            snapshot: 2,
            parent: Some(0),
            clones: vec![],
        },
    ];
    history
}

fn forks() -> History {
    let mut history = History::chain(vec![
        vec![mkdir("d"), write("d/f", 0, 50_000), write("g", 0, 90_000)],
        vec![mv("d", "e"), write("e/new", 0, 5000)],
        vec![mv("d/f", "f"), write("new", 0, 5000), reflink_all("g", "h")],
    ]);
    history.steps[2].base = Base::Snapshot(0);
    history.transfers[2].clones = vec![0];
    history
}

fn chains() -> Vec<Named> {
    vec![
        named(
            "unchanged",
            "Two snapshots of the same tree: only their names and identities are sent.",
            vec![mkdir("d"), write("d/f", 0, 100_000), touch("g")],
            vec![],
        ),
        named(
            "empty_and_empty_again",
            "No inode but the top: the walk has nothing to end with.",
            vec![],
            vec![],
        ),
        named(
            "everything_deleted",
            "The new tree ends before the old one: what is left of the old one is still to be walked.",
            vec![mkdir("d"), write("d/f", 0, 10_000), mkdir("d/e"), touch("d/e/g")],
            vec![rm_r("d")],
        ),
        named(
            "everything_new",
            "The old tree ends first.",
            vec![],
            vec![mkdir("d"), write("d/f", 0, 10_000), mkdir("d/e"), touch("d/e/g")],
        ),
        with_history(
            "backwards",
            "The parent is the later snapshot: what is new in time is old in the send.",
            backwards(),
        ),
        with_history(
            "over_a_snapshot_in_between",
            "The name stood for something else in between, and that leaves no trace.",
            skipping(),
        ),
        with_history(
            "a_snapshot_of_a_snapshot",
            "Sent from its sibling: both have inodes of one number that the common ancestor does not have.",
            forks(),
        ),
    ]
}

fn subvolumes() -> Vec<Named> {
    vec![
        named(
            "nested_subvolume",
            "It has a name in the snapshot, but no inode: following the name ends in another tree.",
            vec![mkdir("d"), nested("d/inner"), touch("d/f")],
            vec![nested("d/second"), touch("d/g"), mv("d", "e")],
        ),
        named(
            "directory_with_a_nested_subvolume_is_deleted",
            "The name of the subvolume makes the directory look as if it were not empty.",
            vec![mkdir("d"), nested("d/inner"), touch("f")],
            vec![rm_r("d")],
        ),
        named(
            "nested_subvolumes_name_becomes_a_file",
            "The old name is of another kind of location, not of an inode that is to be deleted.",
            vec![nested("n"), touch("f")],
            vec![Operation::RemoveAll(b"n".to_vec()), write("n", 0, 100)],
        ),
    ]
}

fn very_many() -> Vec<Named> {
    let long = |n: usize| format!("links/{n:04}-{}", "x".repeat(180));
    let deep: Vec<String> = (0..50)
        .scan(String::new(), |path, level| {
            path.push_str(&format!("/level-{level:03}-{}", "d".repeat(40)));
            Some(path.trim_start_matches('/').to_owned())
        })
        .collect();
    let bottom = deep.last().cloned().unwrap_or_default();
    let moved = bottom.replacen("level-000", "moved-000", 1);
    let top = deep.first().cloned().unwrap_or_default();
    let moved_top = moved.split('/').next().unwrap_or_default().to_owned();
    let dive: Vec<Operation> = deep
        .iter()
        .map(mkdir)
        .chain([write(&format!("{bottom}/f"), 0, 9000)])
        .collect();
    vec![
        named(
            "more_links_than_one_item_holds",
            "The rest of the names lie in items of another type, in the order of hashes.",
            [mkdir("links"), write("f", 0, 100)]
                .into_iter()
                .chain((0..1500).map(|n| link("f", &long(n))))
                .collect(),
            (0..1500)
                .step_by(3)
                .map(|n| rm(&long(n)))
                .chain((0..50).map(|n| link("f", &format!("links/new-{n}"))))
                .collect(),
        ),
        named(
            "thousands_of_children_move",
            "Each asks whether its directory is done, or is searched for in a list: time goes with the square.",
            [mkdir("a")]
                .into_iter()
                .chain((0..3000).map(|n| touch(&format!("a/{n}"))))
                .collect(),
            [mkdir("b")]
                .into_iter()
                .chain((0..3000).map(|n| mv(&format!("a/{n}"), &format!("b/{n}"))))
                .collect(),
        ),
        named(
            "parent_of_thousands_is_renamed",
            "The children have not changed: none of them is sent.",
            [mkdir("a")]
                .into_iter()
                .chain((0..2000).map(|n| touch(&format!("a/{n}"))))
                .collect(),
            vec![mv("a", "b")],
        ),
        named(
            "very_deep_path",
            "A path is put together from its end, and is longer than a buffer that was large enough so far.",
            dive,
            vec![
                mv(&top, &moved_top),
                mv(&format!("{moved}/f"), &format!("{moved}/g")),
                write(&format!("{moved}/h"), 0, 10),
            ],
        ),
        named(
            "thousands_of_extents",
            "The items of one file fill many leaves.",
            (0..2000).map(|n| write("f", n * 8192, 4096)).collect(),
            (0..2000).step_by(7).map(|n| write("f", n * 8192, 100)).collect(),
        ),
    ]
}
