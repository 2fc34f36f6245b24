//! Reads from a client until it has specified its target, and closes connections that do not
//! specify a target in time.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::rc::Rc;
use std::time::Duration;

use futures::future::{Either, pending};
use muxtunnel_codes::Code;
use muxtunnel_gateway_config::{Listener, ProxyListen, ProxyProtocol, Target};
use muxtunnel_proto::Source;
use tokio::io::AsyncReadExt;
use tokio::time::{Instant, timeout, timeout_at};

use super::{
    Authenticator, Dialogue, GREETING_BYTES_MAX, HEAD_BYTES_MAX, LongHeads, Rejection, Request,
    Step, Users, UsersError, http, socks5, transparent, users::Authentication,
};
use crate::base::handshake_limiter::Permit;
use crate::io::duplex::{self, ByteStream};
use crate::io::local_end::LocalEnd;
use crate::io::local_socket::LocalSocket;
use crate::io::proxy_header::{self, HEAD_BYTES};
use crate::net::dial;

/// Maximum time for a client to complete its request.
const GREETING_TIME: Duration = Duration::from_secs(10);
/// Maximum time for the PROXY header.
const PROXY_TIME: Duration = Duration::from_secs(3);
/// How long a listener of protocol Auto waits for the first bytes of a client if the forward has a
/// default target. Clients of a target that sends first always wait this long.
const SILENCE_TIME: Duration = Duration::from_millis(500);
/// Maximum number of clients of one worker that have not completed their request or are being
/// rejected.
pub(crate) const GREETINGS_MAX: usize = 1024;
/// How long an HTTP client may wait before it sends its next request.
pub(crate) const IDLE_TIME: Duration = Duration::from_secs(60);

/// What a forward expects from its clients: the protocol that specifies the target, credentials,
/// and a PROXY header.
#[derive(Debug, Clone)]
pub(crate) struct IngressProtocol {
    /// `None`: clients do not name targets.
    protocol: Option<ProxyListen>,
    /// The default targets, as URLs, in the order in which they are dialled.
    targets: Rc<[Rc<str>]>,
    users: Option<Rc<Users>>,
    proxy: ProxyProtocol,
}

/// A client whose request is complete.
pub(crate) struct Heard {
    pub(crate) request: Request,
    /// The bytes after the request.
    pub(crate) rest: Vec<u8>,
    /// The client's address, if a PROXY header contains it.
    pub(crate) source: Option<Source>,
}

/// The client that is heard.
pub(crate) struct Speaker<'a> {
    pub(crate) socket: &'a LocalSocket,
    /// The address of the socket's other end.
    pub(crate) address: Option<IpAddr>,
    pub(crate) long_heads: &'a LongHeads,
}

impl IngressProtocol {
    /// # Errors
    /// The users file is invalid.
    pub(crate) fn of(forward: &Listener) -> Result<Self, UsersError> {
        Ok(Self {
            protocol: forward.protocol,
            targets: forward.targets.iter().map(url_of).collect(),
            users: forward.auth.as_ref().map(Users::new).transpose()?,
            proxy: forward.proxy_protocol,
        })
    }

    /// Whether this protocol authenticates clients with the same `auth` as `forward`.
    pub(crate) fn asks_for(&self, forward: &Listener) -> bool {
        let asked = self.users.as_ref().map(|users| users.auth());
        asked == forward.auth.as_ref()
    }

    /// The target of a forward that reads nothing from its clients before it opens a stream.
    pub(crate) fn straight(&self) -> Option<&Rc<str>> {
        let asks = self.protocol.is_some() || self.proxy.accepts();
        self.targets.first().filter(|_| !asks)
    }

    /// The targets that follow `url`, if `url` is the listener's own first target and not one that a
    /// client has named.
    pub(crate) fn further(&self, url: &Rc<str>) -> VecDeque<Rc<str>> {
        match self.targets.split_first() {
            Some((first, further)) if Rc::ptr_eq(first, url) => further.iter().cloned().collect(),
            _ => VecDeque::new(),
        }
    }

    /// The source address in the PROXY header to the target: the address in the client's PROXY
    /// header, otherwise the address of the socket. `None`: the listener sends no header.
    pub(crate) fn tells(&self, said: Option<Source>, socket: &LocalSocket) -> Option<Source> {
        let sends = self.proxy.sends();
        sends.then(|| said.unwrap_or_else(|| socket.source()))
    }

