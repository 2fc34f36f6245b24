//! The lab's own load: `muxlab serve` on the server's side, `muxlab load` on the client's side.
//!
//! The load measures figures that iperf does not measure. Each kind of load has a file. A load is a
//! separate process in the client's namespace, which prints an [`Outcome`] as a line of JSON.
//! [`wire`] has the requests of clients.

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

/// The result of a load.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Outcome {
    /// Payload bytes of both directions, warm-up included; 0 if the load measures no rate.
    pub(crate) bytes: u64,
    pub(crate) figures: Figures,
}

/// Flags of `muxlab load`.
#[derive(Debug, Args)]
pub(crate) struct LoadArgs {
    #[command(subcommand)]
    kind: Kind,
}

#[derive(Debug, Subcommand)]
enum Kind {
    /// Time exchanges of 64 bytes, one after the other, while bulk streams run.
    PingPong(ping_pong::PingPong),
    /// Connect, exchange a byte and close, repeatedly.
    Opens(opens::Opens),
    /// Compare the rate of readers with and without a stalled reader.
    StalledReader(stalled_reader::StalledReader),
    /// Run nine bulk streams, and one stream that begins with small messages.
    Fairness(fairness::Fairness),
    /// Send on a stream in one direction, then in both.
    FullDuplex(full_duplex::FullDuplex),
    /// Hold many streams that are idle, or that the client does not read.
    Hold(hold::Hold),
    /// Run many streams while their carriers are cut.
    CarrierCuts(carrier_cuts::CarrierCuts),
    /// Run streams of a fixed size that must all complete.
    FixedStreams(fixed_streams::FixedStreams),
}

/// Runs the load and prints its outcome.
///
/// # Errors
/// If a connection fails, or the server violates the protocol.
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
