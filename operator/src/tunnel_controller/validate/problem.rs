//! Checks the rules of the schema again, because an object may have been stored before a rule
//! existed. Also checks the installation's permissions. Pure.

use std::collections::BTreeSet;

use muxtunnel_crds::{
    Forward, Gateway, GatewayService, ListenProtocol, MuxTunnel, MuxTunnelSpec, ServiceType, Side,
};
use muxtunnel_gateway_config::{ADMIN_PORT, CARRIER_PORT, FORWARDS_MAX};

use super::carrier::is_address;
use super::{network, ssh};
use crate::protocol::configured;
use crate::settings::Settings;
use crate::tunnel_controller::references::is_reverse;

/// The first problem of the spec, as a sentence.
pub(super) fn problem(tunnel: &MuxTunnel, settings: &Settings) -> Option<String> {
    let spec = &tunnel.spec;
    if spec.forwards.len() > FORWARDS_MAX {
        let count = spec.forwards.len();
        return Some(format!(
            "forwards has {count} entries: use at most {FORWARDS_MAX}"
        ));
    }
    let mut ports = BTreeSet::new();
    for forward in &spec.forwards {
        let port = forward.listen.port;
        let named = |problem: &str| Some(format!("forward {}: {problem}", forward.name));
        if matches!(port, 0 | CARRIER_PORT | ADMIN_PORT) {
            return named(&format!(
                "listen.port {port} is reserved: gateways use {CARRIER_PORT} for carriers and {ADMIN_PORT} for \
                 their admin endpoint: choose another port"
            ));
        }
        if !ports.insert(port) {
            return Some(format!(
                "listen.port {port} is used by more than one forward: choose another port"
            ));
        }
        if let Some(problem) = of_forward(forward, spec) {
            return named(problem);
        }
        if forward.listen.from.is_none() && is_exposed(forward, spec) {
            return named(
                "a Service of a type other than ClusterIP needs listen.from, the clients that may reach the port: \
                 namespaces, podLabels, ipBlocks, or all: true",
            );
        }
    }
    if let Some(problem) = of_side(spec).or_else(|| of_trusted_proxies(spec)) {
        return Some(problem.to_owned());
    }
    ssh::problem(spec)
        .or_else(|| of_services(spec))
        .or_else(|| of_pods(spec, settings))
        .or_else(|| network::problem(spec, settings.network))
}

/// Only an end with a port for carriers can have load balancers that send PROXY headers.
fn of_trusted_proxies(spec: &MuxTunnelSpec) -> Option<&'static str> {
    let has = |gateway: &Option<Gateway>| {
        let gateway = gateway.as_ref();
        gateway.is_some_and(|gateway| !gateway.trusted_proxies.is_empty())
    };
    let carrier = spec.carrier.as_ref();
    let meets = carrier.is_some_and(|carrier| carrier.rendezvous.is_some());
    if has(&spec.entry) {
        return Some(
            "entry.trustedProxies: only exits have a carrier port: use exit.trustedProxies",
        );
    }
    let sentence = "exit.trustedProxies: with carrier.rendezvous the exit has no carrier port: set \
                    rendezvous.trustedProxies in the MuxTunnel of the rendezvous";
    (has(&spec.exit) && meets).then_some(sentence)
}

/// Kubernetes refuses `externalTrafficPolicy` for a Service that is not reachable from outside of
/// the cluster.
fn of_services(spec: &MuxTunnelSpec) -> Option<String> {
    let of_gateway = |gateway: &Option<Gateway>, end: &str| {
        let gateway = gateway.clone().unwrap_or_default();
        [
            (format!("{end}.service"), gateway.service),
            (format!("{end}.reverseService"), gateway.reverse_service),
        ]
    };
    let rendezvous = spec.rendezvous.as_ref();
    let rendezvous = rendezvous.and_then(|rendezvous| rendezvous.service.clone());
    let ssh = ssh::ssh(spec.exit.as_ref()).and_then(|ssh| ssh.service.clone());
    of_gateway(&spec.entry, "entry")
        .into_iter()
        .chain(of_gateway(&spec.exit, "exit"))
        .chain([
            ("exit.ssh.service".to_owned(), ssh),
            ("rendezvous.service".to_owned(), rendezvous),
        ])
        .find_map(|(field, service)| of_service(&field, &service?))
}

fn of_service(field: &str, service: &GatewayService) -> Option<String> {
    let policy = service.external_traffic_policy?.as_str();
    let is_internal = service.type_.unwrap_or_default() == ServiceType::ClusterIP;
    is_internal.then(|| {
        format!(
            "{field}.externalTrafficPolicy {policy} is for type NodePort or LoadBalancer: remove it, or set {field}.type"
        )
    })
}