    /// Reads the client's request. Sets `source` to the address in the PROXY header, even if the
    /// client is rejected later. `None`: the gateway has answered the request itself.
    ///
    /// # Errors
    /// [`Rejection`]: the request is invalid, or did not arrive in time.
    pub(crate) async fn hear(
        &self,
        speaker: &Speaker<'_>,
        source: &mut Option<Source>,
    ) -> Result<Option<Heard>, Rejection> {
        if self.proxy.accepts() {
            *source = timeout(PROXY_TIME, hear_proxy(speaker.socket))
                .await
                .unwrap_or_else(|_| Err(late("sent no PROXY header within 3 s")))?;
        }
        let dialogue = self.dialogue(speaker.socket)?;
        self.converse(speaker, dialogue, Vec::new(), *source).await
    }

    /// Reads the next request of an HTTP client, which begins with `rest`. `None`: the client sends
    /// no further request, or the gateway has answered the request itself.
    ///
    /// # Errors
    /// [`Rejection`]: the request is invalid, or did not arrive in time.
    pub(crate) async fn hear_next(
        &self,
        speaker: &Speaker<'_>,
        rest: Vec<u8>,
        source: Option<Source>,
    ) -> Result<Option<Heard>, Rejection> {
        use ProxyListen::{Auto, Http};
        if !matches!(self.protocol, Some(Auto | Http)) {
            return Ok(None);
        }
        let dialogue = Dialogue::Http(http::Head::default());
        self.converse(speaker, dialogue, rest, source).await
    }

    async fn converse(
        &self,
        speaker: &Speaker<'_>,
        dialogue: Dialogue,
        bytes: Vec<u8>,
        source: Option<Source>,
    ) -> Result<Option<Heard>, Rejection> {
        let authentication = self.users.as_deref().map(Users::authentication);
        let heard = converse(speaker, dialogue, bytes, authentication.as_ref()).await?;
        Ok(heard.map(|(request, rest)| Heard {
            request,
            rest,
            source,
        }))
    }

