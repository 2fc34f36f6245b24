//! The targets as data. There are targets for JMUX, and for three variants of the native protocol:
//! with its defaults, with four carriers, and with streams that end with their carrier.
//!
//! A target that names no congestion control applies to the usual one.

use super::{
    Bound::{self, AtLeast, AtMost, Below},
    Measure::{self, Added, BeyondRtt, Most, OfLower, Ratio, Value},
    Target,
};
use crate::{
    metric::Metric,
    plan::USUAL,
    scenario::{SMALL_RECEIVE_BYTES, SMALL_RETAIN_BYTES, STALLED_RECEIVE_BYTES, Scenario},
    system::System,
    topology::Topology,
};

use System::{
    Direct, EnvoyH2c, EnvoyHttp2, FrpStcp, FrpStcpEncrypted, FrpTls, GoH2c, GoHttp2, Haproxy,
    Jetsocat, MuxgateCopy, MuxgateDefault, MuxgateH2c, MuxgateHbone, MuxgateHttp, MuxgateHttp2,
    MuxgateHttp2Reverse, MuxgateJmux, MuxgateKcp, MuxgateKeys, MuxgateKeysReverse,
    MuxgateKeysSocks5, MuxgateKeysVisitor, MuxgateNative, MuxgateNativeX4, MuxgateNoResume,
    MuxgateQuic, MuxgateQuicBbr, MuxgateQuicReverse, MuxgateSocks5, MuxgateSsh, MuxgateSshReverse,
    MuxgateTls, MuxgateTlsReverse, MuxgateTlsSocks5, MuxgateTun, MuxgateTunNoOffload,
    MuxgateTunQuic, MuxgateTunTls, Openssh, OpensshDynamic, OpensshReverse, Quinn, RatholeNoise,
    RelayCopy, RelaySplice, WireguardGoCurrent,
};
use Topology::{Loopback, Veth, Wan, Wan20, Wan20Tuned, WanLoss1, WanLoss5, WanTuned};

/// Memory of a gateway in addition to its buffers, MiB.
const BESIDE_BUFFERS_MIB: u64 = 16;

/// Greatest time from a cut until all carriers are up and every stream has received bytes: one
/// second for the reconnect, and one more second.
const RECOVERED_MS: f64 = 2_000.0;

/// All targets.
pub(super) fn all() -> Vec<Target> {
    let mut all = Vec::new();
    all.extend(bulk_jmux());
    all.extend(bulk_native());
    all.extend(bulk_no_resume());
    all.extend(bulk_over_the_wan());
    all.extend(bulk_encrypted());
    all.extend(bulk_by_other_ways());
    all.extend(bulk_by_protocols());
    all.extend(bulk_over_udp());
    all.extend(bulk_of_packets());
    all.extend(packets_in_order_and_in_time());
    for system in [MuxgateJmux, MuxgateNative] {
        all.extend(beside_rates(system));
        all.extend(memory(system));
    }
    for system in [MuxgateNative, MuxgateDefault] {
        all.extend(beside_bulk(system));
    }
    for system in [MuxgateNative, MuxgateNativeX4] {
        all.extend(both_ways_over_the_wan(system));
        all.extend(outliving_carriers(system));
        all.extend(complete_in_spite_of_loss(system));
    }
    all
}

/// A target: a rate of at least `least` times the rate of another system.
fn rate(system: System, topology: Topology, connections: u32, to: System, least: f64) -> Target {
    Target {
        topology,
        congestion_control: USUAL,
        scenario: Scenario::BulkIperf2,
        connections: Some(connections),
        system,
        measure: Ratio(Metric::MbitS, to),
        bound: AtLeast(least),
    }
}

/// Rates with one connection and with ten.
fn rates(system: System, topology: Topology, to: System, least: [f64; 2]) -> [Target; 2] {
    let [one, ten] = least;
    [
        rate(system, topology, 1, to, one),
        rate(system, topology, 10, to, ten),
    ]
}

