//! The addresses of Services, as clients and remote gateways reach them. Pure.

use k8s_openapi::api::core::v1::Service;
use muxtunnel_crds::{Endpoint, EndpointProtocol, HostPort, ServicePortStatus, ServiceStatus};

use crate::tunnel_controller::build::service::ssh_name;
use crate::tunnel_controller::end::End;
use crate::tunnel_controller::publish::{Observation, named};

/// Maximum number of endpoints in the status.
const ENDPOINTS_MAX: usize = 8;
/// Maximum number of Services in the status.
const SERVICES_MAX: usize = 32;

/// Where other gateways dial the gateways of `end`. Empty if there is no such address, or not yet.
pub(super) fn endpoints(facts: &Observation, end: End) -> Vec<Endpoint> {
    let gateway = facts.object.gateway(end);
    let Some(asked) = gateway.and_then(|gateway| gateway.carrier_port.as_ref()) else {
        return Vec::new();
    };
    let addresses = match &asked.advertised {
        Some(HostPort { host, port }) => vec![(host.clone(), *port)],
        None => {
            let hosts = hosts(facts, &facts.object.child(end)).unwrap_or_default();
            let port = asked.service.port();
            hosts.into_iter().map(|host| (host, port)).collect()
        }
    };
    let carrier = &facts.object.carrier.connection;
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
pub(super) fn ssh(facts: &Observation) -> Option<HostPort> {
    let port = facts.object.gateway(End::Exit)?.ssh.as_ref()?.port();
    let host = hosts(facts, &ssh_name(&facts.object))?.into_iter().next()?;
    Some(HostPort { host, port })
}

/// The Services with the ports of clients. The host is absent while the load balancer has none.
pub(super) fn services(facts: &Observation) -> Vec<ServiceStatus> {
    let services = facts.object.services.iter().filter_map(|asked| {
        let ports = asked.ports.iter().map(|port| ServicePortStatus {
            name: port.name.clone(),
            port: port.port,
        });
        Some(ServiceStatus {
            name: asked.name.clone(),
            host: hosts(facts, &asked.name)?.into_iter().next(),
            ports: ports.collect(),
        })
    });
    services.take(SERVICES_MAX).collect()
}

/// The hosts of the Service `name`. Empty while its load balancer has no address, because clients
/// outside of the cluster cannot use the name of the Service. `None` without the Service.
fn hosts(facts: &Observation, name: &str) -> Option<Vec<String>> {
    let service = named(&facts.applied.services, name)?;
    let namespace = &facts.object.holder.namespace;
    Some(match is_balanced(service) {
        true => load_balancers(service).collect(),
        false => vec![format!("{name}.{namespace}.svc")],
    })
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
