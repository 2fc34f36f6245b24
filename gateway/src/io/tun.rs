//! A TUN interface. The gateway reads the packets that this host routes to the interface. The host
//! receives the packets that the gateway writes. See tun(4) and
//! Documentation/networking/tuntap.rst.
//!
//! Each packet begins with a virtio-net header (10 bytes, little endian). So the kernel passes long
//! TCP and UDP packets to the gateway without cutting them into segments, and accepts such packets
//! from the gateway. A privileged user creates the interface ([`keep`], `muxgate tun create`) and
//! assigns the interface to the user of this process. If this process itself has the privilege,
//! this process creates the interface, and the interface exists as long as the process.
//!
//! An interface with several queues has one descriptor for each queue. The kernel selects the queue
//! of a packet by a hash of the packet's flow, which is the same for both directions. But if the
//! gateway writes packets of a flow to another queue, the kernel moves the flow to that queue
//! (`tun_flow_update`, drivers/net/tun.c). Later packets then overtake the packets that wait in the
//! former queue. The gateway can write to a detached queue, and such a write moves no flow (commit
//! 9e85722d58ca, "tuntap: allow polling/writing/reading when detached"). So each worker reads one
//! queue, and writes to a detached queue.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;

use muxtunnel_packet::VIRTIO_HEADER_BYTES;
use tokio::io::Interest;
use tokio::io::unix::{AsyncFd, AsyncFdReadyGuard};

use crate::base::sys;

/// Constants from linux/if_tun.h.
const IFF_TUN: i16 = 0x0001;
const IFF_MULTI_QUEUE: i16 = 0x0100;
const IFF_NO_PI: i16 = 0x1000;
const IFF_VNET_HDR: i16 = 0x4000;
const TUN_F_CSUM: u32 = 0x01;
const TUN_F_TSO4: u32 = 0x02;
const TUN_F_TSO6: u32 = 0x04;
const TUN_F_TSO_ECN: u32 = 0x08;
const TUN_F_USO4: u32 = 0x20;
const TUN_F_USO6: u32 = 0x40;
/// Offloads of every supported kernel.
const OFFLOADS: u32 = TUN_F_CSUM | TUN_F_TSO4 | TUN_F_TSO6 | TUN_F_TSO_ECN;
/// Offloads of Linux 6.2 and later.
const UDP_OFFLOADS: u32 = OFFLOADS | TUN_F_USO4 | TUN_F_USO6;

/// Why an interface cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TunError {
    #[error(
        "cannot open {node}: {error}. The kernel must have CONFIG_TUN (run `modprobe tun`), and a container needs access to this device node"
    )]
    Node { node: String, error: io::Error },
    #[error(
        "cannot open interface {device}: {error}. Create it as root by `muxgate tun create --device {device} --owner UID`, with the UID of this process, or give the process CAP_NET_ADMIN"
    )]
    Interface { device: String, error: io::Error },
    #[error("interface {device}: {what} failed: {error}")]
    Setting {
        device: String,
        what: &'static str,
        error: io::Error,
    },
}

/// Which packets an interface transfers without cutting them into segments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Offloads {
    /// No packets.
    Nothing,
    /// TCP packets.
    Tcp,
    /// TCP and UDP packets.
    TcpAndUdp,
}

/// A queue of an interface that is not part of an event loop yet.
#[derive(Debug)]
pub(crate) struct Queue {
    reads: File,
    /// The queue to write to, if the interface has several queues.
    writes: Option<File>,
    offloads: Offloads,
}

impl Queue {
    /// The packets that are not cut into segments.
    pub(crate) fn offloads(&self) -> Offloads {
        self.offloads
    }
}

