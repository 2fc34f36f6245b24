//! Objects that this version of the operator cannot decode, such as an object with an enum value of
//! a newer version.
//!
//! kube's [`DeserializeGuard`] decodes each object of a watch alone, so one such object does not
//! stop the watch of its kind. The caches contain a placeholder for the object, which has only the
//! metadata and the reason. A placeholder has neither the spec nor the status of the object: before
//! a controller uses an object, it asks [`reason`]. [`read`] then reads the object again, because the
//! guard drops the status. A field of the status that cannot be decoded does not prevent a
//! reconciliation, because the operator writes the whole status.

use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::ApiResource;
use kube::core::DeserializeGuard;
use kube::core::object::HasStatus;
use kube::runtime::watcher::Event;
use kube::{Resource, ResourceExt};
use muxtunnel_codes::Code;
use muxtunnel_crds::condition::READY;
use muxtunnel_crds::{Member, readable};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tracing::warn;

use crate::reader::Reader;
use crate::watches::Watched;

/// Annotation of a placeholder, with the reason. The API server accepts no key with two slashes, so
/// no object of a client has this annotation.
const REASON: &str = "//undecoded";
/// Longest reason, in bytes.
const REASON_LENGTH_MAX: usize = 512;

/// Why the object could not be decoded, if it is a placeholder.
pub fn reason<K: Resource>(object: &K) -> Option<&str> {
    let annotations = object.meta().annotations.as_ref()?;
    annotations.get(REASON).map(String::as_str)
}

/// The event with the decoded object, or with a placeholder. `None` if the kind has no placeholder,
/// which is a bug.
pub(crate) fn event<K: Watched>(event: Event<DeserializeGuard<K>>) -> Option<Event<K>> {
    Some(match event {
        Event::Init => Event::Init,
        Event::InitDone => Event::InitDone,
        Event::InitApply(object) => Event::InitApply(decoded(object)?),
        Event::Apply(object) => Event::Apply(decoded(object)?),
        Event::Delete(object) => Event::Delete(decoded(object)?),
    })
}

/// The decoded object, or a placeholder.
pub(crate) fn decoded<K: Watched>(object: DeserializeGuard<K>) -> Option<K> {
    let invalid = match object.0 {
        Ok(object) => return Some(object),
        Err(invalid) => invalid,
    };
    let (kind, metadata) = (K::kind(&()), &invalid.metadata);
    let (namespace, name) = (metadata.namespace.as_deref(), metadata.name.as_deref());
    warn!(%kind, namespace, name, error = invalid.error, "an object cannot be decoded");
    match placeholder(invalid.metadata, &invalid.error, (required(), unready())) {
        Ok(placeholder) => Some(placeholder),
        Err(error) => {
            warn!(%kind, %error, "the kind has no placeholder: report this bug of the operator");
            None
        }
    }
}

/// The status of a placeholder, for the metric of conditions.
fn unready() -> Value {
    json!({"conditions": [{
        "type": READY, "status": "False", "reason": Code::UnknownValue.reason(),
        "message": Code::UnknownValue.to_string(), "lastTransitionTime": "1970-01-01T00:00:00Z",
    }]})
}

/// A placeholder with these metadata, this spec and this status.
pub(crate) fn placeholder<K: DeserializeOwned>(
    mut metadata: ObjectMeta,
    reason: &str,
    (spec, status): (Value, Value),
) -> Result<K, serde_json::Error> {
    let reason = &reason[..reason.floor_char_boundary(REASON_LENGTH_MAX)];
    let annotations = metadata.annotations.get_or_insert_default();
    annotations.insert(REASON.to_owned(), reason.to_owned());
    serde_json::from_value(json!({"metadata": metadata, "spec": spec, "status": status}))
}

/// The required fields of all kinds of the operator's objects.
fn required() -> Value {
    json!({"exitRef": {"name": ""}, "members": []})
}

/// The same, with the field that decides which operator serves the object, and with the members of a
/// rendezvous, because a member that was removed is refused in every state of the object.
fn served(object: &Value) -> Value {
    let mut spec = required();
    if let Some(class) = object["spec"]["className"].as_str() {
        spec["className"] = json!(class);
    }
    let members = serde_json::from_value::<Vec<Member>>(object["spec"]["members"].clone());
    if let Ok(members) = members {
        spec["members"] = json!(members);
    }
    spec
}

/// Reads the object of a placeholder. `None` if the object no longer exists. Returns a placeholder
/// with the readable part of the status if the spec still cannot be decoded.
///
/// # Errors
/// The client's error.
pub(crate) async fn read<K>(reader: &Reader, placeholder: &K) -> Result<Option<K>, kube::Error>
where
    K: Watched + HasStatus<Status: DeserializeOwned> + Resource<Scope = NamespaceResourceScope>,
{
    let namespace = placeholder.namespace().unwrap_or_default();
    let resource = ApiResource::erase::<K>(&());
    let name = placeholder.name_any();
    let Some(object) = reader.get_untyped(&resource, &namespace, &name).await? else {
        return Ok(None);
    };
    let recovered = serde_json::to_value(object).and_then(recovered);
    recovered.map(Some).map_err(kube::Error::SerdeError)
}

