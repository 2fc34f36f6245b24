//! Entries that connect to an SSH host, and the hosts that they know.

use super::*;

#[test]
fn an_entry_goes_to_an_sshd_whose_key_it_knows() {
    let keys = Keys::new();
    let folder = tempfile::tempdir().unwrap();
    let (_sshd, port, _) = sshd(folder.path());
    let file = |name: &str| folder.path().join(name);
    std::fs::copy(file("user"), keys.at("user")).unwrap();
    let (listener, target) = target();
    let key = std::fs::read_to_string(file("host.pub")).unwrap();
    let known = format!("# a comment\n[127.0.0.1]:{port} {key}");
    let security = keys.entry_security("user", "root", &known);
    let (entry, forward) = entry(&security, port, target);
    let entry = entry.until_ready();
    assert_streams_interoperate(&|| connect(forward), &listener);

    // sshd refuses a stream if the target accepts no connection.
    drop(listener);
    assert_reset_or_end(&connect(forward));
    entry.line(&["refused", "connect failed"]);
}

#[test]
fn an_entry_has_an_sshd_listen() {
    let keys = Keys::new();
    let folder = tempfile::tempdir().unwrap();
    let (_sshd, port, _) = sshd(folder.path());
    let file = |name: &str| folder.path().join(name);
    std::fs::copy(file("user"), keys.at("user")).unwrap();
    let (listener, target) = target();
    let key = std::fs::read_to_string(file("host.pub")).unwrap();
    let security = keys.entry_security("user", "root", &format!("[127.0.0.1]:{port} {key}"));
    let far = free_port();
    let gate = Gate::with_file(&format!(
        "role: Entry\nprotocol: SSH\nsecurity: {security}\nconnect:\n- name: far\n  address: '127.0.0.1:{port}'\nadmin: ADMIN\nworkers: 1\n\
         reverseForwards:\n- {{name: a, listen: '127.0.0.1:{far}', targets: [{{host: {}, port: {}}}]}}\n",
        target.ip(),
        target.port()
    ))
    .until_ready();
    gate.line(&["The exit listens", &far.to_string()]);
    assert_streams_interoperate(&|| connect(loopback(far)), &listener);
    gate.signal("TERM");
    until("sshd does not listen", || {
        TcpListener::bind(loopback(far)).is_ok()
    });
}

#[test]
fn an_entry_trusts_no_host_that_it_does_not_know() {
    let (keys, port) = (Keys::new(), free_port());
    keys.make("wrong");
    keys.make("stranger");
    let _exit = exit(&keys.security(), port, "");
    let target = loopback(1);
    let right = keys.public("host");
    for (known, key, why) in [
        (
            keys.known(port, "wrong"),
            "user",
            "but knownHosts has another key",
        ),
        (format!("other {right}"), "user", "is not in knownHosts"),
        (String::new(), "user", "is not in knownHosts"),
        (
            keys.known(port, "host") + &format!("@revoked * {right}"),
            "user",
            "is revoked in knownHosts",
        ),
        (keys.known(port, "host"), "stranger", "refuses the user"),
    ] {
        let (gate, _) = entry(&keys.entry_security(key, "somebody", &known), port, target);
        gate.line(&["WARN", why]);
        assert_eq!(gate.get("/readyz").0, 503, "{why}");
    }
}

#[test]
fn a_host_that_is_hashed_or_has_a_certificate_is_known() {
    let (keys, port) = (Keys::new(), free_port());
    keys.make("ca");
    let (listener, target) = target();
    let exit = exit(
        &keys.security(),
        port,
        &format!(
            "allow: [{target_rule}]\n",
            target_rule = crate::common::rule(target)
        ),
    );
    let known = keys.at("hashed");
    std::fs::write(&known, keys.known(port, "host")).unwrap();
    let args = ["-q", "-H", "-f", known.to_str().unwrap()];
    stdout(&run("ssh-keygen", "openssh-client", &args));
    let hashed = std::fs::read_to_string(&known).unwrap();
    assert!(hashed.starts_with("|1|"), "{hashed}");
    let security = keys.entry_security("user", "somebody", &hashed);
    let (gate, forward) = entry(&security, port, target);
    let gate = gate.until_ready();
    let client = connect(forward);
    assert_half_closes(&client, &accept(&listener));
    drop((gate, exit));

    // The server is an sshd, because our exits do not support host certificates.
    let folder = tempfile::tempdir().unwrap();
    let (_sshd, port) = certified_sshd(&keys, folder.path());
    let authority = format!("@cert-authority [127.0.0.*]:* {}", keys.public("ca"));
    let security = keys.entry_security("user", "root", &authority);
    let (gate, forward) = entry(&security, port, target);
    let _gate = gate.until_ready();
    let client = connect(forward);
    assert_half_closes(&client, &accept(&listener));
}

fn certified_sshd(keys: &Keys, folder: &Path) -> (Running, u16) {
    std::fs::copy(keys.at("ca"), folder.join("ca")).unwrap();
    keys.sign("host", &["-h", "-n", "127.0.0.1"]);
    std::fs::create_dir_all("/run/sshd").unwrap();
    let port = free_port();
    let mut command = Command::new("/usr/sbin/sshd");
    command.args(["-D", "-e", "-f", "/dev/null", "-h"]);
    command.arg(keys.at("host"));
    for option in [
        format!("ListenAddress=127.0.0.1:{port}"),
        format!(
            "AuthorizedKeysFile={}",
            keys.at("authorized_keys").display()
        ),
        format!("HostCertificate={}", keys.at("host-cert.pub").display()),
        "StrictModes=no".to_owned(),
        "UsePAM=no".to_owned(),
        "PidFile=none".to_owned(),
        "PermitRootLogin=yes".to_owned(),
    ] {
        command.args(["-o", &option]);
    }
    let server = command.stderr(Stdio::null()).spawn();
    let server = Running(server.expect("apt-get install openssh-server"));
    until_listens(port);
    (server, port)
}

#[test]
fn an_entry_logs_in_to_an_exit_of_ours_by_a_certificate() {
    let (keys, port) = (Keys::new(), free_port());
    keys.make("ca");
    keys.sign("user", &["-n", "somebody"]);
    let (listener, target) = target();
    let _exit = exit(
        &keys.security_by_certificates(),
        port,
        &format!(
            "allow: [{target_rule}]\n",
            target_rule = crate::common::rule(target)
        ),
    );
    let certificate = keys.at("user-cert.pub");
    let security = keys.entry_security("user", "somebody", &keys.known(port, "host"));
    let security = security.replace(
        ", knownHosts",
        &format!(", certificate: '{}', knownHosts", certificate.display()),
    );
    let (gate, forward) = entry(&security, port, target);
    let _gate = gate.until_ready();
    let client = connect(forward);
    assert_half_closes(&client, &accept(&listener));
}
