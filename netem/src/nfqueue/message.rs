//! Encodes and decodes the nfnetlink_queue messages of the delay line. Pure.
//!
//! The module encodes the set-up and verdicts, and decodes acknowledgements and packets. It reads
//! only the id of a packet and, if requested, the length. The kernel copies at most one byte of
//! payload. The module checks every length from the kernel before use. Source: `linux/netlink.h`,
//! `linux/netfilter/nfnetlink_queue.h`.

/// A netlink header: length 4 + type 2 + flags 2 + sequence 4 + port 4.
const NETLINK_HEADER: usize = 4 + 2 + 2 + 4 + 4;
/// The netfilter header after the netlink header: family 1 + version 1 + resource id (the queue's
/// number) 2.
const NETFILTER_HEADER: usize = 1 + 1 + 2;
/// An attribute's header: length 2 + type 2.
const ATTRIBUTE_HEADER: usize = 2 + 2;

const NLM_F_REQUEST: u16 = 1;
const NLM_F_ACK: u16 = 4;
const NLMSG_ERROR: u16 = 2;

const SUBSYSTEM_QUEUE: u16 = 3 << 8;
const MSG_PACKET: u16 = SUBSYSTEM_QUEUE;
const MSG_VERDICT: u16 = SUBSYSTEM_QUEUE | 1;
const MSG_CONFIG: u16 = SUBSYSTEM_QUEUE | 2;
const MSG_VERDICT_BATCH: u16 = SUBSYSTEM_QUEUE | 3;

const NFQA_PACKET_HDR: u16 = 1;
const NFQA_VERDICT_HDR: u16 = 2;
const NFQA_PAYLOAD: u16 = 10;
/// The packet's length, if only a part was copied.
const NFQA_CAP_LEN: u16 = 13;

const NFQA_CFG_CMD: u16 = 1;
const NFQA_CFG_PARAMS: u16 = 2;
const NFQA_CFG_QUEUE_MAXLEN: u16 = 3;
const NFQA_CFG_MASK: u16 = 4;
const NFQA_CFG_FLAGS: u16 = 5;

const CFG_CMD_BIND: u8 = 1;
const COPY_META: u8 = 1;
/// The kernel reports lengths only in this mode.
const COPY_PACKET: u8 = 2;
/// Super-packets of up to 64 KiB stay whole. Without this flag, the kernel first segments them into
/// frames.
const CFG_F_GSO: u32 = 1 << 2;

const NF_DROP: u32 = 0;
const NF_ACCEPT: u32 = 1;

/// The low 14 bits are the type. The other bits describe the encoding of the value.
const ATTRIBUTE_TYPE_MASK: u16 = 0x3fff;

/// A message of the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// A packet waits for a verdict.
    Packet {
        /// The packet's id in verdicts.
        id: u32,
        /// Length of the whole IP packet; 0 if lengths were not requested.
        bytes: u32,
    },
    /// The answer to a sent message: 0, or a negative error number.
    Answer(i32),
    /// A message that the delay line ignores.
    Other,
}

/// A malformed message of the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("malformed netlink message")]
pub struct Malformed;

/// Requests the queue. The kernel answers with [`Event::Answer`].
#[must_use]
pub fn bind(queue: u16) -> Vec<u8> {
    // command 1 + padding 1 + protocol family 2 (not read by the kernel since 3.8)
    Message::new(MSG_CONFIG, NLM_F_REQUEST | NLM_F_ACK, queue)
        .attribute(NFQA_CFG_CMD, &[CFG_CMD_BIND, 0, 0, 0])
        .finish()
}

/// How the queue reports packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// Super-packets stay whole. The kernel reports only ids.
    Whole,
    /// The kernel segments super-packets into frames. It reports ids and lengths.
    Frames,
}

/// Sets the form of reports and the capacity `packets_max` of the queue. The kernel answers with
/// [`Event::Answer`].
#[must_use]
pub fn configure(queue: u16, packets_max: u32, form: Form) -> Vec<u8> {
    // copied bytes a packet 4 + copy mode 1
    let (parameters, flags) = match form {
        Form::Whole => ([0, 0, 0, 0, COPY_META], CFG_F_GSO),
        Form::Frames => ([0, 0, 0, 1, COPY_PACKET], 0),
    };
    Message::new(MSG_CONFIG, NLM_F_REQUEST | NLM_F_ACK, queue)
        .attribute(NFQA_CFG_PARAMS, &parameters)
        .attribute(NFQA_CFG_FLAGS, &u32::to_be_bytes(flags))
        .attribute(NFQA_CFG_MASK, &CFG_F_GSO.to_be_bytes())
        .attribute(NFQA_CFG_QUEUE_MAXLEN, &packets_max.to_be_bytes())
        .finish()
}

