//! The page `docs/reference/api.md`: every field of the schemas, and the messages of the rules.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde_json::Value;

use super::structure::join;

/// Properties of Kubernetes' own types, and the names of these types.
const FOREIGN: [(&str, &str); 9] = [
    ("affinity", "Affinity"),
    ("conditions", "list of Condition"),
    ("dnsConfig", "PodDNSConfig"),
    ("hostAliases", "list of HostAlias"),
    ("imagePullSecrets", "list of LocalObjectReference"),
    ("peers", "list of NetworkPolicyPeer"),
    ("selector", "LabelSelector"),
    ("tolerations", "list of Toleration"),
    (
        "topologySpreadConstraints",
        "list of TopologySpreadConstraint",
    ),
];

/// Objects whose fields the page has, by their fields: the heading and the path.
type Seen = BTreeMap<String, (String, String)>;

/// The page. `message` is the refusal of an object that breaks a rule. `example` is a valid object
/// of a kind.
pub(super) fn page(
    definitions: &[Value],
    message: &dyn Fn(&str) -> String,
    example: &dyn Fn(&str) -> String,
) -> String {
    let mut page = "<!-- Generated: UPDATE_DOCS=1 cargo test -p muxtunnel-crds reference -->\n\
         # The API `muxtunnel.dev/v1alpha1`\n\n\
         The tables list every field of each kind. `A..B` are bounds, of a number, of the characters of a text or of the \
         items of a list. A set has no item twice, and the items of a map differ in the named key. The column *in force* \
         has the value that an absent field stands for. The API server stores objects as they were written, without \
         these values.\n\n\
         The section *Rules* of each kind lists what the API server also checks, by the message with which it refuses an \
         example. The operator checks the rest: the condition `Accepted`.\n"
        .to_owned();
    let mut seen = Seen::new();
    let mut rules = BTreeMap::new();
    for definition in definitions {
        let names = &definition["spec"]["names"];
        let kind = names["kind"].as_str().unwrap();
        let schema = &definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
        let name = &schema["properties"]["metadata"]["properties"]["name"]["maxLength"];
        write!(
            page,
            "\n## {kind}\n{}\n\nShort name: `{}`. The name of an object has at most {name} characters.\n```yaml\n{}```\n",
            text(schema),
            names["shortNames"][0].as_str().unwrap(),
            example(kind)
        )
        .unwrap();
        for part in ["spec", "status"] {
            if let Some(part_schema) = schema["properties"].get(part) {
                let heading = format!("{kind}.{part}");
                writeln!(
                    page,
                    "\n### {heading}\n| field | type | in force | meaning |\n|---|---|---|---|"
                )
                .unwrap();
                fields(&mut page, &heading, "", part_schema, &mut seen);
            }
        }
        let mut own = Vec::new();
        find_rules("", schema, &mut own);
        own.retain(|(_, rule)| rules.insert(rule.clone(), kind).is_none());
        if !own.is_empty() {
            writeln!(page, "\n### Rules of {kind}").unwrap();
        }
        for (path, rule) in own {
            let place = if path.is_empty() {
                String::new()
            } else {
                format!("`{path}`: ")
            };
            writeln!(page, "- {place}{}", message(&rule)).unwrap();
        }
    }
    page
}

fn fields(page: &mut String, heading: &str, path: &str, schema: &Value, seen: &mut Seen) {
    let required = schema["required"].as_array().cloned().unwrap_or_default();
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        let path = join(path, name);
        let foreign = FOREIGN.iter().find(|(field, type_)| {
            field == name && type_.starts_with("list") == (property["type"] == "array")
        });
        let (meaning, mut in_force) = split_default(&text(property));
        if required.contains(&Value::from(name.as_str())) {
            "required".clone_into(&mut in_force);
        }
        let type_ = foreign.map_or_else(
            || type_of(property),
            |(_, type_)| format!("{type_} (Kubernetes)"),
        );
        let (inner, suffix) = match property.get("items") {
            Some(items) => (items, "[]"),
            None => (property, ""),
        };
        let nested = inner["properties"].is_object() && foreign.is_none();
        let fields_text = inner["properties"].to_string();
        let known = seen.get(&fields_text).filter(|_| nested);
        let reference = known.map_or_else(String::new, |(heading, path)| {
            let anchor = heading.to_lowercase().replace('.', "");
            format!(" Fields: as [`{path}` of {heading}](#{anchor}).")
        });
        writeln!(
            page,
            "| `{path}` | {type_} | {in_force} | {meaning}{reference} |"
        )
        .unwrap();
        if nested && known.is_none() {
            let path = format!("{path}{suffix}");
            seen.insert(fields_text, (heading.to_owned(), path.clone()));
            fields(page, heading, &path, inner, seen);
        }
    }
}

