//! Step 2: from what was written to what can be built. Pure, no client.
//!
//! In: the tunnel and the Services it names. Out: a [`ValidatedTunnel`] with every default decided, the
//! only thing that builders read; or the sentence that says why nothing can be built. The schema's
//! rules have refused most of what is wrong before; what was stored under an older schema comes here
//! first. A forward whose Service is missing is left out and named, the others work.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use k8s_openapi::api::core::v1::Service;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::ResourceExt;
use muxtunnel_codes::Code;
use muxtunnel_crds::{
    Backend, Carrier, CongestionControl, Duration, Forward, Gateway, MuxTunnel, PodTemplate,
    Priority, Profile, Protocol, Scope, ServiceTarget, ServiceType, Side, Tuning, tunnel_condition,
};
use muxtunnel_gateway_config::{
    ADMIN_PORT, CARRIER_PORT, FORWARD_LIMIT_MAX, FORWARDS_MAX, ForwardLimits, Pool, RATE_MAX,
    RATE_MIN, TIMEOUT_SECONDS_MAX, Timeouts,
};

use super::Error;
use super::dereference::Dereferenced;
use crate::apply::owner_reference;
use crate::settings::Settings;

/// Lets the gateways, which have no privileges, listen on any port. Safe in every Kubernetes.
const UNPRIVILEGED_PORT_START: (&str, &str) = ("net.ipv4.ip_unprivileged_port_start", "0");

/// `least default most` bytes of a socket's buffer. 128 MiB of window are 10 Gbit/s at 100 ms; the
/// kernel's default of 6 MiB is 230 Mbit/s at 100 ms in practice.
const WAN: &[(&str, &str)] = &[
    ("net.ipv4.tcp_rmem", "4096 131072 134217728"),
    ("net.ipv4.tcp_wmem", "4096 65536 67108864"),
];
/// As [`WAN`], for paths of a few milliseconds: less memory a connection.
const LAN: &[(&str, &str)] = &[
    ("net.ipv4.tcp_rmem", "4096 131072 16777216"),
    ("net.ipv4.tcp_wmem", "4096 65536 16777216"),
];

/// What came out.
#[derive(Debug)]
pub enum Validation {
    /// It can be built.
    Valid(Box<ValidatedTunnel>),
    /// It cannot; the sentence names the field.
    Invalid(String),
}

/// A tunnel that can be built, with every default decided.
#[derive(Debug, Clone, PartialEq)]
pub struct ValidatedTunnel {
    /// Name of the object.
    pub name: String,
    /// Its namespace.
    pub namespace: String,
    /// The reference by which it owns its children.
    pub owner: OwnerReference,
    /// The entry gateways, unless they are elsewhere.
    pub entry: Option<ValidatedGateway>,
    /// The exit gateways, unless they are elsewhere.
    pub exit: Option<ValidatedGateway>,
    /// Name and port of every declared forward, so that an entry's Service outlasts its targets.
    pub listen_ports: Vec<(String, u16)>,
    /// The forwards whose targets are known.
    pub forwards: Vec<ValidatedForward>,
    /// A sentence for each forward whose target Service, or its port, does not exist.
    pub unresolved: Vec<String>,
    /// `host:port` that entries dial.
    pub connect: String,
    /// The mux protocol of the carriers.
    pub protocol: Protocol,
    /// How the kernel paces the carriers.
    pub congestion_control: CongestionControl,
    /// Carriers of a session.
    pub pool: Pool,
    /// Whether streams outlive their carrier.
    pub resume: bool,
    /// When streams that nothing happens on are reset.
    pub timeouts: Timeouts,
    /// Sysctls that were asked for, by name.
    pub tuning: BTreeMap<String, String>,
    /// Emulation that was asked for and is allowed.
    pub wan: Option<ValidatedWan>,
    /// Emulation was asked for and is switched off.
    pub wan_disabled: bool,
    /// The sentence with which a kubelet refused a sysctl of this very spec.
    pub sysctl_forbidden: Option<String>,
}

