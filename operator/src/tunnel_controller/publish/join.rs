//! Publishes the join bundle of an exit with remote entries. This module requires a client, except
//! in [`address`].

use k8s_openapi::api::core::v1::Service;
use kube::ResourceExt;
use muxtunnel_codes::Code;
use muxtunnel_contract::secrets;
use muxtunnel_crds::{JoinStatus, ServiceType};
use muxtunnel_gateway_config::CARRIER_PORT;
use tracing::info;

use crate::certificates::join::{date, is_address};
use crate::tunnel_controller::access::Outputs;
use crate::tunnel_controller::apply::{Applied, apply_secret};
use crate::tunnel_controller::build::Certified;
use crate::tunnel_controller::build::certificates::secret;
use crate::tunnel_controller::certifier::time;
use crate::tunnel_controller::dereference::KnownSeed;
use crate::tunnel_controller::end::End;
use crate::tunnel_controller::error::CertifyError;
use crate::tunnel_controller::problem::Problem;
use crate::tunnel_controller::validate::{
    ValidatedCertificates, ValidatedState, ValidatedTunnel, bundle,
};

/// Publishes the bundle if it differs from the published bundle.
pub(super) async fn publish(
    Outputs {
        cluster, memory, ..
    }: &Outputs,
    state: &ValidatedState,
    (valid, applied): (&ValidatedTunnel, &Applied),
    certified: &mut Certified,
) -> Result<(), CertifyError> {
    let (holder, facts) = (&state.holder, &state.certificates);
    let (ValidatedCertificates::Managed(identities, subject), KnownSeed::Known { seed, .. }, None) =
        (&valid.certificates, &facts.seed, &valid.entry)
    else {
        return Ok(());
    };
    let address = match address(valid, applied) {
        Ok(address) => address,
        Err(detail) => {
            let code = Code::JoinAddressMissing;
            certified.problem.get_or_insert(Problem { code, detail });
            return Ok(());
        }
    };
    let bundle = bundle(address, identities, subject, seed, facts.now)?;
    let (name, digest) = (format!("{}-join", holder.name), bundle.digest());
    let known = certified.status.join.as_ref();
    if known.is_some_and(|known| known.digest == digest && known.secret_name == name) {
        return Ok(());
    }
    let secret = secret(holder, (&name, "join"), secrets::JOIN_TYPE, bundle.data());
    if let Err(problem) = apply_secret(&cluster.client, holder, &secret).await? {
        certified.problem.get_or_insert(problem);
        return Ok(());
    }
    info!(
        secret = name,
        until = date(bundle.expires()),
        generation = subject.generation,
        "published a join bundle"
    );
    certified.status.join = time(bundle.expires()).map(|expires| JoinStatus {
        secret_name: name,
        address: bundle.address,
        generation: subject.generation.into(),
        expires,
        digest,
    });
    let certifier = &memory.certifier;
    certifier.remember(&holder.owner.uid, &certified.status, facts.now);
    Ok(())
}

/// The address at which remote entries dial the exits of `valid`; `None`: both sides use a
/// rendezvous.
///
/// # Errors
/// A sentence with the reason why the address is not known, and with the action to take.
pub fn address(valid: &ValidatedTunnel, applied: &Applied) -> Result<Option<String>, String> {
    if valid.leaf.is_some() {
        return Ok(None);
    }
    let (Some(exit), name) = (&valid.exit, End::Exit.child_name(valid)) else {
        return Ok(None);
    };
    let service = applied.services.iter().find(|one| one.name_any() == name);
    let service_type = exit.service.type_.unwrap_or_default();
    let is_node_port = service_type == ServiceType::NodePort;
    let node_port = || {
        let spec = service.and_then(|service| service.spec.as_ref())?;
        let mut ports = spec.ports.iter().flatten();
        let carrier = ports.find(|port| port.name.as_deref() == Some("carrier"))?;
        carrier.node_port
    };
    if let Some(advertised) = &valid.advertised {
        let port = match (is_address(advertised), is_node_port) {
            (true, _) => return Ok(Some(advertised.clone())),
            (false, true) => node_port().ok_or_else(|| {
                format!("Service {name} has no node port yet: wait, because the join bundle needs the node port")
            })?,
            (false, false) => CARRIER_PORT.into(),
        };
        return Ok(Some(format!("{advertised}:{port}")));
    }
    match service_type {
        ServiceType::ClusterIP => Ok(Some(format!("{name}.{}.svc:{CARRIER_PORT}", valid.namespace))),
        ServiceType::LoadBalancer => {
            let host = service.and_then(load_balancer).ok_or_else(|| {
                format!(
                    "Service {name} has no load balancer address yet, which the join bundle needs: \
                 wait, or set carrier.address"
                )
            })?;
            let is_ipv6 = host.parse::<std::net::Ipv6Addr>().is_ok();
            let host = if is_ipv6 { format!("[{host}]") } else { host };
            Ok(Some(format!("{host}:{CARRIER_PORT}")))
        }
        ServiceType::NodePort => Err(
            "the join bundle needs an address: set carrier.address to a host at which remote entries reach a node"
                .to_owned(),
        ),
    }
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
