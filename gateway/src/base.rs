//! Code for all layers: system calls, counters, rates, limits, files and the log. This layer
//! depends on no socket module of the gateway.

pub(crate) mod answer_limiter;
pub(crate) mod bottleneck;
pub(crate) mod carrier_history;
pub(crate) mod cgroup;
pub(crate) mod closing;
pub(crate) mod counters;
pub(crate) mod cpu;
pub(crate) mod dial_window;
pub(crate) mod file_states;
pub(crate) mod files;
pub(crate) mod forward;
pub(crate) mod glob;
pub(crate) mod handshake_limiter;
pub(crate) mod in_force;
pub(crate) mod limiter;
pub mod log;
pub(crate) mod memory_budget;
pub(crate) mod open_files;
pub(crate) mod pace;
pub(crate) mod packets;
pub(crate) mod path;
pub(crate) mod patience;
pub(crate) mod peers;
pub(crate) mod printable;
pub(crate) mod shown;
pub(crate) mod socket_buffers;
pub(crate) mod sys;
pub(crate) mod sysctls;
pub(crate) mod tasks;
pub(crate) mod tcp_buffers;
pub(crate) mod telemetry;
pub(crate) mod token_bucket;
pub(crate) mod unwind;
