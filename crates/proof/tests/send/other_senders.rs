//! Streams of other senders. If btrfs-progs receives a harmless oddity, Buttress receives it with a
//! note and the same result. Paths that lead out of the subvolume stay refused. The sender sends
//! the flags of new inodes.

use super::broken::{DEVICE_BYTES, names};
use anyhow::{Context, Result, ensure};
use buttress::unstable::format::send::{COMMAND_HEADER_BYTES, Version};
use buttress::{
    FileAttributes, FileOffset, Generation, InodeFlags, InodeNumber, Location, Progress, SubvolumeId,
    Timestamp, Uuid, mkfs,
};
use buttress_oracle::tools::kernel_missing;
use buttress_proof::harness::{Case, Outcome};
use buttress_proof::send::compare::same_but_for_times_of_directories;
use buttress_proof::send::received::Target;
use buttress_proof::writing::volume::{empty, open_checked, open_for_writing};
use buttress_stream::receive::{Event, Options, receive};
use buttress_stream::send::{self, Snapshot};
use buttress_stream::{Command, Encoder};
use buttress_writer::WritableFilesystem;
use buttress_writer::operations::NewInode;

const TOP: Location = Location::root_of(SubvolumeId::TOP_LEVEL);
const OTIME: u16 = 12;
const UID: u16 = 6;

/// Builder of a version 1 stream with content that no encoder writes.
struct Odd(Vec<u8>);

impl Odd {
    fn new() -> Result<Self> {
        let mut odd = Self(Vec::new());
        Encoder::new(Version::V1).header(&mut odd.0);
        odd.add(&Command::Subvolume {
            path: b"odd",
            uuid: Uuid::from_u128(0x0dd),
            transid: Generation::new(5),
        })?;
        Ok(odd)
    }

    fn add(&mut self, command: &Command<'_>) -> Result<()> {
        Ok(Encoder::new(Version::V1).encode(command, &mut self.0)?)
    }

    /// Adds a command with an additional attribute.
    fn add_with(&mut self, command: &Command<'_>, attribute: u16, value: &[u8]) -> Result<()> {
        let start = self.0.len();
        self.add(command)?;
        self.0.extend_from_slice(&attribute.to_le_bytes());
        self.0
            .extend_from_slice(&u16::try_from(value.len())?.to_le_bytes());
        self.0.extend_from_slice(value);
        self.seal(start)
    }

    /// Adds a command with an unknown number.
    fn add_unknown(&mut self, payload: &[u8]) -> Result<()> {
        let start = self.0.len();
        self.0.extend_from_slice(&[0, 0, 0, 0, 77, 0, 0, 0, 0, 0]);
        self.0.extend_from_slice(payload);
        self.seal(start)
    }

    fn seal(&mut self, start: usize) -> Result<()> {
        let command = &mut self.0[start..];
        let length = u32::try_from(command.len() - COMMAND_HEADER_BYTES)?;
        command[..4].copy_from_slice(&length.to_le_bytes());
        command[6..10].fill(0);
        let sum = !crc32c::crc32c_append(!0, command);
        command[6..10].copy_from_slice(&sum.to_le_bytes());
        Ok(())
    }

    fn end(mut self) -> Result<Vec<u8>> {
        self.add(&Command::End)?;
        Ok(self.0)
    }
}

fn time(seconds: i64) -> Timestamp {
    Timestamp {
        seconds,
        nanoseconds: 5,
    }
}

fn utimes(path: &[u8]) -> Command<'_> {
    Command::Utimes {
        path,
        atime: time(11),
        mtime: time(12),
        ctime: time(13),
        otime: None,
    }
}

