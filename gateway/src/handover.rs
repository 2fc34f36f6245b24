//! How an exit's carriers find their workers.
//!
//! The kernel scatters connections over the workers' listeners by a hash, so whoever accepts a carrier
//! passes it on to the worker that has the fewest. Later a session's id will name its worker. Bounded
//! by `limits.carriers`: each worker's queue has room for all of them.

use std::net::TcpStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::mpsc;

/// The exit is at its limit of carriers.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct TooMany;

/// The carriers of each worker, counted from the moment that they are passed on.
#[derive(Debug)]
pub(crate) struct Handover {
    carriers: Mutex<Vec<usize>>,
    workers: Vec<mpsc::Sender<Handed>>,
    carriers_max: usize,
}

/// A carrier on its way to its worker, and its place there.
#[derive(Debug)]
pub(crate) struct Handed {
    /// The accepted socket, non-blocking.
    pub(crate) tcp: TcpStream,
    /// Free again when dropped.
    pub(crate) place: Place,
}

/// One carrier's place among those of its worker.
#[derive(Debug)]
pub(crate) struct Place {
    handover: Arc<Handover>,
    worker: usize,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.handover.carriers()[self.worker] -= 1;
    }
}

impl Handover {
    /// Also returns where each worker gets its carriers.
    pub(crate) fn new(
        workers: usize,
        carriers_max: usize,
    ) -> (Arc<Self>, Vec<mpsc::Receiver<Handed>>) {
        let (workers, receivers): (Vec<_>, Vec<_>) =
            (0..workers).map(|_| mpsc::channel(carriers_max)).unzip();
        let handover = Self {
            carriers: Mutex::new(vec![0; workers.len()]),
            workers,
            carriers_max,
        };
        (Arc::new(handover), receivers)
    }

    /// Passes a carrier on to the worker with the fewest.
    ///
    /// # Errors
    /// [`TooMany`]; the socket is closed.
    pub(crate) fn pass_on(self: &Arc<Self>, tcp: TcpStream) -> Result<(), TooMany> {
        let place = self.place().ok_or(TooMany)?;
        let worker = place.worker;
        // A worker that is gone has ended the process, or is about to.
        let _ = self.workers[worker].try_send(Handed { tcp, place });
        Ok(())
    }

    fn place(self: &Arc<Self>) -> Option<Place> {
        let mut carriers = self.carriers();
        if carriers.iter().sum::<usize>() >= self.carriers_max {
            return None;
        }
        let (worker, count) = carriers
            .iter_mut()
            .enumerate()
            .min_by_key(|(_, count)| **count)?;
        *count += 1;
        Some(Place {
            handover: Arc::clone(self),
            worker,
        })
    }

    /// A poisoned lock only means that a panicking thread held it; the counts are still right.
    fn carriers(&self) -> MutexGuard<'_, Vec<usize>> {
        self.carriers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn carriers_go_where_there_are_fewest_up_to_the_limit_of_all() {
        let (handover, _receivers) = Handover::new(2, 3);
        let mut places: Vec<_> = (0..3).filter_map(|_| handover.place()).collect();
        assert_eq!(*handover.carriers(), [2, 1]);
        assert!(handover.place().is_none());
        places.remove(0);
        assert_eq!(*handover.carriers(), [1, 1]);
        assert!(handover.place().is_some());
    }
}
