//! The tests in the kind clusters: `make test` brings two up, installs the chart in both and runs them. By hand:
//! `make install second`, `eval "$(e2e/cluster/cluster env)"`, `cargo build -p muxtunnel-cli`,
//! `cargo test --workspace --test e2e -- --test-threads=1`. Each test takes a turn (`muxtunnel_e2e::turn`), so the
//! number of threads changes nothing but the time.
//!
//! Each test has a namespace of its own and sees the project as a user does: through the API server, the
//! logs, and traffic.

mod admission;
mod availability;
mod benchmarks;
mod certificates;
mod chart;
mod cli;
mod deletion;
mod examples;
mod families;
mod faults;
mod forwards;
mod grants;
mod join;
mod lives;
mod network;
mod quickstart;
mod restart;
mod rights;
mod ssh;
mod traffic;
mod tuning;
mod uninstall;
mod upgrade;
mod wan;

/// Round-trip times that an emulated delay of 50 ms each way can give: never less than 100 ms, and far from the 200 ms
/// of a delay applied twice. What lies between is the load of the machine, which is none of a test's business.
const EMULATED_RTT_MS: std::ops::Range<f64> = 99.5..190.0;

/// A MuxTunnel `t` whose port 8080 forwards to port 80 of the Service `web`; `more` is further YAML of its spec.
fn tunnel_to_web(more: &str) -> String {
    muxtunnel_e2e::tunnel::to_web("security: {mode: None}", more)
}
