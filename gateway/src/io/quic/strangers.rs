//! The socket of a listener, which limits the answers to strangers.
//!
//! quinn answers a first packet without storing state: with a version negotiation, a retry, or a
//! close of the connection (RFC 9000, sections 6, 8.1.2 and 10.2.3). A forged source address can
//! lead such an answer to anyone. quinn limits only its stateless resets, so this socket drops the
//! other answers beyond the limit. None of the answers causes another answer: quinn ignores version
//! negotiations and retries that no client waits for, and first packets of less than 1,200 bytes.
//! It answers a packet with a stateless reset only if a listener has issued the packet's connection
//! id ([`super::steering`]).

use std::io::{Error, ErrorKind, IoSliceMut, Result};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use parking_lot::Mutex;
use quinn::udp::{RecvMeta, Transmit};
use quinn::{AsyncUdpSocket, UdpPoller};

use crate::base::answer_limiter::{AnswerLimiter, CHALLENGES, RESETS};

/// Minimum length of a datagram with a client's first packet (RFC 9000, section 14.1). A server's
/// first packet of a handshake has this length, too.
const FIRST_BYTES_MIN: usize = 1200;
/// This bit of the first byte marks a long header.
const LONG_HEADER: u8 = 0x80;
/// The packet types of a long header (RFC 9000, section 17.2), in bits 4 and 5 of the first byte.
const INITIAL: u8 = 0;
const RETRY: u8 = 3;

/// The socket of a listener.
#[derive(Debug)]
pub(super) struct ListenerSocket {
    below: Arc<dyn AsyncUdpSocket>,
    challenges: Mutex<AnswerLimiter>,
    resets: Mutex<AnswerLimiter>,
    /// The error with which receiving failed last.
    failure: Mutex<Option<Error>>,
}

/// An answer to a stranger.
#[derive(Debug, PartialEq, Eq)]
enum Answer {
    Negotiation,
    /// A retry, or a close of a connection that was not accepted. A short acknowledgement of an
    /// accepted connection looks like such a close.
    RetryOrClose,
}

impl ListenerSocket {
    pub(super) fn new(below: Arc<dyn AsyncUdpSocket>) -> Arc<Self> {
        Arc::new(Self {
            below,
            challenges: Mutex::new(AnswerLimiter::new(CHALLENGES)),
            resets: Mutex::new(AnswerLimiter::new(RESETS)),
            failure: Mutex::default(),
        })
    }

    /// The error with which receiving failed last.
    pub(super) fn take_failure(&self) -> Error {
        let failure = self.failure.lock().take();
        failure.unwrap_or_else(|| Error::other("the task of the QUIC endpoint ended"))
    }

    fn permits(&self, answer: &Answer, to: SocketAddr) -> bool {
        let limiter = match answer {
            Answer::Negotiation => &self.resets,
            Answer::RetryOrClose => &self.challenges,
        };
        limiter.lock().permits(Instant::now(), to.ip())
    }
}

/// Classifies a datagram that quinn sends; `None`: it belongs to a connection, or is a stateless
/// reset.
fn answer(datagram: &[u8]) -> Option<Answer> {
    let (first, version) = datagram.split_first().and_then(|(first, rest)| {
        let version: &[u8; 4] = rest.first_chunk()?;
        Some((first, version))
    })?;
    if first & LONG_HEADER == 0 {
        return None;
    }
    match first >> 4 & 3 {
        _ if *version == [0; 4] => Some(Answer::Negotiation),
        RETRY => Some(Answer::RetryOrClose),
        INITIAL if datagram.len() < FIRST_BYTES_MIN => Some(Answer::RetryOrClose),
        _ => None,
    }
}

impl AsyncUdpSocket for ListenerSocket {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        Arc::clone(&self.below).create_io_poller()
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> Result<()> {
        match answer(transmit.contents) {
            Some(answer) if !self.permits(&answer, transmit.destination) => Ok(()),
            _ => self.below.try_send(transmit),
        }
    }

    fn poll_recv(
        &self,
        context: &mut Context<'_>,
        buffers: &mut [IoSliceMut<'_>],
        metas: &mut [RecvMeta],
    ) -> Poll<Result<usize>> {
        let received = self.below.poll_recv(context, buffers, metas);
        if let Poll::Ready(Err(error)) = &received
            && error.kind() != ErrorKind::ConnectionReset
        {
            let kept = Error::new(error.kind(), error.to_string());
            *self.failure.lock() = Some(kept);
        }
        received
    }

    fn local_addr(&self) -> Result<SocketAddr> {
        self.below.local_addr()
    }

    fn max_transmit_segments(&self) -> usize {
        self.below.max_transmit_segments()
    }

    fn max_receive_segments(&self) -> usize {
        self.below.max_receive_segments()
    }

    fn may_fragment(&self) -> bool {
        self.below.may_fragment()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_to_strangers_are_told_from_packets_of_connections() {
        let with = |first: u8, version: u32, length: usize| {
            let mut datagram = vec![first];
            datagram.extend(version.to_be_bytes());
            datagram.resize(length, 7);
            answer(&datagram)
        };
        assert_eq!(with(0xc0, 0, 30), Some(Answer::Negotiation));
        assert_eq!(with(0xff, 0, 30), Some(Answer::Negotiation));
        assert_eq!(with(0xf0, 1, 100), Some(Answer::RetryOrClose));
        assert_eq!(with(0xc3, 1, 60), Some(Answer::RetryOrClose));
        assert_eq!(with(0xc3, 1, 1200), None);
        assert_eq!(with(0xe0, 1, 60), None);
        assert_eq!(with(0x40, 0, 60), None);
        assert_eq!(answer(&[0xc0, 0, 0]), None);
    }
}
