//! The kernel netem backend: `tc` commands from pure functions, and reading back what they made.
//!
//! Owns the qdiscs with the handles 64: and 65: on the plan's interface, and for the time of the
//! probe on `lo`. Delays what leaves. netem orphans the packets that it holds, so that on departure
//! they do not count against the sender as they would behind an NFQUEUE rule. What is in force
//! stays when the process ends.

use std::time::Duration;

use crate::{
    command::{Command, CommandError},
    plan::{PROBE_PORT, Plan, Scope},
    probe::{self, Measured, ProbeError},
};

/// The rate that the queue limit is computed for: 10 Gbit/s, in bytes a second.
pub const ASSUMED_BYTES_PER_SECOND: u64 = 10_000_000_000 / 8;

/// The packet size that the queue limit is computed for, an Ethernet frame's payload.
const ASSUMED_PACKET_BYTES: u64 = 1500;

/// The least limit: netem's own default.
const LIMIT_PACKETS_MIN: u64 = 1000;

/// The greatest limit: 1.5 GB of full frames, which is 10 Gbit/s for 600 ms twice over.
const LIMIT_PACKETS_MAX: u64 = 1_000_000;

/// `tc`'s handle of our root qdisc; one that nobody chooses by chance.
const ROOT: &str = "64:";
const NETEM: &str = "65:";

