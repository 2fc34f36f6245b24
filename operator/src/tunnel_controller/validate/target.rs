//! Targets: the host and port that gateways dial. Pure.

use std::net::IpAddr;

use k8s_openapi::api::core::v1::{Service, ServicePort};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use muxtunnel_codes::Code;
use muxtunnel_crds::Target;
use muxtunnel_gateway_config as config;

use super::Dereferenced;
use crate::caches::Endpoints;
use crate::tunnel_controller::object::Kind;
use crate::tunnel_controller::references::{
    EVERY, ServiceName, canonical_host, host_of_pod, service_name, services_of_host,
};

/// A target for the gateways, and its problem.
#[derive(Default)]
pub(super) struct Resolved {
    /// Removed in three cases: the Service lacks the port, the Service is an alias, or its namespace does
    /// not permit the reference. The target of a missing Service is kept.
    pub(super) target: Option<config::Target>,
    /// Why the target is not usable, as a sentence. Without a permission, it does not reveal whether the
    /// Service exists.
    pub(super) problem: Option<(Code, String)>,
    /// The host name of a Service without permission, which gateways dialled while it was permitted.
    pub(super) denied: Option<String>,
}

impl Resolved {
    fn without_target(code: Code, sentence: String) -> Self {
        Self {
            problem: Some((code, sentence)),
            ..Self::default()
        }
    }
}

/// What decides the meaning of a target.
#[derive(Clone, Copy)]
pub(super) struct Scope<'a> {
    pub(super) kind: Kind,
    pub(super) namespace: &'a str,
    pub(super) named: &'a Dereferenced,
    /// Whether gateways of the object dial the target.
    pub(super) is_dialled_here: bool,
}

impl Scope<'_> {
    pub(super) fn resolve(&self, target: &Target) -> Resolved {
        let Target {
            service_ref,
            host,
            port,
        } = target;
        let wrong = |sentence: &str| {
            Resolved::without_target(Code::TargetServiceNotFound, sentence.to_owned())
        };
        match (service_ref, host) {
            // The operator does not know the Services of another cluster.
            (Some(_), _) if !self.is_dialled_here => wrong(
                "serviceRef needs an exit of the same object: with connect, name the target in host",
            ),
            (Some(service), _) => self.of_service(&service_name(service, self.namespace), *port),
            (None, Some(host)) if self.is_dialled_here => self.of_host(host, *port),
            // Gateways of another cluster resolve and dial the target.
            (None, Some(host)) => tcp(lower_case(host), *port),
            (None, None) => wrong("the target has neither serviceRef nor host: set one of both"),
        }
    }

    fn of_service(&self, service: &ServiceName, port: u16) -> Resolved {
        let host = format!("{}.{}.svc", service.name, service.namespace);
        if let Some(forbidden) = self.forbidden(service, &host) {
            return forbidden;
        }
        match self.service_port(port, service) {
            Ok(port) => Resolved {
                problem: self.unready(service),
                ..tcp(host, port)
            },
            Err(Unusable::Absent(absent)) => Resolved {
                problem: Some((Code::TargetServiceNotFound, absent)),
                ..tcp(host, port)
            },
            Err(Unusable::Wrong(wrong)) => {
                Resolved::without_target(Code::TargetServiceNotFound, wrong)
            }
        }
    }

    fn of_host(&self, host: &str, port: u16) -> Resolved {
        let dialled = host_of_pod(host, self.namespace, &self.named.services)
            .unwrap_or_else(|| canonical_host(host, self.namespace));
        for service in services_of_host(host, self.namespace) {
            if let Some(forbidden) = self.forbidden(&service, &dialled) {
                return forbidden;
            }
            if let Some(wrong) = self.host_problem(port, &service) {
                return Resolved::without_target(Code::TargetServiceNotFound, wrong);
            }
        }
        tcp(dialled, port)
    }

    fn forbidden(&self, service: &ServiceName, host: &str) -> Option<Resolved> {
        let sentence = || not_permitted(service, (self.kind, self.namespace));
        let is_forbidden = self.named.forbidden.contains(service);
        is_forbidden.then(|| Resolved {
            denied: Some(host.to_owned()),
            ..Resolved::without_target(Code::TargetNotPermitted, sentence())
        })
    }

    /// The problem of a Service without a ready endpoint. `None` if the endpoints are not known.
    fn unready(&self, service: &ServiceName) -> Option<(Code, String)> {
        let endpoints = self.named.endpoints.get(service)?;
        let sentence = || format!("{} has no ready endpoints", self.noun(service));
        (!endpoints.ready).then(|| (Code::TargetNotReady, sentence()))
    }

    /// The problem of an existing Service whose host name is a target. For a Service of another
    /// namespace, the port must be a port of the Service, because a grant covers only these ports.
    /// Without this check, the name of a headless Service would give access to all ports of its pods,
    /// because it resolves to them.
    fn host_problem(&self, port: u16, name: &ServiceName) -> Option<String> {
        let service = self.named.services.get(name)?;
        if name.namespace == self.namespace {
            return leads_elsewhere(&self.noun(name), service);
        }
        match self.service_port(port, name) {
            Err(Unusable::Wrong(wrong)) => Some(wrong),
            Ok(_) | Err(Unusable::Absent(_)) => None,
        }
    }

    fn noun(&self, name: &ServiceName) -> String {
        match name.namespace == self.namespace {
            true => format!("Service {}", name.name),
            false => format!("Service {} of namespace {}", name.name, name.namespace),
        }
    }

    fn service_port(&self, asked: u16, name: &ServiceName) -> Result<u16, Unusable> {
        let noun = self.noun(name);
        let service = self.named.services.get(name);
        let service = service.ok_or_else(|| Unusable::Absent(format!("{noun} does not exist")))?;
        if let Some(elsewhere) = leads_elsewhere(&noun, service) {
            return Err(Unusable::Wrong(elsewhere));
        }
        let spec = service.spec.as_ref();
        let ports = spec
            .into_iter()
            .flat_map(|spec| spec.ports.iter().flatten());
        let mut tcp = ports.filter(|port| matches!(port.protocol.as_deref(), None | Some("TCP")));
        let found = tcp.find(|port| port.port == i32::from(asked));
        let found =
            found.ok_or_else(|| Unusable::Wrong(format!("{noun} has no TCP port {asked}")))?;
        let is_headless = spec.is_some_and(|spec| spec.cluster_ip.as_deref() == Some("None"));
        if !is_headless {
            return Ok(asked);
        }
        pod_port(found, self.named.endpoints.get(name)).map_err(|problem| {
            Unusable::Wrong(format!(
                "{noun} is headless, and its port {asked} {problem}"
            ))
        })
    }
}

