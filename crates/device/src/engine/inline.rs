//! The inline engine: every read and write happens at once on the calling thread, in ascending
//! order of offset.

use std::sync::Arc;

use crate::engine::{Engine, RunRequests};
use crate::queue::Core;
use crate::queue::request::Dispatch;

#[derive(Debug)]
pub(crate) struct InlineEngine {
    core: Arc<Core>,
}

impl InlineEngine {
    pub(crate) fn new(core: Arc<Core>) -> Self {
        Self { core }
    }
}

impl RunRequests for InlineEngine {
    fn kind(&self) -> Engine {
        Engine::Inline
    }

    fn submit(&self, dispatches: &[Arc<Dispatch>]) {
        for dispatch in dispatches {
            if dispatch.start() {
                self.core.execute(dispatch);
            }
        }
    }

    fn help(&self, _dispatch: &Arc<Dispatch>) {}

    fn forget(&self, _dispatch: &Arc<Dispatch>) {}
}
