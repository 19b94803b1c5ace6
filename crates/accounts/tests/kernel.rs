//! Compares users of addresses, sharedness and space with the reports of btrfs-progs on the mounted
//! volume.
#![allow(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    clippy::unwrap_used,
    reason = "tests compute with known numbers, and a panic is how a test fails"
)]

use anyhow::{Context, Result, ensure};
use buttress_accounts::Accounts as _;
use buttress_device::Device;
use buttress_format::{Logical, SubvolumeId};
use buttress_fs::{Filesystem, Location, OpenOptions, RangeKind, WalkItem, WalkOptions};
use buttress_oracle::loop_device::Mount;
use buttress_oracle::needs::missing;
use buttress_oracle::skip::{skip, skips};
use buttress_oracle::tools::{kernel_missing, newest, run};
use buttress_oracle::volumes::{Specification, Volume, make_with};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::process::Command;

/// Runs `test` if the machine can make these volumes.
fn with_kernel(test: impl FnOnce() -> Result<()>) {
    if skips(missing("xfs_io")) {
        return;
    }
    match kernel_missing() {
        Some(missing) => skip(&missing),
        None => test().unwrap(),
    }
}

fn open(volume: &Volume) -> Result<Filesystem> {
    let devices: Result<Vec<Device>, _> = volume
        .images
        .iter()
        .map(|image| Device::open(image, &buttress_device::OpenOptions::default()))
        .collect();
    Ok(OpenOptions::new(devices?).open()?)
}

