use std::io::Write;
use std::time::Duration;

use super::*;

/// Hashes of `secret` and of `correct-horse`, created by crypt(3) of libxcrypt 4.4.33.
const SECRET: &str = "$2y$04$abcdefghijklmnopqrstuu2r9OfJnfCsdneAXAGHnS4UpFFP8WIrW";
const HORSE: &str = "$2y$05$N9qo8uLOickgx2ZMRZoMye./bQohP2JNa6kJDfUyJqRUYQSX5M8SS";

fn file(text: &str) -> tempfile::NamedTempFile {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(text.as_bytes()).unwrap();
    file
}

fn of_file(file: &tempfile::NamedTempFile) -> Auth {
    Auth::UsersFile(file.path().to_str().unwrap().to_owned())
}

fn of_user(file: &tempfile::NamedTempFile) -> Auth {
    Auth::User {
        name: "alice".to_owned(),
        password_file: file.path().to_str().unwrap().to_owned(),
    }
}

/// The verdict without a verification.
fn at_once(users: &Users, user: &str, password: &str) -> Verdict {
    let authentication = users.authentication();
    authentication.authenticate(user.as_bytes(), password.as_bytes())
}

/// The final verdict, and whether a verification was necessary.
async fn verified(users: &Users, user: &str, password: &str) -> (Verdict, bool) {
    let (user, password) = (user.as_bytes(), password.as_bytes());
    let authentication = users.authentication();
    let verdict = authentication.authenticate(user, password);
    if verdict != Verdict::Pending {
        return (verdict, false);
    }
    let until = Instant::now() + Duration::from_secs(60);
    authentication.verify(until).await;
    (authentication.authenticate(user, password), true)
}

#[test]
fn a_user_is_known_by_its_own_password_alone() {
    let file = file("# who\nalice:one:two\n\nbob:three\n");
    let users = Users::new(&of_file(&file)).unwrap();
    for (user, password) in [("alice", "one:two"), ("bob", "three")] {
        assert_eq!(at_once(&users, user, password), Verdict::Known);
    }
    for (user, password) in [
        ("alice", "three"),
        ("alice", "one"),
        ("# who", ""),
        ("", ""),
    ] {
        let verdict = at_once(&users, user, password);
        assert_eq!(verdict, Verdict::Wrong, "{user}:{password}");
    }
}

#[tokio::test]
async fn a_user_is_known_by_the_password_of_its_hash_alone() {
    let text = format!("alice:{SECRET}\nbob:{HORSE}\ncarol:plain\n");
    let users = Users::new(&of_file(&file(&text))).unwrap();
    assert_eq!(at_once(&users, "carol", "plain"), Verdict::Known);
    for (user, password) in [
        ("alice", "wrong"),
        ("alice", "correct-horse"),
        ("bob", "secret"),
        // An unknown user and a wrong plain text password also take the time of a verification.
        ("nobody", "secret"),
        ("", "secret"),
        ("carol", "wrong"),
        // A hash is not accepted as a password.
        ("alice", SECRET),
    ] {
        let expected = (Verdict::Wrong, true);
        let came = verified(&users, user, password).await;
        assert_eq!(came, expected, "{user}:{password}");
    }
    let known = (Verdict::Known, true);
    assert_eq!(verified(&users, "alice", "secret").await, known);
    assert_eq!(verified(&users, "bob", "correct-horse").await, known);
    // No user has a hash of these passwords.
    for password in ["", "secret\0", &"x".repeat(73)] {
        for user in ["alice", "carol", "nobody"] {
            assert_eq!(at_once(&users, user, password), Verdict::Wrong);
        }
    }
}

