//! muxgate: many TCP streams over few carrier connections.
//!
//! The way of a byte: [`entry`] accepts a local connection, [`driver`] reads it into packet slots,
//! the session (`gateway/proto`) cuts frames, the carrier takes them; at the [`exit`] the driver
//! parses them in place and writes to the target that [`dial`] reached. Around it: [`process`]
//! (threads, signals, reload), [`admin`] (HTTP), [`telemetry`] (counters), [`policy`] (who may dial
//! what). The worker's thread and the admin's share telemetry and two watch channels, nothing else.

mod admin;
mod carriers;
pub mod cli;
mod dial;
mod driver;
mod entry;
mod exit;
mod metrics;
mod policy;
pub mod process;
mod reload;
mod sys;
mod sysctls;
mod telemetry;
