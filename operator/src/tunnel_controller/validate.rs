//! Step 2: turns the spec into a tunnel that can be built. Pure, no client.
//!
//! Input: the tunnel and the results of the reads. Output: a [`ValidatedTunnel`] with all defaults
//! set, or the [`Hindrance`] that prevents building, and a [`ValidatedState`]. Both outputs are the
//! only inputs of the builders. The schema rejects most faults when an object is written. For an object that was
//! stored under an older schema, this step is the first check. If the target of a forward is not
//! usable, this step reports the forward, and omits it except in one case: the Service is missing,
//! and the port is a number. All other forwards still work.

mod benchmark;
mod carrier;
mod certificates;
mod end;
mod ends;
mod forward;
mod network;
mod peers;
mod policy;
mod problem;
mod replicas;
mod rollouts;
mod ssh;
mod state;

pub use benchmark::OwningBenchmark;
pub(super) use carrier::is_address;
pub use carrier::{ValidatedLeaf, ValidatedSecurity};
pub use certificates::{Identities, ValidatedCertificates};
pub use forward::{Clients, ListenPort, UsersFile, ValidatedForward};
pub use network::ValidatedNetwork;
pub use peers::JudgedPeer;
pub use replicas::Replicas;
pub(super) use rollouts::asked;
pub use ssh::ValidatedSsh;
pub use state::ValidatedState;
pub(super) use state::state;

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use muxtunnel_contract::sysctls;
use muxtunnel_crds::{
    Backend, CongestionControl, Duration, Forward, GatewayService, MuxTunnel, PodTemplate, Profile,
    Protocol, Scope, Side, Transport, Tuning, Wan,
};
use muxtunnel_gateway_config as config;
use muxtunnel_gateway_config::{
    Cidr, KEEPALIVE_SECONDS_MAX, LIVENESS_SECONDS_DEFAULT, Pool, TIMEOUT_SECONDS_MAX, Timeouts,
    WebSocket,
};

use super::dereference::{Dereferenced, SeenProbe};
use super::end::End;
use super::hindrance::Hindrance;
use super::holder::Holder;
use super::references::is_reverse;
use super::rollouts::Rollout;
use crate::settings::Settings;

use ends::Ends;
use forward::{Missing, limits, resolve};

