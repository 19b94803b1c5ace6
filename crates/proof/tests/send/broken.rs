//! Truncated and damaged streams: no part of them becomes visible, and the volume stays sound.

use anyhow::{Context, Result, ensure};
use buttress::{ByteCount, Location, SubvolumeId, mkfs};
use buttress_proof::harness::{Case, Outcome};
use buttress_proof::writing::state::describe;
use buttress_proof::writing::volume::{empty, open_checked, open_for_writing};
use buttress_stream::receive::{self, Options, Result as Received, Summary, receive};
use buttress_writer::WritableFilesystem;
use std::io::Read;
use std::path::PathBuf;

pub(super) const DEVICE_BYTES: usize = 128 << 20;

/// Offset of a stream's first command; the next constant is the length of a command header.
const HEADER_BYTES: usize = 17;
const COMMAND_HEADER_BYTES: usize = 10;

pub(super) fn golden(name: &str) -> Result<Vec<u8>> {
    let path: PathBuf = [env!("CARGO_MANIFEST_DIR"), "../stream/tests/golden", name]
        .iter()
        .collect();
    std::fs::read(&path).with_context(|| path.display().to_string())
}

pub(super) fn take(filesystem: &WritableFilesystem, stream: impl Read) -> Received<Summary> {
    let top = Location::root_of(SubvolumeId::TOP_LEVEL);
    receive(filesystem, top, stream, &Options::default(), &mut |_| {})
}

pub(super) fn names(filesystem: &WritableFilesystem) -> Result<Vec<Vec<u8>>> {
    let top = Location::root_of(SubvolumeId::TOP_LEVEL);
    let entries = filesystem.live().list(top, 0, usize::MAX)?;
    Ok(entries.into_iter().map(|entry| entry.name).collect())
}

/// Receives a stream truncated at every byte: it is refused, and no part of it is visible.
fn cut_at_every_byte() -> Result<Outcome> {
    let base = empty(&[DEVICE_BYTES], &mkfs::Options::default())?;
    let filesystem = open_for_writing(&base)?;
    let (full, more) = (
        golden("kernel-full-v2.stream")?,
        golden("kernel-incremental-v2.stream")?,
    );
    for length in 0..full.len() {
        let cut = take(&filesystem, &full[..length]);
        ensure!(cut.is_err(), "cut at {length}");
        let is_full = cut.is_err_and(|error| error.to_string().contains("no space"));
        ensure!(
            !is_full,
            "cut at {length}: the volume is full of what was cut before"
        );
        ensure!(
            names(&filesystem)?.is_empty(),
            "something shows of a cut at {length}"
        );
        // The next commit frees the space of a failed stream.
        if length % 64 == 0 {
            filesystem.subvolumes().drop_deleted(&buttress::Progress::new())?;
            filesystem.commit()?;
        }
    }
    take(&filesystem, full.as_slice())?;
    // Each of these truncated streams creates a snapshot first.
    for length in (0..more.len()).step_by(7) {
        ensure!(take(&filesystem, &more[..length]).is_err(), "cut at {length}");
        ensure!(
            names(&filesystem)?.len() == 1,
            "something shows of a cut at {length}"
        );
        filesystem.subvolumes().drop_deleted(&buttress::Progress::new())?;
        filesystem.commit()?;
    }
    take(&filesystem, more.as_slice())?;
    ensure!(names(&filesystem)?.len() == 2);
    filesystem.subvolumes().drop_deleted(&buttress::Progress::new())?;
    filesystem.close()?;
    open_checked(&base)?;
    Ok(Outcome::Passed)
}

/// Receives many failing streams: their space is freed when it is needed.
fn failed_streams_fill_no_volume() -> Result<Outcome> {
    let base = empty(&[108 << 20], &mkfs::Options::default())?;
    let filesystem = open_for_writing(&base)?;
    let full = golden("kernel-full-v2.stream")?;
    let (mut most, mut drops) = (0, 0);
    for number in 0..3000 {
        let error = take(&filesystem, &full[..full.len() - 20]).err();
        let error = error.context("a stream without its end")?.to_string();
        ensure!(
            !error.contains("no space"),
            "after {number} failed streams: {error}"
        );
        let waiting = filesystem.subvolumes().deleted()?.len();
        drops += u64::from(waiting < most);
        most = waiting;
    }
    ensure!(drops > 0, "the volume was never full: {most} subvolumes wait");
    take(&filesystem, full.as_slice())?;
    ensure!(names(&filesystem)?.len() == 1);
    filesystem.close()?;
    open_checked(&base)?;
    Ok(Outcome::Passed)
}

