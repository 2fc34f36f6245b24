//! An ssh-agent (draft-ietf-sshm-ssh-agent) with one FIDO key in software, whose user always
//! touches it (OpenSSH's PROTOCOL.u2f).

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use aws_lc_rs::digest::{SHA256, digest};
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{Ed25519KeyPair, KeyPair};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

const KIND: &[u8] = b"sk-ssh-ed25519@openssh.com";
const APPLICATION: &[u8] = b"ssh:";
const USER_PRESENT: u8 = 1;

pub struct Agent {
    pub socket: PathBuf,
    /// The line of the key in `authorized_keys`.
    pub public: String,
}

impl Agent {
    /// Starts an agent whose socket is in `folder`.
    pub fn start(folder: &Path) -> Self {
        let pkcs8 = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).unwrap();
        let key = Ed25519KeyPair::from_pkcs8(pkcs8.as_ref()).unwrap();
        let public = [KIND, key.public_key().as_ref(), APPLICATION];
        let blob = public.map(string).concat();
        let line = format!("sk-ssh-ed25519@openssh.com {}\n", STANDARD.encode(&blob));
        let socket = folder.join("agent");
        let listener = UnixListener::bind(&socket).unwrap();
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                serve(client, &key, &blob);
            }
        });
        Self {
            socket,
            public: line,
        }
    }
}

/// Answers requests until the client closes the connection.
fn serve(mut client: UnixStream, key: &Ed25519KeyPair, blob: &[u8]) {
    let mut length = [0; 4];
    while client.read_exact(&mut length).is_ok() {
        let mut request = vec![0; u32::from_be_bytes(length) as usize];
        client.read_exact(&mut request).unwrap();
        let answer = match request[0] {
            // SSH_AGENTC_REQUEST_IDENTITIES: SSH_AGENT_IDENTITIES_ANSWER.
            11 => [&[12, 0, 0, 0, 1][..], &string(blob), &string(b"a key")].concat(),
            // SSH_AGENTC_SIGN_REQUEST: SSH_AGENT_SIGN_RESPONSE.
            13 => {
                let (_, rest) = parted(&request[1..]);
                let (message, _) = parted(rest);
                [&[14][..], &string(&signature(key, message))].concat()
            }
            // SSH_AGENT_FAILURE.
            _ => vec![5],
        };
        client.write_all(&string(&answer)).unwrap();
    }
}

fn signature(key: &Ed25519KeyPair, message: &[u8]) -> Vec<u8> {
    let state = [USER_PRESENT, 0, 0, 0, 7];
    let [application, message] = [APPLICATION, message].map(|bytes| digest(&SHA256, bytes));
    let signed = [application.as_ref(), &state, message.as_ref()].concat();
    let made = key.sign(&signed);
    [&string(KIND)[..], &string(made.as_ref()), &state].concat()
}

/// A string of RFC 4251, section 5.
fn string(bytes: &[u8]) -> Vec<u8> {
    let length = (bytes.len() as u32).to_be_bytes();
    [&length[..], bytes].concat()
}

/// Splits a string from the bytes that follow it.
fn parted(bytes: &[u8]) -> (&[u8], &[u8]) {
    let (length, rest) = bytes.split_at(4);
    rest.split_at(u32::from_be_bytes(length.try_into().unwrap()) as usize)
}
