# shellcheck shell=bash
# A test runner for shell code. A test is a function named `test_...`. A test runs in a subshell with `set -e` and its
# own scratch folder $SCRATCH, and passes if it ends with 0. The last line is "N passed, N failed".

# expect_equal WANTED GOT, expect_contains TEXT PART, expect_lacks TEXT PART: the checks. expect_lacks fails for an
# empty text. The command that prints the text may have failed, and `set -e` does not detect a failure in an argument.
expect_equal() { [ "$1" = "$2" ] || { printf 'expected: %s\n     got: %s\n' "$1" "$2" >&2; return 1; }; }
expect_contains() { [[ $1 == *"$2"* ]] || { printf 'expected to find: %s\nin:\n%s\n' "$2" "$1" >&2; return 1; }; }
expect_lacks() {
  [ -n "$1" ] || { echo "cannot check that the text lacks \"$2\": the text is empty" >&2; return 1; }
  [[ $1 != *"$2"* ]] || { printf 'expected not to find: %s\nin:\n%s\n' "$2" "$1" >&2; return 1; }
}

# run_tests [NAME...]: runs the named tests of the calling file, by default all of them.
run_tests() {
  local name passed=0 failed=0 output status
  for name in $(declare -F | awk '$3 ~ /^test_/ { print $3 }'); do
    [ $# -eq 0 ] || [[ " $* " == *" $name "* ]] || continue
    SCRATCH=$(mktemp -d)
    # The test does not run in a condition, because `set -e` would have no effect inside the test.
    set +e
    output=$(set -e; cd "$SCRATCH"; "$name" 2>&1)
    status=$?
    set -e
    rm -rf "$SCRATCH"
    if [ $status = 0 ]; then
      passed=$((passed + 1))
      echo "ok      ${name#test_}"
    else
      failed=$((failed + 1))
      printf 'FAILED  %s\n%s\n' "${name#test_}" "$output"
    fi
  done
  echo "$passed passed, $failed failed"
  [ $failed = 0 ]
}
