//! The end of `--wait`: connects to a listening port of a MuxTunnel's entry.
//!
//! The conditions describe the gateways. A node may need a second longer until connections reach a
//! new Service (kube-proxy), so a script that continues after the condition could be refused. The
//! program connects from this host, sends nothing, and closes the connection. A host outside of the
//! cluster cannot resolve the name of a Service; then the program prints a note.

use std::io::ErrorKind;
use std::time::Duration;

use tokio::net::{TcpStream, lookup_host};
use tokio::time::{Instant, sleep_until, timeout, timeout_at};

use crate::end::Failure;
use crate::object::{self, Gateways};

/// Interval between two attempts, and the time-out of one attempt.
const INTERVAL: Duration = Duration::from_secs(1);

/// The host and port of the first listening port of the entry. `None`: the object has no such port
/// or no address.
fn place(object: &Gateways) -> Option<(String, u16)> {
    let listeners = |field: &str| object.spec[field].as_array().into_iter().flatten();
    let mut all = listeners("forwards").chain(listeners("proxies"));
    all.find_map(|one| object::listener(object, one))
}

/// Connects to the entry of the tunnel, until a connection is established.
///
/// # Errors
/// [`Failure::TimedOut`]: no connection was established at `deadline`.
pub(super) async fn connect(object: &Gateways, deadline: Instant) -> Result<(), Failure> {
    let Some((host, port)) = place(object) else {
        return Ok(());
    };
    let mut said = String::new();
    loop {
        let began = Instant::now();
        let place = (host.as_str(), port);
        // The last attempt begins at the deadline at the latest.
        let until = deadline.max(began + INTERVAL);
        let addresses = match timeout_at(until, lookup_host(place)).await {
            Ok(Ok(addresses)) => addresses.collect::<Vec<_>>(),
            Ok(Err(_)) | Err(_) => {
                eprintln!(
                    "not connected: this host cannot resolve {host}. Nodes may need a second until \
                     connections reach a new Service"
                );
                return Ok(());
            }
        };
        let error = match timeout(INTERVAL, TcpStream::connect(&*addresses)).await {
            Ok(Ok(_)) => return Ok(()),
            Ok(Err(error)) => error,
            Err(_) => ErrorKind::TimedOut.into(),
        };
        let state = format!("cannot connect to {host} port {port}: {error}");
        if began >= deadline {
            return Err(Failure::TimedOut(format!(
                "the condition is true, but this host {state}. Check that `from` of the forward admits this host"
            )));
        }
        if state != said {
            eprintln!("waiting: this host {state}");
            said = state;
        }
        sleep_until(deadline.min(began + INTERVAL)).await;
    }
}
