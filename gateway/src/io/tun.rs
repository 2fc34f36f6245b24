//! A TUN interface: what this host routes to it is read here, what is written here comes to the host (tun(4),
//! Documentation/networking/tuntap.rst).
//!
//! Packets begin with a header of virtio-net (10 bytes, little endian), so that the kernel hands over TCP and UDP before it cuts
//! them into segments, and takes them so. The interface is made by somebody who may ([`keep`], `muxgate tun create`), and owned by this
//! user; or, where this process may make one, it lasts as long as the process.
//!
//! An interface with several queues has a descriptor for each. The kernel selects the queue of a packet by a hash of its flow,
//! the same for both directions, unless the flow was written by a queue: then it moves the flow there (`tun_flow_update`,
//! drivers/net/tun.c), and what waits in the former queue is overtaken. A detached queue can be written, and moves no flow
//! (commit 9e85722d58ca, "tuntap: allow polling/writing/reading when detached"). So each worker reads one queue, and writes by
//! a detached one.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;

use muxtunnel_packet::VIRTIO_HEADER_BYTES;
use tokio::io::Interest;
use tokio::io::unix::{AsyncFd, AsyncFdReadyGuard};

use crate::base::sys;

/// linux/if_tun.h.
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
/// What every kernel that is supported has.
const OFFLOADS: u32 = TUN_F_CSUM | TUN_F_TSO4 | TUN_F_TSO6 | TUN_F_TSO_ECN;
/// What Linux has since 6.2.
const UDP_OFFLOADS: u32 = OFFLOADS | TUN_F_USO4 | TUN_F_USO6;

/// An interface cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TunError {
    #[error(
        "{node} cannot be opened: {error}. It is there where the kernel has CONFIG_TUN (`modprobe tun`), and a container has to be given it"
    )]
    Node { node: String, error: io::Error },
    #[error(
        "interface {device} cannot be opened: {error}. Make it as root by `muxgate tun create --device {device} --owner UID` with the UID of this process, or give the process CAP_NET_ADMIN"
    )]
    Interface { device: String, error: io::Error },
    #[error("interface {device}: {what}: {error}")]
    Setting {
        device: String,
        what: &'static str,
        error: io::Error,
    },
}

/// Which packets an interface brings and takes uncut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Offloads {
    /// None.
    Nothing,
    /// Of TCP.
    Tcp,
    /// Of UDP as well.
    TcpAndUdp,
}

/// One queue of an interface, which no loop watches.
#[derive(Debug)]
pub(crate) struct Queue {
    reads: File,
    /// Where it is not the only queue.
    writes: Option<File>,
    offloads: Offloads,
}

impl Queue {
    /// What comes uncut.
    pub(crate) fn offloads(&self) -> Offloads {
        self.offloads
    }
}

/// Opens so many queues of the interface `device` by `node`, and makes it where there is none and this process may.
/// `offloads`: whether packets come uncut.
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
    // Those that are written first: until the first one that is read, no flow has a queue.
    let writes = |_| match is_one {
        true => Ok(None),
        false => {
            let file = attached(node, device, true)?;
            sys::detach_tun(file.as_fd())
                .map_err(|error| setting("detaching one of its queues", error))?;
            Ok(Some(file))
        }
    };
    let writes: Vec<_> = (0..queues).map(writes).collect::<Result<_, _>>()?;
    let reads = writes.into_iter().map(|writes| {
        let reads = attached(node, device, !is_one)?;
        sys::set_tun_header(reads.as_fd(), VIRTIO_HEADER_BYTES as i32)
            .map_err(|error| setting("setting the header of its packets", error))?;
        let offloads = set_offloads(&reads, offloads)
            .map_err(|error| setting("setting its offloads", error))?;
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

/// One queue of an interface: all of it, where it has one.
#[derive(Debug)]
pub(crate) struct Tun {
    file: AsyncFd<File>,
    writes: Option<File>,
    offloads: Offloads,
}

impl Tun {
    /// `device`: whose queue it is.
    ///
    /// # Errors
    /// [`TunError`].
    pub(crate) fn watching(queue: Queue, device: &str) -> Result<Self, TunError> {
        let file = sys::watched(queue.reads, Interest::READABLE);
        Ok(Self {
            file: file.map_err(|error| setting(device, "watching it", error))?,
            writes: queue.writes,
            offloads: queue.offloads,
        })
    }

    /// What comes uncut.
    pub(crate) fn offloads(&self) -> Offloads {
        self.offloads
    }

    /// Waits until there is a packet.
    ///
    /// # Errors
    /// The system's.
    pub(crate) async fn readable(&self) -> io::Result<Packets<'_>> {
        Ok(Packets(self.file.readable().await?))
    }

    /// Hands a packet, behind its header, to the host.
    ///
    /// # Errors
    /// The system's: it does not take it.
    pub(crate) fn try_write(&self, packet: &[u8]) -> io::Result<()> {
        writer(self.file.get_ref(), &self.writes)
            .write(packet)
            .map(drop)
    }
}

/// By what packets are written.
fn writer<'a>(reads: &'a File, writes: &'a Option<File>) -> &'a File {
    writes.as_ref().unwrap_or(reads)
}

/// What there is to be read.
pub(crate) struct Packets<'a>(AsyncFdReadyGuard<'a, File>);

impl Packets<'_> {
    /// The next packet, behind its header. Returns its bytes.
    ///
    /// # Errors
    /// `WouldBlock`: there is none; the next one is to be waited for.
    pub(crate) fn try_read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.0.try_io(|file| file.get_ref().read(buffer));
        read.unwrap_or_else(|_| Err(ErrorKind::WouldBlock.into()))
    }
}

/// Makes the interface `device` by `node`, or takes one that nobody has open: it belongs to the user `owner`, and stays.
/// `has_several`: it has several queues.
///
/// # Errors
/// [`TunError`]; without CAP_NET_ADMIN in any case.
pub(crate) fn keep(
    node: &str,
    device: &str,
    owner: u32,
    has_several: bool,
) -> Result<(), TunError> {
    let file = attached(node, device, has_several)?;
    let kept = sys::keep_tun(file.as_fd(), owner);
    kept.map_err(|error| setting(device, "setting its owner", error))
}

/// An open node that is the end of `device`, or of one of its queues.
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

/// Returns those that the kernel has.
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

    /// Sends a datagram by each socket. Returns which queue brings that of each port.
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
        // As a queue that is read would do.
        let other = (before[&PORT] + 1) % queues.len();
        (&queues[other].reads).write_all(&answer(PORT)).unwrap();
        assert_eq!(queues_of(&sockets, &queues)[&PORT], other);
    }
}