/// A tunnel that can be built, with all defaults set.
#[derive(Debug, Clone, PartialEq)]
pub struct ValidatedTunnel {
    /// Name of the tunnel.
    pub name: String,
    /// Namespace of the tunnel.
    pub namespace: String,
    /// The owner reference for the tunnel's children.
    pub owner: OwnerReference,
    /// The entry gateways, unless the entry is remote.
    pub entry: Option<ValidatedGateway>,
    /// The exit gateways, unless the exit is remote.
    pub exit: Option<ValidatedGateway>,
    /// The gateway of a tunnel of side Rendezvous.
    pub rendezvous: Option<ValidatedRendezvous>,
    /// All ports of the forwards, including forwards whose target is missing. The gateways'
    /// Services keep these ports.
    pub listen_ports: Vec<ListenPort>,
    /// Rules for targets, in addition to the targets of the forwards.
    pub policy: config::Policy,
    /// The forwards whose targets are known, and the forwards whose clients name the target.
    pub forwards: Vec<ValidatedForward>,
    /// A sentence for each forward whose target is missing or not usable.
    pub unresolved: Vec<String>,
    /// A sentence for each forward whose target Service has no ready endpoint.
    pub unready: Vec<String>,
    /// A sentence for each omitted forward or policy rule that another namespace does not permit.
    pub forbidden: Vec<String>,
    /// The targets of the forbidden forwards. Open streams to these targets are closed, because the
    /// permission may have been revoked.
    pub denied: Vec<DeniedTarget>,
    /// The MuxBenchmark that created this tunnel as an environment.
    pub benchmark: Option<OwningBenchmark>,
    /// The `host:port` that entries dial. If `leaf` is set, exits also dial this address.
    pub connect: String,
    /// The `host:port` that entries dial if no address of `connect` answers.
    pub connect_fallback: Option<String>,
    /// The name and the secret for the rendezvous at `connect`.
    pub leaf: Option<ValidatedLeaf>,
    /// The address at which remote entries dial the exits, with or without a port, if the spec sets
    /// it.
    pub advertised: Option<String>,
    /// The source of the gateways' certificates.
    pub certificates: ValidatedCertificates,
    /// The MuxPeers of an exit, oldest first.
    pub peers: Vec<JudgedPeer>,
    /// The settings of carriers over WebSocket.
    pub web_socket: Option<WebSocket>,
    /// The transport of carriers.
    pub transport: Transport,
    /// The mux protocol of the carriers.
    pub protocol: Protocol,
    /// The congestion control of carriers.
    pub congestion_control: CongestionControl,
    /// Seconds after which a silent carrier is probed.
    pub liveness_seconds: u32,
    /// The number of carriers of a session.
    pub pool: Pool,
    /// Whether streams outlive their carrier.
    pub resume: bool,
    /// When idle streams are reset.
    pub timeouts: Timeouts,
    /// The requested sysctls, by name.
    pub tuning: BTreeMap<String, String>,
    /// The settings for IP packets between the networks of both sides.
    pub network: Option<ValidatedNetwork>,
    /// The WAN emulation, if it is requested and permitted.
    pub wan: Option<ValidatedWan>,
    /// Whether WAN emulation is requested and not permitted.
    pub wan_disabled: bool,
    /// Whether the spec names sysctls. A Job tests the sysctls before gateways get them.
    pub is_probed: bool,
    /// The Jobs that test sysctls, running and ended.
    pub probes: Vec<SeenProbe>,
    /// The state of each end's roll-out. This field does not come from the spec.
    pub rollouts: BTreeMap<End, Rollout>,
}

/// A target that another namespace does not permit.
#[derive(Debug, Clone, PartialEq)]
pub struct DeniedTarget {
    /// The rule that denies the target.
    pub rule: config::Rule,
    /// Whether the entry, not the exit, would dial the target.
    pub reverse: bool,
}

/// The gateways of one side.
#[derive(Debug, Clone, PartialEq)]
pub struct ValidatedGateway {
    /// Number of pods.
    pub replicas: Replicas,
    /// Seconds from SIGTERM until open streams are reset.
    pub drain_seconds: u32,
    /// The Service for these gateways.
    pub service: GatewayService,
    /// For an exit: the Service for the ports that the exit listens on.
    pub reverse_service: GatewayService,
    /// The load balancers whose PROXY headers are accepted.
    pub trusted_proxies: Vec<Cidr>,
    /// For an exit: the ssh server.
    pub ssh: Option<ValidatedSsh>,
    /// The security settings of the carriers.
    pub security: ValidatedSecurity,
    /// Settings of the pods.
    pub template: PodTemplate,
}

/// The gateway that joins entries and exits.
#[derive(Debug, Clone, PartialEq)]
pub struct ValidatedRendezvous {
    /// The gateway itself.
    pub gateway: ValidatedGateway,
    /// The Secret with the names and secrets.
    pub secret: String,
    /// Maximum number of carriers that the gateway joins at the same time.
    pub visits: u32,
}

/// Emulation of a wide-area network.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ValidatedWan {
    /// The delay in each direction.
    pub one_way_delay: Duration,
    /// Largest deviation of a packet's delay, earlier or later.
    pub jitter: Option<Duration>,
    /// The share of lost packets, in muxwan's notation.
    pub loss: Option<String>,
    /// The rate of the narrowest link, in muxwan's notation.
    pub rate: Option<String>,
    /// The mechanism of the emulation.
    pub backend: Backend,
    /// Which packets are delayed.
    pub scope: Scope,
}

impl ValidatedTunnel {
    /// All sysctls of the gateways' pods.
    #[must_use]
    pub fn sysctls(&self) -> BTreeMap<String, String> {
        all_sysctls(&self.tuning)
    }

