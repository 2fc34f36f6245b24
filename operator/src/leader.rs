//! Leader election. Only the operator that holds the Lease writes.
//!
//! All operators watch, so all have the same caches. Only the leader reconciles. [`WriteGate`], a
//! part of the client, passes requests other than GET only while the Lease is held. The gate uses
//! this machine's monotonic clock, and never a time from another machine. A process that was
//! stopped for longer than the duration of its Lease therefore writes nothing after it resumes. The
//! monotonic clock (CLOCK_MONOTONIC) does not advance while the whole machine is suspended. A
//! process that resumes with the machine may write until its next renewal finds another holder, and
//! at most for the rest of [`WRITE_FOR`]. In this time, two operators may write. Nodes of clusters
//! are usually not suspended.
//!
//! A leader renews every [`RENEW_EVERY`], and may write for [`WRITE_FOR`] from the start of its
//! last successful renewal. Other operators take over after [`LEASE_SECONDS`] without a change of
//! the Lease. So if a leader fails to renew, no operator writes for five seconds before another
//! operator takes over. A leader that ends in order writes nothing for [`SETTLE`] before it
//! releases the Lease. In these pauses, the API server finishes earlier requests. A write of the
//! Lease has its resource version as a precondition, so one of two concurrent takeovers fails. A
//! leader that loses the Lease continues as a follower with its watches, so no process restarts
//! after an outage of the API server.
//!
//! The crate kube-lease-manager 0.13 is not suitable, because it patches without a precondition.
//! Two operators may therefore both treat an expired Lease as their own until the next poll.
//! kube-lease-manager also compares times from different machines.

use std::sync::Arc;
use std::time::Duration;

use futures::stream::{self, BoxStream, StreamExt};
use http::{Method, Uri};
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::api::PostParams;
use kube::core::ObjectMeta;
use kube::runtime::controller::Action;
use kube::runtime::reflector::{ObjectRef, Store};
use kube::{Api, Client, Resource};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tracing::{info, warn};

use crate::clock::Clock;
use crate::failure::NotLeader;
use crate::interceptor::{Answer, Interceptor};

/// A Lease expires this many seconds after its last renewal.
pub const LEASE_SECONDS: i32 = 15;
/// How long the holder of a Lease may write, from the start of the last successful renewal.
const WRITE_FOR: Duration = Duration::from_secs(10);
/// Time between two renewals.
const RENEW_EVERY: Duration = Duration::from_secs(5);
/// Time between two polls of a follower, and between a failed attempt to renew and the next
/// attempt.
const POLL_INTERVAL: Duration = Duration::from_millis(1500);
/// Pause before the Lease is released, in which the API server finishes unanswered requests.
const SETTLE: Duration = Duration::from_secs(2);
/// Time limit for one poll or renewal.
const ATTEMPT: Duration = Duration::from_secs(4);

/// Whether this process may write.
#[derive(Debug, Clone, Default)]
pub struct Leadership(Arc<watch::Sender<Term>>);

#[derive(Debug, Clone, Copy, Default)]
struct Term {
    /// How often this process has become the leader.
    number: u64,
    /// `None` if this process is not the leader.
    until: Option<Instant>,
}

impl Leadership {
    /// Whether this process holds the Lease now.
    pub fn is_held(&self) -> bool {
        let until = self.0.borrow().until;
        until.is_some_and(|until| Instant::now() < until)
    }

