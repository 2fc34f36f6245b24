//! The queues of one interface, one for each worker, and how a worker hands a packet to another
//! worker's session.
//!
//! The kernel selects the queue of a packet by a hash of its flow ([`crate::io::tun`]), so one
//! worker reads all packets of a flow. The worker sends the packets over its own session. If the
//! worker has no session with a carrier, or if the peer of its session does not answer
//! ([`Network::answers`]), the worker hands the packets to a session of another worker
//! ([`Links::other_session`]). A flow therefore keeps its session until a session begins or ends,
//! loses its carrier, or a peer begins or ceases to answer. The other end writes the packets of a
//! session in the order in which they arrive.
//!
//! Bounds: at most [`HANDED_MAX`] packets with [`HANDED_BYTES_MAX`] bytes wait for a worker. The
//! callers of [`Network::attach`] limit the sessions.

use std::cell::Ref;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use muxtunnel_gateway_config as config;
use muxtunnel_packet::{self as packet, DropReason};
use parking_lot::Mutex;
use tokio::sync::{mpsc, watch};

use super::flows::Flows;
use super::owner::Owner;
use super::{Network, Sender};
use crate::io::tun::{self, Offloads};
use crate::net::interface;
use crate::roles::worker::WorkerError;
use crate::stream::packet::DetachedPacket;

/// Maximum number of packets that wait for one worker.
const HANDED_MAX: usize = 4096;
/// Maximum memory of packets that wait for one worker, in bytes.
const HANDED_BYTES_MAX: usize = 8 << 20;

/// Maximum number of remembered addresses at which carriers were dialled. The exits of a
/// configuration usually have fewer addresses.
const DIALLED_MAX: usize = 64;

/// The queues of the interface.
pub(crate) struct Queues {
    /// Each worker takes its end once.
    ends: Mutex<Vec<Option<QueueEnd>>>,
    links: watch::Sender<Links>,
    workers: Vec<(mpsc::Sender<Handed>, HandedBytes)>,
    /// Flows whose replies pass without a rule. A reply may arrive at another worker.
    pub(super) flows: Arc<Flows>,
}

/// Bytes of memory of the packets that wait for one worker.
type HandedBytes = Arc<AtomicUsize>;

/// The resources of one worker: its queue of the interface, and its channels from other workers.
pub(super) struct QueueEnd {
    pub(super) queue: tun::Queue,
    /// Packets that other workers have read for sessions of this worker.
    pub(super) handed: HandedPackets,
    pub(super) links: watch::Receiver<Links>,
}

/// Packets that wait for one worker.
pub(super) struct HandedPackets {
    receiver: mpsc::Receiver<Handed>,
    bytes: HandedBytes,
}

/// State that all workers share.
#[derive(Debug, Clone, Default)]
pub(super) struct Links {
    /// Sessions that carry packets, the oldest first.
    pub(super) sessions: Vec<SessionLink>,
    /// Addresses at which carriers were dialled, the latest address first, at most [`DIALLED_MAX`].
    pub(super) dialled: VecDeque<SocketAddr>,
}

/// A session that carries packets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SessionLink {
    pub(super) worker: usize,
    /// Number of the session, unique within its worker.
    pub(super) number: u64,
    /// Verified identity of the peer.
    pub(super) identity: Option<Arc<str>>,
    /// Owner of the addresses that the session serves.
    pub(super) owner: Owner,
    pub(super) has_carrier: bool,
    /// See [`Network::answers`].
    pub(super) answers: bool,
}

/// A packet for a session of another worker.
#[derive(Debug)]
pub(super) struct Handed {
    /// Number of the session.
    pub(super) session: u64,
    pub(super) packet: packet::Packet,
    pub(super) bytes: DetachedPacket,
    /// The peer that sent the packet, or `None` if this host sent it.
    pub(super) sender: Option<Owner>,
}

