//! Checks that no modules of the crate use each other in a circle.

use muxtunnel_testkit::layers::assert_no_circles;

#[test]
fn no_modules_use_each_other_in_a_circle() {
    assert_no_circles(env!("CARGO_MANIFEST_DIR"), "", &["tests"]);
}
