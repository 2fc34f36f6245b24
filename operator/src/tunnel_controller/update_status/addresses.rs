//! The addresses of Services, as clients and remote gateways reach them. Pure.

use k8s_openapi::api::core::v1::Service;
use kube::ResourceExt;
use muxtunnel_crds::{Endpoint, EndpointProtocol, HostPort, ServicePortStatus, ServiceStatus};

use super::named;
use crate::tunnel_controller::apply::Applied;
use crate::tunnel_controller::build::service::ssh_name;
use crate::tunnel_controller::end::End;
use crate::tunnel_controller::validate::ValidatedObject;

/// Maximum number of endpoints in the status.
const ENDPOINTS_MAX: usize = 8;
/// Maximum number of Services in the status.
const SERVICES_MAX: usize = 32;

/// Where other gateways dial the gateways of `end`. Empty if there is no such address, or not yet.
pub(super) fn endpoints(object: &ValidatedObject, applied: &Applied, end: End) -> Vec<Endpoint> {
    let gateway = object.gateway(end);
    let Some(asked) = gateway.and_then(|gateway| gateway.carrier_port.as_ref()) else {
        return Vec::new();
    };
    let addresses = match &asked.advertised {
        Some(HostPort { host, port }) => vec![(host.clone(), *port)],
        None => {
            let service = named(&applied.services, &object.child(end));
            let hosts = service.map_or_else(Vec::new, |service| hosts(service, object));
            hosts
                .into_iter()
                .map(|host| (host, asked.service.port()))
                .collect()
        }
    };
    let carrier = &object.carrier.connection;
    let protocols: &[_] = match () {
        () if carrier.is_any() => &[EndpointProtocol::TCP, EndpointProtocol::UDP],
        () if carrier.is_udp() => &[EndpointProtocol::UDP],
        () => &[EndpointProtocol::TCP],
    };
    let all = addresses.into_iter().flat_map(|(host, port)| {
        protocols.iter().map(move |protocol| Endpoint {
            host: host.clone(),
            port,
            protocol: *protocol,
        })
    });
    all.take(ENDPOINTS_MAX).collect()
}

/// Where users of ssh dial the exits.
pub(super) fn ssh(object: &ValidatedObject, applied: &Applied) -> Option<HostPort> {
    let port = object.gateway(End::Exit)?.ssh.as_ref()?.port();
    let service = named(&applied.services, &ssh_name(object))?;
    let host = hosts(service, object).into_iter().next()?;
    Some(HostPort { host, port })
}

/// The Services with the ports of clients. The host is absent while the load balancer has none.
pub(super) fn services(object: &ValidatedObject, applied: &Applied) -> Vec<ServiceStatus> {
    let services = object.services.iter().filter_map(|asked| {
        let service = named(&applied.services, &asked.name)?;
        Some(ServiceStatus {
            name: asked.name.clone(),
            host: hosts(service, object).into_iter().next(),
            ports: (asked.ports.iter())
                .map(|port| ServicePortStatus {
                    name: port.name.clone(),
                    port: port.port,
                })
                .collect(),
        })
    });
    services.take(SERVICES_MAX).collect()
}

/// The hosts of a Service. Empty while its load balancer has no address, because clients outside of
/// the cluster cannot use the name of the Service.
fn hosts(service: &Service, object: &ValidatedObject) -> Vec<String> {
    let namespace = &object.holder.namespace;
    match is_balanced(service) {
        true => load_balancers(service).collect(),
        false => vec![format!("{}.{namespace}.svc", service.name_any())],
    }
}

/// The addresses of a Service's load balancer.
pub(super) fn load_balancers(service: &Service) -> impl Iterator<Item = String> {
    let status = service.status.as_ref();
    let balancer = status.and_then(|status| status.load_balancer.as_ref());
    let ingress = balancer
        .into_iter()
        .flat_map(|one| one.ingress.iter().flatten());
    ingress.filter_map(|one| one.hostname.clone().or_else(|| one.ip.clone()))
}

/// Whether the Service is of type LoadBalancer.
pub(super) fn is_balanced(service: &Service) -> bool {
    let type_ = service.spec.as_ref().and_then(|spec| spec.type_.as_deref());
    type_ == Some("LoadBalancer")
}
