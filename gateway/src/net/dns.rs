//! Resolves names as the system's resolver does, but without a thread for each look-up.
//!
//! A look-up reads hosts(5) and resolv.conf(5), whose changes apply to the next look-up, and asks the
//! name servers for both families at once. Look-ups of one question share one query, and the answers
//! are kept as long as they are valid. A thread of its own drives the sockets of all queries, so a
//! query that waits for its answer delays no other query.
//!
//! The number of concurrent queries for peers is bounded. A peer gets a further query only if its
//! queries are fewer than the queries that are left. A single peer gets half of the queries, the
//! next peer half of the rest, and so on. A query ends when no look-up waits for it. Each look-up of
//! a peer belongs to an unanswered open, so the session's stream table bounds their number, and the
//! dial timeout bounds their time.

mod cache;
mod order;
mod query;
mod system;

use std::collections::BTreeMap;
use std::future::pending;
use std::io::{Error, ErrorKind, Result};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::pin::{Pin, pin};
use std::sync::{Arc, LazyLock, OnceLock};
use std::time::{Duration, Instant};

use futures::FutureExt;
use futures::future::{BoxFuture, Either, WeakShared, select};
use parking_lot::Mutex;
use tokio::runtime::{Builder, Handle};
use tokio::sync::Notify;
use tokio::task::JoinHandle;

use cache::{Addresses, Cache, Shared};
use query::{Family, Fault, Question};
use system::{Files, System, key, numeric};

use crate::base::open_files::OpenFiles;

/// Maximum number of concurrent queries of the process for peers, or fewer if the limit of open
/// files is low. Each query has one socket, which streams cannot use.
const QUERIES_MAX: usize = 256;
/// After the addresses of one family, the time to wait for the other family (RFC 8305, section 3,
/// "Resolution Delay").
const FAMILY_DELAY: Duration = Duration::from_millis(50);
const PORT: u16 = 53;

/// The files of the system's resolver: resolv.conf(5) and hosts(5).
pub(crate) const RESOLVER_FILES: [&str; 2] = ["/etc/resolv.conf", "/etc/hosts"];

static RESOLVER: LazyLock<Arc<Resolver>> = LazyLock::new(|| {
    let [resolv_conf, hosts] = RESOLVER_FILES.map(PathBuf::from);
    let files = Files { resolv_conf, hosts };
    let queries_max = OpenFiles::of_process().for_queries(QUERIES_MAX);
    Resolver::new(files, PORT, queries_max)
});

/// For whom a name is resolved.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Asker {
    /// This gateway, for a name in its configuration. Its look-ups need no share, and use no answer
    /// that is kept, because an exit may have moved.
    Gateway,
    /// A peer, by the identity that it proved. Peers without an identity share one share.
    Peer(Option<Arc<str>>),
}

impl Asker {
    pub(crate) fn peer(identity: Option<&str>) -> Self {
        Self::Peer(identity.map(Into::into))
    }
}

/// The addresses of a name.
pub(crate) struct Found {
    /// The addresses that are known, in the order of RFC 6724.
    pub(crate) addresses: Vec<SocketAddr>,
    /// The addresses of the other family, if its servers have not answered yet.
    pub(crate) late: Late,
}

/// Addresses that arrive later.
pub(crate) type Late = Pin<Box<dyn Future<Output = Vec<SocketAddr>>>>;

impl From<Vec<SocketAddr>> for Found {
    fn from(addresses: Vec<SocketAddr>) -> Self {
        Self {
            addresses,
            late: Box::pin(std::future::ready(Vec::new())),
        }
    }
}

/// Resolves `host`.
///
/// # Errors
/// The name has no address, or the name servers do not answer.
pub(crate) async fn resolve(asker: Asker, host: &str, port: u16) -> Result<Found> {
    RESOLVER.resolve(asker, host, port).await
}

/// Forgets the addresses of `host`, because they do not answer.
pub(crate) fn forget(host: &str) {
    RESOLVER.forget(host);
}

#[derive(Debug)]
struct Resolver {
    files: Files,
    /// The port of name servers.
    port: u16,
    queries_max: usize,
    state: Mutex<State>,
    /// Notified when a query begins or ends.
    changed: Notify,
}

#[derive(Debug)]
struct State {
    system: Arc<System>,
    cache: Cache,
    /// The queries that wait for an answer, each with its number.
    queries: BTreeMap<Question, (u64, WeakShared<Query>)>,
    begun: u64,
    /// The number of queries of each peer.
    by_peer: BTreeMap<Asker, usize>,
}

type Query = BoxFuture<'static, Shared>;

/// How a look-up gets an answer.
enum Begun {
    Known(Shared),
    Asked(futures::future::Shared<Query>),
    Full,
}

