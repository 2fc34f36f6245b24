//! Two of our gateways. Most systems have one session, because each gateway has one worker. With
//! packets, each queue of the interface has a worker and a session. In the system `visitor`, both
//! gateways dial a rendezvous.
//!
//! The gateway that dials carriers runs at the place `Entry`, to which clients connect. With
//! reverse forwards, it runs at the place `Exit`, next to the targets.

use std::{
    fs,
    net::Ipv4Addr,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, ensure};
use muxtunnel_gateway_config::status::Splice;
use muxtunnel_gateway_config::{MTU_DEFAULT, QUIC_MTU_DEFAULT};
use muxtunnel_testkit::namespace::Namespace;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use serde_json::{Value, json};

use super::{
    CARRIER_PORT, Interface, Launch, PROXY_PORT, Proxy, Service, Setup, entry_at, openssh,
};
use crate::topology::{Place, TUNNEL, at};

/// The gateways, in the names of their configuration files.
const ENTRY: &str = "entry";
const EXIT: &str = "exit";
const RENDEZVOUS: &str = "rendezvous";

/// The admin port of the entry. The exit has the next port.
const ADMIN_PORT: u16 = 6190;

/// The names in the certificates of the dialling and of the accepting gateway.
const DIALS: &str = "dials.example.com";
const ACCEPTS: &str = "accepts.example.com";

/// How carriers are secured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Security {
    None,
    Certificates,
    PublicKeys,
    /// SSH's own encryption and authentication.
    Ssh,
}

/// How a stream reaches its target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    /// A forward of the entry, as with `ssh -L`.
    Forward,
    /// Clients use a proxy at the entry, as with `ssh -D`.
    Dynamic(Proxy),
    /// A reverse forward, as with `ssh -R`.
    Reverse,
    /// A forward of the entry, as with `ssh -L`. Both gateways dial a rendezvous.
    Visitor,
}

/// How IP packets are carried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Packets {
    /// Whether the kernel passes TCP and UDP super-packets without segmentation.
    pub(super) offloads: bool,
    /// Queues of the interface, each with a worker and a session.
    pub(super) queues: u16,
    /// MTU of the interface, bytes.
    pub(super) mtu: u16,
}

impl Packets {
    /// The defaults of the configuration field `network`.
    pub(super) const USUAL: Self = Self {
        offloads: true,
        queues: 1,
        mtu: MTU_DEFAULT,
    };

    /// The MTU for packets in QUIC datagrams.
    pub(super) const IN_DATAGRAMS: Self = Self {
        mtu: QUIC_MTU_DEFAULT,
        ..Self::USUAL
    };

    /// The defaults, with this number of queues.
    pub(super) const fn in_queues(queues: u16) -> Self {
        Self {
            queues,
            ..Self::USUAL
        }
    }

    /// The interface with the settings of `muxgate tun create`.
    const fn interface(self) -> Interface {
        Interface {
            mtu: self.mtu,
            queue_packets: Some(10_000),
            queues: self.queues,
        }
    }

    fn config(self) -> Value {
        let [entry, exit] = TUNNEL;
        json!({
            "device": Interface::NAME,
            "entryCIDRs": [entry],
            "exitCIDRs": [exit],
            "offloads": self.offloads,
            "queues": self.queues,
            "mtu": self.mtu,
        })
    }
}

/// The settings of our gateways that a system changes. All other settings have their defaults.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Gateways {
    /// Mux protocol, as the configuration file names it.
    pub(super) protocol: &'static str,
    /// Transport of the carriers, as the configuration file names it. `None`: the transport of the
    /// protocol.
    pub(super) transport: Option<&'static str>,
    /// Congestion control of the carriers, as the configuration file names it.
    pub(super) congestion_control: &'static str,
    /// Number of workers; `None`: the default, one for each processor.
    pub(super) workers: Option<u16>,
    /// Number of carriers of a session; `None`: the default, as many as the work needs.
    pub(super) carriers: Option<u8>,
    /// Whether streams survive the end of their carrier.
    pub(super) resume: bool,
    /// Whether the kernel moves the payload, without a copy through the gateway.
    pub(super) splice: bool,
    pub(super) security: Security,
    pub(super) way: Way,
    /// IP packets, which the gateways carry instead of forwards.
    pub(super) packets: Option<Packets>,
}

impl Gateways {
    /// The native protocol over one plain carrier of one worker.
    pub(super) const PLAIN: Self = Self {
        protocol: "Native",
        transport: None,
        congestion_control: "Auto",
        workers: Some(1),
        carriers: Some(1),
        resume: true,
        splice: true,
        security: Security::None,
        way: Way::Forward,
        packets: None,
    };

    /// The native protocol over one carrier with this security.
    pub(super) const fn secured(security: Security) -> Self {
        Self {
            security,
            ..Self::PLAIN
        }
    }

