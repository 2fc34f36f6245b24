//! Checks without a cluster which objects the schemas refuse and accept. The module `structure`
//! checks the structural part with the messages of an API server, and kube's CEL evaluates the
//! rules.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "helpers of tests, outside of test functions"
)]

mod reference;
mod structure;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use kube::core::cel::{CompiledSchema, Validator, compile_schema};
use muxtunnel_crds::schema::definitions;
use muxtunnel_crds::{
    MuxBenchmark, MuxClass, MuxExit, MuxGrant, MuxPeer, MuxRendezvous, MuxTunnel,
};
use muxtunnel_testkit::bad_objects::{BadObject, parse};
use muxtunnel_testkit::generated::compare;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

const KINDS: [&str; 7] = [
    "MuxTunnel",
    "MuxExit",
    "MuxPeer",
    "MuxRendezvous",
    "MuxBenchmark",
    "MuxGrant",
    "MuxClass",
];

/// A refusal: the rule (empty for the structure), and the message.
struct Refusal {
    rule: String,
    message: String,
}

fn schema_of(kind: &str) -> Value {
    let definition = definitions()
        .unwrap()
        .into_iter()
        .map(|(_, definition)| serde_json::to_value(definition).unwrap())
        .find(|definition| definition["spec"]["names"]["kind"] == kind)
        .unwrap_or_else(|| panic!("no definition of kind {kind}"));
    definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"].clone()
}

fn refusals(object: &Value, old: Option<&Value>) -> Vec<Refusal> {
    static SCHEMAS: LazyLock<BTreeMap<&str, (Value, CompiledSchema)>> = LazyLock::new(|| {
        let schemas = KINDS.map(|kind| (kind, schema_of(kind)));
        let compiled = schemas.map(|(kind, schema)| {
            let rules = compile_schema(&schema);
            assert!(!rules.has_errors(), "{:?}", rules.compilation_errors());
            (kind, (schema, rules))
        });
        compiled.into()
    });
    let (schema, rules) = &SCHEMAS[object["kind"].as_str().unwrap()];
    let structural = structure::check(schema, object);
    if !structural.is_empty() {
        let refusal = |message| Refusal {
            rule: String::new(),
            message,
        };
        return structural.into_iter().map(refusal).collect();
    }
    let broken = Validator::new().validate_compiled(rules, object, old);
    let errors = broken.map_or_else(kube::core::cel::ValidationErrors::into_vec, |()| Vec::new());
    let refusal = |error: kube::core::cel::ValidationError| Refusal {
        rule: error.rule.clone(),
        message: error.message,
    };
    errors.into_iter().map(refusal).collect()
}

fn files(folder: &str) -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests")
        .join(folder);
    let mut files: Vec<_> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    files.sort();
    assert!(!files.is_empty());
    files
}

fn bad_objects() -> Vec<(String, BadObject)> {
    files("bad_objects")
        .into_iter()
        .map(|file| {
            let name = file.file_stem().unwrap().to_string_lossy().into_owned();
            let object = parse(&fs::read_to_string(&file).unwrap()).unwrap();
            (name, object)
        })
        .collect()
}

#[test]
fn every_bad_object_is_refused_with_its_sentence() {
    let mut complaints = Vec::new();
    for (name, bad) in bad_objects() {
        if let Some(old) = &bad.old {
            let messages: Vec<_> = refusals(old, None).into_iter().map(|r| r.message).collect();
            assert!(messages.is_empty(), "{name}: the old object: {messages:?}");
        }
        let messages: Vec<_> = refusals(&bad.object, bad.old.as_ref())
            .into_iter()
            .map(|refusal| refusal.message)
            .collect();
        if messages.len() != 1 || !messages[0].contains(&bad.expected) {
            complaints.push(format!(
                "{name}: expected {:?}, got {messages:?}",
                bad.expected
            ));
        }
    }
    assert!(complaints.is_empty(), "{}", complaints.join("\n"));
}

/// The messages of the rules that bad objects break, by rule.
fn messages() -> BTreeMap<String, String> {
    let mut messages = BTreeMap::new();
    for (_, bad) in bad_objects() {
        for refusal in refusals(&bad.object, bad.old.as_ref()) {
            messages.entry(refusal.rule).or_insert(refusal.message);
        }
    }
    messages
}

#[test]
fn every_rule_is_broken_by_a_bad_object() {
    let broken = messages();
    for kind in KINDS {
        for rule in rules(&schema_of(kind)) {
            assert!(
                broken.contains_key(&rule),
                "{kind}: no bad object breaks {rule}"
            );
        }
    }
}

#[test]
fn the_reference_is_up_to_date() {
    let definitions = definitions().unwrap().into_iter();
    let definitions: Vec<_> = definitions
        .map(|(_, definition)| serde_json::to_value(definition).unwrap())
        .collect();
    let messages = messages();
    let example = |kind: &str| {
        let name = match kind.trim_start_matches("Mux").to_lowercase().as_str() {
            "grant" => "grant.yaml".to_owned(),
            kind => format!("{kind}_smallest.yaml"),
        };
        let files = files("good_objects");
        let file = files.iter().find(|file| file.ends_with(&name)).unwrap();
        let text = fs::read_to_string(file).unwrap();
        text.replace("name: good", "name: example")
    };
    let page = reference::page(&definitions, &|rule| messages[rule].clone(), &example);
    compare("docs/reference/api.md", &page, "UPDATE_DOCS");
}

