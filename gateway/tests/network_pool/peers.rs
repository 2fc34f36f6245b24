//! Entries with networks of their own (`network.peers`).

use super::*;

/// An exit with a configuration file.
struct Exit {
    gate: Gate,
    file: std::path::PathBuf,
    security: String,
}

impl Exit {
    /// `peers`: the networks of the entries.
    fn start(hosts: &Hosts, peers: &str) -> Self {
        let file = hosts.folder.path().join("exit.yaml");
        let security = hosts.files("exit").security("laptop', 'phone");
        write(&file, &security, peers);
        let create = "tun create --address 10.72.0.1/24 --address fd72::1/64";
        let words = [
            &[env!("CARGO_BIN_EXE_muxgate")][..],
            &create.split(' ').collect::<Vec<_>>(),
        ];
        hosts.exit.namespace.run(&words.concat());
        let run = ["run", "--config", file.to_str().unwrap()];
        let gate = hosts.exit.namespace.enter(|| Gate::without_admin(&run));
        gate.line(&["Opened the interface for IP packets"]);
        Self {
            gate,
            file,
            security,
        }
    }

    fn rewrite(&self, peers: &str) {
        write(&self.file, &self.security, peers);
    }
}

fn write(file: &Path, security: &str, peers: &str) {
    let config = format!(
        "role: Exit\nlisten: 0.0.0.0:64000\nsecurity: {security}\nnetwork:\n  entryCIDRs: [10.72.0.0/24, 'fd72::/64']\n  \
         exitCIDRs: [{EXIT}, '{EXIT6}']\n  pool: [10.72.0.0/24, 'fd72::/64']\n  peersReachEachOther: true\n  \
         peers: [{peers}]\n"
    );
    let staged = file.with_extension("new");
    std::fs::write(&staged, config).unwrap();
    std::fs::rename(staged, file).unwrap();
}

fn phone_at(address: &str) -> String {
    format!("{{identity: phone, CIDRs: [{address}]}}")
}

#[test]
fn an_entry_of_the_configuration_keeps_its_address_and_entries_may_reach_each_other() {
    let hosts = Hosts::with("Native");
    let _exit = Exit::start(&hosts, &phone_at(LAPTOP[0]));
    // An entry that reaches other entries names the pool as a network of both sides. Its own
    // address has a longer prefix, which takes precedence.
    let all = ["--exit-cidr", "10.72.0.0/24", "--exit-cidr", "fd72::/64"];
    let start = |number, name| {
        let entry = hosts.entry(number, name, &[&NETWORKS[..], &all, &AUTO].concat());
        until("the entry has addresses", || {
            assigned(&entry)["addresses"].is_array()
        });
        entry
    };
    let [laptop, phone] = [start(0, "laptop"), start(1, "phone")];
    // `network.peers` gives the phone the address that the laptop's hash selects.
    assert_eq!(
        assigned(&phone)["addresses"],
        serde_json::json!([LAPTOP[0], PHONE[1]])
    );
    assert_eq!(
        assigned(&laptop)["addresses"],
        serde_json::json!(["10.72.0.56", LAPTOP[1]])
    );
    let near = hosts.entries[0].udp("10.72.0.56");
    let far = hosts.entries[1].udp(LAPTOP[0]);
    assert!(exchanged(&near, &far) && exchanged(&far, &near));
}

/// The sessions of all other entries continue.
#[test]
fn an_entry_whose_networks_change_begins_another_session_at_the_running_exit() {
    let hosts = Hosts::with("Native");
    let exit = Exit::start(&hosts, "");
    let [laptop, phone] = [hosts.auto(0, "laptop"), hosts.auto(1, "phone")];
    let address = |entry: &Gate| assigned(entry)["addresses"][0].clone();
    let far = hosts.exit.udp(EXIT);
    let near = hosts.entries[0].udp(LAPTOP[0]);
    assert!(exchanged(&near, &far));
    exit.rewrite(&phone_at("10.72.0.99"));
    until("the phone has its network", || {
        address(&phone) == "10.72.0.99"
    });
    let changed = "The networks of the entry have changed";
    exit.gate.line(&[changed, "phone"]);
    assert!(exchanged(&hosts.entries[1].udp("10.72.0.99"), &far));
    let log = exit.gate.log();
    let mut lines = log.lines().filter(|line| line.contains(changed));
    assert!(lines.all(|line| !line.contains("laptop")), "{log}");
    assert!(exchanged(&near, &far));
    // The address of the laptop becomes that of the phone.
    exit.rewrite(&phone_at(LAPTOP[0]));
    until("the phone has its network", || address(&phone) == LAPTOP[0]);
    until("the laptop has another address", || {
        address(&laptop) == "10.72.0.56"
    });
    assert!(exchanged(&hosts.entries[1].udp(LAPTOP[0]), &far));
    exit.rewrite("");
    until("the phone has an address of the pool", || {
        address(&phone) != LAPTOP[0]
    });
}
