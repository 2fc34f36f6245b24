//! Parses `authorized_keys` like sshd: the keys that may log in, and their permissions.
//!
//! A line with an unknown option is ignored, because the option may be a restriction.

use std::net::IpAddr;
use std::path::Path;

use ipnet::IpNet;
use muxtunnel_gateway_config::Cidr;
use russh::keys::ssh_key::public::KeyData;

use super::lines::{SPACES, lines, public_key};
use super::user_keys::check_key;
use crate::io::proof::{Grant, Pattern};

/// A key that may log in.
#[derive(Debug, Clone)]
pub(super) struct Authorized {
    pub(super) key: KeyData,
    pub(super) grant: Grant,
    pub(super) from: Option<From>,
    /// The last second at which the key is valid, in seconds since 1970.
    pub(super) not_after: Option<u64>,
}

/// The addresses from which a key or a certificate may log in.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct From {
    yes: Vec<Cidr>,
    no: Vec<Cidr>,
}

impl From {
    /// Parses a list of addresses and networks. An element that begins with `!` excludes its
    /// addresses.
    ///
    /// # Errors
    /// An element is not an address or a network, for example a name.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let mut from = Self::default();
        for one in text.split(',').map(str::trim) {
            let (list, address) = match one.strip_prefix('!') {
                Some(address) => (&mut from.no, address),
                None => (&mut from.yes, one),
            };
            let cidr = address.parse().map_err(|_| {
                format!("{one:?} is not an address or a network; names are not looked up")
            })?;
            // The author of an element such as `192.0.2.1/24` may intend a single address. sshd
            // also refuses the element.
            if (address.parse::<IpNet>()).is_ok_and(|network| network.trunc() != network) {
                return Err(format!("{one:?} has bits after its prefix"));
            }
            list.push(cidr);
        }
        Ok(from)
    }

    /// Whether a login may come from `source`; `None`: the source is unknown.
    pub(super) fn has(&self, source: Option<IpAddr>) -> bool {
        let Some(source) = source.map(|source| source.to_canonical()) else {
            return false;
        };
        let within = |list: &[Cidr]| list.iter().any(|cidr| cidr.contains(source));
        within(&self.yes) && !within(&self.no)
    }
}

/// Parses the keys of a file. Logs each unusable line with its line number.
pub(super) fn parse(path: &Path, text: &str) -> Vec<Authorized> {
    let mut keys = Vec::new();
    for (number, line) in lines(text) {
        match parse_line(line) {
            Ok(key) => keys.push(key),
            Err(problem) => {
                let at = format!("{}:{number}", path.display());
                tracing::warn!(%at, problem, "A key of authorizedKeys is ignored");
            }
        }
    }
    keys
}

/// Parses `[OPTIONS] KEY`.
pub(super) fn parse_line(line: &str) -> Result<Authorized, String> {
    let (options, key) = match public_key(line) {
        Ok(key) => (Vec::new(), key),
        Err(_) => {
            let (options, rest) = options_of(line)?;
            let key =
                public_key(rest).map_err(|error| format!("the key cannot be read: {error}"))?;
            (options, key)
        }
    };
    check_key(key.key_data())?;
    let mut authorized = Authorized {
        key: key.key_data().clone(),
        grant: Grant::default(),
        from: None,
        not_after: None,
    };
    for (name, value) in options {
        apply(&mut authorized, name, value.as_deref())?;
    }
    Ok(authorized)
}

type Options<'a> = Vec<(&'a str, Option<String>)>;

/// Splits a line into its options, `NAME[="VALUE"]` separated by commas, and the rest.
fn options_of(line: &str) -> Result<(Options<'_>, &str), String> {
    let (mut options, mut rest) = (Vec::new(), line);
    loop {
        let end = rest.find([' ', '\t', ',', '=']).unwrap_or(rest.len());
        let (name, behind) = rest.split_at(end);
        if name.is_empty() {
            return Err("an option has no name".to_owned());
        }
        let (value, behind) = match behind.strip_prefix('=') {
            Some(behind) => {
                let read = quoted(behind);
                let (value, behind) =
                    read.ok_or_else(|| format!("the value of {name} is not in quotes"))?;
                (Some(value), behind)
            }
            None => (None, behind),
        };
        options.push((name, value));
        rest = match behind.strip_prefix(',') {
            Some(behind) => behind,
            None if behind.is_empty() || behind.starts_with(SPACES) => {
                return Ok((options, behind.trim_start_matches(SPACES)));
            }
            None => return Err(format!("unexpected text after the value of {name}")),
        };
    }
}

/// Parses a value in quotes, in which a backslash may precede a quote. Also returns the text after
/// the value.
fn quoted(text: &str) -> Option<(String, &str)> {
    let text = text.strip_prefix('"')?;
    let mut value = String::new();
    let mut characters = text.char_indices().peekable();
    while let Some((index, character)) = characters.next() {
        match character {
            '"' => return Some((value, &text[index + 1..])),
            '\\' => {
                let next = characters.next_if(|(_, next)| *next == '"');
                value.push(next.map_or('\\', |(_, quote)| quote));
            }
            character => value.push(character),
        }
    }
    None
}

