//! Objects that this version of the operator cannot decode, such as an object with an enum value of
//! a newer version.
//!
//! [`Guarded`] decodes each object of a watch alone, so one such object does not stop the watch of its
//! kind. Unlike kube's `DeserializeGuard`, it keeps the spec. The caches contain a placeholder for the
//! object, which has the metadata, the class and the reason. Before a controller uses an object, it
//! asks [`reason`]. [`read`] then reads the object again, because a placeholder has no more of the spec
//! and no status.
//!
//! The placeholder of a MuxPeer is complete: it also has the readable fields that reduce what the peer
//! may do, and the readable status. A field of the status that cannot be decoded does not prevent a
//! reconciliation, because the operator writes the whole status.

use std::borrow::Cow;

use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::ApiResource;
use kube::core::object::HasStatus;
use kube::runtime::watcher::Event;
use kube::{Resource, ResourceExt};
use muxtunnel_codes::Code;
use muxtunnel_crds::condition::READY;
use muxtunnel_crds::{MuxPeer, MuxPeerSpec, MuxPeerStatus, readable};
use muxtunnel_gateway_config::{Cidr, GatewayKey, Member};
use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer};
use serde_json::{Value, json};
use tracing::warn;

use crate::reader::Reader;
use crate::watches::Watched;

/// Annotation of a placeholder, with the reason. The API server accepts no key with two slashes, so
/// no object of a client has this annotation.
const REASON: &str = "//undecoded";
/// Longest reason, in bytes.
const REASON_LENGTH_MAX: usize = 512;

/// An object, or what is known of an object that cannot be decoded.
#[derive(Debug, Clone)]
pub struct Guarded<K>(pub(crate) Result<K, Invalid>);

/// An object that cannot be decoded.
#[derive(Debug, Clone)]
pub struct Invalid {
    metadata: ObjectMeta,
    error: String,
    /// The object without its metadata.
    object: Value,
}

impl<'de, K: DeserializeOwned> Deserialize<'de> for Guarded<K> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut object = Value::deserialize(deserializer)?;
        if let Ok(object) = K::deserialize(&object) {
            return Ok(Self(Ok(object)));
        }
        let error = match serde_path_to_error::deserialize::<_, K>(&object) {
            Ok(object) => return Ok(Self(Ok(object))),
            Err(error) => error.to_string(),
        };
        let metadata = object.get_mut("metadata").map(Value::take);
        let metadata = serde_json::from_value::<Option<ObjectMeta>>(metadata.unwrap_or_default());
        Ok(Self(Err(Invalid {
            metadata: metadata.map_err(D::Error::custom)?.unwrap_or_default(),
            error,
            object,
        })))
    }
}

impl<K: Resource> Resource for Guarded<K> {
    type DynamicType = K::DynamicType;
    type Scope = K::Scope;

    fn kind(of: &Self::DynamicType) -> Cow<'_, str> {
        K::kind(of)
    }

    fn group(of: &Self::DynamicType) -> Cow<'_, str> {
        K::group(of)
    }

    fn version(of: &Self::DynamicType) -> Cow<'_, str> {
        K::version(of)
    }

    fn plural(of: &Self::DynamicType) -> Cow<'_, str> {
        K::plural(of)
    }

    fn meta(&self) -> &ObjectMeta {
        match &self.0 {
            Ok(object) => object.meta(),
            Err(invalid) => &invalid.metadata,
        }
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        match &mut self.0 {
            Ok(object) => object.meta_mut(),
            Err(invalid) => &mut invalid.metadata,
        }
    }
}

/// Why the object could not be decoded, if it is a placeholder.
pub fn reason<K: Resource>(object: &K) -> Option<&str> {
    let annotations = object.meta().annotations.as_ref()?;
    annotations.get(REASON).map(String::as_str)
}

/// The event with the decoded object, or with a placeholder. `None` if the kind has no placeholder,
/// which is a bug.
pub(crate) fn event<K: Watched>(event: Event<Guarded<K>>) -> Option<Event<K>> {
    map(event, decoded)
}

/// The event with the object that `decode` returns.
pub(crate) fn map<K, L>(event: Event<K>, decode: impl Fn(K) -> Option<L>) -> Option<Event<L>> {
    Some(match event {
        Event::Init => Event::Init,
        Event::InitDone => Event::InitDone,
        Event::InitApply(object) => Event::InitApply(decode(object)?),
        Event::Apply(object) => Event::Apply(decode(object)?),
        Event::Delete(object) => Event::Delete(decode(object)?),
    })
}

