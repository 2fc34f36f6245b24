//! Commands that fix findings.

use k8s_openapi::api::apps::v1::Deployment;
use kube::ResourceExt;
use muxtunnel_codes::Code;
use muxtunnel_contract::labels::{OWNER_KIND, OWNER_NAME};
use muxtunnel_contract::sysctls::{QUIC_BUFFER_BYTES, RMEM_MAX, WMEM_MAX};

use super::Finding;

/// Installs the chart from this checkout.
const INSTALL: &str = "helm upgrade --install muxtunnel charts/muxtunnel --namespace muxtunnel-system --create-namespace";
/// The label with the chart's release.
const RELEASE: &str = muxtunnel_contract::labels::INSTANCE;

/// The command that installs the chart from this checkout. If a release exists, the command
/// upgrades it, because a second release would run a second operator. `operators`: the existing
/// operators. `None`: the user may not list operators, so the command lists the releases instead.
pub(super) fn install(operators: Option<&[Deployment]>) -> String {
    let Some(operators) = operators else {
        return "helm list --all-namespaces".to_owned();
    };
    let first = operators.first();
    first.map_or_else(|| INSTALL.to_owned(), upgrade)
}

/// The command that upgrades the release of an operator.
pub(super) fn upgrade(operator: &Deployment) -> String {
    let place = operator.namespace().unwrap_or_default();
    match operator.labels().get(RELEASE) {
        Some(release) => format!("helm upgrade {release} charts/muxtunnel --namespace {place}"),
        None => format!("helm list --namespace {place}"),
    }
}

/// A right of a user.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Right<'a> {
    pub(super) verb: &'a str,
    /// The API group; empty for the core group.
    pub(super) group: &'a str,
    pub(super) resource: &'a str,
    /// The namespace of the right. `None`: the right applies to the whole cluster.
    pub(super) namespace: Option<&'a str>,
}

impl<'a> Right<'a> {
    pub(super) const fn new(
        verb: &'a str,
        group: &'a str,
        resource: &'a str,
        namespace: Option<&'a str>,
    ) -> Self {
        Self {
            verb,
            group,
            resource,
            namespace,
        }
    }

    /// The right as text, such as `list nodes` or `create pods in namespace shop`.
    pub(super) fn name(&self) -> String {
        let place = self
            .namespace
            .map_or_else(String::new, |name| format!(" in namespace {name}"));
        format!("{} {}{place}", self.verb, self.full_resource())
    }

    /// The resource with its group, such as `leases.coordination.k8s.io`.
    fn full_resource(&self) -> String {
        match self.group {
            "" => self.resource.to_owned(),
            group => format!("{}.{group}", self.resource),
        }
    }

    /// The finding for a missing right.
    pub(super) fn missing(&self) -> Finding {
        let resource = self.full_resource();
        let name = format!("muxtunnel-{}-{}", self.verb, self.resource);
        let user = "--user=\"$(kubectl auth whoami -o jsonpath={.status.userInfo.username})\"";
        let (kind, binding, place) = match self.namespace {
            Some(namespace) => ("role", "rolebinding", format!(" -n {namespace}")),
            None => ("clusterrole", "clusterrolebinding", String::new()),
        };
        let fix = format!(
            "kubectl create {kind} {name}{place} --verb={} --resource={resource}\n\
             kubectl create {binding} {name}{place} --{kind}={name} {user}",
            self.verb
        );
        let cause = format!("you may not {}", self.name());
        Finding::new(Code::RightsMissing, cause, fix)
    }
}

/// An object whose conditions are checked.
pub(super) struct Owner {
    kind: &'static str,
    pub(super) namespace: String,
    name: String,
}

impl Owner {
    pub(super) fn new(kind: &'static str, object: &impl ResourceExt) -> Self {
        Self {
            kind,
            namespace: object.namespace().unwrap_or_default(),
            name: object.name_any(),
        }
    }

    /// The object in words.
    pub(super) fn text(&self) -> String {
        format!("{} {}/{}", self.kind, self.namespace, self.name)
    }

    /// The selector of the object's children.
    pub(super) fn selector(&self) -> String {
        format!("{OWNER_KIND}={},{OWNER_NAME}={}", self.kind, self.name)
    }

    /// The arguments of kubectl that select the object's children.
    pub(super) fn children(&self) -> String {
        format!("-n {} -l {}", self.namespace, self.selector())
    }

    /// The arguments of kubectl that name the object.
    fn place(&self) -> String {
        let kind = self.kind.to_ascii_lowercase();
        format!("{kind} {} -n {}", self.name, self.namespace)
    }
}

