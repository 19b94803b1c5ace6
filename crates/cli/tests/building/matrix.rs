//! Tests of all pairs of the flags that mkfs.btrfs also has: the kernel mounts the resulting
//! volumes, both checks find them clean, and they have the content of the source.

use super::{UUID, UUID_OF_SEVERAL, done, mkfs_of, noise, wanted};
use buttress_oracle::btrfs_check::btrfs_check;
use buttress_oracle::loop_device::Mount;
use buttress_oracle::manifest::{self, expect_equal};
use buttress_oracle::needs::any_missing;
use buttress_oracle::skip::skips;
use buttress_oracle::tools::progs_missing;
use std::fs::File;
use std::os::unix::fs::{FileExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

/// Groups of flags; each case has one flag of each group. The first one of each group is the
/// default.
const GROUPS: [&[&[&str]]; 9] = [
    &[&[], &["-n", "4096"], &["-n", "65536"]],
    &[
        &[],
        &["--csum", "xxhash"],
        &["--csum", "sha256"],
        &["--csum", "blake2"],
    ],
    &[
        &[],
        &["--compress", "zstd"],
        &["--compress", "zlib:1"],
        &["--compress", "lzo"],
    ],
    &[
        &[],
        &["-m", "single"],
        &["-d", "dup"],
        &["-m", "single", "-d", "dup"],
        &["--mixed"],
    ],
    &[
        &[],
        &["-O", "^no-holes"],
        &["-O", "^free-space-tree,^block-group-tree"],
        &["-O", "^block-group-tree,^skinny-metadata"],
        &["-O", "^extref,quota"],
        &["-O", "squota"],
    ],
    &[
        &[],
        &["--subvol", "d"],
        &["--subvol", "ro:d", "--subvol", "d/e", "--subvol", "default:new"],
        &["--subvol", "default-ro:d/e"],
    ],
    &[
        &["--shrink"],
        &["--byte-count", "300M"],
        &["--shrink", "--shrink-slack-size", "40M"],
    ],
    &[
        &[],
        &["--inode-flags", "nodatacow:large", "--inode-flags", "nodatasum:d"],
    ],
    &[&[], &["-L", "a label", "-K"]],
];

/// Flags for several devices, with the profiles that need them.
const ON_SEVERAL: [&[&str]; 5] = [
    &["-d", "raid0", "-m", "raid1"],
    &["-d", "raid1", "-m", "raid1", "--compress", "zstd"],
    &["-d", "raid10", "-m", "raid10", "--csum", "xxhash"],
    &["-d", "raid5", "-m", "raid1c3"],
    &["-d", "raid6", "-m", "raid1c4", "-O", "quota"],
];

fn goes(row: &[usize]) -> bool {
    // Mixed block groups require nodes of one sector.
    row[3] != 4 || row[0] == 1 || row[0] == 0
}

/// Returns cases that cover every pair of choices from different groups.
fn pairwise() -> Vec<Vec<usize>> {
    let mut open = Vec::new();
    for (one, choices) in GROUPS.iter().enumerate() {
        for (other, others) in GROUPS.iter().enumerate().skip(one + 1) {
            for choice in 0..choices.len() {
                open.extend((0..others.len()).map(|second| ((one, choice), (other, second))));
            }
        }
    }
    let covers = |row: &[usize], pair: &((usize, usize), (usize, usize))| {
        row[pair.0.0] == pair.0.1 && row[pair.1.0] == pair.1.1
    };
    let mut random = buttress_oracle::content::Random::new(17);
    let mut rows = Vec::new();
    // The remaining pairs of options are incompatible.
    while rows.len() < 60 {
        let mut best: (usize, Vec<usize>) = (0, Vec::new());
        for _ in 0..200 {
            let mut row: Vec<usize> = GROUPS
                .iter()
                .map(|choices| random.below(choices.len() as u64) as usize)
                .collect();
            // Begin with a missing pair, so that each case adds coverage.
            if let Some(pair) = open.get(random.below(open.len().max(1) as u64) as usize) {
                row[pair.0.0] = pair.0.1;
                row[pair.1.0] = pair.1.1;
            }
            let new = open.iter().filter(|pair| covers(&row, pair)).count();
            if goes(&row) && new > best.0 {
                best = (new, row);
            }
        }
        if best.0 == 0 {
            break;
        }
        open.retain(|pair| !covers(&best.1, pair));
        rows.push(best.1);
    }
    let refused: Vec<_> = open
        .iter()
        .filter(|pair| pair.1 != (3, 4) && pair.0 != (3, 4))
        .collect();
    assert!(refused.is_empty(), "pairs without a row: {refused:?}");
    rows
}

/// Fills a tree with every kind of file.
fn fill(top: &Path) {
    let path = |name: &str| top.join(name);
    for directory in ["d", "d/e", "d/e/deep", "empty"] {
        std::fs::create_dir(path(directory)).unwrap();
    }
    for (number, size) in [0, 1, 100, 2047, 2048, 2049, 3700, 3800, 4095, 4096, 4097, 70_000]
        .into_iter()
        .enumerate()
    {
        std::fs::write(path(&format!("d/f{number}")), noise(number as u64, size)).unwrap();
        std::fs::write(
            path(&format!("d/e/g{number}")),
            noise(number as u64 + 50, size * 3),
        )
        .unwrap();
    }
    std::fs::write(path("large"), noise(99, 1_700_001)).unwrap();
    let holes = File::create(path("holes")).unwrap();
    holes.set_len(3_000_000).unwrap();
    for at in [8192, 1 << 20, 2_500_000] {
        holes.write_all_at(&noise(at, 5000), at).unwrap();
    }
    std::fs::hard_link(path("large"), path("d/e/linked")).unwrap();
    std::fs::hard_link(path("d/f3"), path("d/f3-again")).unwrap();
    symlink("../large", path("d/link")).unwrap();
    symlink("x".repeat(3000), path("long-link")).unwrap();
    std::fs::set_permissions(path("large"), std::fs::Permissions::from_mode(0o6755)).unwrap();
    std::fs::set_permissions(path("empty"), std::fs::Permissions::from_mode(0o1777)).unwrap();
    chown(path("d/f4"), Some(1234), Some(70_000)).unwrap();
    let device = |name: &str, words: &[&str]| {
        done(Command::new("mknod").arg(path(name)).args(words));
    };
    device("null", &["c", "1", "3"]);
    device("disk", &["b", "8", "17"]);
    device("pipe", &["p"]);
    rustix::fs::setxattr(
        path("d/f1"),
        "security.capability",
        &[1, 0, 0, 2, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        rustix::fs::XattrFlags::empty(),
    )
    .unwrap();
    rustix::fs::setxattr(
        path("d/e"),
        "trusted.name",
        &noise(7, 900),
        rustix::fs::XattrFlags::empty(),
    )
    .unwrap();
    for (number, name) in ["large", "d/f5", "d/e", "holes"].into_iter().enumerate() {
        let moment = std::time::UNIX_EPOCH + std::time::Duration::new(1_500_000_000, 7 + number as u32);
        File::open(path(name)).unwrap().set_modified(moment).unwrap();
    }
}

struct Source {
    folder: tempfile::TempDir,
    tree: PathBuf,
    wanted: manifest::Manifest,
}

impl Source {
    fn new() -> Self {
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let tree = folder.path().join("tree");
        std::fs::create_dir(&tree).unwrap();
        fill(&tree);
        let wanted = wanted(&tree);
        Self { folder, tree, wanted }
    }

    /// Creates a volume, and verifies it with the kernel and both checks.
    fn try_row(&self, name: &str, flags: &[&str], devices: usize) {
        let images: Vec<PathBuf> = (0..devices)
            .map(|number| self.folder.path().join(format!("{name}-{number}.img")))
            .collect();
        if devices > 1 {
            for image in &images {
                File::create(image).unwrap().set_len(300 << 20).unwrap();
            }
        }
        let mut made = mkfs_of(if devices > 1 { UUID_OF_SEVERAL } else { UUID });
        done(made.args(flags).arg("--rootdir").arg(&self.tree).args(&images));
        let mount = Mount::new(&images, "ro,subvolid=5").unwrap();
        let mut found = manifest::of_directory(mount.path()).unwrap();
        mount.close().unwrap();
        let mut wanted = self.wanted.clone();
        if flags.contains(&"default:new") {
            // The source directory does not have this subvolume.
            assert!(found.remove(&b"new"[..]).is_some(), "{flags:?}");
        }
        // Links to one file from two subvolumes become two files.
        if flags.contains(&"--subvol") {
            for manifest in [&mut found, &mut wanted] {
                for path in [&b"large"[..], b"d/e/linked", b"d/f3", b"d/f3-again"] {
                    manifest.get_mut(path).unwrap().linked = None;
                }
            }
        }
        if let Err(error) = expect_equal(&format!("{flags:?}"), &wanted, &found) {
            panic!("{error:#}");
        }
        let is_known = !flags.contains(&"squota") || !skips(progs_missing((6, 7)));
        if is_known && let Err(error) = btrfs_check(&images) {
            panic!("{flags:?}: {error:#}");
        }
        let mut ours = Command::new(env!("CARGO_BIN_EXE_buttress"));
        ours.args(["check", "--check-data-csum"]).arg(&images[0]);
        for image in &images[1..] {
            ours.arg("--device").arg(image);
        }
        done(&mut ours);
        for image in images {
            std::fs::remove_file(image).unwrap();
        }
    }
}

#[test]
fn all_pairs_of_flags_of_mkfs_btrfs_give_sound_volumes() {
    if skips(any_missing(&[
        "root",
        "kernel",
        "loop-devices",
        "btrfs",
        "losetup",
    ])) {
        return;
    }
    let source = Source::new();
    let rows = Mutex::new(pairwise().into_iter().enumerate());
    let tried = std::sync::atomic::AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                loop {
                    let Some((number, row)) = rows.lock().unwrap().next() else {
                        break;
                    };
                    let flags = row.iter().zip(GROUPS).flat_map(|(choice, group)| group[*choice]);
                    let flags: Vec<&str> = flags.copied().collect();
                    source.try_row(&format!("row{number}"), &flags, 1);
                    tried.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                }
            });
        }
    });
    let tried = tried.into_inner();
    println!("{tried} rows of flags, every two together");
    assert!(tried >= 24, "{tried} rows");
}

#[test]
fn several_devices_in_every_profile_hold_what_the_source_holds() {
    if skips(any_missing(&[
        "root",
        "kernel",
        "loop-devices",
        "btrfs",
        "losetup",
    ])) {
        return;
    }
    let source = Source::new();
    for (number, flags) in ON_SEVERAL.into_iter().enumerate() {
        source.try_row(&format!("several{number}"), flags, 4);
    }
}
