//! `buttress inspect-internal dump-tree`: the blocks of trees, item by item.
//!
//! Output and flags are those of btrfs-progs; `docs/btrfs-progs-compatibility.md` names the version
//! and explains each difference. An unreadable block or an unprintable item is an error on stderr.
//! After such an unreadable block or item, the dump continues, and the exit code reports the loss.
//!
//! - `selection`: chooses the trees to print, their order and their headings;
//! - `output`: blocks as text or JSON, one after another.

mod output;
mod selection;

use std::path::PathBuf;

use anyhow::{Context as _, Result, anyhow};
use buttress::unstable::filesystem_of;
use buttress::unstable::format::node::{BlockProblem, DamagedBlock, Expectation, TreeBlock};
use buttress::unstable::format::{Incompat, Key};
use buttress::unstable::fs::Filesystem;
use buttress::unstable::tree::{BlockOrder, RootPointer, Tree};
use buttress::unstable::volume::ExtentRead;
use buttress::{Logical, ReadAhead, TreeId};
use clap::Args;

use super::print::Options;
use super::tree_names::TreeName;
use crate::context::Context;
use crate::exit::Outcome;
use crate::globals::Uses;
use crate::manual::{Example, example};
use crate::table::Subcommand;
use output::Output;

/// Print the blocks of trees
#[derive(Args, Debug)]
pub struct DumpTree {
    /// Print the extent and device trees only
    #[arg(short, long)]
    extents: bool,
    /// Print the root, chunk and device trees only
    #[arg(short, long = "device-trees", alias = "device-info")]
    device: bool,
    /// Print only the root addresses of trees
    #[arg(short, long, conflicts_with = "extents")]
    roots: bool,
    /// Same as --roots, and print the backup roots
    #[arg(short = 'R', long, conflicts_with_all = ["extents", "uuid"])]
    backups: bool,
    /// Print the uuid tree only
    #[arg(short, long, conflicts_with_all = ["extents", "device"])]
    uuid: bool,
    /// Print this block only; may be repeated
    #[arg(
        short, long, value_name = "ADDRESS",
        conflicts_with_all = ["extents", "device", "roots", "backups", "uuid", "tree"]
    )]
    block: Vec<u64>,
    /// Print this tree only, given by number or name
    #[arg(short, long, value_name = "TREE", conflicts_with_all = ["extents", "device", "uuid"])]
    tree: Option<TreeName>,
    /// With --block: print all blocks below it too
    #[arg(long, requires = "block")]
    follow: bool,
    /// Print a block, then everything below its first child, and so on
    #[arg(long, conflicts_with = "bfs")]
    dfs: bool,
    /// Print all blocks of a level before those of the next one down (the default)
    #[arg(long)]
    bfs: bool,
    /// For compatibility: the command never searches for devices
    #[arg(long)]
    noscan: bool,
    /// Do not show names and values of extended attributes
    #[arg(long)]
    hide_names: bool,
    /// Show the checksum of each block
    #[arg(long)]
    csum_headers: bool,
    /// Show each data checksum
    #[arg(long)]
    csum_items: bool,
    /// The volume's images or block devices
    #[arg(value_name = "DEVICE", required = true)]
    devices: Vec<PathBuf>,
}

impl Subcommand for DumpTree {
    const NAME: &'static str = "dump-tree";
    const EXAMPLES: &'static [Example] = &[
        example(
            "buttress inspect-internal dump-tree -t root backup.img",
            "Prints the root tree",
        ),
        example(
            "buttress inspect-internal dump-tree -b 30408704 backup.img",
            "Prints one block",
        ),
    ];

    fn uses(&self) -> Uses {
        Uses::VOLUME
    }

    fn run(self, context: &Context) -> Result<Outcome> {
        let filesystem = filesystem_of(&context.open_for_inspection(&self.devices)?);
        let superblock = filesystem.superblock();
        let options = Options {
            hide_names: self.hide_names,
            checksum_headers: self.csum_headers,
            checksum_items: self.csum_items,
            checksum_bytes: superblock.checksum_type.size_bytes(),
            sector_bytes: superblock.sector_bytes,
            simple_quotas: superblock.incompat.contains(Incompat::SIMPLE_QUOTA),
        };
        let order = if self.dfs || self.extents {
            BlockOrder::Depth
        } else {
            BlockOrder::Breadth
        };
        let output = Output::begin(context, options, if self.extents { "" } else { " " })?;
        let leaves_only = self.extents;
        let mut dump = Dump {
            context,
            filesystem: &filesystem,
            order,
            leaves_only,
            output,
        };
        if self.block.is_empty() {
            selection::Selection::new(&self).print(&mut dump)?;
        } else {
            dump.single_blocks(&self.block, self.follow)?;
        }
        dump.output.finish()?;
        Ok(Outcome::Done)
    }
}

/// State of a dump.
struct Dump<'a> {
    context: &'a Context,
    filesystem: &'a Filesystem,
    order: BlockOrder,
    /// Omits nodes, as btrfs-progs does with `-e`.
    leaves_only: bool,
    output: Output,
}

