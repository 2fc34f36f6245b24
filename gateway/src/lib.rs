//! muxgate: many TCP streams over few carrier connections.
//!
//! The way of a byte: [`entry`] accepts a [`local`] connection, where need be a [`listener`] asks it where
//! it wants to go, [`driver`] reads it into packet slots, the session (`gateway/proto`) cuts frames, the
//! carrier takes them; at the [`exit`] the driver parses them in place and writes to the target that [`dial`]
//! reached. Around it: [`process`]
//! (threads, signals, reload), [`egress`] (how others are dialled), [`transport`] (what a carrier runs on), [`security`] (who is at its other end),
//! [`admin`] (HTTP), [`telemetry`] (counters), [`carrier_sampler`], [`carrier_history`] and [`bottleneck`]
//! (what carriers wait for), [`forward`] (limits), [`account`] (the line of a closed stream),
//! [`policy`] and [`protected_addresses`] (who may dial what), [`proxy`] and [`trusted_proxies`] (who a client is). Nothing on the way of a byte crosses threads: the
//! workers and the admin thread share telemetry, forwards and watch channels; an exit's workers share the
//! [`handover`] of new carriers, once their [`hello`] said which session they join; an entry's are asked by the
//! admin thread what an exit offers.

mod account;
mod admin;
mod bind;
mod bottleneck;
mod bucket;
mod carrier_autoscaler;
mod carrier_history;
mod carrier_sampler;
pub mod cli;
mod closing;
mod counters;
mod cpu;
mod dial;
mod driver;
mod egress;
mod entry;
mod exit;
mod files;
mod forward;
mod handover;
mod handshake_limiter;
mod hello;
mod listener;
mod local;
pub mod log;
mod lookup;
mod metrics;
mod new_session;
#[cfg(any(test, feature = "oracles"))]
#[doc(hidden)]
pub mod oracles;
mod pace;
mod policy;
mod printable;
pub mod process;
mod protected_addresses;
mod proxy;
pub mod relay;
mod reload;
mod rendezvous;
mod security;
mod sessions;
mod shared_ports;
mod socket;
mod sys;
mod sysctls;
mod telemetry;
mod transport;
mod trust;
mod trusted_proxies;
mod worker;
