//! Extents and their items, from sorted facts.

use super::errors::{failed, refused};
use super::facts::{Fact, Size, decode};
use buttress_exact::Defect;
use buttress_format::{
    ByteCount, ExtentDataReference, ExtentFlags, ExtentItem, Generation, InlineReference, Key, Logical,
    TreeBlockInfo, TreeId,
};
use buttress_fs::Result;
use buttress_fs::error::Error;
use buttress_packing::{Record, Sorted, SortedReader};

/// The properties of the volume that extent items depend on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Form {
    pub(super) node_bytes: u32,
    /// The generation of the volume's first state. No extent is younger.
    pub(super) generation: Generation,
    /// Whether tree blocks have a `METADATA_ITEM`.
    pub(super) is_skinny: bool,
    /// Whether data extents record the tree that made them, for simple quotas.
    pub(super) has_owners: bool,
}

/// An extent in use.
#[derive(Clone, Debug)]
pub(super) struct Extent {
    pub(super) start: Logical,
    pub(super) length: ByteCount,
    pub(super) generation: Generation,
    pub(super) content: Content,
    pub(super) references: Vec<InlineReference>,
    /// The doubt about the length, which checksums decide.
    pub(super) doubt: Doubt,
}

/// A doubt about the length of a data extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Doubt {
    /// The extent's record agrees with its users, or the users state the length twice.
    Nothing,
    /// The extent has no readable record, and its users state the length once.
    Unrecorded,
    /// The readable record has another length, but the users of the extent state theirs twice.
    Contradicted,
    /// The readable record has another length, and the users of the extent state theirs once.
    Unproved,
}

/// The content of an extent.
#[derive(Clone, Copy, Debug)]
pub(super) enum Content {
    Block {
        level: u8,
        first_key: Key,
        is_full: bool,
    },
    /// The owner is the tree that made the extent. Extents from before simple quotas record none.
    Data { owner: Option<TreeId> },
}

impl Extent {
    pub(super) const fn is_data(&self) -> bool {
        matches!(self.content, Content::Data { .. })
    }

    pub(super) fn end(&self) -> Result<u64> {
        let end = self.start.get().checked_add(self.length.get());
        end.ok_or_else(|| refused("an extent ends above all addresses"))
    }

    /// Returns the items of the extent, in order: its own, and those of the references that do not
    /// fit it.
    pub(super) fn items(&self, form: &Form) -> Result<Vec<(Key, Vec<u8>)>> {
        let mut item = self.bare_item(form);
        let mut keyed = Vec::new();
        for reference in &self.references {
            if keyed.is_empty() && item.has_space_for(reference, form.node_bytes) {
                let added = item.add_inline(*reference);
                added.map_err(|_| refused("an extent has impossible references"))?;
                continue;
            }
            let sum = item.references.checked_add(reference.count().into());
            item.references = sum.ok_or_else(|| refused("an extent has too many references"))?;
            let key = reference.keyed_key(item.start);
            let key = key.ok_or_else(|| Defect::new("a reference without an item of its own"))?;
            keyed.push((key, reference.encode_keyed()));
        }
        keyed.sort_unstable();
        let mut items = vec![(item.key(), item.encode())];
        let mut last: Option<Key> = None;
        for (key, data) in keyed {
            // References with the same hash take the next free keys.
            let key = match last.filter(|last| *last >= key) {
                Some(last) => last
                    .successor()
                    .ok_or_else(|| refused("an extent has too many references"))?,
                None => key,
            };
            last = Some(key);
            items.push((key, data));
        }
        Ok(items)
    }

    /// Returns the extent's item without references.
    fn bare_item(&self, form: &Form) -> ExtentItem {
        let mut item = ExtentItem::new_data(self.start, self.length, self.generation);
        match self.content {
            Content::Data { owner } => {
                let owner = owner.filter(|_| form.has_owners);
                let owner = owner.map(|root| InlineReference::Owner { root });
                item.inline_references.extend(owner);
            }
            Content::Block {
                level,
                first_key,
                is_full,
            } => {
                item.flags = ExtentFlags::TREE_BLOCK;
                item.flags.set(ExtentFlags::FULL_BACKREF, is_full);
                item.level = Some(level);
                item.tree_block_info = (!form.is_skinny).then_some(TreeBlockInfo { first_key, level });
            }
        }
        item
    }
}

/// A reader of extents, in the order of their addresses.
#[derive(Debug)]
pub(super) struct Extents<'a> {
    reader: SortedReader<'a>,
    record: Record,
    next: Option<(Logical, Fact)>,
    form: Form,
    /// Whether a passed record says that an unused extent belongs to a subvolume without a root
    /// item.
    pub(super) has_forsaken: bool,
}

