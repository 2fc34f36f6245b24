//! The Services of gateways. An entry has a Service for the ports of its forwards. An exit and a
//! rendezvous have a Service for the carrier port. An exit also has Services for the ports that it
//! listens on and for users of ssh. A headless Service lets entries find each exit's pod, because
//! all carriers of a session have to reach one pod.
//!
//! Carriers, listening ports and ssh of an exit never share a Service, because remote entries need
//! a public Service for carriers.

use k8s_openapi::api::core::v1::{Service, ServicePort, ServiceSpec};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use muxtunnel_crds::{GatewayService, Protocol, ServiceType, Transport};
use muxtunnel_gateway_config::CARRIER_PORT;

use super::{End, metadata};
use crate::labels;
use crate::protocol::configured;
use crate::tunnel_controller::validate::{ValidatedGateway, ValidatedSecurity, ValidatedTunnel};

/// The protocol of a port.
pub(super) const TCP: &str = "TCP";
const UDP: &str = "UDP";
/// A value of `sessionAffinity`.
const CLIENT_IP: &str = "ClientIP";
const NO_AFFINITY: &str = "None";
/// The name of the port for users of ssh, and the suffix of its Service.
pub(super) const SSH: &str = "ssh";
/// A value of `ipFamilyPolicy`. The Service gets an address of each IP family of the cluster.
pub(crate) const PREFER_DUAL_STACK: &str = "PreferDualStack";

/// Returns `None` if the Service would have no ports.
pub(super) fn build(
    tunnel: &ValidatedTunnel,
    end: End,
    gateway: &ValidatedGateway,
) -> Option<Service> {
    let ports = match end {
        End::Entry => listened(tunnel, end),
        End::Exit | End::Rendezvous => {
            let carriers = end.is_dialled(tunnel);
            let carriers = carriers.then(|| carrier_ports(tunnel, gateway));
            carriers.unwrap_or_default()
        }
    };
    let mut service = service(tunnel, end, None, &gateway.service, ports)?;
    service.spec.get_or_insert_default().session_affinity = affinity(tunnel, end, gateway);
    Some(service)
}

/// The session affinity of an end's Service. With several exits and the protocol `Auto`, the
/// affinity directs all carriers of a session over TCP and WebSocket to one exit pod. The affinity
/// applies per port, so it does not help carriers over UDP. Load balancers get no affinity, because
/// some clouds refuse a load balancer with an affinity. `None` means the API server's default.
fn affinity(tunnel: &ValidatedTunnel, end: End, gateway: &ValidatedGateway) -> Option<String> {
    if tunnel.protocol != Protocol::Auto || end != End::Exit {
        return None;
    }
    let balanced = gateway.service.type_ == Some(ServiceType::LoadBalancer);
    let affinity = if gateway.replicas.most() > 1 && !balanced {
        CLIENT_IP
    } else {
        NO_AFFINITY
    };
    Some(affinity.to_owned())
}

/// The Service for the ports that an exit listens on.
pub(super) fn reverse(tunnel: &ValidatedTunnel, gateway: &ValidatedGateway) -> Option<Service> {
    let ports = listened(tunnel, End::Exit);
    let suffix = Some("reverse");
    service(tunnel, End::Exit, suffix, &gateway.reverse_service, ports)
}

/// The Service for users of ssh.
pub(super) fn ssh(tunnel: &ValidatedTunnel) -> Option<Service> {
    let asked = End::Exit.ssh(tunnel)?;
    let ports = vec![port(SSH, asked.port)];
    service(tunnel, End::Exit, Some(SSH), &asked.service, ports)
}

/// The name of the Service for users of ssh.
pub(in crate::tunnel_controller) fn ssh_name(tunnel: &ValidatedTunnel) -> String {
    child_name(tunnel, End::Exit, SSH)
}

