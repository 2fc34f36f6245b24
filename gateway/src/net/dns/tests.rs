use std::fs;
use std::sync::mpsc::channel;

use futures::future::join_all;
use muxtunnel_testkit::name_server::{A, AAAA, Answer, Asked, NameServer};
use tempfile::TempDir;

use super::*;

/// A resolver with files of its own.
struct Site {
    dir: TempDir,
    resolver: Arc<Resolver>,
}

const MAX: usize = 32;

impl Site {
    fn new(resolv_conf: &str, port: u16) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let files = Files {
            resolv_conf: dir.path().join("resolv.conf"),
            hosts: dir.path().join("hosts"),
        };
        fs::write(&files.resolv_conf, resolv_conf).unwrap();
        let resolver = Resolver::new(files, port, MAX);
        Self { dir, resolver }
    }

    fn of(server: &NameServer, lines: &str) -> Self {
        let (ip, port) = (server.address.ip(), server.address.port());
        Self::new(&format!("nameserver {ip}\n{lines}"), port)
    }

    fn write(&self, file: &str, text: &str) {
        fs::write(self.dir.path().join(file), text).unwrap();
    }

    async fn found(&self, host: &str) -> Result<Found> {
        let found = self.resolver.resolve(Asker::Peer(None), host, 1);
        let found = tokio::time::timeout(Duration::from_secs(120), found);
        found.await.expect("the look-up ends")
    }

    /// The addresses of `host`, or the error.
    async fn addresses(&self, host: &str) -> String {
        match self.found(host).await {
            Ok(found) => {
                let all = found
                    .addresses
                    .iter()
                    .map(|address| address.ip().to_string());
                all.collect::<Vec<_>>().join(" ")
            }
            Err(error) => error.to_string(),
        }
    }

    fn queries(&self) -> usize {
        self.resolver.state.lock().by_peer.values().sum()
    }
}

fn server_at(
    address: &str,
    answer: impl Fn(&Asked) -> Answer + Send + Sync + 'static,
) -> NameServer {
    NameServer::start(address.parse().unwrap(), answer).unwrap()
}

fn server(answer: impl Fn(&Asked) -> Answer + Send + Sync + 'static) -> NameServer {
    server_at("127.0.0.1:0", answer)
}

fn one(asked: &Asked, ttl: u32) -> Answer {
    match asked.kind {
        A => Answer::Addresses(vec![[10, 0, 0, 1].into()], ttl),
        _ => Answer::NoData(ttl),
    }
}

fn names(server: &NameServer, kind: u16) -> Vec<String> {
    let asked = server.asked().into_iter();
    let of_kind = asked.filter(|asked| asked.kind == kind);
    of_kind.map(|asked| asked.name).collect()
}

#[tokio::test]
async fn look_ups_of_one_name_share_a_query() {
    let (answers, held) = channel::<()>();
    let held = std::sync::Mutex::new(held);
    let server = server(move |asked| {
        let _ = held.lock().unwrap().recv();
        one(asked, 0)
    });
    let site = Site::of(&server, "");
    let mut all = Box::pin(join_all((0..20).map(|_| site.addresses("Web.Example."))));
    assert!(futures::poll!(&mut all).is_pending());
    drop(answers);
    assert_eq!(all.await, ["10.0.0.1"; 20]);
    assert_eq!(
        (names(&server, A).len(), names(&server, AAAA).len()),
        (1, 1)
    );
    assert_eq!(site.queries(), 0);
}

#[tokio::test]
async fn an_answer_is_kept_as_long_as_its_ttl_says() {
    let server = server(|asked| match &*asked.name {
        "alias" => Answer::Alias("other".to_owned(), 0, vec![[10, 0, 0, 2].into()], 60),
        "never" => one(asked, 0),
        _ => one(asked, 60),
    });
    let site = Site::of(&server, "");
    for (name, queries) in [("kept.", 1), ("never.", 3), ("alias.", 3)] {
        for _ in 0..3 {
            assert!(site.addresses(name).await.starts_with("10.0.0."), "{name}");
        }
        let name = key(name);
        let asked = names(&server, A).into_iter().filter(|asked| *asked == name);
        assert_eq!(asked.count(), queries, "{name}");
    }
    // The gateway's own look-ups need the present addresses of an exit.
    let own = site.resolver.resolve(Asker::Gateway, "kept.", 1).await;
    assert_eq!(own.unwrap().addresses.len(), 1);
    assert_eq!(
        names(&server, A)
            .iter()
            .filter(|name| *name == "kept")
            .count(),
        2
    );
    // None of the addresses answered.
    site.resolver.forget("kept");
    site.addresses("kept.").await;
    assert_eq!(
        names(&server, A)
            .iter()
            .filter(|name| *name == "kept")
            .count(),
        3
    );
}

