//! The scenarios with the lab's own load: their command lines, and the server.

use std::{env, fs, net::SocketAddr, path::Path, process::Stdio, time::Duration};

use anyhow::{Context, Result, ensure};

use super::{
    FIXED_BYTES, FIXED_PATIENCE_SECONDS, HOLD_SECONDS, KEYSTROKE_EVERY, KEYSTROKE_SECONDS, Outcome,
    Run,
};
use crate::{
    load,
    network::Network,
    process::{self, Process, wait_until},
    system::{CARRIER_PORT, Service, System},
    topology::Place,
};

/// Time-out for the server to listen.
const START_PATIENCE: Duration = Duration::from_secs(10);
/// Time that a load may take beyond its requested duration.
const PATIENCE: Duration = Duration::from_secs(90);
/// Estimated duration of a run with cuts, in seconds. The estimate is long, so that even a gateway
/// that stalls for seconds at each cut completes the run.
const CUTS_SECONDS: u32 = 600;

/// Starts `muxlab serve` on the server's side.
pub(crate) fn serve(network: &Network, log: &Path) -> Result<Process> {
    let port = Service::Load.port();
    let arguments = [
        "serve".to_owned(),
        "--listen".to_owned(),
        format!("0.0.0.0:{port}"),
    ];
    let server = network.namespace(Place::Server);
    let mut process = Process::start(server, &env::current_exe()?, &arguments, log)?;
    wait_until(START_PATIENCE, "the load's server", || {
        ensure!(!process.has_ended(), "the server has ended");
        network.listens(Place::Server, port)
    })
    .with_context(|| format!("see {}", log.display()))?;
    Ok(process)
}

impl Run<'_> {
    pub(super) fn ping_pong(&self) -> Result<Outcome> {
        self.ping_pong_after(self.times.warm_up_seconds)
    }

    /// `warm_up_seconds`: warm-up of the concurrent bulk.
    pub(super) fn ping_pong_after(&self, warm_up_seconds: u32) -> Result<Outcome> {
        self.exchanges(self.times.seconds, 0, warm_up_seconds)
    }

    pub(super) fn keystrokes(&self) -> Result<Outcome> {
        let every_ms = KEYSTROKE_EVERY.as_millis() as u64;
        self.exchanges(KEYSTROKE_SECONDS, every_ms, self.times.warm_up_seconds)
    }

    fn exchanges(&self, seconds: u32, every_ms: u64, warm_up_seconds: u32) -> Result<Outcome> {
        self.load(
            2 * seconds + warm_up_seconds,
            &format!(
                "ping-pong --server {} --bulk {} --every-ms {every_ms} --seconds {seconds} \
                 --warm-up-seconds {warm_up_seconds}",
                self.server(),
                self.connections,
            ),
        )
    }

    pub(super) fn opens(&self) -> Result<Outcome> {
        let direct = self.running.system == System::Direct;
        let sources = self.bench.network.topology.sources(direct);
        let sources: Vec<String> = sources.iter().map(ToString::to_string).collect();
        self.load(
            self.times.seconds,
            &format!(
                "opens --sources {} --concurrency {}{}",
                sources.join(","),
                self.connections,
                self.durations()
            ),
        )
    }

    pub(super) fn stalled_reader(&self) -> Result<Outcome> {
        self.load(
            3 * self.times.seconds,
            &format!(
                "stalled-reader --readers {}{}",
                self.connections,
                self.durations()
            ),
        )
    }

    pub(super) fn fairness(&self) -> Result<Outcome> {
        self.load(
            self.times.seconds,
            &format!(
                "fairness --streams {}{}",
                self.connections,
                self.durations()
            ),
        )
    }

    pub(super) fn full_duplex(&self) -> Result<Outcome> {
        let (window, both_ways) = (self.window(), self.times.duplex_seconds);
        let one_way = window.duration_s - window.warm_up_s;
        self.load(
            one_way + both_ways,
            &format!(
                "full-duplex --server {} --one-way-seconds {one_way} --seconds {both_ways} \
                 --warm-up-seconds {}",
                self.server(),
                window.warm_up_s
            ),
        )
    }

    pub(super) fn hold(&self, stalled: bool) -> Result<Outcome> {
        let stalled = if stalled { " --stalled" } else { "" };
        self.load(
            HOLD_SECONDS,
            &format!(
                "hold --streams {} --seconds {HOLD_SECONDS}{stalled}",
                self.connections
            ),
        )
    }

    pub(super) fn carrier_cuts(&self, cuts: u32) -> Result<Outcome> {
        let system = self.running.system;
        let carriers = system.resumed_carriers();
        let carriers = carriers.context("streams of this system end with their carrier")?;
        let [entry, exit] =
            [Place::Entry, Place::Exit].map(|place| self.bench.network.namespace(place).path());
        self.load(
            CUTS_SECONDS,
            &format!(
                "carrier-cuts --streams {} --cuts {cuts} --carriers {carriers} \
                 --carrier-port {CARRIER_PORT} --entry-namespace {entry} --exit-namespace {exit}",
                self.connections
            ),
        )
    }

    pub(super) fn fixed_streams(&self) -> Result<Outcome> {
        self.load(
            FIXED_PATIENCE_SECONDS,
            &format!(
                "fixed-streams --streams {} --bytes {FIXED_BYTES} \
                 --patience-seconds {FIXED_PATIENCE_SECONDS}",
                self.connections
            ),
        )
    }

    /// The direct address of the load's server.
    fn server(&self) -> SocketAddr {
        let addresses = self.bench.network.topology.addresses();
        System::Direct.address(Service::Load, &addresses)
    }

    fn durations(&self) -> String {
        let (seconds, warm_up) = (self.times.seconds, self.times.warm_up_seconds);
        format!(" --seconds {seconds} --warm-up-seconds {warm_up}")
    }

    /// Runs `muxlab load` on the client's side. `seconds`: the estimated duration of the load.
    /// `line`: the kind of load and its flags, without the address.
    fn load(&self, seconds: u32, line: &str) -> Result<Outcome> {
        let network = &self.bench.network;
        let addresses = network.topology.addresses();
        let to = self.running.system.address(Service::Load, &addresses);
        let arguments: Vec<String> = format!("load {line} --connect {to}")
            .split(' ')
            .map(str::to_owned)
            .collect();
        let (program, arguments) = self.running.client(&env::current_exe()?, arguments);
        let mut command = process::command(&program, &arguments)?;
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let process = Process::spawn(network.namespace(Place::Client), &mut command)?;
        let patience = PATIENCE + Duration::from_secs(seconds.into());
        let finished = process.finish(patience).context("the load")?;
        let log = self.bench.folder(self.running.system).join("load.log");
        let written = fs::write(&log, &finished.errors);
        written.with_context(|| format!("cannot write {}", log.display()))?;
        // Standard error may contain lines about cuts and streams before the line of the error.
        let told = finished.errors.rsplit_once("Error: ");
        let error = told.map_or(finished.errors.as_str(), |(_, error)| error);
        ensure!(finished.succeeded, "the load failed: {error}");
        let outcome: load::Outcome = serde_json::from_str(&finished.output)
            .with_context(|| format!("the load printed {:?}", finished.output))?;
        Ok(Outcome {
            bytes: outcome.bytes,
            figures: outcome.figures,
        })
    }
}
