//! Bulk by iperf 2 over paths that change: the delay changes, or a foreign connection fills the
//! buffer in front of the narrowest link.
//!
//! The figure is the rate long after the change, which shows whether the windows have adapted to
//! the path.

use std::{process::Stdio, thread, time::Duration};

use anyhow::{Context, Result, ensure};

use super::{CHANGE_AFTER_SECONDS, Outcome, Run};
use crate::{
    process::{self, Process, wait_until},
    system::System,
    topology::{Place, Topology},
};

/// Port of the foreign connection's server.
const CROSS_PORT: u16 = 5999;
/// Time-out for the foreign connection's server to listen.
const PATIENCE: Duration = Duration::from_secs(10);
/// Seconds by which the foreign connection outlasts the measured connection.
const LONGER_SECONDS: u32 = 30;

impl Run<'_> {
    pub(super) fn path_change(&self) -> Result<Outcome> {
        let network = &self.bench.network;
        ensure!(
            network.topology == Topology::WanChanging,
            "the delay of {} does not change: use --topologies wan-changing",
            network.topology.name()
        );
        let result = thread::scope(|scope| {
            let change = scope.spawn(|| {
                thread::sleep(Duration::from_secs(CHANGE_AFTER_SECONDS.into()));
                network.change_delay(true)
            });
            let outcome = self.bulk_iperf2()?;
            let changed = change.join().ok().context("cannot change the delay")?;
            changed.map(|()| outcome)
        });
        network.change_delay(false)?;
        result
    }

    /// Measures bulk while a foreign connection shares the delayed link. The foreign connection
    /// runs between the gateways, or for `direct` between client and server.
    pub(super) fn cross_traffic(&self) -> Result<Outcome> {
        let network = &self.bench.network;
        let addresses = network.topology.addresses();
        let (from, to, address) = match self.running.system {
            System::Direct => (Place::Client, Place::Server, addresses.server),
            _ => (Place::Entry, Place::Exit, addresses.carrier_exit),
        };
        let start = |place, line: &str| {
            let arguments: Vec<String> = line.split(' ').map(str::to_owned).collect();
            let iperf = process::find(&self.bench.programs.iperf2)
                .context("iperf (Debian: iperf, version 2)")?;
            let mut command = process::command(&iperf, &arguments)?;
            command.stdout(Stdio::null()).stderr(Stdio::null());
            Process::spawn(network.namespace(place), &mut command)
        };
        let _server = start(to, &format!("-s -p {CROSS_PORT}"))?;
        wait_until(PATIENCE, "the foreign connection's server", || {
            network.listens(to, CROSS_PORT)
        })?;
        let seconds = self.window().duration_s + LONGER_SECONDS;
        let mut client = start(from, &format!("-c {address} -p {CROSS_PORT} -t {seconds}"))?;
        let outcome = self.bulk_iperf2()?;
        ensure!(!client.has_ended(), "the foreign connection ended early");
        Ok(outcome)
    }
}