/// Corrects the checksum of each complete command.
fn mend(stream: &mut [u8]) {
    let mut at = HEADER_BYTES;
    while let Some(length) = stream.get(at..at + 4).and_then(|bytes| bytes.first_chunk::<4>()) {
        let end = at + COMMAND_HEADER_BYTES + u32::from_le_bytes(*length) as usize;
        let Some(command) = stream.get_mut(at..end) else {
            return;
        };
        command[6..10].fill(0);
        let sum = !crc32c::crc32c_append(!0, command);
        command[6..10].copy_from_slice(&sum.to_le_bytes());
        at = end;
    }
}

/// Flips every bit of a stream. With the old checksums, a flipped bit is an error; with corrected
/// checksums, an error or a receivable stream. In both cases, the existing content of the volume
/// stays.
fn every_bit_flipped() -> Result<Outcome> {
    let base = empty(&[DEVICE_BYTES], &mkfs::Options::default())?;
    let filesystem = open_for_writing(&base)?;
    let keep = filesystem.make_directory(
        Location::root_of(SubvolumeId::TOP_LEVEL),
        b"kept",
        &buttress_writer::operations::NewInode::of_root(0o755),
    )?;
    filesystem.create(
        keep,
        b"file",
        &buttress_writer::operations::NewInode::of_root(0o644),
    )?;
    let mut received = 0_u64;
    let streams = [
        "chmod",
        "chown",
        "clone",
        "encoded_write",
        "fallocate",
        "fileattr",
        "link",
        "mkfile",
        "mknod",
        "rename",
        "rmdir",
        "set_xattr",
        "remove_xattr",
        "symlink",
        "truncate",
        "unlink",
        "utimes",
        "write",
    ];
    for name in streams {
        let whole = golden(&format!("{name}.stream"))?;
        for bit in 0..whole.len() * 8 {
            let mut flipped = whole.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            ensure!(
                take(&filesystem, flipped.as_slice()).is_err(),
                "{name}, bit {bit}"
            );
            mend(&mut flipped);
            if let Ok(summary) = take(&filesystem, flipped.as_slice()) {
                received += 1;
                for subvolume in summary.subvolumes {
                    filesystem.subvolumes().delete(subvolume.id)?;
                }
            }
            ensure!(
                names(&filesystem)? == [b"kept"],
                "{name}, bit {bit}: other names are left"
            );
        }
        filesystem.subvolumes().drop_deleted(&buttress::Progress::new())?;
    }
    ensure!(filesystem.live().lookup(keep, b"file")?.is_some());
    println!("{received} of the streams with mended checksums could be received");
    ensure!(
        received > 100,
        "only {received} streams could be received: what is flipped is hardly tried"
    );
    filesystem.close()?;
    open_checked(&base)?;
    Ok(Outcome::Passed)
}

/// Receives a stream and keeps the received part, starting from an earlier kept part. The receiver
/// saves the kept part at short intervals.
pub(super) fn take_keeping(
    filesystem: &WritableFilesystem,
    stream: impl Read,
    resume: Option<receive::Kept>,
) -> Received<Summary> {
    let options = Options {
        keep_every: Some(ByteCount::new(300)),
        resume,
        ..Options::default()
    };
    let top = Location::root_of(SubvolumeId::TOP_LEVEL);
    receive(filesystem, top, stream, &options, &mut |_| {})
}

/// Returns the kept part, of which there is at most one.
pub(super) fn kept(filesystem: &WritableFilesystem) -> Result<Option<receive::Kept>> {
    let top = Location::root_of(SubvolumeId::TOP_LEVEL);
    let mut kept = receive::kept(&filesystem.view(), top)?;
    ensure!(kept.len() <= 1, "{} streams are kept", kept.len());
    Ok(kept.pop())
}

