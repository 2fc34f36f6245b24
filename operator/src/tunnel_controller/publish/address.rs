//! The addresses of Services, as clients and remote entries reach them. Pure.

use k8s_openapi::api::core::v1::Service;
use kube::ResourceExt;
use muxtunnel_crds::ServiceType;
use muxtunnel_gateway_config::CARRIER_PORT;

use crate::tunnel_controller::apply::Applied;
use crate::tunnel_controller::end::End;
use crate::tunnel_controller::validate::{ValidatedTunnel, is_address};

/// The `host:port` at which remote entries dial the exits of `valid`. `None` if there is no such
/// address, or not yet.
pub(in crate::tunnel_controller) fn address(
    valid: &ValidatedTunnel,
    applied: &Applied,
) -> Option<String> {
    let (exit, name) = (valid.exit.as_ref()?, End::Exit.child_name(valid));
    let service = applied.services.iter().find(|one| one.name_any() == name);
    let service_type = exit.service.type_.unwrap_or_default();
    if let Some(advertised) = &valid.advertised {
        if is_address(advertised) {
            return Some(advertised.clone());
        }
        let port = match service_type {
            ServiceType::NodePort => node_port(service?)?,
            ServiceType::ClusterIP | ServiceType::LoadBalancer => CARRIER_PORT.into(),
        };
        return Some(format!("{advertised}:{port}"));
    }
    let host = match service_type {
        ServiceType::LoadBalancer => load_balancer(service?)?,
        // Without an advertised host, only clients in the cluster reach a node port's Service.
        ServiceType::ClusterIP | ServiceType::NodePort => {
            format!("{name}.{}.svc", valid.namespace)
        }
    };
    let is_ipv6 = host.parse::<std::net::Ipv6Addr>().is_ok();
    let host = if is_ipv6 { format!("[{host}]") } else { host };
    Some(format!("{host}:{CARRIER_PORT}"))
}

/// The node port for carriers.
fn node_port(service: &Service) -> Option<i32> {
    let spec = service.spec.as_ref()?;
    let mut ports = spec.ports.iter().flatten();
    let carrier = ports.find(|port| port.name.as_deref() == Some("carrier"))?;
    carrier.node_port
}

/// The address of a Service's load balancer.
#[must_use]
pub(in crate::tunnel_controller) fn load_balancer(service: &Service) -> Option<String> {
    let ingress = service
        .status
        .as_ref()?
        .load_balancer
        .as_ref()?
        .ingress
        .as_ref()?
        .first()?;
    ingress.hostname.clone().or_else(|| ingress.ip.clone())
}

/// Whether the Service is of type LoadBalancer.
pub(in crate::tunnel_controller) fn is_balanced(service: &Service) -> bool {
    let type_ = service.spec.as_ref().and_then(|spec| spec.type_.as_deref());
    type_ == Some("LoadBalancer")
}