fn recovered<K>(mut object: Value) -> Result<K, serde_json::Error>
where
    K: Watched + HasStatus<Status: DeserializeOwned>,
{
    let error = match serde_path_to_error::deserialize::<_, K>(&object) {
        Ok(object) => return Ok(object),
        Err(error) => error.to_string(),
    };
    let (mut status, unreadable) = readable::<K::Status>(&object["status"]);
    if unreadable.is_empty() {
        return placeholder(
            serde_json::from_value(object["metadata"].take())?,
            &error,
            (served(&object), object["status"].take()),
        );
    }
    // The next status differs, so the operator writes it, without the unreadable fields.
    status.remove("observedGeneration");
    let status = Value::Object(status);
    object["status"] = status.clone();
    serde_json::from_value(object.clone()).or_else(|_| {
        placeholder(
            serde_json::from_value(object["metadata"].take())?,
            &error,
            (served(&object), status),
        )
    })
}

#[cfg(test)]
pub(crate) fn has_placeholder<K: Watched>() -> bool {
    let placeholder = placeholder::<K>(ObjectMeta::default(), "unknown", (required(), unready()));
    placeholder.is_ok_and(|object| reason(&object) == Some("unknown"))
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Pod;
    use muxtunnel_crds::{MuxBenchmark, MuxTunnel};

    use super::*;
    use crate::caches::Feeds;
    use crate::testing::tunnel::{SMALLEST, object_json};

    /// A tunnel with a value of a newer version at `pointer`.
    fn newer(pointer: &[&str], value: Value) -> Value {
        let mut tunnel = object_json(SMALLEST);
        tunnel["metadata"]["generation"] = json!(3);
        tunnel["status"] = json!({
            "observedGeneration": 3,
            "conditions": [{
                "type": "Ready", "status": "True", "reason": "AllReady", "message": "MT0301",
                "lastTransitionTime": "2030-01-01T00:00:00Z",
            }],
        });
        let mut field = &mut tunnel;
        for name in pointer {
            field = &mut field[name];
        }
        *field = value;
        tunnel
    }

    #[test]
    fn every_watched_kind_has_a_placeholder() {
        let kinds = Feeds::placeholders();
        assert!(kinds.len() >= 16, "{kinds:?}");
        for (kind, has_placeholder) in kinds {
            assert!(has_placeholder, "{kind}");
        }
    }

    #[test]
    fn an_unknown_value_of_the_spec_is_named_and_is_no_default() {
        let object = newer(&["spec", "carrier", "protocol"], json!("Quantum"));
        let guarded: DeserializeGuard<MuxTunnel> = serde_json::from_value(object.clone()).unwrap();
        let seen = decoded(guarded).unwrap();
        assert!(reason(&seen).unwrap().contains("Quantum"), "{seen:?}");
        let read: MuxTunnel = recovered(object).unwrap();
        let why = reason(&read).unwrap();
        assert!(why.starts_with("spec.carrier: "), "{why}");
        assert_eq!(read.status.unwrap().conditions.len(), 1);
    }

    #[test]
    fn an_unknown_value_of_the_status_alone_stops_nothing() {
        let bottleneck = json!({"direction": "Sideways", "reason": "CPU"});
        let object = newer(&["status", "bottleneck"], bottleneck.clone());
        let read: MuxTunnel = recovered(object).unwrap();
        assert_eq!(reason(&read), None);
        assert!(!read.spec.forwards.is_empty());
        let status = read.status.unwrap();
        assert_eq!(
            (status.conditions.len(), status.observed_generation),
            (1, None)
        );
        let mut both = newer(&["spec", "carrier", "transport"], json!("Pigeon"));
        both["status"]["bottleneck"] = bottleneck;
        let read: MuxTunnel = recovered(both).unwrap();
        let why = reason(&read).unwrap();
        assert!(why.starts_with("spec.carrier: "), "{why}");
        assert_eq!(read.status.unwrap().conditions.len(), 1);
    }

    #[test]
    fn a_benchmark_and_a_pod_have_one_too() {
        let benchmark = json!({"metadata": {"name": "b"}, "spec": {"tool": "Abacus"}});
        let guarded: DeserializeGuard<MuxBenchmark> = serde_json::from_value(benchmark).unwrap();
        assert!(reason(&decoded(guarded).unwrap()).is_some());
        let pod = json!({"metadata": {"name": "p"}, "spec": {"containers": "many"}});
        let guarded: DeserializeGuard<Pod> = serde_json::from_value(pod).unwrap();
        assert!(reason(&decoded(guarded).unwrap()).is_some());
    }

    #[test]
    fn a_reason_is_bounded() {
        let meta = ObjectMeta::default();
        let seen: Pod = placeholder(
            meta,
            &"é".repeat(REASON_LENGTH_MAX),
            (required(), Value::Null),
        )
        .unwrap();
        assert!(reason(&seen).unwrap().len() <= REASON_LENGTH_MAX);
    }
}