/// Releases all waiting packets with ids up to and including `up_to_id`.
#[must_use]
pub fn accept_up_to(queue: u16, up_to_id: u32) -> Vec<u8> {
    verdict(MSG_VERDICT_BATCH, queue, NF_ACCEPT, up_to_id)
}

/// Drops one waiting packet.
#[must_use]
pub fn drop_one(queue: u16, id: u32) -> Vec<u8> {
    verdict(MSG_VERDICT, queue, NF_DROP, id)
}

fn verdict(kind: u16, queue: u16, verdict: u32, id: u32) -> Vec<u8> {
    let mut value = [0; 8];
    value[..4].copy_from_slice(&verdict.to_be_bytes());
    value[4..].copy_from_slice(&id.to_be_bytes());
    Message::new(kind, NLM_F_REQUEST, queue)
        .attribute(NFQA_VERDICT_HDR, &value)
        .finish()
}

/// Parses all messages of one datagram, in order.
///
/// # Errors
/// [`Malformed`] if a length exceeds the enclosing message.
pub fn parse(datagram: &[u8]) -> Result<Vec<Event>, Malformed> {
    let mut events = Vec::new();
    let mut rest = datagram;
    while !rest.is_empty() {
        let length = u32::from_ne_bytes(field(rest, 0)?) as usize;
        if length < NETLINK_HEADER {
            return Err(Malformed);
        }
        let message = rest.get(..length).ok_or(Malformed)?;
        events.push(parse_one(message)?);
        rest = rest.get(aligned(length)..).unwrap_or_default();
    }
    Ok(events)
}

fn parse_one(message: &[u8]) -> Result<Event, Malformed> {
    match u16::from_ne_bytes(field(message, 4)?) {
        NLMSG_ERROR => Ok(Event::Answer(i32::from_ne_bytes(field(
            message,
            NETLINK_HEADER,
        )?))),
        MSG_PACKET => {
            let attributes = message
                .get(NETLINK_HEADER + NETFILTER_HEADER..)
                .ok_or(Malformed)?;
            let header = attribute(attributes, NFQA_PACKET_HDR)?.ok_or(Malformed)?;
            let id = u32::from_be_bytes(field(header, 0)?);
            let copied = attribute(attributes, NFQA_PAYLOAD)?.map_or(0, <[u8]>::len);
            let bytes = match attribute(attributes, NFQA_CAP_LEN)? {
                Some(length) => u32::from_be_bytes(field(length, 0)?),
                None => u32::try_from(copied).map_err(|_| Malformed)?,
            };
            Ok(Event::Packet { id, bytes })
        }
        _ => Ok(Event::Other),
    }
}

/// The value of the first attribute of this type.
fn attribute(attributes: &[u8], wanted: u16) -> Result<Option<&[u8]>, Malformed> {
    let mut rest = attributes;
    while rest.len() >= ATTRIBUTE_HEADER {
        let length = usize::from(u16::from_ne_bytes(field(rest, 0)?));
        let kind = u16::from_ne_bytes(field(rest, 2)?) & ATTRIBUTE_TYPE_MASK;
        let value = rest.get(ATTRIBUTE_HEADER..length).ok_or(Malformed)?;
        if kind == wanted {
            return Ok(Some(value));
        }
        rest = rest.get(aligned(length)..).unwrap_or_default();
    }
    Ok(None)
}

fn field<const BYTES: usize>(bytes: &[u8], at: usize) -> Result<[u8; BYTES], Malformed> {
    bytes
        .get(at..at + BYTES)
        .and_then(|slice| slice.try_into().ok())
        .ok_or(Malformed)
}

fn aligned(length: usize) -> usize {
    length.next_multiple_of(4)
}

/// A message under construction.
struct Message(Vec<u8>);

impl Message {
    fn new(kind: u16, flags: u16, queue: u16) -> Self {
        let mut bytes = vec![0; 4];
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(flags.to_ne_bytes());
        // Sequence and port stay 0. No field has to identify a message, because the kernel answers
        // in order on this socket.
        bytes.extend([0; 8]);
        // Family unspecified: the queue accepts packets of every family. Version 0.
        bytes.extend([0, 0]);
        bytes.extend(queue.to_be_bytes());
        Self(bytes)
    }

