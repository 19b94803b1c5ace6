//! New names of a stream stay pending until many of them enter their directories together. The
//! result must equal immediate insertion, and an error must name the command that created an
//! impossible name.

use super::broken::{DEVICE_BYTES, content, names, take};
use anyhow::{Context, Result, ensure};
use buttress::unstable::format::send::Version;
use buttress::{FileOffset, Generation, Location, SubvolumeId, Timestamp, Uuid, mkfs};
use buttress_oracle::content::{Random, names_of_one_hash};
use buttress_proof::harness::{Case, Outcome};
use buttress_proof::writing::volume::{empty, open_checked, open_for_writing};
use buttress_stream::receive::{Error, Options, receive};
use buttress_stream::{Command, Encoder};
use buttress_writer::WritableFilesystem;
use std::collections::BTreeSet;

const UUIDS: [Uuid; 2] = [Uuid::from_u128(0x5eed_0001), Uuid::from_u128(0x5eed_0002)];

/// Builder of a stream.
struct Stream {
    encoder: Encoder,
    bytes: Vec<u8>,
    commands: u64,
}

impl Stream {
    /// Begins a full stream, or an incremental stream that builds on it.
    fn new(builds_on_first: bool) -> Result<Self> {
        let encoder = Encoder::new(Version::V1);
        let mut stream = Self {
            encoder,
            bytes: Vec::new(),
            commands: 0,
        };
        encoder.header(&mut stream.bytes);
        let transid = Generation::new(7);
        if builds_on_first {
            stream.add(&Command::Snapshot {
                path: b"second",
                uuid: UUIDS[1],
                transid,
                clone_uuid: UUIDS[0],
                clone_transid: transid,
            })?;
        } else {
            stream.add(&Command::Subvolume {
                path: b"first",
                uuid: UUIDS[0],
                transid,
            })?;
        }
        Ok(stream)
    }

    /// Adds a command to the stream, and returns its number.
    fn add(&mut self, command: &Command<'_>) -> Result<u64> {
        self.encoder.encode(command, &mut self.bytes)?;
        self.commands += 1;
        Ok(self.commands)
    }

    fn mkfile(&mut self, path: &[u8]) -> Result<u64> {
        self.add(&Command::Mkfile { path, inode: None })
    }

    fn end(mut self) -> Result<Vec<u8>> {
        self.add(&Command::End)?;
        Ok(self.bytes)
    }
}

/// Generator of random names that are created, moved and removed, in changing directories.
struct Changes {
    random: Random,
    names: BTreeSet<Vec<u8>>,
    next: u64,
    alike: Vec<Vec<u8>>,
}

impl Changes {
    fn new_name(&mut self) -> Vec<u8> {
        self.next += 1;
        let directory = [&b""[..], b"d/", b"d/e/"][self.random.below(3) as usize];
        let name = match self.alike.pop().filter(|_| self.next.is_multiple_of(50)) {
            Some(alike) => alike,
            None => format!("file {}", self.next).into_bytes(),
        };
        [directory, &name].concat()
    }

    /// Draws an existing name, and removes it from the model.
    fn take(&mut self) -> Option<Vec<u8>> {
        let number = self.random.below(self.names.len().max(1) as u64);
        let name = self.names.iter().nth(usize::try_from(number).ok()?)?.clone();
        self.names.remove(&name);
        Some(name)
    }

    fn add(&mut self, stream: &mut Stream, count: u64) -> Result<()> {
        let time = Timestamp::default();
        for _ in 0..count {
            match self.random.below(10) {
                0 => {
                    if let Some(path) = self.take() {
                        stream.add(&Command::Unlink { path: &path })?;
                    }
                }
                1 => {
                    if let Some(from) = self.take() {
                        // Sometimes the target of a rename in the stream is an existing name.
                        let to = match self.random.below(3) {
                            0 => self.take().unwrap_or_else(|| self.new_name()),
                            _ => self.new_name(),
                        };
                        stream.add(&Command::Rename { from: &from, to: &to })?;
                        self.names.insert(to);
                    }
                }
                2 => {
                    if let Some(target) = self.take() {
                        let path = self.new_name();
                        stream.add(&Command::Link {
                            path: &path,
                            target: &target,
                        })?;
                        self.names.extend([target, path]);
                    }
                }
                3 => {
                    if let Some(path) = self.take() {
                        let data = b"other";
                        let offset = FileOffset::MIN;
                        stream.add(&Command::Write {
                            path: &path,
                            offset,
                            data,
                        })?;
                        self.names.insert(path);
                    }
                }
                _ => {
                    let path = self.new_name();
                    stream.mkfile(&path)?;
                    stream.add(&Command::Utimes {
                        path: &path,
                        atime: time,
                        mtime: time,
                        ctime: time,
                        otime: None,
                    })?;
                    self.names.insert(path);
                }
            }
        }
        Ok(())
    }
}

