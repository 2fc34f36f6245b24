//! The sans-IO core of the mux: codecs, sessions, streams, credit.
//!
//! It sees headers, control frames and payload *lengths*, never payload bytes, and knows no socket,
//! clock, task or lock (`clippy.toml` beside this crate bans them), so copying, splicing and a
//! simulator all drive the same state machine.
//!
//! # The driver's contract
//! A driver owns the sockets and the buffers. Of what comes in it calls
//! - [`Session::handle_header`] with the unread bytes of a carrier, one frame a call;
//! - [`Session::payload_moved`] when bytes of an announced payload have left the carrier;
//! - [`Session::source_ready`] when it has read bytes of a local socket, at most
//!   [`Session::send_capacity`]; [`Session::sink_took`] when a local socket took payload;
//! - [`Session::open`], [`Session::accept`], [`Session::refuse`], [`Session::finish`],
//!   [`Session::reset`] for what the application side decides;
//! - [`Session::handle_timeout`] at [`Session::poll_timeout`].
//!
//! After any of these it drains [`Session::poll_event`], then takes [`Session::poll_transmit`] as
//! fast as the carrier takes frames: what is not taken yet stays in dirty bits and coalesces, so
//! nothing queues without bound. `now` must not go backwards.
//!
//! Read next: `session.rs` for the contract; `jmux.rs` and `native.rs` for the two state machines, with
//! their wires in `jmux/codec.rs` and `native/codec.rs`.

pub mod jmux;
pub mod kcp;
pub mod native;
pub mod rendezvous;
mod session;

pub use jmux::{JmuxConfig, JmuxSession};
pub use native::{Identity, NativeConfig, NativeSession};
pub use session::{
    ASSIGNED_ADDRESSES_MAX, ASSIGNMENT_BYTES_MAX, Assignment, CONTROL_BYTES_MAX, CarrierId,
    CreditView, DATAGRAM_BYTES_MAX, DNS_DOMAIN_BYTES_MAX, DNS_DOMAINS_MAX, DNS_SERVERS_MAX, Event,
    FIRST_READ_BYTES, FrameHeader, HEADER_BYTES_MAX, Header, LISTEN_ADDRESS_LENGTH_MAX,
    LISTENS_MAX, ListenError, ListenEvent, ListenId, ListenTable, ListenViolation, ListenWord,
    Listeners, OpenError, Outcome, PACKET_BYTES_MIN, Payload, Pool, Priority, Reason, Receive,
    Refusal, ResetCode, SendCapacity, Session, SessionError, Source, StreamId, TARGET_LENGTH_MAX,
    Token, Transmit, is_dns_domain, listen_of_target, listen_target,
};
