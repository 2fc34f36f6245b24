//! The records of the native protocol: checks the rules of docs/protocol.md for both sides.

use std::collections::BTreeMap;

use muxtunnel_proto::ListenId;
use muxtunnel_proto::native::codec::{Decoded, Frame, Parameters, decode};

use super::super::profile::Profile;
use super::super::world::ENTRY;

/// The frames that one side has sent and received.
#[derive(Default)]
struct SideBooks {
    hello_sent: bool,
    hello_arrived: bool,
    closed: bool,
    goaway_sent: bool,
    goaway_arrived: bool,
    /// The other side's limits that have arrived at this side.
    limits: Parameters,
    /// The limits that this side has granted.
    max_data_sent: u64,
    max_streams_sent: u64,
    stream_window: u64,
    data_sent: u64,
    data_arrived: u64,
    opened: u64,
    last_opened: u64,
    last_arrived: u64,
    last_ping: Option<u64>,
    unanswered: Option<u64>,
    pongs: u64,
    /// Serial and count of the latest CARRIERS.
    asked: Option<(u64, u32)>,
    last_listen: Option<ListenId>,
    /// Control frames that were lost and must be written again.
    owed: Vec<Vec<u8>>,
}

/// One direction of a stream.
#[derive(Default, Clone)]
struct Half {
    offset: u64,
    /// Offset up to which payload has been announced to the receiver.
    announced: u64,
    ended: bool,
    end_arrived: bool,
    /// The limit that the receiver has sent. `limit` has arrived at the sender.
    limit_sent: u64,
    limit: u64,
    stop_sent: bool,
    stop_arrived: bool,
}

struct StreamBooks {
    opener: usize,
    known_to_acceptor: bool,
    opened_sent: bool,
    /// One half for each side that sends.
    halves: [Half; 2],
}

pub struct Books {
    profile: Profile,
    sides: [SideBooks; 2],
    streams: BTreeMap<u64, StreamBooks>,
}

impl Books {
    pub fn new(profile: &Profile) -> Self {
        Self {
            profile: profile.clone(),
            sides: Default::default(),
            streams: BTreeMap::new(),
        }
    }

    pub fn pongs(&self) -> u64 {
        self.sides[0].pongs + self.sides[1].pongs
    }

    pub fn session_credit(&self, side: usize) -> u64 {
        self.sides[side].limits.initial_max_data - self.sides[side].data_sent
    }

    pub fn first_window(&self, side: usize) -> u64 {
        self.sides[side].stream_window
    }

    pub fn stream_limit(&self, side: usize, stream: u64) -> Option<u64> {
        let books = self.streams.get(&stream)?;
        Some(books.halves[1 - side].limit_sent)
    }

    pub fn is_told_of_goaway(&self, side: usize) -> bool {
        self.sides[side].goaway_arrived
    }

    pub fn streams_left(&self, side: usize) -> u64 {
        self.sides[side].limits.initial_max_streams - self.sides[side].opened
    }

    /// Records that a lost frame must be written again once, unless it applies only to its own
    /// carrier.
    pub fn lose(&mut self, from: usize, bytes: &[u8]) {
        let passing = match decode(bytes) {
            Ok(Decoded::Frame { frame, .. }) => matches!(
                frame,
                Frame::Hello(_)
                    | Frame::HelloAck(_)
                    | Frame::SessionClose { .. }
                    | Frame::Ping(_)
                    | Frame::Pong(_)
                    | Frame::Ack { .. }
                    | Frame::CarrierLost { .. }
                    | Frame::Carriers { .. }
                    | Frame::Retire
            ),
            _ => false,
        };
        if !passing {
            self.sides[from].owed.push(bytes.to_vec());
        }
    }

    pub fn forget_ping(&mut self, side: usize) {
        self.sides[side].unanswered = None;
    }

