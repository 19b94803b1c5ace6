//! A step of a merge: the blocks that change places, and the change.
//!
//! A step first plans. The walk visits the relocation tree's own nodes, and searches the subvolume
//! for the original of each copy. If the subvolume changed the original since, the walk continues
//! below the copy. The change then counts references:
//!
//! | block | loses | gets |
//! |---|---|---|
//! | a copy | its reference by the address of the node above | a reference by the subvolume |
//! | its original | the reference by the subvolume | a reference by the address of the new node above |
//! | a node above, at its new place | | a reference by the address above; for the root, by its own |
//! | its other children | | a reference by the new node's address |
//! | a node above, at its old place | these references | |
//!
//! Invariant: all steps that can fail come before the first change, except edits of trees whose
//! blocks were just read. A failure after the first change stops writing.

use super::linux_tree::RelocationTree;
use crate::cow::Form;
use crate::extent_state::ExtentState;
use crate::need::Need;
use crate::running::Running;
use crate::running_parts::Renamer;
use buttress_accounts::delayed_references::{Created, ExtentKind, Reference};
use buttress_exact::{Exact as _, u64_of};
use buttress_format::{Generation, Key, KeyPointer, Logical, TreeBlock, TreeId};
use buttress_fs::error::{Defect, Error, Result};
use buttress_tree::BlockPointer;
use buttress_volume::ExtentWrite;

/// The blocks that change places in one transaction.
pub(super) const SWAPS_AT_ONCE: usize = 128;

/// A node of the relocation tree that gets a copy, with its changed children.
#[derive(Debug)]
pub(super) struct Plan {
    block: TreeBlock,
    state: ExtentState,
    /// The changed children, by slot.
    children: Vec<(usize, Child)>,
}

#[derive(Debug)]
enum Child {
    /// The subvolume's pointer to the original, and the relocation tree's to the copy.
    Swap { original: KeyPointer, copy: KeyPointer },
    /// A node with such children below it.
    Node(Plan),
}

/// A walk that plans one step.
struct Planner<'a> {
    running: &'a mut Running,
    subvolume: TreeId,
    /// Newer blocks of the relocation tree are copies; newer blocks of the subvolume changed.
    last_snapshot: Generation,
    from: Key,
    swaps: usize,
    /// The first key after the last copy, once the step is full.
    next: Option<Key>,
}

impl Plan {
    /// Plans the next step of a merge from a key on, and returns the key at which the step after it
    /// begins. Returns `None` if no block is left to change places.
    pub(super) fn find(
        running: &mut Running,
        tree: &RelocationTree,
        from: Key,
    ) -> Result<Option<(Self, Key)>> {
        let mut planner = Planner {
            running,
            subvolume: TreeId::new(tree.mirrored),
            last_snapshot: tree.item.last_snapshot,
            from,
            swaps: 0,
            next: None,
        };
        let plan = planner.node(&tree.root())?;
        // Clamp: without a next key the plan reaches the end of the tree.
        let next = planner.next.unwrap_or(Key::MAX);
        Ok(plan.map(|plan| (plan, next)))
    }

    fn address(&self) -> Logical {
        self.block.logical()
    }

    /// Returns the number of nodes that get a copy.
    fn nodes(&self) -> usize {
        let below = self.children.iter().map(|(_, child)| match child {
            Child::Swap { .. } => 0,
            Child::Node(plan) => plan.nodes(),
        });
        below.fold(1, usize::exact_add)
    }
}

