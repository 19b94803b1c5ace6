//! A volume in memory to which tests commit edited trees, with an accounting of its blocks.

use super::{CHUNK_LOGICAL, CHUNK_PHYSICAL, CHUNK_TREE_UUID, ImageBuilder, ImageOptions, TreeShape, Written};
use crate::edit::{EditContext, EditableTree, Frozen};
use crate::error::ContextError;
use crate::forest::Forest;
use crate::pointer::{BlockPointer, RootPointer};
use buttress_device::Device;
use buttress_format::node::TreeBlock;
use buttress_format::{ByteCount, Generation, Key, Logical, TreeId};
use buttress_volume::Volume;
use std::collections::BTreeSet;
use std::sync::Arc;
use uuid::Uuid;

/// The edit context of a scratch volume: it records which blocks are in use.
#[derive(Debug)]
pub struct Account {
    generation: Generation,
    /// Unused addresses, the lowest first.
    free: BTreeSet<u64>,
    /// Addresses of blocks in trees.
    used: BTreeSet<u64>,
    /// Addresses of blocks that the running transaction removed.
    left: Vec<u64>,
    /// Addresses of blocks removed by earlier transactions, which views may still read.
    pinned: Vec<u64>,
    /// The number of blocks copied since the test volume was made.
    pub copied: u64,
    /// The number of dropped blocks since the volume was made.
    pub dropped: u64,
}

impl Account {
    fn leave(&mut self, logical: Logical) -> Result<(), ContextError> {
        if !self.used.remove(&logical.get()) {
            return Err(format!("block {logical} left its tree twice, or was never there").into());
        }
        self.left.push(logical.get());
        Ok(())
    }

    /// Returns the addresses of all blocks that the test's trees use.
    #[must_use]
    pub const fn used(&self) -> &BTreeSet<u64> {
        &self.used
    }
}

impl EditContext for Account {
    fn generation(&self) -> Generation {
        self.generation
    }

    fn copied(&mut self, _: TreeId, old: &BlockPointer, _: &TreeBlock) -> Result<(), ContextError> {
        self.copied += 1;
        self.leave(old.logical)
    }

    fn dropped(&mut self, _: TreeId, old: &BlockPointer, _: &TreeBlock) -> Result<(), ContextError> {
        self.dropped += 1;
        self.leave(old.logical)
    }
}

/// A volume in memory.
#[derive(Debug)]
pub struct Scratch {
    options: ImageOptions,
    device: Device,
    volume: Arc<Volume>,
    forest: Arc<Forest>,
    /// The accounting of the trees' blocks.
    pub account: Account,
}

impl Scratch {
    /// Makes a volume without trees. `cache` is the memory budget of the forest's cache.
    #[must_use]
    pub fn new(options: ImageOptions, cache: ByteCount) -> Self {
        Self::with_tree(options, cache, TreeId::new(256), &[]).0
    }

    /// Makes a volume with one committed tree of these items, which are in key order.
    #[must_use]
    pub fn with_tree(
        options: ImageOptions,
        cache: ByteCount,
        tree: TreeId,
        items: &[(Key, Vec<u8>)],
    ) -> (Self, RootPointer) {
        let mut builder = ImageBuilder::new(options);
        let shape = TreeShape {
            items_per_leaf: usize::MAX,
            children_per_node: 50,
        };
        let root = builder.tree(tree, items, shape);
        let node_bytes = u64::from(options.node_bytes);
        let address = |number: u64| CHUNK_LOGICAL.get() + number * node_bytes;
        let blocks = options.chunk_bytes / node_bytes;
        let free: BTreeSet<u64> = builder.free.iter().map(|number| address(*number)).collect();
        let used = (0..blocks).map(address).filter(|at| !free.contains(at)).collect();
        let mut kept = None;
        let volume = builder.open(&root, |bytes| {
            let device = Device::memory(bytes);
            kept = Some(device.clone());
            device
        });
        let account = Account {
            generation: Generation::new(options.generation.get() + 1),
            free,
            used,
            left: Vec::new(),
            pinned: Vec::new(),
            copied: 0,
            dropped: 0,
        };
        let scratch = Self {
            options,
            device: kept.expect("the image was opened"),
            forest: Forest::new(Arc::clone(&volume), cache),
            volume,
            account,
        };
        (scratch, root)
    }

    /// Returns the forest.
    #[must_use]
    pub const fn forest(&self) -> &Arc<Forest> {
        &self.forest
    }

    /// Returns another forest over the same bytes, with an empty cache.
    #[must_use]
    pub fn reopened(&self) -> Arc<Forest> {
        Forest::new(Arc::clone(&self.volume), ByteCount::new(4 << 20))
    }

    /// Returns a tree without items, not yet committed.
    #[must_use]
    pub fn new_tree(&self, tree: TreeId) -> EditableTree {
        let uuid = Uuid::from_bytes(CHUNK_TREE_UUID);
        EditableTree::new_empty(&self.forest, tree, self.account.generation, uuid)
    }

    /// Assigns addresses to all blocks of a tree that have none.
    pub fn assign(&mut self, tree: &mut EditableTree) {
        let account = &mut self.account;
        let mut assign = |_: u8, _: Key| {
            let logical = account.free.pop_first().ok_or("the volume is full")?;
            account.used.insert(logical);
            Ok(Logical::new(logical))
        };
        tree.for_each_unassigned(&mut assign).expect("there is room");
        assert_eq!(tree.unassigned_nodes(), 0);
    }

    /// Commits a tree: it is then on the device, with no blocks in memory. The addresses of removed
    /// blocks are reused after [`Scratch::unpin`].
    pub fn commit(&mut self, tree: &mut EditableTree) -> Option<Written> {
        let frozen = self.write(tree)?;
        tree.forget_written(&frozen);
        Some(written(&frozen))
    }

    /// Commits a tree like [`Scratch::commit`], but keeps probable targets of the next edits in
    /// memory.
    pub fn commit_and_keep(&mut self, tree: &mut EditableTree) -> Option<Written> {
        let frozen = self.write(tree)?;
        let root = written(&frozen);
        tree.keep_written(frozen);
        Some(root)
    }

    fn write(&mut self, tree: &mut EditableTree) -> Option<Frozen> {
        self.assign(tree);
        let frozen = tree.freeze().expect("all blocks have addresses");
        self.account.generation = Generation::new(self.account.generation.get() + 1);
        self.account.pinned.append(&mut self.account.left);
        let frozen = frozen?;
        let mut before = 0;
        for block in frozen.blocks().expect("all blocks have addresses") {
            assert!(before < block.logical().get(), "blocks come in order of address");
            before = block.logical().get();
            let sealed = block.seal(self.options.checksum_type);
            let offset = before - CHUNK_LOGICAL.get() + CHUNK_PHYSICAL;
            self.device
                .write(offset, sealed.bytes())
                .expect("memory can be written");
            self.forest.keep_written(frozen.tree(), sealed);
        }
        Some(frozen)
    }

    /// Allows the reuse of blocks that committed transactions removed. No view may hold them.
    pub fn unpin(&mut self) {
        self.account.free.extend(self.account.pinned.drain(..));
    }
}

/// Returns the root of a written tree.
fn written(frozen: &Frozen) -> Written {
    let root = frozen.root().expect("all blocks have addresses");
    Written {
        first_key: Key::MIN,
        logical: root.logical,
        generation: root.generation,
        level: root.level,
    }
}
