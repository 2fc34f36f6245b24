//! The Service in front of a gateway: the forwards' ports of an entry, the carrier port of an exit.

use k8s_openapi::api::core::v1::{Service, ServicePort, ServiceSpec};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use muxtunnel_gateway_config::CARRIER_PORT;

use super::{End, metadata};
use crate::labels;
use crate::tunnel_controller::validate::{ValidatedGateway, ValidatedTunnel};

pub(super) fn build(tunnel: &ValidatedTunnel, end: End, gateway: &ValidatedGateway) -> Service {
    let mut metadata = metadata(tunnel, end);
    if !gateway.service_annotations.is_empty() {
        metadata.annotations = Some(gateway.service_annotations.clone());
    }
    let ports = match end {
        End::Entry => tunnel
            .listen_ports
            .iter()
            .map(|(name, number)| port(name, *number))
            .collect(),
        End::Exit => vec![port("carrier", CARRIER_PORT)],
    };
    Service {
        metadata,
        spec: Some(ServiceSpec {
            type_: Some(gateway.service_type.as_str().to_owned()),
            selector: Some(labels::child(&tunnel.name, end.component())),
            ports: Some(ports),
            ..ServiceSpec::default()
        }),
        status: None,
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
