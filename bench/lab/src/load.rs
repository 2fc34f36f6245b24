//! The load of our own: `muxlab serve` on the server's side, `muxlab load` on the client's.
//!
//! What iperf does not measure is here, one file a kind. Each is a process of its own, inside the
//! client's namespace, that prints one [`Outcome`] as a line of JSON. The vocabulary of client and
//! server is [`wire`].

mod carrier_cuts;
mod carriers;
mod fairness;
mod fixed_streams;
mod full_duplex;
mod hold;
mod mirror;
mod opens;
mod ping_pong;
pub(crate) mod serve;
mod stalled_reader;
mod streams;
pub(crate) mod wire;

use std::io::{Write, stdout};

use anyhow::Result;
use clap::{Args, Subcommand};
use serde::{Deserialize, Serialize};

use crate::metric::Figures;

/// What one load gave.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Outcome {
    /// Payload in both directions together, warm-up included; 0 where the figures are no rates.
    pub(crate) bytes: u64,
    pub(crate) figures: Figures,
}

/// What `muxlab load` is told.
#[derive(Debug, Args)]
pub(crate) struct LoadArgs {
    #[command(subcommand)]
    kind: Kind,
}

#[derive(Debug, Subcommand)]
enum Kind {
    /// 64-byte exchanges, one after the other, beside a number of bulk streams.
    PingPong(ping_pong::PingPong),
    /// Connect, exchange a byte, close; again and again.
    Opens(opens::Opens),
    /// Readers, alone and beside one that has stopped reading.
    StalledReader(stalled_reader::StalledReader),
    /// Nine bulk streams and one that begins small.
    Fairness(fairness::Fairness),
    /// One stream in one direction, then one in both.
    FullDuplex(full_duplex::FullDuplex),
    /// Many streams that are idle, or that nobody reads.
    Hold(hold::Hold),
    /// Many streams whose carriers are cut.
    CarrierCuts(carrier_cuts::CarrierCuts),
    /// Streams of a fixed size that must all be complete.
    FixedStreams(fixed_streams::FixedStreams),
}

/// Makes the load and prints its outcome.
///
/// # Errors
/// When a connection fails, or its peer does not behave.
pub(crate) fn run(args: &LoadArgs) -> Result<()> {
    let outcome = match &args.kind {
        Kind::PingPong(kind) => kind.run(),
        Kind::Opens(kind) => kind.run(),
        Kind::StalledReader(kind) => kind.run(),
        Kind::Fairness(kind) => kind.run(),
        Kind::FullDuplex(kind) => kind.run(),
        Kind::Hold(kind) => kind.run(),
        Kind::CarrierCuts(kind) => kind.run(),
        Kind::FixedStreams(kind) => kind.run(),
    }?;
    writeln!(stdout(), "{}", serde_json::to_string(&outcome)?)?;
    Ok(())
}
