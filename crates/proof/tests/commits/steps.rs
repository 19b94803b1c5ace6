//! The same steps by the kernel and by Buttress, on two copies of one volume, each step committed.
//! The test compares every resulting item of every subvolume and every root item, field by field.
//!
//! Kernel and Buttress have separate clocks and generations. To make generations and times
//! comparable, each is replaced by the number of its step; values from before the first step are
//! compared unchanged. Subvolume ids, inode numbers and name indexes are equal on both sides.
//!
//! The description omits values that each side chooses: addresses of blocks and data; generated
//! uuids; the generation and location of a tree's root, which also change without changes in the
//! subvolume. It also omits change counters of new inodes and of directories, and the offset in an
//! entry of a subvolume, which has no meaning.

use anyhow::{Context, Result, bail, ensure};
use buttress::unstable::format::{
    DirItems, FileExtent, FileExtentBody, InodeItem, ItemType, Key, RootItem, Superblock,
};
use buttress::unstable::fs::{Filesystem, OpenOptions};
use buttress::unstable::writer::{WritableFilesystem, WriteOptions};
use buttress::{
    AttributeChanges, ByteCount, FileKind, FileOffset, Follow, Generation, Location, NewInode, NodeKind,
    Physical, ReadAhead, RenameMode, SetXattr, SubvolumeId, Timestamp, TreeId, Uuid,
};
use buttress_oracle::ioctls;
use buttress_oracle::loop_device::Mount;
use buttress_oracle::tools::{kernel_missing, newest, run};
use buttress_oracle::volumes::{Fill, Specification, format, scratch};
use buttress_proof::harness::{Case, Outcome};
use buttress_proof::writing::volume::open_images;
use rustix::fs::{AtFlags, CWD, FileType, Gid, Mode, Uid, XattrFlags};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};

const TOP: Location = Location::root_of(SubvolumeId::TOP_LEVEL);

/// Pause between two steps, longer than a tick of the kernel's clock for files.
const PAUSE: Duration = Duration::from_millis(30);

/// A step, on both sides.
struct Step {
    name: &'static str,
    by_kernel: fn(&Path) -> Result<()>,
    here: fn(&WritableFilesystem) -> Result<()>,
}

fn find(filesystem: &WritableFilesystem, path: &str) -> Result<Location> {
    Ok(filesystem.view().resolve(TOP, path.as_bytes(), Follow::NotLast)?)
}

fn subvolume(filesystem: &WritableFilesystem, path: &str) -> Result<SubvolumeId> {
    Ok(find(filesystem, path)?.subvolume)
}

fn open_for_writing(path: PathBuf) -> Result<File> {
    Ok(File::options().write(true).open(path)?)
}

fn snapshot_by_kernel(top: &Path, source: &str, name: &str, read_only: bool) -> Result<()> {
    let (source, directory) = (File::open(top.join(source))?, File::open(top)?);
    Ok(ioctls::snapshot(&source, &directory, name.as_bytes(), read_only)?)
}

fn snapshot_here(filesystem: &WritableFilesystem, source: &str, name: &str, read_only: bool) -> Result<()> {
    filesystem
        .subvolumes()
        .snapshot(subvolume(filesystem, source)?, TOP, name.as_bytes(), read_only)?;
    Ok(())
}

