//! Requests to the kernel about interfaces, addresses and routes (rtnetlink(7)), one after another.
//!
//! The messages are netlink-packet-route's. Its companion rtnetlink is not used: it needs a task for its connection, and a
//! command that sends ten requests in order needs none.

use std::io::{self, Error, ErrorKind};

use netlink_packet_core::{
    NLM_F_ACK, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload,
};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_sys::protocols::NETLINK_ROUTE;
use netlink_sys::{Socket, SocketAddr};

/// Most that the kernel sends at once (NLMSG_GOODSIZE is 8 KiB, dumps have up to 32 KiB), bytes.
const DATAGRAM_BYTES: usize = 64 << 10;
/// The header of each message (`struct nlmsghdr`), bytes.
const HEADER_BYTES: usize = 16;

/// A socket to the kernel.
#[derive(Debug)]
pub(crate) struct Netlink {
    socket: Socket,
    sequence: u32,
}

impl Netlink {
    /// Of the network namespace that the calling thread is in.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn connected() -> io::Result<Self> {
        let socket = Socket::new(NETLINK_ROUTE)?;
        socket.connect(&SocketAddr::new(0, 0))?;
        Ok(Self {
            socket,
            sequence: 0,
        })
    }

    /// What the kernel answers to `message`. `flags`: beside NLM_F_REQUEST and NLM_F_ACK.
    ///
    /// # Errors
    /// Of the request, as the kernel has it.
    pub(crate) fn request(
        &mut self,
        message: RouteNetlinkMessage,
        flags: u16,
    ) -> io::Result<Vec<RouteNetlinkMessage>> {
        self.sequence += 1;
        let mut header = NetlinkHeader::default();
        header.flags = NLM_F_REQUEST | NLM_F_ACK | flags;
        header.sequence_number = self.sequence;
        let mut message = NetlinkMessage::new(header, NetlinkPayload::from(message));
        message.finalize();
        let mut bytes = vec![0; message.buffer_len()];
        message.serialize(&mut bytes);
        self.socket.send(&bytes, 0)?;
        let mut answers = Vec::new();
        while !self.receive(&mut answers)? {}
        Ok(answers)
    }

    /// Takes one datagram; returns whether it ends the answer.
    fn receive(&self, answers: &mut Vec<RouteNetlinkMessage>) -> io::Result<bool> {
        let mut bytes = Vec::with_capacity(DATAGRAM_BYTES);
        self.socket.recv(&mut bytes, 0)?;
        let mut rest = &bytes[..];
        while rest.len() >= HEADER_BYTES {
            let message = NetlinkMessage::<RouteNetlinkMessage>::deserialize(rest)
                .map_err(|error| Error::new(ErrorKind::InvalidData, error))?;
            let length = (message.header.length as usize).max(HEADER_BYTES);
            rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
            if message.header.sequence_number != self.sequence {
                continue;
            }
            match message.payload {
                NetlinkPayload::InnerMessage(answer) => answers.push(answer),
                NetlinkPayload::Error(error) if error.code.is_some() => return Err(error.into()),
                NetlinkPayload::Error(_) | NetlinkPayload::Done(_) => return Ok(true),
                _ => {}
            }
        }
        Ok(false)
    }
}
