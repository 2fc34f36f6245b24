//! The gateways of each end of an object. Pure.

use std::collections::BTreeMap;

use muxtunnel_contract::defaults;
use muxtunnel_crds::{
    CarrierService, ClientsType, ContainerName, Gateway, HostPort, MuxExitSpec, Resources,
    ServiceSettings, Template,
};
use muxtunnel_gateway_config as config;
use muxtunnel_gateway_config::Cidr;

use super::security::Source;
use super::{Clients, Replicas, ValidatedSecurity, ValidatedSsh, each};
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
    pub ssh: Option<ValidatedSsh>,
}

/// The port that other gateways dial.
#[derive(Debug, Clone, PartialEq)]
pub struct CarrierPort {
    /// The settings of the Service.
    pub settings: ServiceSettings,
    /// The port of the Service.
    pub port: u16,
    /// The port of the nodes.
    pub node_port: Option<u16>,
    /// The gateways that the NetworkPolicy permits.
    pub clients: Clients,
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
            settings: ServiceSettings::default(),
            port: CarrierService::PORT_DEFAULT,
            node_port: None,
            clients: Clients::pods(labels::having(entry)),
            trusted_proxies: Vec::new(),
            advertised: None,
        }
    }

    fn of(
        service: Option<&CarrierService>,
        from: Option<&muxtunnel_crds::Clients>,
        trusted: &[String],
    ) -> Result<Self, String> {
        let service = service.cloned().unwrap_or_default();
        Ok(Self {
            port: service.port(),
            node_port: service.node_port,
            settings: service.settings,
            clients: Clients::of(from, ClientsType::Any),
            trusted_proxies: trusted_proxies(trusted)?,
            advertised: None,
        })
    }

    fn of_exit(spec: &MuxExitSpec) -> Result<Option<Self>, String> {
        if !spec.rendezvous.is_empty() {
            return Ok(None);
        }
        let port = Self::of(
            spec.service.as_ref(),
            spec.from.as_ref(),
            &spec.trusted_proxies,
        )?;
        let advertised = spec.advertised_endpoint.clone();
        Ok(Some(Self { advertised, ..port }))
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
    let carrier_port = match (object, end) {
        (Object::Tunnel(_), End::Exit) => Some(CarrierPort::of_own_exit(source.holder)),
        (Object::Tunnel(_), _) => None,
        (Object::Exit(exit), _) => CarrierPort::of_exit(&exit.spec)?,
        (Object::Rendezvous(own), _) => {
            let spec = &own.spec;
            let service = (spec.service.as_ref(), spec.from.as_ref());
            Some(CarrierPort::of(
                service.0,
                service.1,
                &spec.trusted_proxies,
            )?)
        }
    };
    let limits = match object {
        Object::Tunnel(_) => None,
        Object::Exit(exit) => Some(exit.spec.limits.as_ref()),
        Object::Rendezvous(own) => Some(own.spec.limits.as_ref()),
    };
    let carriers = limits.map(|limits| limits.and_then(|limits| limits.carriers));
    let ssh = object.exit().and_then(|exit| exit.spec.ssh.as_deref());
    Ok(ValidatedGateway {
        replicas,
        drain_seconds: asked.drain_seconds.unwrap_or(defaults::DRAIN_SECONDS),
        template,
        security: source.security(end)?,
        carrier_port,
        carriers: carriers.map(|carriers| carriers.unwrap_or(CARRIERS_DEFAULT)),
        ssh: ssh.map(ValidatedSsh::of),
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
    let sentence = || {
        let end = end.component();
        format!(
            "autoscaling of the {end} gateways measures CPU time in percent of the request: set resources.requests.cpu of \
             the container gateway in template.spec.containers"
        )
    };
    match asked.autoscaling.is_some() && !has_cpu {
        true => Err(sentence()),
        false => Ok(()),
    }
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

/// The networks of load balancers in front of the carrier port.
fn trusted_proxies(asked: &[String]) -> Result<Vec<Cidr>, String> {
    let field = "trustedProxies";
    let networks = each(field, asked, |text| text.parse::<Cidr>())?;
    config::check_trusted_proxies(field, &networks).map_err(|error| error.to_string())?;
    Ok(networks)
}