impl Queues {
    /// Opens the queues of the configured interface. Returns `None` without a network.
    ///
    /// # Errors
    /// [`WorkerError`]: the interface was not created for one or for several queues, as configured,
    /// cannot be opened, or another process has opened several of its queues.
    pub(crate) fn open(
        configured: Option<&config::Network>,
    ) -> Result<Option<Arc<Self>>, WorkerError> {
        let Some(configured) = configured else {
            return Ok(None);
        };
        let (device, count) = (configured.device.as_str(), configured.queues);
        interface::check_made_for(device, count)?;
        let queues = tun::open(&configured.node, device, configured.offloads, count)?;
        if count > 1 {
            interface::check_opened(device, count)?;
        }
        interface::await_start(device)?;
        let has_udp = |queue: &tun::Queue| queue.offloads() == Offloads::TcpAndUdp;
        tracing::info!(
            device,
            offloads = configured.offloads,
            udp_offloads = queues.iter().all(has_udp),
            queues = count,
            "Opened the interface for IP packets"
        );
        Ok(Some(Self::of(queues)))
    }

    fn of(queues: Vec<tun::Queue>) -> Arc<Self> {
        let links = watch::Sender::default();
        let (ends, workers) = queues
            .into_iter()
            .map(|queue| {
                let (sender, handed) = handed();
                let links = links.subscribe();
                let end = QueueEnd {
                    queue,
                    handed,
                    links,
                };
                (Some(end), sender)
            })
            .unzip();
        Arc::new(Self {
            ends: Mutex::new(ends),
            links,
            workers,
            flows: Arc::default(),
        })
    }

    /// Number of queues, which is the number of workers.
    pub(super) fn count(&self) -> usize {
        self.workers.len()
    }

    /// Returns the end of `worker` on the first call, and `None` on later calls.
    pub(super) fn take(&self, worker: usize) -> Option<QueueEnd> {
        self.ends.lock().get_mut(worker)?.take()
    }

    /// Publishes `address` as an address at which carriers are dialled.
    pub(super) fn is_dialled(&self, address: SocketAddr) {
        self.links.send_if_modified(|links| {
            let is_new = !links.dialled.contains(&address);
            if is_new {
                links.dialled.truncate(DIALLED_MAX - 1);
                links.dialled.push_front(address);
            }
            is_new
        });
    }

    /// Publishes the sessions of `worker`.
    pub(super) fn publish(&self, worker: usize, sessions: &[SessionLink]) {
        self.links
            .send_modify(|links| links.update(worker, sessions));
    }

    /// Hands a packet to the worker whose session carries it.
    ///
    /// # Errors
    /// [`DropReason::QueueFull`] if too many packets wait for that worker.
    pub(super) fn hand(&self, worker: usize, handed: Handed) -> Result<(), DropReason> {
        let (sender, bytes) = self.workers.get(worker).ok_or(DropReason::NoSession)?;
        let held = handed.bytes.held();
        let fits = bytes.fetch_add(held, Relaxed) + held <= HANDED_BYTES_MAX;
        // The channel of a worker closes only when the process ends.
        if fits && sender.try_send(handed).is_ok() {
            return Ok(());
        }
        bytes.fetch_sub(held, Relaxed);
        Err(DropReason::QueueFull)
    }
}

fn handed() -> ((mpsc::Sender<Handed>, HandedBytes), HandedPackets) {
    let (sender, receiver) = mpsc::channel(HANDED_MAX);
    let bytes = HandedBytes::default();
    let packets = HandedPackets {
        receiver,
        bytes: Arc::clone(&bytes),
    };
    ((sender, bytes), packets)
}

impl HandedPackets {
    /// Waits for the next packet. Returns `None` after the queues are dropped.
    pub(super) async fn next(&mut self) -> Option<Handed> {
        let handed = self.receiver.recv().await?;
        self.bytes.fetch_sub(handed.bytes.held(), Relaxed);
        Some(handed)
    }
}

