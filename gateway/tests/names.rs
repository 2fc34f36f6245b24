//! Targets and exits with names: names with addresses that do not answer, names whose servers do
//! not answer, and files of the resolver that change.

use std::io::{ErrorKind, Read};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use crate::common::authority::Authority;
use crate::common::namespace::Namespace;
use crate::common::*;
use muxtunnel_testkit::name_server::{A, Answer, Asked, NameServer};

/// The numbers of hosts that do not answer.
const DEAD: std::ops::Range<u8> = 131..171;

/// A namespace with a gateway, and the test at the other end of its link.
struct Site {
    /// The number of the site's network, 10.217.N.0/24.
    number: u8,
    namespace: Namespace,
}

impl Site {
    fn new(number: u8) -> Self {
        let [outside, inside] = [1, 130].map(|host| format!("10.217.{number}.{host}/24"));
        let namespace = Namespace::new(&[&outside], &[&inside]);
        let site = Self { number, namespace };
        // Packets to these addresses have a destination that no host has, so they are lost.
        for host in DEAD {
            let address = site.host(host);
            let line = format!("ip neigh add {address} lladdr 02:00:00:00:00:99 dev eth0");
            let words: Vec<&str> = line.split(' ').collect();
            site.namespace.run(&words);
        }
        site
    }

    fn host(&self, host: u8) -> String {
        format!("10.217.{}.{host}", self.number)
    }

    /// The test's address.
    fn outside(&self) -> String {
        self.host(1)
    }

