//! A file of peers, which has a key on each line.

use super::{ExpirationTime, PEER_KEYS_MAX, PEERS_MAX, Peer};
use crate::gateway_key::GatewayKey;

/// The option of a line.
const EXPIRATION_TIME: &str = "expirationTime";

/// Parses a file of peers: one key on each line, `[OPTION...] KEY [NAME]`. The option is
/// `expirationTime="TIME"`. Empty lines, and lines that begin with `#`, are ignored. Lines of one
/// name are one peer. Returns each peer with the number of its first line. The caller checks the list ([`super::check_peers`]).
///
/// # Errors
/// The first line that is not a peer.
pub fn parse_peers(text: &str) -> Result<Vec<(usize, Peer)>, String> {
    let mut peers = Vec::new();
    for (number, line) in lines(text) {
        let add = |peer| add_line(&mut peers, number, peer);
        let added = parse_peer(line).and_then(add);
        added.map_err(|problem| format!("line {number}: {problem}"))?;
    }
    Ok(peers)
}

/// Adds the peer of a line, or its key to the peer of an earlier line with the same name.
fn add_line(peers: &mut Vec<(usize, Peer)>, number: usize, peer: Peer) -> Result<(), String> {
    let count = peers.len();
    let same = peers.iter_mut().find(|(_, other)| {
        let named = other.name.as_ref();
        named.is_some_and(|name| Some(name) == peer.name.as_ref())
    });
    match same {
        Some((first, other)) if other.expiration_time != peer.expiration_time => Err(format!(
            "the option {EXPIRATION_TIME} differs from that of line {first}, which has the same name: write the same \
             option on both lines"
        )),
        Some((_, other)) if other.public_keys.len() == PEER_KEYS_MAX => {
            let name = other.name.as_deref().unwrap_or_default();
            Err(format!(
                "the peer {name} has more than {PEER_KEYS_MAX} keys"
            ))
        }
        Some((_, other)) => {
            other.public_keys.extend(peer.public_keys);
            Ok(())
        }
        None if count == PEERS_MAX => Err(format!("the file has more than {PEERS_MAX} peers")),
        None => {
            peers.push((number, peer));
            Ok(())
        }
    }
}

/// The peers on the lines of a file that can be read, at most [`PEERS_MAX`].
#[must_use]
pub fn readable_peers(text: &str) -> Vec<Peer> {
    let mut peers = Vec::new();
    for (number, line) in lines(text) {
        // A line that cannot be read or added is not a peer.
        let _ = parse_peer(line).and_then(|peer| add_line(&mut peers, number, peer));
    }
    peers.into_iter().map(|(_, peer)| peer).collect()
}

/// The lines with a peer, with their numbers.
fn lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let numbered = text.lines().enumerate();
    let lines = numbered.map(|(index, line)| (index + 1, line.trim()));
    lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'))
}

fn parse_peer(line: &str) -> Result<Peer, String> {
    let mut words = line.split_whitespace().peekable();
    let mut expiration_time = None;
    while let Some((name, value)) = words.peek().and_then(|word| word.split_once('=')) {
        if name != EXPIRATION_TIME {
            // The text may be a secret that was pasted by mistake.
            let is_name =
                name.len() <= 20 && name.bytes().all(|b| b.is_ascii_alphabetic() || b == b'-');
            let name = if is_name { name } else { "NAME" };
            return Err(format!(
                "the option {name} is not known: the only option is {EXPIRATION_TIME}=\"TIME\""
            ));
        }
        if expiration_time.is_some() {
            return Err(format!("the option {EXPIRATION_TIME} occurs twice"));
        }
        let time = value.trim_matches('"').parse::<ExpirationTime>();
        expiration_time = Some(time.map_err(|problem| format!("{EXPIRATION_TIME}: {problem}"))?);
        words.next();
    }
    let key = words.next().ok_or("the key is missing after the options")?;
    let key: GatewayKey = key.parse().map_err(|error| format!("the key is {error}"))?;
    let name = words.next().map(str::to_owned);
    if words.next().is_some() {
        return Err("the line has more words than [OPTION...] KEY [NAME]".to_owned());
    }
    Ok(Peer {
        name,
        expiration_time,
        ..Peer::with_key(key)
    })
}
