//! `muxlab quinn`: bulk from one process to another over quinn, with nothing in front of it or behind: what its library gives
//! a gateway that speaks QUIC.
//!
//! The receiver listens for QUIC. The sender listens for orders over TCP, so that it runs, as a gateway does, before it is
//! asked: an order is a line, the number of streams, the seconds that do not count and those that do; the answer is what the
//! receivers of all streams have counted. Each has one thread. Settings are those of our gateways, and windows that limit
//! nothing.

use std::{
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use clap::{Args, Subcommand};
use muxbench::statistics::Window;
use quinn::{
    ClientConfig, Connection, Endpoint, EndpointConfig, RecvStream, SendStream, ServerConfig,
    TokioRuntime, TransportConfig, VarInt, congestion::CubicConfig, rustls,
};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject};
use socket2::SockRef;
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    net::{TcpListener, TcpStream},
    task::JoinSet,
    time::{Instant, timeout_at},
};

/// What both ends may send that the other has not taken, and one stream of it.
const WINDOW_BYTES: u32 = 64 << 20;
/// Of each buffer of the kernel's, as our gateways ask for.
const SOCKET_BUFFER_BYTES: usize = 8 << 20;
/// What is written at once.
const WRITE_BYTES: usize = 256 << 10;
/// Pieces that are read at once.
const PIECES: usize = 64;
/// A side that hears nothing for so long gives up.
const SILENCE_MAX: Duration = Duration::from_secs(15);

/// What `muxlab quinn` is told.
#[derive(Debug, Args)]
pub(crate) struct QuinnArgs {
    #[command(subcommand)]
    end: End,
}

#[derive(Debug, Subcommand)]
enum End {
    /// Count what comes.
    Receive {
        /// Where QUIC is listened for.
        #[arg(long)]
        listen: SocketAddr,
        /// Its certificate.
        #[arg(long)]
        certificate: PathBuf,
        /// The key of that.
        #[arg(long)]
        key: PathBuf,
    },
    /// Send when ordered to.
    Send {
        /// Where orders come.
        #[arg(long)]
        listen: SocketAddr,
        /// Where the receiver is.
        #[arg(long)]
        to: SocketAddr,
        /// The authority of the receiver's certificate.
        #[arg(long)]
        ca: PathBuf,
        /// The name in it.
        #[arg(long)]
        name: String,
    },
}

/// Runs one end until the process is ended.
///
/// # Errors
/// When it cannot listen, or a file is not what it should be.
pub(crate) fn run(args: &QuinnArgs) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        match &args.end {
            End::Receive {
                listen,
                certificate,
                key,
            } => receive(*listen, certificate, key).await,
            End::Send {
                listen,
                to,
                ca,
                name,
            } => send(*listen, *to, ca, name).await,
        }
    })
}

/// What the client's side is to get.
///
/// # Errors
/// The sender failed; its log says why.
pub(crate) fn order(sender: SocketAddr, streams: u32, window: Window) -> Result<Answer> {
    use std::io::{BufRead, BufReader, Write};
    let mut tcp = std::net::TcpStream::connect(sender).context("connecting to the sender")?;
    let warm_up = window.warm_up_s;
    let seconds = window.duration_s - warm_up;
    tcp.write_all(format!("{streams} {warm_up} {seconds}\n").as_bytes())?;
    let mut line = String::new();
    BufReader::new(tcp).read_line(&mut line)?;
    let mut words = line.split_whitespace().map(str::parse);
    match (words.next(), words.next()) {
        (Some(Ok(counted)), Some(Ok(bytes))) => Ok(Answer {
            bytes,
            mbit_s: counted as f64 * 8.0 / 1e6 / f64::from(seconds),
        }),
        _ => anyhow::bail!("the sender of bare quinn has failed: see its log"),
    }
}

/// What came of an order.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Answer {
    /// All that came.
    pub(crate) bytes: u64,
    /// Of the seconds that count.
    pub(crate) mbit_s: f64,
}

/// What a receiver counts.
#[derive(Debug, Clone, Copy, Default)]
struct Counted {
    in_window: u64,
    all: u64,
}

async fn receive(listen: SocketAddr, certificate: &Path, key: &Path) -> Result<()> {
    let chain = CertificateDer::from_pem_slice(&fs::read(certificate)?)?;
    let key = PrivateKeyDer::from_pem_slice(&fs::read(key)?)?;
    let mut config = ServerConfig::with_single_cert(vec![chain], key)?;
    config.transport_config(transport());
    let endpoint = endpoint(listen, Some(config))?;
    while let Some(incoming) = endpoint.accept().await {
        tokio::spawn(async move {
            let connection = incoming.await?;
            while let Ok((answer, stream)) = connection.accept_bi().await {
                tokio::spawn(count(answer, stream));
            }
            Ok::<_, quinn::ConnectionError>(())
        });
    }
    Ok(())
}

/// Counts a stream that begins with the seconds that do not count and those that do.
async fn count(mut answer: SendStream, mut stream: RecvStream) -> Result<()> {
    let mut head = [0; 8];
    stream.read_exact(&mut head).await?;
    let [warm_up, seconds] = [&head[..4], &head[4..]].map(|half| {
        let half = half.try_into().unwrap_or_default();
        Duration::from_secs(u32::from_be_bytes(half).into())
    });
    let begin = Instant::now() + warm_up;
    let end = begin + seconds;
    let mut counted = Counted::default();
    let mut pieces: Vec<_> = (0..PIECES).map(|_| Default::default()).collect();
    // What comes later counts for nobody.
    while let Ok(read) = timeout_at(end, stream.read_chunks(&mut pieces)).await {
        let Some(pieces_read) = read? else {
            break;
        };
        let bytes: usize = pieces
            .iter_mut()
            .take(pieces_read)
            .map(|piece| std::mem::take(piece).len())
            .sum();
        counted.all += bytes as u64;
        if Instant::now() >= begin {
            counted.in_window += bytes as u64;
        }
    }
    stream.stop(VarInt::from_u32(0))?;
    let words = [counted.in_window, counted.all].map(u64::to_be_bytes);
    answer.write_all(&words.concat()).await?;
    answer.finish()?;
    Ok(())
}

