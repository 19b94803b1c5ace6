//! Comparisons with programs that query the kernel: compsize, `btrfs filesystem du`, and the sums
//! of ncdu.

use crate::volumes::open;
use anyhow::{Context, Result, ensure};
use buttress::accounting::{Options, Share};
use buttress::unstable::accounts::Accounts as _;
use buttress::unstable::fs::Filesystem;
use buttress::{InodeNumber, Location, Progress, SubvolumeInfo, WalkItem, WalkOptions};
use buttress_oracle::loop_device::Mount;
use buttress_oracle::needs::missing;
use buttress_oracle::skip::skips;
use buttress_oracle::tools::{buttress, newest, run};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::process::Command;

/// Compares the output of the programs on a mount of the volume.
pub fn compare(images: &[PathBuf]) -> Result<()> {
    let mount = Mount::new(images, "ro,noatime,subvolid=5")?;
    let devices: Vec<PathBuf> = mount
        .devices()
        .iter()
        .map(|device| device.path().to_owned())
        .collect();
    let filesystem = open(&devices)?;
    let mut places = vec![String::new()];
    for info in filesystem.subvolumes()? {
        if let Some(path) = info.path.filter(|path| !path.is_empty())
            && let Ok(path) = String::from_utf8(path)
            && !path.contains('\n')
        {
            places.push(path);
        }
    }
    if !skips(missing("compsize")) {
        for place in &places {
            compare_compsize(&mount, &devices, place)?;
        }
        // Include a directory with hard links and shared extents that lead out of it.
        for directory in std::fs::read_dir(mount.path())? {
            let directory = directory?;
            if directory.file_type()?.is_dir()
                && let Ok(name) = directory.file_name().into_string()
            {
                compare_compsize(&mount, &devices, &name)?;
            }
        }
    }
    for place in places.iter().take(8) {
        compare_du(&mount, &devices, place)?;
    }
    for info in filesystem.subvolumes()? {
        compare_inode_resolve(&mount, &devices, &filesystem, &info)?;
    }
    mount.close()?;
    compare_ncdu(images)
}

/// Size of the kernel's answer about paths to btrfs-progs in bytes; the kernel silently omits
/// further paths.
const ANSWER_BYTES: usize = 4096;

/// Size of each path in the answer besides itself: a pointer, and a zero byte.
const POINTER_BYTES: usize = 9;

/// Size of the header of the kernel's answer.
const ANSWER_HEAD_BYTES: usize = 16;

/// Compares the paths of a subvolume's inodes, those with several names first.
fn compare_inode_resolve(
    mount: &Mount,
    devices: &[PathBuf],
    filesystem: &Filesystem,
    info: &SubvolumeInfo,
) -> Result<()> {
    let Some(Ok(place)) = info.path.clone().map(String::from_utf8) else {
        return Ok(());
    };
    let options = WalkOptions {
        one_file_system: true,
        ..WalkOptions::without_content()
    };
    let mut inodes = BTreeSet::new();
    for item in filesystem.walk(Location::root_of(info.id), options) {
        if let WalkItem::Entry(entry) = item
            && entry.location().subvolume == info.id
            && entry.location().inode > InodeNumber::ROOT_DIRECTORY
        {
            let several_names = entry.metadata().nlink > 1;
            inodes.insert((!several_names, entry.location().inode));
        }
    }
    // btrfs-progs would print a trailing slash twice.
    let top = match place.as_str() {
        "" => mount.path().to_owned(),
        place => mount.path().join(place),
    };
    for (_, inode) in inodes.into_iter().take(6) {
        let theirs = run(Command::new(newest("btrfs"))
            .args(["inspect-internal", "inode-resolve", &inode.to_string()])
            .arg(&top))?;
        // Paths from the mount point in btrfs-progs begin at the top level.
        let theirs = lines_after(&theirs.stdout, mount.path().as_os_str().as_bytes());
        let inode = inode.to_string();
        let ours = ours(&["inspect-internal", "inode-resolve", &inode], devices, &place)?;
        let ours = lines_after(&ours, b"");
        let bytes: usize = ours.iter().map(|path| path.len() + POINTER_BYTES).sum();
        let is_whole = bytes + ANSWER_HEAD_BYTES <= ANSWER_BYTES;
        ensure!(
            theirs == ours || (!is_whole && !theirs.is_empty() && theirs.is_subset(&ours)),
            "inode {inode} of {place:?}: btrfs-progs prints {theirs:?}, ours {ours:?}"
        );
    }
    Ok(())
}

/// Returns the sorted lines of a text, without the prefix `start`.
fn lines_after(text: &[u8], start: &[u8]) -> BTreeSet<Vec<u8>> {
    let lines = text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    let cut = lines.map(|line| line.strip_prefix(start).unwrap_or(line).to_vec());
    cut.collect()
}