/// CPU time per byte on loopback, with one connection and with ten, relative to a jetsocat pair.
fn cpu(system: System, most: f64) -> [Target; 2] {
    rates(system, Loopback, Jetsocat, [0.0; 2]).map(|target| Target {
        measure: Ratio(Metric::CpuSPerGb, Jetsocat),
        bound: AtMost(most),
        ..target
    })
}

fn bulk_jmux() -> Vec<Target> {
    let rates = |topology, to, least| rates(MuxgateJmux, topology, to, least);
    [
        rates(Loopback, Direct, [0.60, 0.40]),
        rates(Loopback, Jetsocat, [3.0, 2.5]),
        rates(Veth, Jetsocat, [4.0, 4.0]),
    ]
    .concat()
}

/// The native protocol with its defaults: streams survive the loss of their carrier, so the gateway
/// retains their sent bytes until the peer has acknowledged them.
fn bulk_native() -> Vec<Target> {
    let rates = |topology, to, least| rates(MuxgateNative, topology, to, least);
    [
        rates(Loopback, Direct, [0.65, 0.40]),
        rates(Loopback, Jetsocat, [3.0, 2.5]),
        cpu(MuxgateNative, 0.35),
        rates(Veth, Jetsocat, [4.5, 4.0]),
        rates(Veth, RelayCopy, [1.0, 0.75]),
    ]
    .concat()
}

/// The native protocol without `resume`: streams end with their carrier, so the gateway retains
/// nothing.
fn bulk_no_resume() -> Vec<Target> {
    let rates = |topology, to, least| rates(MuxgateNoResume, topology, to, least);
    let on_bbr = rates(Loopback, Jetsocat, [2.5, 3.5]).map(|target| Target {
        congestion_control: "bbr",
        ..target
    });
    [
        &rates(Loopback, Direct, [0.80, 0.80])[..],
        &rates(Loopback, Jetsocat, [3.5, 4.5]),
        &[rate(MuxgateNoResume, Loopback, 10, Haproxy, 2.5)],
        &cpu(MuxgateNoResume, 0.15),
        &on_bbr,
        &rates(Veth, Direct, [0.80, 0.60]),
        &rates(Veth, Jetsocat, [5.0, 9.0]),
        &rates(Veth, RelaySplice, [0.90, 0.90]),
    ]
    .concat()
}

/// One stream over the WAN, relative to one direct connection.
fn bulk_over_the_wan() -> Vec<Target> {
    let tuned = rate(MuxgateNative, WanTuned, 1, Direct, 1.0);
    let lossy = |congestion_control| Target {
        congestion_control,
        ..rate(MuxgateNativeX4, WanLoss1, 1, Direct, 2.0)
    };
    vec![
        rate(MuxgateJmux, Wan, 1, Direct, 0.95),
        rate(MuxgateJmux, WanTuned, 1, Direct, 0.90),
        rate(MuxgateNative, Wan, 1, Direct, 0.95),
        // The target is the lower of two rates: 4 Gbit/s, and 90 % of the direct path's rate.
        Target {
            measure: OfLower(Metric::MbitS, 4_000.0, 0.90, Direct),
            ..tuned
        },
        rate(MuxgateNativeX4, Wan, 1, Direct, 3.5),
        lossy(USUAL),
        lossy("bbr"),
    ]
}

/// Targets: a rate of at least `least` times the rate of another system, with one connection and
/// with ten.
fn ways(system: System, to: System, least: f64) -> [Target; 2] {
    rates(system, Loopback, to, [least; 2]).map(|target| Target {
        scenario: Scenario::BulkWays,
        ..target
    })
}

