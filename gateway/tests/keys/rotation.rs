//! Both ends change their keys.

use std::net::TcpStream;

use super::*;

/// Sends some bytes each way on a stream, and asserts that they arrive.
pub(super) fn passes((client, target): &(TcpStream, TcpStream)) {
    use std::io::{Read, Write};
    for (mut from, mut to) in [(client, target), (target, client)] {
        let sent = pattern(u64::from(from.local_addr().unwrap().port()), 100_000);
        let mut arrived = vec![0; sent.len()];
        std::thread::scope(|scope| {
            scope.spawn(|| from.write_all(&sent).unwrap());
            to.read_exact(&mut arrived).unwrap();
        });
        assert!(arrived == sent);
    }
}

/// Waits until the gateway has carriers, and all of them prove a peer of this name.
fn until_all_carriers_prove(gate: &Gate, name: &str) {
    until("all carriers prove the peer", || {
        let status = gate.status();
        let carriers = status["carriers"].as_array().unwrap().len() as u64;
        let peers = status["peers"].as_array().unwrap();
        let peer = peers.iter().find(|peer| peer["name"] == name).unwrap();
        carriers > 0 && peer["carriers"].as_u64() == Some(carriers)
    });
}

#[test]
fn both_ends_change_their_keys_one_after_the_other_and_a_stream_loses_nothing() {
    let (dir, [old_exit, old_entry, _]) = keys();
    let [new_exit, new_entry] = ["new-exit", "new-entry"].map(|name| Key::new(dir.path(), name));
    let (listener, target) = target();
    let carrier = carrier_address();
    let security = |old: &Key, new: &Key, name: &str, peers: &[&str]| {
        format!(
            "{{mode: PublicKeys, privateKeyFiles: ['{}', '{}'], peers: [{{name: {name}, publicKeys: [{}]}}]}}",
            old.file.display(),
            new.file.display(),
            peers.join(", ")
        )
    };
    // Both ends have two keys already, and know the older key of the other end.
    let exit_text = |keys: &[&str]| {
        let security = security(&old_exit, &new_exit, "near", keys);
        exit_file(("Native", ""), &security, carrier, target)
    };
    let exit = Gate::with_file(&exit_text(&[&old_entry.entry])).until_ready();
    let port = free_port();
    let entry_text = |keys: &[&str]| {
        let security = security(&old_entry, &new_entry, "far", &[]);
        let (security, _) = security.split_once(", peers").unwrap();
        let keys = keys.join(", ");
        format!(
            "role: Entry\nsecurity: {security}}}\nconnect:\n- name: far\n  address: '{carrier}'\n  publicKeys: [{keys}]\nadmin: ADMIN\nworkers: 1\n\
             forwards: [{{name: web, listen: '127.0.0.1:{port}', targets: [{{host: 127.0.0.1, port: {}}}]}}]\n",
            target.port()
        )
    };
    let entry = Gate::with_file(&entry_text(&[&old_exit.exit])).until_ready();
    // The exit has refused the newer key of the entry once.
    exit.line(&["Carrier refused", "MT0233", &new_entry.entry]);
    assert_eq!(
        exit.status()["publicKeys"],
        serde_json::json!([new_exit.exit, old_exit.exit])
    );
    let stream = open(([127, 0, 0, 1], port).into(), &listener);
    passes(&stream);
    let presented = || exit.status()["peers"][0]["presentedKey"].clone();
    assert_eq!(presented(), old_exit.exit.as_str());
    // The exit's key: both, and then only the newer one.
    reload(&entry, &entry_text(&[&old_exit.exit, &new_exit.exit]));
    passes(&stream);
    reload(&entry, &entry_text(&[&new_exit.exit]));
    entry.line(&["MT0232", "no longer has the key of this carrier"]);
    passes(&stream);
    until_all_carriers_prove(&entry, "far");
    until("the exit presents its newer key", || {
        presented() == new_exit.exit.as_str()
    });
    // The entry's key.
    reload(&exit, &exit_text(&[&old_entry.entry, &new_entry.entry]));
    passes(&stream);
    reload(&exit, &exit_text(&[&new_entry.entry]));
    exit.line(&["MT0232", "no longer has the key of this carrier"]);
    passes(&stream);
    until_all_carriers_prove(&exit, "near");
    until_all_carriers_prove(&entry, "far");
    let new = open(([127, 0, 0, 1], port).into(), &listener);
    passes(&new);
    passes(&stream);
}

#[test]
fn an_entry_falls_back_to_its_older_key_over_each_protocol() {
    for way in WAYS {
        let (_dir, [exit_key, old, new]) = keys();
        let (listener, target) = target();
        let carrier = carrier_address();
        let security = exit_key.accepts(&[&old.entry]);
        let exit = Gate::with_file(&exit_file(way, &security, carrier, target)).until_ready();
        let security = format!(
            "{{mode: PublicKeys, privateKeyFiles: ['{}', '{}'], peers: [{}]}}",
            old.file.display(),
            new.file.display(),
            exit_key.exit
        );
        let (entry, forward) = entry_of(way, &security, carrier, target);
        let _entry = entry.until_ready();
        exit.line(&["Carrier refused", "MT0233", &new.entry]);
        assert_bulk(&connect(forward), accept(&listener), MIB);
        let presented = exit.status()["peers"][0]["presentedKey"].clone();
        assert_eq!(presented, exit_key.exit.as_str(), "{way:?}");
    }
}