/// Applies one option. As in sshd, a second `from` is an error, and the earliest `expiry-time`
/// applies.
fn apply(authorized: &mut Authorized, name: &str, value: Option<&str>) -> Result<(), String> {
    let grant = &mut authorized.grant;
    match (name.to_ascii_lowercase().as_str(), value) {
        ("restrict" | "no-port-forwarding", None) => grant.forwards = false,
        ("port-forwarding", None) => grant.forwards = true,
        // The gateway accepts no shells or commands, so these options have no effect.
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
        ("from", Some(_)) if authorized.from.is_some() => {
            return Err("the option `from` occurs twice".to_owned());
        }
        ("from", Some(value)) => authorized.from = Some(From::parse(value)?),
        ("expiry-time", Some(value)) => {
            let last = expiry(value)?;
            let not_after = authorized.not_after.get_or_insert(last);
            *not_after = last.min(*not_after);
        }
        _ => return Err(format!("the option {name} is not supported")),
    }
    Ok(())
}

/// Parses `YYYYMMDD[HHMM[SS]][Z]`, always in UTC.
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

    /// Uses the format of sshd(8), "AUTHORIZED_KEYS FILE FORMAT".
    #[test]
    fn a_key_is_read_between_spaces_and_tabs_of_any_number() {
        let (kind, blob) = KEY.split_once(' ').unwrap();
        for text in [
            format!("{kind}  {blob}"),
            format!("{kind}\t{blob}\tsomebody"),
            format!("restrict\t {kind} \t {blob} somebody\tat home"),
        ] {
            assert!(parse_line(&text).is_ok(), "{text:?}");
        }
        assert!(
            !parse_line(&format!("restrict \t{KEY}"))
                .unwrap()
                .grant
                .forwards
        );
        let rsa = parse_line("ssh-rsa AAAAB3NzaC1yc2EAAAADAQABAAAAQQDa").unwrap_err();
        assert!(rsa.contains("cannot be read"), "{rsa}");
        let fido = "sk-ssh-ed25519@openssh.com AAAAGnNrLXNzaC1lZDI1NTE5QG9wZW5zc2guY29tAAAAICFo/k5LU8863u66YC9eUO2170QduohPURkQnbLa/dczAAAABHNzaDo=";
        assert!(parse_line(fido).is_ok());
        let agreed = "ecdsa-sha2-nistp256 AAAAB3NzaC1yc2EAAAADAQABAAAAQQDa";
        assert!(parse_line(agreed).is_err());
    }

    #[test]
    fn a_value_is_in_quotes_and_no_option_weakens_one_before_it() {
        for options in [
            "from=10.0.0.0/8",
            "from=\"10.1.0.0/8\"",
            "from=\"10.0.0.0/8\"x",
            "from=\"\"10.0.0.0/8\"\"",
            "from=\"10.0.0.0/8",
            "permitopen=\"\"",
            "restrict,",
            ",restrict",
            "restrict,,no-pty",
            "from=\"10.0.0.0/8\",from=\"0.0.0.0/0\"",
            "permitopen=\"web:0\"",
            "permitopen=\"web:+80\"",
            "permitopen=\"::1:80\"",
            "permitopen=\"[::1:80\"",
            "permitopen=\"[::1]80\"",
            "permitlisten=\"0\"",
        ] {
            assert!(line(options).is_err(), "{options}");
        }
        let dates = ["20200101", "20300101"].map(|date| format!("expiry-time=\"{date}\""));
        let earliest = Some(expiry("20200101").unwrap());
        let (one, other) = (dates.join(","), [&*dates[1], &*dates[0]].join(","));
        for options in [one, other] {
            assert_eq!(line(&options).unwrap().not_after, earliest, "{options}");
        }
        // A backslash escapes only a quote.
        let quoted = line("restrict,from=\"a\\\\\",no-pty").unwrap_err();
        assert!(quoted.contains("is not in quotes"), "{quoted}");
    }

    #[test]
    fn a_listener_may_be_one_of_a_pattern_and_a_target_may_not() {
        let listens = line("permitlisten=\"127.0.0.*:8080\"").unwrap().grant;
        assert!(listens.permits_listen("127.0.0.1", 8080));
        for (host, port) in [
            ("127.0.0.1", 8081),
            ("127.0.1.1", 8080),
            ("", 8080),
            ("127.0.0.1", 0),
        ] {
            assert!(!listens.permits_listen(host, port), "{host}:{port}");
        }
        let opens = line("permitopen=\"*.example.com:80\"").unwrap().grant;
        assert!(opens.denies_open("web.example.com", 80).is_some());
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
