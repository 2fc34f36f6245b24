//! Tests of the rendered Helm chart, which read its golden files. `charts/tests/run` proves that
//! helm renders these files. The tests check that each document is valid for its kind, and that all
//! objects exist that the chart names. They also check the operator's permissions and the refusals
//! of the admission policies. `UPDATE_GOLDEN=1` and `UPDATE_DOCS=1` write the generated files.

mod admission;
mod documents;
mod monitoring;
mod rights;
mod values;

use std::fs;

use muxtunnel_testkit::generated::{checkout, compare};
use muxtunnel_testkit::openshift::restricted_v2;
use serde::Deserialize;
use serde_json::Value;

fn read(path: &str) -> String {
    fs::read_to_string(checkout(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn documents_of(text: &str) -> Vec<Value> {
    let documents = serde_yaml::Deserializer::from_str(text);
    let documents = documents.map(|document| Value::deserialize(document).unwrap());
    documents.filter(|document| !document.is_null()).collect()
}

/// The rendered documents: with the default values, and with all values changed.
fn golden(name: &str) -> Vec<Value> {
    let documents = documents_of(&read(&format!("charts/tests/golden/{name}.yaml")));
    assert!(documents.len() >= 5, "{name}");
    documents
}

const GOLDEN: [&str; 2] = ["default", "all-values"];

fn of_kind<'a>(documents: &'a [Value], kind: &str) -> Vec<&'a Value> {
    let found: Vec<_> = documents
        .iter()
        .filter(|document| document["kind"] == kind)
        .collect();
    assert!(!found.is_empty(), "no {kind}");
    found
}

#[test]
fn every_pod_of_the_chart_fits_into_restricted_v2() {
    for name in GOLDEN {
        let documents = golden(name);
        for kind in ["Deployment", "Job"] {
            for object in of_kind(&documents, kind) {
                let admitted = restricted_v2(&object["spec"]["template"]["spec"]);
                assert!(admitted.is_ok(), "{name}: {kind}: {admitted:?}");
            }
        }
    }
}

#[test]
fn what_the_chart_says_of_itself_is_so() {
    let chart: Value = serde_yaml::from_str(&read("charts/muxtunnel/Chart.yaml")).unwrap();
    let version = env!("CARGO_PKG_VERSION");
    assert_eq!(chart["appVersion"], version);
    let annotation = |name: &str| -> Value {
        let text = chart["annotations"][format!("artifacthub.io/{name}")].as_str();
        serde_yaml::from_str(text.unwrap()).unwrap()
    };
    for image in annotation("images").as_array().unwrap() {
        let name = image["name"].as_str().unwrap();
        assert_eq!(image["image"], format!("muxtunnel/{name}:{version}"));
    }
    let listed = annotation("crds");
    let listed: Vec<_> = listed
        .as_array()
        .unwrap()
        .iter()
        .map(|crd| crd["name"].as_str().unwrap())
        .collect();
    let definitions = muxtunnel_crds::schema::definitions().unwrap();
    let names: Vec<_> = definitions
        .iter()
        .map(|(_, crd)| crd.metadata.name.as_deref().unwrap())
        .collect();
    assert_eq!(listed, names);
    for example in annotation("crdsExamples").as_array().unwrap() {
        documents::check("crdsExamples", example);
    }
}
