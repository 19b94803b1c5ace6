//! Stream commands that create, move and remove names.

use super::Target;
use crate::view::error::Problem;
use crate::view::tree::{Inode, Node, NodeId, Place};
use buttress_format::InodeNumber;

impl Target<'_> {
    /// Adds an inode at a path that does not exist yet.
    pub(super) fn create(&mut self, path: &[u8], inode: Inode) -> Result<(), Problem> {
        let place = self.free_place(path)?;
        self.tree.add(&place, inode);
        Ok(())
    }

    fn free_place<'p>(&self, path: &'p [u8]) -> Result<Place<'p>, Problem> {
        let place = self.tree.place(path, None)?;
        match place.existing {
            None => Ok(place),
            Some(id) => Err(Problem::Exists {
                path: path.to_vec(),
                found: self.kind_name(id),
            }),
        }
    }

    fn kind_name(&self, id: NodeId) -> &'static str {
        self.tree
            .inode(id)
            .map_or("nothing", |inode| inode.node.kind_name())
    }

    pub(super) fn make_node(
        &mut self,
        path: &[u8],
        number: Option<InodeNumber>,
        mode: u64,
        device: u64,
    ) -> Result<(), Problem> {
        // Encodes a device number in the kernel's wide form: the low 8 bits of the minor, 12 bits
        // of the major, the rest of the minor.
        let low = |bits: u64| u32::try_from(bits).unwrap_or(0);
        let block = match mode & 0o170_000 {
            0o020_000 => false,
            0o060_000 => true,
            0o010_000 => return self.create(path, Inode::new(Node::Fifo, permissions(mode), number)),
            0o140_000 => return self.create(path, Inode::new(Node::Socket, permissions(mode), number)),
            _ => return Err(Problem::NodeMode { mode }),
        };
        let node = Node::Device {
            block,
            major: low((device >> 8) & 0xfff),
            minor: low((device & 0xff) | ((device >> 12) & 0xf_ff00)),
        };
        self.create(path, Inode::new(node, permissions(mode), number))
    }

    /// Resolves a path that must exist, and returns its place and inode.
    fn existing<'p>(&self, path: &'p [u8]) -> Result<(Place<'p>, NodeId), Problem> {
        let place = self.tree.place(path, None)?;
        match place.existing {
            Some(id) => Ok((place, id)),
            None => Err(Problem::NotFound { path: path.to_vec() }),
        }
    }

    /// Returns the number of names in a directory; `None` for any other inode.
    fn names_in(&self, id: NodeId) -> Option<usize> {
        match &self.tree.inode(id)?.node {
            Node::Directory(directory) => Some(directory.len()),
            _ => None,
        }
    }

    fn wrong_kind(&self, path: &[u8], id: NodeId, wanted: &'static str) -> Problem {
        Problem::WrongKind {
            path: path.to_vec(),
            found: self.kind_name(id),
            wanted,
        }
    }

    pub(super) fn rename(&mut self, from: &[u8], to: &[u8]) -> Result<(), Problem> {
        let (old, id) = self.existing(from)?;
        let new = self.tree.place(to, Some(id))?;
        if new.within_forbidden {
            return Err(Problem::IntoItself {
                from: from.to_vec(),
                to: to.to_vec(),
            });
        }
        if let Some(replaced) = new.existing {
            if replaced == id {
                // If both names belong to one file, rename(2) has no effect.
                return Ok(());
            }
            match (self.names_in(id), self.names_in(replaced)) {
                (Some(_), Some(0)) | (None, None) => {}
                (Some(_), Some(names)) => {
                    return Err(Problem::NotEmpty {
                        path: to.to_vec(),
                        names,
                    });
                }
                (Some(_), None) => {
                    return Err(self.wrong_kind(to, replaced, "a directory, to be replaced by one"));
                }
                (None, Some(_)) => {
                    return Err(self.wrong_kind(
                        to,
                        replaced,
                        "anything else, to be replaced by no directory",
                    ));
                }
            }
            self.tree.drop_link(replaced);
        }
        self.tree.clear_name(&old);
        self.tree.set_name(&new, id);
        Ok(())
    }

    pub(super) fn link(&mut self, path: &[u8], target: &[u8]) -> Result<(), Problem> {
        let (_, id) = self.existing(target)?;
        if self.names_in(id).is_some() {
            return Err(self.wrong_kind(target, id, "anything else"));
        }
        let place = self.free_place(path)?;
        let inode = self.inode_of(id, target)?;
        inode.links = inode.links.checked_add(1).ok_or(Problem::OutOfRange {
            field: "number of links",
            value: 1 << 32,
        })?;
        self.tree.set_name(&place, id);
        Ok(())
    }

    pub(super) fn unlink(&mut self, path: &[u8]) -> Result<(), Problem> {
        let (place, id) = self.existing(path)?;
        if self.names_in(id).is_some() {
            return Err(self.wrong_kind(path, id, "anything else"));
        }
        self.tree.clear_name(&place);
        self.tree.drop_link(id);
        Ok(())
    }

    pub(super) fn remove_directory(&mut self, path: &[u8]) -> Result<(), Problem> {
        let (place, id) = self.existing(path)?;
        match self.names_in(id) {
            None => Err(self.wrong_kind(path, id, "a directory")),
            Some(0) => {
                self.tree.clear_name(&place);
                self.tree.drop_link(id);
                Ok(())
            }
            Some(names) => Err(Problem::NotEmpty {
                path: path.to_vec(),
                names,
            }),
        }
    }
}

fn permissions(mode: u64) -> u32 {
    u32::try_from(mode & 0o7777).unwrap_or(0)
}
