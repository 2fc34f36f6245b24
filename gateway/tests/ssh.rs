//! SSH against OpenSSH's ssh and sshd, and between two gateways.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::common::secured::ssh_key;
use crate::common::tools::{Running, run, sshd, stdout};
use crate::common::*;

const MIB: usize = 1 << 20;

/// Keys in a folder of the test.
struct Keys {
    dir: tempfile::TempDir,
}

impl Keys {
    /// Creates the keys `host` and `user`. The key `user` may log in.
    fn new() -> Self {
        let keys = Self {
            dir: tempfile::tempdir().unwrap(),
        };
        keys.make("host");
        keys.make("user");
        keys.authorize(&keys.public("user"));
        keys
    }

    fn at(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn make(&self, name: &str) {
        ssh_key(&self.at(name));
    }

    fn public(&self, name: &str) -> String {
        std::fs::read_to_string(self.at(&format!("{name}.pub"))).unwrap()
    }

    /// Writes these lines to authorizedKeys.
    fn authorize(&self, lines: &str) {
        replace(&self.at("authorized_keys"), lines);
    }

    /// Signs the key `name` with the authority `ca`.
    fn sign(&self, name: &str, more: &[&str]) {
        let (ca, public) = (self.at("ca"), self.at(&format!("{name}.pub")));
        let mut args = vec!["-q", "-s", ca.to_str().unwrap(), "-I", name];
        args.extend(more);
        args.push(public.to_str().unwrap());
        stdout(&run("ssh-keygen", "openssh-client", &args));
    }

    fn security(&self) -> String {
        format!(
            "{{mode: SSH, hostKeys: ['{}'], authorizedKeys: '{}'}}",
            self.at("host").display(),
            self.at("authorized_keys").display()
        )
    }

    /// The `security` of an exit that trusts user certificates of `ca`.
    fn security_by_certificates(&self) -> String {
        format!(
            "{{mode: SSH, hostKeys: ['{}'], trustedUserCAKeys: '{}'}}",
            self.at("host").display(),
            self.at("ca.pub").display()
        )
    }

    /// The `security` of an entry that logs in as `user` with the key `key`.
    fn entry_security(&self, key: &str, user: &str, known: &str) -> String {
        let file = self.at("known_of_entry");
        std::fs::write(&file, known).unwrap();
        format!(
            "{{mode: SSH, user: {user}, key: '{}', knownHosts: '{}'}}",
            self.at(key).display(),
            file.display()
        )
    }

    /// The known_hosts line for a host on `port` of loopback.
    fn known(&self, port: u16, host: &str) -> String {
        format!("[127.0.0.1]:{port} {}", self.public(host))
    }

    /// An ssh command that connects to `port` of loopback with the key `key`, as `user`, with
    /// `args`. Not started.
    fn ssh(&self, port: u16, key: &str, args: &[&str]) -> Command {
        let known = self.at("known");
        std::fs::write(&known, self.known(port, "host")).unwrap();
        let mut command = Command::new("ssh");
        command.args(["-F", "/dev/null", "-p", &port.to_string(), "-i"]);
        command.arg(self.at(key));
        for option in [
            "IdentitiesOnly=yes".to_owned(),
            "BatchMode=yes".to_owned(),
            "StrictHostKeyChecking=yes".to_owned(),
            format!("UserKnownHostsFile={}", known.display()),
            "ExitOnForwardFailure=yes".to_owned(),
        ] {
            command.args(["-o", &option]);
        }
        command.args(args).arg("somebody@127.0.0.1");
        command.stdin(Stdio::null()).stdout(Stdio::null());
        command
    }

    /// The output of an ssh that is expected to fail.
    fn said(&self, port: u16, key: &str, args: &[&str], command: &[&str]) -> String {
        let mut ssh = self.ssh(port, key, args);
        let ssh = ssh.args(command).stderr(Stdio::piped()).spawn();
        let mut ssh = Running(ssh.expect("apt-get install openssh-client"));
        until("ssh ends by itself", || ssh.0.try_wait().unwrap().is_some());
        assert!(!ssh.0.wait().unwrap().success(), "ssh succeeded");
        let mut said = String::new();
        let mut stderr = ssh.0.stderr.take().unwrap();
        stderr.read_to_string(&mut said).unwrap();
        said
    }

    /// Runs ssh with forwards, and waits until it listens on `port_here`.
    fn forwards(&self, port: u16, args: &[&str], port_here: u16) -> Running {
        self.forwards_by("user", port, args, port_here)
    }

    /// Runs ssh like [`Self::forwards`], with the key `key`.
    fn forwards_by(&self, key: &str, port: u16, args: &[&str], port_here: u16) -> Running {
        let args = [&["-N"], args].concat();
        let ssh = self.ssh(port, key, &args).stderr(Stdio::null()).spawn();
        let ssh = Running(ssh.expect("apt-get install openssh-client"));
        until_listens(port_here);
        ssh
    }
}

fn replace(path: &Path, text: &str) {
    let staged = path.with_extension("new");
    std::fs::write(&staged, text).unwrap();
    std::fs::rename(staged, path).unwrap();
}

/// Waits until a process listens on the port. The function makes no connection, because a
/// connection would open a stream.
fn until_listens(port: u16) {
    let listens = format!(":{port:04X} 00000000:0000 0A ");
    until(&format!("a process listens on port {port}"), || {
        let sockets = std::fs::read_to_string("/proc/net/tcp").unwrap();
        sockets.contains(&listens)
    });
}

fn loopback(port: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], port))
}

