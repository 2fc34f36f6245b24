use super::*;

fn check(connect: &str, more: &str) -> Result<Config, String> {
    let text = format!("role: Entry\nsecurity: {{mode: None}}\nconnect: [{connect}]\n{more}");
    Config::from_yaml(&text).map_err(|error| error.to_string())
}

#[test]
fn what_is_no_exit_is_named_with_its_field() {
    let far = "{name: far, address: 'far:1'}";
    let many = (0..=CONNECT_MAX).map(|at| format!("{{name: a{at}, address: 'far:{}'}}", at + 1));
    let many = many.collect::<Vec<_>>().join(", ");
    for (connect, more, expected) in [
        ("", "", "connect: an entry needs its exits"),
        (&*many, "", "connect: has 17 exits: at most 16"),
        ("{name: far}", "", "connect[0].address: is missing"),
        (
            &*format!("{far}, {far}"),
            "",
            "connect[1].name: \"far\" is used twice",
        ),
        (
            "{name: Far, address: 'far:1'}",
            "",
            "connect[0].name: \"Far\" is not a name",
        ),
        ("{name: far-, address: 'far:1'}", "", "connect[0].name: "),
        ("{name: 1far, address: 'far:1'}", "", "connect[0].name: "),
        (
            "{name: sixteenletters16, address: 'far:1'}",
            "",
            "connect[0].name: ",
        ),
        (
            "{name: far, order: 101, address: 'far:1'}",
            "",
            "connect[0].order: must be from 0 to 100",
        ),
        ("{name: far, address: 'far:1', publicKeys: []}", "", ""),
        (
            "{name: far, address: 'far:1', certificateNames: [far]}",
            "",
            "connect[0].certificateNames: does not belong to this security mode",
        ),
        (
            "{name: far, address: 'far:1', webSocket: {host: far}}",
            "",
            "connect[0].webSocket.host: is only for carriers over WebSocket",
        ),
        (
            "{name: far, address: 'far:1', webSocket: {host: 'a b'}}",
            "transport: WebSocket\nwebSocket: {path: /}\n",
            "connect[0].webSocket.host: \"a b\" is not HOST",
        ),
        (
            "{name: far, address: 'far:1', webSocket: {host: far}}",
            "transport: WebSocket\nwebSocket: {path: /}\n",
            "",
        ),
    ] {
        match check(connect, more) {
            Ok(_) => assert_eq!(expected, "", "{connect}"),
            Err(error) => assert!(
                !expected.is_empty() && error.contains(expected),
                "{connect}: {error}"
            ),
        }
    }
}

#[test]
fn an_exit_of_a_certificate_has_names() {
    let with = |names: &str| {
        let security = "security: {mode: Certificates, certificate: /c, key: /k, ca: /a}";
        let connect =
            format!("connect: [{{name: far, address: 'far:1', certificateNames: [{names}]}}]");
        let text = format!("role: Entry\n{security}\n{connect}\n");
        Config::from_yaml(&text).map_err(|error| error.to_string())
    };
    assert!(with("exit.example.com, 'spiffe://example.org/*'").is_ok());
    let many: Vec<_> = (0..33).map(|number| format!("n{number}")).collect();
    for (names, problem) in [
        ("", "connect[0].certificateNames: has 0 names"),
        (
            &*many.join(", "),
            "connect[0].certificateNames: has 33 names",
        ),
        (
            "'a b'",
            "connect[0].certificateNames[0]: \"a b\" is not a name",
        ),
        (
            "a, a",
            "connect[0].certificateNames[1]: \"a\" is listed twice",
        ),
        ("'exit.example.com/*'", "ends in /*, which only a URI"),
        ("'*.example.com'", "is not a name"),
    ] {
        let error = with(names).unwrap_err();
        assert!(error.contains(problem), "{names}: {error}");
    }
}

#[test]
fn identities_of_exits_are_reloaded_and_their_addresses_are_not() {
    let with = |names: &str, address: &str, more: &str| {
        let text = format!(
            "role: Entry\nsecurity: {{mode: Certificates, certificate: /c, key: /k, ca: /a}}\n\
             connect:\n- {{name: far, address: '{address}', certificateNames: [{names}]}}\n{more}"
        );
        Config::from_yaml(&text).unwrap()
    };
    let running = with("a, b", "far:1", "");
    let fewer = with("b", "far:1", "");
    assert!(running.needing_restart(&fewer).is_empty());
    assert_eq!(running.reloaded(&fewer), fewer);
    assert_ne!(running.reloadable().security, fewer.reloadable().security);
    let second = "- {name: near, address: 'near:1', certificateNames: [c]}\n";
    let elsewhere = with("b", "other:1", second);
    assert_eq!(running.needing_restart(&elsewhere), ["connect"]);
    assert_eq!(
        running.reloaded(&elsewhere),
        fewer,
        "the identities of far are in force"
    );
}

#[test]
fn https_is_outside_of_the_carriers_own_security() {
    let with = |security: &str, exit: &str, path: &str| {
        let text = format!(
            "role: Entry\nsecurity: {security}\nconnect: [{{name: far, {exit}, webSocket: {{scheme: HTTPS}}}}]\n{path}"
        );
        Config::from_yaml(&text).map_err(|error| error.to_string())
    };
    let (none, address) = ("{mode: None}", "address: 'far:443'");
    let path = "transport: WebSocket\nwebSocket: {path: /a}\n";
    let config = with(none, address, path).unwrap();
    let written = config.to_yaml().unwrap();
    assert_eq!(Config::from_yaml(&written).unwrap(), config);
    let certificates = "{mode: Certificates, certificate: /c, key: /k, ca: /a}";
    let named = "address: 'far:443', certificateNames: [a]";
    for (security, exit, path, problem) in [
        (
            certificates,
            named,
            path,
            "TLS runs outside of the WebSocket",
        ),
        (none, address, "", "HTTPS needs webSocket.path"),
        (
            none,
            "address: 'unix:/run/far'",
            path,
            "HTTPS needs address: HOST:PORT",
        ),
    ] {
        let error = with(security, exit, path).unwrap_err();
        let named = error.contains("connect[0].webSocket.scheme");
        assert!(named && error.contains(problem), "{error}");
    }
}
