//! The gateways of each end of an object. Pure.

use std::collections::BTreeMap;

use k8s_openapi::api::networking::v1::NetworkPolicyPeer;
use muxtunnel_contract::defaults;
use muxtunnel_crds::{
    CarrierService, Clients, ClientsType, ContainerName, Gateway, HostPort, Resources, Ssh,
    Template,
};
use muxtunnel_gateway_config::Cidr;

use super::security::Source;
use super::{Replicas, ValidatedSecurity};
use crate::labels;
use crate::tunnel_controller::dereference::Live;
use crate::tunnel_controller::end::End;
use crate::tunnel_controller::holder::Holder;
use crate::tunnel_controller::object::Object;

/// Default for the number of carriers of a MuxExit, and of carriers that a rendezvous joins. The
/// pipes of that many joined carriers use at most 512 MiB.
const CARRIERS_DEFAULT: u32 = 256;

/// The gateways of one end.
#[derive(Debug, Clone, PartialEq)]
pub struct ValidatedGateway {
    /// Number of pods.
    pub replicas: Replicas,
    /// Seconds from SIGTERM until open streams are reset.
    pub drain_seconds: u32,
    /// Settings of the pods.
    pub template: Template,
    /// The security of the carriers.
    pub security: ValidatedSecurity,
    /// The port that other gateways dial. An entry has none, and an exit that waits at a rendezvous.
    pub carrier_port: Option<CarrierPort>,
    /// Maximum number of carriers, if the spec decides it.
    pub carriers: Option<u32>,
    /// For an exit: the ssh server.
    pub ssh: Option<Ssh>,
}

/// The port that other gateways dial.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct CarrierPort {
    /// The Service.
    pub service: CarrierService,
    /// The gateways that the NetworkPolicy admits. `None`: all clients.
    pub clients: Option<Vec<NetworkPolicyPeer>>,
    /// The load balancers whose PROXY headers are accepted.
    pub trusted_proxies: Vec<Cidr>,
    /// The address in the status, instead of the Service's.
    pub advertised: Option<HostPort>,
}

impl CarrierPort {
    /// The carrier port of a MuxTunnel's own exit, which only the tunnel's entry dials.
    fn of_own_exit(holder: &Holder) -> Self {
        let kind = holder.kind.name();
        let entry = labels::selector(kind, &holder.name, End::Entry.component());
        Self {
            clients: Some(vec![NetworkPolicyPeer {
                pod_selector: Some(labels::having(entry)),
                ..NetworkPolicyPeer::default()
            }]),
            ..Self::default()
        }
    }

    fn of(
        service: Option<&CarrierService>,
        from: Option<&Clients>,
        trusted_proxies: &[Cidr],
    ) -> Self {
        Self {
            service: service.cloned().unwrap_or_default(),
            clients: Clients::admitted(from, ClientsType::Any),
            trusted_proxies: trusted_proxies.to_vec(),
            advertised: None,
        }
    }
}

/// The port of the gateways of `end` that other gateways dial.
fn carrier_port(source: &Source<'_>, end: End) -> Option<CarrierPort> {
    match source.object {
        Object::Tunnel(_) => (end == End::Exit).then(|| CarrierPort::of_own_exit(source.holder)),
        Object::Exit(exit) => {
            let spec = &exit.spec;
            let (service, from) = (spec.service.as_ref(), spec.from.as_ref());
            spec.rendezvous.is_empty().then(|| CarrierPort {
                advertised: spec.advertised_endpoint.clone(),
                ..CarrierPort::of(service, from, &spec.trusted_proxies)
            })
        }
        Object::Rendezvous(own) => {
            let spec = &own.spec;
            let (service, from) = (spec.service.as_ref(), spec.from.as_ref());
            Some(CarrierPort::of(service, from, &spec.trusted_proxies))
        }
    }
}

/// The gateways of the object's ends.
pub(super) fn of(
    source: &Source<'_>,
    live: &Live,
) -> Result<BTreeMap<End, ValidatedGateway>, String> {
    let gateway = |end: End| Ok((end, gateway(source, end, live)?));
    source.object.ends().map(gateway).collect()
}

fn gateway(source: &Source<'_>, end: End, live: &Live) -> Result<ValidatedGateway, String> {
    let object = source.object;
    let mut asked = asked(object, end);
    let template = source.class.template(&asked.template.unwrap_or_default());
    asked.template = Some(template.clone());
    check_autoscaling(&asked, end)?;
    // Only one gateway knows all registrations at a rendezvous. The packets of a network need exactly
    // one gateway at each end.
    let replicas = match object.has_network() || object.rendezvous().is_some() {
        true => Replicas::Fixed(1),
        false => Replicas::of(&asked, live.deployments.get(&end).map(AsRef::as_ref)),
    };
    let limits = match object {
        Object::Tunnel(_) => None,
        Object::Exit(exit) => Some(exit.spec.limits.unwrap_or_default()),
        Object::Rendezvous(own) => Some(own.spec.limits.unwrap_or_default()),
    };
    Ok(ValidatedGateway {
        replicas,
        drain_seconds: asked.drain_seconds.unwrap_or(defaults::DRAIN_SECONDS),
        template,
        security: source.security(end)?,
        carrier_port: carrier_port(source, end),
        carriers: limits.map(|limits| limits.carriers.unwrap_or(CARRIERS_DEFAULT)),
        ssh: object
            .exit()
            .and_then(|exit| exit.spec.ssh.as_deref().cloned()),
    })
}

/// The resources of the container `name` in the template.
pub(in crate::tunnel_controller) fn resources_of(
    template: &Template,
    name: ContainerName,
) -> Option<&Resources> {
    let mut containers = template.spec.as_ref()?.containers.iter();
    let container = containers.find(|container| container.name == name)?;
    container.resources.as_ref()
}

/// The default CPU request is so small that the usage under any traffic is a multiple of the request.
fn check_autoscaling(asked: &Gateway, end: End) -> Result<(), String> {
    let template = asked.template.as_ref();
    let resources = template.and_then(|template| resources_of(template, ContainerName::Gateway));
    let has_cpu = resources.is_some_and(|resources| {
        let amounts = [&resources.requests, &resources.limits];
        amounts.iter().any(|amounts| amounts.contains_key("cpu"))
    });
    if asked.autoscaling.is_none() || has_cpu {
        return Ok(());
    }
    let end = end.component();
    Err(format!(
        "autoscaling of the {end} gateways measures CPU time in percent of the request: set resources.requests.cpu of \
         the container gateway in template.spec.containers"
    ))
}

/// The fields of the pods of `end`.
fn asked(object: &Object, end: End) -> Gateway {
    match object {
        Object::Rendezvous(own) => Gateway {
            drain_seconds: own.spec.drain_seconds,
            template: own.spec.template.clone(),
            ..Gateway::default()
        },
        _ => object.gateway(end).cloned().unwrap_or_default(),
    }
}
