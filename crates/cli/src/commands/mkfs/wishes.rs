//! Settings of the volume in manifests, used where the command line has none.

use anyhow::{Context as _, Result};
use buttress::sources::manifest::VolumeWishes;

use super::{Mkfs, SizeWish, checksum, profile};

impl Mkfs {
    /// Fills in missing settings. Of several manifests, the last one takes precedence.
    pub(super) fn follow(&mut self, wishes: &[VolumeWishes]) -> Result<()> {
        for wish in wishes.iter().rev() {
            self.follow_one(wish).context("[volume] of the manifest")?;
        }
        Ok(())
    }

    fn follow_one(&mut self, wish: &VolumeWishes) -> Result<()> {
        if let Some(label) = wish.label.as_ref().filter(|_| self.label.is_empty()) {
            self.label = label.into();
        }
        if let Some(uuid) = wish.uuid.as_ref().filter(|_| self.uuid.is_none()) {
            self.uuid = Some(uuid.parse().with_context(|| format!("uuid {uuid:?}"))?);
        }
        let said = |text: &str, error: String| anyhow::anyhow!("{text:?}: {error}");
        if let Some(name) = wish.checksum.as_ref().filter(|_| self.csum.is_none()) {
            self.csum = Some(checksum(name).map_err(|error| said("checksum", error))?);
        }
        if let Some(name) = wish.data.as_ref().filter(|_| self.data.is_none()) {
            self.data = Some(profile(name).map_err(|error| said("data", error))?);
        }
        if let Some(name) = wish.metadata.as_ref().filter(|_| self.metadata.is_none()) {
            self.metadata = Some(profile(name).map_err(|error| said("metadata", error))?);
        }
        self.nodesize = self.nodesize.or(wish.node_size);
        self.sectorsize = self.sectorsize.or(wish.sector_size);
        self.mixed |= wish.mixed.unwrap_or(false);
        if self.byte_count.is_none() {
            self.byte_count = wish.size.map(SizeWish::Bytes);
        }
        let quotas = match wish.quotas.as_deref() {
            Some("full") => Some("quota".to_owned()),
            Some("simple") => Some("squota".to_owned()),
            _ => None,
        };
        // Features of the command line follow, and take precedence.
        self.features
            .splice(0..0, wish.features.iter().cloned().chain(quotas));
        Ok(())
    }
}