fn rules(schema: &Value) -> Vec<String> {
    match schema {
        Value::Object(object) => object
            .iter()
            .flat_map(|(key, value)| {
                if key == "x-kubernetes-validations" {
                    value
                        .as_array()
                        .unwrap()
                        .iter()
                        .map(|rule| rule["rule"].as_str().unwrap().to_owned())
                        .collect()
                } else {
                    rules(value)
                }
            })
            .collect(),
        Value::Array(items) => items.iter().flat_map(rules).collect(),
        _ => Vec::new(),
    }
}

#[test]
fn good_objects_are_accepted_and_fit_the_rust_types() {
    for file in files("good_objects") {
        let text = fs::read_to_string(&file).unwrap();
        let object: Value = serde_yaml::from_str(&text).unwrap();
        accept(&file, object);
    }
}

#[test]
fn the_examples_of_the_documentation_are_accepted_and_fit_the_rust_types() {
    let mut accepted = 0;
    for file in files("../../docs/examples") {
        let text = fs::read_to_string(&file).unwrap();
        for document in serde_yaml::Deserializer::from_str(&text) {
            let object = Value::deserialize(document).unwrap();
            if object["apiVersion"] == "muxtunnel.dev/v1alpha1" {
                accepted += 1;
                accept(&file, object);
            }
        }
    }
    assert!(accepted >= 19, "only {accepted}");
}

/// Fails unless the rules accept the object and the type of its kind can parse it.
fn accept(file: &Path, object: Value) {
    let messages: Vec<_> = refusals(&object, None)
        .into_iter()
        .map(|refusal| refusal.message)
        .collect();
    assert!(messages.is_empty(), "{}: {messages:?}", file.display());
    let parse = match object["kind"].as_str() {
        Some("MuxTunnel") => parses::<MuxTunnel>,
        Some("MuxExit") => parses::<MuxExit>,
        Some("MuxPeer") => parses::<MuxPeer>,
        Some("MuxRendezvous") => parses::<MuxRendezvous>,
        Some("MuxBenchmark") => parses::<MuxBenchmark>,
        Some("MuxGrant") => parses::<MuxGrant>,
        Some("MuxClass") => parses::<MuxClass>,
        kind => panic!("{}: kind {kind:?}", file.display()),
    };
    parse(file, object);
}

fn parses<K: DeserializeOwned>(file: &Path, object: Value) {
    if let Err(error) = serde_json::from_value::<K>(object) {
        panic!("{}: {error}", file.display());
    }
}

#[test]
fn the_generated_files_are_up_to_date() {
    let crds = Path::new(env!("CARGO_MANIFEST_DIR"));
    for folder in ["yaml", "../charts/muxtunnel/files/crds"] {
        for (file, definition) in definitions().unwrap() {
            let path = crds.join(folder).join(file);
            let found = fs::read_to_string(&path).unwrap_or_default();
            assert!(
                found == serde_yaml::to_string(&definition).unwrap(),
                "{folder}/{file} is stale: run cargo run -p muxtunnel-crds --bin crdgen"
            );
        }
    }
}

#[test]
fn schemas_have_no_unsigned_formats() {
    for (file, definition) in definitions().unwrap() {
        let text = serde_yaml::to_string(&definition).unwrap();
        assert!(!text.contains("format: uint"), "{file}");
    }
}

/// The API server multiplies the cost of a rule by the bounds of the lists that contain it. If a
/// list has no bound, the API server refuses the whole definition.
#[test]
fn own_lists_and_strings_of_specs_are_bounded() {
    for kind in KINDS {
        let schema = schema_of(kind);
        structure::assert_bounded("spec", &schema["properties"]["spec"]);
    }
}

/// kubectl lists every kind of a category. If a category had the name of a kind, `kubectl get KIND
/// NAME` would be refused.
#[test]
fn no_kind_is_called_as_a_category() {
    let definitions = definitions().unwrap();
    let names: Vec<_> = definitions.iter().map(|(_, it)| &it.spec.names).collect();
    let categories = names
        .iter()
        .flat_map(|names| names.categories.iter().flatten());
    for category in categories {
        for names in &names {
            let short = names.short_names.iter().flatten();
            let mut called = short.chain(&names.singular).chain([&names.plural]);
            assert!(!called.any(|name| name == category), "{category}");
        }
    }
}

/// Objects read back as they were written, and clients without floats can read them.
#[test]
fn no_field_has_a_default_or_is_null_or_a_float() {
    fn walk(path: &str, schema: &Value, found: &mut Vec<String>) {
        if schema.get("default").is_some()
            || schema.get("nullable").is_some()
            || schema["type"] == "number"
        {
            found.push(path.to_owned());
        }
        for (name, property) in schema["properties"].as_object().into_iter().flatten() {
            walk(&format!("{path}.{name}"), property, found);
        }
        for key in ["items", "additionalProperties"] {
            if let Some(inner) = schema.get(key) {
                walk(&format!("{path}[]"), inner, found);
            }
        }
    }
    let mut found = Vec::new();
    for kind in KINDS {
        walk(kind, &schema_of(kind), &mut found);
    }
    assert_eq!(found, [""; 0]);
}
