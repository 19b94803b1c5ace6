//! Extended attributes: in the inode, in a block, and with values in inodes of their own.
//!
//! Names get their full prefix. ACLs get the form that Linux has in `system.posix_acl_*`. Content in
//! the inode is stored as the attribute `system.data`, which is not among the attributes.
//!
//! Invariants:
//!
//! - A value has at most [`VALUE_BYTES_MAX`] bytes, as Linux allows, and all values of an inode have
//!   at most [`VALUES_BYTES_MAX`].
//! - The inode of a value has a value by its flags, so values do not lead to further values.
//!
//! Source: ext4 documentation, sections "Extended Attributes" and "Large Extended Attribute Values".

mod acl;
mod list;

use crate::checksum::crc32c;
use crate::error::{ExtError, Place, Problem};
use crate::inode::{ExtInode, FileKind};
use crate::units::{BlockNumber, InodeNumber};
use crate::volume::{Ext, require_checksum};
use buttress_exact::{Exact as _, u64_of};
use list::{Entry, Value};

/// The longest value of an attribute, in bytes.
pub const VALUE_BYTES_MAX: u64 = 65536;

/// The largest sum of an inode's values, in bytes.
pub const VALUES_BYTES_MAX: u64 = 16 << 20;

const MAGIC: u32 = 0xea02_0000;
const BLOCK_HEADER_BYTES: usize = 32;
const CHECKSUM_OFFSET: usize = 0x10;

/// An extended attribute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExtAttribute {
    /// The name with its prefix.
    pub name: Vec<u8>,
    /// The value, as Linux returns it.
    pub value: Vec<u8>,
}

/// Returns the value of `system.data` in an inode, which continues the content.
pub(crate) fn inline_value(inode: &ExtInode) -> Result<&[u8], ExtError> {
    let corrupt = |problem| ExtError::corrupt(Place::InodeAttributes(inode.number), problem);
    for entry in list::in_inode(&inode.attributes, MAGIC).map_err(corrupt)? {
        let entry = entry.map_err(corrupt)?;
        if let (true, Value::Bytes(value)) = (entry.is_inline_data(), entry.value) {
            return Ok(value);
        }
    }
    Err(corrupt(Problem::NoInlineAttribute))
}

impl Ext {
    /// Returns the extended attributes of an inode: those in the inode, then those in its block.
    ///
    /// # Errors
    /// Fails if an attribute is damaged, if a value is longer than [`VALUE_BYTES_MAX`], or if all
    /// values are longer than [`VALUES_BYTES_MAX`].
    pub fn attributes(&self, inode: &ExtInode) -> Result<Vec<ExtAttribute>, ExtError> {
        let mut attributes = Vec::new();
        let mut left = VALUES_BYTES_MAX;
        // The inode of a value keeps no attributes of its own.
        if inode.is_attribute_value() {
            return Ok(attributes);
        }
        let place = Place::InodeAttributes(inode.number);
        let entries = list::in_inode(&inode.attributes, MAGIC);
        for entry in entries.map_err(|problem| ExtError::corrupt(place, problem))? {
            let entry = entry.map_err(|problem| ExtError::corrupt(place, problem))?;
            if !entry.is_inline_data() {
                attributes.push(self.attribute(inode, place, &entry, &mut left)?);
            }
        }
        let Some(block) = inode.attribute_block else {
            return Ok(attributes);
        };
        let place = Place::AttributeBlock {
            inode: inode.number,
            block,
        };
        let bytes = self.attribute_block(place, block)?;
        for entry in list::in_block(&bytes, BLOCK_HEADER_BYTES) {
            let entry = entry.map_err(|problem| ExtError::corrupt(place, problem))?;
            attributes.push(self.attribute(inode, place, &entry, &mut left)?);
        }
        Ok(attributes)
    }

    /// Reads the block of attributes, and verifies its header and checksum.
    fn attribute_block(&self, place: Place, block: BlockNumber) -> Result<Vec<u8>, ExtError> {
        let bytes = self.read_block(place, "the attributes", block)?.to_vec();
        let number = |at| crate::bytes::u32_at(&bytes, "the header", at);
        let field = |at| number(at).map_err(|problem| ExtError::corrupt(place, problem));
        for (name, at, expected) in [("h_magic", 0, MAGIC), ("h_blocks", 8, 1)] {
            let found = field(at)?;
            if found != expected {
                let (found, expected) = (u64::from(found), u64::from(expected));
                return Err(ExtError::corrupt(
                    place,
                    Problem::Differs {
                        field: name,
                        found,
                        expected,
                    },
                ));
            }
        }
        if let Some(seed) = self.superblock.protection.seed() {
            let (before, rest) = bytes.split_at(CHECKSUM_OFFSET);
            let (_, after) = rest.split_at(4);
            let state = crc32c(crc32c(seed, &block.get().to_le_bytes()), before);
            require_checksum(
                place,
                field(CHECKSUM_OFFSET)?,
                crc32c(crc32c(state, &[0; 4]), after),
            )?;
        }
        Ok(bytes)
    }

    /// Returns the attribute of an entry, and takes the length of its value from `left`.
    fn attribute(
        &self,
        inode: &ExtInode,
        place: Place,
        entry: &Entry<'_>,
        left: &mut u64,
    ) -> Result<ExtAttribute, ExtError> {
        let corrupt = |problem| ExtError::corrupt(place, problem);
        let name = entry.full_name().map_err(corrupt)?;
        let most = VALUE_BYTES_MAX.min(*left);
        let found = entry.value_bytes();
        if found > most {
            let field = "the length of a value";
            return Err(corrupt(Problem::Field {
                field,
                found,
                least: 0,
                most,
            }));
        }
        *left = left.exact_sub(found);
        let value = match entry.value {
            Value::Bytes(bytes) => bytes.to_vec(),
            Value::Inode { number, size_bytes } => self.value_in_inode(inode, place, number, size_bytes)?,
        };
        let value = if entry.is_acl() {
            acl::as_linux(&value).map_err(corrupt)?
        } else {
            value
        };
        Ok(ExtAttribute { name, value })
    }

    /// Returns the value that the inode `number` holds for an attribute of `owner`.
    fn value_in_inode(
        &self,
        owner: &ExtInode,
        place: Place,
        number: InodeNumber,
        size_bytes: u64,
    ) -> Result<Vec<u8>, ExtError> {
        let corrupt = |problem| ExtError::corrupt(place, problem);
        let holder = self.inode(number)?;
        let is_value = |holder: &ExtInode| holder.kind == FileKind::Regular && holder.is_attribute_value();
        let Some(holder) = holder.filter(is_value) else {
            return Err(corrupt(Problem::NotAValue { inode: number }));
        };
        if holder.size_bytes != size_bytes {
            let (found, expected) = (holder.size_bytes, size_bytes);
            let field = "the size of the inode of a value";
            return Err(corrupt(Problem::Differs {
                field,
                found,
                expected,
            }));
        }
        let value = self.content(&holder, size_bytes)?;
        // Older volumes have the owner in place of a checksum.
        let names_owner = holder.raw_modified == owner.number.get() && holder.generation == owner.generation;
        if let (Some(seed), false) = (self.superblock.protection.seed(), names_owner) {
            let expected = crc32c(seed, &value);
            require_checksum(Place::Inode(number), holder.raw_accessed, expected)?;
        }
        debug_assert_eq!(u64_of(value.len()), size_bytes);
        Ok(value)
    }
}
