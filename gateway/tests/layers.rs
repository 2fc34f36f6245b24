//! Checks the layers of muxgate's modules, that no modules of a layer use each other in a circle, and
//! which modules read the system's time.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use muxtunnel_testkit::layers::{Layers, assert_no_circles};

/// The files that read the system's time, which an administrator may set at any time. A carrier by
/// public keys needs the time for `expirationTime` alone.
const READ_THE_TIME: [&str; 10] = [
    // Dates of certificates for the command line.
    "cli/tls_files.rs",
    // Dates of certificates, and `expirationTime` of peers and members.
    "io/security.rs",
    "io/transport/tls.rs",
    "io/transport/tls/keys.rs",
    "io/transport/tls/keys/pins.rs",
    "roles/rendezvous.rs",
    "roles/trust.rs",
    // Dates of certificates and keys of SSH.
    "io/ssh/credentials.rs",
    "io/ssh/known_hosts.rs",
    // The age of a file.
    "net/dns/system.rs",
];

/// Names of test modules, which may use any module.
const TESTS: [&str; 2] = ["simulation", "tests"];

#[test]
fn each_layer_uses_itself_and_those_below_it_alone() {
    let layers = Layers {
        layers: &[
            &["base"],
            &["io"],
            &["net"],
            &["ingress"],
            &["stream"],
            &["session"],
            &["roles"],
            &["observe"],
            &["process"],
        ],
        beside: &["cli", "lib", "main", "oracles"],
        tests: &TESTS,
    };
    layers.assert(env!("CARGO_MANIFEST_DIR"));
}

#[test]
fn no_modules_of_a_layer_use_each_other_in_a_circle() {
    for layer in ["io", "session", "roles"] {
        assert_no_circles(env!("CARGO_MANIFEST_DIR"), layer, &TESTS);
    }
}

/// Cargo looks for no test programs, so it would not compile a file that `main.rs` does not name.
#[test]
fn every_file_of_tests_is_a_module() {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    let main = fs::read_to_string(tests.join("main.rs")).unwrap();
    for entry in fs::read_dir(tests).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_str().unwrap();
        if name != "main" && path.extension().is_some_and(|extension| extension == "rs") {
            let module = format!("mod {name};");
            assert!(
                main.lines().any(|line| line == module),
                "tests/main.rs lacks {module}"
            );
        }
    }
}

/// Adds the files below `folder` that read the system's time, without tests and oracles.
fn find(folder: &Path, top: &Path, found: &mut BTreeSet<String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_str().unwrap();
        if matches!(name, "tests" | "oracle") {
            continue;
        }
        if path.is_dir() {
            find(&path, top, found);
            continue;
        }
        let text = fs::read_to_string(&path).unwrap();
        let calls = ["SystemTime::now()", "UnixTime::now()", "::now_utc()"];
        if calls.iter().any(|call| text.contains(call)) {
            let path = path.strip_prefix(top).unwrap();
            found.insert(path.to_str().unwrap().to_owned());
        }
    }
}

#[test]
fn the_systems_time_decides_on_dates_and_ages_alone() {
    let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut found = BTreeSet::new();
    find(&top, &top, &mut found);
    let known = READ_THE_TIME.map(str::to_owned);
    assert_eq!(found, BTreeSet::from(known));
}
