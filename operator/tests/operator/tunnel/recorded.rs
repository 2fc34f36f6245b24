//! Configurations and status documents of earlier versions. During an upgrade, a gateway and the
//! operator have different versions, and a pod may start with the file of the earlier operator.
//!
//! `recorded/VERSION/` has the files that the operator of that version wrote for the specs below,
//! and the status of its gateways. Nobody edits them. `RECORD=1` writes the configurations of the
//! version in Cargo.toml.

use std::collections::BTreeSet;
use std::path::PathBuf;

use muxtunnel_gateway_config::Config;
use muxtunnel_gateway_config::status::Status;
use muxtunnel_operator::tunnel_controller::build::config_map::expected_hash;
use muxtunnel_operator::tunnel_controller::build::reduce::reduced;

use super::*;

/// Fields that a gateway of an earlier version refuses, with the first version that knows the
/// field. Pods of an earlier version must not get a file with such a field.
const NEWER: &[(&str, &str)] = &[];

fn folder() -> PathBuf {
    let parts = [env!("CARGO_MANIFEST_DIR"), "tests", "operator", "recorded"];
    parts.iter().collect()
}

/// Specs whose configurations together have the fields of all features.
fn specs() -> Vec<(&'static str, String)> {
    let native = SMALLEST.replace("protocol: JMUX", "protocol: Native");
    let with =
        |protocol: &str| SMALLEST.replace("protocol: JMUX", &format!("protocol: {protocol}"));
    [
        ("jmux", SMALLEST.to_owned()),
        ("managed", MANAGED.to_owned()),
        (
            "native",
            format!(
                "{native}entry: {{replicas: 2, template: {{spec: {{containers: [{{name: gateway, resources: {{limits: {{memory: 64Mi, cpu: 2}}}}}}]}}}}}}\n\
                 exit: {{replicas: 2, drainSeconds: 60}}\n\
                 timeouts: {{idleSeconds: 900, halfOpenSeconds: 3600, keepaliveSeconds: 30}}\n\
                 allow: [{{host: '*.example.com', port: 443}}]\ndeny: [{{cidr: 10.1.0.0/16}}]\n"
            ),
        ),
        (
            "network",
            format!(
                "{native}network: {{entry: {{cidrs: [10.1.0.0/24]}}, exit: {{cidrs: [10.2.0.0/24]}}, \
                 dns: {{servers: [10.2.0.53], domains: [example.com]}}}}\n"
            ),
        ),
        (
            "reverse",
            native.replace("- name: db\n", "reverseForwards:\n- name: db\n"),
        ),
        ("http2", with("HTTP2")),
        ("elsewhere", ELSEWHERE.to_owned()),
        (
            "far",
            format!(
                "{EXIT}trustedProxies: [10.0.0.0/8]\nreversePorts: [{{name: back, port: 8080}}]\n\
                 ssh: {{secretRef: {{name: people}}}}\n"
            ),
        ),
        (
            "proxies",
            format!(
                "{native}allow: [{{host: '*.internal'}}]\n\
                 proxies: [{{name: any, port: 1080, protocol: Auto, usersSecretRef: {{name: people}}}}]\n"
            ),
        ),
        ("rendezvous", RENDEZVOUS.to_owned()),
    ]
    .into_iter()
    .collect()
}

/// The text of each gateway's file.
fn files(spec: &str) -> Vec<(String, String)> {
    let resources = built(spec);
    let texts = resources.config_maps.iter().map(|config_map| {
        let (key, text) = config_map.data.iter().flatten().next().unwrap();
        assert!(expected_hash(config_map, key).is_some());
        let name = config_map.metadata.name.clone().unwrap();
        let end = name.strip_prefix("office-").unwrap().to_owned();
        (end, text.clone())
    });
    texts.collect()
}

/// The paths of all fields. Lists count as one item.
fn fields(path: &str, value: &serde_yaml::Value, found: &mut BTreeSet<String>) {
    match value {
        serde_yaml::Value::Mapping(fields) => {
            for (name, value) in fields {
                let path = format!("{path}.{}", name.as_str().unwrap());
                self::fields(&path, value, found);
                found.insert(path);
            }
        }
        serde_yaml::Value::Sequence(items) => {
            for item in items {
                self::fields(&format!("{path}[]"), item, found);
            }
        }
        _ => {}
    }
}

