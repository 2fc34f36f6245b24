//! Flags of a rendezvous and its leaves.

use clap::Args;
use muxtunnel_gateway_config::{
    Connect, ConnectRendezvous, GatewayKey, GatewayKeyError, MeetingPlace, Member, Role,
};

/// Flags of a leaf gateway, which meets its peer at a rendezvous.
#[derive(Debug, Args)]
pub(super) struct LeafArgs {
    /// Meet the peer at this rendezvous.
    #[arg(long, value_name = "HOST:PORT", requires = "rendezvous_key")]
    rendezvous: Option<String>,
    /// The public key of the rendezvous, mtr1... (repeatable while the rendezvous changes its key).
    #[arg(long, value_name = "KEY", requires = "rendezvous")]
    rendezvous_key: Vec<String>,
}

impl LeafArgs {
    /// The address and the keys of the rendezvous.
    ///
    /// # Errors
    /// A key is not that of a rendezvous.
    pub(super) fn place(self) -> Result<Option<(String, Vec<GatewayKey>)>, String> {
        let Some(address) = self.rendezvous else {
            return Ok(None);
        };
        let key = |text: &String| GatewayKey::of_role(text, Role::Rendezvous);
        let keys = self
            .rendezvous_key
            .iter()
            .map(key)
            .collect::<Result<_, _>>();
        let keys = keys.map_err(|error| format!("--rendezvous-key: {error}"))?;
        Ok(Some((address, keys)))
    }
}

/// The rendezvous where an exit waits.
pub(super) fn registration((address, public_keys): (String, Vec<GatewayKey>)) -> MeetingPlace {
    MeetingPlace {
        name: "rendezvous".to_owned(),
        address,
        public_keys,
    }
}

/// The exit at a rendezvous.
pub(super) fn visited((address, public_keys): (String, Vec<GatewayKey>)) -> Connect {
    Connect {
        name: "exit".to_owned(),
        rendezvous: Some(ConnectRendezvous {
            address,
            public_keys,
        }),
        ..Connect::default()
    }
}

/// The members with these keys.
///
/// # Errors
/// A text is not a key.
pub(super) fn members(keys: &[String]) -> Result<Vec<Member>, String> {
    let member = |text: &String| {
        let key = text.parse();
        let key = key.map_err(|error: GatewayKeyError| format!("--member: {error}"))?;
        Ok(Member {
            public_keys: vec![key],
            ..Member::default()
        })
    };
    keys.iter().map(member).collect()
}