    /// Returns a copy with this number of workers.
    pub(super) const fn on_workers(self, workers: u16) -> Self {
        Self {
            workers: Some(workers),
            ..self
        }
    }

    /// Returns a copy with another mux protocol.
    pub(super) const fn speaking(self, protocol: &'static str) -> Self {
        Self { protocol, ..self }
    }

    /// Returns a copy whose streams reach their targets in another way.
    pub(super) const fn by(self, way: Way) -> Self {
        Self { way, ..self }
    }

    /// Returns a copy that carries IP packets instead of forwards.
    pub(super) const fn carrying(self, packets: Packets) -> Self {
        Self {
            packets: Some(packets),
            ..self
        }
    }

    /// Returns a copy with another transport.
    pub(super) const fn over(self, transport: &'static str) -> Self {
        Self {
            transport: Some(transport),
            ..self
        }
    }

    pub(super) fn launches(self, setup: &Setup<'_>) -> Result<Vec<Launch>> {
        let folder = match setup.muxgate.files {
            Some(folder) => folder,
            None => {
                self.write_files(setup)?;
                setup.folder
            }
        };
        let (program, folder) = (setup.muxgate.program.display(), folder.display());
        let gateway = |place, name| {
            let line = format!("{program} run --config {folder}/{}", file_of(name));
            Launch::new(place, &line)
        };
        let [dials_at, accepts_at] = self.places();
        let (accepts, dials) = (gateway(accepts_at, EXIT), gateway(dials_at, ENTRY));
        let mut launches = match self.way {
            Way::Visitor => {
                let rendezvous = gateway(Place::Entry, RENDEZVOUS).called(RENDEZVOUS);
                vec![rendezvous.listening(CARRIER_PORT), accepts, dials]
            }
            _ => vec![accepts.listening(CARRIER_PORT), dials],
        };
        if let Some(packets) = self.packets {
            for launch in &mut launches {
                launch.interface = Some(packets.interface());
            }
        }
        Ok(launches)
    }

    /// The places of the gateway that dials and of the gateway that accepts.
    const fn places(self) -> [Place; 2] {
        match self.way {
            Way::Reverse => [Place::Exit, Place::Entry],
            Way::Forward | Way::Dynamic(_) | Way::Visitor => [Place::Entry, Place::Exit],
        }
    }

    /// Whether the gateways can splice payload.
    pub(super) fn splices(self) -> bool {
        self.splice
            && self.protocol == Self::PLAIN.protocol
            && self.transport.is_none()
            && self.security == Security::None
            && self.packets.is_none()
    }

    /// Writes the configuration files of the gateways, and the files that they name.
    fn write_files(self, setup: &Setup<'_>) -> Result<()> {
        let addresses = &setup.addresses;
        let keys = self.keys(setup)?;
        let carrier = match self.way {
            Way::Forward | Way::Dynamic(_) => addresses.carrier_exit,
            Way::Reverse | Way::Visitor => addresses.carrier_entry,
        };
        let carrier = at(carrier, CARRIER_PORT);
        let mut exit = json!({"role": "Exit"});
        let mut entry = json!({
            "role": "Entry",
            "connect": [{"name": "exit", "address": carrier}],
        });
        if let Some(carriers) = self.carriers {
            entry["pool"] = json!({"min": carriers, "max": carriers});
        }
        if self.way == Way::Visitor {
            let (private, public) = key_pair(setup, "rendezvous.key")?;
            let own = json!({
                "role": "Rendezvous",
                "security": {"mode": "PublicKeys", "privateKeyFiles": [private]},
                "listen": carrier,
                "members": [
                    {"name": "entry", "publicKeys": keys.accepts["peers"][0]["publicKeys"]},
                    {"name": "exit", "publicKeys": keys.exit["publicKeys"]},
                ],
            });
            let place = json!({"address": carrier, "publicKeys": [public.rendezvous]});
            entry["connect"] = json!([{"name": "exit", "rendezvous": place}]);
            exit["rendezvous"] = json!([{"name": "rendezvous", "address": carrier, "publicKeys": place["publicKeys"]}]);
            write_file(setup, RENDEZVOUS, &own)?;
        } else {
            exit["listen"] = json!(carrier);
        }
        let listens = Service::ALL.map(|service| entry_at(addresses.entry, service));
        let network = format!("{}/32", addresses.target);
        let allow = Service::ALL.map(|service| json!({"cidr": network, "port": service.port()}));
        match (self.packets, self.way) {
            (Some(packets), _) => {
                entry["network"] = packets.config();
                exit["network"] = packets.config();
            }
            (None, Way::Reverse) => exit["allowListen"] = json!(listens),
            (None, _) => exit["allow"] = json!(allow),
        }
        if self.packets.is_none() {
            let forwards = match self.way {
                Way::Reverse => "reverseForwards",
                _ => "forwards",
            };
            entry[forwards] = json!(forwards_of(setup));
        }
        if let Way::Dynamic(proxy) = self.way {
            entry["proxies"] = json!([{
                "name": "proxy",
                "listen": at(addresses.entry, PROXY_PORT),
                "protocol": match proxy {
                    Proxy::Socks5 => "SOCKS5",
                    Proxy::Http => "HTTP",
                },
            }]);
        }
        for (field, identities) in keys.exit.as_object().into_iter().flatten() {
            entry["connect"][0][field] = identities.clone();
        }
        for (own, keys) in [(&mut entry, &keys.dials), (&mut exit, &keys.accepts)] {
            self.complete(own, keys, setup);
        }
        let [dials, accepts] = self.places();
        entry["admin"] = json!(admin_of(dials));
        exit["admin"] = json!(admin_of(accepts));
        write_file(setup, EXIT, &exit)?;
        write_file(setup, ENTRY, &entry)
    }