/// The command that fixes a condition of an object, or shows why it is not true.
pub(super) fn condition(reason: &str, owner: &Owner) -> String {
    let namespace = &owner.namespace;
    let describe = format!("kubectl describe {}", owner.place());
    let Some(code) = Code::from_reason(reason) else {
        return describe;
    };
    match code {
        Code::GatewaysNotReady
        | Code::Unschedulable
        | Code::ImageNotPulled
        | Code::ContainerCrashing
        | Code::OutOfMemory
        | Code::SecretNotMounted
        | Code::VolumeNotMounted
        | Code::SysctlForbidden
        | Code::WanUnsupported
        | Code::WanDelayOff => format!("kubectl describe pods {}", owner.children()),
        Code::TargetServiceNotFound => format!("kubectl get services -n {namespace}"),
        Code::TargetNotReady => format!("kubectl get endpointslices -n {namespace}"),
        Code::PodsRefused => format!("kubectl describe replicasets {}", owner.children()),
        Code::DeploymentPaused => {
            format!("kubectl rollout resume deployments {}", owner.children())
        }
        Code::AddressPending => format!("kubectl describe services {}", owner.children()),
        Code::CarrierConnecting | Code::ConfigPending | Code::FileRejected | Code::WanPending => {
            format!(
                "kubectl logs {} --all-containers --prefix --tail=20",
                owner.children()
            )
        }
        Code::ClassNotFound | Code::ClassAmbiguous | Code::ClassNotPermitted => {
            "kubectl get muxclasses -o yaml".to_owned()
        }
        Code::InvalidSpec | Code::KeyInvalid => format!("kubectl edit {}", owner.place()),
        Code::ExitNotFound => format!("kubectl get muxexits -n {namespace}"),
        Code::KeyConflict | Code::NetworkConflict | Code::PortConflict => {
            format!("kubectl get muxpeers -n {namespace} -o wide")
        }
        _ => describe,
    }
}

/// The command that sets a Pod Security level that admits NET_ADMIN and unsafe sysctls.
pub(super) fn privileged(namespace: &str) -> String {
    format!(
        "kubectl label namespace {namespace} pod-security.kubernetes.io/enforce=privileged --overwrite"
    )
}

/// Runs `command` on a node, in a debug pod of kubectl.
pub(super) fn on_node(node: &str, namespace: &str, command: &str) -> String {
    format!(
        "kubectl debug node/{node} -n {namespace} --profile=sysadmin --image=busybox -- chroot /host {command}"
    )
}

/// The commands that raise the socket buffers of a node to the size that gateways request, now and
/// after a restart of the node. The second command writes the output of sysctl(8) to a file in
/// /etc/sysctl.d, which has the same format.
pub(super) fn udp_buffers(node: &str, namespace: &str) -> String {
    let bytes = QUIC_BUFFER_BYTES;
    [
        format!("sysctl -w {RMEM_MAX}={bytes} {WMEM_MAX}={bytes}"),
        format!("sh -c 'sysctl {RMEM_MAX} {WMEM_MAX} >/etc/sysctl.d/90-muxtunnel.conf'"),
    ]
    .map(|command| on_node(node, namespace, &command))
    .join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_right_comes_with_the_commands_that_give_it() {
        let right = Right {
            verb: "get",
            group: "coordination.k8s.io",
            resource: "leases",
            namespace: Some("mux"),
        };
        let finding = right.missing();
        assert_eq!(finding.code, "MT0382");
        assert_eq!(
            finding.cause,
            "you may not get leases.coordination.k8s.io in namespace mux"
        );
        let lines: Vec<_> = finding.fix.lines().collect();
        assert_eq!(
            lines,
            [
                "kubectl create role muxtunnel-get-leases -n mux --verb=get \
                 --resource=leases.coordination.k8s.io",
                "kubectl create rolebinding muxtunnel-get-leases -n mux --role=muxtunnel-get-leases \
                 --user=\"$(kubectl auth whoami -o jsonpath={.status.userInfo.username})\"",
            ]
        );
    }

    fn operator(release: &str, namespace: &str) -> Deployment {
        let arguments = ["--gateway-image=g"];
        serde_json::from_value(serde_json::json!({
            "metadata": {"name": "o", "namespace": namespace, "labels": {RELEASE: release}},
            "spec": {"selector": {}, "template": {"spec": {"containers": [
                {"name": "operator", "args": arguments},
            ]}}},
        }))
        .unwrap()
    }

    fn owner() -> Owner {
        Owner {
            kind: "MuxExit",
            namespace: "shop".to_owned(),
            name: "web".to_owned(),
        }
    }

    #[test]
    fn the_children_of_an_object_have_its_kind_and_its_name() {
        assert_eq!(
            condition("AddressPending", &owner()),
            "kubectl describe services -n shop -l muxtunnel.dev/kind=MuxExit,muxtunnel.dev/name=web"
        );
        assert_eq!(
            condition("InvalidSpec", &owner()),
            "kubectl edit muxexit web -n shop"
        );
    }

    #[test]
    fn where_there_is_an_operator_its_own_release_is_upgraded() {
        assert_eq!(install(Some(&[])), INSTALL);
        let one = [operator("tunnels", "mux")];
        let upgrade = "helm upgrade tunnels charts/muxtunnel --namespace mux";
        assert_eq!(install(Some(&one)), upgrade);
        // The user may not list operators, so an operator may exist.
        assert_eq!(install(None), "helm list --all-namespaces");
    }

    #[test]
    fn every_reason_has_a_command() {
        for reason in Code::ALL
            .iter()
            .map(|code| code.reason())
            .chain(["OfTomorrow"])
        {
            let fix = condition(reason, &owner());
            assert!(
                fix.starts_with("kubectl ") || fix.starts_with("helm "),
                "{reason}: {fix}"
            );
        }
    }
}