impl Planner<'_> {
    /// Plans the changes below a node of the relocation tree.
    fn node(&mut self, pointer: &BlockPointer) -> Result<Option<Plan>> {
        if pointer.level == 0 {
            return Ok(None);
        }
        let core = &self.running.core;
        let block = core.forest.read_block(pointer)?;
        let kind = ExtentKind::TreeBlock { level: pointer.level };
        let state = core.extent_state(pointer.logical, kind, core.node_bytes())?;
        let mut children = Vec::new();
        for slot in 0..block.item_count() {
            if self.swaps >= SWAPS_AT_ONCE {
                self.next = self.next.or_else(|| block.key(slot));
                break;
            }
            let Some(child) = pointer.child(&block, slot) else {
                break;
            };
            let is_done = child.end_key.is_some_and(|end| end <= self.from);
            if is_done || child.generation <= self.last_snapshot {
                continue;
            }
            let planned = self.child(&child)?;
            children.extend(planned.map(|planned| (slot, planned)));
        }
        Ok((!children.is_empty()).then_some(Plan {
            block,
            state,
            children,
        }))
    }

    /// Plans the change of a copy, or of copies below it.
    fn child(&mut self, copy: &BlockPointer) -> Result<Option<Child>> {
        let Some(key) = copy.first_key else {
            return Ok(None);
        };
        let open = self.running.open_tree(self.subvolume)?;
        let found = open.tree.with(|tree| tree.pointer_at(copy.level, &key))?;
        let is_swapped = |found: &KeyPointer| found.logical == copy.logical;
        let original = found.filter(|found| found.generation <= self.last_snapshot && !is_swapped(found));
        match original {
            Some(original) => {
                self.swaps = self.swaps.exact_add(1);
                let copy = KeyPointer {
                    key,
                    logical: copy.logical,
                    generation: copy.generation,
                };
                Ok(Some(Child::Swap { original, copy }))
            }
            None => Ok(self.node(copy)?.map(Child::Node)),
        }
    }
}

/// The nodes of a plan at their new places.
#[derive(Debug, Default)]
struct Copies {
    /// The addresses that are left.
    places: Vec<Logical>,
    blocks: Vec<TreeBlock>,
    /// For each node, the old and the new address, children before their parents.
    moved: Vec<(Logical, Logical)>,
}

impl Copies {
    /// Makes the copies of a node and of the nodes below it. Returns the new address of the node.
    fn add(&mut self, running: &Running, plan: &Plan) -> Result<Logical> {
        let generation = running.core.generation;
        let mut pointers = Vec::with_capacity(plan.children.len());
        for (slot, child) in &plan.children {
            let (logical, generation) = match child {
                Child::Swap { original, .. } => (original.logical, original.generation),
                Child::Node(below) => (self.add(running, below)?, generation),
            };
            pointers.push((*slot, logical, generation));
        }
        let place = self.places.pop().ok_or_else(|| no_place(plan))?;
        let mut copy = plan.block.copy_to_relocate(place, generation);
        let is_set = copy.edit_node(|node| {
            pointers.iter().all(|(slot, logical, generation)| {
                let pointer = plan.block.pointer(*slot).map(|pointer| KeyPointer {
                    logical: *logical,
                    generation: *generation,
                    ..pointer
                });
                pointer.is_some_and(|pointer| node.set(*slot, &pointer))
            })
        });
        if !is_set {
            return Err(no_place(plan));
        }
        let checksum_type = running.core.format.checksum_type;
        self.blocks.push(copy.seal(place, checksum_type, |_| None));
        self.moved.push((plan.address(), place));
        Ok(place)
    }

    fn place_of(&self, plan: &Plan) -> Result<Logical> {
        let found = self.moved.iter().find(|(old, _)| *old == plan.address());
        found.map(|(_, new)| *new).ok_or_else(|| no_place(plan))
    }
}

fn no_place(plan: &Plan) -> Error {
    Defect::new("a node of a relocation tree has no copy in a merge")
        .with("node", plan.address().get())
        .into()
}

