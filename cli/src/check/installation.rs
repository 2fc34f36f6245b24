//! Category installation: the definitions, the operator, and its leader.

use std::collections::BTreeSet;
use std::time::Duration;

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::api::ListParams;
use kube::{Api, Client, ResourceExt};
use muxtunnel_codes::Code;
use muxtunnel_crds::schema;
use serde_json::Value;

use super::fix::{self, Right};
use super::{Check, Finding, Scope, readable};
use crate::cluster::{self, failed};
use crate::end::Failure;

/// Default name of the leader's Lease in the operator's namespace. An argument of the operator
/// overrides it.
const LEASE: &str = "muxtunnel-operator";
const LEASE_NAME: &str = "--lease-name=";
/// Interval between two reads of a Lease.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// The label that the chart gives an operator.
const OPERATORS: &str = "app.kubernetes.io/component=operator";
/// An argument that only the operator's Deployment has.
const GATEWAY_IMAGE: &str = "--gateway-image=";
const WAN_IMAGE: &str = "--wan-image=";
const VERSION_LABEL: &str = muxtunnel_contract::labels::VERSION;
/// Maximum number of differences of a definition that a finding names. The finding only counts
/// further differences.
const DIFFERENCES_SHOWN: usize = 3;

pub(super) async fn run(scope: &Scope<'_>) -> Result<Vec<Check>, Failure> {
    let client = &scope.cluster.client;
    let description = "an operator runs";
    let operators = operators(client, scope.args.operator_namespace.as_deref()).await;
    let namespace = scope.args.operator_namespace.as_deref();
    let right = Right::new("list", "apps", "deployments", namespace);
    let operators = readable(operators, description, &right)?;
    let install = fix::install(operators.as_deref().ok());
    let mut checks = definitions(client, &install).await?;
    let operators = match operators {
        Ok(operators) => operators,
        Err(check) => {
            checks.push(check);
            return Ok(checks);
        }
    };
    if operators.is_empty() {
        let place = cluster::place(namespace);
        let cause = format!("no Deployment of an operator found in {place}");
        checks.push(Check::finding(
            description,
            Finding::new(Code::OperatorNotAvailable, cause, install),
        ));
    }
    for operator in &operators {
        checks.push(available(operator));
        checks.push(same_version(operator));
        checks.push(leader(client, operator, scope.now).await?);
    }
    Ok(checks)
}

// --- Definitions ---------------------------------------------------------------------------------------------------

/// `install`: the command that installs the definitions.
async fn definitions(client: &Client, install: &str) -> Result<Vec<Check>, Failure> {
    let api: Api<CustomResourceDefinition> = Api::all(client.clone());
    let group = "apiextensions.k8s.io";
    let right = Right::new("get", group, "customresourcedefinitions", None);
    let mut checks = Vec::new();
    for (_, ours) in schema::definitions().map_err(anyhow::Error::from)? {
        let name = ours.name_any();
        let description = format!("the definition {name} matches this version");
        let installed = readable(api.get_opt(&name).await, &description, &right)?;
        checks.push(match installed {
            Ok(installed) => compare(description, installed.as_ref(), &ours, install),
            Err(check) => check,
        });
    }
    Ok(checks)
}

fn compare(
    description: String,
    installed: Option<&CustomResourceDefinition>,
    ours: &CustomResourceDefinition,
    install: &str,
) -> Check {
    let missing = |cause| {
        Check::finding(
            description.clone(),
            Finding::new(Code::DefinitionsMissing, cause, install),
        )
    };
    let Some(installed) = installed else {
        return missing("the definition is not installed".to_owned());
    };
    if !is_established(installed) {
        return missing("the API server does not serve the definition yet".to_owned());
    }
    let (theirs, ours) = (marks(installed), marks(ours));
    let lacks = named("lacks", ours.difference(&theirs));
    let has = named("also has", theirs.difference(&ours));
    let differences: Vec<_> = [lacks, has].into_iter().flatten().collect();
    if differences.is_empty() {
        return Check::good(description);
    }
    let cause = format!("the definition {}", differences.join(", and "));
    Check::finding(
        description,
        Finding::new(Code::DefinitionsOutdated, cause, install),
    )
}

fn is_established(definition: &CustomResourceDefinition) -> bool {
    definition
        .status
        .iter()
        .flat_map(|status| status.conditions.iter().flatten())
        .any(|condition| condition.type_ == "Established" && condition.status == "True")
}

