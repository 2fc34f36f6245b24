//! Source translation (SNAT) for packets that a host forwards between the TUN interface and its
//! other interfaces: an nftables table with one rule for each direction.

use std::io;

use netlink_packet_core::{NLM_F_APPEND, NLM_F_CREATE};
use netlink_packet_netfilter::nftables::{
    ChainAttribute, ChainMessage, Cmp, DataAttribute, Expressions, Hook, InetHookNumber, Meta,
    MetaKey, NfTablesMessage, Operator, Register, RuleAttribute, RuleMessage, TableAttribute,
    TableMessage,
};

use crate::io::netlink::Netlink;

const CHAIN: &str = "postrouting";
/// `srcnat` of nft(8) (NF_IP_PRI_NAT_SRC).
const PRIORITY: u32 = 100;
/// Bytes of an interface name that nftables compares (IFNAMSIZ).
const NAME_BYTES: usize = 16;

/// Error numbers which show that the table does not exist or that the kernel has no nf_tables.
const NO_TABLE: [i32; 4] = [
    libc::ENOENT,
    libc::EINVAL,
    libc::EOPNOTSUPP,
    libc::EPROTONOSUPPORT,
];

fn table_name(device: &str) -> String {
    format!("muxtunnel-{device}")
}

fn table(device: &str) -> TableMessage {
    TableMessage {
        attributes: vec![TableAttribute::Name(table_name(device))],
    }
}

/// Creates or replaces the table of `device`.
///
/// # Errors
/// Errors of the kernel, such as "not supported" without nf_tables.
pub(super) fn set(device: &str) -> io::Result<()> {
    let rules = [
        (Operator::Equal, Operator::NotEqual),
        (Operator::NotEqual, Operator::Equal),
    ];
    let rules = rules.map(|(from, to)| rule(device, from, to));
    // Deleting a missing table fails, so the transaction first creates the table, if it does not
    // exist, then deletes it and creates it again.
    let mut messages = vec![
        (NfTablesMessage::NewTable(table(device)), NLM_F_CREATE),
        (NfTablesMessage::DeleteTable(table(device)), 0),
        (NfTablesMessage::NewTable(table(device)), NLM_F_CREATE),
        (NfTablesMessage::NewChain(chain(device)), NLM_F_CREATE),
    ];
    messages
        .extend(rules.map(|rule| (NfTablesMessage::NewRule(rule), NLM_F_CREATE | NLM_F_APPEND)));
    Netlink::netfilter()?.transaction(messages)
}

/// Removes the table of `device` if it exists.
///
/// # Errors
/// Errors of the kernel.
pub(super) fn remove(device: &str) -> io::Result<()> {
    let messages = vec![(NfTablesMessage::DeleteTable(table(device)), 0)];
    let removed = Netlink::netfilter().and_then(|mut netlink| netlink.transaction(messages));
    removed.or_else(|error| match error.raw_os_error() {
        Some(code) if NO_TABLE.contains(&code) => Ok(()),
        _ => Err(error),
    })
}

fn chain(device: &str) -> ChainMessage {
    ChainMessage {
        attributes: vec![
            ChainAttribute::Table(table_name(device)),
            ChainAttribute::Name(CHAIN.to_owned()),
            ChainAttribute::Hook(vec![
                Hook::Number(InetHookNumber::PostRouting.into()),
                Hook::Priority(PRIORITY),
            ]),
            ChainAttribute::Type("nat".to_owned()),
        ],
    }
}

/// `iifname FROM device iifname != "" oifname TO device masquerade`. A packet of this host itself
/// has no input interface. `iifname != ""` excludes such packets.
fn rule(device: &str, from: Operator, to: Operator) -> RuleMessage {
    let conditions = [
        (MetaKey::Iifname, from, device),
        (MetaKey::Iifname, Operator::NotEqual, ""),
        (MetaKey::Oifname, to, device),
    ];
    let conditions = conditions.into_iter().flat_map(|(key, operator, name)| {
        let mut padded = name.as_bytes().to_vec();
        padded.resize(NAME_BYTES, 0);
        [
            Expressions::Meta(vec![
                Meta::Key(key),
                Meta::DestinationRegister(Register::Reg1),
            ]),
            Expressions::Cmp(vec![
                Cmp::SourceRegister(Register::Reg1),
                Cmp::Op(operator),
                Cmp::Data(DataAttribute::Value(padded)),
            ]),
        ]
    });
    let masquerade = Expressions::Other {
        expression_type: "masq".to_owned(),
        attributes: Vec::new(),
    };
    let expressions = conditions.chain([masquerade]).map(Into::into);
    RuleMessage {
        attributes: vec![
            RuleAttribute::Table(table_name(device)),
            RuleAttribute::Chain(CHAIN.to_owned()),
            RuleAttribute::Expressions(expressions.collect()),
        ],
    }
}
