//! A path to an exit that a test can interrupt.

use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use super::target;

/// A path whose carriers can be cut.
pub struct Path {
    pub address: SocketAddr,
    /// Number of carriers since the start.
    pub count: Arc<AtomicUsize>,
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
        std::thread::spawn(move || {
            for near in listener.incoming().flatten() {
                if !*lets.lock().unwrap() {
                    continue;
                }
                let Ok(far) = TcpStream::connect(exit) else {
                    continue;
                };
                counted.fetch_add(1, Ordering::Relaxed);
                copy_in_background(&near, &far);
                copy_in_background(&far, &near);
                all.lock().unwrap().extend([near, far]);
            }
        });
        Self {
            address,
            count,
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

fn copy_in_background(from: &TcpStream, to: &TcpStream) {
    let (mut from, mut to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
    std::thread::spawn(move || {
        let _ = std::io::copy(&mut from, &mut to);
        let _ = to.shutdown(Shutdown::Both);
        let _ = from.shutdown(Shutdown::Both);
    });
}