/// Builds a stream with every supported oddity. The stream contains each oddity twice that is
/// reported only once.
fn odd_stream() -> Result<Vec<u8>> {
    let mut odd = Odd::new()?;
    // btrfs-progs requires inode numbers, but does not use them.
    let inode = Some(InodeNumber::new(300));
    let mkdir = |path| Command::Mkdir { path, inode };
    let mkfile = |path| Command::Mkfile { path, inode };
    let write = |path, data| Command::Write {
        path,
        offset: FileOffset::MIN,
        data,
    };
    odd.add(&mkdir(b"./dir/"))?;
    odd.add(&mkdir(b"/dir/below"))?;
    odd.add(&mkfile(b"o300-1-0"))?;
    odd.add(&Command::Rename {
        from: b"./o300-1-0",
        to: b"dir/file",
    })?;
    odd.add(&write(b"/dir/file", b"some content"))?;
    odd.add_with(
        &Command::Chmod {
            path: b"./dir/file",
            mode: 0o640,
        },
        UID,
        &77_u64.to_le_bytes(),
    )?;
    odd.add(&Command::Chown {
        path: b"dir/file",
        uid: 12,
        gid: 34,
    })?;
    let otime = [9_u8, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0];
    odd.add_with(&utimes(b"dir/file"), OTIME, &otime)?;
    odd.add(&mkfile(b"/other/"))?;
    odd.add_with(&utimes(b"./other"), OTIME, &otime)?;
    odd.add(&Command::Symlink {
        path: b"/link",
        inode,
        target: b"./dir/",
    })?;
    odd.add(&utimes(b"link"))?;
    odd.add(&Command::Link {
        path: b"/dir/below/hard",
        target: b"./dir/file",
    })?;
    odd.add(&Command::SetXattr {
        path: b"dir/",
        name: b"user.name",
        value: b"/value/",
    })?;
    odd.add(&Command::Chmod {
        path: b"./",
        mode: 0o711,
    })?;
    odd.end()
}

/// Receives a stream into a volume, and returns the notes.
fn take(filesystem: &WritableFilesystem, stream: &[u8], options: &Options) -> Result<Vec<String>> {
    let mut notes = Vec::new();
    receive(filesystem, TOP, stream, options, &mut |event| {
        if let Event::Note(note) = event {
            notes.push(note.to_string());
        }
    })?;
    Ok(notes)
}

/// Receives a stream with oddities: the tree must equal that of btrfs-progs.
fn as_btrfs_progs_has_it() -> Result<Outcome> {
    if let Some(reason) = kernel_missing() {
        return Ok(Outcome::Skipped(reason));
    }
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("odd.stream");
    std::fs::write(&path, odd_stream()?)?;
    let (ours, theirs) = (Target::new(0)?, Target::new(0)?);
    ours.receive(&path)?;
    theirs.receive_by_kernel(&path)?;
    let (ours_has, theirs_have) = (ours.tree("odd")?, theirs.tree("odd")?);
    ensure!(theirs_have.manifest.len() > 5, "hardly anything was received");
    same_but_for_times_of_directories("odd stream", &theirs_have, &ours_has)?;
    ours.expect_clean()?;
    Ok(Outcome::Passed)
}

/// Each oddity is reported once, and the creation time of a version 1 stream is set.
fn each_is_told_once() -> Result<Outcome> {
    let base = empty(&[DEVICE_BYTES], &mkfs::Options::default())?;
    let filesystem = open_for_writing(&base)?;
    let notes = take(&filesystem, &odd_stream()?, &Options::default())?;
    for part in [
        "mkdir: the path ./dir/ has a `.`",
        "mkdir: the path /dir/below begins with a slash",
        "set_xattr: the path dir/ ends with a slash",
        "chmod: the attribute uid does not belong",
        "utimes: the attribute otime belongs to a later stream version than 1",
    ] {
        let found = notes.iter().filter(|note| note.contains(part)).count();
        ensure!(found == 1, "{part}: {notes:#?}");
    }
    ensure!(notes.len() == 5, "{notes:#?}");
    let root = filesystem
        .live()
        .lookup(TOP, b"odd")?
        .context("the subvolume")?
        .target;
    for path in [&b"other"[..], b"dir/file"] {
        let mut at = root;
        for name in path.split(|byte| *byte == b'/') {
            at = filesystem.live().lookup(at, name)?.context("a name")?.target;
        }
        let created = filesystem.live().metadata(at)?.created.context("a time")?;
        ensure!(
            (created.seconds, created.nanoseconds) == (9, 7),
            "{created:?} is not the time of making"
        );
    }
    filesystem.close()?;
    open_checked(&base)?;
    Ok(Outcome::Passed)
}

