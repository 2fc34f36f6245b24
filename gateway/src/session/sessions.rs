//! The running sessions of one worker.
//!
//! The entry stores the sessions that take new streams and the sessions that drain; the exit stores
//! all sessions. The caller that adds a session limits the number of sessions. The sessions share
//! the worker's buffers and the process's pipes.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use futures::future::join_all;
use tokio::sync::Notify;

use crate::session::driver::Pool;
use crate::session::end::SessionEnd;
use crate::session::mux::{Mux, Progress};
use crate::session::shell::LAST_WORD_MAX;
use crate::stream::local_stream::CUT_DELIVERY_MAX;

/// How long the process waits, before it exits, for streams to end their sockets. Kubernetes
/// kills the process 5 s after the end of the drain time, so this time is shorter.
const RESETS_MAX: Duration = Duration::from_secs(3);

/// How long the streams of a session that has ended may take to deliver what they received: once to
/// hand it to the kernel, and once until the client has it.
const DELIVERY_MAX: Duration = Duration::from_secs(2 * CUT_DELIVERY_MAX.as_secs());

type ById = BTreeMap<u64, Rc<dyn Mux>>;

/// Running sessions, oldest first.
pub(crate) struct Sessions {
    running: RefCell<ById>,
    /// Sessions that have ended, and whose streams still deliver received bytes.
    delivering: Rc<RefCell<ById>>,
    next: Cell<u64>,
    ended: Notify,
    pool: Rc<Pool>,
}

impl Sessions {
    /// An empty set.
    pub(crate) fn new() -> Self {
        Self {
            running: RefCell::default(),
            delivering: Rc::default(),
            next: Cell::new(0),
            ended: Notify::new(),
            pool: Pool::of_worker(),
        }
    }

    pub(crate) async fn run(&self, mux: &Rc<dyn Mux>) -> SessionEnd {
        let id = self.next.replace(self.next.get() + 1);
        self.running.borrow_mut().insert(id, Rc::clone(mux));
        let end = mux.run().await;
        self.running.borrow_mut().remove(&id);
        let (mux, delivering) = (Rc::clone(mux), Rc::clone(&self.delivering));
        delivering.borrow_mut().insert(id, Rc::clone(&mux));
        tokio::task::spawn_local(async move {
            mux.streams_gone(DELIVERY_MAX).await;
            delivering.borrow_mut().remove(&id);
        });
        self.ended.notify_waiters();
        end
    }

    /// The buffers of the worker, and the pipes of the process.
    pub(crate) fn pool(&self) -> Rc<Pool> {
        Rc::clone(&self.pool)
    }

    pub(crate) fn len(&self) -> usize {
        self.running.borrow().len()
    }

    /// The oldest session whose peer takes no further streams, and that has not begun to end.
    pub(crate) fn oldest_going(&self) -> Option<Rc<dyn Mux>> {
        let running = self.running.borrow();
        let mut going = running
            .values()
            .filter(|session| session.progress() == Progress::GoingAway && !session.has_ended());
        going.next().cloned()
    }

    /// The session to evict for a new session of `peer`; `None`: no session waits for a carrier.
    /// The session to evict belongs to the peer that would have the most sessions: the oldest
    /// session that waits, otherwise the newest session.
    pub(crate) fn evicted_for(&self, peer: Option<Rc<str>>) -> Option<Rc<dyn Mux>> {
        let mut running = self.all();
        running.retain(|session| !session.has_ended());
        let holdings: Vec<_> = running
            .iter()
            .map(|session| (session.identity(), session.waits()))
            .collect();
        let evicted = evicted(&holdings, &peer)?;
        running.into_iter().nth(evicted)
    }

    /// All running sessions, oldest first.
    pub(crate) fn all(&self) -> Vec<Rc<dyn Mux>> {
        self.running.borrow().values().cloned().collect()
    }

    /// Tells every peer that this side takes no further streams.
    pub(crate) fn go_away(&self) {
        self.all().iter().for_each(|session| session.go_away());
    }

    /// Waits until no session has an open stream, and until the streams of sessions that have ended
    /// have delivered what they received.
    pub(crate) async fn drained(&self) {
        let mut sessions = self.all();
        for session in &sessions {
            session.idle().await;
        }
        sessions.retain(|session| session.has_ended());
        self.delivered(sessions, DELIVERY_MAX).await;
    }

    /// Waits for the streams of `sessions`, and of the sessions that ended before.
    async fn delivered(&self, mut sessions: Vec<Rc<dyn Mux>>, within: Duration) {
        sessions.extend(self.delivering.borrow().values().cloned());
        join_all(sessions.iter().map(|session| session.streams_gone(within))).await;
    }

