//! Which of several operators writes: the one that holds the Lease.
//!
//! All of them watch and know the same. Only the holder reconciles, and [`WriteGate`], a layer of the
//! client, lets no request but a GET pass unless the Lease is held at that very moment. The moment is
//! judged by the monotonic clock of this machine, never by a time that another wrote: a process that was
//! stopped past its Lease writes nothing after it goes on. That clock (CLOCK_MONOTONIC) stands still while the whole
//! machine is suspended: a process that wakes with it may write for what was left of its ten seconds, until its next
//! renewal finds another's name. Nodes of clusters are not suspended; where they are, two may write for those seconds.
//!
//! The times: a holder renews every [`RENEW_EVERY`] and may write for [`WRITE_FOR`] since it began its
//! last good renewal; others take over once they saw nothing new for [`LEASE_SECONDS`]. So there is a gap of
//! five seconds in which nobody writes, for what the API server still works on. A Lease is written with
//! its resource version as a precondition, so of two that take over at once one fails. Who loses it goes on
//! as a follower: its watches go on, and after an outage of the API server nobody has to start again.
//!
//! kube-lease-manager 0.13 was not taken: it patches without a precondition, so that two may believe to
//! hold an expired Lease until their next poll, and compares times that different machines wrote.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::stream::{self, BoxStream, StreamExt};
use http::{Method, Request, Response};
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::Timestamp;
use kube::api::PostParams;
use kube::core::ObjectMeta;
use kube::runtime::controller::Action;
use kube::runtime::reflector::{ObjectRef, Store};
use kube::{Api, Client, Resource};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tower::{BoxError, Layer, Service};
use tracing::{info, warn};

use crate::failure::NotLeader;

/// How long a Lease that nobody renews is somebody's.
pub const LEASE_SECONDS: i32 = 15;
/// How long after the beginning of its last good renewal its holder may write.
const WRITE_FOR: Duration = Duration::from_secs(10);
/// Between two renewals.
const RENEW_EVERY: Duration = Duration::from_secs(5);
/// Between two polls of a follower, and two attempts to renew.
const POLL_INTERVAL: Duration = Duration::from_millis(1500);
/// What was sent and not answered has this long to be done with before the Lease is put down.
const SETTLE: Duration = Duration::from_secs(2);
/// Time for one poll or renewal.
const ATTEMPT: Duration = Duration::from_secs(4);

/// Whether this process may write.
#[derive(Debug, Clone)]
pub struct Leadership(Arc<watch::Sender<Term>>);

#[derive(Debug, Clone, Copy, Default)]
struct Term {
    /// Counts the times that leadership was won.
    number: u64,
    /// `None`: not a leader.
    until: Option<Instant>,
}

impl Default for Leadership {
    fn default() -> Self {
        Self(Arc::new(watch::Sender::new(Term::default())))
    }
}

impl Leadership {
    /// Whether the Lease is held now.
    #[must_use]
    pub fn is_held(&self) -> bool {
        let until = self.0.borrow().until;
        until.is_some_and(|until| Instant::now() < until)
    }

    /// An item each time that the Lease is won, and one where it is held already.
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

    /// All that `store` knows, each time that the Lease is won: what changed while another led was not reconciled here.
    pub(crate) fn requeues<K>(&self, store: &Store<K>) -> BoxStream<'static, ObjectRef<K>>
    where
        K: Resource<DynamicType = ()> + Clone + Send + Sync + 'static,
    {
        let store = store.clone();
        let all = move |()| {
            let known = store.state();
            let references = known
                .iter()
                .map(|object| ObjectRef::from_obj(object.as_ref()));
            stream::iter(references.collect::<Vec<_>>())
        };
        self.won().flat_map(all).boxed()
    }

    /// One reconciliation of an object, where the Lease is held; none otherwise, for [`Leadership::requeues`] brings it again.
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

