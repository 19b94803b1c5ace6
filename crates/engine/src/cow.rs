//! The changes of extent references when an edit copies a tree block, for the two kinds of trees.
//!
//! A block of the volume's own trees belongs to one tree and has one reference. The copy of such a
//! block replaces the block, whose reference is dropped ([`CowOnlyTree`]). Snapshots may share a
//! block of a subvolume ([`ShareableTree`]). A shared old block stays, and its children get new
//! references, held by the copy or by the old block:
//!
//! | the old block | its children |
//! |---|---|
//! | a single reference, keyed | keep their references, which now belong to the copy |
//! | a single reference, full back references | lose their references by address and gain references by tree |
//! | several references, owned by this tree, not yet full | get references by the old block's address; the references by tree belong to the copy |
//! | several references, any other | gain references by tree for the copy |
//!
//! An edit searches the extent tree for a block only if a snapshot may share the block. A snapshot
//! may share a block that is not newer than the subvolume's last snapshot, or that a balance made.
//!
//! Source: on-disk format documentation, section "Extent item", and the meaning of `FULL_BACKREF`
//! there.

use crate::core_state::Core;
use crate::extent_state::ExtentState;
use buttress_accounts::delayed_references::{DelayedReferences, ExtentKind, Reference};
use buttress_format::{
    ByteCount, FileExtent, Generation, HeaderFlags, InodeNumber, ItemType, Logical, TreeBlock, TreeId,
};
use buttress_fs::error::{Corruption, Error, Result};
use buttress_locks::Excused;
use buttress_tree::{BlockPointer, Blocking, ContextError, EditContext, EditableTree, NonBlocking};

/// The copy-on-write rules of trees whose blocks are never shared.
#[derive(Debug)]
pub struct CowOnlyTree<'a> {
    generation: Generation,
    node_bytes: ByteCount,
    references: &'a mut DelayedReferences,
}

impl<'a> CowOnlyTree<'a> {
    pub(crate) const fn new(
        generation: Generation,
        node_bytes: ByteCount,
        references: &'a mut DelayedReferences,
    ) -> Self {
        Self {
            generation,
            node_bytes,
            references,
        }
    }

    fn forget(&mut self, tree: TreeId, old: &BlockPointer) {
        self.references.change(
            old.logical,
            self.node_bytes,
            ExtentKind::TreeBlock { level: old.level },
            Reference::TreeBlock { root: tree },
            -1,
        );
    }
}

impl EditContext for CowOnlyTree<'_> {
    fn generation(&self) -> Generation {
        self.generation
    }

    fn copied(&mut self, tree: TreeId, old: &BlockPointer, _: &TreeBlock) -> Result<(), ContextError> {
        self.forget(tree, old);
        Ok(())
    }

    fn dropped(&mut self, tree: TreeId, old: &BlockPointer, _: &TreeBlock) -> Result<(), ContextError> {
        self.forget(tree, old);
        Ok(())
    }
}

/// The copy-on-write rules of subvolume trees.
#[derive(Debug)]
pub struct ShareableTree<'a> {
    core: &'a mut Core,
    last_snapshot: Generation,
}

/// How a block refers to its children: by tree, or by its own address.
#[derive(Clone, Copy, Debug)]
pub enum Form {
    /// A reference by the tree that owns the block.
    Keyed(TreeId),
    /// A reference by the address of the block that points to the child.
    FullBackReference(Logical),
}

impl Form {
    /// Returns the reference of a node in this form to each of its children.
    pub(crate) const fn reference(self) -> Reference {
        match self {
            Self::Keyed(root) => Reference::TreeBlock { root },
            Self::FullBackReference(parent) => Reference::SharedBlock { parent },
        }
    }
}

impl<'a> ShareableTree<'a> {
    pub(crate) const fn new(core: &'a mut Core, _tree: TreeId, last_snapshot: Generation) -> Self {
        Self { core, last_snapshot }
    }

    fn replace(&mut self, tree: TreeId, old: &BlockPointer, block: &TreeBlock) -> Result<()> {
        let kind = ExtentKind::TreeBlock { level: old.level };
        let header = block.header();
        let may_be_shared = (old.generation <= self.last_snapshot
            || header.flags.contains(HeaderFlags::RELOC))
            && !buttress_faults::on("copy-takes-all-for-own");
        let state = if may_be_shared {
            self.core
                .extent_state(old.logical, kind, self.core.node_bytes())?
        } else {
            ExtentState {
                references: 1,
                full_backref: false,
            }
        };
        if state.references == 0 {
            return Err(Corruption::ExtentMissing {
                logical: old.logical,
                length: self.core.node_bytes(),
            }
            .into());
        }
        if state.references > 1 {
            if header.owner == tree && !state.full_backref {
                self.core
                    .refer_below(block, Form::FullBackReference(old.logical), 1)?;
                let node_bytes = self.core.node_bytes();
                self.core
                    .references
                    .set_full_backref(old.logical, node_bytes, old.level);
            } else {
                self.core.refer_below(block, Form::Keyed(tree), 1)?;
            }
        } else if state.full_backref {
            self.core.refer_below(block, Form::Keyed(tree), 1)?;
            self.core
                .refer_below(block, Form::FullBackReference(old.logical), -1)?;
        }
        self.forget(tree, old, block);
        Ok(())
    }

