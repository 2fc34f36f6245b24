//! One network in which systems are measured.
//!
//! Owns a run from the start of the system to its end: fresh processes each time, so that what one run
//! left behind does not count in the next, and nothing else runs beside it. Beside each scenario's own
//! figures stand the CPU time a byte and the peak memory of both gateways.

use std::{
    collections::BTreeMap,
    fs,
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use muxbench::statistics::spread;
use muxtunnel_bench_api::PROBES;
use nix::sys::resource::{UsageWho, getrusage};

use crate::{
    load::wire::Request,
    metric::{Figures, Metric},
    network::Network,
    process::Process,
    scenario::{Run, Scenario, Times, load},
    system::{Running, Service, System},
    topology::{Place, Topology},
    usage,
};

/// The programs to be run.
#[derive(Debug)]
pub(crate) struct Programs {
    pub(crate) muxgate: PathBuf,
    pub(crate) muxwan: PathBuf,
    pub(crate) iperf2: PathBuf,
    pub(crate) iperf3: PathBuf,
}

/// One network with its server of the load, in which scenarios are run.
#[derive(Debug)]
pub(crate) struct Bench<'a> {
    pub(crate) network: Network,
    pub(crate) programs: &'a Programs,
    logs: &'a Path,
    server: Process,
    rtt_ms: f64,
}

/// One run.
#[derive(Debug, Clone)]
pub(crate) struct Measured {
    pub(crate) figures: Figures,
    /// The part of all processors that other programs took meanwhile, 0 to 1.
    pub(crate) foreign_share: f64,
    pub(crate) basis: Basis,
}

/// What a figure stands on.
#[derive(Debug, Clone, Default)]
pub(crate) struct Basis {
    /// Median of [`PROBES`] exchanges on the idle direct path.
    pub(crate) rtt_ms: f64,
    /// In force at the ends of the delayed link.
    pub(crate) sysctls: BTreeMap<String, String>,
}

impl<'a> Bench<'a> {
    /// Builds the network and starts the server of the load in it.
    ///
    /// # Errors
    /// What is missing, or what the system said.
    pub(crate) fn build(
        topology: Topology,
        congestion_control: &str,
        programs: &'a Programs,
        logs: &'a Path,
    ) -> Result<Self> {
        let network = Network::build(topology, congestion_control, &programs.muxwan, logs)?;
        let server = load::serve(&network, &logs.join("serve.log"))?;
        let direct = System::Direct.address(Service::Load, &topology.addresses());
        let rtt_ms = network.namespace(Place::Client).enter(|| rtt_ms(direct))?;
        Ok(Self {
            rtt_ms: rtt_ms.context("probing the direct path")?,
            network,
            programs,
            logs,
            server,
        })
    }

    /// Starts the system, runs the scenario once, ends the system. `muxgate`: the build that runs in our
    /// gateways.
    ///
    /// # Errors
    /// `not found` when a peer is not installed; else what failed.
    pub(crate) fn measure(
        &self,
        muxgate: &Path,
        scenario: Scenario,
        system: System,
        connections: u32,
        times: Times,
    ) -> Result<Measured> {
        let folder = self.folder(system);
        fs::create_dir_all(&folder).with_context(|| format!("making {}", folder.display()))?;
        let mut running = system.start(&self.network, muxgate, scenario.limits(), &folder)?;
        let (clock, own, machine) = (
            Instant::now(),
            self.own_time_in_programs(&running)?,
            usage::machine_in_programs()?,
        );
        let before = usage::cpu(&running.pids());
        let run = Run {
            bench: self,
            running: &running,
            times,
            connections,
        };
        let outcome = run.ask(scenario)?;
        let used = usage::cpu(&running.pids())
            .total()
            .saturating_sub(before.total());
        let own = self.own_time_in_programs(&running)?.saturating_sub(own);
        let foreign = usage::machine_in_programs()?
            .saturating_sub(machine)
            .saturating_sub(own);
        let processors = thread::available_parallelism().map_or(1, usize::from) as f64;
        let mut figures = outcome.figures;
        figures.extend(self.cost(&mut running, outcome.bytes, used)?);
        Ok(Measured {
            figures,
            foreign_share: foreign.as_secs_f64() / (clock.elapsed().as_secs_f64() * processors),
            basis: Basis {
                rtt_ms: self.rtt_ms,
                sysctls: self.network.sysctls(system == System::Direct)?,
            },
        })
    }

    /// Where a system's files and logs are.
    pub(crate) fn folder(&self, system: System) -> PathBuf {
        self.logs.join(system.name())
    }

    /// What the gateways have cost: CPU time for `bytes` of payload, peak memory.
    ///
    /// A peer that has ended with its last client has no such figures; one of ours must not.
    fn cost(&self, running: &mut Running, bytes: u64, used: Duration) -> Result<Figures> {
        let mut cost = Figures::new();
        if running.system == System::Direct {
            return Ok(cost);
        }
        if running.has_ended() {
            ensure!(running.system.is_peer(), "a gateway has ended");
            return Ok(cost);
        }
        if bytes > 0 {
            let gigabytes = bytes as f64 / 1e9;
            cost.insert(Metric::CpuSPerGb, used.as_secs_f64() / gigabytes);
        }
        for (metric, place) in [
            (Metric::EntryRssMib, Place::Entry),
            (Metric::ExitRssMib, Place::Exit),
        ] {
            let peak = usage::peak_rss_bytes(&running.pids_at(place));
            cost.insert(metric, peak as f64 / 1024.0 / 1024.0);
        }
        Ok(cost)
    }

    /// CPU time that what is measured, and what measures it, have spent in programs.
    fn own_time_in_programs(&self, running: &Running) -> Result<Duration> {
        let mut alive = running.pids();
        alive.extend(self.server.pids());
        alive.extend(self.network.delay_pids());
        let mut time = usage::cpu(&alive).user;
        // What has ended and was waited for: the clients.
        for who in [UsageWho::RUSAGE_SELF, UsageWho::RUSAGE_CHILDREN] {
            let user = getrusage(who)?.user_time();
            time += Duration::from_micros((user.tv_sec() * 1_000_000 + user.tv_usec()).try_into()?);
        }
        Ok(time)
    }
}

/// The median of [`PROBES`] exchanges of a byte with the server of the load.
fn rtt_ms(to: SocketAddr) -> Result<f64> {
    let mut stream = TcpStream::connect(to)?;
    stream.set_nodelay(true)?;
    stream.write_all(&[Request::Echo as u8])?;
    let mut exchange = || {
        let start = Instant::now();
        stream.write_all(b"x")?;
        stream.read_exact(&mut [0])?;
        Ok(start.elapsed().as_secs_f64() * 1e3)
    };
    let times: Vec<f64> = (0..PROBES).map(|_| exchange()).collect::<Result<_>>()?;
    Ok(spread(&times).context("no probe was made")?.median)
}