/// The description on one line, for a cell of a table.
fn text(schema: &Value) -> String {
    let text = schema["description"].as_str().unwrap_or_default();
    text.split_whitespace()
        .collect::<Vec<_>>()
        .join(" ")
        .replace('|', "\\|")
}

/// The text without the sentence `Default: ...`, and the content of this sentence.
fn split_default(text: &str) -> (String, String) {
    let Some((before, after)) = text.rsplit_once("Default: ") else {
        return (text.to_owned(), String::new());
    };
    let (value, rest) = after
        .split_once(". ")
        .unwrap_or((after.trim_end_matches('.'), ""));
    (
        format!("{before}{rest}").trim_end().to_owned(),
        value.to_owned(),
    )
}

fn type_of(schema: &Value) -> String {
    let limits = |least: &str, most: &str| {
        let value = |key: &str| {
            schema[key]
                .as_f64()
                .map_or_else(String::new, |value| value.to_string())
        };
        let (least, most) = (value(least), value(most));
        match (least.as_str(), most.as_str()) {
            (_, "") => String::new(),
            ("", _) => format!("at most {most}"),
            _ => format!("{least}..{most}"),
        }
    };
    if let Some(values) = schema["enum"].as_array() {
        let values = values.iter().filter_map(Value::as_str);
        return values
            .map(|value| format!("`{value:?}`").replace('"', ""))
            .collect::<Vec<_>>()
            .join(", ");
    }
    if schema["x-kubernetes-int-or-string"] == true {
        return format!("quantity {}", limits("minimum", "maximum"))
            .trim_end()
            .to_owned();
    }
    match schema["type"].as_str() {
        Some("array") => {
            let list = match schema["x-kubernetes-list-type"].as_str() {
                Some("set") => "set".to_owned(),
                Some("map") => {
                    format!(
                        "map by `{}`",
                        schema["x-kubernetes-list-map-keys"][0].as_str().unwrap()
                    )
                }
                _ => "list".to_owned(),
            };
            format!(
                "{list}, {} items: {}",
                limits("minItems", "maxItems"),
                type_of(&schema["items"])
            )
        }
        Some("string") => {
            let pattern = schema["pattern"]
                .as_str()
                .map_or_else(String::new, |pattern| {
                    format!(" `{}`", pattern.replace('|', "\\|"))
                });
            let format = match schema["format"].as_str() {
                Some("date-time") => "time",
                Some("cidr") => "network",
                // The formats of both families.
                None if schema["anyOf"].is_array() => "IP address",
                _ => "string",
            };
            format!("{format} {}{pattern}", limits("minLength", "maxLength"))
                .trim_end()
                .to_owned()
        }
        Some("integer") => format!("integer {}", limits("minimum", "maximum"))
            .trim_end()
            .to_owned(),
        Some("object") if schema["additionalProperties"].is_object() => {
            format!(
                "map of {}, {} entries",
                type_of(&schema["additionalProperties"]),
                limits("", "maxProperties")
            )
        }
        Some(other) => other.to_owned(),
        None => String::new(),
    }
}

/// The rules of `schema`, each with the path of its first object.
fn find_rules(path: &str, schema: &Value, found: &mut Vec<(String, String)>) {
    for rule in schema["x-kubernetes-validations"]
        .as_array()
        .into_iter()
        .flatten()
    {
        found.push((path.to_owned(), rule["rule"].as_str().unwrap().to_owned()));
    }
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        find_rules(&join(path, name), property, found);
    }
    if let Some(items) = schema.get("items") {
        find_rules(&format!("{path}[]"), items, found);
    }
}
