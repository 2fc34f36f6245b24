//! Handles the messages of a server. As in the server role, no handler waits for a local end.

use std::sync::Arc;

use parking_lot::Mutex;
use russh::client::{ChannelOpenHandle, DisconnectReason, Handler, Msg, Session};
use russh::keys::PublicKeyOrCertificate;
use russh::{Channel, ChannelId, Error, Names};
use tokio::sync::mpsc;

use super::channels::{End, Shared};
use super::credentials::Keys;
use super::events::{
    Asked, Event, Half, PROHIBITED, RESOURCE_SHORTAGE, Reply, Wanted, channel_callbacks,
};
use crate::io::proof::Proof;

/// What the key exchange reveals about the host.
#[derive(Debug, Default)]
pub(super) struct Host {
    pub(super) proof: Option<Proof>,
    /// Why the host is not trusted.
    pub(super) problem: Option<String>,
    /// The host's identification string.
    pub(super) id: Vec<u8>,
}

/// The library's callbacks for one connection.
pub(super) struct Client {
    pub(super) shared: Arc<Shared>,
    pub(super) events: mpsc::Sender<Event>,
    pub(super) keys: Arc<Keys>,
    /// The host's name in knownHosts.
    pub(super) name: String,
    pub(super) host: Arc<Mutex<Host>>,
}

impl Drop for Client {
    fn drop(&mut self) {
        self.shared.end(End::Closed);
    }
}

impl Client {
    fn asked(&self, wanted: Wanted, channel: Channel<Msg>, reply: ChannelOpenHandle) -> Asked {
        let parts = Half::of_client(channel);
        Asked::new(wanted, parts, Reply::Client(reply), &self.shared)
    }

    /// Refuses a channel: a server may open only channels for listeners that this side requested.
    fn refuse(&self, channel: Channel<Msg>, reply: ChannelOpenHandle) -> Result<(), Error> {
        let asked = self.asked(Wanted::Target(String::new()), channel, reply);
        asked.refuse(PROHIBITED, "this gateway requested no such channel");
        Ok(())
    }
}

/// The callbacks of channels that this side never requests. By default, the library accepts them.
macro_rules! refuses {
    ($($callback:ident($($argument:ty),*);)+) => {$(
        async fn $callback(
            &mut self,
            channel: Channel<Msg>,
            $(_: $argument,)*
            reply: ChannelOpenHandle,
            _: &mut Session,
        ) -> Result<(), Error> {
            self.refuse(channel, reply)
        }
    )+};
}

impl Handler for Client {
    type Error = Error;

    async fn check_server_key(&mut self, shown: &PublicKeyOrCertificate) -> Result<bool, Error> {
        let judged = self.keys.host(&self.name, shown);
        let mut host = self.host.lock();
        match judged {
            Ok(proof) => {
                host.proof = Some(proof);
                Ok(true)
            }
            Err(problem) => {
                host.problem = Some(problem);
                Ok(false)
            }
        }
    }

    async fn kex_done(
        &mut self,
        _: Option<&[u8]>,
        _: &Names,
        session: &mut Session,
    ) -> Result<(), Error> {
        self.host.lock().id = session.remote_sshid().to_vec();
        Ok(())
    }

    channel_callbacks!();

    async fn server_channel_open_forwarded_tcpip(
        &mut self,
        channel: Channel<Msg>,
        address: &str,
        port: u32,
        _: &str,
        _: u32,
        reply: ChannelOpenHandle,
        _: &mut Session,
    ) -> Result<(), Error> {
        let Ok(port) = u16::try_from(port) else {
            return self.refuse(channel, reply);
        };
        let address = address.to_owned();
        let asked = self.asked(Wanted::Listener { address, port }, channel, reply);
        if let Err(error) = self.events.try_send(Event::Asked(Box::new(asked)))
            && let Event::Asked(asked) = error.into_inner()
        {
            asked.refuse(RESOURCE_SHORTAGE, "too many streams are being opened");
        }
        Ok(())
    }

    refuses! {
        server_channel_open_forwarded_streamlocal(&str);
        server_channel_open_agent_forward();
        server_channel_open_session();
        server_channel_open_direct_tcpip(&str, u32, &str, u32);
        server_channel_open_direct_streamlocal(&str);
        server_channel_open_x11(&str, u32);
    }

    async fn disconnected(&mut self, reason: DisconnectReason<Error>) -> Result<(), Error> {
        match reason {
            DisconnectReason::ReceivedDisconnect(_) => self.shared.end(End::Closed),
            DisconnectReason::Error(error) => self.shared.end(End::from(&error)),
        }
        Ok(())
    }
}
