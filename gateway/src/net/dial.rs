//! Connects an exit to a target. The steps are: URL, name, addresses, decision, connection.
//!
//! A name is resolved once, and the exit dials exactly the addresses that the policy permitted, in a
//! [race](super::race).

use std::borrow::Cow;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::Duration;

use muxtunnel_codes::Code;
use muxtunnel_gateway_config::UNIX_PREFIX;
use muxtunnel_proto::{Reason, Refusal};
use socket2::{Domain, SockAddr};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::Instant;

use crate::base::forward::Admission;
use crate::base::open_files::{self, stream_socket};
use crate::base::telemetry::Telemetry;
use crate::io::local_end::LocalEnd;
use crate::io::local_socket::{LocalAddress, LocalSocket, canonical};
use crate::net::dns::{self, Asker, Found};
use crate::net::egress::bare;
use crate::net::policy::{Authorizer, Host};
use crate::net::race::{Lost, by_family, race};

/// Maximum time for resolving and connecting, over all addresses. The peer waits 15 s for the
/// reason.
const DIAL_TIMEOUT: Duration = Duration::from_secs(10);

/// A target that could not be reached: the refusal for the peer, and the code for the metrics.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct DialError {
    pub(crate) code: Code,
    pub(crate) refusal: Refusal,
}

impl DialError {
    pub(crate) fn new(code: Code, reason: Reason, description: String) -> Self {
        Self {
            code,
            refusal: Refusal::new(reason, format!("{code}: {description}")),
        }
    }

    /// Counts and logs the failure. `target` is the requested target. Returns the refusal for the
    /// peer.
    pub(crate) fn report(self, telemetry: &Telemetry, target: &str) -> Refusal {
        telemetry.streams.refused(self.code);
        if telemetry.may_log_refusal() {
            tracing::warn!(code = %self.code, %target, reason = %self.refusal.description, "Open refused");
        }
        self.refusal
    }
}

/// An established connection to a target.
#[derive(Debug)]
pub(crate) struct Dialled {
    pub(crate) socket: Box<dyn LocalEnd>,
    /// The address that was dialled.
    pub(crate) address: LocalAddress,
    /// The stream's places in its forward, if the forward is on this side, and of its peer.
    pub(crate) admission: Admission,
    /// The dialled URL, if the peer specified a listener instead of a URL.
    pub(crate) url: Option<Rc<str>>,
}

/// Connects to `target` (`tcp://host:port`, or `unix:/path`) if `authorizer` permits it.
///
/// # Errors
/// [`DialError`] with a reason from the wire protocol.
pub(crate) async fn dial(target: &str, authorizer: Authorizer<'_>) -> Result<Dialled, DialError> {
    let asker = Asker::peer(authorizer.peer);
    let resolve = async |host: &str, port| dns::resolve(asker, host, port).await;
    dial_by(target, authorizer, resolve).await
}

/// Works as [`dial`]. `resolve` returns the addresses of a name, and is called at most once per
/// dial.
async fn dial_by<R>(
    target: &str,
    authorizer: Authorizer<'_>,
    resolve: R,
) -> Result<Dialled, DialError>
where
    R: AsyncFnOnce(&str, u16) -> std::io::Result<Found>,
{
    if let Some(path) = target.strip_prefix(UNIX_PREFIX) {
        return dial_unix(path, authorizer);
    }
    let (text, port) = parse(target)?;
    let Some(host) = Host::read(text) else {
        let text = format!("{text:?} is neither a host name nor an address in standard notation");
        return Err(DialError::new(Code::OpenRefused, Reason::NotAllowed, text));
    };
    if !authorizer.may_permit(host, port) {
        return Err(denied(text, port));
    }
    let until = Instant::now() + DIAL_TIMEOUT;
    let found = match host {
        Host::Address(address) => vec![SocketAddr::new(address, port)].into(),
        Host::Name(name) => {
            let asked = match text.ends_with('.') || authorizer.is_whole(host, port) {
                true => whole(name),
                false => Cow::Borrowed(name),
            };
            let resolved = tokio::time::timeout_at(until, resolve(&asked, port)).await;
            found(name, resolved.map_err(|_| timed_out(text, port))?)?
        }
    };
    let permitted = |addresses: Vec<SocketAddr>| {
        let addresses = addresses.into_iter().map(canonical);
        let permitted = addresses.filter(|address| authorizer.permits(host, address.ip(), port));
        by_family(permitted.collect())
    };
    let first = permitted(found.addresses);
    let late = async { permitted(found.late.await) };
    let raced = race(first, late, until, |address, _| connect_or_reset(address)).await;
    let lost = match raced {
        Ok((address, tcp)) => {
            return Ok(Dialled {
                socket: Box::new(LocalSocket::from(tcp)),
                address: address.into(),
                admission: Admission::default(),
                url: None,
            });
        }
        Err(lost) => lost,
    };
    if let Host::Name(name) = host {
        dns::forget(name);
    }
    Err(match lost {
        Lost::NoAddress => denied(text, port),
        Lost::Failed(address, error) => {
            let text = format!("{text}:{port} at {address}: {error}");
            DialError::new(open_files::code(&error), reason(&error), text)
        }
        Lost::TimedOut => timed_out(text, port),
    })
}

