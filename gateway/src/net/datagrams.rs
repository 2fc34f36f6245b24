//! The UDP sockets of an exit's QUIC port, one per worker.
//!
//! The kernel numbers the sockets in the order of binding, so the first caller binds all of them.

use std::net::UdpSocket;

use muxtunnel_contract::sysctls::QUIC_BUFFER_BYTES;
use parking_lot::Mutex;
use socket2::SockRef;

use super::bind::{ListenError, datagram_sockets};
use crate::base::socket_buffers::{Buffers, enlarge};
use crate::io::quic::steer;

/// The sockets, which all workers share. Each worker takes its socket once.
#[derive(Debug, Default)]
pub(crate) struct DatagramSockets(Mutex<Vec<Option<UdpSocket>>>);

impl DatagramSockets {
    /// Takes the socket of `worker`. Each worker calls this once, with the same address and the
    /// same number of workers.
    ///
    /// # Errors
    /// The system's error, with the address.
    pub(crate) fn of(
        &self,
        address: &str,
        (worker, workers): (usize, usize),
    ) -> Result<UdpSocket, ListenError> {
        let mut sockets = self.0.lock();
        if sockets.is_empty() {
            *sockets = bind(address, workers)?.into_iter().map(Some).collect();
        }
        let own = sockets.get_mut(worker).and_then(Option::take);
        own.ok_or_else(|| {
            let source = std::io::Error::other("the socket of this worker is already in use");
            ListenError::new(address, source)
        })
    }
}

fn bind(address: &str, workers: usize) -> Result<Vec<UdpSocket>, ListenError> {
    let sockets = datagram_sockets(address, workers)?;
    let wrong = |source| ListenError::new(address, source);
    if let Some(first) = sockets.first() {
        let count = u8::try_from(sockets.len()).unwrap_or(u8::MAX);
        steer(first, count).map_err(wrong)?;
    }
    let mut least = Buffers {
        receive: usize::MAX,
        send: usize::MAX,
    };
    for socket in &sockets {
        let buffers = enlarge(&SockRef::from(socket), QUIC_BUFFER_BYTES).map_err(wrong)?;
        least = least.least(buffers);
    }
    least.report(address);
    Ok(sockets)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_kernel_leads_each_datagram_to_the_socket_that_its_id_names() {
        let sockets = bind("127.0.0.1:0", 3).unwrap();
        for socket in &sockets {
            socket.set_nonblocking(false).unwrap();
            let patience = Some(Duration::from_secs(10));
            socket.set_read_timeout(patience).unwrap();
        }
        let to = sockets[0].local_addr().unwrap();
        // Each datagram comes from a different source address, so without steering the kernel's
        // hash would select different sockets.
        for first in 0..=u8::MAX {
            let from = UdpSocket::bind("127.0.0.1:0").unwrap();
            let of = &sockets[usize::from(first % 3)];
            for datagram in [
                &[0x40, first, 9, 9, 9, 9, 9, 9][..],
                &[0xc0, 0, 0, 0, 1, 8, first, 9, 9],
            ] {
                from.send_to(datagram, to).unwrap();
                let mut bytes = [0; 16];
                let length = of.recv(&mut bytes).unwrap();
                assert_eq!(&bytes[..length], datagram);
            }
        }
    }

    #[test]
    fn each_worker_has_a_socket_of_its_own_and_no_other_process_has_the_port() {
        let sockets = DatagramSockets::default();
        let one = sockets.of("127.0.0.1:0", (1, 2)).unwrap();
        let address = one.local_addr().unwrap();
        let other = sockets.of("127.0.0.1:0", (0, 2)).unwrap();
        assert_eq!(other.local_addr().unwrap(), address);
        assert!(sockets.of("127.0.0.1:0", (0, 2)).is_err());
        assert!(datagram_sockets(&address.to_string(), 1).is_err());
    }
}
