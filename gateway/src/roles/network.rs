//! IP packets between an interface of this host and the sessions of one worker.
//!
//! One loop reads the worker's queue of the interface ([`queues`]). The loop hands each packet to a
//! session of the peer that owns the packet's destination address. The task that receives a packet
//! from a session writes the packet to the interface at once. At an exit, it sends a packet for
//! another entry to a session of that entry instead. Each side checks a packet once
//! ([`muxtunnel_packet::check`], [`addresses`], [`judge`]), and drops and counts a packet that
//! fails.
//!
//! Bounds: each session's queues limit the waiting packets, [`judge`] limits the verdicts, and
//! [`flows`] limits the flows. The callers of [`Network::attach`] limit the sessions.

mod addresses;
mod assign;
mod assigned;
mod errors;
mod flows;
mod judge;
mod owner;
mod pool;
mod prefixes;
mod queues;
mod resolvers;
mod sessions;

use std::cell::{Cell, OnceCell, RefCell};
use std::convert::Infallible;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::rc::{Rc, Weak};
use std::sync::Arc;

use muxtunnel_codes::Code;
use muxtunnel_gateway_config::{self as config, Reloadable};
use muxtunnel_packet::{self as packet, DropReason, FlowKey, Segments};
use tokio::sync::{Notify, watch};
use tokio::task::JoinError;

use crate::base::packets::PacketStats;
use crate::io::transport::Side;
use crate::io::tun::{Tun, TunError};
use crate::roles::worker::{Worker, WorkerError};
use crate::session::mux::{Mux, Progress};
use crate::stream::packet::{Packet, PacketPool};
use addresses::{Addresses, Joined};
use assign::Reassigns;
use assigned::Assigned;
use errors::Budgets;
use flows::Begins;
use judge::{Arrived, Judge};
use owner::Owner;
pub(crate) use queues::Queues;
use queues::{Handed, HandedPackets, Links, SessionLink};
use resolvers::Resolvers;
use sessions::Attached;

/// Maximum number of packets that a worker reads from the interface before carriers and streams
/// run.
const BATCH_PACKETS: usize = 128;
/// Number of bytes of packets that a worker reads before carriers and streams run.
const BATCH_BYTES: usize = 512 << 10;

/// A session without addresses, and the identity of its peer.
type Apart = (Weak<dyn Mux>, Option<Rc<str>>);

/// The interface of one worker, and the sessions that carry its packets.
pub(crate) struct Network {
    /// Index of the worker.
    index: usize,
    tun: Tun,
    queues: Arc<Queues>,
    /// Packets that other workers have read for sessions of this worker. [`Self::run`] takes this
    /// value.
    handed: RefCell<Option<HandedPackets>>,
    /// Copy of the latest value of `changes`.
    links: RefCell<Links>,
    changes: RefCell<watch::Receiver<Links>>,
    /// This worker's sessions as last published to the other workers.
    published: RefCell<Vec<SessionLink>>,
    mtu: u16,
    pool: Rc<PacketPool>,
    addresses: Addresses,
    judge: Judge,
    flows: FlowKey,
    sessions: RefCell<Vec<Attached>>,
    /// Exit: the sessions for which there are no addresses.
    apart: RefCell<Vec<Apart>>,
    reloadable: watch::Receiver<Arc<Reloadable>>,
    /// Number of sessions attached so far.
    attached: Cell<u64>,
    /// Whether the log has reported a route that directs a carrier into the interface.
    told_of_loop: Cell<bool>,
    /// Whether the log has reported that another entry has the networks.
    told: Cell<bool>,
    errors: RefCell<Budgets>,
    /// Exit: the resolvers that the exit sends to entries.
    resolvers: Resolvers,
    /// Entry: the assignment that the entry received.
    assigned: Option<Assigned>,
    /// Notified when the assignment of another session may apply.
    reassigned: Notify,
    stats: Arc<PacketStats>,
}

