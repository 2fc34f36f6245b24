//! The queues of one interface, a worker for each, and how a packet comes to a session that another worker has.
//!
//! The kernel selects the queue of a packet by a hash of its flow ([`crate::io::tun`]), so one worker reads all packets of a
//! flow. It hands them to a session of its own; where it has none with a carrier, to the worker of the oldest one that has. So
//! a flow stays with a session until one begins, ends, or loses its carrier. The other end writes what a session brings in
//! the order in which it came.
//!
//! Bounds: what is on its way to a worker, [`HANDED_BYTES_MAX`] in [`HANDED_MAX`] packets; sessions, by who attaches them.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use muxtunnel_gateway_config as config;
use muxtunnel_packet::{self as packet, DropReason};
use parking_lot::Mutex;
use tokio::sync::{mpsc, watch};

use super::addresses::Owner;
use crate::io::tun::{self, Offloads};
use crate::net::interface;
use crate::roles::worker::WorkerError;
use crate::stream::packet::DetachedPacket;

/// Packets on their way to one worker...
const HANDED_MAX: usize = 4096;
/// ...and the bytes of memory that they take: as many as wait in a session's queues.
const HANDED_BYTES_MAX: usize = 8 << 20;
/// Addresses that carriers were dialled at last: more than the exits of a configuration have, as a rule.
const DIALLED_MAX: usize = 64;

/// The queues of the interface.
pub(crate) struct Queues {
    /// What each worker takes once.
    ends: Mutex<Vec<Option<QueueEnd>>>,
    links: watch::Sender<Links>,
    workers: Vec<(mpsc::Sender<Handed>, HandedBytes)>,
}

/// Bytes of memory of what is on its way to one worker.
type HandedBytes = Arc<AtomicUsize>;

/// One worker's end of its queue.
pub(super) struct QueueEnd {
    pub(super) queue: tun::Queue,
    /// Packets for sessions of this worker that others have read.
    pub(super) handed: HandedPackets,
    pub(super) links: watch::Receiver<Links>,
}

/// Packets for one worker.
pub(super) struct HandedPackets {
    receiver: mpsc::Receiver<Handed>,
    bytes: HandedBytes,
}

/// What each worker knows of the others.
#[derive(Debug, Clone, Default)]
pub(super) struct Links {
    /// Sessions that carry packets, the oldest first.
    pub(super) sessions: Vec<SessionLink>,
    /// Where carriers were dialled last, at most [`DIALLED_MAX`].
    pub(super) dialled: VecDeque<SocketAddr>,
}

/// A session that carries packets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SessionLink {
    pub(super) worker: usize,
    /// Its number at its worker.
    pub(super) number: u64,
    /// What its other end proved.
    pub(super) identity: Option<Arc<str>>,
    /// Whose it is.
    pub(super) owner: Owner,
    pub(super) has_carrier: bool,
}

/// A packet for a session of another worker's.
#[derive(Debug)]
pub(super) struct Handed {
    pub(super) to: Owner,
    pub(super) packet: packet::Packet,
    pub(super) bytes: DetachedPacket,
    /// The peer that sent it; `None`: this host did.
    pub(super) sender: Option<Owner>,
}

impl Queues {
    /// Opens those that are configured, if any.
    ///
    /// # Errors
    /// [`WorkerError`] says what to do.
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
        let has_udp = |queue: &tun::Queue| queue.offloads() == Offloads::TcpAndUdp;
        tracing::info!(
            device,
            offloads = configured.offloads,
            udp_offloads = queues.iter().all(has_udp),
            queues = count,
            "IP packets are carried"
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
        })
    }

    /// How many there are.
    pub(super) fn count(&self) -> usize {
        self.workers.len()
    }

    /// The end of `worker`, once.
    pub(super) fn take(&self, worker: usize) -> Option<QueueEnd> {
        self.ends.lock().get_mut(worker)?.take()
    }

    /// Carriers are dialled at `address`.
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

    /// The sessions of `worker` are these.
    pub(super) fn publish(&self, worker: usize, sessions: &[SessionLink]) {
        self.links
            .send_modify(|links| links.update(worker, sessions));
    }

    /// Hands a packet to the worker whose session is to carry it.
    ///
    /// # Errors
    /// That worker is too slow.
    pub(super) fn hand(&self, worker: usize, handed: Handed) -> Result<(), DropReason> {
        let (sender, bytes) = self.workers.get(worker).ok_or(DropReason::NoSession)?;
        let held = handed.bytes.held();
        let fits = bytes.fetch_add(held, Relaxed) + held <= HANDED_BYTES_MAX;
        // A worker that is gone has ended the process, or is about to.
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
    /// Waits for the next one; `None`: there will be none.
    pub(super) async fn next(&mut self) -> Option<Handed> {
        let handed = self.receiver.recv().await?;
        self.bytes.fetch_sub(handed.bytes.held(), Relaxed);
        Some(handed)
    }
}

impl Links {
    /// The worker, other than `own`, that has the oldest session of `owner` with a carrier.
    pub(super) fn worker_of(&self, owner: &Owner, own: usize) -> Option<usize> {
        let mut sessions = self.sessions.iter();
        let session = sessions.find(|session| {
            session.has_carrier && session.worker != own && session.owner == *owner
        });
        session.map(|session| session.worker)
    }

    /// The oldest session that has a carrier.
    pub(super) fn first(&self) -> Option<&SessionLink> {
        self.sessions.iter().find(|session| session.has_carrier)
    }

    /// What is there keeps its place, so that the order stays that of age.
    fn update(&mut self, worker: usize, sessions: &[SessionLink]) {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stream::packet::Packet;

    fn session(worker: usize, number: u64, owner: &str, has_carrier: bool) -> SessionLink {
        SessionLink {
            worker,
            number,
            identity: Some(Arc::from(owner)),
            owner: Some(Arc::from(owner)),
            has_carrier,
        }
    }

    #[test]
    fn a_packet_goes_to_the_oldest_session_of_its_owner_that_has_a_carrier() {
        let mut links = Links::default();
        let owner = Some(Arc::from("a"));
        links.update(1, &[session(1, 0, "b", true), session(1, 1, "a", true)]);
        links.update(2, &[session(2, 0, "a", true)]);
        assert_eq!(links.worker_of(&owner, 0), Some(1));
        assert_eq!(links.worker_of(&owner, 1), Some(2));
        links.update(1, &[session(1, 0, "b", true), session(1, 1, "a", false)]);
        assert_eq!(links.worker_of(&owner, 0), Some(2));
        links.update(1, &[session(1, 0, "b", true), session(1, 1, "a", true)]);
        assert_eq!(links.worker_of(&owner, 0), Some(1), "it has kept its place");
        links.update(1, &[]);
        links.update(2, &[]);
        assert_eq!(links.worker_of(&owner, 0), None);
    }

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
                to: None,
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