    pub fn write(&mut self, from: usize, bytes: &[u8]) {
        let owed = &mut self.sides[from].owed;
        if let Some(at) = owed.iter().position(|lost| lost == bytes) {
            owed.remove(at);
            return;
        }
        let side = &self.sides[from];
        assert!(!side.closed, "a frame after SESSION_CLOSE");
        match decode(bytes).expect("it was just encoded") {
            Decoded::Incomplete { .. } => panic!("half a frame: {bytes:02x?}"),
            Decoded::Datagram { .. } => panic!("neither side sends datagrams"),
            Decoded::Stream {
                stream,
                offset,
                length,
                fin,
            } => {
                let start = self.profile.bytes_before(offset);
                self.write_payload(from, stream.number(), start, length.into(), fin);
            }
            Decoded::Frame { frame, .. } => {
                let hello = matches!(frame, Frame::Hello(_) | Frame::HelloAck(_));
                let close = matches!(frame, Frame::SessionClose { .. });
                assert!(
                    hello || close || (side.hello_sent && side.hello_arrived),
                    "{frame:?} before the hello is complete"
                );
                self.write_frame(from, frame);
            }
        }
    }

    fn write_payload(&mut self, from: usize, stream: u64, offset: u64, length: u64, fin: bool) {
        let credit = self.session_credit(from);
        let side = &mut self.sides[from];
        assert!(length > 0 || fin, "an empty frame for stream {stream}");
        assert!(
            length <= side.limits.frame_max.into(),
            "{length} bytes in one frame"
        );
        assert!(length <= credit, "{length} of {credit} bytes");
        side.data_sent += length;
        let books = self
            .streams
            .get_mut(&stream)
            .expect("the stream was never opened");
        assert!(
            from == books.opener || books.opened_sent,
            "payload of stream {stream} before OPENED"
        );
        let half = &mut books.halves[from];
        assert!(!half.ended, "payload of stream {stream} after its end");
        assert!(
            !half.stop_arrived || length == 0,
            "payload of stream {stream} after STOP_SENDING"
        );
        assert_eq!(offset, half.offset, "stream {stream} has a gap");
        half.offset += length;
        assert!(
            half.offset <= half.limit,
            "stream {stream} beyond its limit"
        );
        half.ended = fin;
    }

    fn write_frame(&mut self, from: usize, frame: Frame) {
        let side = &mut self.sides[from];
        match frame {
            Frame::Hello(hello) => {
                let joins = hello.session_id != [0; 16];
                assert!(from == ENTRY && side.hello_sent == joins, "a second HELLO");
                if joins {
                    return;
                }
                side.hello_sent = true;
                self.promise(from, &hello.parameters);
            }
            Frame::HelloAck(ack) => {
                assert!(from != ENTRY && side.hello_arrived);
                if side.hello_sent {
                    return;
                }
                side.hello_sent = true;
                self.promise(from, &ack.parameters);
            }
            Frame::SessionClose { .. } => side.closed = true,
            Frame::Ping(value) => {
                assert_ne!(side.last_ping, Some(value), "a PING twice");
                side.last_ping = Some(value);
            }
            Frame::Pong(value) => {
                assert_eq!(side.unanswered.take(), Some(value), "PONG");
                side.pongs += 1;
            }
            Frame::GoAway { last } => {
                assert!(!side.goaway_sent, "a second GOAWAY");
                assert!(
                    last.number() <= side.last_arrived,
                    "GOAWAY names a stream that has not arrived"
                );
                side.goaway_sent = true;
            }
            Frame::Open { stream, .. } => self.write_open(from, stream.number()),
            Frame::Opened { stream, .. } => {
                let books = self.stream(stream.number());
                let first = !std::mem::replace(&mut books.opened_sent, true);
                assert!(first && books.opener != from && !books.halves[from].ended);
            }
            Frame::MaxStreamData { stream, limit } => {
                let limit = self.profile.bytes_before(limit);
                let half = &mut self.stream(stream.number()).halves[1 - from];
                assert!(limit > half.limit_sent, "MAX_STREAM_DATA raises nothing");
                assert!(!half.end_arrived, "credit for {stream:?}, which has ended");
                assert!(!half.stop_sent, "credit for {stream:?}, which is unwanted");
                half.limit_sent = limit;
            }
            Frame::MaxData(limit) => {
                assert!(limit > side.max_data_sent, "MAX_DATA raises nothing");
                side.max_data_sent = limit;
            }
            Frame::MaxStreams(limit) => {
                assert!(limit > side.max_streams_sent, "MAX_STREAMS raises nothing");
                side.max_streams_sent = limit;
            }
            Frame::ResetStream {
                stream, final_size, ..
            } => {
                let final_size = self.profile.bytes_before(final_size);
                let half = &mut self.stream(stream.number()).halves[from];
                assert!(!half.ended, "RESET_STREAM of {stream:?} after its end");
                assert_eq!(final_size, half.offset, "final size of {stream:?}");
                half.ended = true;
            }
            Frame::StopSending { stream, .. } => {
                let half = &mut self.stream(stream.number()).halves[1 - from];
                assert!(
                    !half.end_arrived,
                    "STOP_SENDING of {stream:?}, which has ended"
                );
                assert!(!half.stop_sent, "STOP_SENDING of {stream:?} twice");
                half.stop_sent = true;
            }
            Frame::Carriers { count, serial } => {
                assert!(self.profile.resume() && from != ENTRY);
                let before = side.asked.replace((serial, count));
                assert!(before < Some((serial, 0)), "CARRIERS with an old serial");
            }
            Frame::Ack { .. } | Frame::CarrierLost { .. } | Frame::Retire => {
                assert!(self.profile.resume(), "a feature that was not agreed");
            }
            Frame::Assign(_) => panic!("an assignment, which was not agreed"),
            Frame::Listen { listen, .. } => {
                assert!(from == ENTRY && Some(listen) > side.last_listen);
                side.last_listen = Some(listen);
            }
            Frame::Listening { .. } => {
                assert_ne!(from, ENTRY, "the entry answered its own request");
            }
            Frame::Unlisten { code, .. } => assert_eq!(from == ENTRY, code == 0),
        }
    }