/// Returns steps that change names, attributes and content.
fn steps_of_files() -> Vec<Step> {
    vec![
        Step {
            name: "a file is made",
            by_kernel: |top| {
                File::create_new(top.join("sub/new"))?;
                Ok(())
            },
            here: |filesystem| {
                filesystem.create(find(filesystem, "sub")?, b"new", &NewInode::of_root(0o644))?;
                Ok(())
            },
        },
        Step {
            name: "a few bytes are written",
            by_kernel: |top| Ok(open_for_writing(top.join("sub/new"))?.write_all_at(b"content", 0)?),
            here: |filesystem| {
                let file = find(filesystem, "sub/new")?;
                Ok(filesystem.write_at(file, FileOffset::new(0), b"content")?)
            },
        },
        Step {
            name: "an old file is overwritten in its middle",
            by_kernel: |top| Ok(open_for_writing(top.join("sub/file"))?.write_all_at(&[7; 8192], 8192)?),
            here: |filesystem| {
                let file = find(filesystem, "sub/file")?;
                Ok(filesystem.write_at(file, FileOffset::new(8192), &[7; 8192])?)
            },
        },
        Step {
            name: "another mode",
            by_kernel: |top| {
                Ok(rustix::fs::chmod(
                    top.join("sub/file"),
                    Mode::from_raw_mode(0o600),
                )?)
            },
            here: |filesystem| {
                let changes = AttributeChanges {
                    mode: Some(0o600),
                    ..AttributeChanges::default()
                };
                Ok(filesystem.set_attributes(find(filesystem, "sub/file")?, &changes)?)
            },
        },
        Step {
            name: "another owner",
            by_kernel: |top| {
                let (uid, gid) = (Some(Uid::from_raw(11)), Some(Gid::from_raw(12)));
                Ok(rustix::fs::chownat(
                    CWD,
                    top.join("sub/file"),
                    uid,
                    gid,
                    AtFlags::empty(),
                )?)
            },
            here: |filesystem| {
                let changes = AttributeChanges {
                    uid: Some(11),
                    gid: Some(12),
                    ..AttributeChanges::default()
                };
                Ok(filesystem.set_attributes(find(filesystem, "sub/file")?, &changes)?)
            },
        },
        Step {
            name: "a second name",
            by_kernel: |top| Ok(fs::hard_link(top.join("sub/file"), top.join("sub/link"))?),
            here: |filesystem| {
                let (file, directory) = (find(filesystem, "sub/file")?, find(filesystem, "sub")?);
                Ok(filesystem.link(file, directory, b"link")?)
            },
        },
        Step {
            name: "another name",
            by_kernel: |top| Ok(fs::rename(top.join("sub/link"), top.join("sub/renamed"))?),
            here: |filesystem| {
                let directory = find(filesystem, "sub")?;
                Ok(filesystem.rename(directory, b"link", directory, b"renamed", RenameMode::Replace)?)
            },
        },
        Step {
            name: "one name less",
            by_kernel: |top| Ok(fs::remove_file(top.join("sub/renamed"))?),
            here: |filesystem| Ok(filesystem.unlink(find(filesystem, "sub")?, b"renamed")?),
        },
        Step {
            name: "a directory",
            by_kernel: |top| Ok(fs::create_dir(top.join("sub/directory"))?),
            here: |filesystem| {
                let parent = find(filesystem, "sub")?;
                filesystem.make_directory(parent, b"directory", &NewInode::of_root(0o755))?;
                Ok(())
            },
        },
        Step {
            name: "a file moves into it",
            by_kernel: |top| Ok(fs::rename(top.join("sub/new"), top.join("sub/directory/new"))?),
            here: |filesystem| {
                let (from, to) = (find(filesystem, "sub")?, find(filesystem, "sub/directory")?);
                Ok(filesystem.rename(from, b"new", to, b"new", RenameMode::Replace)?)
            },
        },
        Step {
            name: "an attribute",
            by_kernel: |top| set_xattr_by_kernel(top, "value"),
            here: |filesystem| set_xattr_here(filesystem, "value"),
        },
        Step {
            name: "the attribute changes",
            by_kernel: |top| set_xattr_by_kernel(top, "another value"),
            here: |filesystem| set_xattr_here(filesystem, "another value"),
        },
        Step {
            name: "a file is cut",
            by_kernel: |top| Ok(open_for_writing(top.join("sub/file"))?.set_len(8192)?),
            here: |filesystem| Ok(filesystem.truncate(find(filesystem, "sub/file")?, ByteCount::new(8192))?),
        },
        Step {
            name: "a symlink",
            by_kernel: |top| Ok(std::os::unix::fs::symlink("file", top.join("sub/symlink"))?),
            here: |filesystem| {
                let directory = find(filesystem, "sub")?;
                filesystem.make_symlink(directory, b"symlink", &NewInode::of_root(0o777), b"file")?;
                Ok(())
            },
        },
        Step {
            name: "a pipe",
            by_kernel: |top| {
                let mode = Mode::from_raw_mode(0o644);
                Ok(rustix::fs::mknodat(
                    CWD,
                    top.join("sub/pipe"),
                    FileType::Fifo,
                    mode,
                    0,
                )?)
            },
            here: |filesystem| {
                let directory = find(filesystem, "sub")?;
                filesystem.make_node(directory, b"pipe", &NewInode::of_root(0o644), NodeKind::Fifo)?;
                Ok(())
            },
        },
        Step {
            name: "the last name of a file goes, and its index is not given again",
            by_kernel: |top| {
                fs::remove_file(top.join("sub/pipe"))?;
                File::create_new(top.join("sub/after"))?;
                Ok(())
            },
            here: |filesystem| {
                let directory = find(filesystem, "sub")?;
                filesystem.unlink(directory, b"pipe")?;
                filesystem.create(directory, b"after", &NewInode::of_root(0o644))?;
                Ok(())
            },
        },
    ]
}

