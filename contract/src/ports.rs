//! TCP ports. Forwards cannot listen on those of gateways.

/// Carriers, at an exit and a rendezvous.
pub const CARRIER: u16 = 64000;
/// The admin port of a gateway.
pub const ADMIN: u16 = 64001;
/// HTTP of a benchmark's runner and agents.
pub const BENCH_HTTP: u16 = 64002;
/// The probe of WAN emulation, on `lo`.
pub const WAN_PROBE: u16 = 64003;
/// The iperf server of a benchmark's agent.
pub const IPERF: u16 = 5001;
/// Where a benchmark's agent echoes, for round-trip probes.
pub const ECHO: u16 = 5002;
