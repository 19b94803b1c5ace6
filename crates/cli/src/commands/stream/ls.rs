//! `buttress stream ls FILE… [FILE:/path]`: lists the snapshots of streams, as `buttress ls` lists
//! a volume.
//!
//! A stream contains the files of a snapshot, but not their on-disk layout. On-disk sizes are those
//! of the sent or cloned data. Inode numbers are those of the sender if the stream has them, else
//! 0.

use anyhow::Result;
use buttress::stream::view::{Inode, Node, NodeId, Tree};
use buttress::{
    ByteCount, DeviceNumber, Generation, InodeFlags, InodeNumber, InodeRecord, Location, Metadata,
    SubvolumeId, Xattr,
};
use clap::Args;

use super::Streams;
use crate::commands::ls::{Listing, Look, as_json, shown_path};
use crate::context::Context;
use crate::exit::Outcome;
use crate::globals::Uses;
use crate::manual::{Example, example};
use crate::output::json::ArrayWriter;
use crate::output::time::Clock;
use crate::table::Subcommand;

/// Unit in which the data of a file is counted, in bytes.
const BLOCK_BYTES: u32 = 4096;

/// List the files of a stream, or of a chain of streams
#[derive(Args, Debug)]
pub(super) struct Ls {
    #[command(flatten)]
    look: Look,
    #[command(flatten)]
    streams: Streams,
}

impl Subcommand for Ls {
    const NAME: &'static str = "ls";
    const EXAMPLES: &'static [Example] = &[example(
        "buttress stream ls -l monday.stream tuesday.stream",
        "Lists the files that receiving both streams would create",
    )];

    fn uses(&self) -> Uses {
        Uses::NOTHING
    }

    fn run(self, context: &Context) -> Result<Outcome> {
        let loaded = self.streams.load(context, "stream ls")?;
        let (start, path) = loaded.start()?;
        let top = if path.is_empty() {
            Vec::new()
        } else {
            [b"/", path.as_slice()].concat()
        };
        let alone = self.look.directory || !matches!(loaded.inode(start)?.node, Node::Directory(_));
        let tree = loaded.tree()?;
        if context.json() {
            return self.json(context, tree, start, &top, alone);
        }
        let headings = self.look.recursive && !alone;
        let mut listing = Listing::new(self.look.clone(), headings, Clock::system(), context);
        if alone {
            let inode = loaded.inode(start)?;
            listing.single(&shown_path(&top, b""), &record(inode), link(inode))?;
        } else {
            self.list(tree, start, &top, &mut listing)?;
        }
        listing.finish()?;
        Ok(Outcome::Done)
    }
}

impl Ls {
    fn json(
        &self,
        context: &Context,
        tree: &Tree,
        start: NodeId,
        top: &[u8],
        alone: bool,
    ) -> Result<Outcome> {
        let mut array = ArrayWriter::begin(context.stdout(), "stream-ls")?;
        for entry in tree.walk(start) {
            let is_start = entry.path.is_empty();
            let is_below = entry.name_start > 0;
            if is_start != alone || (is_below && !self.look.recursive) || !self.shows(&entry.path) {
                continue;
            }
            let Some(inode) = tree.inode(entry.id) else {
                continue;
            };
            let name = entry.path.get(entry.name_start..).unwrap_or_default();
            let path = shown_path(top, &entry.path);
            let name = if is_start { &path } else { name };
            array.element(&as_json(name, &path, &record(inode), link(inode)))?;
        }
        array.finish()?;
        Ok(Outcome::Done)
    }

    /// Lists directories as `ls -R` does: each with its entries, then its subdirectories.
    fn list(&self, tree: &Tree, start: NodeId, top: &[u8], listing: &mut Listing<'_>) -> Result<()> {
        let mut waiting = vec![(start, start, Vec::new())];
        while let Some((directory, above, path)) = waiting.pop() {
            listing.enter(&shown_path(top, &path))?;
            if self.look.all {
                for (name, id) in [(b".".as_slice(), directory), (b"..", above)] {
                    if let Some(inode) = tree.inode(id) {
                        listing.add(name.to_vec(), &record(inode), b"");
                    }
                }
            }
            let first = waiting.len();
            for (name, id) in tree.entries(directory).filter(|(name, _)| self.look.shows(name)) {
                let Some(inode) = tree.inode(id) else { continue };
                listing.add(name.to_vec(), &record(inode), link(inode));
                if self.look.recursive && matches!(inode.node, Node::Directory(_)) {
                    let slash: &[u8] = if path.is_empty() { b"" } else { b"/" };
                    waiting.push((id, directory, [path.as_slice(), slash, name].concat()));
                }
            }
            if let Some(new) = waiting.get_mut(first..) {
                new.reverse();
            }
            listing.leave()?;
        }
        Ok(())
    }

    fn shows(&self, path: &[u8]) -> bool {
        path.split(|byte| *byte == b'/').all(|name| self.look.shows(name))
    }
}

/// Returns the target of a symbolic link; nothing for other inodes.
fn link(inode: &Inode) -> &[u8] {
    match &inode.node {
        Node::Symlink { target } => target,
        _ => b"",
    }
}

/// Returns the inode in the form that listings use.
fn record(inode: &Inode) -> InodeRecord {
    let allocated = match &inode.node {
        Node::File(file) => file.data_bytes(),
        _ => ByteCount::new(0),
    };
    let number = inode.number.unwrap_or(InodeNumber::new(0));
    let xattrs = inode.xattrs().into_iter().map(|(name, value)| Xattr {
        name: name.to_vec(),
        value: value.to_vec(),
    });
    InodeRecord {
        metadata: Metadata {
            location: Location::new(SubvolumeId::new(0), number),
            kind: inode.node.kind(),
            mode: inode.mode(),
            nlink: inode.links,
            uid: inode.uid,
            gid: inode.gid,
            device: match inode.node {
                Node::Device { major, minor, .. } => Some(DeviceNumber { major, minor }),
                _ => None,
            },
            size: inode.size(),
            allocated: ByteCount::new(
                allocated
                    .get()
                    .div_ceil(u64::from(BLOCK_BYTES))
                    .saturating_mul(u64::from(BLOCK_BYTES)),
            ),
            block_bytes: BLOCK_BYTES,
            accessed: inode.times.accessed,
            modified: inode.times.modified,
            changed: inode.times.changed,
            created: inode.times.created,
            flags: InodeFlags::from_bits_retain(inode.flags.unwrap_or(0)),
            generation: Generation::new(0),
            transid: Generation::new(0),
            sequence: 0,
        },
        links: Vec::new(),
        link_count: u64::from(inode.links),
        xattrs: xattrs.collect(),
        extents: None,
    }
}