    /// Adds the settings that are equal at both ends.
    fn complete(self, own: &mut Value, security: &Value, setup: &Setup<'_>) {
        own["protocol"] = json!(self.protocol);
        if let Some(transport) = self.transport {
            own["transport"] = json!(transport);
        }
        own["congestionControl"] = json!(self.congestion_control);
        own["security"] = security.clone();
        own["memory"] = json!({
            "receive": setup.limits.receive_bytes.to_string(),
            "retain": setup.limits.retain_bytes.to_string(),
        });
        own["limits"] = json!({"streams": setup.limits.streams});
        if let Some(workers) = self.packets.map(|packets| packets.queues).or(self.workers) {
            own["workers"] = json!(workers);
        }
        own["resume"] = json!(self.resume);
        own["splice"] = json!(self.splice);
    }

    fn keys(self, setup: &Setup<'_>) -> Result<Keys> {
        match self.security {
            Security::None => Ok(Keys {
                dials: json!({"mode": "None"}),
                exit: json!({}),
                accepts: json!({"mode": "None"}),
            }),
            Security::Certificates => {
                let certificates = certificates(setup.folder)?;
                Ok(Keys {
                    dials: certificates.dials.security(),
                    exit: certificates.dials.peers(),
                    accepts: certificates.accepts.accepting(),
                })
            }
            Security::PublicKeys => public_keys(setup),
            Security::Ssh => ssh_keys(setup),
        }
    }
}

/// The forwards of all services.
fn forwards_of(setup: &Setup<'_>) -> Vec<Value> {
    let addresses = &setup.addresses;
    let forward = |service: Service| {
        json!({
            "name": service.name(),
            "listen": entry_at(addresses.entry, service),
            "targets": [{"host": addresses.target, "port": service.port()}],
        })
    };
    Service::ALL.map(forward).to_vec()
}

/// The field `security` of the dialling and of the accepting gateway, and the identities that the
/// dialling gateway accepts: fields of an exit in `connect`.
struct Keys {
    dials: Value,
    exit: Value,
    accepts: Value,
}

/// The address of the admin port of the gateway at a place. On loopback, both places have the same
/// addresses.
fn admin_of(place: Place) -> String {
    let port = match place {
        Place::Entry => ADMIN_PORT,
        _ => ADMIN_PORT + 1,
    };
    at(Ipv4Addr::LOCALHOST, port)
}

/// What the gateway at `place` spliced since its start.
///
/// # Errors
/// `muxgate status` fails.
pub(super) fn spliced(program: &Path, namespace: &Namespace, place: Place) -> Result<Splice> {
    let mut command = Command::new(program);
    command.args(["status", "--output", "json", "--admin", &admin_of(place)]);
    let document: Value = serde_json::from_str(&namespace.run(&mut command)?)?;
    Ok(serde_json::from_value(document["splice"].clone())?)
}

/// The configuration file of a gateway. The labs of other commits have the same names.
fn file_of(gateway: &str) -> String {
    format!("muxgate-{gateway}.yaml")
}

fn write_file(setup: &Setup<'_>, gateway: &str, config: &Value) -> Result<()> {
    // JSON is valid YAML.
    let text = serde_json::to_string_pretty(config)?;
    setup.file(&file_of(gateway), &text)?;
    Ok(())
}

/// The files of an end with a certificate, and the name in the certificate of its peer.
pub(super) struct Certified {
    pub(super) certificate: PathBuf,
    pub(super) key: PathBuf,
    pub(super) ca: PathBuf,
    pub(super) peer: &'static str,
}

impl Certified {
    fn security(&self) -> Value {
        json!({
            "mode": "Certificates",
            "certificate": self.certificate,
            "key": self.key,
            "ca": self.ca,
        })
    }

