//! The keys of stored objects.

/// The namespace of paths without a namespace.
pub(super) const NAMESPACE: &str = "site";

/// The key of an object: `configmaps/web-exit`, followed by `@` and the namespace, unless the
/// namespace is `site`.
pub(super) fn key(namespace: Option<&str>, path: &str) -> String {
    match namespace {
        Some(namespace) if namespace != NAMESPACE => {
            // The key has only the parts before a subresource.
            let mut parts = path.splitn(3, '/');
            let (resource, name) = (parts.next().unwrap(), parts.next());
            match (name, parts.next()) {
                (None, _) => resource.to_owned(),
                (Some(name), None) => format!("{resource}/{name}@{namespace}"),
                (Some(name), Some(rest)) => format!("{resource}/{name}@{namespace}/{rest}"),
            }
        }
        _ => path.to_owned(),
    }
}

/// The name and the namespace in the key of an object.
pub(super) fn name_in(key: &str) -> (&str, &str) {
    let (_, name) = key.split_once('/').unwrap();
    name.split_once('@').unwrap_or((name, NAMESPACE))
}

/// Whether the object with that key is in `namespace`. `None`: the object may be in any namespace.
pub(super) fn is_in(key: &str, namespace: Option<&str>) -> bool {
    namespace.is_none_or(|namespace| name_in(key).1 == namespace)
}

/// Whether the object with that key is cluster-wide.
pub(super) fn is_cluster_wide(key: &str) -> bool {
    let resources = [
        "customresourcedefinitions/",
        "muxclasses/",
        "namespaces/",
        "nodes/",
    ];
    resources.iter().any(|resource| key.starts_with(resource))
}

/// Whether `path` is `place` or below it.
pub(super) fn is_at_or_below(path: &str, place: &str) -> bool {
    let rest = path.strip_prefix(place);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}