/// Why another namespace does not permit the reference to `service`, for an object of this kind and
/// namespace.
pub(super) fn not_permitted(service: &ServiceName, (kind, namespace): (Kind, &str)) -> String {
    let (of, name) = (service.namespace.as_str(), service.name.as_str());
    if of == EVERY {
        return "the pattern covers the Services of all namespaces, which no grant can permit: write *.NAMESPACE.svc for each namespace"
            .to_owned();
    }
    let (services, grant) = match name {
        EVERY => ("all its Services".to_owned(), " that names no Service"),
        _ => (format!("a Service {name}"), ""),
    };
    format!(
        "namespace {of} does not permit objects of kind {} in namespace {namespace} to refer to {services}: create a \
         ReferenceGrant or MuxGrant there{grant}",
        kind.name()
    )
}

fn tcp(host: String, port: u16) -> Resolved {
    Resolved {
        target: Some(config::Target::Tcp { host, port }),
        ..Resolved::default()
    }
}

/// The canonical form that both ends compare.
fn lower_case(host: &str) -> String {
    host.parse::<IpAddr>()
        .map_or_else(|_| host.to_ascii_lowercase(), |address| address.to_string())
}

/// Why a Service is not usable as a target, as a sentence.
#[derive(Debug, PartialEq, Eq)]
enum Unusable {
    /// The Service does not exist. The Service may be recreated soon.
    Absent(String),
    /// The Service lacks the port, or is an alias.
    Wrong(String),
}

/// A Service of type ExternalName is an alias of any host, including a host for which the Service's
/// namespace has no permission.
fn leads_elsewhere(noun: &str, service: &Service) -> Option<String> {
    let type_ = service.spec.as_ref().and_then(|spec| spec.type_.as_deref());
    (type_ == Some("ExternalName"))
        .then(|| format!("{noun} is of type ExternalName: name its external host in host"))
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