/// Other protocols, relative to the native protocol with copying or encryption, and to the best
/// other program with that protocol.
fn bulk_by_protocols() -> Vec<Target> {
    let protocols = |system, to, least| {
        rates(system, Loopback, to, [least; 2]).map(|target| Target {
            scenario: Scenario::BulkProtocols,
            ..target
        })
    };
    [
        protocols(MuxgateH2c, MuxgateCopy, 0.60),
        protocols(MuxgateH2c, EnvoyH2c, 1.5),
        protocols(MuxgateH2c, GoH2c, 1.5),
        protocols(MuxgateHttp2, MuxgateTls, 0.60),
        protocols(MuxgateHttp2, EnvoyHttp2, 1.5),
        protocols(MuxgateHttp2, GoHttp2, 1.5),
        protocols(MuxgateHttp2Reverse, MuxgateHttp2, 0.90),
        protocols(MuxgateHbone, MuxgateTls, 0.60),
        protocols(MuxgateHbone, EnvoyHttp2, 1.5),
        protocols(MuxgateSsh, Openssh, 0.70),
        protocols(MuxgateSshReverse, MuxgateSsh, 0.90),
        [MuxgateH2c, MuxgateHttp2].map(added_by_a_protocol),
    ]
    .concat()
}

/// Target of the time that a protocol adds to the median exchange of a direct connection.
fn added_by_a_protocol(system: System) -> Target {
    let added = Added(Metric::P50Us, Direct);
    on_loopback(system, Scenario::PingPong, Some(0), added, AtMost(150.0))
}

/// Bulk over UDP. Targets are relative to bare quinn on a path with packets of 1,500 bytes, and
/// relative to one carrier over TCP on a path that loses packets.
fn bulk_over_udp() -> Vec<Target> {
    let udp = |system, topology, to, least| Target {
        scenario: Scenario::BulkUdp,
        ..rate(system, topology, 1, to, least)
    };
    vec![
        udp(MuxgateQuic, Veth, Quinn, 0.65),
        udp(MuxgateQuicReverse, Veth, Quinn, 0.65),
        udp(MuxgateQuicReverse, Veth, MuxgateQuic, 0.9),
        udp(MuxgateQuicBbr, WanLoss1, MuxgateNative, 3.0),
        Target {
            measure: Value(Metric::MbitS),
            ..udp(MuxgateKcp, Veth, Direct, 900.0)
        },
    ]
}

/// TCP through the TUN interfaces.
fn bulk_of_packets() -> Vec<Target> {
    let packets = |system, topology, connections, measure, least| Target {
        scenario: Scenario::BulkPackets,
        measure,
        ..rate(system, topology, connections, Direct, least)
    };
    let of = |other| Ratio(Metric::MbitS, other);
    let rate = Value(Metric::MbitS);
    // The target is the lower of two rates: 14 Gbit/s, and 40 % of the direct path's rate.
    let of_direct = OfLower(Metric::MbitS, 14_000.0, 0.4, Direct);
    vec![
        packets(MuxgateTun, Veth, 1, of_direct, 1.0),
        packets(MuxgateTun, Veth, 1, of(MuxgateTunNoOffload), 4.0),
        packets(MuxgateTun, Veth, 1, of(WireguardGoCurrent), 2.0),
        packets(MuxgateTunTls, Veth, 1, of(MuxgateTun), 0.5),
        packets(MuxgateTunQuic, Veth, 1, of(MuxgateQuic), 0.8),
        packets(MuxgateTun, Veth, 10, rate, 12_000.0),
        packets(MuxgateTun, Wan20, 10, rate, 1_150.0),
        packets(MuxgateTun, Wan20Tuned, 1, rate, 1_150.0),
    ]
}

/// Packets that arrive out of order or are lost, and the time of an exchange next to one bulk
/// connection.
fn packets_in_order_and_in_time() -> Vec<Target> {
    let target = |topology, scenario, connections, measure, bound| Target {
        topology,
        congestion_control: USUAL,
        scenario,
        connections: Some(connections),
        system: MuxgateTun,
        measure,
        bound,
    };
    let in_order = (Value(Metric::OutOfOrder), Below(1.0));
    let bulk = |topology, connections| {
        let (measure, bound) = in_order;
        target(topology, Scenario::BulkPackets, connections, measure, bound)
    };
    let of_each = |topology| {
        let udp = |(measure, bound)| target(topology, Scenario::UdpPackets, 1, measure, bound);
        let ping = (BeyondRtt(Metric::P99Us), AtMost(5_000.0));
        [
            udp(in_order),
            udp((Value(Metric::LostPercent), Below(0.1))),
            target(topology, Scenario::PingPackets, 1, ping.0, ping.1),
        ]
    };
    [
        &[bulk(Veth, 1), bulk(Veth, 10), bulk(Wan20, 10)][..],
        &of_each(Veth),
        &of_each(Wan20),
    ]
    .concat()
}

