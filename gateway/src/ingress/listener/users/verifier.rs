//! Verifies passwords outside the workers' event loops.
//!
//! By design, a verification takes from milliseconds to more than one second of CPU time. At most
//! [`VERIFICATIONS_MAX`] verifications run at the same time in the process. Each runs on a thread
//! with a lower priority than the workers, so that clients with wrong passwords do not slow down
//! streams. At most [`QUEUE_MAX`] more verifications wait. Further verifications are refused.
//! Clients with the same user name and password share one verification.

use std::collections::{BTreeMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

use super::super::Verdict;

/// Maximum number of concurrent verifications.
const VERIFICATIONS_MAX: usize = 2;
/// Maximum number of waiting verifications.
const QUEUE_MAX: usize = 64;
/// Nice value of the threads. If CPU time is scarce, each thread gets about a tenth of a worker's
/// time.
const NICENESS: i32 = 10;
/// Name of the threads.
const THREAD_NAME: &str = "passwords";

/// Identifies a user name and a password. Different pairs have different digests.
pub(super) type Digest = [u8; 32];

/// The verifications of the process.
pub(super) struct Verifier(Mutex<State>);

struct State {
    /// Number of running threads.
    threads: usize,
    queue: VecDeque<Job>,
    /// Running and waiting verifications, with the channels for their results.
    pending: BTreeMap<Digest, watch::Sender<Option<bool>>>,
}

struct Job {
    digest: Digest,
    verify: Box<dyn FnOnce() -> bool + Send>,
}

impl Verifier {
    pub(super) const fn new() -> Self {
        Self(Mutex::new(State {
            threads: 0,
            queue: VecDeque::new(),
            pending: BTreeMap::new(),
        }))
    }

    /// Runs `verify` when a thread is free. If a verification of the same `digest` is pending,
    /// waits for its result instead. Returns [`Verdict::Busy`] if too many verifications wait, or
    /// if no result is available before `until`.
    pub(super) async fn verdict(
        &'static self,
        digest: Digest,
        verify: impl FnOnce() -> bool + Send + 'static,
        until: Instant,
    ) -> Verdict {
        let verify = Box::new(verify);
        let Some(mut result) = self.submit(Job { digest, verify }) else {
            return Verdict::Busy;
        };
        let result = timeout_at(until, result.wait_for(Option::is_some)).await;
        match result.map(|result| result.map(|result| *result)) {
            Ok(Ok(Some(true))) => Verdict::Known,
            Ok(Ok(_)) => Verdict::Wrong,
            // The verification takes too long, or panicked.
            Err(_) | Ok(Err(_)) => Verdict::Busy,
        }
    }

    /// Queues a job; `None`: too many verifications wait.
    fn submit(&'static self, job: Job) -> Option<watch::Receiver<Option<bool>>> {
        let mut state = self.state();
        let digest = job.digest;
        if let Some(result) = state.pending.get(&digest) {
            return Some(result.subscribe());
        }
        if state.threads < VERIFICATIONS_MAX {
            let thread = std::thread::Builder::new().name(THREAD_NAME.to_owned());
            if let Err(error) = thread.spawn(move || self.work(job)) {
                tracing::warn!(%error, "Cannot start a thread to verify passwords; is the limit of threads reached?");
                return None;
            }
            state.threads += 1;
        } else if state.has_room() {
            state.queue.push_back(job);
        } else {
            return None;
        }
        let (sender, result) = watch::channel(None);
        state.pending.insert(digest, sender);
        Some(result)
    }

    /// Verifies jobs one after another until no job waits.
    fn work(&self, first: Job) {
        // An error has one effect only: the verifications take more CPU time from the workers.
        let _ = rustix::process::setpriority_process(None, NICENESS);
        let mut next = Some(first);
        while let Some(Job { digest, verify }) = next {
            let is_right = catch_unwind(AssertUnwindSafe(verify)).ok();
            next = self.finish(&digest, is_right);
        }
    }

    /// Publishes a result and returns the next job. `is_right` is `None` if the verification
    /// panicked.
    fn finish(&self, digest: &Digest, is_right: Option<bool>) -> Option<Job> {
        let mut state = self.state();
        if let Some(result) = state.pending.remove(digest) {
            result.send_replace(is_right);
        }
        state.drop_abandoned();
        let next = state.queue.pop_front();
        if next.is_none() {
            state.threads -= 1;
        }
        next
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock()
    }
}

impl State {
    fn has_room(&mut self) -> bool {
        if self.queue.len() >= QUEUE_MAX {
            self.drop_abandoned();
        }
        self.queue.len() < QUEUE_MAX
    }

    /// Removes waiting jobs whose clients have disconnected.
    fn drop_abandoned(&mut self) {
        let Self { queue, pending, .. } = self;
        queue.retain(|job| {
            let result = pending.get(&job.digest);
            let is_awaited = result.is_some_and(|result| result.receiver_count() > 0);
            if !is_awaited {
                pending.remove(&job.digest);
            }
            is_awaited
        });
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::time::Duration;

    use super::*;

    fn verifier() -> &'static Verifier {
        Box::leak(Box::new(Verifier::new()))
    }

    /// Verifications that block after their start, each until it receives a byte.
    #[derive(Clone)]
    struct Held {
        begun: Sender<u8>,
        words: Arc<Mutex<Receiver<bool>>>,
    }

    impl Held {
        fn verify(&self, number: u8) -> impl FnOnce() -> bool + Send + 'static {
            let Self { begun, words } = self.clone();
            move || {
                begun.send(number).unwrap();
                words.lock().recv().unwrap()
            }
        }

        fn job(&self, number: u8) -> Job {
            Job {
                digest: [number; 32],
                verify: Box::new(self.verify(number)),
            }
        }
    }

    fn held() -> (Held, Receiver<u8>, Sender<bool>) {
        let ((begun, begins), (word, words)) = (channel(), channel());
        let words = Arc::new(Mutex::new(words));
        (Held { begun, words }, begins, word)
    }

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(60)
    }

    #[tokio::test]
    async fn so_many_run_at_once_so_many_wait_and_more_are_refused() {
        let verifier = verifier();
        let (held, begins, word) = held();
        let most = (VERIFICATIONS_MAX + QUEUE_MAX) as u8;
        let results: Vec<_> = (0..most).map(|n| verifier.submit(held.job(n))).collect();
        assert!(results.iter().all(Option::is_some));
        let refused = verifier.verdict([most; 32], held.verify(most), soon());
        assert_eq!(refused.await, Verdict::Busy);
        let mut begun = [begins.recv().unwrap(), begins.recv().unwrap()];
        begun.sort_unstable();
        assert_eq!(begun, [0, 1]);
        // The third verification starts only when one of the two threads finishes its job.
        assert!(begins.try_recv().is_err());
        {
            let state = verifier.state();
            let (threads, waits) = (state.threads, state.queue.len());
            assert_eq!((threads, waits), (VERIFICATIONS_MAX, QUEUE_MAX));
            assert_eq!(state.pending.len(), usize::from(most));
        }
        word.send(true).unwrap();
        assert_eq!(begins.recv().unwrap(), 2);
        let another = verifier.submit(held.job(most));
        assert!(another.is_some());
        (0..most).for_each(|_| word.send(false).unwrap());
        let mut right = 0;
        for mut result in results.into_iter().chain([another]).flatten() {
            let is_right = *result.wait_for(Option::is_some).await.unwrap();
            right += u8::from(is_right == Some(true));
        }
        assert_eq!(right, 1);
        while verifier.state().threads > 0 {
            tokio::task::yield_now().await;
        }
        let state = verifier.state();
        assert!(state.queue.is_empty() && state.pending.is_empty());
    }

    #[tokio::test]
    async fn the_same_user_and_password_are_verified_once() {
        let verifier = verifier();
        let (held, begins, word) = held();
        let same = || verifier.verdict([7; 32], held.verify(7), soon());
        let answer = async {
            tokio::task::yield_now().await;
            word.send(true).unwrap();
        };
        let (one, other, ()) = tokio::join!(same(), same(), answer);
        assert_eq!((one, other), (Verdict::Known, Verdict::Known));
        assert_eq!(begins.try_iter().count(), 1);
    }

    #[tokio::test]
    async fn what_nobody_waits_for_any_more_is_not_verified_and_takes_no_place() {
        let verifier = verifier();
        let (held, begins, word) = held();
        let running = [0, 1].map(|number| verifier.submit(held.job(number)));
        assert_eq!(begins.iter().take(2).count(), 2);
        for number in 2..2 + QUEUE_MAX as u8 {
            let now = Instant::now();
            let verdict = verifier.verdict([number; 32], held.verify(number), now);
            assert_eq!(verdict.await, Verdict::Busy);
        }
        let waits = verifier.submit(held.job(200));
        assert_eq!(verifier.state().queue.len(), 1);
        (0..3).for_each(|_| word.send(false).unwrap());
        for mut result in running.into_iter().chain([waits]).flatten() {
            assert_eq!(
                *result.wait_for(Option::is_some).await.unwrap(),
                Some(false)
            );
        }
        assert_eq!(begins.try_iter().collect::<Vec<_>>(), [200]);
    }

    #[tokio::test]
    async fn a_verification_that_panics_is_no_success_and_keeps_no_thread() {
        let verifier = verifier();
        for number in 0..4 {
            let verdict = verifier.verdict([number; 32], || panic!("a fault"), soon());
            assert_eq!(verdict.await, Verdict::Busy);
        }
        let verdict = verifier.verdict([9; 32], || true, soon());
        assert_eq!(verdict.await, Verdict::Known);
    }

    #[tokio::test]
    async fn verifications_run_beside_the_caller_at_a_lower_priority() {
        let caller = std::thread::current().id();
        let (says, heard) = channel();
        let verify = move || {
            let niceness = rustix::process::getpriority_process(None).unwrap();
            says.send((std::thread::current().id(), niceness)).unwrap();
            true
        };
        verifier().verdict([0; 32], verify, soon()).await;
        let (thread, niceness) = heard.recv().unwrap();
        assert_ne!(thread, caller);
        assert!(niceness >= NICENESS, "{niceness}");
    }
}