/// The differences as text, such as `lacks spec.carrier, spec.tuning and 3 more`.
fn named<'a>(verb: &str, differences: impl Iterator<Item = &'a String>) -> Option<String> {
    let all: Vec<_> = differences.map(String::as_str).collect();
    let more = match all.len().saturating_sub(DIFFERENCES_SHOWN) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let shown = all[..all.len().min(DIFFERENCES_SHOWN)].join(", ");
    (!all.is_empty()).then(|| format!("{verb} {shown}{more}"))
}

/// The schema of a definition as a set: fields, values of enumerations, and rules. The set excludes
/// descriptions, and values that the API server fills in.
fn marks(definition: &CustomResourceDefinition) -> BTreeSet<String> {
    let mut marks = BTreeSet::new();
    for version in &definition.spec.versions {
        let schema = version.schema.as_ref();
        let schema = schema.and_then(|schema| schema.open_api_v3_schema.as_ref());
        let schema = serde_json::to_value(schema).unwrap_or(Value::Null);
        collect(&schema, &version.name, &mut marks);
    }
    marks
}

fn collect(schema: &Value, path: &str, marks: &mut BTreeSet<String>) {
    let items = |key: &str| schema[key].as_array().into_iter().flatten();
    marks.extend(items("enum").map(|value| format!("{path}={value}")));
    marks.extend(
        items("x-kubernetes-validations").map(|rule| format!("{path} (the rule {})", rule["rule"])),
    );
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        // Every object has these fields, and the API server sets their descriptions.
        if path.split('.').count() == 1
            && ["apiVersion", "kind", "metadata"].contains(&name.as_str())
        {
            continue;
        }
        let path = format!("{path}.{name}");
        marks.insert(path.clone());
        collect(property, &path, marks);
    }
    for inner in ["items", "additionalProperties"] {
        if schema[inner].is_object() {
            collect(&schema[inner], &format!("{path}[]"), marks);
        }
    }
}

// --- Operator ------------------------------------------------------------------------------------------------------

/// The operators' Deployments.
///
/// # Errors
/// An error of the API server.
pub(crate) async fn operators(
    client: &Client,
    namespace: Option<&str>,
) -> kube::Result<Vec<Deployment>> {
    let api: Api<Deployment> = match namespace {
        Some(namespace) => Api::namespaced(client.clone(), namespace),
        None => Api::all(client.clone()),
    };
    let mut found = api
        .list(&ListParams::default().labels(OPERATORS))
        .await?
        .items;
    found.retain(|deployment| argument(deployment, GATEWAY_IMAGE).is_some());
    Ok(found)
}

/// The images of gateways and of WAN emulation that an operator gives pods.
pub(super) fn images(operator: &Deployment) -> Option<(String, String)> {
    Some((
        argument(operator, GATEWAY_IMAGE)?,
        argument(operator, WAN_IMAGE)?,
    ))
}

fn argument(deployment: &Deployment, flag: &str) -> Option<String> {
    arguments(deployment, flag).next().map(str::to_owned)
}

/// The values of all occurrences of a flag.
fn arguments<'a>(deployment: &'a Deployment, flag: &'a str) -> impl Iterator<Item = &'a str> {
    let pod = deployment.spec.iter().flat_map(|spec| &spec.template.spec);
    pod.flat_map(|pod| &pod.containers)
        .flat_map(|container| container.args.iter().flatten())
        .filter_map(move |argument| argument.strip_prefix(flag))
}

/// The operator as `NAMESPACE/NAME`.
fn place(operator: &Deployment) -> String {
    format!(
        "{}/{}",
        operator.namespace().unwrap_or_default(),
        operator.name_any()
    )
}

fn available(operator: &Deployment) -> Check {
    let description = format!("the operator {} runs", place(operator));
    let status = operator.status.clone().unwrap_or_default();
    let ready = status.ready_replicas.unwrap_or(0);
    let wanted = operator
        .spec
        .as_ref()
        .and_then(|spec| spec.replicas)
        .unwrap_or(1);
    if ready >= 1 && ready >= wanted {
        return Check::good(description);
    }
    let said = status
        .conditions
        .iter()
        .flatten()
        .find(|condition| condition.status == "False" || condition.type_ == "ReplicaFailure")
        .and_then(|condition| condition.message.clone());
    let said = said.map_or_else(String::new, |message| format!(": {message}"));
    let cause = format!("{ready} of {wanted} pods are ready{said}");
    let fix = format!(
        "kubectl describe pods -n {} -l {OPERATORS}",
        operator.namespace().unwrap_or_default()
    );
    let finding = Finding::new(Code::OperatorNotAvailable, cause, fix);
    // One ready pod of the operator is enough to reconcile.
    match ready {
        0 => Check::finding(description, finding),
        _ => Check::warning(description, finding),
    }
}

