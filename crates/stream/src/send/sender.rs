//! A single send: inode by inode, in the order of their numbers.
//!
//! As in the kernel, each inode sends its names, its extended attributes, its content, then owner,
//! mode, capabilities and times. Times of directories come at the end, see [`crate::send::times`].

use crate::command::Command;
use crate::send::attributes::{self, CAPABILITY, Times};
use crate::send::clones::Clones;
use crate::send::content::{Content, Sources, Stream};
use crate::send::error::{NamesProblem, Result};
use crate::send::held::{Held, Planner};
use crate::send::inode::{Attribute, InodeState, State};
use crate::send::items::{ExtentChange, Gatherer, Visitor, Walk};
use crate::send::names::{Fresh, Names};
use crate::send::options::Options;
use crate::send::output::Output;
use crate::send::plan::{Plan, is_directory};
use crate::send::snapshot::{Link, Snapshot};
use buttress_format::{ByteCount, InodeItem, InodeNumber};
use buttress_fs::{Progress, StoredReader};
use std::sync::Arc;

/// Number of inodes between two updates of an incremental stream's expected length.
const EXPECT_EVERY_INODES: u64 = 256;

const KIND: u32 = 0o170_000;
const REGULAR: u32 = 0o100_000;
const SYMLINK: u32 = 0o120_000;
const SOCKET: u32 = 0o140_000;
const PIPE: u32 = 0o010_000;

/// State of a send.
pub(crate) struct Sender<'a, 'o> {
    sources: Sources<'a>,
    names: Names<'a>,
    output: &'o mut Output<'a>,
    progress: &'a Progress,
    current: Option<Current>,
    inodes: u64,
    /// Expected number of inodes; zero if it is unknown, or if the length of the stream is known
    /// exactly.
    expected_inodes: u64,
}

/// The inode whose extents are being sent.
struct Current {
    number: InodeNumber,
    path: Arc<[u8]>,
    /// Inode item in the parent snapshot, if both snapshots have the same inode.
    old: Option<InodeItem>,
    new: InodeItem,
    capability: Option<Attribute>,
    /// True if the inode certainly has no other extended attributes in the new snapshot.
    no_xattrs: bool,
    content: Option<Content>,
}

/// Sends `new`, or its differences from the parent, as commands.
pub(crate) fn send_commands<'a>(
    new: &'a Snapshot,
    options: &'a Options,
    output: &mut Output<'a>,
    progress: &'a Progress,
) -> Result<u64> {
    let old = options.parent.as_ref();
    let planned = old.map(|old| plan(new, old, options, progress)).transpose()?;
    begin(new, old, output)?;
    let (plan, ahead) = planned.unzip();
    let mut sender = Sender {
        sources: Sources {
            new,
            old,
            one_volume: old.is_some_and(|old| old.shares_volume_with(new)),
            clones: Clones::new(new, old.into_iter().chain(&options.clone_sources)),
            stored: StoredReader::new(new.filesystem())?,
            compressed_data: options.compressed_data,
        },
        names: Names::new(new, old, plan.unwrap_or_default()),
        output,
        progress,
        current: None,
        inodes: 0,
        expected_inodes: 0,
    };
    let mut gatherer = Gatherer::new(new, old, progress);
    match ahead {
        None => gatherer.run(options.read_ahead, &mut sender)?,
        Some(Ahead {
            held,
            mut walk,
            inodes,
        }) => {
            sender.expected_inodes = inodes;
            walk.look_ahead();
            held.replay(&mut sender)?;
            gatherer.go_on(&mut walk, None, &mut sender)?;
        }
    }
    sender.directory_times()?;
    let inodes = sender.inodes;
    if !options.omit_end {
        output.command(&Command::End)?;
    }
    Ok(inodes)
}

/// Results of the planning pass.
struct Ahead {
    held: Held,
    /// Walk that continues after the held inodes.
    walk: Walk,
    /// The expected number of inodes in the send; a lower bound.
    inodes: u64,
}

/// Plans an incremental send: walks the inodes that the parent snapshot may have.
fn plan(new: &Snapshot, old: &Snapshot, options: &Options, progress: &Progress) -> Result<(Plan, Ahead)> {
    let last = old.last_inode()?;
    let mut planner = Planner {
        plan: Plan::new(last),
        held: Held::default(),
    };
    let mut walk = Walk::new(old, new, options.read_ahead);
    Gatherer::new(new, Some(old), progress).go_on(&mut walk, Some(last), &mut planner)?;
    let Planner { mut plan, held } = planner;
    plan.finish();
    // All inodes with higher numbers than the parent's last one are new.
    let after = new.last_inode()?.get().saturating_sub(last.get());
    let inodes = held.count().saturating_add(after);
    if !held.is_whole() {
        walk = Walk::new(old, new, options.read_ahead);
    }
    Ok((plan, Ahead { held, walk, inodes }))
}

