//! The state of the runner: phases, offers, ended cells. Requests of the operator and results of
//! measurements change the state, and the [`State`] document shows the state. The module uses no
//! socket and no clock.

use muxtunnel_bench_api::result::{Cell, Summary};
use muxtunnel_bench_api::runner::{Environment, Offer, Pair, Phase, State};
use muxtunnel_bench_api::{Matrix, Route};

/// The state of a benchmark.
#[derive(Debug, Clone)]
pub struct Board {
    matrix: Matrix,
    slots: Vec<Slot>,
    cells_total: usize,
    cells: Vec<Cell>,
    progress: String,
    summary: Option<Summary>,
    finished: bool,
}

#[derive(Debug, Clone)]
struct Slot {
    phase: Phase,
    offer: Option<Offer>,
}

/// Why an offer is rejected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OfferError {
    /// The matrix has no such environment.
    #[error("environment {index} not found: the benchmark has {count} environments")]
    Unknown {
        /// The offered environment.
        index: usize,
        /// The number of environments.
        count: usize,
    },
    /// Another environment comes first.
    #[error("environment {index} is out of order: expected environment {current}")]
    NotItsTurn {
        /// The offered environment.
        index: usize,
        /// The expected environment.
        current: usize,
    },
    /// A route of the matrix has no agents.
    #[error("the environment has no agents for the route {0}")]
    NoPair(Route),
}

impl Board {
    /// Creates the board of a benchmark that has not begun.
    #[must_use]
    pub fn new(matrix: Matrix) -> Self {
        let slot = Slot {
            phase: Phase::Waiting,
            offer: None,
        };
        Self {
            slots: vec![slot; matrix.environments().len()],
            cells_total: matrix.cells().len(),
            matrix,
            cells: Vec::new(),
            progress: "starting".into(),
            summary: None,
            finished: false,
        }
    }

    /// Processes an offer of the operator. A repeated offer changes nothing.
    ///
    /// # Errors
    /// See [`OfferError`].
    pub fn offer(&mut self, index: usize, offer: Offer) -> Result<(), OfferError> {
        let current = self.state().current();
        let count = self.slots.len();
        let Some(slot) = self.slots.get_mut(index) else {
            return Err(OfferError::Unknown { index, count });
        };
        if slot.phase != Phase::Waiting {
            return Ok(());
        }
        if let Some(current) = current.filter(|current| *current != index) {
            return Err(OfferError::NotItsTurn { index, current });
        }
        if let Offer::Ready(environment) = &offer {
            let mut routes = self.matrix.routes().into_iter();
            if let Some(missing) = routes.find(|route| ends(environment, route).is_none()) {
                return Err(OfferError::NoPair(missing));
            }
        }
        *slot = Slot {
            phase: Phase::Running,
            offer: Some(offer),
        };
        Ok(())
    }

    /// The offer for the environment `index`, if the operator has sent it.
    #[must_use]
    pub fn offer_of(&self, index: usize) -> Option<&Offer> {
        self.slots.get(index)?.offer.as_ref()
    }

    /// Records that the operator offers no more environments. If the board has a summary, the
    /// operator has also fetched the results.
    pub fn finish(&mut self) {
        self.finished = true;
    }

    /// Whether [`Board::finish`] was called.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.finished
    }

    /// Records that all cells of an environment have ended.
    pub fn end_environment(&mut self, index: usize) {
        if let Some(slot) = self.slots.get_mut(index) {
            slot.phase = Phase::Done;
        }
    }

    /// Records an ended cell.
    pub fn add_cell(&mut self, cell: Cell) {
        debug_assert!(self.cells.len() < self.cells_total);
        self.cells.push(cell);
    }

    /// Sets the current activity.
    pub fn set_progress(&mut self, line: &str) {
        self.progress = line.to_owned();
    }

    /// Sets the summary, after all cells have ended.
    pub fn set_summary(&mut self, summary: Summary) {
        self.summary = Some(summary);
    }

    /// The cells that have ended.
    #[must_use]
    pub fn cells(&self) -> &[Cell] {
        &self.cells
    }

    /// The document that the operator reads.
    #[must_use]
    pub fn state(&self) -> State {
        State {
            environments: self.slots.iter().map(|slot| slot.phase).collect(),
            cells_total: self.cells_total,
            cells: self.cells.clone(),
            progress: self.progress.clone(),
            summary: self.summary.clone(),
        }
    }
}

