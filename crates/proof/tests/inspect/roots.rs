//! Older roots, places of extents, and superblock copies, beside the programs of btrfs-progs: those
//! of the distribution and the newest ones.

use anyhow::{Context, Result, ensure};
use buttress_oracle::loop_device::{LoopDevice, Mount};
use buttress_oracle::tools::{buttress, kernel_missing, newest, run};
use buttress_oracle::volumes::{Fill, Specification, format};
use buttress_proof::harness::{Case, Outcome};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The offset of the first superblock copy, and of the primary.
const PRIMARY: u64 = 64 << 10;
const COPY: u64 = 64 << 20;

fn sync(path: &Path) -> Result<()> {
    Ok(rustix::fs::syncfs(File::open(path)?)?)
}

/// Returns the paths of a program of btrfs-progs in both versions, as far as they exist.
fn theirs(name: &str) -> Vec<PathBuf> {
    let mut programs = vec![PathBuf::from(name), newest(name)];
    programs.dedup();
    let exists = |program: &PathBuf| Command::new(program).arg("--help").output().is_ok();
    programs.retain(exists);
    programs
}

fn ours(command: &str, words: &[&str], devices: &[PathBuf]) -> Result<Vec<u8>> {
    let (first, others) = devices.split_first().context("a device")?;
    let mut program = Command::new(buttress()?);
    program.args(["inspect-internal", command]).args(words);
    for other in others {
        program.arg("--device").arg(other);
    }
    Ok(run(program.arg(first))?.stdout)
}

/// Compares standard output. Returns the number of programs that were compared.
fn compare(command: &str, words: &[&str], devices: &[PathBuf]) -> Result<usize> {
    let ours = ours(command, words, devices)?;
    let programs = theirs(&format!("btrfs-{command}"));
    for program in &programs {
        let theirs = Command::new(program).args(words).args(devices.first()).output()?;
        ensure!(
            ours == theirs.stdout,
            "{} {words:?}:\n{}\nbuttress:\n{}",
            program.display(),
            String::from_utf8_lossy(&theirs.stdout),
            String::from_utf8_lossy(&ours)
        );
    }
    Ok(programs.len())
}

/// Makes a volume with many commits: trees grow to two levels and shrink again.
fn older_roots() -> Result<Outcome> {
    let (_folder, images) = format(&Specification {
        fill: Fill::Empty,
        ..Specification::default()
    })?;
    let mount = Mount::new(&images, "commit=300")?;
    for round in 0..12 {
        for number in 0..150 {
            let name = mount.path().join(format!("f{number}"));
            match round % 4 {
                3 => std::fs::remove_file(name)?,
                _ => std::fs::write(name, format!("{round}"))?,
            }
        }
        sync(mount.path())?;
    }
    mount.close()?;
    let mut compared = 0;
    for words in [
        &[][..],
        &["-a"],
        &["-a", "-o", "3"],
        &["-o", "5"],
        &["-a", "-o", "2"],
        &["-a", "-o", "5", "-l", "1"],
        &["-a", "-g", "9"],
        &["-o", "999"],
    ] {
        compared += compare("find-root", words, &images)?;
    }
    let printed = String::from_utf8(ours("find-root", &["-a"], &images)?)?;
    ensure!(printed.lines().count() > 8, "several roots:\n{printed}");
    Ok(match compared {
        0 => Outcome::Skipped(buttress_oracle::needs::Missing::new(
            "btrfs-progs",
            "needs btrfs-find-root".to_owned(),
        )),
        _ => Outcome::Passed,
    })
}

