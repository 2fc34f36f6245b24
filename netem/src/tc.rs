//! The backend for kernel netem. Pure functions return `tc` commands, and the module reads the
//! settings back from the kernel.
//!
//! The module owns the qdiscs with the handles 64: and 65: on the plan's interface, and on `lo`
//! during the probe. netem delays departing packets. It orphans the packets that it holds, so that
//! they do not count against the sender's socket. Packets that an NFQUEUE rule holds on departure
//! would count. The delay remains if the process ends without removing it.

use std::time::Duration;

use crate::{
    command::{Command, CommandError},
    impairments::Impairments,
    plan::{PROBE_PORT, Plan, Scope},
    probe::{self, Measured, ProbeError},
};

/// The rate for which the queue limit is computed: 10 Gbit/s, in bytes per second.
pub const ASSUMED_BYTES_PER_SECOND: u64 = 10_000_000_000 / 8;

/// The packet size for which the queue limit is computed: an Ethernet frame's payload.
const ASSUMED_PACKET_BYTES: u64 = 1500;

/// The least limit without a rate: netem's own default.
const LIMIT_PACKETS_MIN: u64 = 1000;
/// The least limit with a rate.
const LIMIT_PACKETS_NARROW_MIN: u64 = 16;

/// The greatest limit: 1.5 GB of full frames, twice the bytes of 600 ms at 10 Gbit/s.
const LIMIT_PACKETS_MAX: u64 = 1_000_000;

/// With jitter, netem keeps the order of packets only if it has a rate. This rate is too high to
/// limit traffic.
const ANY_RATE: &str = "1000gbit";

/// The kernel's default in `ip link`. With this value an interface does not cut super-packets.
const SEGMENTS_DEFAULT: u32 = 65_535;

/// `tc`'s handle of muxwan's root qdisc, unlikely to be in use.
const ROOT: &str = "64:";
const NETEM: &str = "65:";

