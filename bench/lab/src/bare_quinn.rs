//! `muxlab quinn`: bulk from one process to another over quinn, without a gateway. The rate is an
//! upper bound for a QUIC gateway that uses this library.
//!
//! The receiver listens for QUIC. The sender listens for orders over TCP. So the sender, like a
//! gateway, already runs when a measurement begins. An order is a line with the number of streams,
//! the seconds of warm-up and the measured seconds. The sender answers with the receiver's counts,
//! summed over all streams. Each process has one thread. The settings equal muxgate's settings,
//! except that the windows do not limit the rate.

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

/// Windows of a connection and of a stream, in both directions.
const WINDOW_BYTES: u32 = 64 << 20;
/// Size of each kernel buffer: the same size that muxgate requests.
const SOCKET_BUFFER_BYTES: usize = 8 << 20;
/// Bytes of one write.
const WRITE_BYTES: usize = 256 << 10;
/// Maximum number of pieces of one read.
const PIECES: usize = 64;
/// Idle time-out of a connection.
const SILENCE_MAX: Duration = Duration::from_secs(15);

/// Flags of `muxlab quinn`.
#[derive(Debug, Args)]
pub(crate) struct QuinnArgs {
    #[command(subcommand)]
    end: End,
}

#[derive(Debug, Subcommand)]
enum End {
    /// Count received bytes.
    Receive {
        /// Listen address for QUIC.
        #[arg(long)]
        listen: SocketAddr,
        /// File with the certificate.
        #[arg(long)]
        certificate: PathBuf,
        /// File with the certificate's key.
        #[arg(long)]
        key: PathBuf,
    },
    /// Send bulk for each order.
    Send {
        /// Listen address for orders.
        #[arg(long)]
        listen: SocketAddr,
        /// Address of the receiver.
        #[arg(long)]
        to: SocketAddr,
        /// File with the authority of the receiver's certificate.
        #[arg(long)]
        ca: PathBuf,
        /// Name in the receiver's certificate.
        #[arg(long)]
        name: String,
    },
}

/// Runs one end until the process is killed.
///
/// # Errors
/// If the process cannot listen, or a file is invalid.
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

/// Sends an order to the sender, and returns the counts in its answer.
///
/// # Errors
/// If the sender fails. Its log has the reason.
pub(crate) fn order(sender: SocketAddr, streams: u32, window: Window) -> Result<Answer> {
    use std::io::{BufRead, BufReader, Write};
    let mut tcp = std::net::TcpStream::connect(sender).context("cannot connect to the sender")?;
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
        _ => anyhow::bail!("the sender of bare quinn failed: see its log"),
    }
}

/// The result of an order.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Answer {
    /// All received bytes.
    pub(crate) bytes: u64,
    /// Rate in the measured seconds.
    pub(crate) mbit_s: f64,
}

/// The counts of a receiver.
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

/// Counts the bytes of a stream. The stream begins with two numbers: the seconds of warm-up and the
/// measured seconds.
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
    // Bytes that arrive later are not counted.
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
    ensure!(numbers.len() == 3, "{line:?} is not an order");
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

/// Sends on one stream until the receiver stops it.
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
    let socket = socket.with_context(|| format!("cannot listen on {listen}"))?;
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
            // The thread ends with the process.
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
