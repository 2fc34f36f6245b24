//! Two muxgate processes on loopback with an unreliable path between them: streams survive the loss
//! of their carriers.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::common::path::Path;
use crate::common::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const MIB: usize = 1 << 20;

struct Tunnel {
    exit: Gate,
    entry: Gate,
    path: Path,
    forward: SocketAddr,
    listener: TcpListener,
}

fn tunnel(carriers: u8) -> Tunnel {
    let (listener, address) = target();
    let carrier = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()));
    let exit = Gate::with_file(&format!(
        "role: Exit\nprotocol: Native\nsecurity: {{mode: None}}\nlisten: {carrier}\nadmin: ADMIN\n\
         workers: 2\nallow: [{address_rule}]\ndrain: {{acceptSeconds: 0, deadlineSeconds: 50}}\n",
        address_rule = crate::common::rule(address)
    ))
    .until_ready();
    let path = Path::to(carrier);
    let forward = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()));
    let entry = Gate::with_file(&format!(
        "role: Entry\nprotocol: Native\nsecurity: {{mode: None}}\nconnect:\n- name: far\n  address: {}\nadmin: ADMIN\n\
         workers: 1\npool: {{min: {carriers}, max: {carriers}}}\nforwards:\n\
         - {{name: a, listen: '{forward}', targets: [{{host: 127.0.0.1, port: {}}}]}}\n",
        path.address,
        address.port()
    ))
    .until_ready();
    let tunnel = Tunnel {
        exit,
        entry,
        path,
        forward,
        listener,
    };
    tunnel.until_carriers(carriers.into());
    tunnel
}

impl Tunnel {
    fn until_carriers(&self, count: usize) {
        until("all carriers are up at both ends", || {
            [&self.entry, &self.exit]
                .iter()
                .all(|gate| gate.status()["carriers"].as_array().unwrap().len() == count)
        });
    }

    /// Transfers data continuously in both directions while `meanwhile` runs.
    fn carry(&self, meanwhile: impl FnOnce(&Self)) {
        let client = connect(self.forward);
        let server = accept(&self.listener);
        let stop = Arc::new(AtomicBool::new(false));
        let sent = [(&client, 1), (&server, 2)].map(|(tcp, seed)| send_until(tcp, seed, &stop));
        let come = [(client, 2), (server, 1)]
            .map(|(tcp, seed)| std::thread::spawn(move || read_repeated(&tcp, seed)));
        self.until_bulk_flows();
        meanwhile(self);
        stop.store(true, Ordering::Relaxed);
        let [up, down] = sent.map(|thread| thread.join().unwrap());
        let [at_client, at_server] = come.map(|thread| thread.join().unwrap());
        assert_eq!((at_server, at_client), (up, down));
    }

    /// Waits until both sides have bulk data in flight.
    fn until_bulk_flows(&self) {
        let gates = [&self.entry, &self.exit];
        let sent = || gates.map(|gate| gate.status()["streams"]["bytesSent"].as_u64().unwrap());
        let before = sent();
        until("bulk is in flight in both directions", || {
            let now = sent();
            (0..2).all(|side| now[side] >= before[side] + 8 * MIB as u64)
        });
    }

    /// Number of payload bytes that both sides together sent again because a carrier was cut.
    fn sent_again(&self) -> u64 {
        let gates = [&self.entry, &self.exit];
        let again = gates.map(|gate| gate.status()["resume"]["bytesSentAgain"].as_u64());
        again.into_iter().flatten().sum()
    }
}

/// Sends [`pattern`]s of one MiB until `stop`, and then ends its half. Returns the number of bytes.
fn send_until(tcp: &TcpStream, seed: u64, stop: &Arc<AtomicBool>) -> JoinHandle<usize> {
    let (mut tcp, stop) = (tcp.try_clone().unwrap(), Arc::clone(stop));
    std::thread::spawn(move || {
        let bytes = pattern(seed, MIB);
        let mut sent = 0;
        while !stop.load(Ordering::Relaxed) {
            tcp.write_all(&bytes).unwrap();
            sent += bytes.len();
        }
        tcp.shutdown(Shutdown::Write).unwrap();
        sent
    })
}

/// Reads the data of [`send_until`] to its end. Returns the number of bytes.
fn read_repeated(mut tcp: &TcpStream, seed: u64) -> usize {
    let expected = pattern(seed, MIB);
    let (mut bytes, mut read) = (vec![0; 256 << 10], 0);
    loop {
        let at = read % MIB;
        let most = bytes.len().min(MIB - at);
        let length = tcp.read(&mut bytes[..most]).unwrap();
        if length == 0 {
            return read;
        }
        assert!(bytes[..length] == expected[at..at + length], "at {read}");
        read += length;
    }
}

#[test]
fn bytes_arrive_exactly_while_one_carrier_after_another_is_cut() {
    let tunnel = tunnel(3);
    tunnel.carry(|tunnel| {
        for _ in 0..6 {
            tunnel.path.cut_one();
            tunnel.until_bulk_flows();
        }
    });
    tunnel.until_carriers(3);
    assert!(tunnel.sent_again() > 0, "no data was in flight");
    assert_eq!(
        tunnel.entry.status()["streams"]["closed"]["carrier-lost"],
        0
    );
}

