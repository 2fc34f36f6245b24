//! SSH clients that endlessly open streams, close streams or send data. The tests bound the memory
//! that such clients use on an exit.

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::task::{Context, Poll};

use crate::common::*;
use russh::client::{self, Handle, Handler};
use russh::keys::{PrivateKeyWithHashAlg, PublicKeyOrCertificate, load_secret_key};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

const MIB: u64 = 1 << 20;
/// The exit's receive budget for a session.
const RECEIVE: u64 = 8 * MIB;
/// Maximum memory in addition to the receive budget.
const BESIDE: u64 = 40 * MIB;

struct Anyone;

impl Handler for Anyone {
    type Error = russh::Error;

    async fn check_server_key(&mut self, _: &PublicKeyOrCertificate) -> Result<bool, russh::Error> {
        Ok(true)
    }
}

/// A connection that can stop reading.
struct Deaf {
    tcp: TcpStream,
    is_deaf: Arc<AtomicBool>,
}

impl AsyncRead for Deaf {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        match self.is_deaf.load(Relaxed) {
            true => Poll::Pending,
            false => Pin::new(&mut self.tcp).poll_read(context, buffer),
        }
    }
}

impl AsyncWrite for Deaf {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.tcp).poll_write(context, bytes)
    }

    fn poll_flush(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.tcp).poll_flush(context)
    }

    fn poll_shutdown(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.tcp).poll_shutdown(context)
    }
}

async fn log_in(port: u16) -> (Arc<Handle<Anyone>>, Arc<AtomicBool>) {
    let tcp = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    let is_deaf = Arc::<AtomicBool>::default();
    let stream = Deaf {
        tcp,
        is_deaf: Arc::clone(&is_deaf),
    };
    let config = Arc::new(client::Config::default());
    let mut handle = client::connect_stream(config, stream, Anyone)
        .await
        .unwrap();
    let key = load_secret_key(secured::ssh_folder().join("entry"), None).unwrap();
    let key = PrivateKeyWithHashAlg::new(Arc::new(key), None);
    let answer = handle
        .authenticate_publickey("somebody", key)
        .await
        .unwrap();
    assert!(answer.success());
    (Arc::new(handle), is_deaf)
}

fn exit(port: u16, target: SocketAddr) -> Gate {
    Gate::with_file(&format!(
        "role: Exit\nprotocol: SSH\nsecurity: {{mode: None}}\nlisten: '127.0.0.1:{port}'\nadmin: ADMIN\nworkers: 1\n\
         allow: [{target_rule}]\nmemory: {{receive: 8Mi}}\nlimits: {{streams: 512}}\n", target_rule = crate::common::rule(target)
    ))
    .until_ready()
}

/// Resident memory in bytes.
fn resident(gate: &Gate) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", gate.id())).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:"));
    let kib = line.unwrap().split_whitespace().nth(1).unwrap();
    kib.parse::<u64>().unwrap() * 1024
}

/// Opens `count` channels to `target`, 64 at once, and closes the established channels. Returns the
/// number of established channels.
async fn open_many(handle: &Arc<Handle<Anyone>>, target: SocketAddr, count: usize) -> usize {
    let (mut opens, mut got) = (JoinSet::new(), 0);
    for number in 0..count {
        if number >= 64 {
            got += usize::from(opens.join_next().await.unwrap().unwrap());
        }
        let handle = Arc::clone(handle);
        opens.spawn(async move {
            let (host, port) = (target.ip().to_string(), target.port().into());
            let opened = handle
                .channel_open_direct_tcpip(host, port, "127.0.0.1", 1)
                .await;
            match opened {
                Ok(channel) => channel.close().await.is_ok(),
                Err(_) => false,
            }
        });
    }
    while let Some(opened) = opens.join_next().await {
        got += usize::from(opened.unwrap());
    }
    got
}

#[tokio::test]
async fn channels_that_come_and_go_leave_nothing_behind() {
    let (listener, target) = target();
    let accepts = std::thread::spawn(move || {
        for tcp in listener.incoming().flatten() {
            drop(tcp);
        }
    });
    let port = free_port();
    let exit = exit(port, target);
    let (handle, _) = log_in(port).await;
    open_many(&handle, target, 200).await;
    let before = resident(&exit);
    let refused = SocketAddr::from(([127, 0, 0, 1], 1));
    for _ in 0..4 {
        assert_eq!(open_many(&handle, refused, 2_000).await, 0);
        assert_eq!(open_many(&handle, target, 500).await, 500);
        // A new key exchange runs while channels are being opened.
        handle.rekey_soon().await.unwrap();
    }
    until("the exit has no open streams", || {
        exit.status()["streams"]["open"] == 0
    });
    let grown = resident(&exit).saturating_sub(before);
    assert!(grown < BESIDE, "memory grew by {grown} bytes");
    drop((handle, accepts));
}

#[tokio::test]
async fn a_client_that_reads_no_answer_costs_what_is_bounded() {
    let (_listener, target) = target();
    let port = free_port();
    let exit = exit(port, target);
    let before = resident(&exit);
    let (handle, is_deaf) = log_in(port).await;
    is_deaf.store(true, Relaxed);
    let refused = SocketAddr::from(([127, 0, 0, 1], 1));
    let mut opens = JoinSet::new();
    for _ in 0..60_000 {
        let handle = Arc::clone(&handle);
        opens.spawn(async move {
            let host = refused.ip().to_string();
            drop(
                handle
                    .channel_open_direct_tcpip(host, 1, "127.0.0.1", 1)
                    .await,
            );
        });
    }
    let waits = tokio::time::sleep(std::time::Duration::from_secs(8));
    waits.await;
    let grown = resident(&exit).saturating_sub(before);
    assert!(grown < RECEIVE + BESIDE, "memory grew by {grown} bytes");
    // The exit still serves other users.
    let (other, _) = log_in(port).await;
    assert_eq!(open_many(&other, target, 1).await, 1);
}

#[tokio::test]
async fn what_targets_do_not_take_stays_within_the_bound_and_is_cut() {
    let (listener, target) = target();
    let port = free_port();
    let exit = exit(port, target);
    let before = resident(&exit);
    let (handle, _) = log_in(port).await;
    let mut senders = JoinSet::new();
    let mut servers = Vec::new();
    for _ in 0..8 {
        let (host, port) = (target.ip().to_string(), target.port().into());
        let channel = handle
            .channel_open_direct_tcpip(host, port, "127.0.0.1", 1)
            .await;
        let channel = channel.unwrap();
        servers.push(accept(&listener));
        senders.spawn(async move {
            let payload = vec![7; 256 << 10];
            while channel.data(&payload[..]).await.is_ok() {}
        });
    }
    until("the exit holds half of its receive budget", || {
        let status = exit.status();
        let used = status["carriers"][0]["receiveBudgetUsed"].as_u64();
        assert!(used.unwrap_or_default() <= RECEIVE, "{used:?}");
        used > Some(RECEIVE / 2)
    });
    let grown = resident(&exit).saturating_sub(before);
    assert!(grown < RECEIVE + BESIDE, "memory grew by {grown} bytes");
    // Another connection of the same user is not delayed.
    let (other, _) = log_in(port).await;
    assert_eq!(open_many(&other, target, 1).await, 1);
    exit.line(&["delayed the other streams of the SSH connection"]);
    until("a stream has stalled", || {
        exit.status()["streams"]["closed"]["stalled"].as_u64() > Some(0)
    });
    drop((servers, senders));
}
