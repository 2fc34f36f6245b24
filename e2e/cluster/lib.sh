# shellcheck shell=bash disable=SC2034  # its variables are read by the scripts that source it
# Shared by the scripts of the cluster: folders, progress messages, log files, and checks of programs and servers.
# This file is sourced and never run. The caller sets `set -euo pipefail`.

CLUSTER_DIR=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
CACHE=${MUXTUNNEL_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/muxtunnel}
CLUSTER_NAME=${MUXTUNNEL_CLUSTER:-muxtunnel}
KUBECONFIG_FILE=$CACHE/kubeconfig-$CLUSTER_NAME
IP_FAMILY=ipv4 POD_SUBNET=10.244.0.0/16 SERVICE_SUBNET=10.96.0.0/16
TOOLS=$CACHE/bin # links to the downloaded or built kind, helm and kubectl
CARGO_TOOLS=$CACHE/cargo # programs that cargo has built
LOG_FOLDER=$CACHE/logs
LOG_LINES_SHOWN=20
TERMINAL=2 # file descriptor of progress messages; `logged` redirects the others
# shellcheck source=versions.sh
source "$CLUSTER_DIR/versions.sh"

# choose_cluster [second]: selects the cluster. The second cluster, for traffic between clusters, is on the same docker
# network, so nodes can reach each other's node ports. Its pods and Services have separate networks and both IP
# families.
choose_cluster() {
  case ${1:-} in
    '') ;;
    second)
      CLUSTER_NAME=$CLUSTER_NAME-second
      KUBECONFIG_FILE=$KUBECONFIG_FILE-second
      IP_FAMILY=dual POD_SUBNET=10.245.0.0/16,fd00:10:245::/56 SERVICE_SUBNET=10.97.0.0/16,fd00:10:97::/112
      ;;
    *) die "unknown cluster '$1': expected 'second' or no argument" ;;
  esac
}

# steps COUNT: declares that the calling script has COUNT steps. With MUXTUNNEL_STEPS=BEFORE/TOTAL, these steps are part
# of TOTAL steps, and come after the first BEFORE steps.
steps() {
  local part=${MUXTUNNEL_STEPS:-}
  [[ $part =~ ^[0-9]+/[0-9]+$ ]] || part=0/$1
  STEP=${part%/*} STEPS=${part#*/}
}

# step TEXT: begins the next step.
step() {
  STEP=$((STEP + 1))
  echo "[$STEP/$STEPS] $*" >&"$TERMINAL"
}

# say TEXT: prints a detail of the step.
say() { echo "      $*" >&"$TERMINAL"; }

die() { echo "error: $*" >&2; exit 1; }

# log_file NAME: prints the path of a log file and creates its folder.
log_file() {
  mkdir -p "$LOG_FOLDER"
  echo "$LOG_FOLDER/$1.log"
}

# logged NAME COMMAND...: runs COMMAND with its output in the log file NAME. Only `step` and `say` write to the
# terminal. If COMMAND fails, the script ends with the last lines of the log. Never call `logged` in a condition,
# because errexit would have no effect inside COMMAND.
logged() {
  local name=$1 log status
  shift
  if [ "$TERMINAL" != 2 ]; then # inside another `logged`: use the same log
    "$@"
    return
  fi
  log=$(log_file "$name")
  set +e
  (set -e; TERMINAL=3; "$@") 3>&2 >"$log" 2>&1
  status=$?
  set -e
  [ $status != 0 ] || return 0
  echo "error: the step failed with status $status. The last lines of its log, $log:" >&2
  tail -n "$LOG_LINES_SHOWN" "$log" | sed 's/^/    /' >&2
  exit 1
}

# quietly COMMAND...: shows the output of COMMAND only if it fails.
quietly() {
  local output
  output=$("$@" 2>&1) || { printf '%s\n' "$output" >&2; die "$1 $2 $3 failed; its output is above"; }
}

# all_commands NAME...: whether all commands are on the PATH (`command -v a b` also succeeds if only one of the commands
# is on the PATH).
all_commands() {
  local name
  for name in "$@"; do command -v "$name" >/dev/null 2>&1 || return 1; done
}

is_root() { [ "$(id -u)" = 0 ]; }

# apt_install PACKAGE...: installs Debian packages. Without root, it prints their names and exits.
apt_install() {
  if ! is_root || ! all_commands apt-get; then
    die "missing packages: $*. Install them (as root: apt-get install $*) and run this command again."
  fi
  say "apt-get install $*"
  logged packages apt_get_install "$@"
}

apt_get_install() {
  apt-get update -q || echo "apt-get update failed; continuing with the present package lists"
  DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "$@"
}

# project_version: prints the version of all packages and images of this project.
project_version() { sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' "$CLUSTER_DIR/../../Cargo.toml"; }

# machine: prints the name of the architecture that the release servers use.
machine() {
  case $(uname -m) in
    x86_64) echo amd64 ;;
    aarch64) echo arm64 ;;
    *) die "unsupported architecture $(uname -m): expected x86_64 or aarch64" ;;
  esac
}

# answers URL: whether the server answers within seconds. Any HTTP status counts, because registries return 401.
answers() {
  [ -z "${MUXTUNNEL_OFFLINE:-}" ] || return 1
  curl --silent --output /dev/null --head --connect-timeout 3 --max-time 8 "$1"
}

# cargo_tool NAME VERSION OPTION...: installs a program from crates.io in the cache. If it is missing, builds it once,
# without optimisation: it runs for seconds, and an optimised build takes minutes.
cargo_tool() {
  local name=$1 version=$2
  shift 2
  [ -x "$CARGO_TOOLS/bin/$name" ] && "$CARGO_TOOLS/bin/$name" --version | grep -qF "$version" && return
  say "building $name $version"
  mkdir -p "$CACHE"
  # The build runs outside the checkout, so that cargo does not use the checkout's Cargo.lock and target folder.
  (cd "$CACHE" && CARGO_TARGET_DIR=$CACHE/cargo-build/$name cargo install --quiet --locked --debug --root "$CARGO_TOOLS" "$@" "$name@$version")
  rm -rf "$CACHE/cargo-build/$name"
}

cargo_nextest() { cargo_tool cargo-nextest "$CARGO_NEXTEST" --no-default-features --features default-no-update; }

# need_go WHAT: fails if Go is not installed. Go is needed only if WHAT cannot be downloaded.
need_go() {
  all_commands go || die "cannot download $1 (its server does not answer), and Go is not installed to build it. \
Install Go 1.26 or newer from https://go.dev/dl, or use a network with access to the release servers and a container registry."
}

# built_from BINARY MODULE VERSION: whether the build information of the Go binary names that module version.
built_from() {
  [ -x "$1" ] && go version -m "$1" 2>/dev/null |
    awk -v m="$2" -v v="$3" '($1 == "mod" || $1 == "dep") && $2 == m && $3 == v { found = 1 } END { exit !found }'
}