    /// Records the limits that a hello grants.
    fn promise(&mut self, from: usize, parameters: &Parameters) {
        let budget = self.profile.ends[from].receive_budget;
        assert_eq!(parameters.initial_max_data, budget);
        self.sides[from].max_data_sent = parameters.initial_max_data;
        self.sides[from].max_streams_sent = parameters.initial_max_streams;
        self.sides[from].stream_window = parameters.initial_max_stream_data;
    }

    fn write_open(&mut self, from: usize, stream: u64) {
        let side = &mut self.sides[from];
        assert_eq!(
            stream % 2,
            from as u64 % 2,
            "stream {stream} of side {from}"
        );
        assert!(stream > side.last_opened, "stream {stream} is used again");
        side.last_opened = stream;
        side.opened += 1;
        let granted = side.limits.initial_max_streams;
        assert!(
            side.opened <= granted,
            "{} streams opened, {granted} granted",
            side.opened
        );
        let books = StreamBooks {
            opener: from,
            known_to_acceptor: false,
            opened_sent: false,
            halves: [self.first_half(0), self.first_half(1)],
        };
        self.streams.insert(stream, books);
    }

    /// The half of a new stream that `sender` sends.
    fn first_half(&self, sender: usize) -> Half {
        // A HELLO or HELLO_ACK precedes its sender's OPEN, so both sides know this limit.
        let limit = self.sides[1 - sender].stream_window;
        assert!(limit > 0, "an OPEN before the hello");
        let limit = self
            .profile
            .bytes_left
            .map_or(limit, |left| limit.min(left));
        Half {
            limit_sent: limit,
            limit,
            ..Half::default()
        }
    }

    fn stream(&mut self, stream: u64) -> &mut StreamBooks {
        self.streams
            .get_mut(&stream)
            .expect("the stream was never opened")
    }

    pub fn arrive(&mut self, to: usize, bytes: &[u8]) {
        let from = 1 - to;
        match decode(bytes).expect("it was encoded here") {
            Decoded::Incomplete { .. } => panic!("half a frame was handled: {bytes:02x?}"),
            Decoded::Datagram { .. } => panic!("neither side sends datagrams"),
            Decoded::Stream {
                stream,
                offset,
                length,
                fin,
            } => {
                let start = self.profile.bytes_before(offset);
                self.announce(to, stream.number(), start + u64::from(length));
                self.stream(stream.number()).halves[from].end_arrived |= fin;
            }
            Decoded::Frame { frame, .. } => self.arrive_frame(to, frame),
        }
    }

    /// Payload up to `end` was announced to `to`, possibly more than once.
    fn announce(&mut self, to: usize, stream: u64, end: u64) {
        let half = &mut self.stream(stream).halves[1 - to];
        let more = end.saturating_sub(half.announced);
        half.announced += more;
        self.sides[to].data_arrived += more;
    }

