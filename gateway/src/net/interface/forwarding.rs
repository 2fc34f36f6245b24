//! Which packets a host forwards between the TUN interface and its other interfaces, and which
//! source addresses it translates (SNAT): an nftables table for each TUN interface.
//!
//! Every rule matches the TUN interface, and no chain drops by default. Packets between other
//! interfaces are therefore not affected.

use std::io;

use netlink_packet_core::{DefaultNla, NLM_F_APPEND, NLM_F_CREATE};
use netlink_packet_netfilter::nftables::{
    Bitwise, ChainAttribute, ChainMessage, Cmp, DataAttribute, Expressions, Hook, Immediate,
    InetHookNumber, Meta, MetaKey, NfTablesMessage, Operator, Register, RuleAttribute, RuleMessage,
    TableAttribute, TableMessage, Verdict, VerdictAttribute,
};

use crate::io::netlink::Netlink;

/// Bytes of an interface name that nftables compares (IFNAMSIZ).
const NAME_BYTES: usize = 16;
/// Verdict of a rule (NF_DROP, linux/netfilter.h).
const DROP: Verdict = Verdict::Other(0);
/// Attributes and key of the expression `ct state` (linux/netfilter/nf_tables.h).
const NFTA_CT_DREG: u16 = 1;
const NFTA_CT_KEY: u16 = 2;
const NFT_CT_STATE: u32 = 0;
/// States of packets of a known connection (NF_CT_STATE_BIT, linux/netfilter/nf_conntrack_common.h):
/// established and related.
const CT_KNOWN: u32 = 2 | 4;

/// Error numbers which show that the table does not exist or that the kernel has no nf_tables.
const NO_TABLE: [i32; 4] = [
    libc::ENOENT,
    libc::EINVAL,
    libc::EOPNOTSUPP,
    libc::EPROTONOSUPPORT,
];

/// How the host forwards packets between the TUN interface and its other interfaces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Forwarding {
    /// The settings and the rules of the host decide.
    Unmanaged,
    /// The host forwards no packets.
    Off,
    /// The host forwards packets in both directions.
    Route,
    /// The host forwards connections of other hosts into the interface, and translates their source
    /// addresses to an address of the interface.
    SnatIn,
    /// The host forwards connections out of the interface, and translates their source addresses to
    /// an address of the interface that the packet leaves by.
    SnatOut,
}

impl Forwarding {
    /// Whether the host must forward packets.
    pub(super) fn is_on(self) -> bool {
        matches!(self, Self::Route | Self::SnatIn | Self::SnatOut)
    }
}

/// A chain of the table.
#[derive(Debug, Clone, Copy)]
struct Chain {
    name: &'static str,
    kind: &'static str,
    hook: InetHookNumber,
    priority: u32,
}

/// Runs at the priority `filter` of nft(8) (NF_IP_PRI_FILTER).
const FORWARD: Chain = Chain {
    name: "forward",
    kind: "filter",
    hook: InetHookNumber::Forward,
    priority: 0,
};
/// Runs at the priority `srcnat` of nft(8) (NF_IP_PRI_NAT_SRC).
const POSTROUTING: Chain = Chain {
    name: "postrouting",
    kind: "nat",
    hook: InetHookNumber::PostRouting,
    priority: 100,
};

/// Whether a packet arrives by the TUN interface, and whether it leaves by it. `None`: any packet.
#[derive(Debug, Clone, Copy)]
struct Direction {
    from: Option<bool>,
    to: Option<bool>,
}

const IN: Direction = Direction {
    from: Some(false),
    to: Some(true),
};
const OUT: Direction = Direction {
    from: Some(true),
    to: Some(false),
};

/// Applies `forwarding` to `device`: creates, replaces or removes the table. Without nf_tables in
/// the kernel, [`Forwarding::Off`] has no effect.
///
/// # Errors
/// Errors of the kernel, such as "not supported" without nf_tables.
pub(super) fn set(device: &str, forwarding: Forwarding) -> io::Result<()> {
    let any = |from, to| Direction { from, to };
    let rules = match forwarding {
        Forwarding::Unmanaged | Forwarding::Route => return remove(device),
        Forwarding::Off => vec![
            (FORWARD, dropped(device, any(None, Some(true)))),
            (FORWARD, dropped(device, any(Some(true), None))),
        ],
        Forwarding::SnatIn => vec![
            (FORWARD, begun(device, OUT)),
            (POSTROUTING, translated(device, IN)),
        ],
        Forwarding::SnatOut => vec![
            (FORWARD, begun(device, IN)),
            (POSTROUTING, translated(device, OUT)),
        ],
    };
    // Deleting a missing table fails, so the transaction first creates the table, if it does not
    // exist, then deletes it and creates it again.
    let mut messages = vec![
        (NfTablesMessage::NewTable(table(device)), NLM_F_CREATE),
        (NfTablesMessage::DeleteTable(table(device)), 0),
        (NfTablesMessage::NewTable(table(device)), NLM_F_CREATE),
    ];
    for chain in [FORWARD, POSTROUTING] {
        let mut of_chain = rules.iter().filter(|(of, _)| of.name == chain.name);
        if of_chain.clone().next().is_some() {
            let message = NfTablesMessage::NewChain(chain_message(device, chain));
            messages.push((message, NLM_F_CREATE));
        }
        messages.extend(of_chain.by_ref().map(|(of, expressions)| {
            let rule = rule_message(device, *of, expressions);
            (NfTablesMessage::NewRule(rule), NLM_F_CREATE | NLM_F_APPEND)
        }));
    }
    let done = Netlink::netfilter().and_then(|mut netlink| netlink.transaction(messages));
    match forwarding {
        Forwarding::Off => without_table(done),
        _ => done,
    }
}

