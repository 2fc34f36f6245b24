//! The operator: reconciles `MuxTunnel`, `MuxExit`, `MuxRendezvous`, `MuxPeer` and `MuxBenchmark`
//! objects.
//!
//! Each controller is a pipeline with one file per step: dereference -> validate -> build -> apply
//! -> observe -> publish -> update_status. Validate and build are pure. Only the steps that write
//! get a client. This level contains the shared modules of the controllers: [`api_server`],
//! [`apply`], [`backoff`], [`caches`], [`certificates`], [`class`], [`class_file`], [`classes`], [`clock`], [`conditions`], [`events`],
//! [`failure`], [`grants`], [`watches`], [`health`], [`interceptor`], [`key_pair`], [`labels`], [`leader`],
//! [`metrics`], [`pods`], [`quantity`], [`reader`], [`settings`], [`undecoded`], [`upgrades`]. Start reading at
//! [`tunnel_controller`], then [`peer_controller`] and [`benchmark_controller`].

// The crate's name in tests outside of the crate. The crate's own tests share some of their files.
#[cfg(test)]
extern crate self as muxtunnel_operator;

pub mod api_server;
pub mod apply;
pub mod backoff;
pub mod benchmark_controller;
pub mod caches;
pub mod certificates;
pub mod class;
pub mod class_controller;
pub mod class_file;
pub mod classes;
pub mod cli;
pub mod clock;
pub mod conditions;
mod controller;
pub mod events;
pub mod failure;
pub mod grants;
pub mod health;
pub mod interceptor;
pub mod key_pair;
pub mod labels;
pub mod leader;
pub mod metrics;
pub mod muxbench;
pub mod peer_controller;
pub mod pods;
pub mod quantity;
pub mod reader;
pub mod service_name;
pub mod settings;
mod status_patch;
#[cfg(test)]
pub(crate) mod testing;
pub mod tunnel_controller;
pub mod undecoded;
pub mod upgrades;
pub mod watch_clock;
pub mod watches;
