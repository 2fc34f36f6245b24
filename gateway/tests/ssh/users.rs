//! Users of an exit: their keys and certificates, and what these permit.

use std::io::ErrorKind;

use super::*;

#[test]
fn a_user_with_an_rsa_key_logs_in_if_the_key_is_long_enough() {
    let (keys, port) = (Keys::new(), free_port());
    let (listener, target) = target();
    let make = |name: &str, bits: &str| {
        let file = keys.at(name).display().to_string();
        let args = ["-q", "-t", "rsa", "-b", bits, "-N", "", "-f", &file];
        stdout(&run("ssh-keygen", "openssh-client", &args));
    };
    make("long", "3072");
    make("short", "2048");
    keys.authorize(&(keys.public("long") + &keys.public("short")));
    let exit = exit(
        &keys.security(),
        port,
        &format!(
            "allow: [{target_rule}]\n",
            target_rule = crate::common::rule(target)
        ),
    );
    exit.line(&["the RSA key has 2048 bits"]);
    let local = free_port();
    let forward = format!("{local}:{target}");
    let _ssh = keys.forwards_by("long", port, &["-L", &forward], local);
    assert_streams_interoperate(&|| connect(loopback(local)), &listener);
    let refused = keys.said(port, "short", &["-N"], &[]);
    assert!(refused.contains("Permission denied"), "{refused}");
}

#[test]
fn a_user_with_a_fido_key_logs_in() {
    let (keys, port) = (Keys::new(), free_port());
    let (listener, target) = target();
    let agent = crate::common::agent::Agent::start(keys.dir.path());
    keys.authorize(&agent.public);
    std::fs::write(keys.at("fido.pub"), &agent.public).unwrap();
    let _exit = exit(
        &keys.security(),
        port,
        &format!(
            "allow: [{target_rule}]\n",
            target_rule = crate::common::rule(target)
        ),
    );
    let local = free_port();
    let forward = format!("{local}:{target}");
    // With a public key file as the identity, ssh uses the private key of the agent.
    let mut ssh = keys.ssh(port, "fido.pub", &["-N", "-L", &forward]);
    ssh.env("SSH_AUTH_SOCK", &agent.socket)
        .stderr(Stdio::null());
    let _ssh = Running(ssh.spawn().expect("apt-get install openssh-client"));
    until_listens(local);
    assert_streams_interoperate(&|| connect(loopback(local)), &listener);
}

#[test]
fn who_is_not_in_the_file_does_not_log_in_and_a_line_that_is_taken_out_ends_its_sessions() {
    let (keys, port, here) = (Keys::new(), free_port(), free_port());
    keys.make("stranger");
    let (listener, target) = target();
    let exit = exit(
        &keys.security(),
        port,
        &format!(
            "allow: [{target_rule}]\n",
            target_rule = crate::common::rule(target)
        ),
    );
    let said = keys.said(port, "stranger", &["-N"], &[]);
    assert!(said.contains("Permission denied (publickey)"), "{said}");
    exit.line(&["Carrier refused", "is not in authorizedKeys"]);

    let _ssh = keys.forwards(port, &["-L", &format!("{here}:{target}")], here);
    let client = connect(loopback(here));
    let _server = accept(&listener);
    keys.authorize(&keys.public("stranger"));
    assert_reset_or_end(&client);
    exit.line(&["MT0232", "is not in authorizedKeys"]);
    let said = keys.said(port, "user", &["-N"], &[]);
    assert!(said.contains("Permission denied (publickey)"), "{said}");
}