fn set_xattr_by_kernel(top: &Path, value: &str) -> Result<()> {
    let path = top.join("sub/file");
    Ok(rustix::fs::setxattr(
        path,
        "user.name",
        value.as_bytes(),
        XattrFlags::empty(),
    )?)
}

fn set_xattr_here(filesystem: &WritableFilesystem, value: &str) -> Result<()> {
    let file = find(filesystem, "sub/file")?;
    Ok(filesystem.set_xattr(file, b"user.name", value.as_bytes(), SetXattr::CreateOrReplace)?)
}

/// Returns steps that change subvolumes and snapshots.
fn steps_of_subvolumes() -> Vec<Step> {
    vec![
        Step {
            name: "a read-only snapshot",
            by_kernel: |top| snapshot_by_kernel(top, "sub", "read-only", true),
            here: |filesystem| snapshot_here(filesystem, "sub", "read-only", true),
        },
        Step {
            name: "a writable snapshot",
            by_kernel: |top| snapshot_by_kernel(top, "sub", "writable", false),
            here: |filesystem| snapshot_here(filesystem, "sub", "writable", false),
        },
        Step {
            name: "a file in the snapshot",
            by_kernel: |top| {
                File::create_new(top.join("writable/only-here"))?;
                Ok(())
            },
            here: |filesystem| {
                let directory = find(filesystem, "writable")?;
                filesystem.create(directory, b"only-here", &NewInode::of_root(0o644))?;
                Ok(())
            },
        },
        Step {
            name: "a read-only snapshot of what was received",
            by_kernel: |top| snapshot_by_kernel(top, "in/sent", "received-read-only", true),
            here: |filesystem| snapshot_here(filesystem, "in/sent", "received-read-only", true),
        },
        Step {
            name: "a writable snapshot of what was received",
            by_kernel: |top| snapshot_by_kernel(top, "in/sent", "received-writable", false),
            here: |filesystem| snapshot_here(filesystem, "in/sent", "received-writable", false),
        },
        Step {
            name: "a snapshot of a snapshot",
            by_kernel: |top| snapshot_by_kernel(top, "read-only", "second", false),
            here: |filesystem| snapshot_here(filesystem, "read-only", "second", false),
        },
        Step {
            name: "an empty subvolume",
            by_kernel: |top| Ok(ioctls::create_subvolume(&File::open(top)?, b"empty")?),
            here: |filesystem| {
                filesystem.subvolumes().create(TOP, b"empty")?;
                Ok(())
            },
        },
        Step {
            name: "a subvolume becomes read-only",
            by_kernel: |top| Ok(ioctls::set_read_only(&File::open(top.join("empty"))?, true)?),
            here: |filesystem| {
                let id = subvolume(filesystem, "empty")?;
                let received = buttress::ReceivedUuid::Refuse;
                Ok(filesystem.subvolumes().set_read_only(id, true, received)?)
            },
        },
        Step {
            name: "the source changes after its snapshots",
            by_kernel: |top| Ok(fs::create_dir(top.join("sub/later"))?),
            here: |filesystem| {
                let parent = find(filesystem, "sub")?;
                filesystem.make_directory(parent, b"later", &NewInode::of_root(0o755))?;
                Ok(())
            },
        },
        Step {
            name: "a read-only subvolume gets another name",
            by_kernel: |top| Ok(fs::rename(top.join("read-only"), top.join("still-read-only"))?),
            here: |filesystem| {
                let how = RenameMode::Replace;
                Ok(filesystem.rename(TOP, b"read-only", TOP, b"still-read-only", how)?)
            },
        },
        Step {
            name: "a subvolume moves",
            by_kernel: |top| Ok(fs::rename(top.join("second"), top.join("sub/second"))?),
            here: |filesystem| {
                let directory = find(filesystem, "sub")?;
                Ok(filesystem.rename(TOP, b"second", directory, b"second", RenameMode::Replace)?)
            },
        },
    ]
}