/// Opens `queues` queues of the interface `device` through `node`. Creates the interface if it does
/// not exist and this process has the privilege. `offloads`: whether the kernel may pass packets
/// that are not cut into segments.
///
/// # Errors
/// [`TunError`].
pub(crate) fn open(
    node: &str,
    device: &str,
    offloads: bool,
    queues: u16,
) -> Result<Vec<Queue>, TunError> {
    let is_one = queues <= 1;
    let setting = |what, error| setting(device, what, error);
    // Opens the queues for writing first: a flow has no queue until the first queue for reading
    // exists.
    let writes = |_| match is_one {
        true => Ok(None),
        false => {
            let file = attached(node, device, true)?;
            sys::detach_tun(file.as_fd()).map_err(|error| setting("detaching a queue", error))?;
            Ok(Some(file))
        }
    };
    let writes: Vec<_> = (0..queues).map(writes).collect::<Result<_, _>>()?;
    let reads = writes.into_iter().map(|writes| {
        let reads = attached(node, device, !is_one)?;
        sys::set_tun_header(reads.as_fd(), VIRTIO_HEADER_BYTES as i32)
            .map_err(|error| setting("setting the packet header", error))?;
        let offloads = set_offloads(&reads, offloads)
            .map_err(|error| setting("setting the offloads", error))?;
        Ok(Queue {
            reads,
            writes,
            offloads,
        })
    });
    reads.collect()
}

fn setting(device: &str, what: &'static str, error: io::Error) -> TunError {
    TunError::Setting {
        device: device.to_owned(),
        what,
        error,
    }
}

/// One queue of an interface in an event loop. If the interface has a single queue, the value
/// represents the whole interface.
#[derive(Debug)]
pub(crate) struct Tun {
    file: AsyncFd<File>,
    writes: Option<File>,
    offloads: Offloads,
}

impl Tun {
    /// Adds `queue` to the event loop. `device` is the queue's interface.
    ///
    /// # Errors
    /// [`TunError`].
    pub(crate) fn watching(queue: Queue, device: &str) -> Result<Self, TunError> {
        let file = sys::watched(queue.reads, Interest::READABLE);
        Ok(Self {
            file: file
                .map_err(|error| setting(device, "adding the queue to the event loop", error))?,
            writes: queue.writes,
            offloads: queue.offloads,
        })
    }

    /// The packets that are not cut into segments.
    pub(crate) fn offloads(&self) -> Offloads {
        self.offloads
    }

    /// Waits until a packet is available.
    ///
    /// # Errors
    /// The system's error.
    pub(crate) async fn readable(&self) -> io::Result<Packets<'_>> {
        Ok(Packets(self.file.readable().await?))
    }

    /// Passes a packet, with its header in front, to the host.
    ///
    /// # Errors
    /// The system's error: the host does not accept the packet.
    pub(crate) fn try_write(&self, packet: &[u8]) -> io::Result<()> {
        writer(self.file.get_ref(), &self.writes)
            .write(packet)
            .map(drop)
    }
}

/// The file to which packets are written.
fn writer<'a>(reads: &'a File, writes: &'a Option<File>) -> &'a File {
    writes.as_ref().unwrap_or(reads)
}

/// The packets that are available.
pub(crate) struct Packets<'a>(AsyncFdReadyGuard<'a, File>);

impl Packets<'_> {
    /// Reads the next packet, with its header in front. Returns the number of bytes.
    ///
    /// # Errors
    /// `WouldBlock`: no packet is available, so the caller has to wait for the next packet.
    pub(crate) fn try_read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.0.try_io(|file| file.get_ref().read(buffer));
        read.unwrap_or_else(|_| Err(ErrorKind::WouldBlock.into()))
    }
}

/// Creates the interface `device` through `node`, or takes over an interface that no process has
/// open. The interface then belongs to the user `owner`, and persists. `has_several`: whether the
/// interface has several queues.
///
/// # Errors
/// [`TunError`]. Without CAP_NET_ADMIN, the call always fails.
pub(crate) fn keep(
    node: &str,
    device: &str,
    owner: u32,
    has_several: bool,
) -> Result<(), TunError> {
    let file = attached(node, device, has_several)?;
    let kept = sys::keep_tun(file.as_fd(), owner);
    kept.map_err(|error| setting(device, "setting the owner", error))
}

/// Opens `node` and attaches it to `device`, or to one queue of `device`.
fn attached(node: &str, device: &str, has_several: bool) -> Result<File, TunError> {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC)
        .open(node);
    let file = file.map_err(|error| TunError::Node {
        node: node.to_owned(),
        error,
    })?;
    let mut flags = IFF_TUN | IFF_NO_PI | IFF_VNET_HDR;
    if has_several {
        flags |= IFF_MULTI_QUEUE;
    }
    sys::attach_tun(file.as_fd(), device, flags).map_err(|error| TunError::Interface {
        device: device.to_owned(),
        error,
    })?;
    Ok(file)
}