/// Builds a full stream and an incremental stream that builds on it.
fn streams(seed: u64, count: u64) -> Result<[Vec<u8>; 2]> {
    let mut changes = Changes {
        random: Random::new(seed),
        names: BTreeSet::new(),
        next: 0,
        alike: names_of_one_hash::names("alike", 20, 40)
            .into_iter()
            .map(String::into_bytes)
            .collect(),
    };
    let mut full = Stream::new(false)?;
    for path in [&b"d"[..], b"d/e"] {
        full.add(&Command::Mkdir { path, inode: None })?;
    }
    changes.add(&mut full, count)?;
    let mut more = Stream::new(true)?;
    changes.add(&mut more, count / 4)?;
    Ok([full.end()?, more.end()?])
}

/// Receives with immediate insertion, for the comparison.
fn take_at_once(filesystem: &WritableFilesystem, stream: &[u8]) -> Result<()> {
    let options = Options {
        errors_max: 2,
        ..Options::default()
    };
    let top = Location::root_of(SubvolumeId::TOP_LEVEL);
    let summary = receive(filesystem, top, stream, &options, &mut |_| {})?;
    ensure!(summary.errors == 0, "{} commands were left out", summary.errors);
    Ok(())
}

/// Describes a subvolume without times, which depend on the number of clock queries.
fn without_times(filesystem: &WritableFilesystem, name: &[u8]) -> Result<String> {
    let all = content(filesystem, name)?;
    let lines = all.lines().map(|line| match line.split_once(" accessed ") {
        Some((before, rest)) => {
            let rest: Vec<&str> = rest.split(' ').skip(7).collect();
            format!("{before} {}", rest.join(" "))
        }
        None => line.to_owned(),
    });
    Ok(lines.collect::<Vec<_>>().join("\n"))
}

fn as_if_put_at_once(seed: u64, count: u64) -> Result<Outcome> {
    let streams = streams(seed, count)?;
    let mut found = Vec::new();
    for waits in [true, false] {
        let base = empty(&[DEVICE_BYTES], &mkfs::Options::default())?;
        let filesystem = open_for_writing(&base)?;
        for stream in &streams {
            match waits {
                true => drop(take(&filesystem, stream.as_slice())?),
                false => take_at_once(&filesystem, stream)?,
            }
        }
        let contents = [b"first".as_slice(), b"second"].map(|name| without_times(&filesystem, name));
        found.push(contents.into_iter().collect::<Result<Vec<_>>>()?);
        filesystem.close()?;
        open_checked(&base)?;
    }
    ensure!(
        found[0] == found[1],
        "seed {seed}: another content where names wait"
    );
    Ok(Outcome::Passed)
}

/// If a name is created twice, the second command fails, wherever the first command's name is
/// pending.
fn made_twice() -> Result<Outcome> {
    let mut first = Stream::new(false)?;
    first.add(&Command::Mkdir {
        path: b"d",
        inode: None,
    })?;
    first.mkfile(b"d/there")?;
    let first = first.end()?;
    for in_parent in [false, true] {
        for kind in 0..3 {
            let base = empty(&[DEVICE_BYTES], &mkfs::Options::default())?;
            let filesystem = open_for_writing(&base)?;
            take(&filesystem, first.as_slice())?;
            let mut more = Stream::new(true)?;
            let path: &[u8] = if in_parent { b"d/there" } else { b"d/new" };
            if !in_parent {
                more.mkfile(path)?;
                more.mkfile(b"d/other")?;
            }
            let wrong = match kind {
                0 => more.mkfile(path)?,
                1 => more.add(&Command::Mkdir { path, inode: None })?,
                _ => more.add(&Command::Link {
                    path,
                    target: b"d/there",
                })?,
            };
            for number in 0..40 {
                more.mkfile(format!("later {number}").as_bytes())?;
            }
            let error = take(&filesystem, more.end()?.as_slice())
                .err()
                .context("an error")?;
            let Error::Refused { place, .. } = &error else {
                anyhow::bail!("{error}");
            };
            ensure!(
                place.command == wrong && error.to_string().contains("already exists"),
                "in parent {in_parent}, kind {kind}, command {wrong}: {error}"
            );
            ensure!(names(&filesystem)? == [b"first"], "something of it is there");
            filesystem.subvolumes().drop_deleted(&buttress::Progress::new())?;
            filesystem.close()?;
            open_checked(&base)?;
        }
    }
    Ok(Outcome::Passed)
}

pub fn cases() -> Vec<Case> {
    let mut cases: Vec<Case> = (1..=6)
        .map(|seed| {
            Case::new(format!("waiting_names::as_if_put_at_once_{seed}"), move || {
                as_if_put_at_once(seed, 1500)
            })
        })
        .collect();
    // The directories of the stream have more names than can be pending at a time.
    cases.push(Case::new("waiting_names::of_large_directories", || {
        as_if_put_at_once(7, 14_000)
    }));
    cases.push(Case::new("waiting_names::made_twice", made_twice));
    cases
}