/// Generations and times of one side after each step.
#[derive(Default)]
struct Diary {
    generations: Vec<Generation>,
    times: Vec<Timestamp>,
}

impl Diary {
    fn write(&mut self, generation: Generation) -> Result<()> {
        self.generations.push(generation);
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?;
        self.times.push(Timestamp {
            seconds: i64::try_from(now.as_secs())?,
            nanoseconds: now.subsec_nanos(),
        });
        Ok(())
    }

    /// Replaces a generation by the step that made it; older generations stay unchanged.
    fn generation(&self, generation: Generation) -> String {
        match self.generations.iter().position(|last| generation <= *last) {
            Some(0) => format!("generation {generation}"),
            Some(step) => format!("step {step}"),
            None => format!("after the last step ({generation})"),
        }
    }

    fn time(&self, time: Timestamp) -> String {
        let of = |time: &Timestamp| (time.seconds, time.nanoseconds);
        match self.times.iter().position(|last| of(&time) <= of(last)) {
            Some(0) => format!("{}.{}", time.seconds, time.nanoseconds),
            Some(step) => format!("step {step}"),
            None => format!("after the last step ({}.{})", time.seconds, time.nanoseconds),
        }
    }
}

/// Creates the initial volume of both sides: the kernel made it, and received a part of it.
fn base(folder: &Path) -> Result<PathBuf> {
    let specification = Specification {
        fill: Fill::Empty,
        device_mib: 512,
        ..Specification::default()
    };
    let (_folder, images) = format(&specification)?;
    let image = images.first().context("an image")?;
    let mount = Mount::new(&images, "noatime")?;
    let top = mount.path();
    ioctls::create_subvolume(&File::open(top)?, b"sub")?;
    fs::write(top.join("sub/file"), vec![b'a'; 40_000])?;
    fs::write(top.join("sub/small"), b"small")?;
    fs::create_dir(top.join("in"))?;
    snapshot_by_kernel(top, "sub", "sent", true)?;
    let stream = folder.join("stream");
    run(Command::new(newest("btrfs"))
        .args(["send", "-q", "-f"])
        .arg(&stream)
        .arg(top.join("sent")))?;
    run(Command::new(newest("btrfs"))
        .args(["receive", "-q", "-f"])
        .arg(&stream)
        .arg(top.join("in")))?;
    mount.close()?;
    let copy = folder.join("base");
    fs::copy(image, &copy)?;
    Ok(copy)
}

fn generation_on(image: &Path) -> Result<Generation> {
    let mut bytes = [0; 4096];
    File::open(image)?.read_exact_at(&mut bytes, 64 << 10)?;
    Ok(Superblock::check(&bytes, Physical::new(64 << 10))?.generation)
}

/// Makes the steps with the kernel. Returns the diary of the kernel's results.
fn by_kernel(image: &PathBuf, steps: &[Step]) -> Result<Diary> {
    let mount = Mount::new(std::slice::from_ref(image), "noatime,commit=3600")?;
    let mut diary = Diary::default();
    let sync = || Ok::<_, anyhow::Error>(rustix::fs::syncfs(File::open(mount.path())?)?);
    sync()?;
    diary.write(generation_on(image)?)?;
    for step in steps {
        std::thread::sleep(PAUSE);
        (step.by_kernel)(mount.path()).with_context(|| format!("{}, by the kernel", step.name))?;
        sync()?;
        std::thread::sleep(PAUSE);
        diary.write(generation_on(image)?)?;
    }
    mount.close()?;
    Ok(diary)
}

fn here(image: &PathBuf, steps: &[Step]) -> Result<Diary> {
    let images = std::slice::from_ref(image);
    let filesystem = OpenOptions::new(open_images(images, true)?).open()?;
    let filesystem = WritableFilesystem::new(filesystem, WriteOptions::default())?;
    let mut diary = Diary::default();
    diary.write(filesystem.commit()?)?;
    for step in steps {
        std::thread::sleep(PAUSE);
        (step.here)(&filesystem).with_context(|| format!("{}, here", step.name))?;
        let generation = filesystem.commit()?;
        std::thread::sleep(PAUSE);
        diary.write(generation)?;
    }
    Ok(diary)
}

/// The compared content of a volume: a line for each item.
struct Account<'a> {
    diary: &'a Diary,
    /// Subvolumes by uuid.
    owners: BTreeMap<Uuid, SubvolumeId>,
    base: &'a [Uuid],
    lines: BTreeMap<(u64, Key), String>,
}