/// The gateways of one side.
#[derive(Debug, Clone, PartialEq)]
pub struct ValidatedGateway {
    /// Number of pods, at least 1.
    pub replicas: i32,
    /// How the Service is exposed.
    pub service_type: ServiceType,
    /// Annotations of the Service.
    pub service_annotations: BTreeMap<String, String>,
    /// Settings of the pods.
    pub template: PodTemplate,
}

/// A forward whose target is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ValidatedForward {
    /// Its name.
    pub name: String,
    /// Port of the entry.
    pub listen_port: u16,
    /// What the exit resolves.
    pub host: String,
    /// Port of the target.
    pub port: u16,
    /// Who goes first.
    pub priority: Priority,
    /// What its streams may take.
    pub limits: ForwardLimits,
}

/// Emulation of a wide-area network.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ValidatedWan {
    /// In each direction.
    pub one_way_delay: Duration,
    /// By up to how much a packet takes more or less.
    pub jitter: Option<Duration>,
    /// The share of packets that are lost, as muxwan reads it.
    pub loss: Option<String>,
    /// What the narrowest link carries, as muxwan reads it.
    pub rate: Option<String>,
    /// What makes it.
    pub backend: Backend,
    /// Which packets are delayed.
    pub scope: Scope,
}

impl ValidatedTunnel {
    /// All sysctls of the gateways' pods.
    #[must_use]
    pub fn sysctls(&self) -> BTreeMap<String, String> {
        let (name, value) = UNPRIVILEGED_PORT_START;
        let mut sysctls = self.tuning.clone();
        sysctls.insert(name.to_owned(), value.to_owned());
        sysctls
    }

    /// Whether both ends of the carriers are ours.
    #[must_use]
    pub const fn has_both_sides(&self) -> bool {
        self.entry.is_some() && self.exit.is_some()
    }
}

/// Judges a tunnel.
///
/// # Errors
/// Only for an object that no API server could have sent.
pub fn validate(
    tunnel: &MuxTunnel,
    named: &Dereferenced,
    settings: &Settings,
) -> Result<Validation, Error> {
    let namespace = tunnel.namespace().ok_or(Error::Incomplete("namespace"))?;
    let owner = owner_reference(tunnel).ok_or(Error::Incomplete("uid"))?;
    let spec = &tunnel.spec;
    let name = tunnel.name_any();
    if let Some(problem) = problem(tunnel) {
        return Ok(Validation::Invalid(problem));
    }
    let timeouts = match timeouts(spec.timeouts) {
        Ok(timeouts) => timeouts,
        Err(problem) => return Ok(Validation::Invalid(problem)),
    };
    let mut forwards = Vec::new();
    let mut unresolved = Vec::new();
    for forward in &spec.forwards {
        let limits = match limits(forward) {
            Ok(limits) => limits,
            Err(problem) => {
                let problem = format!("forward {}: {problem}", forward.name);
                return Ok(Validation::Invalid(problem));
            }
        };
        let (known, missing) = resolve(forward, limits, &namespace, named);
        forwards.extend(known);
        unresolved.extend(missing.map(|missing| format!("forward {}: {missing}", forward.name)));
    }
    let connect = match (&spec.carrier.address, spec.side) {
        (Some(address), Side::Entry) => address.clone(),
        _ => format!("{name}-exit.{namespace}.svc:{CARRIER_PORT}"),
    };
    // A path that does nothing to packets is none that would have to be emulated.
    let wan = spec
        .wan
        .as_ref()
        .filter(|wan| !wan.delay.is_zero() || wan.loss.is_some() || wan.rate.is_some())
        .map(|wan| ValidatedWan {
            one_way_delay: wan.delay,
            jitter: wan.jitter,
            loss: wan.loss.clone(),
            rate: wan.rate.clone(),
            backend: wan.backend.unwrap_or_default(),
            scope: wan.scope.unwrap_or_default(),
        });
    let side = spec.side;
    Ok(Validation::Valid(Box::new(ValidatedTunnel {
        entry: side.has_entry().then(|| gateway(spec.entry.as_ref())),
        exit: side.has_exit().then(|| gateway(spec.exit.as_ref())),
        listen_ports: spec
            .forwards
            .iter()
            .map(|forward| (forward.name.clone(), forward.listen.port))
            .collect(),
        name,
        namespace,
        owner,
        forwards,
        unresolved,
        connect,
        protocol: spec.carrier.protocol,
        congestion_control: spec.carrier.congestion_control.unwrap_or_default(),
        pool: pool(&spec.carrier),
        resume: spec.carrier.resume.unwrap_or(true),
        timeouts,
        tuning: tuning(spec.tuning.as_ref()),
        wan_disabled: wan.is_some() && !settings.wan_emulation,
        wan: wan.filter(|_| settings.wan_emulation),
        sysctl_forbidden: sysctl_forbidden(tunnel),
    })))
}