    fn dialogue(&self, socket: &LocalSocket) -> Result<Dialogue, Rejection> {
        let target = || self.targets.first().cloned();
        Ok(match self.protocol {
            None => Dialogue::None {
                url: target().unwrap_or_default(),
            },
            Some(ProxyListen::Socks5) => Dialogue::Socks5(socks5::Stage::default()),
            Some(ProxyListen::Http) => Dialogue::Http(http::Head::default()),
            Some(ProxyListen::Auto) => Dialogue::Auto { target: target() },
            Some(ProxyListen::Transparent) => {
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

/// Waits until an HTTP client begins its next request. Returns the begin of the request, or nothing
/// if the client ended its half or sent nothing for [`IDLE_TIME`].
pub(crate) async fn next_begins(socket: &LocalSocket, mut bytes: Vec<u8>) -> Vec<u8> {
    let until = Instant::now() + IDLE_TIME;
    loop {
        bytes.drain(..http::empty_lines(&bytes));
        if !bytes.is_empty() {
            return bytes;
        }
        let more = timeout_at(until, read_more(socket, &mut bytes, GREETING_BYTES_MAX)).await;
        if !matches!(more, Ok(Ok(length)) if length > 0) {
            return Vec::new();
        }
    }
}

/// Runs `dialogue` until the request is complete. `bytes` are the bytes that have been read.
/// Returns the request, and the bytes after the request; `None`: the gateway has answered.
async fn converse(
    speaker: &Speaker<'_>,
    mut dialogue: Dialogue,
    mut bytes: Vec<u8>,
    authentication: Option<&Authentication<'_>>,
) -> Result<Option<(Request, Vec<u8>)>, Rejection> {
    let socket = speaker.socket;
    let begun = Instant::now();
    let authenticator = authentication.map(|authentication| authentication as &dyn Authenticator);
    let may_be_silent = matches!(dialogue, Dialogue::Auto { target: Some(_) });
    let mut long_head: Option<Permit> = None;
    loop {
        match dialogue.step(&bytes, authenticator)? {
            Step::Request { consumed, request } => {
                bytes.drain(..consumed);
                return Ok(Some((request, bytes)));
            }
            Step::Reply { consumed, reply } => {
                bytes.drain(..consumed);
                if !socket.send_at_once(&reply) {
                    return Err(gone());
                }
                continue;
            }
            Step::Answered { reply } => {
                let socket: &dyn LocalEnd = socket;
                socket.end_with(&reply).await;
                return Ok(None);
            }
            Step::Pending => {
                if let Some(authentication) = authentication {
                    authentication.verify(begun + GREETING_TIME).await;
                }
                continue;
            }
            Step::Incomplete => {}
        }
        if bytes.len() >= GREETING_BYTES_MAX && long_head.is_none() {
            long_head = Some(speaker.long_heads.enter(speaker.address)?);
        }
        let (most, evicted) = match &mut long_head {
            Some(permit) => (HEAD_BYTES_MAX, Either::Left(permit.evicted())),
            None => (GREETING_BYTES_MAX, Either::Right(pending())),
        };
        let patience = if may_be_silent && bytes.is_empty() {
            SILENCE_TIME
        } else {
            GREETING_TIME
        };
        let more = tokio::select! {
            biased;
            () = evicted => return Err(Rejection::evicted()),
            more = timeout_at(begun + patience, read_more(socket, &mut bytes, most)) => more,
        };
        let rejection = match more {
            Ok(Ok(length)) if length > 0 => continue,
            Ok(_) => gone(),
            Err(_) => late("did not complete its request in time"),
        };
        // The client sends no more bytes. Its incomplete request may be payload for the default
        // target.
        let request = dialogue.give_up().ok_or(rejection)?;
        return Ok(Some((request, bytes)));
    }
}

/// Waits for data and reads it, until the buffer has `most` bytes. Returns 0 at the end of the
/// stream, or if the buffer is full.
async fn read_more(
    socket: &LocalSocket,
    bytes: &mut Vec<u8>,
    most: usize,
) -> std::io::Result<usize> {
    let most = most.saturating_sub(bytes.len());
    // The buffer starts empty and grows with the data, to save memory while up to [`GREETINGS_MAX`]
    // silent clients wait here.
    let mut limited = ByteStream(socket).take(most as u64);
    limited.read_buf(bytes).await
}

/// Reads the PROXY header and no byte after the header.
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
        "closed its connection before it completed its request",
    )
}

/// The tests use a paused clock: time advances only through the waits of the code under test.
#[cfg(test)]
mod tests {
    use super::super::long_heads::LONG_HEADS_MAX;
    use futures::StreamExt;
    use futures::stream::FuturesUnordered;
    use muxtunnel_gateway_config::Accept;
    use muxtunnel_testkit::socket;
    use tokio::io::AsyncWriteExt;
    use tokio::net::TcpStream;

    use super::*;

    async fn pair() -> (TcpStream, LocalSocket) {
        let (client, accepted) = socket::pair().await;
        (client, accepted.into())
    }

    async fn heard(
        protocol: &IngressProtocol,
        socket: &LocalSocket,
        source: &mut Option<Source>,
    ) -> Result<Heard, Rejection> {
        let speaker = Speaker {
            socket,
            address: None,
            long_heads: &LongHeads::default(),
        };
        let heard = protocol.hear(&speaker, source).await;
        heard.map(|heard| heard.expect("no answer of the gateway itself"))
    }

    /// Connects a client to a port with `protocol`. The client sends `said`. Returns the result and
    /// the elapsed time.
    async fn hear(
        protocol: Option<ProxyListen>,
        target: Option<&str>,
        accept: bool,
        said: &[u8],
    ) -> (Result<Heard, Rejection>, Duration) {
        let ingress_protocol = IngressProtocol {
            protocol,
            targets: target.map(Into::into).into_iter().collect(),
            users: None,
            proxy: ProxyProtocol {
                accept: accept.then_some(Accept::Required),
                send: None,
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
            heard(&ingress_protocol, &socket, &mut None).await,
            begun.elapsed(),
        )
    }

    /// Timers are exact to a millisecond.
    fn is(elapsed: Duration, expected: Duration) -> bool {
        (expected..expected + Duration::from_millis(5)).contains(&elapsed)
    }

    #[tokio::test]
    async fn a_client_that_does_not_come_to_an_end_is_given_up_in_time() {
        for (protocol, said) in [
            (ProxyListen::Socks5, &b""[..]),
            (ProxyListen::Socks5, b"\x05\x01\x00\x05"),
            (ProxyListen::Http, b"CONNECT web:80 HTTP/1.1\r\nHost:"),
            (ProxyListen::Auto, b""),
        ] {
            let (heard, elapsed) = hear(Some(protocol), None, false, said).await;
            let code = heard.err().map(|rejection| rejection.code);
            assert_eq!(code, Some(Code::ClientRequestTimedOut), "{said:?}");
            assert!(is(elapsed, GREETING_TIME), "{elapsed:?} for {said:?}");
            tokio::time::resume();
        }
    }

    #[tokio::test]
    async fn a_client_that_waits_for_its_target_to_speak_is_led_there() {
        for (said, expected) in [(&b""[..], SILENCE_TIME), (b"GE", GREETING_TIME)] {
            let (heard, elapsed) =
                hear(Some(ProxyListen::Auto), Some("tcp://x:1"), false, said).await;
            let heard = heard.ok().unwrap();
            assert_eq!(heard.request, Request::raw(&"tcp://x:1".into()));
            assert_eq!(heard.rest, said);
            assert!(is(elapsed, expected), "{elapsed:?} for {said:?}");
            tokio::time::resume();
        }
    }

    /// The log must name the client, not the load balancer.
    #[tokio::test]
    async fn whom_a_proxy_header_names_is_known_of_a_client_that_is_rejected_too() {
        let ingress_protocol = IngressProtocol {
            protocol: Some(ProxyListen::Http),
            targets: Rc::default(),
            users: None,
            proxy: ProxyProtocol {
                accept: Some(Accept::Required),
                send: None,
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
        let rejection = heard(&ingress_protocol, &socket, &mut source).await.err();
        let rejection = rejection.unwrap();
        assert_eq!(rejection.code, Code::ClientRequestInvalid);
        assert_eq!(source, Some(said));
    }

    #[tokio::test]
    async fn long_heads_are_bounded_and_keep_nobody_out() {
        let protocol = IngressProtocol {
            protocol: Some(ProxyListen::Http),
            targets: Rc::default(),
            users: None,
            proxy: ProxyProtocol::default(),
        };
        let long_heads = LongHeads::default();
        let client = async |address: &str, end: &str| {
            let address = Some(address.parse().unwrap());
            let (mut tcp, socket) = pair().await;
            let speaker = Speaker {
                socket: &socket,
                address,
                long_heads: &long_heads,
            };
            let request = format!("GET http://web/{}{end}", "p".repeat(2 * GREETING_BYTES_MAX));
            let mut source = None;
            let heard = protocol.hear(&speaker, &mut source);
            let (heard, _) = tokio::join!(heard, tcp.write_all(request.as_bytes()));
            heard.map_err(|rejection| rejection.code)
        };
        let mut crowd: FuturesUnordered<_> = (0..LONG_HEADS_MAX)
            .map(|_| client("192.0.2.1", ""))
            .collect();
        while long_heads.taken() < LONG_HEADS_MAX {
            tokio::select! {
                left = crowd.next() => panic!("{:?}", left.map(Result::err)),
                () = tokio::task::yield_now() => {}
            }
        }
        let good = client("192.0.2.2", " HTTP/1.1\r\nHost: web\r\n\r\n");
        let (good, evicted) = tokio::join!(good, crowd.next());
        assert!(good.is_ok_and(|heard| heard.is_some()));
        let code = evicted.and_then(Result::err);
        assert_eq!(code, Some(Code::TooManyGreetings));
        assert_eq!(long_heads.taken(), LONG_HEADS_MAX - 1);
    }

    #[tokio::test]
    async fn a_sender_that_does_not_say_who_the_client_is_is_given_up_in_time() {
        for said in [&b""[..], b"\r\n\r\n\0\r\nQUIT\n\x21\x11\x00\x0cshort"] {
            let (heard, elapsed) = hear(None, Some("tcp://x:1"), true, said).await;
            let code = heard.err().map(|rejection| rejection.code);
            assert_eq!(code, Some(Code::ClientRequestTimedOut), "{said:?}");
            assert!(is(elapsed, PROXY_TIME), "{elapsed:?}");
            tokio::time::resume();
        }
    }
}
