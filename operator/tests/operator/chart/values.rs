//! The table of values in the chart's README, generated from values.yaml and its comments.

use std::collections::BTreeSet;
use std::fmt::Write;

use serde_json::Value;

use super::documents::class;
use super::{GOLDEN, compare, read};

const BEGIN: &str = "<!-- The table is generated from values.yaml: UPDATE_DOCS=1 cargo test -p muxtunnel-operator chart -->\n";

/// One line of values.yaml that names a value.
struct Entry {
    path: String,
    /// Empty if the value has nested values.
    default: String,
    text: String,
}

/// Reads the lines `key: value` and the comments directly above them. Each level is indented by two spaces.
fn entries(text: &str) -> Vec<Entry> {
    let mut found: Vec<Entry> = Vec::new();
    let mut parents: Vec<String> = Vec::new();
    let mut comment = Vec::new();
    for line in text.lines() {
        let content = line.trim_start();
        if let Some(words) = content.strip_prefix("# ") {
            comment.push(words);
            continue;
        }
        let Some((key, default)) = content.split_once(':') else {
            assert!(content.is_empty(), "{line:?} is no value");
            comment.clear();
            continue;
        };
        parents.truncate((line.len() - content.len()) / 2);
        parents.push(key.to_owned());
        found.push(Entry {
            path: parents.join("."),
            default: default.trim().to_owned(),
            text: std::mem::take(&mut comment).join(" "),
        });
    }
    found
}

fn table(text: &str) -> String {
    let mut table = String::from("| value | default | meaning |\n|---|---|---|\n");
    for Entry {
        path,
        default,
        text,
    } in entries(text)
    {
        // A level without a default and a comment has no row.
        if default.is_empty() && text.is_empty() {
            continue;
        }
        let default = match default.as_str() {
            "" => String::new(),
            default => format!("`{default}`"),
        };
        let text = text.replace('|', "\\|");
        writeln!(table, "| `{path}` | {default} | {text} |").unwrap();
    }
    table
}

#[test]
fn the_readme_of_the_chart_has_every_value() {
    let path = "charts/muxtunnel/README.md";
    let page = read(path);
    let (head, rest) = page.split_once(BEGIN).unwrap();
    let behind = rest.lines().skip_while(|line| line.starts_with('|'));
    let behind: String = behind.map(|line| format!("{line}\n")).collect();
    let table = table(&read("charts/muxtunnel/values.yaml"));
    assert!(table.lines().count() > 40);
    compare(
        path,
        &format!("{head}{BEGIN}{table}{behind}"),
        "UPDATE_DOCS",
    );
}

/// Compares the names of the fields in a part of the chart's schema and in a part of a definition. A
/// part of the chart's schema without names accepts all fields.
fn assert_same_fields(at: &str, values: &Value, definitions: &Value, definition: &Value) {
    let values = match values["$ref"].as_str() {
        Some(reference) => &definitions[reference.trim_start_matches("#/$defs/")],
        None => values,
    };
    let of = |schema: &Value| -> BTreeSet<String> {
        let properties = schema["properties"].as_object();
        properties
            .map(|all| all.keys().cloned().collect())
            .unwrap_or_default()
    };
    if !values["items"].is_null() {
        assert_same_fields(at, &values["items"], definitions, &definition["items"]);
    }
    let names = of(values);
    if names.is_empty() {
        return;
    }
    assert_eq!(names, of(definition), "{at}");
    for name in names {
        let path = format!("{at}.{name}");
        let [values, definition] = [values, definition].map(|schema| &schema["properties"][&name]);
        assert_same_fields(&path, values, definitions, definition);
    }
}

#[test]
fn the_value_class_has_the_fields_of_a_class() {
    let mut schema: Value =
        serde_json::from_str(&read("charts/muxtunnel/values.schema.json")).unwrap();
    let values = schema.pointer_mut("/properties/class/properties").unwrap();
    let values = values.as_object_mut().unwrap();
    for own in ["create", "name"] {
        values.remove(own).unwrap();
    }
    values.insert("controllerName".to_owned(), Value::Bool(true));
    let definition: Value =
        serde_yaml::from_str(&read("charts/muxtunnel/files/crds/muxclasses.yaml")).unwrap();
    let spec = "/spec/versions/0/schema/openAPIV3Schema/properties/spec";
    assert_same_fields(
        "class",
        &schema["properties"]["class"],
        &schema["$defs"],
        definition.pointer(spec).unwrap(),
    );
    // The values reach the class, and empty values do not.
    let names = GOLDEN.map(|name| class(name)["spec"].as_object().unwrap().len());
    assert_eq!(names, [5, 10]);
}