    fn peers(&self) -> Value {
        json!({"certificateNames": [self.peer]})
    }

    fn accepting(&self) -> Value {
        let mut security = self.security();
        security["peers"] = json!([self.peers()]);
        security
    }
}

/// The files of the dialling and of the accepting end.
pub(super) struct Certificates {
    pub(super) dials: Certified,
    pub(super) accepts: Certified,
}

/// Creates an authority, and a certificate for each end.
pub(super) fn certificates(folder: &Path) -> Result<Certificates> {
    let write = |name: &str, pem: String| {
        let path = folder.join(name);
        fs::write(&path, pem).with_context(|| format!("cannot write {}", path.display()))?;
        Ok::<_, anyhow::Error>(path)
    };
    let mut authority = CertificateParams::new(Vec::new())?;
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    // The authority gets its own name. Some TLS libraries treat a certificate as self-signed if its
    // name equals the name of its issuer.
    (authority.distinguished_name).push(DnType::CommonName, "authority of the lab");
    let key = KeyPair::generate()?;
    let ca = write("ca.pem", authority.self_signed(&key)?.pem())?;
    let issuer = Issuer::new(authority, key);
    let end = |name: &str, peer: &'static str| {
        let key = KeyPair::generate()?;
        let mut certificate = CertificateParams::new([name.to_owned()])?;
        (certificate.distinguished_name).push(DnType::CommonName, name);
        let certificate = certificate.signed_by(&key, &issuer)?;
        Ok::<_, anyhow::Error>(Certified {
            certificate: write(&format!("{name}.pem"), certificate.pem())?,
            key: write(&format!("{name}.key"), key.serialize_pem())?,
            ca: ca.clone(),
            peer,
        })
    };
    Ok(Certificates {
        dials: end(DIALS, ACCEPTS)?,
        accepts: end(ACCEPTS, DIALS)?,
    })
}

/// Creates a key for each end with ssh-keygen.
fn ssh_keys(setup: &Setup<'_>) -> Result<Keys> {
    let make = |name: &str| {
        let path = setup.folder.join(name);
        if !path.is_file() {
            openssh::make_key(&path)?;
        }
        let public = setup.folder.join(format!("{name}.pub"));
        let text = fs::read_to_string(&public);
        let text = text.with_context(|| format!("cannot read {}", public.display()))?;
        Ok::<_, anyhow::Error>((path, public, text))
    };
    let ((dials, dials_public, _), (accepts, _, accepts_text)) =
        (make("dials.ssh")?, make("accepts.ssh")?);
    let known = setup.file("known-hosts", &format!("{ACCEPTS} {accepts_text}"))?;
    Ok(Keys {
        dials: json!({
            "mode": "SSH",
            "user": "lab",
            "key": dials,
            "knownHosts": known,
            "hostKeyAlias": ACCEPTS,
        }),
        exit: json!({}),
        accepts: json!({"mode": "SSH", "hostKeys": [accepts], "authorizedKeys": dials_public}),
    })
}

/// The public key of a gateway in each role.
struct PublicKey {
    entry: String,
    exit: String,
    rendezvous: String,
}

/// Creates a key with `muxgate keygen`. Returns the file of the private key.
fn key_pair(setup: &Setup<'_>, name: &str) -> Result<(PathBuf, PublicKey)> {
    let path = setup.folder.join(name);
    let mut command = Command::new(setup.muxgate.program);
    let output = command.args(["keygen", "--force"]).arg(&path).output();
    let output = output.context("cannot start muxgate keygen")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "muxgate keygen: {}", said.trim());
    let text = String::from_utf8_lossy(&output.stdout);
    let lines: Vec<_> = text.lines().map(str::to_owned).collect();
    let lines: Result<[String; 3], _> = lines.try_into();
    let [entry, exit, rendezvous] =
        lines.map_err(|_| anyhow::anyhow!("muxgate keygen did not print three public keys"))?;
    let public = PublicKey {
        entry,
        exit,
        rendezvous,
    };
    Ok((path, public))
}

/// Creates a key for each end.
fn public_keys(setup: &Setup<'_>) -> Result<Keys> {
    let (dials, near) = key_pair(setup, "dials.key")?;
    let (accepts, far) = key_pair(setup, "accepts.key")?;
    let (entry, exit) = (near.entry, far.exit);
    let end = |private: &Path| json!({"mode": "PublicKeys", "privateKeyFiles": [private]});
    let mut accepting = end(&accepts);
    accepting["peers"] = json!([{"publicKeys": [entry]}]);
    Ok(Keys {
        dials: end(&dials),
        exit: json!({"publicKeys": [exit]}),
        accepts: accepting,
    })
}
