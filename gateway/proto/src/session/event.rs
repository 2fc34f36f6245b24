//! What a session tells its driver.

use super::{Assignment, CarrierId, ListenEvent, Outcome, Refusal, Source, StreamId};

/// What the application side must know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// The session is established: streams can be opened.
    Ready,
    /// The carrier's hello is over. The first one's comes with [`Event::Ready`].
    CarrierUp {
        /// The carrier.
        carrier: CarrierId,
    },
    /// The carrier is of no more use: close it once what waits for it is transmitted. Nothing of it is
    /// read any more. Then it is lost, as any that ends.
    CarrierEnded {
        /// The carrier.
        carrier: CarrierId,
        /// For people.
        reason: String,
    },
    /// The carrier was retired in order: close it. Nothing of it is read any more.
    CarrierRetired {
        /// The carrier.
        carrier: CarrierId,
    },
    /// What the peer sends could use this many carriers. Any number; who dials has a bound of its own.
    CarriersWanted {
        /// Carriers.
        count: u32,
    },
    /// The peer takes no more streams; those that are open go on.
    GoAway,
    /// The peer asks for a stream: answer by `accept` or `refuse`.
    Incoming {
        /// The stream.
        stream: StreamId,
        /// Destination URL as the peer wrote it.
        target: String,
        /// What the target is to be told before anything else.
        source: Option<Source>,
    },
    /// Our open succeeded; payload may flow.
    Opened {
        /// The stream.
        stream: StreamId,
        /// What the peer connected to; empty where the protocol does not say.
        address: String,
    },
    /// Our open failed; the stream is gone.
    OpenFailed {
        /// The stream.
        stream: StreamId,
        /// Why.
        refusal: Refusal,
    },
    /// The peer goes away, and did not and will not take our open, or the session ended before the open left: nothing
    /// of the stream has come anywhere, and it may be opened on another session. Here it is gone.
    OpenReturned {
        /// The stream.
        stream: StreamId,
    },
    /// Something is said of a listener.
    Listen(ListenEvent),
    /// The peer says which addresses this side has there, and which resolvers. At most once, and not before
    /// [`Event::Ready`].
    Assigned(Assignment),
    /// There is credit again.
    Writable {
        /// The stream.
        stream: StreamId,
    },
    /// The peer has no more payload: once all of it is delivered, shut the local socket's write side.
    Finished {
        /// The stream.
        stream: StreamId,
    },
    /// The stream was cut: deliver what came, then reset the local socket.
    Reset {
        /// The stream.
        stream: StreamId,
        /// By what.
        cause: Outcome,
    },
}
