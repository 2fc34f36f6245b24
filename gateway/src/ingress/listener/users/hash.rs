//! Password hashes: bcrypt, as `htpasswd -B` writes them. A verification runs on the caller's
//! thread.

use std::hint::black_box;
use std::ops::{Range, RangeInclusive};
use std::str::FromStr;

use bcrypt::HashParts;

/// Supported costs. Each step doubles the time of a verification: cost 10 takes about 0.1 s, cost
/// 14 about 1.5 s.
const COSTS: RangeInclusive<u32> = 4..=14;
/// Maximum length of a password, in bytes. bcrypt ignores further bytes.
const PASSWORD_BYTES_MAX: usize = 72;
/// Length of a hash, in bytes.
const TEXT_BYTES: usize = 60;
/// Prefixes of supported hashes.
const SUPPORTED: [&str; 3] = ["$2y$", "$2b$", "$2a$"];
/// Prefixes of unsupported hashes that the same programs write.
const OTHERS: [&str; 9] = [
    "$1$", "$2x$", "$5$", "$6$", "$apr1$", "$argon2", "$y$", "{SHA}", "{SSHA}",
];

/// A bcrypt hash.
pub(super) struct Hash {
    text: String,
    /// The binary logarithm of the number of rounds.
    pub(super) cost: u32,
}

impl Hash {
    /// Parses a hash; `None`: `text` is not a hash, so it is a password.
    ///
    /// # Errors
    /// `text` begins like a hash but is invalid or not supported. The message contains no part of
    /// `text`.
    pub(super) fn parse(text: &str) -> Result<Option<Self>, String> {
        let begins = |kinds: &[&str]| kinds.iter().any(|kind| text.starts_with(kind));
        if begins(&OTHERS) {
            return Err("has a hash that is not supported: use bcrypt of version 2y, 2b or 2a, for example from \
                        `htpasswd -nB -C 10 NAME`"
                .to_owned());
        }
        if !begins(&SUPPORTED) {
            return Ok(None);
        }
        let malformed = || {
            format!(
                "has a malformed bcrypt hash: expected {TEXT_BYTES} characters, $2y$COST$ and 53 of ./A-Za-z0-9"
            )
        };
        if !is_well_formed(text.as_bytes()) {
            return Err(malformed());
        }
        let cost = HashParts::from_str(text)
            .map_err(|_| malformed())?
            .get_cost();
        if !COSTS.contains(&cost) {
            let (least, most) = (COSTS.start(), COSTS.end());
            return Err(format!(
                "has a bcrypt hash of cost {cost}: {least} to {most} are supported"
            ));
        }
        Ok(Some(Self {
            text: text.to_owned(),
            cost,
        }))
    }

    /// Whether `self` is the hash of `password`, which must fulfil [`may_be_hashed`].
    pub(super) fn is_of(&self, password: &[u8]) -> bool {
        bcrypt::verify(password, &self.text).unwrap_or(false)
    }
}

/// Whether `text`, which begins like a hash, has the form of a hash. With other text, the bcrypt
/// library could panic, because it slices the text at fixed positions, even within a character.
fn is_well_formed(text: &[u8]) -> bool {
    let is_base64 = |byte: &u8| byte.is_ascii_alphanumeric() || b"./".contains(byte);
    text.len() == TEXT_BYTES
        && text[4..6].iter().all(u8::is_ascii_digit)
        && text[6] == b'$'
        && text[7..].iter().all(is_base64)
}

/// Whether a hash of `password` may exist. bcrypt reads at most 72 bytes and stops at a NUL byte,
/// so different passwords could have the same hash. An empty password is never intended.
pub(super) fn may_be_hashed(password: &[u8]) -> bool {
    (1..=PASSWORD_BYTES_MAX).contains(&password.len()) && !password.contains(&0)
}

/// The costs of additional hashes that hide which users exist. After a wrong password was checked
/// with the user's hash of cost `own`, these hashes extend the total to the time of one hash of
/// cost `highest`. `own` is `None` if the user has no hash or does not exist.
pub(super) fn rest(own: Option<u32>, highest: u32) -> Range<u32> {
    match own {
        // Each step of the cost doubles the time. So the check of the user's hash, and one hash of
        // each cost from `own` to `highest - 1`, together take as long as one hash of cost
        // `highest`.
        Some(own) => own..highest,
        None => highest..highest + 1,
    }
}