/// Removes the table of `device` if it exists.
///
/// # Errors
/// Errors of the kernel.
pub(super) fn remove(device: &str) -> io::Result<()> {
    let messages = vec![(NfTablesMessage::DeleteTable(table(device)), 0)];
    without_table(Netlink::netfilter().and_then(|mut netlink| netlink.transaction(messages)))
}

/// Accepts that there is no table.
fn without_table(done: io::Result<()>) -> io::Result<()> {
    done.or_else(|error| match error.raw_os_error() {
        Some(code) if NO_TABLE.contains(&code) => Ok(()),
        _ => Err(error),
    })
}

fn table_name(device: &str) -> String {
    format!("muxtunnel-{device}")
}

fn table(device: &str) -> TableMessage {
    TableMessage {
        attributes: vec![TableAttribute::Name(table_name(device))],
    }
}

fn chain_message(device: &str, chain: Chain) -> ChainMessage {
    ChainMessage {
        attributes: vec![
            ChainAttribute::Table(table_name(device)),
            ChainAttribute::Name(chain.name.to_owned()),
            ChainAttribute::Hook(vec![
                Hook::Number(chain.hook.into()),
                Hook::Priority(chain.priority),
            ]),
            ChainAttribute::Type(chain.kind.to_owned()),
        ],
    }
}

fn rule_message(device: &str, chain: Chain, expressions: &[Expressions]) -> RuleMessage {
    RuleMessage {
        attributes: vec![
            RuleAttribute::Table(table_name(device)),
            RuleAttribute::Chain(chain.name.to_owned()),
            RuleAttribute::Expressions(expressions.iter().cloned().map(Into::into).collect()),
        ],
    }
}

/// `iifname FROM device oifname TO device drop`.
fn dropped(device: &str, direction: Direction) -> Vec<Expressions> {
    let mut rule = matches(device, direction);
    rule.push(drop_packet());
    rule
}

/// `iifname FROM device oifname TO device ct state != {established, related} drop`: drops packets
/// that begin a connection.
fn begun(device: &str, direction: Direction) -> Vec<Expressions> {
    let register = u32::from(Register::Reg1).to_be_bytes().to_vec();
    let mut rule = matches(device, direction);
    rule.extend([
        Expressions::Other {
            expression_type: "ct".to_owned(),
            attributes: vec![
                DefaultNla::new(NFTA_CT_DREG, register),
                DefaultNla::new(NFTA_CT_KEY, NFT_CT_STATE.to_be_bytes().to_vec()),
            ],
        },
        // Registers have the byte order of the host.
        Expressions::Bitwise(vec![
            Bitwise::SourceRegister(Register::Reg1),
            Bitwise::DestinationRegister(Register::Reg1),
            Bitwise::Length(4),
            Bitwise::Mask(DataAttribute::Value(CT_KNOWN.to_ne_bytes().to_vec())),
            Bitwise::Xor(DataAttribute::Value(vec![0; 4])),
        ]),
        compare(Operator::Equal, vec![0; 4]),
        drop_packet(),
    ]);
    rule
}

/// `iifname FROM device iifname != "" oifname TO device masquerade`. A packet of this host itself
/// has no input interface. `iifname != ""` excludes such packets.
fn translated(device: &str, direction: Direction) -> Vec<Expressions> {
    let mut rule = matches(device, direction);
    rule.extend(named(MetaKey::Iifname, Operator::NotEqual, ""));
    rule.push(Expressions::Other {
        expression_type: "masq".to_owned(),
        attributes: Vec::new(),
    });
    rule
}

fn matches(device: &str, direction: Direction) -> Vec<Expressions> {
    let ends = [
        (MetaKey::Iifname, direction.from),
        (MetaKey::Oifname, direction.to),
    ];
    let ends = ends.into_iter().filter_map(|(key, is)| Some((key, is?)));
    let ends = ends.map(|(key, is)| match is {
        true => named(key, Operator::Equal, device),
        false => named(key, Operator::NotEqual, device),
    });
    ends.flatten().collect()
}

/// Compares the name of an interface.
fn named(key: MetaKey, operator: Operator, name: &str) -> [Expressions; 2] {
    let mut padded = name.as_bytes().to_vec();
    padded.resize(NAME_BYTES, 0);
    [
        Expressions::Meta(vec![
            Meta::Key(key),
            Meta::DestinationRegister(Register::Reg1),
        ]),
        compare(operator, padded),
    ]
}

fn compare(operator: Operator, value: Vec<u8>) -> Expressions {
    Expressions::Cmp(vec![
        Cmp::SourceRegister(Register::Reg1),
        Cmp::Op(operator),
        Cmp::Data(DataAttribute::Value(value)),
    ])
}

fn drop_packet() -> Expressions {
    Expressions::Immediate(vec![
        Immediate::DestinationRegister(Register::Verdict),
        Immediate::Data(DataAttribute::Verdict(vec![VerdictAttribute::Code(DROP)])),
    ])
}
