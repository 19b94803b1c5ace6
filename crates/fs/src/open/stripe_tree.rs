//! The RAID stripe tree, in the form that the volume queries.

use buttress_format::raid_stripe::RaidStripeExtent;
use buttress_format::{ErrorKind, ItemType, Key, Logical, ObjectId};
use buttress_tree::{ReadAhead, Tree};
use buttress_volume::{Error, ResolvedStripe, ResolvedStripes, StripeResolver};

/// Looks addresses up in the RAID stripe tree.
#[derive(Debug)]
pub(super) struct StripeTree {
    tree: Tree,
    sector_bytes: u32,
}

impl StripeTree {
    pub(super) const fn new(tree: Tree, sector_bytes: u32) -> Self {
        Self { tree, sector_bytes }
    }
}

impl StripeResolver for StripeTree {
    fn resolve(&self, logical: Logical) -> Result<Option<ResolvedStripes>, Error> {
        let wanted = Key::new(ObjectId::new(logical.get()), ItemType::RAID_STRIPE, u64::MAX);
        let mut cursor = self.tree.cursor(ReadAhead::None);
        cursor
            .seek_at_or_before(&wanted)
            .map_err(|error| Error::StripeTree {
                logical,
                kind: error.kind(),
                reason: error.to_string(),
            })?;
        let Some(item) = cursor
            .current()
            .filter(|item| item.key.item_type == ItemType::RAID_STRIPE)
        else {
            return Ok(None);
        };
        let extent = RaidStripeExtent::parse(&item.key, item.data, self.sector_bytes).map_err(|error| {
            Error::StripeTree {
                logical,
                kind: ErrorKind::Corrupt,
                reason: error.to_string(),
            }
        })?;
        let covers = logical
            .checked_distance_from(extent.start)
            .is_some_and(|distance| distance < extent.length);
        let stripes = extent
            .stripes
            .iter()
            .map(|stride| ResolvedStripe {
                device: stride.device,
                physical: stride.physical,
            })
            .collect();
        Ok(covers.then_some(ResolvedStripes {
            logical: extent.start,
            length: extent.length,
            stripes,
        }))
    }
}
