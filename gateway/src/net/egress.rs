//! Connects a gateway to another gateway: to a TCP port, directly or through a proxy, to a UDP
//! port, or to a Unix socket.
//!
//! Input: the settings in the configuration and the environment. Output: a connection to a peer
//! that has not proved its identity yet. [`crate::io::security`] verifies the identity.

mod address;
mod environment;
mod http;
#[cfg(any(test, feature = "oracles"))]
pub(crate) mod oracle;
mod socks5;
mod waits;

use std::collections::BTreeMap;
use std::io::{Error, ErrorKind};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures::stream::{FuturesUnordered, StreamExt};
use muxtunnel_gateway_config::{
    self as config, Config, Proxy, ProxyScheme, ProxyServer, UNIX_PREFIX,
};
use rand::Rng;
use rand::seq::SliceRandom;
use tokio::io::AsyncReadExt;
use tokio::net::{TcpStream, UnixStream};
use tokio::time::{Instant, timeout_at};

use crate::io::transport::{Kcp, KcpWindows, Tcp, Transport, Unix};
use crate::net::dns::{self, Asker, Found};
use crate::net::race::{by_family, race};
pub(crate) use address::{Address, bare};
pub(crate) use waits::{Step, Waits};

/// Maximum time for a look-up. This time covers one name server that does not answer.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(10);
/// After the first addresses of exits, the maximum time to wait for those of the other family and of
/// other names.
const LATE_MAX: Duration = Duration::from_secs(1);
/// Maximum time for the first connection to a proxy, for a connection to a Unix socket, and for the
/// first connection by name.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum time for the first connection to one address. If nothing answers, the next connection
/// has more time ([`Waits`]). This time covers one lost SYN, which Linux
/// retransmits after 1 s, and a round trip of 2 s. The kernel alone would try for two minutes. An
/// entry whose exit has disappeared should try another exit much sooner.
const DIAL_TIMEOUT: Duration = Duration::from_secs(3);
/// Maximum time for a proxy to connect to the exit for the first time.
const PROXY_TIMEOUT: Duration = Duration::from_secs(10);

/// Maximum time for the exit to answer through a command. The value equals the default of sshd's
/// `LoginGraceTime`.
pub(crate) const COMMAND_TIMEOUT: Duration = Duration::from_secs(120);

/// How a gateway connects to other gateways.
#[derive(Debug, Clone)]
pub(crate) struct Egress {
    proxy: Option<Arc<ProxyServer>>,
    /// The proxy of the environment with transport Auto. Only WebSocket carriers use this proxy.
    requests_proxy: Option<Arc<ProxyServer>>,
    kcp: KcpWindows,
    /// How long the answers of addresses may take.
    pub(crate) waits: Waits,
}

impl Egress {
    /// Reads the settings from the configuration and the environment.
    ///
    /// # Errors
    /// The proxy that the environment specifies is invalid.
    pub(crate) fn of(config: &Config) -> anyhow::Result<Self> {
        let of_environment = || environment::proxy(config, |name| std::env::var(name).ok());
        let (proxy, requests_proxy) = match (&config.proxy, config.transport) {
            (Some(Proxy::None), _) => (None, None),
            (Some(Proxy::Server(server)), _) => (Some(server.clone()), None),
            (None, config::Transport::Auto) => (None, of_environment()?),
            (None, _) => (of_environment()?, None),
        };
        if let Some(proxy) = &proxy {
            tracing::info!(%proxy, "Carriers connect through a proxy");
        }
        if let Some(proxy) = &requests_proxy {
            tracing::info!(%proxy, "WebSocket carriers connect through a proxy");
        }
        Ok(Self {
            proxy: proxy.map(Arc::new),
            requests_proxy: requests_proxy.map(Arc::new),
            kcp: KcpWindows::of(&config.memory),
            waits: Waits::default(),
        })
    }

