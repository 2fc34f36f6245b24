//! IP packets between the network interface and a carrier. Each packet has one buffer, with room
//! for a frame's header in front.
//!
//! A long packet keeps the buffer into which it was read. A shorter packet is copied to a smaller
//! buffer, so that waiting packets take at most [`FITTED_SHARE`] times their bytes. The queues
//! bound the memory of waiting packets.

use std::cell::RefCell;
use std::io::Result;
use std::rc::Rc;

use muxtunnel_packet::{PACKET_BYTES_MAX, VIRTIO_HEADER_BYTES};
use muxtunnel_proto::{DATAGRAM_BYTES_MAX, HEADER_BYTES_MAX};

use super::buffers::FITTED_SHARE;

const _: () = assert!(DATAGRAM_BYTES_MAX == VIRTIO_HEADER_BYTES + PACKET_BYTES_MAX);
/// Size of a buffer that fits any packet, in bytes.
const BUFFER_BYTES: usize = HEADER_BYTES_MAX + DATAGRAM_BYTES_MAX;
/// Maximum number of idle buffers that a worker keeps. Together they have 4 MiB.
const IDLE_MAX: usize = 64;

/// The idle buffers of one worker.
#[derive(Debug, Default)]
pub(crate) struct PacketPool {
    idle: RefCell<Vec<Box<[u8]>>>,
}

impl PacketPool {
    /// Reads one packet. `read` returns the packet's length, which is at most the length of its
    /// argument.
    ///
    /// # Errors
    /// The error of `read`.
    pub(crate) fn read(
        self: &Rc<Self>,
        read: impl FnOnce(&mut [u8]) -> Result<usize>,
    ) -> Result<Packet> {
        let idle = self.idle.borrow_mut().pop();
        let mut buffer = idle.unwrap_or_else(|| vec![0; BUFFER_BYTES].into_boxed_slice());
        let length = match read(&mut buffer[HEADER_BYTES_MAX..]) {
            Ok(length) => length.min(DATAGRAM_BYTES_MAX),
            Err(error) => {
                self.put_back(buffer);
                return Err(error);
            }
        };
        let end = HEADER_BYTES_MAX + length;
        if end >= BUFFER_BYTES / FITTED_SHARE {
            let home = Some(Rc::clone(self));
            return Ok(Packet { buffer, end, home });
        }
        let fitted = Box::from(&buffer[..end]);
        self.put_back(buffer);
        Ok(Packet {
            buffer: fitted,
            end,
            home: None,
        })
    }

    fn put_back(&self, buffer: Box<[u8]>) {
        let mut idle = self.idle.borrow_mut();
        if idle.len() < IDLE_MAX {
            idle.push(buffer);
        }
    }
}

/// The unit that the network interface and a session exchange: a virtio-net header, and one IP
/// packet or super-packet.
#[derive(Debug)]
pub(crate) struct Packet {
    /// Room for a frame's header, followed by the bytes up to `end`.
    buffer: Box<[u8]>,
    end: usize,
    /// The pool; `None`: the buffer belongs to no pool.
    home: Option<Rc<PacketPool>>,
}

impl Packet {
    /// The virtio-net header and the IP packet.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.buffer[HEADER_BYTES_MAX..self.end]
    }

    /// Works as [`Self::bytes`].
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.buffer[HEADER_BYTES_MAX..self.end]
    }

    /// Number of bytes of memory that the packet takes.
    pub(crate) fn held(&self) -> usize {
        self.buffer.len()
    }

    /// Converts the packet for another thread. Its buffer then returns to no pool.
    pub(crate) fn detach(mut self) -> DetachedPacket {
        self.home = None;
        DetachedPacket {
            buffer: std::mem::take(&mut self.buffer),
            end: self.end,
        }
    }

    /// Puts a frame's header in front of the packet, at most [`HEADER_BYTES_MAX`] bytes.
    pub(crate) fn framed(mut self, header: &[u8]) -> Framed {
        let start = HEADER_BYTES_MAX - header.len();
        self.buffer[start..HEADER_BYTES_MAX].copy_from_slice(header);
        Framed {
            packet: self,
            start,
        }
    }
}

