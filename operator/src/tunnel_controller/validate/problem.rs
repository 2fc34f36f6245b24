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

/// Labels make pods endpoints of Services. Labels and annotations can make other controllers add
/// images, volumes and networks to pods. So pods may only have the keys in `settings`.
fn of_pods(object: &Object, settings: &Settings) -> Option<String> {
    let (labels, annotations) = (&settings.permitted_labels, &settings.permitted_annotations);
    let is_label = |key: &str| labels.iter().any(|label| label.is(key));
    let is_annotation = |key: &str| annotations.iter().any(|pattern| pattern.matches(key));
    let metadata = object
        .ends()
        .filter_map(|end| object.template(end)?.metadata.as_ref());
    let mut refused = metadata.flat_map(|metadata| {
        let labels = metadata.labels.keys().filter(|key| !is_label(key));
        let annotations = metadata.annotations.keys();
        let annotations = annotations.filter(|key| !is_annotation(key));
        let labels = labels.map(|key| ("labels", key));
        labels.chain(annotations.map(|key| ("annotations", key)))
    });
    let (field, key) = refused.next()?;
    Some(format!(
        "template.metadata.{field} {key}: the installation does not permit this key on pods: remove it, or add it \
         to the chart's value podMetadata.{field}"
    ))
}

fn of_network(object: &Object, settings: &Settings) -> Option<String> {
    let sentence = "network: the installation does not permit networks, because their init containers have NET_ADMIN and MKNOD: \
                    install the chart with network.enabled=true";
    (object.has_network() && !settings.network).then(|| sentence.to_owned())
}
