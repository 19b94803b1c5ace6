//! `buttress inspect-internal tree-stats`: the number of blocks of a tree, and their scattering.
//!
//! Output and flags are those of btrfs-progs. Trees without file content are measured by their
//! nodes alone: a level-1 node lists its leaves, so the command reads no leaf.

mod layout;

use std::io::Write;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use buttress::unstable::filesystem_of;
use buttress::unstable::format::ItemType;
use buttress::unstable::fs::Filesystem;
use buttress::unstable::tree::{BlockOrder, Visit};
use buttress::{ReadAhead, TreeId};
use clap::Args;
use serde_json::{Value, json};

use super::print::inode::FILE_EXTENT_INLINE_OFFSET;
use crate::context::Context;
use crate::exit::Outcome;
use crate::globals::Uses;
use crate::manual::{Example, example};
use crate::output::size::{BYTES, UnitFlags, Units};
use crate::table::Subcommand;
use layout::Layout;

/// Count the blocks of trees, and measure the distances between them
#[derive(Args, Debug)]
pub struct TreeStats {
    #[command(flatten)]
    units: UnitFlags,
    /// Short for --raw
    #[arg(short = 'b', overrides_with_all = BYTES)]
    bytes: bool,
    /// Inspect only the tree with this id
    #[arg(short = 't', value_name = "ID")]
    tree: Option<u64>,
    /// The volume's image or block device
    #[arg(value_name = "DEVICE")]
    device: PathBuf,
}

/// Trees that are measured by default. Of these trees, only the last one holds files.
const TREES: [(TreeId, &str); 4] = [
    (TreeId::ROOT, "root tree"),
    (TreeId::EXTENT, "extent tree"),
    (TreeId::CHECKSUM, "csum tree"),
    (TreeId::FS, "fs tree"),
];

impl Subcommand for TreeStats {
    const NAME: &'static str = "tree-stats";
    const EXAMPLES: &'static [Example] = &[example(
        "buttress inspect-internal tree-stats backup.img",
        "Counts the blocks of trees, and measures the distances between them",
    )];

    fn uses(&self) -> Uses {
        Uses::VOLUME
    }

    fn run(self, context: &Context) -> Result<Outcome> {
        let filesystem = filesystem_of(&context.open_for_one_pass(&self.device)?);
        let units = if self.bytes {
            Units::RAW
        } else {
            self.units.units()
        };
        let chosen: Vec<(TreeId, String)> = match self.tree {
            Some(id) => vec![(TreeId::new(id), format!("tree ({id})"))],
            None => TREES
                .iter()
                .map(|(tree, name)| (*tree, (*name).to_owned()))
                .collect(),
        };
        let mut values = Vec::new();
        let mut out = context.stdout();
        for (tree, name) in chosen {
            // With `--tree`, the selected tree is measured as if it held files.
            let with_content = self.tree.is_some() || tree == TreeId::FS;
            if !context.json() {
                writeln!(out, "Calculating size of {name}")?;
            }
            match measure(context, &filesystem, tree, with_content) {
                Ok(statistics) if context.json() => values.push(statistics.json(tree)),
                Ok(statistics) => statistics.print(&mut out, units)?,
                Err(error) => {
                    out.flush()?;
                    context.lost(&error);
                }
            }
        }
        if context.json() {
            context.print_json(Self::NAME, Value::Array(values))?;
        }
        out.flush()?;
        Ok(Outcome::Done)
    }
}

/// Statistics of a walked tree.
struct Statistics {
    levels: u8,
    inline_bytes: u64,
    layout: Layout,
    elapsed: Duration,
}

fn measure(context: &Context, filesystem: &Filesystem, id: TreeId, with_content: bool) -> Result<Statistics> {
    let begun = Instant::now();
    let tree = filesystem.tree(id).with_context(|| format!("tree {id}"))?;
    let root = tree.root();
    let mut layout = Layout::new(root.logical.get(), filesystem.superblock().node_bytes, root.level);
    let mut inline_bytes = 0u64;
    // Every figure is a sum over nodes or leaves, so the key order does not matter.
    let visits: &mut dyn Iterator<Item = buttress::unstable::tree::Result<Visit>> = if with_content {
        &mut tree.blocks_by_address()
    } else {
        &mut tree.blocks_in(BlockOrder::DepthDownTo(1), ReadAhead::sweep())
    };
    for visit in visits {
        let block = match visit {
            Ok(visit) => visit.block,
            Err(error) => {
                context.lost(&error.into());
                continue;
            }
        };
        if block.is_leaf() {
            inline_bytes = inline_bytes.saturating_add(inline_content_bytes(&block));
        } else {
            let children = block.pointers().map(|pointer| pointer.logical.get());
            layout.add_node(block.level(), block.logical().get(), children);
        }
    }
    Ok(Statistics {
        levels: root.level.saturating_add(1),
        inline_bytes,
        layout,
        elapsed: begun.elapsed(),
    })
}

