//! Listening ports and targets of forwards. Pure.

use std::collections::BTreeMap;
use std::net::IpAddr;

use k8s_openapi::api::core::v1::{Service, ServicePort};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use muxtunnel_crds::{
    AddressTarget, Auth, Forward, ListenFrom, ListenProtocol, Priority, ProxyProtocol, Side,
    UsersSecret,
};
use muxtunnel_gateway_config::{FORWARD_LIMIT_MAX, ForwardLimits, RATE_MAX, RATE_MIN};

use super::Dereferenced;
use crate::caches::Endpoints;
use crate::tunnel_controller::references::{
    EVERY, ServiceName, canonical_host, host_of_pod, is_dialled_here, is_reverse, service_name,
    services_of_host,
};

/// Default key of a Secret with users.
const USERS_KEY: &str = "users";

/// One port of a declared forward.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListenPort {
    /// The forward's name.
    pub name: String,
    /// The port.
    pub port: u16,
    /// Whether the exit listens.
    pub reverse: bool,
    /// The clients that the NetworkPolicy permits.
    pub clients: Clients,
}

/// The clients of a port.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Clients {
    /// Any client is permitted.
    All,
    /// Only these clients are permitted.
    Some {
        /// Pods with these labels in these namespaces. If the list of namespaces is empty, pods in
        /// the tunnel's namespace.
        pods: Option<(Vec<String>, BTreeMap<String, String>)>,
        /// Networks in CIDR notation.
        ip_blocks: Vec<String>,
    },
}

impl Clients {
    /// The clients in `listen.from`. The default is all pods of the tunnel's namespace.
    pub(super) fn of(asked: Option<&ListenFrom>) -> Self {
        let asked = asked.cloned().unwrap_or_default();
        if asked.all {
            return Self::All;
        }
        let has_pods = !asked.namespaces.is_empty() || !asked.pod_labels.is_empty();
        Self::Some {
            pods: (has_pods || asked.ip_blocks.is_empty())
                .then_some((asked.namespaces, asked.pod_labels)),
            ip_blocks: asked.ip_blocks,
        }
    }
}

/// A forward with a known target, or whose clients name the target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ValidatedForward {
    /// The forward's name.
    pub name: String,
    /// The port that the listening end opens.
    pub listen_port: u16,
    /// The protocol on this port.
    pub protocol: ListenProtocol,
    /// Whether the exit listens and the entry dials.
    pub reverse: bool,
    /// Host and port. The side that dials resolves the host. `None` if each client names its
    /// target.
    pub target: Option<(String, u16)>,
    /// The permitted users. `None` permits any client.
    pub users: Option<UsersFile>,
    /// Whether gateways accept and send clients' addresses in PROXY headers.
    pub proxy_protocol: ProxyProtocol,
    /// The scheduling priority of the forward's streams.
    pub priority: Priority,
    /// The limits of the forward's streams.
    pub limits: ForwardLimits,
}

/// A key of a Secret with users. The gateways mount the Secret, and the operator never reads it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct UsersFile {
    /// Name of the Secret.
    pub secret: String,
    /// The key.
    pub key: String,
}

pub(super) fn limits(forward: &Forward) -> Result<ForwardLimits, String> {
    let asked = forward.limits.clone().unwrap_or_default();
    for (field, limit) in [
        ("streams", asked.streams),
        ("opensPerSecond", asked.opens_per_second),
    ] {
        if let Some(limit) = limit.filter(|limit| !(1..=FORWARD_LIMIT_MAX).contains(limit)) {
            return Err(format!(
                "limits.{field} {limit} is not a number from 1 to {FORWARD_LIMIT_MAX}"
            ));
        }
    }
    let rate = asked.rate.map(|text| match text.parse() {
        Ok(rate) if (RATE_MIN..=RATE_MAX).contains(&rate) => Ok(rate),
        _ => Err(format!(
            "limits.rate {text:?} is not a rate from {RATE_MIN} to {RATE_MAX}"
        )),
    });
    Ok(ForwardLimits {
        streams: asked.streams,
        opens_per_second: asked.opens_per_second,
        rate: rate.transpose()?,
    })
}

/// Why a forward has no usable target, as a sentence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Missing {
    /// The Service or its port is missing.
    Service(String),
    /// The Service's namespace does not permit the reference. The sentence does not reveal whether
    /// the Service exists.
    Permission {
        sentence: String,
        /// The Service's host name, which gateways dialled while it was permitted.
        host: String,
    },
}