/// Describes a received subvolume without values that depend on its creation time.
pub(super) fn content(filesystem: &WritableFilesystem, name: &[u8]) -> Result<String> {
    let top = Location::root_of(SubvolumeId::TOP_LEVEL);
    let found = filesystem.live().lookup(top, name)?.context("the subvolume")?;
    let all = describe(&filesystem.view())?;
    let prefix = format!("{} ", found.target.subvolume);
    let mut own = Vec::new();
    for line in all.lines().filter_map(|line| line.strip_prefix(&prefix)) {
        let (before, rest) = line.split_once(" transactions ").context("transactions")?;
        let words = rest.split(' ').skip(4).collect::<Vec<_>>();
        own.push(format!("{before} {}", words.join(" ")));
    }
    ensure!(!own.is_empty(), "nothing is said of {prefix:?}:\n{all}");
    Ok(own.join("\n"))
}

/// Cuts a stream anywhere, keeps it, and resumes it. After several cuts and a reopening, the result
/// must equal an uninterrupted receive, with the remaining or the whole stream.
fn resumed_is_as_uncut() -> Result<Outcome> {
    let base = empty(&[DEVICE_BYTES], &mkfs::Options::default())?;
    let mut filesystem = open_for_writing(&base)?;
    let streams = [
        golden("kernel-full-v2.stream")?,
        golden("kernel-incremental-v2.stream")?,
    ];
    let mut resumed = 0_u64;
    for stream in &streams {
        let uncut = take(&filesystem, stream.as_slice())?;
        let made = uncut.subvolumes.first().context("a subvolume")?.clone();
        let expected = content(&filesystem, &made.name)?;
        let before = names(&filesystem)?;
        for cut in (0..stream.len()).step_by(stream.len() / 60) {
            filesystem
                .subvolumes()
                .delete(made_id(&filesystem, &made.name)?)?;
            ensure!(take_keeping(&filesystem, &stream[..cut], None).is_err());
            if cut % 3 == 0 {
                filesystem.close()?;
                filesystem = open_for_writing(&base)?;
            }
            let mut found = kept(&filesystem)?;
            // Continue the kept stream a little, and cut again.
            if let Some(first) = found.take() {
                let start = usize::try_from(first.trail.bytes())?;
                ensure!(start <= cut, "{start} bytes are kept of {cut}");
                let again = cut + (stream.len() - cut) / 2;
                ensure!(take_keeping(&filesystem, &stream[start..again], Some(first)).is_err());
                found = kept(&filesystem)?;
                resumed += 1;
            }
            let rest = match &found {
                Some(found) if cut % 2 == 0 => &stream[usize::try_from(found.trail.bytes())?..],
                _ => stream.as_slice(),
            };
            take_keeping(&filesystem, rest, found).with_context(|| format!("cut at {cut}"))?;
            ensure!(
                names(&filesystem)?.len() == before.len(),
                "cut at {cut}: something is left"
            );
            ensure!(kept(&filesystem)?.is_none());
            ensure!(content(&filesystem, &made.name)? == expected, "cut at {cut}");
            filesystem.subvolumes().drop_deleted(&buttress::Progress::new())?;
        }
    }
    ensure!(resumed > 60, "only {resumed} streams were kept");
    // The kept part of the first stream must not serve another stream.
    let last = names(&filesystem)?.pop().context("a name")?;
    filesystem.subvolumes().delete(made_id(&filesystem, &last)?)?;
    let [full, more] = &streams;
    ensure!(take_keeping(&filesystem, &more[..more.len() / 2], None).is_err());
    let found = kept(&filesystem)?;
    ensure!(found.is_some());
    let other = take_keeping(&filesystem, full.as_slice(), found);
    ensure!(
        matches!(other, Err(receive::Error::OtherStream { .. })),
        "{other:?}"
    );
    filesystem.close()?;
    open_checked(&base)?;
    Ok(Outcome::Passed)
}

fn made_id(filesystem: &WritableFilesystem, name: &[u8]) -> Result<SubvolumeId> {
    let top = Location::root_of(SubvolumeId::TOP_LEVEL);
    let found = filesystem.live().lookup(top, name)?;
    Ok(found.context("the subvolume")?.target.subvolume)
}

pub fn cases() -> Vec<Case> {
    vec![
        Case::new("broken::resumed_is_as_uncut", resumed_is_as_uncut),
        Case::new("broken::cut_at_every_byte", cut_at_every_byte),
        Case::new("broken::every_bit_flipped", every_bit_flipped),
        Case::new(
            "broken::failed_streams_fill_no_volume",
            failed_streams_fill_no_volume,
        ),
    ]
}
