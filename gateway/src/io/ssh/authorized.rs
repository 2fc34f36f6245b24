//! `authorized_keys` as sshd reads it: who may log in by a key, and what for.
//!
//! A line with an option that is not known here is left out: it may be one that restricts.

use std::net::IpAddr;
use std::path::Path;

use muxtunnel_gateway_config::Cidr;
use russh::keys::ssh_key::PublicKey;
use russh::keys::ssh_key::public::KeyData;

use super::events::is_usable;
use super::grant::{Grant, Pattern};

/// A key that may log in.
#[derive(Debug, Clone)]
pub(super) struct Authorized {
    pub(super) key: KeyData,
    pub(super) grant: Grant,
    pub(super) from: Option<From>,
    /// The last second that it may log in, since 1970.
    pub(super) not_after: Option<u64>,
}

/// The addresses that a key, or a certificate, may log in from.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct From {
    yes: Vec<Cidr>,
    no: Vec<Cidr>,
}

impl From {
    /// A list of addresses and networks, those that begin with `!` not.
    ///
    /// # Errors
    /// One of them is something else, such as a name.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let mut from = Self::default();
        for one in text.split(',').map(str::trim) {
            let (list, address) = match one.strip_prefix('!') {
                Some(address) => (&mut from.no, address),
                None => (&mut from.yes, one),
            };
            let cidr = address.parse().map_err(|_| {
                format!("{one:?} is no address and no network, and names are not looked up")
            })?;
            list.push(cidr);
        }
        Ok(from)
    }

    /// Whether a login may come from `source`, where that is known.
    pub(super) fn has(&self, source: Option<IpAddr>) -> bool {
        let Some(source) = source.map(|source| source.to_canonical()) else {
            return false;
        };
        let within = |list: &[Cidr]| list.iter().any(|cidr| cidr.contains(source));
        within(&self.yes) && !within(&self.no)
    }
}

/// The keys of a file. What cannot be used of it is logged with its line.
pub(super) fn parse(path: &Path, text: &str) -> Vec<Authorized> {
    let mut keys = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        match parse_line(line) {
            Ok(key) => keys.push(key),
            Err(problem) => {
                let at = format!("{}:{}", path.display(), index + 1);
                tracing::warn!(%at, problem, "A key of authorizedKeys is left out");
            }
        }
    }
    keys
}

fn parse_line(line: &str) -> Result<Authorized, String> {
    let (options, key) = match key_of(line) {
        Ok(key) => ("", key),
        Err(_) => {
            let end = end_of_options(line);
            let (options, rest) = line.split_at(end);
            (options, key_of(rest.trim_start())?)
        }
    };
    let mut authorized = Authorized {
        key,
        grant: Grant::default(),
        from: None,
        not_after: None,
    };
    for option in options_of(options) {
        apply(&mut authorized, &option)?;
    }
    Ok(authorized)
}

fn key_of(text: &str) -> Result<KeyData, String> {
    let key = PublicKey::from_openssh(text).map_err(|error| format!("no key: {error}"))?;
    match is_usable(&key.algorithm()) {
        true => Ok(key.key_data().clone()),
        false => Err(format!(
            "{}: only Ed25519 and ECDSA keys are taken",
            key.algorithm()
        )),
    }
}

/// Options end at the first space outside of quotes.
fn end_of_options(line: &str) -> usize {
    let mut is_quoted = false;
    let mut is_escaped = false;
    for (index, byte) in line.bytes().enumerate() {
        match byte {
            b'"' if !is_escaped => is_quoted = !is_quoted,
            b' ' | b'\t' if !is_quoted => return index,
            _ => {}
        }
        is_escaped = byte == b'\\' && !is_escaped;
    }
    line.len()
}

/// Options at their commas outside of quotes.
fn options_of(text: &str) -> Vec<String> {
    let mut options = Vec::new();
    let (mut option, mut is_quoted, mut is_escaped) = (String::new(), false, false);
    for character in text.chars() {
        match character {
            '"' if !is_escaped => is_quoted = !is_quoted,
            ',' if !is_quoted => {
                options.push(std::mem::take(&mut option));
                continue;
            }
            _ => {}
        }
        is_escaped = character == '\\' && !is_escaped;
        option.push(character);
    }
    if !option.is_empty() {
        options.push(option);
    }
    options
}

fn apply(authorized: &mut Authorized, option: &str) -> Result<(), String> {
    let (name, value) = match option.split_once('=') {
        Some((name, value)) => (name, Some(value.trim_matches('"'))),
        None => (option, None),
    };
    let grant = &mut authorized.grant;
    match (name.to_ascii_lowercase().as_str(), value) {
        ("restrict" | "no-port-forwarding", None) => grant.forwards = false,
        ("port-forwarding", None) => grant.forwards = true,
        // No session is ever opened, so there is nothing to allow or to deny.
        (
            "no-pty"
            | "pty"
            | "no-agent-forwarding"
            | "agent-forwarding"
            | "no-x11-forwarding"
            | "x11-forwarding"
            | "no-user-rc"
            | "user-rc",
            None,
        ) => {}
        ("permitopen", Some(value)) => {
            let patterns = grant.opens.get_or_insert_default();
            patterns.extend(Pattern::parse_open(value)?);
        }
        ("permitlisten", Some(value)) => {
            let patterns = grant.listens.get_or_insert_default();
            patterns.extend(Pattern::parse_listen(value)?);
        }
        ("from", Some(value)) => authorized.from = Some(From::parse(value)?),
        ("expiry-time", Some(value)) => authorized.not_after = Some(expiry(value)?),
        _ => return Err(format!("the option {name} is not supported")),
    }
    Ok(())
}