/// Encrypted bulk, relative to muxgate with copying and without encryption, and to peers with
/// encryption. Each `ssh` system is compared with the same kind of forward.
fn bulk_encrypted() -> Vec<Target> {
    let all = [
        (MuxgateTls, Openssh),
        (MuxgateTlsSocks5, OpensshDynamic),
        (MuxgateTlsReverse, OpensshReverse),
        (MuxgateKeys, Openssh),
        (MuxgateKeysSocks5, OpensshDynamic),
        (MuxgateKeysReverse, OpensshReverse),
    ];
    let of = |(system, ssh)| {
        [
            ways(system, MuxgateCopy, 0.60),
            ways(system, ssh, 2.0),
            ways(system, RatholeNoise, 2.0),
            ways(system, FrpTls, 2.0),
        ]
        .concat()
    };
    all.into_iter().flat_map(of).collect()
}

/// Proxies relative to a plain forward, in bulk and in exchanges. Visitors are relative to the
/// visitors of frp.
fn bulk_by_other_ways() -> Vec<Target> {
    let proxy = |system| {
        let ping_pong = on_loopback(
            system,
            Scenario::PingPong,
            Some(0),
            Ratio(Metric::P50Us, MuxgateNative),
            AtMost(1.10),
        );
        [&ways(system, MuxgateNative, 0.97)[..], &[ping_pong]].concat()
    };
    [
        proxy(MuxgateSocks5),
        proxy(MuxgateHttp),
        ways(MuxgateKeysVisitor, FrpStcpEncrypted, 1.5).to_vec(),
        ways(MuxgateKeysVisitor, FrpStcp, 1.5).to_vec(),
    ]
    .concat()
}

fn on_loopback(
    system: System,
    scenario: Scenario,
    connections: Option<u32>,
    measure: Measure,
    bound: Bound,
) -> Target {
    Target {
        topology: Loopback,
        congestion_control: USUAL,
        scenario,
        connections,
        system,
        measure,
        bound,
    }
}

/// Latency, opens, and the effects of streams on one another.
fn beside_rates(system: System) -> Vec<Target> {
    let all = [
        (
            Scenario::PingPong,
            Some(0),
            Added(Metric::P50Us, Direct),
            AtMost(100.0),
        ),
        (
            Scenario::PingPong,
            Some(1),
            Value(Metric::P99Us),
            AtMost(8_000.0),
        ),
        (
            Scenario::Opens,
            None,
            OfLower(Metric::OpensS, 10_000.0, 0.5, Direct),
            AtLeast(1.0),
        ),
        (
            Scenario::StalledReader,
            None,
            Value(Metric::OthersPercent),
            AtLeast(95.0),
        ),
        (Scenario::Fairness, None, Value(Metric::Jain), AtLeast(0.98)),
        (
            Scenario::FullDuplex,
            None,
            Value(Metric::DuplexPercent),
            AtLeast(90.0),
        ),
        (
            Scenario::FullDuplex,
            None,
            Most(Metric::StalledSeconds),
            AtMost(0.0),
        ),
    ];
    let target = |(scenario, connections, measure, bound)| {
        on_loopback(system, scenario, connections, measure, bound)
    };
    all.into_iter().map(target).collect()
}

