//! The Services of gateways: for the ports of clients, as the spec names them; for the carrier port
//! of an exit or a rendezvous; for users of ssh. A headless Service lets entries find each pod of an
//! exit of the same object, because all carriers of a session have to reach one pod.
//!
//! Carriers, ports of clients and ssh never share a Service, because remote entries need a public
//! Service for carriers.

use k8s_openapi::api::core::v1::{
    ClientIPConfig, Service, ServicePort, ServiceSpec, SessionAffinityConfig,
};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use muxtunnel_crds::{Carrier, CarrierService, ServiceSettings, ServiceType};
use muxtunnel_gateway_config::CARRIER_PORT;

use super::{End, named, selector};
use crate::pods::some;
use crate::tunnel_controller::object::Kind;
use crate::tunnel_controller::validate::{
    HEADLESS, SSH, ValidatedGateway, ValidatedObject, ValidatedSecurity,
};

/// The protocol of a port.
pub(super) const TCP: &str = "TCP";
const UDP: &str = "UDP";
/// A value of `sessionAffinity`.
const CLIENT_IP: &str = "ClientIP";
const NO_AFFINITY: &str = "None";
const AFFINITY_SECONDS_MAX: i32 = 86_400;

/// All Services of the object.
pub(super) fn all(object: &ValidatedObject) -> Vec<Service> {
    let clients = object.services.iter().map(|asked| {
        let ports = asked.ports.iter();
        let ports = ports.map(|asked| port(&asked.name, asked.port, asked.node_port));
        let place = (asked.end, asked.name.clone());
        service(object, place, &asked.settings, ports.collect())
    });
    let gateways = object.gateways.iter();
    let others = gateways.flat_map(|(end, gateway)| {
        let carriers = gateway.carrier_port.as_ref();
        let carriers = carriers.map(|port| carriers_of(object, *end, (gateway, &port.service)));
        carriers
            .into_iter()
            .flatten()
            .chain(ssh(object, *end, gateway))
    });
    clients.chain(others).collect()
}

/// The Services for carriers. Entries of the same object also need the headless one.
fn carriers_of(
    object: &ValidatedObject,
    end: End,
    (gateway, asked): (&ValidatedGateway, &CarrierService),
) -> Vec<Service> {
    let place = (end, object.child(end));
    let ports = carrier_ports(object, gateway, asked);
    let mut balanced = service(object, place, &asked.settings, ports);
    let affinity = affinity(object, gateway, asked);
    let spec = balanced.spec.get_or_insert_default();
    spec.session_affinity_config = (affinity.as_deref() == Some(CLIENT_IP)).then(longest_affinity);
    spec.session_affinity = affinity;
    let headless = object.finds_pods().then(|| {
        let place = (end, format!("{}-{HEADLESS}", object.child(end)));
        let asked = CarrierService {
            // The pods' own port, because a headless Service does not translate ports.
            port: Some(CARRIER_PORT),
            ..asked.clone()
        };
        let ports = carrier_ports(object, gateway, &asked);
        let mut service = service(object, place, &ServiceSettings::default(), ports);
        service.spec.get_or_insert_default().cluster_ip = Some("None".to_owned());
        service
    });
    [balanced].into_iter().chain(headless).collect()
}

/// The session affinity of the Service for carriers. A session is in one pod, so with several pods the
/// affinity directs further carriers of a session to the session's pod. Entries of the same object
/// need the affinity only with the transport `Auto`, because they find the pods by the headless
/// Service. The affinity applies per port, so `Auto` has none between TCP and UDP. Load balancers get
/// no affinity, because some clouds refuse a load balancer with an affinity. `None` means the API
/// server's default.
fn affinity(
    object: &ValidatedObject,
    gateway: &ValidatedGateway,
    asked: &CarrierService,
) -> Option<String> {
    let carrier = &object.carrier.connection;
    let balanced = asked.settings.type_() == ServiceType::LoadBalancer;
    let affinity = match gateway.replicas.most() > 1 && !balanced {
        true => CLIENT_IP,
        false => NO_AFFINITY,
    };
    let is_elsewhere = object.kind() == Kind::Exit && carrier.protocol().can().resume;
    (carrier.is_any() || is_elsewhere).then(|| affinity.to_owned())
}

