//! A DNS server for tests. A function of the test answers each query, and the server records the
//! queries.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, UdpSocket};
use std::sync::{Arc, Mutex};
use std::thread;

/// The type of records with IPv4 addresses.
pub const A: u16 = 1;
/// The type of records with IPv6 addresses.
pub const AAAA: u16 = 28;

/// A query.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Asked {
    /// The name in lower case, without the final dot.
    pub name: String,
    /// The type of the records.
    pub kind: u16,
    /// Whether the query arrived over TCP.
    pub over_tcp: bool,
}

/// The answer to a query.
#[derive(Debug, Clone)]
pub enum Answer {
    /// The addresses of the query's family, each with this TTL in seconds.
    Addresses(Vec<IpAddr>, u32),
    /// The name is an alias, with this TTL, of a name with these addresses.
    Alias(String, u32, Vec<IpAddr>, u32),
    /// The name exists, but has no records of the type. The TTL is the minimum of the zone.
    NoData(u32),
    /// The name does not exist. The TTL is the minimum of the zone.
    NoName(u32),
    /// The server fails.
    Fails,
    /// The answer is too long for a datagram.
    Truncated,
    /// No answer.
    Silence,
}

/// A server that runs until the process ends.
#[derive(Debug, Clone)]
pub struct NameServer {
    /// The address of the server, for UDP and TCP.
    pub address: SocketAddr,
    asked: Arc<Mutex<Vec<Asked>>>,
}

impl NameServer {
    /// Starts a server at `address`. With port 0, the server chooses a port.
    ///
    /// # Errors
    /// The address is in use, or the process may not use it.
    pub fn start(
        address: SocketAddr,
        answer: impl Fn(&Asked) -> Answer + Send + Sync + 'static,
    ) -> std::io::Result<Self> {
        let (udp, tcp) = loop {
            let udp = UdpSocket::bind(address)?;
            match TcpListener::bind(udp.local_addr()?) {
                Ok(tcp) => break (udp, tcp),
                Err(error) if error.kind() == ErrorKind::AddrInUse && address.port() == 0 => {}
                Err(error) => return Err(error),
            }
        };
        let server = Self {
            address: udp.local_addr()?,
            asked: Arc::default(),
        };
        let answer = Arc::new(answer);
        let respond = {
            let asked = Arc::clone(&server.asked);
            move |query: &[u8], over_tcp| {
                let question = read(query, over_tcp)?;
                asked.lock().unwrap().push(question.clone());
                write(query, &question, answer(&question))
            }
        };
        let over_tcp = respond.clone();
        thread::spawn(move || {
            let mut query = [0; 512];
            while let Ok((length, from)) = udp.recv_from(&mut query) {
                if let Some(response) = respond(&query[..length], false) {
                    let _ = udp.send_to(&response, from);
                }
            }
        });
        thread::spawn(move || {
            for stream in tcp.incoming().map_while(Result::ok) {
                let respond = over_tcp.clone();
                thread::spawn(move || serve(stream, respond));
            }
        });
        Ok(server)
    }

    /// The queries so far.
    #[must_use]
    pub fn asked(&self) -> Vec<Asked> {
        self.asked.lock().unwrap().clone()
    }
}

fn serve(
    mut stream: std::net::TcpStream,
    respond: impl Fn(&[u8], bool) -> Option<Vec<u8>>,
) -> Option<()> {
    loop {
        let mut length = [0; 2];
        stream.read_exact(&mut length).ok()?;
        let mut query = vec![0; usize::from(u16::from_be_bytes(length))];
        stream.read_exact(&mut query).ok()?;
        let response = respond(&query, true)?;
        let length = u16::try_from(response.len()).ok()?.to_be_bytes();
        stream.write_all(&[&length[..], &response].concat()).ok()?;
    }
}

/// Reads the question of a query.
fn read(query: &[u8], over_tcp: bool) -> Option<Asked> {
    let mut labels = Vec::new();
    let mut at = 12;
    loop {
        let length = usize::from(*query.get(at)?);
        if length == 0 {
            break;
        }
        let label = query.get(at + 1..at + 1 + length)?;
        labels.push(String::from_utf8_lossy(label).to_lowercase());
        at += 1 + length;
    }
    let kind = query.get(at + 1..at + 3)?;
    Some(Asked {
        name: labels.join("."),
        kind: u16::from_be_bytes([kind[0], kind[1]]),
        over_tcp,
    })
}

fn labels(name: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    for label in name.split('.').filter(|label| !label.is_empty()) {
        bytes.push(u8::try_from(label.len()).unwrap());
        bytes.extend(label.as_bytes());
    }
    bytes.push(0);
    bytes
}

fn record(name: &[u8], kind: u16, ttl: u32, data: &[u8]) -> Vec<u8> {
    let length = u16::try_from(data.len()).unwrap();
    [
        name,
        &kind.to_be_bytes(),
        &1_u16.to_be_bytes(),
        &ttl.to_be_bytes(),
        &length.to_be_bytes(),
        data,
    ]
    .concat()
}

/// The records of those addresses that belong to the family of `kind`.
fn addresses(name: &[u8], kind: u16, ttl: u32, of: &[IpAddr]) -> Vec<Vec<u8>> {
    let of = of.iter().filter_map(|address| match (address, kind) {
        (IpAddr::V4(v4), A) => Some(v4.octets().to_vec()),
        (IpAddr::V6(v6), AAAA) => Some(v6.octets().to_vec()),
        _ => None,
    });
    of.map(|data| record(name, kind, ttl, &data)).collect()
}

fn write(query: &[u8], asked: &Asked, answer: Answer) -> Option<Vec<u8>> {
    const TRUNCATED: u8 = 2;
    const SOA: u16 = 6;
    const CNAME: u16 = 5;
    // A pointer to the name of the question.
    let name = [0xc0, 12];
    let (mut flags, mut code) = (0x84, 0);
    let (mut answers, mut authorities) = (Vec::new(), Vec::new());
    let authority = |minimum: u32| {
        let numbers = [1, 1, 1, 1, minimum].map(u32::to_be_bytes).concat();
        let data = [&[0, 0][..], &numbers].concat();
        record(&name, SOA, minimum, &data)
    };
    match answer {
        Answer::Addresses(of, ttl) => answers = addresses(&name, asked.kind, ttl, &of),
        Answer::Alias(of, alias_ttl, at, ttl) => {
            let of = labels(&of);
            answers.push(record(&name, CNAME, alias_ttl, &of));
            answers.extend(addresses(&of, asked.kind, ttl, &at));
        }
        Answer::NoData(minimum) => authorities.push(authority(minimum)),
        Answer::NoName(minimum) => {
            code = 3;
            authorities.push(authority(minimum));
        }
        Answer::Fails => code = 2,
        Answer::Truncated => flags |= TRUNCATED,
        Answer::Silence => return None,
    }
    let question = 12 + labels(&asked.name).len() + 4;
    let count = |of: &[Vec<u8>]| u16::try_from(of.len()).unwrap().to_be_bytes();
    let header = [
        query.get(..2)?,
        &[flags | (query[2] & 1), 0x80 | code],
        &1_u16.to_be_bytes(),
        &count(&answers),
        &count(&authorities),
        &0_u16.to_be_bytes(),
        query.get(12..question)?,
    ];
    Some([header.concat(), answers.concat(), authorities.concat()].concat())
}