    fn arrive_frame(&mut self, to: usize, frame: Frame) {
        let from = 1 - to;
        let side = &mut self.sides[to];
        match frame {
            // The hellos of later carriers have the same limits.
            Frame::Hello(_) | Frame::HelloAck(_) if side.hello_arrived => {}
            Frame::Hello(hello) => {
                side.hello_arrived = true;
                side.limits = hello.parameters;
            }
            Frame::HelloAck(ack) => {
                side.hello_arrived = true;
                side.limits = ack.parameters;
            }
            Frame::Ping(value) => side.unanswered = Some(value),
            Frame::GoAway { .. } => side.goaway_arrived = true,
            Frame::MaxData(limit) => {
                let known = &mut side.limits.initial_max_data;
                *known = limit.max(*known);
            }
            Frame::MaxStreams(limit) => {
                let known = &mut side.limits.initial_max_streams;
                *known = limit.max(*known);
            }
            Frame::Open { stream, .. } => {
                side.last_arrived = stream.number();
                self.stream(stream.number()).known_to_acceptor = true;
            }
            Frame::MaxStreamData { stream, limit } => {
                let limit = self.profile.bytes_before(limit);
                let half = &mut self.stream(stream.number()).halves[to];
                half.limit = half.limit.max(limit);
            }
            Frame::ResetStream {
                stream, final_size, ..
            } => {
                let final_size = self.profile.bytes_before(final_size);
                self.announce(to, stream.number(), final_size);
                self.stream(stream.number()).halves[from].end_arrived = true;
            }
            Frame::StopSending { stream, .. } => {
                self.stream(stream.number()).halves[to].stop_arrived = true;
            }
            Frame::Pong(_)
            | Frame::Opened { .. }
            | Frame::SessionClose { .. }
            | Frame::Ack { .. }
            | Frame::CarrierLost { .. }
            | Frame::Carriers { .. }
            | Frame::Listen { .. }
            | Frame::Listening { .. }
            | Frame::Unlisten { .. }
            | Frame::Assign(_)
            | Frame::Retire => {}
        }
    }

    pub fn check_session_credit(&self, side: usize, budget: u64, used: u64) {
        let side = &self.sides[side];
        let promised = side.max_data_sent + used - side.data_arrived.min(side.max_data_sent);
        assert!(
            !side.hello_sent || promised <= budget,
            "{promised} bytes granted or waiting, in a budget of {budget}"
        );
    }

    pub fn check_at_rest(&self, used: [u64; 2]) {
        for (number, side) in self.sides.iter().enumerate() {
            let other = &self.sides[1 - number];
            if !(side.hello_arrived && other.hello_arrived) {
                continue;
            }
            assert_eq!(side.unanswered, None, "a PING without a PONG");
            assert_eq!(side.max_data_sent, other.limits.initial_max_data);
            let budget = self.profile.ends[number].receive_budget;
            let promised = side.max_data_sent - side.data_arrived + used[number];
            assert!(
                promised >= budget - budget / 4,
                "side {number}: {promised} bytes granted or waiting, too few for a budget of {budget}"
            );
            let left = self.session_credit(1 - number);
            assert!(
                left > 0 || promised == budget,
                "side {number} withholds {} bytes of credit, but its peer has no credit",
                budget - promised
            );
        }
    }

    pub fn judge(&self) {
        for (stream, books) in &self.streams {
            let ended = books
                .halves
                .iter()
                .all(|half| half.ended && half.end_arrived);
            assert!(
                books.known_to_acceptor && ended,
                "stream {stream} has no end on the wire"
            );
        }
        for (number, side) in self.sides.iter().enumerate() {
            assert!(
                side.owed.is_empty(),
                "frames were lost and not repeated: {:02x?}",
                side.owed
            );
            let streams_max = u64::from(self.profile.ends[number].streams_max);
            let free = side.max_streams_sent - self.sides[1 - number].opened;
            assert!(
                !side.hello_sent || side.goaway_sent || free >= streams_max - streams_max / 4,
                "side {number} permits only {free} of {streams_max} streams"
            );
        }
    }
}