/// Our exit, for ssh clients.
fn exit(security: &str, port: u16, more: &str) -> Gate {
    Gate::with_file(&format!(
        "role: Exit\nprotocol: SSH\nsecurity: {security}\nlisten: '127.0.0.1:{port}'\nadmin: ADMIN\nworkers: 1\n{more}"
    ))
    .until_ready()
}

/// Our entry with a forward to `target`. Returns the local address of the forward.
fn entry(security: &str, port: u16, target: SocketAddr) -> (Gate, SocketAddr) {
    let forward = loopback(free_port());
    let gate = Gate::with_file(&format!(
        "role: Entry\nprotocol: SSH\nsecurity: {security}\nconnect:\n- name: far\n  address: '127.0.0.1:{port}'\nadmin: ADMIN\nworkers: 1\n\
         forwards:\n- {{name: a, listen: '{forward}', targets: [{{host: {}, port: {}}}]}}\n",
        target.ip(),
        target.port()
    ));
    (gate, forward)
}

/// Transfers bulk data in one direction after the other, and asserts that each half ends
/// separately.
fn assert_half_closes(client: &TcpStream, server: &TcpStream) {
    let (up, down) = (pattern(1, 8 * MIB), pattern(2, 8 * MIB));
    let sends = send_in_background(client, up.clone(), true);
    assert!(read_all(server) == up);
    sends.join().unwrap();
    let sends = send_in_background(server, down.clone(), true);
    assert!(read_all(client) == down);
    sends.join().unwrap();
}

fn assert_streams_interoperate(client: &dyn Fn() -> TcpStream, listener: &TcpListener) {
    let near = client();
    assert_bulk(&near, accept(listener), 8 * MIB);
    let near = client();
    assert_half_closes(&near, &accept(listener));
    for resets_near in [true, false] {
        let mut near = client();
        let mut far = accept(listener);
        near.write_all(b"1").unwrap();
        far.read_exact(&mut [0]).unwrap();
        let (cut, other) = if resets_near {
            (near, far)
        } else {
            (far, near)
        };
        reset(cut);
        assert_reset_or_end(&other);
    }
}

#[test]
fn ssh_forwards_from_here_through_an_exit() {
    let (keys, port, here) = (Keys::new(), free_port(), free_port());
    let (listener, target) = target();
    let exit = exit(
        &keys.security(),
        port,
        &format!(
            "allow: [{target_rule}]\n",
            target_rule = crate::common::rule(target)
        ),
    );
    let forward = format!("{here}:{target}");
    let denied = free_port();
    let denied_forward = format!("{denied}:127.0.0.1:1");
    let _ssh = keys.forwards(port, &["-L", &forward, "-L", &denied_forward], here);
    assert_streams_interoperate(&|| connect(loopback(here)), &listener);
    assert_reset_or_end(&connect(loopback(denied)));
    exit.line(&["Open refused", "tcp://127.0.0.1:1", "MT0204"]);
    until("the exit has no open streams", || {
        exit.status()["streams"]["open"] == 0
    });
}

