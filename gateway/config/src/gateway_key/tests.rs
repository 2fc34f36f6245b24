use aws_lc_rs::signature::{ED25519, Ed25519KeyPair, KeyPair, UnparsedPublicKey};
use bech32::Bech32;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::*;

const ALPHABET: &[u8] = b"qpzry9x8gf2tvdw0s3jn54khce6mua7l";

fn key(seed: u8) -> [u8; KEY_BYTES] {
    let pair = Ed25519KeyPair::from_seed_unchecked(&[seed; 32]).unwrap();
    pair.public_key().as_ref().try_into().unwrap()
}

#[test]
fn a_key_has_one_text_for_each_role() {
    for role in Role::ALL {
        let key = GatewayKey::new(role, key(1)).unwrap();
        let text = key.to_string();
        assert_eq!(text.len(), KEY_TEXT_LENGTH);
        assert!(text.starts_with(role.prefix()), "{text}");
        assert_eq!(text.parse(), Ok(key));
        assert_eq!(GatewayKey::of_role(&text, role), Ok(key));
        assert!(text.to_uppercase().parse::<GatewayKey>().is_err());
    }
    // RFC 8032, section 7.1, test 1. The text is part of the interface, so it must not change.
    let known = "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a";
    let bytes: Vec<u8> = (0..KEY_BYTES)
        .map(|at| u8::from_str_radix(&known[2 * at..2 * at + 2], 16).unwrap())
        .collect();
    let text = key_text(Role::Entry, &bytes.try_into().unwrap());
    assert_eq!(text, KNOWN);
}

const KNOWN: &str = "mte1q8t44xqps2cs4d74f0ld8jtyquaqactj70d2vge94upp568hqag35gy0qhe";

#[test]
fn no_corrupted_text_is_a_key() {
    let mut random = StdRng::seed_from_u64(36);
    let (mut characters, mut swaps, mut lengths) = (0, 0, 0);
    for run in 0..10_000_u32 {
        let role = Role::ALL[run as usize % 3];
        let bytes: [u8; KEY_BYTES] = random.random();
        let good = key_text(role, &bytes);
        let mut text = good.clone().into_bytes();
        match run % 5 {
            0..=2 => {
                for _ in 0..random.random_range(1..=4) {
                    let at = random.random_range(4..KEY_TEXT_LENGTH);
                    text[at] = ALPHABET[random.random_range(0..32)];
                }
                characters += 1;
            }
            3 => {
                let at = random.random_range(4..KEY_TEXT_LENGTH - 1);
                text.swap(at, at + 1);
                swaps += 1;
            }
            _ => {
                let at = random.random_range(4..KEY_TEXT_LENGTH);
                if random.random() {
                    text.remove(at);
                } else {
                    text.insert(at, ALPHABET[random.random_range(0..32)]);
                }
                lengths += 1;
            }
        }
        let text = String::from_utf8(text).unwrap();
        if text != good {
            assert!(text.parse::<GatewayKey>().is_err(), "{text} {good}");
        }
    }
    assert!(characters > 5_000 && swaps > 1_000 && lengths > 1_000);
}

#[test]
fn a_text_of_another_kind_is_refused_with_what_to_do() {
    let payload = |kind: u8, length: usize| {
        let mut payload = vec![kind];
        payload.extend(&key(2)[..length]);
        payload
    };
    let entry = Hrp::parse("mte").unwrap();
    let encode = |payload: &[u8]| bech32::encode::<Bech32m>(entry, payload).unwrap();
    let good = encode(&payload(1, 32));
    // The checksum of another role.
    let other_role = good.replacen("mte", "mtx", 1);
    let old_checksum = bech32::encode::<Bech32>(entry, &payload(1, 32)).unwrap();
    let other_prefix = Hrp::parse("mtq").unwrap();
    let other_prefix = bech32::encode::<Bech32m>(other_prefix, &payload(1, 32)).unwrap();
    for (text, error) in [
        (other_role, GatewayKeyError::Checksum),
        (old_checksum, GatewayKeyError::Checksum),
        (encode(&payload(2, 32)), GatewayKeyError::Type(2)),
        (encode(&payload(1, 31)), GatewayKeyError::Form),
        (other_prefix, GatewayKeyError::Form),
        (format!(" {good}"), GatewayKeyError::Form),
        (String::new(), GatewayKeyError::Form),
        ("mte1".to_owned(), GatewayKeyError::Form),
        ("é".repeat(40), GatewayKeyError::Form),
    ] {
        assert_eq!(text.parse::<GatewayKey>(), Err(error), "{text}");
    }
    let error = GatewayKey::of_role(&good, Role::Exit).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the key of an entry (mte1...), but an exit (mtx1...) is expected here"
    );
}

