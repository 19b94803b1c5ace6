//! New inodes in the form of Linux's streams: under temporary names that a rename settles, with
//! times of directories in between. For any commands, a receive must give the same result as
//! immediate execution.
//!
//! The model is a receiver that may leave out commands, since it delays nothing. If the receiver
//! leaves out a command, it must refuse the stream. The variable `BUTTRESS_SOAK_SEED` sets the seed
//! of the first case, and `BUTTRESS_SETTLING_CASES` the number of cases.

mod making;
use super::broken::{DEVICE_BYTES, content};
use anyhow::{Context, Result, ensure};
use buttress::unstable::format::send::Version;
use buttress::{Location, Progress, SubvolumeId, mkfs};
use buttress_oracle::content::Random;
use buttress_proof::harness::{Case, Outcome};
use buttress_proof::writing::volume::{empty, open_checked, open_for_writing};
use buttress_stream::receive::{Options, Summary, receive};
use buttress_stream::{Command, Encoder};
use buttress_writer::WritableFilesystem;
use making::Making;
use std::collections::BTreeMap;

const TOP: Location = Location::root_of(SubvolumeId::TOP_LEVEL);

/// Number of streams in a case; the next constant is the number of inodes or changes in each.
const STREAMS: u64 = 16;
const STEPS: u64 = 24;

/// Returns a subvolume's lines, with `now` in place of any current time.
fn shown(filesystem: &WritableFilesystem, name: &[u8]) -> Result<String> {
    let all = content(filesystem, name)?;
    let is_time_before = |word: &str| matches!(word, "accessed" | "modified" | "changed" | "created");
    let mut text = String::new();
    for line in all.lines() {
        let mut is_time = false;
        for word in line.split(' ') {
            let digits: String = word
                .chars()
                .skip_while(|c| !c.is_ascii_digit())
                .take_while(char::is_ascii_digit)
                .collect();
            let is_now = is_time && digits.parse::<u64>().is_ok_and(|seconds| seconds >= 1000);
            text.push_str(if is_now { "now" } else { word });
            text.push(' ');
            is_time = is_time_before(word);
        }
        text.push('\n');
    }
    Ok(text)
}

fn take(filesystem: &WritableFilesystem, stream: &[u8], errors_max: u64) -> Result<Summary> {
    let options = Options {
        errors_max,
        ..Options::default()
    };
    Ok(receive(filesystem, TOP, stream, &options, &mut |_| {})?)
}

/// Receives a stream with the fast receiver and with the model. Returns true if it can be received.
fn both_ways(
    fast: &WritableFilesystem,
    model: &WritableFilesystem,
    stream: &[u8],
    name: &[u8],
) -> Result<bool> {
    let received = take(fast, stream, 1);
    let expected = take(model, stream, 0)?;
    if expected.errors > 0 {
        ensure!(
            received.is_err(),
            "the model leaves out {} commands",
            expected.errors
        );
        let id = model
            .live()
            .lookup(TOP, name)?
            .context("the subvolume")?
            .target
            .subvolume;
        model.subvolumes().delete(id)?;
        return Ok(false);
    }
    received?;
    let (found, expected) = (shown(fast, name)?, shown(model, name)?);
    for (found, expected) in found.lines().zip(expected.lines()) {
        ensure!(found == expected, "found\n{found}\nexpected\n{expected}");
    }
    ensure!(found == expected, "found\n{found}\nexpected\n{expected}");
    Ok(true)
}

fn as_one_by_one(seed: u64) -> Result<Outcome> {
    let bases = [(), ()].map(|()| empty(&[DEVICE_BYTES], &mkfs::Options::default()));
    let [fast_base, model_base] = bases;
    let (fast_base, model_base) = (fast_base?, model_base?);
    let (fast, model) = (open_for_writing(&fast_base)?, open_for_writing(&model_base)?);
    let mut making = Making {
        random: Random::new(seed),
        encoder: Encoder::new(Version::V2),
        bytes: Vec::new(),
        names: BTreeMap::new(),
        inode: 0,
    };
    let (mut parent, mut received) = (None, 0_u64);
    for number in 0..STREAMS {
        let before = making.names.clone();
        if making.below(4) == 0 {
            parent = None;
        }
        if parent.is_none() {
            making.names.clear();
        }
        making.begin(number, parent)?;
        for _ in 0..STEPS {
            making.step()?;
        }
        making.add(&Command::End)?;
        let name = format!("s{number}");
        let went = both_ways(&fast, &model, &making.bytes, name.as_bytes()).with_context(|| {
            let path = std::env::temp_dir().join(format!("settling-{seed}-{number}.stream"));
            // The failure names the file with the stream, if it could be written.
            let kept = std::fs::write(&path, &making.bytes).is_ok();
            format!("seed {seed}, stream {number}, kept {kept} in {}", path.display())
        })?;
        if went {
            received += 1;
            parent = Some(number);
        } else {
            making.names = before;
        }
    }
    ensure!(
        received > 3,
        "seed {seed}: {received} of {STREAMS} streams were received"
    );
    for (filesystem, base) in [(fast, fast_base), (model, model_base)] {
        filesystem.subvolumes().drop_deleted(&Progress::new())?;
        filesystem.close()?;
        open_checked(&base)?;
    }
    Ok(Outcome::Passed)
}

/// A pending file that moves through more directories than the receiver keeps.
fn through_many_directories() -> Result<Outcome> {
    const DIRECTORIES: u64 = 300;
    let seed = buttress_oracle::seeds::seed("send::settling", "BUTTRESS_SOAK_SEED", 1);
    let bases = [(), ()].map(|()| empty(&[DEVICE_BYTES], &mkfs::Options::default()));
    let [fast_base, model_base] = bases;
    let (fast_base, model_base) = (fast_base?, model_base?);
    let (fast, model) = (open_for_writing(&fast_base)?, open_for_writing(&model_base)?);
    let mut making = Making {
        random: Random::new(seed),
        encoder: Encoder::new(Version::V2),
        bytes: Vec::new(),
        names: BTreeMap::new(),
        inode: 0,
    };
    making.begin(0, None)?;
    for number in 0..DIRECTORIES {
        let path = format!("d{number}").into_bytes();
        making.add(&Command::Mkdir {
            path: &path,
            inode: None,
        })?;
    }
    let mut from = b"x".to_vec();
    making.add(&Command::Mkfile {
        path: &from,
        inode: None,
    })?;
    for number in 0..DIRECTORIES {
        let to = format!("d{number}/x").into_bytes();
        making.add(&Command::Rename { from: &from, to: &to })?;
        from = to;
    }
    making.add(&Command::End)?;
    ensure!(
        both_ways(&fast, &model, &making.bytes, b"s0")?,
        "the model refuses the stream"
    );
    for (filesystem, base) in [(fast, fast_base), (model, model_base)] {
        filesystem.close()?;
        open_checked(&base)?;
    }
    Ok(Outcome::Passed)
}

pub fn cases() -> Vec<Case> {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let first = buttress_oracle::seeds::seed("send::settling", "BUTTRESS_SOAK_SEED", 1);
    let count = number("BUTTRESS_SETTLING_CASES").unwrap_or(12);
    (first..first.saturating_add(count))
        .map(|seed| {
            Case::new(format!("settling::as_one_by_one_{seed}"), move || {
                as_one_by_one(seed)
            })
        })
        .chain([Case::new(
            "settling::through_many_directories",
            through_many_directories,
        )])
        .collect()
}
