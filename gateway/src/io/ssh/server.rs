//! Handles the requests of a client. No handler waits for a local end, because that would block the
//! library.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use russh::keys::ssh_key::Certificate;
use russh::server::{
    Auth, ChannelOpenHandle, Handler, Msg, PublicKeyOffer, Session, VerifiedPublicKey,
};
use russh::{Channel, ChannelId, Error};
use tokio::sync::{mpsc, oneshot};

use super::channels::Shared;
use super::credentials::{Keys, Login};
use super::events::{
    Asked, Event, Half, PROHIBITED, RESOURCE_SHORTAGE, Reply, Wanted, channel_callbacks,
};
use super::user_keys::check_signature;
use crate::io::proof::Proof;

/// Maximum number of keys that a client may offer, including permitted keys.
const OFFERS_MAX: usize = 16;
/// Maximum time for the session to open a requested listener. The library waits in the meantime.
const LISTEN_MAX: Duration = Duration::from_secs(5);
/// Maximum length of the name of a host to which a channel may connect.
const HOST_BYTES_MAX: usize = 255;

/// The result of a login: the client's proof and its identification string.
pub(super) type LoggedIn = (Proof, Vec<u8>);

/// The library's callbacks for one connection.
pub(super) struct Server {
    pub(super) shared: Arc<Shared>,
    pub(super) events: mpsc::Sender<Event>,
    pub(super) keys: Arc<Keys>,
    pub(super) source: Option<IpAddr>,
    pub(super) logged_in: Option<oneshot::Sender<LoggedIn>>,
    /// Why no login has succeeded.
    pub(super) problem: Arc<Mutex<Option<String>>>,
    pub(super) login: Option<Login>,
    pub(super) offers: usize,
}

impl Server {
    fn refuse_login(&self, problem: String) -> Auth {
        *self.problem.lock() = Some(problem);
        Auth::reject()
    }

    fn judge(&mut self, login: Result<Login, String>) -> Auth {
        match login {
            Ok(login) => {
                self.login = Some(login);
                Auth::Accept
            }
            Err(problem) => self.refuse_login(problem),
        }
    }

    fn ask(&self, wanted: Wanted, channel: Channel<Msg>, reply: ChannelOpenHandle) {
        let asked = self.asked(wanted, channel, reply);
        if let Err(error) = self.events.try_send(Event::Asked(Box::new(asked))) {
            let text = "too many streams are being opened";
            if let Event::Asked(asked) = error.into_inner() {
                asked.refuse(RESOURCE_SHORTAGE, text);
            }
        }
    }

    fn asked(&self, wanted: Wanted, channel: Channel<Msg>, reply: ChannelOpenHandle) -> Asked {
        let parts = Half::of_server(channel);
        Asked::new(wanted, parts, Reply::Server(reply), &self.shared)
    }

    fn refuse(&self, channel: Channel<Msg>, reply: ChannelOpenHandle, reason: &str) {
        let wanted = Wanted::Target(String::new());
        let asked = self.asked(wanted, channel, reply);
        asked.refuse(PROHIBITED, reason);
    }

    fn permits_listen(&self, address: &str, port: u16) -> bool {
        let login = self.login.as_ref();
        login.is_some_and(|login| login.grant.permits_listen(address, port))
    }
}

impl Handler for Server {
    type Error = Error;

    async fn auth_publickey_offered(
        &mut self,
        _: &str,
        offer: PublicKeyOffer<'_>,
    ) -> Result<Auth, Error> {
        self.offers += 1;
        if self.offers > OFFERS_MAX {
            *self.problem.lock() = Some(format!("the client offered more than {OFFERS_MAX} keys"));
            return Err(Error::Disconnect);
        }
        if let Err(problem) = check_signature(offer.algorithm) {
            return Ok(self.refuse_login(problem));
        }
        // The key may be the key of a certificate, which the client sends only with the login. So
        // the check follows at the login.
        if self.keys.has_authorities() {
            return Ok(Auth::Accept);
        }
        match self.keys.login(offer.public_key, self.source) {
            Ok(_) => Ok(Auth::Accept),
            Err(problem) => Ok(self.refuse_login(problem)),
        }
    }

    async fn auth_publickey(&mut self, _: &str, key: VerifiedPublicKey<'_>) -> Result<Auth, Error> {
        let login = check_signature(key.algorithm)
            .and_then(|()| self.keys.login(key.public_key, self.source));
        Ok(self.judge(login))
    }

    async fn auth_openssh_certificate(
        &mut self,
        user: &str,
        certificate: &Certificate,
    ) -> Result<Auth, Error> {
        let login = self
            .keys
            .login_by_certificate(certificate, user, self.source);
        Ok(self.judge(login))
    }

    async fn auth_succeeded(&mut self, session: &mut Session) -> Result<(), Error> {
        if let (Some(told), Some(login)) = (self.logged_in.take(), &self.login) {
            // The receiver may have stopped waiting.
            let _ = told.send((login.proof.clone(), session.remote_sshid().to_vec()));
        }
        Ok(())
    }