impl<'a> Extents<'a> {
    pub(super) fn new(facts: &'a Sorted, form: Form) -> Result<Self> {
        let mut extents = Self {
            reader: facts.reader().map_err(failed)?,
            record: Record::default(),
            next: None,
            form,
            has_forsaken: false,
        };
        extents.advance()?;
        Ok(extents)
    }

    fn advance(&mut self) -> Result<()> {
        let has_more = self.reader.next(&mut self.record).map_err(failed)?;
        self.next = match has_more {
            true => Some(decode(&self.record)?),
            false => None,
        };
        Ok(())
    }

    /// Returns the facts about the next address.
    fn next_facts(&mut self) -> Result<Option<FactsOfOne>> {
        let Some((start, _)) = self.next else {
            return Ok(None);
        };
        let mut facts = FactsOfOne::new(start);
        while let Some((logical, fact)) = self.next
            && logical == start
        {
            facts.add(fact)?;
            self.advance()?;
        }
        Ok(Some(facts))
    }

    /// Returns the next extent in use.
    pub(super) fn next(&mut self) -> Result<Option<Extent>> {
        while let Some(facts) = self.next_facts()? {
            let is_claimed = facts.is_claimed;
            if let Some(extent) = facts.extent(&self.form)? {
                return Ok(Some(extent));
            }
            self.has_forsaken |= is_claimed;
        }
        Ok(None)
    }

    /// Returns the next data extent, used or only recorded: its address, and the greatest length
    /// that a user or the record states.
    pub(super) fn next_data(&mut self) -> Result<Option<(u64, u64)>> {
        while let Some(facts) = self.next_facts()? {
            let recorded = facts.recorded.map(|(length, ..)| length);
            let used = facts.data.as_ref().map(|data| data.length_max);
            if let Some(length) = recorded.max(used) {
                return Ok(Some((facts.start.get(), length.get())));
            }
        }
        Ok(None)
    }
}

/// The facts about one address.
struct FactsOfOne {
    start: Logical,
    recorded: Option<(ByteCount, Generation, Option<TreeId>)>,
    block: Option<(Generation, Content)>,
    references: Vec<InlineReference>,
    data: Option<DataFacts>,
    /// Whether the old record names a subvolume without a root item.
    is_claimed: bool,
}

/// The facts of all file extent items about one extent.
struct DataFacts {
    size: Size,
    length_max: ByteCount,
    /// Whether the items agree on the length, and whether they agree on the decoded length.
    agree: (bool, bool),
    owner: TreeId,
}

impl FactsOfOne {
    const fn new(start: Logical) -> Self {
        Self {
            start,
            recorded: None,
            block: None,
            references: Vec::new(),
            data: None,
            is_claimed: false,
        }
    }

    fn add(&mut self, fact: Fact) -> Result<()> {
        match fact {
            Fact::Recorded {
                length,
                generation,
                owner,
            } => self.recorded = Some((length, generation, owner)),
            Fact::Claimed => self.is_claimed = true,
            Fact::Block {
                level,
                generation,
                first_key,
                is_full,
            } => {
                let content = Content::Block {
                    level,
                    first_key,
                    is_full,
                };
                self.block = Some((generation, content));
            }
            Fact::TreeBlock { tree } => return self.refer(InlineReference::TreeBlock { root: tree }),
            Fact::SharedBlock { parent } => return self.refer(InlineReference::SharedBlock { parent }),
            Fact::Data {
                tree,
                inode,
                offset,
                size,
            } => {
                self.size(size, tree);
                return self.refer(InlineReference::ExtentData(ExtentDataReference {
                    root: tree,
                    inode,
                    offset,
                    count: 1,
                }));
            }
            Fact::SharedData { parent, tree, size } => {
                self.size(size, tree);
                return self.refer(InlineReference::SharedData { parent, count: 1 });
            }
        }
        Ok(())
    }

    /// Adds a reference. Equal references follow each other.
    fn refer(&mut self, reference: InlineReference) -> Result<()> {
        let Some(last) = self
            .references
            .last_mut()
            .filter(|last| last.is_same_place(&reference))
        else {
            self.references.push(reference);
            return Ok(());
        };
        let (InlineReference::ExtentData(ExtentDataReference { count, .. })
        | InlineReference::SharedData { count, .. }) = last
        else {
            return Err(refused("a tree refers twice to one of its blocks"));
        };
        let more = count.checked_add(1);
        *count = more.ok_or_else(|| refused("an extent has too many references"))?;
        Ok(())
    }

