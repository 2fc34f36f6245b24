//! The gateway's state, which the workers' threads share with the admin thread.
//!
//! On the data path, the workers write relaxed atomics. Elsewhere they hold mutexes for a short
//! time. The admin thread reads. The size is bounded by the number of carriers, forwards and
//! workers.

mod carriers;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Instant;

use muxtunnel_gateway_config::{Config, GatewayKey, Protocol, Role, status};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Notify;

use crate::base::carrier_history::Gateway;
use crate::base::counters::{
    Counter, CreditCounters, ResumeCounters, SpliceCounters, StreamCounters,
};
use crate::base::file_states::FileStates;
use crate::base::forward::{Forward, Forwards};
use crate::base::handshake_limiter::{Figures, HandshakeLimiter};
use crate::base::in_force::InForce;
use crate::base::packets::PacketStats;
use crate::base::path::PathProbe;
use crate::base::peers::Peers;
use crate::base::shown::Shown;
use crate::base::{open_files, sys, sysctls};
use carriers::Carriers;
pub(crate) use carriers::{CarrierStats, PeerFigures};

/// Maximum number of refusals that are logged in one second.
const REFUSALS_LOGGED: u32 = 5;

/// The data of `/status`, `/metrics` and `/readyz`.
#[derive(Debug)]
pub(crate) struct Telemetry {
    started: Instant,
    role: Role,
    protocol: Protocol,
    /// Receive budget of a session, in bytes.
    budget: u64,
    in_force: Mutex<InForce>,
    carriers: Mutex<Carriers>,
    next_carrier: AtomicU64,
    /// The state of each worker.
    workers: Vec<WorkerState>,
    pub(crate) streams: StreamCounters,
    pub(crate) credit: CreditCounters,
    pub(crate) splices: SpliceCounters,
    pub(crate) resumes: ResumeCounters,
    /// Counters of the IP packets of all sessions.
    pub(crate) packets: Arc<PacketStats>,
    /// Whether a network is configured, so that the gateway may carry packets.
    has_network: bool,
    /// The state of a rendezvous; `None` in other roles.
    rendezvous: Option<Arc<dyn RendezvousStatus>>,
    /// Limiters of connections that have not authenticated: one for carriers or a rendezvous, and
    /// one for each worker's clients.
    limiters: Mutex<Vec<Arc<HandshakeLimiter>>>,
    /// What new carriers present to their peers, and the keys of the peers.
    shown: Mutex<Shown>,
    /// Why the newest credentials are not in force.
    credentials_error: Mutex<Option<String>>,
    /// The forwards that workers share.
    pub(crate) forwards: Forwards,
    /// The peers that an exit lists, and unknown keys.
    pub(crate) peers: Peers,
    /// The state of each followed file.
    pub(crate) files: FileStates,
    /// The current second since the start, and the number of refusals that were logged in this
    /// second.
    refusals_logged: Mutex<(u64, u32)>,
    draining: AtomicBool,
    /// Notified by each arrival during the shutdown.
    arrivals: Notify,
    /// Carriers that have ended, except retired carriers.
    pub(crate) carriers_lost: Counter,
    /// Carriers that were retired, because fewer were needed or others replaced them.
    pub(crate) carriers_retired: Counter,
    /// Opens that another session retries: the peer was shutting down and did not accept the open,
    /// or the first session ended before it sent the open.
    pub(crate) opens_retried: Counter,
    /// Sessions that an internal error ended.
    pub(crate) session_panics: Counter,
}

pub(crate) trait RendezvousStatus: std::fmt::Debug + Send + Sync {
    fn status(&self) -> status::Rendezvous;
}

/// The state that one worker reports.
#[derive(Debug, Default)]
struct WorkerState {
    listening: AtomicBool,
    linked: AtomicBool,
    /// Why the last dial of a carrier failed.
    carrier_error: Mutex<Option<String>>,
    listened: Mutex<Vec<Listened>>,
    /// The names of the exits that get the worker's new streams.
    active: Mutex<Vec<String>>,
}

