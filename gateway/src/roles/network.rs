//! IP packets between an interface of this host and the sessions of one worker.
//!
//! One loop reads the interface, and hands each packet to the session of whom its destination belongs to; what sessions
//! bring goes to the interface at once, from where it was read. A packet is looked at once on each side
//! ([`muxtunnel_packet::check`], [`addresses`], [`judge`]); what is not right is dropped and counted.
//!
//! Bounds: what waits, in each session's queues; sessions, by who attaches them; verdicts, [`judge`].

mod addresses;
mod assign;
mod assigned;
mod judge;
mod pool;
mod prefixes;
mod resolvers;

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::VecDeque;
use std::convert::Infallible;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;

use muxtunnel_codes::Code;
use muxtunnel_gateway_config as config;
use muxtunnel_packet::{self as packet, DropReason, FlowKey, Segments};
use muxtunnel_proto::Assignment;
use tokio::sync::Notify;
use tokio::task::JoinError;

use crate::base::packets::PacketStats;
use crate::base::token_bucket::Bucket;
use crate::io::transport::Side;
use crate::io::tun::{Offloads, Tun, TunError};
use crate::net::protected_addresses::ProtectedAddresses;
use crate::roles::worker::{Worker, WorkerError};
use crate::session::mux::{Mux, Progress};
use crate::stream::packet::{Packet, PacketPool};
use addresses::{Addresses, Joined, Owner};
use assign::Reassigns;
use assigned::Assigned;
use judge::Judge;
use resolvers::Resolvers;

/// Packets of the interface in one turn...
const BATCH_PACKETS: usize = 128;
/// ...and their bytes. Then the carriers and the streams have theirs.
const BATCH_BYTES: usize = 512 << 10;

/// Addresses that carriers were dialled at last: more than the exits of a configuration have, as a rule.
const DIALLED_MAX: usize = 64;

/// Senders that are told in a second that a packet is forbidden or too long...
const ANSWERS_A_SECOND: u64 = 100;
/// ...and in how much of one they may be at once.
const ANSWERS_BURST: Duration = Duration::from_millis(500);

/// The interface, and who is behind it.
pub(crate) struct Network {
    tun: Tun,
    mtu: u16,
    pool: Rc<PacketPool>,
    addresses: Addresses,
    judge: Judge,
    flows: FlowKey,
    sessions: RefCell<Vec<Attached>>,
    /// Where carriers were dialled last, at most [`DIALLED_MAX`].
    dialled: RefCell<VecDeque<SocketAddr>>,
    /// It was said that a route leads a carrier here.
    told_of_loop: Cell<bool>,
    /// It was said that another entry has the networks.
    told: Cell<bool>,
    answers: RefCell<Bucket>,
    /// Exit: what entries are told.
    resolvers: Resolvers,
    /// Entry: what it is told.
    assigned: Option<Assigned>,
    /// Another session's assignment may be in force.
    reassigned: Notify,
    stats: Arc<PacketStats>,
}

/// Who sent a packet.
enum Sender<'a> {
    /// This host, or one behind it.
    Host,
    /// The other end of a session.
    Peer(&'a Owner),
}

/// A session that carries packets.
struct Attached {
    mux: Weak<dyn Mux>,
    /// What its other end proved.
    identity: Option<Rc<str>>,
    /// Whose it is.
    owner: Owner,
    /// Entry: what its other end assigns.
    assignment: Rc<OnceCell<Rc<Assignment>>>,
}

/// Carries what the interface brings; never ends where there is no network.
///
/// # Errors
/// The system's: there is no interface any more.
pub(crate) async fn run(network: Option<Rc<Network>>) -> std::io::Result<Infallible> {
    match network {
        Some(network) => tokio::select! {
            lost = network.run() => lost,
            never = network.follow_assignments() => match never {},
        },
        None => std::future::pending().await,
    }
}

/// Why [`run`] ended.
pub(crate) fn lost(end: Result<std::io::Result<Infallible>, JoinError>) -> WorkerError {
    let error = match end {
        Ok(Err(error)) => error,
        Err(error) => error.into(),
        Ok(Ok(never)) => match never {},
    };
    WorkerError::Interface(error)
}

