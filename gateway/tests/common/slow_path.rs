//! A path to an exit with a delay, which a test can stall. The path loses nothing: what arrives
//! during a stall waits.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::spawn;
use std::time::{Duration, Instant};

use super::target;

/// A path, which exists until the end of the test process.
pub struct SlowPath {
    pub address: SocketAddr,
    state: Arc<State>,
}

#[derive(Default)]
struct State {
    delay: Duration,
    stalled: Mutex<bool>,
    resumed: Condvar,
    carriers: AtomicUsize,
}

impl State {
    /// Waits until bytes that arrived at `at` may leave.
    fn hold(&self, at: Instant) {
        std::thread::sleep((at + self.delay).saturating_duration_since(Instant::now()));
        let stalled = self.stalled.lock().unwrap();
        let _running = self
            .resumed
            .wait_while(stalled, |stalled| *stalled)
            .unwrap();
    }
}

impl SlowPath {
    /// A path for TCP connections. Each direction takes `delay`.
    pub fn tcp(exit: SocketAddr, delay: Duration) -> Self {
        let (listener, address) = target();
        let path = Self::new(address, delay);
        let state = Arc::clone(&path.state);
        spawn(move || {
            for near in listener.incoming().flatten() {
                let Ok(far) = TcpStream::connect(exit) else {
                    continue;
                };
                state.carriers.fetch_add(1, Relaxed);
                for (from, to) in [(&near, &far), (&far, &near)] {
                    from.set_nodelay(true).unwrap();
                    carry(
                        from.try_clone().unwrap(),
                        to.try_clone().unwrap(),
                        Arc::clone(&state),
                    );
                }
            }
        });
        path
    }

    /// A path for datagrams.
    pub fn udp(exit: SocketAddr, delay: Duration) -> Self {
        let near = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let path = Self::new(near.local_addr().unwrap(), delay);
        let state = Arc::clone(&path.state);
        spawn(move || {
            let mut flows: BTreeMap<SocketAddr, Sender<(Instant, Vec<u8>)>> = BTreeMap::new();
            let mut buffer = vec![0; 65_536];
            loop {
                let Ok((length, client)) = near.recv_from(&mut buffer) else {
                    continue;
                };
                let flow = flows
                    .entry(client)
                    .or_insert_with(|| flow(&near, client, exit, &state));
                let _ = flow.send((Instant::now(), buffer[..length].to_vec()));
            }
        });
        path
    }

    fn new(address: SocketAddr, delay: Duration) -> Self {
        let state = State {
            delay,
            ..State::default()
        };
        Self {
            address,
            state: Arc::new(state),
        }
    }

    /// Stalls both directions, or ends the stall.
    pub fn stall(&self, stalled: bool) {
        *self.state.stalled.lock().unwrap() = stalled;
        self.state.resumed.notify_all();
    }

    /// Number of carriers since the start.
    pub fn carriers(&self) -> usize {
        self.state.carriers.load(Relaxed)
    }
}

fn carry(mut from: TcpStream, mut to: TcpStream, state: Arc<State>) {
    let (queue, queued) = channel();
    spawn(move || {
        let mut buffer = vec![0; 65_536];
        while let Ok(length @ 1..) = from.read(&mut buffer) {
            if queue
                .send((Instant::now(), buffer[..length].to_vec()))
                .is_err()
            {
                break;
            }
        }
    });
    spawn(move || {
        for (at, bytes) in queued {
            state.hold(at);
            if to.write_all(&bytes).is_err() {
                break;
            }
        }
        let _ = to.shutdown(Shutdown::Both);
    });
}

/// The datagrams of one client, in both directions.
fn flow(
    near: &UdpSocket,
    client: SocketAddr,
    exit: SocketAddr,
    state: &Arc<State>,
) -> Sender<(Instant, Vec<u8>)> {
    state.carriers.fetch_add(1, Relaxed);
    let far = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    far.connect(exit).unwrap();
    let (up, going_up) = channel();
    let (down, going_down) = channel();
    let (back, to) = (near.try_clone().unwrap(), far.try_clone().unwrap());
    release(going_up, Arc::clone(state), move |bytes| {
        let _ = to.send(bytes);
    });
    release(going_down, Arc::clone(state), move |bytes| {
        drop(back.send_to(bytes, client));
    });
    spawn(move || {
        let mut buffer = vec![0; 65_536];
        loop {
            // A refused datagram is an error here, and is lost.
            if let Ok(length) = far.recv(&mut buffer) {
                let _ = down.send((Instant::now(), buffer[..length].to_vec()));
            }
        }
    });
    up
}

fn release(
    queued: Receiver<(Instant, Vec<u8>)>,
    state: Arc<State>,
    send: impl Fn(&[u8]) + Send + 'static,
) {
    spawn(move || {
        for (at, bytes) in queued {
            state.hold(at);
            send(&bytes);
        }
    });
}
