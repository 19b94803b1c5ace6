//! Contents of the members of all layers. A locator begins with the number of its layer.

use super::Layer;
use crate::member;
use buttress_build::{ContentReader, Contents, EntryPath, FileContent, SourceError};
use std::sync::Arc;

#[derive(Debug)]
pub(super) struct LayerContents(pub(super) Arc<Vec<Layer>>);

impl Contents for LayerContents {
    fn open(&self, path: &EntryPath, content: &FileContent) -> Result<Box<dyn ContentReader>, SourceError> {
        let found = content
            .locator
            .split_first_chunk::<2>()
            .and_then(|(number, locator)| {
                let layer = self.0.get(usize::from(u16::from_le_bytes(*number)))?;
                Some((layer, locator))
            });
        let Some((layer, locator)) = found else {
            return Err(SourceError::Changed {
                place: String::from_utf8_lossy(path.as_bytes()).into_owned(),
                what: "it lies in no layer".to_owned(),
            });
        };
        member::open(&layer.name, &layer.store, content.size.get(), locator)
    }
}