async fn send(listen: SocketAddr, to: SocketAddr, ca: &Path, name: &str) -> Result<()> {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(&fs::read(ca)?)?)?;
    let mut config = ClientConfig::with_root_certificates(Arc::new(roots))?;
    config.transport_config(transport());
    let own = match to {
        SocketAddr::V4(_) => "0.0.0.0:0",
        SocketAddr::V6(_) => "[::]:0",
    };
    let mut endpoint = endpoint(own.parse()?, None)?;
    endpoint.set_default_client_config(config);
    let listener = TcpListener::bind(listen).await?;
    loop {
        let (mut tcp, _) = listener.accept().await?;
        let counted = carry_out(&mut tcp, &endpoint, to, name).await?;
        let line = format!("{} {}\n", counted.in_window, counted.all);
        tcp.write_all(line.as_bytes()).await?;
    }
}

async fn carry_out(
    tcp: &mut TcpStream,
    endpoint: &Endpoint,
    to: SocketAddr,
    name: &str,
) -> Result<Counted> {
    let mut line = String::new();
    BufReader::new(tcp).read_line(&mut line).await?;
    let numbers: Vec<u32> = line
        .split_whitespace()
        .map(str::parse)
        .collect::<Result<_, _>>()?;
    ensure!(numbers.len() == 3, "{line:?} is no order");
    let (streams, times) = (numbers[0], [numbers[1], numbers[2]]);
    let connection = endpoint.connect(to, name)?.await?;
    let mut sending = JoinSet::new();
    for _ in 0..streams {
        sending.spawn(fill(connection.clone(), times));
    }
    let mut all = Counted::default();
    while let Some(counted) = sending.join_next().await {
        let counted = counted??;
        all.in_window += counted.in_window;
        all.all += counted.all;
    }
    connection.close(VarInt::from_u32(0), b"");
    Ok(all)
}

/// Sends on one stream until the receiver has had enough.
async fn fill(connection: Connection, times: [u32; 2]) -> Result<Counted> {
    let (mut stream, mut answer) = connection.open_bi().await?;
    stream
        .write_all(&times.map(u32::to_be_bytes).concat())
        .await?;
    let bytes = vec![7; WRITE_BYTES];
    while stream.write_all(&bytes).await.is_ok() {}
    let mut counted = [0; 16];
    answer.read_exact(&mut counted).await?;
    let [in_window, all] = [&counted[..8], &counted[8..]]
        .map(|half| u64::from_be_bytes(half.try_into().unwrap_or_default()));
    Ok(Counted { in_window, all })
}

fn transport() -> Arc<TransportConfig> {
    let mut transport = TransportConfig::default();
    let window = VarInt::from_u32(WINDOW_BYTES);
    transport
        .stream_receive_window(window)
        .receive_window(window)
        .send_window(WINDOW_BYTES.into())
        .max_idle_timeout(SILENCE_MAX.try_into().ok())
        .congestion_controller_factory(Arc::new(CubicConfig::default()));
    Arc::new(transport)
}

fn endpoint(listen: SocketAddr, server: Option<ServerConfig>) -> Result<Endpoint> {
    let socket = std::net::UdpSocket::bind(listen);
    let socket = socket.with_context(|| format!("listening on {listen}"))?;
    let buffers = SockRef::from(&socket);
    buffers.set_recv_buffer_size(SOCKET_BUFFER_BYTES)?;
    buffers.set_send_buffer_size(SOCKET_BUFFER_BYTES)?;
    let runtime = Arc::new(TokioRuntime);
    Ok(Endpoint::new(
        EndpointConfig::default(),
        server,
        socket,
        runtime,
    )?)
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, KeyPair};

    use super::*;

    #[test]
    fn an_order_is_carried_out_and_counted() {
        let folder = tempfile::tempdir().unwrap();
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(["quinn".to_owned()]).unwrap();
        let (certificate, private) = (folder.path().join("crt"), folder.path().join("key"));
        fs::write(&certificate, params.self_signed(&key).unwrap().pem()).unwrap();
        fs::write(&private, key.serialize_pem()).unwrap();
        let free = || {
            let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
            socket.local_addr().unwrap()
        };
        let (receiver, sender) = (free(), free());
        for end in [
            End::Receive {
                listen: receiver,
                certificate: certificate.clone(),
                key: private,
            },
            End::Send {
                listen: sender,
                to: receiver,
                ca: certificate,
                name: "quinn".to_owned(),
            },
        ] {
            // It ends with the process.
            std::thread::spawn(move || run(&QuinnArgs { end }));
        }
        muxtunnel_testkit::wait::until("the sender listens", || {
            std::net::TcpListener::bind(sender).is_err()
        });
        let window = Window {
            warm_up_s: 0,
            duration_s: 1,
        };
        let answer = order(sender, 2, window).unwrap();
        assert!(answer.bytes > 1 << 20, "{answer:?}");
        assert!(answer.mbit_s > 1.0, "{answer:?}");
    }
}