/// Sends the command that creates the subvolume.
fn begin(new: &Snapshot, old: Option<&Snapshot>, output: &mut Output<'_>) -> Result<()> {
    let (path, uuid, transid) = (new.name(), new.stream_uuid(), new.stream_transid());
    match old {
        None => output.command(&Command::Subvolume { path, uuid, transid }),
        Some(old) => output.command(&Command::Snapshot {
            path,
            uuid,
            transid,
            clone_uuid: old.stream_uuid(),
            clone_transid: old.stream_transid(),
        }),
    }
}

impl Visitor for Sender<'_, '_> {
    fn begin(&mut self, inode: &InodeState) -> Result<()> {
        self.inodes = self.inodes.saturating_add(1);
        self.progress.advance(1, ByteCount::ZERO);
        self.expect();
        let state = inode.state();
        if matches!(state, State::Removed | State::Replaced)
            && let Some(old) = inode.old_present()
        {
            let directory = is_directory(old.mode);
            self.names
                .remove(inode.number, directory, &inode.old_links, self.output)?;
        }
        let Some(new) = inode.new_present() else {
            return Ok(());
        };
        let old = inode.old_present().filter(|_| state == State::Kept);
        let path: Arc<[u8]> = match old {
            Some(_) => self.change_names(inode, new)?.into(),
            None => {
                let path: Arc<[u8]> = self.create(inode, new)?.into();
                attributes::send_content_flags(new, &path, self.output)?;
                path
            }
        };
        let owner = attributes::owner_differs(old, new);
        attributes::send_xattrs(inode, &path, !owner, self.output)?;
        let content = if new.mode & KIND == REGULAR {
            let path = Arc::clone(&path);
            let mut content = Content::new(inode.number, path, old, new, &mut self.stream())?;
            if old.is_some() && !self.sources.one_volume {
                content.everything();
            }
            Some(content)
        } else {
            None
        };
        self.current = Some(Current {
            number: inode.number,
            path,
            old: old.copied(),
            new: *new,
            capability: inode
                .new_xattrs
                .iter()
                .find(|xattr| xattr.name == CAPABILITY)
                .cloned(),
            no_xattrs: inode.beside.no_xattrs,
            content,
        });
        Ok(())
    }

    fn extent(&mut self, change: ExtentChange) -> Result<()> {
        match self.current.as_mut().and_then(|current| current.content.as_mut()) {
            Some(content) => content.extent(
                change,
                &mut Stream {
                    sources: &mut self.sources,
                    names: &mut self.names,
                    output: self.output,
                },
            ),
            None => Ok(()),
        }
    }

    fn end(&mut self) -> Result<()> {
        let Some(mut current) = self.current.take() else {
            return Ok(());
        };
        let wrote = match current.content.take() {
            Some(content) => content.finish(&mut self.stream())?,
            None => false,
        };
        let old = current.old.as_ref();
        attributes::send_owner_and_mode(old, &current.new, &current.path, self.output)?;
        self.send_capability(&current, wrote)?;
        let times = Times::of(&current.new);
        // A new directory that is empty when the send creates it gets no entries later, so its
        // times stay valid.
        let empty = current.new.size == ByteCount::ZERO && current.old.is_none();
        if is_directory(current.new.mode) && !empty {
            self.names.times.set(current.number, times);
            if self.names.times.is_full() {
                self.directory_times()?;
            }
            return Ok(());
        }
        times.send(&current.path, self.output)
    }
}

