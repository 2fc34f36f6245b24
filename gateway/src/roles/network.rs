//! IP packets between an interface of this host and the sessions of one worker.
//!
//! One loop reads the interface, or the worker's queue of it ([`queues`]), and hands each packet to the session of whom its destination belongs to; what sessions
//! bring goes to the interface at once, from where it was read. A packet is looked at once on each side
//! ([`muxtunnel_packet::check`], [`addresses`], [`judge`]); what is not right is dropped and counted.
//!
//! Bounds: what waits, in each session's queues; sessions, by who attaches them; verdicts, [`judge`].

mod addresses;
mod judge;
mod queues;

use std::cell::{Cell, Ref, RefCell};
use std::convert::Infallible;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;

use muxtunnel_codes::Code;
use muxtunnel_gateway_config as config;
use muxtunnel_packet::{self as packet, DropReason, FlowKey, Segments};
use tokio::sync::watch;
use tokio::task::JoinError;

use crate::base::packets::PacketStats;
use crate::base::token_bucket::Bucket;
use crate::io::transport::Side;
use crate::io::tun::{Tun, TunError};
use crate::roles::worker::{Worker, WorkerError};
use crate::session::mux::{Mux, Progress};
use crate::stream::packet::{Packet, PacketPool};
use addresses::{Addresses, Owner};
use judge::Judge;
pub(crate) use queues::Queues;
use queues::{Handed, HandedPackets, Links, SessionLink};

/// Packets of the interface in one turn...
const BATCH_PACKETS: usize = 128;
/// ...and their bytes. Then the carriers and the streams have theirs.
const BATCH_BYTES: usize = 512 << 10;

/// How often a worker has the others know which of its sessions have a carrier. They lose what they hand it until then.
const PUBLISH_INTERVAL: Duration = Duration::from_millis(50);

/// Senders that all workers tell in a second that a packet is forbidden or too long...
const ANSWERS_A_SECOND: u64 = 100;
/// ...and in how much of one they may be at once.
const ANSWERS_BURST: Duration = Duration::from_millis(500);

/// The interface, and who is behind it.
pub(crate) struct Network {
    /// Of the worker.
    index: usize,
    tun: Tun,
    queues: Arc<Queues>,
    /// What others have read for sessions of this worker; taken by [`Self::run`].
    handed: RefCell<Option<HandedPackets>>,
    /// What is known of other workers, as of the last change that was seen.
    links: RefCell<Links>,
    changes: RefCell<watch::Receiver<Links>>,
    /// What the others know of this worker's sessions.
    published: RefCell<Vec<SessionLink>>,
    mtu: u16,
    pool: Rc<PacketPool>,
    addresses: Addresses,
    judge: Judge,
    flows: FlowKey,
    sessions: RefCell<Vec<Attached>>,
    /// Sessions that were attached.
    attached: Cell<u64>,
    /// It was said that a route leads a carrier here.
    told_of_loop: Cell<bool>,
    /// It was said that another entry has the networks.
    told: Cell<bool>,
    answers: RefCell<Bucket>,
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
    /// As it was published last.
    link: SessionLink,
}

