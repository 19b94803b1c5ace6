//! `mkfs --offset`: volumes that do not start at the first byte of an image.

use super::fresh;
use crate::support::stdout;
use std::fs;

const START: &str = "1M";
const START_BYTES: u64 = 1 << 20;

#[test]
fn new_image_has_space_for_the_volume_after_its_start() {
    for words in [&["-b", "300M"][..], &["-r", "tree"], &["-r", "tree", "--shrink"]] {
        let (folder, image) = fresh();
        let tree = folder.path().join("tree");
        fs::create_dir(&tree).unwrap();
        fs::write(tree.join("file"), b"content").unwrap();
        let tree = tree.to_str().unwrap();
        let words = words.iter().map(|word| if *word == "tree" { tree } else { word });
        let mut line = vec!["mkfs", "-q", "--offset", START];
        line.extend(words);
        line.push(&image);
        stdout(&line);
        let checked = stdout(&["check", "--offset", START, &image]);
        assert!(!checked.contains("cut short"), "{line:?}: {checked}");
        if line.contains(&"-r") {
            let content = stdout(&["cat", "--offset", START, &format!("{image}:/file")]);
            assert_eq!(content, "content", "{line:?}");
        }
    }
}

#[test]
fn shrink_keeps_what_follows_the_volume_in_an_existing_image() {
    let (folder, image) = fresh();
    let tree = folder.path().join("tree");
    fs::create_dir(&tree).unwrap();
    let bytes = (256 << 20) + START_BYTES;
    fs::File::create(&image).unwrap().set_len(bytes).unwrap();
    let tree = tree.to_str().unwrap();
    stdout(&["mkfs", "-q", "--offset", START, "-r", tree, "--shrink", &image]);
    assert_eq!(fs::metadata(&image).unwrap().len(), bytes);
    stdout(&["check", "--offset", START, &image]);
}
