//! Connections of load balancers to a carrier port, and the addresses of the load balancers'
//! clients.
//!
//! A connection through a load balancer has the load balancer's source address, so limits by source
//! address would treat all of its clients as one client. Load balancers in `trustedProxies`
//! therefore begin each connection with a PROXY header ([`crate::io::proxy_header`]). Input: a
//! connection of a trusted load balancer, from which no byte has been read. Output: the address
//! that the limiter counts and that logs and status show. The bytes after the header remain in the
//! kernel. On connections from other addresses, the gateway reads no header, since otherwise a
//! client could claim any address.
//!
//! Bounds: a header of at most [`HEADER_BYTES_MAX`] within [`PROOF_MAX`]. Until the header is
//! complete, the connection holds a permit of the [`HandshakeLimiter`] for the load balancer's
//! address.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use muxtunnel_gateway_config::Reloadable;
use muxtunnel_proto::Source;
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout_at};

use crate::base::handshake_limiter::{Dropped, HandshakeLimiter};
use crate::io::local_socket::canonical;
use crate::io::proxy_header::{HEADER_BYTES_MAX, Progress, progress};
use crate::io::security::PROOF_MAX;

/// Why a connection of a load balancer is rejected.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Unintroduced {
    #[error(
        "a connection from trustedProxies {0}: enable PROXY headers on the load balancer, or remove its address from trustedProxies"
    )]
    Header(&'static str),
    #[error(
        "evicted: too many connections have not completed their handshake, and this connection was the oldest from its address"
    )]
    Evicted,
    #[error(transparent)]
    Dropped(#[from] Dropped),
}

/// Whether a connection from `address` must begin with a PROXY header.
pub(crate) fn have(reloadable: &Reloadable, address: IpAddr) -> bool {
    let mut networks = reloadable.trusted_proxies.iter();
    networks.any(|network| network.contains(address))
}

/// Returns the address behind the load balancer at `proxy`: its client, or the load balancer itself
/// if the header specifies no client. `None`: the connection was a health check of the port.
///
/// # Errors
/// [`Unintroduced`].
pub(crate) async fn client(
    tcp: &mut TcpStream,
    proxy: SocketAddr,
    limiter: &Arc<HandshakeLimiter>,
) -> Result<Option<SocketAddr>, Unintroduced> {
    let mut permit = limiter.enter(Some(proxy.ip()))?;
    // The header proves no identity, so the limiter must count the connection neither as a
    // completed nor as a failed handshake.
    permit.excused();
    let client = tokio::select! {
        biased;
        client = introduction(tcp, proxy) => client.map_err(Unintroduced::Header)?,
        () = permit.evicted() => return Err(Unintroduced::Evicted),
    };
    match client {
        Some(client) => {
            tracing::debug!(%proxy, %client, "Read the client address from a PROXY header");
        }
        None => {
            tracing::debug!(%proxy, "A load balancer only checked that the port accepts connections");
        }
    }
    Ok(client)
}

async fn introduction(
    tcp: &mut TcpStream,
    proxy: SocketAddr,
) -> Result<Option<SocketAddr>, &'static str> {
    let deadline = Instant::now() + PROOF_MAX;
    let header = timeout_at(deadline, header(tcp));
    let header = header
        .await
        .unwrap_or(Err("sent no PROXY header within 5 s"))?;
    match header {
        None => Ok(None),
        Some(Source::Tcp { client, .. }) => Ok(Some(canonical(client))),
        Some(Source::Unknown) => {
            // The header specifies no client. Load balancers also send such headers in health
            // checks, which close the connection at once.
            let byte = timeout_at(deadline, tcp.peek(&mut [0])).await;
            Ok((!matches!(byte, Ok(Ok(0) | Err(_)))).then_some(proxy))
        }
    }
}

/// Reads the header and no byte after the header; `None`: the connection ended before its first
/// byte.
async fn header(tcp: &mut TcpStream) -> Result<Option<Source>, &'static str> {
    let mut bytes = [0; HEADER_BYTES_MAX];
    let mut filled = 0;
    loop {
        let needs = match progress(&bytes[..filled])? {
            Progress::Whole(source) => return Ok(Some(source)),
            Progress::Needs(needs) => needs,
        };
        // The buffer has room for every valid header.
        match tcp.read(&mut bytes[filled..][..needs]).await {
            Ok(length) if length > 0 => filled += length,
            _ if filled == 0 => return Ok(None),
            _ => return Err("ended within its PROXY header"),
        }
    }
}