#[tokio::test]
async fn a_password_that_was_right_is_remembered_until_the_file_changes() {
    let mut file = file(&format!("alice:{SECRET}\n"));
    let users = Users::new(&of_file(&file)).unwrap();
    let of_another_worker = Users::new(&of_file(&file)).unwrap();
    assert_eq!(verified(&users, "alice", "wrong").await.0, Verdict::Wrong);
    let first = verified(&users, "alice", "secret").await;
    assert_eq!(first, (Verdict::Known, true));
    for users in [&users, &of_another_worker] {
        assert_eq!(at_once(users, "alice", "secret"), Verdict::Known);
        // No other password is accepted.
        for (user, password) in [("alice", "wrong"), ("bob", "secret"), ("alices", "ecret")] {
            assert_eq!(at_once(users, user, password), Verdict::Pending);
        }
    }
    file.write_all(b"# the same hash\n").unwrap();
    assert_eq!(at_once(&users, "alice", "secret"), Verdict::Pending);
    assert_eq!(verified(&users, "alice", "secret").await.0, Verdict::Known);
    // The new file replaces the old one and has the same length.
    let another = format!("alice:{}\n# the same hash\n", SECRET.replace("2r9", "2r8"));
    let beside = file.path().with_extension("new");
    std::fs::write(&beside, another).unwrap();
    std::fs::rename(&beside, file.path()).unwrap();
    for users in [&users, &of_another_worker] {
        let came = verified(users, "alice", "secret").await;
        assert_eq!(came, (Verdict::Wrong, true));
    }
}

#[tokio::test]
async fn a_file_that_changes_during_a_verification_is_asked_again() {
    let file = file(&format!("alice:{SECRET}\n"));
    let users = Users::new(&of_file(&file)).unwrap();
    let authentication = users.authentication();
    let authenticate = || authentication.authenticate(b"alice", b"secret");
    assert_eq!(authenticate(), Verdict::Pending);
    authentication
        .verify(Instant::now() + Duration::from_secs(60))
        .await;
    std::fs::write(file.path(), format!("# changed\nalice:{HORSE}\n")).unwrap();
    assert_eq!(authenticate(), Verdict::Pending);
    authentication
        .verify(Instant::now() + Duration::from_secs(60))
        .await;
    assert_eq!(authenticate(), Verdict::Wrong);
}

#[tokio::test]
async fn a_client_that_waits_too_long_is_told_so_and_known_ones_do_not_wait() {
    static HELD: Verifier = Verifier::new();
    let file = file(&format!("alice:{SECRET}\n"));
    let users = Users::with(&of_file(&file), &HELD).unwrap();
    assert_eq!(verified(&users, "alice", "secret").await.0, Verdict::Known);
    let (releases, held) = std::sync::mpsc::channel::<()>();
    let held = Arc::new(Mutex::new(held));
    for number in 0..2 {
        let held = Arc::clone(&held);
        let wait = move || held.lock().recv().is_ok();
        HELD.verdict([number; 32], wait, Instant::now()).await;
    }
    let authentication = users.authentication();
    let authenticate = || authentication.authenticate(b"alice", b"wrong");
    assert_eq!(authenticate(), Verdict::Pending);
    authentication.verify(Instant::now()).await;
    assert_eq!(authenticate(), Verdict::Busy);
    assert_eq!(at_once(&users, "alice", "secret"), Verdict::Known);
    drop(releases);
    assert_eq!(verified(&users, "alice", "wrong").await.0, Verdict::Wrong);
}

#[test]
fn a_password_file_may_end_its_line() {
    let file = file("secret\r\n");
    let users = Users::new(&of_user(&file)).unwrap();
    assert_eq!(at_once(&users, "alice", "secret"), Verdict::Known);
    assert_eq!(at_once(&users, "alice", "secret\n"), Verdict::Wrong);
}

#[tokio::test]
async fn a_password_file_may_have_a_hash_without_a_name() {
    let users = Users::new(&of_user(&file(&format!("{SECRET}\n")))).unwrap();
    assert_eq!(verified(&users, "alice", "secret").await.0, Verdict::Known);
    assert_eq!(verified(&users, "bob", "secret").await.0, Verdict::Wrong);
    let error = Users::new(&of_user(&file(&format!("alice:{SECRET}\n")))).unwrap_err();
    let error = error.to_string();
    assert!(error.contains(":1: has a name before the hash"), "{error}");
}