#[tokio::test]
async fn names_whose_servers_do_not_answer_leave_other_names_and_peers_their_queries() {
    let server = server(|asked| match asked.name.starts_with("slow") {
        true => Answer::Silence,
        false => one(asked, 0),
    });
    let site = Site::of(&server, "");
    let site = &site;
    let of = |peer: &'static str, name: String| {
        let asker = Asker::peer(Some(peer));
        async move {
            let found = site.resolver.resolve(asker, &name, 1).await;
            found.map(|found| found.addresses.len()).unwrap_or_default()
        }
    };
    // Each look-up has two queries.
    let few = (0..6).map(|number| of("one", format!("slow{number}.")));
    let mut few = Box::pin(join_all(few));
    assert!(futures::poll!(&mut few).is_pending());
    assert_eq!(of("one", "good.".to_owned()).await, 1);
    let many = (0..60).map(|number| of("one", format!("slow-too{number}.")));
    let mut many = Box::pin(join_all(many));
    assert!(futures::poll!(&mut many).is_pending());
    assert_eq!(site.queries(), MAX / 2, "a peer has half of the queries");
    assert_eq!(of("two", "good.".to_owned()).await, 1);
    assert!(futures::poll!(Box::pin(of("one", "waits.".to_owned()))).is_pending());
    let own = site.resolver.resolve(Asker::Gateway, "good.", 1).await;
    assert_eq!(own.unwrap().addresses.len(), 1);
    drop((few, many));
    assert_eq!(site.queries(), 0, "a query without a look-up ends");
    assert!(site.resolver.state.lock().queries.is_empty());
    assert_eq!(of("one", "good.".to_owned()).await, 1);
}

#[tokio::test]
async fn a_name_is_completed_in_the_order_of_the_search_list() {
    let server = server(|asked| match &*asked.name {
        "web.two.local" => one(asked, 30),
        "empty.one.local" => Answer::NoData(30),
        "broken.one.local" => Answer::Fails,
        "broken.two.local" => one(asked, 30),
        _ => Answer::NoName(30),
    });
    let site = Site::of(
        &server,
        "search one.local two.local three.local\noptions ndots:5\n",
    );
    assert_eq!(site.addresses("web").await, "10.0.0.1");
    assert_eq!(names(&server, A), ["web.one.local", "web.two.local"]);
    assert_eq!(site.addresses("web.").await, "the name does not exist");
    assert_eq!(site.addresses("empty").await, "the name has no address");
    assert_eq!(site.addresses("broken").await, "10.0.0.1");
    let asked = names(&server, A);
    let of_empty: Vec<_> = asked
        .iter()
        .filter(|name| name.starts_with("empty"))
        .collect();
    let all = [
        "empty.one.local",
        "empty.two.local",
        "empty.three.local",
        "empty",
    ];
    assert_eq!(of_empty, all);
}

/// If the servers do not answer for a name, another name with the search list's next domain could be
/// somebody else's.
#[tokio::test]
async fn a_name_without_an_answer_is_not_completed_otherwise() {
    let server = server(|asked| match asked.name.ends_with("one.local") {
        true => Answer::Silence,
        false => one(asked, 30),
    });
    let lines = "search one.local two.local\noptions timeout:1 attempts:2\n";
    let site = Site::of(&server, lines);
    let error = site.addresses("web").await;
    assert!(error.contains("did not answer within 1 s"), "{error}");
    assert_eq!(names(&server, A), ["web.one.local"; 2]);
}

#[tokio::test]
async fn a_server_that_fails_refuses_or_is_silent_is_followed_by_the_next() {
    let second = server_at("127.0.0.3:0", |asked| one(asked, 0));
    let port = second.address.port();
    let lines = "nameserver 127.0.0.2\nnameserver 127.0.0.3\noptions timeout:1\n";
    let site = Site::new(lines, port);
    // Nobody listens at the first server.
    assert_eq!(site.addresses("web.").await, "10.0.0.1");
    let first = server_at(&format!("127.0.0.2:{port}"), |asked| match &*asked.name {
        "fails" => Answer::Fails,
        "none" => Answer::NoName(30),
        _ => Answer::Silence,
    });
    assert_eq!(site.addresses("fails.").await, "10.0.0.1");
    assert_eq!(site.addresses("silent.").await, "10.0.0.1");
    assert_eq!(site.addresses("none.").await, "the name does not exist");
    assert_eq!(names(&first, A), ["fails", "silent", "none"]);
    assert_eq!(names(&second, A), ["web", "fails", "silent"]);
}

