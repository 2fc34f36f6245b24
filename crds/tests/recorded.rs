//! Compares the definitions with those of earlier versions. An object that is stored under an
//! earlier definition must still be valid, and a field must keep its meaning, because operator and
//! definitions may have different versions for a while.
//!
//! `recorded/VERSION/` has the schemas of a version without their descriptions. Nobody edits them.
//! `RECORD=1` writes the schemas of the version in Cargo.toml.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "helpers of tests, outside of test functions"
)]

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use muxtunnel_crds::schema::definitions;
use serde_json::{Value, json};

fn folder() -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "tests", "recorded"]
        .iter()
        .collect()
}

/// Types of Kubernetes, which keep their own promises.
const FOREIGN: [&str; 6] = [
    "affinity",
    "dnsConfig",
    "hostAliases",
    "peers",
    "tolerations",
    "topologySpreadConstraints",
];

/// The schemas of the specs, by kind.
fn current() -> BTreeMap<String, Value> {
    let all = definitions().unwrap().into_iter().map(|(_, definition)| {
        let definition = serde_json::to_value(definition).unwrap();
        let kind = definition["spec"]["names"]["kind"].as_str().unwrap();
        let schema = &definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
        let spec = bare(&schema["properties"]["spec"]);
        (kind.to_owned(), spec)
    });
    all.collect()
}

/// The schema with the keywords that this test compares.
fn bare(schema: &Value) -> Value {
    let mut bare = json!({});
    for (keyword, value) in schema.as_object().unwrap() {
        let value = match keyword.as_str() {
            "properties" => {
                let properties = value.as_object().unwrap().iter();
                let properties = properties.filter(|(name, _)| !FOREIGN.contains(&name.as_str()));
                let properties =
                    properties.map(|(name, property)| (name.clone(), self::bare(property)));
                Value::Object(properties.collect())
            }
            "items" => self::bare(value),
            "additionalProperties" if value.is_object() => self::bare(value),
            "type" | "enum" | "required" | "minimum" | "maximum" | "minItems" | "maxItems"
            | "minLength" | "maxLength" | "maxProperties" | "pattern" | "default" => value.clone(),
            _ => continue,
        };
        bare[keyword] = value;
    }
    bare
}

/// Why an object of the schema `old` may be invalid, or mean something else, with the schema `new`.
fn narrowed(path: &str, old: &Value, new: &Value, found: &mut Vec<String>) {
    if new.is_null() {
        found.push(format!("{path} is gone"));
        return;
    }
    for keyword in ["type", "pattern"] {
        if old[keyword] != new[keyword] && !new[keyword].is_null() {
            found.push(format!("{path}: another {keyword}"));
        }
    }
    // A default that a list's item has no longer is in the types.
    if !new["default"].is_null() && old["default"] != new["default"] {
        found.push(format!("{path}: another default"));
    }
    let values =
        |schema: &Value, keyword: &str| schema[keyword].as_array().cloned().unwrap_or_default();
    let (known, allowed) = (values(old, "enum"), values(new, "enum"));
    if !allowed.is_empty()
        && (known.is_empty() || known.iter().any(|value| !allowed.contains(value)))
    {
        found.push(format!("{path}: fewer values"));
    }
    let needed = values(old, "required");
    for field in values(new, "required") {
        if !needed.contains(&field) {
            found.push(format!("{path} needs {field}"));
        }
    }
    let number = |schema: &Value, keyword: &str| schema[keyword].as_f64();
    for keyword in ["minimum", "minItems", "minLength"] {
        if let Some(least) = number(new, keyword)
            && number(old, keyword).is_none_or(|old| old < least)
        {
            found.push(format!("{path}: {keyword} rose"));
        }
    }
    for keyword in ["maximum", "maxItems", "maxLength", "maxProperties"] {
        if let Some(most) = number(new, keyword)
            && number(old, keyword).is_none_or(|old| old > most)
        {
            found.push(format!("{path}: {keyword} fell"));
        }
    }
    for (name, property) in old["properties"].as_object().into_iter().flatten() {
        let path = format!("{path}.{name}");
        narrowed(&path, property, &new["properties"][name], found);
    }
    for keyword in ["items", "additionalProperties"] {
        if old[keyword].is_object() {
            narrowed(&format!("{path}[]"), &old[keyword], &new[keyword], found);
        }
    }
}

#[test]
fn objects_of_earlier_definitions_are_valid() {
    let current = current();
    if std::env::var_os("RECORD").is_some() {
        let folder = folder().join(env!("CARGO_PKG_VERSION"));
        fs::create_dir_all(&folder).unwrap();
        for (kind, schema) in &current {
            let text = serde_json::to_string_pretty(schema).unwrap();
            fs::write(folder.join(format!("{kind}.json")), text + "\n").unwrap();
        }
    }
    let mut read = 0;
    for version in fs::read_dir(folder()).unwrap() {
        for file in fs::read_dir(version.unwrap().path()).unwrap() {
            let file = file.unwrap().path();
            let old: Value = serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
            let kind = file.file_stem().unwrap().to_str().unwrap();
            let mut found = Vec::new();
            let new = current
                .get(kind)
                .unwrap_or_else(|| panic!("{kind} is gone"));
            narrowed("spec", &old, new, &mut found);
            assert_eq!(found, [""; 0], "{}", file.display());
            read += 1;
        }
    }
    assert!(read >= 6, "{read} definitions");
}

#[test]
fn what_makes_an_object_invalid_is_found() {
    let found = |old: Value, new: Value| {
        let mut found = Vec::new();
        narrowed("spec", &old, &new, &mut found);
        found.join("; ")
    };
    let with = |property: Value| json!({"type": "object", "properties": {"a": property}});
    assert_eq!(found(with(json!({})), with(json!({}))), "");
    let gone = json!({"type": "object", "properties": {}});
    assert_eq!(found(with(json!({})), gone), "spec.a is gone");
    for (old, new, expected) in [
        (
            json!({"enum": ["A", "B"]}),
            json!({"enum": ["A"]}),
            "fewer values",
        ),
        (json!({"enum": ["A"]}), json!({"enum": ["A", "B"]}), ""),
        (json!({"maximum": 9}), json!({"maximum": 8}), "maximum fell"),
        (json!({}), json!({"minLength": 1}), "minLength rose"),
        (
            json!({"default": 1}),
            json!({"default": 2}),
            "another default",
        ),
        (
            json!({"type": "string"}),
            json!({"type": "integer"}),
            "another type",
        ),
        (json!({"required": []}), json!({"required": ["b"]}), "needs"),
        (
            json!({"items": {"maxLength": 2}}),
            json!({"items": {"maxLength": 1}}),
            "maxLength fell",
        ),
    ] {
        let said = found(with(old), with(new));
        assert!(
            said.contains(expected) && said.is_empty() == expected.is_empty(),
            "{said}"
        );
    }
}