fn btrfs(arguments: &[&str], path: &Path) -> Result<String> {
    let output = run(Command::new(newest("btrfs")).args(arguments).arg(path))?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The length of the file whose extents are split, in sectors: its items fill several leaves.
const SPLIT_SECTORS: u64 = 900;

/// Writes a file with one extent, and overwrites every second sector of it.
fn split(path: &Path, noise: &[u8]) -> Result<()> {
    let file = fs::File::create(path)?;
    file.write_all_at(&noise[..usize::try_from(SPLIT_SECTORS * 4096)?], 0)?;
    file.sync_all()?;
    for sector in (1..SPLIT_SECTORS).step_by(2) {
        file.write_all_at(&noise[..4096], sector * 4096)?;
    }
    Ok(file.sync_all()?)
}

/// Makes files whose extents are shared in every possible way.
fn plant(mount: &Mount) -> Result<()> {
    let top = mount.path().join("sharing");
    btrfs(&["-q", "subvolume", "create"], &top)?;
    let noise: Vec<u8> = (0..1_000_000_u32)
        .flat_map(|number| number.wrapping_mul(2_654_435_761).to_le_bytes())
        .collect();
    for number in 0..60 {
        fs::write(
            top.join(format!("old-{number}")),
            &noise[number * 1000..number * 1000 + 200_000],
        )?;
    }
    let reflink = |from: &str, to: &str, ranges: &[(u64, u64, u64)]| -> Result<()> {
        for (source, target, length) in ranges {
            run(Command::new("xfs_io")
                .args(["-f", "-c"])
                .arg(format!(
                    "reflink {} {source} {target} {length}",
                    top.join(from).display()
                ))
                .arg(top.join(to)))?;
        }
        Ok(())
    };
    run(Command::new("sync").arg("-f").arg(&top))?;
    split(&top.join("split"), &noise)?;
    reflink("old-1", "clone-whole", &[(0, 0, 0)])?;
    reflink("old-2", "clone-middle", &[(65_536, 8192, 32_768)])?;
    reflink("old-3", "old-3", &[(0, 1 << 20, 65_536)])?;
    reflink(
        "old-4",
        "clone-before",
        &[(131_072, 0, 4096), (131_072, 1 << 20, 8192)],
    )?;
    run(Command::new("sync").arg("-f").arg(&top))?;
    for name in ["first", "second"] {
        let snapshot = mount.path().join(name);
        run(Command::new(newest("btrfs"))
            .args(["-q", "subvolume", "snapshot"])
            .arg(&top)
            .arg(&snapshot))?;
        // Some leaves of the volume become unshared, others stay shared.
        fs::write(snapshot.join("old-5"), b"changed")?;
        fs::write(snapshot.join(format!("new-{name}")), &noise[..300_000])?;
        fs::remove_file(snapshot.join("old-40"))?;
        // Only the last leaf with items of this extent becomes the snapshot's own.
        let end = fs::File::options().write(true).open(snapshot.join("split"))?;
        end.write_all_at(&noise[..4096], (SPLIT_SECTORS - 2) * 4096)?;
        run(Command::new("sync").arg("-f").arg(&snapshot))?;
    }
    fs::write(top.join("young"), &noise[..150_000])?;
    run(Command::new("xfs_io")
        .args(["-c", "pwrite -q 40960 20000"])
        .arg(top.join("old-6")))?;
    run(Command::new("sync").arg("-f").arg(&top))?;
    Ok(())
}

fn volume(mount: &'static str) -> Result<Volume> {
    make_with(
        &Specification {
            mount,
            seed: 21,
            ..Specification::default()
        },
        plant,
    )
}

/// The figures of one file: total, exclusive.
type Figures = BTreeMap<Vec<u8>, (u64, u64)>;

fn progs_du(top: &Path) -> Result<Figures> {
    let text = run(Command::new(newest("btrfs"))
        .args(["filesystem", "du", "--raw"])
        .arg(top))?
    .stdout;
    let prefix = format!("{}/", top.display()).into_bytes();
    let mut figures = Figures::new();
    for line in text.split(|byte| *byte == b'\n') {
        let mut words = line.split(|byte| *byte == b' ').filter(|word| !word.is_empty());
        let mut number = || -> Option<u64> { std::str::from_utf8(words.next()?).ok()?.parse().ok() };
        let (Some(total), Some(exclusive)) = (number(), number()) else {
            continue;
        };
        let Some(at) = line.windows(prefix.len()).position(|window| window == prefix) else {
            continue;
        };
        figures.insert(line[at + prefix.len()..].to_vec(), (total, exclusive));
    }
    Ok(figures)
}

fn own_du(filesystem: &Filesystem) -> Result<Figures> {
    let mut sharing = filesystem.sharing();
    let mut figures = Figures::new();
    let root = Location::root_of(SubvolumeId::TOP_LEVEL);
    for item in filesystem.walk(root, WalkOptions::without_content()) {
        match item {
            WalkItem::Entry(entry) if entry.hard_link.is_none() && !entry.metadata().is_directory() => {
                let space = sharing.file_space(&entry.record)?;
                figures.insert(entry.path(), (space.total.get(), space.exclusive().get()));
            }
            WalkItem::Failed(error) => return Err(error.into()),
            _ => {}
        }
    }
    Ok(figures)
}

#[test]
fn du_equals_kernel_counts() {
    for options in ["", "compress-force=zstd"] {
        with_kernel(|| {
            let volume = volume(options)?;
            let own = own_du(&open(&volume)?)?;
            let mount = Mount::new(&volume.images, "ro")?;
            let expected = progs_du(mount.path())?;
            let mut compared = 0;
            for (path, figures) in &own {
                if let Some(other) = expected.get(path) {
                    ensure!(
                        other == figures,
                        "{}: {other:?}, not {figures:?}",
                        path.escape_ascii()
                    );
                    compared += 1;
                }
            }
            ensure!(compared > 250, "only {compared} files to compare");
            Ok(())
        });
    }
}

/// `(inode, offset, root)` of every reference.
type Users = BTreeSet<(u64, u64, u64)>;

fn progs_resolve(top: &Path, logical: u64, ignore_offset: bool) -> Result<Users> {
    let mut command = Command::new(newest("btrfs"));
    command.args(["inspect-internal", "logical-resolve", "-P"]);
    if ignore_offset {
        command.arg("-o");
    }
    let output = run(command.arg(logical.to_string()).arg(top))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    Ok(text
        .lines()
        .filter_map(|line| {
            let numbers: Vec<u64> = line.split(' ').filter_map(|word| word.parse().ok()).collect();
            let [inode, offset, root] = numbers.try_into().ok()?;
            Some((inode, offset, root))
        })
        .collect())
}

#[test]
fn addresses_lead_to_the_files_that_the_kernel_names() {
    with_kernel(|| {
        let volume = volume("")?;
        let filesystem = open(&volume)?;
        let mount = Mount::new(&volume.images, "ro")?;
        let root = Location::root_of(SubvolumeId::TOP_LEVEL);
        let sharing = filesystem.resolve(root, b"sharing", buttress_fs::Follow::All)?;
        let split = filesystem.resolve(root, b"sharing/split", buttress_fs::Follow::All)?;
        let mut compared = 0;
        for item in filesystem.walk(sharing, WalkOptions::without_content()) {
            let WalkItem::Entry(entry) = item else { continue };
            for range in entry.record.extents.iter().flatten() {
                let RangeKind::Data(extent) = range.kind else {
                    continue;
                };
                if entry.record.metadata.location == split && !range.offset.get().is_multiple_of(64 * 4096) {
                    continue;
                }
                let logical = extent.logical.get() + extent.offset.get() + 1000;
                for ignore_offset in [false, true] {
                    let own = filesystem.data_references(Logical::new(logical), ignore_offset)?;
                    ensure!(own.failures.is_empty(), "{:?}", own.failures);
                    let own: Users = own
                        .iter()
                        .map(|user| {
                            (
                                user.location.inode.get(),
                                user.offset.get(),
                                user.location.subvolume.get(),
                            )
                        })
                        .collect();
                    let expected = progs_resolve(mount.path(), logical, ignore_offset)?;
                    ensure!(
                        own == expected,
                        "{logical}, all {ignore_offset}: {expected:?}, not {own:?}"
                    );
                    ensure!(!own.is_empty());
                    compared += 1;
                }
            }
        }
        ensure!(compared > 120, "only {compared}");
        Ok(())
    });
}

#[test]
fn paths_of_inodes_and_subvolumes_lead_back() {
    with_kernel(|| {
        let volume = volume("")?;
        let filesystem = open(&volume)?;
        let top = Location::root_of(SubvolumeId::TOP_LEVEL);
        let mount = Mount::new(&volume.images, "ro")?;
        let listed = btrfs(&["subvolume", "list", "-apuqR"], mount.path())?;
        // btrfs-progs leaves out deleted subvolumes that are not yet dropped.
        let mut own = filesystem.subvolumes()?;
        own.retain(|info| !info.is_deleted());
        ensure!(listed.lines().count() + 1 == own.len(), "{listed}");
        for line in listed.lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            let id: u64 = words[1].parse()?;
            let path = line
                .split(" path ")
                .nth(1)
                .context("path")?
                .trim_start_matches("<FS_TREE>/");
            let info = own.iter().find(|info| info.id.get() == id).context("id")?;
            ensure!(
                info.path.as_deref() == Some(path.as_bytes()),
                "{line}: {:?}",
                info.path
            );
            ensure!(info.generation().get() == words[3].parse::<u64>()?, "{line}");
            ensure!(
                info.place.as_ref().context("place")?.parent.get() == words[5].parse::<u64>()?,
                "{line}"
            );
            for (word, uuid) in [
                ("uuid", info.uuid()),
                ("parent_uuid", info.parent_uuid()),
                ("received_uuid", info.received_uuid()),
            ] {
                let at = words.iter().position(|other| *other == word).context("uuid")?;
                ensure!(
                    words[at + 1] == uuid.map_or("-".to_owned(), |uuid| uuid.to_string()),
                    "{line}: {word}"
                );
            }
            ensure!(filesystem.subvolume_path(info.id)? == path.as_bytes());
            ensure!(
                filesystem.resolve(top, path.as_bytes(), buttress_fs::Follow::All)?
                    == Location::root_of(info.id)
            );
        }
        for item in filesystem.walk(
            top,
            WalkOptions {
                one_file_system: true,
                ..WalkOptions::without_content()
            },
        ) {
            let WalkItem::Entry(entry) = item else { continue };
            let path = entry.path();
            ensure!(filesystem.resolve(top, &path, buttress_fs::Follow::NotLast)? == entry.location());
            if entry.location().subvolume == SubvolumeId::TOP_LEVEL
                && entry.location().placeholder().is_none()
            {
                ensure!(
                    filesystem.inode_paths(entry.location())?.contains(&path),
                    "{}",
                    path.escape_ascii()
                );
            }
        }
        Ok(())
    });
}