    /// `value` has at most 8 bytes in this module, so the length fits into the header.
    fn attribute(mut self, kind: u16, value: &[u8]) -> Self {
        let length = (ATTRIBUTE_HEADER + value.len()) as u16;
        self.0.extend(length.to_ne_bytes());
        self.0.extend(kind.to_ne_bytes());
        self.0.extend(value);
        self.0.resize(aligned(self.0.len()), 0);
        self
    }

    fn finish(mut self) -> Vec<u8> {
        let length = self.0.len() as u32;
        self.0[..4].copy_from_slice(&length.to_ne_bytes());
        self.0
    }
}

// netlink uses the byte order of its host. The bytes below are those of a little-endian host.
#[cfg(test)]
mod tests {
    use muxtunnel_testkit::hex::bytes as hex;

    use super::*;

    const QUEUE: u16 = 0xfa03;

    #[test]
    fn the_set_up_messages_have_the_kernels_form() {
        let bind_bytes = "1c000000 0203 0500 00000000 00000000 / 00 00 fa03 / 0800 0100 01 00 0000";
        assert_eq!(bind(QUEUE), hex(bind_bytes));
        let configure_bytes = "38000000 0203 0500 00000000 00000000 / 00 00 fa03 \
             / 0900 0200 00000000 01 000000 / 0800 0500 00000004 / 0800 0400 00000004 \
             / 0800 0300 00020000";
        assert_eq!(configure(QUEUE, 131_072, Form::Whole), hex(configure_bytes));
        let frames_bytes = "38000000 0203 0500 00000000 00000000 / 00 00 fa03 \
             / 0900 0200 00000001 02 000000 / 0800 0500 00000000 / 0800 0400 00000004 \
             / 0800 0300 00020000";
        assert_eq!(configure(QUEUE, 131_072, Form::Frames), hex(frames_bytes));
    }

    #[test]
    fn the_verdicts_have_the_kernels_form() {
        let batch =
            "20000000 0303 0100 00000000 00000000 / 00 00 fa03 / 0c00 0200 00000001 00000007";
        assert_eq!(accept_up_to(QUEUE, 7), hex(batch));
        let single =
            "20000000 0103 0100 00000000 00000000 / 00 00 fa03 / 0c00 0200 00000000 00000007";
        assert_eq!(drop_one(QUEUE, 7), hex(single));
    }

    #[test]
    fn the_id_of_a_packet_is_found_among_other_attributes() {
        // An attribute of type 5 first, then the packet header: id 0x102, protocol, hook, padding.
        let packet = "2c000000 0003 0000 00000000 00000000 / 02 00 fa03 / 0800 0500 00000001 \
             / 0b00 0100 00000102 0800 00 00 / 0400 0900";
        let told = |bytes| Ok(vec![Event::Packet { id: 0x102, bytes }]);
        assert_eq!(parse(&hex(packet)), told(0));
        // The kernel copied one byte of 1,500.
        let with_length = "30000000 0003 0000 00000000 00000000 / 02 00 fa03 \
             / 0b00 0100 00000102 0800 00 00 / 0800 0d00 000005dc / 0500 0a00 45 000000";
        assert_eq!(parse(&hex(with_length)), told(1500));
    }

    #[test]
    fn all_messages_of_a_datagram_are_read_in_order() {
        let two = "24000000 0200 0000 00000000 00000000 / ffffffff / 1c000000 02030500 00000000 00000000 \
             / 10000000 0900 0000 00000000 00000000";
        assert_eq!(parse(&hex(two)), Ok(vec![Event::Answer(-1), Event::Other]));
    }

    #[test]
    fn lengths_beyond_the_datagram_are_refused() {
        for text in [
            "ff000000 0003 0000 00000000 00000000",
            "04000000 0003 0000 00000000 00000000",
            "10000000",
            "10000000 0200 0000 00000000 00000000",
            "18000000 0003 0000 00000000 00000000 / 02 00 fa03 / ff00 0100",
            "18000000 0003 0000 00000000 00000000 / 02 00 fa03 / 0000 0100",
            "1c000000 0003 0000 00000000 00000000 / 02 00 fa03 / 0600 0100 0000 0000",
            "14000000 0003 0000 00000000 00000000 / 02 00 fa03",
        ] {
            assert_eq!(parse(&hex(text)), Err(Malformed), "{text}");
        }
    }
}
