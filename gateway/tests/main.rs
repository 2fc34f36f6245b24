//! The tests of the program muxgate and of its library, in one program, which compiles and links
//! once.

#![allow(
    missing_docs,
    unreachable_pub,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test"
)]

mod auto;
mod carriers;
mod clients;
mod common;
mod exits;
mod families;
mod honest_load;
mod hostile;
mod http2;
mod http2_peers;
mod http2_reverse;
mod http3;
mod http_proxy;
mod interface;
mod interop;
mod kcp;
mod keepalive;
mod keys;
mod layers;
mod limits;
mod listeners;
mod long_paths;
mod memory_limit;
mod names;
mod native;
mod network;
mod network_pool;
mod open_files;
mod passwords;
mod policy;
mod pool;
mod power_cut;
mod program;
mod proxies;
mod quic;
mod rendezvous;
mod resume;
mod reverse;
mod revocation;
mod security;
mod slowloris;
mod splice;
mod ssh;
mod ssh_hostile;
mod states;
mod targets;
mod trusted_proxies;
mod tunnel;
mod web_socket;
