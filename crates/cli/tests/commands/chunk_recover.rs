//! `rescue chunk-recover`: volumes of several devices without any block of their chunk trees.

use crate::support::in_folder;

use in_folder::{buttress, done, text};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

const DEVICES: [&str; 4] = ["one.img", "two.img", "three.img", "four.img"];
const NODE_BYTES: usize = 16 << 10;
/// The place of the fsid in a tree block and in a superblock.
const FSID: core::ops::Range<usize> = 32..48;
/// The place of the owner in a tree block.
const OWNER: core::ops::Range<usize> = 88..96;
/// The id of the chunk tree.
const CHUNK_TREE: u64 = 3;

/// Returns the words with the options for all devices.
fn on_all<'a>(words: &[&'a str]) -> Vec<&'a str> {
    let mut all = words.to_vec();
    for device in &DEVICES[1..] {
        all.extend(["--device", device]);
    }
    all.push(DEVICES[0]);
    all
}

/// Makes a volume with files whose content differs everywhere.
fn made(folder: &Path, data: &str, metadata: &str) {
    let mut words = vec!["mkfs", "-q", "--size", "256M", "-d", data, "-m", metadata];
    words.extend(DEVICES);
    done(folder, &words);
    let source = folder.join("source");
    fs::create_dir_all(&source).unwrap();
    for number in 0..60_u64 {
        let content =
            (0..number * 300).flat_map(|word| (word.wrapping_mul(0x9E37_79B9) ^ number).to_le_bytes());
        fs::write(
            source.join(format!("file-{number}")),
            content.collect::<Vec<u8>>(),
        )
        .unwrap();
    }
    let mut words = on_all(&["cp", "-r"]);
    let image = words.pop().unwrap();
    let to = format!("{image}:/");
    words.extend(["source", &to]);
    done(folder, &words);
}

/// Zeros all blocks of the chunk tree on a device. Returns their number.
fn lose_chunk_tree(image: &Path) -> usize {
    let file = File::options().read(true).write(true).open(image).unwrap();
    let mut superblock = [0; 4096];
    file.read_exact_at(&mut superblock, 65536).unwrap();
    let bytes = fs::read(image).unwrap();
    let mut found = 0;
    for at in (0..bytes.len() - NODE_BYTES).step_by(4096) {
        let block = &bytes[at..];
        let owner = u64::from_le_bytes(block[OWNER].try_into().unwrap());
        if block[FSID] == superblock[FSID] && owner == CHUNK_TREE && &block[64..72] != b"_BHRfS_M" {
            file.write_all_at(&[0; NODE_BYTES], at as u64).unwrap();
            found += 1;
        }
    }
    found
}

fn images(folder: &Path) -> Vec<PathBuf> {
    DEVICES.iter().map(|device| folder.join(device)).collect()
}

fn copied_equal(folder: &Path, words: &[&str]) {
    let mut words = on_all(words);
    let image = words.pop().unwrap();
    let from = format!("{image}:/source");
    words.extend([from.as_str(), "out"]);
    done(folder, &words);
    for entry in fs::read_dir(folder.join("source")).unwrap() {
        let path = entry.unwrap().path();
        let copy = folder.join("out").join(path.file_name().unwrap());
        assert!(fs::read(&path).unwrap() == fs::read(copy).unwrap(), "{path:?}");
    }
    fs::remove_dir_all(folder.join("out")).unwrap();
}

#[test]
fn lost_chunk_tree_comes_back_with_every_profile() {
    for (data, metadata) in [("raid0", "raid1c3"), ("raid6", "raid5"), ("raid10", "raid6")] {
        let own = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let folder = own.path();
        made(folder, data, metadata);
        let chunks = done(folder, &on_all(&["inspect-internal", "list-chunks"]));
        let lost: usize = images(folder).iter().map(|image| lose_chunk_tree(image)).sum();
        assert!(lost > 0, "{data}");
        assert_ne!(buttress(folder, &on_all(&["check"])).status.code(), Some(0));
        // A part of the devices proves nothing.
        let partial = buttress(folder, &["rescue", "chunk-recover", "-y", DEVICES[0]]);
        assert_eq!(partial.status.code(), Some(1), "{}", text(&partial.stderr));
        let declined = buttress(folder, &on_all(&["rescue", "chunk-recover"]));
        assert_eq!(declined.status.code(), Some(1), "{}", text(&declined.stderr));
        let restored = buttress(folder, &[on_all(&["restore"]), vec!["restored"]].concat());
        assert_eq!(
            restored.status.code(),
            Some(0),
            "{data}: {}",
            text(&restored.stderr)
        );
        let listed = done(folder, &on_all(&["rescue", "chunk-recover", "-y", "-v"]));
        assert!(
            listed.ends_with("Chunk tree recovered successfully\n"),
            "{listed}"
        );
        assert!(listed.contains("  Unrecoverable:\t0\n"), "{listed}");
        done(folder, &on_all(&["check", "--check-data-csum"]));
        assert_eq!(
            done(folder, &on_all(&["inspect-internal", "list-chunks"])),
            chunks,
            "{data}"
        );
        copied_equal(folder, &["cp", "-r"]);
        let whole = done(folder, &on_all(&["rescue", "chunk-recover"]));
        assert_eq!(whole, "Check chunks successfully with no orphans\n");
    }
}
