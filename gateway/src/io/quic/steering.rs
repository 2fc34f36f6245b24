//! Chooses the worker's socket for each datagram.
//!
//! Each worker has its own socket on the port (SO_REUSEPORT). The worker does the handshakes, the
//! encryption and the streams for the datagrams on its socket. With a single socket, one core would
//! have to encrypt for all workers. By default the kernel chooses a socket by addresses, which
//! change when an entry moves. So a filter chooses by the first byte of the connection id, modulo
//! the number of sockets. In ids that a worker assigns, this byte contains the worker's number. The
//! first ids of a client are random.
//!
//! The second half of an id authenticates the first half. So a stateless reset, whose bytes are
//! random, has no id that a listener has assigned, and causes no further reset.

use std::io::Result;
use std::net::UdpSocket;
use std::os::fd::AsFd;

use aws_lc_rs::hmac::{Key, sign};
use quinn::{ConnectionId, ConnectionIdGenerator};
use quinn_proto::InvalidCid;
use rand::RngExt;

use crate::base::sys;

/// Length of a connection id in bytes.
const ID_BYTES: usize = 8;
/// Length of the half that authenticates the other half.
const TAG_BYTES: usize = ID_BYTES / 2;
/// This bit of the first byte marks a long header (RFC 9000, section 17.2).
const LONG_HEADER: u32 = 0x80;
/// Offset of the destination connection id in a long header.
const ID_OF_LONG: u32 = 6;
/// Offset of the destination connection id in a short header (section 17.3).
const ID_OF_SHORT: u32 = 1;

/// Generates the connection ids of one worker.
#[derive(Debug, Clone)]
pub(super) struct Ids {
    pub(super) worker: u8,
    /// Number of workers, at most 64.
    pub(super) workers: u8,
    /// The key of the listener's stateless resets. It is the same after a restart, since a listener
    /// must answer ids of its previous process with a reset. A reset token is the code of a whole
    /// id, so no tag is a part of a token.
    pub(super) key: Key,
}

impl Ids {
    fn tag(&self, named: &[u8]) -> [u8; TAG_BYTES] {
        let signed = sign(&self.key, named);
        signed.as_ref().first_chunk().copied().unwrap_or_default()
    }
}

impl ConnectionIdGenerator for Ids {
    fn generate_cid(&mut self) -> ConnectionId {
        let mut random = rand::rng();
        let mut id: [u8; ID_BYTES] = random.random();
        let workers = self.workers.max(1);
        let turns = u8::MAX / workers;
        id[0] = random.random_range(0..turns) * workers + self.worker % workers;
        let (named, tag) = id.split_at_mut(ID_BYTES - TAG_BYTES);
        tag.copy_from_slice(&self.tag(named));
        ConnectionId::new(&id)
    }

    fn validate(&self, id: &ConnectionId) -> std::result::Result<(), InvalidCid> {
        match id.split_at_checked(ID_BYTES - TAG_BYTES) {
            Some((named, tag)) if tag == self.tag(named) => Ok(()),
            _ => Err(InvalidCid),
        }
    }

    fn cid_len(&self) -> usize {
        ID_BYTES
    }

    fn cid_lifetime(&self) -> Option<std::time::Duration> {
        None
    }
}

/// Makes the kernel choose among `sockets` sockets in the order of binding. `socket` is one of
/// these sockets.
///
/// # Errors
/// The system's error.
pub(crate) fn steer(socket: &UdpSocket, sockets: u8) -> Result<()> {
    let load = |offset| sys::statement(libc::BPF_LD | libc::BPF_B | libc::BPF_ABS, offset);
    let is_long = libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K;
    let program = [
        load(0),
        sys::jump(is_long, LONG_HEADER, 0, 2),
        load(ID_OF_LONG),
        sys::jump(libc::BPF_JMP | libc::BPF_JA, 1, 0, 0),
        load(ID_OF_SHORT),
        sys::statement(
            libc::BPF_ALU | libc::BPF_MOD | libc::BPF_K,
            sockets.max(1).into(),
        ),
        sys::statement(libc::BPF_RET | libc::BPF_A, 0),
    ];
    sys::choose_socket_by(socket.as_fd(), &program)
}

#[cfg(test)]
mod tests {
    use aws_lc_rs::hmac::HMAC_SHA256;

    use super::*;

    #[test]
    fn an_id_is_of_its_listener_or_of_nobody() {
        let ids = |key: &[u8]| Ids {
            worker: 0,
            workers: 1,
            key: Key::new(HMAC_SHA256, key),
        };
        let (mut own, other) = (ids(b"own"), ids(b"other"));
        for _ in 0..1000 {
            let id = own.generate_cid();
            assert!(ids(b"own").validate(&id).is_ok());
            assert!(other.validate(&id).is_err());
            let random: [u8; ID_BYTES] = rand::rng().random();
            assert!(own.validate(&ConnectionId::new(&random)).is_err());
        }
        assert!(own.validate(&ConnectionId::new(&[])).is_err());
    }

    #[test]
    fn ids_name_their_worker_and_are_as_random_as_can_be() {
        for workers in 1..=64 {
            for worker in 0..workers {
                let key = Key::new(HMAC_SHA256, b"key");
                let mut ids = Ids {
                    worker,
                    workers,
                    key,
                };
                let (one, other) = (ids.generate_cid(), ids.generate_cid());
                assert_eq!(one[0] % workers, worker);
                assert_eq!(other[0] % workers, worker);
                assert_ne!(one[..], other[..]);
            }
        }
    }
}
