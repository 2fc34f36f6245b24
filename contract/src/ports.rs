//! TCP ports. Forwards cannot listen on [`CARRIER`] and [`ADMIN`]. With WAN emulation, forwards
//! cannot listen on [`WAN_PROBE`] either.

/// The port on which exits and rendezvous accept carriers.
pub const CARRIER: u16 = 64000;
/// The admin port of a gateway.
pub const ADMIN: u16 = 64001;
/// The HTTP port of a benchmark's runner and agents.
pub const BENCH_HTTP: u16 = 64002;
/// The port of the self-probe of WAN emulation, on `lo`.
pub const WAN_PROBE: u16 = 64003;
/// The port of the iperf server of a benchmark's agent.
pub const IPERF: u16 = 5001;
/// The port of the echo server of a benchmark's agent, for round-trip probes.
pub const ECHO: u16 = 5002;
