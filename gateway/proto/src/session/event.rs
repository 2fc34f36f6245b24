//! The events that a session reports to its driver.

use super::{Assignment, CarrierId, ListenEvent, Outcome, Refusal, Source, StreamId};

/// An event for the application.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// The session is established: streams can be opened.
    Ready,
    /// The carrier's hello is complete. For the first carrier, this event follows [`Event::Ready`].
    CarrierUp {
        /// The carrier.
        carrier: CarrierId,
    },
    /// The session no longer needs the carrier. The driver stops reading from the carrier,
    /// transmits the frames that still wait for it, and closes it. It then reports the carrier as
    /// lost.
    CarrierEnded {
        /// The carrier.
        carrier: CarrierId,
        /// A text for people.
        reason: String,
    },
    /// The retirement of the carrier is complete. The driver closes the carrier without another
    /// read.
    CarrierRetired {
        /// The carrier.
        carrier: CarrierId,
    },
    /// The peer could use this many carriers for the payload that it sends. The peer does not limit
    /// the number; the dialling side applies its own maximum.
    CarriersWanted {
        /// Number of carriers.
        count: u32,
    },
    /// The peer accepts no more streams; open streams continue.
    GoAway,
    /// The peer asks for a stream. The application answers with `accept` or `refuse`.
    Incoming {
        /// The stream.
        stream: StreamId,
        /// The target URL as the peer wrote it.
        target: String,
        /// The client's addresses, which the target must receive before any payload.
        source: Option<Source>,
    },
    /// This side's open succeeded. Payload may flow.
    Opened {
        /// The stream.
        stream: StreamId,
        /// The address that the peer connected to; empty if the protocol does not carry it.
        address: String,
    },
    /// This side's open failed. The session has dropped the stream.
    OpenFailed {
        /// The stream.
        stream: StreamId,
        /// Why the open failed.
        refusal: Refusal,
    },
    /// The peer is shutting down and did not process the open, or the session ended before the open
    /// left. The target has received no byte, so the stream may be opened on another session. This
    /// session has dropped the stream.
    OpenReturned {
        /// The stream.
        stream: StreamId,
    },
    /// An event of a listener.
    Listen(ListenEvent),
    /// The addresses that the peer assigns to this side, and the peer's DNS servers. The session
    /// reports this at most once, and not before [`Event::Ready`].
    Assigned(Assignment),
    /// The stream has credit again.
    Writable {
        /// The stream.
        stream: StreamId,
    },
    /// The peer sends no more payload. The driver delivers the payload that arrived, then shuts
    /// down the local socket's write side.
    Finished {
        /// The stream.
        stream: StreamId,
    },
    /// The stream was cut. The driver delivers the payload that arrived, then resets the local
    /// socket.
    Reset {
        /// The stream.
        stream: StreamId,
        /// Why it was cut.
        cause: Outcome,
    },
}