impl<'a> Account<'a> {
    fn of(filesystem: &Filesystem, diary: &'a Diary, base: &'a [Uuid]) -> Result<Self> {
        let subvolumes = filesystem.subvolumes()?;
        let mut account = Self {
            diary,
            owners: subvolumes
                .iter()
                .map(|info| (info.root_item.uuid, info.id))
                .collect(),
            base,
            lines: BTreeMap::new(),
        };
        for info in &subvolumes {
            let tree = info.id.tree();
            let line = account.root(&info.root_item)?;
            let key = Key::new(tree.object_id(), ItemType::ROOT_ITEM, 0);
            account.lines.insert((TreeId::ROOT.get(), key), line);
            account.subvolume(filesystem, tree)?;
        }
        for item in filesystem.root_tree().range(.., ReadAhead::None) {
            let item = item?;
            let key = item.key();
            if [ItemType::ROOT_REF, ItemType::ROOT_BACKREF].contains(&key.item_type) {
                account
                    .lines
                    .insert((TreeId::ROOT.get(), key), format!("{:?}", item.data()));
            }
        }
        Ok(account)
    }

    fn uuid(&self, uuid: Uuid) -> String {
        if uuid.is_nil() {
            return "none".to_owned();
        }
        match self.owners.get(&uuid) {
            Some(owner) => format!("that of subvolume {owner}"),
            None if self.base.contains(&uuid) => uuid.to_string(),
            None => "one that nobody has".to_owned(),
        }
    }

    fn root(&self, item: &RootItem) -> Result<String> {
        let generation = |generation| self.diary.generation(generation);
        let time = |at| self.diary.time(at);
        let mut line = String::new();
        write!(
            line,
            "root: directory {}, {} references, {:?}, last snapshot {}, uuid {}, parent {}, received {}, ",
            item.root_directory,
            item.references,
            item.flags,
            generation(item.last_snapshot),
            self.uuid(item.uuid),
            self.uuid(item.parent_uuid),
            self.uuid(item.received_uuid),
        )?;
        write!(
            line,
            "ctransid {} at {}, otransid {} at {}, stransid {} at {}, rtransid {} at {}, ",
            generation(item.ctransid),
            time(item.ctime),
            generation(item.otransid),
            time(item.otime),
            generation(item.stransid),
            time(item.stime),
            generation(item.rtransid),
            time(item.rtime),
        )?;
        write!(
            line,
            "generations {}, drop progress {:?} at level {}, limit {}",
            if item.generation == item.generation_v2 {
                "agree"
            } else {
                "differ"
            },
            item.drop_progress,
            item.drop_level,
            item.byte_limit,
        )?;
        Ok(line)
    }

    fn subvolume(&mut self, filesystem: &Filesystem, tree: TreeId) -> Result<()> {
        let items = filesystem.tree(tree)?;
        for item in items.range(.., ReadAhead::None) {
            let item = item?;
            let key = item.key();
            let line = self.item(&key, item.data(), filesystem.sector_bytes())?;
            self.lines.insert((tree.get(), key), line);
        }
        Ok(())
    }

    fn item(&self, key: &Key, data: &[u8], sector_bytes: u32) -> Result<String> {
        Ok(match key.item_type {
            ItemType::INODE_ITEM => self.inode(&InodeItem::parse(key, data)?)?,
            ItemType::DIR_ITEM | ItemType::DIR_INDEX | ItemType::XATTR_ITEM => {
                let mut line = String::new();
                for entry in DirItems::parse(key, data)? {
                    write!(
                        line,
                        "{} to {} {:?}, {:?}, {:?}, of {}; ",
                        entry.name.escape_ascii(),
                        entry.location.objectid,
                        entry.location.item_type,
                        entry.kind,
                        entry.data,
                        self.diary.generation(entry.transid)
                    )?;
                }
                line
            }
            ItemType::EXTENT_DATA => {
                let extent = FileExtent::parse(key, data, sector_bytes)?;
                let generation = self.diary.generation(extent.generation);
                let body = match extent.body {
                    FileExtentBody::Inline(content) => format!("inline {}", content.escape_ascii()),
                    FileExtentBody::Regular(slice) | FileExtentBody::Preallocated(slice) => {
                        format!("{} of {} at {}", slice.num_bytes, slice.disk_bytes, slice.offset)
                    }
                };
                format!(
                    "{body}, {} bytes, {:?}, of {generation}",
                    extent.ram_bytes, extent.compression
                )
            }
            _ => format!("{data:?}"),
        })
    }

