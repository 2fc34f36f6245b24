//! Several exits of an entry, each with its keys.

use super::*;

#[tokio::test]
async fn the_key_of_one_exit_is_not_accepted_for_another() {
    let (_dir, entry, first, second) = pairs();
    let exits = [("exit", &first), ("other", &second)].map(|(name, pair)| Peer {
        name: Some(name.to_owned()),
        ..exit_with(vec![pair.key(Role::Exit)])
    });
    let near = KeyTls::load(&entry.config(exits.to_vec()), Role::Entry).unwrap();
    let (made, _far) = met(&near, &first.exit(&[&entry])).await;
    let proof = made.unwrap().proof().unwrap().clone();
    let (refused, far) = met(&near, &second.exit(&[&entry])).await;
    let refused = refused.unwrap_err().to_string();
    let key = second.key(Role::Exit);
    let expected = format!("{key} is not in publicKeys of the exit exit in connect");
    assert!(refused.contains(&expected), "{refused}");
    assert!(far.is_err());
    // A proof stands only for the exit that gave it.
    let now = UnixTime::now();
    assert_eq!(near.standing(&proof, now), Standing::Good);
    let of_other = Proof {
        identity: "other".to_owned(),
        ..proof.clone()
    };
    assert!(matches!(
        near.standing(&of_other, now),
        Standing::Unverified(_)
    ));
    let one = KeyTls::load(&entry.config(exits[1..].to_vec()), Role::Entry).unwrap();
    assert!(matches!(one.standing(&proof, now), Standing::Revoked(_)));
}
