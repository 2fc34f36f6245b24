//! Checks the permissions of the installation, which the schema does not know. Pure.

use muxtunnel_crds::ServiceType;

use crate::settings::Settings;
use crate::tunnel_controller::object::Object;

/// The first problem of the spec, as a sentence.
pub(super) fn problem(object: &Object, settings: &Settings) -> Option<String> {
    of_ssh(object)
        .or_else(|| of_pods(object, settings))
        .or_else(|| of_network(object, settings))
}

/// Without `from`, the NetworkPolicy admits only the object's namespace.
fn of_ssh(object: &Object) -> Option<String> {
    let ssh = object.exit()?.spec.ssh.as_deref()?;
    let type_ = ssh.service.as_ref().map(|service| service.settings.type_());
    let is_exposed = type_.unwrap_or_default() != ServiceType::ClusterIP;
    let sentence = "ssh.service of a type other than ClusterIP needs ssh.from, the clients that may reach the port";
    (is_exposed && ssh.from.is_none()).then(|| sentence.to_owned())
}

fn of_pods(object: &Object, settings: &Settings) -> Option<String> {
    let mut metadata = object
        .ends()
        .filter_map(|end| object.template(end)?.metadata.as_ref());
    metadata.find_map(|metadata| settings.refused_key(metadata))
}

fn of_network(object: &Object, settings: &Settings) -> Option<String> {
    let sentence = "network: the installation does not permit networks, because their init containers have NET_ADMIN and MKNOD: \
                    install the chart with network.enabled=true";
    (object.has_network() && !settings.network).then(|| sentence.to_owned())
}