impl Resolver {
    fn new(files: Files, port: u16, queries_max: usize) -> Arc<Self> {
        let state = State {
            system: Arc::new(files.read(port)),
            cache: Cache::default(),
            queries: BTreeMap::new(),
            begun: 0,
            by_peer: BTreeMap::new(),
        };
        Arc::new(Self {
            files,
            port,
            queries_max,
            state: Mutex::new(state),
            changed: Notify::new(),
        })
    }

    async fn resolve(self: &Arc<Self>, asker: Asker, host: &str, port: u16) -> Result<Found> {
        if let Some(address) = numeric(host, port)? {
            return Ok(vec![address].into());
        }
        let system = self.system();
        let at = |ip: &IpAddr| SocketAddr::new(*ip, port);
        if let Some(addresses) = system.in_hosts(host) {
            return Ok(sorted(addresses.iter().map(at).collect()).into());
        }
        if is_localhost(host) {
            let loopback = [Ipv6Addr::LOCALHOST.into(), Ipv4Addr::LOCALHOST.into()];
            return Ok(loopback.iter().map(at).collect::<Vec<_>>().into());
        }
        let mut fault = Fault::NoName;
        for name in system.candidates(host) {
            match self.families(&asker, &system, &name, port).await {
                Ok(found) => return Ok(found),
                Err(silent @ Fault::Silent(_)) => {
                    fault = silent;
                    break;
                }
                Err(other) => fault = worse(fault, other),
            }
        }
        Err(match fault {
            Fault::NoName => Error::new(ErrorKind::NotFound, "the name does not exist"),
            Fault::NoAddress => Error::new(ErrorKind::NotFound, "the name has no address"),
            Fault::Failed(text) => Error::other(text),
            Fault::Silent(text) => Error::new(ErrorKind::TimedOut, text),
        })
    }

    /// The addresses of an absolute name in both families.
    async fn families(
        self: &Arc<Self>,
        asker: &Asker,
        system: &Arc<System>,
        name: &str,
        port: u16,
    ) -> std::result::Result<Found, Fault> {
        let found = |family| {
            let question = Question {
                name: name.to_owned(),
                family,
            };
            let (resolver, asker) = (Arc::clone(self), asker.clone());
            let system = Arc::clone(system);
            async move {
                let addresses = resolver.find(&asker, &system, question).await?;
                let addresses = addresses.give().into_iter();
                let addresses = addresses.map(|ip| SocketAddr::new(ip, port));
                Ok::<Vec<_>, Fault>(addresses.collect())
            }
            .boxed_local()
        };
        let v4 = found(Family::V4);
        if !system.asks_ipv6 {
            return v4.await.map(|addresses| sorted(addresses).into());
        }
        let (first, mut other) = match select(found(Family::V6), v4).await {
            Either::Left((first, other)) | Either::Right((first, other)) => (first, other),
        };
        let mut addresses = match first {
            Ok(addresses) => addresses,
            Err(fault) => {
                let other = other.await.map_err(|other| worse(fault, other))?;
                return Ok(sorted(other).into());
            }
        };
        match tokio::time::timeout(FAMILY_DELAY, &mut other).await {
            Ok(other) => {
                addresses.extend(other.unwrap_or_default());
                Ok(sorted(addresses).into())
            }
            Err(_) => Ok(Found {
                addresses: sorted(addresses),
                late: Box::pin(other.map(|late| sorted(late.unwrap_or_default()))),
            }),
        }
    }

    /// Returns the answer to a question: a known answer, or the answer of a query that is shared
    /// with other look-ups.
    async fn find(
        self: &Arc<Self>,
        asker: &Asker,
        system: &Arc<System>,
        question: Question,
    ) -> Shared {
        loop {
            let mut changed = pin!(self.changed.notified());
            changed.as_mut().enable();
            match self.begin(asker, system, &question) {
                Begun::Known(answer) => return answer,
                Begun::Asked(query) => return query.await,
                Begun::Full => changed.await,
            }
        }
    }

