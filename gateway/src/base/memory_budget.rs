//! The memory of the process for payload, which its sessions share.
//!
//! If the process's control group has a memory limit, half of the limit is for received payload of
//! all sessions, and an eighth for sent payload that is not acknowledged: each session retains at
//! most a quarter of its memory for received payload. A new session draws its part from this budget
//! and returns it at its end. If a library has the streams of the protocol, each connection has
//! windows of its own, so each connection draws a part, as a session does. A
//! session whose peer already has its credit cannot give back a part of it, so the parts depend on
//! the number of expected sessions.

use std::sync::{Arc, OnceLock};

use muxtunnel_gateway_config::{ByteSize, Memory, RECEIVE_MIN, RETAIN_MIN};
use parking_lot::Mutex;

use crate::base::cgroup;

/// The budget of the process.
pub(crate) struct MemoryBudget {
    /// Bytes of received payload. `None` without a limit.
    receive: Option<u64>,
    /// The part that sessions have drawn.
    drawn: Mutex<u64>,
}

/// The part of a session. Dropping the value returns the part.
pub(crate) struct Drawn {
    budget: Arc<MemoryBudget>,
    receive: u64,
}

impl MemoryBudget {
    /// The budget with the memory limit `limit` of the process.
    pub(crate) fn of(limit: Option<u64>) -> Arc<Self> {
        Arc::new(Self {
            receive: limit.map(|limit| limit / 2),
            drawn: Mutex::default(),
        })
    }

    /// The budget of this process. The limit is read at the first call.
    pub(crate) fn of_process() -> Arc<Self> {
        static OF_PROCESS: OnceLock<Arc<MemoryBudget>> = OnceLock::new();
        Arc::clone(OF_PROCESS.get_or_init(|| {
            let limit = cgroup::memory_limit();
            if let Some(bytes) = limit {
                let limit = ByteSize(bytes);
                tracing::info!(%limit, "Sessions share a part of the memory limit");
            }
            Self::of(limit)
        }))
    }

    /// Whether the process has a memory limit.
    pub(crate) const fn is_limited(&self) -> bool {
        self.receive.is_some()
    }

    /// The memory of each of `sessions` equal sessions, at most `most`.
    pub(crate) fn share(&self, most: Memory, sessions: u32) -> Memory {
        let share = self.receive.map(|all| all / u64::from(sessions.max(1)));
        share.map_or(most, |receive| bounded(most, receive))
    }

    /// Draws the part of a new session or connection, at most `most`, if the process expects `sessions` sessions
    /// in total. An unexpected session gets half of what is left, but at least the minimum.
    pub(crate) fn draw(self: &Arc<Self>, most: Memory, sessions: u32) -> (Memory, Drawn) {
        let mut memory = self.share(most, sessions);
        let mut receive = 0;
        if let Some(all) = self.receive {
            let mut drawn = self.drawn.lock();
            let left = all.saturating_sub(*drawn);
            if memory.receive.0 > left {
                memory = bounded(memory, left / 2);
            }
            receive = memory.receive.0;
            *drawn += receive;
        }
        let budget = Arc::clone(self);
        (memory, Drawn { budget, receive })
    }
}

impl Drop for Drawn {
    fn drop(&mut self) {
        let mut drawn = self.budget.drawn.lock();
        *drawn = drawn.saturating_sub(self.receive);
    }
}

/// `most`, but at most `receive` bytes of received payload and a quarter of it of sent payload. Each
/// result has a minimum, because a stream needs a window.
fn bounded(most: Memory, receive: u64) -> Memory {
    let at_most =
        |most: ByteSize, bytes: u64, least: ByteSize| ByteSize(bytes.max(least.0).min(most.0));
    let receive = at_most(most.receive, receive, RECEIVE_MIN);
    Memory {
        receive,
        retain: at_most(most.retain, receive.0 / 4, RETAIN_MIN),
        ..most
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn sizes(memory: Memory) -> (u64, u64) {
        (memory.receive.0 / MIB, memory.retain.0 / MIB)
    }

    #[test]
    fn without_a_limit_each_session_has_what_is_configured() {
        let budget = MemoryBudget::of(None);
        for _ in 0..3 {
            let (memory, drawn) = budget.draw(Memory::default(), 1);
            assert_eq!(memory, Memory::default());
            std::mem::forget(drawn);
        }
    }

    #[test]
    fn the_sessions_together_have_a_part_of_the_limit() {
        let budget = MemoryBudget::of(Some(64 * MIB));
        let most = Memory::default();
        let drawn: Vec<_> = (0..4).map(|_| budget.draw(most, 4)).collect();
        for (memory, _) in &drawn {
            assert_eq!(sizes(*memory), (8, 2));
        }
        // Nothing is left for an unexpected session, which still works.
        let (memory, more) = budget.draw(most, 4);
        assert_eq!(sizes(memory), (1, 1));
        drop((drawn, more));
        assert_eq!(*budget.drawn.lock(), 0);
        assert_eq!(sizes(budget.draw(most, 1).0), (32, 8));
    }

    #[test]
    fn sessions_beyond_the_expected_number_halve_what_is_left() {
        let budget = MemoryBudget::of(Some(64 * MIB));
        let first = budget.draw(Memory::default(), 2);
        assert_eq!(sizes(first.0), (16, 4));
        // The spec now names another number. Older sessions keep their part.
        let parts: Vec<_> = (0..4).map(|_| budget.draw(Memory::default(), 3)).collect();
        let parts: Vec<_> = parts.iter().map(|(memory, _)| sizes(*memory).0).collect();
        assert_eq!(parts, [10, 2, 1, 1]);
    }

    #[test]
    fn sessions_beyond_the_expected_number_retain_a_part_of_the_limit_with_the_others() {
        let budget = MemoryBudget::of(Some(4096 * MIB));
        let drawn: Vec<_> = (0..16).map(|_| budget.draw(Memory::default(), 4)).collect();
        assert_eq!(sizes(drawn[0].0), (256, 64));
        let retained: u64 = drawn.iter().map(|(memory, _)| sizes(*memory).1).sum();
        // The minimum of the last sessions is beyond the eighth of the limit.
        assert_eq!(retained, 512 + 8);
    }

    #[test]
    fn a_small_configured_budget_is_kept() {
        let budget = MemoryBudget::of(Some(64 * MIB));
        let small = Memory {
            receive: ByteSize(2 * MIB),
            retain: ByteSize(MIB),
            ..Memory::default()
        };
        assert_eq!(sizes(budget.draw(small, 1).0), (2, 1));
        assert_eq!(budget.share(small, 1), small);
    }
}