impl Renamer<'_> {
    /// Lets blocks change places: writes the copies of the relocation tree's nodes, and changes
    /// references, the subvolume and the root item.
    pub(super) fn swap_blocks(&mut self, mut tree: RelocationTree, plan: &Plan) -> Result<()> {
        let count = plan.nodes();
        let Some(places) = self.take_block_places(count)? else {
            let need = Need::freeing(u64_of(count));
            return Err(self.running.block_reserve().no_metadata_space(need));
        };
        let mut copies = Copies {
            places: places.clone(),
            ..Copies::default()
        };
        let written = copies
            .add(self.running, plan)
            .and_then(|root| self.write_copies(&copies).map(|()| root));
        let root = written.inspect_err(|_| self.give_back_places(&places))?;
        for copy in &copies.blocks {
            self.running
                .core
                .forest
                .keep_written(TreeId::TREE_RELOCATION, copy.clone());
        }
        // No log on the last commit may name a new address.
        self.running.core.has_new_chunk = true;
        self.running.core.relocated_blocks.extend(places);
        tree.item.logical = root;
        tree.item.generation = self.running.core.generation;
        tree.item.generation_v2 = self.running.core.generation;
        let subvolume = TreeId::new(tree.mirrored);
        let changed = self
            .move_node(&copies, plan, subvolume, Parents::of_root(plan, root))
            .and_then(|()| self.point_to_copies(plan, subvolume))
            .and_then(|()| tree.put(self.running));
        changed.inspect_err(|error| self.running.core.forest.volume().stop_writing(error))
    }

    fn write_copies(&self, copies: &Copies) -> Result<()> {
        let mut writes: Vec<ExtentWrite> = copies
            .blocks
            .iter()
            .map(|copy| ExtentWrite {
                logical: copy.logical(),
                bytes: copy.bytes().clone(),
            })
            .collect();
        writes.sort_unstable_by_key(|write| write.logical);
        Ok(self.running.core.forest.volume().write(&writes)?)
    }

    /// Moves a node of the relocation tree, and the nodes below it, to their new places.
    fn move_node(&mut self, copies: &Copies, plan: &Plan, subvolume: TreeId, parents: Parents) -> Result<()> {
        let (old, new) = (plan.address(), copies.place_of(plan)?);
        let (node_bytes, level) = (self.running.core.node_bytes(), plan.block.level());
        let owner = plan.block.header().owner;
        let is_gone = parents.is_gone && plan.state.references == 1;
        let created = Created {
            owner,
            first_key: plan.block.key(0),
        };
        let kind = ExtentKind::TreeBlock { level };
        let references = &mut self.running.core.references;
        references.create(new, node_bytes, kind, created, parents.new);
        references.set_full_backref(new, node_bytes, level);
        if parents.is_gone {
            references.let_go(old, node_bytes, level, parents.old, owner);
        }
        let form = match plan.state.full_backref {
            true => Form::FullBackReference(old),
            false => Form::Keyed(owner),
        };
        let (by_old, by_new) = (form.reference(), Reference::SharedBlock { parent: new });
        let below = ExtentKind::TreeBlock {
            level: below(&plan.block)?,
        };
        let mut changed = plan.children.iter().peekable();
        for (slot, pointer) in plan.block.pointers().enumerate() {
            let change = changed.next_if(|(changed, _)| *changed == slot);
            if let Some((_, Child::Node(child))) = change {
                let parents = Parents {
                    old: by_old,
                    new: by_new,
                    is_gone,
                };
                self.move_node(copies, child, subvolume, parents)?;
                continue;
            }
            let by_tree = Reference::TreeBlock { root: subvolume };
            let references = &mut self.running.core.references;
            let mut count =
                |logical, reference, by| references.change(logical, node_bytes, below, reference, by);
            if is_gone {
                count(pointer.logical, by_old, -1);
            }
            match change {
                Some((_, Child::Swap { original, copy })) => {
                    count(original.logical, by_new, 1);
                    count(original.logical, by_tree, -1);
                    count(copy.logical, by_tree, 1);
                }
                _ => count(pointer.logical, by_new, 1),
            }
        }
        Ok(())
    }

    /// Replaces the subvolume's pointers to originals by pointers to their copies.
    fn point_to_copies(&mut self, plan: &Plan, subvolume: TreeId) -> Result<()> {
        for (_, child) in &plan.children {
            match child {
                Child::Node(below) => self.point_to_copies(below, subvolume)?,
                Child::Swap { original, copy } => {
                    let level = below(&plan.block)?;
                    let new = (copy.logical, copy.generation);
                    let is_replaced = self.running.edit(subvolume, |tree, context| {
                        tree.replace_child(context, level, &copy.key, original.logical, new)
                    })?;
                    if !is_replaced {
                        return Err(
                            Defect::new("a subvolume has no pointer to a block that changes places")
                                .with("tree", subvolume.get())
                                .with("block", original.logical.get())
                                .into(),
                        );
                    }
                }
            }
        }
        Ok(())
    }
}

/// The references to a node by the node above it, at the old place and at the new.
#[derive(Clone, Copy, Debug)]
struct Parents {
    old: Reference,
    new: Reference,
    /// Whether the old reference disappears.
    is_gone: bool,
}

impl Parents {
    /// The root of a relocation tree has a reference to itself.
    fn of_root(root: &Plan, new: Logical) -> Self {
        let parent = root.address();
        Self {
            old: Reference::SharedBlock { parent },
            new: Reference::SharedBlock { parent: new },
            is_gone: true,
        }
    }
}

/// Returns the level of a node's children.
fn below(node: &TreeBlock) -> Result<u8> {
    let level = node.level().checked_sub(1);
    level.ok_or_else(|| {
        Defect::new("a leaf of a relocation tree has children")
            .with("leaf", node.logical().get())
            .into()
    })
}