/// As asked; else several, where streams outlive their carrier.
fn pool(carrier: &Carrier) -> Pool {
    let grows = carrier.protocol == Protocol::Native && carrier.resume.unwrap_or(true);
    match carrier.pool {
        Some(asked) => Pool {
            min: asked.min,
            max: asked.max.unwrap_or(asked.min),
        },
        None if grows => Pool::GROWING,
        None => Pool::ONE,
    }
}

/// What the schema's rules refuse, for objects that were stored before the rules.
fn problem(tunnel: &MuxTunnel) -> Option<String> {
    let spec = &tunnel.spec;
    if spec.forwards.len() > FORWARDS_MAX {
        let count = spec.forwards.len();
        return Some(format!("forwards: {count} entries, at most {FORWARDS_MAX}"));
    }
    let mut ports = BTreeSet::new();
    for forward in &spec.forwards {
        let port = forward.listen.port;
        if matches!(port, 0 | CARRIER_PORT | ADMIN_PORT) {
            return Some(format!(
                "forward {}: listen.port {port} is reserved",
                forward.name
            ));
        }
        if !ports.insert(port) {
            return Some(format!(
                "listen.port {port} is used by more than one forward"
            ));
        }
        if forward.target.service.is_some() == forward.target.address.is_some() {
            return Some(format!(
                "forward {}: target needs exactly one of service and address",
                forward.name
            ));
        }
    }
    match (spec.side, &spec.carrier.address) {
        (Side::Entry, None) => Some("side Entry needs carrier.address".to_owned()),
        (Side::Both | Side::Exit, Some(_)) => {
            Some("carrier.address is for side Entry alone".to_owned())
        }
        _ => None,
    }
}

/// Whole seconds, a part of one counted as one: 0 would be never.
fn timeouts(asked: Option<muxtunnel_crds::Timeouts>) -> Result<Timeouts, String> {
    let asked = asked.unwrap_or_default();
    let seconds = |field: &str, asked: Option<Duration>, default: u32| {
        let Some(asked) = asked else {
            return Ok(default);
        };
        u32::try_from(asked.as_millis().div_ceil(1000))
            .ok()
            .filter(|seconds| *seconds <= TIMEOUT_SECONDS_MAX)
            .ok_or_else(|| format!("timeouts.{field} {asked} is more than 720h"))
    };
    let default = Timeouts::default();
    Ok(Timeouts {
        idle_seconds: seconds("idle", asked.idle, default.idle_seconds)?,
        half_open_seconds: seconds("halfOpen", asked.half_open, default.half_open_seconds)?,
    })
}