    fn begin(self: &Arc<Self>, asker: &Asker, system: &Arc<System>, question: &Question) -> Begun {
        let mut state = self.state.lock();
        let known = state.cache.get(question, Instant::now());
        if let Some(answer) = known.filter(|_| *asker != Asker::Gateway) {
            return Begun::Known(answer);
        }
        let query = state.queries.get(question);
        if let Some(query) = query.and_then(|(_, query)| query.upgrade()) {
            return Begun::Asked(query);
        }
        let Some(runtime) = runtime() else {
            let text = "cannot start the thread for queries to name servers".to_owned();
            return Begun::Known(Err(Fault::Failed(text)));
        };
        if !state.take(asker, self.queries_max) {
            return Begun::Full;
        }
        state.begun += 1;
        let number = state.begun;
        let place = Place {
            resolver: Arc::clone(self),
            number,
            asker: asker.clone(),
            question: question.clone(),
        };
        let asked = {
            let (system, question) = (Arc::clone(system), question.clone());
            let ask = async move { query::ask(&system, &question).await };
            Task(runtime.spawn(ask))
        };
        let system = Arc::clone(system);
        let query = async move {
            let answer = asked.await;
            place.resolver.answered(&system, &place.question, answer)
        };
        let query = query.boxed().shared();
        let weak = query.downgrade().map(|weak| (number, weak));
        state
            .queries
            .extend(weak.map(|weak| (question.clone(), weak)));
        drop(state);
        self.changed.notify_waiters();
        Begun::Asked(query)
    }

    fn answered(&self, system: &System, question: &Question, answer: query::Answer) -> Shared {
        let mut state = self.state.lock();
        match state.system.asks_as(system) {
            true => state.cache.put(question.clone(), answer, Instant::now()),
            // The configuration has changed, so other servers count now.
            false => answer.addresses.map(Addresses::new).map(Arc::new),
        }
    }

    /// The configuration of the system's resolver, which is read again if its files have changed.
    fn system(&self) -> Arc<System> {
        let before = Arc::clone(&self.state.lock().system);
        if before.is_current(&self.files) {
            return before;
        }
        let now = Arc::new(self.files.read(self.port));
        let mut state = self.state.lock();
        if !state.system.asks_as(&now) {
            state.cache = Cache::default();
            state.queries.clear();
        }
        state.system = Arc::clone(&now);
        now
    }

    fn forget(&self, host: &str) {
        let mut state = self.state.lock();
        let system = Arc::clone(&state.system);
        for name in system.candidates(host) {
            state.cache.forget(&name);
        }
    }
}

impl State {
    /// Counts a query if the peer has fewer queries than are left.
    fn take(&mut self, asker: &Asker, max: usize) -> bool {
        if *asker == Asker::Gateway {
            return true;
        }
        let left = max - self.by_peer.values().sum::<usize>();
        let own = self.by_peer.get(asker).copied().unwrap_or_default();
        let takes = own < left;
        if takes {
            self.by_peer.insert(asker.clone(), own + 1);
        }
        takes
    }
}

/// A query that is counted. Dropping the value ends the count.
#[derive(Debug)]
struct Place {
    resolver: Arc<Resolver>,
    number: u64,
    asker: Asker,
    question: Question,
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut state = self.resolver.state.lock();
        if let Some(count) = state.by_peer.get_mut(&self.asker) {
            *count -= 1;
            if *count == 0 {
                state.by_peer.remove(&self.asker);
            }
        }
        // Another query may have replaced this one.
        let query = state.queries.get(&self.question);
        if query.is_some_and(|(number, _)| *number == self.number) {
            state.queries.remove(&self.question);
        }
        drop(state);
        self.resolver.changed.notify_waiters();
    }
}

/// A query on the thread for queries. Dropping the value ends the query.
struct Task(JoinHandle<query::Answer>);

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Future for Task {
    type Output = query::Answer;

    fn poll(
        mut self: Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Self::Output> {
        self.0.poll_unpin(context).map(|asked| {
            asked.unwrap_or_else(|error| Fault::Failed(format!("the query ended: {error}")).into())
        })
    }
}

/// The thread that drives the sockets of queries; `None`: the system allows no further thread.
fn runtime() -> Option<&'static Handle> {
    static RUNTIME: OnceLock<Option<Handle>> = OnceLock::new();
    let start = || {
        let runtime = Builder::new_current_thread().enable_all().build().ok()?;
        let handle = runtime.handle().clone();
        let thread = std::thread::Builder::new().name("dns".to_owned());
        let run = move || runtime.block_on(pending::<()>());
        thread.spawn(run).ok()?;
        Some(handle)
    };
    RUNTIME.get_or_init(start).as_ref()
}

fn sorted(mut addresses: Vec<SocketAddr>) -> Vec<SocketAddr> {
    order::sort(&mut addresses);
    addresses
}

/// The more telling of two faults.
fn worse(one: Fault, other: Fault) -> Fault {
    let rank = |fault: &Fault| match fault {
        Fault::NoName => 0,
        Fault::NoAddress => 1,
        Fault::Failed(_) => 2,
        Fault::Silent(_) => 3,
    };
    match rank(&other) > rank(&one) {
        true => other,
        false => one,
    }
}

/// Whether the name means this host (RFC 6761, section 6.3).
fn is_localhost(host: &str) -> bool {
    let name = key(host);
    name == "localhost" || name.ends_with(".localhost")
}

#[cfg(test)]
mod tests;
