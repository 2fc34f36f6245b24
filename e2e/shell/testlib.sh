# shellcheck shell=bash
# A test runner for shell code. A test is a function named `test_...`; it runs in a subshell with `set -e` and a
# scratch folder of its own as $SCRATCH, and passes when it ends with 0. The last line is "N passed, N failed".

# expect_equal WANTED GOT, expect_contains TEXT PART, expect_lacks TEXT PART: the checks. An empty text lacks everything: it
# fails, for the command that should have printed it may have failed, and `set -e` does not see that in an argument.
expect_equal() { [ "$1" = "$2" ] || { printf 'expected: %s\n     got: %s\n' "$1" "$2" >&2; return 1; }; }
expect_contains() { [[ $1 == *"$2"* ]] || { printf 'expected to find: %s\nin:\n%s\n' "$2" "$1" >&2; return 1; }; }
expect_lacks() {
  [ -n "$1" ] || { echo "nothing to look for $2 in: the text is empty" >&2; return 1; }
  [[ $1 != *"$2"* ]] || { printf 'expected not to find: %s\nin:\n%s\n' "$2" "$1" >&2; return 1; }
}

# run_tests: every test of the file that calls it. Arguments: names of the only tests to run.
run_tests() {
  local name passed=0 failed=0 output status
  for name in $(declare -F | awk '$3 ~ /^test_/ { print $3 }'); do
    [ $# -eq 0 ] || [[ " $* " == *" $name "* ]] || continue
    SCRATCH=$(mktemp -d)
    # Not in a condition: there `set -e` would not hold inside the test.
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