/// Takes as long as the verification of one hash for each of `costs`.
pub(super) fn spend(password: &[u8], costs: impl IntoIterator<Item = u32>) {
    for cost in costs {
        // The costs are within the library's range.
        let _ = black_box(bcrypt::hash_with_salt(password, cost, [0; 16]));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Hash of `secret`, created by crypt(3) of libxcrypt 4.4.33.
    const SECRET: &str = "$2y$04$abcdefghijklmnopqrstuu2r9OfJnfCsdneAXAGHnS4UpFFP8WIrW";

    fn hash(text: &str) -> Hash {
        Hash::parse(text).unwrap().unwrap()
    }

    #[test]
    fn a_hash_of_another_program_is_of_its_password_alone() {
        for kind in SUPPORTED {
            let hash = hash(&SECRET.replacen("$2y$", kind, 1));
            assert_eq!(hash.cost, 4);
            assert!(hash.is_of(b"secret"), "{kind}");
            for wrong in ["", "secre", "secret ", "Secret", SECRET] {
                assert!(!hash.is_of(wrong.as_bytes()), "{wrong}");
            }
        }
        // The verification considers all 72 bytes.
        let long = hash("$2y$04$abcdefghijklmnopqrstuubzadhGtS2zEF.gu0yd0opP6cVzb.e0i");
        assert!(long.is_of(&[b'x'; 72]) && !long.is_of(&[b'x'; 71]));
    }

    #[test]
    fn a_password_that_bcrypt_would_cut_is_no_hashs() {
        for (password, expected) in [
            (&b""[..], false),
            (b"x", true),
            (&[b'x'; 72], true),
            (&[b'x'; 73], false),
            (b"secret\0", false),
            (b"secret\0more", false),
        ] {
            assert_eq!(may_be_hashed(password), expected, "{password:?}");
        }
    }

    #[test]
    fn a_wrong_password_takes_as_long_whoever_the_user_is() {
        for highest in COSTS {
            let others = (*COSTS.start()..=highest).map(Some).chain([None]);
            for own in others {
                let costs = own.into_iter().chain(rest(own, highest));
                let rounds: u64 = costs.map(|cost| 1 << cost).sum();
                assert_eq!(rounds, 1 << highest, "{own:?} of {highest}");
            }
        }
    }

    #[test]
    fn what_begins_as_a_hash_and_cannot_be_used_is_an_error_without_it() {
        let non_ascii = format!("{}ä{}", &SECRET[..28], &SECRET[30..]);
        for (text, expected) in [
            ("$2y$04$short", "malformed"),
            ("$2y$04", "malformed"),
            (&SECRET[..59], "malformed"),
            (&format!("{SECRET} "), "malformed"),
            (&SECRET.replacen("04", "+4", 1), "malformed"),
            (&SECRET.replacen("04$", "4$$", 1), "malformed"),
            (&SECRET.replacen("rW", "r-", 1), "malformed"),
            // The bits after the salt's 16 bytes are not zero.
            (&SECRET.replacen("uu2r", "uv2r", 1), "malformed"),
            (&non_ascii, "malformed"),
            (&SECRET.replacen("$04$", "$03$", 1), "of cost 3: 4 to 14"),
            (&SECRET.replacen("$04$", "$15$", 1), "of cost 15: 4 to 14"),
            (&SECRET.replacen("$04$", "$31$", 1), "of cost 31: 4 to 14"),
            (&SECRET.replacen("$04$", "$99$", 1), "of cost 99: 4 to 14"),
            (&SECRET.replacen("$2y$", "$2x$", 1), "not supported"),
            ("$apr1$xxxxxxxx$yyyyyyyyyyyyyyyyyyyyyy", "not supported"),
            ("{SHA}W6ph5Mm5Pz8GgiULbPgzG37mj9g=", "not supported"),
            ("{SSHA}abc", "not supported"),
            ("$6$salt$hash", "not supported"),
            ("$argon2id$v=19$m=1", "not supported"),
        ] {
            let Err(error) = Hash::parse(text) else {
                panic!("{text} is taken");
            };
            assert!(error.contains(expected), "{text}: {error}");
            assert!(!error.contains(text), "{error}");
        }
        for password in ["$2 is a price", "secret", "2y$04$", "{curly}"] {
            assert!(Hash::parse(password).unwrap().is_none(), "{password}");
        }
    }
}
