//! The key that authenticates the operator to a runner.

use std::path::PathBuf;

use muxbench::token::{Admission, Token};
use muxtunnel_operator::benchmark_controller::operator_key::{OperatorKey, published};

#[test]
fn a_runner_admits_the_token_whose_hash_was_published_for_it() {
    let file = std::env::temp_dir().join(format!("muxtunnel-key-{}", std::process::id()));
    let key = OperatorKey::random();
    std::fs::write(&file, published(&key.token("uid-1"))).unwrap();
    let admission = Admission::HashFile(PathBuf::from(&file));
    let admits = |token: &str| {
        let header = Token::new(token).unwrap().header();
        admission.admits(Some(header.as_bytes()))
    };
    assert!(admits(&key.token("uid-1")));
    assert!(!admits(&key.token("uid-2")), "another benchmark's token");
    assert!(
        !admits(&OperatorKey::random().token("uid-1")),
        "another operator's token"
    );
    std::fs::remove_file(&file).unwrap();
}