    async fn channel_open_session(
        &mut self,
        channel: Channel<Msg>,
        reply: ChannelOpenHandle,
        _: &mut Session,
    ) -> Result<(), Error> {
        let text =
            "this gateway only forwards connections: use ssh -N with -L, -D or -R, or ssh -W";
        self.refuse(channel, reply, text);
        Ok(())
    }

    async fn channel_open_x11(
        &mut self,
        channel: Channel<Msg>,
        _: &str,
        _: u32,
        reply: ChannelOpenHandle,
        _: &mut Session,
    ) -> Result<(), Error> {
        self.refuse(channel, reply, "this gateway does not support X11");
        Ok(())
    }

    async fn channel_open_forwarded_tcpip(
        &mut self,
        channel: Channel<Msg>,
        _: &str,
        _: u32,
        _: &str,
        _: u32,
        reply: ChannelOpenHandle,
        _: &mut Session,
    ) -> Result<(), Error> {
        self.refuse(channel, reply, "this gateway requested no listener");
        Ok(())
    }

    async fn channel_open_direct_tcpip(
        &mut self,
        channel: Channel<Msg>,
        host: &str,
        port: u32,
        _: &str,
        _: u32,
        reply: ChannelOpenHandle,
        _: &mut Session,
    ) -> Result<(), Error> {
        let Some(target) = target(host, port) else {
            self.refuse(channel, reply, "the target is not a host and a port");
            return Ok(());
        };
        let denied = match &self.login {
            Some(login) => login.grant.denies_open(host, port as u16),
            None => Some("the client has not logged in"),
        };
        match denied {
            Some(reason) => self.refuse(channel, reply, reason),
            None => self.ask(Wanted::Target(target), channel, reply),
        }
        Ok(())
    }

    async fn channel_open_direct_streamlocal(
        &mut self,
        channel: Channel<Msg>,
        path: &str,
        reply: ChannelOpenHandle,
        _: &mut Session,
    ) -> Result<(), Error> {
        let denied = match &self.login {
            _ if !path.starts_with('/') || path.contains('\0') => {
                Some("the target is not the path of a Unix socket")
            }
            Some(login) => login.grant.denies_unix(),
            None => Some("the client has not logged in"),
        };
        match denied {
            Some(reason) => self.refuse(channel, reply, reason),
            None => self.ask(Wanted::Target(format!("unix:{path}")), channel, reply),
        }
        Ok(())
    }

    channel_callbacks!();

    async fn tcpip_forward(
        &mut self,
        address: &str,
        port: &mut u32,
        _: &mut Session,
    ) -> Result<bool, Error> {
        let Ok(asked) = u16::try_from(*port) else {
            return Ok(false);
        };
        if address.len() > HOST_BYTES_MAX || !self.permits_listen(address, asked) {
            return Ok(false);
        }
        let (answer, answered) = oneshot::channel();
        let event = Event::Listen {
            address: address.to_owned(),
            port: asked,
            answer,
        };
        if self.events.try_send(event).is_err() {
            return Ok(false);
        }
        match tokio::time::timeout(LISTEN_MAX, answered).await {
            Ok(Ok(Some(listened))) => {
                *port = listened.into();
                Ok(true)
            }
            Ok(_) => Ok(false),
            Err(_) => {
                let address = address.to_owned();
                let event = Event::Unlisten {
                    address,
                    port: asked,
                };
                // The session may have opened the listener in the meantime, so it has to receive
                // the request to close the listener.
                let _ = self.events.try_send(event);
                Ok(false)
            }
        }
    }

    async fn cancel_tcpip_forward(
        &mut self,
        address: &str,
        port: u32,
        _: &mut Session,
    ) -> Result<bool, Error> {
        let Ok(port) = u16::try_from(port) else {
            return Ok(false);
        };
        let address = address.to_owned();
        let event = Event::Unlisten { address, port };
        Ok(self.events.try_send(event).is_ok())
    }
}

/// Returns `tcp://host:port`, the form that the driver uses.
fn target(host: &str, port: u32) -> Option<String> {
    let port = u16::try_from(port).ok().filter(|port| *port > 0)?;
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let is_plain = |byte: u8| byte.is_ascii_graphic() && !b"/@[]?#".contains(&byte);
    if host.is_empty() || host.len() > HOST_BYTES_MAX || !host.bytes().all(is_plain) {
        return None;
    }
    Some(match host.contains(':') {
        true => format!("tcp://[{host}]:{port}"),
        false => format!("tcp://{host}:{port}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_a_host_and_a_port_and_nothing_else() {
        assert_eq!(target("web", 80).unwrap(), "tcp://web:80");
        assert_eq!(target("::1", 80).unwrap(), "tcp://[::1]:80");
        assert_eq!(target("[::1]", 80).unwrap(), "tcp://[::1]:80");
        for (host, port) in [
            ("", 80),
            ("web", 0),
            ("web", 65_536),
            ("a b", 80),
            ("a/b", 80),
            ("user@web", 80),
            ("a\0", 80),
            (&"a".repeat(256), 80),
        ] {
            assert_eq!(target(host, port), None, "{host:?} {port}");
        }
    }
}