    /// Resolves the names of `exits`, which have their index in `connect`. Ignores names that do not
    /// resolve, as long as another name resolves. With a proxy for all carriers, the function
    /// resolves no names, because the proxy resolves them.
    ///
    /// # Errors
    /// No name resolves.
    pub(crate) async fn addresses(
        &self,
        exits: impl Iterator<Item = (usize, &str)>,
    ) -> std::io::Result<Vec<Address>> {
        let look_up = async |(number, exit)| (number, self.addresses_of(exit).await);
        let mut look_ups: FuturesUnordered<_> = exits.map(look_up).collect();
        let (mut found, mut last) = (BTreeMap::new(), None);
        let mut until = Instant::now() + 2 * LOOKUP_TIMEOUT;
        while let Ok(Some((number, result))) = timeout_at(until, look_ups.next()).await {
            match result {
                Ok(addresses) => {
                    // A name without an answer must not delay the others.
                    until = until.min(Instant::now() + LATE_MAX);
                    let of_exit = |address: Address| address.of_exit(number);
                    found.insert(
                        number,
                        addresses.into_iter().map(of_exit).collect::<Vec<_>>(),
                    );
                }
                Err(error) => last = Some(error),
            }
        }
        match last {
            Some(error) if found.is_empty() => Err(error),
            _ => Ok(found.into_values().flatten().collect()),
        }
    }

    async fn addresses_of(&self, exit: &str) -> std::io::Result<Vec<Address>> {
        if self.proxy.is_some() || exit.starts_with(UNIX_PREFIX) {
            return Ok(vec![Address::unresolved(exit)]);
        }
        let found = match resolve(exit).await {
            Ok(found) => found,
            // The proxy may be able to resolve the name.
            Err(_) if self.requests_proxy.is_some() => return Ok(vec![Address::unresolved(exit)]),
            Err(error) => return Err(error),
        };
        let late = tokio::time::timeout(LATE_MAX, found.late).await;
        let mut addresses = [found.addresses, late.unwrap_or_default()].concat();
        spread(&mut addresses, &mut rand::rng());
        let address = match &addresses[..] {
            [_] => Address::resolved,
            _ => Address::one_of_several,
        };
        Ok(addresses.into_iter().map(|ip| address(exit, ip)).collect())
    }

    /// Whether `exit` is a single endpoint that no name server can expand: an address, a Unix
    /// socket, or a name behind a proxy.
    pub(crate) fn is_single(&self, exit: &str) -> bool {
        let is_literal = exit.parse::<SocketAddr>().is_ok();
        is_literal || exit.starts_with(UNIX_PREFIX) || self.proxy.is_some()
    }

    /// Whether datagrams can reach the addresses that [`Self::addresses`] returns.
    pub(crate) const fn leads_datagrams(&self) -> bool {
        self.proxy.is_none()
    }

    /// Connects to `address`.
    ///
    /// # Errors
    /// The address does not answer, or the proxy refused the connection.
    pub(crate) async fn open(&self, address: &Address) -> std::io::Result<Box<dyn Transport>> {
        if let Some(path) = address.name().strip_prefix(UNIX_PREFIX) {
            let socket = in_time(UnixStream::connect(path)).await?;
            return Ok(Unix::boxed(socket, path));
        }
        let tcp = self.tcp(address).await?;
        Ok(self.carried(tcp, address))
    }

    /// Connects to `address` for a WebSocket carrier. If the name resolves to several addresses,
    /// the gateway first sends the IP address to the environment's proxy, since a session belongs
    /// to one exit. If the proxy refuses the address, the gateway sends the name, which the proxy
    /// may resolve to other addresses.
    ///
    /// # Errors
    /// The errors of [`Self::open`].
    pub(crate) async fn open_for_requests(
        &self,
        address: &Address,
    ) -> std::io::Result<Box<dyn Transport>> {
        match &self.requests_proxy {
            Some(proxy) => {
                let by_ip = match address.told_apart() {
                    Some(ip) => self.through(proxy, &ip.to_string()).await.ok(),
                    None => None,
                };
                let tcp = match by_ip {
                    Some(tcp) => tcp,
                    None => self.through(proxy, address.name()).await?,
                };
                Ok(Tcp::through(tcp, address.name().to_owned()))
            }
            None => self.open(address).await,
        }
    }

    /// Connects to the UDP port `address` by KCP.
    ///
    /// # Errors
    /// The address does not answer, or the name does not resolve.
    pub(crate) async fn kcp(&self, address: &Address) -> std::io::Result<Box<dyn Transport>> {
        let connect = |ip| Kcp::connect(ip, self.kcp);
        let Some(ip) = address.ip() else {
            return self.first_of(address.name(), connect).await;
        };
        let connect = async |limit| within(limit, connect(ip)).await;
        let step = (Step::Connect, &*format!("kcp:{ip}"));
        self.waits.within(step, DIAL_TIMEOUT, connect).await
    }

