//! The requests of a peer, which the library's task passes to the session.

use std::sync::Arc;

use russh::keys::ssh_key;
use russh::{Channel, ChannelOpenFailure, ChannelReadHalf, ChannelWriteHalf, client, server};
use tokio::sync::oneshot;

use super::channels::{Chan, Shared};

/// Maximum number of requests that wait for the session.
pub(super) const EVENTS_MAX: usize = 256;

/// A request of the peer.
#[derive(Debug)]
pub(crate) enum Event {
    /// The peer requests a channel.
    Asked(Box<Asked>),
    /// The peer requests that this side listens on `address`, in the form in which the peer wrote
    /// the address. Port 0 means any free port. The answer is the port, or `None` if this side does
    /// not listen.
    Listen {
        address: String,
        port: u16,
        answer: oneshot::Sender<Option<u16>>,
    },
    /// The peer ends a listener.
    Unlisten { address: String, port: u16 },
}

/// The destination of a channel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// A target, in the form that the driver uses.
    Target(String),
    /// The target of the listener on this address.
    Listener { address: String, port: u16 },
}

/// A channel that the peer requests. Dropping the value refuses the channel.
#[derive(Debug)]
pub(crate) struct Asked {
    pub(crate) wanted: Wanted,
    pending: Option<Pending>,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Pending {
    id: u32,
    sender: Half,
    receiver: ChannelReadHalf,
    reply: Reply,
}

/// The library's handle for the answer.
pub(super) enum Reply {
    Server(server::ChannelOpenHandle),
    Client(client::ChannelOpenHandle),
}

impl std::fmt::Debug for Reply {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Reply")
    }
}

impl Reply {
    async fn accept(self) {
        match self {
            Self::Server(reply) => reply.accept().await,
            Self::Client(reply) => reply.accept().await,
        }
    }

    async fn reject(self, failure: ChannelOpenFailure) {
        match self {
            Self::Server(reply) => reply.reject(failure).await,
            Self::Client(reply) => reply.reject(failure).await,
        }
    }
}

/// The sending half of a channel.
#[derive(Debug)]
pub(crate) enum Half {
    Server(ChannelWriteHalf<server::Msg>),
    Client(ChannelWriteHalf<client::Msg>),
}

impl Half {
    pub(super) fn of_server(channel: Channel<server::Msg>) -> (u32, Self, ChannelReadHalf) {
        let (receiver, sender) = channel.split();
        (sender.id().into(), Self::Server(sender), receiver)
    }

    pub(super) fn of_client(channel: Channel<client::Msg>) -> (u32, Self, ChannelReadHalf) {
        let (receiver, sender) = channel.split();
        (sender.id().into(), Self::Client(sender), receiver)
    }

    /// Waits until the peer's window is open. Returns how many bytes one packet may have now.
    pub(crate) async fn writable(&self) -> usize {
        match self {
            Self::Server(half) => half.writable_packet_size().await,
            Self::Client(half) => half.writable_packet_size().await,
        }
    }

    /// Passes `bytes` to the library.
    ///
    /// # Errors
    /// The connection has ended.
    pub(crate) async fn send(&self, bytes: bytes::Bytes) -> Result<(), russh::Error> {
        match self {
            Self::Server(half) => half.data_bytes(bytes).await,
            Self::Client(half) => half.data_bytes(bytes).await,
        }
    }

    /// Sends the end of the half, unless the connection has ended.
    pub(crate) async fn finish(&self) {
        let _ = match self {
            Self::Server(half) => half.eof().await,
            Self::Client(half) => half.eof().await,
        };
    }

    /// Closes the channel.
    pub(crate) async fn close(&self) {
        let _ = match self {
            Self::Server(half) => half.close().await,
            Self::Client(half) => half.close().await,
        };
    }
}

impl Asked {
    pub(super) fn new(
        wanted: Wanted,
        (id, sender, receiver): (u32, Half, ChannelReadHalf),
        reply: Reply,
        shared: &Arc<Shared>,
    ) -> Self {
        let pending = Pending {
            id,
            sender,
            receiver,
            reply,
        };
        Self {
            wanted,
            pending: Some(pending),
            shared: Arc::clone(shared),
        }
    }

    /// Accepts the channel; `None`: the channel was answered already.
    pub(crate) fn accept(mut self) -> Option<(Half, Arc<Chan>)> {
        let pending = self.pending.take()?;
        let chan = self.shared.add(pending.id);
        // The future completes without waiting.
        super::at_once(pending.reply.accept());
        Some((pending.sender, chan))
    }

    /// Refuses the channel.
    pub(crate) fn refuse(mut self, code: u32, reason: &str) {
        self.answer_no(code, reason);
    }

    fn answer_no(&mut self, code: u32, reason: &str) {
        let Some(pending) = self.pending.take() else {
            return;
        };
        let reason = reason.to_owned();
        let failure = ChannelOpenFailure::Other { code, reason };
        super::at_once(pending.reply.reject(failure));
        self.shared.refuse(pending.receiver);
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        self.answer_no(PROHIBITED, "this gateway accepts no further streams");
    }
}

/// The callbacks of a channel's messages, with which both sides implement the library's trait.
macro_rules! channel_callbacks {
    () => {
        async fn channel_open_confirmation(
            &mut self,
            id: ChannelId,
            _: u32,
            _: u32,
            _: &mut Session,
        ) -> Result<(), Error> {
            self.shared.add(id.into());
            Ok(())
        }

        async fn data(&mut self, id: ChannelId, data: &[u8], _: &mut Session) -> Result<(), Error> {
            self.shared.peer_sent(id, data);
            Ok(())
        }

        async fn channel_eof(&mut self, id: ChannelId, _: &mut Session) -> Result<(), Error> {
            self.shared.peer_ended(id);
            Ok(())
        }

        async fn channel_close(&mut self, id: ChannelId, _: &mut Session) -> Result<(), Error> {
            self.shared.peer_closed(id);
            Ok(())
        }

        async fn window_adjusted(
            &mut self,
            id: ChannelId,
            _: u32,
            _: &mut Session,
        ) -> Result<(), Error> {
            self.shared.peer_takes_more(id);
            Ok(())
        }
    };
}
pub(super) use channel_callbacks;

/// SSH_OPEN_ADMINISTRATIVELY_PROHIBITED (RFC 4254, section 5.1).
pub(crate) const PROHIBITED: u32 = 1;
/// SSH_OPEN_CONNECT_FAILED.
pub(crate) const CONNECT_FAILED: u32 = 2;
/// SSH_OPEN_RESOURCE_SHORTAGE.
pub(crate) const RESOURCE_SHORTAGE: u32 = 4;

/// Whether keys of this algorithm are supported: Ed25519 and ECDSA.
pub(super) fn is_usable(algorithm: &ssh_key::Algorithm) -> bool {
    matches!(
        algorithm,
        ssh_key::Algorithm::Ed25519 | ssh_key::Algorithm::Ecdsa { .. }
    )
}
