//! Tests of both sides of limits: items full of names, and inodes with the maximum number of names.
//! The kernel decides each limit.

use super::against_kernel::{Check, compare};
use super::steps::{How, Step};
use crate::operations::SetXattr;
use buttress_oracle::content::names_of_one_hash::names;
use buttress_oracle::skip::skips;
use buttress_oracle::tools::kernel_missing;

/// Small nodes reach limits with fewer items.
const SMALL_NODES: [&str; 4] = ["-n", "4k", "-m", "single"];

fn compare_steps(steps: &[Step], features: &[&str]) {
    compare_checked(steps, features, Check::Yes);
}

fn compare_checked(steps: &[Step], features: &[&str], check: Check) {
    if skips(kernel_missing()) {
        return;
    }
    compare(steps, features, 1000, check).unwrap_or_else(|error| panic!("{error:#}"));
}

#[test]
fn names_of_one_hash_until_their_item_is_full() {
    for (features, count) in [(&SMALL_NODES[..], 40), (&[], 150)] {
        let names = names("n", 100, count);
        let mut steps: Vec<Step> = names
            .iter()
            .map(|name| Step::Create(name.clone(), 0o644))
            .collect();
        // The directory has space for a name that replaces another name, and for a name after a
        // removal.
        steps.push(Step::Create("other".to_owned(), 0o644));
        let last = names[count - 1].clone();
        steps.push(Step::Rename("other".to_owned(), last.clone(), How::Replace));
        steps.push(Step::Rename("other".to_owned(), names[0].clone(), How::Replace));
        steps.push(Step::Link(names[0].clone(), last.clone()));
        steps.push(Step::Unlink(names[1].clone()));
        steps.push(Step::Link(names[0].clone(), last.clone()));
        steps.push(Step::Directory(names[1].clone(), 0o755));
        steps.extend(names.iter().map(|name| Step::Unlink(name.clone())));
        compare_steps(&steps, features);
    }
}

#[test]
fn names_of_one_inode_in_one_directory_go_on_in_extended_items() {
    let mut steps = vec![
        Step::Directory("d".to_owned(), 0o755),
        Step::Create("d/file".to_owned(), 0o644),
    ];
    let link = |number: usize| format!("d/{number:0200}");
    steps.extend((0..60).map(|number| Step::Link("d/file".to_owned(), link(number))));
    // Rename a link whose name items are full: within the directory, to another directory, and away
    // from it.
    steps.push(Step::Rename(link(3), link(1003), How::Replace));
    steps.push(Step::Rename(link(58), "moved".to_owned(), How::Replace));
    steps.push(Step::Rename("moved".to_owned(), link(58), How::NoReplace));
    steps.extend((5..30).map(|number| Step::Unlink(link(number))));
    steps.push(Step::Link("d/file".to_owned(), link(2000)));
    steps.push(Step::Unlink(link(2000)));
    steps.push(Step::Create("other".to_owned(), 0o600));
    steps.push(Step::Rename("other".to_owned(), link(40), How::Exchange));
    compare_steps(&steps, &SMALL_NODES);
    steps.extend((0..60).map(|number| Step::Unlink(link(number))));
    compare_steps(&steps, &SMALL_NODES);
}

#[test]
fn volume_without_extended_items_rejects_name_without_space() {
    let mut steps = vec![Step::Create("file".to_owned(), 0o644)];
    steps.extend((0..25).map(|number| Step::Link("file".to_owned(), format!("{number:0200}"))));
    let features = [&SMALL_NODES[..], &["-O", "^extref"]].concat();
    compare_steps(&steps, &features);
}

#[test]
fn an_inode_has_at_most_65535_names() {
    let mut steps = vec![Step::Create("file".to_owned(), 0o644)];
    for number in 0..65_540_usize {
        if number % 3000 == 0 {
            steps.push(Step::Directory(format!("d{}", number / 3000), 0o755));
        }
        steps.push(Step::Link(
            "file".to_owned(),
            format!("d{}/{number}", number / 3000),
        ));
    }
    steps.push(Step::Unlink("d0/7".to_owned()));
    steps.push(Step::Link("file".to_owned(), "again".to_owned()));
    steps.push(Step::Link("file".to_owned(), "again and again".to_owned()));
    compare_checked(&steps, &[], Check::No);
}

#[test]
fn attributes_of_one_hash_until_their_item_is_full() {
    let names = names("user.", 30, 12);
    let mut steps = vec![Step::Create("file".to_owned(), 0o644)];
    let set = |name: &String, bytes: usize, how| {
        Step::SetXattr("file".to_owned(), name.clone(), vec![5; bytes], how)
    };
    steps.extend(names.iter().map(|name| set(name, 500, SetXattr::Create)));
    // An attribute grows without space, shrinks, and grows into the space that another attribute
    // left.
    steps.push(set(&names[0], 1200, SetXattr::Replace));
    steps.push(set(&names[0], 10, SetXattr::Replace));
    steps.push(set(&names[1], 900, SetXattr::Replace));
    steps.push(Step::RemoveXattr("file".to_owned(), names[2].clone()));
    steps.push(set(&names[3], 900, SetXattr::CreateOrReplace));
    steps.push(set(&names[11], 500, SetXattr::CreateOrReplace));
    for bytes in [3814, 3815, 3816, 3817, 3930, 3960, 4096] {
        steps.push(set(&"user.alone".to_owned(), bytes, SetXattr::CreateOrReplace));
    }
    compare_steps(&steps, &SMALL_NODES);
}