    /// Connects to the TCP port `address`.
    ///
    /// # Errors
    /// The errors of [`Self::open`].
    pub(crate) async fn tcp(&self, address: &Address) -> std::io::Result<TcpStream> {
        let Some(proxy) = &self.proxy else {
            let tcp = match address.ip() {
                Some(ip) => {
                    let connect = async |limit| within(limit, TcpStream::connect(ip)).await;
                    let step = (Step::Connect, &*ip.to_string());
                    self.waits.within(step, DIAL_TIMEOUT, connect).await?
                }
                None => self.first_of(address.name(), TcpStream::connect).await?,
            };
            tcp.set_nodelay(true)?;
            return Ok(tcp);
        };
        self.through(proxy, address.name()).await
    }

    /// Resolves `HOST:PORT`, and connects to the first of its addresses that answers.
    async fn first_of<T, F: Future<Output = std::io::Result<T>>>(
        &self,
        name: &str,
        connect: impl Fn(SocketAddr) -> F,
    ) -> std::io::Result<T> {
        let found = resolve(name).await?;
        let first = async |limit| {
            let until = Instant::now() + limit;
            let late = async { by_family(found.late.await) };
            let attempt = |address, _| connect(address);
            let (_, connected) = race(by_family(found.addresses), late, until, attempt).await?;
            Ok(connected)
        };
        let step = (Step::Connect, name);
        self.waits.within(step, CONNECT_TIMEOUT, first).await
    }

    async fn through(&self, proxy: &ProxyServer, to: &str) -> std::io::Result<TcpStream> {
        let wrong = |error: Error| Error::new(error.kind(), format!("proxy {proxy}: {error}"));
        let connected = self.first_of(&proxy.address, TcpStream::connect).await;
        let mut tcp = connected.map_err(wrong)?;
        tcp.set_nodelay(true)?;
        let lead = async |limit| within(limit, lead_on(&mut tcp, proxy, to)).await;
        let led = self.waits.within((Step::Meet, to), PROXY_TIMEOUT, lead);
        led.await.map_err(wrong)?;
        Ok(tcp)
    }

    /// Wraps a connection of [`Self::tcp`] as a transport.
    pub(crate) fn carried(&self, tcp: TcpStream, address: &Address) -> Box<dyn Transport> {
        match self.proxy {
            Some(_) => Tcp::through(tcp, address.name().to_owned()),
            None => Tcp::boxed(tcp),
        }
    }
}

async fn lead_on(tcp: &mut TcpStream, proxy: &ProxyServer, to: &str) -> std::io::Result<()> {
    match proxy.scheme {
        ProxyScheme::Http => http::connect(tcp, proxy.user.as_ref(), to).await,
        ProxyScheme::Socks5h => socks5::connect(tcp, proxy.user.as_ref(), to).await,
    }
}

/// Reads `bytes` of the proxy's response.
async fn hear(tcp: &mut TcpStream, bytes: &mut [u8]) -> std::io::Result<()> {
    let heard = tcp.read_exact(bytes).await.map(drop);
    heard.map_err(|error| match error.kind() {
        ErrorKind::UnexpectedEof => Error::new(
            error.kind(),
            "the proxy closed the connection before it answered",
        ),
        _ => error,
    })
}

/// Shuffles the addresses within each family. The family of the resolver's first address comes
/// first. If a name has more addresses than the entry uses, each entry and worker then uses a
/// random selection. The order of the resolver alone is not sufficient, because some resolvers
/// sort the addresses.
fn spread(addresses: &mut [SocketAddr], rng: &mut impl Rng) {
    let Some(first) = addresses.first().map(SocketAddr::is_ipv4) else {
        return;
    };
    addresses.shuffle(rng);
    addresses.sort_by_key(|address| address.is_ipv4() != first);
}

/// Resolves `HOST:PORT`.
async fn resolve(name: &str) -> std::io::Result<Found> {
    let address = Address::unresolved(name);
    let port = address.port().ok_or_else(|| {
        let text = format!("invalid address {name:?}: expected HOST:PORT");
        Error::new(ErrorKind::InvalidInput, text)
    })?;
    let found = dns::resolve(Asker::Gateway, address.host(), port);
    within(LOOKUP_TIMEOUT, found).await
}