#[test]
fn options_of_a_key_restrict_it_and_one_that_is_not_known_leaves_it_out() {
    let (keys, port) = (Keys::new(), free_port());
    let (listener, target) = target();
    let other = free_port();
    let allow = format!(
        "allow: [{}, {{cidr: 127.0.0.1/32, port: {other}}}]\nallowListen: ['{other}']\n",
        crate::common::rule(target)
    );
    let exit = exit(&keys.security(), port, &allow);
    let key = keys.public("user");
    let with = |options: &str| {
        keys.authorize(&format!("{options} {key}"));
        exit_has_read(&exit);
    };

    with(&format!("permitopen=\"{target}\",permitlisten=\"none\""));
    let (here, denied) = (free_port(), free_port());
    let forwards = [
        format!("{here}:{target}"),
        format!("{denied}:127.0.0.1:{other}"),
    ];
    let ssh = keys.forwards(port, &["-L", &forwards[0], "-L", &forwards[1]], here);
    let client = connect(loopback(here));
    assert_half_closes(&client, &accept(&listener));
    assert_reset_or_end(&connect(loopback(denied)));
    drop(ssh);
    let said = keys.said(
        port,
        "user",
        &["-N", "-R", &format!("{other}:{target}")],
        &[],
    );
    assert!(said.contains("remote port forwarding failed"), "{said}");

    with("restrict");
    let here = free_port();
    let ssh = keys.forwards(port, &["-L", &format!("{here}:{target}")], here);
    assert_reset_or_end(&connect(loopback(here)));
    drop(ssh);

    for options in [
        "expiry-time=\"20200101\"",
        "from=\"10.0.0.0/8\"",
        "command=\"true\"",
        "from=\"example.com\"",
    ] {
        with(options);
        let said = keys.said(port, "user", &["-N"], &[]);
        assert!(said.contains("Permission denied"), "{options}: {said}");
    }
    exit.line(&["authorized_keys:1", "the option command is not supported"]);
    exit.line(&["authorized_keys:1", "names are not looked up"]);
}

/// Waits until the exit has reloaded a changed file.
fn exit_has_read(gate: &Gate) {
    let before = gate.log().matches("New credentials loaded").count();
    until("the keys are read", || {
        gate.log().matches("New credentials loaded").count() > before
    });
}

#[test]
fn certificates_log_in_for_as_long_as_they_are_good() {
    let (keys, port) = (Keys::new(), free_port());
    keys.make("ca");
    let (listener, target) = target();
    let exit = exit(
        &keys.security_by_certificates(),
        port,
        &format!(
            "allow: [{}]\n",
            crate::common::rule(format!("{target},peer=ssh:user@{}", print_of(&keys, "ca")))
        ),
    );
    let said = keys.said(port, "user", &["-N"], &[]);
    assert!(said.contains("Permission denied"), "{said}");

    keys.sign("user", &["-n", "somebody,else", "-V", "+1h"]);
    let here = free_port();
    let ssh = keys.forwards(port, &["-L", &format!("{here}:{target}")], here);
    let client = connect(loopback(here));
    assert_half_closes(&client, &accept(&listener));
    drop(ssh);

    for (options, why) in [
        (&["-n", "else"][..], "is not for the user"),
        (
            &["-n", "somebody", "-V", "20200101:20210101"],
            // The SSH library refuses an expired certificate without a call of the gateway. So the
            // log reports only the refusal of the plain key.
            "is not in authorizedKeys",
        ),
        (
            &["-n", "somebody", "-O", "source-address=10.0.0.0/8"],
            "source-address",
        ),
        (
            &["-n", "somebody", "-O", "critical:strange=1"],
            "its critical option strange is not supported",
        ),
    ] {
        keys.sign("user", options);
        let said = keys.said(port, "user", &["-N"], &[]);
        assert!(said.contains("Permission denied"), "{options:?}: {said}");
        exit.line(&["Carrier refused", why]);
    }

    keys.sign("user", &["-n", "somebody", "-O", "no-port-forwarding"]);
    let here = free_port();
    let ssh = keys.forwards(port, &["-L", &format!("{here}:{target}")], here);
    assert_reset_or_end(&connect(loopback(here)));
    drop(ssh);

    // A session whose certificate expires accepts no more streams.
    keys.sign("user", &["-n", "somebody", "-V", "-1m:+4s"]);
    let here = free_port();
    let mut ssh = keys.forwards(port, &["-L", &format!("{here}:{target}")], here);
    exit.line(&["certificate has expired"]);
    until("the connection has ended", || {
        ssh.0.try_wait().unwrap().is_some()
    });
}

/// The fingerprint `SHA256:...` of a public key.
fn print_of(keys: &Keys, name: &str) -> String {
    let file = keys.at(&format!("{name}.pub"));
    let args = ["-l", "-f", file.to_str().unwrap()];
    let line = stdout(&run("ssh-keygen", "openssh-client", &args));
    line.split(' ').nth(1).unwrap().to_owned()
}

