//! `stream tar` on streams of the kernel and of Buttress, compared with the sent snapshots.
//!
//! For random histories, a view applies each stream together with all earlier streams. GNU tar
//! extracts the archive, and the result must equal the snapshot, with all times, owners, links and
//! attributes. An archive of a full stream also has the exact bytes of `buttress tar` of the
//! snapshot; only the order of its members differs.

use anyhow::{Context, Result, ensure};
use buttress_oracle::history::operation::*;
use buttress_oracle::history::{History, Made, Strictness, random};
use buttress_oracle::manifest::Manifest;
use buttress_oracle::tools::{buttress, kernel_missing, run};
use buttress_proof::harness::{Case, Outcome};
use buttress_proof::send::compare::same_content;
use buttress_proof::send::tree::{Tree, of_snapshot};
use buttress_proof::send::volumes::{Flavour, Lent, lend, unused_name};
use buttress_proof::send::{FORMATS, Format, Sender, transfer};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Number of seeds in the ordinary suite.
const SEEDS: u64 = 6;

const SOCKET: u32 = 0o140_000;

/// An executed history with its volume.
struct Scene {
    pair: Lent,
    history: History,
    made: Made,
    folder: tempfile::TempDir,
}

impl Scene {
    fn new(history: History, flavour: Flavour, strictness: Strictness) -> Result<Self> {
        let pair = lend(flavour)?;
        let directory = pair.source.top().join(unused_name("viewed"));
        let made = Made::new(&history, &directory, strictness)?;
        pair.source.commit()?;
        Ok(Self {
            pair,
            history,
            made,
            folder: buttress_oracle::volumes::scratch()?,
        })
    }

    fn streams(&self, sender: Sender, format: Format) -> Result<Vec<PathBuf>> {
        transfer::send(
            sender,
            format,
            &self.pair.source,
            &self.history,
            &self.made,
            self.folder.path(),
        )
    }

    /// Writes the archive of the command `words` to a file.
    fn archive(&self, words: &mut Command) -> Result<PathBuf> {
        let path = self.folder.path().join("archive.tar");
        run(words.arg("-f").arg(&path))?;
        Ok(path)
    }

    /// Writes the archive of the streams' last snapshot.
    fn viewed(&self, streams: &[PathBuf]) -> Result<PathBuf> {
        let mut command = Command::new(buttress()?);
        self.archive(command.args(["-q", "stream", "tar"]).args(streams))
    }

    /// Extracts an archive with GNU tar, and reads the result.
    fn taken_out(&self, archive: &Path) -> Result<Tree> {
        let folder = self.pair.target.top().join(unused_name("taken-out"));
        std::fs::create_dir(&folder)?;
        let options = [
            "--xattrs",
            "--xattrs-include=*",
            "--acls",
            "--same-owner",
            "--numeric-owner",
        ];
        run(Command::new("tar")
            .args(options)
            .args(["--delay-directory-restore", "-xpf"])
            .arg(archive)
            .arg("-C")
            .arg(&folder))?;
        let tree = of_snapshot(&folder);
        std::fs::remove_dir_all(&folder)?;
        tree
    }

    fn end(self) -> Result<()> {
        self.made.remove()
    }
}

/// Removes values that archives do not contain, or that GNU tar does not set.
fn comparable(mut tree: Tree) -> Tree {
    let manifest: &mut Manifest = &mut tree.manifest;
    manifest.retain(|_, entry| entry.mode & 0o170_000 != SOCKET);
    for entry in manifest.values_mut() {
        entry.extra = None;
    }
    tree
}

/// Returns whether a name is a leftover of the kernel's send: a deleted directory that held a
/// subvolume remains under `o<inode>-<generation>-<n>`. The view of this stream correctly shows the
/// leftover.
fn is_left_behind(path: &[u8]) -> bool {
    let Some(rest) = path.strip_prefix(b"o") else {
        return false;
    };
    let mut parts = rest.split(|byte| *byte == b'-');
    let is_number = |part: &[u8]| !part.is_empty() && part.iter().all(u8::is_ascii_digit);
    parts.clone().count() == 3 && parts.all(is_number)
}

