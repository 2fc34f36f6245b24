//! Flags for the memory of a session, the carriers of an exit, and the shutdown. The flags have the
//! units, defaults and bounds of the fields `memory`, `limits` and `drain` of a file.

use clap::Args;
use muxtunnel_gateway_config::{
    ByteSize, CARRIERS_DEFAULT, DRAIN_ACCEPT_SECONDS_DEFAULT, DRAIN_DEADLINE_SECONDS_DEFAULT,
    Drain, GatewayLimits, Memory, RECEIVE_DEFAULT, RETAIN_DEFAULT, STALL_SECONDS_DEFAULT,
};

/// `memory` of an entry or an exit.
#[derive(Debug, Args)]
pub(super) struct MemoryArgs {
    /// Receive memory, for credit granted to the peer and for buffered payload; at least 1Mi. With
    /// protocols native and jmux: of each session. With other protocols: of each connection.
    #[arg(long, value_name = "SIZE", default_value_t = RECEIVE_DEFAULT)]
    memory_receive: ByteSize,
    /// Maximum payload that is sent and not acknowledged; at least 1Mi. With protocol native: of
    /// each session. With quic and http3: of each connection. Other protocols ignore this flag.
    #[arg(long, value_name = "SIZE", default_value_t = RETAIN_DEFAULT)]
    memory_retain: ByteSize,
    /// With protocol native: if the receive memory is used up, reset a stream whose client or
    /// target takes no data for this number of seconds; 0: never.
    #[arg(long, value_name = "SECONDS", default_value_t = STALL_SECONDS_DEFAULT)]
    memory_stall_seconds: u32,
}

impl MemoryArgs {
    pub(super) const fn memory(&self) -> Memory {
        Memory {
            receive: self.memory_receive,
            retain: self.memory_retain,
            stall_seconds: self.memory_stall_seconds,
            sessions: None,
        }
    }
}

/// `limits.carriers` of an exit or a rendezvous.
#[derive(Debug, Args)]
pub(super) struct CarrierLimit {
    /// Maximum number of carriers that an exit accepts, or that a rendezvous joins, at the same
    /// time; 1..=1024.
    #[arg(long, value_name = "N", default_value_t = CARRIERS_DEFAULT)]
    limit_carriers: u32,
}

impl CarrierLimit {
    /// Returns `limits` with this limit.
    pub(super) const fn within(&self, limits: GatewayLimits) -> GatewayLimits {
        GatewayLimits {
            carriers: self.limit_carriers,
            ..limits
        }
    }
}

/// `drain` of any gateway.
#[derive(Debug, Args)]
pub(super) struct DrainArgs {
    /// After SIGTERM, accept new connections for this number of seconds. An entry accepts clients
    /// until none has arrived for this time, but for at most 30 s and half of
    /// --drain-deadline-seconds if that is more. At most --drain-deadline-seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = DRAIN_ACCEPT_SECONDS_DEFAULT)]
    drain_accept_seconds: u32,
    /// This number of seconds after SIGTERM, reset the streams that are still open, and exit.
    #[arg(long, value_name = "SECONDS", default_value_t = DRAIN_DEADLINE_SECONDS_DEFAULT)]
    drain_deadline_seconds: u32,
}

impl DrainArgs {
    pub(super) const fn drain(&self) -> Drain {
        Drain {
            accept_seconds: self.drain_accept_seconds,
            deadline_seconds: self.drain_deadline_seconds,
        }
    }
}