impl From<&[u8]> for Packet {
    fn from(bytes: &[u8]) -> Self {
        let mut buffer = vec![0; HEADER_BYTES_MAX];
        buffer.extend_from_slice(bytes);
        Self {
            end: buffer.len(),
            buffer: buffer.into_boxed_slice(),
            home: None,
        }
    }
}

impl From<DetachedPacket> for Packet {
    fn from(packet: DetachedPacket) -> Self {
        Self {
            buffer: packet.buffer,
            end: packet.end,
            home: None,
        }
    }
}

impl Drop for Packet {
    fn drop(&mut self) {
        if let Some(home) = &self.home {
            home.put_back(std::mem::take(&mut self.buffer));
        }
    }
}

/// A packet that is being moved to another thread.
#[derive(Debug)]
pub(crate) struct DetachedPacket {
    buffer: Box<[u8]>,
    end: usize,
}

impl DetachedPacket {
    /// Number of bytes of memory that the packet takes.
    pub(crate) fn held(&self) -> usize {
        self.buffer.len()
    }
}

/// A packet with the header of its frame.
#[derive(Debug)]
pub(crate) struct Framed {
    packet: Packet,
    start: usize,
}

impl std::ops::Deref for Framed {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.packet.buffer[self.start..self.packet.end]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet(pool: &Rc<PacketPool>, length: usize) -> Packet {
        let read = |bytes: &mut [u8]| {
            bytes[..length].fill(7);
            Ok(length)
        };
        pool.read(read).unwrap()
    }

    #[test]
    fn a_short_packet_takes_its_own_bytes_and_a_long_one_a_buffer_that_goes_back() {
        let pool = Rc::new(PacketPool::default());
        let short = packet(&pool, 1500);
        assert_eq!(
            (short.bytes(), short.held()),
            (&[7; 1500][..], HEADER_BYTES_MAX + 1500)
        );
        assert_eq!(pool.idle.borrow().len(), 1);
        let long = packet(&pool, DATAGRAM_BYTES_MAX);
        assert_eq!(long.bytes().len(), DATAGRAM_BYTES_MAX);
        assert_eq!(pool.idle.borrow().len(), 0);
        drop(long);
        assert_eq!(pool.idle.borrow().len(), 1);
        for length in [1, 100, 20_000, 60_000] {
            let packet = packet(&pool, length);
            assert!(packet.held() <= FITTED_SHARE * (HEADER_BYTES_MAX + length));
        }
    }

    #[test]
    fn a_frame_is_contiguous() {
        let pool = Rc::new(PacketPool::default());
        let framed = packet(&pool, 3).framed(b"head");
        assert_eq!(&*framed, b"head\x07\x07\x07");
        let framed = Packet::from(&b"abc"[..]).framed(&[1; HEADER_BYTES_MAX]);
        assert_eq!(framed.len(), HEADER_BYTES_MAX + 3);
    }

    #[test]
    fn a_packet_that_goes_to_another_thread_keeps_its_bytes_and_leaves_its_pool() {
        let pool = Rc::new(PacketPool::default());
        let detached = packet(&pool, 60_000).detach();
        assert_eq!(pool.idle.borrow().len(), 0);
        let arrived = std::thread::spawn(move || Packet::from(detached).bytes().to_vec());
        assert_eq!(arrived.join().unwrap(), [7; 60_000]);
    }

    #[test]
    fn a_read_that_fails_loses_no_buffer() {
        let pool = Rc::new(PacketPool::default());
        let failed = pool.read(|_| Err(std::io::ErrorKind::WouldBlock.into()));
        assert!(failed.is_err());
        assert_eq!(pool.idle.borrow().len(), 1);
    }
}