#[test]
fn ssh_forwards_to_where_its_clients_say_and_to_unix_sockets() {
    let (keys, port, here) = (Keys::new(), free_port(), free_port());
    let (listener, target) = target();
    let unix = keys.at("target.sock");
    let unix_listener = std::os::unix::net::UnixListener::bind(&unix).unwrap();
    let allow = format!(
        "allow: [{}, {{unix: {}}}]\n",
        crate::common::rule(target),
        unix.display()
    );
    let _exit = exit(&keys.security(), port, &allow);
    let to_unix = free_port();
    let forward = format!("{to_unix}:{}", unix.display());
    let dynamic = here.to_string();
    let _ssh = keys.forwards(port, &["-L", &forward, "-D", &dynamic], here);
    // SOCKS 4, whose reply has 8 bytes.
    let client = || {
        let mut client = connect(loopback(here));
        let mut request = vec![4, 1];
        request.extend(target.port().to_be_bytes());
        request.extend([127, 0, 0, 1, 0]);
        client.write_all(&request).unwrap();
        let mut answer = [0; 8];
        client.read_exact(&mut answer).unwrap();
        assert_eq!(answer[1], 90);
        client
    };
    assert_streams_interoperate(&client, &listener);
    let mut client = connect(loopback(to_unix));
    let (mut server, _) = unix_listener.accept().unwrap();
    client.write_all(b"to a socket").unwrap();
    let mut came = [0; 11];
    server.read_exact(&mut came).unwrap();
    assert_eq!(&came, b"to a socket");
}

/// `ssh -W` sends no CHANNEL_CLOSE before it has received one.
#[test]
fn ssh_with_its_own_input_and_output_ends_with_its_stream() {
    let (keys, port) = (Keys::new(), free_port());
    let (listener, target) = target();
    let _exit = exit(
        &keys.security(),
        port,
        &format!(
            "allow: [{target_rule}]\n",
            target_rule = crate::common::rule(target)
        ),
    );
    let mut ssh = keys.ssh(port, "user", &["-W", &target.to_string()]);
    ssh.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut ssh = ssh.spawn().expect("apt-get install openssh-client");
    let (input, output) = (ssh.stdin.take(), ssh.stdout.take());
    input.unwrap().write_all(b"a request").unwrap();
    let server = accept(&listener);
    assert_eq!(read_all(&server), b"a request");
    (&server).write_all(b"an answer").unwrap();
    drop(server);
    let mut answer = [0; 9];
    let mut output = output.unwrap();
    output.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"an answer");
    let answered = Instant::now();
    assert!(ssh.wait().unwrap().success());
    // The bound is below the longest wait for a peer's CHANNEL_CLOSE, 5 s.
    let waited = answered.elapsed();
    assert!(waited < Duration::from_secs(4), "{waited:?}");
}

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
fn aes_in_counter_mode_is_for_exits_that_offer_it() {
    let keys = Keys::new();
    let (listener, target) = target();
    let ciphers = ["-c", "aes256-ctr", "-m", "hmac-sha2-256-etm@openssh.com"];
    let allow = format!(
        "allow: [{target_rule}]\n",
        target_rule = crate::common::rule(target)
    );
    let port = free_port();
    let _default = exit(&keys.security(), port, &allow);
    let refused = keys.said(port, "user", &[&ciphers[..], &["-N"]].concat(), &[]);
    assert!(refused.contains("no matching cipher found"), "{refused}");

    let port = free_port();
    let security = keys
        .security()
        .replace("{mode", "{algorithms: Compatible, mode");
    let _compatible = exit(&security, port, &allow);
    let local = free_port();
    let forward = format!("{local}:{target}");
    let args = [&ciphers[..], &["-L", &forward]].concat();
    let _ssh = keys.forwards(port, &args, local);
    assert_streams_interoperate(&|| connect(loopback(local)), &listener);
}

#[test]
fn an_exit_listens_for_ssh_where_it_is_allowed_and_on_any_such_port() {
    let (keys, port, far) = (Keys::new(), free_port(), free_port());
    let any = free_port();
    let (listener, target) = target();
    let exit = exit(
        &keys.security(),
        port,
        &format!("allowListen: ['{far}', '{any}']\n"),
    );
    let forward = format!("{far}:{target}");
    let ssh = keys.forwards(port, &["-R", &forward], far);
    assert_streams_interoperate(&|| connect(loopback(far)), &listener);
    drop(ssh);
    exit.line(&[
        "Listener closed because no entry requests it",
        &far.to_string(),
    ]);

    let forward = format!("0:{target}");
    let first = far.min(any);
    let _ssh = keys.forwards(port, &["-R", &forward], first);
    let near = connect(loopback(first));
    assert_half_closes(&near, &accept(&listener));

    let said = keys.said(port, "user", &["-N", "-R", &format!("1:{target}")], &[]);
    assert!(said.contains("remote port forwarding failed"), "{said}");
    exit.line(&["Listener refused", "127.0.0.1:1"]);
}

