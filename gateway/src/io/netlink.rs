//! Requests to the kernel about interfaces, addresses and routes (rtnetlink(7)), and about
//! nftables. Only one request is in progress at a time.
//!
//! The message types come from netlink-packet-route and netlink-packet-netfilter. The crate
//! rtnetlink is not used, because it requires a task for its connection. A command that sends ten
//! requests one after another needs no task.

use std::io::{self, Error, ErrorKind};
use std::marker::PhantomData;

use netlink_packet_core::{
    NLM_F_ACK, NLM_F_REQUEST, NetlinkDeserializable, NetlinkHeader, NetlinkMessage, NetlinkPayload,
    NetlinkSerializable,
};
use netlink_packet_netfilter::nftables::NfTablesMessage;
use netlink_packet_netfilter::none::ControlMessage;
use netlink_packet_netfilter::{
    NetfilterHeader, NetfilterMessage, NetfilterProtoFamily, NetfilterSubsystem,
};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_sys::protocols::{NETLINK_NETFILTER, NETLINK_ROUTE};
use netlink_sys::{Socket, SocketAddr};

/// Maximum size of a datagram from the kernel, in bytes. NLMSG_GOODSIZE is 8 KiB, and dumps have up
/// to 32 KiB.
const DATAGRAM_BYTES: usize = 64 << 10;
/// Size of each message's header (`struct nlmsghdr`), in bytes.
const HEADER_BYTES: usize = 16;

/// A socket to the kernel subsystem whose messages have the type `M`.
#[derive(Debug)]
pub(crate) struct Netlink<M> {
    socket: Socket,
    sequence: u32,
    messages: PhantomData<M>,
}

impl Netlink<RouteNetlinkMessage> {
    /// Connects to rtnetlink in the network namespace of the calling thread.
    ///
    /// # Errors
    /// The system's error.
    pub(crate) fn route() -> io::Result<Self> {
        Self::connected(NETLINK_ROUTE)
    }

    /// Sends `message` and returns the kernel's answers. The function adds NLM_F_REQUEST and
    /// NLM_F_ACK to `flags`.
    ///
    /// # Errors
    /// The kernel's error.
    pub(crate) fn request(
        &mut self,
        message: RouteNetlinkMessage,
        flags: u16,
    ) -> io::Result<Vec<RouteNetlinkMessage>> {
        self.sequence += 1;
        let bytes = self.serialized(message.into(), NLM_F_ACK | flags);
        self.socket.send(&bytes, 0)?;
        self.answers(1)
    }
}

impl Netlink<NetfilterMessage> {
    /// Connects to nfnetlink in the network namespace of the calling thread.
    ///
    /// # Errors
    /// The system's error.
    pub(crate) fn netfilter() -> io::Result<Self> {
        Self::connected(NETLINK_NETFILTER)
    }

    /// Applies either all `messages`, each with its flags, or none
    /// (include/uapi/linux/netfilter/nfnetlink.h: NFNL_MSG_BATCH_BEGIN).
    ///
    /// # Errors
    /// The kernel's error for the first refused message.
    pub(crate) fn transaction(&mut self, messages: Vec<(NfTablesMessage, u16)>) -> io::Result<()> {
        self.sequence += 1;
        let number = messages.len();
        // The subsystem of the batch.
        let subsystem = u8::from(NetfilterSubsystem::NfTables).into();
        let control = |message| {
            let header = NetfilterHeader::new(NetfilterProtoFamily::Unspec, 0, subsystem);
            NetfilterMessage::new(header, message)
        };
        let mut bytes = self.serialized(control(ControlMessage::BatchBegin).into(), 0);
        for (message, flags) in messages {
            let header = NetfilterHeader::new(NetfilterProtoFamily::Inet, 0, 0);
            let message = NetfilterMessage::new(header, message);
            bytes.extend(self.serialized(message.into(), NLM_F_ACK | flags));
        }
        bytes.extend(self.serialized(control(ControlMessage::BatchEnd).into(), 0));
        self.socket.send(&bytes, 0)?;
        self.answers(number).map(drop)
    }
}

impl<M: NetlinkSerializable + NetlinkDeserializable> Netlink<M> {
    fn connected(protocol: isize) -> io::Result<Self> {
        let socket = Socket::new(protocol)?;
        socket.connect(&SocketAddr::new(0, 0))?;
        Ok(Self {
            socket,
            sequence: 0,
            messages: PhantomData,
        })
    }

    fn serialized(&self, payload: NetlinkPayload<M>, flags: u16) -> Vec<u8> {
        let mut header = NetlinkHeader::default();
        header.flags = NLM_F_REQUEST | flags;
        header.sequence_number = self.sequence;
        let mut message = NetlinkMessage::new(header, payload);
        message.finalize();
        let mut bytes = vec![0; message.buffer_len()];
        message.serialize(&mut bytes);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    /// Returns the kernel's answers to the last transmission, once all answers to its `number`
    /// messages have arrived.
    fn answers(&self, number: usize) -> io::Result<Vec<M>> {
        let (mut answers, mut ended) = (Vec::new(), 0);
        while ended < number {
            ended += self.receive(&mut answers)?;
        }
        Ok(answers)
    }

    /// Receives one datagram, and appends its content to `answers`. Returns for how many messages
    /// of the transmission the datagram completes the answer.
    fn receive(&self, answers: &mut Vec<M>) -> io::Result<usize> {
        let mut bytes = Vec::with_capacity(DATAGRAM_BYTES);
        self.socket.recv(&mut bytes, 0)?;
        let (mut rest, mut ended) = (&bytes[..], 0);
        while rest.len() >= HEADER_BYTES {
            let message = NetlinkMessage::<M>::deserialize(rest)
                .map_err(|error| Error::new(ErrorKind::InvalidData, error))?;
            let length = (message.header.length as usize).max(HEADER_BYTES);
            rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
            if message.header.sequence_number != self.sequence {
                continue;
            }
            match message.payload {
                NetlinkPayload::InnerMessage(answer) => answers.push(answer),
                NetlinkPayload::Error(error) if error.code.is_some() => return Err(error.into()),
                NetlinkPayload::Error(_) | NetlinkPayload::Done(_) => ended += 1,
                _ => {}
            }
        }
        Ok(ended)
    }
}