fn timed_out(host: &str, port: u16) -> DialError {
    let text = format!(
        "{host}:{port}: no connection within {} s, including the resolution of the name",
        DIAL_TIMEOUT.as_secs()
    );
    DialError::new(Code::OpenFailed, Reason::TimedOut, text)
}

/// Whether a rule denies the open stream to `target`, which is connected to `address`. The decision
/// uses the name and the address with which the stream was opened, since another look-up of the
/// name may return a different address.
pub(crate) fn is_denied(target: &str, address: &LocalAddress, authorizer: Authorizer<'_>) -> bool {
    match address {
        LocalAddress::Tcp(address) => {
            let read = parse(target).ok();
            let host = read.and_then(|(text, _)| Host::read(text));
            let host = host.unwrap_or(Host::Address(address.ip()));
            authorizer.denies(host, address.ip(), address.port())
        }
        LocalAddress::Unix(path) => authorizer.denies_unix(path),
    }
}

/// Connects to a Unix socket. The kernel answers immediately: connected, backlog full, or socket
/// not found.
fn dial_unix(path: &str, authorizer: Authorizer<'_>) -> Result<Dialled, DialError> {
    if !authorizer.permits_unix(path) {
        let text =
            format!("{UNIX_PREFIX}{path} is not allowed by the rules of the gateway that dials it");
        return Err(DialError::new(Code::OpenRefused, Reason::NotAllowed, text));
    }
    let connect = || {
        let socket = stream_socket(Domain::UNIX)?;
        socket.connect(&SockAddr::unix(path)?)?;
        UnixStream::from_std(OwnedFd::from(socket).into())
    };
    match connect() {
        Ok(unix) => Ok(Dialled {
            socket: Box::new(LocalSocket::Unix(unix)),
            address: LocalAddress::Unix(path.into()),
            admission: Admission::default(),
            url: None,
        }),
        Err(error) => {
            let reason = match error.kind() {
                ErrorKind::NotFound => Reason::HostUnreachable,
                _ => reason(&error),
            };
            let text = format!("{UNIX_PREFIX}{path}: {error}");
            Err(DialError::new(open_files::code(&error), reason, text))
        }
    }
}

/// Parses `tcp://HOST:PORT`. IPv6 addresses may have brackets. The port follows the last colon.
fn parse(target: &str) -> Result<(&str, u16), DialError> {
    let bad = |reason, text| {
        DialError::new(
            Code::OpenFailed,
            reason,
            format!("target {target:?}: {text}"),
        )
    };
    let rest = target
        .strip_prefix("tcp://")
        .ok_or_else(|| bad(Reason::AddressType, "only tcp:// and unix: are supported"))?;
    let (host, port) = rest
        .rsplit_once(':')
        .ok_or_else(|| bad(Reason::General, "the port is missing"))?;
    let host = bare(host);
    match port.parse() {
        Ok(port) if port > 0 && !host.is_empty() => Ok((host, port)),
        _ => Err(bad(Reason::General, "expected tcp://HOST:PORT")),
    }
}

fn denied(host: &str, port: u16) -> DialError {
    let text = format!("{host}:{port} is not allowed by the rules of the gateway that dials it");
    DialError::new(Code::OpenRefused, Reason::NotAllowed, text)
}

/// Connects. If the dial is cancelled after the connection is established, the connection is reset,
/// so that the target does not receive a regular end.
async fn connect_or_reset(address: SocketAddr) -> std::io::Result<TcpStream> {
    let socket = stream_socket(Domain::for_address(address))?;
    socket.set_tcp_nodelay(true)?;
    socket.set_linger(Some(Duration::ZERO))?;
    match socket.connect(&address.into()) {
        Err(error) if error.raw_os_error() != Some(libc::EINPROGRESS) => return Err(error),
        _ => {}
    }
    let tcp = TcpStream::from_std(socket.into())?;
    tcp.writable().await?;
    match tcp.take_error()? {
        Some(error) => Err(error),
        None => Ok(tcp),
    }
}