#[test]
fn a_session_of_one_carrier_goes_on_over_the_next() {
    let tunnel = tunnel(1);
    tunnel.carry(|tunnel| {
        for _ in 0..3 {
            tunnel.path.cut_one();
            tunnel.until_bulk_flows();
        }
    });
    tunnel.until_carriers(1);
    assert!(tunnel.sent_again() > 0, "no data was in flight");
}

#[test]
fn streams_wait_while_there_is_no_path() {
    let tunnel = tunnel(2);
    tunnel.carry(|tunnel| {
        tunnel.path.lets(false);
        tunnel.path.cut_all();
        until("the entry is not ready", || {
            tunnel.entry.get("/readyz").0 == 503
        });
        tunnel.path.lets(true);
    });
    tunnel.until_carriers(2);
    assert_eq!(tunnel.entry.get("/readyz").0, 200);
    for gate in [&tunnel.entry, &tunnel.exit] {
        let resume = &gate.status()["resume"];
        let survived = resume["carriersSurvived"].as_u64().unwrap();
        assert!(survived >= 2, "{resume}");
        let counted = format!("muxgate_carriers_survived_total {survived}");
        assert!(gate.get("/metrics").1.contains(&counted));
        until("no byte is retained, because all are acknowledged", || {
            gate.status()["resume"]["bytesRetained"] == 0
        });
    }
}

#[test]
fn streams_of_an_exit_that_goes_away_outlive_their_carriers() {
    let tunnel = tunnel(2);
    tunnel.carry(|tunnel| {
        tunnel.exit.signal("TERM");
        until(
            "the entry logs that the session accepts no more streams",
            || tunnel.entry.log().contains("accepts no more streams"),
        );
        let before = tunnel.path.count.load(Ordering::Relaxed);
        tunnel.path.cut_all();
        assert_eq!(tunnel.entry.status()["streams"]["open"], 1);
        until("another carrier is dialled", || {
            tunnel.path.count.load(Ordering::Relaxed) > before
        });
    });
    let Tunnel { exit, entry, .. } = tunnel;
    assert!(exit.wait().success());
    assert_eq!(entry.status()["streams"]["closed"]["carrier-lost"], 0);
}

/// Sends blocks and expects each block back, until `stop`. Then ends the stream.
async fn exchange(
    forward: SocketAddr,
    number: usize,
    stop: Arc<AtomicBool>,
) -> std::io::Result<u64> {
    let mut stream = tokio::net::TcpStream::connect(forward).await?;
    let block = pattern(number as u64, 16 << 10);
    let (mut back, mut exchanged) = (vec![0; block.len()], 0);
    // The lengths of a stream's blocks vary, and streams begin with different lengths.
    for length in (1 + number % 61..block.len()).step_by(977).cycle() {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        stream.write_all(&block[..length]).await?;
        stream.read_exact(&mut back[..length]).await?;
        assert!(back[..length] == block[..length], "stream {number}");
        exchanged += length as u64;
    }
    stream.shutdown().await?;
    assert_eq!(stream.read(&mut back).await?, 0, "stream {number}");
    Ok(exchanged)
}

async fn echo(listener: TcpListener) {
    listener.set_nonblocking(true).unwrap();
    let listener = tokio::net::TcpListener::from_std(listener).unwrap();
    while let Ok((mut stream, _)) = listener.accept().await {
        tokio::spawn(async move {
            let (mut read, mut write) = stream.split();
            let _ = tokio::io::copy(&mut read, &mut write).await;
        });
    }
}

#[test]
fn a_thousand_streams_outlive_a_hundred_cuts_of_all_carriers() {
    const STREAMS: usize = 1000;
    let mut tunnel = tunnel(2);
    let (other, _) = target();
    let listener = std::mem::replace(&mut tunnel.listener, other);
    let stop = Arc::new(AtomicBool::new(false));
    let (forward, stopped) = (tunnel.forward, Arc::clone(&stop));
    let applications = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            tokio::spawn(echo(listener));
            let streams: Vec<_> = (0..STREAMS)
                .map(|number| tokio::spawn(exchange(forward, number, Arc::clone(&stopped))))
                .collect();
            let mut exchanged = Vec::new();
            for stream in streams {
                exchanged.push(stream.await.unwrap().unwrap());
            }
            exchanged
        })
    });
    until("all streams are open", || {
        tunnel.entry.status()["streams"]["open"] == STREAMS
    });
    for _ in 0..100 {
        let before = tunnel.path.count.load(Ordering::Relaxed);
        tunnel.path.cut_all();
        until("another carrier is dialled", || {
            tunnel.path.count.load(Ordering::Relaxed) > before
        });
        std::thread::sleep(Duration::from_millis(20));
    }
    stop.store(true, Ordering::Relaxed);
    let exchanged = applications.join().unwrap();
    assert!(exchanged.iter().all(|bytes| *bytes > 0), "{exchanged:?}");
    until("all streams have ended", || {
        tunnel.entry.status()["streams"]["closed"]["completed"] == STREAMS
    });
    let again = |gate: &Gate| gate.status()["resume"]["bytesSentAgain"].as_u64();
    assert!(again(&tunnel.entry) > Some(0) && again(&tunnel.exit) > Some(0));
}