    fn listener(&self) -> (TcpListener, u16) {
        let listener = TcpListener::bind((self.outside(), 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        (listener, port)
    }

    /// Addresses that do not answer, and then the test's address, as lines of /etc/hosts.
    fn dead_and_one(&self, dead: usize, name: &str) -> String {
        let hosts = DEAD.take(dead).chain([1]);
        hosts
            .map(|host| format!("{} {name}\n", self.host(host)))
            .collect()
    }

    /// Number of connections inside that wait for their address to answer.
    fn half_open(&self) -> usize {
        const SYN_SENT: &str = "02";
        let connections = self.namespace.run(&["cat", "/proc/net/tcp"]);
        let states = connections
            .lines()
            .map(|line| line.split_whitespace().nth(3));
        states.filter(|state| *state == Some(SYN_SENT)).count()
    }

    fn exit(&self, carrier: u16, allow: &str) -> Gate {
        let host = self.host(130).leak();
        let listen = format!("0.0.0.0:{carrier}");
        let flags = ["exit", "--security", "none", "--listen", &listen];
        let allow = ["--allow", allow];
        Gate::within(&self.namespace, host, &[&flags[..], &allow].concat()).until_ready()
    }

    fn entry(&self, carrier: u16, forwards: &[(u16, String)]) -> Gate {
        let forwards: String = forwards
            .iter()
            .enumerate()
            .map(|(number, (listen, target))| {
                let (host, port) = target.rsplit_once(':').unwrap();
                format!(
                    "- {{name: f{number}, listen: '127.0.0.1:{listen}', targets: [{{host: {host}, port: {port}}}]}}\n"
                )
            })
            .collect();
        Gate::with_file(&format!(
            "role: Entry\nsecurity: {{mode: None}}\nconnect:\n- name: far\n  address: {}:{carrier}\nadmin: ADMIN\nforwards:\n{forwards}",
            self.host(130)
        ))
        .until_ready()
    }
}

fn local(port: u16) -> SocketAddr {
    ([127, 0, 0, 1], port).into()
}

/// Sends bytes in both directions of a new connection to `forward`.
fn assert_reaches(forward: u16, listener: &TcpListener) {
    let client = connect(local(forward));
    assert_bulk(&client, accept(listener), 1000);
}

#[test]
fn a_target_is_reached_at_the_seventh_address_though_six_do_not_answer() {
    let mut site = Site::new(1);
    site.namespace
        .set_hosts(&site.dead_and_one(6, "seven.example"));
    let (listener, port) = site.listener();
    let (carrier, forward) = (free_port(), free_port());
    let target = format!("seven.example:{port}");
    let _exit = site.exit(carrier, &target);
    let _entry = site.entry(carrier, &[(forward, target)]);
    assert_reaches(forward, &listener);
    assert_eq!(site.half_open(), 0, "the other connections are closed");
}

#[test]
fn an_exit_is_reached_at_the_last_address_though_thirty_do_not_answer() {
    let mut site = Site::new(2);
    let (listener, target) = target();
    let (carrier, forward) = (free_port(), free_port());
    let address = SocketAddr::new(site.outside().parse().unwrap(), carrier);
    let _exit = Gate::with_file(&format!(
        "role: Exit\nsecurity: {{mode: None}}\nlisten: {address}\nadmin: ADMIN\nallow: [{target_rule}]\n", target_rule = crate::common::rule(target)
    ))
    .until_ready();
    site.namespace
        .set_hosts(&site.dead_and_one(30, "exit.example"));
    let host: &str = site.host(130).leak();
    let _entry = Gate::within(
        &site.namespace,
        host,
        &[
            "entry",
            "--security",
            "none",
            "--connect",
            &format!("exit.example:{carrier}"),
            "--forward",
            &format!("0.0.0.0:{forward}:{target}"),
        ],
    )
    .until_ready();
    let client = connect(SocketAddr::new(host.parse().unwrap(), forward));
    assert_bulk(&client, accept(&listener), 1000);
}

/// A TLS handshake may take longer than the delay between two dials.
#[test]
fn no_other_exit_is_dialled_during_the_handshake_with_one() {
    let dir = tempfile::tempdir().unwrap();
    let (.., ends) = crate::common::ends::tls(dir.path(), &Authority::new());
    let [(one, first), (other, second)] = [target(), target()];
    let _entry = Gate::with_file(&format!(
        "role: Entry\nprotocol: JMUX\nsecurity: {}\nconnect:\n- name: one\n  address: '{first}'\n- name: other\n  address: '{second}'\nadmin: ADMIN\n",
        ends.entry
    ));
    let mut carrier = accept(&one);
    carrier.read_exact(&mut [0; 5]).unwrap();
    std::thread::sleep(Duration::from_millis(600));
    other.set_nonblocking(true).unwrap();
    let nobody = other.accept().unwrap_err();
    assert_eq!(nobody.kind(), ErrorKind::WouldBlock);
    other.set_nonblocking(false).unwrap();
    // The handshake fails, so the entry dials the other exit.
    drop(carrier);
    accept(&other);
}

/// The configuration of a pod's resolver.
fn pod(server: &str) -> String {
    format!(
        "search here.svc.cluster.local svc.cluster.local cluster.local\nnameserver {server}\noptions ndots:5\n"
    )
}

#[test]
fn names_whose_servers_do_not_answer_delay_no_other_name() {
    const SLOW: u16 = 24;
    let mut site = Site::new(3);
    let good = site.outside().parse().unwrap();
    let answer = move |asked: &Asked| match &*asked.name {
        "good.example" if asked.kind == A => Answer::Addresses(vec![good], 30),
        "good.example" => Answer::NoData(30),
        name if name.ends_with("cluster.local") => Answer::NoName(30),
        _ => Answer::Silence,
    };
    let port_53 = SocketAddr::new(good, 53);
    let server = NameServer::start(port_53, answer).unwrap();
    site.namespace.set_resolv_conf(&pod(&site.outside()));
    let (listener, port) = site.listener();
    let carrier = free_port();
    // A rule for a network permits every name, so the resolver completes the names by its search
    // list.
    let _exit = site.exit(carrier, &format!("10.217.3.0/24:{port}"));
    let mut forwards: Vec<(u16, String)> = (0..SLOW)
        .map(|number| (free_port(), format!("slow{number}.example:{port}")))
        .collect();
    let good = free_port();
    forwards.push((good, format!("good.example:{port}")));
    let _entry = site.entry(carrier, &forwards);
    let slow = &forwards[..usize::from(SLOW)];
    let waiting: Vec<TcpStream> = slow.iter().map(|(port, _)| connect(local(*port))).collect();
    // Without the look-ups of the slow names at the server, the good name would overtake nothing.
    until("the server has the query for each of 8 slow names", || {
        let asked = server.asked();
        let names = asked.iter().map(|asked| &asked.name);
        let mut names: Vec<_> = names.filter(|name| name.ends_with("example")).collect();
        names.sort_unstable();
        names.dedup();
        names.len() >= 8
    });
    assert_reaches(good, &listener);
    drop(waiting);
}

#[test]
fn a_changed_configuration_of_the_resolver_is_followed() {
    let mut site = Site::new(4);
    let outside = site.outside().parse().unwrap();
    // Each server knows the name only with its own domain.
    let answer = move |asked: &Asked| match &*asked.name {
        "web.two.example" if asked.kind == A => Answer::Addresses(vec![outside], 30),
        _ => Answer::NoName(30),
    };
    NameServer::start(SocketAddr::new(outside, 53), answer).unwrap();
    site.namespace
        .set_resolv_conf(&format!("search one.example\nnameserver {outside}\n"));
    let (listener, port) = site.listener();
    let (carrier, forward) = (free_port(), free_port());
    let _exit = site.exit(carrier, &format!("10.217.4.0/24:{port}"));
    let _entry = site.entry(carrier, &[(forward, format!("web:{port}"))]);
    assert_reset(&connect(local(forward)));
    site.namespace
        .set_resolv_conf(&format!("search two.example\nnameserver {outside}\n"));
    assert_reaches(forward, &listener);
}