/// A forward of the configuration in force.
#[derive(Debug)]
pub(crate) struct Listened {
    pub(crate) forward: Arc<Forward>,
    pub(crate) listen: String,
    pub(crate) target: String,
    /// Whether the target is fixed. Otherwise clients name the target.
    pub(crate) has_fixed_target: bool,
    /// Why the gateway does not listen for the forward.
    pub(crate) error: Option<String>,
}

impl Listened {
    fn status(&self) -> status::Forward {
        status::Forward {
            name: self.forward.name.clone(),
            listen: self.listen.clone(),
            target: self.target.clone(),
            streams: self.forward.streams.status(),
            dials: self
                .has_fixed_target
                .then(|| self.forward.dials.dials(Instant::now())),
            error: self.error.clone(),
        }
    }
}

impl Telemetry {
    /// `text` is the content of the configuration file. Its hash identifies the version in force.
    pub(crate) fn new(
        config: &Config,
        text: &str,
        workers: usize,
        rendezvous: Option<Arc<dyn RendezvousStatus>>,
    ) -> Arc<Self> {
        let peers = Peers::of(config);
        Arc::new(Self {
            started: Instant::now(),
            role: config.role,
            protocol: config.protocol,
            budget: config.memory.receive.0,
            in_force: Mutex::new(InForce::new(text, &config.trusted())),
            carriers: Mutex::default(),
            next_carrier: AtomicU64::new(0),
            workers: (0..workers).map(|_| WorkerState::default()).collect(),
            streams: StreamCounters::default(),
            credit: CreditCounters::default(),
            splices: SpliceCounters::default(),
            resumes: ResumeCounters::default(),
            packets: Arc::default(),
            has_network: config.network.is_some(),
            limiters: Mutex::default(),
            rendezvous,
            shown: Mutex::default(),
            credentials_error: Mutex::default(),
            forwards: Forwards::default(),
            peers,
            files: FileStates::default(),
            refusals_logged: Mutex::default(),
            draining: AtomicBool::new(false),
            arrivals: Notify::new(),
            carriers_lost: Counter::default(),
            carriers_retired: Counter::default(),
            opens_retried: Counter::default(),
            session_panics: Counter::default(),
        })
    }

    /// Sets what new carriers present to their peers, and the keys of the peers.
    pub(crate) fn set_shown(&self, shown: Shown) {
        *self.shown.lock() = shown;
    }

    /// Sets why the newest credentials are not in force. Returns whether the reason has changed.
    pub(crate) fn set_credentials_error(&self, error: Option<String>) -> bool {
        let mut now = self.credentials_error.lock();
        std::mem::replace(&mut *now, error.clone()) != error
    }

    /// Adds a limiter of connections that have not authenticated.
    pub(crate) fn add_limiter(&self, limiter: &Arc<HandshakeLimiter>) {
        self.limiters.lock().push(Arc::clone(limiter));
    }

    /// The sum of all limiters' figures.
    pub(crate) fn handshakes(&self) -> Figures {
        let limiters = self.limiters.lock();
        let figures = limiters.iter().map(|limiter| limiter.figures());
        figures.fold(Figures::default(), Figures::and)
    }

    /// Creates the counters of a new carrier. The status and the metrics include the carrier after
    /// [`Self::add_carrier`]. `identity` is the identity that the peer proved, and `presented` the
    /// public key that this side presented to the peer. `path` queries the carrier's path; `None`:
    /// the path is unknown.
    pub(crate) fn carrier(
        &self,
        (peer, identity, presented): (String, Option<String>, Option<GatewayKey>),
        transport: status::CarrierTransport,
        path: Option<Box<dyn PathProbe>>,
    ) -> Arc<CarrierStats> {
        let id = self.next_carrier.fetch_add(1, Relaxed);
        Arc::new(CarrierStats::new(
            id,
            (peer, identity, presented),
            transport,
            path,
        ))
    }

    /// Records that the carrier is up, so that streams can be opened.
    pub(crate) fn add_carrier(&self, stats: &Arc<CarrierStats>) {
        self.carriers.lock().add(stats);
    }