/// The affinity of a client lasts as long as the API server permits after the client's last
/// connection, because carriers live long.
fn longest_affinity() -> SessionAffinityConfig {
    SessionAffinityConfig {
        client_ip: Some(ClientIPConfig {
            timeout_seconds: Some(AFFINITY_SECONDS_MAX),
        }),
    }
}

/// The Service for users of ssh.
fn ssh(object: &ValidatedObject, end: End, gateway: &ValidatedGateway) -> Option<Service> {
    let ssh = gateway.ssh.as_ref()?;
    let asked = ssh.service.clone().unwrap_or_default();
    let ports = vec![port(SSH, ssh.port(), asked.node_port)];
    let place = (end, ssh_name(object));
    Some(service(object, place, &asked.settings, ports))
}

/// The name of the Service for users of ssh.
pub(in crate::tunnel_controller) fn ssh_name(object: &ValidatedObject) -> String {
    format!("{}-{SSH}", object.child(End::Exit))
}

/// The Service `name` for the pods of `end`.
fn service(
    object: &ValidatedObject,
    (end, name): (End, String),
    asked: &ServiceSettings,
    ports: Vec<ServicePort>,
) -> Service {
    let is_balanced = asked.type_() == ServiceType::LoadBalancer;
    // The API server refuses fields of another type.
    let policy = asked.external_traffic_policy;
    let policy = policy.filter(|_| asked.type_() != ServiceType::ClusterIP);
    let mut metadata = named(object, name, end.component());
    if !asked.annotations.is_empty() {
        metadata.annotations = Some(asked.annotations.clone());
    }
    let ranges = asked.load_balancer_source_ranges.iter();
    let ranges = ranges.map(|range| format!("{range:#}")).collect();
    let families = asked.ip_families.iter();
    let families = families.map(|family| family.as_str().to_owned()).collect();
    let family_policy = asked.ip_family_policy.unwrap_or_default();
    Service {
        metadata,
        spec: Some(ServiceSpec {
            type_: Some(asked.type_().as_str().to_owned()),
            external_traffic_policy: policy.map(|policy| policy.as_str().to_owned()),
            load_balancer_class: asked.load_balancer_class.clone().filter(|_| is_balanced),
            load_balancer_source_ranges: some(ranges).filter(|_| is_balanced),
            selector: Some(selector(object, end)),
            ports: Some(ports),
            ip_families: some(families),
            ip_family_policy: Some(family_policy.as_str().to_owned()),
            ..ServiceSpec::default()
        }),
        status: None,
    }
}

/// One port per protocol. The application protocol marks WebSocket carriers for load balancers
/// (Kubernetes' standard names).
fn carrier_ports(
    object: &ValidatedObject,
    gateway: &ValidatedGateway,
    asked: &CarrierService,
) -> Vec<ServicePort> {
    let tls = matches!(gateway.security, ValidatedSecurity::Certificates { .. });
    let protocol = if tls {
        "kubernetes.io/wss"
    } else {
        "kubernetes.io/ws"
    };
    let web_socket = object.carrier.connection.web_socket.as_ref();
    let ports = carrier_port_names(&object.carrier).iter();
    ports
        .map(|(name, transport)| ServicePort {
            app_protocol: web_socket
                .filter(|_| *transport == TCP)
                .map(|_| protocol.to_owned()),
            protocol: Some((*transport).to_owned()),
            target_port: Some(IntOrString::Int(CARRIER_PORT.into())),
            ..port(name, asked.port(), asked.node_port)
        })
        .collect()
}

/// The names and the protocols of the carrier ports.
pub(super) fn carrier_port_names(carrier: &Carrier) -> &'static [(&'static str, &'static str)] {
    if carrier.connection.is_any() {
        &[("carrier", TCP), ("carrier-udp", UDP)]
    } else if carrier.connection.is_udp() {
        &[("carrier", UDP)]
    } else {
        &[("carrier", TCP)]
    }
}

fn port(name: &str, number: u16, node_port: Option<u16>) -> ServicePort {
    ServicePort {
        name: Some(name.to_owned()),
        port: i32::from(number),
        target_port: Some(IntOrString::Int(i32::from(number))),
        node_port: node_port.map(i32::from),
        protocol: Some(TCP.to_owned()),
        ..ServicePort::default()
    }
}