    /// Yields an item whenever this process wins the Lease. If the process holds the Lease now,
    /// yields one item immediately.
    pub fn won(&self) -> BoxStream<'static, ()> {
        let terms = stream::unfold((self.0.subscribe(), 0), |(mut terms, seen)| async move {
            let term = *terms
                .wait_for(|term| term.number > seen && term.until.is_some())
                .await
                .ok()?;
            Some(((), (terms, term.number)))
        });
        terms.boxed()
    }

    /// Yields all objects in `store` whenever this process wins the Lease, because it did not
    /// reconcile changes while another operator was the leader.
    pub(crate) fn requeues<K>(&self, store: &Store<K>) -> BoxStream<'static, ObjectRef<K>>
    where
        K: Resource<DynamicType = ()> + Clone + Send + Sync + 'static,
    {
        let store = store.clone();
        let reference = |object: Arc<K>| ObjectRef::from_obj(object.as_ref());
        let all = move |()| stream::iter(store.state().into_iter().map(reference));
        self.won().flat_map(all).boxed()
    }

    /// Polls one reconciliation while this process holds the Lease. Without the Lease, does
    /// nothing, because [`Leadership::requeues`] yields the object again.
    pub(crate) async fn if_held<E>(
        &self,
        reconciliation: impl Future<Output = Result<Action, E>>,
    ) -> Result<Action, E> {
        if self.is_held() {
            reconciliation.await
        } else {
            Ok(Action::await_change())
        }
    }

    /// Returns when the Lease is no longer held.
    async fn lost(&self) {
        let mut terms = self.0.subscribe();
        loop {
            let until = terms.borrow_and_update().until;
            let Some(until) = until.filter(|until| Instant::now() < *until) else {
                return;
            };
            tokio::select! {
                biased;
                () = sleep_until(until) => {}
                _renewed_or_given_up = terms.changed() => {}
            }
        }
    }

    fn hold_until(&self, until: Instant) {
        self.0.send_modify(|term| {
            if term.until.is_none_or(|until| until <= Instant::now()) {
                term.number += 1;
            }
            term.until = Some(until);
        });
    }

    /// Stops all writes from now on.
    pub fn give_up(&self) {
        self.0.send_modify(|term| term.until = None);
    }

    /// A leadership that is never lost, for tests with one operator.
    #[cfg(test)]
    pub(crate) fn always() -> Self {
        let leadership = Self::default();
        leadership.hold_until(Instant::now() + Duration::from_hours(1000));
        leadership
    }
}

/// A candidate for the Lease.
pub struct Elector {
    clock: Clock,
    api: Api<Lease>,
    name: String,
    identity: String,
    leadership: Leadership,
    /// The last seen resource version of the Lease, and when it was first seen.
    seen: Option<(Option<String>, Instant)>,
}

impl Elector {
    /// A candidate for the Lease `name` in `namespace`. `client` must not have a [`WriteGate`].
    pub fn new(
        client: Client,
        namespace: &str,
        name: String,
        identity: String,
        clock: Clock,
    ) -> Self {
        Self {
            clock,
            api: Api::namespaced(client, namespace),
            name,
            identity,
            leadership: Leadership::default(),
            seen: None,
        }
    }

    /// The leadership that this elector updates.
    pub fn leadership(&self) -> Leadership {
        self.leadership.clone()
    }

    /// Competes for the Lease while this future is polled.
    pub async fn run(&mut self) {
        let mut led = false;
        loop {
            let next = self.turn().await;
            let leads = self.leadership.is_held();
            if leads != led {
                led = leads;
                let (lease, identity) = (&self.name, &self.identity);
                match leads {
                    true => info!(
                        lease,
                        identity, "won the Lease, so this operator reconciles objects"
                    ),
                    false => warn!(
                        lease,
                        identity, "lost the Lease, so this operator writes nothing"
                    ),
                }
            }
            // Reports the expiry of the Lease as soon as the Lease expires.
            tokio::select! {
                () = sleep(next) => {}
                () = self.leadership.lost(), if led => {}
            }
        }
    }

    /// Polls or renews the Lease once. Returns the time until the next call.
    async fn turn(&mut self) -> Duration {
        let begin = Instant::now();
        match timeout(ATTEMPT, self.attempt(begin)).await {
            Ok(Ok(true)) => {
                self.leadership.hold_until(begin + WRITE_FOR);
                return RENEW_EVERY.saturating_sub(begin.elapsed());
            }
            Ok(Ok(false)) => self.leadership.give_up(),
            // After an error, a held Lease stays valid until it expires.
            Ok(Err(error)) => warn!(%error, lease = self.name, "cannot read or renew the Lease"),
            Err(_) => warn!(
                lease = self.name,
                "the API server did not answer a request for the Lease within {} s",
                ATTEMPT.as_secs()
            ),
        }
        POLL_INTERVAL
    }