#[test]
fn the_bit_that_belongs_to_no_byte_must_be_zero() {
    use bech32::primitives::gf32::Fe32;
    use bech32::primitives::iter::{ByteIterExt, Fe32IterExt};
    let payload: Vec<u8> = std::iter::once(1).chain(key(3)).collect();
    let mut symbols: Vec<Fe32> = payload.iter().copied().bytes_to_fes().collect();
    let encode = |symbols: &[Fe32]| -> String {
        let hrp = Hrp::parse("mtx").unwrap();
        symbols
            .iter()
            .copied()
            .with_checksum::<Bech32m>(&hrp)
            .chars()
            .collect()
    };
    assert!(encode(&symbols).parse::<GatewayKey>().is_ok());
    let last = symbols.last_mut().unwrap();
    *last = Fe32::try_from(last.to_u8() | 1).unwrap();
    assert_eq!(
        encode(&symbols).parse::<GatewayKey>(),
        Err(GatewayKeyError::Form)
    );
}

/// The eight points of small order: y as 32 bytes, little endian, with the sign of x in the last bit.
fn small_orders() -> Vec<[u8; KEY_BYTES]> {
    let read = |text: &str| {
        let mut bytes = [0; KEY_BYTES];
        for (at, byte) in bytes.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&text[2 * at..2 * at + 2], 16).unwrap();
        }
        bytes
    };
    let signed = |mut bytes: [u8; KEY_BYTES]| {
        bytes[31] |= 0x80;
        bytes
    };
    let (mut one, mut minus_one) = ([0; KEY_BYTES], [0xff; KEY_BYTES]);
    one[0] = 1;
    (minus_one[0], minus_one[31]) = (0xec, 0x7f);
    let two_signs = [
        [0; KEY_BYTES],
        read("26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05"),
        read("c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a"),
    ];
    let mut all = vec![one, minus_one];
    all.extend(two_signs);
    all.extend(two_signs.map(signed));
    all
}

/// Whether a signature that needs no private key is valid. If a key A has a small order, some message
/// has a challenge k with kA = 0. The signature with R = identity (01 and zeros) and S = 0 is then
/// valid.
fn verifies_without_a_key(bytes: &[u8; KEY_BYTES], message: u8) -> bool {
    let mut signature = [0; 64];
    signature[0] = 1;
    let key = UnparsedPublicKey::new(&ED25519, bytes);
    key.verify(&[message], &signature).is_ok()
}

#[test]
fn a_point_of_small_order_is_no_key() {
    assert_eq!(small_orders().len(), 8);
    for bytes in small_orders() {
        let made = GatewayKey::new(Role::Entry, bytes);
        assert_eq!(made, Err(GatewayKeyError::SmallOrder), "{bytes:02x?}");
        let text = key_text(Role::Exit, &bytes);
        assert_eq!(text.parse::<GatewayKey>(), Err(GatewayKeyError::SmallOrder));
        let mut few = 0..=u8::MAX;
        assert!(few.any(|message| verifies_without_a_key(&bytes, message)));
    }
    // Encodings with y beyond the field are no keys, whether or not a library accepts them.
    for bytes in SMALL_ORDERS {
        let mut negative = bytes;
        negative[KEY_BYTES - 1] |= 0x80;
        for bytes in [bytes, negative] {
            let made = GatewayKey::new(Role::Entry, bytes);
            assert_eq!(made, Err(GatewayKeyError::SmallOrder), "{bytes:02x?}");
        }
    }
    for seed in 0..50 {
        let bytes = key(seed);
        assert!(GatewayKey::new(Role::Entry, bytes).is_ok(), "{seed}");
        assert!((0..=u8::MAX).all(|message| !verifies_without_a_key(&bytes, message)));
    }
}
