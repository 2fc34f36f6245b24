//! The tests in the kind clusters. `make test` creates two clusters, installs the chart in both and
//! runs the tests. To run them manually: `make install second`, `eval "$(e2e/cluster/cluster
//! env)"`, `cargo build -p muxtunnel-cli`, `cargo test --workspace --test e2e -- --test-threads=1`.
//! Each test waits for its turn (`muxtunnel_e2e::turn`), so the number of threads changes only the
//! duration.
//!
//! Each test has its own namespace and uses only the interfaces that a user has: the API server,
//! logs, and traffic.

mod admission;
mod availability;
mod benchmarks;
mod certificates;
mod chart;
mod cli;
mod deletion;
mod diff;
mod examples;
mod families;
mod faults;
mod forwards;
mod grants;
mod image;
mod network;
mod peers;
mod quickstart;
mod remote;
mod restart;
mod rights;
mod ssh;
mod traffic;
mod tuning;
mod uninstall;
mod upgrade;
mod user_roles;
mod users;
mod wan;

/// Plausible round-trip times in milliseconds with an emulated one-way delay of 50 ms. The minimum
/// is about 100 ms, and the load of the machine can lengthen a round trip. If the delay were
/// applied twice, the time would be 200 ms.
const EMULATED_RTT_MS: std::ops::Range<f64> = 99.5..190.0;

/// A MuxTunnel `t` whose port 8080 forwards to port 80 of the Service `web`. `more` is additional
/// YAML of the spec.
fn tunnel_to_web(more: &str) -> String {
    muxtunnel_e2e::tunnel::to_web("None", "", more)
}
