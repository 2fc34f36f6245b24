# shellcheck shell=bash disable=SC2034  # its variables are read by the scripts that source it
# What every script of the cluster shares: messages, places, and the two questions "is it there?" and "does it answer?".
# Sourced, never run. The caller sets `set -euo pipefail`.

CLUSTER_DIR=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
CACHE=${MUXTUNNEL_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/muxtunnel}
CLUSTER_NAME=${MUXTUNNEL_CLUSTER:-muxtunnel}
KUBECONFIG_FILE=$CACHE/kubeconfig-$CLUSTER_NAME
IP_FAMILY=ipv4 POD_SUBNET=10.244.0.0/16 SERVICE_SUBNET=10.96.0.0/16
TOOLS=$CACHE/bin # kind, helm and kubectl as links to what was downloaded or built
# shellcheck source=versions.sh
source "$CLUSTER_DIR/versions.sh"

# choose_cluster [second]: the second cluster, for what crosses clusters, stands beside the first one on the same docker
# network: nodes reach each other's node ports. Its pods and Services have networks of their own, and both IP families.
choose_cluster() {
  case ${1:-} in
    '') ;;
    second)
      CLUSTER_NAME=$CLUSTER_NAME-second
      KUBECONFIG_FILE=$KUBECONFIG_FILE-second
      IP_FAMILY=dual POD_SUBNET=10.245.0.0/16,fd00:10:245::/56 SERVICE_SUBNET=10.97.0.0/16,fd00:10:97::/112
      ;;
    *) die "there is no cluster '$1': leave it out, or say second" ;;
  esac
}

say() { echo "cluster: $*" >&2; }
die() { echo "cluster: error: $*" >&2; exit 1; }

# quietly COMMAND...: what it prints is shown if it fails, and only then.
quietly() {
  local output
  output=$("$@" 2>&1) || { printf '%s\n' "$output" >&2; die "$1 $2 $3 failed; its messages stand above"; }
}

# all_commands NAME...: whether every one of them is on the PATH (`command -v a b` is content with one).
all_commands() {
  local name
  for name in "$@"; do command -v "$name" >/dev/null 2>&1 || return 1; done
}

is_root() { [ "$(id -u)" = 0 ]; }

# apt_install PACKAGE...: installs Debian packages, or says what to install where we may not.
apt_install() {
  if ! is_root || ! all_commands apt-get; then
    die "missing on this machine: $*. Install these packages (as root: apt-get install $*) and run this again."
  fi
  say "apt-get install $*"
  apt-get update -q >/dev/null || say "apt-get update failed, going on with the package lists that are there"
  DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "$@" >/dev/null ||
    die "apt-get install $* failed; its messages stand above"
}

# project_version: of all our packages and images.
project_version() { sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' "$CLUSTER_DIR/../../Cargo.toml"; }

# machine: the architecture as the release servers name it.
machine() {
  case $(uname -m) in
    x86_64) echo amd64 ;;
    aarch64) echo arm64 ;;
    *) die "no pinned releases for the architecture $(uname -m); amd64 and arm64 are known" ;;
  esac
}

# answers URL: whether the server behind it answers at all, within seconds. Any HTTP status counts: registries say 401.
answers() {
  [ -z "${MUXTUNNEL_OFFLINE:-}" ] || return 1
  curl --silent --output /dev/null --head --connect-timeout 3 --max-time 8 "$1"
}

# need_go WHAT: Go is only needed where WHAT cannot be downloaded; the message says so.
need_go() {
  all_commands go || die "$1 cannot be downloaded here (its server does not answer), and Go is not installed to build it: \
install Go 1.26 or newer from https://go.dev/dl, or run this where the release servers and a container registry can be reached."
}

# built_from BINARY MODULE VERSION: whether the Go binary says of itself that it was built from that module version.
built_from() {
  [ -x "$1" ] && go version -m "$1" 2>/dev/null |
    awk -v m="$2" -v v="$3" '($1 == "mod" || $1 == "dep") && $2 == m && $3 == v { found = 1 } END { exit !found }'
}
