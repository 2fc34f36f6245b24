use super::*;
use crate::{
    bench::{Basis, Measured},
    metric::Figures,
    plan::{Selection, USUAL, environments},
    report::{Key, tests::conditions},
};

/// The figures of a system in one round.
type Round = (Scenario, System, Figures);

/// A report of these rounds. Each round has `connections` connections.
fn report(topology: Topology, control: &str, connections: u32, rounds: &[Round]) -> Report {
    let mut report = Report {
        conditions: conditions(1),
        rows: Vec::new(),
    };
    for (scenario, system, figures) in rounds {
        let key = Key {
            topology,
            congestion_control: control.to_owned(),
            scenario: *scenario,
            connections,
            system: *system,
        };
        report.row_mut(key).add(Measured {
            figures: figures.clone(),
            foreign_share: 0.0,
            basis: Basis::default(),
        });
    }
    report
}

fn texts(report: &Report) -> Vec<String> {
    let verdicts = verdicts(report).into_iter();
    verdicts.map(|verdict| verdict.text).collect()
}

/// The only verdict of the report.
fn only(report: &Report) -> String {
    let [text] = &texts(report)[..] else {
        panic!("expected one verdict: {:?}", texts(report));
    };
    text.clone()
}

fn bulk(system: System, mbit_s: f64) -> Round {
    let figures = Figures::from([(Metric::MbitS, mbit_s)]);
    (Scenario::BulkIperf2, system, figures)
}

#[test]
fn encryption_is_set_against_copying_and_against_the_same_way_of_ssh() {
    let bulk = |system, mbit_s| (Scenario::BulkWays, system, bulk(system, mbit_s).2);
    let rounds = [
        bulk(System::MuxgateCopy, 10.0),
        bulk(System::MuxgateTlsReverse, 7.0),
        bulk(System::Openssh, 1.0),
        bulk(System::OpensshReverse, 4.0),
    ];
    let name = "muxgate-tls-reverse, loopback, cubic, bulk-ways x 1, Gbit/s of";
    assert_eq!(
        texts(&report(Topology::Loopback, USUAL, 1, &rounds)),
        [
            format!("{name} muxgate-copy: met (0.7, wanted >= 0.6)"),
            format!("{name} openssh-reverse: MISSED (1.75, wanted >= 2)"),
        ]
    );
}

#[test]
fn where_frames_are_lost_four_carriers_are_set_against_direct_with_the_same_congestion_control() {
    for control in [USUAL, "bbr"] {
        let rounds = [
            bulk(System::Direct, 2.0),
            bulk(System::MuxgateNativeX4, 3.9),
        ];
        assert_eq!(
            only(&report(Topology::WanLoss1, control, 1, &rounds)),
            format!(
                "muxgate-native-x4, wan-loss-1, {control}, bulk-iperf2 x 1, Gbit/s of direct: \
                 MISSED (1.95, wanted >= 2)"
            )
        );
    }
}

#[test]
fn one_stream_lost_or_one_byte_wrong_in_any_round_is_a_miss() {
    let round = |lost, wrong| {
        let figures = Figures::from([(Metric::LostStreams, lost), (Metric::WrongBytes, wrong)]);
        (Scenario::CarrierCuts, System::MuxgateNativeX4, figures)
    };
    let rounds = [round(0.0, 0.0), round(1.0, 0.0), round(0.0, 0.0)];
    let what = "muxgate-native-x4, veth, cubic, carrier-cuts x 1000, most";
    assert_eq!(
        texts(&report(Topology::Veth, USUAL, 1000, &rounds)),
        [
            format!("{what} lost: MISSED (1, wanted <= 0)"),
            format!("{what} wrong bytes: met (0, wanted <= 0)"),
        ]
    );
}

#[test]
fn a_stream_of_a_fixed_size_that_fails_is_a_miss_with_every_congestion_control() {
    for control in [USUAL, "bbr"] {
        let figures = Figures::from([(Metric::LostStreams, 1.0)]);
        let rounds = [(Scenario::FixedStreams, System::MuxgateNative, figures)];
        let text = only(&report(Topology::WanLoss5, control, 20, &rounds));
        assert!(text.ends_with("MISSED (1, wanted <= 0)"), "{text}");
    }
}

