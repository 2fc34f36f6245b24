//! A path to an exit that a test can interrupt.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use super::target;

/// A path whose carriers can be cut.
pub struct Path {
    pub address: SocketAddr,
    /// Number of carriers since the start.
    pub count: Arc<AtomicUsize>,
    /// Bytes that the path has received from both ends, since the start.
    pub bytes: Arc<AtomicU64>,
    carriers: Arc<Mutex<Vec<TcpStream>>>,
    open: Arc<Mutex<bool>>,
}

impl Path {
    pub fn to(exit: SocketAddr) -> Self {
        let (listener, address) = target();
        let carriers = Arc::new(Mutex::new(Vec::new()));
        let open = Arc::new(Mutex::new(true));
        let (all, lets) = (Arc::clone(&carriers), Arc::clone(&open));
        let count = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&count);
        let bytes = Arc::new(AtomicU64::new(0));
        let passed = Arc::clone(&bytes);
        std::thread::spawn(move || {
            for near in listener.incoming().flatten() {
                if !*lets.lock().unwrap() {
                    continue;
                }
                let Ok(far) = TcpStream::connect(exit) else {
                    continue;
                };
                counted.fetch_add(1, Ordering::Relaxed);
                copy_in_background(&near, &far, &passed);
                copy_in_background(&far, &near, &passed);
                all.lock().unwrap().extend([near, far]);
            }
        });
        Self {
            address,
            count,
            bytes,
            carriers,
            open,
        }
    }

    /// Cuts the oldest carrier, with all data in flight.
    pub fn cut_one(&self) {
        let mut carriers = self.carriers.lock().unwrap();
        let count = carriers.len().min(2);
        for tcp in carriers.drain(..count) {
            let _ = tcp.shutdown(Shutdown::Both);
        }
    }

    pub fn cut_all(&self) {
        while !self.carriers.lock().unwrap().is_empty() {
            self.cut_one();
        }
    }

    pub fn lets(&self, open: bool) {
        *self.open.lock().unwrap() = open;
    }
}

fn copy_in_background(from: &TcpStream, to: &TcpStream, passed: &Arc<AtomicU64>) {
    let (mut from, mut to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
    let passed = Arc::clone(passed);
    std::thread::spawn(move || {
        let mut piece = vec![0; 64 << 10];
        while let Ok(bytes @ 1..) = from.read(&mut piece) {
            passed.fetch_add(bytes as u64, Ordering::Relaxed);
            if to.write_all(&piece[..bytes]).is_err() {
                break;
            }
        }
        let _ = to.shutdown(Shutdown::Both);
        let _ = from.shutdown(Shutdown::Both);
    });
}