    /// Ends once the Lease is no longer held.
    async fn lost(&self) {
        let mut terms = self.0.subscribe();
        loop {
            let until = terms.borrow_and_update().until;
            match until {
                Some(until) if Instant::now() < until => tokio::select! {
                    biased;
                    () = sleep_until(until) => {}
                    _renewed_or_given_up = terms.changed() => {}
                },
                _ => return,
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

    /// Nothing is written from now on.
    pub fn give_up(&self) {
        self.0.send_modify(|term| term.until = None);
    }

    /// One that is never lost, for those who have no rival.
    #[cfg(test)]
    pub(crate) fn always() -> Self {
        let leadership = Self::default();
        leadership.hold_until(Instant::now() + Duration::from_hours(1000));
        leadership
    }
}

/// Competes for the Lease.
pub struct Elector {
    api: Api<Lease>,
    name: String,
    identity: String,
    leadership: Leadership,
    /// The version of the Lease that was seen last, and since when.
    seen: Option<(Option<String>, Instant)>,
}

impl Elector {
    /// For the Lease `name` in `namespace`. `client` must not have a [`WriteGate`].
    #[must_use]
    pub fn new(client: Client, namespace: &str, name: String, identity: String) -> Self {
        Self {
            api: Api::namespaced(client, namespace),
            name,
            identity,
            leadership: Leadership::default(),
            seen: None,
        }
    }

    /// What is competed for.
    #[must_use]
    pub fn leadership(&self) -> Leadership {
        self.leadership.clone()
    }

    /// Competes for as long as it is polled.
    pub async fn run(&mut self) {
        let mut led = false;
        loop {
            let next = self.turn().await;
            let leads = self.leadership.is_held();
            if leads != led {
                led = leads;
                if leads {
                    info!(lease = self.name, identity = self.identity, "leading");
                } else {
                    warn!(
                        lease = self.name,
                        identity = self.identity,
                        "not leading any more"
                    );
                }
            }
            // A lease that lapses meanwhile is said to at its moment.
            tokio::select! {
                () = sleep(next) => {}
                () = self.leadership.lost(), if led => {}
            }
        }
    }

    /// One poll or renewal: how long to wait for the next.
    async fn turn(&mut self) -> Duration {
        let begin = Instant::now();
        match timeout(ATTEMPT, self.attempt(begin)).await {
            Ok(Ok(true)) => {
                self.leadership.hold_until(begin + WRITE_FOR);
                return RENEW_EVERY.saturating_sub(begin.elapsed());
            }
            Ok(Ok(false)) => self.leadership.give_up(),
            // What is held stays so until its time is over.
            Ok(Err(error)) => warn!(%error, lease = self.name, "cannot read or renew the Lease"),
            Err(_) => warn!(lease = self.name, "no answer about the Lease in time"),
        }
        POLL_INTERVAL
    }

    /// Whether the Lease is ours since `begin`.
    async fn attempt(&mut self, begin: Instant) -> Result<bool, kube::Error> {
        let Some(lease) = self.api.get_opt(&self.name).await? else {
            let lease = Lease {
                metadata: ObjectMeta {
                    name: Some(self.name.clone()),
                    ..ObjectMeta::default()
                },
                spec: Some(self.taken(&LeaseSpec::default())),
            };
            return won(self.api.create(&PostParams::default(), &lease).await);
        };
        let spec = lease.spec.clone().unwrap_or_default();
        let holder = spec.holder_identity.as_deref().unwrap_or_default();
        let is_ours = holder == self.identity;
        let spec = if is_ours {
            LeaseSpec {
                renew_time: Some(now()),
                ..spec
            }
        } else if holder.is_empty() || self.has_expired(&lease, &spec, begin) {
            self.taken(&spec)
        } else {
            return Ok(false);
        };
        let lease = Lease {
            spec: Some(spec),
            ..lease
        };
        // With the resource version that was read: the faster writer wins.
        let answer = self
            .api
            .replace(&self.name, &PostParams::default(), &lease)
            .await;
        if is_ours {
            // The faster writer may have been this holder's own renewal, whose answer was lost, or a client that labelled the
            // Lease. The next poll tells who holds it, long before another may.
            return answer.map(|_| true);
        }
        won(answer)
    }

    /// Whether nothing was written to it for its own length.
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

    fn taken(&self, old: &LeaseSpec) -> LeaseSpec {
        LeaseSpec {
            holder_identity: Some(self.identity.clone()),
            lease_duration_seconds: Some(LEASE_SECONDS),
            acquire_time: Some(now()),
            renew_time: Some(now()),
            lease_transitions: Some(old.lease_transitions.unwrap_or(0).saturating_add(1)),
            ..old.clone()
        }
    }

    /// Stops writing, and lets another take over as soon as nothing of this process is under way any more: a request
    /// that was cut off may still be worked on by the API server, for which it waits [`SETTLE`].
    pub async fn release(self) {
        let held = self.leadership.is_held();
        self.leadership.give_up();
        if !held {
            return;
        }
        sleep(SETTLE).await;
        if let Ok(Err(error)) = timeout(ATTEMPT, self.put_down()).await {
            // It expires by itself.
            warn!(%error, lease = self.name, "cannot put the Lease down");
        }
    }

    async fn put_down(&self) -> Result<(), kube::Error> {
        let mut lease = self.api.get(&self.name).await?;
        let spec = lease.spec.get_or_insert_default();
        if spec.holder_identity.as_deref() != Some(&self.identity) {
            return Ok(());
        }
        spec.holder_identity = Some(String::new());
        spec.renew_time = Some(now());
        self.api
            .replace(&self.name, &PostParams::default(), &lease)
            .await?;
        info!(lease = self.name, "put the Lease down");
        Ok(())
    }
}

fn won(answer: Result<Lease, kube::Error>) -> Result<bool, kube::Error> {
    match answer {
        Ok(_) => Ok(true),
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(false),
        Err(error) => Err(error),
    }
}

fn now() -> MicroTime {
    MicroTime(Timestamp::now())
}

/// Layer of the client that lets nothing but GETs pass while the Lease is not held.
#[derive(Clone)]
pub struct WriteGate(pub Leadership);

impl<S> Layer<S> for WriteGate {
    type Service = GatedService<S>;

    fn layer(&self, inner: S) -> Self::Service {
        GatedService {
            inner,
            leadership: self.0.clone(),
        }
    }
}

/// See [`WriteGate`].
#[derive(Clone)]
pub struct GatedService<S> {
    inner: S,
    leadership: Leadership,
}

impl<S, B, R> Service<Request<B>> for GatedService<S>
where
    S: Service<Request<B>, Response = Response<R>>,
    S::Future: Send + 'static,
    S::Error: Into<BoxError>,
    R: Send + 'static,
{
    type Response = S::Response;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<S::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(context).map_err(Into::into)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        if request.method() == Method::GET {
            let answer = self.inner.call(request);
            return Box::pin(async move { answer.await.map_err(Into::into) });
        }
        let leadership = self.leadership.clone();
        if !leadership.is_held() {
            return Box::pin(async { Err(NotLeader.into()) });
        }
        let answer = self.inner.call(request);
        Box::pin(async move {
            // Also what waits for a connection, or for its answer, ends with the Lease. It is asked
            // first, so that a process that was stopped does not go on where it was.
            tokio::select! {
                biased;
                () = leadership.lost() => Err(NotLeader.into()),
                answer = answer => answer.map_err(Into::into),
            }
        })
    }
}

#[cfg(test)]
mod tests;