/// Runs Buttress on a path of the volume.
fn ours(words: &[&str], devices: &[PathBuf], path: &str) -> Result<Vec<u8>> {
    let (first, others) = devices.split_first().context("a device")?;
    let mut command = Command::new(buttress()?);
    command.args(words);
    for device in others {
        command.arg("--device").arg(device);
    }
    let mut target = first.clone().into_os_string();
    target.push(":/");
    target.push(path);
    Ok(command.arg(target).output()?.stdout)
}

/// Numbers of a table by the first words of its rows.
type Table = BTreeMap<String, Vec<u64>>;

/// Parses the output of compsize in bytes. Whether a partly written extent counts as `none` or
/// `prealloc` depends on the order in which compsize meets its files, so both are joined in the
/// on-disk sizes.
fn table(text: &[u8]) -> Result<(String, Table)> {
    let text = String::from_utf8(text.to_vec())?;
    let mut lines = text.lines();
    let first = lines.next().unwrap_or("").to_owned();
    let mut table = Table::new();
    for line in lines.skip(1) {
        let mut words = line.split_whitespace();
        let name = words.next().context("a row's name")?;
        let numbers = words.skip(1).map(str::parse).collect::<Result<Vec<u64>, _>>()?;
        let [disk, uncompressed, referenced] = numbers.try_into().ok().context("three numbers")?;
        let on_disk = if name == "prealloc" { "none" } else { name };
        let sums = table.entry(format!("{on_disk} on disk")).or_insert(vec![0; 2]);
        for (sum, more) in sums.iter_mut().zip([disk, uncompressed]) {
            *sum += more;
        }
        table.insert(format!("{name} referenced"), vec![referenced]);
    }
    Ok((first, table))
}

fn compare_compsize(mount: &Mount, devices: &[PathBuf], place: &str) -> Result<()> {
    let theirs = Command::new("compsize")
        .arg("-b")
        .arg(mount.path().join(place))
        .output()?;
    let ours = ours(&["compression", "-b"], devices, place)?;
    if theirs.stdout == ours {
        return Ok(());
    }
    let (theirs, ours) = (table(&theirs.stdout)?, table(&ours)?);
    ensure!(
        theirs == ours,
        "{place:?}: compsize prints\n    {theirs:?}\nours\n    {ours:?}"
    );
    Ok(())
}

/// Compares the line of a whole subvolume or volume.
fn compare_du(mount: &Mount, devices: &[PathBuf], place: &str) -> Result<()> {
    let numbers = |text: &[u8]| -> Vec<String> {
        let text = String::from_utf8_lossy(text).into_owned();
        let line = text.lines().nth(1).unwrap_or("");
        line.split_whitespace().take(3).map(str::to_owned).collect()
    };
    let words = ["filesystem", "du", "--raw", "-s"];
    let theirs = run(Command::new(newest("btrfs"))
        .args(words)
        .arg(mount.path().join(place)))?;
    let (theirs, ours) = (numbers(&theirs.stdout), numbers(&ours(&words, devices, place)?));
    ensure!(
        theirs == ours,
        "du of {place:?}: btrfs-progs prints {theirs:?}, ours {ours:?}"
    );
    Ok(())
}

/// Asserts that the on-disk sizes of an export add up to the size of the volume's files, as a
/// viewer adds them: a file with several names once.
fn compare_ncdu(images: &[PathBuf]) -> Result<()> {
    let text = ours(&["space", "--export", "ncdu"], images, "")?;
    let text = String::from_utf8_lossy(&text);
    let list: Value = serde_json::from_str(&text).context("the export is no JSON")?;
    let top = list.get(3).context("a directory")?;
    ensure!(
        list.get(0) == Some(&1.into()) && list.get(1) == Some(&2.into()),
        "the version"
    );
    let sum = add_up(top, 0, &mut HashSet::new())?;
    let filesystem = open(images)?;
    let accounting = filesystem.account_space(&Options::default(), &Progress::new())?;
    let visible = filesystem.subvolumes()?;
    let scope = accounting.scope(|owner| {
        owner.share != Share::Unlinked
            && visible
                .iter()
                .any(|info| owner.subvolume() == Some(info.id) && info.path.is_some())
    });
    let expected = accounting.occupied_by(&scope).data().get();
    ensure!(
        sum == expected,
        "an export adds up to {sum}, the files take up {expected}"
    );
    Ok(())
}

fn add_up(directory: &Value, device: u64, seen: &mut HashSet<(u64, u64)>) -> Result<u64> {
    let mut entries = directory.as_array().context("a directory is a list")?.iter();
    let own = entries.next().context("a directory's own line")?;
    let number = |value: &Value, name: &str| value.get(name).and_then(Value::as_u64);
    let device = number(own, "dev").unwrap_or(device);
    let mut sum = 0;
    for entry in entries {
        if entry.is_array() {
            sum += add_up(entry, device, seen)?;
            continue;
        }
        let is_new = match number(entry, "ino") {
            Some(inode) if entry.get("hlnkc").is_some() => seen.insert((device, inode)),
            _ => true,
        };
        if is_new {
            sum += number(entry, "dsize").unwrap_or(0);
        }
    }
    Ok(sum)
}