/// Compares the places of data and metadata in one profile.
fn places(profile: &'static str) -> Result<Outcome> {
    let folder = tempfile::tempdir()?;
    let mut loops = Vec::new();
    for number in 0..4 {
        let image = folder.path().join(format!("d{number}"));
        File::create(&image)?.set_len(256 << 20)?;
        loops.push(LoopDevice::attach(&image)?);
    }
    let devices: Vec<PathBuf> = loops.iter().map(|device| device.path().to_owned()).collect();
    let mut format = Command::new(newest("mkfs.btrfs"));
    run(format
        .args(["-q", "-f", "-m", "raid1", "-d", profile])
        .args(&devices))?;
    let directory = folder.path().join("mount");
    std::fs::create_dir(&directory)?;
    let options: Vec<String> = devices
        .iter()
        .map(|path| format!("device={}", path.display()))
        .collect();
    let first = devices.first().context("a device")?;
    run(Command::new("mount")
        .args(["-t", "btrfs", "-o", &options.join(",")])
        .arg(first)
        .arg(&directory))?;
    let written = std::fs::write(directory.join("f"), vec![7; 300_000]);
    let unmounted = run(Command::new("umount").arg(&directory));
    written?;
    unmounted?;
    let dump = ours("dump-tree", &["-t", "2"], &devices)?;
    let dump = String::from_utf8(dump)?;
    let start_of = |kind: &str| -> Option<u64> {
        let line = dump.lines().find(|line| line.contains(kind))?;
        line.split_once("key (")?.1.split(' ').next()?.parse().ok()
    };
    let data = start_of(" EXTENT_ITEM ").context("a data extent")?;
    let block = start_of(" METADATA_ITEM ").context("a tree block")?;
    let programs = theirs("btrfs-map-logical").len();
    for (at, bytes) in [
        (data, "4096"),
        (data, "200000"),
        (block, "16384"),
        (block + 1, "100"),
    ] {
        compare("map-logical", &["-l", &at.to_string(), "-b", bytes], &devices)?;
    }
    // The newest version finds no extent from its middle on.
    let middle = (data + 4096).to_string();
    let words = ["-l", middle.as_str(), "-b", "100000"];
    let printed = ours("map-logical", &words, &devices)?;
    for program in theirs("btrfs-map-logical") {
        let theirs = Command::new(&program).args(words).arg(first).output()?.stdout;
        ensure!(theirs.is_empty() || theirs == printed, "{}", program.display());
    }
    // All copies of a block are equal, and are the bytes that the reference writes.
    let (one, two) = (folder.path().join("1"), folder.path().join("2"));
    let out = |copy: &str, path: &Path| {
        let path = path.to_string_lossy().into_owned();
        ours(
            "map-logical",
            &["-l", &block.to_string(), "-c", copy, "-o", &path],
            &devices,
        )
    };
    out("1", &one)?;
    out("2", &two)?;
    ensure!(
        std::fs::read(&one)? == std::fs::read(&two)?,
        "{profile}: copies of a block"
    );
    if let Some(program) = theirs("btrfs-map-logical").first() {
        run(Command::new(program)
            .args(["-l", &block.to_string(), "-o"])
            .arg(&two)
            .arg(first))?;
        ensure!(
            std::fs::read(&one)? == std::fs::read(&two)?,
            "{profile}: bytes of a block"
        );
    }
    Ok(match programs {
        0 => Outcome::Skipped(buttress_oracle::needs::Missing::new(
            "btrfs-progs",
            "needs btrfs-map-logical".to_owned(),
        )),
        _ => Outcome::Passed,
    })
}

/// Compares images whose damaged primary superblock was replaced by an older copy.
fn superblock_copy() -> Result<Outcome> {
    let (folder, images) = format(&Specification {
        fill: Fill::Empty,
        ..Specification::default()
    })?;
    let image = images.first().context("an image")?;
    let mut old = vec![0; 4096];
    File::open(image)?.read_exact_at(&mut old, COPY)?;
    let mount = Mount::new(&images, "")?;
    std::fs::write(mount.path().join("f"), "x")?;
    mount.close()?;
    let file = File::options().write(true).open(image)?;
    file.write_all_at(&old, COPY)?;
    file.write_all_at(&[0; 4096], PRIMARY)?;
    drop(file);
    let copy = |name: &str| -> Result<PathBuf> {
        let to = folder.path().join(name);
        run(Command::new("cp").arg("--sparse=always").arg(image).arg(&to))?;
        Ok(to)
    };
    let mine = copy("mine")?;
    let printed = ours("select-super", &["-s", "1"], std::slice::from_ref(&mine))?;
    ensure!(printed == b"using SB copy 1, bytenr 67108864\n");
    let programs = theirs("btrfs-select-super");
    for program in &programs {
        let other = copy("theirs")?;
        run(Command::new(program).args(["-s", "1"]).arg(&other))?;
        let same = Command::new("cmp").arg(&mine).arg(&other).output()?;
        ensure!(same.status.success(), "{}: {same:?}", program.display());
    }
    let refused = Command::new(buttress()?)
        .args(["inspect-internal", "select-super", "-s", "2"])
        .arg(&mine)
        .output()?;
    ensure!(!refused.status.success(), "the image ends before its second copy");
    Ok(match programs.len() {
        0 => Outcome::Skipped(buttress_oracle::needs::Missing::new(
            "btrfs-progs",
            "needs btrfs-select-super".to_owned(),
        )),
        _ => Outcome::Passed,
    })
}

fn case(name: &str, body: impl Fn() -> Result<Outcome> + Send + Sync + 'static) -> Case {
    Case::new(format!("roots::{name}"), move || match kernel_missing() {
        Some(reason) => Ok(Outcome::Skipped(reason)),
        None => body(),
    })
}

pub fn cases() -> Vec<Case> {
    let mut cases = vec![
        case("older_roots", older_roots),
        case("superblock_copy", superblock_copy),
    ];
    for profile in ["single", "dup", "raid0", "raid1", "raid10", "raid5", "raid6"] {
        cases.push(case(&format!("places_{profile}"), move || places(profile)));
    }
    cases
}