pub(super) fn headless(tunnel: &ValidatedTunnel, gateway: &ValidatedGateway) -> Option<Service> {
    let (asked, ports) = (GatewayService::default(), carrier_ports(tunnel, gateway));
    let mut service = service(tunnel, End::Exit, Some("headless"), &asked, ports)?;
    service.spec.get_or_insert_default().cluster_ip = Some("None".to_owned());
    Some(service)
}

/// A Service for the pods of `end`. `None` if there are no ports, because a Service needs ports.
fn service(
    tunnel: &ValidatedTunnel,
    end: End,
    suffix: Option<&str>,
    asked: &GatewayService,
    ports: Vec<ServicePort>,
) -> Option<Service> {
    let type_ = asked.type_.unwrap_or_default();
    // The API server refuses `externalTrafficPolicy` for a Service that is not reachable from
    // outside of the cluster.
    let policy = asked.external_traffic_policy;
    let policy = policy.filter(|_| type_ != ServiceType::ClusterIP);
    let mut metadata = metadata(tunnel, end);
    if let Some(suffix) = suffix {
        metadata.name = Some(child_name(tunnel, end, suffix));
    }
    if !asked.annotations.is_empty() {
        metadata.annotations = Some(asked.annotations.clone());
    }
    (!ports.is_empty()).then(|| Service {
        metadata,
        spec: Some(ServiceSpec {
            type_: Some(type_.as_str().to_owned()),
            external_traffic_policy: policy.map(|policy| policy.as_str().to_owned()),
            selector: Some(labels::child(&tunnel.name, end.component())),
            ports: Some(ports),
            ip_family_policy: Some(PREFER_DUAL_STACK.to_owned()),
            ..ServiceSpec::default()
        }),
        status: None,
    })
}

fn child_name(tunnel: &ValidatedTunnel, end: End, suffix: &str) -> String {
    format!("{}-{suffix}", end.child_name(tunnel))
}

/// The ports of the forwards that `end` listens on.
fn listened(tunnel: &ValidatedTunnel, end: End) -> Vec<ServicePort> {
    let listened = tunnel.listen_ports.iter();
    let listened = listened.filter(|port| port.reverse == (end == End::Exit));
    listened
        .map(|listened| port(&listened.name, listened.port))
        .collect()
}

/// One port per protocol. The application protocol marks WebSocket carriers for load balancers
/// (Kubernetes' standard names).
fn carrier_ports(tunnel: &ValidatedTunnel, gateway: &ValidatedGateway) -> Vec<ServicePort> {
    let tls = matches!(gateway.security, ValidatedSecurity::MutualTls { .. });
    let protocol = if tls {
        "kubernetes.io/wss"
    } else {
        "kubernetes.io/ws"
    };
    let web_socket = tunnel.web_socket.as_ref();
    let ports = carrier_port_names(tunnel).iter();
    ports
        .map(|(name, transport)| ServicePort {
            app_protocol: web_socket
                .filter(|_| *transport == TCP)
                .map(|_| protocol.to_owned()),
            protocol: Some((*transport).to_owned()),
            ..port(name, CARRIER_PORT)
        })
        .collect()
}

/// The names and the protocols of the carrier ports.
pub(super) fn carrier_port_names(
    tunnel: &ValidatedTunnel,
) -> &'static [(&'static str, &'static str)] {
    let is_udp = !configured(tunnel.protocol).can().bytes || tunnel.transport == Transport::Kcp;
    match tunnel.protocol {
        Protocol::Auto => &[("carrier", TCP), ("carrier-udp", UDP)],
        _ if is_udp => &[("carrier", UDP)],
        _ => &[("carrier", TCP)],
    }
}

fn port(name: &str, number: u16) -> ServicePort {
    ServicePort {
        name: Some(name.to_owned()),
        port: i32::from(number),
        target_port: Some(IntOrString::Int(i32::from(number))),
        protocol: Some("TCP".to_owned()),
        ..ServicePort::default()
    }
}
