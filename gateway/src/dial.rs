//! The exit's way to a target: URL -> name -> addresses -> judgement -> connection.

use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use muxtunnel_codes::Code;
use muxtunnel_gateway_config::Allow;
use muxtunnel_proto::{Reason, Refusal};
use socket2::{Domain, Socket, Type};
use tokio::net::TcpStream;

use crate::policy;

/// Resolving and connecting, all addresses together. Below the opener's 15 s, so that it hears why.
const DIAL_TIMEOUT: Duration = Duration::from_secs(10);
/// One address, where there are others to try.
const ADDRESS_TIMEOUT: Duration = Duration::from_secs(3);

/// A target that was not reached: what the peer is told, and what is counted here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct DialError {
    pub(crate) code: Code,
    pub(crate) refusal: Refusal,
}

impl DialError {
    fn new(code: Code, reason: Reason, description: String) -> Self {
        Self {
            code,
            refusal: Refusal::new(reason, format!("{code}: {description}")),
        }
    }
}

/// A connection to a target.
#[derive(Debug)]
pub(crate) struct Dialled {
    pub(crate) tcp: TcpStream,
    /// What the target resolved to.
    pub(crate) address: SocketAddr,
}

/// Connects to `target` (`tcp://host:port`) if `allow` permits it.
///
/// # Errors
/// [`DialError`] with the reason that fits the wire.
pub(crate) async fn dial(target: &str, allow: &[Allow]) -> Result<Dialled, DialError> {
    let (host, port) = parse(target)?;
    if !policy::may_permit(allow, host, port) {
        return Err(denied(host, port));
    }
    tokio::time::timeout(DIAL_TIMEOUT, connect(host, port, allow))
        .await
        .unwrap_or_else(|_| {
            let text = format!(
                "{host}:{port} did not answer within {} s",
                DIAL_TIMEOUT.as_secs()
            );
            Err(DialError::new(Code::OpenFailed, Reason::TimedOut, text))
        })
}

/// `tcp://HOST:PORT`; IPv6 with or without brackets, the port after the last colon.
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
        .ok_or_else(|| bad(Reason::AddressType, "only tcp:// is supported"))?;
    let (host, port) = rest
        .rsplit_once(':')
        .ok_or_else(|| bad(Reason::General, "there is no port"))?;
    let host = host
        .strip_prefix('[')
        .and_then(|h| h.strip_suffix(']'))
        .unwrap_or(host);
    match port.parse() {
        Ok(port) if port > 0 && !host.is_empty() => Ok((host, port)),
        _ => Err(bad(Reason::General, "expected tcp://HOST:PORT")),
    }
}

fn denied(host: &str, port: u16) -> DialError {
    let text = format!("{host}:{port} is not allowed by this exit's rules");
    DialError::new(Code::OpenRefused, Reason::NotAllowed, text)
}

async fn connect(host: &str, port: u16, allow: &[Allow]) -> Result<Dialled, DialError> {
    let addresses = resolve(host, port).await?;
    let permitted: Vec<SocketAddr> = addresses
        .into_iter()
        .filter(|a| policy::permits(allow, host, a.ip(), port))
        .collect();
    let mut last = denied(host, port);
    for &address in &permitted {
        let attempt = connect_or_reset(address);
        let attempt = async {
            if permitted.len() == 1 {
                return Ok(attempt.await);
            }
            tokio::time::timeout(ADDRESS_TIMEOUT, attempt).await
        };
        match attempt.await {
            Ok(Ok(tcp)) => return Ok(Dialled { tcp, address }),
            Ok(Err(error)) => {
                let text = format!("{host}:{port} at {address}: {error}");
                last = DialError::new(Code::OpenFailed, reason(&error), text);
            }
            Err(_) => {
                let text = format!("{host}:{port} at {address}: timed out");
                last = DialError::new(Code::OpenFailed, Reason::TimedOut, text);
            }
        }
    }
    Err(last)
}

/// Connects. A connection that nobody waits for any more is reset: the target must not take it for one
/// that ended well.
async fn connect_or_reset(address: SocketAddr) -> std::io::Result<TcpStream> {
    let kind = Type::STREAM.nonblocking().cloexec();
    let socket = Socket::new(Domain::for_address(address), kind, None)?;
    socket.set_tcp_nodelay(true)?;
    match socket.connect(&address.into()) {
        Err(error) if error.raw_os_error() != Some(libc::EINPROGRESS) => return Err(error),
        _ => {}
    }
    let mut connecting = Connecting(Some(TcpStream::from_std(socket.into())?));
    connecting.done().await
}

/// A connection under way; reset when it is dropped.
struct Connecting(Option<TcpStream>);

impl Connecting {
    async fn done(&mut self) -> std::io::Result<TcpStream> {
        if let Some(tcp) = &self.0 {
            tcp.writable().await?;
            if let Some(error) = tcp.take_error()? {
                return Err(error);
            }
        }
        self.0.take().ok_or_else(|| ErrorKind::NotConnected.into())
    }
}

impl Drop for Connecting {
    fn drop(&mut self) {
        if let Some(tcp) = &self.0 {
            let _ = tcp.set_zero_linger();
        }
    }
}

/// Address literals in their one standard spelling are taken as they are; anything else is a name.
async fn resolve(host: &str, port: u16) -> Result<Vec<SocketAddr>, DialError> {
    if let Ok(address) = host.parse::<IpAddr>() {
        return Ok(vec![SocketAddr::new(address, port)]);
    }
    let unreachable = |text| {
        DialError::new(
            Code::OpenFailed,
            Reason::HostUnreachable,
            format!("{host}: {text}"),
        )
    };
    let found = tokio::net::lookup_host((host, port))
        .await
        .map_err(|error| unreachable(error.to_string()))?;
    let addresses: Vec<SocketAddr> = found.collect();
    if addresses.is_empty() {
        Err(unreachable("has no address".to_owned()))
    } else {
        Ok(addresses)
    }
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

/// The URL for `host` and `port`: IPv6 without brackets, as jetsocat reads it.
pub(crate) fn url(host: &str, port: u16) -> String {
    format!("tcp://{host}:{port}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allow(entries: &[&str]) -> Vec<Allow> {
        entries.iter().map(|entry| entry.parse().unwrap()).collect()
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
        let error = dial("tcp://no.such.name.invalid:80", &allow(&["web:80"]))
            .await
            .unwrap_err();
        assert_eq!(
            (error.code, error.refusal.reason),
            (Code::OpenRefused, Reason::NotAllowed)
        );
    }

    #[tokio::test]
    async fn loopback_needs_a_literal_entry() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let target = url("127.0.0.1", port);
        assert_eq!(
            dial(&target, &allow(&["0.0.0.0/0"]))
                .await
                .unwrap_err()
                .code,
            Code::OpenRefused
        );
        assert!(dial(&target, &allow(&["127.0.0.1"])).await.is_ok());
    }

    #[tokio::test]
    async fn a_closed_port_is_reported_as_refused() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        drop(listener);
        let error = dial(&url("127.0.0.1", port), &allow(&["127.0.0.1"]))
            .await
            .unwrap_err();
        assert_eq!(error.refusal.reason, Reason::ConnectionRefused);
    }
}