/// The agents of a route, and the status URLs of its gateways.
#[must_use]
pub fn ends<'a>(environment: &'a Environment, route: &Route) -> Option<(&'a Pair, &'a [String])> {
    match route {
        Route::Direct => environment.direct.as_ref().map(|pair| (pair, &[][..])),
        Route::Tunnel(protocol) => {
            let mut tunnels = environment.tunnels.iter();
            let tunnel = tunnels.find(|tunnel| tunnel.protocol == *protocol)?;
            Some((&tunnel.pair, &tunnel.gateway_status_urls))
        }
        Route::Network(_) => {
            let tunnel = environment.network.as_ref()?;
            Some((&tunnel.pair, &tunnel.gateway_status_urls))
        }
    }
}

#[cfg(test)]
mod tests {
    use muxtunnel_bench_api::Path;
    use muxtunnel_bench_api::runner::Tunnel;

    use super::*;

    fn board() -> Board {
        Board::new(Matrix {
            connections: vec![1],
            one_way_delays_ms: vec![50, 0],
            profiles: vec!["None".into()],
            paths: vec![Path::Tunnel],
            protocols: vec!["JMUX".into(), "Native".into()],
            duration_s: 5,
            warm_up_s: 2,
            rounds: 3,
            udp_bits_per_second: 100_000_000,
        })
    }

    fn ready() -> Offer {
        let pair = Pair {
            client_url: "http://10.0.0.1:64002".into(),
            server_url: "http://10.0.0.2:64002".into(),
            host: "10.0.0.3".into(),
            iperf_port: 5001,
            echo_port: 5002,
            server_iperf_port: 5001,
        };
        let tunnels = ["JMUX", "Native"].map(|protocol| Tunnel {
            protocol: protocol.into(),
            pair: pair.clone(),
            gateway_status_urls: vec![],
        });
        Offer::Ready(Environment {
            direct: None,
            tunnels: tunnels.into(),
            network: None,
        })
    }

    #[test]
    fn environments_are_taken_in_their_order_only() {
        let mut board = board();
        assert_eq!(
            board.offer(1, ready()),
            Err(OfferError::NotItsTurn {
                index: 1,
                current: 0
            })
        );
        assert_eq!(
            board.offer(2, ready()),
            Err(OfferError::Unknown { index: 2, count: 2 })
        );
        assert_eq!(board.offer(0, ready()), Ok(()));
        assert_eq!(board.state().environments, [Phase::Running, Phase::Waiting]);
        board.end_environment(0);
        assert_eq!(board.offer(1, ready()), Ok(()));
    }

    #[test]
    fn an_operator_that_was_restarted_may_offer_again() {
        let mut board = board();
        board.offer(0, ready()).unwrap();
        let before = board.offer_of(0).cloned();
        let mut other = ready();
        if let Offer::Ready(environment) = &mut other {
            environment.tunnels[0].pair.host = "10.0.0.9".into();
        }
        assert_eq!(board.offer(0, other), Ok(()));
        assert_eq!(board.offer_of(0).cloned(), before);
        board.end_environment(0);
        assert_eq!(board.offer(0, ready()), Ok(()));
        assert_eq!(board.state().current(), Some(1));
    }

    #[test]
    fn a_protocol_without_a_tunnel_is_refused() {
        let mut offer = ready();
        if let Offer::Ready(environment) = &mut offer {
            environment.tunnels.truncate(1);
        }
        let native = Route::Tunnel("Native".into());
        assert_eq!(board().offer(0, offer), Err(OfferError::NoPair(native)));
    }

    #[test]
    fn a_network_without_agents_is_refused() {
        let mut matrix = board().matrix;
        matrix.paths.push(Path::Network);
        let network = Route::Network("Native".into());
        let refusal = Board::new(matrix).offer(0, ready()).unwrap_err();
        assert_eq!(refusal, OfferError::NoPair(network));
        assert_eq!(
            refusal.to_string(),
            "the environment has no agents for the route network"
        );
    }
}