#[test]
fn a_stall_is_judged_beyond_the_reconnect_with_one_carrier_and_as_a_whole_with_several() {
    let stall = |system| {
        let figures = Figures::from([
            (Metric::StallMs, 1_200.0),
            (Metric::BeyondReconnectMs, 900.0),
        ]);
        let rounds = [(Scenario::CarrierCuts, system, figures)];
        only(&report(Topology::Veth, USUAL, 1000, &rounds))
    };
    let one = stall(System::MuxgateNative);
    assert!(
        one.ends_with("beyond the reconnect: met (900, wanted <= 1000)"),
        "{one}"
    );
    let several = stall(System::MuxgateNativeX4);
    assert!(
        several.ends_with("stall ms: MISSED (1200, wanted <= 1000)"),
        "{several}"
    );
}

#[test]
fn a_stream_that_goes_on_late_is_a_miss_even_where_no_stall_was_seen() {
    let figures = Figures::from([(Metric::RecoveredMs, 2_001.0)]);
    let rounds = [(Scenario::CarrierCuts, System::MuxgateNative, figures)];
    let text = only(&report(Topology::Veth, USUAL, 1000, &rounds));
    assert!(
        text.ends_with("recovered ms: MISSED (2001, wanted <= 2000)"),
        "{text}"
    );
}

#[test]
fn little_memory_is_what_is_given_and_16_mib_more() {
    let peak = |mib| {
        let figures = Figures::from([(Metric::ExitRssMib, mib)]);
        let rounds = [(Scenario::CarrierCutsSmall, System::MuxgateNative, figures)];
        only(&report(Topology::Veth, USUAL, 1000, &rounds))
    };
    assert!(peak(64.0).ends_with("exit MiB: met (64, wanted <= 64)"));
    assert!(peak(64.1).ends_with("exit MiB: MISSED (64.1, wanted <= 64)"));
}

#[test]
fn exchanges_beside_bulk_may_add_little_and_cost_the_bulk_a_seventh() {
    let missed = |system, bulk, p99_us, bulk_percent| {
        let round = |system, p99_us| {
            let figures =
                Figures::from([(Metric::P99Us, p99_us), (Metric::BulkPercent, bulk_percent)]);
            (Scenario::PingPong, system, figures)
        };
        let rounds = [
            round(System::Direct, 700.0),
            round(System::RelayCopy, 1_200.0),
            round(system, p99_us),
        ];
        let verdicts = verdicts(&report(Topology::Loopback, USUAL, bulk, &rounds));
        let missed = verdicts.iter().map(|verdict| verdict.is_missed);
        missed.collect::<Vec<bool>>()
    };
    let native = System::MuxgateNative;
    // The four verdicts are: the 99th percentile itself, its differences to the direct path and to
    // the relay, and the rate of bulk.
    assert_eq!(missed(native, 1, 1_700.0, 85.0), [false; 4]);
    assert_eq!(missed(native, 1, 1_701.0, 84.0), [false, true, true, true]);
    assert_eq!(missed(native, 10, 4_700.0, 10.0), [false]);
    assert_eq!(missed(native, 10, 4_701.0, 10.0), [true]);
    assert_eq!(missed(System::MuxgateJmux, 1, 7_000.0, 10.0), [false]);
}

#[test]
fn what_does_not_resume_is_held_to_the_rates_of_splicing() {
    let with_cpu = |system, mbit_s, cpu| {
        let (scenario, system, mut figures) = bulk(system, mbit_s);
        figures.insert(Metric::CpuSPerGb, cpu);
        (scenario, system, figures)
    };
    let rounds = [
        bulk(System::Direct, 10_000.0),
        with_cpu(System::Jetsocat, 2_000.0, 2.0),
        with_cpu(System::MuxgateNoResume, 8_000.0, 0.3),
    ];
    let what = "muxgate-no-resume, loopback, cubic, bulk-iperf2 x 1";
    assert_eq!(
        texts(&report(Topology::Loopback, USUAL, 1, &rounds)),
        [
            format!("{what}, Gbit/s of direct: met (0.8, wanted >= 0.8)"),
            format!("{what}, Gbit/s of jetsocat: met (4, wanted >= 3.5)"),
            format!("{what}, CPU-s/GB of jetsocat: met (0.15, wanted <= 0.15)"),
        ]
    );
    let on_bbr = only(&report(Topology::Loopback, "bbr", 1, &rounds));
    assert!(
        on_bbr.ends_with("Gbit/s of jetsocat: met (4, wanted >= 2.5)"),
        "{on_bbr}"
    );
}