/// Carries what the interface brings; never ends where there is no network.
///
/// # Errors
/// The system's: there is no interface any more.
pub(crate) async fn run(network: Option<Rc<Network>>) -> std::io::Result<Infallible> {
    match network {
        Some(network) => network.run().await,
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
    /// The worker's queue of the interface that is configured, if any.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn of(
        worker: &Worker,
        configured: Option<&config::Network>,
        side: Side,
    ) -> Result<Option<Rc<Self>>, TunError> {
        let (Some(configured), Some(queues)) = (configured, &worker.queues) else {
            return Ok(None);
        };
        let Some(end) = queues.take(worker.index) else {
            return Ok(None);
        };
        let tun = Tun::watching(end.queue, &configured.device)?;
        let answers = (ANSWERS_A_SECOND / queues.count() as u64).max(1);
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
            addresses: Addresses::of(configured, side),
            judge: Judge::of(configured, side, &worker.protected),
            flows: FlowKey::default(),
            sessions: RefCell::default(),
            attached: Cell::new(0),
            told_of_loop: Cell::new(false),
            told: Cell::new(false),
            answers: RefCell::new(Bucket::new(answers, ANSWERS_BURST)),
            stats: Arc::clone(&worker.telemetry.packets),
        })))
    }

    /// Carriers are dialled at `address`: what comes from the interface for it is a carrier's, and would be carried inside
    /// itself.
    pub(crate) fn is_dialled(&self, address: SocketAddr) {
        self.queues.is_dialled(address);
    }

    /// Carries packets over `mux`, which is ready.
    pub(crate) fn attach(self: &Rc<Self>, mux: &Rc<dyn Mux>) {
        let (peer, identity) = (mux.peer(), mux.identity());
        let Some(datagrams) = mux.datagrams() else {
            tracing::warn!(code = %Code::NoPackets, %peer, "The other side carries no IP packets");
            return;
        };
        let Some(owner) = self.addresses.owner(identity.as_deref()) else {
            let identity = identity.as_deref().unwrap_or_default();
            tracing::warn!(code = %Code::NoPackets, %peer, identity, "The peer has no networks here");
            return;
        };
        let identity: Option<Arc<str>> = identity.as_deref().map(Arc::from);
        self.sessions.borrow_mut().push(Attached {
            mux: Rc::downgrade(mux),
            link: SessionLink {
                worker: self.index,
                number: self.attached.replace(self.attached.get() + 1),
                identity: identity.clone(),
                owner: owner.clone(),
                has_carrier: false,
            },
        });
        self.publish();
        // Counted until the session drops what hears it.
        let (network, counted) = (Rc::downgrade(self), self.stats.session());
        let hears = move |bytes: &[u8]| {
            let _ = &counted;
            if let Some(network) = network.upgrade()
                && let Err(reason) = network.take(&owner, identity.as_deref(), bytes)
            {
                network.stats.dropped(reason, 1);
            }
        };
        datagrams.hear(Box::new(hears), self.tun.offloads());
    }

    /// Has the other workers know which sessions are here, where there are others.
    fn publish(&self) {
        let mut sessions = self.sessions.borrow_mut();
        sessions.retain(Attached::is_alive);
        if self.is_alone() {
            return;
        }
        for session in &mut *sessions {
            session.link.has_carrier = session.carried().is_some();
        }
        let mut published = self.published.borrow_mut();
        if published
            .iter()
            .ne(sessions.iter().map(|session| &session.link))
        {
            *published = sessions
                .iter()
                .map(|session| session.link.clone())
                .collect();
            self.queues.publish(self.index, &published);
        }
    }

    /// Whether no other worker carries packets.
    fn is_alone(&self) -> bool {
        self.queues.count() == 1
    }

    /// What is known of all workers.
    fn links(&self) -> Ref<'_, Links> {
        let mut changes = self.changes.borrow_mut();
        if changes.has_changed().unwrap_or_default() {
            self.links
                .borrow_mut()
                .clone_from(&changes.borrow_and_update());
        }
        self.links.borrow()
    }

    /// Carries packets; never ends.
    ///
    /// # Errors
    /// The system's: there is no interface any more.
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

    /// Sends what other workers have read for sessions of this one; never ends.
    async fn take_over(&self, mut handed: HandedPackets) -> Infallible {
        while let Some(handed) = handed.next().await {
            let sender = handed.sender.as_ref().map_or(Sender::Host, Sender::Peer);
            let sent = match self.session_of(&handed.to) {
                Some(mux) => self.send_by(&*mux, &handed.packet, handed.bytes.into(), &sender),
                None => Err(DropReason::NoSession),
            };
            if let Err(reason) = sent {
                self.stats.dropped(reason, 1);
            }
        }
        std::future::pending().await
    }

    async fn publish_changes(&self) -> Infallible {
        loop {
            tokio::time::sleep(PUBLISH_INTERVAL).await;
            self.publish();
        }
    }

    /// Reads the interface; never ends.
    ///
    /// # Errors
    /// The system's: there is no interface any more.
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
        if !self.links().dialled.contains(&address) {
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

    /// Hands a packet of `sender` to a session of its owner's: the one that has run longest of those that have a carrier, and
    /// one of this worker's before all others.
    fn send(
        &self,
        to: &Owner,
        packet: &packet::Packet,
        bytes: Packet,
        sender: &Sender<'_>,
    ) -> Result<(), DropReason> {
        if let Some(mux) = self.session_of(to) {
            return self.send_by(&*mux, packet, bytes, sender);
        }
        let worker = self.links().worker_of(to, self.index);
        let worker = worker.ok_or(DropReason::NoSession)?;
        let handed = Handed {
            to: to.clone(),
            packet: *packet,
            bytes: bytes.detach(),
            sender: match sender {
                Sender::Host => None,
                Sender::Peer(owner) => Some((*owner).clone()),
            },
        };
        self.queues.hand(worker, handed)
    }

    /// The session of this worker that has run longest of those of `owner` that have a carrier.
    fn session_of(&self, owner: &Owner) -> Option<Rc<dyn Mux>> {
        let sessions = self.sessions.borrow();
        let of_owner = sessions
            .iter()
            .filter(|session| session.link.owner == *owner);
        of_owner.filter_map(Attached::carried).next()
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
    fn take(&self, from: &Owner, identity: Option<&str>, bytes: &[u8]) -> Result<(), DropReason> {
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
    fn has_networks(&self, identity: Option<&str>) -> Result<(), DropReason> {
        if !self.addresses.has_one_entry() {
            return Ok(());
        }
        let is_it = |first: &SessionLink| first.identity.as_deref() == identity;
        let has = if self.is_alone() {
            let sessions = self.sessions.borrow();
            let first = sessions.iter().find(|session| session.carried().is_some());
            first.is_none_or(|first| is_it(&first.link))
        } else {
            self.links().first().is_none_or(is_it)
        };
        if has {
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