impl SessionLink {
    /// Whether the peer has proved this identity. Peers that proved no identity may be different
    /// peers.
    pub(super) fn is_of(&self, identity: Option<&Arc<str>>) -> bool {
        identity.is_some() && self.identity.as_ref() == identity
    }
}

impl Links {
    /// The oldest session that has a carrier.
    pub(super) fn first(&self) -> Option<&SessionLink> {
        self.sessions.iter().find(|session| session.has_carrier)
    }

    /// Replaces the sessions of `worker`. Known sessions keep their places, so the oldest session
    /// stays first.
    pub(super) fn update(&mut self, worker: usize, sessions: &[SessionLink]) {
        let goes_on = |link: &SessionLink| sessions.iter().any(|one| one.number == link.number);
        self.sessions
            .retain(|link| link.worker != worker || goes_on(link));
        for session in sessions {
            let mut links = self.sessions.iter_mut();
            match links.find(|link| (link.worker, link.number) == (worker, session.number)) {
                Some(link) => *link = session.clone(),
                None => self.sessions.push(session.clone()),
            }
        }
    }
}

impl Network {
    /// Whether no other worker carries packets.
    pub(super) fn is_alone(&self) -> bool {
        self.queues.count() == 1
    }

    /// The latest state of all workers.
    pub(super) fn links(&self) -> Ref<'_, Links> {
        let mut changes = self.changes.borrow_mut();
        if changes.has_changed().unwrap_or_default() {
            self.links
                .borrow_mut()
                .clone_from(&changes.borrow_and_update());
        }
        self.links.borrow()
    }

    /// Sends packets that other workers have read for sessions of this worker. Never ends.
    pub(super) async fn take_over(&self, mut handed: HandedPackets) -> Infallible {
        while let Some(handed) = handed.next().await {
            let sender = handed.sender.as_ref().map_or(Sender::Host, Sender::Peer);
            let sent = match self.session_with_number(handed.session) {
                Some(mux) => self.send_by(&*mux, &handed.packet, handed.bytes.into(), &sender),
                None => Err(DropReason::NoSession),
            };
            if let Err(reason) = sent {
                self.stats.dropped(reason, 1);
            }
        }
        std::future::pending().await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stream::packet::Packet;

    #[tokio::test]
    async fn packets_on_their_way_to_a_worker_are_bounded_by_their_bytes() {
        let ping = [
            &[0; 10][..],
            &[0x45, 0, 0, 20, 0, 0, 0, 0, 64, 253, 0x65, 0x5b],
            &[10, 72, 0, 1, 10, 72, 0, 2],
        ]
        .concat();
        let checked = packet::check(&ping).unwrap();
        let (sender, mut arrives) = handed();
        let mut queues = Queues::of(Vec::new());
        Arc::get_mut(&mut queues).unwrap().workers.push(sender);
        let hand = || {
            let handed = Handed {
                session: 0,
                packet: checked,
                bytes: Packet::from(&[0; 1 << 20][..]).detach(),
                sender: None,
            };
            queues.hand(0, handed)
        };
        // Each takes a few bytes more than 1 MiB.
        assert!((0..7).all(|_| hand().is_ok()));
        assert_eq!(hand(), Err(DropReason::QueueFull));
        assert!(arrives.next().await.is_some());
        assert_eq!(hand(), Ok(()));
        assert_eq!(hand(), Err(DropReason::QueueFull));
    }

    #[test]
    fn addresses_that_were_dialled_last_are_known_to_every_worker() {
        let queues = Queues::of(Vec::new());
        let links = queues.links.subscribe();
        let address = |port| SocketAddr::from(([192, 0, 2, 1], port));
        for port in [1, 1, 2].into_iter().chain(10..73) {
            queues.is_dialled(address(port));
        }
        let dialled = &links.borrow().dialled;
        assert_eq!(dialled.len(), DIALLED_MAX);
        assert!(dialled.contains(&address(2)) && !dialled.contains(&address(1)));
    }
}