#[test]
fn space_is_counted_as_df_and_usage_count_it() {
    let specifications = [
        Specification {
            seed: 22,
            ..Specification::default()
        },
        Specification {
            data: "raid5",
            metadata: "raid1",
            devices: 3,
            seed: 23,
            ..Specification::default()
        },
        Specification {
            mixed: true,
            data: "single",
            device_mib: 256,
            seed: 24,
            ..Specification::default()
        },
    ];
    for specification in specifications {
        with_kernel(|| {
            let volume = make_with(&specification, |_| Ok(()))?;
            let filesystem = open(&volume)?;
            let space = filesystem.space()?;
            ensure!(space.failures.is_empty());
            let mount = Mount::new(&volume.images, "ro")?;
            let df = btrfs(&["filesystem", "df", "--raw"], mount.path())?;
            let mut own: Vec<String> = space
                .groups
                .iter()
                .map(|group| {
                    let profile = group.flags.profile().map_or("unknown", |profile| profile.name());
                    format!(
                        "{}, {profile}: total={}, used={}",
                        group.flags.type_name(),
                        group.total,
                        group.used
                    )
                })
                .collect();
            own.push(format!(
                "GlobalReserve, single: total={}, used=0",
                space.global_reserve
            ));
            ensure!(
                df.lines().eq(own.iter().map(String::as_str)),
                "{df}\nown: {own:#?}"
            );
            let usage = btrfs(&["filesystem", "usage", "--raw"], mount.path())?;
            let totals = space.totals();
            for (word, bytes) in [
                ("Device size:", totals.device_size),
                ("Device allocated:", totals.allocated),
                ("Device unallocated:", totals.unallocated),
                ("Used:", totals.used),
                ("Free (estimated):", totals.free_estimated),
                ("(min:", totals.free_min),
            ] {
                let after = usage.split(word).nth(1).context(word)?;
                let number: String = after
                    .chars()
                    .skip_while(|c| c.is_whitespace())
                    .take_while(char::is_ascii_digit)
                    .collect();
                ensure!(number.parse() == Ok(bytes.get()), "{word} {bytes}\n{usage}");
            }
            Ok(())
        });
    }
}