impl Dump<'_> {
    /// Prints the blocks of a tree, after its heading.
    ///
    /// Omits the heading if the root is unreadable.
    fn tree(&mut self, tree: &Tree, heading: &str, key: Option<&Key>) -> Result<()> {
        let mut heading = Some(heading);
        for visit in tree.blocks_in(self.order, ReadAhead::sweep()) {
            match visit {
                Ok(visit) => {
                    if let Some(heading) = heading.take() {
                        self.output.heading(heading, key)?;
                    }
                    self.block(tree.root().tree, &visit.block)?;
                }
                Err(error) => {
                    let inspected = tree.forest().inspect_block(error.pointer());
                    self.context.lost(&error.into());
                    let Ok(damaged) = inspected else { continue };
                    if is_the_block_meant(&damaged) {
                        if let Some(heading) = heading.take() {
                            self.output.heading(heading, key)?;
                        }
                        self.block(tree.root().tree, &damaged.block)?;
                    }
                }
            }
        }
        Ok(())
    }

    fn block(&mut self, tree: TreeId, block: &TreeBlock) -> Result<()> {
        if self.leaves_only && !block.is_leaf() {
            return Ok(());
        }
        for damage in self.output.block(tree, block)? {
            self.context.lost(&damage.into());
        }
        Ok(())
    }

    /// Prints the blocks at these addresses, in address order.
    fn single_blocks(&mut self, addresses: &[u64], follow: bool) -> Result<()> {
        let mut sorted = addresses.to_vec();
        sorted.sort_unstable();
        sorted.dedup();
        let sector_bytes = u64::from(self.filesystem.superblock().sector_bytes);
        for address in sorted {
            let logical = Logical::new(address);
            if !logical.is_aligned(sector_bytes) {
                let error = anyhow!(
                    "{address}: not the address of a tree block (expected a multiple of the sector size {sector_bytes})"
                );
                self.context.lost(&error);
                continue;
            }
            match self.any_block(logical) {
                Ok(found) => self.single_block(&found, follow)?,
                Err(error) => self
                    .context
                    .lost(&error.context(format!("reading tree block {address}"))),
            }
        }
        Ok(())
    }

    fn single_block(&mut self, found: &DamagedBlock, follow: bool) -> Result<()> {
        for failure in found.failures.iter().take(FAILURES_SHOWN) {
            self.context.lost(&failure.clone().into());
        }
        if !is_a_block_of_the_volume(found) {
            return Ok(());
        }
        let header = found.block.header();
        if follow && found.is_sound() {
            let root = RootPointer {
                tree: header.owner,
                logical: header.logical,
                generation: header.generation,
                level: header.level,
            };
            let tree = self.filesystem.forest().tree(root);
            for visit in tree.blocks_in(self.order, ReadAhead::sweep()) {
                match visit {
                    Ok(visit) => self.block(header.owner, &visit.block)?,
                    Err(error) => self.context.lost(&error.into()),
                }
            }
            return Ok(());
        }
        self.block(header.owner, &found.block)
    }

    /// Reads a block of which only the address is known. Returns the first valid copy of the block
    /// or, without one, the first readable copy.
    fn any_block(&self, logical: Logical) -> Result<DamagedBlock> {
        let volume = self.filesystem.volume();
        let format = self.filesystem.forest().block_format();
        let length = usize::try_from(format.node_bytes)?;
        let expected = Expectation::at(logical);
        let mut damaged = None;
        let mut failure = None;
        for copy in 1..=volume.copies(logical)? {
            match volume.read_copy(ExtentRead { logical, length }, copy) {
                Ok(buffer) => {
                    let block = TreeBlock::inspect(buffer.into_bytes(), format, &expected);
                    if block.is_sound() {
                        return Ok(block);
                    }
                    damaged.get_or_insert(block);
                }
                Err(error) => failure = Some(error),
            }
        }
        match (damaged, failure) {
            (Some(block), _) => Ok(block),
            (None, Some(error)) => Err(error.into()),
            (None, None) => Err(anyhow!("no copy is on a present device")),
        }
        .context("every copy is damaged")
    }
}

/// Largest number of failures of one block that are printed.
const FAILURES_SHOWN: usize = 20;

/// Returns whether the bytes are a tree block of this volume, valid or damaged.
fn is_a_block_of_the_volume(found: &DamagedBlock) -> bool {
    !found.failures.iter().any(|failure| {
        matches!(
            failure.problem,
            BlockProblem::Size { .. } | BlockProblem::Address { .. } | BlockProblem::Fsid { .. }
        )
    })
}

/// Returns whether a damaged block is the one that its parent points to, with a correct checksum.
/// The content of such a damaged block is then worth printing.
fn is_the_block_meant(damaged: &DamagedBlock) -> bool {
    !damaged.failures.iter().any(|failure| {
        matches!(
            failure.problem,
            BlockProblem::Size { .. }
                | BlockProblem::Checksum { .. }
                | BlockProblem::Address { .. }
                | BlockProblem::Fsid { .. }
        )
    })
}
