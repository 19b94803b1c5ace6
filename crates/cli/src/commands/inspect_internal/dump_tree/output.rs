//! Output of blocks: text, or elements of one JSON array.
//!
//! An element of the array is a block (`kind` is `leaf` or `node`), the beginning of a tree
//! (`root`), a backup root (`backup`) or the totals of the volume (`totals`). Elements are written
//! at once, so memory does not grow with the volume.

use std::io::Write;

use anyhow::Result;
use buttress::TreeId;
use buttress::unstable::format::node::TreeBlock;
use buttress::unstable::format::{BackupRoot, Key, Superblock};
use serde_json::{Map, Value, json};

use super::super::print::sink::{Text, Tree};
use super::super::print::value::Value as _;
use super::super::print::{self, Damage, Options};
use crate::context::{Context, Stdout};
use crate::output::json::{self, ArrayWriter};

/// Output of a dump.
pub(super) struct Output {
    options: Options,
    /// End of a heading with a key: a space, unless the extent and device trees were selected.
    heading_end: &'static str,
    form: Form,
}

enum Form {
    Text { out: Stdout, text: Text },
    Json { out: ArrayWriter<Stdout>, tree: Tree },
}

/// Size of the text buffer in bytes.
const TEXT_BYTES: usize = 256 << 10;

impl Output {
    /// Begins the dump with a line that names the program, or with the JSON document.
    pub(super) fn begin(context: &Context, options: Options, heading_end: &'static str) -> Result<Self> {
        let out = context.stdout();
        let form = if context.json() {
            Form::Json {
                out: ArrayWriter::begin(out, "dump-tree")?,
                tree: Tree::default(),
            }
        } else {
            let mut text = Text::new(context.stdout_is_terminal());
            text.push(concat!("buttress v", env!("CARGO_PKG_VERSION"), "\n"));
            Form::Text { out, text }
        };
        Ok(Self {
            options,
            heading_end,
            form,
        })
    }

    /// Writes the remaining text.
    pub(super) fn finish(self) -> Result<()> {
        match self.form {
            Form::Text { mut out, text } => {
                out.write_all(text.as_bytes())?;
                out.flush()?;
            }
            Form::Json { out, .. } => out.finish()?,
        }
        Ok(())
    }

    /// Writes the line before a tree's blocks. JSON output has no such line, because each block
    /// names its tree.
    pub(super) fn heading(&mut self, heading: &str, key: Option<&Key>) -> Result<()> {
        if let Form::Text { text, .. } = &mut self.form {
            text.push(heading);
            if let Some(key) = key {
                text.push(" ");
                key.text(text);
                text.push(self.heading_end);
            }
            text.push("\n");
        }
        Ok(())
    }

    /// Writes a block of this tree. Returns the block's unprintable items.
    pub(super) fn block(&mut self, tree_id: TreeId, block: &TreeBlock) -> Result<Vec<Damage>> {
        match &mut self.form {
            Form::Text { out, text } => {
                let damages = print::block(text, block, &self.options);
                if text.as_bytes().len() >= TEXT_BYTES || !damages.is_empty() {
                    // Flush each block, so that errors appear at the right place if both streams go
                    // to the same destination.
                    out.write_all(text.as_bytes())?;
                    text.clear();
                    if !damages.is_empty() {
                        out.flush()?;
                    }
                }
                Ok(damages)
            }
            Form::Json { out, tree } => {
                let damages = print::block(tree, block, &self.options);
                let mut element = Map::new();
                element.insert("tree".to_owned(), tree_id.get().into());
                element.extend(tree.take());
                out.element(&Value::Object(element))?;
                Ok(damages)
            }
        }
    }

    /// Writes the beginning of a tree.
    pub(super) fn root(
        &mut self,
        heading: &str,
        key: Option<&Key>,
        (tree_id, logical, level): (TreeId, u64, u8),
    ) -> Result<()> {
        match &mut self.form {
            Form::Text { text, .. } => {
                text.push(heading);
                match key {
                    Some(key) => {
                        text.push(" ");
                        key.text(text);
                    }
                    None => text.push(":"),
                }
                text.push(&format!(" {logical} level {level}\n"));
            }
            Form::Json { out, .. } => {
                let mut element = json!({
                    "kind": "root",
                    "tree": tree_id.get(),
                    "block": logical,
                    "level": level,
                });
                if let (Some(key), Some(object)) = (key, element.as_object_mut()) {
                    object.insert("key".to_owned(), key.json());
                }
                out.element(&element)?;
            }
        }
        Ok(())
    }

    /// Writes a backup root of the superblock.
    pub(super) fn backup(&mut self, slot: usize, backup: &BackupRoot, extent_heading: &str) -> Result<()> {
        let trees = [
            ("tree root", backup.tree_root),
            (extent_heading, backup.extent_root),
            ("chunk root", backup.chunk_root),
            ("device root", backup.dev_root),
            ("csum root", backup.csum_root),
            ("fs root", backup.fs_root),
        ];
        let (used, total) = (backup.bytes_used.get(), backup.total_bytes.get());
        let devices = backup.num_devices;
        match &mut self.form {
            Form::Text { text, .. } => {
                text.push(&format!("btrfs root backup slot {slot}\n"));
                for (index, (name, root)) in trees.iter().enumerate() {
                    let indent = if index == 0 { "\t" } else { "\t\t" };
                    let (generation, logical) = (root.generation, root.logical);
                    text.push(&format!("{indent}{name} gen {generation} block {logical}\n"));
                }
                text.push(&format!("\t\t{used} used {total} total {devices} devices\n"));
            }
            Form::Json { out, .. } => {
                let mut element = Map::new();
                element.insert("kind".to_owned(), "backup".into());
                element.insert("slot".to_owned(), slot.into());
                for (name, root) in trees {
                    let value = json!({
                        "generation": root.generation.get(),
                        "block": root.logical.get(),
                        "level": root.level,
                    });
                    element.insert(name.replace(' ', "_"), value);
                }
                element.insert("bytes_used".to_owned(), used.into());
                element.insert("total_bytes".to_owned(), total.into());
                element.insert("devices".to_owned(), devices.into());
                out.element(&Value::Object(element))?;
            }
        }
        Ok(())
    }

    /// Writes the last lines: sizes and uuid of the volume.
    pub(super) fn totals(&mut self, superblock: &Superblock) -> Result<()> {
        let (total, used) = (superblock.total_bytes.get(), superblock.bytes_used.get());
        match &mut self.form {
            Form::Text { text, .. } => {
                let uuid = superblock.fsid;
                text.push(&format!("total bytes {total}\nbytes used {used}\nuuid {uuid}\n"));
            }
            Form::Json { out, .. } => out.element(&json!({
                "kind": "totals",
                "total_bytes": total,
                "bytes_used": used,
                "uuid": json::uuid(&superblock.fsid),
            }))?,
        }
        Ok(())
    }
}