#[test]
fn a_changed_file_counts_and_a_broken_one_changes_nothing() {
    let mut file = file("alice:one\n");
    let users = Users::new(&of_file(&file)).unwrap();
    let is_known = |user, password| at_once(&users, user, password) == Verdict::Known;
    file.write_all(b"bob:two\n").unwrap();
    assert!(is_known("alice", "one") && is_known("bob", "two"));
    file.write_all(b"no colon\n").unwrap();
    assert!(is_known("alice", "one"));
    let looked_at = std::fs::metadata(file.path()).unwrap();
    assert_eq!(users.version.get(), Version::from(&looked_at));
    std::fs::remove_file(file.path()).unwrap();
    assert!(is_known("bob", "two"));
}

#[test]
fn a_user_who_was_removed_before_the_file_broke_is_known_to_no_worker() {
    for removed in [false, true] {
        let file = file("alice:one\nbob:two\n");
        let workers = [0, 1].map(|_| Users::new(&of_file(&file)).unwrap());
        std::fs::write(file.path(), "alice:one\n").unwrap();
        // The other worker has had no client in the meantime.
        assert_eq!(at_once(&workers[0], "bob", "two"), Verdict::Wrong);
        std::fs::write(file.path(), "no colon").unwrap();
        if removed {
            std::fs::remove_file(file.path()).unwrap();
        }
        for users in &workers {
            assert_eq!(at_once(users, "bob", "two"), Verdict::Wrong);
            assert_eq!(at_once(users, "alice", "one"), Verdict::Known);
        }
    }
}

#[test]
fn a_file_that_cannot_be_used_is_an_error_with_its_line_and_without_its_content() {
    let long = "x".repeat(256);
    for (text, expected) in [
        ("", ": contains no user"),
        ("# secret\n\n", ": contains no user"),
        ("secret", ":1: is not name:password"),
        (
            "# one\n\nalice:secret\nsecret\n",
            ":4: is not name:password",
        ),
        ("alice:", ":1: has a password of 0 bytes: expected 1 to 255"),
        (":secret", ":1: has a name of 0 bytes: expected 1 to 255"),
        (
            &format!("a:b\n{long}:secret"),
            ":2: has a name of 256 bytes",
        ),
        (&format!("a:b\nb:{long}"), ":2: has a password of 256 bytes"),
        ("secret:a\nb:c\nsecret:d", ":3: repeats the user of line 1"),
        (
            &format!("secret:{SECRET}\nb:$2y$99$x"),
            ":2: has a malformed bcrypt hash",
        ),
        (
            &format!("secret:{}", SECRET.replace("$04$", "$15$")),
            ":1: has a bcrypt hash of cost 15: 4 to 14",
        ),
        ("secret:$apr1$x$y", ":1: has a hash that is not supported"),
        (&"a:b\n".repeat(20_000), ": has more than 65536 bytes"),
    ] {
        let file = file(text);
        let error = Users::new(&of_file(&file)).unwrap_err().to_string();
        let path = file.path().to_str().unwrap();
        assert!(error.starts_with(&format!("{path}{expected}")), "{error}");
        assert!(!error.contains("secret"), "{error}");
    }
    let missing = Auth::UsersFile("/no/such/file".to_owned());
    let error = Users::new(&missing).unwrap_err().to_string();
    assert!(error.contains("cannot read /no/such/file"), "{error}");
}

#[test]
fn what_nobody_uses_any_more_is_not_kept() {
    let file = file("alice:one\n");
    let users = Users::new(&of_file(&file)).unwrap();
    let known = Arc::downgrade(&users.known());
    drop(users);
    assert!(known.upgrade().is_none());
}