    /// Reads and writes the Lease once, beginning at `begin`. Returns whether this process holds
    /// the Lease afterwards.
    async fn attempt(&mut self, begin: Instant) -> Result<bool, kube::Error> {
        let found = self.api.get_opt(&self.name).await?;
        let mut lease = found.unwrap_or_else(|| Lease {
            metadata: ObjectMeta {
                name: Some(self.name.clone()),
                ..ObjectMeta::default()
            },
            spec: None,
        });
        let spec = lease.spec.clone().unwrap_or_default();
        let holder = spec.holder_identity.as_deref().unwrap_or_default();
        let is_ours = holder == self.identity;
        lease.spec = Some(if is_ours {
            LeaseSpec {
                renew_time: Some(self.now()),
                ..spec
            }
        } else if holder.is_empty() || self.has_expired(&lease, &spec, begin) {
            self.taken(spec)
        } else {
            return Ok(false);
        });
        match self.put(&lease).await {
            Ok(_) => Ok(true),
            // If the Lease is ours, the conflicting write may be this process's own renewal whose
            // answer was lost, or a client's change of the labels. The next poll shows the holder,
            // long before another operator may take over.
            Err(kube::Error::Api(status)) if status.code == 409 && !is_ours => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Writes the Lease. The write has the resource version of the read as its precondition, so the
    /// first of two writers wins.
    async fn put(&self, lease: &Lease) -> Result<Lease, kube::Error> {
        let params = PostParams::default();
        match lease.metadata.resource_version {
            Some(_) => self.api.replace(&self.name, &params, lease).await,
            None => self.api.create(&params, lease).await,
        }
    }

    /// Whether the Lease has expired: it has not changed for the duration that it states.
    fn has_expired(&mut self, lease: &Lease, spec: &LeaseSpec, now: Instant) -> bool {
        let version = lease.metadata.resource_version.clone();
        match &self.seen {
            Some((seen, since)) if *seen == version => {
                let seconds = spec.lease_duration_seconds.unwrap_or(LEASE_SECONDS).max(1);
                now.duration_since(*since) >= Duration::from_secs(seconds.unsigned_abs().into())
            }
            _ => {
                self.seen = Some((version, now));
                false
            }
        }
    }

    fn taken(&self, old: LeaseSpec) -> LeaseSpec {
        LeaseSpec {
            holder_identity: Some(self.identity.clone()),
            lease_duration_seconds: Some(LEASE_SECONDS),
            acquire_time: Some(self.now()),
            renew_time: Some(self.now()),
            lease_transitions: Some(old.lease_transitions.unwrap_or(0).saturating_add(1)),
            ..old
        }
    }

    /// The time for readers of the Lease. No operator depends on it.
    fn now(&self) -> MicroTime {
        MicroTime(self.clock.now().time)
    }

    /// Stops writing, and releases the Lease when no request of this process can be in progress.
    /// The API server may still process a cancelled request, so this method waits for [`SETTLE`].
    pub async fn release(self) {
        let held = self.leadership.is_held();
        self.leadership.give_up();
        if !held {
            return;
        }
        sleep(SETTLE).await;
        if let Ok(Err(error)) = timeout(ATTEMPT, self.put_down()).await {
            // The error is only logged, because the Lease expires anyway.
            warn!(%error, lease = self.name, "cannot release the Lease");
        }
    }

    async fn put_down(&self) -> Result<(), kube::Error> {
        let mut lease = self.api.get(&self.name).await?;
        let spec = lease.spec.get_or_insert_default();
        if spec.holder_identity.as_deref() != Some(&self.identity) {
            return Ok(());
        }
        spec.holder_identity = Some(String::new());
        spec.renew_time = Some(self.now());
        self.put(&lease).await?;
        info!(lease = self.name, "released the Lease");
        Ok(())
    }
}

/// Passes only GET requests while the Lease is not held.
#[derive(Clone)]
pub struct WriteGate(pub Leadership);

impl Interceptor for WriteGate {
    fn intercept<R: Send + 'static>(
        &self,
        method: &Method,
        _uri: &Uri,
        send: impl FnOnce() -> Answer<R>,
    ) -> Answer<R> {
        if method == Method::GET {
            return send();
        }
        let leadership = self.0.clone();
        if !leadership.is_held() {
            return Box::pin(async { Err(NotLeader.into()) });
        }
        let answer = send();
        Box::pin(async move {
            // Requests that wait for a connection or an answer are cancelled when the Lease is
            // lost. The Lease is checked before the request is polled, so that a process that was
            // stopped does not continue a request.
            tokio::select! {
                biased;
                () = leadership.lost() => Err(NotLeader.into()),
                answer = answer => answer,
            }
        })
    }
}

#[cfg(test)]
mod tests;
