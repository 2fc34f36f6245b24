//! A device on the path that ends the connections of both sides, such as a proxy or a load
//! balancer.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use super::target;

/// What the device does with connections.
#[derive(Debug, Clone, Copy, Default)]
pub struct Manners {
    /// The delay of each byte, in one direction.
    pub delay: Duration,
    /// The device cuts a connection on which no byte has arrived for this time.
    pub cuts_silent_after: Option<Duration>,
}

/// A device in front of one exit. It accepts every connection at once.
pub struct Middlebox {
    pub address: SocketAddr,
    /// Number of connections since the start.
    pub count: Arc<AtomicUsize>,
    /// Number of connections that were cut because they were silent.
    pub cut: Arc<AtomicUsize>,
    holds: Arc<AtomicBool>,
}

impl Middlebox {
    pub fn to(exit: SocketAddr, manners: Manners) -> Self {
        let (listener, address) = target();
        let middlebox = Self {
            address,
            count: Arc::default(),
            cut: Arc::default(),
            holds: Arc::default(),
        };
        let (count, cut) = (Arc::clone(&middlebox.count), Arc::clone(&middlebox.cut));
        let holds = Arc::clone(&middlebox.holds);
        thread::spawn(move || {
            for near in listener.incoming().flatten() {
                count.fetch_add(1, Relaxed);
                // Without the exit, the device keeps the connection and never answers.
                if holds.load(Relaxed) {
                    std::mem::forget(near);
                    continue;
                }
                let Ok(far) = TcpStream::connect(exit) else {
                    continue;
                };
                for tcp in [&near, &far] {
                    tcp.set_nodelay(true).unwrap();
                }
                let last = Arc::new(Mutex::new(Instant::now()));
                for (from, to) in [(&near, &far), (&far, &near)] {
                    carry(from, to, manners.delay, &last, &holds);
                }
                if let Some(silence) = manners.cuts_silent_after {
                    let cut = Arc::clone(&cut);
                    thread::spawn(move || cut_silent(&near, &far, silence, &last, &cut));
                }
            }
        });
        middlebox
    }

    /// The exit vanishes: from now on, the device takes all bytes and delivers none.
    pub fn lose_exit(&self) {
        self.holds.store(true, Relaxed);
    }
}

fn carry(
    from: &TcpStream,
    to: &TcpStream,
    delay: Duration,
    last: &Arc<Mutex<Instant>>,
    holds: &Arc<AtomicBool>,
) {
    let (mut from, mut to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
    let (last, holds) = (Arc::clone(last), Arc::clone(holds));
    let (sender, held) = mpsc::channel::<(Instant, Vec<u8>)>();
    thread::spawn(move || {
        let mut bytes = vec![0; 64 << 10];
        while let Ok(length) = from.read(&mut bytes) {
            *last.lock().unwrap() = Instant::now();
            let due = Instant::now() + delay;
            if sender.send((due, bytes[..length].to_vec())).is_err() || length == 0 {
                break;
            }
        }
    });
    thread::spawn(move || {
        for (due, bytes) in held {
            thread::sleep(due.saturating_duration_since(Instant::now()));
            if holds.load(Relaxed) {
                continue;
            }
            if bytes.is_empty() || to.write_all(&bytes).is_err() {
                break;
            }
        }
        if !holds.load(Relaxed) {
            let _ = to.shutdown(Shutdown::Write);
        }
    });
}

fn cut_silent(
    near: &TcpStream,
    far: &TcpStream,
    silence: Duration,
    last: &Mutex<Instant>,
    cut: &AtomicUsize,
) {
    loop {
        let quiet = last.lock().unwrap().elapsed();
        if quiet >= silence {
            break;
        }
        thread::sleep(silence - quiet);
    }
    cut.fetch_add(1, Relaxed);
    for tcp in [near, far] {
        let _ = tcp.shutdown(Shutdown::Both);
    }
}