fn seeded(seed: u64) -> Result<Outcome> {
    if let Some(reason) = kernel_missing() {
        return Ok(Outcome::Skipped(reason));
    }
    let scene = Scene::new(random::history(seed), Flavour::of_seed(seed), Strictness::Lenient)?;
    for sender in [Sender::Kernel, Sender::Buttress] {
        'formats: for format in FORMATS {
            let streams = scene.streams(sender, format)?;
            for (number, transfer) in scene.history.transfers.iter().enumerate() {
                let what = format!("seed {seed}, {sender:?}, {}, stream {number}", format.name);
                let given = streams.get(..=number).context("a stream for each transfer")?;
                let archive = scene.viewed(given).with_context(|| what.clone())?;
                let found = comparable(scene.taken_out(&archive).with_context(|| what.clone())?);
                if sender == Sender::Kernel && found.manifest.keys().any(|path| is_left_behind(path)) {
                    // Later streams can collide with the name of such a left-over file, on a
                    // receiver, too.
                    continue 'formats;
                }
                let path = scene
                    .made
                    .snapshots
                    .get(transfer.snapshot)
                    .context("a snapshot")?;
                same_content(&what, &comparable(of_snapshot(path)?), &found)?;
            }
            run(Command::new(buttress()?)
                .args(["stream", "verify"])
                .args(&streams))?;
        }
    }
    scene.end()?;
    Ok(Outcome::Passed)
}

/// Returns the members of an archive, each with its headers, unordered.
fn members(archive: &Path) -> Result<BTreeSet<Vec<u8>>> {
    const BLOCK: usize = 512;
    let bytes = std::fs::read(archive)?;
    let (mut members, mut start, mut position) = (BTreeSet::new(), 0, 0);
    while let Some(header) = bytes.get(position..position + BLOCK) {
        if header.iter().all(|byte| *byte == 0) {
            break;
        }
        let size = std::str::from_utf8(&header[124..135])?;
        let size = usize::from_str_radix(size, 8)?;
        position += BLOCK + size.next_multiple_of(BLOCK);
        if header[156] != b'x' {
            members.insert(bytes.get(start..position).context("a whole member")?.to_vec());
            start = position;
        }
    }
    Ok(members)
}

fn every_kind() -> History {
    History::chain(vec![vec![
        mkdir("d"),
        write("d/small", 0, 100),
        write("d/large", 0, 3 << 20),
        write_text("text", 0, 1 << 20),
        write("holes", 1 << 20, 70_000),
        punch("d/large", 1 << 20, 1 << 19),
        preallocate("room", 0, 1 << 20),
        truncate("d/small", 5_000_000),
        touch("empty"),
        symlink("d/small", "link"),
        special("fifo", Special::Fifo),
        reflink_all("d/large", "d/clone"),
        set_xattr("d/small", "user.b", b"2"),
        set_xattr("d/small", "user.a", b""),
        set_xattr("d", "user.of-a-directory", b"\0\xff"),
        chown("d/large", 1000, 70_000),
        chmod("d/large", 0o640),
        set_times("d/large", -5),
    ]])
}

fn same_members(format: Format, flavour: Flavour) -> Result<()> {
    let scene = Scene::new(every_kind(), flavour, Strictness::Strict)?;
    for sender in [Sender::Kernel, Sender::Buttress] {
        let streams = scene.streams(sender, format)?;
        let viewed = members(&scene.viewed(&streams)?)?;
        let snapshot = scene.made.snapshots.first().context("a snapshot")?;
        let mut target = scene.pair.source.image().as_os_str().to_owned();
        target.push(":/");
        target.push(snapshot.strip_prefix(scene.pair.source.top())?);
        let mut command = Command::new(buttress()?);
        let direct = members(&scene.archive(command.args(["-q", "tar"]).arg(target))?)?;
        ensure!(!direct.is_empty(), "the archive is empty");
        let names = |set: &BTreeSet<Vec<u8>>, other: &BTreeSet<Vec<u8>>| -> Vec<String> {
            let name = |member: &Vec<u8>| member[..100.min(member.len())].escape_ascii().to_string();
            set.difference(other).map(name).collect()
        };
        ensure!(
            viewed == direct,
            "{sender:?}, {}, {flavour:?}: only in the stream's: {:?}; only in the snapshot's: {:?}",
            format.name,
            names(&viewed, &direct),
            names(&direct, &viewed)
        );
    }
    scene.end()
}

pub fn cases() -> Vec<Case> {
    let mut cases: Vec<Case> = (1..=SEEDS)
        .map(|seed| Case::new(format!("views::seed_{seed:02}"), move || seeded(seed)))
        .collect();
    cases.push(Case::new("views::same_members", || {
        if let Some(reason) = kernel_missing() {
            return Ok(Outcome::Skipped(reason));
        }
        for flavour in [Flavour::Plain, Flavour::HoleItems, Flavour::Zstd] {
            for format in FORMATS {
                same_members(format, flavour)?;
            }
        }
        Ok(Outcome::Passed)
    }));
    cases
}