fn same_version(operator: &Deployment) -> Check {
    let ours = env!("CARGO_PKG_VERSION");
    let description = format!(
        "the operator {} has muxtunnel's version {ours}",
        place(operator)
    );
    match operator.labels().get(VERSION_LABEL) {
        Some(theirs) if theirs != ours => {
            let cause = format!("the operator has version {theirs}");
            Check::warning(
                description,
                Finding::new(Code::DefinitionsOutdated, cause, fix::upgrade(operator)),
            )
        }
        Some(_) => Check::good(description),
        None => Check::skipped(
            description,
            format!("the Deployment has no label {VERSION_LABEL}"),
        ),
    }
}

// --- Leader --------------------------------------------------------------------------------------------------------

async fn leader(client: &Client, operator: &Deployment, now: Timestamp) -> Result<Check, Failure> {
    let namespace = operator.namespace().unwrap_or_default();
    let description = format!("one operator in namespace {namespace} is the leader");
    let api: Api<Lease> = Api::namespaced(client.clone(), &namespace);
    let group = "coordination.k8s.io";
    let right = Right::new("get", group, "leases", Some(&namespace));
    let name = argument(operator, LEASE_NAME).unwrap_or_else(|| LEASE.to_owned());
    let mut lease = match readable(api.get_opt(&name).await, &description, &right)? {
        Ok(lease) => lease,
        Err(check) => return Ok(check),
    };
    // The clock of this machine may differ from the clocks of the operators. So a Lease that seems
    // to have expired still counts as held if its renewal time changes during the observation.
    let before = renewal(lease.as_ref());
    let mut renewed = is_fresh(lease.as_ref(), now);
    for _ in 0..seconds(lease.as_ref()) {
        if renewed {
            break;
        }
        tokio::time::sleep(POLL_INTERVAL).await;
        lease = api
            .get_opt(&name)
            .await
            .map_err(|error| failed(&format!("cannot get the Lease {name}"), error))?;
        renewed = renewal(lease.as_ref()) != before;
    }
    Ok(judge_leader(
        description,
        &name,
        lease.as_ref(),
        renewed,
        &namespace,
    ))
}

fn spec(lease: Option<&Lease>) -> Option<&LeaseSpec> {
    lease.and_then(|lease| lease.spec.as_ref())
}

fn renewal(lease: Option<&Lease>) -> Option<Timestamp> {
    spec(lease)?.renew_time.as_ref().map(|time| time.0)
}

/// Duration of a Lease in seconds, at most a minute. The observation of the Lease takes at most
/// this time.
fn seconds(lease: Option<&Lease>) -> i32 {
    let seconds = spec(lease).and_then(|spec| spec.lease_duration_seconds);
    seconds.unwrap_or(0).clamp(0, 60)
}

fn is_fresh(lease: Option<&Lease>, now: Timestamp) -> bool {
    let held = SignedDuration::from_secs(seconds(lease).into());
    renewal(lease).is_some_and(|renewed| now.duration_since(renewed).abs() <= held)
}

/// `renewed`: whether the Lease has not expired, or its holder renewed it during the observation.
fn judge_leader(
    description: String,
    name: &str,
    lease: Option<&Lease>,
    renewed: bool,
    namespace: &str,
) -> Check {
    let holder = spec(lease).and_then(|spec| spec.holder_identity.as_deref());
    let cause = match (lease, holder.filter(|holder| !holder.is_empty())) {
        (None, _) => format!("the Lease {name} does not exist"),
        (_, None) => format!("no operator holds the Lease {name}"),
        (_, Some(_)) if renewed => return Check::good(description),
        (_, Some(holder)) => {
            let last = renewal(lease).map_or("never".to_owned(), |time| format!("last at {time}"));
            format!("{holder} holds the Lease {name} and does not renew it ({last})")
        }
    };
    let fix = format!("kubectl logs -n {namespace} -l {OPERATORS} --tail=50");
    Check::finding(description, Finding::new(Code::LeaderMissing, cause, fix))
}

#[cfg(test)]
mod tests;
