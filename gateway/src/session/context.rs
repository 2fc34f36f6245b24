//! State that all sessions of a worker share.

use std::rc::Rc;
use std::sync::Arc;

use muxtunnel_gateway_config::{Protocol, Reloadable, STREAM_RECEIVE_MIN, SessionConfig};
use tokio::sync::watch;

use crate::base::memory_budget::{Drawn, MemoryBudget};
use crate::base::telemetry::Telemetry;
use crate::stream::buffers::Pool;

pub(crate) struct Context {
    pub(crate) config: SessionConfig,
    pub(crate) reloadable: watch::Receiver<Arc<Reloadable>>,
    pub(crate) telemetry: Arc<Telemetry>,
    pub(crate) buffers: Rc<Pool>,
    /// The memory of the process, and the number of sessions that the process expects. With a
    /// protocol that has its own streams: the number of connections.
    pub(crate) memory: (Arc<MemoryBudget>, u32),
}

impl Context {
    /// The context with the session's part of the memory. With JMUX, the part also bounds the number
    /// of streams.
    pub(super) fn granted(mut self) -> (Self, Drawn) {
        let (budget, sessions) = &self.memory;
        let (memory, drawn) = budget.draw(self.config.memory, *sessions);
        if self.config.protocol == Protocol::Jmux {
            let room = memory.receive.0 / STREAM_RECEIVE_MIN.0;
            let room = u32::try_from(room).unwrap_or(u32::MAX);
            self.config.streams_max = self.config.streams_max.min(room);
        }
        self.config.memory = memory;
        (self, drawn)
    }
}