    /// Records that the carrier has ended. `retired`: whether the carrier was retired, because
    /// fewer carriers were needed or another carrier replaced it.
    pub(crate) fn remove_carrier(&self, stats: &CarrierStats, retired: bool) {
        self.carriers.lock().remove(stats);
        match retired {
            true => self.carriers_retired.add(1),
            false => self.carriers_lost.add(1),
        }
    }

    /// Whether one more refusal may be logged: at most [`REFUSALS_LOGGED`] per second, so that a
    /// flood is counted but does not fill the disk.
    pub(crate) fn may_log_refusal(&self) -> bool {
        let second = self.started.elapsed().as_secs();
        let mut logged = self.refusals_logged.lock();
        if logged.0 != second {
            *logged = (second, 0);
        }
        logged.1 += 1;
        logged.1 <= REFUSALS_LOGGED
    }

    pub(crate) fn set_listening(&self, worker: usize, listening: bool) {
        self.workers[worker].listening.store(listening, Relaxed);
    }

    /// Sets whether connections to this worker of an entry have a carrier, or can wait for a
    /// carrier.
    pub(crate) fn set_linked(&self, worker: usize, linked: bool) {
        self.workers[worker].linked.store(linked, Relaxed);
    }

    /// Sets the names of the exits that get the new streams of a worker.
    pub(crate) fn set_active(&self, worker: usize, exits: Vec<String>) {
        if let Some(worker) = self.workers.get(worker) {
            *worker.active.lock() = exits;
        }
    }

    /// The names of the exits that get new streams.
    fn active(&self) -> Vec<String> {
        let workers = self.workers.iter();
        let active: BTreeSet<String> = workers
            .flat_map(|worker| worker.active.lock().clone())
            .collect();
        active.into_iter().collect()
    }

    /// Sets why the last dial of this worker's carriers failed. The status reports the error while
    /// the worker is not linked.
    pub(crate) fn set_carrier_error(&self, worker: usize, error: String) {
        *self.workers[worker].carrier_error.lock() = Some(error);
    }

    pub(crate) fn set_draining(&self) {
        self.draining.store(true, Relaxed);
    }

    /// Notes that a client has connected to an entry. At an exit, entries have to learn of the shutdown
    /// in time, so carriers do not count.
    pub(crate) fn arrived(&self) {
        if self.draining.load(Relaxed) {
            self.arrivals.notify_one();
        }
    }

    /// Waits for an arrival since the last call. Only one task may wait.
    pub(crate) async fn arrival(&self) {
        self.arrivals.notified().await;
    }

    pub(crate) fn set_listened(&self, worker: usize, listened: Vec<Listened>) {
        *self.workers[worker].listened.lock() = listened;
    }

    /// Sets why not every exit listens for a reverse forward of this worker. `None`: every exit
    /// listens.
    pub(crate) fn set_listen_error(&self, worker: usize, forward: &str, error: Option<String>) {
        let mut listened = self.workers[worker].listened.lock();
        let listened = listened.iter_mut().find(|l| l.forward.name == forward);
        if let Some(listened) = listened {
            listened.error = error;
        }
    }

    /// Returns each forward once, merged over the workers. An error of any worker is reported.
    fn forwards(&self) -> Vec<status::Forward> {
        let mut merged: Vec<status::Forward> = Vec::new();
        for worker in &self.workers {
            for listened in &*worker.listened.lock() {
                let name = &listened.forward.name;
                match merged.iter_mut().find(|forward| forward.name == *name) {
                    Some(forward) if forward.error.is_none() => {
                        forward.error.clone_from(&listened.error);
                    }
                    Some(_) => {}
                    None => merged.push(listened.status()),
                }
            }
        }
        merged
    }