    /// Whether both ends of the carriers belong to this tunnel.
    #[must_use]
    pub const fn has_both_sides(&self) -> bool {
        self.entry.is_some() && self.exit.is_some()
    }
}

/// Validates a tunnel with the results of the reads.
///
/// # Errors
/// The [`Hindrance`] that prevents building the tunnel.
pub fn validate(
    tunnel: &MuxTunnel,
    named: &Dereferenced,
    settings: &Settings,
) -> Result<Box<ValidatedTunnel>, Hindrance> {
    let holder = Holder::of(tunnel)?;
    if let Some(problem) = problem::problem(tunnel, settings) {
        return Err(Hindrance::Invalid(problem));
    }
    let valid = valid(tunnel, holder, named, settings);
    valid.map(Box::new).map_err(Hindrance::Invalid)
}

fn valid(
    tunnel: &MuxTunnel,
    holder: Holder,
    named: &Dereferenced,
    settings: &Settings,
) -> Result<ValidatedTunnel, String> {
    let spec = &tunnel.spec;
    let (name, namespace) = (holder.name, holder.namespace);
    let found = resolve_forwards(tunnel, &namespace, named)?;
    let (policy, unpermitted) = policy::policy(spec.policy.as_ref(), &namespace, named)?;
    let carrier = carrier::of(spec);
    let (connect, connect_fallback) = carrier::connect(&name, &namespace, spec.side, &carrier);
    let certificates = ValidatedCertificates::of(tunnel, &namespace, settings);
    let judged = peers::judged(&named.credentials, &namespace);
    let ends = Ends::of(spec, &name, &certificates, (named, &judged))?;
    let (tuning, wan) = (tuning(spec.tuning.as_ref()), wan(spec.wan.as_ref()));
    Ok(ValidatedTunnel {
        rollouts: ends.rollouts(&all_sysctls(&tuning), named),
        entry: ends.entry,
        exit: ends.exit,
        rendezvous: ends.rendezvous,
        listen_ports: listen_ports(&spec.forwards),
        policy,
        advertised: carrier.address.clone().filter(|_| spec.side == Side::Exit),
        peers: judged,
        certificates,
        name,
        namespace,
        owner: holder.owner,
        forwards: found.forwards,
        unresolved: found.unresolved,
        unready: found.unready,
        forbidden: [found.forbidden, unpermitted].concat(),
        denied: found.denied,
        benchmark: OwningBenchmark::of(tunnel),
        connect,
        connect_fallback,
        leaf: carrier.rendezvous.as_ref().map(ValidatedLeaf::of),
        web_socket: carrier.web_socket.as_ref().map(carrier::web_socket),
        transport: carrier.transport.unwrap_or_default(),
        protocol: carrier.protocol,
        congestion_control: carrier.congestion_control.unwrap_or_default(),
        liveness_seconds: carrier.liveness_seconds.unwrap_or(LIVENESS_SECONDS_DEFAULT),
        pool: carrier::pool(&carrier),
        resume: carrier.resume.unwrap_or(true),
        timeouts: timeouts(spec.timeouts)?,
        tuning,
        network: (spec.network.as_ref())
            .map(|asked| ValidatedNetwork::of(asked, carrier.protocol))
            .transpose()?,
        wan_disabled: wan.is_some() && !settings.wan_emulation,
        wan: wan.filter(|_| settings.wan_emulation),
        is_probed: spec
            .tuning
            .as_ref()
            .is_some_and(|tuning| !tuning.sysctls.is_empty()),
        probes: named.probes.clone(),
    })
}

/// The sysctls of `tuning`, and the sysctls that every gateway needs.
fn all_sysctls(tuning: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    let (name, value) = sysctls::UNPRIVILEGED_PORT_START;
    let mut sysctls = tuning.clone();
    sysctls.insert(name.to_owned(), value.to_owned());
    sysctls
}