    /// Shuts down all sessions, and waits until the sessions have ended, for at most
    /// [`LAST_WORD_MAX`] after `deadline`, and then until their streams have ended, for at most
    /// [`RESETS_MAX`].
    pub(crate) async fn end_all(&self, deadline: impl Future<Output = ()>) {
        let sessions = self.all();
        sessions.iter().for_each(|session| session.shut_down());
        let late = async {
            deadline.await;
            tokio::time::sleep(LAST_WORD_MAX).await;
        };
        tokio::select! {
            () = self.ended() => {}
            () = late => {}
        }
        self.delivered(sessions, RESETS_MAX).await;
    }

    async fn ended(&self) {
        loop {
            let ended = self.ended.notified();
            if self.running.borrow().is_empty() {
                break;
            }
            ended.await;
        }
    }
}

/// Chooses which of `sessions` to evict for a new session of `peer`. `sessions` contains, oldest
/// first, each session's peer and whether the session waits for a carrier.
fn evicted<P: PartialEq>(sessions: &[(P, bool)], peer: &P) -> Option<usize> {
    if !sessions.iter().any(|(_, waits)| *waits) {
        return None;
    }
    let has = |of: &P| {
        let own = sessions.iter().filter(|(other, _)| other == of).count();
        own + usize::from(of == peer)
    };
    let (most, _) = sessions.iter().max_by_key(|(of, _)| has(of))?;
    let is_own = |(of, _): &(P, bool)| of == most;
    let waits = |session: &(P, bool)| is_own(session) && session.1;
    let waiting = sessions.iter().position(waits);
    waiting.or_else(|| sessions.iter().rposition(is_own))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::mux::memory::{Memory, silent};

    /// Runs each of a worker's `sessions` as a separate task.
    fn run(all: &Rc<Sessions>, sessions: &[Rc<dyn Mux>]) {
        for session in sessions {
            let (all, session) = (Rc::clone(all), Rc::clone(session));
            tokio::task::spawn_local(async move { all.run(&session).await });
        }
    }

    #[tokio::test]
    async fn the_oldest_that_goes_away_makes_room_and_all_are_ended_at_last() {
        let tasks = tokio::task::LocalSet::new();
        let test = async {
            let all = Rc::new(Sessions::new());
            let memories = [silent(None), silent(None), silent(None)];
            let sessions = memories.each_ref().map(Memory::shared);
            run(&all, &sessions);
            tokio::task::yield_now().await;
            assert_eq!(all.len(), 3);
            assert!(all.oldest_going().is_none());
            memories[2].goes_away();
            memories[1].goes_away();
            let oldest = all.oldest_going().unwrap();
            assert!(Rc::ptr_eq(&oldest, &sessions[1]));
            all.end_all(std::future::pending()).await;
            assert_eq!(all.len(), 0);
            assert!(sessions.iter().all(|session| session.has_ended()));
        };
        tasks.run_until(test).await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_drain_waits_for_the_streams_of_sessions_that_have_ended() {
        let tasks = tokio::task::LocalSet::new();
        let test = async {
            let all = Rc::new(Sessions::new());
            let memory = silent(None);
            memory.has_streams(1);
            run(&all, &[memory.shared()]);
            tokio::task::yield_now().await;
            memory.shared().shut_down();
            while all.len() > 0 {
                tokio::task::yield_now().await;
            }
            let mut drained = std::pin::pin!(all.drained());
            let before = tokio::time::timeout(DELIVERY_MAX / 2, &mut drained).await;
            assert!(before.is_err());
            memory.has_streams(0);
            drained.await;
        };
        tasks.run_until(test).await;
    }

    #[test]
    fn the_peer_with_most_sessions_loses_one() {
        let (waits, runs) = (true, false);
        let few = [("one", runs), ("one", runs)];
        assert_eq!(
            evicted(&few, &"two"),
            None,
            "no session waits for a carrier"
        );
        let both = [
            ("two", waits),
            ("one", runs),
            ("one", waits),
            ("one", waits),
        ];
        assert_eq!(evicted(&both, &"two"), Some(2));
        assert_eq!(evicted(&both, &"one"), Some(2));
        // The other peer's session waits for a carrier, but that peer does not have the most
        // sessions.
        let greedy = [("two", waits), ("one", runs), ("one", runs)];
        assert_eq!(evicted(&greedy, &"one"), Some(2));
        assert_eq!(evicted(&greedy[..2], &"two"), Some(0));
    }
}