    /// Counts the carriers of each peer, and finds the key on the newest carrier.
    fn count_carriers(&self, peers: &mut [status::Peer]) {
        let carriers = self.carriers.lock();
        for peer in peers {
            let unnamed = peer.public_keys.first().or(peer.certificate_names.first());
            let identity = peer.name.as_ref().or(unnamed);
            let proved = carriers
                .present()
                .filter(|carrier| carrier.identity.as_ref() == identity);
            let proved: Vec<_> = proved.collect();
            peer.carriers = u32::try_from(proved.len()).unwrap_or(u32::MAX);
            // The numbers of carriers ascend in time.
            let newest = proved.last().and_then(|newest| newest.presented);
            peer.presented_key = newest.map(|key| key.to_string());
        }
    }

    /// Changes what is known of the configuration file.
    pub(crate) fn in_force(&self) -> MutexGuard<'_, InForce> {
        self.in_force.lock()
    }

    /// Whether every worker listens, every worker of an entry is linked ([`Self::set_linked`]), and
    /// the gateway is not draining. A worker that is not linked would reset its share of the
    /// connections.
    pub(crate) fn ready(&self) -> bool {
        let carrier_needed = self.role == Role::Entry;
        let ready = |worker: &WorkerState| {
            worker.listening.load(Relaxed) && (!carrier_needed || worker.linked.load(Relaxed))
        };
        !self.draining.load(Relaxed) && self.workers.iter().all(ready)
    }

    fn carriers(&self) -> Vec<Arc<CarrierStats>> {
        self.carriers.lock().present().cloned().collect()
    }

    /// The figures of the carriers of each peer, by the identity that the peer proved.
    pub(crate) fn peers(&self) -> BTreeMap<String, PeerFigures> {
        self.carriers.lock().peers()
    }

    /// Samples every carrier at `now`. `cpu` is the fraction of the time since the last sample in
    /// which the busiest worker ran or was ready to run.
    pub(crate) fn sample_carriers(&self, now: Instant, cpu: Option<f64>) {
        let gateway = Gateway {
            protocol: self.protocol,
            budget: self.budget,
            cpu,
        };
        for carrier in self.carriers() {
            carrier.sample(&gateway, now);
        }
    }

    pub(crate) fn status(&self) -> status::Status {
        let carriers: Vec<_> = self.carriers().iter().map(|c| c.status()).collect();
        let busiest = carriers
            .iter()
            .max_by_key(|c| c.sent_bytes_per_second + c.received_bytes_per_second);
        let usage = sys::usage();
        let in_force = self.in_force.lock();
        let credentials_error = || self.credentials_error.lock().clone();
        let config_error = in_force.error().cloned().or_else(credentials_error);
        let config_hash = in_force.hash().to_owned();
        drop(in_force);
        let mut shown = self.shown.lock().clone();
        self.count_carriers(&mut shown.peers);
        status::Status {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            role: self.role,
            protocol: self.protocol,
            config_hash,
            config_error,
            certificate: shown.certificate,
            public_keys: shown.public_keys,
            peers: shown.peers,
            unknown_keys: self.peers.unknown_keys(),
            files: Some(self.files.status()),
            connect: (self.role == Role::Entry).then(|| status::Connect {
                active: self.active(),
            }),
            carrier_error: self
                .workers
                .iter()
                .filter(|worker| !worker.linked.load(Relaxed))
                .find_map(|worker| worker.carrier_error.lock().clone()),
            ready: self.ready(),
            draining: self.draining.load(Relaxed),
            limit: busiest.and_then(|carrier| carrier.limit),
            limit_advice: busiest.and_then(|carrier| carrier.limit_advice.clone()),
            carriers,
            streams: self.streams.status(),
            credit: self.credit.status(),
            packets: self.has_network.then(|| self.packets.status()),
            splice: self.splices.status(),
            resume: self.resumes.status(),
            forwards: self.forwards(),
            rendezvous: self
                .rendezvous
                .as_ref()
                .map(|rendezvous| rendezvous.status()),
            process: status::Process {
                cpu_seconds: usage.cpu.as_secs_f64(),
                max_rss_bytes: usage.max_rss_bytes,
                uptime_seconds: self.started.elapsed().as_secs_f64(),
                open_files: open_files::status(),
            },
            sysctls: sysctls::effective(),
        }
    }
}
