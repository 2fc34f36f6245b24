//! muxgate: many TCP streams over few carrier connections.
//!
//! The way of a byte: [`entry`] accepts a local connection, [`driver`] reads it into packet slots,
//! the session (`gateway/proto`) cuts frames, the carrier takes them; at the [`exit`] the driver
//! parses them in place and writes to the target that [`dial`] reached. Around it: [`process`]
//! (threads, signals, reload), [`admin`] (HTTP), [`telemetry`] (counters), [`measure`] and [`limit`]
//! (what carriers wait for), [`forward`] (limits), [`account`] (the line of a closed stream),
//! [`policy`] (who may dial what). Nothing on the way of a byte crosses threads: the workers and the
//! admin thread share telemetry, forwards and two watch channels, and an exit's workers the
//! [`handover`] of new carriers, once their [`hello`] said which session they join.

mod account;
mod admin;
mod bucket;
pub mod cli;
mod closing;
mod counters;
mod cpu;
mod demand;
mod dial;
mod driver;
mod entry;
mod exit;
mod forward;
mod handover;
mod hello;
mod limit;
pub mod log;
mod measure;
mod metrics;
mod pace;
mod policy;
pub mod process;
mod reload;
mod sessions;
mod sys;
mod sysctls;
mod telemetry;