    fn size(&mut self, size: Size, tree: TreeId) {
        let Some(data) = &mut self.data else {
            self.data = Some(DataFacts {
                size,
                length_max: size.length,
                agree: (true, true),
                owner: tree,
            });
            return;
        };
        data.length_max = data.length_max.max(size.length);
        data.agree.0 &= data.size.length == size.length;
        data.agree.1 &= data.size.decoded == size.decoded;
        // Linux compares the generation of an extent with the last snapshot of its user, so the
        // oldest user decides.
        data.size.generation = data.size.generation.min(size.generation);
        // A snapshot has a greater id than its source.
        data.owner = data.owner.min(tree);
    }

    /// Returns the extent, if anything uses it.
    fn extent(self, form: &Form) -> Result<Option<Extent>> {
        let (start, references) = (self.start, self.references);
        match (self.block, self.data) {
            (None, None) if references.is_empty() => Ok(None),
            (Some(_), Some(_)) => Err(refused("a file uses a tree block as data")),
            (None, None) => Err(refused("a tree refers to a block that another tree contains")),
            (Some((generation, content)), None) => Ok(Some(Extent {
                start,
                length: ByteCount::new(form.node_bytes.into()),
                generation,
                content,
                references,
                doubt: Doubt::Nothing,
            })),
            (None, Some(data)) => {
                let recorded = self.recorded.map(|(length, ..)| length);
                let length = data.length(recorded)?;
                let doubt = match (recorded, data.is_certain()) {
                    (Some(recorded), true) if recorded != length => Doubt::Contradicted,
                    (Some(recorded), false) if recorded != length => Doubt::Unproved,
                    (None, false) => Doubt::Unrecorded,
                    _ => Doubt::Nothing,
                };
                // A file extent item of a later generation is a damage of its own.
                let youngest = data.size.generation.min(form.generation);
                let confirmed = self
                    .recorded
                    .filter(|(recorded, generation, _)| *recorded == length && *generation <= youngest);
                let (generation, content) = match confirmed {
                    Some((_, generation, owner)) => (generation, Content::Data { owner }),
                    None => {
                        let owner = Some(data.owner);
                        (youngest, Content::Data { owner })
                    }
                };
                Ok(Some(Extent {
                    start,
                    length,
                    generation,
                    content,
                    references,
                    doubt,
                }))
            }
        }
    }
}

impl DataFacts {
    /// Returns whether the users of the extent agree, and state the length twice.
    fn is_certain(&self) -> bool {
        self.agree == (true, true) && self.size.length == self.size.decoded
    }

    /// Returns the length of the extent. The users of the extent decide, unless they contradict
    /// each other or themselves, and the old record confirms their decoded length.
    fn length(&self, recorded: Option<ByteCount>) -> Result<ByteCount> {
        if self.size.length == ByteCount::ZERO {
            return Err(refused("a file uses an extent without a length"));
        }
        if self.is_certain() {
            return Ok(self.size.length);
        }
        let is_stated = self.agree.1 && self.size.decoded != ByteCount::ZERO;
        if is_stated && recorded == Some(self.size.decoded) {
            return Ok(self.size.decoded);
        }
        match self.agree.0 {
            true => Ok(self.size.length),
            false => Err(refused("the users of an extent disagree about its length")),
        }
    }
}

/// A cursor over the chunks of a volume, for extents in the order of their addresses.
#[derive(Debug)]
pub(super) struct Coverage {
    end: u64,
}

impl Coverage {
    pub(super) const fn new(start: u64) -> Self {
        Self { end: start }
    }

    /// Covers an extent. Returns the free range before it.
    ///
    /// # Errors
    /// Fails if the extent overlaps the one before.
    pub(super) fn add(&mut self, start: u64, end: u64) -> core::result::Result<core::ops::Range<u64>, Error> {
        if start < self.end {
            return Err(refused("two extents in use overlap"));
        }
        let free = self.end..start;
        self.end = end;
        Ok(free)
    }

    /// Returns the free range up to `end`.
    pub(super) fn rest(&self, end: u64) -> core::ops::Range<u64> {
        debug_assert!(self.end <= end, "an extent ends after its block group");
        self.end..end
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The survey visits a block once, so a second tree with the block gives a reference only.
    #[test]
    fn reference_to_a_block_of_a_replaced_tree_is_refused() {
        let mut facts = FactsOfOne::new(Logical::new(1 << 20));
        facts.add(Fact::TreeBlock { tree: TreeId::FS }).unwrap();
        let form = Form {
            node_bytes: 4096,
            generation: Generation::new(9),
            is_skinny: true,
            has_owners: false,
        };
        let refusal = facts.extent(&form).unwrap_err();
        assert!(matches!(refusal, Error::Invalid { .. }), "{refusal}");
    }
}