/// Latency next to bulk, and the remaining rate of the bulk.
fn beside_bulk(system: System) -> Vec<Target> {
    let ping_pong =
        |bulk, measure, bound| on_loopback(system, Scenario::PingPong, Some(bulk), measure, bound);
    let keystrokes =
        |measure, bound| on_loopback(system, Scenario::Keystrokes, None, measure, bound);
    vec![
        ping_pong(1, Added(Metric::P99Us, Direct), AtMost(1_000.0)),
        ping_pong(1, Added(Metric::P99Us, RelayCopy), AtMost(500.0)),
        ping_pong(1, Value(Metric::BulkPercent), AtLeast(85.0)),
        ping_pong(10, Added(Metric::P99Us, Direct), AtMost(4_000.0)),
        keystrokes(Added(Metric::P99Us, RelayCopy), AtMost(500.0)),
        keystrokes(Value(Metric::BulkPercent), AtLeast(85.0)),
    ]
}

/// Peak memory of each gateway. JMUX retains no payload.
fn memory(system: System) -> Vec<Target> {
    let retain = match system {
        MuxgateJmux => 0,
        _ => SMALL_RETAIN_BYTES,
    };
    let stalled = (STALLED_RECEIVE_BYTES + retain) >> 20;
    [
        on_loopback_each(system, Scenario::BulkIperf2, Some(10), 32),
        on_loopback_each(system, Scenario::IdleStreams, None, 64),
        on_loopback_each(
            system,
            Scenario::StalledStreams,
            None,
            stalled + BESIDE_BUFFERS_MIB,
        ),
    ]
    .concat()
}

/// `mib`: greatest peak memory of each gateway, in every round.
fn on_loopback_each(
    system: System,
    scenario: Scenario,
    connections: Option<u32>,
    mib: u64,
) -> [Target; 2] {
    [Metric::EntryRssMib, Metric::ExitRssMib].map(|metric| {
        let bound = AtMost(mib as f64);
        on_loopback(system, scenario, connections, Most(metric), bound)
    })
}

/// Both directions together reach nearly twice the rate of one direction, because windows, not
/// processors, limit the rate of a long path.
fn both_ways_over_the_wan(system: System) -> Vec<Target> {
    let target = |topology| Target {
        topology,
        ..on_loopback(
            system,
            Scenario::FullDuplex,
            None,
            Value(Metric::DuplexPercent),
            AtLeast(180.0),
        )
    };
    vec![target(Wan), target(WanTuned)]
}

/// Cuts of carriers: no stream is lost, every byte is correct, and no stall is longer than a
/// second. With only one carrier, the time of the reconnect is subtracted from the stall. Every
/// stream continues within [`RECOVERED_MS`].
fn outliving_carriers(system: System) -> Vec<Target> {
    let stall = match system.resumed_carriers() {
        Some(1) => Metric::BeyondReconnectMs,
        _ => Metric::StallMs,
    };
    let small_mib = ((SMALL_RECEIVE_BYTES + SMALL_RETAIN_BYTES) >> 20) + BESIDE_BUFFERS_MIB;
    let target = |scenario, metric, most| Target {
        topology: Veth,
        ..on_loopback(system, scenario, None, Most(metric), AtMost(most))
    };
    let mut all = Vec::new();
    for scenario in [Scenario::CarrierCuts, Scenario::CarrierCutsSmall] {
        all.extend([
            target(scenario, Metric::LostStreams, 0.0),
            target(scenario, Metric::WrongBytes, 0.0),
            target(scenario, stall, 1_000.0),
            target(scenario, Metric::RecoveredMs, RECOVERED_MS),
        ]);
    }
    let small = |metric| target(Scenario::CarrierCutsSmall, metric, small_mib as f64);
    all.extend([Metric::EntryRssMib, Metric::ExitRssMib].map(small));
    all
}

/// Streams of a fixed size on a path that loses one frame in twenty.
fn complete_in_spite_of_loss(system: System) -> Vec<Target> {
    let none = |metric, congestion_control| Target {
        topology: WanLoss5,
        congestion_control,
        ..on_loopback(
            system,
            Scenario::FixedStreams,
            None,
            Most(metric),
            AtMost(0.0),
        )
    };
    let each =
        |control| [Metric::LostStreams, Metric::WrongBytes].map(|metric| none(metric, control));
    [each(USUAL), each("bbr")].concat()
}