/// Makes a name absolute by a final dot, so that the resolver does not apply its search list. A
/// name with a single label remains unchanged, because a Service of the own namespace has such a
/// name.
fn whole(name: &str) -> Cow<'_, str> {
    match name.contains('.') {
        true => Cow::Owned(format!("{name}.")),
        false => Cow::Borrowed(name),
    }
}

/// Converts the result of a look-up.
fn found(host: &str, found: std::io::Result<Found>) -> Result<Found, DialError> {
    found.map_err(|error| {
        let reason = match error.kind() {
            ErrorKind::TimedOut => Reason::TimedOut,
            _ => Reason::HostUnreachable,
        };
        DialError::new(Code::OpenFailed, reason, format!("{host}: {error}"))
    })
}

fn reason(error: &std::io::Error) -> Reason {
    match error.kind() {
        ErrorKind::ConnectionRefused => Reason::ConnectionRefused,
        ErrorKind::NetworkUnreachable => Reason::NetworkUnreachable,
        ErrorKind::HostUnreachable => Reason::HostUnreachable,
        ErrorKind::TimedOut => Reason::TimedOut,
        _ => Reason::General,
    }
}

/// The URL of `host` and `port`. An IPv6 address has no brackets, as jetsocat expects.
pub(crate) fn url(host: &str, port: u16) -> String {
    format!("tcp://{host}:{port}")
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::task::{Context, Poll, Waker};

    use muxtunnel_gateway_config::{Config, Rule, Target};
    use tokio::net::TcpListener;

    use super::*;
    use crate::net::protected_addresses::ProtectedAddresses;
    use crate::net::rules::rules;

    /// Dials with the rules `allow`. `resolve` resolves names.
    async fn dial_allowing<R>(
        allow: &[&str],
        target: &str,
        resolve: R,
    ) -> Result<Dialled, DialError>
    where
        R: AsyncFnOnce(&str, u16) -> std::io::Result<Vec<SocketAddr>>,
    {
        let resolve = async |host: &str, port| resolve(host, port).await.map(Found::from);
        let text = format!(
            "role: Exit\nsecurity: {{mode: None}}\nlisten: 0.0.0.0:64000\nallow: [{}]\n",
            rules(allow)
        );
        let config = Config::from_yaml(&text).unwrap();
        let protected = ProtectedAddresses::new("", &config, |_| false);
        let in_force = config.reloadable();
        let authorizer = Authorizer::of_exit(&in_force, &protected, None);
        dial_by(target, authorizer, resolve).await
    }

    /// Works as [`dial_allowing`], for targets that need no look-up.
    async fn dial_literal(allow: &[&str], target: &str) -> Result<Dialled, DialError> {
        dial_allowing(allow, target, async |host, _| panic!("{host} is resolved")).await
    }

    #[test]
    fn ipv6_is_read_with_and_without_brackets_and_written_without() {
        assert_eq!(parse("tcp://[::1]:80").unwrap(), ("::1", 80));
        assert_eq!(parse("tcp://::1:80").unwrap(), ("::1", 80));
        assert_eq!(url("::1", 80), "tcp://::1:80");
    }

    #[test]
    fn other_schemes_and_malformed_targets_are_refused_with_a_reason() {
        assert_eq!(
            parse("udp://a:1").unwrap_err().refusal.reason,
            Reason::AddressType
        );
        for target in ["tcp://a", "tcp://:1", "tcp://a:0", "tcp://a:x", "tcp://"] {
            assert_eq!(
                parse(target).unwrap_err().refusal.reason,
                Reason::General,
                "{target}"
            );
        }
    }

    #[tokio::test]
    async fn a_target_that_is_not_allowed_is_not_even_resolved() {
        for target in ["tcp://other:80", "tcp://127.1:80", "tcp://2130706433:80"] {
            let error = dial_literal(&["web:80"], target).await.unwrap_err();
            assert_eq!(
                (error.code, error.refusal.reason),
                (Code::OpenRefused, Reason::NotAllowed)
            );
        }
    }

    #[tokio::test]
    async fn loopback_needs_a_literal_rule() {
        let (_listener, address) = listener().await;
        let target = url("127.0.0.1", address.port());
        let error = dial_literal(&["0.0.0.0/0"], &target).await.unwrap_err();
        assert_eq!(error.code, Code::OpenRefused);
        assert!(dial_literal(&["127.0.0.1"], &target).await.is_ok());
    }

    #[tokio::test]
    async fn a_closed_port_is_reported_as_refused() {
        let (listener, address) = listener().await;
        drop(listener);
        let target = url("127.0.0.1", address.port());
        let error = dial_literal(&["127.0.0.1"], &target).await.unwrap_err();
        assert_eq!(error.refusal.reason, Reason::ConnectionRefused);
    }

    /// The name server returns a different answer to the second query.
    #[tokio::test]
    async fn the_address_that_was_judged_is_the_one_that_is_dialled() {
        let (good, allowed) = listener().await;
        let (bad, forbidden) = listener_on("127.0.0.2", allowed.port()).await;
        let lookups = Cell::new(0);
        let changing = async |_: &str, _: u16| {
            lookups.set(lookups.get() + 1);
            Ok(vec![if lookups.get() % 2 == 1 {
                allowed
            } else {
                forbidden
            }])
        };
        let target = url("rebound.example", allowed.port());
        let dialled = dial_allowing(&["127.0.0.1"], &target, &changing).await;
        assert_eq!(
            (dialled.unwrap().address, lookups.get()),
            (allowed.into(), 1)
        );
        let (_, client) = good.accept().await.unwrap();
        assert_eq!(client.ip(), allowed.ip());
        let refused = dial_allowing(&["127.0.0.1"], &target, &changing).await;
        assert_eq!(refused.unwrap_err().code, Code::OpenRefused);
        assert_eq!(lookups.get(), 2);
        assert_eq!(waiting(&bad), 0);
    }

    /// The rule that an entry derives from the target of a forward contains the target's name.
    #[tokio::test]
    async fn a_rule_for_a_name_leads_to_nothing_guarded_whatever_the_name_leads_to() {
        let (bad, forbidden) = listener().await;
        let port = forbidden.port();
        let (rule, target) = (
            format!("declared.example:{port}"),
            url("declared.example", port),
        );
        let guarded = [
            "127.0.0.1",
            "::ffff:127.0.0.1",
            "169.254.169.254",
            "fe80::1",
            "0.0.0.0",
        ];
        for address in guarded {
            let answer = vec![SocketAddr::new(address.parse().unwrap(), port)];
            let resolve = async |_: &str, _: u16| Ok(answer);
            let refused = dial_allowing(&[&rule], &target, resolve).await.unwrap_err();
            assert_eq!(refused.code, Code::OpenRefused, "{address}");
        }
        assert_eq!(waiting(&bad), 0);
    }

    /// In a pod, the search list would complete `web.shop` to a Service of the namespace `shop`.
    #[tokio::test]
    async fn a_name_that_is_whole_is_completed_by_no_search_list() {
        for (rule, asked, wanted) in [
            ("web.shop:80", "web.shop", "web.shop"),
            ("web.shop:80", "web.shop.", "web.shop."),
            // With a final dot in the exit's rule, the name is absolute, even if the peer's request
            // has no final dot.
            ("web.shop.:80", "web.shop", "web.shop."),
            ("web.shop.:80", "WEB.shop.", "WEB.shop."),
            ("*.shop:80", "web.shop", "web.shop"),
            ("*.shop.:80", "web.shop", "web.shop."),
            ("localhost.:80", "localhost", "localhost"),
        ] {
            let resolved = Cell::new(false);
            let resolve = async |host: &str, _: u16| {
                resolved.set(true);
                assert_eq!(host, wanted, "{rule} {asked}");
                Ok(Vec::new())
            };
            let target = url(asked, 80);
            dial_allowing(&[rule], &target, resolve).await.unwrap_err();
            assert!(resolved.get(), "{rule} {asked}");
        }
        let rule = Rule::of_target(&Target::Tcp {
            host: "Web.shop.".to_owned(),
            port: 80,
        });
        assert_eq!(rule.to_string(), "web.shop.:80");
    }

    #[tokio::test]
    async fn of_several_answers_only_those_that_are_permitted_are_dialled() {
        let (good, allowed) = listener().await;
        let (bad, forbidden) = listener_on("127.0.0.2", allowed.port()).await;
        let both = async |_: &str, _: u16| Ok(vec![forbidden, allowed]);
        let target = url("both.example", allowed.port());
        let dialled = dial_allowing(&["127.0.0.1"], &target, both).await;
        assert_eq!(dialled.unwrap().address, allowed.into());
        assert_eq!((waiting(&good), waiting(&bad)), (1, 0));
    }

    async fn listener() -> (TcpListener, SocketAddr) {
        listener_on("127.0.0.1", 0).await
    }

    async fn listener_on(host: &str, port: u16) -> (TcpListener, SocketAddr) {
        let listener = TcpListener::bind((host, port)).await.unwrap();
        let address = listener.local_addr().unwrap();
        (listener, address)
    }

    /// Number of connections in the accept queue.
    fn waiting(listener: &TcpListener) -> usize {
        let mut context = Context::from_waker(Waker::noop());
        std::iter::from_fn(|| match listener.poll_accept(&mut context) {
            Poll::Ready(accepted) => Some(accepted.unwrap()),
            Poll::Pending => None,
        })
        .count()
    }
}