fn fields_of(text: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    fields("", &serde_yaml::from_str(text).unwrap(), &mut found);
    found
}

/// The recorded files with this ending, by version.
fn recorded(ending: &str) -> Vec<(String, PathBuf)> {
    let mut found = Vec::new();
    for version in std::fs::read_dir(folder()).unwrap() {
        let version = version.unwrap();
        for file in std::fs::read_dir(version.path()).unwrap() {
            let path = file.unwrap().path();
            if path.extension().is_some_and(|own| own == ending) {
                found.push((version.file_name().into_string().unwrap(), path));
            }
        }
    }
    found
}

fn record() {
    if std::env::var_os("RECORD").is_none() {
        return;
    }
    let folder = folder().join(env!("CARGO_PKG_VERSION"));
    std::fs::create_dir_all(&folder).unwrap();
    for (name, spec) in specs() {
        for (end, text) in files(&spec) {
            std::fs::write(folder.join(format!("{name}-{end}.yaml")), text).unwrap();
        }
    }
}

#[test]
fn a_gateway_reads_the_files_of_earlier_operators() {
    record();
    let files = recorded("yaml");
    assert!(files.len() >= 14, "{}", files.len());
    for (_, path) in files {
        let text = std::fs::read_to_string(&path).unwrap();
        let config =
            Config::from_yaml(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        // No field has lost its meaning.
        let lost: Vec<_> = fields_of(&text)
            .difference(&fields_of(&config.to_yaml().unwrap()))
            .cloned()
            .collect();
        assert_eq!(lost, [""; 0], "{}", path.display());
    }
}

#[test]
fn a_gateway_of_an_earlier_version_knows_the_fields_of_the_operators_files() {
    for (name, spec) in specs() {
        for (end, text) in files(&spec) {
            let suffix = format!("{name}-{end}.yaml");
            for (version, path) in recorded("yaml") {
                if !path.ends_with(&suffix) {
                    continue;
                }
                let known = fields_of(&std::fs::read_to_string(&path).unwrap());
                let is_newer = |field: &String| NEWER.iter().any(|(newer, _)| newer == field);
                let unknown: Vec<_> = fields_of(&text)
                    .difference(&known)
                    .filter(|field| !is_newer(field))
                    .cloned()
                    .collect();
                assert_eq!(
                    unknown, [""; 0],
                    "{suffix}: a gateway of {version} refuses the file"
                );
            }
        }
    }
}

/// During an upgrade, pods of the earlier version lose no permission that the spec still has.
#[test]
fn the_reduced_file_of_an_earlier_operator_is_the_file() {
    let recorded = recorded("yaml");
    for (name, spec) in specs() {
        for (end, text) in files(&spec) {
            let present = Config::from_yaml(&text).unwrap();
            let suffix = format!("{name}-{end}.yaml");
            let same = recorded.iter().filter(|(_, path)| path.ends_with(&suffix));
            let same: Vec<_> = same.collect();
            assert!(!same.is_empty(), "{suffix}");
            for (version, path) in same {
                let text = std::fs::read_to_string(path).unwrap();
                assert_eq!(reduced(&text, &present), text, "{suffix} of {version}");
            }
        }
    }
}

#[test]
fn an_operator_reads_the_status_of_earlier_gateways() {
    let files = recorded("json");
    assert!(files.len() >= 2, "{}", files.len());
    for (_, path) in files {
        let text = std::fs::read_to_string(&path).unwrap();
        let status: Result<Status, _> = serde_json::from_str(&text);
        let status = status.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        // A newer gateway reports further fields.
        let mut newer = serde_json::to_value(&status).unwrap();
        newer["furtherField"] = json!({"a": 1});
        newer["carriers"][0]["furtherField"] = json!(1);
        let read: Status = serde_json::from_value(newer).unwrap();
        assert_eq!(read, status, "{}", path.display());
    }
}
