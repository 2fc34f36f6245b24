//! Many connections that send little data slowly, as in a slowloris attack.

use std::io::Write;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Pause before an evicted connection is replaced.
const PAUSE: Duration = Duration::from_secs(1);

pub struct Herd {
    from: IpAddr,
    to: SocketAddr,
    prefix: &'static [u8],
    /// Each connection, with the number of bytes that it has sent. `None`: the connection was
    /// evicted.
    members: Vec<Option<(TcpStream, usize)>>,
}

impl Herd {
    /// Opens `count` connections. Half of them have begun to send `prefix`.
    pub fn new(from: IpAddr, to: SocketAddr, prefix: &'static [u8], count: usize) -> Self {
        let mut herd = Self {
            from,
            to,
            prefix,
            members: Vec::new(),
        };
        for index in 0..count {
            let mut tcp = herd.one();
            let said = prefix.len() / 2 * (index % 2);
            let _ = tcp.write(&prefix[..said]);
            herd.members.push(Some((tcp, said)));
        }
        herd
    }

    fn one(&self) -> TcpStream {
        let (domain, kind) = (socket2::Domain::for_address(self.to), socket2::Type::STREAM);
        let socket = socket2::Socket::new(domain, kind, None).unwrap();
        socket.bind(&SocketAddr::new(self.from, 0).into()).unwrap();
        socket.connect(&self.to.into()).unwrap();
        socket.set_nonblocking(true).unwrap();
        socket.into()
    }

    /// Sends the next byte of `prefix` on each connection that has not sent all bytes.
    pub fn say_more(&mut self) {
        for (tcp, said) in self.members.iter_mut().flatten() {
            if let Some(byte) = self.prefix.get(*said) {
                let _ = tcp.write(&[*byte]);
                *said += 1;
            }
        }
    }

    /// The number of connections that were not evicted.
    pub fn left(&mut self) -> usize {
        for member in &mut self.members {
            if member.as_ref().is_some_and(|(tcp, _)| has_ended(tcp)) {
                *member = None;
            }
        }
        self.members.iter().flatten().count()
    }

    /// Starts a thread that sends a byte per second on each connection, and replaces evicted
    /// connections.
    pub fn that_comes_again(mut self) -> Restless {
        let (stop, again) = (
            Arc::new(AtomicBool::new(false)),
            Arc::new(AtomicU64::new(0)),
        );
        let (stopped, counted) = (Arc::clone(&stop), Arc::clone(&again));
        let thread = std::thread::spawn(move || {
            while !stopped.load(Relaxed) {
                let begun = Instant::now();
                self.left();
                for index in 0..self.members.len() {
                    if self.members[index].is_none() {
                        self.members[index] = Some((self.one(), 0));
                        counted.fetch_add(1, Relaxed);
                    }
                }
                self.say_more();
                std::thread::sleep(PAUSE.saturating_sub(begun.elapsed()));
            }
        });
        Restless {
            stop,
            again,
            since: Instant::now(),
            thread: Some(thread),
        }
    }
}

/// A herd with its own thread.
pub struct Restless {
    stop: Arc<AtomicBool>,
    again: Arc<AtomicU64>,
    since: Instant,
    thread: Option<JoinHandle<()>>,
}

impl Restless {
    /// Waits 3 s. Returns how many evicted connections the thread has replaced per second since its
    /// start.
    pub fn rate(&self) -> f64 {
        std::thread::sleep(3 * PAUSE);
        self.again.load(Relaxed) as f64 / self.since.elapsed().as_secs_f64()
    }
}

impl Drop for Restless {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn has_ended(tcp: &TcpStream) -> bool {
    let mut bytes = [std::mem::MaybeUninit::uninit(); 1024];
    loop {
        match socket2::SockRef::from(tcp).recv(&mut bytes) {
            Ok(0) => return true,
            Ok(_) => {}
            Err(error) => return error.kind() != std::io::ErrorKind::WouldBlock,
        }
    }
}