/// Sets the offloads. Returns the offloads that the kernel supports.
fn set_offloads(file: &File, wanted: bool) -> io::Result<Offloads> {
    if !wanted {
        return sys::set_tun_offloads(file.as_fd(), 0).map(|()| Offloads::Nothing);
    }
    match sys::set_tun_offloads(file.as_fd(), UDP_OFFLOADS) {
        Ok(()) => Ok(Offloads::TcpAndUdp),
        Err(error) if error.kind() == ErrorKind::InvalidInput => {
            sys::set_tun_offloads(file.as_fd(), OFFLOADS).map(|()| Offloads::Tcp)
        }
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::net::{IpAddr, UdpSocket};

    use muxtunnel_testkit::namespace::Namespace;

    use super::*;

    const FLOWS: u16 = 8;
    const PORT: u16 = 4000;
    const NEAR: [u8; 4] = [10, 9, 0, 1];
    const FAR: [u8; 4] = [10, 9, 0, 2];

    /// A datagram from [`FAR`] to a flow of [`NEAR`], as a peer sends it.
    fn answer(port: u16) -> Vec<u8> {
        let mut ip = vec![0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0];
        ip.extend(FAR);
        ip.extend(NEAR);
        let words = ip.chunks(2);
        let sum = words.map(|word| u32::from(word[0]) << 8 | u32::from(word[1]));
        let sum: u32 = sum.sum();
        let checksum = !((sum & 0xffff) + (sum >> 16)) as u16;
        ip[10..12].copy_from_slice(&checksum.to_be_bytes());
        let mut bytes = vec![0; VIRTIO_HEADER_BYTES];
        bytes.extend(ip);
        for field in [9, port, 8, 0] {
            bytes.extend(field.to_be_bytes());
        }
        bytes
    }

    /// Sends a datagram through each socket. Returns the queue that received the datagram of each
    /// port.
    fn queues_of(sockets: &[UdpSocket], queues: &[Queue]) -> BTreeMap<u16, usize> {
        for socket in sockets {
            socket.send_to(b"x", (IpAddr::from(FAR), 9)).unwrap();
        }
        let mut found = BTreeMap::new();
        for (index, queue) in queues.iter().enumerate() {
            let mut buffer = [0; 2000];
            while let Ok(length) = (&queue.reads).read(&mut buffer) {
                let ip = &buffer[VIRTIO_HEADER_BYTES..length];
                if ip[0] == 0x45 && ip[9] == 17 {
                    found.insert(u16::from_be_bytes([ip[20], ip[21]]), index);
                }
            }
        }
        found
    }

    #[test]
    fn a_flow_keeps_its_queue_whichever_worker_writes_what_comes_for_it() {
        let host = Namespace::new().unwrap();
        let queues = host.enter(|| open("/dev/net/tun", "mux0", false, 4).unwrap());
        let queues = queues.unwrap();
        host.ip("addr add 10.9.0.1/24 dev mux0").unwrap();
        host.ip("link set mux0 up").unwrap();
        let sockets = host.enter(|| {
            let ports = PORT..PORT + FLOWS;
            let bind = |port| UdpSocket::bind((IpAddr::from(NEAR), port)).unwrap();
            ports.map(bind).collect::<Vec<_>>()
        });
        let sockets = sockets.unwrap();
        let before = queues_of(&sockets, &queues);
        assert_eq!(before.len(), usize::from(FLOWS));
        for queue in &queues {
            for (socket, port) in sockets.iter().zip(PORT..) {
                let mut writer = writer(&queue.reads, &queue.writes);
                writer.write_all(&answer(port)).unwrap();
                assert_eq!(socket.recv(&mut [0; 9]).unwrap(), 0);
            }
            assert_eq!(queues_of(&sockets, &queues), before);
        }
        // Writes through a queue that is also read.
        let other = (before[&PORT] + 1) % queues.len();
        (&queues[other].reads).write_all(&answer(PORT)).unwrap();
        assert_eq!(queues_of(&sockets, &queues)[&PORT], other);
    }
}