/// Sender of a packet.
enum Sender<'a> {
    /// This host, or another host whose packets this host forwards.
    Host,
    /// The other end of a session.
    Peer(&'a Owner),
}

/// Carries packets of the interface. Without a network, the function never returns.
///
/// # Errors
/// An I/O error: the interface no longer exists.
pub(crate) async fn run(network: Option<Rc<Network>>) -> std::io::Result<Infallible> {
    match network {
        Some(network) => {
            // This task ends with its worker, but sessions may keep the network until the process
            // ends.
            let _guard = network.assigned.as_ref().map(Assigned::guard);
            tokio::select! {
                lost = network.run() => lost,
                never = network.follow_assignments() => match never {},
                never = network.follow_peers() => match never {},
            }
        }
        None => std::future::pending().await,
    }
}

/// Converts the result of [`run`] into an error.
pub(crate) fn lost(end: Result<std::io::Result<Infallible>, JoinError>) -> WorkerError {
    let error = match end {
        Ok(Err(error)) => error,
        Err(error) => error.into(),
        Ok(Ok(never)) => match never {},
    };
    WorkerError::Interface(error)
}

/// Attaches `mux` to the network once `mux` is ready. Never ends.
pub(crate) async fn attach_when_ready(
    network: Option<&Rc<Network>>,
    mux: &Rc<dyn Mux>,
) -> Infallible {
    if let Some(network) = network {
        mux.reached(Progress::Ready).await;
        network.attach(mux);
    }
    std::future::pending().await
}

impl Network {
    /// Opens the worker's queue of the configured interface. Returns `None` without a network.
    ///
    /// # Errors
    /// The queue cannot be registered with the runtime.
    pub(crate) fn of(
        worker: &Worker,
        queues: Option<&Arc<Queues>>,
        configured: Option<&config::Network>,
        side: Side,
    ) -> Result<Option<Rc<Self>>, TunError> {
        let (Some(configured), Some(queues)) = (configured, queues) else {
            return Ok(None);
        };
        let Some(end) = queues.take(worker.index) else {
            return Ok(None);
        };
        let tun = Tun::watching(end.queue, &configured.device)?;
        let addresses = Addresses::of(configured, side);
        let resolvers = configured
            .dns
            .as_ref()
            .map(|dns| Resolvers::of_host(dns, |server| addresses.is_of_exit(server)));
        Ok(Some(Rc::new(Self {
            index: worker.index,
            tun,
            queues: Arc::clone(queues),
            handed: RefCell::new(Some(end.handed)),
            links: RefCell::default(),
            changes: RefCell::new(end.links),
            published: RefCell::default(),
            mtu: configured.mtu,
            pool: Rc::default(),
            addresses,
            judge: Judge::of(
                configured,
                side,
                &worker.protected,
                worker.reloadable.clone(),
                &queues.flows,
            ),
            flows: FlowKey::default(),
            sessions: RefCell::default(),
            apart: RefCell::default(),
            reloadable: worker.reloadable.clone(),
            attached: Cell::new(0),
            told_of_loop: Cell::new(false),
            told: Cell::new(false),
            errors: RefCell::new(Budgets::new(queues.count())),
            resolvers: resolvers.unwrap_or_default(),
            assigned: (side == Side::Dials).then(|| Assigned::of(configured)),
            reassigned: Notify::new(),
            stats: Arc::clone(&worker.telemetry.packets),
        })))
    }

    /// Registers `address` as an address at which carriers are dialled. A packet from the interface
    /// to `address` belongs to a carrier, and would run inside that carrier.
    pub(crate) fn is_dialled(&self, address: SocketAddr) {
        self.queues.is_dialled(address);
    }