impl<'a> Sender<'a, '_> {
    const fn stream(&mut self) -> Stream<'_, 'a> {
        Stream {
            sources: &mut self.sources,
            names: &mut self.names,
            output: self.output,
        }
    }

    /// Updates the expected length of the stream from the average length per inode so far.
    fn expect(&self) {
        if self.expected_inodes == 0 || !self.inodes.is_multiple_of(EXPECT_EVERY_INODES) {
            return;
        }
        let bytes = u128::from(self.output.position()).saturating_mul(u128::from(self.expected_inodes));
        let bytes = bytes.checked_div(u128::from(self.inodes)).unwrap_or(0);
        // Clamp: an estimate.
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
        self.progress
            .expect(ByteCount::new(bytes.saturating_sub(self.output.skipped())));
    }

    /// Creates a new inode, and returns its path.
    fn create(&mut self, inode: &InodeState, new: &InodeItem) -> Result<Vec<u8>> {
        let number = inode.number;
        if number == InodeNumber::ROOT_DIRECTORY {
            return Ok(Vec::new());
        }
        let fresh = Fresh {
            number,
            generation: new.generation,
            xattrs: &inode.new_xattrs,
        };
        if is_directory(new.mode) {
            let link = self.only_link(inode)?;
            self.names.create_directory(&fresh, &link, self.output)?;
            if self.sources.old.is_none() {
                self.names.remember(number, &link, &inode.new_xattrs);
            }
            return self.names.new_path(&link);
        }
        let target = inode.target.as_deref();
        if new.mode & KIND == SYMLINK && target.is_none_or(<[u8]>::is_empty) {
            return Err(self.sources.new.names_error(number, NamesProblem::NoTarget));
        }
        let target = target.unwrap_or_default();
        self.names
            .create_file(&fresh, &inode.new_links, self.output, |path, output| {
                make(number, new, target, path, output)
            })
    }

    fn only_link(&self, inode: &InodeState) -> Result<Link> {
        let problem = match inode.new_links.as_slice() {
            [link] => return Ok(link.clone()),
            [] => NamesProblem::None,
            _ => NamesProblem::Several,
        };
        Err(self.sources.new.names_error(inode.number, problem))
    }

    /// Sends the new names of an inode of both snapshots, and returns its path.
    fn change_names(&mut self, inode: &InodeState, new: &InodeItem) -> Result<Vec<u8>> {
        let number = inode.number;
        if number == InodeNumber::ROOT_DIRECTORY {
            return Ok(Vec::new());
        }
        if is_directory(new.mode) {
            self.names.move_directory(number, self.output)?;
            return Ok(self
                .names
                .directory_path(crate::send::names::Directory::new(number))?
                .to_vec());
        }
        let added = inode.added_links();
        let removed: Vec<Link> = inode.removed_links().into_iter().cloned().collect();
        if !added.is_empty() || !removed.is_empty() {
            self.names.rename_file(number, &removed, &added, self.output)?;
        }
        match &inode.beside.first_link {
            Some(link) => self.names.new_path(link),
            None => self.names.settled_path(number),
        }
    }

    /// Sends capabilities again if an earlier command removed them.
    fn send_capability(&mut self, current: &Current, wrote: bool) -> Result<()> {
        let owner = attributes::owner_differs(current.old.as_ref(), &current.new);
        if let Some(capability) = &current.capability
            && (owner || wrote)
        {
            return attributes::send_xattr(capability, &current.path, self.output);
        }
        if current.old.is_some()
            && !current.no_xattrs
            && (owner || wrote)
            && current.new.mode & KIND == REGULAR
        {
            let location = self.sources.new.location(current.number);
            if let Some(value) = self.sources.new.filesystem().xattr(location, CAPABILITY)? {
                let name = CAPABILITY.to_vec();
                return attributes::send_xattr(&Attribute { name, value }, &current.path, self.output);
            }
        }
        Ok(())
    }

    /// Sends the times of all pending directories.
    fn directory_times(&mut self) -> Result<()> {
        for (number, times) in self.names.times.take() {
            let times = match times {
                Some(times) => times,
                None => match self.sources.new.inode(number)? {
                    Some(item) => Times::of(&item),
                    None => continue,
                },
            };
            let path = self
                .names
                .directory_path(crate::send::names::Directory::new(number))?;
            times.send(&path, self.output)?;
        }
        Ok(())
    }
}

/// Sends the command that creates an inode other than a directory.
fn make(
    number: InodeNumber,
    new: &InodeItem,
    target: &[u8],
    path: &[u8],
    output: &mut Output<'_>,
) -> Result<()> {
    let inode = Some(number);
    let mode = u64::from(new.mode);
    let device = wide_device(new.rdev);
    output.command(&match new.mode & KIND {
        REGULAR => Command::Mkfile { path, inode },
        SYMLINK => Command::Symlink { path, inode, target },
        PIPE => Command::Mkfifo {
            path,
            inode,
            device: Some(device),
            mode: Some(mode),
        },
        SOCKET => Command::Mksock {
            path,
            inode,
            device: Some(device),
            mode: Some(mode),
        },
        _ => Command::Mknod {
            path,
            inode,
            device,
            mode,
        },
    })
}

/// Converts the device number of an inode item to the form in streams: minor in bits 0-7 and 20-31,
/// major between.
fn wide_device(raw: u64) -> u64 {
    let device = buttress_fs::DeviceNumber::from_raw(raw);
    let (major, minor) = (u64::from(device.major), u64::from(device.minor));
    (minor & 0xff) | ((major & 0xfff) << 8) | ((minor & !0xff) << 12)
}
