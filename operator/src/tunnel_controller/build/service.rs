//! The Services of gateways: in front of each side with the ports of the forwards that it listens for, in front of
//! what carriers lead to with their port as well, and a headless one, by which entries find each exit's pod: the
//! carriers of a session lead to one.

use k8s_openapi::api::core::v1::{Service, ServicePort, ServiceSpec};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use muxtunnel_gateway_config::CARRIER_PORT;

use super::{End, metadata};
use crate::labels;
use crate::tunnel_controller::validate::{ValidatedGateway, ValidatedSecurity, ValidatedTunnel};

/// `None`: nobody would reach anything by it.
pub(super) fn build(
    tunnel: &ValidatedTunnel,
    end: End,
    gateway: &ValidatedGateway,
) -> Option<Service> {
    let mut metadata = metadata(tunnel, end);
    if !gateway.service_annotations.is_empty() {
        metadata.annotations = Some(gateway.service_annotations.clone());
    }
    let carriers = end
        .is_dialled(tunnel)
        .then(|| carrier_port(tunnel, gateway));
    let listened = tunnel.listen_ports.iter();
    let listened = listened.filter(|port| port.reverse == (end == End::Exit));
    let ports: Vec<_> = carriers
        .into_iter()
        .chain(listened.map(|listened| port(&listened.name, listened.port)))
        .collect();
    (!ports.is_empty()).then(|| Service {
        metadata,
        spec: Some(ServiceSpec {
            type_: Some(gateway.service_type.as_str().to_owned()),
            selector: Some(labels::child(&tunnel.name, end.component())),
            ports: Some(ports),
            ..ServiceSpec::default()
        }),
        status: None,
    })
}

pub(super) fn headless(tunnel: &ValidatedTunnel, gateway: &ValidatedGateway) -> Service {
    let mut metadata = metadata(tunnel, End::Exit);
    metadata.name = Some(format!("{}-headless", End::Exit.child_name(tunnel)));
    Service {
        metadata,
        spec: Some(ServiceSpec {
            type_: Some("ClusterIP".to_owned()),
            cluster_ip: Some("None".to_owned()),
            selector: Some(labels::child(&tunnel.name, End::Exit.component())),
            ports: Some(vec![carrier_port(tunnel, gateway)]),
            ..ServiceSpec::default()
        }),
        status: None,
    }
}

/// What is in front of it is told where carriers are WebSocket connections (Kubernetes' standard names).
fn carrier_port(tunnel: &ValidatedTunnel, gateway: &ValidatedGateway) -> ServicePort {
    let tls = matches!(gateway.security, ValidatedSecurity::MutualTls { .. });
    let protocol = if tls {
        "kubernetes.io/wss"
    } else {
        "kubernetes.io/ws"
    };
    ServicePort {
        app_protocol: tunnel.web_socket.as_ref().map(|_| protocol.to_owned()),
        ..port("carrier", CARRIER_PORT)
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