#[tokio::test]
async fn an_answer_that_is_too_long_for_a_datagram_arrives_over_tcp() {
    let many = (1..=100).map(|host| [10, 0, 0, host].into());
    let many: Vec<IpAddr> = many.collect();
    let server = server(move |asked| match (asked.over_tcp, asked.kind) {
        (_, AAAA) => Answer::NoData(30),
        (false, _) => Answer::Truncated,
        (true, _) => Answer::Addresses(many.clone(), 30),
    });
    let site = Site::of(&server, "");
    let found = site.found("many.").await.unwrap();
    assert_eq!(
        found.addresses.len(),
        64,
        "the number of addresses is bounded"
    );
    assert_eq!(names(&server, A).len(), 2);
    let only = Site::of(&server, "options use-vc\n");
    only.found("many.").await.unwrap();
    let asked = server.asked();
    assert_eq!(asked.iter().filter(|asked| !asked.over_tcp).count(), 2);
}

#[tokio::test]
async fn a_family_without_an_answer_does_not_delay_the_other() {
    let server = server(|asked| match asked.kind {
        AAAA => Answer::Silence,
        _ => one(asked, 0),
    });
    let site = Site::of(&server, "options timeout:30\n");
    let found = site.found("four.").await.unwrap();
    assert_eq!(found.addresses.len(), 1);
    let mut late = found.late;
    assert!(futures::poll!(&mut late).is_pending());
}

#[tokio::test]
async fn the_addresses_of_a_late_family_arrive_later() {
    // The query for IPv6 is answered at the second attempt.
    let is_second = std::sync::atomic::AtomicBool::new(false);
    let server = server(move |asked| match asked.kind {
        AAAA if !is_second.swap(true, std::sync::atomic::Ordering::Relaxed) => Answer::Silence,
        AAAA => Answer::Addresses(vec![Ipv6Addr::LOCALHOST.into()], 0),
        _ => one(asked, 0),
    });
    let site = Site::of(&server, "options timeout:1\n");
    let found = site.found("both.").await.unwrap();
    assert_eq!(found.addresses[0].ip().to_string(), "10.0.0.1");
    assert_eq!(found.late.await[0].ip(), Ipv6Addr::LOCALHOST);
}

#[tokio::test]
async fn changed_files_are_followed() {
    let numbered = |number: u8| {
        move |asked: &Asked| match asked.kind {
            A => Answer::Addresses(vec![[10, 0, 0, number].into()], 600),
            _ => Answer::NoData(600),
        }
    };
    let first = server(numbered(1));
    let port = first.address.port();
    let second = server_at(&format!("127.0.0.2:{port}"), numbered(2));
    let site = Site::of(&first, "");
    assert_eq!(site.addresses("web.").await, "10.0.0.1");
    // The length of the file is the same.
    site.write("resolv.conf", "nameserver 127.0.0.2\n");
    assert_eq!(site.addresses("web.").await, "10.0.0.2");
    assert_eq!(names(&second, A), ["web"]);
    site.write("hosts", "10.0.0.3 web\n");
    assert_eq!(site.addresses("web").await, "10.0.0.3");
    assert_eq!(site.addresses("WEB.").await, "10.0.0.3");
    site.write("hosts", "10.0.0.4 web\n");
    assert_eq!(site.addresses("web").await, "10.0.0.4");
    fs::remove_file(site.dir.path().join("hosts")).unwrap();
    assert_eq!(site.addresses("web.").await, "10.0.0.2");
}

#[tokio::test]
async fn numbers_and_this_host_need_no_server() {
    let server = server(|_| Answer::Silence);
    let site = Site::of(&server, "");
    assert_eq!(site.addresses("10.0.0.1").await, "10.0.0.1");
    assert_eq!(site.addresses("fd00::1").await, "fd00::1");
    assert_eq!(site.addresses("localhost").await, "::1 127.0.0.1");
    assert_eq!(site.addresses("a.localhost.").await, "::1 127.0.0.1");
    assert!(server.asked().is_empty());
}
