//! The records of JMUX: channels by the numbers of both sides.

use std::collections::BTreeMap;

use muxtunnel_proto::jmux::codec::{Control, Decoded, decode};

/// A channel by its owner's number, with the state of the frames that the other side may send to
/// it.
#[derive(Default, Debug)]
struct Channel {
    /// The other side's number, once known.
    peer: Option<u32>,
    /// Bytes that the other side may still send with the credit that it has received.
    credit: u64,
    /// The other side has sent EOF or CLOSE to the channel.
    ended: bool,
    closed: bool,
    /// CLOSE has arrived at the owner.
    close_arrived: bool,
}

/// The channels by owner and the owner's number.
#[derive(Default)]
pub struct Books {
    channels: BTreeMap<(usize, u32), Channel>,
}

impl Books {
    pub fn write(&mut self, from: usize, bytes: &[u8]) {
        let to = 1 - from;
        match decode(bytes).expect("it was just encoded") {
            Decoded::Incomplete { .. } => panic!("half a frame: {bytes:02x?}"),
            Decoded::Data {
                recipient, length, ..
            } => {
                let channel = self.channel(to, recipient.0);
                assert!(!channel.ended, "payload after EOF: {channel:?}");
                let left = channel.credit.checked_sub(length as u64);
                channel.credit = left.expect("payload beyond the credit");
            }
            Decoded::Control { control, .. } => self.write_control(from, &control),
        }
    }

    fn write_control(&mut self, from: usize, control: &Control) {
        let to = 1 - from;
        match control {
            Control::Open { sender, .. } => self.begin(from, sender.0, None),
            Control::Opened {
                recipient,
                sender,
                window,
                ..
            } => {
                self.begin(from, sender.0, Some(recipient.0));
                let opener = self.channel(to, recipient.0);
                opener.peer = Some(sender.0);
                // The answered window applies to both directions.
                opener.credit = (*window).into();
            }
            Control::Credit { recipient, .. } => {
                assert!(!self.channel(to, recipient.0).closed, "credit after CLOSE");
            }
            Control::Probe { .. } => {}
            Control::Finish { recipient } => {
                let channel = self.channel(to, recipient.0);
                assert!(!channel.ended, "EOF twice: {channel:?}");
                channel.ended = true;
            }
            Control::Close { recipient, .. } => {
                let channel = self.channel(to, recipient.0);
                assert!(!channel.closed, "CLOSE twice: {channel:?}");
                channel.ended = true;
                channel.closed = true;
            }
            Control::OpenFailed { recipient, .. } => {
                self.channels
                    .remove(&(to, recipient.0))
                    .expect("the answer has no open");
            }
        }
    }

    /// Records a new channel of `owner`. The owner may use a number again only after the other
    /// side's CLOSE for this number has arrived.
    fn begin(&mut self, owner: usize, number: u32, peer: Option<u32>) {
        let channel = Channel {
            peer,
            ..Channel::default()
        };
        let before = self.channels.insert((owner, number), channel);
        assert!(
            before.is_none_or(|before| before.close_arrived),
            "channel {number} of side {owner} is used again"
        );
    }

    fn channel(&mut self, owner: usize, number: u32) -> &mut Channel {
        let channel = self.channels.get_mut(&(owner, number));
        channel.expect("the channel of the frame is unknown")
    }

    pub fn arrive(&mut self, to: usize, bytes: &[u8]) {
        let Decoded::Control { control, .. } = decode(bytes).expect("it was encoded here") else {
            return;
        };
        match control {
            Control::Opened { sender, window, .. } => {
                // Bytes that the opener may send to the acceptor's channel.
                self.channel(1 - to, sender.0).credit = window.into();
            }
            Control::Credit {
                recipient,
                increment,
            } => {
                let peer = self.channel(to, recipient.0).peer;
                if let Some(peer) = peer {
                    self.channel(1 - to, peer).credit += u64::from(increment);
                }
            }
            Control::Close { recipient, .. } => {
                self.channel(to, recipient.0).close_arrived = true;
            }
            Control::Open { .. }
            | Control::OpenFailed { .. }
            | Control::Probe { .. }
            | Control::Finish { .. } => {}
        }
    }
}
