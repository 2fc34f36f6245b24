//! Hears a client out until it has said where it wants to go, and hangs up on those who do not.

use std::rc::Rc;
use std::time::Duration;

use muxtunnel_codes::Code;
use muxtunnel_gateway_config::{Forward, ListenProtocol, ProxyProtocol, Target};
use muxtunnel_proto::Source;
use tokio::io::AsyncReadExt;
use tokio::time::{Instant, timeout, timeout_at};

use super::{
    Authenticator, Dialogue, GREETING_BYTES_MAX, Rejection, Request, Step, Users, UsersError, http,
    socks5, transparent, users::Authentication,
};
use crate::io::duplex::{self, ByteStream};
use crate::io::local_end::LocalEnd;
use crate::io::local_socket::LocalSocket;
use crate::io::proxy_header::{self, HEAD_BYTES};
use crate::net::dial;

/// How long a client may take until its request is whole.
const GREETING_TIME: Duration = Duration::from_secs(10);
/// How long a sender in front may take to say who the client is.
const PROXY_TIME: Duration = Duration::from_secs(3);
/// How long the listener waits for the first bytes of a client that it may forward without them. One that waits
/// for its target to begin loses as much.
const SILENCE_TIME: Duration = Duration::from_millis(500);
/// Most clients of a worker that have not said where they want to go, or are being told that they cannot.
pub(crate) const GREETINGS_MAX: usize = 1024;

/// What a forward expects of its clients: the protocol that names the target, credentials, a PROXY header.
#[derive(Debug, Clone)]
pub(crate) struct IngressProtocol {
    protocol: ListenProtocol,
    /// The URL of those that say none.
    target: Option<Rc<str>>,
    users: Option<Rc<Users>>,
    proxy: ProxyProtocol,
}

/// A client that was heard out.
pub(crate) struct Heard {
    pub(crate) request: Request,
    /// What it sent behind its request.
    pub(crate) rest: Vec<u8>,
    /// Who it is, if a sender in front said so.
    pub(crate) source: Option<Source>,
}

impl IngressProtocol {
    /// # Errors
    /// The users cannot be read.
    pub(crate) fn of(forward: &Forward) -> Result<Self, UsersError> {
        Ok(Self {
            protocol: forward.protocol,
            target: forward.target.as_ref().map(url_of),
            users: forward.auth.as_ref().map(Users::new).transpose()?,
            proxy: forward.proxy_protocol,
        })
    }

    /// Whether clients have to be among the users of `forward`.
    pub(crate) fn asks_for(&self, forward: &Forward) -> bool {
        let asked = self.users.as_ref().map(|users| users.auth());
        asked == forward.auth.as_ref()
    }

    /// Where a client is led that is asked nothing.
    pub(crate) fn straight(&self) -> Option<&Rc<str>> {
        let asks = self.protocol != ListenProtocol::Tcp || self.proxy.accept;
        self.target.as_ref().filter(|_| !asks)
    }

    /// What a target is told of its client: what was said of it, or else who is connected.
    pub(crate) fn tells(&self, said: Option<Source>, socket: &LocalSocket) -> Option<Source> {
        let send = self.proxy.send;
        send.then(|| said.unwrap_or_else(|| socket.source()))
    }

    /// Hears a client out. `source` becomes what a PROXY header says of it, also where it is rejected afterwards.
    ///
    /// # Errors
    /// [`Rejection`]: it asked for nothing that it can have, or for nothing in time.
    pub(crate) async fn hear(
        &self,
        socket: &LocalSocket,
        source: &mut Option<Source>,
    ) -> Result<Heard, Rejection> {
        if self.proxy.accept {
            *source = timeout(PROXY_TIME, hear_proxy(socket))
                .await
                .unwrap_or_else(|_| Err(late("sent no PROXY header within 3 s")))?;
        }
        let dialogue = self.dialogue(socket)?;
        let authentication = self.users.as_deref().map(Users::authentication);
        let (request, rest) = converse(socket, dialogue, authentication.as_ref()).await?;
        Ok(Heard {
            request,
            rest,
            source: *source,
        })
    }

