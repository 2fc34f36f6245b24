//! The messages between the operator and the runner. All requests except `/healthz` carry
//! `Authorization: Bearer TOKEN`.
//!
//! | request | body | answer |
//! |---|---|---|
//! | `GET /healthz` | none | 200 when the runner serves requests |
//! | `GET /v1/state` | none | [`State`] |
//! | `PUT /v1/environments/INDEX` | [`Offer`] | [`State`]; 409 if another environment comes first |
//! | `PUT /v1/finished` | none | [`State`]; the runner ends when all cells are done |
//!
//! The operator offers environments in the order of [`crate::Matrix::environments`]. A repeated
//! offer of a running or finished environment changes nothing, so a restarted operator can read the
//! state and continue.

use serde::{Deserialize, Serialize};

use crate::result::{Cell, Status, Summary};

/// An environment, or the reason why it is not available.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Offer {
    /// The environment is ready.
    Ready(Environment),
    /// The environment could not be created. Its cells get this status and reason.
    Unavailable(Unavailable),
}

/// Why an environment is not available.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unavailable {
    /// `failed`, or `refused` if the delay of the environment cannot be emulated.
    pub status: Status,
    /// The `MT` code of the reason.
    pub code: String,
    /// The reason, for people.
    pub reason: String,
}

/// Addresses of one environment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Environment {
    /// The pair of agents of the direct path; required if that path is measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub direct: Option<Pair>,
    /// One tunnel for each protocol; required if the tunnel is measured.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tunnels: Vec<Tunnel>,
    /// The tunnel that carries IP packets, with agents in the pods of its gateways; required if the
    /// network is measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<Tunnel>,
}

/// The tunnel of one protocol.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tunnel {
    /// The protocol, with its name in the matrix.
    pub protocol: String,
    /// The agents at the ends of the tunnel. Several tunnels may use the same agents.
    pub pair: Pair,
    /// URLs of the gateways' status documents, `http://ADDR:PORT/status`. If the list is empty, the
    /// results have no CPU time.
    #[serde(default)]
    pub gateway_status_urls: Vec<String>,
}

/// The agents at the two ends of a path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pair {
    /// URL of the agent that runs iperf clients and probes: `http://ADDR:PORT`.
    pub client_url: String,
    /// URL of the agent that runs iperf servers and echoes: `http://ADDR:PORT`.
    pub server_url: String,
    /// The host that the client connects to: the server's address, or the tunnel's entry.
    pub host: String,
    /// Port to which iperf clients connect.
    pub iperf_port: u16,
    /// Port to which the probes of the echo connect.
    pub echo_port: u16,
    /// Port on which iperf listens at the server agent.
    pub server_iperf_port: u16,
}

/// The phase of an environment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// The operator has not offered the environment yet.
    Waiting,
    /// The cells of the environment are being measured.
    Running,
    /// All cells of the environment have ended, so the operator can remove it.
    Done,
}

/// The state of the runner.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct State {
    /// Phase of each environment, by index.
    pub environments: Vec<Phase>,
    /// Number of cells of the matrix.
    pub cells_total: usize,
    /// Cells that have ended, in order.
    pub cells: Vec<Cell>,
    /// The current activity, one line.
    pub progress: String,
    /// Present once all cells have ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub summary: Option<Summary>,
}

impl State {
    /// The environment that the runner measures or waits for; `None` when all are done.
    #[must_use]
    pub fn current(&self) -> Option<usize> {
        self.environments
            .iter()
            .position(|phase| *phase != Phase::Done)
    }
}