    /// Carries packets over `mux`, which must be ready.
    pub(crate) fn attach(self: &Rc<Self>, mux: &Rc<dyn Mux>) {
        let (peer, identity) = (mux.peer(), mux.identity());
        let Some(datagrams) = mux.datagrams() else {
            tracing::warn!(code = %Code::NoPackets, %peer, "The peer carries no IP packets: configure a network at both ends");
            return;
        };
        let joined = match self.addresses.join(identity.as_deref()) {
            Ok(joined) => joined,
            Err(error) => {
                let shown = identity.as_deref().unwrap_or_default();
                tracing::warn!(code = %Code::NoPackets, %peer, identity = shown, "{error}");
                let mut apart = self.apart.borrow_mut();
                apart.retain(|(mux, _)| mux.strong_count() > 0);
                apart.push((Rc::downgrade(mux), identity));
                return;
            }
        };
        let identity: Option<Arc<str>> = identity.as_deref().map(Arc::from);
        let assignment = Rc::new(OnceCell::new());
        self.sessions.borrow_mut().push(Attached {
            mux: Rc::downgrade(mux),
            link: SessionLink {
                worker: self.index,
                number: self.attached.replace(self.attached.get() + 1),
                identity: identity.clone(),
                owner: joined.owner.clone(),
                has_carrier: false,
                answers: false,
            },
            assignment: Rc::clone(&assignment),
        });
        self.publish();
        self.assign(&joined, &**mux, datagrams);
        if self.assigned.is_some() {
            datagrams.hear_assignment(self.hearing_assignment(assignment));
        }
        let Joined { owner, lease, .. } = joined;
        // These guards live as long as the closure `hears`. The session drops the closure when the
        // session ends.
        let network = Rc::downgrade(self);
        let begins = Begins::of(&self.queues.flows, &owner);
        let held = (self.stats.session(), lease, begins, Reassigns::of(&network));
        let hears = move |bytes: &[u8]| {
            let _ = &held;
            if let Some(network) = network.upgrade()
                && let Err(reason) = network.take(&owner, identity.as_ref(), bytes)
            {
                network.stats.dropped(reason, 1);
            }
        };
        datagrams.hear(Box::new(hears), self.tun.offloads());
    }

    /// Carries packets; never ends.
    ///
    /// # Errors
    /// An I/O error: the interface no longer exists.
    async fn run(&self) -> std::io::Result<Infallible> {
        let handed = self.handed.take();
        let Some(handed) = handed.filter(|_| !self.is_alone()) else {
            return self.read().await;
        };
        tokio::select! {
            end = self.read() => end,
            never = self.take_over(handed) => match never {},
            never = self.publish_changes() => match never {},
        }
    }

    /// Reads the interface; never ends.
    ///
    /// # Errors
    /// An I/O error: the interface no longer exists.
    async fn read(&self) -> std::io::Result<Infallible> {
        loop {
            let mut readable = self.tun.readable().await?;
            let (mut packets, mut bytes) = (0, 0);
            while packets < BATCH_PACKETS && bytes < BATCH_BYTES {
                match self.pool.read(|buffer| readable.try_read(buffer)) {
                    Ok(packet) => {
                        packets += 1;
                        bytes += packet.bytes().len();
                        self.leaves(packet);
                    }
                    Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                    Err(error) => return Err(error),
                }
            }
            tokio::task::yield_now().await;
        }
    }

    /// Sends a packet that was read from the interface.
    fn leaves(&self, mut bytes: Packet) {
        let sent = packet::from_device(bytes.bytes_mut())
            .map_err(|error| error.reason())
            .and_then(|packet| {
                self.is_no_carrier(&packet)?;
                let to = self.addresses.leaves(&packet)?;
                let now = tokio::time::Instant::now().into_std();
                self.judge
                    .sends(&packet, self.flows.hash(&packet), &to, None, now);
                self.send(&to, &packet, bytes, &Sender::Host)
            });
        if let Err(reason) = sent {
            self.stats.dropped(reason, 1);
        }
    }