    fn dialogue(&self, socket: &LocalSocket) -> Result<Dialogue, Rejection> {
        let target = || self.target.clone();
        Ok(match self.protocol {
            ListenProtocol::Tcp => Dialogue::None {
                url: target().unwrap_or_default(),
            },
            ListenProtocol::Socks5 => Dialogue::Socks5(socks5::Stage::default()),
            ListenProtocol::HttpConnect => Dialogue::Http(http::Head::default()),
            ListenProtocol::Auto => Dialogue::Auto { target: target() },
            ListenProtocol::Transparent => {
                let target = transparent::destination(socket).map_err(invalid)?;
                Dialogue::None {
                    url: dial::url(&target.ip().to_string(), target.port()).into(),
                }
            }
        })
    }
}

pub(crate) fn url_of(target: &Target) -> Rc<str> {
    match target {
        Target::Tcp { host, port } => dial::url(host, *port).into(),
        Target::Unix(_) => target.to_string().into(),
    }
}

/// Goes through `dialogue`; returns the request and what came behind it.
async fn converse(
    socket: &LocalSocket,
    mut dialogue: Dialogue,
    authentication: Option<&Authentication<'_>>,
) -> Result<(Request, Vec<u8>), Rejection> {
    let begun = Instant::now();
    let authenticator = authentication.map(|authentication| authentication as &dyn Authenticator);
    let may_be_silent = matches!(dialogue, Dialogue::Auto { target: Some(_) });
    let mut bytes = Vec::new();
    loop {
        match dialogue.step(&bytes, authenticator)? {
            Step::Request { consumed, request } => {
                bytes.drain(..consumed);
                return Ok((request, bytes));
            }
            Step::Reply { consumed, reply } => {
                bytes.drain(..consumed);
                if !socket.send_at_once(&reply) {
                    return Err(gone());
                }
                continue;
            }
            Step::Pending => {
                if let Some(authentication) = authentication {
                    authentication.verify(begun + GREETING_TIME).await;
                }
                continue;
            }
            Step::Incomplete => {}
        }
        let patience = if may_be_silent && bytes.is_empty() {
            SILENCE_TIME
        } else {
            GREETING_TIME
        };
        let more = timeout_at(begun + patience, read_more(socket, &mut bytes)).await;
        let rejection = match more {
            Ok(Ok(length)) if length > 0 => continue,
            Ok(_) => gone(),
            Err(_) => late("did not say in time where it wants to go"),
        };
        // Nothing more comes: what there is may be for the target.
        let request = dialogue.give_up().ok_or(rejection)?;
        return Ok((request, bytes));
    }
}

/// Reads some more, once there is some; 0 at the end, or where there is no room.
async fn read_more(socket: &LocalSocket, bytes: &mut Vec<u8>) -> std::io::Result<usize> {
    let most = GREETING_BYTES_MAX - bytes.len();
    // Into what grows by what comes: a thousand clients that say little wait here at once.
    let mut limited = ByteStream(socket).take(most as u64);
    limited.read_buf(bytes).await
}

/// Reads the PROXY header and nothing behind it.
async fn hear_proxy(socket: &LocalSocket) -> Result<Option<Source>, Rejection> {
    let mut head = [0; HEAD_BYTES];
    let broken = |_| gone();
    duplex::read_exact(socket, &mut head)
        .await
        .map_err(broken)?;
    let mut body = vec![0; proxy_header::body_bytes(&head).map_err(invalid)?];
    duplex::read_exact(socket, &mut body)
        .await
        .map_err(broken)?;
    let source = proxy_header::source(&head, &body).map_err(invalid)?;
    Ok(Some(source).filter(|source| *source != Source::Unknown))
}

fn silent(code: Code, problem: &'static str) -> Rejection {
    Rejection {
        reply: Vec::new(),
        code,
        problem,
    }
}

fn invalid(problem: &'static str) -> Rejection {
    silent(Code::ClientRequestInvalid, problem)
}

fn late(problem: &'static str) -> Rejection {
    silent(Code::ClientRequestTimedOut, problem)
}

fn gone() -> Rejection {
    silent(
        Code::OpenAbandoned,
        "closed its connection before it had said where it wants to go",
    )
}

/// Of time nothing passes here but what is waited for.
#[cfg(test)]
mod tests {
    use muxtunnel_testkit::socket;
    use tokio::io::AsyncWriteExt;
    use tokio::net::TcpStream;

    use super::*;

