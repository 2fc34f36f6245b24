//! The rules of a MuxBenchmark.

use kube::core::Rule;

use super::carrier::protocols;
use super::network::several;
use super::{has, or, rule, set, value};

/// CEL: the measured protocols.
const PROTOCOLS: &str = "(has(self.protocols) ? self.protocols : ['Native'])";
/// CEL: the path Network is measured.
const NETWORK: &str = "(has(self.paths) && self.paths.exists(p, p == 'Network'))";

fn mode() -> String {
    value("self.tunnel.security.mode", "PublicKeys")
}

pub(crate) fn spec_immutable() -> Rule {
    Rule::new("self.spec == oldSelf.spec")
        .message("spec cannot be changed: create another MuxBenchmark")
}

pub(crate) fn warm_up_shorter() -> Rule {
    let (warm_up, duration) = (
        "(has(self.warmUpSeconds) ? self.warmUpSeconds : 5)",
        "(has(self.durationSeconds) ? self.durationSeconds : 30)",
    );
    rule(
        format!("{warm_up} < {duration}"),
        format!(
            "'warmUpSeconds %d must be less than durationSeconds %d, which includes the warm-up'.format([{warm_up}, \
             {duration}])"
        ),
    )
}

/// `field` applies only to Native, so the matrix needs it. It may also have other protocols.
pub(crate) fn native_measured(field: &str) -> Rule {
    rule(
        format!(
            "!{} || {PROTOCOLS}.exists(p, p == 'Native')",
            has(&format!("self.tunnel.carrier.{field}"))
        ),
        format!("'tunnel.carrier.{field} needs Native in protocols'"),
    )
}

pub(crate) fn web_socket_not_measured() -> Rule {
    rule(
        "!has(self.transport) || self.transport != 'WebSocket'",
        "'tunnel.carrier.transport: a benchmark measures TCP, KCP or Auto, not ' + self.transport",
    )
}

pub(crate) fn measured_without_certificates() -> Rule {
    rule(
        "!has(self.mode) || self.mode != 'Certificates'",
        "'tunnel.security.mode: a benchmark has mode PublicKeys or None, not ' + self.mode",
    )
}

/// All protocols of a matrix share one security mode.
pub(crate) fn quic_measured_has_tls() -> Rule {
    let udp = protocols(|can| !can.bytes);
    let set = set(&udp);
    rule(
        format!("{} != 'None' || !{PROTOCOLS}.exists(p, p in {set})", mode()),
        format!(
            "'protocols {} include TLS: set tunnel.security.mode to PublicKeys, not None'",
            udp.join(" and ")
        ),
    )
}

pub(crate) fn hbone_measured_without_keys() -> Rule {
    rule(
        format!(
            "{} != 'PublicKeys' || !{PROTOCOLS}.exists(p, p == 'HBONE')",
            mode()
        ),
        "'protocols: HBONE needs tunnel.security.mode None'",
    )
}

/// The matrix has one row for the network, so one protocol must carry the packets.
pub(crate) fn network_measured_by_one_protocol() -> Rule {
    let packets = protocols(|can| can.packets);
    let count = format!("{PROTOCOLS}.filter(p, p in {}).size()", set(&packets));
    rule(
        format!("!{NETWORK} || {count} == 1"),
        format!(
            "'paths has Network, which needs exactly one protocol {}; protocols has %d of them'.format([{count}])",
            or(&packets)
        ),
    )
}

/// Datagrams are measured on the network, and compared with the direct path.
pub(crate) fn udp_measured_through_the_network() -> Rule {
    rule(
        format!("!has(self.udp) || {NETWORK}"),
        "'udp needs Network in paths: add Network, or remove udp'",
    )
}

pub(crate) fn network_measured_with_one_gateway(end: &str) -> Rule {
    let path = format!("self.tunnel.{end}");
    rule(
        format!("!{NETWORK} || !{}", several(&path)),
        format!(
            "'paths: Network needs exactly one {end} gateway: remove tunnel.{end}.' + (has({path}.autoscaling) ? \
             'autoscaling' : 'replicas')"
        ),
    )
}