/// Returns the target of a forward and its problem. The forward of a missing Service is kept if the
/// port number is known. The forward is removed in four cases: the Service is missing and the port
/// is a name, the Service lacks the port, the Service is an alias, or its namespace does not permit
/// the reference.
pub(super) fn resolve(
    forward: &Forward,
    limits: ForwardLimits,
    (namespace, side): (&str, Side),
    named: &Dereferenced,
) -> (Option<ValidatedForward>, Option<Missing>) {
    let leading = |target: Option<(String, u16)>| ValidatedForward {
        name: forward.name.clone(),
        listen_port: forward.listen.port,
        protocol: forward.listen.protocol(),
        reverse: is_reverse(forward),
        target,
        users: forward.auth.as_ref().map(users),
        proxy_protocol: forward.proxy_protocol.unwrap_or_default(),
        priority: forward.priority.unwrap_or_default(),
        limits,
    };
    let known = |host: String, port: u16| leading(Some((host, port)));
    let Some(target) = &forward.target else {
        return (Some(leading(None)), None);
    };
    let forbidden = |service: ServiceName, host: &str| {
        let permission = named.forbidden.contains(&service);
        permission.then(|| {
            let missing = Missing::Permission {
                sentence: not_permitted(&service, namespace),
                host: host.to_owned(),
            };
            (None, Some(missing))
        })
    };
    match (&target.service, &target.address) {
        (Some(target), _) => {
            let service = service_name(target, namespace);
            let host = format!("{}.{}.svc", service.name, service.namespace);
            let found = named.services.get(&service);
            let endpoints = named.endpoints.get(&service);
            let port = service_port(&target.port, &service, namespace, (found, endpoints));
            if let Some(forbidden) = forbidden(service, &host) {
                return forbidden;
            }
            match (port, &target.port) {
                (Ok(port), _) => (Some(known(host, port)), None),
                (Err(Unusable::Absent(missing)), IntOrString::Int(port)) => {
                    let forward = u16::try_from(*port).ok().map(|port| known(host, port));
                    (forward, Some(Missing::Service(missing)))
                }
                (Err(Unusable::Absent(missing) | Unusable::Wrong(missing)), _) => {
                    (None, Some(Missing::Service(missing)))
                }
            }
        }
        (None, Some(target)) if is_dialled_here(forward, side) => {
            let host = host_of_pod(target, namespace, &named.services)
                .unwrap_or_else(|| canonical_host(&target.host, namespace));
            for service in services_of_host(target, namespace) {
                let wrong = address_problem(target, &service, namespace, named);
                if let Some(forbidden) = forbidden(service, &host) {
                    return forbidden;
                }
                if let Some(wrong) = wrong {
                    return (None, Some(Missing::Service(wrong)));
                }
            }
            (Some(known(host, target.port)), None)
        }
        // Gateways of another cluster resolve and dial the target.
        (None, Some(target)) => (Some(known(lower_case(&target.host), target.port)), None),
        (None, None) => (
            None,
            Some(Missing::Service(
                "target is missing: set target.service or target.address".to_owned(),
            )),
        ),
    }
}

/// Why no endpoint of the target Service is ready. `None` if an endpoint is ready, or if the
/// endpoints are not known.
pub(super) fn unready(forward: &Forward, namespace: &str, named: &Dereferenced) -> Option<String> {
    let target = forward.target.as_ref()?.service.as_ref()?;
    let service = service_name(target, namespace);
    let endpoints = named.endpoints.get(&service)?;
    (!endpoints.ready).then(|| format!("{} has no ready endpoints", said(&service, namespace)))
}

pub(super) fn not_permitted(service: &ServiceName, namespace: &str) -> String {
    let ServiceName {
        namespace: of,
        name,
    } = service;
    if of == EVERY {
        return "the pattern covers the Services of all namespaces, which no grant can permit: write *.NAMESPACE.svc for each namespace"
            .to_owned();
    }
    let (services, grant) = match name.as_str() {
        EVERY => ("all its Services".to_owned(), " that names no Service"),
        _ => (format!("a Service {name}"), ""),
    };
    format!(
        "namespace {of} does not permit MuxTunnels of namespace {namespace} to refer to {services}: create a \
         ReferenceGrant or MuxGrant there{grant}"
    )
}

/// The canonical form that both ends compare.
fn lower_case(host: &str) -> String {
    host.parse::<IpAddr>()
        .map_or_else(|_| host.to_ascii_lowercase(), |address| address.to_string())
}

