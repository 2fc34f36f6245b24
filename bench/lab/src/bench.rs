//! The measurement of a system in a network.
//!
//! A run lasts from the start of the system to its end. Each run has new processes, so that earlier
//! runs do not affect it, and no other system runs at the same time. In addition to the figures of
//! the scenario, the run records the CPU time per byte and the peak memory of both gateways.

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
use muxtunnel_gateway_config::status::Splice;
use nix::sys::resource::{UsageWho, getrusage};

use crate::{
    load::wire::Request,
    metric::{Figures, Metric},
    network::Network,
    process::Process,
    scenario::{Run, Scenario, Times, load},
    system::{Muxgate, Running, Service, System},
    topology::{Place, Topology},
    usage,
};

/// The programs of the lab.
#[derive(Debug)]
pub(crate) struct Programs {
    pub(crate) muxgate: PathBuf,
    pub(crate) muxwan: PathBuf,
    pub(crate) iperf2: PathBuf,
    pub(crate) iperf3: PathBuf,
}

/// A network with the server of the load, in which scenarios run.
#[derive(Debug)]
pub(crate) struct Bench<'a> {
    pub(crate) network: Network,
    pub(crate) programs: &'a Programs,
    logs: &'a Path,
    server: Process,
    rtt_ms: f64,
}

/// The result of one run.
#[derive(Debug, Clone)]
pub(crate) struct Measured {
    pub(crate) figures: Figures,
    /// The share of all processors that other programs used during the run, 0 to 1.
    pub(crate) foreign_share: f64,
    pub(crate) basis: Basis,
}

/// Where the gateways run.
const GATEWAYS: [Place; 2] = [Place::Entry, Place::Exit];

/// The conditions under which a figure was measured.
#[derive(Debug, Clone, Default)]
pub(crate) struct Basis {
    /// Median time of [`PROBES`] exchanges on the idle direct path.
    pub(crate) rtt_ms: f64,
    /// Effective sysctls at the near end of the delayed link.
    pub(crate) sysctls: BTreeMap<String, String>,
}

impl<'a> Bench<'a> {
    /// Builds the network and starts the server of the load in it.
    ///
    /// # Errors
    /// If a program or right is missing, or a system call fails.
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
            rtt_ms: rtt_ms.context("cannot probe the direct path")?,
            network,
            programs,
            logs,
            server,
        })
    }

    /// Starts the system, runs the scenario once, and ends the system. `muxgate`: the build of
    /// muxgate, for systems with gateways.
    ///
    /// # Errors
    /// `not found` if a peer is not installed, otherwise the failure.
    pub(crate) fn measure(
        &self,
        muxgate: Muxgate<'_>,
        scenario: Scenario,
        system: System,
        connections: u32,
        times: Times,
    ) -> Result<Measured> {
        let folder = self.folder(system);
        fs::create_dir_all(&folder)
            .with_context(|| format!("cannot create {}", folder.display()))?;
        let mut running = system.start(&self.network, muxgate, scenario.limits(), &folder)?;
        let (clock, own, machine) = (
            Instant::now(),
            self.own_time_in_programs(&running)?,
            usage::machine_in_programs()?,
        );
        let before = usage::cpu(&running.pids());
        let queued = GATEWAYS.map(|place| usage::queued(&running.pids_at(place)));
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
        let ran = clock.elapsed();
        let own = self.own_time_in_programs(&running)?.saturating_sub(own);
        let foreign = usage::machine_in_programs()?
            .saturating_sub(machine)
            .saturating_sub(own);
        let processors = thread::available_parallelism().map_or(1, usize::from) as f64;
        let mut figures = outcome.figures;
        if scenario == Scenario::BulkIperf2
            && let Some(spliced) = running.spliced(&self.network, muxgate)?
        {
            figures.extend(splicing(&spliced, outcome.bytes as f64));
        }
        figures.extend(self.cost(&mut running, outcome.bytes, used)?);
        if system != System::Direct {
            let metrics = [Metric::EntryQueuedPercent, Metric::ExitQueuedPercent];
            for ((place, before), metric) in GATEWAYS.into_iter().zip(queued).zip(metrics) {
                let queued = usage::queued(&running.pids_at(place)).saturating_sub(before);
                figures.insert(metric, 100.0 * queued.div_duration_f64(ran));
            }
        }
        Ok(Measured {
            figures,
            foreign_share: foreign.as_secs_f64() / (clock.elapsed().as_secs_f64() * processors),
            basis: Basis {
                rtt_ms: self.rtt_ms,
                sysctls: self.network.sysctls(system == System::Direct)?,
            },
        })
    }

    /// The folder with a system's files and logs.
    pub(crate) fn folder(&self, system: System) -> PathBuf {
        self.logs.join(system.name())
    }

    /// The cost of the gateways: CPU time for `bytes` of payload, and peak memory.
    ///
    /// A peer may end together with its last client, and then has no such figures. If a gateway of
    /// muxgate has ended, the run fails.
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

    /// User-space CPU time of the measured system and of the lab itself. This time does not count
    /// as work of other programs.
    fn own_time_in_programs(&self, running: &Running) -> Result<Duration> {
        let mut alive = running.pids();
        alive.extend(self.server.pids());
        alive.extend(self.network.delay_pids());
        let mut time = usage::cpu(&alive).user;
        // RUSAGE_CHILDREN covers the clients, which have ended.
        for who in [UsageWho::RUSAGE_SELF, UsageWho::RUSAGE_CHILDREN] {
            let user = getrusage(who)?.user_time();
            time += Duration::from_micros((user.tv_sec() * 1_000_000 + user.tv_usec()).try_into()?);
        }
        Ok(time)
    }
}

/// The parts of `bytes` of payload, sent by clients, that entry and exit spliced or copied.
fn splicing([entry, exit]: &[Splice; 2], bytes: f64) -> Figures {
    let percent = |part: u64| 100.0 * part as f64 / bytes;
    let lacking = (entry.pipes_lacking + exit.pipes_lacking) as f64;
    Figures::from([
        (Metric::EntrySplicedPercent, percent(entry.bytes_sent)),
        (Metric::ExitSplicedPercent, percent(exit.bytes_received)),
        (Metric::ExitFellBackPercent, percent(exit.bytes_fallen_back)),
        (Metric::PipesLackingPerGb, lacking / (bytes / 1e9)),
    ])
}

/// The median time of [`PROBES`] exchanges of one byte with the server of the load.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_spliced_is_a_part_of_the_received_payload() {
        let entry = Splice {
            bytes_sent: 1_500_000_000,
            pipes_lacking: 3,
            ..Splice::default()
        };
        let exit = Splice {
            bytes_received: 1_900_000_000,
            bytes_fallen_back: 100_000_000,
            pipes_lacking: 1,
            ..Splice::default()
        };
        let expected = [
            (Metric::EntrySplicedPercent, 75.0),
            (Metric::ExitSplicedPercent, 95.0),
            (Metric::ExitFellBackPercent, 5.0),
            (Metric::PipesLackingPerGb, 2.0),
        ];
        assert_eq!(splicing(&[entry, exit], 2e9), Figures::from(expected));
    }
}
