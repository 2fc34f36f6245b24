//! What holds whatever a stranger says, or is in a file of ssh: a function for each such parser, which panics where it
//! does not hold.
//!
//! `make fuzz` looks for inputs that break one; those that it keeps are in `gateway/fuzz/corpus/`, a folder a
//! function, and the tests here go through them. Not part of muxgate.

use muxtunnel_proto::rendezvous::{WORD_BYTES_MAX, decode, encode};

use crate::ingress::listener::oracle;
use crate::io::ssh::oracle as ssh;
use crate::io::transport::web_socket_oracle;

/// Panics where something does not hold for an input.
pub type Oracle = fn(&[u8]);

/// All of them, by the name of target and corpus.
pub const ALL: [(&str, Oracle); 12] = [
    ("authorized_keys", ssh::authorized_keys),
    ("detect", oracle::detect),
    ("http", oracle::http),
    ("http2", crate::session::http2::oracle::oracle),
    ("http3", crate::session::http3::oracle::oracle),
    ("known_hosts", ssh::known_hosts),
    ("proxy", crate::io::proxy_header::oracle),
    ("quic", crate::session::quic::wire::oracle),
    ("rendezvous", rendezvous),
    ("socks4", oracle::socks4),
    ("socks5", oracle::socks5),
    ("web_socket", web_socket_oracle),
];

/// The function of a name.
///
/// # Panics
/// There is none.
#[must_use]
pub fn named(name: &str) -> Oracle {
    let found = ALL.iter().find(|(known, _)| *known == name);
    found.map_or_else(|| unreachable!("no oracle {name}"), |(_, oracle)| *oracle)
}

/// A word is read as what would be written, needs all of its bytes, and no more than there may be.
fn rendezvous(input: &[u8]) {
    let Ok(Some((word, consumed))) = decode(input) else {
        return;
    };
    assert!(consumed <= WORD_BYTES_MAX);
    assert_eq!(encode(&word), &input[..consumed]);
    for end in 0..consumed {
        assert_eq!(decode(&input[..end]), Ok(None));
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn all_that_was_ever_found_holds() {
        for (name, oracle) in ALL {
            let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
                .join("fuzz/corpus")
                .join(name);
            let entries = std::fs::read_dir(&folder)
                .unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
            let mut files: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
            files.sort();
            assert!(files.len() >= 10, "{name} has {} inputs", files.len());
            for file in files {
                let input = std::fs::read(&file).unwrap();
                if let Err(cause) = std::panic::catch_unwind(|| oracle(&input)) {
                    eprintln!("with {}", file.display());
                    std::panic::resume_unwind(cause);
                }
            }
        }
    }
}
