//! The command that searches items of any tree by their keys.

use super::super::MountedVolume;
use super::arguments::{Answer, Fields};
use super::rights::require_privileged;
use crate::vfs::{Answered, Control, Errno, Result};
use buttress::unstable::format::{ItemType, Key, ObjectId};
use buttress::{Location, ReadAhead, TreeId};

const KEY_BYTES: usize = 104;
const ALL_BYTES: usize = 4096;
const HEAD_BYTES: usize = 32;

/// Arguments of the search.
#[derive(Clone, Copy, Debug)]
struct Wanted {
    tree: u64,
    first: Key,
    last: Key,
    generations: (u64, u64),
    count: u32,
}

impl Wanted {
    fn parse(input: &[u8]) -> Result<Self> {
        let mut fields = Fields(input);
        let mut next = || fields.u64();
        let tree = next()?;
        let (first_object, last_object) = (next()?, next()?);
        let (first_offset, last_offset) = (next()?, next()?);
        let generations = (next()?, next()?);
        let (first_type, last_type, count) = (fields.u32()?, fields.u32()?, fields.u32()?);
        // The kernel truncates the item type to a byte.
        let item_type = |number: u32| ItemType(u8::try_from(number & 0xff).unwrap_or(0));
        Ok(Self {
            tree,
            first: Key::new(ObjectId::new(first_object), item_type(first_type), first_offset),
            last: Key::new(ObjectId::new(last_object), item_type(last_type), last_offset),
            generations,
            count,
        })
    }
}

impl MountedVolume {
    pub(super) fn search(&self, location: Location, control: &Control<'_>) -> Result<Answered> {
        require_privileged(control.caller)?;
        let wanted = Wanted::parse(control.input)?;
        let view = self.access.view();
        let tree = match wanted.tree {
            0 => view.subvolume_tree(location.subvolume),
            id => view.tree(TreeId::new(id)),
        };
        let tree = tree.map_err(|_| Errno::NOENT)?;
        let (mut found, mut items) = (0_u32, Answer::default());
        let room = ALL_BYTES.saturating_sub(KEY_BYTES);
        let mut cursor = tree.cursor(ReadAhead::None);
        let failed = |error: buttress::unstable::tree::Error| self.failed(&error.into());
        cursor.seek(&wanted.first).map_err(failed)?;
        let mut is_there = cursor.current().is_some();
        while is_there && found < wanted.count {
            let (Some(item), Some(leaf)) = (cursor.current(), cursor.current_leaf()) else {
                break;
            };
            let key = item.key;
            let generation = leaf.header().generation.get();
            if key > wanted.last {
                break;
            }
            let (oldest, newest) = wanted.generations;
            if (oldest..=newest).contains(&generation) {
                let data = item.data;
                let taken = items.0.len().saturating_add(HEAD_BYTES);
                let is_too_long = taken.saturating_add(data.len()) > room;
                if is_too_long && found > 0 {
                    break;
                }
                // If an item does not fit into the answer even alone, the search returns its key
                // without its content.
                let data = if is_too_long { &[] } else { data };
                items
                    .u64(generation)
                    .u64(key.objectid.get())
                    .u64(key.offset)
                    .u32(u32::from(key.item_type.0))
                    .u32(u32::try_from(data.len()).unwrap_or(0))
                    .bytes(data);
                found = found.saturating_add(1);
                if is_too_long {
                    break;
                }
            }
            is_there = cursor.next().map_err(failed)?;
        }
        let head = control.input.get(..KEY_BYTES).ok_or(Errno::INVAL)?;
        // In the answer's key, the number of items is the only field that changes.
        let (before, after) = head.split_at_checked(64).ok_or(Errno::INVAL)?;
        let mut answer = Answer::default();
        answer
            .bytes(before)
            .u32(found)
            .bytes(after.get(4..).unwrap_or_default())
            .bytes(&items.0)
            .up_to(ALL_BYTES);
        Ok(answer.0.into())
    }
}