/// Why the backend stopped.
#[derive(Debug, thiserror::Error)]
pub enum NetemError {
    /// `tc` is missing, or refused a command, usually because the kernel lacks `sch_netem`.
    #[error(transparent)]
    Command(#[from] CommandError),
    /// The probe failed.
    #[error(transparent)]
    Probe(#[from] ProbeError),
    /// `tc qdisc show` does not list the settings.
    #[error("`tc` reports {found} on {interface} instead of {asked}")]
    NotInForce {
        /// The plan's interface.
        interface: String,
        /// The requested settings.
        asked: String,
        /// The settings that `tc` reports.
        found: String,
    },
}

/// Maximum number of packets that netem holds. Without a rate: the packets that arrive within the
/// delay at [`ASSUMED_BYTES_PER_SECOND`], doubled for bursts. netem's default of 1,000 packets
/// would limit a path of 50 ms to 240 Mbit/s. With a rate: the packets in flight, and the packets
/// in the buffer of the narrowest link.
#[must_use]
pub fn limit_packets(path: &Impairments) -> u64 {
    let one_way_delay = path.one_way_delay + path.jitter;
    if let Some(rate) = path.rate {
        let packets = rate.bytes(one_way_delay + path.buffer()) / ASSUMED_PACKET_BYTES;
        return packets.clamp(LIMIT_PACKETS_NARROW_MIN, LIMIT_PACKETS_MAX);
    }
    let bytes = u128::from(ASSUMED_BYTES_PER_SECOND) * one_way_delay.as_micros() / 1_000_000;
    let packets = u64::try_from(bytes)
        .unwrap_or(u64::MAX)
        .div_ceil(ASSUMED_PACKET_BYTES);
    (2 * packets).clamp(LIMIT_PACKETS_MIN, LIMIT_PACKETS_MAX)
}

/// The commands that apply a plan to an interface without its own qdisc.
#[must_use]
pub fn commands(plan: &Plan) -> Vec<Command> {
    let (device, path) = (plan.interface(), plan.impairments());
    let mut commands = match plan.scope() {
        Scope::AllExcept(ports) if ports.is_empty() => {
            let place = format!("dev {device} root handle {ROOT}");
            vec![netem(&place, path)]
        }
        // Two bands: packets in band 64:1 pass at once, packets in band 64:2 go through netem.
        // `priomap` selects the band of packets that match no filter.
        Scope::AllExcept(ports) => banded(device, path, 1, ports),
        Scope::Ports(ports) => banded(device, path, 0, ports),
    };
    if path.needs_frames() {
        commands.push(segments_command(device, 1));
    }
    commands
}

/// The command that sets the greatest number of frames of a super-packet on the interface.
fn segments_command(device: &str, segments: u32) -> Command {
    Command::new(&format!("ip link set dev {device} gso_max_segs {segments}"))
}

/// The commands that delay only the probe's packets on `lo`.
#[must_use]
pub fn probe_commands(path: &Impairments) -> Vec<Command> {
    banded("lo", path, 0, [&PROBE_PORT])
}

/// Removes the qdiscs of [`commands`]. The command fails if the qdiscs do not exist.
#[must_use]
pub fn remove_command(device: &str) -> Command {
    Command::new(&format!("tc qdisc del dev {device} root handle {ROOT}"))
}

fn netem(place: &str, path: &Impairments) -> Command {
    let mut line = format!(
        "tc qdisc add {place} netem delay {}us",
        path.one_way_delay.as_micros()
    );
    if !path.jitter.is_zero() {
        line += &format!(" {}us", path.jitter.as_micros());
    }
    if !path.loss.is_zero() {
        line += &format!(" loss {}", path.loss);
    }
    if let Some(rate) = path.rate {
        line += &format!(" rate {}bit", rate.bits_per_second());
    } else if !path.jitter.is_zero() {
        line += &format!(" rate {ANY_RATE}");
    }
    Command::new(&format!("{line} limit {}", limit_packets(path)))
}

fn banded<'a>(
    device: &str,
    path: &Impairments,
    default_band: u8,
    ports: impl IntoIterator<Item = &'a u16>,
) -> Vec<Command> {
    let priomap = [default_band.to_string().as_str(); 16].join(" ");
    let filtered_band = 2 - default_band;
    let mut commands = vec![
        Command::new(&format!(
            "tc qdisc add dev {device} root handle {ROOT} prio bands 2 priomap {priomap}"
        )),
        netem(&format!("dev {device} parent {ROOT}2 handle {NETEM}"), path),
    ];
    for port in ports {
        // A filter preference accepts one protocol only, so each IP version needs its own
        // preference.
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

/// Probes netem on `lo`, then applies the plan and reads it back. Returns the measurements of the
/// probe, which the caller judges.
///
/// The probe measures the requested delay with this kernel's netem. On the plan's interface no peer
/// answers yet, so the function only reads the settings back.
///
/// # Errors
/// [`NetemError`]. After an error, no qdiscs remain.
pub fn start(plan: &Plan) -> Result<Measured, NetemError> {
    remove_leftovers(plan.interface());
    remove_leftovers("lo");
    let path = plan.impairments();
    let probed = run_all(&probe_commands(path))
        .map_err(NetemError::from)
        .and_then(|()| Ok(probe::measure(path)?));
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

/// Removes the qdiscs of an earlier run or of a failed start. Errors of `tc` are ignored, because
/// usually there are no such qdiscs.
pub fn remove_leftovers(device: &str) {
    if remove_command(device).run().is_ok() {
        let _ = segments_command(device, SEGMENTS_DEFAULT).run();
    }
}

fn run_all(commands: &[Command]) -> Result<(), CommandError> {
    commands
        .iter()
        .try_for_each(|command| command.run().map(|_| ()))
}

fn read_back(plan: &Plan) -> Result<(), NetemError> {
    let shown = Command::new(&format!("tc -j qdisc show dev {}", plan.interface())).run()?;
    let found = netem_options(&shown);
    if found
        .as_ref()
        .is_some_and(|found| is_in_force(found, plan.impairments()))
    {
        return Ok(());
    }
    Err(NetemError::NotInForce {
        interface: plan.interface().to_owned(),
        asked: netem("", plan.impairments()).to_string(),
        found: found.map_or("no netem".to_owned(), |found| found.to_string()),
    })
}

/// The settings of muxwan's netem qdisc. `shown`: the output of `tc -j qdisc show`.
fn netem_options(shown: &str) -> Option<serde_json::Value> {
    let qdiscs: serde_json::Value = serde_json::from_str(shown).ok()?;
    let ours = qdiscs.as_array()?.iter().find(|qdisc| {
        qdisc["kind"] == "netem" && (qdisc["handle"] == NETEM || qdisc["handle"] == ROOT)
    })?;
    Some(ours["options"].clone())
}

/// Compares the delay by value, and loss and rate only by presence: their format differs between
/// versions of `tc`, and the probe has measured them.
fn is_in_force(options: &serde_json::Value, path: &Impairments) -> bool {
    let seconds = options["delay"]["delay"].as_f64().unwrap_or_default();
    let near = Duration::try_from_secs_f64(seconds)
        .is_ok_and(|delay| delay.abs_diff(path.one_way_delay) <= Duration::from_micros(1));
    near && (path.loss.is_zero() || options["loss-random"].is_object())
        && (path.rate.is_none() || options["rate"].is_object())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(commands: &[Command]) -> Vec<String> {
        commands.iter().map(ToString::to_string).collect()
    }

    fn path() -> Impairments {
        Impairments::delay(Duration::from_millis(50))
    }

    fn plan(scope: Scope) -> Plan {
        Plan::new("eth0", path(), scope).unwrap()
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
        let texts = texts(&probe_commands(&path()));
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
        let limit =
            |microseconds| limit_packets(&Impairments::delay(Duration::from_micros(microseconds)));
        assert_eq!(limit(50_000), 83_334);
        assert_eq!(limit(1000), 1668);
        assert_eq!(limit(10), 1000);
        assert_eq!(limit(10_000_000), 1_000_000);
    }

    #[test]
    fn jitter_loss_and_rate_are_netems_own_and_super_packets_are_cut() {
        let impaired = Impairments {
            jitter: Duration::from_millis(5),
            loss: "0.5%".parse().unwrap(),
            rate: Some("100M".parse().unwrap()),
            ..path()
        };
        let plan = Plan::new("eth0", impaired, Scope::AllExcept([].into())).unwrap();
        // 100 Mbit/s for 155 ms are 1,291 packets.
        assert_eq!(
            texts(&commands(&plan)),
            [
                "tc qdisc add dev eth0 root handle 64: netem delay 50000us 5000us loss 0.5% rate 100000000bit limit 1291",
                "ip link set dev eth0 gso_max_segs 1",
            ]
        );
    }

    #[test]
    fn jitter_alone_keeps_the_order_by_a_rate_that_limits_nobody() {
        let jitter = Duration::from_millis(5);
        let plan = Plan::new(
            "eth0",
            Impairments { jitter, ..path() },
            Scope::AllExcept([].into()),
        );
        assert_eq!(
            texts(&commands(&plan.unwrap())),
            [
                "tc qdisc add dev eth0 root handle 64: netem delay 50000us 5000us rate 1000gbit limit 91668"
            ]
        );
    }

    #[test]
    fn the_delay_in_force_is_read_from_tcs_json() {
        // The output of iproute2 6.1.
        let shown = r#"[{"kind":"prio","handle":"64:","root":true,"refcnt":2,"options":{"bands":2,"priomap":[0,0],"multiqueue":false}},
            {"kind":"netem","handle":"65:","parent":"64:2","options":{"limit":83334,"delay":{"delay":0.05,"jitter":0,"correlation":0},"ecn":false,"gap":0}}]"#;
        let found = netem_options(shown).unwrap();
        assert!(is_in_force(&found, &path()));
        let lossy = Impairments {
            loss: "1%".parse().unwrap(),
            ..path()
        };
        assert!(!is_in_force(&found, &lossy));
        assert!(!is_in_force(
            &found,
            &Impairments::delay(Duration::from_millis(51))
        ));
        let none = r#"[{"kind":"noqueue","handle":"0:","root":true,"refcnt":2,"options":{}}]"#;
        assert_eq!(netem_options(none), None);
        assert_eq!(netem_options(""), None);
    }
}
