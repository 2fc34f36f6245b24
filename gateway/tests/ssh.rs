//! SSH against OpenSSH's ssh and sshd, and between two gateways.

mod hosts;
mod users;

use std::io::{Read, Write};
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