/// What stopped the backend.
#[derive(Debug, thiserror::Error)]
pub enum NetemError {
    /// `tc` is missing, or refused a command; most often the kernel has no `sch_netem`.
    #[error(transparent)]
    Command(#[from] CommandError),
    /// The probe gave no figure.
    #[error(transparent)]
    Probe(#[from] ProbeError),
    /// `tc qdisc show` does not list what was set.
    #[error("`tc` reports {found} on {interface} instead of a delay of {asked:?}")]
    NotInForce {
        /// The plan's interface.
        interface: String,
        /// The one-way delay asked for.
        asked: Duration,
        /// What `tc` reports.
        found: String,
    },
}

/// Packets that netem may hold: what [`ASSUMED_BYTES_PER_SECOND`] bring within the delay, twice for
/// bursts. A thousand, the default, would cut 50 ms down to 240 Mbit/s.
#[must_use]
pub fn limit_packets(one_way_delay: Duration) -> u64 {
    let bytes = u128::from(ASSUMED_BYTES_PER_SECOND) * one_way_delay.as_micros() / 1_000_000;
    let packets = u64::try_from(bytes)
        .unwrap_or(u64::MAX)
        .div_ceil(ASSUMED_PACKET_BYTES);
    (2 * packets).clamp(LIMIT_PACKETS_MIN, LIMIT_PACKETS_MAX)
}

/// The commands that put a plan into force on an interface without qdisc of its own.
#[must_use]
pub fn commands(plan: &Plan) -> Vec<Command> {
    let device = plan.interface();
    match plan.scope() {
        Scope::AllExcept(ports) if ports.is_empty() => {
            let place = format!("dev {device} root handle {ROOT}");
            vec![netem(&place, plan.one_way_delay())]
        }
        // Two bands: 64:1 passes at once, 64:2 goes through netem. `priomap` is where packets go
        // that no filter names.
        Scope::AllExcept(ports) => banded(device, plan.one_way_delay(), 1, ports),
        Scope::Ports(ports) => banded(device, plan.one_way_delay(), 0, ports),
    }
}

/// The commands that delay the probe's packets on `lo` and nothing else.
#[must_use]
pub fn probe_commands(one_way_delay: Duration) -> Vec<Command> {
    banded("lo", one_way_delay, 0, [&PROBE_PORT])
}

/// Removes what [`commands`] made; fails where there is nothing of ours.
#[must_use]
pub fn remove_command(device: &str) -> Command {
    Command::new(&format!("tc qdisc del dev {device} root handle {ROOT}"))
}

fn netem(place: &str, one_way_delay: Duration) -> Command {
    let microseconds = one_way_delay.as_micros();
    let limit = limit_packets(one_way_delay);
    Command::new(&format!(
        "tc qdisc add {place} netem delay {microseconds}us limit {limit}"
    ))
}

fn banded<'a>(
    device: &str,
    one_way_delay: Duration,
    default_band: u8,
    ports: impl IntoIterator<Item = &'a u16>,
) -> Vec<Command> {
    let priomap = [default_band.to_string().as_str(); 16].join(" ");
    let filtered_band = 2 - default_band;
    let mut commands = vec![
        Command::new(&format!(
            "tc qdisc add dev {device} root handle {ROOT} prio bands 2 priomap {priomap}"
        )),
        netem(
            &format!("dev {device} parent {ROOT}2 handle {NETEM}"),
            one_way_delay,
        ),
    ];
    for port in ports {
        // A filter preference takes one protocol only.
        for (protocol, header, preference) in [("ip", "ip", 1), ("ipv6", "ip6", 2)] {
            for transport in [6, 17] {
                for side in ["dport", "sport"] {
                    commands.push(Command::new(&format!(
                        "tc filter add dev {device} parent {ROOT} protocol {protocol} pref {preference} u32 \
                         match {header} protocol {transport} 0xff match {header} {side} {port} 0xffff \
                         flowid {ROOT}{filtered_band}"
                    )));
                }
            }
        }
    }
    commands
}

/// Probes netem on `lo`, then puts the plan into force and reads it back. Returns what the probe
/// measured; whether it will do is the caller's to judge.
///
/// The probe shows what this kernel's netem makes of the asked delay; on the plan's interface
/// nothing answers yet, so there only the settings can be read back.
///
/// # Errors
/// [`NetemError`]; then nothing of ours is left behind.
pub fn start(plan: &Plan) -> Result<Measured, NetemError> {
    remove_leftovers(plan.interface());
    remove_leftovers("lo");
    let probed = run_all(&probe_commands(plan.one_way_delay()))
        .map_err(NetemError::from)
        .and_then(|()| Ok(probe::measure(plan.one_way_delay())?));
    remove_leftovers("lo");
    let measured = probed?;
    let made = run_all(&commands(plan))
        .map_err(NetemError::from)
        .and_then(|()| read_back(plan));
    if made.is_err() {
        remove_leftovers(plan.interface());
    }
    made.map(|()| measured)
}

/// Removes what an earlier run, or half a start, left behind. That there is nothing is the usual
/// case and no error, so what `tc` says is not looked at.
pub fn remove_leftovers(device: &str) {
    let _ = remove_command(device).run();
}

fn run_all(commands: &[Command]) -> Result<(), CommandError> {
    commands
        .iter()
        .try_for_each(|command| command.run().map(|_| ()))
}

fn read_back(plan: &Plan) -> Result<(), NetemError> {
    let shown = Command::new(&format!("tc -j qdisc show dev {}", plan.interface())).run()?;
    match netem_delay(&shown) {
        Some(delay) if delay.abs_diff(plan.one_way_delay()) <= Duration::from_micros(1) => Ok(()),
        found => Err(NetemError::NotInForce {
            interface: plan.interface().to_owned(),
            asked: plan.one_way_delay(),
            found: found.map_or("no netem".to_owned(), |delay| format!("{delay:?}")),
        }),
    }
}

/// The delay of our netem qdisc. `shown`: the text of `tc -j qdisc show`.
fn netem_delay(shown: &str) -> Option<Duration> {
    let qdiscs: serde_json::Value = serde_json::from_str(shown).ok()?;
    let ours = qdiscs.as_array()?.iter().find(|qdisc| {
        qdisc["kind"] == "netem" && (qdisc["handle"] == NETEM || qdisc["handle"] == ROOT)
    })?;
    Duration::try_from_secs_f64(ours["options"]["delay"]["delay"].as_f64()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(commands: &[Command]) -> Vec<String> {
        commands.iter().map(ToString::to_string).collect()
    }

    fn plan(scope: Scope) -> Plan {
        Plan::new("eth0", Duration::from_millis(50), scope).unwrap()
    }

    #[test]
    fn a_whole_interface_gets_netem_as_its_root() {
        assert_eq!(
            texts(&commands(&plan(Scope::AllExcept([].into())))),
            ["tc qdisc add dev eth0 root handle 64: netem delay 50000us limit 83334"]
        );
    }

    #[test]
    fn listed_ports_are_filtered_into_the_band_with_netem() {
        assert_eq!(
            texts(&commands(&plan(Scope::Ports([64000].into())))),
            [
                "tc qdisc add dev eth0 root handle 64: prio bands 2 priomap 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0",
                "tc qdisc add dev eth0 parent 64:2 handle 65: netem delay 50000us limit 83334",
                "tc filter add dev eth0 parent 64: protocol ip pref 1 u32 match ip protocol 6 0xff match ip dport 64000 0xffff flowid 64:2",
                "tc filter add dev eth0 parent 64: protocol ip pref 1 u32 match ip protocol 6 0xff match ip sport 64000 0xffff flowid 64:2",
                "tc filter add dev eth0 parent 64: protocol ip pref 1 u32 match ip protocol 17 0xff match ip dport 64000 0xffff flowid 64:2",
                "tc filter add dev eth0 parent 64: protocol ip pref 1 u32 match ip protocol 17 0xff match ip sport 64000 0xffff flowid 64:2",
                "tc filter add dev eth0 parent 64: protocol ipv6 pref 2 u32 match ip6 protocol 6 0xff match ip6 dport 64000 0xffff flowid 64:2",
                "tc filter add dev eth0 parent 64: protocol ipv6 pref 2 u32 match ip6 protocol 6 0xff match ip6 sport 64000 0xffff flowid 64:2",
                "tc filter add dev eth0 parent 64: protocol ipv6 pref 2 u32 match ip6 protocol 17 0xff match ip6 dport 64000 0xffff flowid 64:2",
                "tc filter add dev eth0 parent 64: protocol ipv6 pref 2 u32 match ip6 protocol 17 0xff match ip6 sport 64000 0xffff flowid 64:2",
            ]
        );
    }

    #[test]
    fn spared_ports_are_filtered_out_of_the_band_with_netem() {
        let texts = texts(&commands(&plan(Scope::AllExcept([64001].into()))));
        assert_eq!(
            texts[..3],
            [
                "tc qdisc add dev eth0 root handle 64: prio bands 2 priomap 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1",
                "tc qdisc add dev eth0 parent 64:2 handle 65: netem delay 50000us limit 83334",
                "tc filter add dev eth0 parent 64: protocol ip pref 1 u32 match ip protocol 6 0xff match ip dport 64001 0xffff flowid 64:1",
            ]
        );
        assert_eq!(texts.len(), 10);
    }

    #[test]
    fn the_probe_delays_its_own_port_on_lo_alone() {
        let texts = texts(&probe_commands(Duration::from_millis(50)));
        assert!(texts.iter().all(|text| text.contains(" dev lo ")));
        assert!(
            texts[2..]
                .iter()
                .all(|text| text.contains("port 64003 0xffff flowid 64:2"))
        );
    }

    #[test]
    fn removal_names_our_own_qdisc() {
        assert_eq!(
            remove_command("eth0").to_string(),
            "tc qdisc del dev eth0 root handle 64:"
        );
    }

    #[test]
    fn the_queue_limit_holds_the_assumed_rate_for_the_delay_twice_over() {
        // 10 Gbit/s for 50 ms are 62.5 MB, or 41,667 packets of 1,500 bytes.
        assert_eq!(limit_packets(Duration::from_millis(50)), 83_334);
        assert_eq!(limit_packets(Duration::from_millis(1)), 1668);
        assert_eq!(limit_packets(Duration::from_micros(10)), 1000);
        assert_eq!(limit_packets(crate::plan::ONE_WAY_DELAY_MAX), 1_000_000);
    }

    #[test]
    fn the_delay_in_force_is_read_from_tcs_json() {
        // As iproute2 6.1 writes it.
        let shown = r#"[{"kind":"prio","handle":"64:","root":true,"refcnt":2,"options":{"bands":2,"priomap":[0,0],"multiqueue":false}},
            {"kind":"netem","handle":"65:","parent":"64:2","options":{"limit":83334,"delay":{"delay":0.05,"jitter":0,"correlation":0},"ecn":false,"gap":0}}]"#;
        assert_eq!(netem_delay(shown), Some(Duration::from_millis(50)));
        let none = r#"[{"kind":"noqueue","handle":"0:","root":true,"refcnt":2,"options":{}}]"#;
        assert_eq!(netem_delay(none), None);
        assert_eq!(netem_delay(""), None);
    }
}