/// The receiver refuses every form of a path that leads out of the subvolume.
fn what_leads_out_is_refused() -> Result<Outcome> {
    let base = empty(&[DEVICE_BYTES], &mkfs::Options::default())?;
    let filesystem = open_for_writing(&base)?;
    for path in [
        &b"../out"[..],
        b"/../out",
        b"./../out",
        b"a/../../out",
        b"a/../b",
        b"a//b",
        b"a/./b",
        b"..",
        b"/..",
        b"../",
        b"./",
        b"/",
        b"",
    ] {
        let mut odd = Odd::new()?;
        odd.add(&Command::Mkdir {
            path: b"a",
            inode: None,
        })?;
        odd.add(&Command::Mkfile { path, inode: None })?;
        let received = take(&filesystem, &odd.end()?, &Options::default());
        ensure!(received.is_err(), "{} is taken", path.escape_ascii());
        ensure!(
            names(&filesystem)?.is_empty(),
            "{} leaves something",
            path.escape_ascii()
        );
    }
    filesystem.subvolumes().drop_deleted(&Progress::new())?;
    filesystem.close()?;
    open_checked(&base)?;
    Ok(Outcome::Passed)
}

/// Unknown commands are refused. If the options request it, the receiver skips commands without
/// content, with a note for each number.
fn unknown_commands() -> Result<Outcome> {
    let base = empty(&[DEVICE_BYTES], &mkfs::Options::default())?;
    let filesystem = open_for_writing(&base)?;
    let stream = |payload: &[u8]| {
        let mut odd = Odd::new()?;
        odd.add(&Command::Mkfile {
            path: b"f",
            inode: None,
        })?;
        odd.add_unknown(payload)?;
        odd.add_unknown(payload)?;
        odd.add(&utimes(b"f"))?;
        odd.end()
    };
    let harmless = stream(b"\x0f\0\x01\0f")?;
    let of_content = stream(b"\x0f\0\x01\0f\x12\0\x08\0\0\0\0\0\0\0\0\0")?;
    let skipping = Options {
        skip_unknown: true,
        ..Options::default()
    };
    for (bytes, options) in [
        (&harmless, &Options::default()),
        (&of_content, &Options::default()),
        (&of_content, &skipping),
    ] {
        let error = take(&filesystem, bytes, options).err().context("an error")?;
        ensure!(error.to_string().contains("command number 77"), "{error}");
        ensure!(names(&filesystem)?.is_empty());
    }
    let keeping = Options {
        keep_every: Some(buttress::ByteCount::new(1 << 20)),
        ..skipping.clone()
    };
    ensure!(take(&filesystem, &harmless, &keeping).is_err());
    let notes = take(&filesystem, &harmless, &skipping)?;
    ensure!(
        notes.len() == 1 && notes.iter().all(|note| note.contains("command number 77")),
        "{notes:?}"
    );
    let root = filesystem
        .live()
        .lookup(TOP, b"odd")?
        .context("the subvolume")?
        .target;
    ensure!(filesystem.live().lookup(root, b"f")?.is_some());
    filesystem.subvolumes().drop_deleted(&Progress::new())?;
    filesystem.close()?;
    open_checked(&base)?;
    Ok(Outcome::Passed)
}