    fn forget(&mut self, tree: TreeId, old: &BlockPointer, block: &TreeBlock) {
        let node_bytes = self.core.node_bytes();
        self.core.references.let_go(
            old.logical,
            node_bytes,
            old.level,
            Reference::TreeBlock { root: tree },
            block.header().owner,
        );
    }
}

impl EditContext for ShareableTree<'_> {
    fn generation(&self) -> Generation {
        self.core.generation
    }

    fn copied(&mut self, tree: TreeId, old: &BlockPointer, block: &TreeBlock) -> Result<(), ContextError> {
        Ok(self.replace(tree, old, block)?)
    }

    fn dropped(&mut self, tree: TreeId, old: &BlockPointer, block: &TreeBlock) -> Result<(), ContextError> {
        if old.generation == self.core.generation {
            self.forget(tree, old, block);
            return Ok(());
        }
        Ok(self.replace(tree, old, block)?)
    }
}

impl Core {
    /// Changes the counts of references in one form, to all children of a block, by `by`.
    pub fn refer_below(&mut self, block: &TreeBlock, form: Form, by: i64) -> Result<()> {
        if block.is_leaf() {
            return self.refer_to_data(block, form, by);
        }
        let level = block.level().saturating_sub(1);
        let node_bytes = self.node_bytes();
        let reference = form.reference();
        let forgotten = usize::from(buttress_faults::on("copy-forgets-a-child"));
        for pointer in block.pointers().skip(forgotten) {
            self.references.change(
                pointer.logical,
                node_bytes,
                ExtentKind::TreeBlock { level },
                reference,
                by,
            );
        }
        Ok(())
    }

    fn refer_to_data(&mut self, leaf: &TreeBlock, form: Form, by: i64) -> Result<()> {
        if buttress_faults::on("copy-forgets-data") {
            return Ok(());
        }
        for item in leaf
            .items()
            .filter(|item| item.key.item_type == ItemType::EXTENT_DATA)
        {
            let extent =
                FileExtent::parse(&item.key, item.data, self.format.sector_bytes).map_err(|error| {
                    Corruption::Item {
                        tree: leaf.header().owner,
                        error,
                    }
                })?;
            let Some(slice) = extent.slice().filter(|slice| !slice.is_hole()) else {
                continue;
            };
            let reference = match form {
                Form::Keyed(root) => Reference::Data {
                    root,
                    inode: InodeNumber::new(item.key.objectid.get()),
                    offset: item.key.offset.wrapping_sub(slice.offset.get()),
                },
                Form::FullBackReference(parent) => Reference::SharedData { parent },
            };
            self.references
                .change(slice.disk, slice.disk_bytes, ExtentKind::Data, reference, by);
        }
        Ok(())
    }
}

impl Core {
    /// Runs an edit of the extent tree.
    pub(crate) fn edit_extents<T>(
        &mut self,
        edit: impl FnOnce(&mut EditableTree, &mut dyn EditContext) -> buttress_tree::Result<T>,
    ) -> Result<T> {
        let _whole = whole_edit();
        let mut context = CowOnlyTree::new(self.generation, self.node_bytes(), &mut self.references);
        let edited = self.extent.tree.edit(|tree| edit(tree, &mut context));
        edited.map_err(own_error)
    }
}

/// Returns guards that let an edit read missing blocks during the edit, so that it completes. No
/// edit may run while the thread performs a non-blocking lookup. In a release build, an edit that
/// misses blocks reads under the lock, which is better than ending half-way.
pub(crate) fn whole_edit() -> (Blocking, Excused) {
    debug_assert!(!NonBlocking::is_held(), "an edit during a lookup");
    (NonBlocking::lift(), Excused::from_device_rule())
}

/// Extracts an error of this crate from an error with which a tree edit ended.
pub(crate) fn own_error(error: buttress_tree::Error) -> Error {
    match error.cause() {
        buttress_tree::error::Cause::Context(context) => match context.downcast_ref::<Error>() {
            Some(own) => own.clone(),
            None => error.into(),
        },
        _ => error.into(),
    }
}