    async fn pair() -> (TcpStream, LocalSocket) {
        let (client, accepted) = socket::pair().await;
        (client, accepted.into())
    }

    /// What comes of a client that says `said` to a port of `protocol`, and when.
    async fn hear(
        protocol: ListenProtocol,
        target: Option<&str>,
        accept: bool,
        said: &[u8],
    ) -> (Result<Heard, Rejection>, Duration) {
        let ingress_protocol = IngressProtocol {
            protocol,
            target: target.map(Into::into),
            users: None,
            proxy: ProxyProtocol {
                accept,
                send: false,
            },
        };
        let (mut client, socket) = pair().await;
        client.write_all(said).await.unwrap();
        if !said.is_empty() {
            duplex::readable(&socket).await.unwrap();
        }
        tokio::time::pause();
        let begun = Instant::now();
        (
            ingress_protocol.hear(&socket, &mut None).await,
            begun.elapsed(),
        )
    }

    /// Timers are as exact as a millisecond.
    fn is(elapsed: Duration, expected: Duration) -> bool {
        (expected..expected + Duration::from_millis(5)).contains(&elapsed)
    }

    #[tokio::test]
    async fn a_client_that_does_not_come_to_an_end_is_given_up_in_time() {
        for (protocol, said) in [
            (ListenProtocol::Socks5, &b""[..]),
            (ListenProtocol::Socks5, b"\x05\x01\x00\x05"),
            (
                ListenProtocol::HttpConnect,
                b"CONNECT web:80 HTTP/1.1\r\nHost:",
            ),
            (ListenProtocol::Auto, b""),
        ] {
            let (heard, elapsed) = hear(protocol, None, false, said).await;
            let code = heard.err().map(|rejection| rejection.code);
            assert_eq!(code, Some(Code::ClientRequestTimedOut), "{said:?}");
            assert!(is(elapsed, GREETING_TIME), "{elapsed:?} for {said:?}");
            tokio::time::resume();
        }
    }

    #[tokio::test]
    async fn a_client_that_waits_for_its_target_to_speak_is_led_there() {
        for (said, expected) in [(&b""[..], SILENCE_TIME), (b"GE", GREETING_TIME)] {
            let (heard, elapsed) = hear(ListenProtocol::Auto, Some("tcp://x:1"), false, said).await;
            let heard = heard.ok().unwrap();
            assert_eq!(heard.request, Request::raw(&"tcp://x:1".into()));
            assert_eq!(heard.rest, said);
            assert!(is(elapsed, expected), "{elapsed:?} for {said:?}");
            tokio::time::resume();
        }
    }

    /// So that the log names the client, and not the load balancer.
    #[tokio::test]
    async fn whom_a_proxy_header_names_is_known_of_a_client_that_is_rejected_too() {
        let ingress_protocol = IngressProtocol {
            protocol: ListenProtocol::HttpConnect,
            target: None,
            users: None,
            proxy: ProxyProtocol {
                accept: true,
                send: false,
            },
        };
        let [client, server] = ["192.0.2.7:50000", "10.0.0.1:80"].map(|end| end.parse().unwrap());
        let said = Source::of(client, server);
        let (mut tcp, socket) = pair().await;
        tcp.write_all(&crate::io::proxy_header::header(said))
            .await
            .unwrap();
        tcp.write_all(b"no request\r\n\r\n").await.unwrap();
        let mut source = None;
        let rejection = ingress_protocol
            .hear(&socket, &mut source)
            .await
            .err()
            .unwrap();
        assert_eq!(rejection.code, Code::ClientRequestInvalid);
        assert_eq!(source, Some(said));
    }

    #[tokio::test]
    async fn a_sender_that_does_not_say_who_the_client_is_is_given_up_in_time() {
        for said in [&b""[..], b"\r\n\r\n\0\r\nQUIT\n\x21\x11\x00\x0cshort"] {
            let (heard, elapsed) = hear(ListenProtocol::Tcp, Some("tcp://x:1"), true, said).await;
            let code = heard.err().map(|rejection| rejection.code);
            assert_eq!(code, Some(Code::ClientRequestTimedOut), "{said:?}");
            assert!(is(elapsed, PROXY_TIME), "{elapsed:?}");
            tokio::time::resume();
        }
    }
}