    fn is_no_carrier(&self, packet: &packet::Packet) -> Result<(), DropReason> {
        let Some((_, port)) = packet.ports else {
            return Ok(());
        };
        let address = SocketAddr::new(packet.destination, port);
        if !self.links().dialled.contains(&address) {
            return Ok(());
        }
        if !self.told_of_loop.replace(true) {
            tracing::error!(
                code = %Code::NoPackets,
                %address,
                "A route directs the carrier into the interface: remove the carrier's address from the routes to the interface, or route it by another interface"
            );
        }
        Err(DropReason::CarrierLoop)
    }

    /// Sends a packet of `sender` over a session of `to`. Prefers a session of this worker. If its
    /// peer does not answer, prefers a session of another worker whose peer answers.
    fn send(
        &self,
        to: &Owner,
        packet: &packet::Packet,
        bytes: Packet,
        sender: &Sender<'_>,
    ) -> Result<(), DropReason> {
        let own = self.session_of(to);
        let other = match &own {
            Some(own) if own.answers => None,
            own => {
                let links = self.links();
                let other = links.other_session(to, self.index, own.as_ref());
                other.map(|other| (other.worker, other.number))
            }
        };
        let (worker, session) = match (own, other) {
            (_, Some(other)) => other,
            (Some(own), None) => return self.send_by(&*own.mux, packet, bytes, sender),
            (None, None) => return Err(DropReason::NoSession),
        };
        let handed = Handed {
            session,
            packet: *packet,
            bytes: bytes.detach(),
            sender: match sender {
                Sender::Host => None,
                Sender::Peer(owner) => Some((*owner).clone()),
            },
        };
        self.queues.hand(worker, handed)?;
        self.stats.handed.add(1);
        Ok(())
    }

    fn send_by(
        &self,
        mux: &dyn Mux,
        packet: &packet::Packet,
        mut bytes: Packet,
        sender: &Sender<'_>,
    ) -> Result<(), DropReason> {
        let datagrams = mux.datagrams().ok_or(DropReason::NoSession)?;
        let limit = datagrams.limit();
        let path = limit.map_or(usize::MAX, |limit| limit.bytes);
        packet::clamp_mss(bytes.bytes_mut(), packet, path.min(self.mtu.into()));
        if Segments::of(bytes.bytes(), packet, path).is_none() {
            // A new carrier has not measured its path yet. A sender would keep a low limit for a
            // long time.
            if limit.is_some_and(|limit| limit.is_known) {
                let from = packet.destination;
                self.tell(sender, || packet::too_big(bytes.bytes(), path, from));
            }
            return Err(DropReason::TooBig);
        }
        datagrams.send(self.flows.hash(packet), bytes);
        Ok(())
    }

    /// Handles a packet that the peer `from`, with the verified `identity`, sent.
    fn take(
        &self,
        from: &Owner,
        identity: Option<&Arc<str>>,
        bytes: &[u8],
    ) -> Result<(), DropReason> {
        let packet = packet::check(bytes).map_err(|error| error.reason())?;
        self.has_networks(identity.map(|identity| &**identity))?;
        let other = self.addresses.arrives(from, &packet)?;
        let arrived = Arrived {
            owner: from,
            identity,
            other: other.as_ref(),
        };
        let flow = self.flows.hash(&packet);
        let now = tokio::time::Instant::now().into_std();
        if !self.judge.permits(&packet, flow, arrived, now) {
            let sender = Sender::Peer(from);
            self.tell(&sender, || packet::prohibited(bytes, packet.destination));
            return Err(DropReason::Policy);
        }
        match other {
            Some(other) => {
                self.judge.sends(&packet, flow, &other, Some(from), now);
                self.send(&other, &packet, Packet::from(bytes), &Sender::Peer(from))
            }
            None => match self.tun.try_write(bytes) {
                Ok(()) => {
                    self.stats.received(bytes.len());
                    Ok(())
                }
                Err(_) => Err(DropReason::Device),
            },
        }
    }
}