/// The forwards, and the problems of their targets.
#[derive(Default)]
struct ResolvedForwards {
    forwards: Vec<ValidatedForward>,
    unresolved: Vec<String>,
    unready: Vec<String>,
    forbidden: Vec<String>,
    denied: Vec<DeniedTarget>,
}

fn resolve_forwards(
    tunnel: &MuxTunnel,
    namespace: &str,
    named: &Dereferenced,
) -> Result<ResolvedForwards, String> {
    let mut found = ResolvedForwards::default();
    for forward in &tunnel.spec.forwards {
        let of_forward = |sentence: String| format!("forward {}: {sentence}", forward.name);
        let limits = limits(forward).map_err(&of_forward)?;
        let (known, missing) = resolve(forward, limits, (namespace, tunnel.spec.side), named);
        found.forwards.extend(known);
        match missing {
            Some(Missing::Service(sentence)) => found.unresolved.push(of_forward(sentence)),
            Some(Missing::Permission { sentence, host }) => {
                found.forbidden.push(of_forward(sentence));
                let rule = config::Rule {
                    host: config::HostPattern::Name(host),
                    ports: config::Ports::ALL,
                    peer: None,
                };
                let reverse = is_reverse(forward);
                found.denied.push(DeniedTarget { rule, reverse });
            }
            None => {
                let unready = forward::unready(forward, namespace, named);
                found.unready.extend(unready.map(of_forward));
            }
        }
    }
    Ok(found)
}

/// `None`: a path without delay, jitter, loss or rate needs no emulation.
fn wan(asked: Option<&Wan>) -> Option<ValidatedWan> {
    let wan = asked?;
    let emulates = !wan.delay.is_zero() || wan.loss.is_some() || wan.rate.is_some();
    emulates.then(|| ValidatedWan {
        one_way_delay: wan.delay,
        jitter: wan.jitter,
        loss: wan.loss.clone(),
        rate: wan.rate.clone(),
        backend: wan.backend.unwrap_or_default(),
        scope: wan.scope.unwrap_or_default(),
    })
}

fn listen_ports(forwards: &[Forward]) -> Vec<ListenPort> {
    let ports = forwards.iter().map(|forward| ListenPort {
        name: forward.name.clone(),
        port: forward.listen.port,
        reverse: is_reverse(forward),
        clients: Clients::of(forward.listen.from.as_ref()),
    });
    ports.collect()
}

/// Converts to whole seconds. Rounds up, because 0 means never.
fn timeouts(asked: Option<muxtunnel_crds::Timeouts>) -> Result<Timeouts, String> {
    let asked = asked.unwrap_or_default();
    let seconds = |field: &str, asked: Option<Duration>, default: u32, most: u32| {
        let Some(asked) = asked else {
            return Ok(default);
        };
        u32::try_from(asked.as_millis().div_ceil(1000))
            .ok()
            .filter(|seconds| *seconds <= most)
            .ok_or_else(|| {
                let hours = most / 3600;
                format!(
                    "timeouts.{field} {asked} is out of range: use 1s to {hours}h, or 0s for no time-out"
                )
            })
    };
    let default = Timeouts::default();
    let (long, short) = (TIMEOUT_SECONDS_MAX, KEEPALIVE_SECONDS_MAX);
    let half_open = default.half_open_seconds;
    Ok(Timeouts {
        idle_seconds: seconds("idle", asked.idle, default.idle_seconds, long)?,
        half_open_seconds: seconds("halfOpen", asked.half_open, half_open, long)?,
        keepalive_seconds: seconds(
            "keepalive",
            asked.keepalive,
            default.keepalive_seconds,
            short,
        )?,
    })
}

fn tuning(asked: Option<&Tuning>) -> BTreeMap<String, String> {
    let Some(asked) = asked else {
        return BTreeMap::new();
    };
    let profile = match asked.profile.unwrap_or_default() {
        Profile::Wan => sysctls::WAN,
        Profile::Lan => sysctls::LAN,
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