#[test]
fn a_rule_may_be_for_one_key() {
    let (keys, port) = (Keys::new(), free_port());
    keys.make("other");
    keys.authorize(&(keys.public("user") + &keys.public("other")));
    let (listener, target) = target();
    let print = print_of(&keys, "user");
    let far = free_port();
    let rules = format!(
        "allow: [{}]\nallowListen: ['{far},peer=ssh:{print}']\n",
        crate::common::rule(format!("{target},peer=ssh:{print}"))
    );
    let _exit = exit(&keys.security(), port, &rules);
    let here = free_port();
    let forwards = [
        "-L",
        &format!("{here}:{target}"),
        "-R",
        &format!("{far}:{target}"),
    ];
    let ssh = keys.forwards(port, &forwards, here);
    let client = connect(loopback(here));
    assert_half_closes(&client, &accept(&listener));
    drop(ssh);
    let said = keys.said(
        port,
        "other",
        &["-N", "-R", &format!("{far}:{target}")],
        &[],
    );
    assert!(said.contains("remote port forwarding failed"), "{said}");
}

/// If a peer could share or take the port of another peer, it would get the other peer's clients.
#[test]
fn a_listener_is_that_of_the_key_that_asked_first_and_no_other_key_shares_or_takes_it() {
    let (keys, port, far) = (Keys::new(), free_port(), free_port());
    keys.make("other");
    keys.authorize(&(keys.public("user") + &keys.public("other")));
    let (mine, target_of_mine) = target();
    let (others, target_of_others) = target();
    // With several workers, the session of the other user may be on any worker.
    let exit = Gate::with_file(&format!(
        "role: Exit\nprotocol: SSH\nsecurity: {}\nlisten: '127.0.0.1:{port}'\nadmin: ADMIN\nworkers: 2\n\
         allowListen: ['{far}']\n",
        keys.security()
    ))
    .until_ready();
    let forward = format!("{far}:{target_of_mine}");
    let first = keys.forwards(port, &["-R", &forward], far);
    // A session with the same key shares the port.
    let again = keys.forwards(port, &["-R", &forward], far);
    let refused = "remote port forwarding failed";
    for asked in [far, far, far, 0] {
        let listen = format!("{asked}:{target_of_others}");
        let said = keys.said(port, "other", &["-N", "-R", &listen], &[]);
        assert!(said.contains(refused), "{said}");
    }
    exit.line(&["Listener refused", "another identity"]);
    for _ in 0..8 {
        let near = connect(loopback(far));
        assert_half_closes(&near, &accept(&mine));
    }
    drop((first, again));
    until("no listener has the port", || {
        TcpListener::bind(loopback(far)).is_ok()
    });
    let forward = format!("{far}:{target_of_others}");
    let _other = keys.forwards_by("other", port, &["-R", &forward], far);
    let near = connect(loopback(far));
    assert_half_closes(&near, &accept(&others));
}

#[test]
fn keys_that_are_offered_in_vain_end_the_login() {
    let (keys, port) = (Keys::new(), free_port());
    let exit = exit(&keys.security(), port, "");
    let mut args = vec!["-N".to_owned()];
    for number in 0..8 {
        let name = format!("key{number}");
        keys.make(&name);
        args.extend(["-i".to_owned(), keys.at(&name).display().to_string()]);
    }
    let args: Vec<_> = args.iter().map(String::as_str).collect();
    let said = keys.said(port, "key0", &args, &[]);
    assert!(said.contains("Too many authentication attempts"), "{said}");
    exit.line(&["Carrier refused", "is not in authorizedKeys"]);
    // A connection that sends nothing at first does not block the port.
    let silent = connect(loopback(port));
    let mut banner = String::new();
    (&silent).take(8).read_to_string(&mut banner).unwrap();
    assert_eq!(banner, "SSH-2.0-");
    assert_ends_after_name(&silent);
    exit.line(&["no SSH identification within 5 s"]);
}

/// Reads the rest of the other end's identification. Asserts that the connection then ends.
fn assert_ends_after_name(tcp: &TcpStream) {
    let mut rest = Vec::new();
    let mut tcp = tcp;
    if let Err(error) = tcp.read_to_end(&mut rest) {
        // The connection is still open if the read times out.
        assert_ne!(error.kind(), ErrorKind::WouldBlock);
    }
    assert!(rest.len() < 256);
}
