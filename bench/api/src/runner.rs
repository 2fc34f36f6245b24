//! What the operator tells the runner, and what the runner answers. All requests but `/healthz`
//! carry `Authorization: Bearer TOKEN`.
//!
//! | request | body | answer |
//! |---|---|---|
//! | `GET /healthz` | none | 200 when it serves |
//! | `GET /v1/state` | none | [`State`] |
//! | `PUT /v1/environments/INDEX` | [`Offer`] | [`State`]; 409 when it is not this one's turn |
//! | `PUT /v1/finished` | none | [`State`]; the runner ends when all cells are done |
//!
//! Environments come in the order of [`crate::Matrix::environments`]. Offering one again while it is
//! measured or after it is done changes nothing, so an operator that was restarted reads the state
//! and goes on from there.

use serde::{Deserialize, Serialize};

use crate::result::{Cell, Status, Summary};

/// An environment, or why there is none.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Offer {
    /// It is up.
    Ready(Environment),
    /// It could not be brought up: its cells get this status and reason.
    Unavailable(Unavailable),
}

/// Why an environment is not there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unavailable {
    /// `failed`, or `refused` when its delay cannot be emulated.
    pub status: Status,
    /// The `MT` code.
    pub code: String,
    /// For people.
    pub reason: String,
}

/// Addresses of one environment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Environment {
    /// The pair of agents beside the tunnel; needed when the direct path is measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub direct: Option<Pair>,
    /// One for each protocol; needed when the tunnel is measured.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tunnels: Vec<Tunnel>,
    /// The tunnel that carries IP packets, with agents in the pods of its gateways; needed when the network is
    /// measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<Tunnel>,
}

/// The tunnel of one protocol.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tunnel {
    /// The protocol, as the matrix names it.
    pub protocol: String,
    /// The agents at its ends; several tunnels may have the same.
    pub pair: Pair,
    /// Status documents of the gateways, `http://ADDR:PORT/status`; empty: CPU is not accounted.
    #[serde(default)]
    pub gateway_status_urls: Vec<String>,
}

/// A client and a server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pair {
    /// Agent that runs iperf clients and probes, `http://ADDR:PORT`.
    pub client_url: String,
    /// Agent that runs iperf servers and echoes, `http://ADDR:PORT`.
    pub server_url: String,
    /// Where the client finds the server: its address, or the tunnel's entry.
    pub host: String,
    /// Port of iperf as the client sees it.
    pub iperf_port: u16,
    /// Port of the echo as the client sees it.
    pub echo_port: u16,
    /// Port on which the server agent has iperf listen.
    pub server_iperf_port: u16,
}

/// Where an environment is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Not offered yet.
    Waiting,
    /// Its cells are being measured.
    Running,
    /// All of its cells have ended; it can be removed.
    Done,
}

/// All that the runner knows.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct State {
    /// Phase of each environment, by index.
    pub environments: Vec<Phase>,
    /// Cells of the matrix.
    pub cells_total: usize,
    /// Cells that have ended, in order.
    pub cells: Vec<Cell>,
    /// What it does now, one line.
    pub progress: String,
    /// Present once all cells have ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub summary: Option<Summary>,
}

impl State {
    /// The environment that is measured, or waited for; `None` when all are done.
    #[must_use]
    pub fn current(&self) -> Option<usize> {
        self.environments
            .iter()
            .position(|phase| *phase != Phase::Done)
    }
}
