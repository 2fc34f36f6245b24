//! The fields of an object or of a file of values, and the paths by which pages name them.

use std::collections::BTreeMap;

use serde_yaml::Value;

/// Last parts of dotted names that are files or hosts, not fields.
const OTHERS: &[&str] = &[
    "rs", "c", "md", "yaml", "toml", "sh", "json", "jsonl", "crt", "key", "pub", "svg", "txt",
    "com", "org", "net", "io", "dev", "svc", "local", "internal", "invalid", "secret",
];

/// Fields by name, each with its subfields. Items of lists are merged into the list.
#[derive(Debug, Default)]
pub(crate) struct Tree(BTreeMap<String, Self>);

impl Tree {
    /// The fields of a CustomResourceDefinition.
    pub(crate) fn of_definition(text: &str) -> Self {
        let definition: Value = serde_yaml::from_str(text).unwrap();
        let schema = &definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
        assert!(schema.is_mapping());
        Self::of_schema(schema)
    }

    fn of_schema(schema: &Value) -> Self {
        if schema["items"].is_mapping() {
            return Self::of_schema(&schema["items"]);
        }
        let properties = schema["properties"].as_mapping().into_iter().flatten();
        let fields = properties.map(|(name, field)| {
            let name = name.as_str().unwrap().to_owned();
            (name, Self::of_schema(field))
        });
        Self(fields.collect())
    }

    /// The values of a chart.
    pub(crate) fn of_values(text: &str) -> Self {
        Self::of_value(&serde_yaml::from_str(text).unwrap())
    }

    fn of_value(value: &Value) -> Self {
        let values = value.as_mapping().into_iter().flatten();
        let fields = values.map(|(name, value)| {
            let name = name.as_str().unwrap().to_owned();
            (name, Self::of_value(value))
        });
        Self(fields.collect())
    }

    /// Whether the path exists, starting at any field.
    pub(crate) fn has(&self, path: &[&str]) -> bool {
        self.begins(path) || self.0.values().any(|field| field.has(path))
    }

    fn begins(&self, path: &[&str]) -> bool {
        let Some((first, rest)) = path.split_first() else {
            return true;
        };
        let name = first.strip_suffix("[]").unwrap_or(first);
        self.0.get(name).is_some_and(|field| field.begins(rest))
    }
}

/// The path of a field in a code span, such as `carrier.pool`, `forwards[].listen` or
/// `carrier.protocol: Auto`.
pub(crate) fn path(span: &str) -> Option<Vec<&str>> {
    let (path, value) = span.split_once(": ").unwrap_or((span, ""));
    let names: Vec<_> = path.split('.').collect();
    let named = names.iter().all(|name| {
        let name = name.strip_suffix("[]").unwrap_or(name);
        name.starts_with(|c: char| c.is_ascii_lowercase())
            && name.chars().all(|c| c.is_ascii_alphanumeric())
    });
    let is_field = names.len() > 1 || !value.is_empty();
    let last = names.last()?;
    let is_other = value.is_empty() && (OTHERS.contains(last) || names[0] == "net");
    let names = names.strip_prefix(&["spec"]).unwrap_or(&names);
    (named && is_field && !is_other && !names.is_empty()).then(|| names.to_vec())
}
