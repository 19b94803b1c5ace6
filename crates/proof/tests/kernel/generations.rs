//! Older states of a volume that the kernel wrote: each state that opens shows its own content, or errors.

use anyhow::{Context as _, Result, ensure};
use buttress::salvage::{
    BlockIndex, IndexWriter, OpenedIndex, SpoolFolder, ViewOptions, identify, open_state, scan, states,
};
use buttress::unstable::device::{Device, OpenOptions};
use buttress::unstable::format::{FileKind, Generation, SUPERBLOCK_OFFSETS, SubvolumeId, Superblock};
use buttress::unstable::fs::{Content, Filesystem, Location, Progress, WalkItem, WalkOptions};
use buttress_oracle::loop_device::Mount;
use buttress_oracle::tools::{progs_missing, run};
use buttress_oracle::volumes::{Fill, Specification, format};
use buttress_proof::harness::{Case, Outcome};
use std::collections::BTreeMap;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

/// The commits of the test.
const COMMITS: u64 = 20;

/// The content of regular files, and `None` for directories, by path.
type Tree = BTreeMap<Vec<u8>, Option<Vec<u8>>>;

pub fn cases() -> Vec<Case> {
    vec![Case::new(
        "generations::older_states_show_their_own_content",
        || match progs_missing((6, 2)) {
            Some(reason) => Ok(Outcome::Skipped(reason)),
            None => older_states().map(|()| Outcome::Passed),
        },
    )]
}

/// Changes the volume for one commit: new files, overwritten files, deleted files, snapshots.
fn change(top: &Path, round: u64) -> Result<()> {
    let at = |name: &str| top.join(name);
    let content = |length: u64, salt: u64| -> Vec<u8> {
        let mut state = round.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ salt;
        let bytes = (0..length).map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            state.to_be_bytes()[0]
        });
        bytes.collect()
    };
    std::fs::create_dir_all(at(&format!("d{}", round % 5)))?;
    for number in 0..12 {
        let length = (number * 977 + round * 131) % 30_000;
        std::fs::write(at(&format!("d{}/f{number}", round % 5)), content(length, number))?;
    }
    // A large file is overwritten, so its old extents are used again.
    std::fs::write(at("large"), content(LARGE_BYTES, 77))?;
    std::fs::write(at(&format!("only-{round}")), content(40_000, 5))?;
    if round >= 3 {
        std::fs::remove_file(at(&format!("only-{}", round - 3)))?;
    }
    if round % 6 == 2 {
        let snapshot = at(&format!("snapshot-{round}"));
        let mut command = Command::new("btrfs");
        run(command
            .args(["subvolume", "snapshot", "-r"])
            .arg(top)
            .arg(snapshot))?;
    }
    Ok(())
}

/// Returns the tree of a mounted volume.
fn mounted(top: &Path) -> Result<Tree> {
    let mut tree = Tree::new();
    let mut waiting = vec![top.to_path_buf()];
    while let Some(directory) = waiting.pop() {
        for entry in std::fs::read_dir(&directory)? {
            let path = entry?.path();
            let name = path.strip_prefix(top)?.as_os_str().as_bytes().to_vec();
            if path.is_dir() {
                tree.insert(name, None);
                waiting.push(path);
            } else {
                tree.insert(name, Some(std::fs::read(&path)?));
            }
        }
    }
    Ok(tree)
}

/// Compares a state with its tree. Returns whether the state is whole: no error was met.
fn compare(filesystem: &Filesystem, expected: &Tree) -> Result<bool> {
    let root = Location::root_of(SubvolumeId::TOP_LEVEL);
    let (mut is_whole, mut found) = (true, 0);
    for item in filesystem.walk(root, WalkOptions::default()) {
        let mut entry = match item {
            WalkItem::Entry(entry) if entry.name.is_empty() => continue,
            WalkItem::Entry(entry) => entry,
            WalkItem::Failed(_) => {
                is_whole = false;
                continue;
            }
            WalkItem::Enter(_) | WalkItem::Leave(_) => continue,
        };
        let path = entry.path();
        let shown = path.escape_ascii().to_string();
        let content = expected
            .get(&path)
            .with_context(|| format!("{shown} is not of this state"))?;
        found += 1;
        if entry.metadata().kind != FileKind::Regular {
            ensure!(content.is_none(), "{shown} is no directory");
            continue;
        }
        let content = content
            .as_ref()
            .with_context(|| format!("{shown} is a directory"))?;
        ensure!(
            entry.metadata().size.get() == content.len() as u64,
            "size of {shown}"
        );
        let mut reader = entry.reader()?;
        while let Some(chunk) = reader.next_chunk()? {
            let range = usize::try_from(chunk.offset.get())?..usize::try_from(chunk.end().get())?;
            match chunk.content {
                Content::Data(bytes) => ensure!(bytes == content[range.clone()], "{shown} at {range:?}"),
                Content::Hole => ensure!(content[range.clone()].iter().all(|byte| *byte == 0), "{shown}"),
                Content::Damaged(_) => is_whole = false,
            }
        }
    }
    ensure!(!is_whole || found == expected.len(), "found {found} entries");
    Ok(is_whole)
}

