//! Public keys have no dates, so a carrier does not depend on a clock. Only `expirationTime` does.

use muxtunnel_testkit::clock::{Clock, library};
use time::format_description::well_known::Rfc3339;

use super::rotation::passes;
use super::*;

/// Days by which clocks are moved.
const DAYS: i64 = 400;
/// Days until the peer with an `expirationTime` expires.
const EXPIRES_DAYS: i64 = 200;

/// A gateway with a clock.
struct Timed<'a> {
    yaml: String,
    clock: Clock,
    library: &'a Path,
    gate: Option<Gate>,
}

impl<'a> Timed<'a> {
    fn start(yaml: String, dir: &Path, name: &str, library: &'a Path) -> Self {
        let clock = Clock::new(dir, name);
        let mut timed = Self {
            yaml,
            clock,
            library,
            gate: None,
        };
        timed.restart();
        timed
    }

    fn restart(&mut self) {
        // The former process still holds the ports.
        self.gate = None;
        let environment = self.clock.environment(self.library);
        self.gate = Some(Gate::with_file_and(&environment, &self.yaml));
    }

    fn gate(&self) -> &Gate {
        self.gate.as_ref().unwrap()
    }

    fn until_ready(&self) {
        until("the gateway is ready", || {
            self.gate().get("/readyz").0 == 200
        });
    }
}

fn entry_file(
    way: (&str, &str),
    security: &str,
    carrier: SocketAddr,
    to: SocketAddr,
) -> (String, SocketAddr) {
    let ((protocol, more), forward) = (way, carrier_address());
    let yaml = format!(
        "role: Entry\nprotocol: {protocol}\nsecurity: {security}\n{more}connect:\n- name: far\n  address: '{carrier}'\n\
         admin: ADMIN\nforwards:\n- {{name: a, listen: '{forward}', targets: [{{host: 127.0.0.1, port: {}}}]}}\n",
        to.port()
    );
    (yaml, forward)
}

#[test]
fn with_clocks_that_differ_by_years_streams_go_on_and_carriers_come_back() {
    let dir = tempfile::tempdir().unwrap();
    let library = library(dir.path());
    // Most of the time, the gateways wait for the next check of peers and for the next dial.
    std::thread::scope(|scope| {
        for way in WAYS {
            let library = &library;
            scope.spawn(move || move_clocks(way, library));
        }
    });
}

/// The clocks of both ends are moved while streams are open, by 400 days and in both directions. Then
/// both gateways restart with moved clocks. The peer with an `expirationTime` shows that the exit
/// uses the moved clock.
fn move_clocks(way: (&str, &str), library: &Path) {
    let (dir, [exit_key, entry_key, dated_key]) = keys();
    let (listener, target) = target();
    let carrier = carrier_address();
    let end = time::OffsetDateTime::now_utc() + time::Duration::days(EXPIRES_DAYS);
    let dated = format!(
        "{{name: dated, publicKeys: [{}], expirationTime: '{}'}}",
        dated_key.entry,
        end.format(&Rfc3339).unwrap()
    );
    let security = exit_key.accepts(&[&entry_key.entry, &dated]);
    let text = exit_file(way, &security, carrier, target);
    let mut exit = Timed::start(text, dir.path(), "exit.clock", library);
    let [(mut entry, forward), (dated, dated_forward)] =
        [(&entry_key, "entry.clock"), (&dated_key, "dated.clock")].map(|(key, name)| {
            let security = key.accepts(&[&exit_key.exit]);
            let (text, forward) = entry_file(way, &security, carrier, target);
            let entry = Timed::start(text, dir.path(), name, library);
            entry.until_ready();
            (entry, forward)
        });
    let stream = open(forward, &listener);
    let dated_stream = open(dated_forward, &listener);

    entry.clock.set(-DAYS);
    exit.clock.set(DAYS);
    assert_reset(&dated_stream.0);
    exit.gate().line(&["MT0232", "the peer dated has expired"]);
    passes(&stream);
    entry.clock.set(DAYS);
    passes(&stream);

    entry.clock.set(-DAYS);
    entry.restart();
    entry.until_ready();
    assert_bulk(&connect(forward), accept(&listener), MIB);
    exit.restart();
    exit.gate()
        .line(&["Carrier refused", "the peer dated has expired"]);
    exit.clock.set(-DAYS);
    dated.until_ready();
    entry.clock.set(DAYS);
    // An entry over UDP notices the restart only after a while, so the exit is asked.
    until("the entry's carrier is back", || {
        exit.gate().status()["peers"][0]["carriers"].as_u64() > Some(0)
    });
    assert_bulk(&connect(forward), accept(&listener), MIB);
}