/// Flags to send, of both kinds of inodes.
const FLAGS: [(&str, FileAttributes); 8] = [
    ("plain", FileAttributes::empty()),
    ("immutable", FileAttributes::IMMUTABLE),
    ("append", FileAttributes::APPEND),
    ("nocow", FileAttributes::NOCOW),
    ("nodump", FileAttributes::NODUMP),
    ("noatime", FileAttributes::NOATIME),
    ("compress", FileAttributes::COMPRESS),
    (
        "several",
        FileAttributes::NOCOW
            .union(FileAttributes::IMMUTABLE)
            .union(FileAttributes::NODUMP),
    ),
];

/// A full stream of version 2 carries the flags of new inodes; one of version 1 cannot.
fn flags_of_new_inodes() -> Result<Outcome> {
    let base = empty(&[DEVICE_BYTES], &mkfs::Options::default())?;
    let filesystem = open_for_writing(&base)?;
    let source = filesystem.subvolumes().create(TOP, b"source")?;
    let root = Location::root_of(source);
    let content = vec![7_u8; 20_000];
    for (name, flags) in FLAGS {
        for is_directory in [false, true] {
            let kind = if is_directory { "d" } else { "f" };
            let name = format!("{kind} {name}").into_bytes();
            let new = NewInode::of_root(0o755);
            let made = match is_directory {
                true => filesystem.make_directory(root, &name, &new)?,
                false => filesystem.create(root, &name, &new)?,
            };
            // Set flags that forbid writing after all other attributes.
            filesystem.set_flags(made, flags & (FileAttributes::NOCOW | FileAttributes::COMPRESS))?;
            match is_directory {
                true => drop(filesystem.create(made, b"child", &new)?),
                false => filesystem.write_at(made, FileOffset::MIN, &content)?,
            }
            filesystem.set_flags(made, flags)?;
        }
    }
    filesystem.subvolumes().snapshot(source, TOP, b"snap", true)?;
    filesystem.commit()?;
    for version in [Version::V1, Version::V2] {
        let view = filesystem.view();
        let id = filesystem
            .live()
            .lookup(TOP, b"snap")?
            .context("the snapshot")?
            .target
            .subvolume;
        let mut stream = Vec::new();
        let options = send::Options {
            version,
            ..send::Options::default()
        };
        send::send(
            &Snapshot::open(&view, id)?,
            &options,
            &mut stream,
            &Progress::new(),
        )?;
        let folder = filesystem.make_directory(
            TOP,
            format!("into {version}").as_bytes(),
            &NewInode::of_root(0o755),
        )?;
        receive(
            &filesystem,
            folder,
            stream.as_slice(),
            &Options::default(),
            &mut |_| {},
        )?;
        let received = filesystem
            .live()
            .lookup(folder, b"snap")?
            .context("the subvolume")?
            .target;
        for (name, _) in FLAGS {
            for kind in ["f", "d"] {
                let name = format!("{kind} {name}");
                let flags_in = |root| {
                    let found = filesystem
                        .live()
                        .lookup(root, name.as_bytes())?
                        .context("a name")?;
                    Ok::<_, anyhow::Error>(filesystem.live().metadata(found.target)?.flags)
                };
                let (sent, found) = (flags_in(root)?, flags_in(received)?);
                // In streams, the compression property is an attribute, which both versions have.
                let expected = match version {
                    Version::V1 => sent & InodeFlags::COMPRESS,
                    _ => sent,
                };
                ensure!(
                    found == expected,
                    "version {version}, {name}: {found:?}, not {expected:?}"
                );
            }
        }
    }
    filesystem.close()?;
    open_checked(&base)?;
    Ok(Outcome::Passed)
}

pub fn cases() -> Vec<Case> {
    vec![
        Case::new("other_senders::as_btrfs_progs_has_it", as_btrfs_progs_has_it),
        Case::new("other_senders::each_is_told_once", each_is_told_once),
        Case::new(
            "other_senders::what_leads_out_is_refused",
            what_leads_out_is_refused,
        ),
        Case::new("other_senders::unknown_commands", unknown_commands),
        Case::new("other_senders::flags_of_new_inodes", flags_of_new_inodes),
    ]
}