/// The decoded object, or a placeholder.
pub(crate) fn decoded<K: Watched>(object: Guarded<K>) -> Option<K> {
    let invalid = match object.0 {
        Ok(object) => return Some(object),
        Err(invalid) => invalid,
    };
    let (kind, metadata) = (K::kind(&()), &invalid.metadata);
    let rest = match kind == MuxPeer::kind(&()) {
        true => {
            let (status, _) = readable::<MuxPeerStatus>(&invalid.object["status"]);
            let spec = &invalid.object["spec"];
            let object = json!({"metadata": metadata, "spec": spec, "status": status});
            if let Ok(object) = serde_json::from_value(object) {
                return Some(object);
            }
            (of_peer(spec), Value::Object(status))
        }
        false => (classed(&invalid.object), unready()),
    };
    let (namespace, name) = (metadata.namespace.as_deref(), metadata.name.as_deref());
    warn!(%kind, namespace, name, error = invalid.error, "an object cannot be decoded");
    match placeholder(invalid.metadata, &invalid.error, rest) {
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

/// The same, with the field that decides which operator serves the object.
fn classed(object: &Value) -> Value {
    let mut spec = required();
    if let Some(class) = object["spec"]["className"].as_str() {
        spec["className"] = json!(class);
    }
    spec
}

/// The same, with the members of a rendezvous, because a member or a key that was removed is refused in
/// every state of the object. What cannot be read of a member is left out, so no member delays the
/// removal of another one.
fn served(object: &Value) -> Value {
    let mut spec = classed(object);
    spec["members"] = listed(&object["spec"]["members"]).map(member).collect();
    spec
}

/// The items of a list. Empty without a list.
fn listed(list: &Value) -> impl Iterator<Item = &Value> {
    list.as_array().into_iter().flatten()
}

/// The readable fields of a member.
fn member(asked: &Value) -> Value {
    let keys = listed(&asked["publicKeys"]);
    let keys: Vec<_> = keys.filter(|key| decodes::<GatewayKey>(key)).collect();
    let member = json!({"name": asked["name"].as_str(), "publicKeys": keys});
    with_readable::<Member>(member, asked, &["suspend", "expirationTime"])
}

/// The fields of a MuxPeer that reduce what the peer may do, as far as they can be read. Its rules are
/// those that the gateways have.
fn of_peer(asked: &Value) -> Value {
    let exit = asked["exitRef"]["name"].as_str().unwrap_or_default();
    let mut spec = json!({"exitRef": {"name": exit}});
    for name in ["publicKeys", "certificateNames", "reversePorts"] {
        let texts = listed(&asked[name]).filter(|text| text.is_string());
        spec[name] = texts.cloned().collect();
    }
    // A network that cannot be read may be one that the gateways have, so all of those stay.
    spec["networkCIDRs"] = match listed(&asked["networkCIDRs"]).all(decodes::<Cidr>) {
        true => listed(&asked["networkCIDRs"]).cloned().collect(),
        false => json!(["0.0.0.0/0", "::/0"]),
    };
    let fields = ["suspend", "expirationTime", "ttlSecondsAfterExpiration"];
    with_readable::<MuxPeerSpec>(spec, asked, &fields)
}

fn decodes<T: DeserializeOwned>(value: &Value) -> bool {
    T::deserialize(value).is_ok()
}

/// Adds those of the `fields` of `asked` with which a `T` can be decoded.
fn with_readable<T: DeserializeOwned>(mut object: Value, asked: &Value, fields: &[&str]) -> Value {
    for name in fields {
        let mut more = object.clone();
        more[name] = asked[name].clone();
        if !asked[name].is_null() && decodes::<T>(&more) {
            object = more;
        }
    }
    object
}

/// Reads the object of a placeholder. `None` if the object no longer exists. Returns a placeholder
/// with the readable part of the status if the spec still cannot be decoded.
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
    if !unreadable.is_empty() {
        // The next status differs, so the operator writes it, without the unreadable fields.
        status.remove("observedGeneration");
        object["status"] = Value::Object(status);
        if let Ok(object) = serde_json::from_value(object.clone()) {
            return Ok(object);
        }
    }
    placeholder(
        serde_json::from_value(object["metadata"].take())?,
        &error,
        (served(&object), object["status"].take()),
    )
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
        let guarded: Guarded<MuxTunnel> = serde_json::from_value(object.clone()).unwrap();
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
        let guarded: Guarded<MuxBenchmark> = serde_json::from_value(benchmark).unwrap();
        assert!(reason(&decoded(guarded).unwrap()).is_some());
        let pod = json!({"metadata": {"name": "p"}, "spec": {"containers": "many"}});
        let guarded: Guarded<Pod> = serde_json::from_value(pod).unwrap();
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
