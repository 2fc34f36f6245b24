//! Sides with two keys of their own.

use super::*;

/// The credentials of an entry with two keys and of an exit that knows only the older one, and the
/// texts of both keys.
pub(crate) fn rotating() -> (KeyTls, KeyTls, [String; 2]) {
    let (_dir, old, exit, new) = pairs();
    let entry = with_keys(&[&old, &new], &[exit.key(Role::Exit)], Role::Entry);
    let texts = [&old, &new].map(|pair| pair.key(Role::Entry).to_string());
    (entry, exit.exit(&[&old]), texts)
}

/// The credentials of a side with these keys, the newest last.
fn with_keys(own: &[&Pair], peers: &[GatewayKey], role: Role) -> KeyTls {
    let peers = match role {
        Role::Entry => vec![exit_with(peers.to_vec())],
        _ => peers.iter().copied().map(Peer::with_key).collect(),
    };
    let config = PublicKeys {
        private_key_files: own.iter().map(|pair| pair.file.clone()).collect(),
        ..own[0].config(peers)
    };
    KeyTls::load(&config, role).unwrap()
}

#[tokio::test]
async fn an_exit_presents_the_newest_key_that_the_entry_accepts() {
    let (dir, entry, old, new) = pairs();
    let other = Pair::new(dir.path(), "other");
    let exit = with_keys(&[&old, &new], &[entry.key(Role::Entry)], Role::Exit);
    let shown: Vec<_> = exit.own().copied().collect();
    assert_eq!(shown, [new.key(Role::Exit), old.key(Role::Exit)]);
    for (accepted, proved) in [
        (&[&old][..], &old),
        (&[&new, &old][..], &new),
        (&[&old, &new][..], &new),
        (&[&new][..], &new),
        (&[&other, &old][..], &old),
    ] {
        let (near, _far) = met(&entry.entry(accepted), &exit).await;
        assert_eq!(super::proved(&*near.unwrap()), proved.bytes);
    }
    // No key of this exit is accepted.
    let (near, far) = met(&entry.entry(&[&other]), &exit).await;
    let (near, far) = (near.unwrap_err(), far.unwrap_err());
    let key = old.key(Role::Exit).to_string();
    assert!(near.to_string().contains(&key), "{near}");
    assert_eq!(KeyRefusal::find(&far), Some(&KeyRefusal::ByPeer(None)));
}

#[tokio::test]
async fn an_entry_presents_its_older_key_to_an_exit_that_refuses_the_newer_one() {
    let (_dir, old, exit, new) = pairs();
    let entry = with_keys(&[&old, &new], &[exit.key(Role::Exit)], Role::Entry);
    let identity = |far: Result<Box<dyn Transport>>| far.unwrap().identity().map(str::to_owned);
    let [old_key, new_key] = [&old, &new].map(|pair| pair.key(Role::Entry));
    let knows_both = exit.exit(&[&old, &new]);
    let (_near, far) = met(&entry, &knows_both).await;
    assert_eq!(identity(far), Some(new_key.to_string()));
    let knows_old = exit.exit(&[&old]);
    let (near, _far) = met(&entry, &knows_old).await;
    let refused = KeyRefusal::ByPeer(Some(new_key));
    assert_eq!(KeyRefusal::find(&near.unwrap_err()), Some(&refused));
    let (_near, far) = met(&entry, &knows_old).await;
    assert_eq!(identity(far), Some(old_key.to_string()));
    // New credentials remember it, until the exit refuses this key as well.
    let mut again = with_keys(&[&old, &new], &[exit.key(Role::Exit)], Role::Entry);
    again.remember(&entry);
    let (_near, far) = met(&again, &knows_both).await;
    assert_eq!(identity(far), Some(old_key.to_string()));
    let knows_new = exit.exit(&[&new]);
    assert!(met(&again, &knows_new).await.0.is_err());
    let (_near, far) = met(&again, &knows_new).await;
    assert_eq!(identity(far), Some(new_key.to_string()));
}

#[test]
fn dials_that_fail_together_change_the_key_once_and_the_hosts_are_bounded() {
    let (_dir, old, exit, new) = pairs();
    let entry = with_keys(&[&old, &new], &[exit.key(Role::Exit)], Role::Entry);
    let [old, new] = [&old, &new].map(|pair| Some(pair.key(Role::Entry)));
    let exit = entry.exit(To::exit("a")).unwrap();
    let present = |host: &str| entry.for_dial(exit, host).1;
    let [first, second, other] = ["a", "a", "b"].map(present);
    assert_eq!([first.key(), second.key(), other.key()], [new; 3]);
    first.refused();
    second.refused();
    assert_eq!([present("a").key(), present("b").key()], [old, new]);
    for host in 0..1000 {
        present(&host.to_string()).refused();
    }
    assert_eq!(present("999").key(), old);
    assert_eq!(present("a").key(), new);
}

#[test]
fn a_gateway_does_not_load_one_key_twice() {
    let (dir, entry, exit, stranger) = pairs();
    let copy = dir.path().join("copy");
    std::fs::copy(&entry.file, &copy).unwrap();
    let mut config = entry.config(vec![exit_with(vec![exit.key(Role::Exit)])]);
    config.private_key_files.push(copy);
    let error = KeyTls::load(&config, Role::Entry).unwrap_err().to_string();
    assert!(error.contains("has the same key as"), "{error}");
    // Each own key is refused as the key of a peer.
    config.private_key_files[1] = stranger.file.clone();
    config.peers = vec![exit_with(vec![stranger.key(Role::Exit)])];
    let error = KeyTls::load(&config, Role::Entry).unwrap_err().to_string();
    assert!(error.contains("own key"), "{error}");
}