fn limits(forward: &Forward) -> Result<ForwardLimits, String> {
    let asked = forward.limits.clone().unwrap_or_default();
    for (field, limit) in [
        ("streams", asked.streams),
        ("opensPerSecond", asked.opens_per_second),
    ] {
        if limit.is_some_and(|limit| !(1..=FORWARD_LIMIT_MAX).contains(&limit)) {
            return Err(format!("limits.{field} is not 1..={FORWARD_LIMIT_MAX}"));
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

/// A ReplicaSet makes failed pods without end where the kubelet refuses a sysctl (kubernetes#72593), so
/// a spec that was refused once is not tried again: only a new generation is.
fn sysctl_forbidden(tunnel: &MuxTunnel) -> Option<String> {
    let conditions = &tunnel.status.as_ref()?.conditions;
    conditions
        .iter()
        .find(|condition| {
            condition.type_ == tunnel_condition::TUNING_APPLIED
                && condition.reason == Code::SysctlForbidden.reason()
                && condition.observed_generation == tunnel.metadata.generation
        })
        .map(|condition| condition.message.clone())
}

fn gateway(asked: Option<&Gateway>) -> ValidatedGateway {
    let asked = asked.cloned().unwrap_or_default();
    let service = asked.service.unwrap_or_default();
    ValidatedGateway {
        replicas: asked.replicas.unwrap_or(1),
        service_type: service.type_.unwrap_or_default(),
        service_annotations: service.annotations,
        template: asked.template.unwrap_or_default(),
    }
}

fn tuning(asked: Option<&Tuning>) -> BTreeMap<String, String> {
    let Some(asked) = asked else {
        return BTreeMap::new();
    };
    let profile = match asked.profile.unwrap_or_default() {
        Profile::Wan => WAN,
        Profile::Lan => LAN,
        Profile::None => &[],
    };
    let own = asked
        .sysctls
        .iter()
        .map(|sysctl| (sysctl.name.clone(), sysctl.value.clone()));
    profile
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
        .chain(own)
        .collect()
}

/// Where a forward leads, and what is missing of it. A Service that is gone for a moment keeps its
/// forward where the port's number is known.
fn resolve(
    forward: &Forward,
    limits: ForwardLimits,
    namespace: &str,
    named: &Dereferenced,
) -> (Option<ValidatedForward>, Option<String>) {
    let known = |host: String, port: u16| ValidatedForward {
        name: forward.name.clone(),
        listen_port: forward.listen.port,
        host,
        port,
        priority: forward.priority.unwrap_or_default(),
        limits,
    };
    match (&forward.target.service, &forward.target.address) {
        (Some(target), _) => {
            let host = format!("{}.{namespace}.svc", target.name);
            match (
                service_port(target, named.services.get(&target.name)),
                &target.port,
            ) {
                (Ok(port), _) => (Some(known(host, port)), None),
                (Err(missing), IntOrString::Int(port)) => {
                    let forward = u16::try_from(*port).ok().map(|port| known(host, port));
                    (forward, Some(missing))
                }
                (Err(missing), IntOrString::String(_)) => (None, Some(missing)),
            }
        }
        (None, Some(target)) => {
            let host = canonical_host(&target.host);
            (Some(known(host, target.port)), None)
        }
        (None, None) => (None, Some("no target".to_owned())),
    }
}

/// The one spelling that both ends compare.
fn canonical_host(host: &str) -> String {
    host.parse::<IpAddr>()
        .map_or_else(|_| host.to_ascii_lowercase(), |address| address.to_string())
}

fn service_port(target: &ServiceTarget, service: Option<&Service>) -> Result<u16, String> {
    let service = service.ok_or_else(|| format!("Service {} does not exist", target.name))?;
    let ports = service
        .spec
        .iter()
        .flat_map(|spec| spec.ports.iter().flatten());
    let mut tcp = ports.filter(|port| matches!(port.protocol.as_deref(), None | Some("TCP")));
    let found = match &target.port {
        IntOrString::Int(number) => tcp.find(|port| port.port == *number),
        IntOrString::String(name) => tcp.find(|port| port.name.as_deref() == Some(name)),
    };
    let port_text = match &target.port {
        IntOrString::Int(number) => number.to_string(),
        IntOrString::String(name) => name.clone(),
    };
    found
        .and_then(|port| u16::try_from(port.port).ok())
        .ok_or_else(|| format!("Service {} has no TCP port {port_text}", target.name))
}
