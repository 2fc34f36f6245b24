//! Asks the name servers for the addresses of one absolute name in one family.
//!
//! The library writes and reads the messages, with random ids and source ports. The order of the
//! servers and the times are those of the C library.

use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::time::Duration;

use hickory_net::NetError;
use hickory_net::proto::op::{DnsRequest, DnsRequestOptions, DnsResponse, Query, ResponseCode};
use hickory_net::proto::rr::{Name, RData, RecordType};
use hickory_net::runtime::{RuntimeProvider, TokioHandle, TokioRuntimeProvider, TokioTime};
use hickory_net::tcp::TcpClientStream;
use hickory_net::udp::UdpClientStream;
use hickory_net::xfer::{DnsHandle, DnsRequestSender, FirstAnswer};
use tokio::net::UdpSocket;

use super::system::System;

/// Maximum number of addresses of a name in a family.
const ADDRESSES_MAX: usize = 64;
/// Maximum number of aliases between a name and its addresses.
const ALIASES_MAX: usize = 16;
/// Ends the tasks of the library. [`System::patience`] is always shorter.
const LIBRARY_MAX: Duration = Duration::from_secs(120);

/// A family of addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Family {
    V4,
    V6,
}

/// A question to the name servers.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Question {
    /// An absolute name in lower case, without the final dot.
    pub(super) name: String,
    pub(super) family: Family,
}

/// Why a question has no addresses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Fault {
    /// The name does not exist.
    NoName,
    /// The name has no address of the family.
    NoAddress,
    /// The servers answered with an error.
    Failed(String),
    /// No server answered.
    Silent(String),
}

/// The answer to a question, and the time for which it is valid.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Answer {
    pub(super) addresses: Result<Vec<IpAddr>, Fault>,
    pub(super) valid: Duration,
}

impl From<Fault> for Answer {
    fn from(fault: Fault) -> Self {
        Self {
            addresses: Err(fault),
            valid: Duration::ZERO,
        }
    }
}

/// Asks the servers in turn.
pub(super) async fn ask(system: &System, question: &Question) -> Answer {
    let Ok(name) = Name::from_ascii(format!("{}.", question.name)) else {
        return Fault::NoName.into();
    };
    let kind = match question.family {
        Family::V4 => RecordType::A,
        Family::V6 => RecordType::AAAA,
    };
    let query = Query::query(name, kind);
    let servers = system.in_turn();
    let (mut failed, mut silent) = (None, None);
    for _ in 0..system.attempts {
        let mut waited = false;
        for (nth, server) in (0..).zip(&servers) {
            let patience = system.patience(nth);
            let exchange = exchange(system, *server, query.clone());
            match tokio::time::timeout(patience, exchange).await {
                Ok(Ok(response)) => match response.response_code {
                    ResponseCode::NoError | ResponseCode::NXDomain => {
                        return answer(&query, &response);
                    }
                    code => failed = Some(format!("the name server {server} answered {code}")),
                },
                Ok(Err(error)) => silent = Some(format!("the name server {server}: {error}")),
                Err(_) => {
                    waited = true;
                    silent = Some(format!(
                        "the name server {server} did not answer within {} s",
                        patience.as_secs()
                    ));
                }
            }
        }
        // Only a lost packet is a reason to repeat the query.
        if !waited {
            break;
        }
    }
    match (failed, silent) {
        (Some(text), _) => Fault::Failed(text).into(),
        (None, text) => Fault::Silent(text.unwrap_or_default()).into(),
    }
}

async fn exchange(
    system: &System,
    server: SocketAddr,
    query: Query,
) -> Result<DnsResponse, NetError> {
    let mut options = DnsRequestOptions::default();
    options.use_edns = system.edns;
    let request = DnsRequest::from_query(query, options);
    let provider = Provider::default();
    if !system.over_tcp {
        let stream = UdpClientStream::builder(server, provider.clone())
            .with_timeout(Some(LIBRARY_MAX))
            .with_max_retries(1)
            // Outside the system's range, a port of this gateway's listeners could be chosen.
            .with_os_port_selection(true);
        let response = stream.build().send_message(request.clone());
        let response = response.first_answer().await?;
        if !response.truncation {
            return Ok(response);
        }
    }
    let stream = TcpClientStream::exchange(server, None, LIBRARY_MAX, None, provider.clone());
    stream.await?.send(request).first_answer().await
}

/// Reads the addresses and the time for which they are valid.
fn answer(query: &Query, response: &DnsResponse) -> Answer {
    let mut name = query.name();
    let mut valid = u32::MAX;
    for _ in 0..ALIASES_MAX {
        let mut aliases = response
            .answers
            .iter()
            .filter(|record| record.name == *name);
        let alias = aliases.find_map(|record| match &record.data {
            RData::CNAME(alias) => Some((&alias.0, record.ttl)),
            _ => None,
        });
        let Some((of, ttl)) = alias else {
            break;
        };
        name = of;
        valid = valid.min(ttl);
    }
    let mut addresses = Vec::new();
    for record in response
        .answers
        .iter()
        .filter(|record| record.name == *name)
    {
        let address = match &record.data {
            RData::A(v4) => IpAddr::V4(v4.0),
            RData::AAAA(v6) => IpAddr::V6(v6.0),
            _ => continue,
        };
        if record.record_type() == query.query_type() && addresses.len() < ADDRESSES_MAX {
            addresses.push(address);
            valid = valid.min(record.ttl);
        }
    }
    let seconds = |seconds: u32| Duration::from_secs(seconds.into());
    if !addresses.is_empty() {
        return Answer {
            addresses: Ok(addresses),
            valid: seconds(valid),
        };
    }
    let fault = match response.response_code {
        ResponseCode::NXDomain => Fault::NoName,
        _ => Fault::NoAddress,
    };
    Answer {
        addresses: Err(fault),
        valid: seconds(response.negative_ttl().unwrap_or_default()),
    }
}

/// The sockets of the library's transports. A UDP socket is connected to its server, so that the
/// kernel drops the packets of other senders, and reports a server without a listener at once.
#[derive(Clone, Default)]
struct Provider(TokioRuntimeProvider);

type Opening<T> = Pin<Box<dyn Future<Output = io::Result<T>> + Send>>;

impl RuntimeProvider for Provider {
    type Handle = TokioHandle;
    type Timer = TokioTime;
    type Udp = UdpSocket;
    type Tcp = <TokioRuntimeProvider as RuntimeProvider>::Tcp;

    fn create_handle(&self) -> Self::Handle {
        self.0.create_handle()
    }

    fn connect_tcp(
        &self,
        server: SocketAddr,
        from: Option<SocketAddr>,
        within: Option<Duration>,
    ) -> Opening<Self::Tcp> {
        self.0.connect_tcp(server, from, within)
    }

    fn bind_udp(&self, from: SocketAddr, server: SocketAddr) -> Opening<Self::Udp> {
        Box::pin(async move {
            let socket = UdpSocket::bind(from).await?;
            socket.connect(server).await?;
            Ok(socket)
        })
    }
}