/// Labels make pods endpoints of Services. Labels and annotations can make other controllers add
/// images, volumes and networks to pods. So pods may only have the keys in `settings`.
fn of_pods(spec: &MuxTunnelSpec, settings: &Settings) -> Option<String> {
    let gateways = [&spec.entry, &spec.exit].into_iter().flatten();
    let rendezvous = spec.rendezvous.iter();
    let templates = gateways
        .filter_map(|gateway| gateway.template.as_ref())
        .chain(rendezvous.filter_map(|rendezvous| rendezvous.template.as_ref()));
    let (labels, annotations) = (&settings.permitted_labels, &settings.permitted_annotations);
    let is_label = |key: &str| labels.iter().any(|label| label.is(key));
    let is_annotation = |key: &str| annotations.iter().any(|pattern| pattern.matches(key));
    let mut refused = templates.flat_map(|template| {
        let labels = template.labels.keys().filter(|key| !is_label(key));
        let annotations = template.annotations.keys();
        let annotations = annotations.filter(|key| !is_annotation(key));
        let labels = labels.map(|key| ("labels", key));
        labels.chain(annotations.map(|key| ("annotations", key)))
    });
    let (field, key) = refused.next()?;
    Some(format!(
        "template.{field} {key}: the installation does not permit this key on pods: remove it, or add it to the \
             chart's value podMetadata.{field}"
    ))
}

/// Whether clients outside of the cluster may reach the forward's port.
fn is_exposed(forward: &Forward, spec: &MuxTunnelSpec) -> bool {
    let service = if is_reverse(forward) {
        spec.exit
            .as_ref()
            .and_then(|exit| exit.reverse_service.as_ref())
    } else {
        spec.entry.as_ref().and_then(|entry| entry.service.as_ref())
    };
    let type_ = service.and_then(|service| service.type_);
    type_.unwrap_or_default() != ServiceType::ClusterIP
}

fn of_side(spec: &MuxTunnelSpec) -> Option<&'static str> {
    let is_rendezvous = spec.side == Side::Rendezvous;
    if is_rendezvous != spec.rendezvous.is_some() {
        return Some(
            "side Rendezvous needs rendezvous.secretName; with other sides, remove rendezvous",
        );
    }
    let Some(carrier) = &spec.carrier else {
        return (spec.side == Side::Entry)
            .then_some("side Entry needs carrier, with address or rendezvous");
    };
    if let Some(address) = &carrier.address
        && spec.side == Side::Entry
        && !is_address(address)
    {
        return Some("invalid carrier.address: expected host:port");
    }
    let sentence = match (spec.side, &carrier.address, &carrier.rendezvous) {
        (Side::Entry, None, None) => "side Entry needs carrier.address or carrier.rendezvous",
        (Side::Entry | Side::Exit, Some(_), Some(_)) => {
            "carrier.address and carrier.rendezvous exclude each other: remove one of them"
        }
        (Side::Both, Some(_), _) => {
            "carrier.address is only for sides Entry and Exit, and side Both has its own exit: remove carrier.address"
        }
        (Side::Both, _, Some(_)) => {
            "carrier.rendezvous is only for sides Entry and Exit, and the entry of side Both dials its exit: remove carrier.rendezvous"
        }
        (Side::Rendezvous, _, _) => {
            "side Rendezvous has no carrier: set carrier in the MuxTunnels of the entry and the exit"
        }
        _ => return None,
    };
    Some(sentence)
}

fn of_forward(forward: &Forward, spec: &MuxTunnelSpec) -> Option<&'static str> {
    let protocol = forward.listen.protocol();
    let carrier = spec.carrier.as_ref();
    let protocol_of_carriers = carrier.map(|carrier| carrier.protocol).unwrap_or_default();
    let can = configured(protocol_of_carriers).can();
    let proxy = forward.proxy_protocol.unwrap_or_default();
    let target = forward.target.as_ref();
    if target.is_some_and(|target| target.service.is_some() == target.address.is_some()) {
        return Some("target needs exactly one of service and address");
    }
    let sentence = match (protocol, target) {
        (ListenProtocol::Tcp, None) => {
            "listen.protocol Tcp needs a target: set target, or use Socks5, HttpConnect or Auto, whose clients name their \
             targets"
        }
        (ListenProtocol::Socks5 | ListenProtocol::HttpConnect, Some(_)) => {
            "each client names its target: remove target, and allow the targets in policy"
        }
        (_, Some(_)) if forward.auth.is_some() => {
            "gateways do not authenticate clients of a forward with a target: remove auth, or use Socks5, HttpConnect, or Auto \
             without a target"
        }
        _ if proxy.send && !can.source => "proxyProtocol.send needs carrier.protocol Native",
        _ if is_reverse(forward) && !can.listen => {
            "direction ExitToEntry needs carrier.protocol Native, HTTP2, QUIC or Auto"
        }
        _ if is_reverse(forward)
            && (protocol != ListenProtocol::Tcp || forward.proxy_protocol.is_some()) =>
        {
            "direction ExitToEntry needs listen.protocol Tcp, and no proxyProtocol"
        }
        _ => return None,
    };
    Some(sentence)
}