/// `YYYYMMDD[HHMM[SS]][Z]`, always UTC.
fn expiry(text: &str) -> Result<u64, String> {
    let wrong = || format!("{text:?} is not YYYYMMDD[HHMM[SS]][Z]");
    let digits = text.strip_suffix(['Z', 'z']).unwrap_or(text);
    if !digits.bytes().all(|byte| byte.is_ascii_digit()) || ![8, 12, 14].contains(&digits.len()) {
        return Err(wrong());
    }
    let part = |from: usize, to: usize| {
        let part = digits.get(from..to).unwrap_or("0");
        part.parse::<u8>().map_err(|_| wrong())
    };
    let year = digits[..4].parse::<i32>().map_err(|_| wrong())?;
    let month = time::Month::try_from(part(4, 6)?).map_err(|_| wrong())?;
    let date = time::Date::from_calendar_date(year, month, part(6, 8)?).map_err(|_| wrong())?;
    let moment = date.with_hms(part(8, 10)?, part(10, 12)?, part(12, 14)?);
    let moment = moment.map_err(|_| wrong())?;
    u64::try_from(moment.assume_utc().unix_timestamp()).map_err(|_| wrong())
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str =
        "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIIrWbWryPsjTWUFGrgd/nQHyY4SmCz8Nc7nPVVL46CpD";

    fn line(options: &str) -> Result<Authorized, String> {
        parse_line(&format!("{options} {KEY} somebody at home"))
    }

    #[test]
    fn options_are_honoured_or_leave_the_key_out() {
        assert_eq!(parse_line(KEY).unwrap().grant, Grant::default());
        assert!(!line("restrict").unwrap().grant.forwards);
        assert!(
            line("restrict,port-forwarding,no-pty")
                .unwrap()
                .grant
                .forwards
        );
        assert!(!line("NO-PORT-FORWARDING").unwrap().grant.forwards);
        let opens = line("permitopen=\"web:80\",permitopen=\"[::1]:*\"")
            .unwrap()
            .grant;
        assert_eq!(opens.denies_open("WEB", 80), None);
        assert_eq!(opens.denies_open("::1", 9), None);
        assert!(opens.denies_open("web", 81).is_some() && opens.denies_unix().is_some());
        let listens = line("permitlisten=\"8080\"").unwrap().grant;
        assert!(listens.permits_listen("localhost", 8080) && !listens.permits_listen("", 80));
        let nothing = line("permitopen=\"none\"").unwrap().grant;
        assert!(nothing.denies_open("web", 80).is_some());
        for options in [
            "command=\"true\"",
            "environment=\"A=b\"",
            "tunnel=\"0\"",
            "cert-authority",
            "verify-required",
            "permitopen=\"web\"",
            "permitlisten=\"x\"",
            "expiry-time=\"tomorrow\"",
            "expiry-time=\"20200230\"",
            "from=\"*.example.com\"",
            "restrict=\"yes\"",
            "strange",
        ] {
            assert!(line(options).is_err(), "{options}");
        }
        assert!(parse_line("ssh-rsa AAAAB3NzaC1yc2EAAAADAQABAAAAgQDa").is_err());
    }

    #[test]
    fn commas_and_spaces_in_quotes_end_nothing() {
        let from = line("from=\"10.0.0.0/8, !10.6.0.0/16\",no-pty")
            .unwrap()
            .from
            .unwrap();
        let at = |text: &str| Some(text.parse().unwrap());
        assert!(from.has(at("10.1.2.3")) && from.has(at("::ffff:10.1.2.3")));
        assert!(!from.has(at("10.6.0.1")) && !from.has(at("192.0.2.1")) && !from.has(None));
    }

    #[test]
    fn a_key_expires_in_utc() {
        assert_eq!(expiry("19700102").unwrap(), 86_400);
        assert_eq!(expiry("197001020001").unwrap(), 86_460);
        assert_eq!(expiry("19700102000102Z").unwrap(), 86_462);
        for text in [
            "",
            "1970",
            "1970010",
            "19701301",
            "197001022500",
            "1970010x",
        ] {
            assert!(expiry(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_file_gives_the_keys_that_can_be_used() {
        let text = format!("# keys\n\n{KEY}\nstrange {KEY}\nnonsense\nrestrict {KEY}\n");
        let keys = parse(Path::new("authorized_keys"), &text);
        assert_eq!(keys.len(), 2);
    }
}