/// Has `mux` carry packets once it is ready; never ends.
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
    /// Opens the interface that is configured, if any.
    ///
    /// # Errors
    /// [`TunError`] says what to do.
    pub(crate) fn of(
        worker: &Worker,
        configured: Option<&config::Network>,
        side: Side,
    ) -> Result<Option<Rc<Self>>, TunError> {
        let open = |configured| {
            let stats = Arc::clone(&worker.telemetry.packets);
            Self::open(configured, side, &worker.protected, stats)
        };
        configured.map(open).transpose()
    }

    fn open(
        configured: &config::Network,
        side: Side,
        protected: &Arc<ProtectedAddresses>,
        stats: Arc<PacketStats>,
    ) -> Result<Rc<Self>, TunError> {
        let tun = Tun::open(&configured.node, &configured.device, configured.offloads)?;
        tracing::info!(
            device = configured.device,
            offloads = configured.offloads,
            udp_offloads = tun.offloads() == Offloads::TcpAndUdp,
            "IP packets are carried"
        );
        let addresses = Addresses::of(configured, side);
        let resolvers = configured
            .dns
            .as_ref()
            .map(|dns| Resolvers::of_host(dns, |server| addresses.is_of_exit(server)));
        Ok(Rc::new(Self {
            tun,
            mtu: configured.mtu,
            pool: Rc::default(),
            addresses,
            judge: Judge::of(configured, side, protected),
            flows: FlowKey::default(),
            sessions: RefCell::default(),
            dialled: RefCell::default(),
            told_of_loop: Cell::new(false),
            told: Cell::new(false),
            answers: RefCell::new(Bucket::new(ANSWERS_A_SECOND, ANSWERS_BURST)),
            resolvers: resolvers.unwrap_or_default(),
            assigned: (side == Side::Dials).then(|| Assigned::of(configured)),
            reassigned: Notify::new(),
            stats,
        }))
    }

    /// Carriers are dialled at `address`: what comes from the interface for it is a carrier's, and would be carried inside
    /// itself.
    pub(crate) fn is_dialled(&self, address: SocketAddr) {
        let mut dialled = self.dialled.borrow_mut();
        if dialled.contains(&address) {
            return;
        }
        dialled.truncate(DIALLED_MAX - 1);
        dialled.push_front(address);
    }

    /// Carries packets over `mux`, which is ready.
    pub(crate) fn attach(self: &Rc<Self>, mux: &Rc<dyn Mux>) {
        let (peer, identity) = (mux.peer(), mux.identity());
        let Some(datagrams) = mux.datagrams() else {
            tracing::warn!(code = %Code::NoPackets, %peer, "The other side carries no IP packets");
            return;
        };
        let joined = match self.addresses.join(identity.as_deref()) {
            Ok(joined) => joined,
            Err(error) => {
                let identity = identity.as_deref().unwrap_or_default();
                tracing::warn!(code = %Code::NoPackets, %peer, identity, "{error}");
                return;
            }
        };
        let assignment = Rc::new(OnceCell::new());
        let mut sessions = self.sessions.borrow_mut();
        sessions.retain(Attached::is_alive);
        sessions.push(Attached {
            mux: Rc::downgrade(mux),
            identity: identity.clone(),
            owner: joined.owner.clone(),
            assignment: Rc::clone(&assignment),
        });
        drop(sessions);
        self.assign(&joined, &**mux, datagrams);
        if self.assigned.is_some() {
            datagrams.hear_assignment(self.hearing_assignment(assignment));
        }
        let Joined { owner, lease, .. } = joined;
        // Until the session drops what hears it: it is counted, has its addresses, and its assignment is in force.
        let network = Rc::downgrade(self);
        let held = (self.stats.session(), lease, Reassigns::of(&network));
        let hears = move |bytes: &[u8]| {
            let _ = &held;
            if let Some(network) = network.upgrade()
                && let Err(reason) = network.take(&owner, &identity, bytes)
            {
                network.stats.dropped(reason, 1);
            }
        };
        datagrams.hear(Box::new(hears), self.tun.offloads());
    }

    /// Reads the interface; never ends.
    ///
    /// # Errors
    /// The system's: there is no interface any more.
    async fn run(&self) -> std::io::Result<Infallible> {
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

    /// A packet of this side's.
    fn leaves(&self, mut bytes: Packet) {
        let sent = packet::from_device(bytes.bytes_mut())
            .map_err(|error| error.reason())
            .and_then(|packet| {
                self.is_no_carrier(&packet)?;
                let to = self.addresses.leaves(&packet)?;
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
        if !self.dialled.borrow().contains(&address) {
            return Ok(());
        }
        if !self.told_of_loop.replace(true) {
            tracing::error!(
                code = %Code::NoPackets,
                %address,
                "The carrier's own address is routed into the interface: take it out of the routes to the interface, or route it by another one"
            );
        }
        Err(DropReason::CarrierLoop)
    }

    /// Hands a packet of `sender` to a session of its owner's: the one that has run longest of those that have a carrier.
    fn send(
        &self,
        to: &Owner,
        packet: &packet::Packet,
        mut bytes: Packet,
        sender: &Sender<'_>,
    ) -> Result<(), DropReason> {
        let sessions = self.sessions.borrow();
        let of_owner = sessions.iter().filter(|session| session.owner == *to);
        let mux = of_owner.filter_map(Attached::carried).next();
        let mux = mux.ok_or(DropReason::NoSession)?;
        drop(sessions);
        let datagrams = mux.datagrams().ok_or(DropReason::NoSession)?;
        let limit = datagrams.limit();
        let path = limit.map_or(usize::MAX, |limit| limit.bytes);
        packet::clamp_mss(bytes.bytes_mut(), packet, path.min(self.mtu.into()));
        if Segments::of(bytes.bytes(), packet, path).is_none() {
            // While a carrier is new, a sender that believes what it is told would send less for a long time.
            if limit.is_some_and(|limit| limit.is_known) {
                let from = packet.destination;
                self.tell(sender, || packet::too_big(bytes.bytes(), path, from));
            }
            return Err(DropReason::TooBig);
        }
        datagrams.send(self.flows.hash(packet), bytes);
        Ok(())
    }

    /// A packet of `from`, who proved `identity`.
    fn take(
        &self,
        from: &Owner,
        identity: &Option<Rc<str>>,
        bytes: &[u8],
    ) -> Result<(), DropReason> {
        let packet = packet::check(bytes).map_err(|error| error.reason())?;
        self.has_networks(identity)?;
        let other = self.addresses.arrives(from, &packet)?;
        if !self.judge.permits(&packet, self.flows.hash(&packet)) {
            let sender = Sender::Peer(from);
            self.tell(&sender, || packet::prohibited(bytes, packet.destination));
            return Err(DropReason::Policy);
        }
        match other {
            Some(other) => self.send(&other, &packet, Packet::from(bytes), &Sender::Peer(from)),
            None => match self.tun.try_write(bytes) {
                Ok(()) => {
                    self.stats.received(bytes.len());
                    Ok(())
                }
                Err(_) => Err(DropReason::Device),
            },
        }
    }

    /// Tells the sender of a packet why it goes no further, [`ANSWERS_A_SECOND`] at most (RFC 1812, section 4.3.2.8). Where an
    /// answer does not leave, the sender finds out by waiting.
    fn tell(&self, sender: &Sender<'_>, answer: impl FnOnce() -> Option<Vec<u8>>) {
        let now = tokio::time::Instant::now().into_std();
        if !self.answers.borrow_mut().try_take(now, 1) {
            return;
        }
        let Some(answer) = answer() else {
            return;
        };
        match sender {
            Sender::Host => drop(self.tun.try_write(&answer)),
            // It is shorter than what any carrier takes, so this ends here.
            Sender::Peer(owner) => {
                if let Ok(packet) = packet::check(&answer) {
                    let _ = self.send(owner, &packet, Packet::from(&*answer), sender);
                }
            }
        }
    }

    /// Where one entry at a time has all networks, it is the one whose session has run longest of those that
    /// have a carrier.
    fn has_networks(&self, identity: &Option<Rc<str>>) -> Result<(), DropReason> {
        if !self.addresses.has_one_entry() {
            return Ok(());
        }
        let sessions = self.sessions.borrow();
        let first = sessions.iter().find(|session| session.carried().is_some());
        if first.is_none_or(|first| first.identity == *identity) {
            return Ok(());
        }
        if !self.told.replace(true) {
            tracing::warn!(code = %Code::NoPackets, "Another entry has the networks: give each its own by network.peers");
        }
        Err(DropReason::SourceNotRemote)
    }
}

impl Attached {
    fn alive(&self) -> Option<Rc<dyn Mux>> {
        self.mux.upgrade().filter(|mux| !mux.has_ended())
    }

    /// Unless nothing carries it: its peer may have begun another one.
    fn carried(&self) -> Option<Rc<dyn Mux>> {
        self.alive().filter(|mux| !mux.waits())
    }

    fn is_alive(&self) -> bool {
        self.alive().is_some()
    }
}