/// Returns the bytes of file content in the items of a leaf.
fn inline_content_bytes(leaf: &buttress::unstable::format::node::TreeBlock) -> u64 {
    const KIND_OFFSET: usize = FILE_EXTENT_INLINE_OFFSET - 1;
    leaf.items()
        .filter(|item| item.key.item_type == ItemType::EXTENT_DATA && item.data.get(KIND_OFFSET) == Some(&0))
        .map(|item| item.data.len().saturating_sub(FILE_EXTENT_INLINE_OFFSET) as u64)
        .fold(0, u64::saturating_add)
}

impl Statistics {
    fn print(&self, out: &mut impl Write, units: Units) -> Result<()> {
        let Self { layout, .. } = self;
        let size = |bytes| units.text(bytes);
        writeln!(out, "\tTotal size: {}", size(layout.total_bytes()))?;
        writeln!(out, "\t\tInline data: {}", size(self.inline_bytes))?;
        writeln!(out, "\tTotal seeks: {}", layout.seeks())?;
        writeln!(out, "\t\tForward seeks: {}", layout.forward_seeks)?;
        writeln!(out, "\t\tBackward seeks: {}", layout.backward_seeks)?;
        writeln!(out, "\t\tAvg seek len: {}", size(layout.mean_seek_bytes()))?;
        layout.distances.print(out)?;
        let clusters = layout.clusters();
        writeln!(out, "\tTotal clusters: {}", clusters.count)?;
        writeln!(out, "\t\tAvg cluster size: {}", size(clusters.mean_bytes))?;
        writeln!(out, "\t\tMin cluster size: {}", size(clusters.min_bytes))?;
        writeln!(out, "\t\tMax cluster size: {}", size(clusters.max_bytes))?;
        writeln!(out, "\tTotal disk spread: {}", size(layout.spread_bytes()))?;
        let (seconds, microseconds) = (self.elapsed.as_secs(), self.elapsed.subsec_micros());
        writeln!(out, "\tTotal read time: {seconds} s {microseconds} us")?;
        writeln!(out, "\tLevels: {}", self.levels)?;
        writeln!(out, "\tTotal nodes: {}", layout.blocks())?;
        for level in 0..self.levels {
            write!(out, "\t\tOn level {level}: {:8}", layout.blocks_on(level))?;
            if let Some(fanout) = layout.mean_fanout(level) {
                write!(out, "  (avg fanout {fanout})")?;
            }
            writeln!(out)?;
        }
        Ok(())
    }

    fn json(&self, tree: TreeId) -> Value {
        let Self { layout, .. } = self;
        let clusters = layout.clusters();
        let levels: Vec<Value> = (0..self.levels)
            .map(|level| {
                json!({
                    "level": level,
                    "blocks": layout.blocks_on(level),
                    "mean_fanout": layout.mean_fanout(level),
                })
            })
            .collect();
        json!({
            "tree": tree.get(),
            "total_bytes": layout.total_bytes(),
            "inline_bytes": self.inline_bytes,
            "seeks": layout.seeks(),
            "forward_seeks": layout.forward_seeks,
            "backward_seeks": layout.backward_seeks,
            "mean_seek_bytes": layout.mean_seek_bytes(),
            "clusters": clusters.count,
            "mean_cluster_bytes": clusters.mean_bytes,
            "min_cluster_bytes": clusters.min_bytes,
            "max_cluster_bytes": clusters.max_bytes,
            "spread_bytes": layout.spread_bytes(),
            "elapsed_seconds": self.elapsed.as_secs_f64(),
            "blocks": layout.blocks(),
            "levels": levels,
        })
    }
}
