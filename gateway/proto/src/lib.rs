//! The sans-IO core of the mux: codecs, sessions, streams, credit.
//!
//! The core sees headers, control frames and payload *lengths*, but no payload bytes. The crate has
//! no socket, clock, task or lock. Its `clippy.toml` bans all of these. So a driver that copies
//! payload, a driver that splices payload, and a simulator can use the same state machine.
//!
//! # The driver's contract
//! A driver owns the sockets and the buffers. For input it calls
//! - [`Session::handle_header`] with the unread bytes of a carrier, one frame per call
//! - [`Session::payload_moved`] when bytes of an announced payload have left the carrier
//! - [`Session::source_ready`] when it has read at most [`Session::send_capacity`] bytes of a local
//!   socket
//! - [`Session::sink_took`] when a local socket took payload
//! - [`Session::open`], [`Session::accept`], [`Session::refuse`], [`Session::finish`] and
//!   [`Session::reset`] for decisions of the application
//! - [`Session::handle_timeout`] at the time that [`Session::poll_timeout`] returns
//!
//! After each of these calls the driver drains [`Session::poll_event`]. It then takes frames from
//! [`Session::poll_transmit`] as fast as the carrier accepts them. A frame exists only as a dirty
//! bit until the driver takes it, so frames coalesce and no queue grows without bound. `now` must
//! not go backwards.
//!
//! Read next: `session.rs` for the contract, `jmux.rs` and `native.rs` for the two state machines,
//! `jmux/codec.rs` and `native/codec.rs` for their wire formats.

pub mod jmux;
pub mod kcp;
pub mod native;
mod patience;
pub mod rendezvous;
mod session;

pub use jmux::{JmuxConfig, JmuxSession};
pub use native::{Identity, NativeConfig, NativeSession};
pub use patience::{ROUND_TRIP_MAX, patience};
pub use session::{
    ASSIGNED_ADDRESSES_MAX, ASSIGNMENT_BYTES_MAX, Assignment, CONTROL_BYTES_MAX, CarrierId,
    CreditView, DATAGRAM_BYTES_MAX, DNS_DOMAIN_BYTES_MAX, DNS_DOMAINS_MAX, DNS_SERVERS_MAX, Event,
    FIRST_READ_BYTES, FrameHeader, HEADER_BYTES_MAX, Header, LISTEN_ADDRESS_LENGTH_MAX,
    LISTENS_MAX, ListenError, ListenEvent, ListenId, ListenTable, ListenViolation, ListenWord,
    Listeners, OpenError, Outcome, PACKET_BYTES_MIN, Payload, Pool, Priority, Reason, Receive,
    Refusal, ResetCode, SendCapacity, Session, SessionError, Source, StreamId, TARGET_LENGTH_MAX,
    Token, Transmit, is_dns_domain, listen_of_target, listen_target,
};