fn users(auth: &Auth) -> UsersFile {
    let UsersSecret { name, key } = auth.users_secret.clone();
    UsersFile {
        secret: name,
        key: key.unwrap_or_else(|| USERS_KEY.to_owned()),
    }
}

/// Why a Service is not usable as a target, as a sentence.
#[derive(Debug, PartialEq, Eq)]
enum Unusable {
    /// The Service does not exist. The Service may be recreated soon.
    Absent(String),
    /// The Service lacks the port, or is an alias.
    Wrong(String),
}

/// The problem of an existing Service whose host name is in `target.address`. For a Service of
/// another namespace, the port must be a port of the Service, because a grant covers only these
/// ports. Without this check, the name of a headless Service would give access to all ports of its
/// pods, because it resolves to them.
fn address_problem(
    target: &AddressTarget,
    name: &ServiceName,
    namespace: &str,
    named: &Dereferenced,
) -> Option<String> {
    let service = named.services.get(name)?;
    if name.namespace == namespace {
        return leads_elsewhere(&said(name, namespace), service);
    }
    let port = IntOrString::Int(target.port.into());
    let found = (Some(service), named.endpoints.get(name));
    match service_port(&port, name, namespace, found) {
        Err(Unusable::Wrong(wrong)) => Some(wrong),
        Ok(_) | Err(Unusable::Absent(_)) => None,
    }
}

/// A Service of type ExternalName is an alias of any host, including a host for which the Service's
/// namespace has no permission.
fn leads_elsewhere(named: &str, service: &Service) -> Option<String> {
    let type_ = service.spec.as_ref().and_then(|spec| spec.type_.as_deref());
    (type_ == Some("ExternalName")).then(|| {
        format!("{named} is of type ExternalName: name its external host in target.address")
    })
}

fn said(name: &ServiceName, namespace: &str) -> String {
    match name.namespace == namespace {
        true => format!("Service {}", name.name),
        false => format!("Service {} of namespace {}", name.name, name.namespace),
    }
}

fn service_port(
    port: &IntOrString,
    name: &ServiceName,
    namespace: &str,
    (service, endpoints): (Option<&Service>, Option<&Endpoints>),
) -> Result<u16, Unusable> {
    let named = said(name, namespace);
    let service = service.ok_or_else(|| Unusable::Absent(format!("{named} does not exist")))?;
    if let Some(elsewhere) = leads_elsewhere(&named, service) {
        return Err(Unusable::Wrong(elsewhere));
    }
    let ports = service
        .spec
        .iter()
        .flat_map(|spec| spec.ports.iter().flatten());
    let mut tcp = ports.filter(|port| matches!(port.protocol.as_deref(), None | Some("TCP")));
    let found = match port {
        IntOrString::Int(number) => tcp.find(|port| port.port == *number),
        IntOrString::String(name) => tcp.find(|port| port.name.as_deref() == Some(name)),
    };
    let port_text = match port {
        IntOrString::Int(number) => number.to_string(),
        IntOrString::String(name) => name.clone(),
    };
    let found =
        found.ok_or_else(|| Unusable::Wrong(format!("{named} has no TCP port {port_text}")))?;
    let is_headless = service
        .spec
        .as_ref()
        .is_some_and(|spec| spec.cluster_ip.as_deref() == Some("None"));
    if is_headless {
        return pod_port(found, endpoints).map_err(|problem| {
            Unusable::Wrong(format!(
                "{named} is headless, and its port {port_text} {problem}"
            ))
        });
    }
    number(found.port).map_err(|problem| Unusable::Wrong(format!("{named}: port {problem}")))
}

/// The port of the pods of a headless Service, because such a Service does not translate ports.
fn pod_port(port: &ServicePort, endpoints: Option<&Endpoints>) -> Result<u16, String> {
    let name = match &port.target_port {
        None => return number(port.port),
        Some(IntOrString::Int(port)) => return number(*port),
        Some(IntOrString::String(name)) => name,
    };
    let own = port.name.as_deref().unwrap_or_default();
    let numbers = endpoints.and_then(|endpoints| endpoints.ports.get(own));
    let numbers: Vec<_> = numbers.into_iter().flatten().collect();
    match numbers[..] {
        [number] => Ok(*number),
        [] => Err(format!(
            "has the targetPort {name}, which no pod has: set targetPort to a number"
        )),
        _ => Err(format!(
            "has the targetPort {name}, which has different numbers in the pods: set targetPort to a number"
        )),
    }
}

fn number(port: i32) -> Result<u16, String> {
    u16::try_from(port).map_err(|_| format!("{port} is not a port number"))
}
