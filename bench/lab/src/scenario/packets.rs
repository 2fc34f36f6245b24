//! The scenarios of systems that carry IP packets: TCP by iperf 2, exchanges during bulk, and UDP
//! by iperf 3.
//!
//! The counts of lost datagrams and of TCP segments out of order come from the kernel, so iperf
//! itself does not affect them. The count of datagrams out of order comes from iperf 3.

use std::{process::Stdio, thread, time::Duration};

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use super::{
    Outcome, Run,
    iperf3::{PATIENCE, parse, words},
};
use crate::{
    counters::Counters,
    metric::{Figures, Metric},
    process::{self, Process, wait_until},
    system::{Service, System},
    topology::Place,
};

/// Payload of a TCP segment with an MTU of 1,500 bytes: 1,500 minus the headers of IPv4 (20) and
/// TCP (20), and minus the TCP timestamps (12).
const SEGMENT_BYTES: f64 = 1448.0;
/// Payload of each datagram.
const DATAGRAM_BYTES: u32 = 1400;
/// Waiting time at the end, for datagrams that are still in flight.
const ON_THE_WAY: Duration = Duration::from_millis(500);
/// The unit of arrivals out of order: per 100,000 arrivals.
const OF: f64 = 1e5;

/// The fields of the receiver's JSON that the lab reads.
#[derive(Debug, Deserialize)]
struct Received {
    end: End,
}

#[derive(Debug, Deserialize)]
struct End {
    streams: Vec<Stream>,
}

#[derive(Debug, Deserialize)]
struct Stream {
    udp: Udp,
}

#[derive(Debug, Deserialize)]
struct Udp {
    out_of_order: u64,
}

impl Run<'_> {
    /// Bulk by iperf 2, with the segments that TCP had to reorder.
    pub(super) fn bulk_packets(&self) -> Result<Outcome> {
        let queued = || self.counters(Place::Server)?.get("TcpExt", "TCPOFOQueue");
        let before = queued()?;
        let mut outcome = self.bulk_iperf2()?;
        let segments = outcome.bytes as f64 / SEGMENT_BYTES;
        let out_of_order = OF * (queued()? - before) as f64 / segments;
        outcome.figures.insert(Metric::OutOfOrder, out_of_order);
        Ok(outcome)
    }

    /// The ping-pong, after the windows of the concurrent bulk have grown.
    pub(super) fn ping_packets(&self) -> Result<Outcome> {
        self.ping_pong_after(self.window().warm_up_s)
    }

    /// Sends datagrams at 1 Gbit/s.
    pub(super) fn udp_packets(&self) -> Result<Outcome> {
        let system = self.running.system;
        ensure!(
            system == System::Direct || system.carries_packets(),
            "this system does not carry UDP"
        );
        let before = UdpCounters::read(self)?;
        let (sent_by, received) = self.iperf3_udp()?;
        thread::sleep(ON_THE_WAY);
        let mut figures = UdpCounters::read(self)?.figures_since(&before)?;
        let sum = parse(&sent_by)?;
        figures.insert(Metric::MbitS, sum.bits_per_second / 1e6);
        let datagrams = sum.bytes as f64 / f64::from(DATAGRAM_BYTES);
        let out_of_order = OF * parse_out_of_order(&received)? as f64 / datagrams;
        figures.insert(Metric::OutOfOrder, out_of_order);
        Ok(Outcome {
            bytes: sum.bytes,
            figures,
        })
    }

    /// Runs iperf 3 with UDP. Returns the output of the client and the output of the server.
    fn iperf3_udp(&self) -> Result<(String, String)> {
        let network = &self.bench.network;
        let port = Service::Iperf3.port();
        let iperf =
            process::find(&self.bench.programs.iperf3).context("iperf3 (Debian: iperf3)")?;
        let start = |place, line: &str| {
            let mut command = process::command(&iperf, &words(line))?;
            command.stdout(Stdio::piped()).stderr(Stdio::piped());
            Process::spawn(network.namespace(place), &mut command)
        };
        let server = start(Place::Server, &format!("-s -1 -4 -J -p {port}"))?;
        wait_until(PATIENCE, "the iperf3 server", || {
            network.listens(Place::Server, port)
        })?;
        let to = (self.running.system).address(Service::Iperf3, &network.topology.addresses());
        let seconds = self.times.seconds;
        let line = format!(
            "-c {} -p {port} -u -b 1G -l {DATAGRAM_BYTES} -t {seconds} -J",
            to.ip()
        );
        let patience = PATIENCE + Duration::from_secs(seconds.into());
        let client = start(Place::Client, &line)?.finish(patience);
        let client = client.context("the iperf3 client")?;
        let server = server.finish(PATIENCE).context("the iperf3 server")?;
        Ok((client.output, server.output))
    }

    fn counters(&self, place: Place) -> Result<Counters> {
        Counters::of(self.bench.network.namespace(place))
    }
}

/// Datagram counters of the client's and the server's namespace.
#[derive(Debug, Clone, Copy)]
struct UdpCounters {
    sent: u64,
    /// Datagrams that arrived, including datagrams for which the socket had no room.
    arrived: u64,
    no_room: u64,
}

impl UdpCounters {
    fn read(run: &Run<'_>) -> Result<Self> {
        let [client, server] = [Place::Client, Place::Server].map(|place| run.counters(place));
        let (client, server) = (client?, server?);
        let at_server = |name| server.get("Udp", name);
        let no_room = at_server("RcvbufErrors")?;
        Ok(Self {
            sent: client.get("Udp", "OutDatagrams")?,
            arrived: at_server("InDatagrams")? + at_server("NoPorts")? + no_room,
            no_room,
        })
    }

    fn figures_since(self, before: &Self) -> Result<Figures> {
        let sent = self.sent - before.sent;
        ensure!(sent > 0, "no datagram was sent");
        let lost = sent.saturating_sub(self.arrived - before.arrived);
        let percent = |count: u64| 100.0 * count as f64 / sent as f64;
        Ok(Figures::from([
            (Metric::LostPercent, percent(lost)),
            (
                Metric::NoRoomPercent,
                percent(self.no_room - before.no_room),
            ),
        ]))
    }
}

/// `output`: the receiver's JSON.
fn parse_out_of_order(output: &str) -> Result<u64> {
    let received: Received =
        serde_json::from_str(output).context("cannot parse the JSON of iperf3's server")?;
    Ok(received
        .end
        .streams
        .iter()
        .map(|stream| stream.udp.out_of_order)
        .sum())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn datagrams_that_arrived_and_found_no_room_are_not_lost() {
        let before = UdpCounters {
            sent: 500,
            arrived: 400,
            no_room: 10,
        };
        let after = UdpCounters {
            sent: 10_500,
            arrived: 10_390,
            no_room: 60,
        };
        let figures = after.figures_since(&before).unwrap();
        assert_eq!(figures[&Metric::LostPercent], 0.1);
        assert_eq!(figures[&Metric::NoRoomPercent], 0.5);
        assert!(before.figures_since(&before).is_err());
    }

    #[test]
    fn what_arrived_out_of_order_is_read_of_all_streams() {
        let output = r#"{"start":{},"end":{"streams":[{"udp":{"packets":9,"out_of_order":2}},
            {"udp":{"packets":9,"out_of_order":3}}],"sum":{}}}"#;
        assert_eq!(parse_out_of_order(output).unwrap(), 5);
        assert!(parse_out_of_order(r#"{"error":"no"}"#).is_err());
    }
}