#[test]
fn an_exit_runs_nothing_and_says_so() {
    let (keys, port) = (Keys::new(), free_port());
    let _exit = exit(&keys.security(), port, "");
    for command in [&["true"][..], &[]] {
        let said = keys.said(port, "user", &[], command);
        assert!(said.contains("only forwards connections"), "{said}");
    }
    let said = keys.said(port, "user", &["-s"], &["sftp"]);
    assert!(said.contains("only forwards connections"), "{said}");
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

/// The port belongs to an entry that has no identity because it uses security None.
#[test]
fn a_port_that_an_entry_has_is_not_for_users_of_ssh() {
    let (keys, port, far, carrier) = (Keys::new(), free_port(), free_port(), free_port());
    let (listener, target) = target();
    let exit = Gate::with_file(&format!(
        "role: Exit\nsecurity: {{mode: None}}\nlisten: '127.0.0.1:{carrier}'\nadmin: ADMIN\nworkers: 2\n\
         allowListen: ['{far}']\nssh: {{listen: '127.0.0.1:{port}', hostKeys: ['{}'], authorizedKeys: '{}'}}\n",
        keys.at("host").display(),
        keys.at("authorized_keys").display()
    ))
    .until_ready();
    let _entry = Gate::with_file(&format!(
        "role: Entry\nsecurity: {{mode: None}}\nconnect:\n- name: far\n  address: '127.0.0.1:{carrier}'\nadmin: ADMIN\nworkers: 1\n\
         reverseForwards:\n- {{name: a, listen: '127.0.0.1:{far}', targets: [{{host: {}, port: {}}}]}}\n",
        target.ip(),
        target.port()
    ))
    .until_ready();
    until_listens(far);
    for asked in [far, far, far, 0] {
        let listen = format!("{asked}:127.0.0.1:1");
        let said = keys.said(port, "user", &["-N", "-R", &listen], &[]);
        assert!(said.contains("remote port forwarding failed"), "{said}");
    }
    exit.line(&["Listener refused", "another identity"]);
    for _ in 0..8 {
        let near = connect(loopback(far));
        assert_half_closes(&near, &accept(&listener));
    }
}

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

#[test]
fn an_exit_of_another_protocol_takes_ssh_besides_with_the_same_rules() {
    let (keys, port, here) = (Keys::new(), free_port(), free_port());
    let (carrier, forward, far) = (free_port(), free_port(), free_port());
    let (listener, target) = target();
    let exit = Gate::with_file(&format!(
        "role: Exit\nsecurity: {{mode: None}}\nlisten: '127.0.0.1:{carrier}'\nadmin: ADMIN\nworkers: 2\n\
         allow: [{target_rule}]\nallowListen: ['{far}']\nssh: {{listen: '127.0.0.1:{port}', hostKeys: ['{}'], \
         authorizedKeys: '{}'}}\n",
        keys.at("host").display(),
        keys.at("authorized_keys").display(), target_rule = crate::common::rule(target)
    ))
    .until_ready();
    let _entry = Gate::entry("Native", carrier, &[(forward, target)]).until_ready();
    let forwards = [
        "-L",
        &format!("{here}:{target}"),
        "-R",
        &format!("{far}:{target}"),
    ];
    let _ssh = keys.forwards(port, &forwards, here);
    until_listens(far);
    for port in [forward, here, far] {
        let client = connect(loopback(port));
        assert_half_closes(&client, &accept(&listener));
    }
    let by_ssh = connect(loopback(here));
    let natively = connect(loopback(forward));
    let (_one, _other) = (accept(&listener), accept(&listener));
    // Only SSH uses these keys.
    keys.authorize("");
    assert_reset_or_end(&by_ssh);
    exit.line(&["MT0232", "is not in authorizedKeys"]);
    natively
        .set_read_timeout(Some(Duration::from_millis(300)))
        .unwrap();
    let mut still = &natively;
    assert!(
        still.read(&mut [0]).is_err(),
        "the connection is still open"
    );
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
