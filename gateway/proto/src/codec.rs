//! What all codecs share: the vocabulary of frames that the session understands.
//!
//! A codec turns bytes into [`Decoded`] and a [`Control`] into bytes. Payload never passes through.

pub mod jmux;

/// A channel's number as one side of a carrier assigned it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChannelId(pub u32);

/// A frame that is not payload. `recipient` is the receiver's own number of the channel, `sender`
/// the sender's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Control {
    /// Asks for a new stream to `target`.
    Open {
        /// The opener's number.
        sender: ChannelId,
        /// Initial credit offered, bytes.
        window: u32,
        /// Largest frame the opener takes, header included, bytes.
        packet_max: u16,
        /// Extension bits offered.
        extensions: u8,
        /// Destination URL.
        target: String,
    },
    /// Answers an open: the stream is there.
    Opened {
        /// The opener's number.
        recipient: ChannelId,
        /// The acceptor's number.
        sender: ChannelId,
        /// Initial credit of both directions, bytes.
        window: u32,
        /// Largest frame of both directions, header included, bytes.
        packet_max: u16,
        /// Extension bits agreed.
        extensions: u8,
    },
    /// Answers an open: there will be no stream.
    OpenFailed {
        /// The opener's number.
        recipient: ChannelId,
        /// SOCKS5 reply number (RFC 1928, section 6).
        reason: u32,
        /// For people.
        description: String,
    },
    /// Adds `increment` bytes of credit.
    Credit {
        /// The receiver's number.
        recipient: ChannelId,
        /// Bytes added.
        increment: u32,
    },
    /// The sender has no more payload.
    Finish {
        /// The receiver's number.
        recipient: ChannelId,
    },
    /// The sender is done with the channel.
    Close {
        /// The receiver's number.
        recipient: ChannelId,
        /// The stream was cut: the receiver resets its socket. Only where the extension was agreed.
        abort: bool,
    },
}

/// What the unread bytes of a carrier begin with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decoded {
    /// Not a whole header or control frame yet: at least `needed` bytes in all are.
    Incomplete {
        /// Bytes, counted from the first unread one.
        needed: usize,
    },
    /// A whole control frame of `consumed` bytes.
    Control {
        /// The frame.
        control: Control,
        /// Its bytes.
        consumed: usize,
    },
    /// The header of a payload frame; `length` bytes of payload follow the `consumed` ones.
    Data {
        /// The receiver's number of the channel.
        recipient: ChannelId,
        /// Payload bytes.
        length: usize,
        /// Bytes of the header.
        consumed: usize,
    },
}