#[cfg(test)]
mod tests {
    use muxtunnel_testkit::socket::pair;
    use tokio::io::AsyncWriteExt;

    use super::*;
    use crate::base::handshake_limiter::EarlyDrop;
    use crate::io::proxy_header;

    const PROXY: &str = "192.0.2.1:4000";
    const CLIENT: &str = "203.0.113.7:5000";

    fn at(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    /// The result for a connection that sends `said`, and then ends if `ends` is true.
    async fn heard(said: &[u8], ends: bool) -> Result<Option<SocketAddr>, Unintroduced> {
        let (mut balancer, mut tcp) = pair().await;
        balancer.write_all(said).await.unwrap();
        if ends {
            drop(balancer);
            return client(
                &mut tcp,
                at(PROXY),
                &HandshakeLimiter::new(1, EarlyDrop::Off),
            )
            .await;
        }
        if !said.is_empty() {
            tcp.readable().await.unwrap();
        }
        tokio::time::pause();
        let heard = client(
            &mut tcp,
            at(PROXY),
            &HandshakeLimiter::new(1, EarlyDrop::Off),
        )
        .await;
        tokio::time::resume();
        heard
    }

    fn header_of(client: &str) -> Vec<u8> {
        proxy_header::header(Source::of(at(client), at("192.0.2.9:64000")))
    }

    #[tokio::test]
    async fn a_header_names_the_client_and_what_is_behind_it_stays() {
        for (client_address, expected) in [
            (CLIENT, CLIENT),
            ("[2001:db8::7]:5000", "[2001:db8::7]:5000"),
            ("[::ffff:203.0.113.7]:5000", CLIENT),
        ] {
            let (mut balancer, mut tcp) = pair().await;
            let said = [&header_of(client_address)[..], b"carrier"].concat();
            balancer.write_all(&said).await.unwrap();
            let heard = client(
                &mut tcp,
                at(PROXY),
                &HandshakeLimiter::new(1, EarlyDrop::Off),
            )
            .await;
            assert_eq!(heard, Ok(Some(at(expected))));
            let mut rest = [0; 7];
            tcp.read_exact(&mut rest).await.unwrap();
            assert_eq!(&rest, b"carrier");
        }
        // The source is an IPv4-mapped address, and the destination is an IPv6 address.
        let mixed = Source::of(at("[::ffff:203.0.113.7]:5000"), at("[2001:db8::1]:64000"));
        let heard = heard(&proxy_header::header(mixed), false).await;
        assert_eq!(heard, Ok(Some(at(CLIENT))));
    }

    #[tokio::test]
    async fn checks_of_a_load_balancer_are_nobody_and_who_goes_on_without_a_client_is_itself() {
        let local = proxy_header::header(Source::Unknown);
        assert_eq!(heard(b"", true).await, Ok(None));
        for unknown in [&local[..], b"PROXY UNKNOWN\r\n"] {
            assert_eq!(heard(unknown, true).await, Ok(None));
            let goes_on = [unknown, b"carrier"].concat();
            assert_eq!(heard(&goes_on, false).await, Ok(Some(at(PROXY))));
            assert_eq!(heard(unknown, false).await, Ok(Some(at(PROXY))));
        }
    }

    #[tokio::test]
    async fn without_a_whole_header_in_time_there_is_nobody_to_believe() {
        let header = header_of(CLIENT);
        let half = &header[..20];
        for (said, ends, problem) in [
            (&b""[..], false, "sent no PROXY header within 5 s"),
            (half, false, "sent no PROXY header within 5 s"),
            (half, true, "ended within its PROXY header"),
            (b"\x16\x03\x01", false, "does not begin with a PROXY header"),
        ] {
            let heard = heard(said, ends).await;
            assert_eq!(heard, Err(Unintroduced::Header(problem)), "{said:?}");
        }
    }

    #[tokio::test]
    async fn those_that_have_not_said_it_are_bounded() {
        let limiter = HandshakeLimiter::new(1, EarlyDrop::Off);
        let (_balancer, mut tcp) = pair().await;
        let silent = client(&mut tcp, at(PROXY), &limiter);
        let more = async {
            tokio::task::yield_now().await;
            limiter.enter(Some(at(PROXY).ip())).unwrap()
        };
        let (silent, _more) = tokio::join!(silent, more);
        assert_eq!(silent, Err(Unintroduced::Evicted));
        assert_eq!(limiter.taken(), 1);
    }
}