#[test]
fn a_tuned_stream_needs_4_gbit_s_or_nearly_what_direct_has() {
    let is_met = |direct, native| {
        let rounds = [
            bulk(System::Direct, direct),
            bulk(System::MuxgateNative, native),
        ];
        only(&report(Topology::WanTuned, USUAL, 1, &rounds)).contains(": met")
    };
    assert!(is_met(9_000.0, 4_000.0) && !is_met(9_000.0, 3_999.0));
    assert!(is_met(3_000.0, 2_700.0) && !is_met(3_000.0, 2_699.0));
}

#[test]
fn both_directions_over_the_wan_carry_nearly_twice_what_one_does() {
    for topology in [Topology::Wan, Topology::WanTuned] {
        for system in [System::MuxgateNative, System::MuxgateNativeX4] {
            let figures = Figures::from([(Metric::DuplexPercent, 179.0)]);
            let rounds = [(Scenario::FullDuplex, system, figures)];
            let text = only(&report(topology, USUAL, 1, &rounds));
            assert!(text.ends_with("MISSED (179, wanted >= 180)"), "{text}");
        }
    }
}

#[test]
fn one_tcp_stream_in_packets_needs_14_gbit_s_or_two_fifths_of_direct() {
    let rate = |system, mbit_s| (Scenario::BulkPackets, system, bulk(system, mbit_s).2);
    let is_met = |direct, ours| {
        let rounds = [rate(System::Direct, direct), rate(System::MuxgateTun, ours)];
        only(&report(Topology::Veth, USUAL, 1, &rounds)).contains(": met")
    };
    assert!(is_met(60_000.0, 14_000.0) && !is_met(60_000.0, 13_999.0));
    assert!(is_met(30_000.0, 12_000.0) && !is_met(30_000.0, 11_999.0));
}

#[test]
fn a_packet_of_100_000_out_of_order_is_a_miss_and_so_is_one_of_1_000_lost() {
    let texts_of = |out_of_order, lost| {
        let figures = Figures::from([
            (Metric::OutOfOrder, out_of_order),
            (Metric::LostPercent, lost),
        ]);
        let rounds = [(Scenario::UdpPackets, System::MuxgateTun, figures)];
        texts(&report(Topology::Wan20, USUAL, 1, &rounds))
    };
    let what = "muxgate-tun, wan-20, cubic, udp-packets x 1,";
    assert_eq!(
        texts_of(1.0, 0.1),
        [
            format!("{what} ooo/100,000: MISSED (1, wanted < 1)"),
            format!("{what} lost %: MISSED (0.1, wanted < 0.1)"),
        ]
    );
    let met = texts_of(0.9, 0.09);
    assert!(met.iter().all(|text| text.contains(": met")), "{met:?}");
}

#[test]
fn an_exchange_beside_packets_may_take_5_ms_and_the_round_trip_time() {
    let judged = |p99_us| {
        let figures = Figures::from([(Metric::P99Us, p99_us)]);
        let mut report = report(Topology::Wan20, USUAL, 1, &[]);
        let key = Key {
            topology: Topology::Wan20,
            congestion_control: USUAL.to_owned(),
            scenario: Scenario::PingPackets,
            connections: 1,
            system: System::MuxgateTun,
        };
        report.row_mut(key).add(Measured {
            figures,
            foreign_share: 0.0,
            basis: Basis {
                rtt_ms: 40.5,
                ..Basis::default()
            },
        });
        only(&report)
    };
    let text = judged(45_500.0);
    assert!(
        text.ends_with("p99 us beyond the RTT: met (5000, wanted <= 5000)"),
        "{text}"
    );
    assert!(judged(45_501.0).contains(": MISSED"));
}

/// Each target is judged in a whole run: some cell has the row of the target, and the system for
/// comparison.
#[test]
fn the_whole_run_judges_every_target() {
    let environments = environments(&Selection {
        congestion_controls: vec![USUAL.to_owned(), "bbr".to_owned()],
        ..Selection::default()
    });
    for target in targets::all() {
        let is_judged = environments
            .iter()
            .filter(|environment| environment.topology == target.topology)
            .filter(|environment| environment.congestion_control == target.congestion_control)
            .flat_map(|environment| &environment.cells)
            .filter(|cell| cell.scenario == target.scenario)
            .filter(|cell| {
                target
                    .connections
                    .is_none_or(|count| count == cell.connections)
            })
            .any(|cell| {
                let other = target.measure.compared_with();
                let mut needed = other.into_iter().chain([target.system]);
                needed.all(|system| cell.systems.contains(&system))
            });
        assert!(is_judged, "{target:?}");
    }
}
