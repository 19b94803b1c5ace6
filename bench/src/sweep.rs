//! (sweep comes below)
use crate::Scale;
pub(crate) fn run(_scale: Scale) -> anyhow::Result<()> {
    Ok(())
}