async fn in_time<T>(attempt: impl Future<Output = std::io::Result<T>>) -> std::io::Result<T> {
    within(CONNECT_TIMEOUT, attempt).await
}

async fn within<T>(
    time: Duration,
    attempt: impl Future<Output = std::io::Result<T>>,
) -> std::io::Result<T> {
    tokio::time::timeout(time, attempt).await.map_err(|_| {
        let text = format!("no answer within {} s", time.as_secs());
        Error::new(ErrorKind::TimedOut, text)
    })?
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use rand::SeedableRng;
    use rand::rngs::StdRng;
    use tokio::io::AsyncWriteExt;

    use super::*;

    #[test]
    fn any_address_of_the_first_kind_may_come_first() {
        let v6 = (1..=4).map(|n| format!("[fd00::{n}]:1").parse().unwrap());
        let v4 = (1..=4).map(|n| format!("10.0.0.{n}:1").parse().unwrap());
        let resolved: Vec<SocketAddr> = v6.chain(v4).collect();
        let mut firsts = BTreeSet::new();
        for seed in 0..100 {
            let mut addresses = resolved.clone();
            spread(&mut addresses, &mut StdRng::seed_from_u64(seed));
            assert!(
                addresses[..4].iter().all(SocketAddr::is_ipv6),
                "{addresses:?}"
            );
            firsts.insert(addresses[0]);
            addresses.sort_unstable_by_key(|address| resolved.iter().position(|at| at == address));
            assert_eq!(addresses, resolved, "no address is lost");
        }
        assert_eq!(firsts.len(), 4);
    }

    /// Dials `of` through a proxy that connects only to `known`. Returns the targets that the proxy
    /// was requested to connect to.
    async fn asked(known: &str, of: &Address) -> Vec<String> {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let server = ProxyServer {
            scheme: ProxyScheme::Http,
            address: listener.local_addr().unwrap().to_string(),
            user: None,
        };
        let egress = Egress {
            proxy: None,
            requests_proxy: Some(Arc::new(server)),
            kcp: KcpWindows::of(&config::Memory::default()),
            waits: Waits::default(),
        };
        let mut asked = Vec::new();
        let answers = async {
            loop {
                let (mut tcp, _) = listener.accept().await.unwrap();
                let mut request = [0; 1024];
                let length = tcp.read(&mut request).await.unwrap();
                let request = String::from_utf8(request[..length].to_vec()).unwrap();
                let to = request.split(' ').nth(1).unwrap();
                let status = if to == known { "200 OK" } else { "403 No" };
                asked.push(to.to_owned());
                let answer = format!("HTTP/1.1 {status}\r\n\r\n");
                tcp.write_all(answer.as_bytes()).await.unwrap();
            }
        };
        tokio::select! {
            opened = egress.open_for_requests(of) => drop(opened.unwrap()),
            () = answers => {}
        }
        asked
    }

    #[tokio::test]
    async fn the_environments_proxy_is_asked_for_the_exit_where_a_name_has_several_and_else_for_the_name()
     {
        let (name, ip) = ("far.example.com:1", "10.0.0.9:1");
        let one = Address::resolved(name, ip.parse().unwrap());
        let of_several = Address::one_of_several(name, ip.parse().unwrap());
        assert_eq!(asked(name, &one).await, [name]);
        assert_eq!(asked(ip, &of_several).await, [ip]);
        assert_eq!(asked(name, &of_several).await, [ip, name]);
        assert_eq!(asked(name, &Address::unresolved(name)).await, [name]);
    }

    #[tokio::test]
    async fn kcp_is_dialled_by_a_name_that_was_not_looked_up() {
        let peer = tokio::net::UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let name = peer.local_addr().unwrap().to_string();
        let yaml = "role: Entry\nprotocol: Native\ntransport: KCP\nsecurity: {mode: None}\nconnect:\n- name: far\n  address: far:1\n";
        let egress = Egress::of(&Config::from_yaml(yaml).unwrap()).unwrap();
        let mut asked = [0; 2048];
        let address = Address::unresolved(&name);
        let tasks = tokio::task::LocalSet::new();
        let dialled = tasks.run_until(async {
            tokio::select! {
                dialled = egress.kcp(&address) => dialled.map(drop),
                _ = peer.recv(&mut asked) => Ok(()),
            }
        });
        dialled.await.unwrap();
    }
}