    /// Formats the change counter if the kernel's is meaningful: that of a new inode starts at
    /// leftover memory, and a directory's skips unobserved changes.
    fn sequence(&self, item: &InodeItem) -> String {
        let is_old = self
            .diary
            .generations
            .first()
            .is_some_and(|first| item.generation <= *first);
        if is_old && item.kind() == FileKind::Regular {
            return item.sequence.to_string();
        }
        "not compared".to_owned()
    }

    fn inode(&self, item: &InodeItem) -> Result<String> {
        let mut line = String::new();
        write!(
            line,
            "inode: made in {}, changed in {}, sequence {}, size {}, bytes {}, links {}, mode {:o}, owner {}:{}, \
             device {}, {:?}, ",
            self.diary.generation(item.generation),
            self.diary.generation(item.transid),
            self.sequence(item),
            item.size,
            item.nbytes,
            item.nlink,
            item.mode,
            item.uid,
            item.gid,
            item.rdev,
            item.flags,
        )?;
        write!(
            line,
            "atime {}, ctime {}, mtime {}, otime {}",
            self.diary.time(item.atime),
            self.diary.time(item.ctime),
            self.diary.time(item.mtime),
            self.diary.time(item.otime),
        )?;
        Ok(line)
    }
}

fn open(image: &PathBuf) -> Result<Filesystem> {
    Ok(OpenOptions::new(open_images(std::slice::from_ref(image), false)?).open()?)
}

/// Asserts that backup root slots rotate, as in the kernel: see [`super::backup_roots`].
fn expect_turns(who: &str, superblock: &Superblock) -> Result<()> {
    let of = |slot: usize| superblock.backup_roots[slot % 4].tree_root.generation.get();
    let newest = (0..4).max_by_key(|slot| of(*slot)).unwrap_or(0);
    let backwards: Vec<u64> = (0..4).map(|back| of(newest + 4 - back)).collect();
    ensure!(
        backwards.is_sorted_by(|newer, older| newer > older),
        "{who}: backup roots of the generations {backwards:?}, from the newest slot backwards"
    );
    Ok(())
}

fn compare(steps: &[Step]) -> Result<Outcome> {
    if let Some(missing) = kernel_missing() {
        return Ok(Outcome::Skipped(missing));
    }
    let folder = scratch()?;
    let first = base(folder.path())?;
    let base_uuids: Vec<Uuid> = open(&first)?
        .subvolumes()?
        .iter()
        .flat_map(|info| {
            [
                info.root_item.uuid,
                info.root_item.parent_uuid,
                info.root_item.received_uuid,
            ]
        })
        .collect();
    let second = folder.path().join("second");
    fs::copy(&first, &second)?;
    let kernels = by_kernel(&first, steps)?;
    let ours = here(&second, steps)?;
    let (kernel, here) = (open(&first)?, open(&second)?);
    expect_turns("the kernel", &kernel.superblock())?;
    expect_turns("Buttress", &here.superblock())?;
    let kernel = Account::of(&kernel, &kernels, &base_uuids)?.lines;
    let here = Account::of(&here, &ours, &base_uuids)?.lines;
    let mut differences = String::new();
    let none = "no such item".to_owned();
    let keys: std::collections::BTreeSet<_> = kernel.keys().chain(here.keys()).collect();
    for (tree, key) in keys {
        let of =
            |side: &BTreeMap<(u64, Key), String>| side.get(&(*tree, *key)).cloned().unwrap_or(none.clone());
        let (kernel, here) = (of(&kernel), of(&here));
        if kernel != here {
            writeln!(
                differences,
                "tree {tree} {key:?}\n  kernel {kernel}\n  here   {here}"
            )?;
        }
    }
    if !differences.is_empty() {
        let names = (1..)
            .zip(steps)
            .map(|(number, step)| format!("{number}: {}", step.name));
        bail!("{differences}{}", names.collect::<Vec<_>>().join("\n"));
    }
    Ok(Outcome::Passed)
}

pub fn cases() -> Vec<Case> {
    vec![
        Case::new("steps::of_files", || compare(&steps_of_files())),
        Case::new("steps::of_subvolumes", || compare(&steps_of_subvolumes())),
    ]
}