/// Returns the generation of the primary superblock.
fn generation_of(image: &Path) -> Result<Generation> {
    let mut bytes = [0; 4096];
    std::fs::File::open(image)?.read_exact_at(&mut bytes, SUPERBLOCK_OFFSETS[0].get())?;
    Ok(Superblock::check(&bytes, SUPERBLOCK_OFFSETS[0])?.generation)
}

fn index_of(devices: &[Device], path: &Path) -> Result<Arc<BlockIndex>> {
    let progress = Progress::new();
    let identity = &identify(devices, &progress)?[0];
    let OpenedIndex::Scanning(mut writer, _) = IndexWriter::open(path, identity)? else {
        anyhow::bail!("the index exists");
    };
    scan(devices, identity, &mut writer, &progress)?;
    Ok(Arc::new(writer.finish(
        1 << 20,
        &SpoolFolder::new(None),
        &progress,
    )?))
}

/// The bytes of the file that each commit overwrites.
const LARGE_BYTES: u64 = 12_000_000;

/// Makes commits, and compares each state that opens with the tree of its time.
fn older_states() -> Result<()> {
    let specification = Specification {
        fill: Fill::Empty,
        device_mib: 160,
        ..Specification::default()
    };
    let (folder, images) = format(&specification)?;
    let image = &images[0];
    let mut trees: BTreeMap<Generation, Tree> = BTreeMap::new();
    let mount = Mount::new(&images, "commit=300")?;
    for round in 0..COMMITS {
        change(mount.path(), round)?;
        run(Command::new("btrfs")
            .args(["filesystem", "sync"])
            .arg(mount.path()))?;
        trees.insert(generation_of(image)?, mounted(mount.path())?);
    }
    mount.close()?;
    let devices = [Device::open(image, &OpenOptions::default())?];
    let index = index_of(&devices, &folder.path().join("index"))?;
    let whole = compared(&devices, &index, &trees)?;
    ensure!(
        whole.contains(trees.keys().next_back().context("no commit")?),
        "{whole:?}"
    );
    // All commits together write more than the device holds, so later ones overwrote earlier ones.
    ensure!(whole.len() < trees.len(), "{whole:?}");
    // The index alone opens these states, without superblocks.
    let devices = [devices[0].with_changes_in_memory()];
    for at in SUPERBLOCK_OFFSETS {
        if at.get() < devices[0].size_bytes() {
            devices[0].write(at.get(), &[0; 4096])?;
        }
    }
    let index = index_of(&devices, &folder.path().join("index-without"))?;
    let again = compared(&devices, &index, &trees)?;
    ensure!(again == whole, "with superblocks {whole:?}, without {again:?}");
    Ok(())
}

/// Compares all states that open. Returns the generations of whole states.
fn compared(
    devices: &[Device],
    index: &Arc<BlockIndex>,
    trees: &BTreeMap<Generation, Tree>,
) -> Result<Vec<Generation>> {
    let options = ViewOptions {
        index: Some(Arc::clone(index)),
        ..ViewOptions::default()
    };
    let mut whole = Vec::new();
    let mut opened = 0;
    for state in states(devices, index.identity().fsid, Some(index))? {
        let Some(expected) = trees.get(&state.generation()) else {
            continue;
        };
        let Ok(view) = open_state(devices, index.identity(), &state, &options) else {
            continue;
        };
        opened += 1;
        let compared = compare(&view.filesystem, expected);
        if compared.with_context(|| format!("generation {}", state.generation()))? {
            whole.push(state.generation());
        }
    }
    println!("{opened} states open, {} are whole: {whole:?}", whole.len());
    Ok(whole)
}
