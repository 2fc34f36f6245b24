//! Rendezvous for entries and exits that cannot dial each other.

use muxtunnel_gateway_config::Role;
use serde_json::json;

use super::build::{config, pod};
use super::*;

/// An exit that registers at a rendezvous.
fn met() -> String {
    format!("{EXIT}{}", at_rendezvous())
}

fn at_rendezvous() -> String {
    format!(
        "rendezvous: [{{name: meet, host: meet.example.com, port: 443, publicKeys: [{RENDEZVOUS_KEY}]}}]\n"
    )
}

/// A tunnel whose exit registers at a rendezvous.
fn meeting() -> String {
    let at = format!(
        "rendezvous: {{host: meet.example.com, port: 443, publicKeys: [{RENDEZVOUS_KEY}]}}"
    );
    ELSEWHERE.replace("host: exit.example.com\n  port: 443", &at)
}

#[test]
fn an_entry_and_an_exit_that_meet_both_dial_the_rendezvous() {
    for (spec, name) in [(meeting(), "office-entry"), (met(), "office-exit")] {
        let built = built(&spec);
        let config = config(&built, name);
        assert_eq!(config.listen, None);
        let dialled = config.to_yaml().unwrap();
        assert!(
            dialled.contains("meet.example.com") && dialled.contains(RENDEZVOUS_KEY),
            "{dialled}"
        );
        let ports = pod(&built, name)["spec"]["containers"][0]["ports"].clone();
        assert_eq!(ports.as_array().map(Vec::len), Some(1), "{ports}");
        let services = usize::from(name == "office-entry");
        assert_eq!(built.services.len(), services, "nobody dials an exit");
    }
}

#[test]
fn an_exit_that_is_met_has_a_service_of_what_it_listens_for_alone() {
    let tunnel = built(&format!(
        "{}reversePorts: [{{name: db, port: 5432}}]\n",
        met()
    ));
    let ports = child(&tunnel.services, "office-exit-reverse")["spec"]["ports"].clone();
    assert_eq!(ports.as_array().map(Vec::len), Some(1));
    assert_eq!(ports[0]["name"], "db");
    assert_eq!(tunnel.services.len(), 1);
}

#[test]
fn a_rendezvous_is_one_gateway_that_knows_its_members() {
    let built = built(&format!(
        "{RENDEZVOUS}service: {{type: LoadBalancer, port: 8443}}\nlimits: {{carriers: 3}}\n"
    ));
    let config = config(&built, "office-rendezvous");
    assert_eq!(config.role, Role::Rendezvous);
    assert_eq!(config.listen.as_deref(), Some("[::]:64000"));
    assert_eq!(config.limits.carriers, 3);
    let text = config.to_yaml().unwrap();
    assert!(
        text.contains(EXIT_KEY) && text.contains(ENTRY_KEY),
        "{text}"
    );
    let deployment = child(&built.deployments, "office-rendezvous");
    assert_eq!(deployment["spec"]["replicas"], 1);
    let service = child(&built.services, "office-rendezvous");
    assert_eq!(service["spec"]["type"], "LoadBalancer");
    let port = &service["spec"]["ports"][0];
    assert_eq!(
        (&port["port"], &port["targetPort"]),
        (&json!(8443), &json!(64000))
    );
    assert_eq!(built.deployments.len() + built.services.len(), 2);
}

/// The three ends agree on keys and addresses.
#[test]
fn the_files_of_all_three_ends_belong_together() {
    let rendezvous = config(&built(RENDEZVOUS), "office-rendezvous");
    let entry = config(&built(&meeting()), "office-entry");
    let exit = config(&built(&met()), "office-exit");
    let visited = entry.connect[0].rendezvous.as_ref().unwrap();
    let waits = &exit.rendezvous[0];
    assert_eq!(visited.address, "meet.example.com:443");
    assert_eq!((&waits.address, &*waits.name), (&visited.address, "meet"));
    assert_eq!(waits.public_keys, visited.public_keys);
    assert_eq!(visited.public_keys[0].to_string(), RENDEZVOUS_KEY);
    assert_eq!(entry.connect[0].address, None);
    let members: Vec<_> = rendezvous.members.iter().collect();
    assert_eq!(members[0].public_keys, entry.connect[0].public_keys);
    assert_eq!(members[1].public_keys[0].to_string(), ENTRY_KEY);
    let names = members.iter().map(|member| member.name.as_deref().unwrap());
    assert_eq!(names.collect::<Vec<_>>(), ["db", "near"]);
}

#[test]
fn a_key_belongs_to_one_member() {
    let twice = RENDEZVOUS.replace(ENTRY_KEY, EXIT_KEY);
    let expected = format!("members[1].publicKeys[0]: {EXIT_KEY} is listed twice");
    let said = refusal(&twice);
    assert!(said.contains(&expected), "{said}");
}

/// A suspended or expired member reaches running gateways, which end its carriers.
#[test]
fn a_change_of_members_is_no_roll_out() {
    let suspended = RENDEZVOUS.replace("name: db,", "name: db, suspend: true,");
    let fewer = RENDEZVOUS.replace("- {name: near", "#");
    let before = built(RENDEZVOUS);
    for changed in [suspended, fewer] {
        let after = built(&changed);
        assert_eq!(
            pod(&after, "office-rendezvous"),
            pod(&before, "office-rendezvous")
        );
        assert_ne!(
            config(&after, "office-rendezvous"),
            config(&before, "office-rendezvous")
        );
    }
}
